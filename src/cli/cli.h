/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CLI_CLI_H
#define KU_CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * The command `kumi`: one row of cli_commands per sub-command, one cmd_*.c file each, which use the
 * public headers and base/.
 *
 *   main            signals, standard files
 *     cmd_x           option table -> cli_parse -> kumi_x() of kumi/run.h
 *       cli_is_rank     with -n: start the ranks; each runs the same command line without -n
 *       cli_print       the text that kumi_x returned, on stdout
 *       cli_end         the error, as one line on stderr; status -> exit code
 *   check_output    exit code 5 if output was lost
 *
 * Options are declared in a table, not parsed by hand:
 *
 *     --name VALUE, --name=VALUE, --flag, -n VALUE; other arguments are positional.
 */
enum cli_type {
    CLI_FLAG,
    CLI_TEXT,
    CLI_INT,
    CLI_NUM,
    CLI_LIST,
    CLI_OPTIONAL /* with or without a value: --resume, --resume=auto */
};
struct cli_option {
    const char *name; /* without dashes; one letter: -n */
    enum cli_type type;
    const char *what;
    /*
     * int, const char *, int64_t, double, struct cli_list, const char * ("" without a value), in
     * the order of the types.
     */
    void *out;
};
struct cli_list {
    const char **item;
    int n;
};
struct cli_args {
    const char **arg; /* positional arguments */
    int n;
    char **rest; /* arguments after "--", NULL-terminated; NULL: none */
};
struct cli_command {
    const char *name, *line, *usage;
    int (*run)(const struct cli_command *self, int argc, char **argv); /* returns the exit code */
};
extern const struct cli_command cli_commands[];

/*
 * Parse the command line.
 *
 *   least, most   allowed number of positional arguments
 *   args          out: freed with cli_free; on success only
 *
 * Returns 0, the exit code after printing an error, or -1 after printing the help.
 */
int cli_parse(const struct cli_command *self, int argc, char **argv,
              const struct cli_option *option, int n_options, int least, int most,
              struct cli_args *args);
void cli_free(const struct cli_option *option, int n_options, struct cli_args *args);

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
 * Write a text of kumi/run.h to stdout and free it. Returns the exit code.
 */
int cli_print(int status, char *text);

/*
 * Handle -n of a command that runs as ranks. Returns 1: this process continues, as a rank or alone.
 * Returns 0: the command line has been run on n processes, and *exit_code is that of the job.
 */
bool cli_is_rank(const char *n_text, int argc, char **argv, int *exit_code);
/* Bytes of "500MB", "2GB" (powers of ten), "1GiB", "4096". < 0: malformed. */
int cli_bytes(const char *text, uint64_t *bytes);
/* Seconds of "[[HH:]MM:]SS"; < 0: malformed. */
double cli_seconds(const char *text);

/*
 * Append --deepspeed FILE and --strict to the --set options.
 *
 *   text   storage of the setting, used as long as set
 *
 * Returns the exit code.
 */
enum { CLI_DEEPSPEED_BYTES = 4096 + 16 };
int cli_deepspeed(struct cli_list *set, const char *file, int is_strict,
                  char text[CLI_DEEPSPEED_BYTES]);

int cmd_train(const struct cli_command *self, int argc, char **argv);
int cmd_run(const struct cli_command *self, int argc, char **argv);
int cmd_eval(const struct cli_command *self, int argc, char **argv);
KU_STATUS cmd_translate(const struct cli_command *self, int argc, char **argv);
int cmd_sample(const struct cli_command *self, int argc, char **argv);
int cmd_plan(const struct cli_command *self, int argc, char **argv);
int cmd_graph(const struct cli_command *self, int argc, char **argv);
int cmd_ckpt(const struct cli_command *self, int argc, char **argv);
int cmd_bench(const struct cli_command *self, int argc, char **argv);
int cmd_tokenizer(const struct cli_command *self, int argc, char **argv);
int cmd_data(const struct cli_command *self, int argc, char **argv);
int cmd_info(const struct cli_command *self, int argc, char **argv);
int cmd_help(const struct cli_command *self, int argc, char **argv);

#endif
