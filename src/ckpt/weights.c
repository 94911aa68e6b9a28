/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matches the tensors of a model to those in files. A name is looked up by the user's map, else
 * with or without the model's prefix, after the prefixes of PyTorch wrappers, else by its spelling
 * in older files. Remaining tensors of the files must match an ignore pattern or be an equal copy
 * of a tied tensor; otherwise they are extra.
 */
#include "ckpt/weights.h"

#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "ckpt/diff.h"

enum { COMPARE_BYTES = 1 << 20 };

struct matcher {
    struct ku_weights *w;
    const struct ku_weights_opts *opts;
};

/* Prefixes that DistributedDataParallel and torch.compile add to every name of a state dict. */
static const char *const wrappers[] = {"module.", "_orig_mod."};

/* Sets w->wrapped to the longest sequence of these that all names in the files begin with. */
static int find_wrapped(struct ku_weights *w)
{
    struct ku_str chain = {0};
    for (int found = 1; found;) {
        found = 0;
        for (size_t k = 0; k < sizeof wrappers / sizeof wrappers[0] && !found; k++) {
            size_t at = chain.bytes, bytes = strlen(wrappers[k]);
            int n = 0;
            found = w->set.n > 0;
            for (int i = 0; i < w->set.n; i++)
                for (int j = 0; j < w->set.file[i].n && found; j++, n++) {
                    const char *name = w->set.file[i].tensor[j].name;
                    found = strlen(name) > at + bytes && memcmp(name + at, wrappers[k], bytes) == 0;
                }
            found = found && n > 0;
            if (found)
                ku_str_append(&chain, wrappers[k], bytes);
        }
    }
    w->wrapped = ku_strdup(ku_str_get(&chain));
    ku_str_fini(&chain);
    return w->wrapped ? KUMI_OK : KUMI_ENOMEM;
}

/* A name without the prefixes of wrappers and model. */
static const char *bare_name(const struct matcher *m, const char *name)
{
    size_t bytes = m->opts->prefix != NULL ? strlen(m->opts->prefix) : 0;
    name += strlen(m->w->wrapped);
    return bytes > 0 && strncmp(name, m->opts->prefix, bytes) == 0 ? name + bytes : name;
}

static int find(const struct matcher *m, const char *prefix, const char *name,
                struct ku_weights_from *out)
{
    char *full = ku_asprintf("%s%s%s", m->w->wrapped, prefix, name);
    if (full == NULL)
        return KUMI_ENOMEM;
    out->tensor = ku_st_set_find(&m->w->set, full, &out->file);
    ku_free(full);
    return KUMI_OK;
}

/* The name in the files that opts->map gives for a kumi name; NULL: none. */
static const char *mapped(const struct matcher *m, const char *name)
{
    const char *old;
    json_t *ours;
    json_object_foreach((json_t *)(uintptr_t)m->opts->map, old, ours)
    {
        if (strcmp(json_string_value(ours), name) == 0)
            return old;
    }
    return NULL;
}

/* Finds a tensor with or without the prefix. Both names at once are ambiguous. */
static int find_either(const struct matcher *m, const char *name, struct ku_weights_from *out)
{
    struct ku_weights_from plain = {0}, prefixed = {0};
    KU_TRY(find(m, "", name, &plain));
    if (m->opts->prefix != NULL)
        KU_TRY(find(m, m->opts->prefix, name, &prefixed));
    if (plain.tensor != NULL && prefixed.tensor != NULL)
        return KU_ERR(KUMI_EINPUT, "weights: %s: has both %.120s and %.120s; remove one", m->w->dir,
                      plain.tensor->name, prefixed.tensor->name);
    m->w->report.has_prefix |= prefixed.tensor != NULL;
    *out = prefixed.tensor != NULL ? prefixed : plain;
    return KUMI_OK;
}

/* Finds a tensor under a name whose ending has the older spelling, if it has this ending. */
static int find_older(const struct matcher *m, const char *name, const struct ku_weights_ending *e,
                      struct ku_weights_from *out)
{
    const size_t bytes = strlen(name), ending = strlen(e->now);
    if (bytes < ending || strcmp(name + bytes - ending, e->now) != 0)
        return KUMI_OK;
    char *older = ku_asprintf("%.*s%s", (int)(bytes - ending), name, e->older);
    int status = older != NULL ? find_either(m, older, out) : KUMI_ENOMEM;
    ku_free(older);
    return status;
}

/* Finds a tensor by the map, else by its name, else by the name's older spelling. */
static int look_up(const struct matcher *m, const char *name, struct ku_weights_from *out)
{
    const char *old = mapped(m, name);
    if (old != NULL) {
        out->tensor = ku_st_set_find(&m->w->set, old, &out->file);
        if (out->tensor == NULL)
            return KU_ERR(KUMI_EINPUT,
                          "weights: %s: map: the files have no tensor %.120s (for %.120s)",
                          m->w->dir, old, name);
        return KUMI_OK;
    }
    KU_TRY(find_either(m, name, out));
    for (int i = 0; i < m->opts->n_endings && out->tensor == NULL; i++)
        KU_TRY(find_older(m, name, &m->opts->ending[i], out));
    return KUMI_OK;
}

static bool is_ignored(const struct matcher *m, const char *name)
{
    for (int i = 0; i < m->opts->n_ignore; i++)
        if (ku_str_glob(m->opts->ignore[i], bare_name(m, name)))
            return 1;
    return 0;
}

static bool is_wanted(const struct ku_weights *w, const struct ku_st_tensor *t)
{
    for (int i = 0; i < w->n; i++)
        if (w->from[i].tensor == t)
            return 1;
    return 0;
}

static int compare_data(struct ku_weights_from a, struct ku_weights_from b, void *buffer,
                        int *is_equal)
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

/* Returns 1 if this is the second copy of a tied tensor, 0 if not, < 0 if the copies differ. */
static int check_tied(const struct matcher *m, const struct ku_st *file,
                      const struct ku_st_tensor *t)
{
    struct ku_weights_from original;
    int is_equal;
    if (m->opts->tied == NULL || strcmp(bare_name(m, t->name), m->opts->tied) != 0)
        return 0;
    KU_TRY(look_up(m, m->opts->tied_to, &original));
    if (original.tensor == NULL)
        return 0;
    void *buffer = ku_malloc((size_t)2 * COMPARE_BYTES);
    if (buffer == NULL)
        return KUMI_ENOMEM;
    int status = compare_data((struct ku_weights_from){file, t}, original, buffer, &is_equal);
    ku_free(buffer);
    KU_TRY(status);
    if (!is_equal)
        return KU_ERR(KUMI_EINPUT,
                      "weights: %s: %.100s differs from %.100s, but the model ties them; set "
                      "tie_word_embeddings to false",
                      m->w->dir, t->name, original.tensor->name);
    m->w->report.has_tied = 1;
    return 1;
}

/* Handles the remaining tensors of the files: ignored, tied, or extra. */
static int match_rest(const struct matcher *m, struct ku_diff *d)
{
    const struct ku_st_set *set = &m->w->set;
    for (int i = 0; i < set->n; i++)
        for (int j = 0; j < set->file[i].n; j++) {
            const struct ku_st_tensor *t = &set->file[i].tensor[j];
            if (is_wanted(m->w, t))
                continue;
            if (is_ignored(m, t->name)) {
                m->w->report.n_ignored++;
                continue;
            }
            int is_tied = check_tied(m, &set->file[i], t);
            KU_TRY(is_tied);
            if (!is_tied)
                ku_diff_extra(d, t->name);
        }
    return KUMI_OK;
}

static int match(const struct matcher *m)
{
    struct ku_weights *w = m->w;
    struct ku_diff d = {0};
    int status = KUMI_OK;
    for (int i = 0; i < w->n; i++) {
        KU_TRY_OUT(look_up(m, w->tensor[i].name, &w->from[i]));
        w->report.n_missing += w->from[i].tensor == NULL;
        if (w->from[i].tensor != NULL && !ku_st_is_same_shape(w->from[i].tensor, &w->tensor[i]))
            ku_diff_shape(&d, w->from[i].tensor, &w->tensor[i]);
        else if (w->from[i].tensor == NULL && !m->opts->allow_missing)
            ku_diff_missing(&d, w->tensor[i].name);
    }
    KU_TRY_OUT(match_rest(m, &d));
    return ku_diff_finish(&d, "weights", w->dir);
out:
    ku_str_fini(&d.lines);
    return status;
}

static int check_dtypes(struct ku_weights *w)
{
    for (int i = 0; i < w->n; i++) {
        const struct ku_st_tensor *t = w->from[i].tensor;
        if (t == NULL)
            continue;
        enum kumi_dtype wanted = w->tensor[i].dtype;
        if (t->dtype == KUMI_N_DTYPES || ku_dtype_is_float(t->dtype) != ku_dtype_is_float(wanted))
            return KU_ERR(KUMI_EINPUT, "weights: %s: %.120s: dtype %s; the model needs %s",
                          w->from[i].file->path, t->name, t->type, kumi_dtype_name(wanted));
        w->report.n_rounded += ku_dtype_is_float(wanted) && t->dtype != wanted &&
                               kumi_dtype_bytes(t->dtype) >= kumi_dtype_bytes(wanted);
    }
    return KUMI_OK;
}

/* Takes all tensors of the files, under their names without the prefixes of wrappers. */
static int take_all(struct ku_weights *w)
{
    const size_t wrapped = strlen(w->wrapped);
    for (int i = 0; i < w->set.n; i++)
        for (int j = 0; j < w->set.file[i].n; j++) {
            const struct ku_st_tensor *t = &w->set.file[i].tensor[j];
            struct ku_ckpt_tensor *to = &w->tensor[w->n];
            if (t->dtype == KUMI_N_DTYPES)
                return KU_ERR(KUMI_EINPUT, "weights: %s: %.120s: dtype %s cannot be converted",
                              w->set.file[i].path, t->name, t->type);
            *to = (struct ku_ckpt_tensor){
                .name = t->name + wrapped, .dtype = t->dtype, .ndim = t->ndim};
            memcpy(to->dim, t->dim, sizeof to->dim);
            memcpy(to->padded, t->dim, sizeof to->padded);
            w->from[w->n++] = (struct ku_weights_from){&w->set.file[i], t};
        }
    return KUMI_OK;
}

static int open_set(const struct matcher *m, const struct ku_ckpt_tensor *tensor, int n)
{
    struct ku_weights *w = m->w;
    int most = n;
    KU_TRY(ku_st_set_open(w->dir, &w->set));
    KU_TRY(find_wrapped(w));
    for (int i = 0; i < w->set.n && tensor == NULL; i++)
        most += w->set.file[i].n;
    w->tensor = ku_calloc((size_t)most + 1, sizeof *w->tensor);
    w->from = ku_calloc((size_t)most + 1, sizeof *w->from);
    if (w->tensor == NULL || w->from == NULL)
        return KUMI_ENOMEM;
    if (tensor == NULL)
        return take_all(w);
    for (int i = 0; i < n; i++)
        if (tensor[i].group == KU_CKPT_MODEL)
            w->tensor[w->n++] = tensor[i];
    KU_TRY(match(m));
    return check_dtypes(w);
}

int ku_weights_open(const char *dir, const struct ku_ckpt_tensor *tensor, int n,
                    const struct ku_weights_opts *opts, struct ku_weights *w)
{
    static const struct ku_weights_opts none;
    struct matcher m = {.w = w, .opts = opts != NULL ? opts : &none};
    *w = (struct ku_weights){.dir = ku_strdup(dir), .prefix = m.opts->prefix, .head = m.opts->head};
    int status = w->dir ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK)
        status = open_set(&m, tensor, n);
    if (status < 0)
        ku_weights_close(w);
    return status;
}

void ku_weights_close(struct ku_weights *w)
{
    ku_free(w->prefixed);
    ku_free(w->wrapped);
    ku_free(w->from);
    ku_free(w->tensor);
    ku_free(w->dir);
    ku_st_set_close(&w->set);
    *w = (struct ku_weights){0};
}

void ku_weights_say(const struct ku_weights *w)
{
    if (w->wrapped[0])
        KU_LOG(CKPT, WARN, "%s: all names begin with %s, which is removed", w->dir, w->wrapped);
    if (w->report.n_rounded > 0)
        KU_LOG(CKPT, INFO, "%s: %d tensors are rounded to a narrower dtype", w->dir,
               w->report.n_rounded);
    if (w->report.n_missing > 0)
        KU_LOG(CKPT, WARN, "%s: %d tensors are missing", w->dir, w->report.n_missing);
}

int ku_weights_load(const char *dir, const struct ku_ckpt_tensor *tensor, int n,
                    const struct ku_weights_opts *opts, struct ku_weights_report *report)
{
    struct ku_weights w;
    KU_TRY(ku_weights_open(dir, tensor, n, opts, &w));
    int status = ku_weights_read(&w, 0, 1);
    if (status == KUMI_OK && report != NULL)
        *report = w.report;
    ku_weights_close(&w);
    return status;
}
