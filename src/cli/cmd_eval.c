/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/json.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "kumi/run.h"

static void print_json(const struct kumi_eval_result *r)
{
    json_t *o = json_pack("{s:I, s:I, s:f}", "step", (json_int_t)r->step,
                          r->is_by_samples ? "samples" : "tokens", (json_int_t)r->tokens,
                          "val_loss", r->loss);
    for (int i = 0; i < r->metrics.n && o; i++) {
        char name[40];
        snprintf(name, sizeof name, "val_%s", r->metrics.item[i].name);
        json_object_set_new(o, name, json_real(r->metrics.item[i].value));
    }
    if (!r->is_by_samples && o)
        json_object_set_new(o, "perplexity", json_real(r->perplexity));
    char *text = o ? ku_json_print(o, JSON_COMPACT) : NULL;
    if (text)
        puts(text);
    ku_free(text);
    json_decref(o);
}

static void print_result(const struct kumi_eval_result *r)
{
    printf("step %lld, %lld %s\n", (long long)r->step, (long long)r->tokens,
           r->is_by_samples ? "samples" : "tokens");
    for (int i = 0; i < r->metrics.n; i++)
        printf("%s: %.4f\n", r->metrics.item[i].name, r->metrics.item[i].value);
    if (!r->is_by_samples)
        printf("perplexity: %.4f\n", r->perplexity);
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
            (as_json ? print_json : print_result)(&r);
        code = cli_end(status, r.is_reported);
    }
    cli_free(option, 2, &args);
    return code;
}
