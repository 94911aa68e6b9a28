/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_IR_ID_RANGE_H
#define KU_IR_ID_RANGE_H

#include "base/err.h"
#include "ir/program.h"

/*
 * Allowed values of the i32 ports of a graph: ids of embedding rows, target classes, positions.
 * Kernels return a row of zeros for an invalid id, so the range is checked when a port is filled.
 */
struct ku_ids_rule {
    char port[KU_NAME_BYTES], use[KU_NAME_BYTES]; /* use: "rows of wte.weight" */
    int64_t below;                                /* 0 <= number < below */
    int is_target;                                /* negative values and `ignore` are valid */
    int64_t ignore;                               /* see is_target */
};
struct ku_ids {
    struct ku_ids_rule *rule; /* [n] */
    int n;
};

/* List the ranges of a graph as the builder made it. */
KU_STATUS ku_ids_list(const struct ku_graph *g, struct ku_ids *ids);
void ku_ids_fini(struct ku_ids *ids);

/*
 * Check rows [first, first + n) of a port.
 *
 *   shape   of the whole port; dim 0 counts rows
 *   data    row `first` and the following
 *
 * Errors: KUMI_EINVAL with port, position and value.
 */
KU_STATUS ku_ids_check(const struct ku_ids *ids, const char *port, const struct ku_shape *shape,
                       const int32_t *data, int64_t first, int64_t n);

#endif
