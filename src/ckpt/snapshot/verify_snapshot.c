/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verifies a snapshot: all pieces of all files, then the companions.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "ckpt/snapshot/region_reader.h"
#include "ckpt/snapshot/snapshot.h"

struct verifier {
    const struct ku_scan *scan;
    void (*report)(void *ctx, const struct ku_ckpt_damage *);
    void *ctx;
    struct kumi_error first;
};

static void tell(struct verifier *v, const struct ku_ckpt_damage *d)
{
    if (v->first.status == KUMI_OK)
        v->first = *ku_err_get();
    if (v->report != NULL)
        v->report(v->ctx, d);
}

static int look(void *ctx, const struct ku_piece *p, const unsigned char *data, int is_good)
{
    struct verifier *v = ctx;
    (void)data;
    if (is_good)
        return KUMI_OK;
    KU_IGNORE(ku_scan_damaged(v->scan, p), "the callback reports each damaged piece");
    const struct ku_st_tensor *t = v->scan->has_st ? ku_st_at(&v->scan->st, p->at) : NULL;
    tell(v, &(struct ku_ckpt_damage){.file = v->scan->name,
                                     .tensor = t != NULL ? t->name : NULL,
                                     .at = p->at,
                                     .bytes = p->bytes,
                                     .what = "checksum mismatch"});
    return v->report != NULL ? KUMI_OK : v->first.status; /* without report: stop */
}

static int verify_file(const struct ku_ckpt *c, int file, struct verifier *v)
{
    struct ku_scan s;
    int status = ku_scan_open(c, file, &s);
    if (status == KUMI_OK) {
        v->scan = &s;
        status = ku_scan_run(&s, 0, ku_pieces_n_chunks(s.bytes), look, v);
        ku_scan_close(&s);
    }
    if (status == KUMI_ENOCKPT) {
        tell(v,
             &(struct ku_ckpt_damage){.file = ku_ckpt_file_name(file), .what = ku_err_get()->text});
        status = v->report != NULL ? KUMI_OK : status;
    }
    return status;
}

/* Verifies a companion against its checksum in the manifest. */
static int check_companion(const struct ku_ckpt *c, const json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "path"));
    const char *sum = json_string_value(json_object_get(entry, "xxh3"));
    char *path = name ? ku_asprintf("%s/%s", c->path, name) : NULL, *data = NULL, hex[17];
    size_t bytes;
    int status = KUMI_OK;
    if (name == NULL || sum == NULL || strstr(name, ".."))
        status =
            KU_ERR(KUMI_ENOCKPT,
                   "checkpoint: %s/manifest.json: the path or xxh3 of a companion file is missing",
                   c->path);
    else if (path == NULL)
        status = KUMI_ENOMEM;
    else if (ku_os_slurp(path, KU_COMPANION_BYTES_MAX, &data, &bytes) < 0)
        status =
            KU_ERR(ku_os_status(KUMI_ENOCKPT), "checkpoint: damaged: %s: %s", path, ku_os_why());
    if (status == KUMI_OK) {
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)ku_hash64(data, bytes));
        if (strcmp(hex, sum) != 0)
            status =
                KU_ERR(KUMI_ENOCKPT,
                       "checkpoint: damaged: %s: its checksum differs from the manifest's", path);
    }
    ku_free(data);
    ku_free(path);
    return status;
}

/* v: report all damages to it; NULL: stop at the first. */
static int check_companions(const struct ku_ckpt *c, struct verifier *v)
{
    const json_t *list = json_object_get(c->manifest.root, "companions");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(entry, "path"));
        int status = check_companion(c, entry);
        if (status == KUMI_ENOCKPT && v)
            tell(v, &(struct ku_ckpt_damage){.file = name ? name : "companions",
                                             .what = ku_err_get()->text});
        else
            KU_TRY(status);
    }
    return KUMI_OK;
}

int ku_ckpt_check_companions(const struct ku_ckpt *c)
{
    return check_companions(c, NULL);
}

static int verify_files(const struct ku_ckpt *c, struct verifier *v)
{
    int status = KUMI_OK;
    for (int i = 0; i < KU_CKPT_N_FILES && status == KUMI_OK; i++)
        status = verify_file(c, i, v);
    if (status == KUMI_OK)
        status = check_companions(c, v);
    return v->first.status < 0 && (status == KUMI_OK || status == KUMI_ENOCKPT)
               ? ku_err_put(&v->first)
               : status;
}

int ku_ckpt_check(const struct ku_ckpt *c)
{
    struct verifier v = {0};
    return verify_files(c, &v);
}

int ku_ckpt_verify(const char *path, void (*report)(void *ctx, const struct ku_ckpt_damage *),
                   void *ctx)
{
    struct verifier v = {.report = report, .ctx = ctx};
    struct ku_ckpt c;
    int status = ku_ckpt_open(path, &c);
    if (status < 0) {
        if (status == KUMI_ENOCKPT)
            tell(&v, &(struct ku_ckpt_damage){.what = ku_err_get()->text});
        return status;
    }
    status = verify_files(&c, &v);
    ku_ckpt_close(&c);
    return status;
}
