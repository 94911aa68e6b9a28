/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A character model of a text with its own training loop: gpt [FILE [STEPS [RANKS [DIR]]]]. With
 * DIR it saves its state there at the end, and continues from a state that it finds there.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kumi/comm.h"
#include "kumi/data.h"
#include "kumi/launch.h"
#include "kumi/model.h"
#include "kumi/trainer.h"

enum { N = 16, T = 32 };

static const char *path = "data/tinyshakespeare.txt", *dir;
static int n_steps = 60, n_ranks = 2;

static int create(struct kumi_comm *world, struct kumi_trainer **trainer)
{
    struct kumi_graph *graph;
    struct kumi_gpt2 config;
    kumi_gpt2_defaults(&config);
    config.n_layer = 2, config.n_head = 4, config.n_embd = 64, config.n_positions = T,
    config.vocab_size = 256;
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.1;
    int status = kumi_graph_create(&graph);
    if (status < 0)
        return status;
    status = kumi_gpt2_build(graph, &config, &(struct kumi_shape_of_batch){.n = N, .t = T});
    if (status == 0)
        status = kumi_trainer_create(
            world, graph,
            &(struct kumi_trainer_options){
                .lr = 3e-3, .clip_norm = 1, .warmup_steps = 10, .virtual_shards = 4},
            trainer);
    kumi_graph_destroy(graph);
    return status;
}

/* Every rank reads the whole batch, which is small, and trains on its share. */
static int loop(struct kumi_comm *world, struct kumi_trainer *trainer, const struct kumi_data *data)
{
    static int32_t tokens[N * T], targets[N * T];
    const struct kumi_batch batch[] = {{"tokens", tokens}, {"targets", targets}};
    struct kumi_metrics m = {0};
    double first = 0;
    int64_t begin = 0;
    int status = 0;
    if (dir && (status = kumi_trainer_load(trainer, dir, &begin)) == KUMI_ENOCKPT)
        status = 0; /* no checkpoint yet; damaged ones are KUMI_EINPUT, and end the program */
    for (int64_t step = begin; step < begin + n_steps && status == 0; step++) {
        if ((status = kumi_data_train_batch(data, step, 0, N, tokens, targets)) == 0)
            status = kumi_trainer_step(trainer, batch, 2, &m);
        first = step == begin ? m.loss : first;
        if (status == 0 && kumi_comm_rank(world) == 0 && step % 20 == 0)
            printf("step %3lld  loss %.4f  norm %.3f\n", (long long)step, m.loss, m.grad_norm);
    }
    if (status == 0 && kumi_comm_rank(world) == 0)
        printf("%d steps: loss %.4f -> %.4f\n", n_steps, first, m.loss);
    if (status == 0 && dir)
        status = kumi_trainer_save(trainer, dir, 2);
    return status < 0 ? status : m.loss < first || begin > 0 ? 0 : 1;
}

static int train(void *arg)
{
    struct kumi_comm *world;
    struct kumi_trainer *trainer = NULL;
    struct kumi_data *data = NULL;
    struct kumi_data_options o = {
        .train = &path, .n_train = 1, .seq_len = T, .global_batch = N, .seed = 7};
    (void)arg;
    int status = kumi_comm_join(NULL, &world);
    if (status < 0)
        return status;
    status = kumi_data_open(&o, &data);
    if (status == 0)
        status = create(world, &trainer);
    if (status == 0)
        status = loop(world, trainer, data);
    if (status < 0 && kumi_comm_rank(world) == 0)
        fprintf(stderr, "gpt: %s\n", kumi_last_error()->text);
    kumi_trainer_destroy(trainer);
    kumi_data_close(data);
    kumi_comm_leave(world);
    return status;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        path = argv[1];
    if (argc > 2)
        n_steps = atoi(argv[2]);
    if (argc > 3)
        n_ranks = atoi(argv[3]);
    if (argc > 4)
        dir = argv[4];
    if (getenv("RANK")) /* a launcher has started the ranks: kumi run, torchrun */
        return train(NULL) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    if (kumi_launch(train, NULL, n_ranks) == 0)
        return EXIT_SUCCESS;
    fprintf(stderr, "gpt: %s\n", kumi_last_error()->text);
    return EXIT_FAILURE;
}
