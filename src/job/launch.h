/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_LAUNCH_H
#define KU_JOB_LAUNCH_H

#include "base/err.h"
#include "job/segment.h"

/*
 * The launcher: starts n ranks of a program, on each host in a process group of their own, and runs
 * until the last one has ended.
 *
 *     launcher ──┬── guard             kills the group if the launcher dies
 *                ├── rank 0   ┐
 *                ├── …        ├ one process group, the control segment inherited
 *                └── rank n-1 ┘
 *
 *     launcher ──┬── ssh a ~~~ agent ──┬── guard
 *                │                     ├── ranks 0 to 3
 *                └── ssh b ~~~ agent ──┬── guard
 *                                      └── ranks 4 to 7
 *
 * The files, in launch/: launch.c (one host), ranks.c (the ranks of a host), agent.c, remote.c and
 * remote_job.c (the launcher of several hosts), shell.c (starting agents), wire.c (what they say),
 * hostlist.c.
 *
 * Environment of a rank: RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE
 * MASTER_ADDR MASTER_PORT, KUMI_RANK KUMI_WORLD_SIZE KUMI_LOCAL_RANK KUMI_LOCAL_WORLD_SIZE KUMI_JOB
 * KUMI_CONTROL_FD (the segment) and KUMI_THREADS (the launcher's own, or a rank's share of the
 * cores); with several hosts also KUMI_RENDEZVOUS (where the hosts meet) and KUMI_SECRET.
 *
 * Signals: SIGINT, SIGTERM, SIGHUP and SIGUSR1 ask the job to stop. The launcher sets the stop flag
 * of the segment, and forwards the signal to ranks that do not read the flag. A second signal other
 * than SIGUSR1, at least 1 s later, kills the job (ku_stops_take in base/os/process.h). A rank that
 * a stop signal ended has not failed.
 *
 * Failures: the process that first sees one prints one line with the root cause, and the other
 * ranks end within 1 s.
 */
/*
 * argv[0] of a launcher that starts its own executable. The ranks of such a job print the reason
 * for an exit code of docs/reference/exit-codes.md themselves.
 */
#define KU_LAUNCH_SELF "/proc/self/exe"
struct ku_launch_opts {
    int threads; /* per rank; 0: cores / n, at least 1 */
};
/*
 * Parse "-n" of a command: a number from 1 to KU_MAX_LOCAL, or "auto" (the number of cores).
 * Errors: KUMI_EINVAL.
 */
KU_STATUS ku_launch_parse_n(const char *text, int *n);
/*
 * Refuse n outside of 1 to KU_MAX_LOCAL, and any n in an environment that has a job of several
 * ranks already. Errors: KUMI_EINVAL.
 */
KU_STATUS ku_launch_check(int n);
/*
 * Run argv (NULL-terminated) on n ranks.
 *
 *   exit_code   as in docs/reference/exit-codes.md; 128 + signal after a second signal
 *
 * Errors: KUMI_EINVAL (n; the program cannot be executed; another launcher's variables are set),
 * ENOMEM.
 */
KU_STATUS ku_launch(const struct ku_job_client *client, char *const *argv, int n,
                    const struct ku_launch_opts *opts, int *exit_code);
/*
 * The same on one of several nodes whose launchers are started by hand, each with n ranks and the
 * same argv, as torchrun's are. The launchers do not talk to each other.
 *
 *   node   n_nodes 1: as ku_launch
 */
struct ku_launch_node {
    int n_nodes, rank;  /* 0 to n_nodes - 1 */
    const char *master; /* address of node 0; NULL: loopback, with one node */
    int port;           /* MASTER_PORT, which is the program's; 0: 29500 */
};
KU_STATUS ku_launch_node(const struct ku_job_client *client, char *const *argv, int n,
                         const struct ku_launch_node *node, const struct ku_launch_opts *opts,
                         int *exit_code);
/*
 * Most hosts of a job that this process starts an agent on, each with three descriptors and a
 * remote shell: 1,024 agents on one machine with two cores start, say a line and end in 5 s, and
 * are gone 1 s after the launcher was killed. Larger jobs have a scheduler, with srun or mpirun.
 */
enum { KU_LAUNCH_HOSTS_MAX = 1024 };
/*
 * Run argv on several hosts, with an agent on each that this process starts through a remote shell.
 *
 *   hosts, hostfile   one of the two; the other NULL (docs/reference/commands.md, Hosts)
 *   n                 ranks, in the order of the slots; 0: all slots
 *   rsh               "ssh", also with options; "none": the agents run on this machine, each of
 *                     whose hosts is one of the job; NULL: ssh
 *   program           path of the command kumi, on every host; NULL: this executable's
 *   out_fd, err_fd    the ranks' output goes there in whole lines; lines of stderr get the prefix
 *                     "[rank host] ". Ranks on this machine (localhost, or its name) write there
 *                     themselves.
 *
 * All failures of the job end as those of ku_launch. Errors: KUMI_EINVAL (hosts, n, environment;
 * the program cannot be executed), EINPUT (hostfile), EPEER (a host cannot be reached; no agent
 * there), ENOMEM.
 */
struct ku_launch_hosts {
    const char *hosts, *hostfile;
    int n;
    const char *rsh, *program;
    int out_fd, err_fd;
};
KU_STATUS ku_launch_hosts(const struct ku_job_client *client, char *const *argv,
                          const struct ku_launch_hosts *hosts, const struct ku_launch_opts *opts,
                          int *exit_code);
/*
 * Serve as the agent of this host: read the job from in_fd and report to out_fd, until the ranks
 * have ended or in_fd is at its end, which kills them.
 */
KU_STATUS ku_launch_agent(const struct ku_job_client *client, int in_fd, int out_fd);
/*
 * Run fn(arg) in n forked processes. Returns 0, or the status of the first failed rank. The calling
 * process must have one thread. Errors as ku_launch.
 */
KU_STATUS ku_launch_function(const struct ku_job_client *client, int (*fn)(void *arg), void *arg,
                             int n);

#endif
