/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a journal. The first record that does not fit decides: in the last segment, if no later
 * record states that it was synced, the journal ends before it. Else, or if another segment
 * follows, the bytes in between may have been acknowledged and are damaged.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "ps/journal_record.h"
#include "remote/sparse.h"
#include "train/remote_update.h"

struct reader {
    int (*visit)(void *ctx, const struct ku_ps_record *);
    void *ctx;
    const char *path;
    int fd;
    uint64_t at, bytes, salt, number; /* number: of the next record */
    unsigned char *body;              /* [KU_PS_MAX_BODY_BYTES] */
};

uint64_t ku_ps_head_sum(const struct ku_ps_head *h, const void *body)
{
    const uint64_t head = ku_hash64(h, offsetof(struct ku_ps_head, sum));
    return ku_hash64_mix(ku_hash64_mix(head, h->salt), ku_hash64(body, h->bytes));
}

char *ku_ps_journal_file(const char *dir, uint32_t number)
{
    return ku_asprintf("%s/%08u.journal", dir, number);
}

int64_t ku_ps_record_word(const struct ku_ps_record *r, size_t i)
{
    int64_t word;
    KU_ASSERT((i + 1) * sizeof word <= r->bytes);
    memcpy(&word, r->body + i * sizeof word, sizeof word);
    return word;
}

/* 1: a head and its body at `at`; 0: something else, or the end; < 0: cannot be read. */
static int read_at(struct reader *r, uint64_t at, struct ku_ps_head *h)
{
    ssize_t got = ku_os_pread_full(r->fd, h, sizeof *h, (off_t)at);
    if (got == (ssize_t)sizeof *h && h->magic == KU_PS_MAGIC && h->bytes <= KU_PS_MAX_BODY_BYTES) {
        got = ku_os_pread_full(r->fd, r->body, h->bytes, (off_t)(at + sizeof *h));
        if (got >= 0)
            return (uint64_t)got == h->bytes && h->sum == ku_ps_head_sum(h, r->body);
    }
    if (got < 0)
        return KU_ERR(ku_os_status(KUMI_ESTORAGE), "journal: %s: cannot be read at %llu: %s",
                      r->path, (unsigned long long)at, ku_os_why());
    return 0;
}

static bool fits_segment(const struct ku_ps_head *h)
{
    return h->worker == KU_PS_FORMAT && h->a < KU_REMOTE_MAX_SERVERS && h->b >= 1 &&
           h->b <= KU_REMOTE_MAX_WORKERS &&
           h->bytes == 8 * (KU_PS_SEGMENT_WORDS + 2 * (uint64_t)h->b);
}

/* Whether the fields of a record make sense beside each other. */
static bool fits(const struct ku_ps_head *h)
{
    switch (h->kind) {
    case KU_PS_SEGMENT:
        return fits_segment(h);
    case KU_PS_PUSH:
    case KU_PS_ROWS:
        return h->worker < KU_REMOTE_MAX_WORKERS && h->a && h->b >= 0 && h->bytes;
    case KU_PS_UPDATE:
        return h->b >= 1 && h->b <= KU_REMOTE_MAX_WORKERS && h->bytes == 16 * (uint64_t)h->b;
    case KU_PS_WORKER:
        return h->worker < KU_REMOTE_MAX_WORKERS && h->a && h->bytes == 0;
    }
    return false;
}

static int damage(const struct reader *r, const char *what)
{
    return KU_ERR(KUMI_EINPUT,
                  "journal: %s: damaged at byte %llu: %s; restore the file, or move the journal "
                  "away to continue from the newest checkpoint alone",
                  r->path, (unsigned long long)r->at, what);
}

static int visit(struct reader *r, const struct ku_ps_head *h)
{
    struct ku_ps_record x = {.kind = (enum ku_ps_kind)h->kind,
                             .worker = h->worker,
                             .number = h->number,
                             .incarnation = h->a,
                             .step = h->b,
                             .version = (int64_t)(h->kind == KU_PS_UPDATE ? h->a : h->c),
                             .offset = h->c,
                             .bytes = h->bytes,
                             .extent = h->bytes,
                             .body = r->body,
                             .file = r->path,
                             .at = r->at};
    if (h->kind == KU_PS_SEGMENT)
        x.identity = (struct ku_ps_identity){.layout = (uint64_t)ku_ps_record_word(&x, 0),
                                             .server = (int)h->a,
                                             .n_servers = (int)ku_ps_record_word(&x, 1),
                                             .n_workers = (int)h->b,
                                             .is_sync = ku_ps_record_word(&x, 2) != 0};
    if (h->kind == KU_PS_ROWS && ku_sparse_check(x.body, x.bytes, &x.extent) < 0)
        return damage(r, "rows that do not fit");
    return r->visit(r->ctx, &x);
}

/* Whether a later record of this segment states that the one that does not fit was synced. */
static int was_synced(struct reader *r)
{
    struct ku_ps_head h;
    for (uint64_t at = r->at + KU_PS_HEAD_BYTES; at < r->bytes; at += KU_PS_HEAD_BYTES) {
        const int is = read_at(r, at, &h);
        if (is < 0)
            return is;
        if (is && h.salt == r->salt && h.number > r->number &&
            (h.unsynced == 0 || h.number - h.unsynced >= r->number))
            return 1;
    }
    return 0;
}

/* The records of an open file. is_last: its end may be torn. */
static int read_segment(struct reader *r, bool is_last, struct ku_ps_end *end)
{
    struct ku_ps_head h;
    for (r->at = 0; r->at < r->bytes;) {
        const int is = read_at(r, r->at, &h);
        const bool is_first = r->at == 0;
        KU_TRY(is);
        if (is && is_first)
            r->salt = h.salt, r->number = r->number ? r->number : h.number;
        const bool is_next = is && h.salt == r->salt && h.number == r->number && fits(&h) &&
                             (h.kind == KU_PS_SEGMENT) == is_first;
        if (!is_next && is_last && !is) {
            const int is_damaged = is_first ? 0 : was_synced(r);
            KU_TRY(is_damaged);
            if (!is_damaged)
                break;
        }
        if (!is_next)
            return damage(r, !is                     ? "checksum or length are wrong"
                             : h.number != r->number ? "a record is missing before it"
                                                     : "an unknown record");
        KU_TRY(visit(r, &h));
        r->number++;
        r->at += KU_PS_HEAD_BYTES + ku_ps_padded(h.bytes);
    }
    if (r->at == 0 && !is_last)
        return damage(r, "it is empty");
    end->next_number = r->number;
    end->bytes = r->at < r->bytes ? r->at : r->bytes;
    end->torn_bytes = r->bytes - end->bytes;
    return KUMI_OK;
}

static int read_file(struct reader *r, bool is_last, struct ku_ps_end *end)
{
    struct stat st;
    r->fd = ku_os_open(r->path, O_RDONLY, 0);
    if (r->fd < 0 || ku_os_fstat(r->fd, &st) < 0) {
        const int status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "journal: %s: cannot be read: %s",
                                  r->path, ku_os_why());
        if (r->fd >= 0)
            ku_os_close(r->fd);
        return status;
    }
    r->bytes = (uint64_t)st.st_size;
    const int status = read_segment(r, is_last, end);
    ku_os_close(r->fd);
    return status;
}

/* The numbers of the first and last file; other files are ignored. */
static int list(const char *dir, struct ku_ps_end *end)
{
    char **names;
    int n;
    if (ku_os_list(dir, &names, &n) < 0)
        return errno == ENOENT ? KUMI_OK
                               : KU_ERR(ku_os_status(KUMI_ESTORAGE),
                                        "journal: %s: cannot be read: %s", dir, ku_os_why());
    for (int i = 0; i < n; i++) {
        unsigned number;
        int bytes = 0;
        if (sscanf(names[i], "%8u.journal%n", &number, &bytes) != 1 || bytes != 16 ||
            names[i][bytes] != '\0' || number == 0)
            continue;
        end->first = end->first ? end->first : number;
        end->last = number;
    }
    ku_free(names);
    return KUMI_OK;
}

int ku_ps_journal_read(const char *dir, int (*visit_fn)(void *ctx, const struct ku_ps_record *),
                       void *ctx, struct ku_ps_end *end)
{
    struct ku_ps_end found = {0};
    struct reader r = {.visit = visit_fn, .ctx = ctx};
    KU_TRY(list(dir, &found));
    r.body = ku_malloc(KU_PS_MAX_BODY_BYTES);
    int status = r.body ? KUMI_OK : KUMI_ENOMEM;
    for (uint32_t i = found.first; status == KUMI_OK && i && i <= found.last; i++) {
        char *path = ku_ps_journal_file(dir, i);
        r.path = path;
        status = path ? read_file(&r, i == found.last, &found) : KUMI_ENOMEM;
        ku_free(path);
    }
    ku_free(r.body);
    found.next_number = found.next_number ? found.next_number : 1;
    if (status == KUMI_OK && end)
        *end = found;
    return status;
}
