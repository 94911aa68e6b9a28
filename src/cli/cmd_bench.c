/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

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
    struct cli_list set = {0};
    const char *n = NULL;
    int64_t threads = 0;
    int as_json = 0;
    const struct cli_option option[] = {
        {"n", CLI_TEXT, "comm: ranks (default 2)", &n},
        {"threads", CLI_INT, "compute threads (default: the cores)", &threads},
        {"set", CLI_LIST, "data: section.key=value over the file", &set},
        {"json", CLI_FLAG, "a JSON object a line", &as_json}};
    int code = cli_parse(self, argc, argv, option, 4, 1, 2, &args);
    if (code != 0)
        return code < 0 ? 0 : code;
    int is_data = strcmp(args.arg[0], "data") == 0;
    if (args.n != 1 + is_data) {
        code = cli_usage("kumi bench %.60s: %s; usage: %s", args.arg[0],
                         is_data ? "a CONFIG is missing" : "a CONFIG is for data", self->usage);
    } else if (is_data) {
        struct kumi_settings s = {args.arg[1], set.item, set.n};
        char *text = NULL;
        int status = kumi_bench_data(&s, as_json, &text);
        code = cli_print(status, text);
    } else if (cli_is_rank(n, argc, argv, &code)) {
        code = cli_end(kumi_bench(args.arg[0], (int)threads, as_json, print_line, stdout), 0);
    }
    cli_free(option, 4, &args);
    return code;
}
