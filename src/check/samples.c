/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples: forward and backward of a step are divided along dim n, over all data-parallel axes
 * and then over the virtual shards and micro-batches of a rank. Nothing else is divided over these
 * axes, except chunks (Z).
 *
 *     x [n=96 c=8] {shard:S(n) vs:S(n) mb:S(n)}   rank 1, micro-batch 0 of 2: samples 48 .. 71
 *
 * The model says which of its values have samples: those of ports with a dim n, and the results of
 * ops that read one and have dim n themselves. An operand says the same by its placement: a
 * placement along another dim has the bytes of this one, but other elements: random numbers, rows
 * of tables and the way to the rest of the value follow from it.
 */
#include "base/err.h"
#include "check/proof.h"

int ku_proof_samples(struct ku_proof *c, const struct ku_operand *o, uint8_t *samples)
{
    const struct ku_mesh *mesh = &c->p->mesh;
    const struct ku_layout *l = &c->p->layout[o->layout];
    const int wide = ku_mesh_wide(mesh, KU_DP_AXES | 1 << KU_AX_VS | 1 << KU_AX_MB);
    const int split = ku_layout_axes(l, KU_S) & wide;
    *samples = 0;
    if (split == 0)
        return KUMI_OK;
    if (split != wide)
        return ku_proof_refuse(c, o->buffer,
                               "is divided over axes %#x, samples are divided over all of %#x",
                               split, wide);
    for (int a = 0; a < KU_N_AXES; a++) {
        if (!(split >> a & 1))
            continue;
        if (*samples && *samples != l->at[a].dim + 1)
            return ku_proof_refuse(c, o->buffer,
                                   "is divided along several dims over data-parallel ranks and "
                                   "micro-batches");
        *samples = (uint8_t)(l->at[a].dim + 1);
    }
    return KUMI_OK;
}

uint8_t ku_model_samples(const struct ku_graph *g, ku_id value, const uint8_t *samples)
{
    const struct ku_value *v = &g->value[value];
    const int dim = ku_shape_find(&g->shape[v->shape], 'n');
    bool has = v->role == KU_INPUT;
    if (dim < 0)
        return 0;
    for (int i = 0; v->def && i < g->node[v->def].n_in; i++)
        has = has || samples[ku_in(g, &g->node[v->def], i)];
    return has ? (uint8_t)(dim + 1) : 0;
}
