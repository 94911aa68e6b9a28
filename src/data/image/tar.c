/* SPDX-License-Identifier: Apache-2.0 */
#include "data/image/tar.h"

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "data/input_file.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/*
 * WebDataset shards, with a cached index of where each sample lies. The index is in the cache
 * folder as tar-<hash of device and inode>.idx; its file lock also serializes its construction. It
 * is valid while length, mtime and ctime of the shard are unchanged. It is written only if those
 * times are at least 2 s old, because a file system with coarse time stamps could hide a later
 * change. A checksum detects a truncated index, which is rebuilt.
 */
enum { POLL_NS = 20000000 };
static const int64_t settled_ns = INT64_C(2000000000);

struct header {
    char magic[8];
    uint64_t bytes, mtime_ns, ctime_ns, device, inode, n, hash;
};
_Static_assert(sizeof(struct header) == 64, "no padding in a file's header");

struct tar {
    struct ku_image_store store;
    struct ku_tar_index *index; /* of each part */
    uint32_t cap_index;
};

static int64_t ns_of(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static struct header header_of(const struct stat *st)
{
    return (struct header){.magic = {'k', 'u', 'm', 'i', 't', 'a', 'r', '1'},
                           .bytes = htole64((uint64_t)st->st_size),
                           .mtime_ns = htole64((uint64_t)ns_of(st->st_mtim)),
                           .ctime_ns = htole64((uint64_t)ns_of(st->st_ctim)),
                           .device = htole64((uint64_t)st->st_dev),
                           .inode = htole64((uint64_t)st->st_ino)};
}

/* Converts entries between host and file byte order, in either direction. */
static void swap_entries(struct ku_tar_index *x)
{
    for (uint32_t i = 0; i < x->n; i++) {
        x->entry[i].at = htole64(x->entry[i].at);
        x->entry[i].bytes = htole32(x->entry[i].bytes);
        x->entry[i].label = (int32_t)htole32((uint32_t)x->entry[i].label);
    }
}

/* Reads the index; returns 1 if it exists and is valid, 0 if not, or ENOMEM. */
static int read_index(int fd, const struct stat *shard, struct ku_tar_index *out)
{
    struct header want = header_of(shard), h;
    struct stat st;
    if (ku_os_fstat(fd, &st) < 0 || ku_os_pread_full(fd, &h, sizeof h, 0) != (ssize_t)sizeof h ||
        memcmp(&h, &want, offsetof(struct header, n)) != 0)
        return 0;
    uint64_t n = le64toh(h.n);
    if (n == 0 || n > UINT32_MAX || (uint64_t)st.st_size != sizeof h + n * sizeof *out->entry)
        return 0;
    struct ku_tar_index x = {ku_malloc(n * sizeof *x.entry), (uint32_t)n, (uint32_t)n};
    if (!x.entry)
        return KUMI_ENOMEM;
    size_t bytes = n * sizeof *x.entry;
    if (ku_os_pread_full(fd, x.entry, bytes, sizeof h) != (ssize_t)bytes ||
        ku_hash64(x.entry, bytes) != le64toh(h.hash)) {
        ku_free(x.entry);
        return 0;
    }
    swap_entries(&x);
    *out = x;
    return 1;
}

static void write_index(int fd, const char *path, const struct stat *shard, struct timespec before,
                        struct ku_tar_index *x)
{
    int64_t settled = ns_of(before) - settled_ns;
    if (ns_of(shard->st_mtim) > settled || ns_of(shard->st_ctim) > settled)
        return;
    struct header h = header_of(shard);
    size_t bytes = x->n * sizeof *x->entry;
    swap_entries(x);
    h.n = htole64(x->n);
    h.hash = htole64(ku_hash64(x->entry, bytes));
    if (ku_os_ftruncate(fd, 0) < 0 || ku_os_pwrite_full(fd, x->entry, bytes, sizeof h) < 0 ||
        ku_os_pwrite_full(fd, &h, sizeof h, 0) < 0)
        KU_LOG(DATA, WARN, "cache: %s: %s; the shard will be indexed again", path, ku_os_why());
    swap_entries(x);
}

/* Opens and locks the index. *fd = -1 if that is not possible. */
static int lock_index(const char *cache, const char *path, const struct ku_file *f,
                      const struct ku_progress *progress, int *fd)
{
    *fd = ku_os_mkdirs(cache) == 0 ? ku_os_open(path, O_RDWR | O_CREAT, 0644) : -1;
    while (*fd >= 0 && ku_os_lock(*fd) < 0) {
        if (errno != EWOULDBLOCK) {
            ku_os_close(*fd);
            *fd = -1;
            break;
        }
        int status = ku_progress_call(progress, f->name, 0, 0);
        if (status < 0) {
            ku_os_close(*fd);
            return status;
        }
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
    if (*fd < 0)
        KU_LOG(DATA, WARN, "cache: %s: %s; shards are indexed at every start", path, ku_os_why());
    return KUMI_OK;
}

int ku_tar_cached(const struct ku_file *f, const char *cache, const struct ku_progress *progress,
                  struct ku_tar_index *out)
{
    struct stat st;
    struct timespec before;
    int fd = -1, status;
    if (!cache)
        return ku_tar_walk(f, progress, out);
    if (ku_os_stat(f->name, &st) < 0)
        return KU_ERR(KUMI_EINPUT, "data: %s: %s; do not change it while it is in use", f->name,
                      ku_os_why());
    uint64_t name = ku_hash64_mix((uint64_t)st.st_dev, (uint64_t)st.st_ino);
    char *path = ku_asprintf("%s/tar-%016llx.idx", cache, (unsigned long long)name);
    if (!path)
        return KUMI_ENOMEM;
    status = lock_index(cache, path, f, progress, &fd);
    if (status == KUMI_OK && fd >= 0)
        status = read_index(fd, &st, out);
    if (status == 0) {
        clock_gettime(CLOCK_REALTIME, &before);
        status = ku_tar_walk(f, progress, out);
        if (status == KUMI_OK && fd >= 0)
            write_index(fd, path, &st, before, out);
    }
    if (fd >= 0)
        ku_os_close(fd); /* also releases the lock */
    ku_free(path);
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

static int add_shard(struct tar *x, const struct ku_image_source *src, const char *cache,
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
    char *cache = NULL;
    KU_TRY(ku_input_cache(src->opts->cache, &cache));
    int status = KUMI_OK;
    for (uint32_t i = 0; i < files->n && status == KUMI_OK; i++)
        status = add_shard(x, src, cache, files->name[i]);
    ku_free(cache);
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
