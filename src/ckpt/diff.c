/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/diff.h"

#include <string.h>

#include "base/err.h"
#include "base/log.h"

enum { TEXT_BYTES = 240 /* what fits into a record beside the counts and the path */ };

static void add(struct ku_diff *d, const char *text)
{
    ku_str_add(&d->text, "%s%s", d->text.bytes > 0 ? ", " : "", text);
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

int ku_diff_finish(struct ku_diff *d, const char *what, const char *where)
{
    int status = KUMI_OK, is_long = d->text.bytes > TEXT_BYTES;
    if (d->n_missing + d->n_extra + d->n_misshapen > 0) {
        const char *line = ku_str_get(&d->lines), *end = line + d->lines.bytes;
        for (; is_long && line < end; line += strlen(line) + 1)
            KU_LOG(CKPT, ERROR, "%s: %s: %s", what, where, line);
        status = KU_ERR(KUMI_EINPUT,
                        "%s: %.100s: %d missing, %d extra, %d misshapen: %.*s%s; is this the model "
                        "that was saved?",
                        what, where, d->n_missing, d->n_extra, d->n_misshapen, (int)TEXT_BYTES,
                        ku_str_get(&d->text), is_long ? " … (all above)" : "");
    }
    ku_str_fini(&d->text);
    ku_str_fini(&d->lines);
    return status;
}
