/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small network with its own training loop on 4 ranks: is a point inside a circle? It needs no
 * arguments.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kumi/comm.h"
#include "kumi/launch.h"
#include "kumi/trainer.h"

enum { N_RANKS = 4, N_SAMPLES = 256, N_HIDDEN = 32, N_STEPS = 400 };

static void draw(unsigned *seed, float *x, int32_t *y)
{
    for (int i = 0; i < N_SAMPLES; i++) {
        for (int d = 0; d < 2; d++) {
            *seed = *seed * 1664525u + 1013904223u;
            x[2 * i + d] = (float)(*seed >> 8) * 0x1p-23f - 1;
        }
        y[i] = x[2 * i] * x[2 * i] + x[2 * i + 1] * x[2 * i + 1] < 0.64f;
    }
}

static int build(struct kumi_graph *g)
{
    int64_t hidden = N_HIDDEN, classes = 2;
    kumi_value x = kumi_input(g, "x", KUMI_F32, "nc", (int64_t[]){N_SAMPLES, 2});
    kumi_value y = kumi_input(g, "y", KUMI_I32, "n", (int64_t[]){N_SAMPLES});
    kumi_value h =
        kumi_linear(g, x, "hidden", &(struct kumi_linear){.out = "f", .out_count = &hidden});
    h = kumi_linear(g, kumi_activate(g, h, KUMI_RELU), "head",
                    &(struct kumi_linear){.out = "v", .out_count = &classes});
    return kumi_loss_cross_entropy(g, h, y, -100);
}

static int train(void *arg)
{
    static float x[2 * N_SAMPLES];
    static int32_t y[N_SAMPLES];
    struct kumi_comm *world;
    struct kumi_graph *graph = NULL;
    struct kumi_trainer *trainer = NULL;
    struct kumi_metrics m = {0};
    unsigned seed = 1; /* equal on all ranks: each trains on its share of the batch */
    (void)arg;
    int status = kumi_comm_join(NULL, &world);
    if (status < 0)
        return status;
    status = kumi_graph_create(&graph);
    if (status == 0)
        status = build(graph);
    if (status == 0)
        status = kumi_trainer_create(
            world, graph, &(struct kumi_trainer_options){.lr = 1e-2, .seed = 1}, &trainer);
    for (int step = 0; step < N_STEPS && status == 0; step++) {
        draw(&seed, x, y);
        status = kumi_trainer_step(trainer, (struct kumi_batch[]){{"x", x}, {"y", y}}, 2, &m);
        if (status == 0 && kumi_comm_rank(world) == 0 && (step % 100 == 0 || step == N_STEPS - 1))
            printf("step %3d  loss %.4f\n", step, m.loss);
    }
    if (status < 0 && kumi_comm_rank(world) == 0)
        fprintf(stderr, "mlp: %s\n", kumi_last_error()->text);
    kumi_trainer_destroy(trainer);
    kumi_graph_destroy(graph);
    kumi_comm_leave(world);
    return status < 0 ? status : m.loss < 0.15 ? 0 : 1;
}

int main(void)
{
    if (getenv("RANK")) /* a launcher has started the ranks: kumi run, torchrun */
        return train(NULL) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    if (kumi_launch(train, NULL, N_RANKS) == 0)
        return EXIT_SUCCESS;
    fprintf(stderr, "mlp: %s\n", kumi_last_error()->text);
    return EXIT_FAILURE;
}
