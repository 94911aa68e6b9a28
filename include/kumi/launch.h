/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_LAUNCH_H
#define KUMI_LAUNCH_H

#include "kumi/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Run fn on n ranks, processes that are forked from this one on this host, like mp.spawn of
 * PyTorch. fn joins the job with kumi_comm_join. A rank's exit code is fn's result, or its negative
 * if that is a status.
 *
 *   n   1 to 512
 *
 * Blocks: until all ranks have ended. Errors: KUMI_EINVAL (n; this process has other threads, which
 * a fork would not copy, or is a rank of a launcher); otherwise the job's root cause, or -exit code
 * of the first rank that failed.
 */
KUMI_API int kumi_launch(int (*fn)(void *arg), void *arg, int n);

/*
 * Parse a rank count.
 *
 *   text   "4", or "auto": the cores that this process may use
 *
 * Errors: KUMI_EINVAL with the allowed range.
 */
KUMI_API int kumi_launch_parse_n(const char *text, int *n);
/*
 * Run a program on n ranks of this host, as `kumi run` does. Each rank gets RANK WORLD_SIZE
 * LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT in its environment.
 *
 *   argv        NULL-terminated. argv[0] "/proc/self/exe" starts this executable again, which must
 *               print its error before it exits with a code of docs/reference/exit-codes.md. For
 *               any other program, the first rank with an exit code other than 0 is named on stderr
 *   threads     of each rank; 0: its share of the cores
 *   exit_code   out: of the job (docs/reference/exit-codes.md)
 *
 * Blocks: until all ranks have ended. Errors: KUMI_EINVAL (n; the program cannot be executed;
 * started by another launcher), ENOMEM.
 */
KUMI_API int kumi_launch_program(char *const *argv, int n, int threads, int *exit_code);

#ifdef __cplusplus
}
#endif
#endif
