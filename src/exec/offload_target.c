/* SPDX-License-Identifier: Apache-2.0 */
#include "exec/offload_target.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "comm/coll.h"

enum { SLICE_NS = 1000000 /* max wait between two checks of the job */ };

struct ku_offload_file {
    struct ku_job *job;
    char *path;
    int fd, direct_fd; /* direct_fd bypasses the page cache; -1: not supported */
    size_t part_bytes;
    struct ku_aio *aio;
    uint64_t moved_bytes; /* that progress was reported for */
    /* so far, for the log */
    struct {
        uint64_t read_bytes, written_bytes;
        int64_t wait_ns;
    } stats;
};

static int storage_error(const char *path, const char *what)
{
    return KU_ERR(ku_os_status(KUMI_ESTORAGE), "offload: %s: %s: %s; the last checkpoint is intact",
                  path, what, ku_os_why());
}

/* Gets the space of the folder, and creates it if only its last component is missing. */
static int find_folder(const char *path, struct ku_os_space *space)
{
    int failed = ku_os_space(path, space) < 0;
    if (failed && errno == ENOENT && (ku_os_mkdir(path, 0777) == 0 || errno == EEXIST))
        failed = ku_os_space(path, space) < 0;
    else if (failed && errno == ENOENT)
        return KU_ERR(
            KUMI_ESTORAGE,
            "offload: %s: the folder that should contain it does not exist; create it, or "
            "name another folder in memory.offload.path",
            path);
    return failed ? KU_ERR(KUMI_ESTORAGE,
                           "offload: %s: %s; memory.offload.path must name a folder on a disk",
                           path, ku_os_why())
                  : KUMI_OK;
}

/*
 * Creates the file and reserves its space. Called by one rank per host.
 */
static int make(const struct ku_offload_file *f, size_t bytes, int *fd)
{
    struct ku_os_space space;
    double gib = 0x1p-30;
    KU_TRY(find_folder(f->path, &space));
    if (space.is_memory)
        KU_LOG(EXEC, WARN,
               "offload: %s: is on tmpfs, which is memory; set memory.offload.path to a folder on "
               "a disk",
               f->path);
    if (space.free_bytes < bytes)
        return KU_ERR(KUMI_ESTORAGE,
                      "offload: %s: %d rank%s need %.2f GiB, %.2f GiB are free; make room, or name "
                      "another folder in memory.offload.path",
                      f->path, f->job->local_n, f->job->local_n == 1 ? "" : "s",
                      (double)bytes * gib, (double)space.free_bytes * gib);
    *fd = ku_os_open_anonymous(f->path);
    if (*fd < 0)
        return KU_ERR(KUMI_ESTORAGE,
                      "offload: %s: making a file: %s; memory.offload.path must name a "
                      "writable folder",
                      f->path, ku_os_why());
    if (ku_os_allocate(*fd, (off_t)bytes) < 0) {
        int status = storage_error(f->path, "reserving space");
        ku_os_close(*fd);
        *fd = -1;
        return status;
    }
    return KUMI_OK;
}

/* Broadcasts where the first rank has the file open: {pid, descriptor}. */
static int tell(struct ku_job *job, int64_t place[2])
{
    if (job->local_n == 1)
        return KUMI_OK;
    struct ku_coll coll = {.kind = KU_COLL_BROADCAST,
                           .dtype = KUMI_I64,
                           .wire = KUMI_I64,
                           .name = "offload",
                           .in = place,
                           .out = place,
                           .count = 2};
    return ku_coll_run(job->local, &coll);
}

/* Barrier: the first rank closes its descriptor after all ranks have opened the file. */
static int all_have(struct ku_job *job)
{
    struct ku_coll coll = {.kind = KU_COLL_BARRIER, .name = "offload"};
    return job->local_n == 1 ? KUMI_OK : ku_coll_run(job->local, &coll);
}

static int fail(struct ku_job *job, int status)
{
    return status < 0 && job->n > 1 ? ku_job_fail(job) : status;
}

static int open_file(struct ku_offload_file *f, enum ku_aio_kind io)
{
    int made = -1, status = KUMI_OK, is_first = f->job->local_rank == 0;
    if (is_first)
        status = make(f, f->part_bytes * (size_t)f->job->local_n, &made);
    if (status == KUMI_OK)
        status = ku_aio_create(io, &f->aio);
    KU_TRY_OUT(fail(f->job, status));
    int64_t place[2] = {getpid(), made};
    KU_TRY_OUT(tell(f->job, place));
    f->fd = ku_os_reopen((pid_t)place[0], (int)place[1], O_RDWR);
    if (f->fd < 0)
        status = storage_error(f->path, "opening the first rank's file");
    f->direct_fd = ku_os_reopen((pid_t)place[0], (int)place[1], O_RDWR | O_DIRECT);
    KU_TRY_OUT(fail(f->job, status));
    KU_TRY_OUT(all_have(f->job));
    if (is_first)
        KU_LOG(EXEC, INFO, "offload: %s: %zu bytes for each of %d ranks, by %s%s", f->path,
               f->part_bytes, f->job->local_n, ku_aio_name(f->aio),
               f->direct_fd < 0 ? ", through the page cache" : "");
out:
    if (made >= 0)
        ku_os_close(made);
    return status;
}

int ku_offload_file_open(struct ku_job *job, const struct ku_offload_file_opts *o,
                         size_t part_bytes, struct ku_offload_file **out)
{
    struct ku_offload_file *f = ku_calloc(1, sizeof *f);
    int status = f ? KUMI_OK : KUMI_ENOMEM;
    if (f) {
        *f = (struct ku_offload_file){
            .job = job, .fd = -1, .direct_fd = -1, .part_bytes = part_bytes};
        f->path = ku_strdup(o->path);
        status = f->path ? open_file(f, o->io) : KUMI_ENOMEM;
    }
    if (status < 0) {
        ku_offload_file_close(f);
        return status;
    }
    *out = f;
    return KUMI_OK;
}

void ku_offload_file_close(struct ku_offload_file *f)
{
    if (f == NULL)
        return;
    if (f->stats.read_bytes || f->stats.written_bytes)
        KU_LOG(EXEC, INFO, "offload: rank %d read %.3f GiB, wrote %.3f GiB, waited %.3f s",
               f->job->rank, (double)f->stats.read_bytes * 0x1p-30,
               (double)f->stats.written_bytes * 0x1p-30, (double)f->stats.wait_ns * 1e-9);
    ku_aio_destroy(f->aio);
    if (f->direct_fd >= 0)
        ku_os_close(f->direct_fd);
    if (f->fd >= 0)
        ku_os_close(f->fd);
    ku_free(f->path);
    ku_free(f);
}

int ku_offload_file_move(const struct ku_offload_file *f, int local_rank, int is_write, uint64_t at,
                         void *data, size_t bytes)
{
    off_t from = (off_t)((uint64_t)local_rank * f->part_bytes + at);
    if (is_write)
        return ku_os_pwrite_full(f->fd, data, bytes, from) < 0 ? storage_error(f->path, "writing")
                                                               : KUMI_OK;
    ssize_t n = ku_os_pread_full(f->fd, data, bytes, from);
    if (n >= 0 && (size_t)n < bytes)
        errno = EIO;
    return n < 0 || (size_t)n < bytes ? storage_error(f->path, "reading") : KUMI_OK;
}

void ku_transfer_start(struct ku_transfer *t)
{
    for (int i = 0; i < t->n; i++) {
        struct ku_offload_part *p = &t->part[i];
        if (p->host) {
            memcpy(t->is_write ? p->host : p->staging, t->is_write ? p->staging : p->host,
                   p->bytes);
            continue;
        }
        struct ku_offload_file *f = t->file;
        p->op =
            (struct ku_aio_op){.fd = f->direct_fd >= 0 ? f->direct_fd : f->fd,
                               .is_write = t->is_write,
                               .data = p->staging,
                               .bytes = p->bytes,
                               .at = (off_t)((uint64_t)t->job->local_rank * f->part_bytes + p->at)};
        *(t->is_write ? &f->stats.written_bytes : &f->stats.read_bytes) += p->bytes;
        ku_aio_start(f->aio, &p->op);
    }
    t->is_started = 1;
    ku_job_tick(t->job);
}

/*
 * Waits at most SLICE_NS for a part; returns 1 when it is done. Bytes of the file that moved
 * meanwhile are progress. Time alone is none: the deadline of the ranks that wait for this one ends
 * a job whose disk hangs.
 */
static int wait_part(const struct ku_transfer *t, struct ku_offload_part *p)
{
    if (p->host)
        return 1;
    struct ku_offload_file *f = t->file;
    const int is_done = ku_aio_wait(f->aio, &p->op, SLICE_NS);
    const uint64_t moved_bytes = ku_aio_moved_bytes(f->aio);
    if (moved_bytes != f->moved_bytes)
        ku_job_tick(t->job);
    f->moved_bytes = moved_bytes;
    return is_done;
}

void ku_transfer_end(struct ku_transfer *t)
{
    for (int i = 0; i < t->n && t->is_started; i++)
        while (!wait_part(t, &t->part[i]))
            ;
    t->is_started = 0;
}

int ku_transfer_wait(struct ku_transfer *t)
{
    int64_t begin = ku_clock_ns();
    int status = KUMI_OK, why = 0;
    for (int i = 0; i < t->n; i++) {
        struct ku_offload_part *p = &t->part[i];
        while (!wait_part(t, p))
            if (t->job->n > 1 && status == KUMI_OK)
                status = ku_job_check(t->job);
        why = why || p->host ? why : p->op.why;
    }
    t->is_started = 0;
    if (t->file)
        t->file->stats.wait_ns += ku_clock_ns() - begin;
    errno = why;
    if (why && status == KUMI_OK)
        status = fail(t->job, storage_error(t->file->path, t->is_write ? "writing" : "reading"));
    return status;
}
