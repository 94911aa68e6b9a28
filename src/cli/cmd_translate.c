/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/log.h"
#include "cli/cli.h"

enum { MAX_BYTES = 256 << 20 };

static void emit(void *out, int64_t sentence, int64_t rank, const char *text)
{
    (void)sentence, (void)rank;
    ku_str_append(out, text, strlen(text));
    ku_str_append(out, "\n", 1);
}

static int translate(struct kumi_translate_options *o)
{
    struct kumi_translate_speed speed = {0};
    struct ku_str in = {0}, out = {0};
    const char **line = NULL;
    int status;
    o->emit = emit;
    o->ctx = &out;
    o->speed = &speed;
    KU_TRY_OUT(cli_read_input("translate", MAX_BYTES, &in));
    ku_str_append(&in, "", 1); /* a text to split, also of an empty input */
    if (in.failed || strlen(in.text) + 1 < in.bytes)
        KU_TRY_OUT(in.failed ? KUMI_ENOMEM
                             : KU_ERR(KUMI_EINPUT,
                                      "translate: NUL byte in the input; give lines of text"));
    KU_TRY_OUT(cli_split_lines(in.text, &line, &o->n));
    o->source = line;
    KU_TRY_OUT(kumi_translate(o));
    status = out.failed ? KUMI_ENOMEM : cli_write(ku_str_get(&out), out.bytes);
    if (status == KUMI_OK && speed.s > 0)
        ku_log_line("%lld sentences, %lld tokens, %.1f sentences/s, %.1f tokens/s",
                    (long long)speed.sentences, (long long)speed.tokens,
                    (double)speed.sentences / speed.s, (double)speed.tokens / speed.s);
out:
    ku_free(line);
    ku_str_fini(&in);
    ku_str_fini(&out);
    return status;
}

int cmd_translate(struct cli *c)
{
    struct kumi_translate_options o = {.alpha = 0.6};
    int64_t beam = 1, n_best = 1, batch = 16;
    const struct cli_option option[] = {
        {"beam", CLI_INT, "beam size (default 1: greedy)", &beam},
        {"alpha", CLI_NUM, "length penalty (default 0.6)", &o.alpha},
        {"n-best", CLI_INT, "translations printed per sentence, best first (default 1)", &n_best},
        {"ema", CLI_FLAG, "use the averaged weights (train.ema)", &o.ema},
        {"tokenizer", CLI_TEXT, "of the sources, or of both sides (default: the run's)",
         &o.tokenizer},
        {"target-tokenizer", CLI_TEXT, "of the targets (default: the run's)", &o.target_tokenizer},
        {"batch", CLI_INT, "sentences per batch (default 16)", &batch},
        {"threads", CLI_INT, "compute threads (default: the cores)", &o.threads}};
    if (!CLI_PARSE(c, option, 1, 1))
        return c->code;
    o.run = c->arg[0];
    o.beam = beam, o.n_best = n_best, o.batch = batch;
    if (!beam || !n_best || !batch)
        return cli_usage("kumi translate: --%s: 0; give 1 or more", !beam     ? "beam"
                                                                    : !n_best ? "n-best"
                                                                              : "batch");
    return cli_end(translate(&o), 0);
}
