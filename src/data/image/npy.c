/* SPDX-License-Identifier: Apache-2.0 */
#include "data/image/array.h"

#include "base/err.h"

#include <string.h>

/*
 * NumPy's format, versions 1 to 3. The header is a Python dictionary with descr, fortran_order and
 * shape:
 *
 *     "\x93NUMPY" | version: 2 bytes | header length: u16 (from version 2: u32) | header | elements
 */
struct text {
    const char *name, *at, *end;
    struct ku_array_header *h;
    int has_descr, has_order, has_shape;
};

static int refuse(const struct text *t, const char *why)
{
    return KU_ERR(KUMI_EINPUT, "data: %s: NumPy header: %s", t->name, why);
}

static void skip_blanks(struct text *t)
{
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\n' || *t->at == '\t'))
        t->at++;
}

/* Skips blanks and consumes character c; returns 1 if it was there. */
static int take(struct text *t, char c)
{
    skip_blanks(t);
    if (t->at == t->end || *t->at != c)
        return 0;
    t->at++;
    return 1;
}

static int take_word(struct text *t, const char *word)
{
    size_t n = strlen(word);
    skip_blanks(t);
    if ((size_t)(t->end - t->at) < n || memcmp(t->at, word, n) != 0)
        return 0;
    t->at += n;
    return 1;
}

static int parse_descr(struct text *t)
{
    static const char *const known[] = {"|u1", "|i1", "<u2", "<i2", "<u4", "<i4",
                                        "<u8", "<i8", "<f4", "u1",  "i1"};
    char quote = take(t, '\'') ? '\'' : take(t, '"') ? '"' : '\0';
    const char *end = quote ? memchr(t->at, quote, (size_t)(t->end - t->at)) : NULL;
    if (!end)
        return refuse(t, "descr: not a string; structured arrays are not supported");
    size_t n = (size_t)(end - t->at);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i]) == n && memcmp(known[i], t->at, n) == 0) {
            memcpy(t->h->type, t->at + n - 2, 2);
            t->h->type[2] = '\0';
            t->at = end + 1;
            return KUMI_OK;
        }
    return KU_ERR(KUMI_EINPUT,
                  "data: %s: NumPy header: dtype '%.*s'; images are u1 or <f4, labels "
                  "little-endian integers",
                  t->name, n < 20 ? (int)n : 20, t->at);
}

static int parse_shape(struct text *t)
{
    if (!take(t, '('))
        return refuse(t, "shape: not a tuple");
    for (t->h->ndim = 0; !take(t, ')'); t->h->ndim++) {
        int64_t v = 0;
        skip_blanks(t);
        const char *first = t->at;
        for (; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++)
            if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *t->at - '0', &v))
                return refuse(t, "shape: a dimension exceeds 63 bits");
        if (t->at == first)
            return refuse(t, "shape: not a number");
        if (t->h->ndim == 4)
            return refuse(t, "shape: more than 4 dimensions");
        t->h->dim[t->h->ndim] = v;
        if (!take(t, ',') && (t->at == t->end || *t->at != ')'))
            return refuse(t, "shape: a comma or ) is missing");
    }
    return KUMI_OK;
}

static int parse_entry(struct text *t)
{
    if (take_word(t, "'descr'")) {
        if (t->has_descr++ || !take(t, ':'))
            return refuse(t, "descr: given twice or without a value");
        return parse_descr(t);
    }
    if (take_word(t, "'shape'")) {
        if (t->has_shape++ || !take(t, ':'))
            return refuse(t, "shape: given twice or without a value");
        return parse_shape(t);
    }
    if (!take_word(t, "'fortran_order'") || t->has_order++ || !take(t, ':'))
        return refuse(t, "not a dictionary of descr, fortran_order and shape");
    if (take_word(t, "True"))
        return refuse(t, "Fortran order; save numpy.ascontiguousarray of the array");
    return take_word(t, "False") ? KUMI_OK : refuse(t, "fortran_order: neither True nor False");
}

int ku_npy_parse(const char *name, const unsigned char *data, size_t bytes, uint64_t file_bytes,
                 struct ku_array_header *out)
{
    struct ku_array_header h = {.ndim = 0};
    struct text t = {.name = name, .h = &h};
    if (bytes < 10 || memcmp(data, "\x93NUMPY", 6) != 0)
        return refuse(&t, "missing; give a file that numpy.save wrote");
    size_t before = data[6] == 1 ? 10 : 12, length = data[8] | (size_t)data[9] << 8;
    if (data[6] < 1 || data[6] > 3 || bytes < before)
        return refuse(&t, "unknown version; 1 to 3 are supported");
    if (data[6] > 1)
        length |= (size_t)data[10] << 16 | (size_t)data[11] << 24;
    if (length > bytes - before)
        return refuse(&t, "longer than the file, or than 4 KiB");
    t.at = (const char *)data + before;
    t.end = t.at + length;
    if (!take(&t, '{'))
        return refuse(&t, "not a dictionary of descr, fortran_order and shape");
    while (!take(&t, '}')) {
        KU_TRY(parse_entry(&t));
        if (!take(&t, ',') && (t.at == t.end || *t.at != '}'))
            return refuse(&t, "a comma or } is missing after a value");
    }
    if (!t.has_descr || !t.has_order || !t.has_shape)
        return refuse(&t, "descr, fortran_order or shape is missing");
    h.at = before + length;
    int64_t count = h.type[1] - '0';
    for (int i = 0; i < h.ndim; i++)
        if (__builtin_mul_overflow(count, h.dim[i], &count))
            return refuse(&t, "shape: the product exceeds 63 bits");
    if (h.ndim == 0 || count == 0 || (uint64_t)count != file_bytes - h.at)
        return KU_ERR(
            KUMI_EINPUT,
            "data: %s: %llu bytes after the NumPy header, whose shape needs %lld; write it again",
            name, (unsigned long long)(file_bytes - h.at), (long long)count);
    *out = h;
    return KUMI_OK;
}

int ku_npy_open(const struct ku_image_source *src, struct ku_image_store **out)
{
    static const struct ku_array_format format = {"a NumPy array", KU_NPY_HEADER_MAX, ku_npy_parse};
    struct ku_files images = {0}, labels = {0};
    int status;
    KU_TRY_OUT(ku_files_add(&images, src->path, src->n_paths));
    KU_TRY_OUT(ku_files_add(&labels, src->labels, src->n_labels));
    status = ku_array_open(src, &format, &images, &labels, out);
out:
    ku_files_fini(&images);
    ku_files_fini(&labels);
    return status;
}
