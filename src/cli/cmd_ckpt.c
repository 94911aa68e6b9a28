/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "kumi/run.h"

int cmd_ckpt(const struct cli_command *self, int argc, char **argv)
{
    struct cli_args args;
    int as_json = 0, params = 0;
    const struct cli_option option[] = {
        {"json", CLI_FLAG, "list: a JSON array", &as_json},
        {"params", CLI_FLAG, "digest: of parameters only", &params}};
    int code = cli_parse(self, argc, argv, option, 2, 2, 3, &args);
    if (code != 0)
        return code < 0 ? 0 : code;
    const char *verb = args.arg[0], *run = args.arg[1];
    char *text = NULL, digest[72];
    if ((strcmp(verb, "export") == 0) != (args.n == 3)) {
        code = cli_usage("kumi ckpt: %s; usage: %s", verb, self->usage);
    } else if (strcmp(verb, "list") == 0) {
        int status = kumi_ckpt_list(run, as_json, &text);
        code = cli_print(status, text);
    } else if (strcmp(verb, "verify") == 0) {
        int status = kumi_ckpt_verify(run, &text);
        if (status < 0 && text)
            fputs(text, stdout);
        code = cli_print(status, text);
    } else if (strcmp(verb, "digest") == 0) {
        int status = kumi_ckpt_digest(run, params, digest);
        if (status == KUMI_OK)
            puts(digest);
        code = cli_end(status, 0);
    } else if (strcmp(verb, "export") == 0) {
        code = cli_end(kumi_ckpt_export(run, args.arg[2]), 0);
    } else {
        code = cli_usage("kumi ckpt: %.60s: unknown; list, verify, digest or export", verb);
    }
    cli_free(option, 2, &args);
    return code;
}
