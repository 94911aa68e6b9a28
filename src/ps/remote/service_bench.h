/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_REMOTE_SERVICE_BENCH_H
#define KU_PS_REMOTE_SERVICE_BENCH_H

#include <stddef.h>

#include "base/err.h"

/*
 * What pushes and pulls take with a server of a training: a thread of this process runs it as
 * `kumi ps serve CONFIG` does with the defaults, and the caller is its only worker, without a
 * model. Both sides check what a worker and a server check.
 *
 *     push   a step of a small model in one frame, until it is acknowledged: it is in the journal,
 *            which is on the disk, and in the engine's memory
 *     pull   all parameters of a larger model, in frames of 1 MiB
 */
struct ku_ps_bench_opts {
    const char *dir;     /* an empty directory, for the runs and their journals */
    const char *address; /* "unix:PATH" */
    int rounds;          /* at most 64; the medians over them are reported */
    int pushes, pulls;   /* of a round */
    int width;           /* the larger model has 2 width^2 parameters, and a few */
};
struct ku_ps_bench {
    size_t push_bytes, pull_bytes;       /* data of a push, of a pull */
    double p50_us, p99_us;               /* of a push */
    double bytes_per_s, bytes_per_cpu_s; /* of pulls; per processor time of both sides together */
};
/*
 * Errors: those of a run and of a worker's calls; KUMI_ESTORAGE; KUMI_ESTOPPED, a stop signal came.
 * What is in the directory is left.
 */
KU_STATUS ku_ps_bench_run(const struct ku_ps_bench_opts *o, struct ku_ps_bench *out);

#endif
