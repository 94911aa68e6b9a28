/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Appending to a journal. Records are written at `end` with pwrite, so that what a failed write
 * left is overwritten by the next record.
 *
 * fsync is common to all that wait (group commit): the first one that waits syncs all records
 * appended so far, the others wait for it. With policy `group` it waits before that for more,
 * unless something depends on the sync that is not an acknowledgement.
 */
#include "ps/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "ps/journal_record.h"

/* A segment that is not the last one. */
struct closed {
    uint32_t number;
    int64_t clear; /* from this update on no push in it is awaited; -1: some are */
    int64_t *next; /* [n_workers] first step that is not in it; freed when it is clear */
};

struct ku_ps_journal {
    struct ku_ps_journal_opts o;
    char *dir;
    int fd;
    uint32_t file; /* number of the last segment */
    uint64_t salt, end;
    struct closed *closed;
    uint32_t n_closed, cap_closed;
    /* lock protects what follows, which waiting threads read, and the writing of `fd` and `file` */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t last, synced; /* numbers of records: written, on the disk */
    bool is_gathering;     /* a thread waits for more records before it syncs */
    bool is_urgent;        /* it does not wait any longer */
    bool is_syncing;
    bool is_retired; /* the file that is being synced is closed after that */
    int syncing_fd;
    uint32_t covered_first, covered_last; /* numbers of files to be removed; 0: none */
    int status; /* < 0: fsync has failed, and what is on the disk is unknown */
    struct kumi_error error;
};

int ku_ps_sync_parse(const char *text, enum ku_ps_sync *sync, int *group_ms)
{
    int ms = 0, bytes = 0;
    *group_ms = 0;
    if (strcmp(text, "every") == 0)
        *sync = KU_PS_SYNC_EVERY;
    else if (strcmp(text, "none") == 0)
        *sync = KU_PS_SYNC_NONE;
    else if (sscanf(text, "group:%5d%n", &ms, &bytes) == 1 && text[bytes] == '\0' && ms >= 1 &&
             ms <= 10000)
        *sync = KU_PS_SYNC_GROUP, *group_ms = ms;
    else
        return KU_ERR(
            KUMI_EINVAL,
            "--journal-sync: %.40s; give every, none, or group:MS with MS from 1 to 10000", text);
    return KUMI_OK;
}

static int cannot(const char *path, const char *what)
{
    return KU_ERR(ku_os_status(KUMI_ESTORAGE), "journal: %s: cannot be %s: %s", path, what,
                  ku_os_why());
}

static int cannot_last(const struct ku_ps_journal *j, const char *what)
{
    return KU_ERR(ku_os_status(KUMI_ESTORAGE), "journal: %s/%08u.journal: cannot be %s: %s", j->dir,
                  j->file, what, ku_os_why());
}

static int failure_of(struct ku_ps_journal *j)
{
    pthread_mutex_lock(&j->lock);
    const int status = j->status < 0 ? KU_ERR(j->status, "%s", j->error.text) : KUMI_OK;
    pthread_mutex_unlock(&j->lock);
    return status;
}

/*
 * fsync failed: nothing more is written or acknowledged. The system reports an error of writing
 * back once, so the next fsync of the same file would succeed without the data. lock is held.
 */
static int fail(struct ku_ps_journal *j)
{
    j->status = cannot_last(j, "synced");
    j->error = *ku_err_get();
    pthread_cond_broadcast(&j->changed);
    return j->status;
}

/* Records that are not yet synced, with the one that is written next */
static uint32_t n_unsynced(struct ku_ps_journal *j)
{
    if (j->o.sync == KU_PS_SYNC_NONE)
        return 0;
    pthread_mutex_lock(&j->lock);
    const uint64_t n = j->last + 1 - j->synced;
    pthread_mutex_unlock(&j->lock);
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX; /* more would state less */
}

/*
 * Writes the next record at an offset of a file, the head last: before that nothing there is valid.
 * Returns -1 with errno.
 */
static int write_record(struct ku_ps_journal *j, int fd, uint64_t at, uint64_t salt,
                        struct ku_ps_head *h, const void *body)
{
    h->magic = KU_PS_MAGIC;
    h->number = j->last + 1;
    h->unsynced = n_unsynced(j);
    h->salt = salt;
    h->sum = ku_ps_head_sum(h, body);
    KU_ASSERT(h->bytes <= KU_PS_MAX_BODY_BYTES);
    if (h->bytes && ku_os_pwrite_full(fd, body, h->bytes, (off_t)(at + sizeof *h)) < 0)
        return -1;
    return ku_os_pwrite_full(fd, h, sizeof *h, (off_t)at) < 0 ? -1 : 0;
}

static int append(struct ku_ps_journal *j, struct ku_ps_head *h, const void *body)
{
    KU_TRY(failure_of(j));
    if (write_record(j, j->fd, j->end, j->salt, h, body) < 0)
        return cannot_last(j, "written");
    pthread_mutex_lock(&j->lock);
    j->last++;
    pthread_mutex_unlock(&j->lock);
    j->end += sizeof *h + ku_ps_padded(h->bytes);
    return KUMI_OK;
}

/* The first record of a file; *bytes: of it. */
static int write_segment(struct ku_ps_journal *j, const char *path, int fd, uint64_t salt,
                         uint64_t *bytes)
{
    const struct ku_ps_identity *id = &j->o.identity;
    const struct ku_ps_ledger *l = j->o.ledger;
    const size_t words = KU_PS_SEGMENT_WORDS + 2 * (size_t)id->n_workers;
    uint64_t *body = ku_calloc(words, sizeof *body);
    int status = KUMI_OK;
    if (body == NULL)
        return KUMI_ENOMEM;
    body[0] = id->layout, body[1] = (uint64_t)id->n_servers, body[2] = id->is_sync;
    for (int w = 0; w < id->n_workers; w++) {
        body[KU_PS_SEGMENT_WORDS + 2 * w] = l->worker[w].incarnation;
        body[KU_PS_SEGMENT_WORDS + 2 * w + 1] = (uint64_t)l->worker[w].next;
    }
    struct ku_ps_head h = {.kind = KU_PS_SEGMENT,
                           .worker = KU_PS_FORMAT,
                           .a = (uint64_t)id->server,
                           .b = id->n_workers,
                           .c = (uint64_t)l->version,
                           .bytes = (uint32_t)(words * sizeof *body)};
    if (write_record(j, fd, 0, salt, &h, body) < 0)
        status = cannot(path, "written");
    *bytes = sizeof h + ku_ps_padded(h.bytes);
    ku_free(body);
    return status;
}

static uint64_t salt_of(const struct ku_ps_journal *j, uint32_t file)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const uint64_t word[] = {(uint64_t)now.tv_sec, (uint64_t)now.tv_nsec, (uint64_t)ku_clock_ns(),
                             (uint64_t)(uintptr_t)j, file};
    return ku_hash64(word, sizeof word);
}

/* Returns whether it is gone. */
static bool remove_file(const struct ku_ps_journal *j, uint32_t number)
{
    char *path = ku_ps_journal_file(j->dir, number);
    const bool is_gone = path && (ku_os_unlink(path) == 0 || errno == ENOENT);
    if (path && !is_gone)
        KU_LOG(TRAIN, WARN, "journal: %s: cannot be removed: %s", path, ku_os_why());
    ku_free(path);
    return is_gone;
}

/* Begins the segment after the last one. Failed: nothing has changed. */
static int begin_segment(struct ku_ps_journal *j)
{
    const uint32_t file = j->file + 1;
    const uint64_t salt = salt_of(j, file);
    uint64_t bytes = 0;
    char *path = ku_ps_journal_file(j->dir, file);
    if (path == NULL)
        return KUMI_ENOMEM;
    const int fd = ku_os_open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    int status = fd < 0 ? cannot(path, "created") : write_segment(j, path, fd, salt, &bytes);
    if (status == KUMI_OK && j->o.sync != KU_PS_SYNC_NONE && ku_os_fsync_dir(j->dir) < 0)
        status = cannot(j->dir, "synced");
    if (status == KUMI_OK) {
        pthread_mutex_lock(&j->lock); /* a sync takes both, or neither */
        j->fd = fd, j->file = file;
        j->last++;
        pthread_mutex_unlock(&j->lock);
        j->salt = salt, j->end = bytes;
    } else if (fd >= 0) {
        const struct kumi_error error = *ku_err_get();
        ku_os_close(fd);
        remove_file(j, file);
        ku_err_put(&error);
    }
    ku_free(path);
    return status;
}

/* Notes which pushes of the last segment are awaited, before another one follows. */
static int note_closed(struct ku_ps_journal *j, uint32_t file)
{
    const struct ku_ps_ledger *l = j->o.ledger;
    KU_TRY(KU_GROW(&j->closed, j->n_closed, &j->cap_closed));
    struct closed *x = &j->closed[j->n_closed];
    *x = (struct closed){.number = file, .clear = -1};
    x->next = ku_calloc((size_t)l->n_workers, sizeof *x->next);
    if (x->next == NULL)
        return KUMI_ENOMEM;
    for (int w = 0; w < l->n_workers; w++)
        x->next[w] = l->worker[w].next + (l->worker[w].received > 0);
    j->n_closed++;
    return KUMI_OK;
}

static void drop_closed(struct ku_ps_journal *j, uint32_t i)
{
    ku_free(j->closed[i].next);
    memmove(j->closed + i, j->closed + i + 1, (j->n_closed - i - 1) * sizeof *j->closed);
    j->n_closed--;
}

/* Closes the file of a closed segment, or leaves that to the sync that is under way. */
static void retire(struct ku_ps_journal *j, int fd)
{
    pthread_mutex_lock(&j->lock);
    const bool is_syncing = j->is_syncing && j->syncing_fd == fd;
    j->is_retired |= is_syncing;
    pthread_mutex_unlock(&j->lock);
    if (!is_syncing)
        ku_os_close(fd);
}

/*
 * Another segment follows. The last one is synced before that, since recovery cuts the last segment
 * alone: after a loss of power those before it are whole.
 */
static int next_segment(struct ku_ps_journal *j)
{
    const int fd = j->fd;
    if (ku_os_ftruncate(fd, (off_t)j->end) < 0) /* what a failed write may have left */
        return cannot_last(j, "cut");
    if (j->o.sync != KU_PS_SYNC_NONE && ku_os_fsync(fd) < 0) {
        pthread_mutex_lock(&j->lock);
        const int status = fail(j);
        pthread_mutex_unlock(&j->lock);
        return status;
    }
    KU_TRY(failure_of(j)); /* another thread may have got the error of this file */
    KU_TRY(note_closed(j, j->file));
    const int status = begin_segment(j);
    if (status < 0)
        drop_closed(j, j->n_closed - 1);
    else
        retire(j, fd);
    return status;
}

int ku_ps_journal_push(struct ku_ps_journal *j, int worker, uint64_t incarnation, int64_t step,
                       size_t offset, const void *data, size_t bytes, bool is_sparse)
{
    struct ku_ps_head h = {.kind = is_sparse ? KU_PS_ROWS : KU_PS_PUSH,
                           .worker = (uint16_t)worker,
                           .a = incarnation,
                           .b = step,
                           .c = offset,
                           .bytes = (uint32_t)bytes};
    KU_ASSERT(bytes <= KU_PS_MAX_BODY_BYTES);
    if (j->end >= j->o.segment_bytes)
        KU_TRY(next_segment(j));
    return append(j, &h, data);
}

int ku_ps_journal_worker(struct ku_ps_journal *j, int worker, uint64_t incarnation, int64_t begin)
{
    struct ku_ps_head h = {
        .kind = KU_PS_WORKER, .worker = (uint16_t)worker, .a = incarnation, .b = begin};
    return append(j, &h, "");
}

/* Which closed segments hold no push any more that is still to be applied. */
static void clear_closed(struct ku_ps_journal *j, int64_t version, int n, const int32_t *worker,
                         const int64_t *step)
{
    const struct ku_ps_ledger *l = j->o.ledger;
    for (uint32_t i = 0; i < j->n_closed; i++) {
        struct closed *x = &j->closed[i];
        bool is_clear = true;
        for (int w = 0; w < l->n_workers && x->next; w++) {
            int64_t next = l->worker[w].next;
            for (int k = 0; k < n; k++)
                next = worker[k] == w && step[k] + 1 > next ? step[k] + 1 : next;
            next = l->is_sync && version > next ? version : next;
            is_clear = is_clear && next >= x->next[w];
        }
        if (!is_clear || x->next == NULL)
            continue;
        x->clear = version;
        ku_free(x->next);
        x->next = NULL;
    }
}

int ku_ps_journal_update(struct ku_ps_journal *j, int64_t version, int n, const int32_t *worker,
                         const int64_t *step)
{
    struct ku_ps_head h = {
        .kind = KU_PS_UPDATE, .a = (uint64_t)version, .b = n, .bytes = 16 * (uint32_t)n};
    int64_t *body = ku_calloc(2 * (size_t)n, sizeof *body);
    if (body == NULL)
        return KUMI_ENOMEM;
    for (int k = 0; k < n; k++)
        body[2 * k] = worker[k], body[2 * k + 1] = step[k];
    const int status = append(j, &h, body);
    ku_free(body);
    if (status == KUMI_OK)
        clear_closed(j, version, n, worker, step);
    return status;
}

uint64_t ku_ps_journal_last(const struct ku_ps_journal *j)
{
    return j->last;
}

/* Waits for more records that one fsync covers, until it is urgent. lock is held. */
static void gather(struct ku_ps_journal *j)
{
    const int64_t until_ns = ku_clock_ns() + j->o.group_ms * INT64_C(1000000);
    j->is_gathering = true;
    while (!j->is_urgent && j->status == KUMI_OK && ku_cond_wait(&j->changed, &j->lock, until_ns))
        ;
    j->is_gathering = j->is_urgent = false;
}

/* Syncs what has been written so far. lock is held, and released meanwhile. */
static void sync_now(struct ku_ps_journal *j, bool is_urgent)
{
    if (j->o.sync == KU_PS_SYNC_GROUP && !is_urgent)
        gather(j);
    const uint64_t last = j->last;
    const int fd = j->fd;
    j->is_syncing = true;
    j->syncing_fd = fd;
    pthread_mutex_unlock(&j->lock);
    const bool is_synced = ku_os_fsync(fd) == 0;
    pthread_mutex_lock(&j->lock);
    j->is_syncing = false;
    if (is_synced) {
        j->synced = last;
        pthread_cond_broadcast(&j->changed);
    } else {
        fail(j);
    }
    if (j->is_retired)
        ku_os_close(fd);
    j->is_retired = false;
}

int ku_ps_journal_sync(struct ku_ps_journal *j, uint64_t number, bool is_urgent)
{
    pthread_mutex_lock(&j->lock);
    while (j->o.sync != KU_PS_SYNC_NONE && j->synced < number && j->status == KUMI_OK) {
        if (is_urgent && j->is_gathering) {
            j->is_urgent = true;
            pthread_cond_broadcast(&j->changed);
        }
        if (j->is_gathering || j->is_syncing)
            pthread_cond_wait(&j->changed, &j->lock);
        else
            sync_now(j, is_urgent);
    }
    const int status = j->status < 0 ? KU_ERR(j->status, "%s", j->error.text) : KUMI_OK;
    pthread_mutex_unlock(&j->lock);
    return status;
}

void ku_ps_journal_cover(struct ku_ps_journal *j, int64_t version)
{
    while (!j->o.keeps && j->n_closed && j->closed[0].clear >= 0 && j->closed[0].clear <= version) {
        pthread_mutex_lock(&j->lock);
        j->covered_first = j->covered_first ? j->covered_first : j->closed[0].number;
        j->covered_last = j->closed[0].number;
        pthread_mutex_unlock(&j->lock);
        drop_closed(j, 0);
    }
    if (!j->o.keeps && next_segment(j) < 0 && failure_of(j) == KUMI_OK)
        KU_LOG(TRAIN, WARN, "%s; the journal grows", ku_err_get()->text);
}

/* In order: a file that stays while later ones go would be damage for the next recovery. */
void ku_ps_journal_remove_covered(struct ku_ps_journal *j)
{
    pthread_mutex_lock(&j->lock);
    const uint32_t first = j->covered_first, last = j->covered_last;
    j->covered_first = j->covered_last = 0;
    pthread_mutex_unlock(&j->lock);
    uint32_t i = first;
    while (i && i <= last && remove_file(j, i))
        i++;
    if (i == 0 || i > last)
        return;
    pthread_mutex_lock(&j->lock);
    j->covered_first = i;
    j->covered_last = j->covered_last ? j->covered_last : last;
    pthread_mutex_unlock(&j->lock);
}

/* Cuts off what is torn at the end of the last file. */
static int cut(const char *path, uint64_t bytes)
{
    int status = KUMI_OK;
    const int fd = ku_os_open(path, O_RDWR, 0);
    if (fd < 0 || ku_os_ftruncate(fd, (off_t)bytes) < 0 || ku_os_fsync(fd) < 0)
        status = KU_ERR(KUMI_ESTORAGE, "journal: %s: cannot be cut to %llu bytes: %s", path,
                        (unsigned long long)bytes, ku_os_why());
    if (fd >= 0)
        ku_os_close(fd);
    return status;
}

static int sync_file(const char *path)
{
    const int fd = ku_os_open(path, O_RDWR, 0);
    const int status = fd < 0 || ku_os_fsync(fd) < 0 ? cannot(path, "synced") : KUMI_OK;
    if (fd >= 0)
        ku_os_close(fd);
    return status;
}

/* The two folders above the journal's: a run may have created them just now. */
static int sync_parents(const char *dir)
{
    char *path = ku_strdup(dir), *end;
    int status = path ? KUMI_OK : KUMI_ENOMEM;
    for (int i = 0; i < 2 && status == KUMI_OK && (end = strrchr(path, '/')) && end > path; i++) {
        *end = '\0';
        if (ku_os_fsync_dir(path) < 0)
            status = cannot(path, "synced");
    }
    ku_free(path);
    return status;
}

/*
 * Makes what was read durable, since records are acknowledged by it from now on: a killed process
 * may not have synced the last file, and one with policy `none` synced none.
 */
static int settle(struct ku_ps_journal *j, const struct ku_ps_end *end)
{
    int status = KUMI_OK;
    for (uint32_t i = end->first; i && i <= end->last && status == KUMI_OK; i++) {
        char *path = ku_ps_journal_file(j->dir, i);
        if (path == NULL)
            return KUMI_ENOMEM;
        if (i == end->last && end->torn_bytes)
            status = cut(path, end->bytes);
        if (status == KUMI_OK && j->o.sync != KU_PS_SYNC_NONE)
            status = sync_file(path);
        ku_free(path);
    }
    return status == KUMI_OK && j->o.sync != KU_PS_SYNC_NONE ? sync_parents(j->dir) : status;
}

static int open_it(struct ku_ps_journal *j, const struct ku_ps_end *end)
{
    if (ku_os_mkdirs(j->dir) < 0)
        return cannot(j->dir, "created");
    KU_TRY(settle(j, end));
    if (end->last && end->bytes == 0) { /* not even its head was written */
        remove_file(j, end->last);
        j->file = end->last - 1;
    } else {
        j->file = end->last;
    }
    for (uint32_t i = end->first; i && i <= j->file; i++)
        KU_TRY(note_closed(j, i));
    j->last = j->synced = end->next_number - 1;
    return begin_segment(j);
}

int ku_ps_journal_open(const struct ku_ps_journal_opts *o, const struct ku_ps_end *end,
                       struct ku_ps_journal **out)
{
    struct ku_ps_journal *j = ku_calloc(1, sizeof *j);
    if (j == NULL)
        return KUMI_ENOMEM;
    j->o = *o;
    j->o.segment_bytes = o->segment_bytes ? o->segment_bytes : KU_PS_SEGMENT_BYTES;
    j->fd = -1;
    j->dir = ku_strdup(o->dir);
    pthread_mutex_init(&j->lock, NULL);
    ku_cond_init(&j->changed);
    const int status = j->dir ? open_it(j, end) : KUMI_ENOMEM;
    if (status < 0) {
        const struct kumi_error error = *ku_err_get();
        ku_ps_journal_close(j);
        return ku_err_put(&error);
    }
    *out = j;
    return KUMI_OK;
}

void ku_ps_journal_close(struct ku_ps_journal *j)
{
    if (j == NULL)
        return;
    if (j->fd >= 0)
        ku_os_close(j->fd);
    while (j->n_closed)
        drop_closed(j, j->n_closed - 1);
    ku_free(j->closed);
    ku_free(j->dir);
    pthread_cond_destroy(&j->changed);
    pthread_mutex_destroy(&j->lock);
    ku_free(j);
}
