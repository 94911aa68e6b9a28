/* SPDX-License-Identifier: Apache-2.0 */
#include "job/launch/shell.h"

#include "base/mem.h"
#include "base/os/ipc.h"
#include "base/os/os.h"
#include "base/os/process.h"
#include "base/str.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/*
 * No question that nothing answers, and no wait for a host that is off. A connection that is cut is
 * noticed after 30 s of silence.
 */
static const char *const ssh_options[] = {"-T",
                                          "-o",
                                          "BatchMode=yes",
                                          "-o",
                                          "ConnectTimeout=10",
                                          "-o",
                                          "ServerAliveInterval=10",
                                          "-o",
                                          "ServerAliveCountMax=3"};
enum {
    N_OPTIONS = sizeof ssh_options / sizeof ssh_options[0],
    FREE_FD = 10 /* from here on: descriptors that the standard files of an agent do not replace */
};

/* Text as one word of sh. */
static void quote(struct ku_str *s, const char *text)
{
    ku_str_add(s, "'");
    for (; *text; text++)
        if (*text == '\'')
            ku_str_add(s, "'\\''");
        else
            ku_str_append(s, text, 1);
    ku_str_add(s, "'");
}

static int find_program(struct ku_shell *shell, const char *program)
{
    char path[PATH_MAX];
    struct ku_str command = {0};
    ssize_t bytes = program ? 0 : readlink("/proc/self/exe", path, sizeof path - 1);
    if (bytes < 0)
        return KU_ERR(KUMI_EINVAL, "launch: /proc/self/exe: %s", strerror(errno));
    path[bytes] = '\0';
    shell->program = ku_strdup(program ? program : path);
    if (!shell->program)
        return KUMI_ENOMEM;
    ku_str_add(&command, "exec ");
    quote(&command, shell->program);
    ku_str_add(&command, " agent");
    return ku_text_take(&command, &shell->command);
}

static int split_words(struct ku_shell *shell, const char *rsh)
{
    shell->text = ku_strdup(rsh);
    if (!shell->text)
        return KUMI_ENOMEM;
    char *save = NULL, *at = shell->text, *word;
    while ((word = strtok_r(at, " \t", &save)) != NULL) {
        if (shell->n_words == KU_SHELL_WORDS_MAX - 1)
            return KU_ERR(KUMI_EINVAL, "launch: --rsh: more than %d words", KU_SHELL_WORDS_MAX - 1);
        shell->word[shell->n_words++] = word;
        at = NULL;
    }
    if (shell->n_words == 0)
        return KU_ERR(KUMI_EINVAL, "launch: --rsh: empty; give a command such as ssh, or none");
    const char *slash = strrchr(shell->word[0], '/');
    shell->is_ssh = strcmp(slash ? slash + 1 : shell->word[0], "ssh") == 0;
    return 0;
}

int ku_shell_open(struct ku_shell *shell, const char *rsh, const char *program)
{
    *shell = (struct ku_shell){.exec_fd = {-1, -1}};
    KU_TRY(find_program(shell, program));
    if (!rsh || strcmp(rsh, "none") != 0)
        KU_TRY(split_words(shell, rsh ? rsh : "ssh"));
    int fd[2];
    if (ku_os_pipe(fd) < 0)
        return KU_ERR(KUMI_ENOMEM, "launch: pipe: %s", ku_os_why());
    shell->exec_fd[0] = fd[0];
    shell->exec_fd[1] = ku_os_dup_above(fd[1], FREE_FD);
    ku_os_close(fd[1]);
    return shell->exec_fd[1] < 0 ? KU_ERR(KUMI_ENOMEM, "launch: %s", ku_os_why()) : 0;
}

void ku_shell_close(struct ku_shell *shell)
{
    for (int i = 0; i < 2; i++)
        if (shell->exec_fd[i] >= 0)
            ku_os_close(shell->exec_fd[i]);
    ku_free(shell->text);
    ku_free(shell->program);
    ku_free(shell->command);
    *shell = (struct ku_shell){.exec_fd = {-1, -1}};
}

bool ku_shell_is_here(const struct ku_shell *shell, const char *host)
{
    static const char *const loopback[] = {"localhost", "127.0.0.1", "::1"};
    char own[256] = "";
    if (shell->n_words == 0)
        return 1;
    for (size_t i = 0; i < sizeof loopback / sizeof loopback[0]; i++)
        if (strcmp(host, loopback[i]) == 0)
            return 1;
    if (gethostname(own, sizeof own - 1) < 0)
        return 0;
    const size_t bytes = strcspn(own, ".");
    return strcmp(host, own) == 0 || (strlen(host) == bytes && strncmp(host, own, bytes) == 0);
}

/* Runs in the new process. Never returns. `fd`: the agent's ends of its standard files. */
static void become_agent(struct ku_shell *shell, const char *host, const int fd[3], int keep_fd,
                         const sigset_t *mask, pid_t launcher)
{
    const bool is_here = ku_shell_is_here(shell, host);
    char agent[] = "agent", *argv[KU_SHELL_WORDS_MAX + N_OPTIONS + 3];
    int n = 0;
    if (is_here) {
        argv[n++] = shell->program;
        argv[n++] = agent;
    } else {
        for (int i = 0; i < shell->n_words; i++)
            argv[n++] = shell->word[i];
        for (int i = 0; shell->is_ssh && i < N_OPTIONS; i++)
            argv[n++] = (char *)(uintptr_t)ssh_options[i];
        argv[n++] = (char *)(uintptr_t)host;
        argv[n++] = shell->command;
    }
    argv[n] = NULL;
    setpgid(0, 0); /* signals of the terminal are the launcher's */
    prctl(PR_SET_PDEATHSIG, is_here ? SIGKILL : SIGTERM); /* a shell may have to tidy up */
    if (getppid() != launcher)
        _exit(128 + SIGKILL);
    dup2(fd[0], 0);
    dup2(fd[1], 1);
    if (fd[2] >= 0)
        dup2(fd[2], 2);
    if (keep_fd >= 0)
        dup2(keep_fd, 3);
    sigprocmask(SIG_SETMASK, mask, NULL);
    execvp(argv[0], argv);
    int why = errno;
    KU_IGNORE(ku_os_write_full(shell->exec_fd[1], &why, sizeof why), "the process ends");
    _exit(127);
}

/* The pipes of standard files: p[i][0] is read from. */
static int make_pipes(int p[3][2], int n)
{
    for (int i = 0; i < n; i++)
        if (ku_os_pipe(p[i]) < 0 || ku_os_set_nonblocking(p[i][i == 0 ? 1 : 0]) < 0)
            return KU_ERR(KUMI_ENOMEM, "launch: pipe: %s; raise the limit (ulimit -n)",
                          ku_os_why());
    return 0;
}

int ku_shell_start(struct ku_shell *shell, const char *host, int keep_fd, const sigset_t *mask,
                   struct ku_shell_agent *agent)
{
    const pid_t launcher = getpid();
    int p[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}};
    int out = keep_fd >= 0 ? ku_os_dup_above(keep_fd, FREE_FD) : -1;
    int status = keep_fd >= 0 && out < 0 ? KU_ERR(KUMI_ENOMEM, "launch: %s", ku_os_why())
                                         : make_pipes(p, keep_fd >= 0 ? 2 : 3);
    pid_t pid = status ? -1 : ku_os_fork();
    if (pid == 0) {
        const int fd[3] = {p[0][0], p[1][1], p[2][1]};
        become_agent(shell, host, fd, out, mask, launcher);
    }
    if (!status && pid < 0)
        status = KU_ERR(KUMI_ENOMEM, "launch: host %s: %s", host, ku_os_why());
    if (pid > 0)
        setpgid(pid, pid); /* it may not have done so yet */
    const int theirs[] = {p[0][0], p[1][1], p[2][1], out};
    const int ours[] = {p[0][1], p[1][0], p[2][0]};
    for (int i = 0; i < 4; i++)
        if (theirs[i] >= 0)
            ku_os_close(theirs[i]);
    for (int i = 0; status && i < 3; i++)
        if (ours[i] >= 0)
            ku_os_close(ours[i]);
    if (!status)
        *agent = (struct ku_shell_agent){pid, ours[0], ours[1], ours[2]};
    return status;
}

int ku_shell_check(struct ku_shell *shell)
{
    int why;
    ku_os_close(shell->exec_fd[1]);
    shell->exec_fd[1] = -1;
    if (ku_os_read_full(shell->exec_fd[0], &why, sizeof why) != (ssize_t)sizeof why)
        return 0;
    return KU_ERR(KUMI_EINVAL, "launch: %s: %s; install it, or give another remote shell by --rsh",
                  shell->n_words ? shell->word[0] : shell->program, strerror(why));
}
