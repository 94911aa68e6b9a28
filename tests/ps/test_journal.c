/* SPDX-License-Identifier: Apache-2.0 */
/* links: ps */
/* Ledger and journal of a parameter server: torn at every byte, damaged, a full disk. tsan */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "memory_folder.h"
#include "ps/recovery.h"

enum { WORKERS = 2, SPACE = 256 };

static char dir[64];
static struct ku_ps_ledger ledger;
static const struct ku_remote_extent part[] = {{0, 100}, {128, 252}};
static const struct ku_ps_space space = {SPACE, part, 2};
static const struct ku_ps_identity identity = {
    .layout = 77, .server = 1, .n_servers = 2, .n_workers = WORKERS};

/* What a journal holds, a line per record. */
struct text {
    char line[128][64];
    int n;
};
static int note(void *ctx, const struct ku_ps_record *r)
{
    struct text *t = ctx;
    char *line = t->line[t->n++];
    assert_true(t->n <= 128);
    if (r->kind == KU_PS_SEGMENT) {
        assert_true(r->identity.layout == 77 && r->identity.server == 1);
        assert_true(r->identity.n_servers == 2 && r->identity.n_workers == WORKERS);
        snprintf(line, 64, "segment %d: %d %d, %d %d", (int)r->version,
                 (int)ku_ps_record_word(r, 3), (int)ku_ps_record_word(r, 4),
                 (int)ku_ps_record_word(r, 5), (int)ku_ps_record_word(r, 6));
    } else if (r->kind == KU_PS_PUSH) {
        for (size_t i = 0; i < r->bytes; i++)
            assert_int_equal(r->body[i], (unsigned char)(r->offset + i + (size_t)r->step));
        snprintf(line, 64, "push %d/%d step %d: %zu+%zu", r->worker, (int)r->incarnation,
                 (int)r->step, r->offset, r->bytes);
    } else if (r->kind == KU_PS_UPDATE) {
        snprintf(line, 64, "update %d: %d %d", (int)r->version, (int)ku_ps_record_word(r, 0),
                 (int)ku_ps_record_word(r, 1));
    } else {
        snprintf(line, 64, "worker %d/%d from %d", r->worker, (int)r->incarnation, (int)r->step);
    }
    return KUMI_OK;
}

static struct text read_all(struct ku_ps_end *end)
{
    struct text t = {0};
    if (ku_ps_journal_read(dir, note, &t, end) < 0)
        fail_msg("%s", ku_err_get()->text);
    return t;
}

static int group_ms = 1;

static struct ku_ps_journal *open_of(const struct ku_ps_identity *id, const struct ku_ps_end *end,
                                     enum ku_ps_sync sync)
{
    struct ku_ps_journal *j = NULL;
    const struct ku_ps_journal_opts o = {.dir = dir,
                                         .identity = *id,
                                         .ledger = &ledger,
                                         .sync = sync,
                                         .group_ms = group_ms,
                                         .segment_bytes = 1024};
    if (ku_ps_journal_open(&o, end, &j) < 0)
        fail_msg("%s", ku_err_get()->text);
    return j;
}

static struct ku_ps_journal *open_at(const struct ku_ps_end *end, enum ku_ps_sync sync)
{
    return open_of(&identity, end, sync);
}

static int sync_to_last(struct ku_ps_journal *j, bool is_urgent)
{
    return ku_ps_journal_sync(j, ku_ps_journal_last(j), is_urgent);
}

static void cover(struct ku_ps_journal *j, int64_t version)
{
    ku_ps_journal_cover(j, version);
    ku_ps_journal_remove_covered(j);
}

static int push(struct ku_ps_journal *j, int w, int64_t step, size_t offset, size_t bytes)
{
    unsigned char data[SPACE];
    bool is_new;
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(offset + i + (size_t)step);
    KU_TRY(ku_ps_ledger_check(&ledger, w, 1, step, offset, bytes, &is_new));
    if (!is_new)
        return KUMI_OK;
    KU_TRY(ku_ps_journal_push(j, w, 1, step, offset, data, bytes, false));
    ku_ps_ledger_note(&ledger, w, offset, bytes);
    return KUMI_OK;
}

static void apply(struct ku_ps_journal *j, int32_t w)
{
    const int64_t step = ledger.worker[w].next;
    assert_int_equal(ku_ps_journal_update(j, ledger.version + 1, 1, &w, &step), 0);
    ku_ps_ledger_apply(&ledger, ledger.version + 1, 1, &w, &step);
}

static void start(void)
{
    bool is_new;
    snprintf(dir, sizeof dir, "%s/test-kumi-journal-%d", memory_folder(), (int)getpid());
    assert_int_equal(ku_os_rmtree(dir), 0);
    ku_ps_ledger_fini(&ledger);
    assert_int_equal(ku_ps_ledger_init(&ledger, WORKERS, false, 0, &space), 0);
    for (int w = 0; w < WORKERS; w++)
        assert_int_equal(ku_ps_ledger_meet(&ledger, w, 1, &is_new), 0);
}

static int finish(void **state)
{
    (void)state;
    ku_ps_ledger_fini(&ledger);
    return ku_os_rmtree(dir);
}

static void write_some(void)
{
    const struct ku_ps_end none = {.next_number = 1};
    start();
    struct ku_ps_journal *j = open_at(&none, KU_PS_SYNC_EVERY);
    for (int step = 0; step < 2; step++)
        for (int w = 0; w < WORKERS; w++) {
            assert_int_equal(push(j, w, step, 0, 100), 0);
            assert_int_equal(push(j, w, step, 128, 124), 0);
            assert_int_equal(push(j, w, step, 0, 100), 0);
            assert_int_equal(sync_to_last(j, false), 0);
            apply(j, w);
        }
    ku_ps_journal_close(j);
}

/* One push is taken once; another step, range, incarnation or worker is refused. */
static void once(void **state)
{
    static const struct {
        int worker;
        uint64_t incarnation;
        int64_t step;
        size_t offset, bytes;
        int status;
        bool is_new;
        const char *text;
    } row[] = {
        {0, 2, 5, 0, 64, 0, true, ""},
        {0, 2, 5, 0, 64, 0, false, ""},
        {0, 2, 5, 0, 32, 0, false, ""},
        {0, 2, 5, 0, 65, KUMI_EINVAL, false, "part of which is there"},
        {0, 2, 4, 0, 64, 0, false, ""},
        {0, 2, 6, 0, 64, KUMI_EINVAL, false, "in the future: this server expects step 5"},
        {0, 1, 5, 0, 64, KUMI_EINVAL, false, "incarnation 1 was replaced by 2"},
        {0, 3, 5, 0, 64, KUMI_EINVAL, false, "incarnation 3 has not connected"},
        {0, 2, 5, 8, 8, KUMI_EINVAL, false, "a multiple of 64"},
        {0, 2, 5, 192, 65, KUMI_EINVAL, false, "bytes 192 to 257 of 256"},
        {0, 2, 5, 128, 128, 0, true, ""},
        {0, 2, 5, 64, 64, 0, true, ""},
        {0, 2, 5, 0, 224, 0, false, ""},
        {2, 2, 5, 0, 64, KUMI_EINVAL, false, "worker 2 is unknown; there are 2"},
        {-1, 2, 5, 0, 64, KUMI_EINVAL, false, "worker -1 is unknown"},
        {1, 0, 5, 0, 64, KUMI_EINVAL, false, "incarnation 0"},
        {1, 1ull << 63, 5, 0, 64, KUMI_EINVAL, false, "give a number below 2^63"},
    };
    bool is_new;
    (void)state;
    ku_ps_ledger_fini(&ledger);
    assert_int_equal(ku_ps_ledger_init(&ledger, WORKERS, false, 5, &space), 0);
    assert_int_equal(ku_ps_ledger_meet(&ledger, 0, 2, &is_new), 0);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const int is = ku_ps_ledger_check(&ledger, row[i].worker, row[i].incarnation, row[i].step,
                                          row[i].offset, row[i].bytes, &is_new);
        if (is != row[i].status || is_new != row[i].is_new ||
            (is < 0 && !strstr(ku_err_get()->text, row[i].text)))
            fail_msg("row %zu: %d %d %s", i, is, is_new, ku_err_get()->text);
        if (is == 0 && is_new)
            ku_ps_ledger_note(&ledger, row[i].worker, row[i].offset, row[i].bytes);
    }
    assert_true(ku_ps_ledger_is_complete(&ledger, 0));
    assert_int_equal(ledger.worker[0].n_ranges, 1);
    assert_int_equal(ku_ps_ledger_meet(&ledger, 0, 3, &is_new), 0); /* keeps what is complete */
    assert_true(is_new && ku_ps_ledger_begin(&ledger, 0) == 6);
    assert_int_equal(ku_ps_ledger_meet(&ledger, 0, UINT64_MAX, &is_new), KUMI_EINVAL);
    ku_ps_ledger_discard(&ledger, 0, 5);
    assert_int_equal(ku_ps_ledger_begin(&ledger, 0), 5);
    assert_int_equal(ku_ps_ledger_meet(&ledger, 0, 2, &is_new), KUMI_EINVAL);
}

static void take(size_t offset, size_t bytes)
{
    bool is_new;
    assert_int_equal(ku_ps_ledger_check(&ledger, 0, 2, 5, offset, bytes, &is_new), 0);
    assert_true(is_new);
    ku_ps_ledger_note(&ledger, 0, offset, bytes);
}

/* Bytes of gaps complete nothing, and may be sent. */
static void gaps(void **state)
{
    bool is_new;
    (void)state;
    ku_ps_ledger_fini(&ledger);
    assert_int_equal(ku_ps_ledger_init(&ledger, WORKERS, false, 5, &space), 0);
    assert_int_equal(ledger.payload, 224);
    assert_int_equal(ku_ps_ledger_meet(&ledger, 0, 2, &is_new), 0);
    take(128, 128);
    take(0, 64);
    take(64, 35);
    assert_false(ku_ps_ledger_is_complete(&ledger, 0)); /* byte 99 is missing */
    assert_int_equal(ledger.worker[0].received, 223);
    static const struct {
        size_t begin, end, bytes;
    } row[] = {{0, 0, 0},     {0, 100, 100}, {100, 128, 0}, {99, 129, 2},
               {0, 256, 224}, {252, 300, 0}, {251, 300, 1}, {300, 400, 0}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        assert_int_equal(ku_remote_bytes_in(part, 2, row[i].begin, row[i].end), row[i].bytes);
    assert_int_equal(ku_remote_bytes_in(NULL, 0, 0, 100), 0);
}

/* Cut at every byte, a journal is what it was up to the last whole record, and goes on. */
static void torn(void **state)
{
    struct ku_ps_end end, at;
    char path[96], *data;
    size_t bytes;
    (void)state;
    write_some();
    const struct text whole = read_all(&end);
    assert_true(end.last >= 2 && end.torn_bytes == 0);
    snprintf(path, sizeof path, "%s/%08u.journal", dir, end.last);
    assert_int_equal(ku_os_slurp(path, 1 << 20, &data, &bytes), 0);
    for (size_t n = 0; n < bytes; n++) {
        assert_int_equal(ku_os_replace(path, data, n), 0);
        const struct text is = read_all(&at);
        assert_true(at.bytes + at.torn_bytes == n && at.bytes <= n);
        assert_true(is.n <= whole.n &&
                    memcmp(is.line, whole.line, sizeof *is.line * (size_t)is.n) == 0);
        ku_ps_journal_close(open_at(&at, KU_PS_SYNC_GROUP));
        const struct text more = read_all(&at);
        assert_true(more.n == is.n + 1 &&
                    memcmp(more.line, is.line, sizeof *is.line * (size_t)is.n) == 0);
        for (uint32_t i = end.last + 1; i <= at.last; i++) {
            char other[96];
            snprintf(other, sizeof other, "%s/%08u.journal", dir, i);
            assert_int_equal(ku_os_unlink(other), 0);
        }
    }
    ku_free(data);
}

/* Every byte of a record that others follow: an error with file and offset. */
static void damaged(void **state)
{
    struct ku_ps_end end;
    char path[96], *data;
    size_t bytes;
    (void)state;
    write_some();
    read_all(&end);
    snprintf(path, sizeof path, "%s/%08u.journal", dir, end.first);
    assert_int_equal(ku_os_slurp(path, 1 << 20, &data, &bytes), 0);
    for (size_t n = 0; n < bytes; n += 3) {
        struct text t = {0};
        data[n] ^= 4;
        assert_int_equal(ku_os_replace(path, data, bytes), 0);
        const int is = ku_ps_journal_read(dir, note, &t, NULL);
        /* padding is not covered */
        if (is < 0 && (is != KUMI_EINPUT || !strstr(ku_err_get()->text, "damaged at byte") ||
                       !strstr(ku_err_get()->text, path)))
            fail_msg("byte %zu: %d %s", n, is, ku_err_get()->text);
        assert_true(is < 0 || t.n == read_all(NULL).n);
        data[n] ^= 4;
    }
    assert_int_equal(ku_os_replace(path, data, bytes), 0);
    ku_free(data);
    struct ku_ps_journal *j = open_at(&end, KU_PS_SYNC_NONE);
    cover(j, 0); /* one more segment */
    ku_ps_journal_close(j);
    struct text t = {0};
    snprintf(path, sizeof path, "%s/%08u.journal", dir, end.first + 1);
    assert_int_equal(ku_os_unlink(path), 0);
    assert_int_equal(ku_ps_journal_read(dir, note, &t, NULL), KUMI_ESTORAGE);
    assert_non_null(strstr(ku_err_get()->text, path));
}

/*
 * After a loss of power a record may be missing before others that are there. The journal ends
 * before it, unless a later record states that it was synced.
 */
static void lost(void **state)
{
    enum { FIRST = 128, EACH = 192 }; /* bytes of the segment's record, of a push */
    static const struct {
        enum ku_ps_sync sync;
        int push, status, n;
    } row[] = {
        {KU_PS_SYNC_EVERY, 0, KUMI_EINPUT, 1}, {KU_PS_SYNC_EVERY, 1, KUMI_OK, 2},
        {KU_PS_SYNC_EVERY, 2, KUMI_OK, 3},     {KU_PS_SYNC_GROUP, 1, KUMI_OK, 2},
        {KU_PS_SYNC_NONE, 1, KUMI_EINPUT, 2},
    };
    const struct ku_ps_end none = {.next_number = 1};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct ku_ps_end end;
        char path[96], *data;
        size_t bytes;
        struct text t = {0};
        start();
        struct ku_ps_journal *j = open_at(&none, row[i].sync);
        assert_int_equal(push(j, 0, 0, 0, 100), 0);
        assert_int_equal(sync_to_last(j, false), 0);
        assert_int_equal(push(j, 0, 0, 128, 124), 0);
        assert_int_equal(push(j, 1, 0, 0, 100), 0);
        ku_ps_journal_close(j);
        read_all(&end);
        snprintf(path, sizeof path, "%s/%08u.journal", dir, end.last);
        assert_int_equal(ku_os_slurp(path, 1 << 20, &data, &bytes), 0);
        assert_true(bytes > FIRST + 2 * EACH);
        memset(data + FIRST + row[i].push * EACH, 0, 64);
        assert_int_equal(ku_os_replace(path, data, bytes), 0);
        ku_free(data);
        if (ku_ps_journal_read(dir, note, &t, &end) != row[i].status || t.n != row[i].n)
            fail_msg("row %zu: %d records, %s", i, t.n, ku_err_get()->text);
        if (row[i].status < 0)
            continue;
        ku_ps_journal_close(open_at(&end, row[i].sync));
        assert_int_equal(read_all(NULL).n, t.n + 1);
    }
}

/* What a failed write leaves after the last record is not there once another segment follows. */
static void cut_off(void **state)
{
    const struct ku_ps_end none = {.next_number = 1};
    struct ku_ps_end end;
    char path[96], junk[500];
    (void)state;
    start();
    struct ku_ps_journal *j = open_at(&none, KU_PS_SYNC_EVERY);
    assert_int_equal(push(j, 0, 0, 0, 100), 0);
    const struct text want = read_all(&end);
    snprintf(path, sizeof path, "%s/%08u.journal", dir, end.last);
    const int fd = ku_os_open(path, O_WRONLY | O_APPEND, 0);
    memset(junk, 7, sizeof junk);
    assert_int_equal(ku_os_write_full(fd, junk, sizeof junk), 0);
    ku_os_close(fd);
    cover(j, 0);
    assert_int_equal(push(j, 0, 0, 128, 124), 0);
    ku_ps_journal_close(j);
    assert_int_equal(read_all(&end).n, want.n + 2);
    assert_true(end.last > end.first);
}

/* The n-th write fails: the record is not there, the call may be repeated, and nothing is lost. */
static void disk_full(void **state)
{
    const struct ku_ps_end none = {.next_number = 1};
    struct text want;
    (void)state;
    write_some();
    want = read_all(NULL);
    for (int n = 1; n < 40; n++) {
        char fault[32];
        start();
        struct ku_ps_journal *j = open_at(&none, KU_PS_SYNC_NONE);
        snprintf(fault, sizeof fault, n % 2 ? "write:%d" : "os:%d", 1 + n / 2);
        ku_fault_set(fault);
        for (int step = 0; step < 2; step++)
            for (int w = 0; w < WORKERS; w++) {
                for (size_t at = 0; at < 256; at += 128)
                    if (push(j, w, step, at, at ? 124 : 100) < 0) {
                        assert_int_equal(ku_err_get()->status, KUMI_ESTORAGE);
                        ku_fault_set(NULL);
                        assert_int_equal(push(j, w, step, at, at ? 124 : 100), 0);
                    }
                ku_fault_set(NULL);
                apply(j, w);
                ku_fault_set(fault);
            }
        ku_fault_set(NULL);
        ku_ps_journal_close(j);
        const struct text is = read_all(NULL);
        assert_true(is.n == want.n && memcmp(is.line, want.line, sizeof want.line) == 0);
    }
}

/*
 * A failed fsync is final, also of a segment that is closed: what is on the disk is unknown. A
 * segment that cannot be created is not: the last one goes on.
 */
static void failed_sync(void **state)
{
    const struct ku_ps_end none = {.next_number = 1};
    (void)state;
    for (int k = 0; k < 3; k++) {
        const int wanted = k < 2 ? KUMI_ESTORAGE : KUMI_OK;
        start();
        struct ku_ps_journal *j = open_at(&none, KU_PS_SYNC_EVERY);
        assert_int_equal(push(j, 0, 0, 0, 64), 0);
        static const char *const fault[] = {"os:1", "os:2", "os:3"}; /* fsync; cut, fsync, open */
        ku_fault_set(fault[k]);
        if (k == 0)
            assert_int_equal(sync_to_last(j, false), KUMI_ESTORAGE);
        else
            cover(j, 0);
        ku_fault_set(NULL);
        assert_int_equal(sync_to_last(j, false), wanted);
        assert_int_equal(push(j, 0, 0, 64, 64), wanted);
        ku_ps_journal_close(j);
    }
}

/* What was written without syncs is synced, file by file, before a journal with them goes on. */
static void synced_first(void **state)
{
    const struct ku_ps_end none = {.next_number = 1};
    bool is_found[4] = {false};
    struct ku_ps_journal *j = NULL;
    struct ku_ps_end end;
    (void)state;
    start();
    j = open_at(&none, KU_PS_SYNC_NONE);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(push(j, i, 0, 0, 100), 0);
        cover(j, 0);
    }
    ku_ps_journal_close(j);
    read_all(&end);
    assert_int_equal(end.last, 3);
    const struct ku_ps_journal_opts o = {
        .dir = dir, .identity = identity, .ledger = &ledger, .sync = KU_PS_SYNC_EVERY};
    for (int n = 1; n < 100 && !(is_found[1] && is_found[2] && is_found[3]); n++) {
        char fault[32], text[160];
        snprintf(fault, sizeof fault, "os:%d", n);
        ku_fault_set(fault);
        const int status = ku_ps_journal_open(&o, &end, &j);
        ku_fault_set(NULL);
        if (status == KUMI_OK) /* without the next segment it goes on, too */
            ku_ps_journal_close(j);
        for (uint32_t i = 1; i <= 3 && status < 0; i++) {
            snprintf(text, sizeof text, "%s/%08u.journal: cannot be synced", dir, i);
            is_found[i] |= strstr(ku_err_get()->text, text) != NULL;
        }
    }
    assert_true(is_found[1] && is_found[2] && is_found[3]);
}

/* Segments go once a checkpoint covers every push in them. */
static void covered(void **state)
{
    struct ku_ps_end end, after;
    (void)state;
    write_some();
    read_all(&end);
    struct ku_ps_journal *j = open_at(&end, KU_PS_SYNC_NONE);
    assert_int_equal(push(j, 0, 2, 0, 100), 0);
    cover(j, 4); /* known to be clear only after the next update */
    read_all(&after);
    assert_int_equal(after.first, end.first);
    assert_int_equal(push(j, 1, 2, 0, 100), 0);
    assert_int_equal(push(j, 1, 2, 128, 124), 0);
    apply(j, 1); /* update 5; the push of worker 0 is not complete */
    cover(j, 5);
    read_all(&after);
    assert_true(after.first == end.last + 1 && after.last > after.first);
    assert_int_equal(push(j, 0, 2, 128, 124), 0);
    apply(j, 0);
    cover(j, 5);
    read_all(&after);
    assert_int_equal(after.first, end.last + 1);
    ku_ps_journal_cover(j, 6);
    for (int n = 1; n >= 0; n--) { /* the first file cannot be removed: none is */
        ku_fault_set(n ? "os:1" : NULL);
        ku_ps_journal_remove_covered(j);
        ku_fault_set(NULL);
        read_all(&after);
        assert_true((after.first == end.last + 1) == (n == 1));
    }
    const struct text t = read_all(&after);
    assert_true(after.first > end.last + 1);
    assert_string_equal(t.line[0], "segment 5: 1 2, 1 3");
    ku_ps_journal_close(j);
}

/*
 * The pushes that the other servers must have, in sync with backup: update 2 does not wait for the
 * incomplete push of worker 1, and then the next one of worker 0 is complete.
 */
static void needed(void **state)
{
    const struct ku_ps_end none = {.next_number = 1};
    const struct ku_ps_identity id = {
        .layout = 77, .server = 1, .n_servers = 2, .n_workers = WORKERS, .is_sync = true};
    const int32_t both[] = {0, 1};
    const int64_t first[] = {0, 0}, second[] = {1, 1};
    struct ku_ps_plan plan;
    bool is_new;
    (void)state;
    start();
    ku_ps_ledger_fini(&ledger);
    assert_int_equal(ku_ps_ledger_init(&ledger, WORKERS, true, 0, &space), 0);
    struct ku_ps_journal *j = open_of(&id, &none, KU_PS_SYNC_NONE);
    for (int w = 0; w < WORKERS; w++) {
        assert_int_equal(ku_ps_ledger_meet(&ledger, w, 1, &is_new), 0);
        assert_int_equal(ku_ps_journal_worker(j, w, 1, -1), 0);
    }
    for (int step = 0; step < 3; step++)
        for (int w = 0; w < WORKERS; w++) {
            const bool is_late = step > 0 && w == 1;
            assert_int_equal(push(j, w, step, 0, 100), 0);
            assert_int_equal(is_late ? 0 : push(j, w, step, 128, 124), 0);
            if (w == 1 && step < 2) {
                const int64_t *at = step ? second : first;
                assert_int_equal(ku_ps_journal_update(j, step + 1, 2 - step, both, at), 0);
                ku_ps_ledger_apply(&ledger, step + 1, 2 - step, both, at);
            }
        }
    ku_ps_journal_close(j);
    assert_int_equal(ledger.dropped, 1);
    assert_int_equal(ku_ps_plan_read(dir, 0, &id, &space, &plan), 0);
    assert_int_equal(plan.ledger.version, 2);
    assert_true(plan.needed[0] == 3 && plan.needed[1] == 1);
    assert_true(plan.ledger.worker[1].next == 2 && ku_ps_ledger_begin(&plan.ledger, 1) == 2);
    ku_ps_plan_fini(&plan);
}

static void *waits(void *arg)
{
    struct ku_ps_journal *j = arg;
    for (uint64_t i = 1; i < 40; i++)
        assert_int_equal(ku_ps_journal_sync(j, i, false), 0);
    return NULL;
}

/* Threads wait for the disk while others append. */
static void together(void **state)
{
    const struct ku_ps_end none = {.next_number = 1};
    pthread_t thread[2];
    (void)state;
    start();
    struct ku_ps_journal *j = open_at(&none, KU_PS_SYNC_GROUP);
    for (int step = 0; step < 20; step++) {
        assert_int_equal(push(j, 0, step, 0, 100), 0);
        assert_int_equal(push(j, 0, step, 128, 124), 0);
        apply(j, 0);
        if (step == 15)
            for (int i = 0; i < 2; i++)
                assert_int_equal(pthread_create(&thread[i], NULL, waits, j), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    ku_ps_journal_close(j);
    assert_int_equal(read_all(NULL).n > 60, 1);
}

struct waiting {
    struct ku_ps_journal *j;
    uint64_t number;
};

static void *waits_for_one(void *arg)
{
    const struct waiting *x = arg;
    assert_int_equal(ku_ps_journal_sync(x->j, x->number, false), 0);
    return NULL;
}

/* A thread that waits for more records delays neither another segment nor an urgent sync. */
static void urgent(void **state)
{
    const struct ku_ps_end none = {.next_number = 1};
    struct ku_ps_end end;
    pthread_t thread;
    (void)state;
    start();
    group_ms = 10000;
    struct ku_ps_journal *j = open_at(&none, KU_PS_SYNC_GROUP);
    group_ms = 1;
    const int64_t begin_ns = ku_clock_ns();
    for (int step = 0; step < 10; step++) {
        assert_int_equal(push(j, 0, step, 0, 100), 0);
        assert_int_equal(push(j, 0, step, 128, 124), 0);
        struct waiting x = {j, ku_ps_journal_last(j)};
        assert_int_equal(pthread_create(&thread, NULL, waits_for_one, &x), 0);
        usleep(1000);
        cover(j, 0);
        apply(j, 0);
        assert_int_equal(sync_to_last(j, true), 0);
        pthread_join(thread, NULL);
    }
    assert_true(ku_clock_ns() - begin_ns < INT64_C(9000000000)); /* less than one wait */
    ku_ps_journal_close(j);
    assert_int_equal(read_all(&end).n, 41);
}

static void policy(void **state)
{
    enum ku_ps_sync sync;
    int ms;
    (void)state;
    assert_true(ku_ps_sync_parse("every", &sync, &ms) == 0 && sync == KU_PS_SYNC_EVERY);
    assert_true(ku_ps_sync_parse("none", &sync, &ms) == 0 && sync == KU_PS_SYNC_NONE);
    assert_true(ku_ps_sync_parse("group:50", &sync, &ms) == 0 && ms == 50);
    static const char *const bad[] = {"", "group", "group:", "group:0", "group:5x", "group:99999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(ku_ps_sync_parse(bad[i], &sync, &ms), KUMI_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(once),      cmocka_unit_test(gaps),        cmocka_unit_test(torn),
        cmocka_unit_test(damaged),   cmocka_unit_test(lost),        cmocka_unit_test(cut_off),
        cmocka_unit_test(disk_full), cmocka_unit_test(failed_sync), cmocka_unit_test(synced_first),
        cmocka_unit_test(covered),   cmocka_unit_test(needed),      cmocka_unit_test(together),
        cmocka_unit_test(urgent),    cmocka_unit_test(policy)};
    return cmocka_run_group_tests(tests, NULL, finish);
}
