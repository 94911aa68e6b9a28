/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
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
            return s->failed ? cli_usage("tokenizer: standard input: too long for memory") : 0;
        ku_str_append(s, piece, (size_t)n);
    }
}

int cmd_tokenizer(const struct cli_command *self, int argc, char **argv)
{
    struct cli_args args;
    struct ku_str in = {0};
    const char *where = NULL;
    const struct cli_option option[] = {
        {"tokenizer", CLI_TEXT, "byte, a directory, or a tokenizer.json", &where}};
    int code = cli_parse(self, argc, argv, option, 1, 1, 1, &args);
    if (code != 0)
        return code < 0 ? 0 : code;
    char *text = NULL;
    size_t bytes = 0;
    int is_encode = strcmp(args.arg[0], "encode") == 0;
    if (where == NULL || (!is_encode && strcmp(args.arg[0], "decode") != 0)) {
        code = cli_usage("kumi tokenizer: %s; usage: %s",
                         where ? args.arg[0] : "--tokenizer is missing", self->usage);
    } else if ((code = read_all(&in)) == 0) {
        int status = is_encode ? kumi_tokenizer_encode(where, ku_str_get(&in), in.bytes, &text)
                               : kumi_tokenizer_decode(where, ku_str_get(&in), &text, &bytes);
        if (status == KUMI_OK && is_encode)
            puts(text);
        else if (status == KUMI_OK)
            code = ku_os_write_full(STDOUT_FILENO, text, bytes) < 0
                       ? cli_usage("tokenizer: standard output: %s", ku_os_why())
                       : 0;
        kumi_text_free(text);
        if (status < 0)
            code = cli_end(status, 0);
    }
    ku_str_fini(&in);
    cli_free(option, 1, &args);
    return code;
}
