/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/log.h"
#include "kumi/launch.h"

int cli_usage(const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ku_log_line("kumi: error: %s", text);
    return 2;
}

int cli_end(int status, int is_reported)
{
    if (status < 0 && !is_reported)
        ku_log_line("kumi: error: %s", kumi_last_error()->text);
    return -status;
}

int cli_write(const char *text, size_t bytes)
{
    errno = 0;
    if (fwrite(text, 1, bytes, stdout) == bytes && !ferror(stdout) &&
        (bytes > 0 || fflush(stdout) == 0))
        return KUMI_OK;
    if (errno == 0) /* an earlier call failed: flushing fails in the same way */
        (void)fflush(stdout);
    return KU_ERR(KUMI_ESTORAGE, "stdout: %s; the output is incomplete",
                  errno ? ku_os_why() : "writing failed");
}

int cli_print(int status, char **text)
{
    if (*text && status == KUMI_OK) {
        status = cli_write(*text, strlen(*text));
    } else if (*text) { /* of a report that failed: before its error */
        fputs(*text, stdout);
        fflush(stdout);
    }
    kumi_text_free(*text);
    return cli_end(status, 0);
}

int cli_read_input(const char *name, size_t max_bytes, struct ku_str *in)
{
    char piece[65536];
    ssize_t n;
    while ((n = ku_os_read(STDIN_FILENO, piece, sizeof piece)) > 0) {
        ku_str_append(in, piece, (size_t)n);
        if (in->failed || in->bytes > max_bytes)
            return KU_ERR(in->failed ? KUMI_ENOMEM : KUMI_EINPUT,
                          "%s: standard input: more than %zu MiB; split it", name,
                          (in->failed ? in->bytes : max_bytes) >> 20);
    }
    return n == 0 ? KUMI_OK
                  : KU_ERR(ku_os_status(KUMI_EINPUT), "%s: standard input: %s", name, ku_os_why());
}

int cli_split_lines(char *text, const char ***line, int64_t *n)
{
    *n = 0;
    for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n')
        ++*n;
    *line = ku_calloc((size_t)*n + 1, sizeof **line);
    if (*line == NULL)
        return KUMI_ENOMEM;
    for (int64_t i = 0; i < *n; i++) {
        (*line)[i] = text;
        text += strcspn(text, "\n");
        if (*text)
            *text++ = '\0';
    }
    return KUMI_OK;
}

static void end_as_bug(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (info->si_pid == getpid())
        _exit(-KUMI_EBUG);
    signal(sig, SIG_DFL); /* sent by another process such as a watchdog: not a bug */
    raise(sig);
}

void cli_end_bugs(void)
{
    struct sigaction action = {.sa_sigaction = end_as_bug, .sa_flags = SA_SIGINFO};
    sigaction(SIGABRT, &action, NULL);
}

bool cli_is_help(const char *arg)
{
    return strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0;
}

static const char *dashes(const char *name)
{
    return name[0] && name[1] ? "--" : "-";
}

bool cli_settings(struct cli *c, const char *deepspeed, int is_strict, struct kumi_settings *out)
{
    if (deepspeed && strlen(deepspeed) > PATH_MAX) {
        c->code = cli_usage("--deepspeed: the path has %zu bytes; at most %d are allowed",
                            strlen(deepspeed), PATH_MAX);
        return 0;
    }
    if (deepspeed) {
        snprintf(c->deepspeed, sizeof c->deepspeed, "deepspeed=%s", deepspeed);
        c->list[c->n_list++] = c->deepspeed;
    }
    if (is_strict)
        c->list[c->n_list++] = "deepspeed_strict=true";
    *out = (struct kumi_settings){c->arg[0], c->list, c->n_list};
    return 1;
}

static int set(struct cli *c, const struct cli_option *o, const char *typed, const char *value)
{
    char *end = NULL;
    switch (o->type) {
    case CLI_FLAG:
        *(int *)o->out = 1;
        return 0;
    case CLI_TEXT:
    case CLI_OPTIONAL:
        *(const char **)o->out = value;
        return 0;
    case CLI_INT:
        errno = 0;
        *(int64_t *)o->out = strtoll(value, &end, 10);
        if (errno == ERANGE)
            return cli_usage("kumi %s: --%s: %.60s: not below 2^63; give a smaller number",
                             c->command->name, o->name, value);
        break;
    case CLI_NUM:
        *(double *)o->out = ku_text_number(value, &end);
        break;
    case CLI_LIST:
        c->list[c->n_list++] = value;
        return 0;
    }
    if (end == value || *end != '\0')
        return cli_usage("kumi %s: %s: %.60s: not %s", c->command->name, typed, value,
                         o->type == CLI_INT ? "an integer" : "a number");
    if (o->type == CLI_NUM && !isfinite(*(double *)o->out))
        return cli_usage("kumi %s: %s: %.60s: not a finite number", c->command->name, typed, value);
    return 0;
}

/* Whether a typed name is that of an option: torchrun takes master_addr for master-addr. */
static bool is_name(const char *typed, const char *name)
{
    while (*name && (*typed == *name || (*typed == '_' && *name == '-')))
        typed++, name++;
    return *typed == '\0' && *name == '\0';
}

/* NULL: none has this name, which is given with its dashes. */
static const struct cli_option *find_option(const char *typed, const struct cli_option *option,
                                            int n)
{
    const char *name = typed + (typed[1] == '-' ? 2 : 1);
    for (int i = 0; i < n; i++)
        if (is_name(name, option[i].name))
            return &option[i];
    return NULL;
}

/* Parse the option at argv[*at] and advance past its value. */
static int parse_option(struct cli *c, int *at, const struct cli_option *option, int n)
{
    const char *command = c->command->name, *arg = c->argv[*at], *eq = strchr(arg, '=');
    char typed[64];
    snprintf(typed, sizeof typed, "%.*s", eq && eq - arg < 60 ? (int)(eq - arg) : 60, arg);
    const char *name = typed + (typed[1] == '-' ? 2 : 1);
    const struct cli_option *o = find_option(typed, option, n);
    if (o) {
        int takes_none = o->type == CLI_FLAG || o->type == CLI_OPTIONAL;
        const char *value = eq                  ? eq + 1
                            : takes_none        ? ""
                            : *at + 1 < c->argc ? c->argv[++*at]
                                                : NULL;
        if (value == NULL)
            return cli_usage("kumi %s: %s: a value is missing", command, typed);
        if (eq && o->type == CLI_FLAG)
            return cli_usage("kumi %s: %s: takes no value", command, typed);
        return set(c, o, typed, value);
    }
    const char *names[32];
    for (int i = 0; i < n; i++)
        names[i] = option[i].name;
    const char *near = ku_str_nearest(name, names, n);
    return cli_usage("kumi %s: %s: unknown option; %s%s%s%s", command, typed,
                     near ? "did you mean " : "see `kumi help ", near ? dashes(near) : "",
                     near ? near : command, near ? "?" : "`");
}

/* An argument too many may be meant as the value of an option that takes one only after "=". */
static int refuse_extra(const struct cli *c, const struct cli_option *option, int n,
                        const char *extra)
{
    const char *command = c->command->name;
    for (int i = 2; i + 1 < c->argc; i++) {
        const char *arg = c->argv[i], *next = c->argv[i + 1];
        const struct cli_option *o =
            arg[0] == '-' && arg[1] && next[0] != '-' ? find_option(arg, option, n) : NULL;
        if (o && o->type == CLI_OPTIONAL)
            return cli_usage("kumi %s: an extra argument %.60s; a value of %s stands after =: "
                             "%s=%.60s",
                             command, next, arg, arg, next);
    }
    return cli_usage("kumi %s: an extra argument %.60s; see `kumi help %s`", command, extra,
                     command);
}

bool cli_parse(struct cli *c, const struct cli_option *option, int n_options, int min_args,
               int max_args)
{
    for (int i = 2; i < c->argc && c->code == 0 && c->rest == NULL; i++) {
        char *arg = c->argv[i];
        if (cli_is_help(arg)) {
            printf("usage: %s\n\n%s\n", c->command->usage, c->command->line);
            for (int k = 0; k < n_options; k++)
                printf("  %s%-*s %s\n", dashes(option[k].name), option[k].name[1] ? 16 : 17,
                       option[k].name, option[k].what);
            return 0;
        }
        if (strcmp(arg, "--") == 0)
            c->rest = c->argv + i + 1;
        else if (arg[0] == '-' && arg[1] != '\0')
            c->code = parse_option(c, &i, option, n_options);
        else
            c->arg[c->n++] = arg;
    }
    if (max_args == CLI_PROGRAM)
        max_args = 0;
    else if (c->code == 0 && c->rest)
        c->code = cli_usage("kumi %s: --: takes no program; leave it out", c->command->name);
    if (c->code == 0 && c->n < min_args)
        c->code = cli_usage("kumi %s: an argument is missing; see `kumi help %s`", c->command->name,
                            c->command->name);
    else if (c->code == 0 && c->n > max_args)
        c->code = refuse_extra(c, option, n_options, c->arg[max_args]);
    return c->code == 0;
}

int cli_run(const struct cli_command *command, int argc, char **argv)
{
    struct cli c = {.command = command, .argc = argc, .argv = argv};
    /* argc entries each, and in the list two of cli_settings */
    c.arg = ku_calloc(2 * (size_t)argc + 2, sizeof *c.arg);
    if (c.arg == NULL)
        return cli_end(KUMI_ENOMEM, 0);
    c.list = c.arg + argc;
    int code = command->run(&c);
    ku_free(c.arg);
    return code;
}

const struct cli_command *cli_find(const char *name, const char **near)
{
    const char *names[32];
    int n = 0;
    for (const struct cli_command *c = cli_commands; c->name; c++) {
        if (strcmp(c->name, name) == 0)
            return c;
        if (c->line)
            names[n++] = c->name;
    }
    *near = ku_str_nearest(name, names, n);
    return NULL;
}

int cli_bytes(const char *text, uint64_t *bytes)
{
    static const struct {
        const char *name;
        double factor;
    } unit[] = {{"", 1},      {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
                {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    char *end;
    double x = ku_text_number(text, &end);
    for (size_t i = 0; i < sizeof unit / sizeof unit[0] && end > text; i++)
        if (strcmp(end, unit[i].name) == 0 && x * unit[i].factor >= 1 &&
            x * unit[i].factor < 0x1p62) {
            *bytes = (uint64_t)(x * unit[i].factor);
            return 0;
        }
    return -1;
}

int cli_planned_ranks(const char *option, const char *text, int *n)
{
    enum { MAX_PLANNED = 1 << 20 }; /* of kumi_plan_memory */
    char *end;
    if (strcmp(text, "auto") == 0)
        return kumi_launch_parse_n(text, n);
    const long x = strtol(text, &end, 10);
    if (end == text || *end || x < 1 || x > MAX_PLANNED)
        return KU_ERR(KUMI_EINVAL, "rank count: %s: %.60s; give a number from 1 to %d, or auto",
                      option, text, (int)MAX_PLANNED);
    *n = (int)x;
    return KUMI_OK;
}

double cli_seconds(const char *text)
{
    double seconds = 0;
    for (int part = 0; part < 3; part++) {
        char *end;
        double x = ku_text_number(text, &end);
        if (end == text || !(x >= 0 && x < 1e12))
            return -1;
        seconds = seconds * 60 + x;
        if (*end == '\0')
            return seconds;
        if (*end != ':')
            return -1;
        text = end + 1;
    }
    return -1;
}
