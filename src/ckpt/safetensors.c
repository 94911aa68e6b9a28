/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads safetensors files. The header is untrusted input: its length is checked against the file
 * before it is read, then every tensor's dtype, shape and offsets, then, sorted by offset, that the
 * tensors cover the data exactly. Lookups by name and by byte position are binary searches.
 */
#include "ckpt/safetensors.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"

enum { WORD_BYTES = 8, PIECE_BYTES = 4 << 20 };

/* Types of the format. Sub-byte types are packed; a tensor's bits must fill whole bytes. */
static const struct {
    const char *name;
    int bits;
    enum kumi_dtype dtype;
} types[] = {
    {"F32", 32, KUMI_F32},         {"F64", 64, KUMI_F64},
    {"BF16", 16, KUMI_BF16},       {"F16", 16, KUMI_F16},
    {"I64", 64, KUMI_I64},         {"I32", 32, KUMI_I32},
    {"U16", 16, KUMI_U16},         {"U8", 8, KUMI_U8},
    {"BOOL", 8, KUMI_N_DTYPES},    {"I8", 8, KUMI_N_DTYPES},
    {"I16", 16, KUMI_N_DTYPES},    {"U32", 32, KUMI_N_DTYPES},
    {"U64", 64, KUMI_N_DTYPES},    {"C64", 64, KUMI_N_DTYPES},
    {"F8_E4M3", 8, KUMI_N_DTYPES}, {"F8_E5M2", 8, KUMI_N_DTYPES},
    {"F8_E8M0", 8, KUMI_N_DTYPES}, {"F6_E2M3", 6, KUMI_N_DTYPES},
    {"F6_E3M2", 6, KUMI_N_DTYPES}, {"F4", 4, KUMI_N_DTYPES},
};

const char *ku_st_type_name(enum kumi_dtype dtype)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].dtype == dtype)
            return types[i].name;
    return "?";
}

/* Names appear in one-line messages and become keys of other files: no control characters. */
static int check_name(const char *path, const char *name)
{
    if (name[0] == '\0')
        return KU_ERR(KUMI_EINPUT, "safetensors: %s: a tensor has an empty name", path);
    for (const char *c = name; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            return KU_ERR(KUMI_EINPUT,
                          "safetensors: %s: a tensor's name has the control character 0x%02x at "
                          "byte %zu",
                          path, (unsigned)(unsigned char)*c, (size_t)(c - name));
    return KUMI_OK;
}

static int parse_type(const char *path, json_t *v, struct ku_st_tensor *t, int *bits)
{
    const char *word = json_string_value(v);
    for (size_t i = 0; word != NULL && i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, word) == 0) {
            t->type = types[i].name;
            t->dtype = types[i].dtype;
            *bits = types[i].bits;
            return KUMI_OK;
        }
    return KU_ERR(KUMI_EINPUT, "safetensors: %s: %.120s: dtype is %.40s%s", path, t->name,
                  word != NULL ? word : "not a string",
                  word != NULL ? ", which is not a dtype of the format" : "");
}

static int parse_shape(const char *path, json_t *v, struct ku_st_tensor *t)
{
    if (!json_is_array(v) || json_array_size(v) > KU_MAX_DIMS)
        return KU_ERR(KUMI_EINPUT,
                      "safetensors: %s: %.120s: shape is not an array of at most %d numbers", path,
                      t->name, (int)KU_MAX_DIMS);
    t->ndim = (int)json_array_size(v);
    t->count = 1;
    for (int i = 0; i < t->ndim; i++) {
        json_t *d = json_array_get(v, (size_t)i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return KU_ERR(KUMI_EINPUT,
                          "safetensors: %s: %.120s: dimension %d of shape is not an integer from 0",
                          path, t->name, i);
        t->dim[i] = json_integer_value(d);
        if (__builtin_mul_overflow(t->count, t->dim[i], &t->count))
            return KU_ERR(KUMI_EINPUT,
                          "safetensors: %s: %.120s: the product of shape's %d dimensions is over "
                          "2^63",
                          path, t->name, t->ndim);
    }
    return KUMI_OK;
}

static int parse_offsets(const char *path, json_t *v, uint64_t data_at, uint64_t data_bytes,
                         struct ku_st_tensor *t)
{
    json_t *b = json_array_get(v, 0), *e = json_array_get(v, 1);
    if (json_array_size(v) != 2 || !json_is_integer(b) || !json_is_integer(e))
        return KU_ERR(KUMI_EINPUT, "safetensors: %s: %.120s: data_offsets is not a pair of numbers",
                      path, t->name);
    json_int_t begin = json_integer_value(b), end = json_integer_value(e);
    if (begin < 0 || end < begin || (uint64_t)end > data_bytes)
        return KU_ERR(KUMI_EINPUT,
                      "safetensors: %s: %.120s: data_offsets [%lld, %lld] are not inside the "
                      "file's %llu bytes of data; is the file whole?",
                      path, t->name, (long long)begin, (long long)end,
                      (unsigned long long)data_bytes);
    t->at = data_at + (uint64_t)begin;
    t->bytes = (uint64_t)(end - begin);
    return KUMI_OK;
}

static int parse_tensor(const struct ku_st *st, const char *name, json_t *v, struct ku_st_tensor *t)
{
    KU_TRY(check_name(st->path, name));
    t->name = name;
    const char *key;
    json_t *member;
    if (!json_is_object(v))
        return KU_ERR(KUMI_EINPUT, "safetensors: %s: %.120s: its description is not an object",
                      st->path, name);
    json_object_foreach(
        v, key, member) if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 &&
                            strcmp(key, "data_offsets") !=
                                0) return KU_ERR(KUMI_EINPUT,
                                                 "safetensors: %s: %.120s: unknown key \"%.60s\"",
                                                 st->path, name, key);
    int bits = 0;
    KU_TRY(parse_type(st->path, json_object_get(v, "dtype"), t, &bits));
    KU_TRY(parse_shape(st->path, json_object_get(v, "shape"), t));
    KU_TRY(parse_offsets(st->path, json_object_get(v, "data_offsets"), st->data_at,
                         st->file_bytes - st->data_at, t));
    uint64_t n_bits;
    if (__builtin_mul_overflow((uint64_t)t->count, (uint64_t)bits, &n_bits) || n_bits % 8 != 0 ||
        n_bits / 8 != t->bytes)
        return KU_ERR(KUMI_EINPUT,
                      "safetensors: %s: %.120s: %lld elements of %s in %llu bytes of data_offsets",
                      st->path, name, (long long)t->count, t->type, (unsigned long long)t->bytes);
    return KUMI_OK;
}

static int compare_places(const void *x, const void *y)
{
    const struct ku_st_tensor *a = x, *b = y;
    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

static int compare_names(const void *x, const void *y)
{
    return strcmp((*(struct ku_st_tensor *const *)x)->name,
                  (*(struct ku_st_tensor *const *)y)->name);
}

/* In data order, each tensor begins where the previous one ends, and the last ends with the
 * file. */
static int check_places(const struct ku_st *st)
{
    uint64_t end = st->data_at;
    const char *before = "the header";
    for (int i = 0; i < st->n; i++) {
        const struct ku_st_tensor *t = &st->tensor[i];
        if (t->at != end)
            return KU_ERR(KUMI_EINPUT,
                          "safetensors: %s: %.100s %s %.100s: begins at byte %llu, that ends at "
                          "%llu",
                          st->path, t->name, t->at < end ? "overlaps with" : "leaves a hole after",
                          before, (unsigned long long)t->at, (unsigned long long)end);
        end = t->at + t->bytes;
        before = t->name;
    }
    if (end != st->file_bytes)
        return KU_ERR(KUMI_EINPUT,
                      "safetensors: %s: %llu bytes after the last tensor's end at %llu; the file "
                      "is longer than its header says",
                      st->path, (unsigned long long)(st->file_bytes - end),
                      (unsigned long long)end);
    return KUMI_OK;
}

static int check_metadata(const char *path, json_t *metadata)
{
    const char *key;
    json_t *v;
    int good = json_is_object(metadata);
    json_object_foreach(metadata, key, v) good = good && json_is_string(v);
    if (!good)
        return KU_ERR(KUMI_EINPUT, "safetensors: %s: __metadata__ is not an object of strings",
                      path);
    return KUMI_OK;
}

static int parse_tensors(struct ku_st *st)
{
    size_t n = json_object_size(st->header.root);
    if (n > INT32_MAX)
        return KU_ERR(KUMI_EINPUT, "safetensors: %s: %zu tensors", st->path, n);
    st->tensor = ku_calloc(n + 1, sizeof *st->tensor);
    st->by_name = ku_calloc(n + 1, sizeof *st->by_name);
    if (st->tensor == NULL || st->by_name == NULL)
        return KUMI_ENOMEM;
    const char *key;
    json_t *v;
    json_object_foreach(st->header.root, key, v)
    {
        if (strcmp(key, "__metadata__") == 0)
            KU_TRY(check_metadata(st->path, v));
        else
            KU_TRY(parse_tensor(st, key, v, &st->tensor[st->n++]));
    }
    qsort(st->tensor, (size_t)st->n, sizeof *st->tensor, compare_places);
    for (int i = 0; i < st->n; i++)
        st->by_name[i] = &st->tensor[i];
    qsort(st->by_name, (size_t)st->n, sizeof *st->by_name, compare_names);
    return check_places(st);
}

/* Checks the header's length against the file's before it is used. */
static int check_lengths(const char *path, uint64_t header_bytes, uint64_t file_bytes)
{
    if (file_bytes < WORD_BYTES + 2)
        return KU_ERR(KUMI_EINPUT, "safetensors: %s: %llu bytes; the smallest file has 10", path,
                      (unsigned long long)file_bytes);
    if (header_bytes > KU_ST_MAX_HEADER_BYTES)
        return KU_ERR(KUMI_EINPUT,
                      "safetensors: %s: a header of %llu bytes; at most %d are allowed: is this a "
                      "safetensors file?",
                      path, (unsigned long long)header_bytes, (int)KU_ST_MAX_HEADER_BYTES);
    if (header_bytes > file_bytes - WORD_BYTES)
        return KU_ERR(KUMI_EINPUT,
                      "safetensors: %s: a header of %llu bytes in a file of %llu; is the file "
                      "whole?",
                      path, (unsigned long long)header_bytes, (unsigned long long)file_bytes);
    return KUMI_OK;
}

static int parse(const char *header, uint64_t header_bytes, struct ku_st *st)
{
    st->data_at = WORD_BYTES + header_bytes;
    if (header_bytes == 0 || header[0] != '{')
        return KU_ERR(KUMI_EINPUT, "safetensors: %s: the header does not begin with '{'", st->path);
    if (ku_json_parse(st->path, header, (size_t)header_bytes, &st->header) < 0) {
        const struct kumi_error e = *ku_err_get();
        if (e.status == KUMI_ENOMEM)
            return KUMI_ENOMEM;
        return KU_ERR(KUMI_EINPUT, "safetensors: header: %.400s", e.text);
    }
    if (!json_is_object(st->header.root))
        return KU_ERR(KUMI_EINPUT, "safetensors: %s: the header is not a JSON object", st->path);
    return parse_tensors(st);
}

int ku_st_parse(const char *path, const char *header, uint64_t header_bytes, uint64_t file_bytes,
                struct ku_st *out)
{
    int status = KUMI_OK;
    struct ku_st st = {.fd = -1, .file_bytes = file_bytes};
    KU_TRY(check_lengths(path, header_bytes, file_bytes));
    st.path = ku_strdup(path);
    if (st.path == NULL)
        return KUMI_ENOMEM;
    KU_TRY_OUT(parse(header, header_bytes, &st));
    *out = st;
    return KUMI_OK;
out:
    ku_st_close(&st);
    return status;
}

static int read_at(const char *path, int fd, void *out, size_t bytes, uint64_t at)
{
    ssize_t n = ku_os_pread_full(fd, out, bytes, (off_t)at);
    if (n < 0)
        return KU_ERR(ku_os_status(KUMI_EINPUT), "safetensors: %s: reading %zu bytes at %llu: %s",
                      path, bytes, (unsigned long long)at, ku_os_why());
    if ((size_t)n != bytes)
        return KU_ERR(
            KUMI_EINPUT,
            "safetensors: %s: ends at byte %llu; %zu more were expected; is the file whole?", path,
            (unsigned long long)(at + (uint64_t)n), bytes - (size_t)n);
    return KUMI_OK;
}

static int open_fd(const char *path, int fd, struct ku_st *st)
{
    struct stat info;
    unsigned char word[WORD_BYTES];
    if (ku_os_fstat(fd, &info) < 0)
        return KU_ERR(ku_os_status(KUMI_EINPUT), "safetensors: %s: %s", path, ku_os_why());
    if (!S_ISREG(info.st_mode))
        return KU_ERR(KUMI_EINPUT, "safetensors: %s: not a regular file", path);
    uint64_t file_bytes = (uint64_t)info.st_size, header_bytes = 0;
    KU_TRY(check_lengths(path, 0, file_bytes));
    KU_TRY(read_at(path, fd, word, sizeof word, 0));
    for (int i = WORD_BYTES - 1; i >= 0; i--)
        header_bytes = header_bytes << 8 | word[i];
    KU_TRY(check_lengths(path, header_bytes, file_bytes));
    char *header = ku_malloc((size_t)header_bytes);
    if (header == NULL)
        return KUMI_ENOMEM;
    int status = read_at(path, fd, header, (size_t)header_bytes, WORD_BYTES);
    if (status == KUMI_OK)
        status = ku_st_parse(path, header, header_bytes, file_bytes, st);
    ku_free(header);
    return status;
}

int ku_st_open(const char *path, struct ku_st *st)
{
    int fd = ku_os_open(path, O_RDONLY | O_NONBLOCK, 0); /* do not block on a pipe */
    if (fd < 0)
        return KU_ERR(ku_os_status(KUMI_EINPUT), "safetensors: %s: %s", path, ku_os_why());
    int status = open_fd(path, fd, st);
    if (status < 0)
        ku_os_close(fd);
    else
        st->fd = fd;
    return status;
}

void ku_st_close(struct ku_st *st)
{
    if (st->path != NULL && st->fd >= 0)
        ku_os_close(st->fd);
    ku_json_fini(&st->header);
    ku_free(st->tensor);
    ku_free(st->by_name);
    ku_free(st->path);
    *st = (struct ku_st){.fd = -1};
}

const struct ku_st_tensor *ku_st_find(const struct ku_st *st, const char *name)
{
    struct ku_st_tensor key = {.name = name};
    struct ku_st_tensor *p = &key, **found = NULL;
    if (st->n > 0)
        found = bsearch(&p, st->by_name, (size_t)st->n, sizeof *st->by_name, compare_names);
    return found != NULL ? *found : NULL;
}

const struct ku_st_tensor *ku_st_at(const struct ku_st *st, uint64_t at)
{
    int low = 0, high = st->n; /* the last tensor that begins at or before `at` */
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (st->tensor[mid].at <= at)
            low = mid + 1;
        else
            high = mid;
    }
    const struct ku_st_tensor *t = low > 0 ? &st->tensor[low - 1] : NULL;
    return t != NULL && at - t->at < t->bytes ? t : NULL;
}

bool ku_st_is_same_shape(const struct ku_st_tensor *a, const struct ku_ckpt_tensor *b)
{
    return a->ndim == b->ndim && memcmp(a->dim, b->dim, sizeof *a->dim * (size_t)a->ndim) == 0;
}

int ku_st_read_bytes(const struct ku_st *st, const struct ku_st_tensor *t, uint64_t at, void *out,
                     size_t bytes)
{
    KU_ASSERT(at <= t->bytes && bytes <= t->bytes - at);
    return read_at(st->path, st->fd, out, bytes, t->at + at);
}

int ku_st_read(const struct ku_st *st, const struct ku_st_tensor *from,
               const struct ku_ckpt_tensor *to, int exact)
{
    if (from->dtype == KUMI_N_DTYPES)
        return KU_ERR(KUMI_EINPUT,
                      "safetensors: %s: %.120s: dtype %s; kumi reads F64 F32 F16 BF16 I64 I32 U16 "
                      "U8",
                      st->path, from->name, from->type);
    if (!ku_st_is_same_shape(from, to))
        return KU_ERR(KUMI_EINPUT, "safetensors: %s: %.120s: its shape is not that of %.120s",
                      st->path, from->name, to->name);
    size_t each = kumi_dtype_bytes(from->dtype);
    int64_t count_max = PIECE_BYTES / (int64_t)each;
    void *buffer = ku_malloc(from->bytes < PIECE_BYTES ? (size_t)from->bytes : PIECE_BYTES);
    if (buffer == NULL)
        return KUMI_ENOMEM;
    int status = KUMI_OK;
    for (int64_t at = 0, n; at < from->count && status == KUMI_OK; at += n) {
        n = from->count - at < count_max ? from->count - at : count_max;
        status = ku_st_read_bytes(st, from, (uint64_t)at * each, buffer, (size_t)n * each);
        if (status == KUMI_OK)
            status = ku_ckpt_tensor_scatter(to, at, n, buffer, from->dtype, exact);
    }
    ku_free(buffer);
    return status;
}
