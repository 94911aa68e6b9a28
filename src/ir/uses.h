/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_IR_USES_H
#define KU_IR_USES_H

#include "ir/graph.h"

/*
 * Which nodes read a value: one list per value, made in one walk over the graph. A pass that
 * rewrites operands adds the new readers; old entries stay, so whoever walks a list asks the node
 * again whether it still reads the value.
 *
 *     for (uint32_t e = ku_readers_of(&r, value); e; e = r.entry[e].next)
 *         .. r.entry[e].node ..
 */
struct ku_readers {
    uint32_t *first; /* [n_values], index into entry, 0 = none */
    struct ku_reader {
        ku_id node;
        uint32_t next;
    } * entry;
    uint32_t n, cap, n_values;
};

/* Of all nodes that are not dropped, in ascending order; a node that reads a value twice stands
 * twice. After a failure fini is still due. */
int ku_readers_init(struct ku_readers *r, const struct ku_graph *g);
void ku_readers_fini(struct ku_readers *r);
/* Puts `node` before the readers of `value`, a value that the graph had at init. */
int ku_readers_add(struct ku_readers *r, ku_id value, ku_id node);
static inline uint32_t ku_readers_of(const struct ku_readers *r, ku_id value)
{
    return value < r->n_values ? r->first[value] : 0;
}

#endif
