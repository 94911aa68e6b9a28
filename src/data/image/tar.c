/* SPDX-License-Identifier: Apache-2.0 */
#include "data/image/tar.h"

#include "base/err.h"
#include "base/mem.h"
#include "data/cache_index.h"

#include <endian.h>
#include <stdio.h>

/* WebDataset shards; the index of where each sample lies is in the cache folder (cache_index.h). */
struct tar {
    struct ku_image_store store;
    struct ku_tar_index *index; /* of each part */
    uint32_t cap_index;
};

/* Converts entries between host and file byte order, in either direction. */
static void swap_entries(struct ku_tar_index *x)
{
    for (uint32_t i = 0; i < x->n; i++) {
        x->entry[i].at = htole64(x->entry[i].at);
        x->entry[i].bytes = htole32(x->entry[i].bytes);
        x->entry[i].label = (int32_t)htole32((uint32_t)x->entry[i].label);
    }
}

int ku_tar_cached(const struct ku_file *f, struct ku_cache *cache,
                  const struct ku_progress *progress, struct ku_tar_index *out)
{
    struct ku_cache_index index;
    void *entries = NULL;
    size_t bytes;
    if (!cache->path)
        return ku_tar_walk(f, progress, out);
    int status = ku_cache_index_open(&index, cache, "tar", f, progress);
    const struct ku_progress advance = ku_cache_index_progress(&index);
    if (status == KUMI_OK)
        status = ku_cache_index_read(&index, &entries, &bytes);
    if (status == 1) {
        uint32_t n = (uint32_t)(bytes / sizeof *out->entry);
        *out = (struct ku_tar_index){entries, n, n};
        swap_entries(out);
    } else if (status == KUMI_OK) {
        status = ku_tar_walk(f, &advance, out);
        if (status == KUMI_OK) {
            swap_entries(out);
            ku_cache_index_write(&index, out->entry, out->n * sizeof *out->entry);
            swap_entries(out);
        }
    }
    ku_cache_index_close(&index);
    return status < 0 ? status : KUMI_OK;
}

static void tar_close(struct ku_image_store *s)
{
    struct tar *x = (struct tar *)s;
    for (uint32_t i = 0; x->index && i < s->n_parts; i++)
        ku_free(x->index[i].entry);
    ku_free(x->index);
    ku_store_close(s);
}

static const struct ku_tar_entry *entry_of(const struct ku_image_store *s, int64_t i,
                                           const struct ku_file **file)
{
    const struct ku_image_part *p = ku_store_part(s, i);
    *file = &p->file;
    return &((const struct tar *)s)->index[p - s->part].entry[i - p->first];
}

static int tar_read(const struct ku_image_store *s, int64_t i, struct ku_image_work *work,
                    struct ku_pixels *out, int32_t *label)
{
    const struct ku_file *f;
    const struct ku_tar_entry *e = entry_of(s, i, &f);
    KU_TRY(ku_scratch_need(&work->file, e->bytes));
    KU_TRY(ku_file_read(f, e->at, work->file.data, e->bytes, work->why, sizeof work->why));
    *label = e->label;
    return ku_image_decode(work, e->bytes, out);
}

/* The member's name is in the 512-byte header before its data. */
static void tar_name(const struct ku_image_store *s, int64_t i, char *text, size_t bytes)
{
    const struct ku_file *f;
    const struct ku_tar_entry *e = entry_of(s, i, &f);
    char name[101] = "", why[160];
    if (ku_file_read(f, e->at - 512, name, 100, why, sizeof why) < 0)
        name[0] = '\0';
    for (char *c = name; *c; c++)
        *c = (unsigned char)*c < ' ' ? '?' : *c;
    snprintf(text, bytes, "%s: byte %llu: %s", f->name, (unsigned long long)e->at, name);
}

static const struct ku_image_store_ops tar_ops = {tar_close, tar_read, tar_name, ku_store_identify};

static int add_shard(struct tar *x, const struct ku_image_source *src, struct ku_cache *cache,
                     const char *name)
{
    uint32_t k = x->store.n_parts;
    KU_TRY(KU_GROW(&x->index, k, &x->cap_index));
    KU_TRY(ku_store_add(&x->store, name, "a tar shard"));
    struct ku_tar_index *index = &x->index[k];
    KU_TRY(ku_tar_cached(&x->store.part[k].file, cache, &src->opts->progress, index));
    for (uint32_t i = 0; i < index->n; i++)
        KU_TRY(ku_label_check(src, name, i, index->entry[i].label));
    x->store.n += index->n;
    return KUMI_OK;
}

static int open_all(struct tar *x, const struct ku_image_source *src, const struct ku_files *files)
{
    struct ku_cache cache;
    KU_TRY(ku_input_cache(src->opts->cache, &cache));
    int status = KUMI_OK;
    for (uint32_t i = 0; i < files->n && status == KUMI_OK; i++)
        status = add_shard(x, src, &cache, files->name[i]);
    ku_free(cache.path);
    return status;
}

int ku_tar_open(const struct ku_image_source *src, struct ku_image_store **out)
{
    struct ku_files files = {0};
    struct tar *x = ku_calloc(1, sizeof *x);
    if (!x)
        return KUMI_ENOMEM;
    x->store = (struct ku_image_store){.ops = &tar_ops, .c = 3, .dtype = KUMI_U8};
    int status = ku_files_add(&files, src->path, src->n_paths);
    if (status == KUMI_OK)
        status = open_all(x, src, &files);
    ku_files_fini(&files);
    return ku_store_opened(&x->store, status, out);
}
