/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/between_hosts.h"

#include "base/err.h"
#include "ir/state.h"
#include "tensor/blocks.h"
#include "tensor/dtype.h"

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

/* A part of a collective as exec binds it. Returns the number of vectors. */
static int64_t vector_of(const struct ku_program *p, const struct ku_instr *i,
                         const struct ku_operand *o, const struct ku_coord *at,
                         struct ku_far_vector *v)
{
    struct ku_split_parts split = {.n = 1};
    struct ku_shape local;
    struct ku_part own;
    *v = (struct ku_far_vector){.block_count = i->op == KU_X_ALL_REDUCE ? 0 : KU_BLOCK_COUNT,
                                .first = o->first_block,
                                .each_bytes = kumi_dtype_bytes((enum kumi_dtype)o->dtype),
                                .wire_bytes = kumi_dtype_bytes((enum kumi_dtype)i->wire)};
    if (ku_program_split_parts(p, o, i->axes, at, &split)) {
        v->count = split.count, v->block_count = split.chunk, v->first = 0;
    } else if (i->op == KU_X_ALL_REDUCE && ku_layout_has(&p->layout[o->layout], KU_Z)) {
        ku_program_part(p, o, at, -1, &own); /* replicas reduce what they have in common */
        v->count = ku_shape_count(&own.shape);
    } else {
        ku_local_shape(&p->mesh, &p->shape[o->shape], &p->layout[o->layout], at, &local);
        v->count = ku_shape_count(&local);
    }
    return split.n;
}

/* Far bytes of a row, vector by vector, of the communicator that begins with `rank`. */
static double bytes_by_vector(const struct ku_program *p, const struct ku_volume *row, int rank,
                              const struct ku_far_cost *cost)
{
    const struct ku_coord at = ku_mesh_coord(&p->mesh, rank);
    const bool is_gathered = is_on_every_host(row, &p->mesh);
    struct ku_far_vector v;
    double bytes = 0;
    for (uint32_t n = 0; n < p->n_instrs; n++) {
        const struct ku_instr *i = &p->instr[n];
        int64_t index = 0;
        for (uint32_t k = 0; ku_plan_counts(p, row, i) && k < i->n_parts; k++) {
            const struct ku_operand *o = &p->operand[i->operand + i->n_in + k];
            const int64_t n_vectors = vector_of(p, i, o, &at, &v);
            if (i->op == KU_X_ALL_REDUCE)
                v.first = index;
            if (i->op != KU_X_ALL_GATHER)
                bytes += (double)n_vectors * ku_far_cost_reduced(cost, &v);
            if (is_gathered)
                bytes += (double)n_vectors * ku_far_cost_gathered(cost, &v);
            index += n_vectors;
        }
    }
    return bytes;
}

static bool is_even(const struct ku_host_ranks *host, int n_hosts)
{
    for (int h = 1; h < n_hosts; h++)
        if (host[h].n != host[0].n)
            return false;
    return true;
}

/*
 * Adds the far bytes of a communicator. Where its members are uneven over the hosts they depend on
 * which member has how much of each vector; on uneven hosts the communicators of a row differ.
 */
static int add_far(const struct ku_program *p, const struct ku_members *c,
                   const struct ku_host_ranks *host, int n_hosts, struct ku_volume *row)
{
    double reduce, gather;
    bool is_exact;
    KU_TRY(ku_far_cost_bytes(c, host, n_hosts, row->exchange == KU_X_ALL_REDUCE, &reduce, &gather,
                             &is_exact));
    if (!is_exact || !is_even(host, n_hosts)) {
        struct ku_far_cost *cost;
        KU_TRY(ku_far_cost_create(c, host, n_hosts, &cost));
        if (cost)
            row->far_bytes += bytes_by_vector(p, row, c->first, cost);
        ku_far_cost_destroy(cost);
        return KUMI_OK;
    }
    if (row->exchange != KU_X_ALL_GATHER)
        row->far_bytes += reduce * row->wire_bytes;
    if (is_on_every_host(row, &p->mesh))
        row->far_bytes += gather * row->dtype_bytes;
    return KUMI_OK;
}

int ku_plan_far_volumes(const struct ku_program *p, const struct ku_host_ranks *host, int n_hosts,
                        struct ku_volume *row, int n)
{
    const int n_ranks = ku_mesh_n_ranks(&p->mesh);
    for (int i = 0; i < n; i++) {
        row[i].far_bytes = 0;
        for (int rank = 0; rank < n_ranks && n_hosts > 1; rank++) {
            const struct ku_members c = members_of(&p->mesh, row[i].axes, row[i].group, rank);
            const bool is_other = !(row[i].axes >> KU_AX_PP & 1) &&
                                  ku_mesh_coord(&p->mesh, rank).at[KU_AX_PP] != p->pp;
            if (c.first == rank && !is_other)
                KU_TRY(add_far(p, &c, host, n_hosts, &row[i]));
        }
    }
    return KUMI_OK;
}

/* The elements that a rank has of a message. */
static double count_of(const struct ku_program *p, const struct ku_operand *o, int rank)
{
    const struct ku_coord at = ku_mesh_coord(&p->mesh, rank);
    struct ku_part part;
    ku_program_part(p, o, &at, -1, &part);
    return (double)ku_shape_count(&part.shape);
}

/* From host `h` on, where a lower rank is. */
static int host_of(const struct ku_host_ranks *host, int n_hosts, int h, int rank)
{
    while (h + 1 < n_hosts && host[h + 1].first <= rank)
        h++;
    return h;
}

/* Adds a message of all ranks of the coordinate. */
static void add_message(const struct ku_program *p, const struct ku_instr *i,
                        const struct ku_host_ranks *host, int n_hosts, struct ku_step_bytes *out)
{
    const struct ku_operand *o = &p->operand[i->operand];
    const int n = ku_mesh_n_ranks(&p->mesh) / p->mesh.extent[KU_AX_PP], first = n * p->pp;
    const double each = (double)kumi_dtype_bytes((enum kumi_dtype)o->dtype);
    const bool is_even = !ku_layout_has(&p->layout[o->layout], KU_Z);
    double count = count_of(p, o, first);
    int own = 0, other = 0; /* hosts of the sender and the receiver, which ascend */
    if (is_even && n_hosts <= 1)
        out->messages += count * each * n;
    for (int r = 0; r < n && !(is_even && n_hosts <= 1); r++) {
        count = is_even ? count : count_of(p, o, first + r);
        own = host_of(host, n_hosts, own, first + r);
        other = host_of(host, n_hosts, other, n * i->peer + r);
        const bool is_near = n_hosts <= 1 || own == other;
        *(is_near ? &out->messages : &out->far_messages) += count * each;
    }
}

int ku_plan_step_bytes(const struct ku_program *p, const struct ku_host_ranks *host, int n_hosts,
                       struct ku_step_bytes *out)
{
    struct ku_volume row[KU_MAX_VOLUMES];
    const int n = ku_plan_volumes(p, row);
    const double n_ranks = ku_mesh_n_ranks(&p->mesh) / p->mesh.extent[KU_AX_PP];
    *out = (struct ku_step_bytes){0};
    KU_TRY(ku_plan_far_volumes(p, host, host ? n_hosts : 1, row, n));
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        if (ku_plan_sends(p, at))
            add_message(p, &p->instr[at], host, host ? n_hosts : 1, out);
    }
    out->stored = out->messages;
    out->far = out->far_messages;
    for (int k = 0; k < n; k++) {
        out->ring += row[k].ring_bytes * n_ranks;
        out->stored += row[k].stored_bytes * n_ranks;
        out->far += row[k].far_bytes;
    }
    return KUMI_OK;
}

int ku_plan_far_pool(const struct ku_mesh *m, const struct ku_host_ranks *host, int n_hosts,
                     int rank, size_t full_rate_bytes, size_t *bytes)
{
    /* all ranks; with groups the ranks of one, and those with equal shards; with stages or slices
     * the data-parallel ranks of one, and the ranks that divide a layer */
    const int owners = ku_state_owner_axes(m), replicas = ku_mesh_wide(m, 1 << KU_AX_REPLICATE),
              data = ku_mesh_wide(m, KU_DP_AXES), tp = ku_mesh_wide(m, KU_TP_AXES);
    int axes[7] = {(1 << KU_AX_FIRST_TIME) - 1}, n = 1;
    if (owners && replicas)
        axes[n++] = owners, axes[n++] = replicas;
    if (data && ku_mesh_wide(m, 1 << KU_AX_PP | KU_TP_AXES))
        axes[n++] = data;
    if (tp)
        axes[n++] = tp;
    if (tp == KU_TP_AXES)
        axes[n++] = 1 << KU_AX_TP, axes[n++] = 1 << KU_AX_TPI;
    *bytes = 0;
    for (int i = 0; i < n && n_hosts > 1; i++) {
        const struct ku_members c = members_of(m, axes[i], 0, rank);
        size_t more;
        KU_TRY(ku_far_cost_pool(&c, host, n_hosts, (rank - c.first) / c.stride, full_rate_bytes,
                                &more));
        *bytes += more;
    }
    return KUMI_OK;
}
