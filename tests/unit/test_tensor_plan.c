/* SPDX-License-Identifier: Apache-2.0 */
/* links: pass nn ir op tensor base */
/*
 * Tensor parallelism of whole models: which parameters are divided, how many collectives a layer
 * has, and what is refused.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "kumi/model.h"
#include "nn/builder.h"
#include "pass/pass.h"
#include "pass/place/vocabulary.h"

enum { N_SAMPLES = 2, N_TOKENS = 4, N_LAYERS = 3 };
static const struct kumi_shape_of_batch batch = {.n = N_SAMPLES, .s = 5, .t = N_TOKENS};

static int gpt2_of(struct kumi_graph *g, int heads, const struct kumi_shape_of_batch *shape)
{
    struct kumi_gpt2 c;
    kumi_gpt2_defaults(&c);
    c.n_layer = N_LAYERS, c.n_head = heads, c.n_embd = 24, c.n_positions = 8, c.vocab_size = 40;
    return kumi_gpt2_build(g, &c, shape);
}
static int gpt2(struct kumi_graph *g, int heads)
{
    return gpt2_of(g, heads, &batch);
}
/* Sequences of an odd number of tokens, of which there are no two equal slices. */
static int gpt2_odd(struct kumi_graph *g, int heads)
{
    return gpt2_of(g, heads, &(struct kumi_shape_of_batch){.n = N_SAMPLES, .t = N_TOKENS + 1});
}
static int llama(struct kumi_graph *g, int heads)
{
    struct kumi_llama c;
    kumi_llama_defaults(&c);
    c.num_hidden_layers = N_LAYERS, c.num_attention_heads = 2 * heads;
    c.num_key_value_heads = heads, c.hidden_size = 48, c.intermediate_size = 48;
    c.vocab_size = 40, c.max_position_embeddings = 8;
    return kumi_llama_build(g, &c, &batch);
}
static int bert(struct kumi_graph *g, int heads)
{
    struct kumi_bert c;
    kumi_bert_defaults(&c);
    c.num_hidden_layers = N_LAYERS, c.num_attention_heads = heads, c.hidden_size = 24;
    c.intermediate_size = 48, c.vocab_size = 40, c.max_position_embeddings = 8;
    return kumi_bert_build(g, &c, &batch);
}
static int transformer(struct kumi_graph *g, int heads)
{
    struct kumi_transformer c;
    kumi_transformer_defaults(&c);
    c.d_model = 24, c.encoder_layers = c.decoder_layers = N_LAYERS, c.num_heads = heads;
    c.ffn_dim = 48, c.src_vocab_size = c.tgt_vocab_size = 40, c.max_positions = 8;
    return kumi_transformer_build(g, &c, &batch);
}
static int mlp(struct kumi_graph *g, int width)
{
    struct kumi_mlp c = {.n_input = 1, .input = {8}, .n_hidden = 3, .num_classes = 4};
    c.hidden[0] = c.hidden[1] = c.hidden[2] = width;
    c.activation = KUMI_RELU;
    return kumi_mlp_build(g, &c, &batch);
}
static int classifier(struct kumi_graph *g, int width)
{
    struct kumi_mlp c = {.n_input = 1, .input = {8}, .num_classes = width};
    return kumi_mlp_build(g, &c, &batch);
}

/* An attention whose queries and keys are normalized per head, and layers that can be divided. */
static int normalized_heads(struct kumi_graph *g, int heads)
{
    const int64_t ids[] = {N_SAMPLES, N_TOKENS}, table[] = {40, 24}, out[] = {heads, 8};
    const struct kumi_linear project = {.out = "hd", .out_count = out, .out_in = 1};
    const struct kumi_linear up = {.out = "f", .out_count = (int64_t[]){48}, .out_in = 1};
    struct kumi_linear down = {.out = "c", .out_count = table + 1, .contract = 2, .out_in = 1};
    kumi_value wte = kumi_param(g, "wte.weight", "vc", table, &(struct kumi_init){.std = 0.1});
    kumi_value x = kumi_embedding(g, wte, kumi_input(g, "tokens", KUMI_I32, "nt", ids));
    kumi_value q = kumi_rms_norm(g, kumi_linear(g, x, "q", &project), "q_norm", 1e-6);
    kumi_value k = kumi_rms_norm(g, kumi_linear(g, x, "k", &project), "k_norm", 1e-6);
    kumi_value v = kumi_linear(g, x, "v", &project);
    const struct kumi_attention_kv causal = {.causal = 1};
    x = kumi_linear(g, kumi_attention_kv(g, q, k, v, &causal), "o", &down);
    down.contract = 1;
    x = kumi_linear(g, kumi_linear(g, x, "up", &up), "down", &down);
    kumi_value y = kumi_linear(g, x, "head", &(struct kumi_linear){.out_in = 1, .weight = wte});
    return kumi_loss_cross_entropy(g, y, kumi_input(g, "targets", KUMI_I32, "nt", ids), -100);
}

/* Layers of a transformer with a batch norm after them. */
static int batch_norms(struct kumi_graph *g, int size)
{
    const int64_t ids[] = {N_SAMPLES, N_TOKENS}, table[] = {40, 24};
    const struct kumi_linear up = {.out = "f", .out_count = (int64_t[]){12 * size}};
    const struct kumi_linear down = {.out = "c", .out_count = table + 1};
    kumi_value wte = kumi_param(g, "wte.weight", "vc", table, &(struct kumi_init){.std = 0.1});
    kumi_value x = kumi_embedding(g, wte, kumi_input(g, "tokens", KUMI_I32, "nt", ids));
    x = kumi_add(g, x, kumi_linear(g, kumi_linear(g, x, "up", &up), "down", &down));
    x = kumi_batch_norm(g, x, "norm", NULL);
    kumi_value y = kumi_linear(g, x, "head", &(struct kumi_linear){.out_in = 1, .weight = wte});
    return kumi_loss_cross_entropy(g, y, kumi_input(g, "targets", KUMI_I32, "nt", ids), -100);
}

/* A token table, and an output layer with classes after the width: no padding has a place. */
static int fixed(struct kumi_graph *g, int size)
{
    const int64_t ids[] = {N_SAMPLES, N_TOKENS}, table[] = {40, 24};
    const struct kumi_linear up = {.out = "f", .out_count = (int64_t[]){12 * size}};
    const struct kumi_linear down = {.out = "c", .out_count = table + 1};
    kumi_value wte = kumi_param(g, "wte.weight", "vc", table, &(struct kumi_init){.std = 0.1});
    kumi_value x = kumi_embedding(g, wte, kumi_input(g, "tokens", KUMI_I32, "nt", ids));
    x = kumi_linear(g, kumi_linear(g, x, "up", &up), "down", &down);
    x = kumi_linear(g, x, "head", &(struct kumi_linear){.out = "v", .out_count = table});
    return kumi_loss_cross_entropy(g, x, kumi_input(g, "targets", KUMI_I32, "nt", ids), -100);
}

/* An MLP over images, whose first weight begins with their rows: they are whole. */
static int image_mlp(struct kumi_graph *g, int size)
{
    const int64_t hidden = 12 * size, classes = 4, samples = N_SAMPLES;
    const kumi_value x = kumi_input(g, "x", KUMI_F32, "nhw", (int64_t[]){N_SAMPLES, 4, 6});
    kumi_value y = kumi_linear(
        g, x, "up", &(struct kumi_linear){.out = "f", .out_count = &hidden, .contract = 2});
    y = kumi_activate(g, y, KUMI_RELU);
    y = kumi_linear(g, y, "down", &(struct kumi_linear){.out = "v", .out_count = &classes});
    return kumi_loss_cross_entropy(g, y, kumi_input(g, "targets", KUMI_I32, "n", &samples), -100);
}

typedef int build_fn(struct kumi_graph *g, int size);

static struct ku_compile_opts opts_of(int tp, enum kumi_dtype compute)
{
    struct ku_compile_opts o = {.compute = compute,
                                .is_training = 1,
                                .optimizer = KU_OP_adamw,
                                .rule = ku_attrs_default,
                                .bucket_bytes = 1 << 20,
                                .first_bucket_bytes = 1 << 20,
                                .overlap = 1};
    for (int a = 0; a < KU_N_AXES; a++)
        o.mesh.extent[a] = 1;
    o.mesh.extent[KU_AX_TP] = tp;
    return o;
}

static int compile(build_fn *build, int size, const struct ku_compile_opts *o, struct ku_graph **g)
{
    struct kumi_graph *builder;
    assert_int_equal(kumi_graph_create(&builder), 0);
    build(builder, size);
    assert_int_equal(ku_builder_take(builder, g), 0);
    kumi_graph_destroy(builder);
    return ku_compile_graph(*g, o, NULL, NULL);
}

/* All-reduces over tp in forward and backward of the one micro-batch. */
static void count(const struct ku_program *p, int n[2])
{
    n[0] = n[1] = 0;
    for (uint32_t i = 0; i < p->n_instrs; i++)
        if (p->instr[i].kind == KU_START && p->instr[i].axes == 1 << KU_AX_TP &&
            p->instr[i].micro >= 0) {
            assert_int_equal(p->instr[i].op, KU_X_ALL_REDUCE);
            const int dtype = p->operand[p->instr[i].operand].dtype;
            assert_true(dtype == KUMI_F32 || dtype == KUMI_F64 || /* sums of the loss */
                        p->instr[i].phase == KU_PH_F); /* tables: one rank has each row */
            n[p->instr[i].phase != KU_PH_F]++;
        }
}

/*
 * Two all-reduces a layer in forward, three in a decoder's with cross-attention. Backward has as
 * many, but no gradient of the encoder's output per layer: all of them are one sum. A divided
 * vocabulary adds one per token table, maximum and sums of the loss, and the gradient of the output
 * layer's input.
 */
static void collectives(void **state)
{
    enum { L = N_LAYERS };
    static const struct {
        build_fn *build;
        int size, tp, is_whole, forward, backward;
    } row[] = {
        {gpt2, 4, 2, 1, 2 * L, 2 * L},
        {gpt2, 4, 4, 0, 2 * L + 3, 2 * L + 1},
        {llama, 2, 2, 1, 2 * L, 2 * L},
        {llama, 2, 2, 0, 2 * L + 3, 2 * L + 1},
        {bert, 3, 3, 0, 2 * L + 3, 2 * L + 1}, /* 128 rows, which become 384 */
        {fixed, 3, 3, 0, 1, 1},                /* 40 columns, which cannot be padded */
        {fixed, 4, 4, 0, 4, 2},
        {bert, 4, 2, 0, 2 * L + 3, 2 * L + 1},
        {transformer, 4, 2, 1, 5 * L, 5 * L + 1},
        {transformer, 4, 2, 0, 5 * L + 4, 5 * L + 2},
        {mlp, 6, 2, 0, 2, 1}, /* layers 0 1 | 2 3; the input has no gradient */
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        for (int dtype = 0; dtype < 2; dtype++) {
            struct ku_compile_opts o = opts_of(row[i].tp, dtype ? KUMI_BF16 : KUMI_F32);
            o.whole_vocabulary = row[i].is_whole;
            struct ku_graph *g;
            struct ku_program *p = NULL;
            int n[2];
            if (compile(row[i].build, row[i].size, &o, &g) < 0 ||
                ku_compile_program(g, "train", &o, NULL, &p) < 0)
                fail_msg("row %zu: %s", i, ku_err_get()->text);
            count(p, n);
            if (n[0] != row[i].forward || n[1] != row[i].backward)
                fail_msg("row %zu: %d in forward, %d in backward", i, n[0], n[1]);
            ku_program_destroy(p);
            ku_graph_destroy(g);
        }
}

/*
 * Collectives of whole sequences over tp: of forward, of backward, and gathers in backward of what
 * forward has.
 */
struct moves {
    int gathers[2], scatters[2], again;
};
static void count_moves(const struct ku_program *p, struct moves *m)
{
    memset(m, 0, sizeof *m);
    for (uint32_t i = 0; i < p->n_instrs; i++) {
        const struct ku_instr *x = &p->instr[i];
        const int is_back = x->phase != KU_PH_F;
        if (x->kind != KU_START || x->axes != 1 << KU_AX_TP || x->micro < 0)
            continue;
        const struct ku_buffer *b = &p->buffer[p->operand[x->operand].buffer];
        if (x->op == KU_X_REDUCE_SCATTER)
            m->scatters[is_back]++;
        else if (x->op == KU_X_ALL_GATHER && is_back && b->cls == KU_CL_ACTIVATION)
            m->again++;
        else if (x->op == KU_X_ALL_GATHER)
            m->gathers[is_back]++;
        else
            assert_int_equal(p->shape[p->operand[x->operand].shape].dim[1].name, 't');
    }
}

static struct ku_program *program_of(build_fn *build, const struct ku_compile_opts *o)
{
    struct ku_program *p = NULL;
    struct ku_graph *g;
    if (compile(build, 4, o, &g) < 0 || ku_compile_program(g, "train", o, NULL, &p) < 0)
        fail_msg("%s", ku_err_get()->text);
    ku_graph_destroy(g);
    return p;
}

/*
 * With sequences divided a layer has two all-gathers and two reduce-scatters in forward and in
 * backward, and gathers two inputs again; unless they are kept. Around the layers: the sum of a
 * token table, the output layer's input and the adjoints of both.
 */
static void sequences(void **state)
{
    enum { L = N_LAYERS };
    static const struct {
        build_fn *build;
        struct moves want;
    } row[] = {
        {gpt2, {{2 * L + 1, 2 * L + 1}, {2 * L + 1, 2 * L + 1}, 2 * L + 1}},
        {llama, {{2 * L + 1, 2 * L + 1}, {2 * L + 1, 2 * L + 1}, 2 * L + 1}},
        {bert, {{2 * L + 1, 2 * L + 1}, {2 * L + 1, 2 * L + 1}, 2 * L + 1}},
        /* a decoder's layers share the gathered output of the encoder */
        {transformer, {{5 * L + 2, 5 * L + 2}, {5 * L + 2, 5 * L + 2}, 5 * L + 2}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        for (int keeps = 0; keeps < 2; keeps++) {
            struct ku_compile_opts o = opts_of(2, keeps ? KUMI_BF16 : KUMI_F32);
            struct moves n, want = row[i].want;
            o.sequence = 1, o.sequence_gathered = keeps;
            want.again = keeps ? 0 : want.again;
            struct ku_program *p = program_of(row[i].build, &o);
            count_moves(p, &n);
            if (memcmp(&n, &want, sizeof n) != 0)
                fail_msg("row %zu, keeps %d: gathers %d %d, scatters %d %d, again %d", i, keeps,
                         n.gathers[0], n.gathers[1], n.scatters[0], n.scatters[1], n.again);
            ku_program_destroy(p);
        }
}

/* Bytes of activations that backward reads. */
static size_t kept(const struct ku_program *p)
{
    uint32_t at = 0;
    size_t bytes = 0;
    while (at < p->n_instrs && (p->instr[at].micro < 0 || p->instr[at].phase == KU_PH_F))
        at++;
    for (ku_id b = 1; b < p->n_buffers; b++)
        if (p->buffer[b].cls == KU_CL_ACTIVATION && p->buffer[b].home == 0 &&
            p->buffer[b].first < at && p->buffer[b].last >= at)
            bytes += p->buffer[b].bytes;
    return bytes;
}

/*
 * Every activation that is kept for backward is divided, but for loss and log-sum-exp of each
 * position (f32, which each rank has); without sp those between the layers are whole, and keeping
 * what is gathered costs the inputs of two layers each. Token types are copied from their port.
 */
static void activations(void **state)
{
    static build_fn *const model[] = {gpt2, llama, bert};
    const size_t loss = 2 * N_SAMPLES * N_TOKENS * sizeof(float);
    (void)state;
    for (size_t i = 0; i < sizeof model / sizeof model[0]; i++) {
        size_t bytes[3];
        const size_t width = model[i] == llama ? 48 : 24;
        const size_t input = N_SAMPLES * N_TOKENS * width * sizeof(float);
        struct ku_compile_opts o = opts_of(1, KUMI_F32);
        struct ku_program *p = program_of(model[i], &o);
        const size_t whole = kept(p);
        ku_program_destroy(p);
        for (int k = 0; k < 3; k++) { /* tp; and sp; and what is gathered is kept */
            o = opts_of(2, KUMI_F32);
            o.sequence = k > 0, o.sequence_gathered = k > 1;
            p = program_of(model[i], &o);
            bytes[k] = kept(p);
            ku_program_destroy(p);
        }
        if (2 * bytes[1] != whole + loss + (model[i] == bert ? loss / 2 : 0) ||
            bytes[1] >= bytes[0] || bytes[2] != bytes[1] + (2 * N_LAYERS + 1) * input / 2)
            fail_msg("model %zu: %zu whole; tp %zu, sp %zu, kept %zu", i, whole, bytes[0], bytes[1],
                     bytes[2]);
    }
}

static char place_of(const struct ku_graph *g, const char *name)
{
    const ku_id t = ku_graph_find_tensor(g, name);
    if (t == 0)
        fail_msg("no tensor %s", name);
    const struct ku_place p = g->layout[g->value[g->tensor[t].value].layout].at[KU_AX_TP];
    return p.kind == KU_S ? g->shape[g->tensor[t].shape].dim[p.dim].name : "CRPSZ"[p.kind];
}

static void parameters(void **state)
{
    static const struct {
        build_fn *build;
        const char *name;
        char place;
    } row[] = {
        {gpt2, "h.0.attn.c_attn.weight", 'h'},
        {gpt2, "h.0.attn.c_attn.bias", 'h'},
        {gpt2, "h.0.attn.c_attn.weight.exp_avg", 'h'},
        {gpt2, "h.0.attn.c_attn.weight:bf16", 'h'},
        {gpt2, "h.0.attn.c_proj.weight", 'h'},
        {gpt2, "h.0.attn.c_proj.bias", 'C'},
        {gpt2, "h.2.mlp.c_fc.weight", 'f'},
        {gpt2, "h.2.mlp.c_fc.bias", 'f'},
        {gpt2, "h.2.mlp.c_proj.weight", 'f'},
        {gpt2, "h.2.ln_1.weight", 'C'},
        {gpt2, "wte.weight", 'v'},
        {gpt2, "wte.weight:bf16", 'v'},
        {gpt2, "wpe.weight", 'C'},
        {llama, "lm_head.weight", 'v'},
        {bert, "cls.predictions.bias", 'v'},
        {bert, "bert.embeddings.token_type_embeddings.weight", 'C'},
        {llama, "model.layers.0.self_attn.q_proj.weight", 'h'},
        {llama, "model.layers.0.self_attn.k_proj.weight", 'h'},
        {llama, "model.layers.0.self_attn.o_proj.weight", 'h'},
        {llama, "model.layers.0.mlp.gate_proj.weight", 'f'},
        {llama, "model.layers.0.mlp.down_proj.weight", 'f'},
        {mlp, "layers.0.weight", 'f'},
        {mlp, "layers.1.weight", 'f'},
        {mlp, "layers.1.bias", 'C'},
        {mlp, "layers.3.weight", 'f'},
        {classifier, "layers.0.weight", 'C'},
        {image_mlp, "up.weight", 'f'},
        {image_mlp, "up.bias", 'f'},
        {image_mlp, "down.weight", 'f'},
        {normalized_heads, "q.weight", 'C'},
        {normalized_heads, "k.weight", 'C'},
        {normalized_heads, "up.weight", 'f'},
    };
    struct ku_compile_opts o = opts_of(2, KUMI_BF16);
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_graph *g;
        if (compile(row[i].build, 4, &o, &g) < 0)
            fail_msg("%s: %s", row[i].name, ku_err_get()->text);
        if (place_of(g, row[i].name) != row[i].place)
            fail_msg("%s: %c", row[i].name, place_of(g, row[i].name));
        ku_graph_destroy(g);
    }
}

/* Two output layers: the loss of one, and a metric of the other, which `other` finishes. */
static int two_heads(struct kumi_graph *g, kumi_value other(struct kumi_graph *g, kumi_value x))
{
    const int64_t ids[] = {N_SAMPLES, N_TOKENS}, table[] = {40, 24};
    struct kumi_linear head = {.out_in = 1};
    kumi_value wte = kumi_param(g, "wte.weight", "vc", table, &(struct kumi_init){.std = 0.1});
    kumi_value more = kumi_param(g, "more.weight", "vc", table, &(struct kumi_init){.std = 0.1});
    kumi_value x = kumi_embedding(g, wte, kumi_input(g, "tokens", KUMI_I32, "nt", ids));
    head.weight = more;
    kumi_graph_metric(g, "most", other(g, kumi_linear(g, x, "more", &head)), KUMI_METRIC_MAX);
    head.weight = wte;
    kumi_value y = kumi_linear(g, x, "head", &head);
    return kumi_loss_cross_entropy(g, y, kumi_input(g, "targets", KUMI_I32, "nt", ids), -100);
}
static kumi_value scaled(struct kumi_graph *g, kumi_value x)
{
    return kumi_scale(g, x, 2);
}
static int read_whole(struct kumi_graph *g, int size)
{
    (void)size;
    return two_heads(g, scaled);
}
static kumi_value as_channels(struct kumi_graph *g, kumi_value x)
{
    return kumi_rename(g, x, 'w');
}
static int renamed(struct kumi_graph *g, int size)
{
    (void)size;
    return two_heads(g, as_channels);
}
static int metered(struct kumi_graph *g, int size)
{
    const int64_t ids[] = {N_SAMPLES, N_TOKENS}, table[] = {40, 24};
    (void)size;
    kumi_value wte = kumi_param(g, "wte.weight", "vc", table, &(struct kumi_init){.std = 0.1});
    kumi_value x = kumi_embedding(g, wte, kumi_input(g, "tokens", KUMI_I32, "nt", ids));
    x = kumi_linear(g, x, "head", &(struct kumi_linear){.out_in = 1, .weight = wte});
    kumi_graph_metric(g, "most", x, KUMI_METRIC_MAX);
    return kumi_loss_cross_entropy(g, x, kumi_input(g, "targets", KUMI_I32, "nt", ids), -100);
}

/* Rows of the token table after pass vocabulary: padded where the ranks, or the slices of
 * tp_exact, do not divide it and will. */
static void padding(void **state)
{
    static const struct {
        build_fn *build;
        int size, tp, tp_exact, is_whole;
        int64_t rows;
        bool can_grow;
    } row[] = {
        {gpt2, 4, 1, 0, 0, 128, true},
        {gpt2, 4, 4, 0, 0, 128, true},
        {gpt2, 3, 3, 0, 0, 384, true},
        {gpt2, 3, 3, 0, 1, 128, true},
        {gpt2, 6, 6, 0, 0, 384, true},
        {gpt2, 12, 1, 12, 0, 384, true},
        {gpt2, 12, 3, 12, 0, 384, true},
        {gpt2, 4, 2, 4, 0, 128, true},
        {normalized_heads, 4, 4, 0, 0, 40, true}, /* no padding of its own */
        {normalized_heads, 3, 3, 0, 0, 384, true},
        {read_whole, 0, 3, 0, 0, 384, true},
        {metered, 0, 3, 0, 0, 40, true}, /* not divided */
        {fixed, 3, 3, 0, 0, 40, false},  /* and what can have no more rows */
        {renamed, 0, 3, 0, 0, 40, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_compile_opts o = opts_of(row[i].tp, KUMI_BF16);
        struct ku_graph *g;
        o.tp_exact = row[i].tp_exact, o.whole_vocabulary = row[i].is_whole;
        if (compile(row[i].build, row[i].size, &o, &g) < 0)
            fail_msg("row %zu: %s", i, ku_err_get()->text);
        const ku_id t = ku_graph_find_tensor(g, "wte.weight");
        const struct ku_dim *rows = &g->shape[g->tensor[t].shape].dim[0];
        if (rows->count != row[i].rows || rows->seen != 40 ||
            ku_vocabulary_can_grow(g, rows) != row[i].can_grow)
            fail_msg("row %zu: %lld of %lld rows", i, (long long)rows->seen,
                     (long long)rows->count);
        ku_graph_destroy(g);
    }
}

static void refusals(void **state)
{
    static const struct {
        build_fn *build;
        int size, tp;
        const char *want;
        int split_vocabulary;
    } row[] = {
        {gpt2, 3, 2,
         "2 does not divide dim h of h.0.attn.c_attn.weight, which has 3 heads; "
         "nearest: 1 or 3",
         0},
        {gpt2, 6, 4, "which has 6 heads; nearest: 3 or 6", 0},
        {mlp, 6, 4, "dim f of layers.0.weight, which has 6 elements; nearest: 3 or 6", 0},
        {fixed, 3, 3,
         "3 does not divide dim v of wte.weight, which has 40 elements; nearest: 2 or 4", 1},
        {mlp, 6, 2, "parallel.loss_parallel: the vocabulary of this model cannot be split", 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_compile_opts o = opts_of(row[i].tp, KUMI_F32);
        o.split_vocabulary = row[i].split_vocabulary;
        struct ku_graph *g;
        assert_int_equal(compile(row[i].build, row[i].size, &o, &g), KUMI_EINVAL);
        if (strstr(ku_err_get()->text, row[i].want) == NULL)
            fail_msg("%s", ku_err_get()->text);
        ku_graph_destroy(g);
    }
}

/*
 * With tp_exact and sp the gradient of a parameter may not be a sum over the tokens of a rank,
 * whichever parameter of its node is frozen.
 */
static void frozen(void **state)
{
    static const char *const none[] = {NULL}, *const weights[] = {"*.weight", NULL},
                             *const all[] = {"*.weight", "*dense.bias", NULL},
                             *const norms[] = {"*ln_*", "*wpe*", NULL},
                             *const biases[] = {"*ln_*", "*wpe*", "*.bias", NULL};
    static const struct {
        build_fn *build;
        const char *const *freeze;
        const char *want; /* NULL: accepted */
    } row[] = {
        {bert, none, "the gradient of bert.embeddings.token_type_embeddings.weight"},
        {bert, weights, "the gradient of cls.predictions.transform.dense.bias"},
        {bert, all, NULL},
        {gpt2, norms, NULL},
        {gpt2_odd, norms, "the gradient of h.0.attn.c_proj.bias (bias_add) is a sum over 5 tokens"},
        {gpt2_odd, biases, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_compile_opts o = opts_of(2, KUMI_F32);
        struct ku_graph *g;
        o.sequence = 1, o.tp_exact = 2, o.freeze = row[i].freeze;
        const int status = compile(row[i].build, 4, &o, &g);
        if (status != (row[i].want ? KUMI_EINVAL : KUMI_OK) ||
            (row[i].want && strstr(ku_err_get()->text, row[i].want) == NULL))
            fail_msg("row %zu: %d %s", i, status, ku_err_get()->text);
        ku_graph_destroy(g);
    }
}

/* offload.ratio of the optimizer state is offloaded, and no parameter is left out that fits. */
static void ratios(void **state)
{
    (void)state;
    for (int k = 0; k <= 10; k++) {
        struct ku_compile_opts o = opts_of(1, KUMI_F32);
        struct ku_graph *g;
        double all = 0, taken = 0, left_out = 1e30;
        o.offload.optimizer = KU_OFFLOAD_HOST, o.offload.ratio = 0.1 * k;
        o.offload.buffer_count = 2, o.offload.buffer_bytes = 1 << 16;
        assert_int_equal(compile(gpt2, 4, &o, &g), 0);
        for (ku_id t = 1; t < g->n_tensors; t++)
            if (g->tensor[t].kind == KU_T_OPTIMIZER) { /* two per parameter */
                const double count = (double)ku_shape_count(&g->shape[g->tensor[t].shape]);
                all += count;
                taken += g->tensor[t].offload ? count : 0;
                if (!g->tensor[t].offload && count < left_out)
                    left_out = count;
            }
        if (taken > 0.1 * k * all + 1e-6 || taken + 2 * left_out < 0.1 * k * all)
            fail_msg("ratio %.1f: %.3f", 0.1 * k, taken / all);
        ku_graph_destroy(g);
    }
}

/* Statistics over batch and sequence are computed where the sequence is whole. */
static void batch_norm(void **state)
{
    struct ku_compile_opts o = opts_of(2, KUMI_F32);
    (void)state;
    o.sequence = 1;
    ku_program_destroy(program_of(batch_norms, &o));
}

/* A plan of the user: where a parameter lies under it, or why it is refused. */
static void plans(void **state)
{
    static const struct {
        build_fn *build;
        int sp;
        struct {
            const char *match;
            int style;
        } rule[3];
        const char *name, *want; /* want: a placement, or a part of the message */
    } row[] = {
        {gpt2, 0, {{"h.*.mlp.*", KU_TP_REPLICATE}}, "h.1.mlp.c_fc.weight", "C"},
        {gpt2, 0, {{"h.*.mlp.*", KU_TP_REPLICATE}}, "h.1.attn.c_proj.weight", "h"},
        {gpt2,
         0,
         {{"h.*", KU_TP_REPLICATE}, {"h.*.mlp.c_fc", KU_TP_COL}, {"h.*.mlp.c_proj", KU_TP_ROW}},
         "h.2.mlp.c_proj.weight",
         "f"},
        {gpt2, 0, {{"wte", KU_TP_VOCAB}}, "wte.weight", "v"},
        {gpt2, 1, {{"ln_*", KU_TP_SEQ}}, "h.0.ln_1.weight", "R"},
        {gpt2, 1, {{"ln_1", KU_TP_REPLICATE}}, "h.0.ln_1.weight", "C"},
        {gpt2, 1, {{"ln_1", KU_TP_REPLICATE}}, "h.0.ln_2.weight", "R"},
        {gpt2,
         0,
         {{"c_fc", KU_TP_COL_GATHER}, {"h.*.mlp.c_proj", KU_TP_REPLICATE}},
         "h.0.mlp.c_fc.bias",
         "f"},
        {gpt2, 0, {{"h.*.c_proj", KU_TP_COL_GATHER}}, "h.0.attn.c_proj.weight", "c"},
        {gpt2, 0, {{"h.*.atn.c_attn", KU_TP_COL}}, NULL, "did you mean \"h.0.attn.c_attn\"?"},
        {gpt2,
         0,
         {{"h.*.mlp.c_proj", KU_TP_COL}},
         NULL,
         "h.0.mlp.c_proj.weight: col over axis tp: h.0 reads its result and cannot be divided"},
        {gpt2,
         0,
         {{"h.*.mlp.c_fc", KU_TP_ROW}},
         NULL,
         "h.0.mlp.c_fc.weight: row over axis tp: h.0.mlp.c_fc contracts a dim that is whole"},
        {gpt2, 0, {{"ln_f", KU_TP_SEQ}}, NULL, "ln_f.weight: seq over axis tp: needs parallel.sp"},
        {gpt2, 0, {{"ln_f", KU_TP_COL}}, NULL, "is no weight or bias of a linear layer"},
        {gpt2, 0, {{"ln_f", KU_TP_VOCAB}}, NULL, "has no vocabulary"},
        {gpt2, 1, {{"*", KU_TP_REPLICATE}}, NULL, "parallel.plan leaves all of them whole"},
        {mlp, 1, {{0}}, NULL, "parallel.sp: this model has no sequences to split"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_compile_opts o = opts_of(2, KUMI_F32);
        struct ku_tp_rule rule[3];
        struct ku_graph *g;
        char text[3][32];
        o.plan = (struct ku_tp_plan){.rule = rule};
        for (; o.plan.n < 3 && row[i].rule[o.plan.n].match; o.plan.n++) {
            const int k = o.plan.n;
            snprintf(text[k], sizeof text[k], "%s", row[i].rule[k].match);
            rule[k] = (struct ku_tp_rule){text[k], row[i].rule[k].style};
        }
        o.sequence = row[i].sp;
        const int status = compile(row[i].build, 4, &o, &g);
        if (row[i].name == NULL) {
            assert_int_equal(status, KUMI_EINVAL);
            if (strstr(ku_err_get()->text, row[i].want) == NULL)
                fail_msg("row %zu: %s", i, ku_err_get()->text);
        } else if (status < 0 || place_of(g, row[i].name) != row[i].want[0]) {
            fail_msg("row %zu: %s", i,
                     status < 0 ? ku_err_get()->text : "the parameter lies elsewhere");
        }
        ku_graph_destroy(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives), cmocka_unit_test(sequences), cmocka_unit_test(activations),
        cmocka_unit_test(parameters),  cmocka_unit_test(padding),   cmocka_unit_test(refusals),
        cmocka_unit_test(plans),       cmocka_unit_test(frozen),    cmocka_unit_test(ratios),
        cmocka_unit_test(batch_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
