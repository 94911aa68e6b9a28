/* SPDX-License-Identifier: Apache-2.0 */
#include "data/image/array.h"

#include "base/err.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { LABELS_AT_ONCE = 4096 };

/*
 * Images and labels in array files (IDX, NumPy). Each image file holds one array, and all arrays
 * have the same image shape. Labels are read at opening, 4 bytes per image; pixels are read on
 * demand.
 */
struct array {
    struct ku_image_store store;
    int32_t *label;
    struct ku_pixels form; /* shape, strides and dtype of one image; data is NULL */
    size_t image_bytes;
};

static void array_close(struct ku_image_store *s)
{
    ku_free(((struct array *)s)->label);
    ku_store_close(s);
}

static int array_read(const struct ku_image_store *s, int64_t i, struct ku_image_work *work,
                      struct ku_pixels *out, int32_t *label)
{
    const struct array *x = (const struct array *)s;
    KU_TRY(ku_store_read(s, i, x->image_bytes, work));
    *out = x->form;
    out->data = work->file.data;
    *label = x->label[i];
    return KUMI_OK;
}

static void array_name(const struct ku_image_store *s, int64_t i, char *text, size_t bytes)
{
    const struct ku_image_part *p = ku_store_part(s, i);
    snprintf(text, bytes, "%s: image %lld", p->file.name, (long long)(i - p->first));
}

static int array_identify(const struct ku_image_store *s, struct ku_sha256 *h)
{
    const struct array *x = (const struct array *)s;
    KU_TRY(ku_store_identify(s, h));
    ku_sha256_update(h, x->label, (size_t)s->n * sizeof *x->label);
    return KUMI_OK;
}

static const struct ku_image_store_ops array_ops = {array_close, array_read, array_name,
                                                    array_identify};

static int read_header(const struct ku_array_format *format, const struct ku_file *f,
                       struct ku_array_header *h)
{
    unsigned char data[KU_NPY_HEADER_MAX];
    size_t bytes = f->bytes < format->header_max ? (size_t)f->bytes : format->header_max;
    KU_TRY(ku_file_get(f, 0, data, bytes));
    return format->parse(f->name, data, bytes, f->bytes, h);
}

/*
 * Detects the memory format of a 4-dimensional array. Returns 0 for [n, h, w, c], 1 for [n, c, h,
 * w], -1 if both or neither fit.
 */
static int planes_first(const char *layout, const int64_t *dim)
{
    if (layout)
        return strcmp(layout, "nchw") == 0;
    int last = dim[3] == 1 || dim[3] == 3, first = dim[1] == 1 || dim[1] == 3;
    return last == first ? -1 : first;
}

static int form_of(const struct ku_image_source *src, const char *name,
                   const struct ku_array_header *h, struct ku_pixels *p)
{
    const int64_t *dim = h->dim;
    int is_f32 = strcmp(h->type, "f4") == 0;
    *p = (struct ku_pixels){.dtype = is_f32 ? KUMI_F32 : KUMI_U8};
    if (!is_f32 && strcmp(h->type, "u1") != 0)
        return KU_ERR(KUMI_EINPUT, "data: %s: elements of %s; images are u1 or <f4", name, h->type);
    int first = h->ndim == 4 ? planes_first(src->opts->layout, dim) : 0;
    if (first < 0)
        return KU_ERR(KUMI_EINPUT,
                      "data: %s: [%lld, %lld, %lld, %lld]: set data.layout to nhwc or nchw, which "
                      "says where the channels are",
                      name, (long long)dim[0], (long long)dim[1], (long long)dim[2],
                      (long long)dim[3]);
    p->h = h->ndim == 2 ? 1 : dim[first ? 2 : 1];
    p->w = h->ndim == 2 ? dim[1] : dim[first ? 3 : 2];
    p->c = h->ndim == 4 ? dim[first ? 1 : 3] : 1;
    const int64_t most = KU_IMAGE_SIDE_MAX;
    if (h->ndim < 2 || p->h < 1 || p->w < 1 || p->h > most || p->w > most || p->c < 1 ||
        p->c > KU_IMAGE_CHANNELS_MAX || p->h * p->w > KU_IMAGE_PIXELS_MAX)
        return KU_ERR(KUMI_EINPUT,
                      "data: %s: %d dimensions, %lld x %lld with %lld channels; images have 2 to 4 "
                      "dimensions, sides of at most %lld, at most %d channels",
                      name, h->ndim, (long long)p->h, (long long)p->w, (long long)p->c,
                      (long long)most, KU_IMAGE_CHANNELS_MAX);
    p->sx = first ? 1 : p->c;
    p->sy = p->w * p->sx;
    p->sc = first ? p->h * p->w : 1;
    return KUMI_OK;
}

static int same_form(const struct ku_pixels *a, const struct ku_pixels *b)
{
    return a->dtype == b->dtype && a->h == b->h && a->w == b->w && a->c == b->c && a->sx == b->sx;
}

static int add_part(struct array *x, const struct ku_image_source *src,
                    const struct ku_array_format *format, const char *name)
{
    struct ku_array_header h;
    struct ku_pixels form;
    KU_TRY(ku_store_add(&x->store, name, format->what));
    struct ku_image_part *p = &x->store.part[x->store.n_parts - 1];
    KU_TRY(read_header(format, &p->file, &h));
    KU_TRY(form_of(src, name, &h, &form));
    p->at = h.at;
    if (x->store.n_parts == 1) {
        x->form = form;
        x->store.is_flat = h.ndim == 2;
    }
    if (!same_form(&form, &x->form) || (h.ndim == 2) != x->store.is_flat)
        return KU_ERR(KUMI_EINPUT,
                      "data: %s: shape or type differs from that of %s; all files need the same",
                      name, x->store.part[0].file.name);
    x->image_bytes = (size_t)(form.h * form.w * form.c) * (form.dtype == KUMI_F32 ? 4 : 1);
    x->store.n += h.dim[0];
    return KUMI_OK;
}

/* A little-endian integer of 1, 2, 4 or 8 bytes. */
static int64_t integer(const unsigned char *at, size_t width, int is_signed)
{
    uint64_t v = 0;
    for (size_t k = 0; k < width; k++)
        v |= (uint64_t)at[k] << 8 * k;
    if (width == 8)
        return v > INT64_MAX && !is_signed ? INT64_MAX : (int64_t)v;
    return is_signed && v >> (8 * width - 1) ? (int64_t)v - ((int64_t)1 << 8 * width) : (int64_t)v;
}

/* Reads the labels of part k into their positions in x->label. */
static int read_labels(struct array *x, const struct ku_image_source *src,
                       const struct ku_array_format *format, const char *name, uint32_t k)
{
    unsigned char data[8 * LABELS_AT_ONCE];
    struct ku_file f;
    struct ku_array_header h;
    const struct ku_image_part *part = &x->store.part[k];
    int64_t end = k + 1 < x->store.n_parts ? part[1].first : x->store.n;
    int64_t at = part->first, n = end - at, done = 0;
    KU_TRY(ku_file_open(name, format->what, &f));
    int status = read_header(format, &f, &h);
    if (status == KUMI_OK && (h.ndim != 1 || (h.type[0] != 'u' && h.type[0] != 'i')))
        status =
            KU_ERR(KUMI_EINPUT, "data: %s: %d dimensions of %s; labels are a vector of integers",
                   name, h.ndim, h.type);
    else if (status == KUMI_OK && h.dim[0] != n)
        status = KU_ERR(KUMI_EINPUT, "data: %s: %lld labels; %s has %lld images", name,
                        (long long)h.dim[0], part->file.name, (long long)n);
    size_t width = status == KUMI_OK ? (size_t)(h.type[1] - '0') : 1;
    while (status == KUMI_OK && done < n) {
        int64_t some = n - done < LABELS_AT_ONCE ? n - done : LABELS_AT_ONCE;
        status = ku_file_get(&f, h.at + (uint64_t)done * width, data, (size_t)some * width);
        for (int64_t i = 0; i < some && status == KUMI_OK; i++, done++) {
            int64_t label = integer(data + (size_t)i * width, width, h.type[0] == 'i');
            status = ku_label_check(src, name, done, label);
            x->label[at + done] = (int32_t)label;
        }
    }
    ku_file_close(&f);
    return status;
}

static int open_all(struct array *x, const struct ku_image_source *src,
                    const struct ku_array_format *format, const struct ku_files *images,
                    const struct ku_files *labels)
{
    size_t bytes;
    for (uint32_t i = 0; i < images->n; i++)
        KU_TRY(add_part(x, src, format, images->name[i]));
    x->store.h = x->form.h;
    x->store.w = x->form.w;
    x->store.c = x->form.c;
    x->store.dtype = x->form.dtype;
    KU_TRY(ku_mul_size((size_t)x->store.n, sizeof *x->label, &bytes));
    x->label = ku_malloc(bytes);
    if (!x->label)
        return KUMI_ENOMEM;
    for (uint32_t i = 0; i < labels->n; i++)
        KU_TRY(read_labels(x, src, format, labels->name[i], i));
    return KUMI_OK;
}

int ku_array_open(const struct ku_image_source *src, const struct ku_array_format *format,
                  const struct ku_files *images, const struct ku_files *labels,
                  struct ku_image_store **out)
{
    const char *layout = src->opts->layout;
    if (layout && strcmp(layout, "nhwc") != 0 && strcmp(layout, "nchw") != 0)
        return KU_ERR(KUMI_EINVAL, "data: data.layout: '%s'; give nhwc or nchw", layout);
    if (images->n != labels->n)
        return KU_ERR(
            KUMI_EINVAL,
            "data: %s_labels: %u files of labels for %u files of images; give one for each",
            src->split == KU_SPLIT_TRAIN ? "data.train" : "data.val", labels->n, images->n);
    struct array *x = ku_calloc(1, sizeof *x);
    if (!x)
        return KUMI_ENOMEM;
    x->store.ops = &array_ops;
    int status = open_all(x, src, format, images, labels);
    return ku_store_opened(&x->store, status, out);
}
