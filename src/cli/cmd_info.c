/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

int cmd_info(struct cli *c)
{
    char *text = NULL;
    int as_json = 0;
    const struct cli_option option[] = {{"json", CLI_FLAG, "print one JSON object", &as_json}};
    if (!CLI_PARSE(c, option, 0, 0))
        return c->code;
    return cli_print(kumi_info_text(as_json, &text), &text);
}
