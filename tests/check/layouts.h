/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CHECK_LAYOUTS_H
#define TESTS_CHECK_LAYOUTS_H

/* Small networks, and seeded parallel layouts of them with options of the optimizer. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "device/device.h"
#include "kumi/model.h"
#include "nn/builder.h"
#include "pass/pass.h"
#include "pass/pipe/block_schedule.h"
#include "pass/pipe/layer_stages.h"
#include "pass/place/tensor_parallel.h"
#include "train/plan_proof.h"

/* What a residual network has beside its layers. */
enum { METRIC = 1, OWN_HEAD = 2, RELAYED = 4 };

/*
 * Residual blocks with dropout and a table, tied to the head unless OWN_HEAD. Its vocabulary stays
 * whole if a metric reads the logits. RELAYED: every later block reads the first one's result too.
 */
static inline struct ku_graph *residual(int64_t n, int64_t t, int n_layers, int flags)
{
    const char *dims = t ? "nt" : "n";
    struct kumi_graph *b;
    struct ku_graph *g;
    int64_t width = 8, hidden = 16, rows = 1100;
    char name[3][24];
    assert_int_equal(kumi_graph_create(&b), 0);
    kumi_value ids = kumi_input(b, "tokens", KUMI_I32, dims, (int64_t[]){n, t}),
               y = kumi_input(b, "targets", KUMI_I32, dims, (int64_t[]){n, t});
    kumi_value table = kumi_param(b, "wte.weight", "vc", (int64_t[]){rows, width},
                                  &(struct kumi_init){.std = 0.1});
    kumi_value x = kumi_embedding(b, table, ids), first = x;
    for (int i = 0; i < n_layers; i++) {
        snprintf(name[0], sizeof name[0], "h.%d.ln", i);
        snprintf(name[1], sizeof name[1], "h.%d.up", i);
        snprintf(name[2], sizeof name[2], "h.%d.down", i);
        kumi_value z = kumi_layer_norm(b, x, name[0], 0);
        z = kumi_linear(b, z, name[1], &(struct kumi_linear){.out = "f", .out_count = &hidden});
        z = kumi_dropout(b, kumi_activate(b, z, i ? KUMI_RELU : KUMI_GELU_TANH), 0.25);
        z = kumi_linear(b, z, name[2], &(struct kumi_linear){.out = "c", .out_count = &width});
        x = kumi_add(b, x, z);
        first = i == 0 ? x : first;
        if (i > 0 && flags & RELAYED)
            x = kumi_add(b, x, first);
    }
    x = flags & OWN_HEAD
            ? kumi_linear(b, x, "head", &(struct kumi_linear){.out = "v", .out_count = &rows})
            : kumi_linear(b, x, "head", &(struct kumi_linear){.out_in = 1, .weight = table});
    if (flags & METRIC)
        kumi_graph_metric(b, "logit", x, KUMI_METRIC_MAX);
    assert_int_equal(kumi_loss_smoothed(b, x, y, -100, flags & METRIC ? 0 : 0.125), 0);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    return g;
}
static inline struct ku_graph *tied(int64_t n)
{
    return residual(n, 0, 2, METRIC);
}
static inline struct ku_graph *vocabulary(int64_t n)
{
    return residual(n, 0, 2, 0);
}
/* The same over sequences, in parts of unequal lengths. */
static inline struct ku_graph *sequences(int64_t n)
{
    return residual(n / 8, 6, 2, 0);
}

/* Llama of eight query heads over two key and value heads, or of four over one. */
static inline struct ku_graph *grouped_over(int64_t n, int64_t heads, int64_t keys)
{
    struct kumi_llama c;
    struct kumi_graph *b;
    struct ku_graph *g;
    kumi_llama_defaults(&c);
    c.vocab_size = 61, c.hidden_size = 16, c.intermediate_size = 16, c.num_hidden_layers = 1;
    c.num_attention_heads = heads, c.num_key_value_heads = keys, c.max_position_embeddings = 8;
    c.attention_dropout = 0.25, c.attention_bias = 1;
    assert_int_equal(kumi_graph_create(&b), 0);
    assert_int_equal(kumi_llama_build(b, &c, &(struct kumi_shape_of_batch){.n = n / 8, .t = 6}), 0);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    return g;
}
static inline struct ku_graph *grouped(int64_t n)
{
    return grouped_over(n, 8, 2);
}
static inline struct ku_graph *one_key_head(int64_t n)
{
    return grouped_over(n, 4, 1);
}

/* A plain network without tied weights. */
static inline struct ku_graph *mlp(int64_t n)
{
    struct kumi_graph *b;
    struct ku_graph *g;
    assert_int_equal(kumi_graph_create(&b), 0);
    kumi_value x = kumi_input(b, "x", KUMI_F32, "nc", (int64_t[]){n, 8}),
               y = kumi_input(b, "targets", KUMI_I32, "n", &n);
    int64_t hidden = 1024, classes = 5;
    x = kumi_linear(b, x, "up", &(struct kumi_linear){.out = "f", .out_count = &hidden});
    x = kumi_activate(b, x, KUMI_RELU);
    x = kumi_linear(b, x, "down", &(struct kumi_linear){.out = "v", .out_count = &classes});
    assert_int_equal(kumi_loss_cross_entropy(b, x, y, -100), 0);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    return g;
}

/* Batch norm, whose running statistics the end of the step updates. */
static inline struct ku_graph *with_batch_norm(int64_t n, int sync)
{
    struct kumi_graph *b;
    struct ku_graph *g;
    assert_int_equal(kumi_graph_create(&b), 0);
    kumi_value x = kumi_input(b, "x", KUMI_F32, "nc", (int64_t[]){n, 8}),
               y = kumi_input(b, "targets", KUMI_I32, "n", &n);
    int64_t hidden = 24, classes = 5;
    x = kumi_linear(b, x, "up", &(struct kumi_linear){.out = "f", .out_count = &hidden});
    x = kumi_batch_norm(b, x, "norm", &(struct kumi_batch_norm){.sync = sync});
    x = kumi_activate(b, x, KUMI_RELU);
    x = kumi_linear(b, x, "down", &(struct kumi_linear){.out = "v", .out_count = &classes});
    assert_int_equal(kumi_loss_cross_entropy(b, x, y, -100), 0);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    return g;
}
static inline struct ku_graph *normed(int64_t n)
{
    return with_batch_norm(n, 0);
}
static inline struct ku_graph *synced(int64_t n)
{
    return with_batch_norm(n, 1);
}

struct layout {
    struct ku_graph *(*model)(int64_t n);
    int tp; /* 0 = 1 */
    int tp_exact, tp_reduce;
    int sp; /* its ranks divide sequences */
    /*
     * Coordinates of axis pp; 0 = 1. Above 1 the model is `residual` with two layers per stage at
     * most, and `flags`.
     */
    int pp, n_layers, flags;
    const char *schedule;
    int hosts; /* whose ranks share one copy each; 0: all ranks have memory of their own */
    int ranks, zero, replicate, mb, vs, by_micro, recompute, group, is_private;
    enum kumi_dtype compute, reduce;
    int no_master, rounds, optimizer, overlap, clip_value, averages, decay, adapt, groups;
    int offload; /* 1: optimizer state to a file; 2: activations too */
    int freeze;  /* 0 or a set of `frozen` */
};

enum { MAX_PP = 4, MAX_LAYERS = 16 };
struct job {
    struct ku_graph *model;         /* after pass precision */
    struct ku_program *all[MAX_PP]; /* by coordinate of axis pp */
    struct ku_program *p;           /* the first of them, or the one that is edited */
    int n;                          /* coordinates */
    struct ku_pp_schedule *schedule;
    int layers[MAX_LAYERS]; /* of each stage */
    struct ku_compile_opts o;
    struct ku_check_opts check;
    signed char *wire;
};

static inline bool is_plain_of(const struct layout *l)
{
    return l->model == mlp || l->model == normed || l->model == synced;
}
static inline bool is_llama_of(const struct layout *l)
{
    return l->model == grouped || l->model == one_key_head;
}

/* Frozen: none, a table, all biases, or the first layer. */
static inline const char *const *frozen_of(const struct layout *l)
{
    static const char *const frozen[3][4][3] = {
        {{NULL}, {"up.*"}, {"*.bias"}, {"up.weight", "down.bias"}},
        {{NULL}, {"model.embed_tokens.weight"}, {"*.bias"}, {"model.layers.0.*"}},
        {{NULL}, {"wte.weight"}, {"*.bias"}, {"wte.weight", "h.0.*"}}};
    const int family = l->pp > 1 ? 2 : is_plain_of(l) ? 0 : is_llama_of(l) ? 1 : 2;
    return frozen[family][l->freeze];
}

static inline struct ku_compile_opts options(const struct layout *l)
{
    static const char *const layers[] = {"h.*", NULL}, *const halves[] = {"up", "down", NULL},
                             *const llama[] = {"model.layers.*", NULL},
                             *const biases[] = {"*.bias", NULL}, *const down[] = {"*down*", NULL};
    const char *const *wrap = is_plain_of(l) ? halves : is_llama_of(l) ? llama : layers;
    static const struct ku_update_group group[] = {
        {.match = biases,
         .set = {{offsetof(struct ku_attrs, lr_mult), 0.5},
                 {offsetof(struct ku_attrs, weight_decay), 0.25}},
         .n_set = 2}};
    struct ku_compile_opts o = {.compute = l->compute,
                                .reduce = l->reduce,
                                .is_training = 1,
                                .no_master = l->no_master,
                                .stochastic_rounding = l->rounds,
                                .optimizer = l->optimizer,
                                .rule = ku_attrs_default,
                                .decay = l->decay,
                                .decay_patterns = down,
                                .adapt = l->adapt,
                                .adapt_patterns = down,
                                .freeze = frozen_of(l),
                                .groups = group,
                                .n_groups = l->groups,
                                .initial_accumulator_value = 0.125,
                                .bucket_bytes = 4096,
                                .first_bucket_bytes = 64,
                                .overlap = l->overlap,
                                .zero = l->zero,
                                .wrap = l->zero == 3 ? wrap : NULL,
                                .prefetch = 1,
                                .recompute = l->recompute,
                                .sequence = l->sp,
                                .reshard_group = l->group};
    for (int a = 0; a < KU_N_AXES; a++)
        o.mesh.extent[a] = 1;
    o.mesh.extent[KU_AX_PP] = l->pp ? l->pp : 1;
    o.mesh.extent[KU_AX_TP] = l->tp ? l->tp : 1;
    o.tp_exact = l->tp_exact;
    o.tp_reduce = (enum kumi_dtype)l->tp_reduce;
    o.mesh.extent[KU_AX_VS] = l->vs;
    o.mesh.extent[KU_AX_MB] = l->mb;
    o.mesh.mb_outer = l->by_micro;
    if (l->hosts) {
        o.mesh.extent[KU_AX_REPLICATE] = l->zero ? l->replicate : l->hosts;
        o.mesh.extent[KU_AX_SHARD] = l->zero ? l->hosts / l->replicate : 1;
        o.mesh.extent[KU_AX_LOCAL] = l->ranks / l->hosts;
    } else if (l->zero) {
        o.mesh.extent[KU_AX_REPLICATE] = l->replicate;
        o.mesh.extent[KU_AX_SHARD] = l->ranks / l->replicate;
    } else {
        o.mesh.extent[l->is_private ? KU_AX_REPLICATE : KU_AX_LOCAL] = l->ranks;
    }
    o.rule.lr = 1e-3;
    o.rule.weight_decay = 0.1;
    o.rule.momentum = 0.5;
    o.rule.clip = 1;
    o.rule.clip_value = l->clip_value;
    o.rule.ema = l->averages ? 0.9 : 0;
    o.rule.loss_scale = l->compute == KUMI_F16 ? 1024 : 0;
    if (l->offload)
        o.offload = (struct ku_offload){.optimizer = KU_OFFLOAD_FILE,
                                        .activations = l->offload > 1 ? KU_OFFLOAD_FILE : 0,
                                        .ratio = 1,
                                        .buffer_count = 2,
                                        .buffer_bytes = 3 * 16384};
    return o;
}

static inline struct ku_graph *graph_of(const struct layout *l)
{
    const int64_t n = 24 * l->ranks * l->vs * l->mb;
    if (l->pp < 2)
        return l->model(n);
    return l->sp ? residual(n / 8, 6, l->n_layers, l->flags)
                 : residual(n, 0, l->n_layers, l->flags);
}

/* Makes I and W of B of odd micro-batches, so that stages have B beside I and W. */
static inline void split_blocks(struct ku_pp_schedule *s)
{
    uint32_t more = 0;
    for (uint32_t i = 0; i < s->first[s->n_ranks]; i++)
        more += s->block[i].kind == KU_BL_B && s->block[i].micro % 2;
    for (int r = s->n_ranks - 1; r >= 0; r--) {
        const uint32_t end = s->first[r + 1];
        s->first[r + 1] += more;
        for (uint32_t i = end; i-- > s->first[r];) {
            struct ku_block b = s->block[i];
            if (b.kind == KU_BL_B && b.micro % 2) {
                b.kind = KU_BL_W;
                s->block[i + more--] = b;
                b.kind = KU_BL_I;
            }
            s->block[i + more] = b;
        }
    }
}

/* The pipeline of a layout: its schedule, and the layers of each stage. */
static inline int pipeline_of(const struct layout *l, const struct ku_graph *graph,
                              struct ku_compile_opts *o, struct ku_pp_schedule **schedule,
                              int layers[MAX_LAYERS])
{
    if (l->pp < 2)
        return KUMI_OK;
    KU_TRY(ku_pp_schedule_create(l->schedule, l->pp, 2, l->vs * l->mb, schedule));
    if (l->flags & 1)
        split_blocks(*schedule);
    KU_TRY(ku_stages_balance(graph, NULL, (*schedule)->rank_of, (*schedule)->n_stages, layers));
    o->schedule = *schedule;
    o->stage_layers = layers;
    return KUMI_OK;
}

/* Compiles the programs of a layout; the graph is as the passes for the last one leave it. */
static inline int compile_one(enum ku_check_kind kind, const struct ku_target *target,
                              struct ku_graph *graph, struct job *j, int pp)
{
    j->o.pp = pp;
    KU_TRY(ku_compile_graph(graph, &j->o, target, NULL));
    return kind >= KU_CHECK_INIT
               ? ku_compile_init(graph, kind == KU_CHECK_DERIVE, &j->o, target, &j->all[pp])
               : ku_compile_program(graph, kind == KU_CHECK_TRAIN ? "train" : "eval", &j->o, target,
                                    &j->all[pp]);
}
static inline int compile(enum ku_check_kind kind, const struct ku_target *target,
                          struct ku_graph *graph, struct job *j)
{
    j->o.is_training = kind != KU_CHECK_EVAL;
    j->n = j->o.mesh.extent[KU_AX_PP];
    assert_int_equal(ku_graph_copy(graph, &j->model), 0);
    if (ku_compile_graph(j->model, &j->o, target, "slices") < 0)
        fail_msg("%s", ku_err_get()->text);
    assert_int_equal(ku_trainer_check_opts(&j->o, kind, j->model, &j->check, &j->wire), 0);
    for (int k = 0; k < j->n; k++) {
        struct ku_graph *copy = NULL;
        if (k + 1 < j->n)
            assert_int_equal(ku_graph_copy(graph, &copy), 0);
        const int status = compile_one(kind, target, copy ? copy : graph, j, k);
        ku_graph_destroy(copy);
        KU_TRY(status);
    }
    j->p = j->all[0];
    return KUMI_OK;
}

static inline int make(const struct layout *l, enum ku_check_kind kind, struct job *j)
{
    const struct ku_target target = {.query = ku_device_find("cpu")->query,
                                     .ranks_per_host = l->ranks};
    struct ku_graph *graph = graph_of(l);
    *j = (struct job){.o = options(l)};
    int *extent = j->o.mesh.extent;
    if (l->tp > 1 && l->tp_exact == 0)
        extent[KU_AX_TPI] = ku_tensor_inner(graph, l->tp);
    extent[KU_AX_TP] /= extent[KU_AX_TPI];
    int status = pipeline_of(l, graph, &j->o, &j->schedule, j->layers);
    if (status == KUMI_OK)
        status = compile(kind, &target, graph, j);
    ku_graph_destroy(graph);
    return status;
}

static inline int check(const struct job *j)
{
    struct ku_check_report r;
    return ku_check_programs(j->model, &j->check, (const struct ku_program *const *)j->all, j->n,
                             &r);
}

static inline void drop(struct job *j)
{
    for (int k = 0; k < j->n; k++)
        ku_program_destroy(j->all[k]);
    ku_pp_schedule_destroy(j->schedule);
    ku_graph_destroy(j->model);
    ku_free(j->wire);
}

static inline struct layout over_tp(struct layout l, int tp)
{
    l.tp = tp;
    l.offload = l.hosts = 0, l.is_private = 1;
    return l;
}
/* A layout with its sequences divided over axis tp. */
static inline struct layout over_sequences(struct layout l, int tp)
{
    l = over_tp(l, tp);
    l.model = sequences, l.sp = 1;
    l.flags &= ~METRIC;
    l.tp_exact = l.tp_exact && tp == 2 ? 2 : 0; /* of six tokens */
    return l;
}

/* A layout of a model whose key and value heads are fewer than its tensor-parallel ranks. */
static inline struct layout over_heads(struct layout l, int i)
{
    l = over_tp(l, 4);
    l.model = i % 2 ? one_key_head : grouped;
    l.pp = l.tp_exact = 0, l.sp = i % 3 == 0;
    l.optimizer = i % 5 == 0 ? KU_OP_lamb : i % 5 == 1 ? KU_OP_adafactor : l.optimizer;
    return l;
}

#define DRAW(n) ((int)((*seed = *seed * 6364136223846793005u + 1442695040888963407u) >> 40) % (n))

/* Makes a pipeline of a layout, of every schedule, with tensor parallelism in half of them. */
static inline void draw_pipeline(struct layout *l, uint64_t *seed)
{
    int n = 0;
    while (ku_pp_schedule_names()[n])
        n++;
    l->schedule = ku_pp_schedule_names()[DRAW(n)];
    l->pp = DRAW(2) ? 4 : 2;
    l->n_layers = 2 * l->pp + DRAW(2);
    l->flags = DRAW(8);
    l->tp = DRAW(2) ? 2 : 0;
    l->ranks = 1 << DRAW(2);
    l->zero = l->ranks > 1 ? DRAW(3) : 0;
    l->replicate = 1;
    l->vs = 1 << DRAW(2);
    l->mb = l->pp * (1 + DRAW(2)) / l->vs;
    l->is_private = 1;
    l->offload = l->hosts = l->by_micro = l->group = 0;
    if (DRAW(6) == 0)
        l->optimizer = KU_OP_adafactor;
}

static inline struct layout random_layout(uint64_t *seed)
{
    static struct ku_graph *(*const model[])(int64_t) = {tied, tied, mlp, normed, synced};
    static const int ranks[] = {1, 2, 4, 8},
                     rule[] = {KU_OP_adamw,     KU_OP_sgd,  KU_OP_lamb,
                               KU_OP_lars,      KU_OP_adam, KU_OP_adagrad,
                               KU_OP_adafactor, KU_OP_lion, KU_OP_rmsprop_both};
    static const enum kumi_dtype types[] = {KUMI_F32, KUMI_BF16, KUMI_F16};
    struct layout l = {.model = model[DRAW(5)], .ranks = ranks[DRAW(4)]};
    l.zero = l.ranks > 1 ? DRAW(4) : 0;
    l.replicate = l.zero && l.ranks > 2 && DRAW(2) ? 2 : 1;
    l.mb = 1 + DRAW(4), l.vs = l.model == synced ? 1 : 1 << DRAW(3);
    l.by_micro = DRAW(3) == 0;
    l.recompute = DRAW(3);
    l.is_private = DRAW(2);
    l.compute = types[DRAW(3)];
    l.reduce = DRAW(4) ? KUMI_F32 : KUMI_BF16;
    l.no_master = l.compute == KUMI_BF16 && DRAW(3) == 0;
    l.rounds = l.no_master && DRAW(2);
    l.optimizer = rule[DRAW(2) ? DRAW(4) : DRAW(9)];
    l.offload = DRAW(5) == 0;
    l.overlap = DRAW(4) != 0;
    l.clip_value = DRAW(4) == 0;
    l.averages = DRAW(4) == 0;
    l.decay = DRAW(3), l.adapt = DRAW(3), l.groups = DRAW(2);
    l.group = l.zero == 3 && l.ranks / l.replicate >= 4 && DRAW(2) ? 2 : 0;
    l.hosts = l.ranks >= 4 * l.replicate && !l.is_private ? 2 * l.replicate : 0;
    l.group = l.hosts ? 0 : l.group;
    if ((l.model == tied || l.model == mlp) && DRAW(3) == 0) { /* what tp works with */
        l = over_tp(l, 1 << (1 + DRAW(2)));
        if (l.model == tied && DRAW(3))
            l.model = vocabulary;
        l.tp_exact = DRAW(2) ? 4 : 0; /* also without axis tp */
        l.tp_reduce = l.tp_exact || DRAW(2) ? KUMI_F32 : KUMI_BF16;
        l.tp = l.tp_exact && DRAW(3) == 0 ? 1 : l.tp;
    }
    if (DRAW(3) == 0)
        draw_pipeline(&l, seed);
    if (l.pp > 1 && l.tp > 1 && DRAW(2))
        l = over_sequences(l, l.tp);
    if ((l.pp > 1 || l.tp > 1) && DRAW(4) == 0)
        l.offload = 1;
    if (l.offload && DRAW(3) == 0)
        l.offload = 2;
    l.freeze = DRAW(4) == 0 ? 1 + DRAW(3) : 0;
    return l;
}

static inline void show(const struct layout *l)
{
    fprintf(stderr,
            "  %s ranks %d pp %d %s layers %d flags %d tp %d exact %d tp_reduce %d sp %d hosts %d "
            "zero %d replicate %d mb %d "
            "vs %d micro %d recompute %d "
            "private %d "
            "group "
            "%d compute %d reduce %d no_master %d rounds %d %s offload %d overlap %d clip %d "
            "averages %d decay %d adapt %d groups %d freeze %d\n",
            l->pp > 1                  ? "residual"
            : l->model == tied         ? "tied"
            : l->model == vocabulary   ? "vocabulary"
            : l->model == sequences    ? "sequences"
            : l->model == mlp          ? "mlp"
            : l->model == grouped      ? "grouped queries"
            : l->model == one_key_head ? "one key head"
                                       : "batch norm",
            l->ranks, l->pp, l->pp > 1 ? l->schedule : "-", l->n_layers, l->flags, l->tp,
            l->tp_exact, l->tp_reduce, l->sp, l->hosts, l->zero, l->replicate, l->mb, l->vs,
            l->by_micro, l->recompute, l->is_private, l->group, l->compute, l->reduce, l->no_master,
            l->rounds, ku_ops[l->optimizer].name, l->offload, l->overlap, l->clip_value,
            l->averages, l->decay, l->adapt, l->groups, l->freeze);
}

#endif
