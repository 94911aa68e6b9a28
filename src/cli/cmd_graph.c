/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "cli/cli.h"
#include "kumi/launch.h"
#include "kumi/run.h"

int cmd_graph(const struct cli_command *self, int argc, char **argv)
{
    struct cli_args args;
    struct cli_list set = {0};
    const char *n_text = "1", *after = NULL, *deepspeed = NULL;
    char setting[CLI_DEEPSPEED_BYTES];
    int64_t rank = INT64_MIN;
    int n = 1, as_dot = 0;
    const struct cli_option option[] = {
        {"n", CLI_TEXT, "ranks (default 1)", &n_text},
        {"set", CLI_LIST, "section.key=value, overrides the file", &set},
        {"rank", CLI_INT, "the program as this rank runs it: size and start of each part", &rank},
        {"after", CLI_TEXT, "print after this pass; lower (default): the program", &after},
        {"deepspeed", CLI_TEXT, "a DeepSpeed configuration on top of CONFIG", &deepspeed},
        {"dot", CLI_FLAG, "print Graphviz", &as_dot}};
    enum { N = sizeof option / sizeof option[0] };
    int code = cli_parse(self, argc, argv, option, N, 1, 1, &args);
    if (code != 0)
        return code < 0 ? 0 : code;
    code = cli_deepspeed(&set, deepspeed, 0, setting);
    struct kumi_settings s = {args.arg[0], set.item, set.n};
    char *text = NULL;
    int status = kumi_launch_parse_n(n_text, &n), has_rank = rank != INT64_MIN;
    if (code != 0) {
        ;
    } else if (status == KUMI_OK && has_rank && (rank < 0 || rank >= n)) {
        code = cli_usage("kumi graph: --rank: %lld; give a number from 0 to %d", (long long)rank,
                         n - 1);
    } else if (has_rank && (as_dot || (after && strcmp(after, "lower") != 0))) {
        code = cli_usage("kumi graph: --rank: the ranks have one graph; omit --dot and --after, "
                         "which print it, or --rank");
    } else {
        if (status == KUMI_OK && has_rank)
            status = kumi_program_text(&s, n, (int)rank, &text);
        else if (status == KUMI_OK)
            status = kumi_graph_text(&s, n, after ? after : as_dot ? NULL : "lower", as_dot, &text);
        code = cli_print(status, text);
    }
    cli_free(option, N, &args);
    return code;
}
