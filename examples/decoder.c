/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small decoder with its own training loop: decoder [FILE [STEPS [RANKS]]].
 *
 * It has RMS norm, rotary positions, grouped-query attention (two query heads per key head),
 * SwiGLU, and a head that is tied to the embedding. It trains on the bytes of FILE (default: a
 * proverb) and then continues the text greedily, using the output "logits" of an evaluation.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kumi/comm.h"
#include "kumi/launch.h"
#include "kumi/trainer.h"

enum { N = 8, T = 32, VOCAB = 256, WIDTH = 32, KEYS = 2, QUERIES = 2, HEAD = 8, HIDDEN = 64 };
enum { N_LAYERS = 2, N_SAMPLED = 48, MAX_TEXT = 1 << 20 };

static char text[MAX_TEXT] = "The world is a book, and those who do not travel read only a page. "
                             "A journey of a thousand miles begins with a single step. ";
static int n_text, n_steps = 120, n_ranks = 2;
static int32_t tokens[N * T], targets[N * T];
static const struct kumi_batch batch[] = {{"tokens", tokens}, {"targets", targets}};

static kumi_value linear(struct kumi_graph *g, kumi_value x, const char *name, const char *out,
                         const int64_t *count, int contract)
{
    const struct kumi_linear o = {out, count, contract, .out_in = 1, .no_bias = 1};
    return kumi_linear(g, x, name, &o);
}

static kumi_value block(struct kumi_graph *g, kumi_value x)
{
    const int64_t queries[] = {KEYS, QUERIES, HEAD}, keys[] = {KEYS, HEAD}, hidden = HIDDEN;
    const int64_t width = WIDTH;
    const struct kumi_rope rope = {0}; /* Hugging Face's defaults */
    kumi_value h = kumi_rms_norm(g, x, "norm_1", 0);
    kumi_value q = kumi_rope(g, linear(g, h, "q", "hrd", queries, 1), &rope);
    kumi_value k = kumi_rope(g, linear(g, h, "k", "hd", keys, 1), &rope);
    kumi_value v = linear(g, h, "v", "hd", keys, 1);
    h = kumi_attention_kv(g, q, k, v, &(struct kumi_attention_kv){.causal = 1});
    x = kumi_add(g, x, linear(g, h, "o", "c", &width, 3));
    h = kumi_rms_norm(g, x, "norm_2", 0);
    kumi_value gate = linear(g, h, "gate", "f", &hidden, 1);
    h = kumi_glu(g, gate, linear(g, h, "up", "f", &hidden, 1), KUMI_SILU);
    return kumi_add(g, x, linear(g, h, "down", "c", &width, 1));
}

static int build(struct kumi_graph *g)
{
    const int64_t shape[] = {N, T}, table[] = {VOCAB, WIDTH};
    kumi_value ids = kumi_input(g, "tokens", KUMI_I32, "nt", shape);
    kumi_value wanted = kumi_input(g, "targets", KUMI_I32, "nt", shape);
    kumi_value embedding = kumi_param(g, "embedding", "vc", table, &(struct kumi_init){.std = 0.1});
    kumi_value x = kumi_embedding(g, embedding, ids);
    for (int i = 0; i < N_LAYERS; i++) {
        kumi_graph_enter(g, "layers.%d", i);
        x = block(g, x);
        kumi_graph_leave(g);
    }
    x = kumi_linear(g, kumi_rms_norm(g, x, "norm", 0), "head",
                    &(struct kumi_linear){.weight = embedding, .out_in = 1});
    kumi_graph_output(g, "logits", x); /* [N, T, VOCAB] */
    return kumi_loss_cross_entropy(g, x, wanted, -100);
}

/*
 * Continue the text from its first T / 2 bytes. Every rank continues its own rows, which are all
 * equal.
 */
static int sample(struct kumi_comm *world, struct kumi_trainer *trainer)
{
    static float logits[N * T * VOCAB];
    char out[T / 2 + N_SAMPLED];
    double loss;
    int n = T / 2, status = 0;
    memcpy(out, text, T / 2);
    for (; n < T / 2 + N_SAMPLED && status == 0; n++) {
        int window = n < T ? n : T, best = 0;
        for (int i = 0; i < N * T; i++) /* causal: bytes after the window have no effect */
            tokens[i] = i % T < window ? (unsigned char)out[n - window + i % T] : 0;
        status = kumi_trainer_evaluate(trainer, batch, 2, &loss);
        if (status == 0)
            status = kumi_trainer_output(trainer, "logits", logits,
                                         (int64_t)N / kumi_comm_size(world) * T * VOCAB, NULL);
        const float *last = logits + (window - 1) * VOCAB; /* of this rank's first row */
        for (int v = 1; v < VOCAB; v++)
            best = last[v] > last[best] ? v : best;
        out[n] = (char)best;
    }
    if (status == 0 && kumi_comm_rank(world) == 0)
        printf("%.*s|%.*s\n", T / 2, out, N_SAMPLED, out + T / 2);
    return status;
}

static int loop(struct kumi_comm *world, struct kumi_trainer *trainer)
{
    struct kumi_metrics m = {0};
    unsigned seed = 1; /* equal on all ranks: each trains on its share of the batch */
    int status = 0;
    for (int step = 0; step < n_steps && status == 0; step++) {
        for (int i = 0; i < N; i++) { /* rows start at random positions in the text */
            seed = seed * 1664525u + 1013904223u;
            int at = (int)((seed >> 8) % (unsigned)(n_text - T));
            for (int t = 0; t < T; t++) {
                tokens[i * T + t] = (unsigned char)text[at + t];
                targets[i * T + t] = (unsigned char)text[at + t + 1];
            }
        }
        status = kumi_trainer_step(trainer, batch, 2, &m);
        if (status == 0 && kumi_comm_rank(world) == 0 && step % 20 == 0)
            printf("step %3d  loss %.4f\n", step, m.loss);
    }
    if (status == 0)
        status = sample(world, trainer);
    return status < 0 ? status : m.loss < 3.5 ? 0 : 1;
}

static int train(void *arg)
{
    const struct kumi_trainer_options options = {.lr = 1e-2, .clip_norm = 1, .virtual_shards = 4};
    struct kumi_comm *world;
    struct kumi_graph *graph = NULL;
    struct kumi_trainer *trainer = NULL;
    (void)arg;
    int status = kumi_comm_join(NULL, &world);
    if (status < 0)
        return status;
    if ((status = kumi_graph_create(&graph)) == 0 && (status = build(graph)) == 0)
        status = kumi_trainer_create(world, graph, &options, &trainer);
    if (status == 0)
        status = loop(world, trainer);
    if (status < 0 && kumi_comm_rank(world) == 0)
        fprintf(stderr, "decoder: %s\n", kumi_last_error()->text);
    kumi_trainer_destroy(trainer);
    kumi_graph_destroy(graph);
    kumi_comm_leave(world);
    return status;
}

int main(int argc, char **argv)
{
    FILE *f = argc > 1 ? fopen(argv[1], "rb") : NULL;
    n_text = f ? (int)fread(text, 1, sizeof text, f) : (int)strlen(text);
    n_steps = argc > 2 ? atoi(argv[2]) : n_steps;
    n_ranks = argc > 3 ? atoi(argv[3]) : n_ranks;
    if (n_text <= T || (argc > 1 && f == NULL)) {
        fprintf(stderr, "decoder: %s: give a text of more than %d bytes\n", argv[1], T);
        return EXIT_FAILURE;
    }
    if (getenv("RANK")) /* a launcher has started the ranks: kumi run, torchrun */
        return train(NULL) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    if (kumi_launch(train, NULL, n_ranks) == 0)
        return EXIT_SUCCESS;
    fprintf(stderr, "decoder: %s\n", kumi_last_error()->text);
    return EXIT_FAILURE;
}
