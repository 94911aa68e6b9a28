/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "cli/cli.h"

int cmd_data(struct cli *c)
{
    char *text = NULL;
    const struct cli_option option[] = {
        {"set", CLI_LIST, "section.key=value, overrides the file", NULL}};
    if (!CLI_PARSE(c, option, 1, 2))
        return c->code;
    if (strcmp(c->arg[0], "verify") != 0)
        return cli_usage("kumi data: %.60s: unknown; give verify", c->arg[0]);
    if (c->n < 2)
        return cli_usage("kumi data verify: a configuration is missing");
    struct kumi_settings s = {c->arg[1], c->list, c->n_list};
    return cli_print(kumi_data_verify(&s, &text), &text);
}
