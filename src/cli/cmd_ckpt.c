/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "kumi/run.h"

int cmd_ckpt(const struct cli_command *self, int argc, char **argv)
{
    struct cli_args args;
    int as_json = 0, params = 0;
    const char *to = NULL, *shard = NULL;
    struct cli_list map = {0};
    struct kumi_weights_options weights = {0};
    const struct cli_option option[] = {
        {"json", CLI_FLAG, "list: print a JSON array", &as_json},
        {"params", CLI_FLAG, "digest: of the parameters only", &params},
        {"to", CLI_TEXT, "export, import: the directory to create", &to},
        {"dtype", CLI_TEXT, "export, import: f32, bf16 or f16 (default: unchanged)",
         &weights.dtype},
        {"shard-size", CLI_TEXT, "export, import: max file size, such as 2GB (default: one file)",
         &shard},
        {"ema", CLI_FLAG, "export: the averaged weights (train.ema)", &weights.ema},
        {"model", CLI_TEXT, "import: a config.json or the configuration of a run", &weights.model},
        {"map", CLI_LIST, "import: SOURCE=TENSOR, load TENSOR from SOURCE of the files; repeatable",
         &map},
        {"allow-missing", CLI_FLAG, "export of a directory, import: allow missing tensors",
         &weights.allow_missing}};
    enum { N_OPTIONS = sizeof option / sizeof option[0] };
    int code = cli_parse(self, argc, argv, option, N_OPTIONS, 2, 2, &args);
    if (code != 0)
        return code < 0 ? 0 : code;
    const char *verb = args.arg[0], *run = args.arg[1];
    int is_export = strcmp(verb, "export") == 0, is_import = strcmp(verb, "import") == 0;
    char *text = NULL, digest[72];
    weights.map = map.item;
    weights.n_map = map.n;
    if ((is_export || is_import) != (to != NULL)) {
        code = cli_usage("kumi ckpt: %s: %s; usage: %s", verb,
                         to ? "--to is for export and import" : "--to DIR is missing", self->usage);
    } else if (shard && cli_bytes(shard, &weights.shard_bytes) < 0) {
        code = cli_usage("kumi ckpt: --shard-size: %.60s: not a size; give bytes, or a unit as in "
                         "500MB, 2GB, 1GiB",
                         shard);
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
    } else if (is_export) {
        code = cli_end(kumi_ckpt_export(run, to, &weights), 0);
    } else if (is_import) {
        code = cli_end(kumi_ckpt_import(run, to, &weights), 0);
    } else {
        code = cli_usage("kumi ckpt: %.60s: unknown; give list, verify, digest, export or import",
                         verb);
    }
    cli_free(option, N_OPTIONS, &args);
    return code;
}
