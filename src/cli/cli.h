/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CLI_CLI_H
#define KU_CLI_CLI_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "kumi/run.h"

/*
 * The command `kumi`: one row of cli_commands per sub-command, one cmd_*.c file each, which use the
 * public headers and base/.
 *
 *   main            signals, standard files
 *     cmd_x           option table -> CLI_PARSE -> kumi_x() of kumi/run.h
 *       cli_is_rank     with -n or -H: start the ranks; each runs the command line without these
 *       cli_print       the text that kumi_x returned, on stdout
 *       cli_end         the error, as one line on stderr; status -> exit code
 *   check_output    exit code 5 if output was lost
 *
 * Options are declared in a table, not parsed by hand:
 *
 *     --name VALUE, --name=VALUE, --flag, --optional=VALUE, -n VALUE; other arguments are
 *     positional.
 */
enum cli_type {
    CLI_FLAG,
    CLI_TEXT,
    CLI_INT,
    CLI_NUM,     /* finite */
    CLI_LIST,    /* repeatable, at most one per command: struct cli's list */
    CLI_OPTIONAL /* with or without a value: --resume, --resume=auto */
};
struct cli_option {
    const char *name; /* without dashes; one letter: -n */
    enum cli_type type;
    const char *what;
    /*
     * int, const char *, int64_t, double, NULL, const char * ("" without a value), in the order of
     * the types.
     */
    void *out;
};
struct cli;
struct cli_command {
    const char *name, *line, *usage; /* line NULL: not for users, and in no list */
    int (*run)(struct cli *c);       /* returns the exit code */
};
extern const struct cli_command cli_commands[];

struct cli { /* a command line */
    const struct cli_command *command;
    int argc;
    char **argv;      /* [argc]; argv[1] is the command */
    const char **arg; /* [n] positional arguments */
    int n;
    const char **list; /* [n_list] values of the command's CLI_LIST option */
    int n_list;
    char **rest;                   /* arguments after "--", NULL-terminated; NULL: none */
    int code;                      /* exit code, where a function below returns false */
    char deepspeed[PATH_MAX + 16]; /* setting of --deepspeed */
};
/* Run a command; returns its exit code. */
int cli_run(const struct cli_command *command, int argc, char **argv);
/* The command with this name. NULL: none; *near is then the nearest name, or NULL. */
const struct cli_command *cli_find(const char *name, const char **near);

/*
 * From now on SIGABRT of an assertion, which has already printed its message, ends this process
 * with the exit code for bugs.
 */
void cli_end_bugs(void);
/* Whether an argument is --help or -h. */
bool cli_is_help(const char *arg);

enum { CLI_PROGRAM = -1 };
/*
 * Parse the command line with a table of options.
 *
 *   min_args, max_args   number of positional arguments; CLI_PROGRAM: none, and "-- PROGRAM ARGS"
 *
 * Returns whether the command continues. If not, c->code is the exit code: 0 after --help or -h, 2
 * after an error.
 */
#define CLI_PARSE(c, option, min_args, max_args)                                                   \
    cli_parse(c, option, (int)(sizeof(option) / sizeof *(option)), min_args, max_args)
bool cli_parse(struct cli *c, const struct cli_option *option, int n_options, int min_args,
               int max_args);
/*
 * The configuration arg[0] with the list of --set, --deepspeed FILE (NULL: not given) and --strict.
 * Returns false after printing an error.
 */
bool cli_settings(struct cli *c, const char *deepspeed, int is_strict, struct kumi_settings *out);

/*
 * Print "kumi: error: <last error>", unless a rank has already reported it. Returns the exit code
 * of the status.
 */
int cli_end(int status, int is_reported);
int cli_usage(const char *format, ...)
    __attribute__((format(printf, 1, 2))); /* prints, returns 2 */
/*
 * Write to stdout, buffered. 0 bytes: flush. KUMI_ESTORAGE: this or earlier output was lost. main()
 * flushes at the end of every command.
 */
KU_STATUS cli_write(const char *text, size_t bytes);
/*
 * Write a text of kumi/run.h to stdout, if there is one, and free it; then the error of the
 * function that returned it. Returns the exit code.
 *
 *     return cli_print(kumi_info_text(as_json, &text), &text);
 */
int cli_print(int status, char **text);
/*
 * Append standard input.
 *
 *   name        of the command, for messages
 *   max_bytes   a longer input is refused
 *
 * Errors: KUMI_EINPUT, ENOMEM.
 */
KU_STATUS cli_read_input(const char *name, size_t max_bytes, struct ku_str *in);
/*
 * Split a text without NUL bytes at newlines, in place.
 *
 *   line   [*n] out: freed with ku_free, on failure too
 */
KU_STATUS cli_split_lines(char *text, const char ***line, int64_t *n);

/* -H, --hostfile and --rsh of a command; all NULL: this host alone */
struct cli_hosts {
    const char *hosts, *hostfile, *rsh;
};
#define CLI_HOSTS(h)                                                                               \
    {"H", CLI_TEXT, "hosts and the ranks of each: a:4,b:4", &(h).hosts},                           \
        {"hostfile", CLI_TEXT, "a file with a line per host: a slots=4", &(h).hostfile},           \
    {                                                                                              \
        "rsh", CLI_TEXT, "remote shell (default: ssh); none: this machine acts as all hosts",      \
            &(h).rsh                                                                               \
    }
/* Check these against each other. Returns false after printing an error. */
bool cli_check_hosts(struct cli *c, const struct cli_hosts *hosts);
/*
 * Run argv on these hosts; -n as given, or NULL: all slots. Returns the exit code.
 */
int cli_launch_hosts(struct cli *c, char *const *argv, const char *n_text, int threads,
                     const struct cli_hosts *hosts);
/*
 * Handle -n and the hosts of a command that runs as ranks. Returns true: this process continues, as
 * a rank or alone. Returns false: the command line has been run on the ranks, and c->code is the
 * exit code of the job.
 */
bool cli_is_rank(struct cli *c, const char *n_text, const struct cli_hosts *hosts);
/* Bytes of "500MB", "2GB" (powers of ten), "1GiB", "4096". < 0: malformed. */
int cli_bytes(const char *text, uint64_t *bytes);
/*
 * Parse the rank count of a command that starts no ranks, given by `option`: "auto", or 1 to 2^20.
 */
KU_STATUS cli_planned_ranks(const char *option, const char *text, int *n);
/* Seconds of "[[HH:]MM:]SS"; < 0: malformed. */
double cli_seconds(const char *text);

int cmd_train(struct cli *c);
int cmd_run(struct cli *c);
int cmd_ps(struct cli *c);
int cmd_agent(struct cli *c);
int cmd_eval(struct cli *c);
int cmd_translate(struct cli *c);
int cmd_sample(struct cli *c);
int cmd_plan(struct cli *c);
int cmd_graph(struct cli *c);
int cmd_check(struct cli *c);
int cmd_ckpt(struct cli *c);
int cmd_bench(struct cli *c);
int cmd_tokenizer(struct cli *c);
int cmd_data(struct cli *c);
int cmd_info(struct cli *c);
int cmd_help(struct cli *c);

#endif
