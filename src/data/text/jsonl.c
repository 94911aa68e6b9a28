/* SPDX-License-Identifier: Apache-2.0 */
#include "data/text/jsonl.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/json/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/reserve.h"
#include "data/tokenizer/bpe.h"
#include "data/input_file.h"
#include "data/text/line_feed.h"
#include "data/lines.h"
#include "data/text/token_stream.h"
#include "data/text/token_files.h"

#include <stdio.h>
#include <string.h>

/*
 * In the cache a position is two u32: its token, with bit 31 set on the first of a document, and
 * its label + 1, or 0 for no label. A document with tokens a b c and labels = tokens:
 *
 *     a | FIRST, b + 1        b, c + 1
 */
enum { CHUNK = KU_SOURCE_CHUNK / 2 };
static const uint32_t FIRST = UINT32_C(1) << 31;

struct stream {
    struct ku_stream tokens;
    int64_t n_positions;
    int64_t *start; /* first position of each document, and the end; NULL: packed */
    int64_t n_docs;
};
struct split {
    const struct stream *stream;
    int64_t first; /* first sample in the stream */
};
struct jsonl {
    struct ku_data data;
    struct ku_data_port port[3];
    struct stream stream[2]; /* train files, val files */
    struct split split[KU_N_SPLITS];
    int64_t seq_len, vocab_count, n_cut;
    int pack, segments;
    uint32_t n_open;
};

static const struct jsonl *jsonl_of(const struct ku_data *d)
{
    return (const struct jsonl *)d;
}

static void jsonl_destroy(struct ku_data *d)
{
    struct jsonl *x = (struct jsonl *)d;
    for (int i = 0; i < 2; i++) {
        ku_stream_fini(&x->stream[i].tokens);
        ku_free(x->stream[i].start);
    }
    ku_free(x);
}

/* Reads positions [first, first + n) of a stream, n <= CHUNK, two numbers each. */
static int read_pairs(const struct stream *s, int64_t first, int n, uint32_t *out)
{
    return ku_stream_read(&s->tokens, 2 * first, 2 * n, INT64_MAX, out);
}

/* The positions of a sample. */
static void bounds(const struct jsonl *x, const struct stream *s, int64_t sample, int64_t *first,
                   int64_t *n)
{
    int64_t end = x->pack ? s->n_positions : s->start[sample + 1];
    *first = x->pack ? sample * x->seq_len : s->start[sample];
    *n = end - *first < x->seq_len ? end - *first : x->seq_len;
}

static int jsonl_read(const struct ku_data *d, enum ku_data_split split, int64_t sample,
                      int64_t number, void *const *port)
{
    const struct jsonl *x = jsonl_of(d);
    const struct stream *s = x->split[split].stream;
    uint32_t pair[2 * CHUNK];
    int32_t *tokens = port[0], *targets = port[1], *segments = x->segments ? port[2] : NULL;
    int32_t segment = -1;
    int64_t first, n;
    (void)number;
    KU_ASSERT(sample >= 0 && sample < d->n_samples[split]);
    bounds(x, s, x->split[split].first + sample, &first, &n);
    for (int64_t at = 0; at < n; at += CHUNK) {
        int part = n - at < CHUNK ? (int)(n - at) : CHUNK;
        KU_TRY(read_pairs(s, first + at, part, pair));
        for (int64_t i = 0; i < part; i++) {
            uint32_t token = pair[2 * i], label = pair[2 * i + 1];
            segment += (token & FIRST) != 0 || at + i == 0;
            token &= ~FIRST;
            if (token >= x->vocab_count || label > x->vocab_count)
                return KU_ERR(KUMI_EINPUT,
                              "data: %s: position %lld of the documents: token %u, label %lld; "
                              "the model's vocabulary has %lld (model.vocab_size)",
                              s->tokens.source[0].name, (long long)(first + at + i), token,
                              (long long)label - 1, (long long)x->vocab_count);
            tokens[at + i] = (int32_t)token;
            targets[at + i] = label ? (int32_t)(label - 1) : KU_NO_TARGET;
            if (segments)
                segments[at + i] = segment;
        }
    }
    for (int64_t i = n; i < x->seq_len; i++) {
        tokens[i] = 0;
        targets[i] = KU_NO_TARGET;
        if (segments)
            segments[i] = segment + 1;
    }
    return KUMI_OK;
}

static int jsonl_verify(const struct ku_data *d, const struct ku_progress *progress)
{
    const struct jsonl *x = jsonl_of(d);
    size_t bytes = (size_t)x->seq_len * sizeof(int32_t);
    char *row = ku_malloc(3 * bytes);
    int status = row ? KUMI_OK : KUMI_ENOMEM;
    void *port[] = {row, row + bytes, row + 2 * bytes};
    for (int i = 0; i < 2 && status == KUMI_OK; i++)
        for (uint32_t j = 0; j < x->stream[i].tokens.n && status == KUMI_OK; j++)
            status = ku_source_check_cache(&x->stream[i].tokens.source[j], progress);
    for (int i = 0; i < KU_N_SPLITS; i++)
        for (int64_t k = 0; k < d->n_samples[i] && status == KUMI_OK; k++) {
            status = jsonl_read(d, (enum ku_data_split)i, k, k, port);
            if (status == KUMI_OK && k % 1024 == 0)
                status = ku_progress_call(progress, "reading samples", (uint64_t)k,
                                          (uint64_t)d->n_samples[i]);
        }
    ku_free(row);
    return status;
}

static const struct ku_data_ops jsonl_ops = {
    .kind = "jsonl", .destroy = jsonl_destroy, .read = jsonl_read, .verify = jsonl_verify};

int64_t ku_jsonl_n_cut(const struct ku_data *d)
{
    return jsonl_of(d)->n_cut;
}

struct encoding {
    struct ku_line_feed feed;
    int64_t vocab_count;
    struct ku_tokenizer *tokenizer; /* NULL: documents are token ids, not strings */
    int64_t separator;              /* -1: none */
    struct ku_tokens ids;           /* token ids of a string */
};

static int refuse(const struct encoding *e, const char *what)
{
    return KU_ERR(KUMI_EINPUT, "data: %s:%lld: %s", e->feed.path, (long long)e->feed.line, what);
}

/*
 * Element i of an array of token ids. least: the only negative number allowed (0: none), returned
 * as 0; then other numbers are returned + 1.
 */
static int number_at(const struct encoding *e, const char *key, json_t *list, size_t i,
                     int64_t least, uint32_t *out)
{
    int64_t value;
    json_t *v = json_array_get(list, i);
    if (!json_is_integer(v) || (value = json_integer_value(v)) >= e->vocab_count ||
        (value < 0 && value != least)) {
        char *text = ku_json_print(v, JSON_ENCODE_ANY | JSON_COMPACT);
        int status = KU_ERR(KUMI_EINPUT,
                            "data: %s:%lld: %s[%zu]: %.40s; give token ids below %lld "
                            "(model.vocab_size)%s",
                            e->feed.path, (long long)e->feed.line, key, i, text ? text : "",
                            (long long)e->vocab_count, least < 0 ? ", or -100" : "");
        ku_free(text);
        return status;
    }
    *out = value < 0 ? 0 : (uint32_t)value + (least < 0);
    return KUMI_OK;
}

static int encode_doc(const struct encoding *e, json_t *doc, struct ku_tokens *out)
{
    json_t *ids = json_object_get(doc, "input_ids"), *labels = json_object_get(doc, "labels");
    size_t n = json_array_size(ids);
    uint32_t *to;
    if (!json_is_array(ids))
        return refuse(e,
                      "no input_ids; a line is {\"input_ids\": [..], \"labels\": [..]}, or in all "
                      "lines of a file {\"text\": \"..\"}");
    if (labels && (!json_is_array(labels) || json_array_size(labels) != n)) {
        char text[96];
        snprintf(text, sizeof text, "%zu input_ids, %zu labels; give equally many", n,
                 json_array_size(labels));
        return refuse(e, text);
    }
    if (n < 2)
        return refuse(e, "fewer than two tokens; a document needs one to read and one to predict");
    KU_TRY(ku_tokens_reserve(out, 2 * (n - 1)));
    to = out->id + out->count;
    for (size_t i = 0; i < n; i++) {
        uint32_t token = 0, label = 0;
        KU_TRY(number_at(e, "input_ids", ids, i, 0, &token));
        if (labels)
            KU_TRY(number_at(e, "labels", labels, i, KU_NO_TARGET, &label));
        else
            label = token + 1;
        if (i + 1 < n)
            to[2 * i] = token | (i == 0 ? FIRST : 0);
        if (i > 0)
            to[2 * i - 1] = label;
    }
    out->count += 2 * (n - 1);
    return KUMI_OK;
}

/* Encodes a string; every token but the first is a label. */
static int encode_text(struct encoding *e, json_t *doc, struct ku_tokens *out)
{
    json_t *text = json_object_get(doc, "text");
    struct ku_tokens *ids = &e->ids;
    if (!json_is_string(text))
        return refuse(e, "no \"text\", which the first line has; every line of the file needs "
                         "{\"text\": \"..\"}");
    ids->count = 0;
    int status = ku_tokenizer_encode_with_special(e->tokenizer, json_string_value(text),
                                                  json_string_length(text), ids);
    if (status == KUMI_EINPUT) {
        struct kumi_error error = *ku_err_get();
        return refuse(e, error.text);
    }
    KU_TRY(status);
    if (e->separator >= 0) {
        KU_TRY(ku_tokens_reserve(ids, 1));
        ids->id[ids->count++] = (uint32_t)e->separator;
    }
    for (size_t i = 0; i < ids->count; i++)
        if (ids->id[i] >= e->vocab_count)
            return KU_ERR(KUMI_EINPUT,
                          "data: %s:%lld: token %u of data.tokenizer; the model's vocabulary has "
                          "%lld (model.vocab_size)",
                          e->feed.path, (long long)e->feed.line, ids->id[i],
                          (long long)e->vocab_count);
    if (ids->count < 2)
        return KUMI_OK;
    KU_TRY(ku_tokens_reserve(out, 2 * (ids->count - 1)));
    for (size_t i = 0; i + 1 < ids->count; i++) {
        out->id[out->count++] = ids->id[i] | (i == 0 ? FIRST : 0);
        out->id[out->count++] = ids->id[i + 1] + 1;
    }
    return KUMI_OK;
}

/* A line may have members of any value, such as ids of unsigned 64 bits. */
static int parse_line(const char *text, size_t bytes, struct ku_json *doc)
{
    return ku_json_parse_with("line", text, bytes, KU_JSON_NUL | KU_JSON_LONG_INTEGERS, doc);
}

static int encode_line(void *ctx, const char *text, size_t bytes, struct ku_tokens *out)
{
    struct encoding *e = ctx;
    struct ku_json doc;
    if (bytes == 0)
        return KUMI_OK;
    int status = parse_line(text, bytes, &doc);
    if (status == KUMI_EINVAL) {
        struct kumi_error error = *ku_err_get();
        return KU_ERR(KUMI_EINPUT, "data: %s:%lld: %.300s", e->feed.path, (long long)e->feed.line,
                      error.text);
    }
    KU_TRY(status);
    status = e->tokenizer ? encode_text(e, doc.root, out) : encode_doc(e, doc.root, out);
    ku_json_fini(&doc);
    return status;
}

struct opening {
    const struct ku_jsonl_opts *opts;
    struct ku_tokenizer *tokenizer; /* NULL until a string needs one */
    int64_t separator;              /* to add after each string; -1: none */
    struct ku_cache cache;
};

int ku_jsonl_form_of(const char *name, enum ku_jsonl_form *form)
{
    struct ku_lines *lines;
    struct ku_json doc;
    const char *line;
    size_t bytes = 0;
    int found;
    *form = KU_JSONL_UNKNOWN;
    KU_TRY(ku_lines_open(name, 0, &lines));
    do
        found = ku_lines_next(lines, &line, &bytes);
    while (found > 0 && ku_line_trim(line, bytes) == 0);
    int status = found > 0 ? parse_line(line, bytes, &doc) : found;
    if (found > 0 && status == KUMI_OK) {
        *form = json_object_get(doc.root, "input_ids") ? KU_JSONL_IDS
                : json_object_get(doc.root, "text")    ? KU_JSONL_TEXT
                                                       : KU_JSONL_UNKNOWN;
        ku_json_fini(&doc);
    }
    ku_lines_close(lines);
    return status == KUMI_ENOMEM ? status : KUMI_OK;
}

static int open_tokenizer(struct opening *o)
{
    uint32_t id;
    if (o->tokenizer)
        return KUMI_OK;
    KU_TRY(ku_tokenizer_open(o->opts->tokenizer ? o->opts->tokenizer : "byte", &o->tokenizer));
    o->separator = o->opts->separator ? *o->opts->separator : -1;
    if (o->separator < 0 && ku_tokenizer_end_of_text(o->tokenizer, &id))
        o->separator = id;
    if (o->separator >= 0 && ku_tokenizer_adds_last(o->tokenizer, (uint32_t)o->separator))
        o->separator = -1; /* it is there already */
    return KUMI_OK;
}

static int open_source(void *ctx, const char *name, struct ku_source *s)
{
    struct opening *o = ctx;
    struct encoding e = {.feed = {.path = name, .each = encode_line},
                         .vocab_count = o->opts->vocab_count};
    char fingerprint[160];
    enum ku_jsonl_form form;
    e.feed.ctx = &e;
    snprintf(fingerprint, sizeof fingerprint, "jsonl 1 %lld", (long long)o->opts->vocab_count);
    KU_TRY(ku_jsonl_form_of(name, &form));
    if (form == KU_JSONL_TEXT) {
        KU_TRY(open_tokenizer(o));
        e.tokenizer = o->tokenizer;
        e.separator = o->separator;
        snprintf(fingerprint, sizeof fingerprint, "jsonl text 1 %lld %lld %s",
                 (long long)o->opts->vocab_count, (long long)o->separator,
                 ku_tokenizer_fingerprint(o->tokenizer));
    }
    struct ku_encoder encoder = {&e.feed,      fingerprint,         (int64_t)UINT32_MAX + 1,
                                 ku_line_feed, ku_line_feed_finish, ku_line_feed_reset};
    int status = ku_source_encode(name, &encoder, &o->cache, &o->opts->progress, s);
    ku_line_feed_fini(&e.feed);
    ku_tokens_fini(&e.ids);
    return status;
}

/* Finds the start of each document; rejects or counts documents longer than seq_len. */
static int index_docs(struct jsonl *x, struct stream *s, enum ku_jsonl_long on_long)
{
    uint32_t pair[2 * CHUNK];
    size_t cap = 0;
    for (int64_t at = 0; at < s->n_positions; at += CHUNK) {
        int n = s->n_positions - at < CHUNK ? (int)(s->n_positions - at) : CHUNK;
        KU_TRY(read_pairs(s, at, n, pair));
        KU_TRY(KU_RESERVE(&s->start, (size_t)s->n_docs, (size_t)n + 1, &cap));
        for (int i = 0; i < n; i++)
            if (pair[2 * i] & FIRST)
                s->start[s->n_docs++] = at + i;
    }
    if (s->n_docs == 0 || s->start[0] != 0)
        return KU_ERR(KUMI_EINPUT, "data: %s: its cached tokens are damaged; remove %s",
                      s->tokens.source[0].name,
                      s->tokens.source[0].file.name ? s->tokens.source[0].file.name : "them");
    s->start[s->n_docs] = s->n_positions;
    for (int64_t i = 0; i < s->n_docs; i++) {
        int64_t n = s->start[i + 1] - s->start[i];
        if (n > x->seq_len && on_long == KU_LONG_ERROR)
            return KU_ERR(KUMI_EINPUT,
                          "data: %s%s: document %lld has %lld tokens; data.seq_len holds %lld: "
                          "raise it, set data.pack, or data.on_long cut",
                          s->tokens.source[0].name, ku_stream_others(&s->tokens), (long long)i + 1,
                          (long long)n + 1, (long long)x->seq_len + 1);
        x->n_cut += n > x->seq_len;
    }
    return KUMI_OK;
}

static int open_stream(struct jsonl *x, struct opening *o, struct stream *s,
                       const char *const *name, int n)
{
    KU_TRY(ku_stream_add_globs(&s->tokens, name, n, open_source, o, &x->n_open));
    s->n_positions = ku_stream_count(&s->tokens) / 2;
    return x->pack || n == 0 ? KUMI_OK : index_docs(x, s, o->opts->on_long);
}

static int64_t n_samples(const struct jsonl *x, const struct stream *s)
{
    return x->pack ? (s->n_positions + x->seq_len - 1) / x->seq_len : s->n_docs;
}

static int64_t n_positions(const struct jsonl *x, const struct split *s, int64_t n)
{
    if (n == 0)
        return 0;
    if (!x->pack)
        return s->stream->start[s->first + n] - s->stream->start[s->first];
    int64_t left = s->stream->n_positions - s->first * x->seq_len;
    return left < n * x->seq_len ? left : n * x->seq_len;
}

static int make_splits(struct jsonl *x, const struct ku_jsonl_opts *o)
{
    const struct stream *train = &x->stream[0], *val = &x->stream[1];
    int64_t n = n_samples(x, train), n_train = n;
    if (val->tokens.n == 0 && o->val_fraction > 0.0)
        n_train = (int64_t)((1.0 - o->val_fraction) * (double)n);
    if (n_train == 0 && o->n_train > 0)
        return KU_ERR(KUMI_EINPUT,
                      "data: %s: %lld samples, none of them for training; give more data or a "
                      "smaller data.val_fraction",
                      train->tokens.source[0].name, (long long)n);
    x->split[KU_SPLIT_TRAIN] = (struct split){train, 0};
    x->split[KU_SPLIT_VAL] =
        val->tokens.n ? (struct split){val, 0} : (struct split){train, n_train};
    x->data.n_samples[KU_SPLIT_TRAIN] = n_train;
    x->data.n_samples[KU_SPLIT_VAL] = val->tokens.n ? n_samples(x, val) : n - n_train;
    for (int i = 0; i < KU_N_SPLITS; i++)
        x->data.n_items[i] = n_positions(x, &x->split[i], x->data.n_samples[i]);
    if (x->n_cut > 0 && ku_err_get_rank() <= 0)
        KU_LOG(DATA, WARN, "%s: %lld of %lld documents are longer than data.seq_len and were cut",
               (train->tokens.n ? train : val)->tokens.source[0].name, (long long)x->n_cut,
               (long long)(train->n_docs + val->n_docs));
    return KUMI_OK;
}

static int make_fingerprint(struct jsonl *x)
{
    struct ku_sha256 h;
    KU_TRY(ku_sha256_init(&h));
    ku_sha256_u64(&h, (uint64_t)x->pack);
    ku_sha256_u64(&h, (uint64_t)x->segments);
    for (int i = 0; i < 2; i++)
        ku_stream_identify(&x->stream[i].tokens, &h);
    ku_sha256_final_hex(&h, x->data.fingerprint);
    return KUMI_OK;
}

int ku_jsonl_open(const struct ku_jsonl_opts *opts, struct ku_data **out)
{
    KU_TRY(ku_source_check(opts->n_train + opts->n_val, opts->seq_len, opts->vocab_count,
                           opts->val_fraction));
    struct jsonl *x = ku_calloc(1, sizeof *x);
    if (!x)
        return KUMI_ENOMEM;
    struct opening o = {.opts = opts};
    x->seq_len = opts->seq_len;
    x->vocab_count = opts->vocab_count;
    x->pack = opts->pack != 0;
    x->segments = opts->segments != 0;
    ku_source_ports(x->port, opts->seq_len);
    x->data = (struct ku_data){
        .ops = &jsonl_ops, .port = x->port, .n_ports = x->segments ? 3 : 2, .item = "tokens"};
    int status = ku_input_cache(opts->cache, &o.cache);
    if (status == KUMI_OK)
        status = open_stream(x, &o, &x->stream[0], opts->train, opts->n_train);
    if (status == KUMI_OK)
        status = open_stream(x, &o, &x->stream[1], opts->val, opts->n_val);
    if (status == KUMI_OK && opts->separator && o.tokenizer == NULL)
        status = KU_ERR(KUMI_EINVAL,
                        "data: data.separator: %lld; applies to text, but these documents are "
                        "token ids; omit it",
                        (long long)*opts->separator);
    if (status == KUMI_OK)
        status = make_splits(x, opts);
    if (status == KUMI_OK)
        status = make_fingerprint(x);
    ku_tokenizer_destroy(o.tokenizer);
    ku_free(o.cache.path);
    if (status < 0) {
        jsonl_destroy(&x->data);
        return status;
    }
    *out = &x->data;
    return KUMI_OK;
}
