/* SPDX-License-Identifier: Apache-2.0 */
#include "data/pairs/parallel_corpus.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/input_file.h"
#include "data/pairs/sentences.h"

#include <string.h>

/* Sentence pairs left out for one reason. */
struct odd {
    int64_t count, line; /* of the first one, from 1, in `name` */
    const char *name;
};
static const char *const odd_text[] = {"empty lines", "above the length limit"};
struct split {
    struct ku_sentences
        side[2];    /* source, target; line i of one corresponds to that of the other */
    uint32_t *line; /* line of each sample, from 0, over all files */
    struct ku_parallel_counts counts;
    struct odd odd[2]; /* empty, long */
};
struct parallel {
    struct ku_data data;
    struct ku_data_port port[KU_PARALLEL_PORTS];
    struct split split[KU_N_SPLITS];
    struct ku_vocab *vocab[2];
    int64_t len_max[2];
    uint32_t n_open;
};

static const struct parallel *parallel_of(const struct ku_data *d)
{
    return (const struct parallel *)d;
}

static void parallel_destroy(struct ku_data *d)
{
    struct parallel *p = (struct parallel *)d;
    for (int i = 0; i < KU_N_SPLITS; i++) {
        for (int k = 0; k < 2; k++)
            ku_sentences_fini(&p->split[i].side[k]);
        ku_free(p->split[i].line);
    }
    ku_free(p);
}

static void fill(int32_t *at, int64_t from, int64_t to, int32_t value)
{
    for (int64_t i = from; i < to; i++)
        at[i] = value;
}

static int parallel_read_shape(const struct ku_data *d, enum ku_data_split split, int64_t sample,
                               int64_t number, const struct ku_bucket_shape *shape,
                               void *const *port)
{
    const struct parallel *p = parallel_of(d);
    int32_t *src = port[KU_PARALLEL_SRC], *tgt_in = port[KU_PARALLEL_TGT_IN],
            *targets = port[KU_PARALLEL_TARGETS], *src_len = port[KU_PARALLEL_SRC_LEN],
            *tgt_len = port[KU_PARALLEL_TGT_LEN];
    int64_t n_src = 0, n_tgt = 0;
    (void)number;
    if (sample >= 0) {
        KU_ASSERT(sample < d->n_samples[split]);
        const struct ku_sentences *side = p->split[split].side;
        int64_t line = p->split[split].line[sample];
        n_src = ku_sentence_count(&side[0], line);
        n_tgt = ku_sentence_count(&side[1], line) + 1;
        KU_ASSERT(n_src <= shape->src_len && n_tgt <= shape->tgt_len);
        KU_TRY(ku_sentence_read(&side[0], line, src));
        KU_TRY(ku_sentence_read(&side[1], line, targets));
        tgt_in[0] = (int32_t)ku_vocab_special(p->vocab[1], KU_VOCAB_BOS);
        memcpy(tgt_in + 1, targets, (size_t)(n_tgt - 1) * sizeof *tgt_in);
        targets[n_tgt - 1] = (int32_t)ku_vocab_special(p->vocab[1], KU_VOCAB_EOS);
    }
    fill(src, n_src, shape->src_len, (int32_t)ku_vocab_special(p->vocab[0], KU_VOCAB_PAD));
    fill(tgt_in, n_tgt, shape->tgt_len, (int32_t)ku_vocab_special(p->vocab[1], KU_VOCAB_PAD));
    fill(targets, n_tgt, shape->tgt_len, KU_NO_TARGET);
    *src_len = (int32_t)n_src;
    *tgt_len = (int32_t)n_tgt;
    return KUMI_OK;
}

static int parallel_read(const struct ku_data *d, enum ku_data_split split, int64_t sample,
                         int64_t number, void *const *port)
{
    const struct parallel *p = parallel_of(d);
    const struct ku_bucket_shape longest = {.src_len = p->len_max[0], .tgt_len = p->len_max[1] + 1};
    return parallel_read_shape(d, split, sample, number, &longest, port);
}

static int parallel_verify(const struct ku_data *d, const struct ku_progress *progress)
{
    const struct parallel *p = parallel_of(d);
    for (int i = 0; i < KU_N_SPLITS; i++)
        for (int k = 0; k < 2; k++)
            KU_TRY(ku_stream_verify(&p->split[i].side[k].tokens, ku_vocab_count(p->vocab[k]) + 1,
                                    progress));
    return KUMI_OK;
}

struct ku_parallel_counts ku_parallel_counts(const struct ku_data *d, enum ku_data_split split)
{
    return parallel_of(d)->split[split].counts;
}

int64_t ku_parallel_line(const struct ku_data *d, enum ku_data_split split, int64_t sample)
{
    KU_ASSERT(sample >= 0 && sample < d->n_samples[split]);
    return (int64_t)parallel_of(d)->split[split].line[sample] + 1;
}

static void parallel_lengths(const struct ku_data *d, enum ku_data_split split, int32_t *src_len,
                             int32_t *tgt_len)
{
    const struct split *s = &parallel_of(d)->split[split];
    for (int64_t i = 0; i < d->n_samples[split]; i++) {
        src_len[i] = (int32_t)ku_sentence_count(&s->side[0], s->line[i]);
        tgt_len[i] = (int32_t)ku_sentence_count(&s->side[1], s->line[i]) + 1;
    }
}

static const struct ku_data_ops parallel_ops = {.kind = "parallel",
                                                .destroy = parallel_destroy,
                                                .read = parallel_read,
                                                .lengths = parallel_lengths,
                                                .read_shape = parallel_read_shape,
                                                .verify = parallel_verify};

static int check_opts(const struct ku_parallel_opts *o)
{
    const int64_t len[] = {o->src_len_max, o->tgt_len_max};
    if (o->files[KU_SPLIT_TRAIN].n < 1)
        return KU_ERR(KUMI_EINVAL, "data: data.train: no files; give two, of source and target");
    for (int i = 0; i < 2; i++)
        if (len[i] < 1 || len[i] > KU_SENTENCE_TOKENS_MAX)
            return KU_ERR(KUMI_EINVAL, "data: %s sentences of at most %lld tokens; give 1 to %d",
                          i ? "target" : "source", (long long)len[i], KU_SENTENCE_TOKENS_MAX);
    return KUMI_OK;
}

static int open_pair(struct parallel *p, const struct ku_parallel_opts *o, struct ku_cache *cache,
                     struct split *s, const char *const name[2])
{
    int64_t n[2];
    for (int i = 0; i < 2; i++) {
        n[i] = -s->side[i].n;
        KU_TRY(ku_sentences_add(&s->side[i], name[i], cache, &o->progress, &p->n_open));
        n[i] += s->side[i].n;
    }
    if (n[0] != n[1])
        return KU_ERR(KUMI_EINPUT, "data: %s has %lld lines, %s %lld; give files of equal length",
                      name[0], (long long)n[0], name[1], (long long)n[1]);
    s->counts.lines += n[0];
    if (s->counts.lines > UINT32_MAX)
        return KU_ERR(KUMI_EINPUT, "data: %s: more than %u lines in all; give fewer", name[0],
                      UINT32_MAX);
    return KUMI_OK;
}

/*
 * Returns 1 if the line becomes a sample. Otherwise counts it, and records the first line of each
 * kind.
 */
static int is_sample(const struct parallel *p, const struct ku_parallel_opts *o, struct split *s,
                     int64_t line)
{
    int64_t n[2], in_file, is_empty = 0, is_long = 0;
    int odd_side = 0;
    for (int i = 0; i < 2; i++) {
        n[i] = ku_sentence_count(&s->side[i], line);
        odd_side = !is_empty && n[i] == 0 ? i : odd_side;
        is_empty |= n[i] == 0;
    }
    for (int i = 0; i < 2 && !is_empty; i++) {
        odd_side = !is_long && n[i] > p->len_max[i] ? i : odd_side;
        is_long |= n[i] > p->len_max[i];
    }
    if (!is_empty && !is_long) {
        s->counts.src_tokens += n[0];
        s->counts.tgt_tokens += n[1];
        return 1;
    }
    const char *name = ku_sentence_file(&s->side[odd_side], line, &in_file);
    if (is_empty && (o->on_empty == KU_ODD_ERROR))
        return KU_ERR(KUMI_EINPUT, "data: %s:%lld: empty; remove the pair, or drop empty lines",
                      name, (long long)in_file);
    if (is_long && o->on_long == KU_ODD_ERROR)
        return KU_ERR(KUMI_EINPUT,
                      "data: %s:%lld: %lld tokens; the limit is %lld: raise it, shorten the "
                      "sentence, or drop longer pairs",
                      name, (long long)in_file, (long long)n[odd_side],
                      (long long)p->len_max[odd_side]);
    int kind = is_empty ? 0 : 1;
    if (s->odd[kind].count++ == 0) {
        s->odd[kind].name = name;
        s->odd[kind].line = in_file;
    }
    return 0;
}

static int choose_samples(const struct parallel *p, const struct ku_parallel_opts *o,
                          struct split *s, int64_t *n_samples)
{
    s->line = ku_malloc((size_t)s->counts.lines * sizeof *s->line);
    if (!s->line)
        return KUMI_ENOMEM;
    for (int64_t line = 0; line < s->side[0].n; line++) {
        int is = is_sample(p, o, s, line);
        KU_TRY(is);
        if (is)
            s->line[(*n_samples)++] = (uint32_t)line;
    }
    const char *name = s->side[0].tokens.source[0].name;
    s->counts.n_empty = s->odd[0].count;
    s->counts.n_long = s->odd[1].count;
    for (int i = 0; i < 2 && ku_err_get_rank() <= 0; i++)
        if (s->odd[i].count > 0)
            KU_LOG(DATA, WARN, "%s: %lld of %lld pairs are skipped: %s, the first %s:%lld", name,
                   (long long)s->odd[i].count, (long long)s->counts.lines, odd_text[i],
                   s->odd[i].name, (long long)s->odd[i].line);
    if (*n_samples == 0)
        return KU_ERR(KUMI_EINPUT,
                      "data: %s: no pairs remain: of %lld, %lld have an empty line and %lld are "
                      "above the limits of %lld and %lld tokens",
                      name, (long long)s->counts.lines, (long long)s->counts.n_empty,
                      (long long)s->counts.n_long, (long long)p->len_max[0],
                      (long long)p->len_max[1]);
    return KUMI_OK;
}

/* Hash of the files' ids, the length limits, and the numbers of files and samples. */
static int make_fingerprint(struct parallel *p)
{
    struct ku_sha256 h;
    KU_TRY(ku_sha256_init(&h));
    for (int i = 0; i < KU_N_SPLITS; i++) {
        const struct ku_sentences *side = p->split[i].side;
        ku_sha256_u64(&h, side[0].tokens.n);
        ku_sha256_u64(&h, (uint64_t)p->len_max[0]);
        ku_sha256_u64(&h, (uint64_t)p->len_max[1]);
        ku_sha256_u64(&h, (uint64_t)p->data.n_samples[i]);
        for (uint32_t j = 0; j < side[0].tokens.n; j++)
            for (int k = 0; k < 2; k++)
                ku_sha256_update(&h, side[k].tokens.source[j].id, 32);
    }
    ku_sha256_final_hex(&h, p->data.fingerprint);
    return KUMI_OK;
}

static int open_splits(struct parallel *p, const struct ku_parallel_opts *o, struct ku_cache *cache)
{
    for (int i = 0; i < KU_N_SPLITS; i++) {
        struct split *s = &p->split[i];
        s->side[0].vocab = p->vocab[0];
        s->side[1].vocab = p->vocab[1];
        for (int j = 0; j < o->files[i].n; j++) {
            const char *const name[2] = {o->files[i].src[j], o->files[i].tgt[j]};
            KU_TRY(open_pair(p, o, cache, s, name));
        }
        if (s->side[0].n > 0)
            KU_TRY(choose_samples(p, o, s, &p->data.n_samples[i]));
        p->data.n_items[i] = s->counts.tgt_tokens;
    }
    return make_fingerprint(p);
}

int ku_parallel_open(const struct ku_parallel_opts *opts, struct ku_data **out)
{
    struct ku_cache cache;
    KU_TRY(check_opts(opts));
    struct parallel *p = ku_calloc(1, sizeof *p);
    if (!p)
        return KUMI_ENOMEM;
    *p = (struct parallel){.vocab = {opts->src_vocab, opts->tgt_vocab},
                           .len_max = {opts->src_len_max, opts->tgt_len_max}};
    const struct ku_data_port port[KU_PARALLEL_PORTS] = {
        [KU_PARALLEL_SRC] = {"src", KUMI_I32, 1, {opts->src_len_max}, KU_LENGTH_SRC},
        [KU_PARALLEL_SRC_LEN] = {"src_len", KUMI_I32, 0, {0}, KU_LENGTH_FIXED},
        [KU_PARALLEL_TGT_IN] = {"tgt_in", KUMI_I32, 1, {opts->tgt_len_max + 1}, KU_LENGTH_TGT},
        [KU_PARALLEL_TARGETS] = {"targets", KUMI_I32, 1, {opts->tgt_len_max + 1}, KU_LENGTH_TGT},
        [KU_PARALLEL_TGT_LEN] = {"tgt_len", KUMI_I32, 0, {0}, KU_LENGTH_FIXED}};
    memcpy(p->port, port, sizeof port);
    p->data = (struct ku_data){.ops = &parallel_ops,
                               .port = p->port,
                               .n_ports = KU_PARALLEL_PORTS,
                               .item = "target tokens"};
    int status = ku_input_cache(opts->cache, &cache);
    if (status == KUMI_OK)
        status = open_splits(p, opts, &cache);
    ku_free(cache.path);
    if (status < 0) {
        parallel_destroy(&p->data);
        return status;
    }
    *out = &p->data;
    return KUMI_OK;
}
