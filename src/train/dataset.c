/* SPDX-License-Identifier: Apache-2.0 */
#include "train/dataset.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "data/image/image.h"
#include "train/dataset_text.h"

static int refuse_number(const struct ku_config *c, const char *key, int64_t value,
                         const char *wanted)
{
    json_t *v = json_integer(value);
    int status = ku_config_refuse(c, key, v, wanted);
    json_decref(v);
    return status;
}

/*
 * Check a length key against the model's positions. `more`: tokens that the model reads in
 * addition.
 */
static int check_length(const struct ku_config *c, const struct ku_model_facts *f, const char *key,
                        int64_t value, int64_t more)
{
    char wanted[96];
    if (value + more <= f->max_positions)
        return KUMI_OK;
    snprintf(wanted, sizeof wanted, "%sit exceeds the model's %s", more ? "with <s> " : "",
             f->positions_key);
    return refuse_number(c, key, value, wanted);
}

int ku_dataset_seq_len(const struct ku_config *c, const struct ku_model *m, int64_t *out)
{
    const struct ku_model_facts *f = &m->facts;
    int is_given = c->data_seq_len != KU_NULL;
    if (is_given && (f->max_positions == 0 || f->is_pairs))
        return refuse_number(c, "data.seq_len", c->data_seq_len,
                             f->is_pairs ? "pairs have data.max_source_len and data.max_target_len"
                                         : "the model reads no sequences; omit it");
    *out = is_given ? c->data_seq_len : f->max_positions ? f->max_positions : 1;
    if (f->is_pairs) {
        *out = c->data_max_target_len + 1;
        KU_TRY(check_length(c, f, "data.max_source_len", c->data_max_source_len, 0));
        return check_length(c, f, "data.max_target_len", c->data_max_target_len, 1);
    }
    return is_given && f->max_positions ? check_length(c, f, "data.seq_len", *out, 0) : KUMI_OK;
}

static int open_images(const struct ku_config *c, const struct ku_model *m,
                       const struct ku_progress *progress, struct ku_data **out)
{
    struct ku_image_opts o = {.kind = c->data_kind,
                              .train = (const char *const *)c->data_train.item,
                              .n_train = c->data_train.n,
                              .val = (const char *const *)c->data_val.item,
                              .n_val = c->data_val.n,
                              .train_labels = (const char *const *)c->data_train_labels.item,
                              .n_train_labels = c->data_train_labels.n,
                              .val_labels = (const char *const *)c->data_val_labels.item,
                              .n_val_labels = c->data_val_labels.n,
                              .val_fraction = c->data_val_fraction,
                              .labels = c->data_labels,
                              .layout = c->data_layout,
                              .n_classes = m->facts.n_classes,
                              .progress = *progress};
    struct ku_augment_opts *a = &o.augment;
    a->height = m->facts.image[0];
    a->width = m->facts.image[1];
    a->channels = (int)m->facts.image[2];
    a->padding = c->data_padding;
    a->resize = c->data_resize == KU_NULL ? 0 : c->data_resize;
    a->flip = c->data_flip;
    memcpy(a->scale, c->data_scale.v, sizeof a->scale);
    memcpy(a->ratio, c->data_ratio.v, sizeof a->ratio);
    a->seed = (uint64_t)c->train_seed;
    KU_TRY(ku_crop_parse(c->data_crop, &a->crop));
    KU_TRY(ku_normalize_parse(c->data_normalize, a));
    return ku_image_open(&o, out);
}

int ku_dataset_open(const struct ku_config *c, const struct ku_model *m, int64_t seq_len,
                    const struct ku_progress *progress, struct ku_data **out)
{
    if (c->data_kind && ku_image_is_kind(c->data_kind))
        return open_images(c, m, progress, out);
    return ku_dataset_open_text(c, m, seq_len, NULL, progress, out);
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

int ku_dataset_check(const struct ku_data *d, const struct ku_graph *g)
{
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
