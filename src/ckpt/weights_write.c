/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a directory in Hugging Face's format: model.safetensors, or shards
 * model-00001-of-00003.safetensors .. with model.safetensors.index.json. It is written under a
 * temporary name and renamed at the end.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/tick.h"
#include "ckpt/weights.h"

enum { PIECE_COUNT = 1 << 18 /* elements */, WIDEST = 8 };

struct writer {
    struct ku_weights *w;
    const char *dir;                     /* the temporary directory */
    const struct ku_ckpt_tensor **order; /* [n] tensors that exist, in file order */
    int n;
    int *shard; /* [n] shard of each tensor, ascending */
    int n_shards;
    unsigned char *in, *out; /* [PIECE_COUNT * WIDEST] */
};

static int failed(const char *path)
{
    return KU_ERR(ku_os_status(KUMI_ESTORAGE), "weights: %s: %s", path, ku_os_why());
}

static char *shard_name(const struct writer *x, int shard)
{
    return x->n_shards == 1 ? ku_strdup("model.safetensors")
                            : ku_asprintf("model-%05d-of-%05d.safetensors", shard + 1, x->n_shards);
}

static uint64_t bytes_of(const struct ku_ckpt_tensor *t)
{
    return (uint64_t)ku_ckpt_tensor_count(t) * kumi_dtype_bytes(t->dtype);
}

/* Assigns tensors to shards in order, as many as fit; a larger tensor gets its own shard. */
static void cut(struct writer *x, uint64_t shard_bytes)
{
    uint64_t in_file = 0;
    x->n_shards = 1;
    for (int i = 0; i < x->n; i++) {
        uint64_t bytes = bytes_of(x->order[i]);
        if (shard_bytes && in_file && in_file + bytes > shard_bytes) {
            x->n_shards++;
            in_file = 0;
        }
        in_file += bytes;
        x->shard[i] = x->n_shards - 1;
    }
}

static int write_tensor(struct writer *x, const struct ku_ckpt_tensor *t, int fd, uint64_t at)
{
    const struct ku_weights_from *from = &x->w->from[t - x->w->tensor];
    size_t is = kumi_dtype_bytes(from->tensor->dtype), each = kumi_dtype_bytes(t->dtype);
    for (int64_t done = 0, n; done < from->tensor->count; done += n) {
        struct ku_ckpt_tensor piece = {.name = t->name, .dtype = t->dtype, .ndim = 1};
        const unsigned char *data = x->in;
        n = from->tensor->count - done < PIECE_COUNT ? from->tensor->count - done : PIECE_COUNT;
        KU_TRY(
            ku_st_read_bytes(from->file, from->tensor, (uint64_t)done * is, x->in, (size_t)n * is));
        if (t->dtype != from->tensor->dtype) {
            piece.dim[0] = piece.padded[0] = n;
            piece.data = x->out;
            data = x->out;
            KU_TRY(ku_ckpt_tensor_scatter(&piece, 0, n, x->in, from->tensor->dtype, 0));
        }
        if (ku_os_pwrite_full(fd, data, (size_t)n * each, (off_t)(at + (uint64_t)done * each)) < 0)
            return failed(x->dir);
        ku_tick();
    }
    return KUMI_OK;
}

static int write_tensors(struct writer *x, int first, int n, int fd)
{
    struct ku_str header = {0};
    uint64_t *at = ku_calloc((size_t)n + 1, sizeof *at);
    int status = at ? ku_st_header_print(x->order + first, n, &header, at) : KUMI_ENOMEM;
    if (status == KUMI_OK && ku_os_pwrite_full(fd, header.text, header.bytes, 0) < 0)
        status = failed(x->dir);
    for (int i = 0; i < n && status == KUMI_OK; i++)
        status = write_tensor(x, x->order[first + i], fd, at[i]);
    if (status == KUMI_OK && ku_os_fsync(fd) < 0)
        status = failed(x->dir);
    ku_str_fini(&header);
    ku_free(at);
    return status;
}

static int write_shard(struct writer *x, int shard, int first, int n)
{
    char *name = shard_name(x, shard), *path = name ? ku_asprintf("%s/%s", x->dir, name) : NULL;
    int status = path ? KUMI_OK : KUMI_ENOMEM;
    if (path) {
        int fd = ku_os_open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
        status = fd < 0 ? failed(path) : write_tensors(x, first, n, fd);
        if (fd >= 0 && ku_os_close(fd) < 0 && status == KUMI_OK)
            status = failed(path);
    }
    ku_free(name);
    ku_free(path);
    return status;
}

static int write_text(const struct writer *x, const char *name, const char *text)
{
    char *path = ku_asprintf("%s/%s", x->dir, name);
    if (path == NULL)
        return KUMI_ENOMEM;
    int status = ku_os_replace(path, text, strlen(text)) < 0 ? failed(path) : KUMI_OK;
    ku_free(path);
    return status;
}

static int write_index(const struct writer *x)
{
    json_t *map = json_object();
    uint64_t total = 0;
    int bad = map == NULL;
    for (int i = 0; i < x->n && !bad; i++) {
        char *name = shard_name(x, x->shard[i]);
        bad = name == NULL || json_object_set_new(map, x->order[i]->name, json_string(name)) < 0;
        total += bytes_of(x->order[i]);
        ku_free(name);
    }
    json_t *root = bad ? NULL
                       : json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total,
                                   "weight_map", map);
    char *text = root ? ku_json_print(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    int status = text ? write_text(x, "model.safetensors.index.json", text) : KUMI_ENOMEM;
    ku_free(text);
    json_decref(root);
    json_decref(map);
    return status;
}

/*
 * Adds the prefix to all names but the head's. transformers loads a file without the prefix as the
 * model without a head, and refuses the head in it as corrupted.
 */
static int add_prefix(struct ku_weights *w)
{
    if (w->head == NULL)
        return KUMI_OK;
    KU_ASSERT(w->prefixed == NULL);
    const size_t prefix = strlen(w->prefix);
    size_t bytes = 1;
    for (int i = 0; i < w->n; i++)
        bytes += prefix + strlen(w->tensor[i].name) + 1;
    char *at = w->prefixed = ku_malloc(bytes);
    if (at == NULL)
        return KUMI_ENOMEM;
    for (int i = 0; i < w->n; i++) {
        const char *name = w->tensor[i].name;
        size_t length = strlen(name) + 1;
        if (strcmp(name, w->head) == 0 || strncmp(name, w->prefix, prefix) == 0)
            continue;
        memcpy(at, w->prefix, prefix);
        memcpy(at + prefix, name, length);
        w->tensor[i].name = at;
        at += prefix + length;
    }
    return KUMI_OK;
}

static int write_all(struct writer *x, uint64_t shard_bytes, const char *config,
                     const struct ku_companions *companions)
{
    for (int i = 0; i < x->w->n; i++)
        if (x->w->from[i].tensor)
            x->order[x->n++] = &x->w->tensor[i];
    ku_st_sort(x->order, x->n);
    cut(x, shard_bytes);
    for (int first = 0, n; first < x->n; first += n) {
        for (n = 1; first + n < x->n && x->shard[first + n] == x->shard[first];)
            n++;
        KU_TRY(write_shard(x, x->shard[first], first, n));
    }
    if (x->n_shards > 1)
        KU_TRY(write_index(x));
    KU_TRY(write_text(x, "config.json", config));
    if (companions && ku_companions_write(companions, x->dir) < 0)
        return failed(x->dir);
    return ku_os_fsync_dir(x->dir) < 0 ? failed(x->dir) : KUMI_OK;
}

/* Writes to a temporary directory next to `dir` and renames it when it is complete. */
static int write_beside(struct writer *x, const char *dir, uint64_t shard_bytes, const char *config,
                        const struct ku_companions *companions)
{
    struct stat info;
    char *temporary;
    if (ku_os_stat(dir, &info) == 0)
        return KU_ERR(KUMI_EBUSY, "weights: %s: already exists; give a new folder", dir);
    ku_os_temporary_clean(dir);
    int lock_fd = ku_os_temporary(dir, 1, &temporary);
    if (lock_fd < 0)
        return failed(dir);
    x->dir = temporary;
    int status = write_all(x, shard_bytes, config, companions);
    if (status == KUMI_OK && ku_os_rename(temporary, dir) < 0)
        status = failed(dir);
    if (status < 0) {
        const struct kumi_error e = *ku_err_get();
        ku_os_rmtree(temporary);
        ku_err_put(&e);
    }
    ku_os_close(lock_fd);
    ku_free(temporary);
    return status;
}

int ku_weights_write(struct ku_weights *w, const char *dir, enum kumi_dtype dtype,
                     uint64_t shard_bytes, const char *config,
                     const struct ku_companions *companions)
{
    struct writer x = {.w = w};
    size_t bytes = strlen(dir);
    while (bytes > 1 && dir[bytes - 1] == '/')
        bytes--;
    char *final = ku_asprintf("%.*s", (int)bytes, dir);
    x.order = ku_calloc((size_t)w->n + 1, sizeof *x.order);
    x.shard = ku_calloc((size_t)w->n + 1, sizeof *x.shard);
    x.in = ku_malloc((size_t)PIECE_COUNT * WIDEST);
    x.out = ku_malloc((size_t)PIECE_COUNT * WIDEST);
    for (int i = 0; i < w->n; i++)
        if (dtype != KUMI_N_DTYPES && ku_dtype_is_float(w->tensor[i].dtype))
            w->tensor[i].dtype = dtype;
    int status = final && x.order && x.shard && x.in && x.out ? add_prefix(w) : KUMI_ENOMEM;
    if (status == KUMI_OK)
        status = write_beside(&x, final, shard_bytes, config, companions);
    if (status == KUMI_OK)
        ku_weights_say(w);
    ku_free(x.in);
    ku_free(x.out);
    ku_free(x.shard);
    ku_free(x.order);
    ku_free(final);
    return status;
}
