/* SPDX-License-Identifier: Apache-2.0 */
#include "data/text/token_files.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/math/search.h"
#include "data/input_file.h"
#include "data/text/token_stream.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOOK_TOKENS = 1 << 20, /* checked for a separator: some ms of reading */
};
static const double SAMPLES_MAX = 1e15; /* limit of an epoch */

/*
 * Tokens [first, first + count) of a stream, cut into n_samples samples. They take n_draws sample
 * numbers of the split, from first_draw; number first_draw + k is sample k mod n_samples.
 */
struct part {
    const struct ku_stream *stream;
    int64_t first, count, n_samples;
    int64_t first_draw, n_draws;
    int64_t stride; /* distance between samples: T, or the windows' stride */
};
struct split {
    struct part *part; /* one; with weights, one per entry of data.train */
    uint32_t n, cap;
};
struct text {
    struct ku_data data;
    struct ku_data_port port[3];
    int64_t seq_len, vocab_count;
    int64_t separator; /* the token that ends a document; -1: no segments */
    struct ku_stream *stream;
    uint32_t n_streams, n_train_streams, cap_streams;
    struct split split[KU_N_SPLITS];
    uint32_t n_open;
};

static const struct text *text_of(const struct ku_data *d)
{
    return (const struct text *)d;
}

static void text_destroy(struct ku_data *d)
{
    struct text *x = (struct text *)d;
    for (uint32_t i = 0; i < x->n_streams; i++)
        ku_stream_fini(&x->stream[i]);
    for (int i = 0; i < KU_N_SPLITS; i++)
        ku_free(x->split[i].part);
    ku_free(x->stream);
    ku_free(x);
}

static const struct part *part_of(const struct split *s, int64_t sample)
{
    return &s->part[ku_search(&s->part->first_draw, sizeof *s->part, s->n, sample)];
}

static int text_read(const struct ku_data *d, enum ku_data_split split, int64_t sample,
                     int64_t number, void *const *port)
{
    const struct text *x = text_of(d);
    int32_t *tokens = port[0], *targets = port[1], segment = 0;
    int32_t *segments = x->separator >= 0 ? port[2] : NULL;
    (void)number;
    KU_ASSERT(sample >= 0 && sample < d->n_samples[split]);
    uint32_t chunk[KU_SOURCE_CHUNK];
    const struct part *part = part_of(&x->split[split], sample);
    int64_t nth = (sample - part->first_draw) % part->n_samples;
    int64_t at = part->first + nth * part->stride, n_left = x->seq_len + 1, k = 0;
    if (n_left > part->first + part->count - at) /* the last window may be shorter */
        n_left = part->first + part->count - at;
    while (n_left > 0) {
        int n = n_left < KU_SOURCE_CHUNK ? (int)n_left : KU_SOURCE_CHUNK;
        KU_TRY(ku_stream_read(part->stream, at + k, n, x->vocab_count, chunk));
        n_left -= n;
        for (int i = 0; i < n; i++, k++) {
            if (k < x->seq_len)
                tokens[k] = (int32_t)chunk[i];
            if (k > 0)
                targets[k - 1] = (int32_t)chunk[i];
        }
    }
    for (k--; k < x->seq_len; k++) { /* the last token is only a target */
        tokens[k] = 0;
        targets[k] = KU_NO_TARGET;
    }
    for (k = 0; nth > 0 && k < x->seq_len - part->stride; k++)
        targets[k] = KU_NO_TARGET;
    for (k = 0; segments && k < x->seq_len; k++) {
        segments[k] = segment;
        segment += tokens[k] == x->separator;
    }
    return KUMI_OK;
}

static int text_verify(const struct ku_data *d, const struct ku_progress *progress)
{
    const struct text *x = text_of(d);
    for (uint32_t i = 0; i < x->n_streams; i++)
        KU_TRY(ku_stream_verify(&x->stream[i], x->vocab_count, progress));
    return KUMI_OK;
}

static const struct ku_data_ops text_ops = {
    .kind = "text", .destroy = text_destroy, .read = text_read, .verify = text_verify};

struct opening {
    const struct ku_text_opts *opts;
    struct ku_tokenizer *tokenizer; /* NULL until a text needs one */
    struct ku_cache cache;
};

static bool is_bin(const char *name)
{
    size_t bytes = strlen(name);
    return bytes >= 4 && strcmp(name + bytes - 4, ".bin") == 0;
}

static int open_source(void *ctx, const char *name, struct ku_source *s)
{
    struct opening *o = ctx;
    const char *where = o->opts->tokenizer ? o->opts->tokenizer : "byte";
    if (is_bin(name))
        return ku_source_bin(name, o->opts->format, s);
    if (strcmp(where, "byte") == 0)
        return ku_source_bytes(name, s);
    if (!o->tokenizer) {
        KU_TRY(ku_tokenizer_open(where, &o->tokenizer));
        KU_TRY(ku_input_cache(o->opts->cache, &o->cache));
    }
    return ku_source_text(name, o->tokenizer, &o->cache, &o->opts->progress, s);
}

static int check_opts(const struct ku_text_opts *o)
{
    KU_TRY(ku_source_check(o->n_train + o->n_val, o->seq_len, o->vocab_count, o->val_fraction));
    if (o->stride < 0 || o->stride > o->seq_len)
        return KU_ERR(KUMI_EINVAL, "data: stride %lld; give 1 to %lld (data.seq_len)",
                      (long long)o->stride, (long long)o->seq_len);
    for (int i = 0; o->weight && i < o->n_train; i++)
        if (!(o->weight[i] > 0.0 && o->weight[i] < 1e300))
            return KU_ERR(KUMI_EINVAL, "data: weight %g of %s; give a number above 0, or omit it",
                          o->weight[i], o->train[i]);
    if (o->segments && (o->separator < 0 || o->separator >= o->vocab_count))
        return KU_ERR(KUMI_EINVAL,
                      "data: data.separator: token %lld; the vocabulary has %lld "
                      "(model.vocab_size)",
                      (long long)o->separator, (long long)o->vocab_count);
    return KUMI_OK;
}

/* Adds a part. stride 0: samples of T tokens, without the remainder. */
static int add_part(struct text *x, enum ku_data_split split, const struct ku_stream *s,
                    int64_t first, int64_t count, int64_t stride)
{
    struct split *to = &x->split[split];
    const int64_t least = stride ? 2 : x->seq_len + 1;
    if (count < least)
        return KU_ERR(KUMI_EINPUT,
                      "data: %s%s: %lld tokens for %s, a sample of data.seq_len %lld takes %lld; "
                      "give more data or a shorter seq_len",
                      s->source[0].name, ku_stream_others(s), (long long)count,
                      split == KU_SPLIT_TRAIN ? "training" : "validation", (long long)x->seq_len,
                      (long long)least);
    KU_TRY(KU_GROW(&to->part, to->n, &to->cap));
    int64_t n = (count - 1) / x->seq_len, behind = count - 1 - x->seq_len;
    if (stride)
        n = behind > 0 ? 1 + (behind + stride - 1) / stride : 1;
    to->part[to->n++] = (struct part){
        s, first, count, n, x->data.n_samples[split], n, stride ? stride : x->seq_len};
    x->data.n_samples[split] += n;
    x->data.n_items[split] += count;
    return KUMI_OK;
}

/*
 * Gives each entry a number of draws in proportion to its weight: the smallest numbers that draw
 * every sample at least once. The entry with the most samples per weight is drawn once per sample.
 */
static int weigh(struct text *x, const struct ku_text_opts *o)
{
    struct split *s = &x->split[KU_SPLIT_TRAIN];
    double each = 0.0; /* draws for a weight of 1 */
    int64_t n = 0;
    for (uint32_t i = 0; i < s->n; i++)
        each = fmax(each, (double)s->part[i].n_samples / o->weight[i]);
    for (uint32_t i = 0; i < s->n; i++) {
        double share = each * o->weight[i];
        if (share > SAMPLES_MAX)
            return KU_ERR(KUMI_EINVAL,
                          "data: weight %g of %s: an epoch would have more than %g samples; give "
                          "weights of similar size",
                          o->weight[i], o->train[i], SAMPLES_MAX);
        struct part *p = &s->part[i];
        p->n_draws = llround(share);
        p->n_draws = p->n_draws < p->n_samples ? p->n_samples : p->n_draws;
        p->first_draw = n;
        n += p->n_draws;
    }
    x->data.n_samples[KU_SPLIT_TRAIN] = n;
    return KUMI_OK;
}

static int make_splits(struct text *x, const struct ku_text_opts *o)
{
    uint32_t n_train = x->n_train_streams;
    for (uint32_t i = 0; i < n_train; i++) {
        const struct ku_stream *s = &x->stream[i];
        int64_t count = ku_stream_count(s), first = count;
        if (x->n_streams == n_train && o->val_fraction > 0.0)
            first =
                (int64_t)((1.0 - o->val_fraction) * (double)count); /* nanoGPT: int(0.9 * len) */
        KU_TRY(add_part(x, KU_SPLIT_TRAIN, s, 0, first, 0));
        if (first < count)
            KU_TRY(add_part(x, KU_SPLIT_VAL, s, first, count - first, o->stride));
    }
    for (uint32_t i = n_train; i < x->n_streams; i++)
        KU_TRY(
            add_part(x, KU_SPLIT_VAL, &x->stream[i], 0, ku_stream_count(&x->stream[i]), o->stride));
    return o->weight ? weigh(x, o) : KUMI_OK;
}

/*
 * Warns if the separator does not occur: then every sample is one document and segments have no
 * effect.
 */
static int check_separator(const struct text *x)
{
    const struct ku_stream *s = &x->stream[0];
    int64_t count = ku_stream_count(s) < LOOK_TOKENS ? ku_stream_count(s) : LOOK_TOKENS;
    uint32_t chunk[KU_SOURCE_CHUNK];
    for (int64_t at = 0; at < count; at += KU_SOURCE_CHUNK) {
        int n = count - at < KU_SOURCE_CHUNK ? (int)(count - at) : KU_SOURCE_CHUNK;
        KU_TRY(ku_stream_read(s, at, n, INT64_MAX, chunk));
        for (int i = 0; i < n; i++)
            if (chunk[i] == x->separator)
                return KUMI_OK;
    }
    if (ku_err_get_rank() <= 0)
        KU_LOG(DATA, WARN,
               "%s%s: no token %lld (data.separator) among the first %lld: data.segments has no "
               "effect on them",
               s->source[0].name, ku_stream_others(s), (long long)x->separator, (long long)count);
    return KUMI_OK;
}

/* Hash of the files, split by split; then of weights and separator, if used. */
static int make_fingerprint(struct text *x, int is_weighted)
{
    static const struct ku_stream none;
    struct ku_sha256 h;
    KU_TRY(ku_sha256_init(&h));
    for (uint32_t i = 0; i < x->n_streams || i < 2; i++)
        ku_stream_identify(i < x->n_streams ? &x->stream[i] : &none, &h);
    for (uint32_t i = 0; is_weighted && i < x->split[KU_SPLIT_TRAIN].n; i++)
        ku_sha256_u64(&h, (uint64_t)x->split[KU_SPLIT_TRAIN].part[i].n_draws);
    if (x->separator >= 0)
        ku_sha256_u64(&h, (uint64_t)x->separator);
    ku_sha256_final_hex(&h, x->data.fingerprint);
    return KUMI_OK;
}

/* Opens one stream for data.train, or one per entry if weighted, and one for data.val. */
static int open_streams(struct text *x, struct opening *o)
{
    const struct ku_text_opts *opts = o->opts;
    int n_train = opts->weight ? opts->n_train : opts->n_train > 0;
    int per = opts->weight ? 1 : opts->n_train;
    x->n_train_streams = (uint32_t)n_train;
    KU_TRY(
        ku_grow((void **)&x->stream, sizeof *x->stream, 0, (uint32_t)n_train + 1, &x->cap_streams));
    for (int i = 0; i < n_train + (opts->n_val > 0); i++) {
        const char *const *name = i < n_train ? opts->train + i * per : opts->val;
        int n = i < n_train ? per : opts->n_val;
        KU_TRY(
            ku_stream_add_globs(&x->stream[x->n_streams++], name, n, open_source, o, &x->n_open));
    }
    return KUMI_OK;
}

int ku_text_open(const struct ku_text_opts *opts, struct ku_data **out)
{
    KU_TRY(check_opts(opts));
    struct text *x = ku_calloc(1, sizeof *x);
    if (!x)
        return KUMI_ENOMEM;
    struct opening o = {.opts = opts};
    x->seq_len = opts->seq_len;
    x->vocab_count = opts->vocab_count;
    x->separator = opts->segments ? opts->separator : -1;
    ku_source_ports(x->port, opts->seq_len);
    x->data = (struct ku_data){
        .ops = &text_ops, .port = x->port, .n_ports = opts->segments ? 3 : 2, .item = "tokens"};
    int status = open_streams(x, &o);
    if (status == KUMI_OK)
        status = make_splits(x, opts);
    if (status == KUMI_OK)
        status = make_fingerprint(x, opts->weight != NULL);
    if (status == KUMI_OK && x->separator >= 0)
        status = check_separator(x);
    ku_tokenizer_destroy(o.tokenizer);
    ku_free(o.cache.path);
    if (status < 0) {
        text_destroy(&x->data);
        return status;
    }
    *out = &x->data;
    return KUMI_OK;
}
