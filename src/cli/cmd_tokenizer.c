/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os/os.h"
#include "cli/cli.h"

/* Convert standard input to ids, or ids to text, on standard output. */
static int convert(const char *where, int is_encode)
{
    struct ku_str in = {0};
    char *text = NULL;
    size_t bytes = 0;
    int status = cli_read_input("tokenizer", SIZE_MAX, &in);
    if (status == KUMI_OK)
        status = is_encode ? kumi_tokenizer_encode(where, ku_str_get(&in), in.bytes, &text)
                           : kumi_tokenizer_decode(where, ku_str_get(&in), &text, &bytes);
    if (status == KUMI_OK)
        status = cli_write(text, is_encode ? strlen(text) : bytes);
    if (status == KUMI_OK && is_encode)
        status = cli_write("\n", 1);
    kumi_text_free(text);
    ku_str_fini(&in);
    return cli_end(status, 0);
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

int cmd_tokenizer(struct cli *c)
{
    const char *where = NULL, *out = NULL, *to = NULL;
    int64_t vocab = 0, frequency = 0;
    int as_json = 0, overwrite = 0;
    const struct cli_option option[] = {
        {"tokenizer", CLI_TEXT, "byte, a directory, or a tokenizer.json", &where},
        {"to", CLI_TEXT, "encode: write a *.bin token file instead of ids on stdout", &to},
        {"overwrite", CLI_FLAG, "encode: --to replaces an existing file", &overwrite},
        {"vocab", CLI_INT, "train: vocabulary size (default 30000)", &vocab},
        {"min-frequency", CLI_INT, "train: min count of a pair to merge (default 2)", &frequency},
        {"special", CLI_LIST, "train: a special token; repeatable", NULL},
        {"out", CLI_TEXT, "train: a *.json file or a folder (default tokenizer.json)", &out},
        {"json", CLI_FLAG, "train: print the report as JSON", &as_json}};
    if (!CLI_PARSE(c, option, 1, INT_MAX))
        return c->code;
    const char *verb = c->arg[0];
    const bool is_encode = strcmp(verb, "encode") == 0, is_train = strcmp(verb, "train") == 0;
    const bool has_train_option = vocab || frequency || c->n_list || out || as_json;
    if (!is_train && !is_encode && strcmp(verb, "decode") != 0)
        return cli_usage("kumi tokenizer: %.60s: unknown; give encode, decode or train", verb);
    if (!is_train && !where)
        return cli_usage("kumi tokenizer %s: --tokenizer is missing; see `kumi help tokenizer`",
                         verb);
    if ((is_train ? where != NULL : has_train_option || c->n > 1) || (to && !is_encode) ||
        (overwrite && !to))
        return cli_usage("kumi tokenizer %s: an option or argument does not apply to it; see "
                         "`kumi help tokenizer`",
                         verb);
    if (vocab < 0 || frequency < 0)
        return cli_usage("kumi tokenizer train: --%s: %lld; give 1 or more",
                         vocab < 0 ? "vocab" : "min-frequency",
                         (long long)(vocab < 0 ? vocab : frequency));
    if (!is_train)
        return to ? write_tokens(where, to, overwrite) : convert(where, is_encode);
    char *text = NULL;
    const struct kumi_tokenizer_options o = {.file = c->arg + 1,
                                             .n_files = c->n - 1,
                                             .out = out,
                                             .vocab_size = vocab,
                                             .min_frequency = frequency,
                                             .special = c->list,
                                             .n_special = c->n_list,
                                             .as_json = as_json};
    return cli_print(kumi_tokenizer_train(&o, &text), &text);
}
