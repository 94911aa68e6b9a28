/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/* tsan */
/*
 * A reduce-scatter of parts over several hosts that leaves the sum on every host (n_owners): its
 * shards have the bits of an all-reduce, also with an addend, with shards in buffers of their own,
 * and with a narrow wire. An all-gather into memory that the ranks of a host share: every host gets
 * all shards, once. A reduce-scatter shows whole blocks, wherever its messages end. And sums of
 * several chunks in place overwrite nothing that is still needed.
 */
#include "suite.h"

#include "comm/consensus.h"

#include "tensor/blocks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum { N_PARTS = 23, STEPS = 2, BLOCK = 64, PLANE_BYTES = 1 << 17, N_PLANES = 5 };
/* Parts of an arena: input and sum of the all-reduce; input, sum and addend of the other */
enum { WHOLE, WHOLE_ADDEND, IN, OUT, ADDEND };

struct form {
    enum kumi_dtype wire;
    int has_addend, is_kept;
};

static int64_t count_of(int part)
{
    return part == 0 ? 9973 : (part * 37) % 301;
}

static size_t offset_of(int part)
{
    size_t at = 0;
    for (int i = 0; i < part; i++)
        at += (size_t)(count_of(i) + 15) / 16 * 64;
    return at;
}

/* Sums of such values depend on their order. */
static float value(int rank, int part, int64_t i, int step)
{
    return 1.0F / (float)(1 + rank * 7 + part + i % 97 + step * 3);
}

static float *plane(const struct ku_job *job, const struct ku_arena *a, int which, int part)
{
    return (float *)(void *)(ku_arena_part(a, job->local_rank) + which * PLANE_BYTES +
                             offset_of(part));
}

static struct ku_ref ref_of(const struct ku_arena *a, int which, int part)
{
    return (struct ku_ref){.arena = a->id, .off = (size_t)which * PLANE_BYTES + offset_of(part)};
}

static void lay_parts(const struct ku_arena *a, const struct form *f, int owners,
                      struct ku_coll_part *whole, struct ku_coll_part *shard)
{
    int64_t first = 0;
    for (int i = 0; i < N_PARTS; i++) {
        const int64_t count = count_of(i);
        whole[i] = (struct ku_coll_part){.in = ref_of(a, WHOLE, i),
                                         .out = ref_of(a, WHOLE, i),
                                         .addend = ref_of(a, WHOLE_ADDEND, i),
                                         .has_addend = f->has_addend,
                                         .count = count};
        shard[i] = (struct ku_coll_part){.in = ref_of(a, IN, i),
                                         .out = ref_of(a, f->is_kept ? OUT : IN, i),
                                         .addend = ref_of(a, ADDEND, i),
                                         .has_addend = f->has_addend,
                                         .count = count,
                                         .first_block = first,
                                         .block_count = BLOCK,
                                         .kept = f->is_kept ? KU_KEPT_OUT | KU_KEPT_ADDEND : 0};
        first = (first + (count + BLOCK - 1) / BLOCK) % owners;
    }
}

static void shard_of(const struct ku_job *job, const struct ku_coll_part *p, int64_t *begin,
                     int64_t *end)
{
    ku_blocks_range(p->count, BLOCK, p->first_block, job->local_n, job->local_rank, begin, end);
}

static void fill(const struct ku_job *job, const struct ku_arena *a, const struct form *f,
                 const struct ku_coll_part *shard, int step)
{
    for (int p = 0; p < N_PARTS; p++) {
        int64_t begin, end;
        shard_of(job, &shard[p], &begin, &end);
        for (int64_t i = 0; i < count_of(p); i++) {
            plane(job, a, WHOLE, p)[i] = plane(job, a, IN, p)[i] = value(job->rank, p, i, step);
            plane(job, a, WHOLE_ADDEND, p)[i] = value(99, p, i, step);
        }
        for (int64_t i = begin; i < end; i++)
            plane(job, a, ADDEND, p)[f->is_kept ? i - begin : i] = value(99, p, i, step);
    }
}

/* Every rank has its shard, and stored only that. */
static int check(const struct ku_job *job, const struct ku_arena *a, const struct form *f,
                 const struct ku_coll_part *shard, uint64_t stored)
{
    uint64_t owned = 0;
    for (int p = 0; p < N_PARTS; p++) {
        int64_t begin, end;
        shard_of(job, &shard[p], &begin, &end);
        const float *want = plane(job, a, WHOLE, p) + begin,
                    *got = plane(job, a, f->is_kept ? OUT : IN, p) + (f->is_kept ? 0 : begin);
        const size_t bytes = (size_t)(end - begin) * sizeof *got;
        if (memcmp(want, got, bytes) != 0) {
            printf("rank %d of %d: part %d differs, wire %d addend %d kept %d\n", job->rank, job->n,
                   p, (int)f->wire, f->has_addend, f->is_kept);
            return -70;
        }
        owned += bytes;
    }
    if (stored != owned)
        printf("rank %d: stored %llu bytes of %llu\n", job->rank, (unsigned long long)stored,
               (unsigned long long)owned);
    return stored == owned ? 0 : -70;
}

static int run_form(struct ku_job *job, const struct ku_arena *a, const struct form *f)
{
    struct ku_coll_part whole[N_PARTS], shard[N_PARTS];
    struct ku_work reduce, scatter;
    lay_parts(a, f, job->local_n, whole, shard);
    struct ku_coll coll = {.kind = KU_COLL_ALL_REDUCE,
                           .dtype = KUMI_F32,
                           .wire = f->wire,
                           .part = whole,
                           .n_parts = N_PARTS};
    SUITE_TRY(ku_work_init(&reduce, job->world, &coll));
    coll.kind = KU_COLL_REDUCE_SCATTER;
    coll.part = shard;
    coll.n_owners = job->local_n;
    SUITE_TRY(ku_work_init(&scatter, job->world, &coll));
    for (int step = 0; step < STEPS; step++) {
        fill(job, a, f, shard, step);
        SUITE_TRY(ku_work_start(&reduce));
        SUITE_TRY(ku_work_wait(&reduce));
        const uint64_t before = ku_job_moved_bytes(job);
        SUITE_TRY(ku_work_start(&scatter));
        SUITE_TRY(ku_work_wait(&scatter));
        SUITE_TRY(check(job, a, f, shard, ku_job_moved_bytes(job) - before));
    }
    return 0;
}

/* What a callback on reduced blocks was shown of each part. */
enum { N_SEEN = 3, SEEN_BLOCK = 4096 };
static const int64_t seen_count[N_SEEN] = {70001, 5, 150007};
struct seen {
    int64_t shard[N_SEEN], at[N_SEEN];
    const float *begin[N_SEEN];
    int n_bad;
};

static void see(void *ctx, int part, void *sum, int64_t count)
{
    struct seen *s = ctx;
    const bool is_end = s->at[part] + count == s->shard[part];
    if (s->at[part] == 0)
        s->begin[part] = sum;
    s->n_bad += (const float *)sum != s->begin[part] + s->at[part];
    s->n_bad += count % SEEN_BLOCK != 0 && !is_end;
    s->at[part] += count;
}

static int run_seen(struct ku_job *job, void *arg)
{
    const struct ku_arena *a;
    struct ku_coll_part part[N_SEEN];
    struct ku_work work;
    struct seen s = {0};
    size_t at = 0;
    (void)arg;
    SUITE_TRY(ku_arena_create(job, "grad", 0, 1 << 20, &a));
    for (int p = 0; p < N_SEEN; p++) {
        int64_t begin, end;
        part[p] = (struct ku_coll_part){.in = {.arena = a->id, .off = at},
                                        .out = {.arena = a->id, .off = at},
                                        .count = seen_count[p],
                                        .block_count = SEEN_BLOCK};
        ku_blocks_range(seen_count[p], SEEN_BLOCK, 0, job->n, job->rank, &begin, &end);
        s.shard[p] = end - begin;
        at += (size_t)(seen_count[p] + 15) / 16 * 64;
    }
    memset(ku_arena_part(a, job->local_rank), 0, at);
    struct ku_coll coll = {.kind = KU_COLL_REDUCE_SCATTER,
                           .dtype = KUMI_F32,
                           .part = part,
                           .n_parts = N_SEEN,
                           .see = see,
                           .see_ctx = &s};
    SUITE_TRY(ku_work_init(&work, job->world, &coll));
    SUITE_TRY(ku_work_start(&work));
    SUITE_TRY(ku_work_wait(&work));
    for (int p = 0; p < N_SEEN; p++)
        s.n_bad += s.at[p] != s.shard[p];
    if (s.n_bad)
        printf("rank %d of %d: %d pieces that are no whole blocks\n", job->rank, job->n, s.n_bad);
    SUITE_TRY(ku_arena_destroy(job, a));
    return s.n_bad ? -70 : 0;
}

static int run(struct ku_job *job, void *arg)
{
    static const struct form form[] = {
        {KUMI_F32, 0, 0}, {KUMI_F32, 1, 0}, {KUMI_F32, 1, 1}, {KUMI_BF16, 0, 0}};
    const struct ku_arena *a;
    struct ku_work refused;
    (void)arg;
    if (offset_of(N_PARTS) > PLANE_BYTES)
        return -70;
    SUITE_TRY(ku_arena_create(job, "grad", 0, N_PLANES * PLANE_BYTES, &a));
    for (size_t i = 0; i < sizeof form / sizeof *form; i++)
        SUITE_TRY(run_form(job, a, &form[i]));
    struct ku_coll_part part = {.in = {.arena = a->id}, .out = {.arena = a->id}, .count = 1};
    struct ku_coll coll = {.kind = KU_COLL_REDUCE_SCATTER,
                           .dtype = KUMI_F32,
                           .part = &part,
                           .n_parts = 1,
                           .n_owners = job->local_n + 1};
    if (ku_work_init(&refused, job->world, &coll) != KUMI_EINVAL)
        return -70;
    return ku_arena_destroy(job, a);
}

static void lay_common(const struct ku_arena *a, int n, struct ku_coll_part *part)
{
    int64_t first = 0;
    for (int i = 0; i < N_PARTS; i++) {
        const struct ku_ref at = {.arena = a->id, .flags = KU_ARENA_COMMON, .off = offset_of(i)};
        part[i] = (struct ku_coll_part){
            .in = at, .out = at, .count = count_of(i), .first_block = first, .block_count = BLOCK};
        first = (first + (count_of(i) + BLOCK - 1) / BLOCK) % n;
    }
}

static float *common_part(const struct ku_arena *a, int part)
{
    return (float *)(void *)(ku_arena_common(a) + offset_of(part));
}

/* Element i of a part, of which this rank's shard begins at `begin`: in the vector, or in `own`. */
static float *shard_at(const struct ku_job *job, const struct ku_arena *whole,
                       const struct ku_arena *own, int p, int64_t begin, int64_t i)
{
    return own == NULL
               ? common_part(whole, p) + i
               : (float *)(void *)(ku_arena_part(own, job->local_rank) + offset_of(p)) + i - begin;
}

/*
 * The ranks write their shards; afterwards each host has all of them, and received them once. From
 * shards of their own they may start as soon as they have read the vector of the step before.
 */
static int gather_step(struct ku_job *job, struct ku_work *w, const struct ku_arena *a,
                       const struct ku_arena *own, const struct ku_coll_part *part, int step)
{
    int64_t stored = -(int64_t)ku_job_moved_bytes(job), total = 0, begin, end;
    for (int p = 0; p < N_PARTS; p++) {
        ku_blocks_range(count_of(p), BLOCK, part[p].first_block, job->n, job->rank, &begin, &end);
        for (int64_t i = begin; i < end; i++)
            *shard_at(job, a, own, p, begin, i) = value(7, p, i, step);
        total += count_of(p) * (int64_t)sizeof(float);
    }
    SUITE_TRY(ku_work_start(w));
    SUITE_TRY(ku_work_wait(w));
    for (int p = 0; p < N_PARTS; p++)
        for (int64_t i = 0; i < count_of(p); i++)
            if (common_part(a, p)[i] != value(7, p, i, step)) {
                printf("rank %d of %d: part %d, element %d\n", job->rank, job->n, p, (int)i);
                return -70;
            }
    stored += (int64_t)ku_job_moved_bytes(job);
    if (own && step < STEPS - 1)
        return 0;
    SUITE_TRY(ku_agree_sum(job, &stored, 1)); /* before the next step overwrites shards */
    return stored == (job->n_hosts - (own == NULL)) * total ? 0 : -70;
}

/* The same from shards elsewhere, as parameters of ZeRO stage 3 are gathered. */
static int gather_from_shards(struct ku_job *job, const struct ku_arena *whole,
                              const struct ku_coll_part *common)
{
    const struct ku_arena *a;
    struct ku_coll_part part[N_PARTS];
    struct ku_work w;
    struct ku_coll coll = {
        .kind = KU_COLL_ALL_GATHER, .dtype = KUMI_F32, .part = part, .n_parts = N_PARTS};
    SUITE_TRY(ku_arena_create(job, "shards", 0, PLANE_BYTES, &a));
    for (int p = 0; p < N_PARTS; p++) {
        part[p] = common[p];
        part[p].in = (struct ku_ref){.arena = a->id, .off = offset_of(p)};
        part[p].kept = KU_KEPT_IN;
    }
    SUITE_TRY(ku_work_init(&w, job->world, &coll));
    for (int step = 0; step < STEPS; step++)
        SUITE_TRY(gather_step(job, &w, whole, a, part, step));
    return ku_arena_destroy(job, a);
}

static int run_gather(struct ku_job *job, void *is_uneven)
{
    const struct ku_arena *a;
    struct ku_coll_part part[N_PARTS];
    struct ku_work w;
    struct ku_coll coll = {
        .kind = KU_COLL_ALL_GATHER, .dtype = KUMI_F32, .part = part, .n_parts = N_PARTS};
    SUITE_TRY(ku_arena_create(job, "whole", PLANE_BYTES, 0, &a));
    lay_common(a, job->n, part);
    const int status = ku_work_init(&w, job->world, &coll);
    if (is_uneven)
        return status == KUMI_EINVAL ? ku_arena_destroy(job, a) : -70;
    SUITE_TRY(status);
    for (int step = 0; step < STEPS; step++)
        SUITE_TRY(gather_step(job, &w, a, NULL, part, step));
    SUITE_TRY(gather_from_shards(job, a, part));
    for (int i = 0; i < 3; i++) { /* elsewhere, not shared, in a buffer of its own */
        struct ku_coll_part bad[2] = {part[0], part[1]};
        if (i == 0)
            bad[1].in.off += 64;
        else if (i == 1)
            bad[1].in.flags = bad[1].out.flags = 0;
        else
            bad[1].kept = KU_KEPT_IN;
        coll.part = bad, coll.n_parts = 2;
        if (ku_work_init(&w, job->world, &coll) != KUMI_EINVAL)
            return -70;
    }
    return ku_arena_destroy(job, a);
}

/*
 * Sums in place of several chunks. 18 hosts take two stages, between which partial sums lie where
 * results go, and are narrower with a narrow wire. Two hosts send what they overwrite.
 */
struct wide {
    enum ku_coll_kind kind;
    enum kumi_dtype wire;
};
enum { WIDE_HOSTS = 18, WIDE_PERIOD = 8, WIDE_COUNT = WIDE_HOSTS * 140000 };

static float wide_value(int rank, int64_t i)
{
    return (float)((rank * 5 + i * 3) % WIDE_PERIOD);
}

static int run_wide(struct ku_job *job, void *arg)
{
    const struct wide *wide = arg;
    const struct ku_arena *a;
    int64_t begin = 0, end = WIDE_COUNT;
    float sum[WIDE_PERIOD] = {0};
    SUITE_TRY(ku_arena_create(job, "wide", 0, WIDE_COUNT * sizeof(float), &a));
    float *x = (float *)(void *)ku_arena_part(a, job->local_rank);
    for (int64_t i = 0; i < WIDE_COUNT; i++)
        x[i] = wide_value(job->rank, i);
    for (int i = 0; i < WIDE_PERIOD; i++)
        for (int r = 0; r < job->n; r++)
            sum[i] += wide_value(r, i);
    struct ku_coll_part part = {
        .in.arena = a->id, .out.arena = a->id, .count = WIDE_COUNT, .block_count = 4096};
    if (wide->kind == KU_COLL_REDUCE_SCATTER)
        ku_blocks_range(WIDE_COUNT, part.block_count, 0, job->n, job->rank, &begin, &end);
    const struct ku_coll coll = {
        .kind = wide->kind, .dtype = KUMI_F32, .wire = wide->wire, .part = &part, .n_parts = 1};
    SUITE_TRY(ku_coll_run(job->world, &coll));
    for (int64_t i = begin; i < end; i++)
        if (x[i] != sum[i % WIDE_PERIOD]) {
            printf("rank %d of %d: element %lld of %lld to %lld is %g, not %g\n", job->rank, job->n,
                   (long long)i, (long long)begin, (long long)end, (double)x[i],
                   (double)sum[i % WIDE_PERIOD]);
            return -70;
        }
    return ku_arena_destroy(job, a);
}

static void test_wide(void **state)
{
    static const struct wide forms[] = {{KU_COLL_ALL_REDUCE, KUMI_F32},
                                        {KU_COLL_ALL_REDUCE, KUMI_BF16},
                                        {KU_COLL_REDUCE_SCATTER, KUMI_F32},
                                        {KU_COLL_REDUCE_SCATTER, KUMI_BF16}};
    static const char *const hosts[] = {"1,1", "2,2",
                                        "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"}; /* WIDE_HOSTS */
    static const int n[] = {2, 4, WIDE_HOSTS};
    (void)state;
    if (sample_races_only())
        skip();
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
            struct wide form = forms[f];
            const struct ku_job_opts opts = {.hosts = hosts[i]};
            if (ku_comm_threads(n[i], &opts, run_wide, &form) != 0)
                fail_msg("hosts %s: %s: %s", hosts[i], ku_coll_kind_name(form.kind),
                         ku_err_get()->text);
        }
}

static const struct {
    const char *hosts;
    int n;
} row[] = {{"1,1", 2},
           {"2,2", 4},
           {"3,3", 6},
           {"2,2,2", 6},
           {"4,4", 8},
           {"2,2,2,2", 8},
           {"2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2", 36}};

/* The last row takes two stages, and too long under ThreadSanitizer. */
static size_t n_rows(void)
{
    return sizeof row / sizeof *row - (size_t)sample_races_only();
}

static void test_blocks_seen(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_rows(); i++) {
        const struct ku_job_opts opts = {.hosts = row[i].hosts};
        if (ku_comm_threads(row[i].n, &opts, run_seen, NULL) != 0)
            fail_msg("hosts %s: %s", row[i].hosts, ku_err_get()->text);
    }
}

static void test_host_scatter(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_rows(); i++) {
        const struct ku_job_opts opts = {.hosts = row[i].hosts};
        if (ku_comm_threads(row[i].n, &opts, run, NULL) != 0)
            fail_msg("hosts %s: %s", row[i].hosts, ku_err_get()->text);
    }
}

static void test_host_gather(void **state)
{
    const struct ku_job_opts uneven = {.hosts = "2,1"};
    bool is_uneven = true;
    (void)state;
    for (size_t i = 0; i < n_rows(); i++) {
        const struct ku_job_opts opts = {.hosts = row[i].hosts};
        if (ku_comm_threads(row[i].n, &opts, run_gather, NULL) != 0)
            fail_msg("hosts %s: %s", row[i].hosts, ku_err_get()->text);
    }
    assert_int_equal(ku_comm_threads(3, &uneven, run_gather, &is_uneven), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_scatter), cmocka_unit_test(test_host_gather),
        cmocka_unit_test(test_blocks_seen), cmocka_unit_test(test_wide)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
