/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "kumi/launch.h"

int cmd_run(struct cli *c)
{
    const char *n_text = "auto";
    int64_t threads = 0;
    int n = 0, code;
    const struct cli_option option[] = {
        {"n", CLI_TEXT, "ranks; auto: one per core", &n_text},
        {"threads", CLI_INT, "compute threads of each rank (default: its share of the cores)",
         &threads}};
    if (!CLI_PARSE(c, option, 0, 0))
        return c->code;
    if (threads < 0 || threads > 4096)
        return cli_usage("kumi run: --threads: give 1 to 4096; usage: %s", c->command->usage);
    if (c->rest == NULL || c->rest[0] == NULL)
        return cli_usage("kumi run: no program after --; usage: %s", c->command->usage);
    int status = kumi_launch_parse_n(n_text, &n);
    if (status == KUMI_OK)
        status = kumi_launch_program(c->rest, n, (int)threads, &code);
    return status < 0 ? cli_end(status, 0) : code;
}
