/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Overlap of communication and computation, in injected delays: every flag of a collective arrives
 * 20 ms late, so a transfer takes two of them (data, end). Time is counted on a virtual clock, on
 * which only delays and instructions of the model cost anything. A busy machine changes nothing:
 *
 *     compute   5 ms. The clock moves on, then the test makes progress until the transfers that
 *               have ended on the virtual clock have really ended, while nothing waits for them.
 *     start     ends = the later of start + 2 delays and the end of the one before + 1 delay
 *     wait      what is left until the end is exposed
 *
 * A program that waits too early has exposed time on the virtual clock. A runtime that does not
 * move data during computation misses the deadline.
 */
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "comm/private.h"
#include "dist.h"

enum { DELAY_MS = 20, TRANSFER_MS = 2 * DELAY_MS, COMPUTE_MS = 5, MAX_HANDLES = 256 };
static const int64_t DEADLINE_NS = INT64_C(120000000000); /* usual: 40 ms */

/* Kinds of transfers whose waits are added up. */
enum what { FORWARD, BACKWARD, REDUCTIONS, N_WHATS };
struct timeline {
    struct dist_case c;
    struct ku_job *job; /* of rank 0 */
    const struct ku_program *p;
    uint32_t at;                  /* instructions before it are accounted for */
    int64_t now_ms, end_ms;       /* virtual: clock, end of the last transfer */
    int64_t ends_ms[MAX_HANDLES]; /* virtual, of started transfers; 0: not started */
    int n[N_WHATS];               /* waits */
    int64_t exposed_ms[N_WHATS];  /* virtual */
    int64_t stamped_ns[N_WHATS];  /* real time in these waits */
    int is_late;
};

/* A gather is of the computation that it is waited for; it may start in the block before. */
static int is_of(const struct ku_program *p, uint32_t at, enum what what)
{
    const struct ku_instr *i = &p->instr[at];
    if (what == REDUCTIONS)
        return i->op == KU_X_REDUCE_SCATTER || i->op == KU_X_ALL_REDUCE;
    if (i->op != KU_X_ALL_GATHER || i->micro < 0)
        return 0;
    while (p->instr[at].kind != KU_COMPUTE)
        at++;
    return (p->instr[at].phase == KU_PH_F) == (what == FORWARD);
}

static int is_model(const struct ku_instr *i)
{
    return i->kind == KU_COMPUTE && i->phase != KU_PH_O && i->phase != KU_PH_A;
}

/* Starts and waits up to instruction `end`, on the virtual clock. */
static void account(struct timeline *l, uint32_t end)
{
    for (; l->at < end; l->at++) {
        const struct ku_instr *i = &l->p->instr[l->at];
        if (i->kind == KU_START) {
            const int64_t alone = l->now_ms + TRANSFER_MS, behind = l->end_ms + DELAY_MS;
            l->end_ms = l->ends_ms[i->handle] = alone > behind ? alone : behind;
        } else if (i->kind == KU_WAIT) {
            const int64_t left = l->ends_ms[i->handle] - l->now_ms;
            for (int what = 0; what < N_WHATS; what++)
                if (is_of(l->p, l->at, (enum what)what)) {
                    l->n[what]++;
                    l->exposed_ms[what] += left > 0 ? left : 0;
                }
            l->now_ms += left > 0 ? left : 0;
            l->ends_ms[i->handle] = 0;
        }
    }
}

static int n_in_flight(const struct timeline *l)
{
    int n = 0;
    for (int h = 0; h < MAX_HANDLES; h++)
        n += l->ends_ms[h] > l->now_ms;
    return n;
}

static int n_really_in_flight(const struct ku_job *job)
{
    int n = 0;
    for (const struct ku_work *w = job->world->priv->head; w; w = w->next)
        n++;
    return n;
}

static void compute(void *ctx, const struct ku_instr *instr, const struct ku_view *out)
{
    struct timeline *l = ctx;
    const struct timespec pause = {.tv_nsec = 100000};
    const int64_t begin = ku_clock_ns();
    (void)out;
    account(l, (uint32_t)(instr - l->p->instr));
    if (!is_model(instr))
        return;
    l->now_ms += COMPUTE_MS;
    while (n_really_in_flight(l->job) > n_in_flight(l) && !l->is_late) {
        nanosleep(&pause, NULL);
        ku_job_tick(l->job);
        l->is_late = ku_job_progress(l->job) < 0 || ku_clock_ns() - begin > DEADLINE_NS;
    }
}

static int rank(struct ku_job *job, void *arg)
{
    struct timeline *all = arg, *l = &all[job->rank];
    struct ku_trainer *t;
    KU_TRY(dist_trainer(job, &l->c, &t));
    KU_TRY(ku_trainer_init_state(t));
    l->job = job;
    l->p = t->program[KU_PROG_TRAIN];
    int64_t *stamp = calloc(l->p->n_instrs + 1, sizeof *stamp);
    assert_non_null(stamp);
    assert_in_range(l->p->n_handles, 1, MAX_HANDLES);
    ku_exec_stamp(t->exec[KU_PROG_TRAIN], stamp);
    dist_fill(&l->c, t, KU_PROG_TRAIN, 0);
    KU_TRY(ku_trainer_step_seen(t, 0, compute, l));
    account(l, l->p->n_instrs);
    for (uint32_t i = 0; i < l->p->n_instrs; i++)
        for (int what = 0; what < N_WHATS; what++)
            if (l->p->instr[i].kind == KU_WAIT && is_of(l->p, i, (enum what)what))
                l->stamped_ns[what] += stamp[i + 1] - stamp[i];
    ku_exec_stamp(t->exec[KU_PROG_TRAIN], NULL);
    free(stamp);
    ku_trainer_destroy(t);
    return KUMI_OK;
}

static struct timeline run(struct dist_case c)
{
    struct ku_job_opts opts = {.chaos = "delay=20ms"};
    struct timeline l[2] = {{.c = c}};
    c.n = c.v = 2, c.micro = 1, c.t = 11;
    c.no_sharing = 1;
    c.device = "cpu", c.model = dist_model();
    c.model.n_layer = c.k == 1 ? 8 : 2;
    l[0].c = l[1].c = c;
    if (ku_comm_threads(2, &opts, rank, l) < 0)
        fail_msg("%s", ku_err_get()->text);
    assert_false(l[0].is_late || l[1].is_late);
    assert_memory_equal(l[0].exposed_ms, l[1].exposed_ms, sizeof l[0].exposed_ms);
    return l[0];
}

/* Nothing else costs time on the virtual clock than delays, which really pass: so long at least. */
static void expect_hidden(struct dist_case without, struct dist_case with, unsigned whats)
{
    const struct timeline late = run(without), hidden = run(with);
    for (int what = 0; what < N_WHATS; what++) {
        if ((whats >> what & 1) == 0)
            continue;
        assert_true(late.n[what] >= 6 && late.n[what] == hidden.n[what]);
        assert_true(late.exposed_ms[what] >= late.n[what] * TRANSFER_MS);
        assert_true(late.stamped_ns[what] >= late.exposed_ms[what] * INT64_C(900000));
        if (hidden.exposed_ms[what] * 5 > late.exposed_ms[what])
            fail_msg("%d: %d ms exposed with overlap, %d ms without", what,
                     (int)hidden.exposed_ms[what], (int)late.exposed_ms[what]);
    }
}

/* Hides all but the gradients of the embeddings, which the last computation makes: one transfer. */
static void backward_hides_reductions(void **state)
{
    (void)state;
    if (!sample_races_only())
        expect_hidden((struct dist_case){.k = 1, .bucket_bytes = 30000, .no_overlap = 1},
                      (struct dist_case){.k = 1, .bucket_bytes = 30000}, 1u << REDUCTIONS);
}

/* Hides all but the gather of the first module. */
static void prefetch_hides_gathers(void **state)
{
    (void)state;
    if (!sample_races_only())
        expect_hidden((struct dist_case){.zero = 3, .k = 1, .bucket_bytes = 1 << 30},
                      (struct dist_case){.zero = 3, .k = 1, .bucket_bytes = 1 << 30, .prefetch = 1},
                      1u << FORWARD | 1u << BACKWARD);
}

/*
 * Three micro-batches of two layers: the last layer of forward or backward hides the gather of the
 * first one of what follows, so only the first gather of the step is exposed. Without
 * prefetching each is.
 */
static void blocks_hide_gathers(void **state)
{
    const struct dist_case c = {.zero = 3, .k = 3, .bucket_bytes = 1 << 30, .prefetch = 1};
    struct dist_case late_case = c;
    (void)state;
    if (sample_races_only())
        return;
    const struct timeline hidden = run(c);
    assert_int_equal(hidden.n[FORWARD], 6);
    assert_int_equal(hidden.n[BACKWARD], 6);
    assert_in_range(hidden.exposed_ms[FORWARD], 0, TRANSFER_MS);
    assert_int_equal(hidden.exposed_ms[BACKWARD], 0);
    late_case.prefetch = 0;
    const struct timeline late = run(late_case);
    assert_true(late.exposed_ms[FORWARD] + late.exposed_ms[BACKWARD] >= 12 * TRANSFER_MS);
}

/* The reductions of a micro-batch end during the forward of the next: all but those of the last. */
static void next_micro_batch_hides_reductions(void **state)
{
    const struct dist_case with = {.zero = 2, .k = 5, .by_micro = 1, .bucket_bytes = 1 << 30};
    struct dist_case without = with;
    (void)state;
    without.no_overlap = 1;
    if (!sample_races_only())
        expect_hidden(without, with, 1u << REDUCTIONS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backward_hides_reductions), cmocka_unit_test(prefetch_hides_gathers),
        cmocka_unit_test(blocks_hide_gathers), cmocka_unit_test(next_micro_batch_hides_reductions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
