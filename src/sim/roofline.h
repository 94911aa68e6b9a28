/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_SIM_ROOFLINE_H
#define KU_SIM_ROOFLINE_H

#include <jansson.h>

#include "job/job.h"
#include "ir/program.h"
#include "tensor/dtype.h"

/* What the cores of a job allow, all ranks together. 0: not measured. */
struct ku_limits {
    int n_cores, n_ranks;
    double flops_f32, flops_bf16; /* matrix peaks, per second */
    double stream_bytes;          /* read + written, per second */
    char source[512];             /* the file they were read from; "": none */
};
/* As they are kept for this machine; what was not measured is 0. */
void ku_limits_read(int n_cores, int n_ranks, struct ku_limits *out);
/* The same at a run's start: the matrix peaks are measured first where that is due
 * (sim/machine_limits.h), in about 0.1 s. By one rank, on the CPUs of all, which wait meanwhile. */
void ku_limits_measure(struct ku_job *job, int n_cores, struct ku_limits *out);
int ku_limits_are_known(const struct ku_limits *l);
/* {"cores", "flops": {"f32", "bf16"}, "stream_bytes", "source"}, null where unknown. Owned by the
 * caller. */
json_t *ku_limits_json(const struct ku_limits *l);

/* The least time of an op on one rank, its share of the limits being 1 / n_ranks: the larger of
 * FLOP / peak and bytes / stream. 0: a limit is not known. */
double ku_roofline_ns(const struct ku_limits *l, const struct ku_op_case *c,
                      const struct ku_cost *cost);
/* T: the sum over all computations of a program, on its first rank. Collectives are not in it. */
double ku_roofline_program_ns(const struct ku_limits *l, const struct ku_program *p);

#endif
