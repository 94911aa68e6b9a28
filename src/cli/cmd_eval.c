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

static int print_bleu(const struct kumi_bleu_options *o, int as_json)
{
    struct kumi_bleu_result r;
    int status = kumi_eval_bleu(o, &r);
    if (status < 0)
        return status;
    printf(as_json ? "{\"sentences\":%lld,\"bleu\":%.17g,\"chrf\":%.17g,\"brevity_penalty\":%.17g,"
                     "\"precision\":[%.17g,%.17g,%.17g,%.17g],\"sentences_per_s\":%.17g}\n"
                   : "%lld sentences\nBLEU: %.2f\nchrF: %.2f\nbrevity penalty: %.4f\n"
                     "precision: %.1f %.1f %.1f %.1f\n%.1f sentences/s\n",
           (long long)r.sentences, r.bleu, r.chrf, r.brevity_penalty, r.precision[0],
           r.precision[1], r.precision[2], r.precision[3],
           r.speed.s > 0 ? (double)r.sentences / r.speed.s : 0.0);
    return status;
}

int cmd_eval(const struct cli_command *self, int argc, char **argv)
{
    struct kumi_eval_result r = {0};
    struct cli_args args;
    const char *n = NULL;
    int as_json = 0, is_bleu = 0;
    int64_t beam = 1;
    struct kumi_bleu_options bleu = {.alpha = 0.6};
    const struct cli_option option[] = {
        {"n", CLI_TEXT, "ranks on this host, or auto", &n},
        {"json", CLI_FLAG, "one JSON object", &as_json},
        {"bleu", CLI_FLAG, "translate, and score that", &is_bleu},
        {"beam", CLI_INT, "with --bleu (default 1)", &beam},
        {"alpha", CLI_NUM, "with --bleu (default 0.6)", &bleu.alpha},
        {"source", CLI_TEXT, "with --bleu: sentences (default: data.val)", &bleu.source},
        {"reference", CLI_TEXT, "with --bleu: their translations", &bleu.reference}};
    enum { N = sizeof option / sizeof option[0] };
    int code = cli_parse(self, argc, argv, option, N, 1, 1, &args);
    if (code != 0)
        return code < 0 ? 0 : code;
    bleu.run = args.arg[0];
    bleu.beam = beam;
    if (is_bleu && n)
        code = cli_usage("kumi eval: --bleu runs as one process; leave out -n");
    else if (is_bleu)
        code = cli_end(print_bleu(&bleu, as_json), 0);
    else if (cli_is_rank(n, argc, argv, &code)) {
        int status = kumi_eval(args.arg[0], &r);
        if (status == KUMI_OK && r.tokens > 0)
            print_result(&r, as_json);
        code = cli_end(status, r.is_reported);
    }
    cli_free(option, N, &args);
    return code;
}
