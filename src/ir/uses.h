/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_IR_USES_H
#define KU_IR_USES_H

#include "base/err.h"
#include "ir/graph.h"

/*
 * Index of readers: for each value, a list of the nodes that read it, built in one pass over the
 * graph. A pass that rewrites operands adds the new readers. Old entries remain, so a caller checks
 * whether the node still reads the value.
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

/*
 * Indexes all nodes except removed ones, in ascending order. A node that reads a value twice is
 * listed twice. Call ku_readers_fini after a failure too.
 */
KU_STATUS ku_readers_init(struct ku_readers *r, const struct ku_graph *g);
void ku_readers_fini(struct ku_readers *r);
/* Adds `node` as the first reader of `value`, which existed at init. */
KU_STATUS ku_readers_add(struct ku_readers *r, ku_id value, ku_id node);
static inline uint32_t ku_readers_of(const struct ku_readers *r, ku_id value)
{
    return value < r->n_values ? r->first[value] : 0;
}

#endif
