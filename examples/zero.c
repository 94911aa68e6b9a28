/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeRO-2 with your own training loop: zero [RANKS].
 *
 * Eight residual blocks classify the points of two spirals. They are trained with Lion, a cosine
 * schedule, averaged weights, and no weight decay for biases and norms. The first run partitions
 * gradients and optimizer state and recomputes activations; in the second run the ranks share one
 * copy of the state. Both give the same bits.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kumi/comm.h"
#include "kumi/launch.h"
#include "kumi/trainer.h"

enum { N = 256, WIDTH = 32, N_BLOCKS = 8, N_STEPS = 400 };

#define LEARNING                                                                                   \
    "optimizer.type=lion", "optimizer.lr=2e-3", "optimizer.betas=[0.9, 0.99]",                     \
        "optimizer.weight_decay=0.01",                                                             \
        "optimizer.groups=[{\"match\": [\"*.bias\", \"*norm*\"], \"weight_decay\": 0}]",           \
        "schedule.type=cosine", "schedule.warmup_steps=20", "train.steps=400", "train.ema=0.98",   \
        "train.virtual_shards=4", "train.clip_norm=1"

static const char *const sharded[] = {LEARNING, "parallel.host_state=private", "parallel.zero=2",
                                      "memory.recompute=full", NULL};
static const char *const shared[] = {LEARNING, NULL};
static float x[2 * N];
static int32_t y[N];
static const struct kumi_batch batch[] = {{"x", x}, {"y", y}};

/* The points of a step, equal on all ranks; each rank trains on its share. */
static void draw(unsigned *seed)
{
    for (int i = 0; i < N; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        y[i] = i % 2;
        float r = (float)(*seed >> 8) * 0x1p-24f, angle = 9 * r + 3.14159265f * (float)y[i];
        x[2 * i] = r * cosf(angle);
        x[2 * i + 1] = r * sinf(angle);
    }
}

static kumi_value linear(struct kumi_graph *g, kumi_value from, const char *name, const char *out,
                         int64_t count)
{
    return kumi_linear(g, from, name, &(struct kumi_linear){.out = out, .out_count = &count});
}

static int build(struct kumi_graph *g)
{
    kumi_value h = kumi_input(g, "x", KUMI_F32, "nd", (int64_t[]){N, 2});
    kumi_value wanted = kumi_input(g, "y", KUMI_I32, "n", (int64_t[]){N});
    h = linear(g, h, "stem", "c", WIDTH);
    for (int i = 0; i < N_BLOCKS; i++) { /* each block is a unit of memory.recompute */
        kumi_graph_enter(g, "blocks.%d", i);
        kumi_value z = linear(g, kumi_layer_norm(g, h, "norm", 0), "up", "f", 4 * WIDTH);
        h = kumi_add(g, h, linear(g, kumi_activate(g, z, KUMI_GELU), "down", "c", WIDTH));
        kumi_graph_leave(g);
    }
    return kumi_loss_cross_entropy(g, linear(g, h, "head", "v", 2), wanted, -100);
}

static int learn(struct kumi_comm *world, const char *const *set, char digest[72], double *loss)
{
    struct kumi_graph *graph;
    struct kumi_trainer *trainer = NULL;
    unsigned seed = 1;
    int status = kumi_graph_create(&graph);
    if (status < 0)
        return status;
    if ((status = build(graph)) == 0)
        status =
            kumi_trainer_create(world, graph, &(struct kumi_trainer_options){.set = set}, &trainer);
    for (int step = 0; step < N_STEPS && status == 0; step++) {
        struct kumi_metrics m;
        draw(&seed);
        status = kumi_trainer_step(trainer, batch, 2, &m);
        if (status == 0 && kumi_comm_rank(world) == 0 && step % 100 == 0)
            printf("step %3d  loss %.4f  lr %.1e\n", step, m.loss, m.lr);
    }
    if (status == 0)
        status = kumi_trainer_digest(trainer, digest);
    if (status == 0)
        status = kumi_trainer_take_ema(trainer);
    if (status == 0)
        status = kumi_trainer_evaluate(trainer, batch, 2, loss);
    kumi_trainer_destroy(trainer);
    kumi_graph_destroy(graph);
    return status;
}

static int train(void *arg)
{
    struct kumi_comm *world;
    char digest[2][72];
    double loss[2] = {0};
    (void)arg;
    int status = kumi_comm_join(NULL, &world);
    if (status < 0)
        return status;
    status = learn(world, sharded, digest[0], &loss[0]);
    if (status == 0)
        status = learn(world, shared, digest[1], &loss[1]);
    if (status < 0 && kumi_comm_rank(world) == 0)
        fprintf(stderr, "zero: %s\n", kumi_last_error()->text);
    int is_equal = status == 0 && strcmp(digest[0], digest[1]) == 0 && loss[0] == loss[1];
    if (status == 0 && kumi_comm_rank(world) == 0)
        printf("loss of the averages %.4f; %s\n%s\n", loss[0], digest[0],
               is_equal ? "the same bits in both layouts" : "the layouts differ");
    kumi_comm_leave(world);
    return status < 0 ? status : is_equal && loss[0] < 0.1 ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (getenv("RANK")) /* a launcher has started the ranks: kumi run, torchrun */
        return train(NULL) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    if (kumi_launch(train, NULL, argc > 1 ? atoi(argv[1]) : 2) == 0)
        return EXIT_SUCCESS;
    fprintf(stderr, "zero: %s\n", kumi_last_error()->text);
    return EXIT_FAILURE;
}
