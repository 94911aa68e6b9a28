/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "cli/cli.h"

/* JSON has no NaN; it becomes null. */
static json_t *real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static void print_json(const struct kumi_eval_result *r)
{
    json_t *o = json_pack(
        "{s:o, s:I, s:o}", "step", r->step < 0 ? json_null() : json_integer(r->step),
        r->is_by_samples ? "samples" : "tokens", (json_int_t)r->tokens, "val_loss", real(r->loss));
    for (int i = 0; i < r->metrics.n && o; i++) {
        char name[40];
        snprintf(name, sizeof name, "val_%s", r->metrics.item[i].name);
        json_object_set_new(o, name, real(r->metrics.item[i].value));
    }
    if (!r->is_by_samples && o)
        json_object_set_new(o, "perplexity", real(r->perplexity));
    if (r->bytes > 0 && o) {
        json_object_set_new(o, "bytes", json_integer(r->bytes));
        json_object_set_new(o, "byte_perplexity", real(r->byte_perplexity));
        json_object_set_new(o, "bits_per_byte", real(r->bits_per_byte));
    }
    char *text = o ? ku_json_print(o, JSON_COMPACT) : NULL;
    if (text)
        puts(text);
    ku_free(text);
    json_decref(o);
}

static void print_result(const struct kumi_eval_result *r)
{
    if (r->step >= 0)
        printf("step %lld, ", (long long)r->step);
    printf("%lld %s\n", (long long)r->tokens, r->is_by_samples ? "samples" : "tokens");
    for (int i = 0; i < r->metrics.n; i++)
        printf("%s: %.4f\n", r->metrics.item[i].name, r->metrics.item[i].value);
    if (!r->is_by_samples)
        printf("perplexity: %.4f\n", r->perplexity);
    if (r->bytes > 0)
        printf("per byte (%lld bytes): perplexity %.4f, %.4f bits\n", (long long)r->bytes,
               r->byte_perplexity, r->bits_per_byte);
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

int cmd_eval(struct cli *c)
{
    struct kumi_eval_options o = {0};
    struct kumi_eval_result r = {0};
    const char *n = NULL;
    struct cli_hosts hosts = {0};
    int as_json = 0, is_bleu = 0;
    int64_t beam = INT64_MIN; /* default: not given; for alpha -HUGE_VAL */
    struct kumi_bleu_options bleu = {.alpha = -HUGE_VAL};
    const struct cli_option option[] = {
        {"n", CLI_TEXT, "ranks; auto: one per core (of hosts: all slots)", &n},
        CLI_HOSTS(hosts),
        {"data", CLI_LIST, "a file or glob instead of the run's validation split", NULL},
        {"stride", CLI_INT, "distance of the windows in tokens; each scores that many", &o.stride},
        {"tokenizer", CLI_TEXT, "of a directory of weights (default: the one in it)", &o.tokenizer},
        {"seq-len", CLI_INT, "of a directory of weights: tokens per window (default 1024)",
         &o.seq_len},
        {"ema", CLI_FLAG, "use the averaged weights (train.ema)", &o.ema},
        {"json", CLI_FLAG, "print one JSON object", &as_json},
        {"bleu", CLI_FLAG, "translate, and score the translations by BLEU", &is_bleu},
        {"beam", CLI_INT, "with --bleu: beam size (default 1)", &beam},
        {"alpha", CLI_NUM, "with --bleu: length penalty (default 0.6)", &bleu.alpha},
        {"source", CLI_TEXT, "with --bleu: source sentences (default: data.val)", &bleu.source},
        {"reference", CLI_TEXT, "with --bleu: reference translations (default: data.val_target)",
         &bleu.reference}};
    if (!CLI_PARSE(c, option, 1, 1))
        return c->code;
    o.run = bleu.run = c->arg[0];
    o.data = c->list;
    o.n_data = c->n_list;
    bleu.ema = o.ema;
    const bool is_beam = beam != INT64_MIN, is_alpha = bleu.alpha > -HUGE_VAL;
    bleu.beam = is_beam ? beam : 1;
    bleu.alpha = is_alpha ? bleu.alpha : 0.6;
    if (!is_bleu && (is_beam || is_alpha || bleu.source || bleu.reference))
        return cli_usage("kumi eval: --beam, --alpha, --source, --reference go with --bleu");
    if (beam == 0)
        return cli_usage("kumi eval: --beam: 0; give 1 to 64");
    if (is_bleu && (o.n_data || o.stride || o.tokenizer || o.seq_len))
        return cli_usage("kumi eval: --bleu takes --source and --reference, not --data, --stride, "
                         "--tokenizer, --seq-len");
    if (is_bleu && (n || hosts.hosts || hosts.hostfile))
        return cli_usage("kumi eval: --bleu runs as one process; leave out %s", n ? "-n" : "-H");
    if (is_bleu)
        return cli_end(print_bleu(&bleu, as_json), 0);
    if (!cli_is_rank(c, n, &hosts))
        return c->code;
    int status = kumi_evaluate(&o, &r);
    if (status == KUMI_OK && r.rank == 0)
        (as_json ? print_json : print_result)(&r);
    return cli_end(status, r.is_reported);
}
