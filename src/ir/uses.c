/* SPDX-License-Identifier: Apache-2.0 */
#include "ir/uses.h"

#include "base/err.h"
#include "base/mem.h"

int ku_readers_init(struct ku_readers *r, const struct ku_graph *g)
{
    *r = (struct ku_readers){.n = 1, .n_values = g->n_values};
    r->first = ku_calloc(g->n_values, sizeof *r->first);
    if (r->first == NULL)
        return KUMI_ENOMEM;
    for (ku_id n = g->n_nodes - 1; n > 0; n--)
        for (int i = g->node[n].n_in - 1; g->node[n].op != KU_OP_NONE && i >= 0; i--)
            KU_TRY(ku_readers_add(r, ku_in(g, &g->node[n], i), n));
    return KUMI_OK;
}

void ku_readers_fini(struct ku_readers *r)
{
    ku_free(r->first);
    ku_free(r->entry);
}

int ku_readers_add(struct ku_readers *r, ku_id value, ku_id node)
{
    KU_ASSERT(value < r->n_values);
    KU_ASSERT(node > 0 && r->n > 0);
    KU_TRY(KU_GROW(&r->entry, r->n, &r->cap));
    r->entry[r->n] = (struct ku_reader){node, r->first[value]};
    r->first[value] = r->n++;
    return KUMI_OK;
}
