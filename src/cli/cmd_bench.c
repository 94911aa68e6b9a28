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
    struct cli_args args;
    const char *n = NULL;
    int64_t threads = 0;
    int as_json = 0;
    const struct cli_option option[] = {
        {"n", CLI_TEXT, "comm: ranks (default 2)", &n},
        {"threads", CLI_INT, "compute threads (default: the cores)", &threads},
        {"json", CLI_FLAG, "a JSON object a line", &as_json}};
    int code = cli_parse(self, argc, argv, option, 3, 1, 1, &args);
    if (code != 0)
        return code < 0 ? 0 : code;
    if (cli_is_rank(n, argc, argv, &code))
        code = cli_end(kumi_bench(args.arg[0], (int)threads, as_json, print_line, stdout), 0);
    cli_free(option, 3, &args);
    return code;
}
