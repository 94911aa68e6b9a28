/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "base/log.h"
#include "kumi/launch.h"
#include "kumi/run.h"

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

int cli_print(int status, char *text)
{
    if (status == KUMI_OK && text)
        status = cli_write(text, strlen(text));
    kumi_text_free(text);
    return cli_end(status, 0);
}

static const char *dashes(const char *name)
{
    return name[0] && name[1] ? "--" : "-";
}

/* typed: the option as the user wrote it, with dashes. */
static int unknown(const struct cli_command *self, const char *typed, const char *name,
                   const struct cli_option *option, int n)
{
    const char *names[32];
    for (int i = 0; i < n; i++)
        names[i] = option[i].name;
    const char *near = ku_str_nearest(name, names, n);
    return cli_usage("kumi %s: %s: unknown option; %s%s%s%s", self->name, typed,
                     near ? "did you mean " : "see `kumi help ", near ? dashes(near) : "",
                     near ? near : self->name, near ? "?" : "`");
}

static int append(struct cli_list *list, const char *item)
{
    const char **grown = ku_realloc(list->item, (size_t)list->n + 1, sizeof *grown);
    if (grown == NULL)
        return cli_end(KUMI_ENOMEM, 0);
    list->item = grown;
    list->item[list->n++] = item;
    return 0;
}

int cli_deepspeed(struct cli_list *set, const char *file, int is_strict,
                  char text[CLI_DEEPSPEED_BYTES])
{
    int code = 0;
    if (file && snprintf(text, CLI_DEEPSPEED_BYTES, "deepspeed=%s", file) >= CLI_DEEPSPEED_BYTES)
        return cli_usage("--deepspeed: the path has %zu bytes; at most 4096 are allowed",
                         strlen(file));
    if (file)
        code = append(set, text);
    return code == 0 && is_strict ? append(set, "deepspeed_strict=true") : code;
}

static int set(const struct cli_command *self, const struct cli_option *o, const char *typed,
               const char *value)
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
                             self->name, o->name, value);
        break;
    case CLI_NUM:
        *(double *)o->out = strtod(value, &end);
        break;
    case CLI_LIST:
        return append(o->out, value);
    }
    if (end == value || *end != '\0')
        return cli_usage("kumi %s: %s: %.60s: not a number", self->name, typed, value);
    return 0;
}

/* Parse the option at argv[*at] and advance past its value. */
static int parse_option(const struct cli_command *self, int argc, char **argv, int *at,
                        const struct cli_option *option, int n)
{
    char typed[64];
    const char *eq = strchr(argv[*at], '=');
    snprintf(typed, sizeof typed, "%.*s", eq && eq - argv[*at] < 60 ? (int)(eq - argv[*at]) : 60,
             argv[*at]);
    const char *name = typed + (typed[1] == '-' ? 2 : 1);
    for (int i = 0; i < n; i++) {
        if (strcmp(option[i].name, name) != 0)
            continue;
        int takes_none = option[i].type == CLI_FLAG || option[i].type == CLI_OPTIONAL;
        const char *value = eq ? eq + 1 : takes_none ? "" : *at + 1 < argc ? argv[++*at] : NULL;
        if (value == NULL)
            return cli_usage("kumi %s: %s: a value is missing", self->name, typed);
        if (eq && option[i].type == CLI_FLAG)
            return cli_usage("kumi %s: %s: takes no value", self->name, typed);
        return set(self, &option[i], typed, value);
    }
    return unknown(self, typed, name, option, n);
}

static void help(const struct cli_command *self, const struct cli_option *option, int n)
{
    printf("usage: %s\n\n%s\n", self->usage, self->line);
    for (int i = 0; i < n; i++)
        printf("  %s%-16s %s\n", dashes(option[i].name), option[i].name, option[i].what);
}

int cli_parse(const struct cli_command *self, int argc, char **argv,
              const struct cli_option *option, int n_options, int least, int most,
              struct cli_args *args)
{
    int code = 0;
    *args = (struct cli_args){.arg = ku_calloc((size_t)argc + 1, sizeof *args->arg)};
    if (args->arg == NULL)
        return cli_end(KUMI_ENOMEM, 0);
    for (int i = 2; i < argc && code == 0 && args->rest == NULL; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            help(self, option, n_options);
            code = -1;
        } else if (strcmp(argv[i], "--") == 0) {
            args->rest = argv + i + 1;
        } else if (argv[i][0] == '-' && argv[i][1] != '\0') {
            code = parse_option(self, argc, argv, &i, option, n_options);
        } else {
            args->arg[args->n++] = argv[i];
        }
    }
    if (code == 0 && (args->n < least || args->n > most))
        code = cli_usage("kumi %s: %s argument%s%.60s; usage: %s", self->name,
                         args->n < least ? "an" : "an extra", args->n < least ? " is missing" : " ",
                         args->n < least ? "" : args->arg[most], self->usage);
    if (code != 0)
        cli_free(option, n_options, args);
    return code;
}

void cli_free(const struct cli_option *option, int n_options, struct cli_args *args)
{
    for (int i = 0; i < n_options; i++)
        if (option[i].type == CLI_LIST)
            ku_free(((struct cli_list *)option[i].out)->item);
    ku_free(args->arg);
    args->arg = NULL;
}

/* The command line without -n, which each rank executes. */
static char **without_n(int argc, char **argv)
{
    static const char self[] = "/proc/self/exe";
    char **copy = ku_calloc((size_t)argc + 1, sizeof *copy);
    int n = 0;
    for (int i = 0; copy && i < argc; i++) {
        if (i > 1 && strcmp(argv[i], "-n") == 0) {
            i++;
            continue;
        }
        if (i > 1 && strncmp(argv[i], "-n=", 3) == 0)
            continue;
        copy[n++] = i == 0 ? (char *)(uintptr_t)self : argv[i];
    }
    return copy;
}

bool cli_is_rank(const char *n_text, int argc, char **argv, int *exit_code)
{
    int n, status;
    if (n_text == NULL)
        return 1;
    *exit_code = cli_end(kumi_launch_parse_n(n_text, &n), 0);
    if (*exit_code != 0)
        return 0;
    if (n == 1 && ku_env("RANK") == NULL)
        return 1;
    char **copy = without_n(argc, argv);
    status = copy ? kumi_launch_program(copy, n, 0, exit_code) : KUMI_ENOMEM;
    ku_free(copy);
    if (status < 0)
        *exit_code = cli_end(status, 0);
    return 0;
}

int cli_bytes(const char *text, uint64_t *bytes)
{
    static const struct {
        const char *name;
        double factor;
    } unit[] = {{"", 1},      {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
                {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    char *end;
    double x = strtod(text, &end);
    for (size_t i = 0; i < sizeof unit / sizeof unit[0] && end > text; i++)
        if (strcmp(end, unit[i].name) == 0 && x * unit[i].factor >= 1 &&
            x * unit[i].factor < 0x1p62) {
            *bytes = (uint64_t)(x * unit[i].factor);
            return 0;
        }
    return -1;
}

double cli_seconds(const char *text)
{
    double seconds = 0;
    for (int part = 0; part < 3; part++) {
        char *end;
        double x = strtod(text, &end);
        if (end == text || !(x >= 0))
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
