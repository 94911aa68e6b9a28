/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeRO: partitions the state by canonical chunks of KU_BLOCK_COUNT elements
 * (docs/reference/sharding.md). A partitioned tensor has placement Z on mesh axis shard or local.
 * Gradients change from C to Z (the all-reduce becomes a reduce-scatter), and Z propagates through
 * the element-wise nodes of O.
 *
 *     chunk     0    1    2    3    4    5       6 chunks, 4 ranks, first_block 1: a rank owns
 *     owner     0    1    1    2    2    3       consecutive chunks; ranks 1 and 2 get one more
 *
 *     local    the ranks of a host share one copy: each rank updates its owned shard, all read in
 *              place. The stage changes nothing. Several hosts: replicate is the number of hosts,
 *              and each has a copy; the chunks are dealt within a host.
 *     both     stages 1 to 3 on several hosts: shard is the host. What a stage divides is stored
 *              by all ranks of all hosts, or of those of a replica, as below; the rest once per
 *              host. The gather after the update goes into the copies of the hosts, those of stage
 *              3 into a buffer that the ranks of a host share.
 *     shard    stage 1 and up: a rank stores its shard of the optimizer state and of masters;
 *              parameters that forward reads are gathered after the update. Stage 3: these are
 *              partitioned too (zero_params.c).
 *
 * ir/state.h tells what follows for the storage of each tensor.
 */
#include "base/err.h"
#include "ir/placement_rules.h"
#include "ir/state.h"
#include "base/mem.h"
#include "pass/zero.h"

ku_id ku_zero_in_blocks(struct ku_graph *g, ku_id layout, int axes)
{
    struct ku_layout l = g->layout[layout];
    for (int a = 0; a < KU_N_AXES; a++)
        if (axes >> a & 1)
            l.at[a] = (struct ku_place){.kind = KU_Z};
    return ku_graph_layout(g, &l);
}

/* Sets first_block, the first rank that owns one chunk more (tensor/blocks.h), continuing from
 * tensor to tensor so that the totals of any two ranks differ by at most one chunk. */
static void assign_chunks(struct ku_graph *g, int dp)
{
    int64_t first = 0;
    for (ku_id t = 1; t < g->n_tensors; t++) {
        struct ku_tensor *x = &g->tensor[t];
        if (x->kind == KU_T_COUNTER)
            continue;
        if (x->of) { /* optimizer state and copies: as their parameter */
            x->first_block = g->tensor[x->of].first_block;
            continue;
        }
        const int64_t count = ku_program_slice_count(&g->mesh, &g->shape[x->shape],
                                                     &g->layout[g->value[x->value].layout]);
        const int64_t n_blocks = (count + KU_BLOCK_COUNT - 1) / KU_BLOCK_COUNT;
        x->first_block = (int32_t)first;
        first = (first + n_blocks) % dp;
    }
}

/*
 * Whether a convert completes a gradient, over the ranks of axis tp last, or is the part of one
 * that a rank of axis tp squares.
 */
static bool is_gradient(const struct ku_graph *g, ku_id node)
{
    const struct ku_node *n = &g->node[node];
    const struct ku_value *from = &g->value[ku_in(g, n, 0)];
    if (n->op != KU_OP_convert || n->phase != KU_PH_O || from->role != KU_TEMP)
        return false;
    const int phase = g->node[from->def].phase;
    if (phase == KU_PH_O && g->node[from->def].op == KU_OP_convert &&
        (ku_layout_axes(&g->layout[from->layout], KU_P) & KU_TP_AXES))
        return true;
    return phase == KU_PH_O ? ku_layout_has(&g->layout[g->value[ku_out(g, node, 0)].layout], KU_Z)
                            : phase != KU_PH_F;
}

/* Whether sums are complete over the ranks that divide the update: a convert of tensor-parallel
 * axes alone leaves those of each rank's chunks. */
static bool is_complete(const struct ku_graph *g, ku_id sums)
{
    const struct ku_node *n = &g->node[g->value[sums].def];
    return n->op == KU_OP_convert &&
           (g->attr[n->attr].axes == 0 || (g->attr[n->attr].axes & ~KU_TP_AXES));
}

/* The last node that reads sums which are not yet summed over ranks (KU_OP_TOTALS), of the first
 * such sums; 0: none. */
static ku_id find_incomplete(const struct ku_graph *g)
{
    ku_id reader = 0, sums = 0;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        ku_id from = ku_ops[g->node[n].op].traits & KU_OP_TOTALS ? ku_in(g, &g->node[n], 0) : 0;
        if (from == 0 || is_complete(g, from) || (sums && from != sums))
            continue;
        sums = from;
        reader = n;
    }
    return reader;
}

/* Inserts the sum over ranks that partitioning requires: operand 0 of `reader` (statistics, sums of
 * layer-wise optimizers) is now partial. */
static int complete_sums(struct ku_graph *g, ku_id reader, int axes)
{
    ku_id sums = ku_in(g, &g->node[reader], 0);
    const char *path = g->name[g->node[reader].path];
    struct ku_attrs a = ku_attrs_default;
    a.axes = axes;
    ku_id node = ku_graph_node(g, &(struct ku_make){.op = KU_OP_convert,
                                                    .phase = KU_PH_O,
                                                    .n_in = 1,
                                                    .in = {sums},
                                                    .attr = &a,
                                                    .path = path});
    if (node == 0)
        return ku_err_get()->status;
    KU_TRY(ku_place_complete(g, node));
    for (ku_id n = 1; n < node; n++)
        if ((ku_ops[g->node[n].op].traits & KU_OP_TOTALS) && ku_in(g, &g->node[n], 0) == sums)
            g->refs[g->node[n].in] = ku_out(g, node, 0);
    for (uint32_t i = 0; i < g->n_outputs; i++)
        if (g->output[i].value == sums)
            g->output[i].value = ku_out(g, node, 0);
    return ku_graph_sort(g);
}

/* Partitions the operand of `derive` in O over the ranks that update a copy of the state: each
 * writes its owned shard. */
static int partition_derived(struct ku_graph *g, int axes)
{
    for (ku_id n = 1, n_nodes = g->n_nodes; n < n_nodes; n++) {
        if (g->node[n].op != KU_OP_derive || g->node[n].phase != KU_PH_O)
            continue;
        struct ku_attrs a = ku_attrs_default;
        a.axes = axes;
        ku_id cut = ku_graph_node(g, &(struct ku_make){.op = KU_OP_convert,
                                                       .phase = KU_PH_O,
                                                       .n_in = 1,
                                                       .in = {ku_in(g, &g->node[n], 0)},
                                                       .attr = &a,
                                                       .path = g->name[g->node[n].path]});
        if (cut == 0)
            return ku_err_get()->status;
        ku_id whole = g->value[ku_in(g, &g->node[n], 0)].layout;
        g->value[ku_out(g, cut, 0)].layout = ku_zero_in_blocks(g, whole, axes);
        g->refs[g->node[n].in] = ku_out(g, cut, 0);
    }
    return ku_graph_sort(g);
}

unsigned char *ku_zero_note_reads(const struct ku_graph *g)
{
    unsigned char *reads = ku_calloc(g->n_tensors, 1);
    for (ku_id n = 1; n < g->n_nodes && reads; n++) {
        const struct ku_node *node = &g->node[n];
        int how = node->phase != KU_PH_O                    ? KU_READ_BEFORE_O
                  : ku_ops[node->op].traits & KU_OP_ELEMENT ? 0
                                                            : KU_READ_WHOLE;
        for (int i = 0; node->op != KU_OP_NONE && i < node->n_in; i++) {
            ku_id v = ku_in(g, node, i), t = g->value[v].tensor;
            if (g->value[v].role == KU_STATE && g->tensor[t].value == v)
                reads[t] |= (unsigned char)how;
        }
    }
    return reads;
}

/* Gives placement Z to the state that is stored in shards: the same in every program of a job. */
static int keep_blocks(struct ku_graph *g, const struct ku_compile_opts *o)
{
    unsigned char *reads = ku_zero_note_reads(g);
    int status = reads ? KUMI_OK : KUMI_ENOMEM;
    for (ku_id t = 1; t < g->n_tensors && status == KUMI_OK; t++) {
        const struct ku_tensor *x = &g->tensor[t];
        if (!(x->kind == KU_T_OPTIMIZER && !(reads[t] & KU_READ_WHOLE)) &&
            !(x->kind == KU_T_PARAM && ku_zero_is_master(g, reads, t)) &&
            !ku_zero_is_partitioned(g, o, t))
            continue;
        ku_id layout =
            ku_zero_in_blocks(g, g->value[x->value].layout, ku_state_owner_axes(&g->mesh));
        g->value[x->value].layout = layout;
        status = layout ? KUMI_OK : KUMI_ENOMEM;
    }
    ku_free(reads);
    return status;
}

int ku_zero_gather(struct ku_graph *g)
{
    for (ku_id t = 1; t < g->n_tensors; t++) {
        const struct ku_tensor x = g->tensor[t];
        ku_id layout = g->value[x.value].layout;
        int shards = ku_layout_axes(&g->layout[g->value[x.next].layout], KU_Z);
        if (ku_layout_has(&g->layout[layout], KU_Z) || !(shards & ~(1 << KU_AX_LOCAL)))
            continue;
        ku_id node = ku_graph_node(
            g,
            &(struct ku_make){
                .op = KU_OP_convert, .phase = KU_PH_O, .n_in = 1, .in = {x.next}, .path = x.name});
        if (node == 0)
            return ku_err_get()->status;
        g->value[ku_out(g, node, 0)].layout = layout;
        g->tensor[t].next = ku_out(g, node, 0);
    }
    return KUMI_OK;
}

/* Stores state in shards and adds the gathers of parameters that forward and backward read. */
static int partition_state(struct ku_graph *g, const struct ku_compile_opts *o)
{
    ku_id *whole = ku_calloc(g->n_tensors, sizeof *whole);
    if (whole == NULL)
        return KUMI_ENOMEM;
    for (ku_id t = 1; t < g->n_tensors; t++)
        whole[t] = g->value[g->tensor[t].value].layout;
    int status = keep_blocks(g, o);
    if (status == KUMI_OK)
        status = ku_zero_gather_params(g, o, whole);
    ku_free(whole);
    return status;
}

/* A convert that names its axes leaves its result partial over the others. */
static int leave_partial(struct ku_graph *g, ku_id n)
{
    const int64_t axes = g->attr[g->node[n].attr].axes;
    const struct ku_layout *from = &g->layout[g->value[ku_in(g, &g->node[n], 0)].layout];
    struct ku_layout to = g->layout[g->value[ku_out(g, n, 0)].layout];
    for (int a = 0; a < KU_AX_FIRST_TIME && axes; a++)
        if (from->at[a].kind == KU_P && !(axes >> a & 1))
            to.at[a] = from->at[a];
    const ku_id layout = ku_graph_layout(g, &to);
    g->value[ku_out(g, n, 0)].layout = layout;
    return layout ? KUMI_OK : KUMI_ENOMEM;
}

static int partition_update(struct ku_graph *g, int axes)
{
    const bool is_common = ku_state_is_common(&g->mesh);
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (is_gradient(g, n)) {
            struct ku_value *v = &g->value[ku_out(g, n, 0)];
            v->layout = ku_zero_in_blocks(g, v->layout, axes);
        }
    for (uint32_t i = 0; i < g->n_inputs; i++) /* of a server: it gets the chunks that it owns */
        if (g->input[i].pushed.tensor) {
            struct ku_value *v = &g->value[g->input[i].value];
            v->layout = ku_zero_in_blocks(g, v->layout, axes);
        }
    for (ku_id x = 1; x < g->n_tensors;
         x++) /* each rank updates its owned shard of running statistics */
        if (g->tensor[x].kind == KU_T_BUFFER && is_common) {
            struct ku_value *v = &g->value[g->tensor[x].value];
            v->layout = ku_zero_in_blocks(g, v->layout, 1 << KU_AX_LOCAL);
        }
    for (ku_id reader; (reader = find_incomplete(g)) != 0;)
        KU_TRY(complete_sums(g, reader, axes));
    if (is_common)
        KU_TRY(partition_derived(g, axes));
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (g->node[n].phase == KU_PH_O && g->node[n].op != KU_OP_NONE)
            KU_TRY(g->node[n].op == KU_OP_convert ? leave_partial(g, n) : ku_place_node(g, n));
    return ku_zero_gather(g);
}

int ku_pass_zero(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t)
{
    (void)t;
    const int axes = ku_state_owner_axes(&g->mesh);
    const bool is_sharded = ku_state_is_sharded(&g->mesh);
    KU_ASSERT(!is_sharded || o->zero > 0);
    assign_chunks(g, axes ? ku_state_n_owners(&g->mesh) : ku_mesh_dp(&g->mesh));
    if (axes == 0)
        return KUMI_OK;
    if (is_sharded)
        KU_TRY(partition_state(g, o));
    return o->is_training ? partition_update(g, axes) : KUMI_OK;
}
