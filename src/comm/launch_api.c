/* SPDX-License-Identifier: Apache-2.0 */
#include "kumi/launch.h"

#include "base/arg.h"
#include "comm/area.h"
#include "job/launch.h"

int kumi_launch_parse_n(const char *text, int *n)
{
    KU_GIVEN(text, "text");
    KU_GIVEN(n, "n");
    return ku_launch_parse_n(text, n);
}

int kumi_launch(int (*fn)(void *arg), void *arg, int n)
{
    KU_GIVEN(fn, "fn");
    return ku_launch_function(&ku_comm_client, fn, arg, n);
}

int kumi_launch_program(char *const *argv, int n, int threads, int *exit_code)
{
    KU_GIVEN(argv, "argv");
    KU_GIVEN(argv[0], "argv[0]");
    KU_GIVEN(exit_code, "exit_code");
    if (threads < 0)
        return KU_ERR(KUMI_EINVAL,
                      "launch: threads: %d; give 1 or more, or 0 for a share of the cores",
                      threads);
    struct ku_launch_opts o = {.threads = threads};
    return ku_launch(&ku_comm_client, argv, n, &o, exit_code);
}
