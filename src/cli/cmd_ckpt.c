/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

struct use {
    const char *option;
    bool is_given, is_taken; /* is_taken: by the verb */
};

static const char *find_stray(const struct use *use, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (use[i].is_given && !use[i].is_taken)
            return use[i].option;
    return NULL;
}

int cmd_ckpt(struct cli *c)
{
    int as_json = 0, params = 0;
    const char *to = NULL, *shard = NULL;
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
         NULL},
        {"allow-missing", CLI_FLAG, "export of a directory, import: allow missing tensors",
         &weights.allow_missing}};
    static const char *const verbs[] = {"list", "verify", "digest", "export", "import"};
    if (!CLI_PARSE(c, option, 1, 2))
        return c->code;
    const char *verb = c->arg[0], *run = c->arg[1];
    const bool is_export = strcmp(verb, "export") == 0, is_import = strcmp(verb, "import") == 0;
    bool is_known = false;
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
        is_known |= strcmp(verb, verbs[i]) == 0;
    if (!is_known)
        return cli_usage("kumi ckpt: %.60s: unknown; give list, verify, digest, export or import",
                         verb);
    if (c->n < 2)
        return cli_usage("kumi ckpt %s: a run or a directory is missing", verb);
    const bool is_list = strcmp(verb, "list") == 0, moves = is_export || is_import;
    const struct use use[] = {{"--json", as_json, is_list},
                              {"--params", params, strcmp(verb, "digest") == 0},
                              {"--to", to, moves},
                              {"--dtype", weights.dtype, moves},
                              {"--shard-size", shard, moves},
                              {"--ema", weights.ema, is_export},
                              {"--model", weights.model, is_import},
                              {"--map", c->n_list > 0, is_import},
                              {"--allow-missing", weights.allow_missing, moves}};
    const char *stray = find_stray(use, sizeof use / sizeof use[0]);
    if (stray)
        return cli_usage("kumi ckpt %s: %s does not go with %s; see `kumi help ckpt`", verb, stray,
                         verb);
    if (moves && to == NULL)
        return cli_usage("kumi ckpt %s: --to DIR is missing; see `kumi help ckpt`", verb);
    char *text = NULL, digest[72];
    weights.map = c->list;
    weights.n_map = c->n_list;
    if (shard && cli_bytes(shard, &weights.shard_bytes) < 0)
        return cli_usage("kumi ckpt: --shard-size: %.60s: not a size; give bytes, or a unit as in "
                         "500MB, 2GB, 1GiB",
                         shard);
    if (is_export)
        return cli_end(kumi_ckpt_export(run, to, &weights), 0);
    if (is_import)
        return cli_end(kumi_ckpt_import(run, to, &weights), 0);
    if (is_list)
        return cli_print(kumi_ckpt_list(run, as_json, &text), &text);
    if (strcmp(verb, "verify") == 0)
        return cli_print(kumi_ckpt_verify(run, &text), &text);
    int status = kumi_ckpt_digest(run, params, digest);
    if (status == KUMI_OK)
        puts(digest);
    return cli_end(status, 0);
}
