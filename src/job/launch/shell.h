/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_LAUNCH_SHELL_H
#define KU_JOB_LAUNCH_SHELL_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

/*
 * How agents are started: by a remote shell, "SHELL [OPTIONS] HOST 'exec /path/kumi agent'", or on
 * this machine by exec.
 */
enum { KU_SHELL_WORDS_MAX = 64 };
struct ku_shell {
    char *text;                     /* of the words */
    char *word[KU_SHELL_WORDS_MAX]; /* of the shell, NULL-terminated; none: agents run here */
    int n_words;
    char *program, *command; /* path of kumi; what the remote shell's sh runs */
    bool is_ssh;             /* ssh's options are added */
    int exec_fd[2];          /* errno of an exec that failed; closed by one that succeeded */
};
/*
 *   rsh       "ssh -p 2222"; "none": agents run on this machine; NULL: "ssh"
 *   program   NULL: this executable
 *
 * Errors: KUMI_EINVAL, ENOMEM.
 */
KU_STATUS ku_shell_open(struct ku_shell *shell, const char *rsh, const char *program);
void ku_shell_close(struct ku_shell *shell);
/* Whether the agent of a host runs on this machine without a remote shell. */
bool ku_shell_is_here(const struct ku_shell *shell, const char *host);

struct ku_shell_agent {
    pid_t pid;
    int in_fd, out_fd, err_fd; /* ends of the agent's standard files; they do not block */
};
/*
 * Start an agent in its own process group, with the signal mask `mask`.
 *
 *   keep_fd   descriptor 3 of the agent, whose stderr is then this process's (err_fd -1); -1: none
 *
 * Errors: KUMI_ENOMEM.
 */
KU_STATUS ku_shell_start(struct ku_shell *shell, const char *host, int keep_fd,
                         const sigset_t *mask, struct ku_shell_agent *agent);
/* After the last start: wait until every process has executed. Errors: KUMI_EINVAL. */
KU_STATUS ku_shell_check(struct ku_shell *shell);

#endif
