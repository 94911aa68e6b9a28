/* SPDX-License-Identifier: Apache-2.0 */
#include "data/image/store.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/math/random.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Free buffer sets. */
struct pool {
    pthread_mutex_t lock; /* protects free */
    struct ku_image_work *free;
};

struct images {
    struct ku_data data;
    struct ku_data_port port[2];
    struct ku_image_store *store[KU_N_SPLITS]; /* val: NULL if train's store holds both splits */
    int64_t *held;                             /* then val's images in it, ascending */
    struct ku_augment augment;
    struct pool *pool;
    int64_t limit; /* labels must be below it; 0: any label */
};

static const struct kind {
    const char *name;
    int (*open)(const struct ku_image_source *src, struct ku_image_store **out);
} kinds[] = {{"cifar10", ku_cifar_open}, {"cifar100", ku_cifar_open}, {"folder", ku_folder_open},
             {"tar", ku_tar_open},       {"idx", ku_idx_open},        {"npy", ku_npy_open}};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static const struct kind *find_kind(const char *name)
{
    for (int i = 0; name && i < N_KINDS; i++)
        if (strcmp(name, kinds[i].name) == 0)
            return &kinds[i];
    return NULL;
}

bool ku_image_is_kind(const char *kind)
{
    return find_kind(kind) != NULL;
}

static struct ku_image_work *take_work(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
    struct ku_image_work *w = p->free;
    if (w)
        p->free = w->next;
    pthread_mutex_unlock(&p->lock);
    return w ? w : ku_calloc(1, sizeof *w);
}

static void give_work(struct pool *p, struct ku_image_work *w)
{
    pthread_mutex_lock(&p->lock);
    w->next = p->free;
    p->free = w;
    pthread_mutex_unlock(&p->lock);
}

static void destroy_pool(struct pool *p)
{
    if (!p)
        return;
    for (struct ku_image_work *w = p->free, *next; w; w = next) {
        next = w->next;
        ku_decoder_fini(&w->decoder);
        ku_augment_work_fini(&w->augment);
        ku_scratch_fini(&w->file);
        ku_free(w);
    }
    pthread_mutex_destroy(&p->lock);
    ku_free(p);
}

static void images_destroy(struct ku_data *d)
{
    struct images *x = (struct images *)d;
    for (int i = 0; i < KU_N_SPLITS; i++)
        if (x->store[i])
            x->store[i]->ops->close(x->store[i]);
    destroy_pool(x->pool);
    ku_free(x->held);
    ku_free(x);
}

int ku_image_decode(struct ku_image_work *work, size_t bytes, struct ku_pixels *out)
{
    int status = ku_decode(&work->decoder, work->file.data, bytes, out);
    if (status == KUMI_EINPUT)
        snprintf(work->why, sizeof work->why, "%s", work->decoder.why);
    return status;
}

/*
 * The store of a split's sample, and its number there. Without a store of its own, val is held out
 * of train: train's i-th image is the i-th image that is not held out. held[k] - k of those come
 * before held[k].
 */
static const struct ku_image_store *find(const struct images *x, enum ku_data_split split,
                                         int64_t *i)
{
    if (!x->held)
        return x->store[split];
    if (split == KU_SPLIT_VAL) {
        *i = x->held[*i];
    } else {
        int64_t low = 0, high = x->data.n_samples[KU_SPLIT_VAL];
        while (low < high) {
            int64_t middle = (low + high) / 2;
            if (x->held[middle] - middle <= *i)
                low = middle + 1;
            else
                high = middle;
        }
        *i += low;
    }
    return x->store[KU_SPLIT_TRAIN];
}

static int read_into(const struct images *x, const struct ku_image_store *s, int64_t i,
                     int64_t number, struct ku_image_work *w, void *const *port)
{
    struct ku_pixels p;
    int32_t label = 0;
    w->why[0] = '\0';
    KU_TRY(s->ops->read(s, i, w, &p, &label));
    if (label < 0 || (x->limit && label >= x->limit)) {
        snprintf(w->why, sizeof w->why, "label %d; the labels are 0 to %lld", (int)label,
                 (long long)x->limit - 1);
        return KUMI_EINPUT;
    }
    int status = ku_augment(&x->augment, &p, number, &w->augment, port[0]);
    if (status == KUMI_EINPUT)
        snprintf(w->why, sizeof w->why, "%s", w->augment.why);
    *(int32_t *)port[1] = label;
    return status;
}

static int images_read(const struct ku_data *d, enum ku_data_split split, int64_t sample,
                       int64_t number, void *const *port)
{
    const struct images *x = (const struct images *)d;
    KU_ASSERT(sample >= 0 && sample < d->n_samples[split]);
    const struct ku_image_store *s = find(x, split, &sample);
    struct ku_image_work *w = take_work(x->pool);
    if (!w)
        return KUMI_ENOMEM;
    int status = read_into(x, s, sample, split == KU_SPLIT_TRAIN ? number : -1, w, port);
    if (status == KUMI_EINPUT) {
        char name[256];
        s->ops->name(s, sample, name, sizeof name);
        KU_ERR(status, "data: %s: %s%s", name, w->why,
               strchr(w->why, ';') ? "" : "; replace or remove it");
    }
    give_work(x->pool, w);
    return status;
}

static int images_verify(const struct ku_data *d, const struct ku_progress *progress)
{
    const struct images *x = (const struct images *)d;
    size_t row = ku_data_row_bytes(x->port);
    void *image = ku_malloc(row);
    int32_t label;
    int status = image ? KUMI_OK : KUMI_ENOMEM;
    for (int split = 0; split < KU_N_SPLITS && status == KUMI_OK; split++)
        for (int64_t i = 0; i < d->n_samples[split] && status == KUMI_OK; i++) {
            status = ku_data_read(d, split, i, i, (void *[]){image, &label});
            if (status == KUMI_OK)
                status =
                    ku_progress_call(progress, split ? "checking val" : "checking train",
                                     (uint64_t)(i + 1) * row, (uint64_t)d->n_samples[split] * row);
        }
    ku_free(image);
    return status;
}

static const struct ku_data_ops images_ops = {
    .kind = "images", .destroy = images_destroy, .read = images_read, .verify = images_verify};

int ku_label_check(const struct ku_image_source *src, const char *name, int64_t i, int64_t label)
{
    int64_t n = src->opts->n_classes, most = n ? n - 1 : INT32_MAX;
    if (label >= 0 && label <= most)
        return KUMI_OK;
    return KU_ERR(KUMI_EINPUT, "data: %s: image %lld: label %lld; the labels are 0 to %lld", name,
                  (long long)i, (long long)label, (long long)most);
}

static int check_opts(const struct ku_image_opts *o)
{
    if (!find_kind(o->kind))
        return KU_ERR(KUMI_EINVAL,
                      "data: data.kind: '%s'; give cifar10, cifar100, folder, tar, idx or npy",
                      o->kind ? o->kind : "");
    if (o->n_train < 1)
        return KU_ERR(KUMI_EINVAL, "data: data.train: empty; give a path");
    if (!(o->val_fraction >= 0.0 && o->val_fraction < 1.0))
        return KU_ERR(KUMI_EINVAL, "data: data.val_fraction: %g; give at least 0 and less than 1",
                      o->val_fraction);
    if (o->n_classes < 0 || o->n_classes > INT32_MAX)
        return KU_ERR(KUMI_EINVAL, "data: model.num_labels: %lld; give 1 to 2^31 - 1",
                      (long long)o->n_classes);
    return KUMI_OK;
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/*
 * Holds out val's images: the last ones of a fixed permutation, sorted. Sorting keeps consecutive
 * images in order, and a random choice takes the same fraction of every class.
 */
static int hold_out(struct images *x, double fraction)
{
    int64_t n = x->store[KU_SPLIT_TRAIN]->n, held = (int64_t)(fraction * (double)n + 0.5);
    struct ku_permutation order;
    x->data.n_samples[KU_SPLIT_TRAIN] = n;
    if (held == 0)
        return KUMI_OK;
    if (held >= n)
        return KU_ERR(KUMI_EINPUT,
                      "data: data.val_fraction: %g of %lld images leaves none for training; give "
                      "more images or another fraction",
                      fraction, (long long)n);
    size_t bytes;
    KU_TRY(ku_mul_size((size_t)held, sizeof *x->held, &bytes));
    x->held = ku_malloc(bytes);
    if (!x->held)
        return KUMI_ENOMEM;
    ku_permutation_init(&order, (uint64_t)n, 0, 0);
    for (int64_t i = 0; i < held; i++)
        x->held[i] = (int64_t)ku_permutation_at(&order, (uint64_t)(n - held + i));
    qsort(x->held, (size_t)held, sizeof *x->held, by_number);
    x->data.n_samples[KU_SPLIT_TRAIN] = n - held;
    x->data.n_samples[KU_SPLIT_VAL] = held;
    return KUMI_OK;
}

static int same_form(const struct ku_image_store *t, const struct ku_image_store *v)
{
    if (t->c == v->c && t->dtype == v->dtype && t->is_flat == v->is_flat &&
        ((t->h == v->h && t->w == v->w) || t->h == 0))
        return KUMI_OK;
    return KU_ERR(
        KUMI_EINPUT,
        "data: data.val: images of %lld x %lld x %lld %s; those of data.train have %lld x "
        "%lld x %lld %s",
        (long long)v->h, (long long)v->w, (long long)v->c, kumi_dtype_name(v->dtype),
        (long long)t->h, (long long)t->w, (long long)t->c, kumi_dtype_name(t->dtype));
}

static int open_splits(struct images *x, const struct ku_image_opts *o)
{
    const struct kind *kind = find_kind(o->kind);
    struct ku_image_source train = {o,          KU_SPLIT_TRAIN,   NULL, o->train, o->train_labels,
                                    o->n_train, o->n_train_labels};
    struct ku_image_source val = {o,        KU_SPLIT_VAL,   NULL, o->val, o->val_labels,
                                  o->n_val, o->n_val_labels};
    KU_TRY(kind->open(&train, &x->store[KU_SPLIT_TRAIN]));
    const struct ku_image_store *t = x->store[KU_SPLIT_TRAIN];
    x->limit = o->n_classes ? o->n_classes : t->n_classes;
    if (o->n_val == 0)
        return hold_out(x, o->val_fraction);
    val.train = t;
    KU_TRY(kind->open(&val, &x->store[KU_SPLIT_VAL]));
    x->data.n_samples[KU_SPLIT_TRAIN] = t->n;
    x->data.n_samples[KU_SPLIT_VAL] = x->store[KU_SPLIT_VAL]->n;
    return same_form(t, x->store[KU_SPLIT_VAL]);
}

static int make_ports(struct images *x, const struct ku_augment_opts *o)
{
    const struct ku_image_store *s = x->store[KU_SPLIT_TRAIN];
    KU_TRY(ku_augment_init(&x->augment, o, s->h, s->w, s->c, s->dtype));
    o = &x->augment.o;
    if (s->is_flat && (o->height != s->h || o->width != s->w || o->crop != KU_CROP_NONE ||
                       o->flip > 0.0 || o->resize))
        return KU_ERR(KUMI_EINVAL, "data: vectors cannot be cropped, mirrored or resized; omit "
                                   "image_size, data.crop, data.flip and data.resize");
    x->port[0] = (struct ku_data_port){.name = "images", .dtype = o->dtype, .ndim = 3};
    x->port[0].dim[0] = o->height;
    x->port[0].dim[1] = o->width;
    x->port[0].dim[2] = o->channels;
    if (s->is_flat) {
        x->port[0].ndim = 1;
        x->port[0].dim[0] = o->width;
    }
    x->port[1] = (struct ku_data_port){.name = "targets", .dtype = KUMI_I32};
    return KUMI_OK;
}

static int make_fingerprint(struct images *x)
{
    struct ku_sha256 h;
    int status = KUMI_OK;
    KU_TRY(ku_sha256_init(&h));
    for (int i = 0; i < KU_N_SPLITS && status == KUMI_OK; i++) {
        ku_sha256_u64(&h, (uint64_t)x->data.n_samples[i]);
        if (x->store[i])
            status = x->store[i]->ops->identify(x->store[i], &h);
    }
    ku_sha256_final_hex(&h, x->data.fingerprint);
    return status;
}

static int open_all(struct images *x, const struct ku_image_opts *o)
{
    struct pool *p = ku_calloc(1, sizeof *p);
    if (!p)
        return KUMI_ENOMEM;
    pthread_mutex_init(&p->lock, NULL);
    x->pool = p;
    KU_TRY(open_splits(x, o));
    KU_TRY(make_ports(x, &o->augment));
    return make_fingerprint(x);
}

int ku_image_open(const struct ku_image_opts *opts, struct ku_data **out)
{
    KU_TRY(check_opts(opts));
    struct images *x = ku_calloc(1, sizeof *x);
    if (!x)
        return KUMI_ENOMEM;
    x->data = (struct ku_data){.ops = &images_ops, .port = x->port, .n_ports = 2};
    int status = open_all(x, opts);
    if (status < 0) {
        images_destroy(&x->data);
        return status;
    }
    *out = &x->data;
    return KUMI_OK;
}
