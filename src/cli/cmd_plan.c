/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "kumi/launch.h"
#include "kumi/run.h"

int cmd_plan(const struct cli_command *self, int argc, char **argv)
{
    struct cli_args args;
    struct cli_list set = {0};
    const char *n_text = "1";
    int n = 1, memory = 0, as_json = 0;
    const struct cli_option option[] = {
        {"n", CLI_TEXT, "ranks to plan for (default 1)", &n_text},
        {"set", CLI_LIST, "section.key=value over the file", &set},
        {"memory", CLI_FLAG, "the memory plan (the default)", &memory},
        {"json", CLI_FLAG, "one JSON object", &as_json}};
    int code = cli_parse(self, argc, argv, option, 4, 1, 1, &args);
    if (code != 0)
        return code < 0 ? 0 : code;
    struct kumi_settings s = {args.arg[0], set.item, set.n};
    char *text = NULL;
    int status = kumi_launch_parse_n(n_text, &n);
    if (status == KUMI_OK)
        status = kumi_plan_memory(&s, n, as_json, &text);
    code = cli_print(status, text);
    cli_free(option, 4, &args);
    return code;
}
