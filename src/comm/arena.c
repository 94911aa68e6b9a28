/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/arena.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/os/guard.h"
#include "base/os/os.h"
#include "base/os/ipc.h"
#include "comm/private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE_BYTES = 4096, HUGE_BYTES = 2 * 1024 * 1024 };

static int round_up(size_t bytes, size_t to, size_t *out)
{
    if (bytes > SIZE_MAX / 4)
        return KU_ERR(KUMI_ENOMEM, "arena: %zu bytes: more than an address space holds", bytes);
    *out = (bytes + to - 1) / to * to;
    return 0;
}

static int lay_out(struct ku_arena *a, int n_local, size_t common, size_t part)
{
    size_t stride = 0, parts = 0, head = 0;
    KU_TRY(round_up(common, PAGE_BYTES, &a->common_bytes));
    KU_TRY(round_up(part, PAGE_BYTES, &a->part_bytes));
    KU_TRY(round_up(part, part >= HUGE_BYTES ? HUGE_BYTES : PAGE_BYTES, &stride));
    KU_TRY(round_up(common, part >= HUGE_BYTES || common >= HUGE_BYTES ? HUGE_BYTES : PAGE_BYTES,
                    &head));
    if (__builtin_mul_overflow(stride, (size_t)n_local, &parts) ||
        __builtin_add_overflow(parts, head, &a->bytes) || a->bytes > (size_t)1 << 47)
        return KU_ERR(KUMI_ENOMEM,
                      "arena: %zu bytes for each of %d ranks: more than an address space holds",
                      part, n_local);
    a->n_local = n_local;
    a->part_off = head;
    a->part_stride = stride;
    if (!a->bytes)
        a->bytes = PAGE_BYTES;
    KU_ASSERT(a->common_bytes <= a->part_off && a->part_bytes <= a->part_stride);
    KU_ASSERT(a->part_off + a->part_stride * (size_t)n_local <= a->bytes);
    return 0;
}

static int map_fd(struct ku_arena *a, const char *name, int fd)
{
    a->base = ku_os_map_memfd(fd, a->bytes);
    return a->base ? 0
                   : KU_ERR(KUMI_ENOMEM, "arena %s: mapping %zu bytes: %s", name, a->bytes,
                            strerror(errno));
}

/*
 * Receive the descriptor from rank 0. Checks the other ranks while it waits.
 */
static int receive_fd(struct ku_job *job, uint32_t id, int *fd)
{
    uint32_t got;
    int64_t waited_ns = 0;
    while (ku_os_local_recv(job->priv->socket[0], &got, sizeof got, fd, KU_SLEEP_NS) < 0) {
        int why = errno;
        waited_ns += KU_SLEEP_NS;
        KU_TRY(ku_job_look(job, NULL));
        if (waited_ns > job->priv->timeout_ns) {
            KU_ERR_SCOPE(KUMI_ETIMEDOUT, KUMI_SCOPE_JOB,
                         "time-out: rank %d: did not hand out the shared memory", job->first_rank);
            return ku_job_raise(job, job->first_rank);
        }
        if (why != EAGAIN)
            return KU_ERR(why == ECONNRESET || why == EPIPE ? KUMI_EPEER : KUMI_ENOMEM,
                          "arena: descriptor from rank %d: %s", job->first_rank, strerror(why));
    }
    if (got != id || *fd < 0)
        return KU_ERR(KUMI_EMISMATCH, "arena: descriptor %u from rank %d, expected %u", got,
                      job->first_rank, id);
    return 0;
}

/* Local rank 0 creates the memory and sends its descriptor; the others map it. */
static int share(struct ku_job *job, struct ku_arena *a, const char *name)
{
    char label[64];
    size_t bytes = 0;
    int fd = -1, status = 0;
    snprintf(label, sizeof label, "kumi-%s", name);
    if (job->local_rank == 0) {
        fd = ku_os_memfd_sealed(label, a->bytes);
        if (fd < 0) {
            snprintf(label, sizeof label, "arena %s", name);
            return ku_segment_refused(label, a->bytes);
        }
        for (int r = 1; r < job->priv->n_sockets && !status; r++)
            if (ku_os_local_send(job->priv->socket[r], &a->id, sizeof a->id, fd) < 0)
                status = KU_ERR(errno == EPIPE || errno == ECONNRESET ? KUMI_EPEER : KUMI_ENOMEM,
                                "arena %s: handing it to rank %d: %s", name, job->first_rank + r,
                                strerror(errno));
    } else {
        KU_TRY(receive_fd(job, a->id, &fd));
        if (ku_os_memfd_check(fd, &bytes) < 0)
            status = KU_ERR(KUMI_ENOMEM, "arena %s: memory file from rank %d: %s", name,
                            job->first_rank, strerror(errno));
        else if (bytes != a->bytes)
            status = KU_ERR(KUMI_EMISMATCH, "arena %s: memory file of %zu bytes, expected %zu",
                            name, bytes, a->bytes);
    }
    if (!status)
        status = map_fd(a, name, fd);
    ku_os_close(fd);
    return status;
}

static int free_id(const struct ku_arenas *arenas, uint32_t *id)
{
    for (*id = 0; *id < KU_MAX_ARENAS; ++*id)
        if (!arenas->arena[*id].base)
            return 0;
    return KU_ERR(KUMI_ENOMEM, "arena: all %d are in use; free memory that is no longer needed",
                  KU_MAX_ARENAS);
}

/* What the ranks do together; with its arguments it is the fingerprint */
enum arena_call { ALLOC, CHOSEN, GUARD, FREE, FREED };

/*
 * Compare the arguments of all ranks: sizes, or the id of an arena. As a barrier it also orders the
 * accesses of thread ranks to the table of arenas.
 */
static int agree(struct ku_job *job, enum arena_call what, uint64_t a, uint64_t b)
{
    enum { COUNT_BITS = 48 }; /* counts are limited to INT64_MAX / 8 / ranks */
    const uint64_t row[] = {(uint64_t)what, a, b};
    const uint64_t hash = ku_hash64(row, sizeof row);
    struct ku_coll coll = {.kind = KU_COLL_ARENA, .count = (int64_t)(hash >> (64 - COUNT_BITS))};
    return ku_comm_run_own(job->local, &coll);
}

/* Populate this rank's share from its own core (first touch). */
static void populate(const struct ku_job *job, const struct ku_arena *a)
{
    size_t each = a->common_bytes / (size_t)a->n_local;
    each -= each % (each >= HUGE_BYTES ? HUGE_BYTES : PAGE_BYTES);
    size_t from = each * (size_t)job->local_rank;
    size_t to = job->local_rank == a->n_local - 1 ? a->common_bytes : from + each;
    KU_ASSERT(from <= to && to <= a->common_bytes);
    ku_os_populate_memfd(a->base + from, to - from);
    ku_os_populate_memfd(ku_arena_part(a, job->local_rank), a->part_bytes);
}

/* With threads, rank 0 maps, guards and unmaps for all ranks. */
static bool is_mapper(const struct ku_job *job)
{
    return !job->priv->host->is_threads || job->local_rank == 0;
}

int ku_arena_create(struct ku_job *job, const char *name, size_t common_bytes, size_t part_bytes,
                    const struct ku_arena **arena)
{
    struct ku_arenas *all = job->comm->arenas;
    int is_threads = job->priv->host->is_threads;
    struct ku_arena a = {0};
    KU_TRY(lay_out(&a, job->local_n, common_bytes, part_bytes));
    KU_TRY(agree(job, ALLOC, common_bytes, part_bytes));
    /* equal on all ranks, because create and destroy are collective */
    KU_TRY(free_id(all, &a.id));
    KU_ASSERT(a.id < KU_MAX_ARENAS);
    int makes = is_mapper(job);
    if (is_threads) /* all have chosen the id before rank 0 fills the entry */
        KU_TRY(agree(job, CHOSEN, a.id, 0));
    int status = makes ? share(job, &a, name) : 0;
    if (status < 0)
        return job->n > 1 ? ku_job_raise(job, job->rank) : status;
    if (makes) {
        all->arena[a.id] = a;
        if (all->n <= (int)a.id)
            all->n = (int)a.id + 1;
    }
    status = agree(job, ALLOC, common_bytes, part_bytes);
    if (status < 0)
        return status;
    KU_ASSERT(all->arena[a.id].base && all->arena[a.id].bytes == a.bytes && (int)a.id < all->n);
    populate(job, &all->arena[a.id]);
    *arena = &all->arena[a.id];
    return agree(job, ALLOC, common_bytes, part_bytes);
}

int ku_arena_guard(struct ku_job *job, const struct ku_arena *arena)
{
    struct ku_arena *a = &job->comm->arenas->arena[arena->id];
    int status = is_mapper(job) ? ku_guard_create(a->base, a->bytes, &a->guard) : KUMI_OK;
    if (status < 0)
        return job->n > 1 ? ku_job_raise(job, job->rank) : status;
    return agree(job, GUARD, a->id, 0);
}

int ku_arena_destroy(struct ku_job *job, const struct ku_arena *arena)
{
    struct ku_arenas *all = job->comm->arenas;
    if (!arena)
        return 0;
    uint32_t id = arena->id;
    KU_ASSERT(arena == &all->arena[id] && arena->base);
    int status = agree(job, FREE, id, 0);
    if (status < 0)
        return status;
    if (is_mapper(job)) {
        ku_guard_destroy(all->arena[id].guard);
        ku_os_munmap(all->arena[id].base, all->arena[id].bytes);
        all->arena[id] = (struct ku_arena){0};
    }
    return agree(job, FREED, id, 0);
}
