/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists and verifies checkpoints: of a run directory, of its folder checkpoints/, or a single one.
 */
#include "kumi/run.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "base/utf8.h"
#include "ckpt/digest.h"
#include "ckpt/snapshot/snapshot.h"

/* 1: `path/name` exists, 0: it does not, or KUMI_ENOMEM. */
static int holds(const char *path, const char *name)
{
    struct stat info;
    char *full = ku_asprintf("%s/%s", path, name);
    if (full == NULL)
        return KUMI_ENOMEM;
    int is_there = ku_os_stat(full, &info) == 0;
    ku_free(full);
    return is_there;
}

/* The checkpoints at the path that the user gave. */
struct place {
    char *folder; /* that contains the entries; not used for a single checkpoint */
    struct ku_ckpt_entry *entry;
    char **path; /* [n], of each entry */
    int n, is_one;
};

static void place_fini(struct place *p)
{
    for (int i = 0; p->path && i < p->n; i++)
        ku_free(p->path[i]);
    ku_free(p->path);
    ku_free(p->entry);
    ku_free(p->folder);
}

/*
 * Describe a single checkpoint. Its name is that of its folder.
 */
static int describe_one(const char *path, struct place *p)
{
    struct ku_ckpt c;
    const char *end = path + strlen(path), *begin;
    struct ku_ckpt_entry *e = p->entry = ku_calloc(1, sizeof *e);
    if (e == NULL)
        return KUMI_ENOMEM;
    while (end > path + 1 && end[-1] == '/')
        end--;
    for (begin = end; begin > path && begin[-1] != '/';)
        begin--;
    snprintf(e->name, sizeof e->name, "%.*s", (int)(end - begin > 31 ? 31 : end - begin), begin);
    p->n = p->is_one = 1;
    int status = ku_ckpt_open(path, &c);
    if (status < 0) {
        snprintf(e->problem, sizeof e->problem, "%.255s", ku_err_get()->text);
        return status == KUMI_ENOCKPT ? KUMI_OK : status;
    }
    e->is_usable = 1;
    e->step = c.step;
    e->update = c.update;
    for (int i = 0; i < KU_CKPT_N_FILES; i++)
        e->bytes += c.file[i].bytes;
    ku_ckpt_close(&c);
    return KUMI_OK;
}

static int find_all(const char *path, struct place *p)
{
    int is_one = holds(path, "manifest.json"), is_run = holds(path, "checkpoints");
    if (is_one < 0 || is_run < 0)
        return KUMI_ENOMEM;
    if (is_one)
        KU_TRY(describe_one(path, p));
    else
        KU_TRY(ku_ckpt_list(path, &p->entry, &p->n));
    if (p->n == 0)
        return KU_ERR(
            KUMI_ENOCKPT,
            "checkpoint: %s: holds no checkpoint; give a run, its checkpoints or one of them",
            path);
    p->folder = ku_asprintf("%s%s", path, !is_one && is_run ? "/checkpoints" : "");
    p->path = ku_calloc((size_t)p->n, sizeof *p->path);
    if (p->folder == NULL || p->path == NULL)
        return KUMI_ENOMEM;
    for (int i = 0; i < p->n; i++) {
        p->path[i] = is_one ? ku_strdup(path) : ku_asprintf("%s/%s", p->folder, p->entry[i].name);
        if (p->path[i] == NULL)
            return KUMI_ENOMEM;
    }
    return KUMI_OK;
}

static json_t *entry_json(const struct ku_ckpt_entry *e, const char *path)
{
    return json_pack("{s:s, s:I, s:I, s:I, s:b, s:o, s:s}", "name", e->name, "step",
                     (json_int_t)e->step, "update", (json_int_t)e->update, "bytes",
                     (json_int_t)e->bytes, "usable", e->is_usable, "problem",
                     e->is_usable ? json_null() : ku_json_text(e->problem), "path", path);
}

int kumi_ckpt_list(const char *run, int as_json, char **text)
{
    KU_GIVEN(run, "run");
    KU_GIVEN(text, "text");
    struct place p = {0};
    struct ku_str out = {0};
    json_t *rows = as_json ? json_array() : NULL;
    char bytes[16];
    int status;
    KU_TRY_OUT(as_json ? ku_utf8_check("checkpoint", run) : KUMI_OK);
    KU_TRY_OUT(find_all(run, &p));
    if (!as_json)
        ku_str_add(&out, "%-24s %10s %10s %10s\n", "checkpoint", "step", "update", "size");
    for (int i = 0; i < p.n; i++) {
        const struct ku_ckpt_entry *e = &p.entry[i];
        if (as_json)
            KU_TRY_OUT(json_array_append_new(rows, entry_json(e, p.path[i])) < 0
                           ? KU_ERR(KUMI_ENOMEM, "checkpoint: no memory")
                           : KUMI_OK);
        else if (e->is_usable)
            ku_str_add(&out, "%-24s %10lld %10lld %10s\n", e->name, (long long)e->step,
                       (long long)e->update, ku_text_bytes(e->bytes, bytes));
        else
            ku_str_add(&out, "%-24s not usable: %s\n", e->name, e->problem);
    }
    status = as_json ? ku_text_json(json_incref(rows), text) : ku_text_take(&out, text);
out:
    json_decref(rows);
    ku_str_fini(&out);
    place_fini(&p);
    return status;
}

static void note_damage(void *ctx, const struct ku_ckpt_damage *d)
{
    struct ku_str *out = ctx;
    if (d->file == NULL) {
        ku_str_add(out, "  %s\n", d->what);
        return;
    }
    ku_str_add(out, "  damaged: %s", d->file);
    if (d->tensor)
        ku_str_add(out, ": %s", d->tensor);
    if (d->bytes)
        ku_str_add(out, ": bytes %llu to %llu", (unsigned long long)d->at,
                   (unsigned long long)(d->at + d->bytes));
    ku_str_add(out, ": %s\n", d->what);
}

/*
 * Verifies the checkpoints of one listing.
 *
 *   first   out: the first damage
 *   n       out: the checkpoints that the run has not removed meanwhile (checkpoint.keep)
 */
static int verify_all(const struct place *p, struct ku_str *out, struct kumi_error *first, int *n)
{
    char bytes[16];
    *n = 0;
    for (int i = 0; i < p->n; i++) {
        struct ku_str damage = {0};
        const int status = ku_ckpt_verify(p->path[i], note_damage, &damage);
        const struct kumi_error error = *ku_err_get();
        const bool is_removed = status == KUMI_ENOCKPT && ku_os_is_missing(p->path[i]);
        const char *const size = ku_text_bytes(p->entry[i].bytes, bytes);
        if (status == KUMI_OK)
            ku_str_add(out, "%s: intact, %s\n", p->path[i], size + strspn(size, " "));
        else if (is_removed)
            ku_str_add(out, "%s: removed meanwhile\n", p->path[i]);
        else
            ku_str_add(out, "%s: damaged\n%s", p->path[i], ku_str_get(&damage));
        ku_str_fini(&damage);
        if (status < 0 && status != KUMI_ENOCKPT)
            return ku_err_put(&error);
        if (status < 0 && !is_removed && first->status == KUMI_OK)
            *first = error;
        *n += !is_removed;
    }
    return KUMI_OK;
}

int kumi_ckpt_verify(const char *run_or_checkpoint, char **text)
{
    KU_GIVEN(run_or_checkpoint, "run_or_checkpoint");
    KU_GIVEN(text, "text");
    struct place p = {0};
    struct ku_str out = {0};
    struct kumi_error first = {0};
    int status, n = 0;
    *text = NULL;
    for (int i = 0; i < KU_CKPT_MAX_REMOVED && n == 0; i++) {
        place_fini(&p);
        p = (struct place){0};
        KU_TRY_OUT(find_all(run_or_checkpoint, &p));
        KU_TRY_OUT(verify_all(&p, &out, &first, &n));
    }
    KU_TRY_OUT(ku_text_take(&out, text)); /* also with damaged checkpoints */
    if (n == 0)
        status = KU_ERR(KUMI_ENOCKPT,
                        "checkpoint: %s: the run removed each checkpoint before it was read; raise "
                        "its checkpoint.keep, or verify a copy of one",
                        run_or_checkpoint);
    else if (first.status < 0)
        status = ku_err_put(&first);
out:
    ku_str_fini(&out);
    place_fini(&p);
    return status;
}

int kumi_ckpt_digest(const char *run_or_checkpoint, int parameters_only, char digest[72])
{
    KU_GIVEN(run_or_checkpoint, "run_or_checkpoint");
    KU_GIVEN(digest, "digest");
    struct ku_ckpt c;
    bool is_removed;
    int status, n_removed = 0;
    _Static_assert(KU_DIGEST_TEXT_BYTES <= 72, "a digest's text fits");
    do { /* where the run has removed the checkpoint, there is a newer one */
        KU_TRY(ku_ckpt_find(run_or_checkpoint, INT64_MAX, &c));
        status = ku_digest_snapshot(c.path, parameters_only, digest);
        is_removed = status == KUMI_ENOCKPT && ku_os_is_missing(c.path);
        ku_ckpt_close(&c);
    } while (is_removed && ++n_removed < KU_CKPT_MAX_REMOVED);
    return status;
}
