/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/between_hosts.h"

#include "base/err.h"
#include "ir/state.h"

/*
 * Whether a reduction ends with its sum on every host: an all-reduce, and a reduce-scatter to the
 * ranks that share each host's state.
 */
static bool is_on_every_host(const struct ku_volume *row, const struct ku_mesh *m)
{
    const int both = 1 << KU_AX_REPLICATE | 1 << KU_AX_LOCAL;
    return row->exchange != KU_X_REDUCE_SCATTER || ku_mesh_wide(m, row->axes & both) == both;
}

/* The communicator of `rank` along some axes of the mesh, as the trainer opens it. */
static struct ku_members members_of(const struct ku_mesh *m, int axes, int group, int rank)
{
    struct ku_coord first = ku_mesh_coord(m, rank), second;
    int n = 1, innermost = 0;
    if (group)
        return (struct ku_members){rank / group * group, 1, group};
    axes = ku_mesh_wide(m, axes);
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (axes >> a & 1) {
            first.at[a] = 0;
            n *= m->extent[a];
            innermost = a;
        }
    second = first;
    second.at[innermost] = n > 1;
    const int from = ku_mesh_rank(m, &first);
    return (struct ku_members){from, n > 1 ? ku_mesh_rank(m, &second) - from : 1, n};
}

int ku_plan_far_volumes(const struct ku_program *p, const struct ku_host_ranks *host, int n_hosts,
                        struct ku_volume *row, int n)
{
    const int n_ranks = ku_mesh_n_ranks(&p->mesh);
    for (int i = 0; i < n; i++) {
        row[i].far_bytes = 0;
        for (int rank = 0; rank < n_ranks && n_hosts > 1; rank++) {
            const struct ku_members c = members_of(&p->mesh, row[i].axes, row[i].group, rank);
            double reduce, gather;
            if (c.first != rank) /* its first member stands for it */
                continue;
            KU_TRY(ku_far_cost_bytes(&c, host, n_hosts, &reduce, &gather));
            if (row[i].exchange != KU_X_ALL_GATHER)
                row[i].far_bytes += reduce * row[i].wire_bytes;
            if (is_on_every_host(&row[i], &p->mesh))
                row[i].far_bytes += gather * row[i].dtype_bytes;
        }
    }
    return KUMI_OK;
}

int ku_plan_far_pool(const struct ku_mesh *m, const struct ku_host_ranks *host, int n_hosts,
                     int rank, size_t *bytes)
{
    /* all ranks; and with groups the ranks of one, and those with equal shards */
    const int owners = ku_state_owner_axes(m), replicas = ku_mesh_wide(m, 1 << KU_AX_REPLICATE);
    const int axes[] = {(1 << KU_AX_FIRST_TIME) - 1, owners, replicas};
    *bytes = 0;
    for (int i = 0; i < (owners && replicas ? 3 : 1) && n_hosts > 1; i++) {
        const struct ku_members c = members_of(m, axes[i], 0, rank);
        size_t more;
        KU_TRY(ku_far_cost_pool(&c, host, n_hosts, (rank - c.first) / c.stride, &more));
        *bytes += more;
    }
    return KUMI_OK;
}
