/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CLI_CLI_H
#define KU_CLI_CLI_H

#include <stddef.h>
#include <stdint.h>

/*
 * The command: one row a sub-command, one file each. Options are declared, not parsed by hand:
 *     --name VALUE, --name=VALUE, --flag, -n VALUE; what remains is positional.
 */
enum cli_type {
    CLI_FLAG,
    CLI_TEXT,
    CLI_INT,
    CLI_NUM,
    CLI_LIST,
    CLI_OPTIONAL /* --resume, --resume=auto */
};
struct cli_option {
    const char *name; /* without dashes; one letter = -n */
    enum cli_type type;
    const char *what;
    void
        *out; /* int, const char *, int64_t, double, struct cli_list, const char * ("" when bare) */
};
struct cli_list {
    const char **item;
    int n;
};
struct cli_args {
    const char **arg; /* positional */
    int n;
    char **rest; /* behind "--", NULL-terminated; NULL: none */
};
struct cli_command {
    const char *name, *line, *usage;
    int (*run)(const struct cli_command *self, int argc, char **argv); /* returns the exit code */
};
extern const struct cli_command cli_commands[];

/* 0, or the exit code after an error was printed; -1 after --help was. Positional arguments from
 * least to most. */
int cli_parse(const struct cli_command *self, int argc, char **argv,
              const struct cli_option *option, int n_options, int least, int most,
              struct cli_args *args);
void cli_free(const struct cli_option *option, int n_options, struct cli_args *args);

/* Prints "kumi: error: <the last error>" unless it is reported already; the exit code of a status.
 */
int cli_end(int status, int is_reported);
int cli_usage(const char *format, ...)
    __attribute__((format(printf, 1, 2))); /* prints, returns 2 */
/* Writes to stdout, buffered; 0 bytes: what is buffered goes out. KUMI_ESTORAGE: this or earlier
 * output is lost. main() asks once more at the end of every command. */
int cli_write(const char *text, size_t bytes);
/* Writes a text from kumi/run.h to stdout and frees it. */
int cli_print(int status, char *text);

/*
 * -n on a command that runs as ranks: 1 when this process is to go on as a rank (or alone); else
 * the job ran as n processes of this same command line and *exit_code is its end.
 */
int cli_is_rank(const char *n_text, int argc, char **argv, int *exit_code);
/* "500MB", "2GB" (powers of ten), "1GiB", "4096": bytes. < 0: none of that form. */
int cli_bytes(const char *text, uint64_t *bytes);
/* "[[HH:]MM:]SS" in seconds, < 0: none of that form. */
double cli_seconds(const char *text);

/* --deepspeed FILE and --strict, as settings: appended to the --set options. text holds one. The
 * exit code. */
enum { CLI_DEEPSPEED_BYTES = 4096 + 16 };
int cli_deepspeed(struct cli_list *set, const char *file, int is_strict,
                  char text[CLI_DEEPSPEED_BYTES]);

int cmd_train(const struct cli_command *self, int argc, char **argv);
int cmd_run(const struct cli_command *self, int argc, char **argv);
int cmd_eval(const struct cli_command *self, int argc, char **argv);
int cmd_translate(const struct cli_command *self, int argc, char **argv);
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
