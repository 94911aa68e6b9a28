/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batch sources with one batch shape: a sampler draws the samples of a step, and a loader per split
 * reads them ahead.
 */
#include "batch/fixed_shape.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "data/batch_rows.h"

static struct ku_fixed_source *of(struct ku_batch_source *s)
{
    return (struct ku_fixed_source *)(void *)s;
}
static const struct ku_fixed_source *seen(const struct ku_batch_source *s)
{
    return (const struct ku_fixed_source *)(const void *)s;
}

static int seq_len(const struct ku_config *c, const struct ku_model *m, int64_t *out)
{
    const int64_t most = m->properties.max_positions;
    const int is_given = c->data_seq_len != KU_NULL;
    if (is_given && most == 0)
        return ku_config_refuse_int(c, "data.seq_len", c->data_seq_len,
                                    "the model reads no sequences; omit it");
    *out = is_given ? c->data_seq_len : most ? most : 1;
    return is_given ? ku_batch_check_length(c, m, "data.seq_len", *out, 0) : KUMI_OK;
}

static const char *tokenizer(const struct ku_config *c)
{
    return c->data_tokenizer;
}

/*
 * Evaluation uses the first samples of the validation split: eval_tokens, at least one sample, at
 * most all.
 */
static int64_t eval_samples(const struct ku_batch_source *s)
{
    int64_t all = s->data->n_samples[KU_SPLIT_VAL], n = s->cfg->train_eval_tokens / s->seq_len;
    return n > all ? all : n < 1 ? all > 0 : n;
}

static int open_batches(struct ku_batch_source *s)
{
    struct ku_sampler *sampler = &of(s)->sampler;
    enum ku_last_batch last;
    if (of(s)->is_held_out) {
        s->eval_samples = s->data->n_samples[KU_SPLIT_VAL];
        return KUMI_OK;
    }
    KU_TRY(ku_last_batch_parse(s->cfg->data_last_batch, &last));
    s->eval_samples = eval_samples(s);
    KU_TRY(ku_sampler_init(sampler, s->data->n_samples[KU_SPLIT_TRAIN], s->batch->global_batch,
                           last, s->cfg->data_shuffle, (uint64_t)s->cfg->train_seed));
    s->steps_per_epoch = sampler->steps_per_epoch;
    return KUMI_OK;
}

static void close_all(struct ku_batch_source *s)
{
    for (int i = 0; i < KU_N_SPLITS; i++)
        ku_loader_destroy(of(s)->loader[i]);
    ku_data_destroy(s->data);
}

static int n_shapes(const struct ku_batch_source *s)
{
    (void)s;
    return 1;
}

static int largest_shape(const struct ku_batch_source *s)
{
    (void)s;
    return 0;
}

static struct ku_batch_shape shape(const struct ku_batch_source *s, int i)
{
    (void)i;
    return (struct ku_batch_shape){.rows = s->batch->global_batch, .tgt_len = s->seq_len};
}

static int shape_at(const struct ku_batch_source *s, enum ku_data_split split, int64_t run)
{
    (void)s, (void)split, (void)run;
    return 0;
}

static int64_t n_runs(const struct ku_batch_source *s, enum ku_data_split split)
{
    const int64_t rows = s->batch->global_batch;
    return split == KU_SPLIT_TRAIN ? s->steps_per_epoch : (s->eval_samples + rows - 1) / rows;
}

static int rows(const struct ku_batch_source *s, enum ku_data_split split, int64_t run,
                int64_t first, int64_t n, void *const *to)
{
    if (split == KU_SPLIT_TRAIN)
        return ku_rows_train(s->data, &seen(s)->sampler, run, first, n, to);
    return ku_rows_val(s->data, s->eval_samples, run * s->batch->global_batch + first, n, to);
}

static int tick(void *source, uint64_t n_read)
{
    return ku_progress_call(&((struct ku_batch_source *)source)->progress, NULL, n_read, 0);
}

/* The loader reads the rows of this rank's micro-batches in execution order. */
static int create_loader(struct ku_batch_source *s, enum ku_data_split split, int64_t first_run,
                         const struct ku_loader_range *range, int n_micro)
{
    struct ku_loader_opts o = {.data = s->data,
                               .split = split,
                               .sampler = split == KU_SPLIT_TRAIN ? &of(s)->sampler : NULL,
                               .global_batch = s->batch->global_batch,
                               .n_samples = s->eval_samples,
                               .range = range,
                               .n_ranges = n_micro,
                               .n_workers = (int)s->cfg->data_workers,
                               .prefetch = (int)s->cfg->data_prefetch,
                               .tick = tick,
                               .tick_ctx = s};
    KU_TRY(ku_on_error_parse(s->cfg->data_on_error, &o.on_error));
    return ku_loader_create(&o, first_run, &of(s)->loader[split]);
}

static int fill(struct ku_batch_source *s, enum ku_data_split split, int64_t run,
                const struct ku_loader_range *range, int n_micro, int u, void *const *to)
{
    if (of(s)->loader[split] == NULL)
        KU_TRY(create_loader(s, split, run, range, n_micro));
    return ku_loader_read(of(s)->loader[split], run, u, to);
}

static int64_t n_targets(const struct ku_batch_source *s, int64_t run, void *const *to)
{
    (void)run, (void)to;
    return s->batch->global_batch * s->seq_len;
}

static size_t read_ahead_bytes(const struct ku_batch_source *s, const struct ku_graph *g)
{
    const struct ku_config *c = s->cfg;
    size_t row_bytes[KU_DATA_PORTS_MAX];
    int n = 0, has_val = c->data_val.n > 0 || c->data_val_fraction > 0;
    if (s->data)
        has_val = s->eval_samples > 0;
    for (uint32_t i = 0; i < g->n_inputs && n < KU_DATA_PORTS_MAX; i++) {
        struct ku_type type = ku_type_of(g, g->input[i].value);
        if (strcmp(g->input[i].name, "control") != 0)
            row_bytes[n++] = (size_t)(ku_shape_count(&type.shape) / s->batch->global_batch) *
                             kumi_dtype_bytes(type.dtype);
    }
    return (size_t)(1 + has_val) * ku_loader_bytes(row_bytes, n,
                                                   s->batch->global_batch / s->batch->n_ranks,
                                                   (int)c->data_workers, (int)c->data_prefetch);
}

static int64_t n_unread(const struct ku_batch_source *s)
{
    int64_t n = 0;
    for (int i = 0; i < KU_N_SPLITS; i++)
        n += seen(s)->loader[i] ? ku_loader_n_skipped(seen(s)->loader[i]) : 0;
    return n;
}

static void print(const struct ku_batch_source *s, struct ku_str *out)
{
    const struct ku_batch *b = s->batch;
    ku_str_add(out, "global batch %lld = %lld shard%s x %lld x %lld", (long long)b->global_batch,
               (long long)b->virtual_shards, b->virtual_shards == 1 ? "" : "s",
               (long long)b->micro_batch, (long long)b->k);
}

static bool has_images(const struct ku_batch_source *s)
{
    return s->model->properties.image[0] != 0;
}

static void print_plan(const struct ku_batch_source *s, int i, struct ku_str *out)
{
    const struct ku_batch *b = s->batch;
    (void)i;
    ku_str_add(out, "global batch %lld = %lld virtual shard%s x %lld micro-batch%s of %lld %s%s",
               (long long)b->global_batch, (long long)b->virtual_shards,
               b->virtual_shards == 1 ? "" : "s", (long long)b->k, b->k == 1 ? "" : "es",
               (long long)b->micro_batch, has_images(s) ? "image" : "sample",
               b->micro_batch == 1 ? "" : "s");
    if (!has_images(s))
        ku_str_add(out, ", %lld tokens per sample", (long long)s->seq_len);
}

static void print_title(const struct ku_batch_source *s, int i, struct ku_str *out)
{
    (void)i;
    ku_str_add(out, "global batch %lld in micro-batches of %lld", (long long)s->batch->global_batch,
               (long long)s->batch->micro_batch);
    if (!has_images(s))
        ku_str_add(out, ", %lld tokens per sample", (long long)s->seq_len);
}

static void print_data(const struct ku_batch_source *s, struct ku_str *out)
{
    if (s->model->properties.vocab_size)
        ku_str_add(out, "samples of %lld tokens, each below %lld; tokenizer %s\n",
                   (long long)s->seq_len, (long long)s->model->properties.vocab_size,
                   s->cfg->data_tokenizer ? s->cfg->data_tokenizer : "byte");
}

static void print_split(const struct ku_batch_source *s, enum ku_data_split split,
                        struct ku_str *out)
{
    (void)s, (void)split, (void)out;
}

static const char *size_key(const struct ku_batch_source *s, int64_t *value)
{
    *value = s->batch->global_batch;
    return "train.global_batch";
}

static int save(const struct ku_batch_source *s, const char *dir)
{
    (void)s, (void)dir;
    return KUMI_OK;
}

/* Type of a sample: "i32 [32, 32, 3]". */
static void add_type(struct ku_str *s, enum kumi_dtype dtype, const int64_t *dim, int ndim)
{
    ku_str_add(s, "%s [", kumi_dtype_name(dtype));
    for (int i = 0; i < ndim; i++)
        ku_str_add(s, "%s%lld", i ? ", " : "", (long long)dim[i]);
    ku_str_add(s, "]");
}

static int refuse_port(const struct ku_data *d, const char *name, const struct ku_type *wanted,
                       const struct ku_data_port *given)
{
    struct ku_str s = {0};
    int64_t dim[KU_MAX_DIMS];
    if (wanted) {
        for (int i = 1; i < wanted->shape.ndim; i++)
            dim[i - 1] = wanted->shape.dim[i].count;
        ku_str_add(&s, "the model reads ");
        add_type(&s, wanted->dtype, dim, wanted->shape.ndim - 1);
    } else {
        ku_str_add(&s, "the model does not read it");
    }
    ku_str_add(&s, given ? "; the data, %s, give " : "; the data, %s, have none", d->ops->kind);
    if (given)
        add_type(&s, given->dtype, given->dim, given->ndim);
    int status = KU_ERR(KUMI_EINVAL, "data: %s of a sample: %s", name, ku_str_get(&s));
    ku_str_fini(&s);
    return status;
}

static bool is_equal(const struct ku_type *t, const struct ku_data_port *p)
{
    int same = t->dtype == p->dtype && t->shape.ndim == p->ndim + 1;
    for (int i = 0; same && i < p->ndim; i++)
        same = t->shape.dim[i + 1].count == p->dim[i];
    return same;
}

static int check_graph(const struct ku_batch_source *s, const struct ku_graph *g)
{
    const struct ku_data *d = s->data;
    if (d == NULL) /* a program fills the ports itself */
        return KUMI_OK;
    for (uint32_t i = 0; i < g->n_inputs; i++) {
        const char *name = g->input[i].name;
        struct ku_type type = ku_type_of(g, g->input[i].value);
        const struct ku_data_port *port = NULL;
        for (int p = 0; p < d->n_ports; p++)
            if (strcmp(d->port[p].name, name) == 0)
                port = &d->port[p];
        if (strcmp(name, "control") != 0 && (port == NULL || !is_equal(&type, port)))
            return refuse_port(d, name, &type, port);
    }
    for (int p = 0; p < d->n_ports; p++)
        if (ku_graph_find_input(g, d->port[p].name) == 0)
            return refuse_port(d, d->port[p].name, NULL, &d->port[p]);
    return KUMI_OK;
}

#define FIXED_SHAPE                                                                                \
    .bytes = sizeof(struct ku_fixed_source), .check = ku_text_check, .seq_len = seq_len,           \
    .tokenizer = tokenizer, .open = open_batches, .close = close_all, .check_graph = check_graph,  \
    .n_shapes = n_shapes, .shape = shape, .largest_shape = largest_shape, .shape_at = shape_at,    \
    .n_runs = n_runs, .rows = rows, .fill = fill, .n_targets = n_targets,                          \
    .read_ahead_bytes = read_ahead_bytes, .n_unread = n_unread, .print = print,                    \
    .print_plan = print_plan, .print_title = print_title, .print_data = print_data,                \
    .print_split = print_split, .size_key = size_key, .save = save

const struct ku_batch_source_ops ku_text_batches = {FIXED_SHAPE, .kind = ku_text_kind,
                                                    .open_data = ku_text_open_data};
const struct ku_batch_source_ops ku_image_batches = {FIXED_SHAPE, .kind = ku_image_kind,
                                                     .open_data = ku_image_open_data};
