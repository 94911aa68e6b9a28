/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A convolutional network with its own training loop: convnet [STEPS [RANKS]].
 *
 * It classifies noisy images of stripes, checks and blobs with convolution, batch norm, a residual
 * block, pooling and a linear head. Every rank generates the whole batch, which is small, and
 * trains on its share. With 4 virtual shards the results are equal for 1, 2 and 4 ranks.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kumi/comm.h"
#include "kumi/launch.h"
#include "kumi/trainer.h"

enum { N = 32, SIDE = 12, CLASSES = 4, WIDTH = 8 };

static int n_steps = 60, n_ranks = 2;

/* 3 x 3 convolution, which keeps rows and columns (half of them with stride 2), and batch norm. */
static kumi_value conv(struct kumi_graph *g, kumi_value x, const char *name, int64_t out,
                       int64_t stride)
{
    kumi_graph_enter(g, "%s", name);
    x = kumi_conv2d(g, x, "conv",
                    &(struct kumi_conv2d){.out = out,
                                          .kernel = {3},
                                          .stride = {stride},
                                          .padding = {1, 1},
                                          .no_bias = 1,
                                          .init = KUMI_CONV_KAIMING_FAN_OUT});
    x = kumi_batch_norm(g, x, "norm", NULL);
    kumi_graph_leave(g);
    return x;
}

static int build(struct kumi_graph *g)
{
    int64_t classes = CLASSES;
    kumi_value x = kumi_input(g, "images", KUMI_F32, "nyxc", (int64_t[]){N, SIDE, SIDE, 1});
    kumi_value labels = kumi_input(g, "labels", KUMI_I32, "n", (int64_t[]){N});
    x = kumi_activate(g, conv(g, x, "stem", WIDTH, 1), KUMI_RELU);
    kumi_value y = kumi_activate(g, conv(g, x, "block.1", WIDTH, 1), KUMI_RELU);
    x = kumi_activate(g, kumi_add(g, x, conv(g, y, "block.2", WIDTH, 1)), KUMI_RELU);
    x = kumi_max_pool(g, x, &(struct kumi_pool){.kernel = {2}});
    x = kumi_activate(g, conv(g, x, "last", 2 * WIDTH, 2), KUMI_RELU);
    x = kumi_linear(g, kumi_global_avg_pool(g, x), "head",
                    &(struct kumi_linear){.out = "v", .out_count = &classes, .out_in = 1});
    kumi_accuracy(g, x, labels, -100, 1);
    return kumi_loss_cross_entropy(g, x, labels, -100);
}

static unsigned draw(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 16;
}

/* Rows, columns, checks and one blob, at a random position with noise. */
static void make_batch(unsigned seed, float *image, int32_t *label)
{
    for (int i = 0; i < N; i++) {
        unsigned dy = draw(&seed) % SIDE, dx = draw(&seed) % SIDE;
        label[i] = (int32_t)(draw(&seed) % CLASSES);
        for (unsigned y = 0; y < SIDE; y++)
            for (unsigned x = 0; x < SIDE; x++) {
                unsigned row = (y + dy) / 3 % 2, column = (x + dx) / 3 % 2;
                unsigned blob = (y + dy) % SIDE < 5 && (x + dx) % SIDE < 5;
                unsigned on[CLASSES] = {row, column, row ^ column, blob};
                float noise = (float)(draw(&seed) % 1000) * 2e-3f - 1;
                image[((unsigned)i * SIDE + y) * SIDE + x] = (float)on[label[i]] + noise;
            }
    }
}

static int loop(struct kumi_comm *world, struct kumi_trainer *trainer)
{
    static float images[N * SIDE * SIDE];
    static int32_t labels[N];
    const struct kumi_batch batch[] = {{"images", images}, {"labels", labels}};
    struct kumi_metrics m = {0};
    double loss = 0, accuracy = 0;
    int status = 0;
    for (int step = 0; step < n_steps && status == 0; step++) {
        make_batch((unsigned)step + 1, images, labels);
        status = kumi_trainer_step(trainer, batch, 2, &m);
        if (status == 0 && kumi_comm_rank(world) == 0 && step % 10 == 0)
            printf("step %3d  loss %.4f\n", step, m.loss);
    }
    make_batch(0, images, labels); /* held-out data; batch norm uses its running statistics */
    if (status == 0)
        status = kumi_trainer_evaluate(trainer, batch, 2, &loss);
    if (status == 0)
        status = kumi_trainer_metric(trainer, "accuracy", 1, &accuracy);
    if (status == 0 && kumi_comm_rank(world) == 0)
        printf("held out: loss %.4f  accuracy %.1f %%\n", loss, 100 * accuracy);
    return status < 0 ? status : accuracy > 0.9 ? 0 : 1;
}

static int train(void *arg)
{
    struct kumi_comm *world;
    struct kumi_graph *graph = NULL;
    struct kumi_trainer *trainer = NULL;
    const struct kumi_trainer_options o = {
        .optimizer = "sgd", .lr = 0.1, .momentum = 0.9, .nesterov = 1, .virtual_shards = 4};
    (void)arg;
    int status = kumi_comm_join(NULL, &world);
    if (status < 0)
        return status;
    if ((status = kumi_graph_create(&graph)) == 0 && (status = build(graph)) == 0)
        status = kumi_trainer_create(world, graph, &o, &trainer);
    if (status == 0)
        status = loop(world, trainer);
    if (status < 0 && kumi_comm_rank(world) == 0)
        fprintf(stderr, "convnet: %s\n", kumi_last_error()->text);
    kumi_trainer_destroy(trainer);
    kumi_graph_destroy(graph);
    kumi_comm_leave(world);
    return status;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        n_steps = atoi(argv[1]);
    if (argc > 2)
        n_ranks = atoi(argv[2]);
    if (getenv("RANK")) /* a launcher has started the ranks: kumi run, torchrun */
        return train(NULL) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    if (kumi_launch(train, NULL, n_ranks) == 0)
        return EXIT_SUCCESS;
    fprintf(stderr, "convnet: %s\n", kumi_last_error()->text);
    return EXIT_FAILURE;
}
