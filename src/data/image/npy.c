/* SPDX-License-Identifier: Apache-2.0 */
#include "data/image/array.h"

#include "base/err.h"
#include "base/json/hjson.h"
#include "base/json/json.h"

#include <string.h>

/*
 * NumPy's format, versions 1 to 3. The header is a Python dictionary with descr, fortran_order and
 * shape:
 *
 *     "\x93NUMPY" | version: 2 bytes | header length: u16 (from version 2: u32) | header | elements
 */
static int refuse(const char *name, const char *why)
{
    return KU_ERR(KUMI_EINPUT, "data: %s: NumPy header: %s", name, why);
}

/* Parses the dictionary as JSON, after replacing what Python writes in another way. */
static int parse_dictionary(const char *name, const char *text, size_t bytes, struct ku_json *doc)
{
    static const char python[] = "'()TF", json[] = "\"[]tf";
    char copy[KU_NPY_HEADER_MAX];
    for (size_t i = 0; i < bytes; i++) {
        const char *at = text[i] ? strchr(python, text[i]) : NULL;
        copy[i] = at ? json[at - python] : text[i];
    }
    int status = ku_hjson_parse("NumPy header", copy, bytes, doc);
    if (status != KUMI_EINVAL)
        return status;
    struct kumi_error e = *ku_err_get();
    return KU_ERR(KUMI_EINPUT, "data: %s: %.300s", name, e.text);
}

static int read_dictionary(const char *name, json_t *root, struct ku_array_header *h)
{
    static const char *const known[] = {"|u1", "|i1", "<u2", "<i2", "<u4", "<i4",
                                        "<u8", "<i8", "<f4", "u1",  "i1"};
    json_t *descr, *order, *shape, *dim;
    size_t k = 0, i;
    if (json_unpack_ex(root, NULL, JSON_STRICT, "{s:o, s:o, s:o}", "descr", &descr, "fortran_order",
                       &order, "shape", &shape) < 0)
        return refuse(name, "not a dictionary of descr, fortran_order and shape");
    const char *type = json_string_value(descr);
    if (!type)
        return refuse(name, "descr: not a string; structured arrays are not supported");
    while (k < sizeof known / sizeof *known && strcmp(known[k], type) != 0)
        k++;
    if (k == sizeof known / sizeof *known)
        return KU_ERR(KUMI_EINPUT,
                      "data: %s: NumPy header: dtype '%.20s'; images are u1 or <f4, labels "
                      "little-endian integers",
                      name, type);
    memcpy(h->type, type + strlen(type) - 2, 3);
    if (!json_is_false(order))
        return refuse(name, json_is_true(order)
                                ? "Fortran order; save numpy.ascontiguousarray of the array"
                                : "fortran_order: neither True nor False");
    if (!json_is_array(shape) || json_array_size(shape) > 4)
        return refuse(name, "shape: not a tuple of at most 4 dimensions");
    h->ndim = (int)json_array_size(shape);
    json_array_foreach(shape, i, dim)
    {
        h->dim[i] = json_is_integer(dim) ? json_integer_value(dim) : -1;
        if (h->dim[i] < 0)
            return refuse(name, "shape: not a number");
    }
    return KUMI_OK;
}

int ku_npy_parse(const char *name, const unsigned char *data, size_t bytes, uint64_t file_bytes,
                 struct ku_array_header *out)
{
    struct ku_array_header h = {.ndim = 0};
    struct ku_json doc = {0};
    if (bytes < 10 || memcmp(data, "\x93NUMPY", 6) != 0)
        return refuse(name, "missing; give a file that numpy.save wrote");
    size_t before = data[6] == 1 ? 10 : 12, length = data[8] | (size_t)data[9] << 8;
    if (data[6] < 1 || data[6] > 3 || bytes < before)
        return refuse(name, "unknown version; 1 to 3 are supported");
    if (data[6] > 1)
        length |= (size_t)data[10] << 16 | (size_t)data[11] << 24;
    if (length > bytes - before || length > KU_NPY_HEADER_MAX)
        return refuse(name, "longer than the file, or than 4 KiB");
    KU_TRY(parse_dictionary(name, (const char *)data + before, length, &doc));
    int status = read_dictionary(name, doc.root, &h);
    ku_json_fini(&doc);
    KU_TRY(status);
    h.at = before + length;
    int64_t count = h.type[1] - '0';
    for (int i = 0; i < h.ndim; i++)
        if (__builtin_mul_overflow(count, h.dim[i], &count))
            return refuse(name, "shape: the product exceeds 63 bits");
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
