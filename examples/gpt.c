/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A character model of a text with a loop and data of one's own: gpt [FILE [STEPS [RANKS]]].
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kumi/comm.h"
#include "kumi/launch.h"
#include "kumi/model.h"
#include "kumi/trainer.h"

enum { N = 16, T = 32 };

static const char *path = "data/tinyshakespeare.txt";
static int n_steps = 60, n_ranks = 2;
static unsigned char text[1 << 22];
static size_t text_bytes;

/* N windows of the text; every rank draws the same and trains on its share. */
static void draw(unsigned *seed, int32_t *tokens, int32_t *targets)
{
    for (int i = 0; i < N; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        size_t at = (*seed >> 4) % (text_bytes - T - 1);
        for (int t = 0; t < T; t++) {
            tokens[i * T + t] = text[at + (size_t)t];
            targets[i * T + t] = text[at + (size_t)t + 1];
        }
    }
}

static int train(void *arg)
{
    static int32_t tokens[N * T], targets[N * T];
    struct kumi_comm *world;
    struct kumi_graph *graph = NULL;
    struct kumi_trainer *trainer = NULL;
    struct kumi_metrics m = {0};
    struct kumi_gpt2 config;
    double first = 0;
    unsigned seed = 7;
    (void)arg;
    int status = kumi_comm_join(NULL, &world);
    if (status < 0)
        return status;
    kumi_gpt2_defaults(&config);
    config.n_layer = 2, config.n_head = 4, config.n_embd = 64, config.n_positions = T,
    config.vocab_size = 256;
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.1;
    status = kumi_graph_create(&graph);
    if (status == 0)
        status = kumi_gpt2_build(graph, &config, &(struct kumi_shape_of_batch){.n = N, .t = T});
    if (status == 0)
        status = kumi_trainer_create(
            world, graph,
            &(struct kumi_trainer_options){
                .lr = 3e-3, .clip_norm = 1, .warmup_steps = 10, .virtual_shards = 4},
            &trainer);
    for (int step = 0; step < n_steps && status == 0; step++) {
        draw(&seed, tokens, targets);
        status = kumi_trainer_step(
            trainer, (struct kumi_batch[]){{"tokens", tokens}, {"targets", targets}}, 2, &m);
        first = step == 0 ? m.loss : first;
        if (status == 0 && kumi_comm_rank(world) == 0 && (step % 20 == 0 || step == n_steps - 1))
            printf("step %3d  loss %.4f  norm %.3f\n", step, m.loss, m.grad_norm);
    }
    if (status < 0 && kumi_comm_rank(world) == 0)
        fprintf(stderr, "gpt: %s\n", kumi_last_error()->text);
    kumi_trainer_destroy(trainer);
    kumi_graph_destroy(graph);
    kumi_comm_leave(world);
    return status < 0 ? status : m.loss < first ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        path = argv[1];
    if (argc > 2)
        n_steps = atoi(argv[2]);
    if (argc > 3)
        n_ranks = atoi(argv[3]);
    FILE *f = fopen(path, "rb");
    if (f != NULL) {
        text_bytes = fread(text, 1, sizeof text, f);
        fclose(f);
    }
    if (text_bytes < 2 * T) {
        fprintf(stderr, "gpt: %s: missing or too short\n", path);
        return EXIT_FAILURE;
    }
    return kumi_launch(train, NULL, n_ranks) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
