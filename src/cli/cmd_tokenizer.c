/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os/os.h"
#include "base/str.h"
#include "cli/cli.h"
#include "kumi/run.h"

static int read_all(struct ku_str *s)
{
    char piece[65536];
    for (;;) {
        ssize_t n = ku_os_read(STDIN_FILENO, piece, sizeof piece);
        if (n < 0)
            return cli_usage("tokenizer: standard input: %s", ku_os_why());
        if (n == 0)
            return s->failed
                       ? cli_usage("tokenizer: standard input: does not fit in memory; split it")
                       : 0;
        ku_str_append(s, piece, (size_t)n);
    }
}

/* Convert standard input to ids, or ids to text, on standard output. */
static int convert(const char *where, int is_encode)
{
    struct ku_str in = {0};
    char *text = NULL;
    size_t bytes = 0;
    int code = read_all(&in);
    if (code == 0) {
        int status = is_encode ? kumi_tokenizer_encode(where, ku_str_get(&in), in.bytes, &text)
                               : kumi_tokenizer_decode(where, ku_str_get(&in), &text, &bytes);
        if (status == KUMI_OK)
            status = cli_write(text, is_encode ? strlen(text) : bytes);
        if (status == KUMI_OK && is_encode)
            status = cli_write("\n", 1);
        kumi_text_free(text);
        code = cli_end(status, 0);
    }
    ku_str_fini(&in);
    return code;
}

static int64_t read_piece(void *ctx, void *data, size_t bytes)
{
    (void)ctx;
    return ku_os_read(STDIN_FILENO, data, bytes);
}

/* Convert standard input to a token file. */
static int write_tokens(const char *where, const char *to, int overwrite)
{
    const struct kumi_token_file_options o = {
        .tokenizer = where, .to = to, .overwrite = overwrite, .read = read_piece};
    int64_t n = 0;
    int status = kumi_tokenizer_write(&o, &n);
    if (status == KUMI_OK)
        printf("%s: %lld tokens\n", to, (long long)n);
    return cli_end(status, 0);
}

int cmd_tokenizer(const struct cli_command *self, int argc, char **argv)
{
    struct cli_args args;
    struct cli_list special = {0};
    const char *where = NULL, *out = NULL, *to = NULL;
    int64_t vocab = 0, frequency = 0;
    int as_json = 0, overwrite = 0;
    const struct cli_option option[] = {
        {"tokenizer", CLI_TEXT, "byte, a directory, or a tokenizer.json", &where},
        {"to", CLI_TEXT, "encode: write a *.bin token file instead of ids on stdout", &to},
        {"overwrite", CLI_FLAG, "encode: --to replaces an existing file", &overwrite},
        {"vocab", CLI_INT, "train: vocabulary size (default 30000)", &vocab},
        {"min-frequency", CLI_INT, "train: min count of a pair to merge (default 2)", &frequency},
        {"special", CLI_LIST, "train: a special token; repeatable", &special},
        {"out", CLI_TEXT, "train: a *.json file or a folder (default tokenizer.json)", &out},
        {"json", CLI_FLAG, "train: print the report as JSON", &as_json}};
    enum { N_OPTIONS = sizeof option / sizeof *option, FILES_MAX = 1 << 20 };
    int code = cli_parse(self, argc, argv, option, N_OPTIONS, 1, FILES_MAX, &args);
    if (code != 0)
        return code < 0 ? 0 : code;
    const char *verb = args.arg[0];
    int is_encode = strcmp(verb, "encode") == 0, is_train = strcmp(verb, "train") == 0;
    int has_train_option = vocab || frequency || special.n || out || as_json;
    if (!is_train && !is_encode && strcmp(verb, "decode") != 0)
        code = cli_usage("kumi tokenizer: %s: unknown; usage: %s", verb, self->usage);
    else if (!is_train && !where)
        code = cli_usage("kumi tokenizer: --tokenizer is missing; usage: %s", self->usage);
    else if ((is_train ? where != NULL : has_train_option || args.n > 1) || (to && !is_encode) ||
             (overwrite && !to))
        code =
            cli_usage("kumi tokenizer: %s: an option or argument does not apply to it; usage: %s",
                      verb, self->usage);
    else if (vocab < 0 || frequency < 0)
        code = cli_usage("kumi tokenizer train: --vocab, --min-frequency: give 1 or more");
    else if (to)
        code = write_tokens(where, to, overwrite);
    else if (!is_train)
        code = convert(where, is_encode);
    else {
        char *text = NULL;
        struct kumi_tokenizer_options o = {.file = args.arg + 1,
                                           .n_files = args.n - 1,
                                           .out = out,
                                           .vocab_size = vocab,
                                           .min_frequency = frequency,
                                           .special = special.item,
                                           .n_special = special.n,
                                           .as_json = as_json};
        int status = kumi_tokenizer_train(&o, &text);
        code = cli_print(status, text);
    }
    cli_free(option, N_OPTIONS, &args);
    return code;
}
