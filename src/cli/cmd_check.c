/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "kumi/launch.h"

int cmd_check(struct cli *c)
{
    struct kumi_settings s;
    char *text = NULL;
    const char *n_text = "1", *deepspeed = NULL;
    int n = 1;
    const struct cli_option option[] = {
        {"n", CLI_TEXT, "ranks (default 1)", &n_text},
        {"set", CLI_LIST, "section.key=value, overrides the file", NULL},
        {"deepspeed", CLI_TEXT, "a DeepSpeed configuration on top of CONFIG", &deepspeed}};
    if (!CLI_PARSE(c, option, 1, 1) || !cli_settings(c, deepspeed, 0, &s))
        return c->code;
    int status = kumi_launch_parse_n(n_text, &n);
    if (status == KUMI_OK)
        status = kumi_check_text(&s, n, &text);
    return cli_print(status, &text);
}
