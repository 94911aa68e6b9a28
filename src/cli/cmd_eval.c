/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "cli/cli.h"
#include "kumi/run.h"

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
        if (status == KUMI_OK && r.tokens > 0 && as_json)
            printf("{\"step\":%lld,\"tokens\":%lld,\"val_loss\":%.17g,\"perplexity\":%.17g}\n",
                   (long long)r.step, (long long)r.tokens, r.loss, r.perplexity);
        else if (status == KUMI_OK && r.tokens > 0)
            printf("step %lld, %lld tokens\nperplexity: %.4f\nvalidation loss: %.4f\n",
                   (long long)r.step, (long long)r.tokens, r.perplexity, r.loss);
        code = cli_end(status, r.is_reported);
    }
    cli_free(option, 2, &args);
    return code;
}
