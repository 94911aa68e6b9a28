/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers of stage 3 and reductions of micro-batches behind computation, shown by delays: whatever
 * travels arrives 20 ms late, a module computes longer than its gather takes. */
#include <stdlib.h>
#include <time.h>

#include "dist.h"

enum { DELAY_MS = 20, TILE_NS = 500000, N_STEPS = 2, MAX_RUNS = 10 };

/* Time in waits of a step for gathers of forward and of backward, and for reductions; the least of
 * the steps. */
enum what { FORWARD, BACKWARD, REDUCTIONS, N_WHATS };
struct seen {
    struct dist_case c;
    int n[N_WHATS];
    int64_t exposed_ns[N_WHATS];
};

/* A computation of a module takes a while, in which what others send comes in. */
static void compute(void *job, const struct ku_instr *instr, const struct ku_view *out)
{
    const struct timespec tile = {.tv_nsec = TILE_NS};
    (void)out;
    for (int i = 0; i < 10 && instr->phase != KU_PH_O && instr->phase != KU_PH_A; i++) {
        nanosleep(&tile, NULL);
        (void)ku_job_progress(job);
    }
}

static int is_seen(const struct ku_instr *i, enum what what)
{
    if (i->kind != KU_WAIT || what == REDUCTIONS)
        return i->kind == KU_WAIT && i->op == KU_X_REDUCE_SCATTER;
    return i->op == KU_X_ALL_GATHER && i->micro >= 0 && (i->phase == KU_PH_F) == (what == FORWARD);
}

static void look(const struct ku_program *p, const int64_t *stamp, int is_first, struct seen *s)
{
    for (int what = 0; what < N_WHATS; what++) {
        int64_t sum = 0;
        s->n[what] = 0;
        for (uint32_t i = 0; i < p->n_instrs; i++)
            if (is_seen(&p->instr[i], (enum what)what)) {
                sum += stamp[i + 1] - stamp[i];
                s->n[what]++;
            }
        if (is_first || sum < s->exposed_ns[what])
            s->exposed_ns[what] = sum;
    }
}

static int rank(struct ku_job *job, void *arg)
{
    struct seen *s = arg;
    struct ku_trainer *t;
    KU_TRY(dist_trainer(job, &s->c, &t));
    KU_TRY(ku_trainer_init_state(t));
    const struct ku_program *p = t->program[KU_PROG_TRAIN];
    int64_t *stamp = calloc(p->n_instrs + 1, sizeof *stamp);
    assert_non_null(stamp);
    ku_exec_stamp(t->exec[KU_PROG_TRAIN], stamp);
    for (int step = 0; step < N_STEPS; step++) {
        dist_fill(&s->c, t, KU_PROG_TRAIN, step);
        KU_TRY(ku_trainer_step_seen(t, step, compute, job));
        if (job->rank == 0)
            look(p, stamp, step == 0, s);
    }
    ku_exec_stamp(t->exec[KU_PROG_TRAIN], NULL);
    free(stamp);
    ku_trainer_destroy(t);
    return KUMI_OK;
}

static struct seen run(struct dist_case c)
{
    struct ku_job_opts opts = {.chaos = "delay=20ms"};
    struct seen s = {.c = c};
    s.c.n = s.c.v = 2, s.c.micro = 1, s.c.t = 11;
    s.c.no_sharing = 1, s.c.bucket_bytes = 1 << 30;
    s.c.device = "cpu", s.c.model = dist_model();
    s.c.model.n_layer = c.zero == 3 ? 6 : 2;
    if (ku_comm_threads(2, &opts, rank, &s) < 0)
        fail_msg("%s", ku_err_get()->text);
    return s;
}

/* Without overlap each of the waits lasts at least the arrival of data and of the end. With it at
 * most half of that time is exposed. */
static const char *not_hidden(const struct seen *late, const struct seen *hidden, enum what what)
{
    static char text[160];
    assert_true(late->n[what] >= 6 && late->n[what] == hidden->n[what]);
    double late_ms = (double)late->exposed_ns[what] * 1e-6,
           hidden_ms = (double)hidden->exposed_ns[what] * 1e-6;
    if (late_ms < late->n[what] * 2 * DELAY_MS * 0.9)
        fail_msg("%d: %d waits take %.1f ms", (int)what, late->n[what], late_ms);
    if (hidden_ms * 2 <= late_ms)
        return NULL;
    snprintf(text, sizeof text, "%d: %.1f ms exposed with overlap, %.1f without", (int)what,
             hidden_ms, late_ms);
    return text;
}

/* A rank that gets no core is late itself, which counts as exposed time: the best of several runs
 * decides. Missing overlap fails in every one. */
static void expect_hidden(struct dist_case without, struct dist_case with, unsigned whats)
{
    const char *text = "";
    for (int run_i = 0; run_i < MAX_RUNS && text; run_i++) {
        struct seen late = run(without), hidden = run(with);
        text = NULL;
        for (int what = 0; what < N_WHATS && !text; what++)
            if (whats >> what & 1)
                text = not_hidden(&late, &hidden, (enum what)what);
    }
    if (text)
        fail_msg("%s", text);
}

static void prefetch_hides_gathers(void **state)
{
    (void)state;
    if (!sample_races_only())
        expect_hidden((struct dist_case){.zero = 3, .k = 1},
                      (struct dist_case){.zero = 3, .k = 1, .prefetch = 1},
                      1u << FORWARD | 1u << BACKWARD);
}

/* The reductions of a micro-batch end behind the forward of the next. */
static void next_micro_batch_hides_reductions(void **state)
{
    (void)state;
    if (!sample_races_only())
        expect_hidden((struct dist_case){.zero = 2, .k = 4, .by_micro = 1, .no_overlap = 1},
                      (struct dist_case){.zero = 2, .k = 4, .by_micro = 1}, 1u << REDUCTIONS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(prefetch_hides_gathers),
                                       cmocka_unit_test(next_micro_batch_hides_reductions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
