/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/launch.h"

int kumi_launch_parse_n(const char *text, int *n)
{
    return ku_launch_parse_n(text, n);
}

int kumi_launch_program(char *const *argv, int n, int threads, int *exit_code)
{
    struct ku_launch_opts o = {.threads = threads};
    return ku_launch(argv, n, &o, exit_code);
}
