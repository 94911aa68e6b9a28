/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "cli/cli.h"
#include "kumi/run.h"

int cmd_data(const struct cli_command *self, int argc, char **argv)
{
    struct cli_args args;
    struct cli_list set = {0};
    const struct cli_option option[] = {
        {"set", CLI_LIST, "section.key=value, overrides the file", &set}};
    int code = cli_parse(self, argc, argv, option, 1, 2, 2, &args);
    if (code != 0)
        return code < 0 ? 0 : code;
    char *text = NULL;
    if (strcmp(args.arg[0], "verify") != 0) {
        code = cli_usage("kumi data: %.60s: unknown; usage: %s", args.arg[0], self->usage);
    } else {
        struct kumi_settings s = {args.arg[1], set.item, set.n};
        int status = kumi_data_verify(&s, &text);
        code = cli_print(status, text);
    }
    cli_free(option, 1, &args);
    return code;
}
