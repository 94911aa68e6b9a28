/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "ckpt/safetensors.h"

enum { HEADER_ALIGN = 8 };

static int compare(const void *x, const void *y)
{
    const struct ku_ckpt_tensor *a = *(const struct ku_ckpt_tensor *const *)x;
    const struct ku_ckpt_tensor *b = *(const struct ku_ckpt_tensor *const *)y;
    size_t a_bytes = kumi_dtype_bytes(a->dtype), b_bytes = kumi_dtype_bytes(b->dtype);
    if (a_bytes != b_bytes)
        return a_bytes > b_bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

void ku_st_sort(const struct ku_ckpt_tensor **t, int n)
{
    qsort(t, (size_t)n, sizeof *t, compare);
}

/* {"dtype":"F32","shape":[…],"data_offsets":[begin,end]} */
static json_t *describe(const struct ku_ckpt_tensor *t, uint64_t begin, uint64_t end)
{
    json_t *shape = json_array();
    for (int i = 0; i < t->ndim; i++)
        json_array_append_new(shape, json_integer((json_int_t)t->dim[i]));
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", ku_st_type_name(t->dtype), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)end);
}

int ku_st_header_print(const struct ku_ckpt_tensor *const *t, int n, struct ku_str *out,
                       uint64_t *at)
{
    /* transformers refuses a file without "format" in its metadata */
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    uint64_t end = 0;
    int failed = root == NULL;
    for (int i = 0; i < n; i++) {
        uint64_t begin = end;
        end += (uint64_t)ku_ckpt_tensor_count(t[i]) * kumi_dtype_bytes(t[i]->dtype);
        at[i] = begin;
        failed = failed || json_object_set_new(root, t[i]->name, describe(t[i], begin, end)) < 0;
    }
    char *text = failed ? NULL : ku_json_print(root, JSON_COMPACT);
    json_decref(root);
    if (text == NULL && !failed)
        return KUMI_ENOMEM;
    if (failed)
        return KU_ERR(KUMI_EINVAL,
                      "safetensors: a header of %d tensors cannot be written; are all "
                      "names UTF-8?",
                      n);
    size_t bytes = strlen(text), padded = (bytes + HEADER_ALIGN - 1) & ~(size_t)(HEADER_ALIGN - 1);
    unsigned char word[8];
    for (int i = 0; i < 8; i++)
        word[i] = (unsigned char)((uint64_t)padded >> 8 * i);
    ku_str_append(out, word, sizeof word);
    ku_str_append(out, text, bytes);
    ku_str_append(out, "       ", padded - bytes);
    ku_free(text);
    if (out->failed)
        return KUMI_ENOMEM;
    if (padded > KU_ST_MAX_HEADER_BYTES)
        return KU_ERR(KUMI_EINVAL, "safetensors: %d tensors need a header of %zu bytes; at most %d",
                      n, padded, (int)KU_ST_MAX_HEADER_BYTES);
    for (int i = 0; i < n; i++)
        at[i] += padded + 8;
    at[n] = end + padded + 8;
    return KUMI_OK;
}
