/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

enum { MAX_PROGRAMS = 4096 };

int cmd_check(struct cli *c)
{
    struct kumi_settings s;
    char *text = NULL;
    const char *n_text = "1", *deepspeed = NULL;
    int n = 1, has_programs = 0;
    const struct cli_option option[] = {
        {"n", CLI_TEXT, "ranks (default 1)", &n_text},
        {"set", CLI_LIST, "section.key=value, overrides the file", NULL},
        {"deepspeed", CLI_TEXT, "a DeepSpeed configuration on top of CONFIG", &deepspeed},
        {"program", CLI_FLAG, "the arguments after CONFIG are texts of its programs to check",
         &has_programs}};
    if (!CLI_PARSE(c, option, 1, 1 + MAX_PROGRAMS) || !cli_settings(c, deepspeed, 0, &s))
        return c->code;
    if (has_programs != (c->n > 1))
        return has_programs ? cli_usage("kumi check: --program: give files after CONFIG")
                            : cli_usage("kumi check: %s: unexpected argument; texts of programs "
                                        "need --program",
                                        c->arg[1]);
    int status = cli_planned_ranks("-n", n_text, &n);
    if (status == KUMI_OK && has_programs)
        status = kumi_check_programs(&s, n, c->arg + 1, c->n - 1, &text);
    else if (status == KUMI_OK)
        status = kumi_check_text(&s, n, &text);
    return cli_print(status, &text);
}
