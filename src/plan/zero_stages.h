/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PLAN_ZERO_STAGES_H
#define KU_PLAN_ZERO_STAGES_H

#include "base/err.h"
#include "plan/plan.h"

/* The use of a rank's bytes in ZeRO's terms; each kind combines several classes of buffers. */
enum ku_plan_kind {
    KU_KIND_PARAMS, /* that forward reads, and running statistics */
    KU_KIND_GRADS,  /* and partial sums of them */
    KU_KIND_MASTER, /* f32 parameters of which forward reads a copy */
    KU_KIND_OPTIMIZER,
    KU_KIND_ACTIVATIONS, /* and their gradients */
    KU_KIND_COMM,        /* gathered parameters */
    KU_KIND_WORKSPACE,
    KU_KIND_OFFLOADED,
    KU_KIND_OTHER, /* inputs, scalars, rows read ahead, checkpoint staging */
    KU_KIND_IDLE,  /* mapped but unused at the training program's peak */
    KU_N_KINDS
};
const char *ku_plan_kind_name(int kind);

/* One plan's memory per rank: its own arenas and its share of the host's. */
struct ku_plan_stage {
    char name[16]; /* "zero 2", "shared" */
    uint64_t bytes[KU_N_KINDS], rank_bytes, host_bytes, table_bytes;
    char *refusal; /* why there is no plan, and the bytes are 0; NULL: there is one */
};
enum { KU_N_STAGES = 5 };
struct ku_plan_stages {
    const char *config;
    char compute[8];
    int n_ranks;
    int64_t n_params;
    uint64_t limit_bytes; /* 0: none */
    char batch[256];
    struct ku_plan_stage stage[KU_N_STAGES]; /* zero 0 to 3 with private state; shared state */
};

/* Draw stacked bars. path: checked by ku_picture_check. */
KU_STATUS ku_plan_stages_draw(const struct ku_plan_stages *s, const char *path);

#endif
