/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "kumi/run.h"

int cmd_info(const struct cli_command *self, int argc, char **argv)
{
    struct cli_args args;
    int as_json = 0;
    const struct cli_option option[] = {{"json", CLI_FLAG, "print one JSON object", &as_json}};
    int code = cli_parse(self, argc, argv, option, 1, 0, 0, &args);
    if (code != 0)
        return code < 0 ? 0 : code;
    char *text = NULL;
    int status = kumi_info_text(as_json, &text);
    code = cli_print(status, text);
    cli_free(option, 1, &args);
    return code;
}
