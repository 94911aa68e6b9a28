/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "cli/cli.h"

int cmd_graph(struct cli *c)
{
    struct kumi_settings s;
    char *text = NULL;
    const char *n_text = "1", *program = NULL, *after = NULL, *deepspeed = NULL;
    int64_t rank = INT64_MIN, coordinate = INT64_MIN;
    int n = 1, as_dot = 0;
    const struct cli_option option[] = {
        {"n", CLI_TEXT, "ranks (default 1)", &n_text},
        {"set", CLI_LIST, "section.key=value, overrides the file", NULL},
        {"program", CLI_TEXT, "the program of train (default), eval, init or derive", &program},
        {"coordinate", CLI_INT, "of a pipeline: the program of this coordinate (default 0)",
         &coordinate},
        {"rank", CLI_INT, "the program as this rank runs it: size and start of each part", &rank},
        {"after", CLI_TEXT, "print after this pass; lower (default): the program", &after},
        {"deepspeed", CLI_TEXT, "a DeepSpeed configuration on top of CONFIG", &deepspeed},
        {"dot", CLI_FLAG, "print Graphviz", &as_dot}};
    if (!CLI_PARSE(c, option, 1, 1) || !cli_settings(c, deepspeed, 0, &s))
        return c->code;
    int status = cli_planned_ranks("-n", n_text, &n), has_rank = rank != INT64_MIN;
    if (status == KUMI_OK && has_rank && (rank < 0 || rank >= n))
        return cli_usage("kumi graph: --rank: %lld; give a number from 0 to %d", (long long)rank,
                         n - 1);
    if (has_rank && (as_dot || (after && strcmp(after, "lower") != 0)))
        return cli_usage("kumi graph: --rank: the ranks have one graph; omit --dot and --after, "
                         "which print it, or --rank");
    const int has_class = program || coordinate != INT64_MIN;
    if (has_class && (has_rank || as_dot || (after && strcmp(after, "lower") != 0)))
        return cli_usage("kumi graph: --%s: prints a whole program; omit --rank, --dot and --after",
                         program ? "program" : "coordinate");
    if (status == KUMI_OK && coordinate != INT64_MIN && (coordinate < 0 || coordinate >= n))
        return cli_usage("kumi graph: --coordinate: %lld; give a number below parallel.pp",
                         (long long)coordinate);
    if (status == KUMI_OK && has_class)
        status = kumi_coordinate_text(&s, n, program ? program : "train",
                                      coordinate < 0 ? 0 : (int)coordinate, &text);
    else if (status == KUMI_OK)
        status = has_rank
                     ? kumi_program_text(&s, n, (int)rank, &text)
                     : kumi_graph_text(&s, n, after || as_dot ? after : "lower", as_dot, &text);
    return cli_print(status, &text);
}
