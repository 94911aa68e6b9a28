/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches of a parallel corpus: sentence pairs of similar length, in a few shapes. Every shape has
 * its own program. Shapes are numbered 0 .. n_shapes - 1: first those of training, then those of
 * validation.
 *
 * An evaluation on any number of ranks has the micro-batches of training (ku_batch.n_parts): a
 * batch of the buckets has n_parts micro-batches, and one run of a program takes n_at_once of them.
 *
 *     n_parts 6, n_at_once 4      batch 0  0 1 2 3 4 5    batch 1  0 1 2 3 4 5
 *                                 run      0 0 0 0 1 1    run      2 2 2 2 3 3
 *
 * Rows past the end of a batch are padding without targets.
 */
#include "batch/parallel_source.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "data/pairs/buckets.h"
#include "data/pairs/parallel_corpus.h"

struct parallel_source {
    struct ku_batch_source base;
    struct ku_vocab_pair vocab;
    struct ku_buckets *buckets[KU_N_SPLITS]; /* NULL: no such split */
    int64_t n_parts, n_at_once; /* micro-batches per batch of the buckets, and per run */
};

static struct parallel_source *of(struct ku_batch_source *s)
{
    return (struct parallel_source *)(void *)s;
}
static const struct parallel_source *seen(const struct ku_batch_source *s)
{
    return (const struct parallel_source *)(const void *)s;
}

static const char *const file_names[] = {KU_VOCAB_FILES};

static int open_vocab(const struct ku_config *c, const char *tokenizer, const struct ku_list *a,
                      const struct ku_list *b, const struct ku_progress *progress,
                      struct ku_vocab **out)
{
    struct ku_vocab_opts o = {
        .tokenizer = tokenizer, .min_frequency = c->data_min_frequency, .progress = *progress};
    const int n_b = b ? b->n : 0;
    const char **file = ku_calloc((size_t)(a->n + n_b) + 1, sizeof *file);
    if (file == NULL)
        return KUMI_ENOMEM;
    for (int i = 0; i < a->n; i++)
        file[o.n_files++] = a->item[i];
    for (int i = 0; i < n_b; i++)
        file[o.n_files++] = b->item[i];
    o.file = file;
    int status = ku_vocab_open(&o, out);
    ku_free(file);
    return status;
}

static int open_vocabs(const struct ku_config *c, const struct ku_progress *progress,
                       struct ku_vocab_pair *p)
{
    const struct ku_list *src = &c->data_train, *tgt = &c->data_train_target;
    const char *own = c->data_target_tokenizer;
    KU_TRY(open_vocab(c, c->data_tokenizer, src, own ? NULL : tgt, progress, &p->src));
    p->tgt = p->src;
    return own ? open_vocab(c, own, tgt, NULL, progress, &p->tgt) : KUMI_OK;
}

static int refuse_files(const struct ku_config *c, const char *key, const struct ku_list *src,
                        const struct ku_list *tgt)
{
    char wanted[96];
    snprintf(wanted, sizeof wanted, "one file for each of the %d sources", src->n);
    return ku_config_refuse_int(c, key, tgt->n, wanted);
}

/* There must be as many target files as source files. */
static int check_files(const struct ku_config *c)
{
    const struct ku_list *src[] = {&c->data_train, &c->data_val};
    const struct ku_list *tgt[] = {&c->data_train_target, &c->data_val_target};
    for (int i = 0; i < KU_N_SPLITS; i++)
        if (tgt[i]->n != src[i]->n || (src[i]->n == 0 && i == KU_SPLIT_TRAIN))
            return refuse_files(c, i ? "data.val_target" : "data.train_target", src[i], tgt[i]);
    return KUMI_OK;
}

static const char *kind(const struct ku_config *c)
{
    (void)c;
    return "parallel";
}

/* DeepSpeed's sizes cannot be left out; in tokens only their accumulation counts. */
static int check(const struct ku_config *c, const struct ku_model *m)
{
    static const char excluded[] = "data.batch_tokens sets the size of a batch; leave one of the "
                                   "two out";
    const bool in_tokens = ku_batch_is_in_tokens(c, m);
    const struct ku_config_rule rule[] = {
        {c->data_kind && strcmp(c->data_kind, "parallel") != 0, "data.kind",
         "this model translates; give parallel"},
        {in_tokens && !c->deepspeed && c->train_global_batch != KU_NULL, "train.global_batch",
         excluded},
        {in_tokens && !c->deepspeed && c->train_micro_batch != KU_NULL, "train.micro_batch",
         excluded},
        {in_tokens && c->optimizer_lr_scaling.rule != KU_SCALING_NONE, "optimizer.lr_scaling",
         "it counts sentence pairs, and data.batch_tokens sets the size of a batch; use null"},
        {c->data_segments && !m->properties.is_causal, "data.segments",
         "this model attends over the whole sample; use false (gpt2 and llama have segments)"},
        {c->data_weights.n > 0, "data.weights", "it is for text files; omit it"},
        {c->data_separator != KU_NULL && !c->data_segments, "data.separator",
         "it is for text with data.segments true, and for jsonl; leave it out"},
        {c->data_on_long && strcmp(c->data_on_long, "cut") == 0, "data.on_long",
         "drop or error for sentence pairs"},
    };
    return ku_config_check_rules(c, rule, sizeof rule / sizeof rule[0]);
}

static int seq_len(const struct ku_config *c, const struct ku_model *m, int64_t *out)
{
    if (c->data_seq_len != KU_NULL)
        return ku_config_refuse_int(c, "data.seq_len", c->data_seq_len,
                                    "pairs have data.max_source_len and data.max_target_len");
    *out = c->data_max_target_len + 1;
    KU_TRY(ku_batch_check_length(c, m, "data.max_source_len", c->data_max_source_len, 0));
    return ku_batch_check_length(c, m, "data.max_target_len", c->data_max_target_len, 1);
}

static const char *tokenizer(const struct ku_config *c)
{
    return c->data_target_tokenizer ? NULL : c->data_tokenizer;
}

/* The options of a corpus without its files. */
static struct ku_parallel_opts opts_of(const struct ku_config *c, const struct ku_vocab_pair *vocab)
{
    const char *on_long = c->data_on_long;
    const bool is_error = strcmp(c->data_on_empty, "error") == 0;
    return (struct ku_parallel_opts){
        .src_vocab = vocab->src,
        .tgt_vocab = vocab->tgt,
        .src_len_max = c->data_max_source_len,
        .tgt_len_max = c->data_max_target_len,
        .on_empty = is_error ? KU_ODD_ERROR : KU_ODD_DROP,
        .on_long = on_long && strcmp(on_long, "error") == 0 ? KU_ODD_ERROR : KU_ODD_DROP};
}

static struct ku_parallel_files files_of(const struct ku_list *src, const struct ku_list *tgt)
{
    return (struct ku_parallel_files){(const char *const *)src->item,
                                      (const char *const *)tgt->item, src->n};
}

static int open_data(struct ku_batch_source *s)
{
    const struct ku_config *c = s->cfg;
    struct ku_vocab_pair *vocab = &of(s)->vocab;
    KU_TRY(check_files(c));
    KU_TRY(open_vocabs(c, &s->progress, vocab));
    struct ku_parallel_opts o = opts_of(c, vocab);
    o.progress = s->progress;
    o.files[KU_SPLIT_TRAIN] = files_of(&c->data_train, &c->data_train_target);
    o.files[KU_SPLIT_VAL] = files_of(&c->data_val, &c->data_val_target);
    return ku_parallel_open(&o, &s->data);
}

int ku_parallel_open_val(const struct ku_config *c, const struct ku_vocab_pair *vocab,
                         struct ku_data **out)
{
    KU_TRY(check_files(c));
    struct ku_parallel_opts o = opts_of(c, vocab);
    o.files[KU_SPLIT_TRAIN] = files_of(&c->data_val, &c->data_val_target);
    return ku_parallel_open(&o, out);
}

/*
 * What the lengths of shapes are multiples of. With tp_exact parallel.sp sums over that many slices
 * of every sequence. tp and sp are layout keys then: the shapes, which decide bits, do not
 * depend on them.
 */
static int64_t length_multiple(const struct ku_config *c)
{
    int64_t multiple = c->data_length_multiple;
    while (c->parallel_tp_exact != KU_NULL && multiple % c->parallel_tp_exact)
        multiple += c->data_length_multiple;
    return multiple;
}

static int open_buckets(struct ku_batch_source *s)
{
    const struct ku_config *c = s->cfg;
    const struct ku_batch *b = s->batch;
    struct parallel_source *p = of(s);
    p->n_at_once = b->virtual_shards * b->k;
    p->n_parts = b->n_parts ? b->n_parts : p->n_at_once;
    struct ku_buckets_opts o = {.n_shapes_max = (int)c->data_shapes,
                                .multiple = p->n_parts,
                                .len_multiple = length_multiple(c),
                                .shuffle = c->data_shuffle,
                                .seed = (uint64_t)c->train_seed};
    if (!ku_batch_is_in_tokens(c, s->model))
        o.batch_rows = b->micro_batch * p->n_parts;
    else
        o.batch_tokens = c->data_batch_tokens;
    KU_TRY(ku_last_batch_parse(c->data_last_batch, &o.last));
    KU_TRY(ku_buckets_of_data(s->data, KU_SPLIT_TRAIN, &o, &p->buckets[KU_SPLIT_TRAIN]));
    o.last = KU_LAST_SHORT;
    o.shuffle = 0;
    return s->data->n_samples[KU_SPLIT_VAL]
               ? ku_buckets_of_data(s->data, KU_SPLIT_VAL, &o, &p->buckets[KU_SPLIT_VAL])
               : KUMI_OK;
}

static int refuse_vocabularies(const struct ku_batch_source *s)
{
    char key[64];
    snprintf(key, sizeof key, "model.%s", s->model->properties.one_vocab_key);
    return ku_config_refuse(
        s->cfg, key, json_true(),
        "source and target need one vocabulary: leave data.target_tokenizer out");
}

/* The buckets define the batch shapes, and the vocabularies the model's sizes. */
static int open_batches(struct ku_batch_source *s)
{
    const struct ku_vocab_pair *vocab = &of(s)->vocab;
    KU_TRY(open_buckets(s));
    if (s->model->properties.one_vocab_key && vocab->src != vocab->tgt)
        return refuse_vocabularies(s);
    s->steps_per_epoch = ku_buckets_steps_per_epoch(of(s)->buckets[KU_SPLIT_TRAIN]);
    s->eval_samples = s->data->n_samples[KU_SPLIT_VAL];
    return ku_model_fit(s->model, ku_vocab_count(vocab->src), ku_vocab_count(vocab->tgt));
}

void ku_vocab_pair_fini(struct ku_vocab_pair *p)
{
    if (p->tgt != p->src)
        ku_vocab_destroy(p->tgt);
    ku_vocab_destroy(p->src);
    memset(p, 0, sizeof *p);
}

static void close_all(struct ku_batch_source *s)
{
    for (int i = 0; i < KU_N_SPLITS; i++)
        ku_buckets_destroy(of(s)->buckets[i]);
    ku_data_destroy(s->data);
    ku_vocab_pair_fini(&of(s)->vocab);
}

static int check_graph(const struct ku_batch_source *s, const struct ku_graph *g)
{
    (void)s, (void)g; /* the family builds its graphs for the ports of a corpus */
    return KUMI_OK;
}

static int largest_shape(const struct ku_batch_source *s)
{
    return ku_buckets_n_shapes(seen(s)->buckets[KU_SPLIT_TRAIN]) - 1;
}

static int n_shapes(const struct ku_batch_source *s)
{
    const struct ku_buckets *val = seen(s)->buckets[KU_SPLIT_VAL];
    return largest_shape(s) + 1 + (val ? ku_buckets_n_shapes(val) : 0);
}

static struct ku_batch_shape shape(const struct ku_batch_source *s, int i)
{
    const struct parallel_source *p = seen(s);
    const int n_train = largest_shape(s) + 1;
    const enum ku_data_split split = i < n_train ? KU_SPLIT_TRAIN : KU_SPLIT_VAL;
    struct ku_bucket_shape b = ku_buckets_shape(p->buckets[split], i < n_train ? i : i - n_train);
    return (struct ku_batch_shape){b.rows / p->n_parts * p->n_at_once, b.src_len, b.tgt_len, split};
}

static int64_t runs_of_batch(const struct parallel_source *p)
{
    return (p->n_parts + p->n_at_once - 1) / p->n_at_once;
}

static int64_t n_runs(const struct ku_batch_source *s, enum ku_data_split split)
{
    const struct ku_buckets *b = seen(s)->buckets[split];
    return ku_buckets_steps_per_epoch(b) * runs_of_batch(seen(s));
}

static int shape_at(const struct ku_batch_source *s, enum ku_data_split split, int64_t run)
{
    const int before = split == KU_SPLIT_TRAIN ? 0 : largest_shape(s) + 1;
    return before + ku_buckets_shape_at(seen(s)->buckets[split], run / runs_of_batch(seen(s)));
}

static int rows(const struct ku_batch_source *s, enum ku_data_split split, int64_t run,
                int64_t first, int64_t n, void *const *to)
{
    const struct parallel_source *p = seen(s);
    const struct ku_buckets *b = p->buckets[split];
    const int64_t step = run / runs_of_batch(p);
    struct ku_bucket_shape all = ku_buckets_shape(b, ku_buckets_shape_at(b, step));
    const struct ku_batch_shape each = {.src_len = all.src_len, .tgt_len = all.tgt_len};
    first += run % runs_of_batch(p) * (all.rows / p->n_parts * p->n_at_once);
    void *at[KU_DATA_PORTS_MAX];
    for (int64_t r = 0; r < n; r++) {
        int64_t sample = first + r < all.rows ? ku_buckets_at(b, step, first + r) : -1;
        int64_t number = sample < 0 ? 0 : ku_buckets_number(b, step, first + r);
        for (int i = 0; i < s->data->n_ports; i++)
            at[i] = (char *)to[i] + (size_t)r * ku_batch_row_bytes(&s->data->port[i], &each);
        KU_TRY(s->data->ops->read_shape(s->data, split, sample, number, &all, at));
    }
    return KUMI_OK;
}

static int fill(struct ku_batch_source *s, enum ku_data_split split, int64_t run,
                const struct ku_loader_range *range, int n_micro, int u, void *const *to)
{
    (void)n_micro;
    return rows(s, split, run, range[u].first, range[u].n, to);
}

static int64_t n_targets(const struct ku_batch_source *s, int64_t run, void *const *to)
{
    const int32_t *len = to[KU_PARALLEL_TGT_LEN];
    int64_t n = 0;
    for (int64_t r = 0; r < ku_buckets_batch(seen(s)->buckets[KU_SPLIT_TRAIN], run); r++)
        n += len[r];
    return n;
}

static size_t read_ahead_bytes(const struct ku_batch_source *s, const struct ku_graph *g)
{
    (void)s, (void)g;
    return 0;
}

static int64_t n_unread(const struct ku_batch_source *s)
{
    (void)s;
    return 0;
}

static void print(const struct ku_batch_source *s, struct ku_str *out)
{
    ku_str_add(out, "pairs in %lld shard%s x %lld, ", (long long)s->batch->virtual_shards,
               s->batch->virtual_shards == 1 ? "" : "s", (long long)s->batch->k);
    ku_buckets_print(seen(s)->buckets[KU_SPLIT_TRAIN], out);
}

static void print_plan(const struct ku_batch_source *s, int i, struct ku_str *out)
{
    struct ku_batch_shape b = shape(s, i);
    print(s, out);
    ku_str_add(out, "; planned: %lld pairs of %lld source and %lld target positions",
               (long long)b.rows, (long long)b.src_len, (long long)b.tgt_len);
}

static void print_title(const struct ku_batch_source *s, int i, struct ku_str *out)
{
    struct ku_batch_shape b = shape(s, i);
    ku_str_add(out, "%lld target positions in %lld micro-batches", (long long)(b.rows * b.tgt_len),
               (long long)(s->batch->virtual_shards * s->batch->k));
}

static void print_data(const struct ku_batch_source *s, struct ku_str *out)
{
    const struct ku_vocab_pair *vocab = &seen(s)->vocab;
    ku_str_add(out, "vocabularies: %lld and %lld tokens\n", (long long)ku_vocab_count(vocab->src),
               (long long)ku_vocab_count(vocab->tgt));
}

static void print_split(const struct ku_batch_source *s, enum ku_data_split split,
                        struct ku_str *out)
{
    struct ku_parallel_counts n = ku_parallel_counts(s->data, split);
    if (s->data->n_samples[split])
        ku_str_add(out,
                   "  %lld lines: %lld tokens of source, %lld of target; skipped: %lld empty, %lld "
                   "over-long\n",
                   (long long)n.lines, (long long)n.src_tokens, (long long)n.tgt_tokens,
                   (long long)n.n_empty, (long long)n.n_long);
}

static const char *size_key(const struct ku_batch_source *s, int64_t *value)
{
    const bool in_tokens = ku_batch_is_in_tokens(s->cfg, s->model);
    *value = in_tokens ? s->cfg->data_batch_tokens : s->batch->global_batch;
    return in_tokens ? "data.batch_tokens" : "train.global_batch";
}

/* Nothing is written for tokenizers. */
static int save_one(const struct ku_vocab *v, const char *dir, const char *name)
{
    struct ku_str text = {0};
    int status = ku_vocab_print(v, &text);
    if (status == KUMI_EINVAL) { /* of a tokenizer, which the configuration names */
        ku_str_fini(&text);
        return KUMI_OK;
    }
    char *path = ku_asprintf("%s/%s", dir, name);
    if (status == KUMI_OK && path == NULL)
        status = KUMI_ENOMEM;
    if (status == KUMI_OK && ku_os_replace(path, ku_str_get(&text), text.bytes) < 0)
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "run: %s: %s", path, ku_os_why());
    ku_free(path);
    ku_str_fini(&text);
    return status;
}

static int save(const struct ku_batch_source *s, const char *dir)
{
    const struct ku_vocab_pair *p = &seen(s)->vocab;
    KU_TRY(save_one(p->src, dir, file_names[0]));
    return p->tgt == p->src ? KUMI_OK : save_one(p->tgt, dir, file_names[1]);
}

/* *path: the vocabulary file in the first directory that has it; NULL: none */
static int find_stored(const char *const dir[2], int which, char **path)
{
    struct stat info;
    *path = NULL;
    for (int i = 0; i < 2 && *path == NULL; i++) {
        char *at = dir[i] ? ku_asprintf("%s/%s", dir[i], file_names[which]) : NULL;
        if (dir[i] && at == NULL)
            return KUMI_ENOMEM;
        if (at && ku_os_stat(at, &info) == 0)
            *path = at;
        else
            ku_free(at);
    }
    return KUMI_OK;
}

/*
 * Open the run's own vocabulary file, or what the configuration names. A word vocabulary without
 * its file is counted again.
 */
static int open_stored(const struct ku_config *c, const char *const dir[2],
                       const char *const wanted[2], int which, struct ku_vocab **out)
{
    static const struct ku_progress no_progress;
    const char *tokenizer = which ? c->data_target_tokenizer : c->data_tokenizer;
    char *path = NULL;
    if (wanted[which])
        tokenizer = wanted[which];
    else
        KU_TRY(find_stored(dir, which, &path));
    if (path == NULL && wanted[which] == NULL && strcmp(tokenizer, "word") == 0)
        KU_LOG(DATA, WARN,
               "%s: %s of its run is not found: the words of data.train are counted again, and "
               "their ids are wrong if those files have changed since the training",
               dir[0], file_names[which]);
    int status =
        open_vocab(c, path ? path : tokenizer, which ? &c->data_train_target : &c->data_train,
                   c->data_target_tokenizer ? NULL : &c->data_train_target, &no_progress, out);
    ku_free(path);
    return status;
}

int ku_vocab_pair_open(const struct ku_config *c, const char *const dir[2],
                       const char *const tokenizer[2], struct ku_vocab_pair *p)
{
    if (tokenizer[1] && c->data_target_tokenizer == NULL)
        return KU_ERR(KUMI_EINVAL,
                      "translate: --target-tokenizer: %s: %s has one vocabulary for both sides; "
                      "give --tokenizer alone",
                      tokenizer[1], dir[0]);
    int status = open_stored(c, dir, tokenizer, 0, &p->src);
    p->tgt = p->src;
    if (status == KUMI_OK && c->data_target_tokenizer)
        status = open_stored(c, dir, tokenizer, 1, &p->tgt);
    if (status < 0)
        ku_vocab_pair_fini(p);
    return status;
}

const struct ku_batch_source_ops ku_parallel_batches = {
    .bytes = sizeof(struct parallel_source),
    .has_shapes = 1,
    .kind = kind,
    .check = check,
    .seq_len = seq_len,
    .tokenizer = tokenizer,
    .open_data = open_data,
    .open = open_batches,
    .close = close_all,
    .check_graph = check_graph,
    .n_shapes = n_shapes,
    .shape = shape,
    .largest_shape = largest_shape,
    .shape_at = shape_at,
    .n_runs = n_runs,
    .rows = rows,
    .fill = fill,
    .n_targets = n_targets,
    .read_ahead_bytes = read_ahead_bytes,
    .n_unread = n_unread,
    .print = print,
    .print_plan = print_plan,
    .print_title = print_title,
    .print_data = print_data,
    .print_split = print_split,
    .size_key = size_key,
    .save = save,
};
