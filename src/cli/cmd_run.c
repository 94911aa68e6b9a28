/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "kumi/launch.h"

int cmd_run(const struct cli_command *self, int argc, char **argv)
{
    struct cli_args args;
    const char *n_text = "auto";
    int64_t threads = 0;
    int n = 0;
    const struct cli_option option[] = {
        {"n", CLI_TEXT, "ranks; auto: one per core", &n_text},
        {"threads", CLI_INT, "compute threads of each rank (default: its share of the cores)",
         &threads}};
    int code = cli_parse(self, argc, argv, option, 2, 0, 0, &args);
    if (code != 0)
        return code < 0 ? 0 : code;
    if (args.rest == NULL || args.rest[0] == NULL || threads < 0 || threads > 4096)
        code =
            cli_usage("kumi run: %s; usage: %s",
                      threads ? "--threads: give 1 to 4096" : "no program after --", self->usage);
    else if ((code = cli_end(kumi_launch_parse_n(n_text, &n), 0)) == 0) {
        int status = kumi_launch_program(args.rest, n, (int)threads, &code);
        if (status < 0)
            code = cli_end(status, 0);
    }
    cli_free(option, 2, &args);
    return code;
}
