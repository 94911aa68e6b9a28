/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans, begins and commits a snapshot. The contents of a file depend only on the tensor
 * descriptions: header, then tensors in the order of ku_st_sort. All ranks therefore compute the
 * same plan (pieces and positions) without communication; each writes its part (write_part.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/json/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "ckpt/snapshot/retention.h"
#include "ckpt/snapshot/file_layout.h"
#include "ckpt/snapshot/directory.h"
#include "ckpt/safetensors.h"
#include "ckpt/snapshot/writer.h"

static int plan_tensors(const struct ku_ckpt_desc *d, enum ku_ckpt_group group,
                        struct ku_ckpt_out_file *f)
{
    for (int i = 0; i < d->n_tensors; i++)
        if (d->tensor[i].group == group)
            f->tensor[f->n_tensors++] = &d->tensor[i];
    ku_st_sort(f->tensor, f->n_tensors);
    return ku_st_header_print(f->tensor, f->n_tensors, &f->head, f->end);
}

static int plan_file(const struct ku_ckpt_writer *w, int id, struct ku_ckpt_out_file *f)
{
    const struct ku_ckpt_desc *d = &w->desc;
    f->path = ku_asprintf("%s/%s", w->temporary, ku_ckpt_file_name(id));
    f->sums_path = ku_asprintf("%s/%s.xxh3", w->temporary, ku_ckpt_file_name(id));
    f->tensor = ku_calloc((size_t)d->n_tensors + 1, sizeof *f->tensor);
    f->end = ku_calloc((size_t)d->n_tensors + 1, sizeof *f->end);
    if (f->path == NULL || f->sums_path == NULL || f->tensor == NULL || f->end == NULL)
        return KUMI_ENOMEM;
    if (id == KU_CKPT_FILE_CONFIG) {
        ku_str_append(&f->head, d->model_config, strlen(d->model_config));
        f->end[0] = strlen(d->model_config);
        if (f->head.failed)
            return KUMI_ENOMEM;
    } else {
        KU_TRY(plan_tensors(d, id == KU_CKPT_FILE_MODEL ? KU_CKPT_MODEL : KU_CKPT_OPTIMIZER, f));
    }
    return ku_pieces_cut(f->end, f->n_tensors + 1, &f->piece, &f->n_pieces);
}

int ku_ckpt_writer_create(const struct ku_ckpt_desc *desc, struct ku_ckpt_writer **out)
{
    int status = KUMI_ENOMEM;
    if (desc->step < 0 || desc->dir == NULL || desc->model_config == NULL)
        return KU_ERR(KUMI_EINVAL,
                      "checkpoint: step %lld, folder %s, %s; a snapshot needs a step from 0, a "
                      "folder and a model configuration",
                      (long long)desc->step, desc->dir != NULL ? desc->dir : "NULL",
                      desc->model_config != NULL ? "a model configuration"
                                                 : "no model configuration");
    KU_TRY(ku_ckpt_tensors_check(desc->tensor, desc->n_tensors));
    struct ku_ckpt_writer *w = ku_calloc(1, sizeof *w);
    if (w == NULL)
        return KUMI_ENOMEM;
    w->desc = *desc;
    w->final = ku_asprintf("%s/step-%08lld", desc->dir, (long long)desc->step);
    w->temporary =
        ku_asprintf("%s/" KU_CKPT_TEMPORARY "step-%08lld", desc->dir, (long long)desc->step);
    if (w->final == NULL || w->temporary == NULL)
        goto out;
    for (int i = 0; i < KU_CKPT_N_FILES; i++)
        KU_TRY_OUT(plan_file(w, i, &w->file[i]));
    *out = w;
    return KUMI_OK;
out:
    ku_ckpt_writer_destroy(w);
    return status;
}

void ku_ckpt_writer_destroy(struct ku_ckpt_writer *w)
{
    if (w == NULL)
        return;
    for (int i = 0; i < KU_CKPT_N_FILES; i++) {
        struct ku_ckpt_out_file *f = &w->file[i];
        ku_free(f->path);
        ku_free(f->sums_path);
        ku_str_fini(&f->head);
        ku_free(f->tensor);
        ku_free(f->end);
        ku_free(f->piece);
    }
    ku_ckpt_spread_destroy(w->spread);
    ku_free(w->temporary);
    ku_free(w->final);
    ku_free(w);
}

uint64_t ku_ckpt_writer_bytes(const struct ku_ckpt_writer *w)
{
    uint64_t bytes = 0;
    for (int i = 0; i < KU_CKPT_N_FILES; i++)
        bytes += ku_ckpt_out_bytes(&w->file[i]);
    return bytes;
}

int ku_ckpt_storage_error(const char *path)
{
    return KU_ERR(KUMI_ESTORAGE, "checkpoint: %s: %s; the snapshots before it are untouched", path,
                  ku_os_why());
}

void ku_ckpt_writer_abort(struct ku_ckpt_writer *w)
{
    const struct kumi_error e = *ku_err_get();
    if (ku_os_rmtree(w->temporary) < 0 && errno != ENOENT)
        KU_LOG(CKPT, WARN, "%s: cannot be removed: %s", w->temporary, strerror(errno));
    if (e.status < 0)
        ku_err_put(&e);
}

static int make_file(const char *path, uint64_t bytes)
{
    int fd = ku_os_open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0)
        return ku_ckpt_storage_error(path);
    /* allocates the space now, so that a full disk is detected before writing */
    int status = ku_os_allocate(fd, (off_t)bytes) < 0 ? ku_ckpt_storage_error(path) : KUMI_OK;
    if (ku_os_close(fd) < 0 && status == KUMI_OK)
        status = ku_ckpt_storage_error(path);
    return status;
}

static int begin(struct ku_ckpt_writer *w)
{
    static const char *const folders[] = {"", "/model", "/optimizer"};
    if (ku_os_mkdirs(w->desc.dir) < 0)
        return ku_ckpt_storage_error(w->desc.dir);
    KU_TRY(ku_ckpt_place_clean(w->desc.dir));
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char *path = ku_asprintf("%s%s", w->temporary, folders[i]);
        if (path == NULL)
            return KUMI_ENOMEM;
        int status = ku_os_mkdir(path, 0777) < 0 ? ku_ckpt_storage_error(path) : KUMI_OK;
        ku_free(path);
        KU_TRY(status);
    }
    for (int i = 0; i < KU_CKPT_N_FILES; i++) {
        const struct ku_ckpt_out_file *f = &w->file[i];
        KU_TRY(make_file(f->path, ku_ckpt_out_bytes(f)));
        KU_TRY(make_file(f->sums_path, (uint64_t)f->n_pieces * KU_PIECE_LINE_BYTES));
    }
    return KUMI_OK;
}

int ku_ckpt_writer_begin(struct ku_ckpt_writer *w)
{
    int status = begin(w);
    if (status < 0)
        ku_ckpt_writer_abort(w);
    return status;
}

static int refuse_missing(const struct ku_ckpt_out_file *f)
{
    return KU_ERR(KUMI_ESTORAGE, "checkpoint: %s: a rank did not write its part", f->path);
}

/* Computes the checksum of a .xxh3 file that the ranks wrote. All lines must be valid: a rank that
 * did not write its part left zeros. */
static int sum_file(struct ku_ckpt_out_file *f)
{
    char *text;
    size_t bytes;
    struct ku_piece *pieces = NULL;
    int64_t n;
    if (ku_os_slurp(f->sums_path, (size_t)f->n_pieces * KU_PIECE_LINE_BYTES, &text, &bytes) < 0)
        return ku_ckpt_storage_error(f->sums_path);
    int status = ku_pieces_parse(f->sums_path, text, bytes, ku_ckpt_out_bytes(f), &pieces, &n);
    if (status == KUMI_OK)
        f->sums_sum = ku_hash64(text, bytes);
    else if (status != KUMI_ENOMEM)
        status = refuse_missing(f);
    ku_free(pieces);
    ku_free(text);
    return status;
}

/*
 * Several hosts: writes the .xxh3 file from the sums of all ranks (ku_ckpt_writer_set_sums), so
 * nothing is read that other hosts wrote. Of a piece that no rank wrote the sum is 0, which no
 * content has in practice (1 of 2^64).
 */
static int write_sums(struct ku_ckpt_out_file *f)
{
    for (int64_t i = 0; i < f->n_pieces; i++)
        if (f->piece[i].sum == 0)
            return refuse_missing(f);
    return ku_ckpt_write_sums(f, 0, f->n_pieces, &f->sums_sum);
}

static json_t *or_empty(json_t *v)
{
    return v != NULL ? json_incref(v) : json_object();
}

static int hash_json(json_t *v, char out[80])
{
    struct ku_sha256 h;
    unsigned char digest[32];
    char *text = ku_json_print(v, JSON_COMPACT | JSON_SORT_KEYS);
    if (text == NULL || ku_sha256_init(&h) < 0) {
        ku_free(text);
        return KU_ERR(KUMI_ENOMEM, "checkpoint: the numerics keys could not be printed");
    }
    ku_sha256_update(&h, text, strlen(text));
    ku_sha256_final(&h, digest);
    memcpy(out, "sha256:", 7);
    ku_sha256_hex(digest, out + 7);
    ku_free(text);
    return KUMI_OK;
}

static void describe_files(const struct ku_ckpt_writer *w, json_t *files)
{
    for (int i = 0; i < KU_CKPT_N_FILES; i++) {
        char hex[17];
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)w->file[i].sums_sum);
        json_array_append_new(files,
                              json_pack("{s:s, s:I, s:s}", "path", ku_ckpt_file_name(i), "bytes",
                                        (json_int_t)ku_ckpt_out_bytes(&w->file[i]), "xxh3", hex));
    }
}

/* [{"path": "model/tokenizer.json", "bytes": .., "xxh3": ".."}, ..] */
static json_t *describe_companions(const struct ku_companions *c)
{
    json_t *list = json_array();
    for (int i = 0; c && i < c->n; i++) {
        char hex[17];
        snprintf(hex, sizeof hex, "%016llx",
                 (unsigned long long)ku_hash64(c->file[i].data, c->file[i].bytes));
        json_array_append_new(list, json_pack("{s:o, s:I, s:s}", "path",
                                              json_sprintf("model/%s", c->file[i].name), "bytes",
                                              (json_int_t)c->file[i].bytes, "xxh3", hex));
    }
    return list;
}

static int write_companions(const struct ku_ckpt_writer *w)
{
    char *folder = ku_asprintf("%s/model", w->temporary);
    int status = folder ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK && w->desc.companions &&
        ku_companions_write(w->desc.companions, folder) < 0)
        status = ku_ckpt_storage_error(folder);
    ku_free(folder);
    return status;
}

static int print_manifest(const struct ku_ckpt_writer *w, char **text)
{
    const struct ku_ckpt_desc *d = &w->desc;
    json_t *files = json_array(), *numerics = or_empty(d->numerics), *root = NULL;
    char hash[80];
    int status;
    describe_files(w, files);
    KU_TRY_OUT(hash_json(numerics, hash));
    root = json_pack(
        "{s:s, s:i, s:I, s:I, s:s?, s:s, s:O, s:s?, s:s, s:o, s:o, s:o, s:i, s:O, s:o}", "format",
        "kumi-checkpoint", "version", KU_CKPT_VERSION, "step", (json_int_t)d->step, "update",
        (json_int_t)d->update, "digest", d->digest, "numerics_hash", hash, "numerics", numerics,
        "data_fingerprint", d->data_fingerprint, "isa", d->isa != NULL ? d->isa : "", "libraries",
        or_empty(d->libraries), "state", or_empty(d->state), "config", or_empty(d->config),
        "chunk_bytes", KU_CHUNK_BYTES, "files", files, "companions",
        describe_companions(d->companions));
    *text = root != NULL ? ku_json_print(root, JSON_INDENT(2)) : NULL;
    if (*text == NULL)
        status = KU_ERR(KUMI_ENOMEM, "checkpoint: %s: the manifest could not be printed", w->final);
out:
    json_decref(root);
    json_decref(files);
    json_decref(numerics);
    return status;
}

static int write_small(const char *folder, const char *name, const void *data, size_t bytes)
{
    char *path = ku_asprintf("%s/%s", folder, name);
    if (path == NULL)
        return KUMI_ENOMEM;
    int status = KUMI_OK, fd = ku_os_open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0 || ku_os_write_full(fd, data, bytes) < 0 || ku_os_fsync(fd) < 0)
        status = ku_ckpt_storage_error(path);
    if (fd >= 0 && ku_os_close(fd) < 0 && status == KUMI_OK)
        status = ku_ckpt_storage_error(path);
    ku_free(path);
    return status;
}

/* The manifest has a .xxh3 file in the same format, so that one reader handles all files. */
static int write_manifest(const struct ku_ckpt_writer *w)
{
    char *text = NULL, *lines = NULL;
    struct ku_piece *piece = NULL;
    int64_t n;
    KU_TRY(print_manifest(w, &text));
    size_t bytes = strlen(text);
    int status;
    KU_TRY_OUT(ku_pieces_cut(&(uint64_t){bytes}, 1, &piece, &n));
    KU_TRY_OUT((lines = ku_calloc((size_t)n + 1, KU_PIECE_LINE_BYTES)) == NULL ? KUMI_ENOMEM : 0);
    for (int64_t i = 0; i < n; i++) {
        piece[i].sum = ku_hash64(text + piece[i].at, piece[i].bytes);
        ku_pieces_print(&piece[i], lines + i * KU_PIECE_LINE_BYTES);
    }
    KU_TRY_OUT(
        write_small(w->temporary, "manifest.json.xxh3", lines, (size_t)n * KU_PIECE_LINE_BYTES));
    KU_TRY_OUT(write_small(w->temporary, "manifest.json", text, bytes));
out:
    ku_free(lines);
    ku_free(piece);
    ku_free(text);
    return status;
}

static int sync_folders(const struct ku_ckpt_writer *w)
{
    static const char *const folders[] = {"/model", "/optimizer", ""};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char *path = ku_asprintf("%s%s", w->temporary, folders[i]);
        if (path == NULL)
            return KUMI_ENOMEM;
        int status = ku_os_fsync_dir(path) < 0 ? ku_ckpt_storage_error(path) : KUMI_OK;
        ku_free(path);
        KU_TRY(status);
    }
    return KUMI_OK;
}

int ku_ckpt_writer_commit(struct ku_ckpt_writer *w)
{
    int status;
    for (int i = 0; i < KU_CKPT_N_FILES; i++)
        KU_TRY_OUT((w->spread ? write_sums : sum_file)(&w->file[i]));
    KU_TRY_OUT(write_companions(w));
    KU_TRY_OUT(write_manifest(w));
    KU_TRY_OUT(sync_folders(w));
    KU_TRY_OUT(ku_ckpt_place_put(w->temporary, w->final));
    KU_TRY_OUT(ku_os_fsync_dir(w->desc.dir) < 0 ? ku_ckpt_storage_error(w->desc.dir) : KUMI_OK);
    if (w->desc.keep > 0)
        ku_ckpt_prune(w->desc.dir, w->desc.step, w->desc.keep, w->desc.verified);
    KU_LOG(CKPT, INFO, "%s: saved, %llu bytes", w->final,
           (unsigned long long)ku_ckpt_writer_bytes(w));
    return KUMI_OK;
out:
    ku_ckpt_writer_abort(w);
    return status;
}

int ku_ckpt_save(const struct ku_ckpt_desc *desc)
{
    struct ku_ckpt_writer *w;
    KU_TRY(ku_ckpt_writer_create(desc, &w));
    int status = ku_ckpt_writer_begin(w);
    if (status == KUMI_OK) {
        status = ku_ckpt_writer_write(w, 0, 1);
        if (status < 0)
            ku_ckpt_writer_abort(w);
        else
            status = ku_ckpt_writer_commit(w);
    }
    ku_ckpt_writer_destroy(w);
    return status;
}
