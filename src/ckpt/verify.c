/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os.h"
#include "ckpt/scan.h"
#include "ckpt/snapshot.h"

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
    ku_scan_damaged(v->scan, p);
    const struct ku_st_tensor *t = v->scan->has_st ? ku_st_at(&v->scan->st, p->at) : NULL;
    tell(v, &(struct ku_ckpt_damage){.file = v->scan->name,
                                     .tensor = t != NULL ? t->name : NULL,
                                     .at = p->at,
                                     .bytes = p->bytes,
                                     .what = "another checksum"});
    return KUMI_OK;
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
        status = KUMI_OK;
    }
    return status;
}

int ku_ckpt_verify(const char *path, void (*report)(void *ctx, const struct ku_ckpt_damage *),
                   void *ctx)
{
    struct verifier v = {.report = report, .ctx = ctx};
    struct ku_ckpt c;
    int status = ku_ckpt_open(path, &c);
    if (status < 0) {
        if (status == KUMI_ENOCKPT)
            tell(&v, &(struct ku_ckpt_damage){.file = "manifest.json", .what = ku_err_get()->text});
        return status;
    }
    for (int i = 0; i < KU_CKPT_N_FILES && status == KUMI_OK; i++)
        status = verify_file(&c, i, &v);
    ku_ckpt_close(&c);
    return status == KUMI_OK && v.first.status < 0 ? ku_err_put(&v.first) : status;
}

struct copy {
    struct ku_scan scan;
    const char *to;
    int fd;
};

static int copy_piece(void *ctx, const struct ku_piece *p, const unsigned char *data, int is_good)
{
    struct copy *k = ctx;
    if (!is_good)
        return ku_scan_damaged(&k->scan, p);
    if (ku_os_pwrite_full(k->fd, data, p->bytes, (off_t)p->at) < 0)
        return KU_ERR(ku_os_status(KUMI_ESTORAGE), "checkpoint: %s: %s", k->to, ku_os_why());
    return KUMI_OK;
}

static int export_file(const struct ku_ckpt *c, int file, const char *dir)
{
    struct copy k = {.fd = -1};
    int status;
    KU_TRY(ku_scan_open(c, file, &k.scan));
    char *to = ku_asprintf("%s/%s", dir, strrchr(ku_ckpt_file_name(file), '/') + 1);
    KU_TRY_OUT(to == NULL ? KUMI_ENOMEM : KUMI_OK);
    k.to = to;
    k.fd = ku_os_open(to, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (k.fd < 0) {
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "checkpoint: %s: %s", to, ku_os_why());
        goto out;
    }
    KU_TRY_OUT(ku_scan_run(&k.scan, 0, ku_pieces_n_chunks(k.scan.bytes), copy_piece, &k));
    if (ku_os_fsync(k.fd) < 0)
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "checkpoint: %s: %s", to, ku_os_why());
out:
    if (k.fd >= 0 && ku_os_close(k.fd) < 0 && status == KUMI_OK)
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "checkpoint: %s: %s", to, ku_os_why());
    ku_scan_close(&k.scan);
    ku_free(to);
    return status;
}

int ku_ckpt_export(const char *path, const char *dir)
{
    struct ku_ckpt c;
    KU_TRY(ku_ckpt_open(path, &c));
    int status = KUMI_OK;
    if (ku_os_mkdir(dir, 0777) < 0)
        status = errno == EEXIST
                     ? KU_ERR(KUMI_EBUSY, "checkpoint: %s: it exists; name a new folder", dir)
                     : KU_ERR(ku_os_status(KUMI_ESTORAGE), "checkpoint: %s: %s", dir, ku_os_why());
    else {
        status = export_file(&c, KU_CKPT_FILE_CONFIG, dir);
        if (status == KUMI_OK)
            status = export_file(&c, KU_CKPT_FILE_MODEL, dir);
        if (status < 0) {
            const struct kumi_error e = *ku_err_get();
            ku_os_rmtree(dir);
            ku_err_put(&e);
        }
    }
    ku_ckpt_close(&c);
    return status;
}
