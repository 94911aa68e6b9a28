/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/log.h"
#include "cli/cli.h"

enum { MAX_PROMPT_BYTES = 64 << 20 };

/*
 * Flush each part, so that the text streams. Lost output is reported at the end.
 */
static void emit(void *ctx, const char *text, size_t bytes)
{
    (void)ctx;
    KU_IGNORE(cli_write(text, bytes), "lost output is reported at the end");
    KU_IGNORE(cli_write("", 0), "likewise");
}
/* Header before each of several completions. */
static void begin(void *ctx, int64_t i)
{
    char line[48];
    int bytes = snprintf(line, sizeof line, "%s==> %lld <==\n", i ? "\n" : "", (long long)i + 1);
    emit(ctx, line, (size_t)bytes);
}

static int read_text(const char *path, char **text)
{
    size_t bytes;
    if (ku_os_slurp(path, MAX_PROMPT_BYTES, text, &bytes) < 0)
        return KU_ERR(ku_os_status(KUMI_EINPUT), "sample: %s: %s", path, ku_os_why());
    if (strlen(*text) == bytes)
        return KUMI_OK;
    return KU_ERR(KUMI_EINPUT, "sample: %s: NUL byte at offset %zu; a prompt is plain text", path,
                  strlen(*text));
}

/* One prompt per line of `text`. */
static int read_prompts(const char *path, char *text, struct kumi_sample_options *o,
                        const char ***prompts)
{
    KU_TRY(cli_split_lines(text, prompts, &o->n));
    for (int64_t i = 0; i < o->n; i++)
        if ((*prompts)[i][0] == '\0')
            return KU_ERR(KUMI_EINPUT, "sample: %s: line %lld is empty; give one prompt per line",
                          path, (long long)i + 1);
    if (o->n == 0)
        return KU_ERR(KUMI_EINPUT, "sample: %s: no prompts; give one per line", path);
    o->prompts = *prompts;
    return KUMI_OK;
}

static void print_speed(const struct kumi_sample_speed *s)
{
    if (s->prompt_s > 0)
        ku_log_line("prefill: %lld tokens, %.1f tokens/s", (long long)s->prompt_tokens,
                    (double)s->prompt_tokens / s->prompt_s);
    if (s->s > 0)
        ku_log_line("decode: %lld tokens, %.1f tokens/s, %.2f ms per step", (long long)s->tokens,
                    (double)s->tokens / s->s, s->s * 1e3 / (double)s->steps);
}

static int sample(struct kumi_sample_options *o, const char *prompt_file, const char *prompts_file)
{
    struct kumi_sample_speed speed = {0};
    char *text = NULL;
    const char **prompts = NULL;
    int status = KUMI_OK;
    o->speed = &speed;
    if (prompt_file || prompts_file)
        KU_TRY_OUT(read_text(prompt_file ? prompt_file : prompts_file, &text));
    if (prompt_file)
        o->prompt = text;
    if (prompts_file)
        KU_TRY_OUT(read_prompts(prompts_file, text, o, &prompts));
    if (o->n > 1)
        o->begin = begin;
    KU_TRY_OUT(kumi_sample(o));
    emit(NULL, "\n", 1);
    print_speed(&speed);
out:
    ku_free(prompts);
    ku_free(text);
    return status;
}

int cmd_sample(struct cli *c)
{
    struct kumi_sample_options o = {.temperature = 1, .emit = emit};
    int64_t tokens = 100, top_k = 0, seed = 1337, batch = 1;
    const char *prompt_file = NULL, *prompts_file = NULL;
    const struct cli_option option[] = {
        {"prompt", CLI_TEXT, "the prompt (default: a newline)", &o.prompt},
        {"prompt-file", CLI_TEXT, "read the prompt from this file", &prompt_file},
        {"prompts", CLI_TEXT, "a file with one prompt per line; one sample each", &prompts_file},
        {"batch", CLI_INT, "samples of the prompt, with seeds S, S + 1, .. (default 1)", &batch},
        {"tokens", CLI_INT, "tokens to generate (default 100)", &tokens},
        {"temperature", CLI_NUM, "1 (default): as trained; 0: the most likely token",
         &o.temperature},
        {"top-k", CLI_INT, "sample among the k most likely tokens; 0: all", &top_k},
        {"top-p", CLI_NUM, "sample among the most likely tokens of total probability p; 0: all",
         &o.top_p},
        {"stop", CLI_TEXT, "end a sample before this string", &o.stop},
        {"tokenizer", CLI_TEXT, "byte, a directory, or a tokenizer.json (default: the model's)",
         &o.tokenizer},
        {"dtype", CLI_TEXT, "compute dtype: f32, bf16 or f16 (default: as trained)", &o.dtype},
        {"ema", CLI_FLAG, "use the averaged weights (train.ema)", &o.ema},
        {"threads", CLI_INT, "compute threads (default: the cores)", &o.threads},
        {"seed", CLI_INT, "seed of the random choices (default 1337)", &seed}};
    if (!CLI_PARSE(c, option, 1, 1))
        return c->code;
    if ((o.prompt != NULL) + (prompt_file != NULL) + (prompts_file != NULL) > 1)
        return cli_usage("sample: --prompt, --prompt-file and --prompts exclude each other; give "
                         "one");
    if (batch < 1 || (prompts_file && batch > 1))
        return cli_usage("sample: --batch: %lld; give 1 or more, and leave it out with --prompts",
                         (long long)batch);
    o.run = c->arg[0];
    o.n = batch;
    o.tokens = tokens;
    o.top_k = top_k;
    o.seed = (uint64_t)seed;
    return cli_end(sample(&o, prompt_file, prompts_file), 0);
}
