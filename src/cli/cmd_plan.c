/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "kumi/launch.h"
#include "kumi/run.h"

int cmd_plan(const struct cli_command *self, int argc, char **argv)
{
    struct cli_args args;
    struct cli_list set = {0};
    const char *n_text = "1", *picture = NULL, *deepspeed = NULL;
    char setting[CLI_DEEPSPEED_BYTES];
    int n = 1, memory = 0, roofline = 0, as_json = 0, is_strict = 0;
    const struct cli_option option[] = {
        {"n", CLI_TEXT, "ranks to plan for (default 1)", &n_text},
        {"set", CLI_LIST, "section.key=value over the file", &set},
        {"memory", CLI_FLAG, "the memory plan (the default)", &memory},
        {"picture", CLI_TEXT, "draw it too, in FILE.svg, FILE.png or FILE.pdf", &picture},
        {"roofline", CLI_FLAG, "the least time of a step, by op", &roofline},
        {"deepspeed", CLI_TEXT, "a DeepSpeed configuration beside CONFIG", &deepspeed},
        {"strict", CLI_FLAG, "keys that DeepSpeed ignores are errors", &is_strict},
        {"json", CLI_FLAG, "one JSON object", &as_json}};
    enum { N = sizeof option / sizeof option[0] };
    int code = cli_parse(self, argc, argv, option, N, 1, 1, &args);
    if (code != 0)
        return code < 0 ? 0 : code;
    code = cli_deepspeed(&set, deepspeed, is_strict, setting);
    struct kumi_settings s = {args.arg[0], set.item, set.n};
    char *text = NULL;
    if (code != 0) {
        ;
    } else if (roofline && (memory || picture)) {
        code = cli_usage("kumi plan: --roofline: not with --memory or --picture; one at a time");
    } else {
        int status = kumi_launch_parse_n(n_text, &n);
        if (status == KUMI_OK && picture)
            status = kumi_plan_picture(&s, n, picture);
        if (status == KUMI_OK)
            status = roofline ? kumi_plan_roofline(&s, n, as_json, &text)
                              : kumi_plan_memory(&s, n, as_json, &text);
        code = cli_print(status, text);
    }
    cli_free(option, N, &args);
    return code;
}
