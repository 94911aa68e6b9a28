/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_SIM_ROOFLINE_H
#define KU_SIM_ROOFLINE_H

#include <jansson.h>

#include "job/job.h"
#include "ir/program.h"
#include "tensor/dtype.h"

/*
 * Limits of the cores that n_ranks ranks of one machine share, all together. 0: not measured. They
 * bound the time of an op from below (roofline model):
 *
 *     time >= max(FLOPs / peak FLOP/s, bytes moved / stream bytes/s)
 */
struct ku_limits {
    int n_cores, n_ranks;
    double flops_f32, flops_bf16; /* peak of matrix products, per second */
    double stream_bytes;          /* read + written, per second */
    char source[512];             /* file that they were read from; "": none */
};
/* Reads the stored limits of this machine. */
void ku_limits_read(int n_cores, int n_ranks, struct ku_limits *out);
/*
 * Reads them at the start of a run. If a measurement is due (sim/machine_limits.h), it is made
 * first, in about 0.1 s, by the calling rank on the CPUs of its host's ranks, while all ranks wait.
 */
void ku_limits_measure(struct ku_job *job, int n_cores, int n_ranks, struct ku_limits *out);
bool ku_limits_are_known(const struct ku_limits *l);
/*
 * Returns {"cores", "flops": {"f32", "bf16"}, "stream_bytes", "source"}, null where unknown. Owned
 * by the caller.
 */
json_t *ku_limits_json(const struct ku_limits *l);

/* Minimum time of an op on one rank, which has 1 / n_ranks of the limits. 0: a limit is unknown. */
double ku_roofline_ns(const struct ku_limits *l, const struct ku_op_case *c,
                      const struct ku_cost *cost);
/*
 * Sum of ku_roofline_ns over all computations of a program on its first rank, without collectives.
 */
double ku_roofline_program_ns(const struct ku_limits *l, const struct ku_program *p);

#endif
