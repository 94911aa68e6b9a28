/* SPDX-License-Identifier: Apache-2.0 */
#include "batch/pairs.h"

#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"

static const char *const file_names[] = {KU_PAIRS_VOCAB_FILES};

static int open_vocab(const struct ku_config *c, const char *tokenizer, const struct ku_list *a,
                      const struct ku_list *b, const struct ku_progress *progress,
                      struct ku_vocab **out)
{
    struct ku_vocab_opts o = {
        .tokenizer = tokenizer, .min_frequency = c->data_min_frequency, .progress = *progress};
    int n_b = b && b->n > 0 ? b->n : 0;
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
                       struct ku_pairs *p)
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
    json_t *v = json_integer(tgt->n < 0 ? 0 : tgt->n);
    char wanted[96];
    snprintf(wanted, sizeof wanted, "one file for each of the %d sources", src->n);
    int status = ku_config_refuse(c, key, v, wanted);
    json_decref(v);
    return status;
}

/* There must be as many target files as source files. */
static int check_files(const struct ku_config *c)
{
    const struct ku_list *src[] = {&c->data_train, &c->data_val};
    const struct ku_list *tgt[] = {&c->data_train_target, &c->data_val_target};
    for (int i = 0; i < KU_N_SPLITS; i++) {
        int n = src[i]->n > 0 ? src[i]->n : 0;
        if ((tgt[i]->n > 0 ? tgt[i]->n : 0) != n || (n == 0 && i == KU_SPLIT_TRAIN))
            return refuse_files(c, i ? "data.val_target" : "data.train_target", src[i], tgt[i]);
    }
    return KUMI_OK;
}

static int open_data(const struct ku_config *c, const struct ku_progress *progress,
                     struct ku_pairs *p)
{
    const struct ku_list *src[] = {&c->data_train, &c->data_val};
    const struct ku_list *tgt[] = {&c->data_train_target, &c->data_val_target};
    struct ku_parallel_opts o = {.src_vocab = p->src,
                                 .tgt_vocab = p->tgt,
                                 .src_len_max = c->data_max_source_len,
                                 .tgt_len_max = c->data_max_target_len,
                                 .progress = *progress};
    o.on_empty = strcmp(c->data_on_empty, "error") == 0 ? KU_ODD_ERROR : KU_ODD_DROP;
    o.on_long =
        c->data_on_long && strcmp(c->data_on_long, "error") == 0 ? KU_ODD_ERROR : KU_ODD_DROP;
    for (int i = 0; i < KU_N_SPLITS; i++)
        o.files[i] = (struct ku_parallel_files){(const char *const *)src[i]->item,
                                                (const char *const *)tgt[i]->item,
                                                src[i]->n > 0 ? src[i]->n : 0};
    return ku_parallel_open(&o, &p->data);
}

static int open_buckets(const struct ku_config *c, const struct ku_batch *b, struct ku_pairs *p)
{
    struct ku_buckets_opts o = {.n_shapes_max = (int)c->data_shapes,
                                .multiple = p->n_parts,
                                .len_multiple = c->data_length_multiple,
                                .shuffle = c->data_shuffle,
                                .seed = (uint64_t)c->train_seed};
    if (c->data_batch_tokens == KU_NULL)
        o.batch_rows = b->micro_batch * p->n_parts;
    else
        o.batch_tokens = c->data_batch_tokens;
    KU_TRY(ku_last_batch_parse(c->data_last_batch, &o.last));
    KU_TRY(ku_buckets_of_data(p->data, KU_SPLIT_TRAIN, &o, &p->buckets[KU_SPLIT_TRAIN]));
    o.last = KU_LAST_SHORT;
    o.shuffle = 0;
    return p->data->n_samples[KU_SPLIT_VAL]
               ? ku_buckets_of_data(p->data, KU_SPLIT_VAL, &o, &p->buckets[KU_SPLIT_VAL])
               : KUMI_OK;
}

int ku_pairs_open(const struct ku_config *c, const struct ku_batch *b,
                  const struct ku_progress *progress, struct ku_pairs *p)
{
    p->n_at_once = b->virtual_shards * b->k;
    p->n_parts = b->n_parts ? b->n_parts : p->n_at_once;
    KU_TRY(check_files(c));
    int status = open_vocabs(c, progress, p);
    if (status == KUMI_OK)
        status = open_data(c, progress, p);
    if (status == KUMI_OK)
        status = open_buckets(c, b, p);
    if (status < 0)
        ku_pairs_fini(p);
    return status;
}

void ku_pairs_fini(struct ku_pairs *p)
{
    for (int i = 0; i < KU_N_SPLITS; i++)
        ku_buckets_destroy(p->buckets[i]);
    ku_data_destroy(p->data);
    if (p->tgt != p->src)
        ku_vocab_destroy(p->tgt);
    ku_vocab_destroy(p->src);
    memset(p, 0, sizeof *p);
}

int ku_pairs_n_shapes(const struct ku_pairs *p)
{
    int n = 0;
    for (int i = 0; i < KU_N_SPLITS; i++)
        n += p->buckets[i] ? ku_buckets_n_shapes(p->buckets[i]) : 0;
    return n;
}

int ku_pairs_last_shape(const struct ku_pairs *p)
{
    return ku_buckets_n_shapes(p->buckets[KU_SPLIT_TRAIN]) - 1;
}

struct ku_bucket_shape ku_pairs_shape(const struct ku_pairs *p, int i)
{
    int n_train = ku_pairs_last_shape(p) + 1;
    struct ku_bucket_shape shape = i < n_train
                                       ? ku_buckets_shape(p->buckets[KU_SPLIT_TRAIN], i)
                                       : ku_buckets_shape(p->buckets[KU_SPLIT_VAL], i - n_train);
    shape.rows = shape.rows / p->n_parts * p->n_at_once;
    return shape;
}

static int64_t runs_of_step(const struct ku_pairs *p)
{
    return (p->n_parts + p->n_at_once - 1) / p->n_at_once;
}

int64_t ku_pairs_n_runs(const struct ku_pairs *p, enum ku_data_split split)
{
    return ku_buckets_steps_per_epoch(p->buckets[split]) * runs_of_step(p);
}

int ku_pairs_shape_at(const struct ku_pairs *p, enum ku_data_split split, int64_t run)
{
    int before = split == KU_SPLIT_TRAIN ? 0 : ku_pairs_last_shape(p) + 1;
    return before + ku_buckets_shape_at(p->buckets[split], run / runs_of_step(p));
}

size_t ku_pairs_row_bytes(const struct ku_data_port *port, const struct ku_bucket_shape *shape)
{
    size_t bytes = kumi_dtype_bytes(port->dtype);
    if (port->ndim)
        bytes *= (size_t)(port->length == KU_LENGTH_SRC   ? shape->src_len
                          : port->length == KU_LENGTH_TGT ? shape->tgt_len
                                                          : port->dim[0]);
    return bytes;
}

int ku_pairs_rows(const struct ku_pairs *p, enum ku_data_split split, int64_t run, int64_t first,
                  int64_t n, void *const *to)
{
    const struct ku_buckets *b = p->buckets[split];
    const int64_t step = run / runs_of_step(p);
    struct ku_bucket_shape shape = ku_buckets_shape(b, ku_buckets_shape_at(b, step));
    first += run % runs_of_step(p) * (shape.rows / p->n_parts * p->n_at_once);
    void *at[KU_DATA_PORTS_MAX];
    for (int64_t r = 0; r < n; r++) {
        int64_t sample = first + r < shape.rows ? ku_buckets_at(b, step, first + r) : -1;
        int64_t number = sample < 0 ? 0 : ku_buckets_number(b, step, first + r);
        for (int i = 0; i < p->data->n_ports; i++)
            at[i] = (char *)to[i] + (size_t)r * ku_pairs_row_bytes(&p->data->port[i], &shape);
        KU_TRY(p->data->ops->read_shape(p->data, split, sample, number, &shape, at));
    }
    return KUMI_OK;
}

int64_t ku_pairs_targets(const struct ku_pairs *p)
{
    struct ku_parallel_counts n = ku_parallel_counts(p->data, KU_SPLIT_TRAIN);
    return n.tgt_tokens + p->data->n_samples[KU_SPLIT_TRAIN]; /* plus one </s> per sentence */
}

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

int ku_pairs_save_vocab(const struct ku_pairs *p, const char *dir)
{
    KU_TRY(save_one(p->src, dir, file_names[0]));
    return p->tgt == p->src ? KUMI_OK : save_one(p->tgt, dir, file_names[1]);
}

/*
 * Open the run's own vocabulary file, or what the configuration names. A word vocabulary without
 * its file is counted again.
 */
static int open_stored(const struct ku_config *c, const char *dir, const char *const wanted[2],
                       int which, struct ku_vocab **out)
{
    static const struct ku_progress nobody;
    const char *tokenizer = wanted[which] ? wanted[which]
                            : which       ? c->data_target_tokenizer
                                          : c->data_tokenizer;
    struct stat info;
    char *path = ku_asprintf("%s/%s", dir, file_names[which]);
    if (path == NULL)
        return KUMI_ENOMEM;
    int is_there = wanted[which] == NULL && ku_os_stat(path, &info) == 0;
    int status =
        open_vocab(c, is_there ? path : tokenizer, which ? &c->data_train_target : &c->data_train,
                   c->data_target_tokenizer ? NULL : &c->data_train_target, &nobody, out);
    ku_free(path);
    return status;
}

int ku_pairs_open_vocab(const struct ku_config *c, const char *dir, const char *const tokenizer[2],
                        struct ku_pairs *p)
{
    if (tokenizer[1] && c->data_target_tokenizer == NULL)
        return KU_ERR(KUMI_EINVAL,
                      "translate: --target-tokenizer: %s: %s has one vocabulary for both sides; "
                      "give --tokenizer alone",
                      tokenizer[1], dir);
    int status = open_stored(c, dir, tokenizer, 0, &p->src);
    p->tgt = p->src;
    if (status == KUMI_OK && c->data_target_tokenizer)
        status = open_stored(c, dir, tokenizer, 1, &p->tgt);
    if (status < 0)
        ku_pairs_fini(p);
    return status;
}
