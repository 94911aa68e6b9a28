/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_LAUNCH_H
#define KUMI_LAUNCH_H

#include "kumi/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Run fn on n ranks, processes forked from this one on this host (what mp.spawn is in PyTorch).
 * Inside, fn joins with kumi_comm_join; a rank's exit code is fn's result, its negative if that is
 * a status.
 *
 *   n   1 … 512
 *
 * Blocks until all ranks ended. Errors: KUMI_EINVAL (n; or this process has other threads, which a
 * fork would lose); otherwise the job's root cause, or -exit code of the first rank that failed.
 */
KUMI_API int kumi_launch(int (*fn)(void *arg), void *arg, int n);

/* "4", or "auto" for the cores of this machine. KUMI_EINVAL with the range. */
KUMI_API int kumi_launch_parse_n(const char *text, int *n);
/*
 * Run a program on n ranks of this host, as `kumi run` does: each sees RANK WORLD_SIZE LOCAL_RANK
 * LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT.
 *
 *   argv        NULL-terminated. argv[0] "/proc/self/exe" starts this executable again: it is taken
 *               to print an error before it ends with a code of docs/reference/exit-codes.md. Of
 *               any other program the first rank that ends with a code other than 0 is named on
 *               stderr
 *   threads     of each rank; 0 = its share of the cores
 *   exit_code   what the job ended with (docs/reference/exit-codes.md)
 *
 * Blocks until all ranks ended. Errors: KUMI_EINVAL (n; the program cannot be executed; started by
 * another launcher), ENOMEM.
 */
KUMI_API int kumi_launch_program(char *const *argv, int n, int threads, int *exit_code);

#ifdef __cplusplus
}
#endif
#endif
