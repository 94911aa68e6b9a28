/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_ID_RANGE_H
#define KU_TRAIN_ID_RANGE_H

#include "ir/program.h"

/*
 * What numbers the i32 ports of a graph may hold: ids of an embedding's rows, targets that are
 * classes, positions. Kernels give a row of zeros for an id that there is not, so ids are checked
 * when a port is filled.
 */
struct ku_ids_rule {
    char port[KU_NAME_BYTES], use[KU_NAME_BYTES]; /* use: "ids of wte.weight" */
    int64_t below;                                /* 0 <= number < below */
    int is_target;                                /* negative ones do not count, */
    int64_t ignore;                               /* and this one does not */
};
struct ku_ids {
    struct ku_ids_rule *rule; /* [n] */
    int n;
};

/* The rules of a graph as the builder left it. */
int ku_ids_list(const struct ku_graph *g, struct ku_ids *ids);
void ku_ids_fini(struct ku_ids *ids);

/*
 * Checks rows [first, first + n) of a port.
 *
 *   shape   of the whole port; dim 0 counts rows
 *   data    row `first` and those behind it
 *
 * Errors: KUMI_EINVAL with port, position and number.
 */
int ku_ids_check(const struct ku_ids *ids, const char *port, const struct ku_shape *shape,
                 const int32_t *data, int64_t first, int64_t n);

#endif
