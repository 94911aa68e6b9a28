/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/between_hosts.h"

#include "base/err.h"

/* The ranks that divide one copy of the state. */
static int n_owners(const struct ku_mesh *m)
{
    return m->extent[KU_AX_SHARD] * m->extent[KU_AX_LOCAL];
}

/*
 * Whether a reduction ends with its sum on every host: an all-reduce, and a reduce-scatter to the
 * ranks that share each host's state.
 */
static bool is_on_every_host(const struct ku_volume *row, const struct ku_mesh *m)
{
    return row->exchange != KU_X_REDUCE_SCATTER ||
           (m->extent[KU_AX_REPLICATE] > 1 && m->extent[KU_AX_LOCAL] > 1);
}

/* As exec chooses a communicator; the one that `rank` is in. */
static struct ku_members members_of(const struct ku_mesh *m, int axes, int group, int rank)
{
    const int owners = n_owners(m), replicate = m->extent[KU_AX_REPLICATE];
    if (group)
        return (struct ku_members){rank / group * group, 1, group};
    if ((axes == 1 << KU_AX_SHARD || axes == 1 << KU_AX_LOCAL) && owners > 1 && replicate > 1)
        return (struct ku_members){rank / owners * owners, 1, owners};
    if (axes == 1 << KU_AX_REPLICATE && owners > 1 && replicate > 1)
        return (struct ku_members){rank % owners, owners, replicate};
    return (struct ku_members){0, 1, ku_mesh_n_ranks(m)};
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
    const int owners = n_owners(m), replicate = m->extent[KU_AX_REPLICATE];
    const struct ku_members all = {0, 1, ku_mesh_n_ranks(m)};
    const struct ku_members replicas = {rank % owners, owners, replicate};
    size_t more = 0;
    *bytes = 0;
    if (n_hosts <= 1)
        return KUMI_OK;
    KU_TRY(ku_far_cost_pool(&all, host, n_hosts, rank, bytes));
    if (owners > 1 && replicate > 1)
        KU_TRY(ku_far_cost_pool(&replicas, host, n_hosts, rank / owners, &more));
    *bytes += more;
    return KUMI_OK;
}
