/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/weights.h"

#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "ckpt/diff.h"
#include "ckpt/safetensors.h"

enum { COMPARE_BYTES = 1 << 20 };

struct source {
    const struct ku_st *file;
    const struct ku_st_tensor *tensor;
};

struct loader {
    const char *dir;
    struct ku_ckpt_tensor *tensor; /* [n], of group MODEL */
    int n;
    const struct ku_weights_opts *opts;
    struct ku_st_set set;
    struct source *from; /* [n] */
    struct ku_weights_report report;
};

static const char *without_prefix(const struct loader *l, const char *name)
{
    size_t bytes = l->opts->prefix != NULL ? strlen(l->opts->prefix) : 0;
    return bytes > 0 && strncmp(name, l->opts->prefix, bytes) == 0 ? name + bytes : name;
}

/* A name as it is, or with the prefix. Both at once could be different tensors. */
static int look_up(struct loader *l, const char *name, struct source *out)
{
    struct source plain = {0}, prefixed = {0};
    plain.tensor = ku_st_set_find(&l->set, name, &plain.file);
    if (l->opts->prefix != NULL) {
        char *longer = ku_asprintf("%s%s", l->opts->prefix, name);
        if (longer == NULL)
            return KUMI_ENOMEM;
        prefixed.tensor = ku_st_set_find(&l->set, longer, &prefixed.file);
        ku_free(longer);
    }
    if (plain.tensor != NULL && prefixed.tensor != NULL)
        return KU_ERR(KUMI_EINPUT, "weights: %s: both %.120s and %.120s", l->dir,
                      plain.tensor->name, prefixed.tensor->name);
    l->report.has_prefix |= prefixed.tensor != NULL;
    *out = prefixed.tensor != NULL ? prefixed : plain;
    return KUMI_OK;
}

static int is_ignored(const struct loader *l, const char *name)
{
    for (int i = 0; i < l->opts->n_ignore; i++)
        if (ku_str_glob(l->opts->ignore[i], without_prefix(l, name)))
            return 1;
    return 0;
}

static int is_wanted(const struct loader *l, const struct ku_st_tensor *t)
{
    for (int i = 0; i < l->n; i++)
        if (l->from[i].tensor == t)
            return 1;
    return 0;
}

static int compare_data(struct source a, struct source b, void *buffer, int *is_equal)
{
    *is_equal = a.tensor->dtype == b.tensor->dtype && a.tensor->bytes == b.tensor->bytes;
    for (uint64_t at = 0, n; at < a.tensor->bytes && *is_equal; at += n) {
        n = a.tensor->bytes - at < COMPARE_BYTES ? a.tensor->bytes - at : COMPARE_BYTES;
        KU_TRY(ku_st_read_bytes(a.file, a.tensor, at, buffer, (size_t)n));
        KU_TRY(ku_st_read_bytes(b.file, b.tensor, at, (char *)buffer + COMPARE_BYTES, (size_t)n));
        *is_equal = memcmp(buffer, (char *)buffer + COMPARE_BYTES, (size_t)n) == 0;
    }
    return KUMI_OK;
}

/* Is this the second copy of a tied tensor? 1, 0, or < 0: it is, and differs. */
static int check_tied(struct loader *l, const struct ku_st *file, const struct ku_st_tensor *t)
{
    struct source original;
    int is_equal;
    if (l->opts->tied == NULL || strcmp(without_prefix(l, t->name), l->opts->tied) != 0)
        return 0;
    KU_TRY(look_up(l, l->opts->tied_to, &original));
    if (original.tensor == NULL)
        return 0;
    void *buffer = ku_malloc((size_t)2 * COMPARE_BYTES);
    if (buffer == NULL)
        return KUMI_ENOMEM;
    int status = compare_data((struct source){file, t}, original, buffer, &is_equal);
    ku_free(buffer);
    KU_TRY(status);
    if (!is_equal)
        return KU_ERR(KUMI_EINPUT,
                      "weights: %s: %.100s differs from %.100s, and the model ties them; set "
                      "tie_word_embeddings to false",
                      l->dir, t->name, original.tensor->name);
    l->report.has_tied = 1;
    return 1;
}

static int match(struct loader *l)
{
    struct ku_diff d = {0};
    int status = KUMI_OK;
    for (int i = 0; i < l->n; i++) {
        KU_TRY_OUT(look_up(l, l->tensor[i].name, &l->from[i]));
        if (l->from[i].tensor == NULL)
            ku_diff_missing(&d, l->tensor[i].name);
        else if (!ku_st_is_same_shape(l->from[i].tensor, &l->tensor[i]))
            ku_diff_shape(&d, l->from[i].tensor, &l->tensor[i]);
    }
    for (int i = 0; i < l->set.n; i++)
        for (int j = 0; j < l->set.file[i].n; j++) {
            const struct ku_st_tensor *t = &l->set.file[i].tensor[j];
            if (is_wanted(l, t))
                continue;
            if (is_ignored(l, t->name)) {
                l->report.n_ignored++;
                continue;
            }
            int is_tied = check_tied(l, &l->set.file[i], t);
            KU_TRY_OUT(is_tied);
            if (!is_tied)
                ku_diff_extra(&d, t->name);
        }
    return ku_diff_finish(&d, "weights", l->dir);
out:
    ku_str_fini(&d.text);
    ku_str_fini(&d.lines);
    return status;
}

static int load(struct loader *l)
{
    KU_TRY(match(l));
    for (int i = 0; i < l->n; i++)
        if (l->from[i].tensor->dtype == KUMI_N_DTYPES ||
            ku_dtype_is_float(l->from[i].tensor->dtype) != ku_dtype_is_float(l->tensor[i].dtype))
            return KU_ERR(KUMI_EINPUT, "weights: %s: %.120s: dtype %s; %s is wanted",
                          l->from[i].file->path, l->from[i].tensor->name, l->from[i].tensor->type,
                          kumi_dtype_name(l->tensor[i].dtype));
    for (int i = 0; i < l->n; i++) {
        enum kumi_dtype is = l->from[i].tensor->dtype, wanted = l->tensor[i].dtype;
        KU_TRY(ku_st_read(l->from[i].file, l->from[i].tensor, &l->tensor[i],
                          !ku_dtype_is_float(wanted)));
        l->report.n_rounded += ku_dtype_is_float(wanted) && is != wanted &&
                               kumi_dtype_bytes(is) >= kumi_dtype_bytes(wanted);
    }
    return KUMI_OK;
}

/* The tensors of the model alone; NULL: no memory. */
static struct ku_ckpt_tensor *model_tensors(const struct ku_ckpt_tensor *tensor, int n, int *n_out)
{
    struct ku_ckpt_tensor *model = ku_calloc((size_t)n + 1, sizeof *model);
    *n_out = 0;
    for (int i = 0; i < n && model != NULL; i++)
        if (tensor[i].group == KU_CKPT_MODEL)
            model[(*n_out)++] = tensor[i];
    return model;
}

int ku_weights_load(const char *dir, const struct ku_ckpt_tensor *tensor, int n,
                    const struct ku_weights_opts *opts, struct ku_weights_report *report)
{
    static const struct ku_weights_opts none;
    struct loader l = {.dir = dir, .opts = opts != NULL ? opts : &none};
    KU_TRY(ku_ckpt_tensors_check(tensor, n));
    KU_TRY(ku_st_set_open(dir, &l.set));
    struct ku_ckpt_tensor *model = model_tensors(tensor, n, &l.n);
    l.tensor = model;
    l.from = ku_calloc((size_t)n + 1, sizeof *l.from);
    int status = model == NULL || l.from == NULL ? KUMI_ENOMEM : load(&l);
    ku_free(l.from);
    ku_free(model);
    ku_st_set_close(&l.set);
    if (status == KUMI_OK && l.report.n_rounded > 0)
        KU_LOG(CKPT, INFO, "%s: %d tensors were rounded to a narrower dtype", dir,
               l.report.n_rounded);
    if (status == KUMI_OK && report != NULL)
        *report = l.report;
    return status;
}
