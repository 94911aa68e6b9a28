/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that run as ranks: -n, -H, --hostfile, --rsh. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "kumi/launch.h"

bool cli_check_hosts(struct cli *c, const struct cli_hosts *h)
{
    if (h->hosts && h->hostfile)
        c->code =
            cli_usage("kumi %s: -H and --hostfile exclude each other; give one", c->command->name);
    else if (h->rsh && !h->hosts && !h->hostfile)
        c->code = cli_usage("kumi %s: --rsh goes only with -H or --hostfile", c->command->name);
    return c->code == 0;
}

int cli_launch_hosts(struct cli *c, char *const *argv, const char *n_text, int threads,
                     const struct cli_hosts *h)
{
    struct kumi_launch_hosts_options o = {.hosts = h->hosts,
                                          .hostfile = h->hostfile,
                                          .threads = threads,
                                          .rsh = h->rsh,
                                          .out_fd = STDOUT_FILENO,
                                          .err_fd = STDERR_FILENO};
    int code;
    char *end;
    errno = 0;
    long n = n_text && strcmp(n_text, "auto") != 0 ? strtol(n_text, &end, 10) : 0;
    if (n_text && strcmp(n_text, "auto") != 0 &&
        (errno || end == n_text || *end || n < 1 || n > INT_MAX))
        return cli_usage("kumi %s: -n: %.60s; give a number from 1, or auto for all slots",
                         c->command->name, n_text);
    o.n = (int)n;
    int status = kumi_launch_hosts(argv, &o, &code);
    return status < 0 ? cli_end(status, 0) : code;
}

/* Whether the argument is one of the options that a launcher takes, and not its ranks. */
static bool is_launchers(const char *arg, bool *has_value)
{
    static const char *const names[] = {"n", "H", "hostfile", "rsh"};
    if (*arg != '-')
        return 0;
    arg += arg[1] == '-' ? 2 : 1;
    const size_t bytes = strcspn(arg, "=");
    *has_value = arg[bytes] == '=';
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == bytes && strncmp(arg, names[i], bytes) == 0)
            return 1;
    return 0;
}

bool cli_is_rank(struct cli *c, const char *n_text, const struct cli_hosts *h)
{
    const bool has_hosts = h->hosts || h->hostfile;
    char self[] = "/proc/self/exe", **ranks;
    int n, n_args = 0, status;
    bool has_value;
    if (!cli_check_hosts(c, h) || (n_text == NULL && !has_hosts))
        return c->code == 0;
    if (!has_hosts) {
        status = kumi_launch_parse_n(n_text, &n);
        if (status == KUMI_OK)
            status = kumi_launch_check(n);
        c->code = cli_end(status, 0);
        if (c->code != 0 || (n == 1 && ku_env("RANK") == NULL))
            return c->code == 0;
    }
    ranks = ku_calloc((size_t)c->argc + 1, sizeof *ranks); /* the command line without these */
    for (int i = 0; ranks && i < c->argc; i++) {
        if (i <= 1 || !is_launchers(c->argv[i], &has_value))
            ranks[n_args++] = i == 0 ? self : c->argv[i];
        else if (!has_value)
            i++;
    }
    if (ranks && has_hosts) {
        c->code = cli_launch_hosts(c, ranks, n_text, 0, h);
    } else {
        status = ranks ? kumi_launch_program(ranks, n, 0, &c->code) : KUMI_ENOMEM;
        if (status < 0)
            c->code = cli_end(status, 0);
    }
    ku_free(ranks);
    return 0;
}
