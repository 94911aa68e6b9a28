/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_LAUNCH_REMOTE_H
#define KU_JOB_LAUNCH_REMOTE_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"
#include "job/launch/hostlist.h"
#include "job/launch/ranks.h"
#include "job/launch/shell.h"
#include "job/launch/wire.h"

/*
 * The launcher of several hosts: remote_job.c puts the job together and moves the output, remote.c
 * runs it.
 */
struct ku_remote_host {
    struct ku_slots slots;
    int first_rank;
    bool is_here;  /* its agent runs on this machine, without a remote shell */
    bool inherits; /* it is this host: its ranks write to the launcher's files themselves */
    struct ku_shell_agent agent; /* pid 0: has ended */
    struct ku_wire in, out;
    struct ku_str words;  /* of the remote shell: an incomplete line */
    char last_words[240]; /* its last line */
    bool has_hello, is_done, is_killed;
    int code, n_failed;
};
struct ku_remote {
    struct ku_remote_host *host;
    int n_hosts, n_open, n; /* n_open: agents that have not ended; n: ranks */
    struct ku_shell shell;
    struct ku_ranks own; /* only the signals of this process */
    int signal_fd, out_fd, err_fd;
    struct ku_wire out, err; /* output of the ranks; err: whole lines */
    int is_out_lost;         /* errno: stdout took no more */
    struct pollfd *poll;     /* [3 n_hosts + 3] */

    /* The job */
    char *const *argv;
    char **env;
    char *folder;
    char master[256], root[288];
    int port, threads;
    enum ku_pinning pinning;
    uint64_t world_id;
    uint8_t secret[KU_SECRET_BYTES];

    bool is_started, has_said, is_killed;
    char last_error[512];                  /* line "kumi: error: .." of a rank */
    const struct ku_remote_host *error_of; /* its host; NULL: none yet */
    struct ku_remote_host *first;          /* whose failure is the job's; NULL: none */
    int culprit;                           /* rank that failed first; -1: unknown */
    int status, code;                      /* status < 0: the job did not start, `error` says why */
    struct kumi_error error;
    struct ku_stops stops;
    int64_t hello_ns;
    int64_t end_ns;    /* then agents are killed; 0: not yet */
    int64_t output_ns; /* after all agents have ended: then output that nothing reads is dropped */
};
/* remote.c */
KU_STATUS ku_remote_run(struct ku_remote *remote, int *code);
void ku_remote_signal(struct ku_remote *remote, int sig);
/* remote_job.c */
/* Host i's part of the job. */
void ku_remote_describe(const struct ku_remote *remote, int i, struct ku_host_job *job);
/* Fill remote->poll: three entries per host, then signals, stdout and stderr. Returns their number.
 */
int ku_remote_set_poll(struct ku_remote *remote);
/* Write what the files take without waiting; out, err: what poll says of them. */
void ku_remote_put_output(struct ku_remote *remote, int out, int err);

#endif
