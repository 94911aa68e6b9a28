/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/residual.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "tensor/blocks.h"

enum { HEAD_BYTES = 4096, PAGE_BYTES = 4096 };
static const uint64_t MAGIC = UINT64_C(0x315345525350554b); /* "KUPSRES1" */

struct head {
    uint64_t magic, layout, worker, slot_bytes;
    struct {
        int64_t step;
        uint64_t sum;
    } slot[2];
};
_Static_assert(sizeof(struct head) == 64, "no padding");

struct ku_remote_residual {
    const struct ku_remote_layout *layout;
    int worker;
    char *path; /* NULL: in memory */
    int fd;
    size_t *at;    /* [n_push] first element in a slot */
    uint64_t *sum; /* [n_push] of the step */
    uint32_t n_tensors, n_noted;
    size_t slot_bytes;
    struct head *head; /* the mapping */
    int from;          /* slot that the step reads */
    int64_t step;      /* under way; -1: none yet */
};

static size_t slot_bytes_of(const struct ku_remote_layout *l, size_t *at, uint32_t *n)
{
    size_t count = 0;
    *n = 0;
    for (uint32_t i = 0; i < l->n_push; i++) {
        if (l->push[i].form == KU_REMOTE_DENSE)
            continue;
        if (at)
            at[i] = count;
        count += (size_t)l->push[i].count;
        ++*n;
    }
    return (count * sizeof(float) + PAGE_BYTES - 1) & ~(size_t)(PAGE_BYTES - 1);
}

size_t ku_remote_residual_bytes(const struct ku_remote_layout *l)
{
    uint32_t n;
    return 2 * slot_bytes_of(l, NULL, &n);
}

static float *slot_of(const struct ku_remote_residual *r, int slot)
{
    return (float *)(void *)((char *)r->head + HEAD_BYTES + (size_t)slot * r->slot_bytes);
}

static int cannot(const char *path, const char *what)
{
    return KU_ERR(ku_os_status(KUMI_ESTORAGE), "ps: %s: cannot be %s: %s", path, what, ku_os_why());
}

static int map(struct ku_remote_residual *r)
{
    const size_t bytes = HEAD_BYTES + 2 * r->slot_bytes;
    struct stat st;
    if (r->path) {
        r->fd = ku_os_open(r->path, O_RDWR | O_CREAT, 0600);
        if (r->fd < 0 || ku_os_fstat(r->fd, &st) < 0)
            return cannot(r->path, "opened");
        if ((size_t)st.st_size != bytes && ku_os_ftruncate(r->fd, 0) < 0)
            return cannot(r->path, "changed");
        if (ku_os_allocate(r->fd, (off_t)bytes) < 0) /* no SIGBUS later */
            return cannot(r->path, "written");
    }
    r->head = ku_os_mmap(bytes, PROT_READ | PROT_WRITE,
                         r->path ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, r->fd, 0);
    if (r->head == NULL)
        return KU_ERR(KUMI_ENOMEM, "ps: worker %d: %zu bytes of error feedback: %s", r->worker,
                      bytes, ku_os_why());
    struct head *h = r->head;
    if (h->magic == MAGIC && h->layout == r->layout->checksum && h->worker == (uint64_t)r->worker &&
        h->slot_bytes == r->slot_bytes)
        return KUMI_OK;
    *h = (struct head){.magic = MAGIC,
                       .layout = r->layout->checksum,
                       .worker = (uint64_t)r->worker,
                       .slot_bytes = r->slot_bytes,
                       .slot = {{.step = -1}, {.step = -1}}};
    return KUMI_OK;
}

int ku_remote_residual_open(const struct ku_remote_layout *l, int worker, const char *dir,
                            struct ku_remote_residual **out)
{
    struct ku_remote_residual *r = ku_calloc(1, sizeof *r);
    if (r == NULL)
        return KUMI_ENOMEM;
    *r = (struct ku_remote_residual){.layout = l, .worker = worker, .fd = -1, .step = -1};
    r->at = ku_calloc(l->n_push + 1, sizeof *r->at);
    r->sum = ku_calloc(l->n_push + 1, sizeof *r->sum);
    if (dir)
        r->path = ku_asprintf("%s/worker-%d.residual", dir, worker);
    int status = r->at && r->sum && (r->path || dir == NULL) ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK)
        r->slot_bytes = slot_bytes_of(l, r->at, &r->n_tensors);
    if (status == KUMI_OK && dir && ku_os_mkdirs(dir) < 0)
        status = cannot(dir, "made");
    if (status == KUMI_OK)
        status = map(r);
    if (status < 0) {
        const struct kumi_error error = *ku_err_get();
        ku_remote_residual_close(r);
        return ku_err_put(&error);
    }
    *out = r;
    return KUMI_OK;
}

void ku_remote_residual_close(struct ku_remote_residual *r)
{
    if (r == NULL)
        return;
    if (r->head)
        ku_os_munmap(r->head, HEAD_BYTES + 2 * r->slot_bytes);
    if (r->fd >= 0)
        ku_os_close(r->fd);
    ku_free(r->path);
    ku_free(r->at);
    ku_free(r->sum);
    ku_free(r);
}

const float *ku_remote_residual_before(const struct ku_remote_residual *r, uint32_t i)
{
    return slot_of(r, r->from) + r->at[i];
}

float *ku_remote_residual_after(const struct ku_remote_residual *r, uint32_t i)
{
    return slot_of(r, !r->from) + r->at[i];
}

static uint64_t sum_all(const struct ku_remote_residual *r, const uint64_t *sum)
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < r->layout->n_push; i++)
        if (r->layout->push[i].form != KU_REMOTE_DENSE)
            h = ku_hash64_mix(h, sum[i]);
    return h;
}

/* Whether a slot's elements are those of its checksum: chunk sums, mixed, as the worker notes. */
static bool is_whole(const struct ku_remote_residual *r, int slot)
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < r->layout->n_push; i++) {
        const struct ku_remote_entry *x = &r->layout->push[i];
        uint64_t sum = 0;
        if (x->form == KU_REMOTE_DENSE)
            continue;
        for (int64_t at = 0; at < x->count; at += KU_BLOCK_COUNT) {
            const int64_t left = x->count - at, n = left < KU_BLOCK_COUNT ? left : KU_BLOCK_COUNT;
            sum = ku_hash64_mix(
                sum, ku_hash64(slot_of(r, slot) + r->at[i] + at, (size_t)n * sizeof(float)));
        }
        h = ku_hash64_mix(h, sum);
    }
    return h == r->head->slot[slot].sum;
}

void ku_remote_residual_note(struct ku_remote_residual *r, uint32_t i, uint64_t sum)
{
    r->sum[i] = sum;
    if (++r->n_noted < r->n_tensors)
        return;
    r->head->slot[!r->from].sum = sum_all(r, r->sum);
    atomic_thread_fence(memory_order_release); /* a kill keeps the order of stores */
    *(volatile int64_t *)&r->head->slot[!r->from].step = r->step;
}

/* Loads a saved residual into slot 0; false: there is none for the step, or it is damaged. */
static bool load(struct ku_remote_residual *r, int64_t step)
{
    struct head h;
    char *path = r->path ? ku_asprintf("%s.%lld", r->path, (long long)step) : NULL;
    const int fd = path ? ku_os_open(path, O_RDONLY, 0) : -1;
    bool is_loaded = false;
    ku_free(path);
    if (fd < 0)
        return false;
    r->head->slot[0].step = -1;
    if (ku_os_pread_full(fd, &h, sizeof h, 0) == (ssize_t)sizeof h && h.magic == MAGIC &&
        h.layout == r->layout->checksum && h.worker == (uint64_t)r->worker &&
        h.slot_bytes == r->slot_bytes && h.slot[0].step == step - 1 &&
        ku_os_pread_full(fd, slot_of(r, 0), r->slot_bytes, HEAD_BYTES) == (ssize_t)r->slot_bytes) {
        r->head->slot[0].sum = h.slot[0].sum;
        is_loaded = is_whole(r, 0);
    }
    ku_os_close(fd);
    if (is_loaded)
        r->head->slot[0].step = step - 1;
    return is_loaded;
}

/* The slot that follows step - 1, else -1. */
static int find_slot(const struct ku_remote_residual *r, int64_t step)
{
    for (int i = 0; i < 2; i++)
        if (step > 0 && r->head->slot[i].step == step - 1 && is_whole(r, i))
            return i;
    return -1;
}

/* The first step of this process. */
static void find(struct ku_remote_residual *r, int64_t step, char text[200])
{
    int slot = find_slot(r, step);
    if (slot < 0 && step > 0 && load(r, step))
        slot = 0;
    r->from = slot < 0 ? 0 : slot;
    r->head->slot[!r->from].step = -1;
    if (slot >= 0)
        return;
    r->head->slot[0].step = -1;
    memset(slot_of(r, 0), 0, r->slot_bytes);
    if (step > 0)
        snprintf(text, 200,
                 "worker %d: no error feedback of step %lld%s: it begins with zeros, and results "
                 "do not continue bit for bit",
                 r->worker, (long long)step - 1, r->path ? " in the run directory" : "");
}

void ku_remote_residual_begin(struct ku_remote_residual *r, int64_t step, char text[200])
{
    text[0] = '\0';
    if (r->step < 0)
        find(r, step, text);
    else if (r->n_noted == r->n_tensors) /* the step before is complete */
        r->from = !r->from;
    r->step = step;
    r->n_noted = 0;
    *(volatile int64_t *)&r->head->slot[!r->from].step = -1;
    atomic_thread_fence(memory_order_release);
}

/* -- saved with checkpoints ------------------------------------------------------------------- */

static int write_saved(const struct ku_remote_residual *r, int fd)
{
    char page[HEAD_BYTES] = {0};
    struct head h = *r->head;
    h.slot[0].step = r->step - 1;
    h.slot[0].sum = r->head->slot[r->from].sum;
    memcpy(page, &h, sizeof h);
    if (ku_os_write_full(fd, page, sizeof page) < 0 ||
        ku_os_write_full(fd, slot_of(r, r->from), r->slot_bytes) < 0 || ku_os_fsync(fd) < 0)
        return -1;
    return 0;
}

static int compare(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Removes saved residuals but the newest `keep`. A failure wastes disk space alone. */
static void prune(const struct ku_remote_residual *r, int keep)
{
    const char *base = strrchr(r->path, '/') + 1;
    char *dir = ku_asprintf("%.*s", (int)(base - 1 - r->path), r->path), **names;
    int n = 0, n_saved = 0;
    if (dir == NULL || ku_os_list(dir, &names, &n) < 0) {
        ku_free(dir);
        return;
    }
    int64_t *step = ku_calloc((size_t)n + 1, sizeof *step);
    for (int i = 0; i < n && step; i++) {
        const size_t bytes = strlen(base);
        char *end = NULL;
        if (strncmp(names[i], base, bytes) != 0 || names[i][bytes] != '.')
            continue;
        const int64_t at = strtoll(names[i] + bytes + 1, &end, 10);
        if (*end == '\0')
            step[n_saved++] = at;
    }
    if (step)
        qsort(step, (size_t)n_saved, sizeof *step, compare);
    for (int i = keep; i < n_saved; i++) {
        char *path = ku_asprintf("%s.%lld", r->path, (long long)step[i]);
        if (path)
            ku_os_unlink(path);
        ku_free(path);
    }
    ku_free(step);
    ku_free(names);
    ku_free(dir);
}

int ku_remote_residual_save(struct ku_remote_residual *r, int keep)
{
    char *path, *name = NULL;
    int status = KUMI_OK;
    if (r->path == NULL)
        return KUMI_OK;
    path = ku_asprintf("%s.%lld", r->path, (long long)r->step);
    if (path == NULL)
        return KUMI_ENOMEM;
    const int fd = ku_os_temporary(path, 0, &name);
    if (fd < 0 || fchmod(fd, 0600) < 0 || write_saved(r, fd) < 0 || ku_os_rename(name, path) < 0)
        status = cannot(path, "written");
    if (status < 0 && name)
        ku_os_unlink(name);
    if (fd >= 0)
        ku_os_close(fd);
    if (status == KUMI_OK && keep > 0)
        prune(r, keep);
    ku_free(name);
    ku_free(path);
    return status;
}
