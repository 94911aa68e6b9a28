/* SPDX-License-Identifier: Apache-2.0 */
/* The control segment: offsets, creation and mapping; the root cause; the flight recorder. */
#include "job/segment.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/os/os.h"
#include "base/os/ipc.h"
#include "job/control.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2,
               "atomics work across processes");
_Static_assert(sizeof(struct ku_segment) % 128 == 0, "rank lines follow the header");

/* Offsets of the parts after the header, for n ranks */
struct layout {
    size_t lines, flights, questions, hosts, client, bytes;
};

static size_t align_up(size_t at, size_t to)
{
    return (at + to - 1) / to * to;
}

/* No product overflows: n <= KU_MAX_LOCAL, and the client's area stays below 2^36 bytes. */
static struct layout layout_of(int n_local)
{
    struct layout l = {0};
    size_t n = (size_t)n_local;
    l.lines = sizeof(struct ku_segment);
    l.flights = align_up(l.lines + n * sizeof(struct ku_rank_line), 4096);
    l.questions = align_up(l.flights + n * sizeof(struct ku_flight), 4096);
    l.hosts = align_up(l.questions + n * sizeof(struct ku_question), 4096);
    l.client = align_up(l.hosts + KU_MAX_HOSTS * sizeof(struct ku_host_row), 4096);
    return l;
}

static struct layout layout_for(const struct ku_job_client *client, int n_local)
{
    struct layout l = layout_of(n_local);
    l.bytes = l.client + client->area_bytes(n_local);
    return l;
}

static void *at_offset(struct ku_segment *seg, size_t at)
{
    return (char *)seg + at;
}

struct ku_flight *ku_segment_flight(struct ku_segment *seg, int local)
{
    return (struct ku_flight *)at_offset(seg, layout_of(seg->n_local).flights) + local;
}

struct ku_question *ku_segment_question(struct ku_segment *seg, int local)
{
    return (struct ku_question *)at_offset(seg, layout_of(seg->n_local).questions) + local;
}

struct ku_host_row *ku_segment_hosts(struct ku_segment *seg)
{
    return at_offset(seg, layout_of(seg->n_local).hosts);
}

static int init_segment(struct ku_segment *seg, const struct layout *l, int n_local,
                        uint64_t job_id)
{
    pthread_mutexattr_t attr;
    seg->abi = KU_SEGMENT_ABI;
    seg->n_local = n_local;
    seg->bytes = l->bytes;
    seg->client_off = l->client;
    seg->job_id = job_id;
    seg->cycles0 = ku_clock_cycles();
    seg->ns0 = ku_clock_ns();
    ku_segment_set_ranks(seg, 0, n_local);
    if (pthread_mutexattr_init(&attr))
        return KU_ERR(KUMI_ENOMEM, "control segment: mutex attributes: no memory");
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    for (int r = 0; r < n_local; r++)
        pthread_mutex_init(&ku_segment_line(seg, r)->life, &attr);
    pthread_mutexattr_destroy(&attr);
    seg->magic = KU_SEGMENT_MAGIC;
    return 0;
}

void ku_segment_set_ranks(struct ku_segment *seg, int first_rank, int n_ranks)
{
    KU_ASSERT(first_rank >= 0 && first_rank + seg->n_local <= n_ranks);
    seg->first_rank = first_rank;
    seg->n_ranks = n_ranks;
    if (n_ranks > seg->n_local) { /* the join fills the table */
        atomic_store(&seg->n_hosts, 0);
        return;
    }
    ku_segment_hosts(seg)[0] = (struct ku_host_row){.n_ranks = n_ranks, .job_id = seg->job_id};
    atomic_store(&seg->n_hosts, 1);
}

void ku_segment_set_secret(struct ku_segment *seg, const uint8_t secret[KU_SECRET_BYTES])
{
    memcpy(seg->secret, secret, KU_SECRET_BYTES);
    seg->has_secret = 1;
}

int ku_segment_refused(const char *what, size_t bytes)
{
    if (errno == EFBIG) /* file size limits apply to a memfd */
        return KU_ERR(KUMI_ESTORAGE,
                      "%s: %zu bytes of shared memory: %s; raise the limit of a file's size "
                      "(ulimit -f), or train with one rank",
                      what, bytes, strerror(errno));
    return KU_ERR(KUMI_ENOMEM, "%s: %zu bytes of shared memory: %s", what, bytes, strerror(errno));
}

int ku_segment_create(const struct ku_job_client *client, int n_local, uint64_t job_id, int *fd,
                      struct ku_segment **seg)
{
    struct layout l = layout_for(client, n_local);
    size_t bytes = l.bytes;
    int made = ku_os_memfd_sealed("kumi-control", bytes);
    if (made < 0)
        return ku_segment_refused("control segment", bytes);
    struct ku_segment *s =
        ku_os_mmap(bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, made, 0);
    int status =
        s ? 0
          : KU_ERR(KUMI_ENOMEM, "control segment: mapping %zu bytes: %s", bytes, strerror(errno));
    if (!status)
        status = init_segment(s, &l, n_local, job_id);
    if (status < 0) {
        if (s)
            ku_os_munmap(s, bytes);
        ku_os_close(made);
        return status;
    }
    *fd = made;
    *seg = s;
    return 0;
}

int ku_segment_create_private(const struct ku_job_client *client, int n_local,
                              struct ku_segment **seg)
{
    struct layout l = layout_for(client, n_local);
    size_t bytes = l.bytes;
    struct ku_segment *s = ku_os_mmap(bytes, PROT_READ | PROT_WRITE,
                                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!s)
        return KU_ERR(KUMI_ENOMEM, "control segment: mapping %zu bytes: %s", bytes,
                      strerror(errno));
    int status = init_segment(s, &l, n_local, 0);
    if (status < 0)
        ku_os_munmap(s, bytes);
    else
        *seg = s;
    return status;
}

int ku_segment_map(const struct ku_job_client *client, int fd, struct ku_segment **seg)
{
    size_t bytes = 0;
    if (ku_os_memfd_check(fd, &bytes) < 0)
        return KU_ERR(
            KUMI_EINVAL,
            "control segment: descriptor %d: not a sealed memory file (%s); start with kumi run",
            fd, strerror(errno));
    if (bytes < sizeof(struct ku_segment))
        return KU_ERR(KUMI_EINVAL,
                      "control segment: descriptor %d: only %zu bytes; start with kumi run", fd,
                      bytes);
    struct ku_segment *s =
        ku_os_mmap(bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (!s)
        return KU_ERR(KUMI_ENOMEM, "control segment: mapping %zu bytes: %s", bytes,
                      strerror(errno));
    int n = s->n_local;
    struct layout l = {0};
    if (n >= 1 && n <= KU_MAX_LOCAL)
        l = layout_for(client, n);
    if (s->magic != KU_SEGMENT_MAGIC || s->abi != KU_SEGMENT_ABI || s->bytes != bytes ||
        bytes != l.bytes || s->client_off != l.client) {
        ku_os_munmap(s, bytes);
        return KU_ERR(KUMI_EINVAL,
                      "control segment: descriptor %d: made by another version of kumi; use one "
                      "version for launcher "
                      "and ranks",
                      fd);
    }
    *seg = s;
    return 0;
}

void ku_segment_unmap(struct ku_segment *seg)
{
    if (seg)
        ku_os_munmap(seg, seg->bytes);
}

void ku_segment_wake(struct ku_segment *seg, int local)
{
    struct ku_rank_line *line = ku_segment_line(seg, local);
    const uint32_t asleep = atomic_load(&line->asleep);
    atomic_fetch_add(&line->wakeup, 1);
    if (asleep == KU_ASLEEP)
        ku_os_futex_wake(&line->wakeup, 1);
    else if (asleep == KU_ASLEEP_IN_POLL)
        ku_doorbell_ring(seg->job_id, (int)atomic_load(&seg->host), local);
}

void ku_segment_ring_all(struct ku_segment *seg)
{
    for (int r = 0; r < seg->n_local; r++)
        ku_segment_wake(seg, r);
}

static uint64_t abort_word(const struct kumi_error *error, int culprit)
{
    return (uint64_t)1 << 63 | (uint64_t)(uint32_t)-error->status << 32 | (uint32_t)(culprit + 1);
}

int ku_segment_culprit(struct ku_segment *seg)
{
    return (int)(uint32_t)atomic_load(&seg->abort_word) - 1;
}

int ku_segment_set_root(struct ku_segment *seg, const struct kumi_error *error, int culprit,
                        int host)
{
    uint64_t none = 0;
    if (!atomic_compare_exchange_strong(&seg->abort_word, &none, abort_word(error, culprit)))
        return 0;
    seg->root = *error;
    seg->root.scope = KUMI_SCOPE_JOB; /* whatever scope the rank gave it */
    atomic_store(&seg->root_host, (uint32_t)host + 1);
    atomic_store(&seg->root_ready, 1);
    ku_segment_ring_all(seg);
    return 1;
}

bool ku_segment_find_death(struct ku_rank_line *line)
{
    uint32_t state = atomic_load(&line->state);
    if (state != KU_RANK_JOINED && state != KU_RANK_LEAVING)
        return false;
    int taken = pthread_mutex_trylock(&line->life);
    if (taken == EBUSY)
        return false;
    if (taken == 0 || taken == EOWNERDEAD)
        pthread_mutex_unlock(
            &line->life); /* not made consistent: it is ENOTRECOVERABLE for all from now on */
    state = atomic_load(&line->state);
    return (state == KU_RANK_JOINED || state == KU_RANK_LEAVING) &&
           atomic_compare_exchange_strong(&line->state, &state, KU_RANK_DIED);
}

static void ring_bridge(struct ku_segment *seg)
{
    ku_doorbell_ring(seg->job_id, (int)atomic_load(&seg->host), KU_DOORBELL_BRIDGE);
}

/*
 * The bridge lives in the process of local rank 0, whose service thread holds the life mutex. What
 * is found once is stored: glibc leaves a mutex that is not recoverable locked after a second
 * pthread_mutex_trylock, so that a third one returns EBUSY, as for a living owner.
 */
static bool is_bridge_dead(struct ku_segment *seg)
{
    struct ku_rank_line *line = ku_segment_line(seg, 0);
    if (atomic_load(&seg->is_bridged) == KU_BRIDGE_DEAD ||
        atomic_load(&line->state) == KU_RANK_DIED)
        return true;
    int taken = pthread_mutex_trylock(&line->life);
    if (taken == 0 || taken == EOWNERDEAD)
        pthread_mutex_unlock(&line->life); /* as in ku_segment_find_death */
    if (taken != EBUSY)
        atomic_store(&seg->is_bridged, KU_BRIDGE_DEAD);
    return taken != EBUSY;
}

/*
 * Give the bridge time to bring the decision of the hosts' root. If it died, the first proposer
 * reports in its place, and the others wait for that.
 */
static void await_verdict(struct ku_segment *seg, const struct kumi_error *error, int culprit,
                          bool is_first)
{
    const int64_t deadline = ku_clock_ns() + KU_VERDICT_NS;
    ring_bridge(seg);
    while (!atomic_load(&seg->abort_word) && atomic_load(&seg->is_bridged) &&
           ku_clock_ns() < deadline) {
        if (is_first && is_bridge_dead(seg)) {
            ku_control_report(seg, error, culprit, deadline - ku_clock_ns());
            return;
        }
        usleep(500);
    }
}

int ku_segment_abort(struct ku_segment *seg, const struct kumi_error *error, int culprit)
{
    const int host = (int)atomic_load(&seg->host);
    uint64_t none = 0;
    if (atomic_load(&seg->abort_word))
        return 0;
    if (!atomic_load(&seg->is_bridged))
        return ku_segment_set_root(seg, error, culprit, host);
    const bool is_first =
        atomic_compare_exchange_strong(&seg->cause_word, &none, abort_word(error, culprit));
    if (is_first) {
        seg->cause = *error;
        atomic_store(&seg->cause_ready, 1);
    }
    await_verdict(seg, error, culprit, is_first);
    if (ku_segment_set_root(seg, error, culprit, host))
        return 1;
    /* printed here if the job's root cause is what this call proposed */
    struct kumi_error root;
    return is_first && ku_segment_root(seg, &root) < 0 &&
           atomic_load(&seg->root_host) == (uint32_t)host + 1 &&
           atomic_load(&seg->abort_word) == abort_word(error, culprit);
}

void ku_segment_stop(struct ku_segment *seg, int signal)
{
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&seg->stop, &none, (uint32_t)signal) &&
        atomic_load(&seg->is_bridged))
        ring_bridge(seg);
}

int ku_segment_root(struct ku_segment *seg, struct kumi_error *out)
{
    uint64_t word = atomic_load(&seg->abort_word);
    if (!word)
        return 0;
    for (int i = 0; i < 100 && !atomic_load(&seg->root_ready); i++)
        usleep(1000);
    if (atomic_load(&seg->root_ready)) {
        *out = seg->root;
        return out->status;
    }
    /* The rank that set abort_word was killed before it wrote the text. */
    *out = (struct kumi_error){.status = -(int32_t)(word >> 32 & 0x7fffffff),
                               .scope = KUMI_SCOPE_JOB,
                               .rank = (int32_t)(word & 0xffffffffu) - 1};
    snprintf(out->text, sizeof out->text,
             "job: rank %d: failed (%s); the reporting rank died as well", out->rank,
             kumi_status_name(out->status));
    return out->status;
}

static void event_text(const struct ku_job_client *client, const struct ku_flight_event *e,
                       char *text, size_t cap)
{
    uint64_t word = atomic_load_explicit(&e->what, memory_order_relaxed);
    client->event_text((uint32_t)(word >> 8 & 0xff), word >> 16,
                       atomic_load_explicit(&e->seq, memory_order_relaxed),
                       atomic_load_explicit(&e->count, memory_order_relaxed), text, cap);
}

static void add_instruction(const struct ku_flight *f, char *text, size_t cap)
{
    union {
        uint64_t word[KU_FLIGHT_NOW_WORDS];
        char text[KU_FLIGHT_NOW_WORDS * sizeof(uint64_t)];
    } now;
    for (int i = 0; i < KU_FLIGHT_NOW_WORDS; i++)
        now.word[i] = atomic_load_explicit(&f->now[i], memory_order_relaxed);
    now.text[sizeof now.text - 1] = '\0';
    const size_t used = strlen(text);
    if (now.text[0])
        snprintf(text + used, cap - used, "%s%s", used ? ", in " : "", now.text);
}

void ku_flight_last(struct ku_segment *seg, const struct ku_job_client *client, int local,
                    char *text, size_t cap)
{
    const struct ku_flight *f = ku_segment_flight(seg, local);
    uint64_t n = atomic_load_explicit(&f->n, memory_order_acquire);
    text[0] = '\0';
    /* the last event of a failed rank is the failure */
    for (uint64_t i = n; i > 0 && n - i < 2; i--) {
        const struct ku_flight_event *e = &f->event[(i - 1) % KU_FLIGHT_EVENTS];
        if ((atomic_load_explicit(&e->what, memory_order_relaxed) & 0xff) == KU_FLIGHT_FAIL)
            continue;
        event_text(client, e, text, cap);
        break;
    }
    add_instruction(f, text, cap);
}

void ku_flight_dump(struct ku_segment *seg, const struct ku_job_client *client)
{
    static const char *const name[] = {"none", "start", "done", "fail"};
    enum { SHOWN = 16 };
    if (!ku_log_is_on(KU_SUB_COMM, KU_LOG_DEBUG))
        return;
    double ns = ku_clock_ns_per_cycle(seg->cycles0, seg->ns0, ku_clock_cycles(), ku_clock_ns());
    for (int r = 0; r < seg->n_local; r++) {
        const struct ku_flight *f = ku_segment_flight(seg, r);
        uint64_t n = atomic_load_explicit(&f->n, memory_order_acquire);
        for (uint64_t i = n > SHOWN ? n - SHOWN : 0; i < n; i++) {
            const struct ku_flight_event *e = &f->event[i % KU_FLIGHT_EVENTS];
            uint64_t kind = atomic_load_explicit(&e->what, memory_order_relaxed) & 0xff;
            uint64_t cycles = atomic_load_explicit(&e->cycles, memory_order_relaxed);
            char text[96];
            event_text(client, e, text, sizeof text);
            KU_LOG(COMM, DEBUG, "flight: rank %d: %.6f s: %s %s", seg->first_rank + r,
                   (double)(cycles - seg->cycles0) * ns * 1e-9,
                   name[kind <= KU_FLIGHT_FAIL ? kind : 0], text);
        }
    }
}
