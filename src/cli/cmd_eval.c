/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "cli/cli.h"
#include "kumi/run.h"

static void print_result(const struct kumi_eval_result *r, int as_json)
{
    const char *unit = r->is_by_samples ? "samples" : "tokens";
    if (as_json)
        printf("{\"step\":%lld,\"%s\":%lld,\"val_loss\":%.17g", (long long)r->step, unit,
               (long long)r->tokens, r->loss);
    else
        printf("step %lld, %lld %s\n", (long long)r->step, (long long)r->tokens, unit);
    for (int i = 0; i < r->metrics.n; i++)
        printf(as_json ? ",\"val_%s\":%.17g" : "%s: %.4f\n", r->metrics.item[i].name,
               r->metrics.item[i].value);
    if (!r->is_by_samples)
        printf(as_json ? ",\"perplexity\":%.17g" : "perplexity: %.4f\n", r->perplexity);
    if (as_json)
        puts("}");
    else
        printf("validation loss: %.4f\n", r->loss);
}

int cmd_eval(const struct cli_command *self, int argc, char **argv)
{
    struct kumi_eval_result r = {0};
    struct cli_args args;
    const char *n = NULL;
    int as_json = 0;
    const struct cli_option option[] = {{"n", CLI_TEXT, "ranks on this host, or auto", &n},
                                        {"json", CLI_FLAG, "one JSON object", &as_json}};
    int code = cli_parse(self, argc, argv, option, 2, 1, 1, &args);
    if (code != 0)
        return code < 0 ? 0 : code;
    if (cli_is_rank(n, argc, argv, &code)) {
        int status = kumi_eval(args.arg[0], &r);
        if (status == KUMI_OK && r.rank == 0)
            print_result(&r, as_json);
        code = cli_end(status, r.is_reported);
    }
    cli_free(option, 2, &args);
    return code;
}
