/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models of the builder in which one adjoint has several readers: weights that are sums of
 * parameters and of their products (as LoRA's), one parameter twice in a sum, several activations
 * of one value, a ReLU of a ReLU, and layers with batch norms whose head is called as the step's
 * own nodes are. The bits are equal under every layout, with several micro-batches, with
 * recomputation, and in pipelines.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <unistd.h>

#include "base/os/os.h"
#include "kumi/comm.h"
#include "kumi/launch.h"
#include "kumi/trainer.h"

enum { N = 32, WIDTH = 4, HIDDEN = 16, CLASSES = 2, STEPS = 3 };
enum model {
    SUM_OF_TWO,
    SUM_WITH_SCALED,
    SUM_WITH_ITSELF,
    SUM_WITH_PRODUCT,
    ACTIVATIONS,
    TWICE,
    NORMED,
    N_MODELS,
    FACTORED = N_MODELS
};

static struct {
    enum model model;
    const char *sets[6];
    char path[64];
} plan;

static kumi_value weight_of(struct kumi_graph *g)
{
    const struct kumi_init init = {.std = 0.3};
    const int64_t whole[] = {HIDDEN, CLASSES}, left[] = {HIDDEN, 3}, right[] = {3, CLASSES};
    const kumi_value v = kumi_param(g, plan.model == NORMED ? "norm" : "v", "fv", whole, &init);
    switch (plan.model) {
    case SUM_OF_TWO:
        return kumi_add(g, v, kumi_param(g, "s", "fv", whole, &init));
    case SUM_WITH_SCALED:
        return kumi_add(g, v, kumi_scale(g, kumi_param(g, "s", "fv", whole, &init), 2));
    case SUM_WITH_ITSELF:
        return kumi_add(g, v, v);
    case SUM_WITH_PRODUCT:
        return kumi_add(
            g, v,
            kumi_linear(g, kumi_param(g, "a", "fr", left, &init), "ab",
                        &(struct kumi_linear){.weight = kumi_param(g, "b", "rv", right, &init)}));
    case ACTIVATIONS:
    case TWICE:
    case NORMED:
    case N_MODELS:
        break;
    }
    return v;
}

/* Layers whose weights are products of parameters of the layer. */
static int build_factored(struct kumi_graph *g)
{
    const struct kumi_init init = {.std = 0.5};
    const int64_t left[] = {HIDDEN, 3}, right[] = {3, HIDDEN}, hidden = HIDDEN, classes = CLASSES;
    const kumi_value x = kumi_input(g, "x", KUMI_F32, "nc", (int64_t[]){N, WIDTH});
    const kumi_value y = kumi_input(g, "y", KUMI_I32, "n", (int64_t[]){N});
    kumi_value h = kumi_linear(g, x, "in", &(struct kumi_linear){.out = "f", .out_count = &hidden});
    for (int i = 0; i < 4; i++) {
        kumi_graph_enter(g, "h.%d", i);
        const kumi_value b = kumi_param(g, "b", i % 2 ? "rf" : "rg", right, &init),
                         a = kumi_param(g, "a", i % 2 ? "gr" : "fr", left, &init),
                         ab = kumi_linear(g, a, "ab", &(struct kumi_linear){.weight = b});
        h = kumi_activate(g, kumi_linear(g, h, "fc", &(struct kumi_linear){.weight = ab}),
                          KUMI_RELU);
        kumi_graph_leave(g);
    }
    h = kumi_linear(g, h, "head", &(struct kumi_linear){.out = "v", .out_count = &classes});
    return kumi_loss_cross_entropy(g, h, y, -100);
}

static int build(struct kumi_graph *g)
{
    const int64_t hidden = HIDDEN;
    if (plan.model == FACTORED)
        return build_factored(g);
    const kumi_value x = kumi_input(g, "x", KUMI_F32, "nc", (int64_t[]){N, WIDTH});
    const kumi_value y = kumi_input(g, "y", KUMI_I32, "n", (int64_t[]){N});
    kumi_value h = kumi_linear(
        g, x, "l.0",
        &(struct kumi_linear){.out = plan.model == NORMED ? "h" : "f", .out_count = &hidden});
    if (plan.model == NORMED)
        h = kumi_activate(g, kumi_batch_norm(g, h, "l.0.norm", NULL), KUMI_RELU);
    kumi_graph_enter(g, "l.1");
    if (plan.model == NORMED)
        h = kumi_linear(g, h, "fc", &(struct kumi_linear){.out = "f", .out_count = &hidden});
    if (plan.model == TWICE || plan.model == NORMED)
        h = kumi_activate(g, kumi_batch_norm(g, h, "norm", NULL), KUMI_RELU);
    const kumi_value a = kumi_activate(g, h, KUMI_RELU);
    h = plan.model == ACTIVATIONS ? kumi_add(g, a, kumi_activate(g, h, KUMI_SILU)) : a;
    kumi_graph_leave(g);
    h = kumi_linear(g, h, "head", &(struct kumi_linear){.weight = weight_of(g)});
    return kumi_loss_cross_entropy(g, h, y, -100);
}

static int steps(struct kumi_comm *world, struct kumi_trainer *t)
{
    static float x[N * WIDTH];
    static int32_t y[N];
    const struct kumi_batch batch[] = {{"x", x}, {"y", y}};
    struct kumi_metrics m;
    char digest[72];
    uint32_t seed = 1;
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < N * WIDTH; i++) {
            seed = seed * 1664525 + 1013904223;
            x[i] = (float)(seed >> 8) * 0x1p-23f - 1;
        }
        for (int i = 0; i < N; i++)
            y[i] = x[WIDTH * i] > 0;
        const int status = kumi_trainer_step(t, batch, 2, &m);
        if (status < 0)
            return status;
    }
    const int status = kumi_trainer_digest(t, digest);
    if (status < 0)
        return status;
    return kumi_comm_rank(world) == 0 && ku_os_replace(plan.path, digest, strlen(digest)) < 0;
}

static int rank_main(void *arg)
{
    struct kumi_comm *world;
    struct kumi_graph *graph = NULL;
    struct kumi_trainer *trainer = NULL;
    const struct kumi_trainer_options o = {
        .lr = 1e-2, .seed = 1, .virtual_shards = 2, .micro_batch = 4, .set = plan.sets};
    (void)arg;
    int status = kumi_comm_join(NULL, &world);
    if (status < 0)
        return status;
    status = kumi_graph_create(&graph);
    if (status == 0)
        status = build(graph);
    if (status == 0)
        status = kumi_trainer_create(world, graph, &o, &trainer);
    if (status == 0)
        status = steps(world, trainer);
    if (status < 0)
        fprintf(stderr, "%s\n", kumi_last_error()->text);
    kumi_trainer_destroy(trainer);
    kumi_graph_destroy(graph);
    kumi_comm_leave(world);
    return status;
}

/* Trains on n ranks; compares with the digest `first`, or makes it if it is empty. */
static void train(int n, const char *what, char first[72])
{
    char *text;
    size_t bytes;
    if (kumi_launch(rank_main, NULL, n) != 0)
        fail_msg("model %d, %s, %d ranks", (int)plan.model, what, n);
    assert_int_equal(ku_os_slurp(plan.path, 100, &text, &bytes), 0);
    assert_int_equal(bytes, 71);
    if (first[0] == '\0')
        memcpy(first, text, 71);
    if (memcmp(first, text, 71) != 0)
        fail_msg("model %d, %s, %d ranks: %.71s, before %s", (int)plan.model, what, n, text, first);
    free(text);
}

/* Gradients of batch norms are complete with those of activations, gradients of weights later. */
static void pipelines(void **state)
{
    static const char *const sync[] = {"step", "micro"}, *const schedule[] = {"1f1b", "zb-h1"};
    (void)state;
    plan.model = NORMED;
    for (int s = 0; s < 2; s++) {
        char first[72] = "", set[2][64];
        snprintf(set[0], sizeof set[0], "parallel.grad_sync=%s", sync[s]);
        plan.sets[0] = "parallel.host_state=private", plan.sets[1] = set[0];
        plan.sets[2] = NULL;
        train(2, sync[s], first);
        for (int k = 0; k < 2; k++) {
            snprintf(set[1], sizeof set[1], "parallel.pp_schedule=%s", schedule[k]);
            plan.sets[2] = "parallel.pp=2", plan.sets[3] = set[1], plan.sets[4] = NULL;
            train(4, schedule[k], first);
        }
    }
    unlink(plan.path);
}

/* The bits of a model on 1 and 2 ranks, then of its stages on 2 ranks, `by` layouts apart. */
static void compare_layouts(const char *compute, int by)
{
    static const char *const recompute[] = {"none", "selective", "full"};
    char first[72] = "";
    for (int k = 0; k < 6; k += by) {
        char set[3][64], what[160];
        snprintf(set[0], sizeof set[0], "memory.recompute=%s", recompute[k % 3]);
        snprintf(set[1], sizeof set[1], "parallel.zero=%d", k < 3 ? 0 : k - 2);
        snprintf(set[2], sizeof set[2], "precision.compute=%s", compute);
        for (int i = 0; i < 3; i++)
            plan.sets[i] = set[i];
        plan.sets[3] = "parallel.host_state=private", plan.sets[4] = NULL;
        snprintf(what, sizeof what, "%s, %s, %s", set[0], set[1], compute);
        train(k == 0 ? 1 : 2, what, first);
    }
}

static void equal_bits(void **state)
{
    (void)state;
    snprintf(plan.path, sizeof plan.path, "/tmp/kumi-own-graphs-%d", (int)getpid());
    for (int model = 0; model < N_MODELS; model++) {
        plan.model = (enum model)model;
        compare_layouts("f32", 1);
    }
    unlink(plan.path);
}

/* The gradient of a weight that is a product is wider than the weight, whose factors are narrow. */
static void narrow_weights(void **state)
{
    (void)state;
    plan.model = SUM_WITH_PRODUCT;
    compare_layouts("bf16", 5);
    unlink(plan.path);
}

/* W of a stage reads parameters that the next I gathers, and that no gather may replace before. */
static void gathered_factors(void **state)
{
    char first[72] = "";
    (void)state;
    plan.model = FACTORED;
    plan.sets[0] = "parallel.host_state=private", plan.sets[1] = "parallel.zero=3";
    plan.sets[2] = "parallel.persist_below=0", plan.sets[3] = NULL;
    train(2, "one stage", first);
    plan.sets[3] = "parallel.pp=2", plan.sets[4] = "parallel.pp_schedule=zb-h1";
    plan.sets[5] = NULL;
    train(4, "zb-h1", first);
    unlink(plan.path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_bits), cmocka_unit_test(narrow_weights), cmocka_unit_test(pipelines),
        cmocka_unit_test(gathered_factors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
