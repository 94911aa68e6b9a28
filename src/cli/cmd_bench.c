/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "cli/cli.h"
#include "kumi/run.h"

static void print_line(void *ctx, const char *text)
{
    fprintf(ctx, "%s\n", text);
    fflush(ctx);
}

int cmd_bench(const struct cli_command *self, int argc, char **argv)
{
    struct kumi_bench_options b = {.line = print_line, .ctx = stdout};
    struct cli_args args;
    const char *n = NULL;
    int64_t threads = 0;
    const struct cli_option option[] = {
        {"n", CLI_TEXT, "comm: ranks (default 2)", &n},
        {"threads", CLI_INT, "compute threads (default: the cores)", &threads},
        {"dtype", CLI_TEXT, "op: f32 or bf16 (default: both)", &b.dtype},
        {"json", CLI_FLAG, "a JSON object a line", &b.as_json}};
    enum { N = sizeof option / sizeof option[0] };
    int code = cli_parse(self, argc, argv, option, N, 1, 2, &args);
    if (code != 0)
        return code < 0 ? 0 : code;
    b.what = args.arg[0];
    b.only = args.n > 1 ? args.arg[1] : NULL;
    b.threads = (int)threads;
    if (cli_is_rank(n, argc, argv, &code))
        code = cli_end(kumi_bench(&b), 0);
    cli_free(option, N, &args);
    return code;
}
