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

int kumi_launch_check(int n)
{
    return ku_launch_check(n);
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

static int check_threads(int threads)
{
    if (threads < 0 || threads > 4096)
        return KU_ERR(KUMI_EINVAL,
                      "launch: threads: %d; give 1 to 4096, or 0 for a share of the cores",
                      threads);
    return 0;
}

int kumi_launch_hosts(char *const *argv, const struct kumi_launch_hosts_options *options,
                      int *exit_code)
{
    KU_GIVEN(argv, "argv");
    KU_GIVEN(argv[0], "argv[0]");
    KU_GIVEN(options, "options");
    KU_GIVEN(exit_code, "exit_code");
    KU_TRY(check_threads(options->threads));
    if (options->n < 0)
        return KU_ERR(KUMI_EINVAL, "launch: n: %d; give 1 or more, or 0 for all slots", options->n);
    const struct ku_launch_opts o = {.threads = options->threads};
    const struct ku_launch_hosts hosts = {.hosts = options->hosts,
                                          .hostfile = options->hostfile,
                                          .n = options->n,
                                          .rsh = options->rsh,
                                          .program = options->program,
                                          .out_fd = options->out_fd,
                                          .err_fd = options->err_fd};
    return ku_launch_hosts(&ku_comm_client, argv, &hosts, &o, exit_code);
}

int kumi_launch_node(char *const *argv, const struct kumi_launch_node_options *options,
                     int *exit_code)
{
    KU_GIVEN(argv, "argv");
    KU_GIVEN(argv[0], "argv[0]");
    KU_GIVEN(options, "options");
    KU_GIVEN(exit_code, "exit_code");
    KU_TRY(check_threads(options->threads));
    const struct ku_launch_opts o = {.threads = options->threads};
    const struct ku_launch_node node = {.n_nodes = options->n_nodes,
                                        .rank = options->node_rank,
                                        .master = options->master_addr,
                                        .port = options->master_port};
    return ku_launch_node(&ku_comm_client, argv, options->n, &node, &o, exit_code);
}

int kumi_launch_agent(int in_fd, int out_fd)
{
    if (in_fd < 0 || out_fd < 0)
        return KU_ERR(KUMI_EINVAL, "agent: descriptors %d and %d; give open ones", in_fd, out_fd);
    return ku_launch_agent(&ku_comm_client, in_fd, out_fd);
}
