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
 * Check that this process may start n ranks of this host.
 *
 * Errors: KUMI_EINVAL (n; this process is a rank of another launcher, with several ranks).
 */
KUMI_API int kumi_launch_check(int n);
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

/*
 * Run a program on several hosts, as `kumi run -H` does (docs/reference/commands.md, Hosts). An
 * agent on each, the command kumi, starts that host's ranks; ranks are numbered host by host.
 *
 *   argv        as in kumi_launch_program
 *   hosts       "a:4,b:4": name and ranks of each host; or NULL, with
 *   hostfile    a file of lines "a slots=4"
 *   n           ranks, which fill the hosts in order; 0: all
 *   threads     of each rank; 0: its share of its host's cores
 *   rsh         remote shell, with options; NULL: ssh; "none": all agents run on this machine,
 *               which acts as all hosts
 *   program     path of the command kumi on every host; NULL: this executable
 *   out_fd      stdout of the ranks goes there in whole lines
 *   err_fd      stderr, each line as a message (kumi/messages.h) with the prefix "[rank host] ";
 *               messages go there
 *
 * Blocks: until all ranks have ended. Errors: KUMI_EINVAL (options; the program cannot be executed;
 * started by another launcher), EINPUT (hostfile), EPEER and ETIMEDOUT (a host that does not
 * answer), ESTOPPED (before all hosts had answered), ENOMEM.
 */
struct kumi_launch_hosts_options {
    const char *hosts, *hostfile;
    int n, threads;
    const char *rsh, *program;
    int out_fd, err_fd;
};
KUMI_API int kumi_launch_hosts(char *const *argv, const struct kumi_launch_hosts_options *options,
                               int *exit_code);
/*
 * Run a program on this host as one node of several, whose launchers are started by other means,
 * each with equal options but its own node_rank, as those of torchrun are.
 *
 *   n             ranks of this node, and of every other
 *   n_nodes       1 or more; node_rank: 0 to n_nodes - 1
 *   master_addr   address of node 0; NULL: with one node
 *   master_port   of the program; the 16 after it are kumi's; 0: 29500
 *
 * Blocks, Errors: as kumi_launch_program. A failure on another node is not seen here.
 */
struct kumi_launch_node_options {
    int n, threads, n_nodes, node_rank;
    const char *master_addr;
    int master_port;
};
KUMI_API int kumi_launch_node(char *const *argv, const struct kumi_launch_node_options *options,
                              int *exit_code);
/*
 * Be the agent of this host, as `kumi agent` is, which kumi_launch_hosts starts. The job comes from
 * in_fd; its end kills the ranks. Failures are reported to out_fd.
 */
KUMI_API int kumi_launch_agent(int in_fd, int out_fd);

#ifdef __cplusplus
}
#endif
#endif
