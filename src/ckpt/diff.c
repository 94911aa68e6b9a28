/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds one message with the differences between requested tensors and those in files.
 */
#include "ckpt/diff.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"

/* Limits of the list in a message: number of tensors and bytes. Extra tensors come last, with a
 * reserved part, because they often are the missing ones under another name. */
enum { SHOWN_MAX = 10, EXTRA_MIN = 3, TEXT_BYTES = 220, EXTRA_BYTES = 90 };

static void add(struct ku_diff *d, const char *text)
{
    ku_str_append(&d->lines, text, strlen(text) + 1);
}

void ku_diff_missing(struct ku_diff *d, const char *name)
{
    struct ku_str s = {0};
    ku_str_add(&s, "missing %s", name);
    add(d, ku_str_get(&s));
    ku_str_fini(&s);
    d->n_missing++;
}

void ku_diff_extra(struct ku_diff *d, const char *name)
{
    struct ku_str s = {0};
    ku_str_add(&s, "extra %s", name);
    add(d, ku_str_get(&s));
    ku_str_fini(&s);
    d->n_extra++;
}

static void add_shape(struct ku_str *s, const int64_t *dim, int ndim)
{
    ku_str_add(s, "[");
    for (int i = 0; i < ndim; i++)
        ku_str_add(s, "%s%lld", i > 0 ? "," : "", (long long)dim[i]);
    ku_str_add(s, "]");
}

void ku_diff_shape(struct ku_diff *d, const struct ku_st_tensor *is,
                   const struct ku_ckpt_tensor *wanted)
{
    struct ku_str s = {0};
    ku_str_add(&s, "%s is ", is->name);
    add_shape(&s, is->dim, is->ndim);
    ku_str_add(&s, " instead of ");
    add_shape(&s, wanted->dim, wanted->ndim);
    add(d, ku_str_get(&s));
    ku_str_fini(&s);
    d->n_misshapen++;
}

static bool is_extra(const char *line)
{
    return strncmp(line, "extra ", 6) == 0;
}

/* Adds the lines that are (extra) or are not extra tensors: at most n lines, `bytes` of text in
 * total. Returns the number of lines. */
static int show(const struct ku_diff *d, int extra, int n, size_t bytes, struct ku_str *out)
{
    const char *line = ku_str_get(&d->lines), *end = line + d->lines.bytes;
    int shown = 0;
    for (; line < end && shown < n; line += strlen(line) + 1) {
        if (is_extra(line) != extra)
            continue;
        if (out->bytes > 0 && out->bytes + strlen(line) > bytes)
            break;
        ku_str_add(out, "%s%s", out->bytes > 0 ? ", " : "", line);
        shown++;
    }
    return shown;
}

int ku_diff_finish(struct ku_diff *d, const char *what, const char *where)
{
    const int n = d->n_missing + d->n_extra + d->n_misshapen;
    struct ku_str list = {0};
    int status = KUMI_OK;
    if (n > 0) {
        int n_extra = d->n_extra < EXTRA_MIN ? d->n_extra : EXTRA_MIN;
        int shown =
            show(d, 0, SHOWN_MAX - n_extra, TEXT_BYTES - (n_extra ? EXTRA_BYTES : 0), &list);
        shown += show(d, 1, SHOWN_MAX - shown, TEXT_BYTES, &list);
        char more[32] = "";
        if (shown < n)
            snprintf(more, sizeof more, " and %d more", n - shown);
        status = KU_ERR(KUMI_EINPUT,
                        "%s: %.100s: %d missing, %d extra, %d misshapen: %.*s%s; is this the model "
                        "that was saved?",
                        what, where, d->n_missing, d->n_extra, d->n_misshapen, (int)TEXT_BYTES,
                        ku_str_get(&list), more);
    }
    ku_str_fini(&list);
    ku_str_fini(&d->lines);
    return status;
}
