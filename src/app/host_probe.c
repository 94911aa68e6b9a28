/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collects what the hosts have, and times the network between them.
 *
 *     all ranks            all-reduce of 8 bytes      0.3 s
 *     all ranks            all-reduce of 16 MiB       1 s
 *     rank 0 and the       8 bytes there and back     1.5 s, divided by the number of pairs
 *     first of a host      4 MiB there and back
 *
 * Rank 0 has the clock that counts. It decides before each call whether there is another, and of
 * how many bytes, and tells the others: by an all-reduce of 8 bytes to which only rank 0 adds, or
 * by a message. Sizes begin at 64 KiB and grow while the time allows, so that a slow network ends
 * with a smaller size instead of late.
 */
#include "app/host_probe.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu/cpu_features.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/socket.h"
#include "base/math/sort.h"
#include "comm/arena.h"
#include "comm/coll.h"
#include "comm/world.h"
#include "job/control/address.h"
#include "job/hosts.h"

enum {
    FIRST_BYTES = 64 << 10,
    GROWTH = 4, /* of the size, from call to call */
    WARM_UP = 2,
    MIN_SMALL = 3,
    MAX_SMALL = 200,
    MAX_LARGE = 5,
    MS = 1000 * 1000,
    SMALL_NS = 300 * MS,
    LARGE_NS = 1000 * MS,
    PAIRS_NS = 1500 * MS
};

static struct ku_probe_time median(double *ns, int n, int64_t bytes)
{
    ku_sort_f64(ns, n);
    return (struct ku_probe_time){.bytes = bytes, .n = n, .ns = ku_median_f64(ns, n)};
}

/* The calls of one measurement with growing sizes, as rank 0 plans them */
struct sizes {
    int64_t bytes, max_bytes; /* of the next call */
    int64_t budget_ns, end_ns;
    double ns[MAX_LARGE];
    int n; /* calls of this size */
};

static void sizes_init(struct sizes *s, int64_t max_bytes, int64_t budget_ns)
{
    *s = (struct sizes){.bytes = FIRST_BYTES,
                        .max_bytes = max_bytes,
                        .budget_ns = budget_ns,
                        .end_ns = ku_clock_ns() + budget_ns};
}

/*
 * A call took this time. Returns the bytes of the next; 0: there is none. Where the time allows
 * half of the calls of the next size, this size is left, and its calls do not count.
 */
static int64_t sizes_next(struct sizes *s, int64_t ns)
{
    const int64_t now = ku_clock_ns();
    s->ns[s->n++] = (double)ns;
    if (s->bytes < s->max_bytes && now + ns * GROWTH * ((MAX_LARGE + 1) / 2) < s->end_ns) {
        s->bytes = s->bytes * GROWTH < s->max_bytes ? s->bytes * GROWTH : s->max_bytes;
        s->n = 0;
    } else if (s->n == MAX_LARGE || now + ns > s->end_ns) {
        return 0;
    }
    return s->bytes;
}

static int all_reduce(struct ku_job *job, double mine, double *sum)
{
    const struct ku_coll coll = {
        .kind = KU_COLL_ALL_REDUCE, .dtype = KUMI_F64, .in = &mine, .out = sum, .count = 1};
    return ku_coll_run(job->world, &coll);
}

/* Rank 0 ends this after SMALL_NS by adding 1 to the sum. */
static int time_small(struct ku_job *job, struct ku_probe_time *out)
{
    double ns[MAX_SMALL], sum = 0;
    const int64_t end_ns = ku_clock_ns() + SMALL_NS;
    int n = -WARM_UP;
    while (sum <= 0) {
        const int64_t start = ku_clock_ns();
        const int is_last =
            job->rank == 0 && (n + 1 == MAX_SMALL || (n + 1 >= MIN_SMALL && start > end_ns));
        KU_TRY(all_reduce(job, is_last, &sum));
        if (n >= 0 && n < MAX_SMALL)
            ns[n] = (double)(ku_clock_ns() - start);
        n++;
    }
    *out = median(ns, n, (int64_t)sizeof sum);
    return KUMI_OK;
}

/* As training sums gradients: in place, in memory that the ranks of a host share */
static int time_large(struct ku_job *job, struct ku_probe_time *out)
{
    const struct ku_arena *arena;
    struct sizes s;
    double bytes = FIRST_BYTES;
    int status = KUMI_OK;
    KU_TRY(ku_arena_create(job, "probe", 0, KU_PROBE_LARGE, &arena));
    sizes_init(&s, KU_PROBE_LARGE, LARGE_NS);
    while (bytes > 0) {
        const struct ku_coll_part part = {.in.arena = arena->id,
                                          .out.arena = arena->id,
                                          .count = (int64_t)bytes / (int64_t)sizeof(float)};
        const struct ku_coll coll = {
            .kind = KU_COLL_ALL_REDUCE, .dtype = KUMI_F32, .part = &part, .n_parts = 1};
        const int64_t start = ku_clock_ns();
        KU_TRY_OUT(ku_coll_run(job->world, &coll));
        const int64_t ns = ku_clock_ns() - start;
        KU_TRY_OUT(all_reduce(job, job->rank == 0 ? (double)sizes_next(&s, ns) : 0, &bytes));
    }
    if (job->rank == 0)
        *out = median(s.ns, s.n, s.bytes);
    status = ku_arena_destroy(job, arena);
out:
    return status;
}

/* What rank 0 asks another rank for: to return n messages of `bytes`; n 0: nothing more */
struct order {
    int64_t n, bytes;
};

static int send_to(struct ku_job *job, const void *data, int64_t bytes, int rank)
{
    const struct ku_coll coll = {
        .kind = KU_COLL_SEND, .dtype = KUMI_U8, .in = data, .count = bytes, .root = rank};
    return ku_coll_run(job->world, &coll);
}

static int receive_from(struct ku_job *job, void *data, int64_t bytes, int rank)
{
    const struct ku_coll coll = {
        .kind = KU_COLL_RECV, .dtype = KUMI_U8, .out = data, .count = bytes, .root = rank};
    return ku_coll_run(job->world, &coll);
}

static int answer(struct ku_job *job, void *buffer)
{
    struct order order = {.n = 1};
    while (order.n) {
        KU_TRY(receive_from(job, &order, (int64_t)sizeof order, 0));
        for (int64_t i = 0; i < order.n; i++) {
            KU_TRY(receive_from(job, buffer, order.bytes, 0));
            KU_TRY(send_to(job, buffer, order.bytes, 0));
        }
    }
    return KUMI_OK;
}

/* Rank 0: n round trips to a rank; ns [n] */
static int round_trips(struct ku_job *job, void *buffer, struct order order, int rank, double *ns)
{
    KU_TRY(send_to(job, &order, (int64_t)sizeof order, rank));
    for (int64_t i = 0; i < order.n; i++) {
        const int64_t start = ku_clock_ns();
        KU_TRY(send_to(job, buffer, order.bytes, rank));
        KU_TRY(receive_from(job, buffer, order.bytes, rank));
        ns[i] = (double)(ku_clock_ns() - start);
    }
    return KUMI_OK;
}

static int time_pair(struct ku_job *job, void *buffer, int64_t budget_ns, struct ku_probe_pair *out)
{
    const int rank = ku_job_hosts(job)[out->host].first_rank;
    struct order order = {.n = WARM_UP, .bytes = (int64_t)sizeof(double)};
    double ns[MAX_SMALL];
    struct sizes s;
    KU_TRY(round_trips(job, buffer, order, rank, ns));
    const double n = (double)budget_ns / 4 / (ns[WARM_UP - 1] + 1);
    order.n = n < MIN_SMALL ? MIN_SMALL : n > MAX_SMALL ? MAX_SMALL : (int64_t)n;
    KU_TRY(round_trips(job, buffer, order, rank, ns));
    out->small = median(ns, (int)order.n, order.bytes);
    sizes_init(&s, KU_PROBE_MESSAGE, budget_ns - budget_ns / 4);
    order.n = 1;
    for (order.bytes = s.bytes; order.bytes; order.bytes = sizes_next(&s, (int64_t)ns[0]))
        KU_TRY(round_trips(job, buffer, order, rank, ns));
    out->large = median(s.ns, s.n, s.bytes);
    return round_trips(job, buffer, (struct order){0}, rank, ns);
}

/* The host of pair i of n: evenly spaced among those but the first */
static int pair_host(const struct ku_job *job, int i, int n)
{
    return 1 + (int)((int64_t)i * (job->n_hosts - 1) / n);
}

static int time_pairs(struct ku_job *job, struct ku_probe *out)
{
    const int n = job->n_hosts - 1 < KU_PROBE_PAIRS ? job->n_hosts - 1 : KU_PROBE_PAIRS;
    const int64_t end_ns = ku_clock_ns() + PAIRS_NS;
    int status = KUMI_OK, is_one = job->rank == 0;
    for (int i = 0; i < n && job->local_rank == 0; i++)
        is_one |= pair_host(job, i, n) == job->host;
    if (!is_one)
        return KUMI_OK;
    void *buffer = ku_calloc(1, KU_PROBE_MESSAGE);
    if (buffer == NULL)
        return KUMI_ENOMEM;
    if (job->rank != 0)
        KU_TRY_OUT(answer(job, buffer));
    for (int i = 0; i < n && job->rank == 0; i++) {
        struct ku_probe_pair *pair = &out->pair[i];
        pair->host = pair_host(job, i, n);
        if (i > 0 && ku_clock_ns() > end_ns) {
            double none;
            KU_TRY_OUT(round_trips(job, buffer, (struct order){0},
                                   ku_job_hosts(job)[pair->host].first_rank, &none));
            continue;
        }
        KU_TRY_OUT(time_pair(job, buffer, PAIRS_NS / n, pair));
        out->n_pairs++;
    }
out:
    ku_free(buffer);
    return status;
}

/* From the first rank of each host to rank 0 */
static int collect(struct ku_job *job, struct ku_probe *out)
{
    struct ku_comm *hosts = NULL;
    struct ku_probe_host mine = {.n_cores = ku_job_n_cpus(job),
                                 .total_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) *
                                                (uint64_t)sysconf(_SC_PAGESIZE),
                                 .free_bytes = ku_os_mem_available()};
    snprintf(mine.isa, sizeof mine.isa, "%s", ku_cpu_isa_name(ku_cpu_isa()));
    if (job->n_hosts > 1) {
        struct ku_os_address own = {0};
        memcpy(own.ip, ku_job_hosts(job)[job->host].address, sizeof own.ip);
        ku_address_interface(&own, mine.interface);
    }
    if (job->rank == 0) {
        out->host = ku_calloc((size_t)job->n_hosts, sizeof *out->host);
        if (out->host == NULL)
            return KUMI_ENOMEM;
        out->host[0] = mine;
    }
    if (job->n_hosts == 1)
        return KUMI_OK;
    KU_TRY(ku_comm_split(job->world, job->local_rank == 0 ? 0 : -1, 0, "hosts", &hosts));
    if (hosts == NULL)
        return KUMI_OK;
    const struct ku_coll gather = {.kind = KU_COLL_GATHER,
                                   .dtype = KUMI_U8,
                                   .in = &mine,
                                   .out = out->host,
                                   .count = (int64_t)sizeof mine};
    KU_TRY(ku_coll_run(hosts, &gather));
    return ku_comm_destroy(hosts);
}

int ku_probe_run(struct ku_job *job, struct ku_probe *out)
{
    memset(out, 0, sizeof *out);
    ku_comm_describe(job, out->transport, sizeof out->transport);
    KU_TRY(collect(job, out));
    if (job->n_hosts == 1)
        return KUMI_OK;
    KU_TRY(time_small(job, &out->small));
    KU_TRY(time_large(job, &out->large));
    return time_pairs(job, out);
}

void ku_probe_fini(struct ku_probe *probe)
{
    ku_free(probe->host);
    probe->host = NULL;
}
