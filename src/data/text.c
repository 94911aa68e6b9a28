/* SPDX-License-Identifier: Apache-2.0 */
#include "data/text.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/os.h"
#include "data/source.h"

#include <endian.h>
#include <glob.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Files beyond the first so many are opened for each read (3 us), so that no job runs out of
 * descriptors. */
enum { OPEN_FILES_MAX = 256, FILES_MAX = 1 << 20, VERIFY_STEP_BYTES = 1 << 20 };

/* The files of data.train or data.val as one sequence: source[i] holds tokens [start[i],
 * start[i+1]). */
struct stream {
    struct ku_source *source;
    int64_t *start;
    uint32_t n, cap, cap_start;
};
/* A split: tokens [first, first + count) of a stream. */
struct part {
    const struct stream *stream;
    int64_t first, count;
};
struct text {
    struct ku_data data;
    struct ku_data_port port[2];
    int64_t seq_len, vocab_count;
    struct stream stream[2];
    struct part part[KU_N_SPLITS];
    uint32_t n_open;
};

static const struct text *text_of(const struct ku_data *d)
{
    return (const struct text *)d;
}

static void text_destroy(struct ku_data *d)
{
    struct text *x = (struct text *)d;
    for (int i = 0; i < 2; i++) {
        for (uint32_t j = 0; j < x->stream[i].n; j++)
            ku_source_fini(&x->stream[i].source[j]);
        ku_free(x->stream[i].source);
        ku_free(x->stream[i].start);
    }
    ku_free(x);
}

/* Tokens [first, first + n) of a stream, across files. n <= KU_SOURCE_CHUNK. */
static int stream_read(const struct stream *s, int64_t first, int n, int64_t vocab_count,
                       uint32_t *out)
{
    uint32_t low = 0, high = s->n; /* start[low] <= first < start[high] */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (s->start[middle] <= first)
            low = middle;
        else
            high = middle;
    }
    for (; n > 0; low++) {
        int64_t in_file = first - s->start[low], left = s->source[low].count - in_file;
        int part = left < n ? (int)left : n;
        KU_TRY(ku_source_read(&s->source[low], in_file, part, vocab_count, out));
        out += part;
        first += part;
        n -= part;
    }
    return KUMI_OK;
}

int ku_text_read(const struct ku_data *d, enum ku_data_split split, int64_t sample, int32_t *tokens,
                 int32_t *targets)
{
    const struct text *x = text_of(d);
    KU_ASSERT(sample >= 0 && sample < d->n_samples[split]);
    uint32_t chunk[KU_SOURCE_CHUNK];
    int64_t at = x->part[split].first + sample * x->seq_len, n_left = x->seq_len + 1;
    for (int64_t k = 0; n_left > 0;) {
        int n = n_left < KU_SOURCE_CHUNK ? (int)n_left : KU_SOURCE_CHUNK;
        KU_TRY(stream_read(x->part[split].stream, at + k, n, x->vocab_count, chunk));
        n_left -= n;
        for (int i = 0; i < n; i++, k++) {
            if (k < x->seq_len)
                tokens[k] = (int32_t)chunk[i];
            if (k > 0)
                targets[k - 1] = (int32_t)chunk[i];
        }
    }
    return KUMI_OK;
}

static int text_read(const struct ku_data *d, enum ku_data_split split, int64_t sample,
                     int64_t number, void *const *port)
{
    (void)number;
    return ku_text_read(d, split, sample, port[0], port[1]);
}

static int source_verify(const struct ku_source *s, int64_t vocab_count,
                         const struct ku_progress *progress)
{
    uint32_t chunk[KU_SOURCE_CHUNK];
    uint64_t total = (uint64_t)s->count * (uint64_t)s->token_bytes, told = 0;
    if (s->is_cache)
        KU_TRY(ku_source_check_cache(s, progress));
    for (int64_t at = 0; at < s->count;) {
        int n = s->count - at < KU_SOURCE_CHUNK ? (int)(s->count - at) : KU_SOURCE_CHUNK;
        KU_TRY(ku_source_read(s, at, n, vocab_count, chunk));
        at += n;
        uint64_t done = (uint64_t)at * (uint64_t)s->token_bytes;
        if (done - told >= VERIFY_STEP_BYTES || done == total) {
            KU_TRY(ku_progress_call(progress, s->name, done, total));
            told = done;
        }
    }
    return KUMI_OK;
}

static int text_verify(const struct ku_data *d, const struct ku_progress *progress)
{
    const struct text *x = text_of(d);
    for (int i = 0; i < 2; i++)
        for (uint32_t j = 0; j < x->stream[i].n; j++)
            KU_TRY(source_verify(&x->stream[i].source[j], x->vocab_count, progress));
    return KUMI_OK;
}

static const struct ku_data_ops text_ops = {
    .kind = "text", .destroy = text_destroy, .read = text_read, .verify = text_verify};

/* ---- opening
 * --------------------------------------------------------------------------------------------- */

struct opening {
    const struct ku_text_opts *opts;
    struct ku_tokenizer *tokenizer; /* NULL until a text needs one */
    char *cache;
    struct text *text;
};

static int is_bin(const char *name)
{
    size_t bytes = strlen(name);
    return bytes >= 4 && strcmp(name + bytes - 4, ".bin") == 0;
}

static int cache_folder(struct opening *o)
{
    static const struct {
        const char *variable, *below;
    } places[] = {{"KUMI_CACHE", ""}, {"XDG_CACHE_HOME", "/kumi"}, {"HOME", "/.cache/kumi"}};
    const char *folder = o->opts->cache, *below = "";
    for (int i = 0; i < 3 && !folder; i++) {
        folder = getenv(places[i].variable);
        folder = folder && *folder ? folder : NULL;
        below = places[i].below;
    }
    if (!folder)
        return KUMI_OK;
    o->cache = ku_asprintf("%s%s", folder, below);
    return o->cache ? KUMI_OK : KUMI_ENOMEM;
}

static int open_source(struct opening *o, const char *name, struct ku_source *s)
{
    const char *where = o->opts->tokenizer ? o->opts->tokenizer : "byte";
    if (is_bin(name))
        return ku_source_bin(name, o->opts->format, s);
    if (strcmp(where, "byte") == 0)
        return ku_source_bytes(name, s);
    if (!o->tokenizer) {
        KU_TRY(ku_tokenizer_open(where, &o->tokenizer));
        KU_TRY(cache_folder(o));
    }
    return ku_source_text(name, o->tokenizer, o->cache, &o->opts->progress, s);
}

static int stream_add(struct opening *o, struct stream *s, const char *name)
{
    if (s->n == FILES_MAX)
        return KU_ERR(KUMI_EINPUT, "data: %s: more than %d files; join some", name, FILES_MAX);
    KU_TRY(KU_GROW(&s->source, s->n, &s->cap));
    KU_TRY(ku_grow((void **)&s->start, sizeof *s->start, s->n, 2, &s->cap_start));
    struct ku_source *source = &s->source[s->n];
    KU_TRY(open_source(o, name, source));
    if (++o->text->n_open > OPEN_FILES_MAX)
        ku_source_park(source);
    s->start[s->n + 1] = s->start[s->n] + source->count;
    s->n++;
    return KUMI_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* A name of a file, or a glob: its files in the order of their bytes, whatever the locale. */
static int stream_add_pattern(struct opening *o, struct stream *s, const char *pattern)
{
    struct stat st;
    glob_t found = {0};
    if (!strpbrk(pattern, "*?[") || ku_os_stat(pattern, &st) == 0)
        return stream_add(o, s, pattern);
    int failed = glob(pattern, GLOB_NOSORT, NULL, &found), status = KUMI_OK;
    if (failed == GLOB_NOSPACE)
        status =
            KU_ERR(KUMI_ENOMEM, "data: %s: too many files for the memory; give a narrower pattern",
                   pattern);
    else if (failed || found.gl_pathc == 0)
        status = KU_ERR(KUMI_EINPUT, "data: %s: no file matches; correct the pattern", pattern);
    else
        qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, by_name);
    for (size_t i = 0; status == KUMI_OK && i < found.gl_pathc; i++)
        status = stream_add(o, s, found.gl_pathv[i]);
    globfree(&found);
    return status;
}

static int check_opts(const struct ku_text_opts *o)
{
    if (o->n_train < 1)
        return KU_ERR(KUMI_EINVAL, "data: data.train: no file; give a file, a list or a glob");
    if (o->seq_len < 1 || o->seq_len > KU_SEQ_LEN_MAX)
        return KU_ERR(KUMI_EINVAL, "data: data.seq_len: %lld; give 1 to %d", (long long)o->seq_len,
                      KU_SEQ_LEN_MAX);
    if (o->vocab_count < 1 || o->vocab_count > (int64_t)INT32_MAX + 1)
        return KU_ERR(KUMI_EINVAL, "data: model.vocab_size: %lld; give 1 to 2^31",
                      (long long)o->vocab_count);
    if (!(o->val_fraction >= 0.0 && o->val_fraction < 1.0))
        return KU_ERR(KUMI_EINVAL, "data: data.val_fraction: %g; give at least 0 and less than 1",
                      o->val_fraction);
    return KUMI_OK;
}

static int set_part(struct text *x, enum ku_data_split split, const struct stream *s, int64_t first,
                    int64_t count)
{
    if (count < x->seq_len + 1)
        return KU_ERR(KUMI_EINPUT,
                      "data: %s%s: %lld tokens for %s, a sample of data.seq_len %lld takes %lld; "
                      "give more data or a shorter seq_len",
                      s->source[0].name, s->n > 1 ? " and others" : "", (long long)count,
                      split == KU_SPLIT_TRAIN ? "training" : "validation", (long long)x->seq_len,
                      (long long)x->seq_len + 1);
    x->part[split] = (struct part){.stream = s, .first = first, .count = count};
    x->data.n_samples[split] = (count - 1) / x->seq_len;
    return KUMI_OK;
}

static int make_splits(struct text *x, const struct ku_text_opts *o)
{
    const struct stream *train = &x->stream[0], *val = &x->stream[1];
    int64_t count = train->start[train->n], first = count;
    if (val->n == 0 && o->val_fraction > 0.0)
        first = (int64_t)((1.0 - o->val_fraction) * (double)count); /* as nanoGPT: int(0.9 * len) */
    KU_TRY(set_part(x, KU_SPLIT_TRAIN, train, 0, first));
    if (val->n > 0)
        return set_part(x, KU_SPLIT_VAL, val, 0, val->start[val->n]);
    return first < count ? set_part(x, KU_SPLIT_VAL, train, first, count - first) : KUMI_OK;
}

static int make_fingerprint(struct text *x)
{
    struct ku_sha256 h;
    unsigned char digest[32];
    KU_TRY(ku_sha256_init(&h));
    for (int i = 0; i < 2; i++) {
        uint64_t n = htole64(x->stream[i].n);
        ku_sha256_update(&h, &n, sizeof n);
        for (uint32_t j = 0; j < x->stream[i].n; j++)
            ku_sha256_update(&h, x->stream[i].source[j].id, 32);
    }
    ku_sha256_final(&h, digest);
    ku_sha256_hex(digest, x->data.fingerprint);
    return KUMI_OK;
}

int ku_text_open(const struct ku_text_opts *opts, struct ku_data **out)
{
    KU_TRY(check_opts(opts));
    struct text *x = ku_calloc(1, sizeof *x);
    if (!x)
        return KUMI_ENOMEM;
    struct opening o = {.opts = opts, .text = x};
    int status = KUMI_OK;
    x->seq_len = opts->seq_len;
    x->vocab_count = opts->vocab_count;
    x->port[0] = (struct ku_data_port){
        .name = "tokens", .dtype = KUMI_I32, .ndim = 1, .dim = {opts->seq_len}};
    x->port[1] = (struct ku_data_port){
        .name = "targets", .dtype = KUMI_I32, .ndim = 1, .dim = {opts->seq_len}};
    x->data = (struct ku_data){.ops = &text_ops, .port = x->port, .n_ports = 2, .item = "tokens"};
    for (int i = 0; i < opts->n_train && status == KUMI_OK; i++)
        status = stream_add_pattern(&o, &x->stream[0], opts->train[i]);
    for (int i = 0; i < opts->n_val && status == KUMI_OK; i++)
        status = stream_add_pattern(&o, &x->stream[1], opts->val[i]);
    if (status == KUMI_OK)
        status = make_splits(x, opts);
    for (int i = 0; i < KU_N_SPLITS; i++)
        x->data.n_items[i] = x->part[i].count;
    if (status == KUMI_OK)
        status = make_fingerprint(x);
    ku_tokenizer_destroy(o.tokenizer);
    ku_free(o.cache);
    if (status < 0) {
        text_destroy(&x->data);
        return status;
    }
    *out = &x->data;
    return KUMI_OK;
}
