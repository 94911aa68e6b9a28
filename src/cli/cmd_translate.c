/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "base/log.h"
#include "cli/cli.h"
#include "kumi/run.h"

enum { MAX_BYTES = 256 << 20 };

static void emit(void *out, int64_t sentence, int64_t rank, const char *text)
{
    (void)sentence, (void)rank;
    ku_str_append(out, text, strlen(text));
    ku_str_append(out, "\n", 1);
}

static int read_all(struct ku_str *in)
{
    char piece[65536];
    ssize_t n;
    while ((n = ku_os_read_full(STDIN_FILENO, piece, sizeof piece)) > 0) {
        if (memchr(piece, 0, (size_t)n))
            return KU_ERR(KUMI_EINPUT, "translate: NUL byte in the input; give lines of text");
        ku_str_append(in, piece, (size_t)n);
        if (in->bytes > MAX_BYTES)
            return KU_ERR(KUMI_EINPUT, "translate: the input exceeds %d MiB; split it",
                          MAX_BYTES >> 20);
    }
    if (n < 0)
        return KU_ERR(ku_os_status(KUMI_EINPUT), "translate: input: %s", ku_os_why());
    return in->failed ? KUMI_ENOMEM : KUMI_OK;
}

/* Split `in` into one sentence per line, in place. */
static int cut_lines(struct ku_str *in, const char ***line, int64_t *n)
{
    char *at = in->bytes ? in->text : NULL, *end = at ? at + in->bytes : NULL;
    *n = 0;
    for (const char *p = at; p < end; p++)
        *n += *p == '\n' || p + 1 == end;
    *line = ku_calloc((size_t)*n + 1, sizeof **line);
    if (*line == NULL)
        return KUMI_ENOMEM;
    for (int64_t i = 0; i < *n; i++) {
        (*line)[i] = at;
        at += strcspn(at, "\n");
        if (at < end)
            *at++ = '\0';
    }
    return KUMI_OK;
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
    KU_TRY_OUT(read_all(&in));
    KU_TRY_OUT(cut_lines(&in, &line, &o->n));
    o->source = line;
    KU_TRY_OUT(kumi_translate(o));
    if (out.failed)
        status = KUMI_ENOMEM;
    else
        status = cli_write(ku_str_get(&out), out.bytes);
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

int cmd_translate(const struct cli_command *self, int argc, char **argv)
{
    struct kumi_translate_options o = {.alpha = 0.6};
    struct cli_args args;
    int64_t beam = 1, n_best = 1, batch = 16;
    const struct cli_option option[] = {
        {"beam", CLI_INT, "beam size (default 1: greedy)", &beam},
        {"alpha", CLI_NUM, "length penalty (default 0.6)", &o.alpha},
        {"n-best", CLI_INT, "translations printed per sentence, best first (default 1)", &n_best},
        {"ema", CLI_FLAG, "use the averaged weights (train.ema)", &o.ema},
        {"tokenizer", CLI_TEXT, "of the sources, or of both sides (default: the run's)",
         &o.tokenizer},
        {"target-tokenizer", CLI_TEXT, "of the targets (default: the run's)", &o.target_tokenizer},
        {"batch", CLI_INT, "sentences per batch (default 16)", &batch}};
    enum { N = sizeof option / sizeof option[0] };
    int code = cli_parse(self, argc, argv, option, N, 1, 1, &args);
    if (code != 0)
        return code < 0 ? 0 : code;
    o.run = args.arg[0];
    o.beam = beam, o.n_best = n_best, o.batch = batch;
    code =
        cli_end(beam && n_best && batch
                    ? translate(&o)
                    : KU_ERR(KUMI_EINVAL, "translate: --beam, --n-best, --batch: give 1 or more"),
                0);
    cli_free(option, N, &args);
    return code;
}
