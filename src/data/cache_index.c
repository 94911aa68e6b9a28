/* SPDX-License-Identifier: Apache-2.0 */
#include "data/cache_index.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { POLL_NS = 20000000, TOUCH_NS = 50000000, SETTLED_NS = 2000000000 };

struct header { /* little endian */
    char magic[8];
    uint64_t file_bytes, mtime_ns, ctime_ns, device, inode, bytes, hash;
};
_Static_assert(sizeof(struct header) == 64, "no padding in a file's header");

static int64_t ns_of(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static struct header header_of(const struct stat *st)
{
    return (struct header){.magic = {'k', 'u', 'm', 'i', 'i', 'd', 'x', '1'},
                           .file_bytes = htole64((uint64_t)st->st_size),
                           .mtime_ns = htole64((uint64_t)ns_of(st->st_mtim)),
                           .ctime_ns = htole64((uint64_t)ns_of(st->st_ctim)),
                           .device = htole64((uint64_t)st->st_dev),
                           .inode = htole64((uint64_t)st->st_ino)};
}

/* Locks the index, or closes it if its file system has no locks: two ranks could write one file. */
static int lock(struct ku_cache_index *x, const char *name)
{
    struct stat st;
    int64_t touched_ns = 0;
    uint64_t n_advances = 0;
    char what[512];
    while (x->fd >= 0 && !x->is_locked) {
        x->is_locked = ku_os_lock(x->fd) == 0;
        if (x->is_locked)
            break;
        if (errno != EWOULDBLOCK) {
            int why = errno;
            ku_os_close(x->fd);
            x->fd = -1;
            errno = why;
            break;
        }
        if (ku_os_fstat(x->fd, &st) == 0 && ns_of(st.st_mtim) != touched_ns) {
            touched_ns = ns_of(st.st_mtim);
            n_advances++;
        }
        snprintf(what, sizeof what, "waiting for another process that reads %.200s (lock %.200s)",
                 name, x->path);
        KU_TRY(ku_progress_call(&x->outer, what, n_advances, 0));
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
    return KUMI_OK;
}

int ku_cache_index_open(struct ku_cache_index *x, struct ku_cache *cache, const char *kind,
                        const struct ku_file *f, const struct ku_progress *progress)
{
    *x = (struct ku_cache_index){.fd = -1};
    if (progress)
        x->outer = *progress;
    if ((f->fd >= 0 ? ku_os_fstat(f->fd, &x->st) : ku_os_stat(f->name, &x->st)) < 0)
        return KU_ERR(KUMI_EINPUT, "data: %s: %s; check the storage", f->name, ku_os_why());
    x->place = ku_hash64_mix((uint64_t)x->st.st_dev, (uint64_t)x->st.st_ino);
    x->path = ku_asprintf("%s/%s-%016llx.idx", cache->path, kind, (unsigned long long)x->place);
    if (!x->path)
        return KUMI_ENOMEM;
    if (ku_os_mkdirs(cache->path) == 0)
        x->fd = ku_os_open(x->path, O_RDWR | O_CREAT, 0644);
    KU_TRY(lock(x, f->name));
    if (!x->is_locked) {
        if (!cache->has_warned && ku_err_get_rank() <= 0)
            KU_LOG(DATA, WARN, "cache: %s: %s; nothing is stored there", cache->path, ku_os_why());
        cache->has_warned = true;
        x->fd = ku_os_open(x->path, O_RDONLY, 0);
    }
    clock_gettime(CLOCK_REALTIME, &x->since);
    return KUMI_OK;
}

static int advance(void *ctx, const char *what, uint64_t done_bytes, uint64_t total_bytes)
{
    struct ku_cache_index *x = ctx;
    const int64_t now = ku_clock_ns();
    if (x->is_locked && now - x->touched_ns >= TOUCH_NS) {
        ku_os_touch(x->fd); /* failure is harmless: the others wait until their deadline */
        x->touched_ns = now;
    }
    return ku_progress_call(&x->outer, what, done_bytes, total_bytes);
}

struct ku_progress ku_cache_index_progress(struct ku_cache_index *x)
{
    return (struct ku_progress){advance, x};
}

void ku_cache_index_close(struct ku_cache_index *x)
{
    if (x->path && x->fd >= 0)
        ku_os_close(x->fd);
    ku_free(x->path);
    *x = (struct ku_cache_index){.fd = -1};
}

int ku_cache_index_read(const struct ku_cache_index *x, void **data, size_t *bytes)
{
    struct header want = header_of(&x->st), h;
    struct stat st;
    if (x->fd < 0 || ku_os_fstat(x->fd, &st) < 0 ||
        ku_os_pread_full(x->fd, &h, sizeof h, 0) != (ssize_t)sizeof h ||
        memcmp(&h, &want, offsetof(struct header, bytes)) != 0 ||
        le64toh(h.bytes) != (uint64_t)st.st_size - sizeof h)
        return 0;
    *bytes = (size_t)le64toh(h.bytes);
    *data = ku_malloc(*bytes);
    if (!*data)
        return KUMI_ENOMEM;
    if (ku_os_pread_full(x->fd, *data, *bytes, sizeof h) == (ssize_t)*bytes &&
        ku_hash64(*data, *bytes) == le64toh(h.hash))
        return 1;
    ku_free(*data);
    *data = NULL;
    return 0;
}

void ku_cache_index_write(const struct ku_cache_index *x, const void *data, size_t bytes)
{
    int64_t settled = ns_of(x->since) - SETTLED_NS;
    if (!x->is_locked || ns_of(x->st.st_mtim) > settled || ns_of(x->st.st_ctim) > settled)
        return;
    struct header h = header_of(&x->st);
    h.bytes = htole64(bytes);
    h.hash = htole64(ku_hash64(data, bytes));
    if (ku_os_ftruncate(x->fd, 0) < 0 || ku_os_pwrite_full(x->fd, data, bytes, sizeof h) < 0 ||
        ku_os_pwrite_full(x->fd, &h, sizeof h, 0) < 0)
        KU_LOG(DATA, WARN, "cache: %s: %s; the file will be read again", x->path, ku_os_why());
}
