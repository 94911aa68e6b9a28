/* SPDX-License-Identifier: Apache-2.0 */
/* kumi_trainer_output: an evaluation's rows, each on the ranks whose share they are, with the bits
 * of one rank and the loss of the evaluation in them; of a pipeline on ranks of the last stage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include <sys/mman.h>

#include "kumi/comm.h"
#include "kumi/launch.h"
#include "kumi/trainer.h"

enum { N = 8, T = 3, IDS = 5, WIDTH = 6, HIDDEN = 8 };

static const struct layout {
    int n, tp, pp;
} layouts[] = {{1, 1, 1}, {2, 1, 1}, {4, 1, 1}, {2, 2, 1},
               {4, 2, 1}, {2, 1, 2}, {4, 1, 2}, {4, 2, 2}};
enum { N_LAYOUTS = sizeof layouts / sizeof layouts[0] };

/* Seen by the test and all ranks. */
static struct shared {
    struct layout layout;
    int micro_batch;
    float logits[N][T][IDS];
    double loss, mean, most;
} * shared;

static kumi_value layer(struct kumi_graph *g, kumi_value x)
{
    const int64_t hidden = HIDDEN, width = WIDTH;
    kumi_value y = kumi_linear(g, x, "up", &(struct kumi_linear){.out = "f", .out_count = &hidden});
    y = kumi_activate(g, y, KUMI_GELU);
    y = kumi_linear(g, y, "down", &(struct kumi_linear){.out = "c", .out_count = &width});
    return kumi_add(g, x, y);
}

/* The head is the padded embedding, so that logits have padding, which no output may contain. */
static int build(struct kumi_graph *g)
{
    const int64_t tokens[] = {N, T}, table[] = {IDS, WIDTH};
    kumi_value x = kumi_input(g, "tokens", KUMI_I32, "nt", tokens);
    kumi_value y = kumi_input(g, "targets", KUMI_I32, "nt", tokens);
    kumi_value ids =
        kumi_param(g, "ids", "vc", table, &(struct kumi_init){.std = 1, .pad_first = 8});
    x = kumi_dropout(g, kumi_embedding(g, ids, x), 0.5);
    for (int i = 0; i < 2; i++) {
        kumi_graph_enter(g, "h.%d", i);
        x = layer(g, x);
        kumi_graph_leave(g);
    }
    x = kumi_layer_norm(g, x, "norm", 0);
    x = kumi_linear(g, x, "head", &(struct kumi_linear){.out_in = 1, .weight = ids});
    kumi_graph_output(g, "logits", x);
    kumi_graph_output(g, "shown", kumi_scale(g, x, 2)); /* that nothing else reads */
    kumi_graph_metric(g, "mean", x, KUMI_METRIC_MEAN);
    kumi_graph_metric(g, "most", kumi_scale(g, kumi_mul(g, x, x), -1), KUMI_METRIC_MAX);
    return kumi_loss_cross_entropy(g, x, y, -100);
}

static int check(struct kumi_trainer *t, int rank)
{
    const struct layout *l = &shared->layout;
    const int n_of_stage = l->n / l->pp;
    const int64_t count = N / (n_of_stage / l->tp) * T * IDS;
    float rows[N * T * IDS], twice[N * T * IDS];
    int64_t first;
    if (rank < l->n - n_of_stage)
        return kumi_trainer_output(t, "logits", rows, count, NULL) != KUMI_EINVAL ||
               strstr(kumi_last_error()->text, "this rank's stages (parallel.pp)") == NULL;
    if (kumi_trainer_output(t, "logits", rows, count + 1, NULL) != KUMI_EINVAL ||
        kumi_trainer_output(t, "none", rows, count, NULL) != KUMI_EINVAL ||
        kumi_trainer_output(t, "loss_sum", rows, 1, NULL) != KUMI_EINVAL)
        return 2;
    if (kumi_trainer_output(t, "shown", twice, count, NULL) < 0 ||
        kumi_trainer_output(t, "logits", rows, count, &first) < 0)
        return 3;
    for (int64_t i = 0; i < count; i++)
        if (twice[i] != 2 * rows[i])
            return 4;
    memcpy(shared->logits[first], rows, (size_t)count * sizeof *rows);
    return 0;
}

static int divided(struct kumi_trainer *t, int rank)
{
    float rows[N * T * IDS];
    (void)rank;
    return kumi_trainer_output(t, "logits", rows, (int64_t)N * T * IDS, NULL) != KUMI_EINVAL ||
           strstr(kumi_last_error()->text, "use parallel.sp false") == NULL;
}

/* arg: NULL; or a setting, for rows that are divided by it */
static int rank_main(void *arg)
{
    struct kumi_comm *world;
    char tp[32], pp[32];
    const char *const set[] = {arg ? arg : "parallel.tp_exact=2", tp, pp, NULL};
    struct kumi_graph *graph = NULL;
    struct kumi_trainer *t = NULL;
    int32_t tokens[N][T], targets[N][T];
    const struct kumi_batch batch[] = {{"tokens", tokens}, {"targets", targets}};
    struct kumi_trainer_options o = {
        .virtual_shards = 4, .micro_batch = shared->micro_batch, .seed = 3, .set = set};
    snprintf(tp, sizeof tp, "parallel.tp=%d", shared->layout.tp);
    snprintf(pp, sizeof pp, "parallel.pp=%d", shared->layout.pp);
    for (int i = 0; i < N * T; i++) {
        tokens[i / T][i % T] = i % IDS;
        targets[i / T][i % T] = i * 3 % IDS;
    }
    int status = kumi_comm_join(NULL, &world);
    if (status < 0)
        return status;
    if ((status = kumi_graph_create(&graph)) == 0 && (status = build(graph)) == 0)
        status = kumi_trainer_create(world, graph, &o, &t);
    if (status == 0)
        status = kumi_trainer_step(t, batch, 2, NULL);
    if (status == 0)
        status = kumi_trainer_evaluate(t, batch, 2, &shared->loss);
    if (status == 0)
        status = kumi_trainer_metric(t, "mean", 1, &shared->mean);
    if (status == 0)
        status = kumi_trainer_metric(t, "most", 1, &shared->most);
    if (status == 0)
        status = (arg ? divided : check)(t, kumi_comm_rank(world));
    if (status < 0)
        fprintf(stderr, "%s\n", kumi_last_error()->text);
    kumi_trainer_destroy(t);
    kumi_graph_destroy(graph);
    kumi_comm_leave(world);
    return status;
}

static double loss_of(void)
{
    double loss = 0;
    for (int i = 0; i < N * T; i++) {
        const float *x = shared->logits[i / T][i % T];
        double sum = 0;
        for (int v = 0; v < IDS; v++)
            sum += exp((double)x[v]);
        loss += log(sum) - (double)x[i * 3 % IDS];
    }
    return loss / (N * T);
}

/* Metrics cover the logits without their padding: no zero is the max of negative values. */
static void check_metrics(void)
{
    double sum = 0, most = (double)-INFINITY;
    for (int i = 0; i < N * T * IDS; i++) {
        const double x = (double)(&shared->logits[0][0][0])[i];
        sum += x;
        most = -x * x > most ? -x * x : most;
    }
    assert_true(fabs(sum / (N * T * IDS) - shared->mean) < 1e-9);
    assert_true(most < 0 && fabs(most - shared->most) < 1e-6 * -most);
}

static void rows_of_all_layouts(void **state)
{
    static float want[N][T][IDS];
    (void)state;
    for (int micro = 1; micro <= 2; micro++)
        for (int i = 0; i < N_LAYOUTS; i++) {
            *shared = (struct shared){.layout = layouts[i], .micro_batch = micro};
            if (kumi_launch(rank_main, NULL, layouts[i].n) != 0)
                fail_msg("layout %d, micro_batch %d", i, micro);
            assert_true(fabs(loss_of() - shared->loss) < 1e-6);
            check_metrics();
            if (i == 0)
                memcpy(want, shared->logits, sizeof want);
            assert_memory_equal(want, shared->logits, sizeof want);
        }
}

/* Ranks that divide sequences have no whole rows. */
static void divided_rows(void **state)
{
    static char by[] = "parallel.sp=true";
    (void)state;
    *shared = (struct shared){.layout = {2, 2, 1}, .micro_batch = 1};
    assert_int_equal(kumi_launch(rank_main, by, 2), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_of_all_layouts),
                                       cmocka_unit_test(divided_rows)};
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
