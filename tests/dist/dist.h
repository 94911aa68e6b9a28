/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_DIST_H
#define TESTS_DIST_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/math/random.h"
#include "comm/world.h"
#include "kumi/model.h"
#include "nn/builder.h"
#include "pass/pipe/block_schedule.h"
#include "pass/pipe/layer_stages.h"
#include "tensor/dtype.h"
#include "train/trainer.h"

#include "host.h"
#include "sample.h"

/*
 * One training run of a small model on made-up tokens, as a function of a layout: the digest at its
 * end. What is numerics is fixed by the test, what is layout varies.
 */
struct dist_case {
    int n;  /* ranks */
    int tp; /* of them divide each layer; 0 = 1. Above 1 each rank has memory of its own */
    int sp, sp_keeps;       /* tp: sequences are divided; what layers gather of them is kept */
    int tp_exact;           /* slices of the sums over what tp may divide; 0: one per rank */
    int whole_vocabulary;   /* tp: table, output layer and loss are whole */
    struct ku_tp_plan plan; /* styles of modules */
    int pp;                 /* stages' coordinates; 0 = 1. Above 1 each rank has its own memory */
    const char *schedule;   /* NULL: 1f1b; with a comma: the rows of a file */
    const char *on_hosts;   /* ranks of each pretended host, as "2,2"; NULL: one host */
    int n_virtual;          /* stages per rank, of interleaved; 0 = 2 */
    const struct ku_pp_schedule *order;
    const int *layers; /* of each stage */
    bool end_alone;    /* the last stage has what follows the layers, and no layer */
    int v, micro,
        k; /* virtual shards, micro-batch, micro-batches of a shard: global batch = v micro k */
    int steps, threads;
    int64_t bucket_bytes; /* 0 = 1 MiB */
    int no_overlap, no_sharing;
    int recompute, every; /* enum ku_recompute; units of a group */
    int zero, replicate; /* stage; 0 = 1: with a stage and without sharing, n = replicate x shard */
    int hosts;           /* with sharing: of equal sizes, each with one copy; 0 = 1 */
    int prefetch, keep_gathered;
    int by_micro; /* each micro-batch is reduced */
    int group;    /* ranks that hold a unit between forward and backward; 0 = all */
    int64_t persist_below;
    struct ku_offload offload;
    struct ku_offload_file_opts target;
    enum kumi_dtype compute, grads, reduce; /* of f32 gradients */
    int no_master, stochastic_rounding;
    const char *const *keep_f32;
    const struct ku_precision_rules *modules;
    const char *device; /* "ref", "cpu" */
    int optimizer;      /* 0 = KU_OP_adamw */
    double ema;
    const struct ku_update_group *groups;
    int n_groups;
    double smoothing;   /* of labels */
    double loss_scale;  /* the first; 0 = no scaler */
    int scaler, window; /* of it: enum ku_loss_scale_policy, 0 = 1000 steps */
    double clip;        /* largest norm of the gradients; 0 = 1 */
    double clip_value;  /* largest element of a gradient; 0 = any */
    struct kumi_gpt2 model;
    int key_heads; /* above 0: Llama with so many, and n_head of queries, n_embd, n_layer and
                    * vocab_size of `model` and the dropout of its attention */
    int is_pair;   /* an encoder-decoder with n_layer / 2 layers each, and the same of `model` */
    int64_t t;
    /* results */
    char digest[72];
    double loss[64], norm[64], scale[64], eval_loss; /* scale: behind a step */
    int64_t update;
};

static inline struct kumi_gpt2 dist_model(void)
{
    struct kumi_gpt2 m;
    kumi_gpt2_defaults(&m);
    m.n_layer = 2, m.n_head = 3, m.n_embd = 24, m.n_positions = 12, m.vocab_size = 61;
    m.resid_pdrop = m.embd_pdrop = m.attn_pdrop = 0.1;
    return m;
}

static inline int32_t dist_token(const struct dist_case *c, int64_t step, int64_t row, int64_t t,
                                 int is_target)
{
    uint32_t r = ku_random_u32(7, (uint32_t)step, 1, (uint64_t)(row * (c->t + 1) + t + is_target));
    return (int32_t)(r % (uint32_t)c->model.vocab_size);
}

/* What an encoder-decoder reads beside the target's tokens. */
static inline void dist_fill_source(const struct dist_case *c, struct ku_trainer *t,
                                    enum ku_trainer_program p, int64_t step)
{
    size_t row_bytes;
    for (int u = 0; u < ku_trainer_n_micro(t); u++) {
        int64_t first, n = ku_trainer_rows(t, u, &first);
        int32_t *src = host_of(ku_trainer_port(t, p, "src", u, &row_bytes));
        int32_t *src_len = host_of(ku_trainer_port(t, p, "src_len", u, &row_bytes));
        int32_t *tgt_len = host_of(ku_trainer_port(t, p, "tgt_len", u, &row_bytes));
        for (int64_t i = 0; i < n * c->t; i++)
            src[i] = dist_token(c, step + 2000, first + i / c->t, i % c->t, 0);
        for (int64_t i = 0; i < n; i++)
            src_len[i] = (int32_t)(1 + (first + i) % c->t), tgt_len[i] = (int32_t)c->t;
    }
}

static inline void dist_fill(const struct dist_case *c, struct ku_trainer *t,
                             enum ku_trainer_program p, int64_t step)
{
    const char *input = c->is_pair ? "tgt_in" : "tokens";
    size_t row_bytes;
    if (c->is_pair)
        dist_fill_source(c, t, p, step);
    for (int u = 0; u < ku_trainer_n_micro(t); u++) {
        int64_t first, n = ku_trainer_rows(t, u, &first);
        int32_t *tokens = host_of(ku_trainer_port(t, p, input, u, &row_bytes));
        int32_t *targets = host_of(ku_trainer_port(t, p, "targets", u, &row_bytes));
        for (int64_t i = 0; i < n * c->t; i++) {
            tokens[i] = dist_token(c, step, first + i / c->t, i % c->t, 0);
            targets[i] = i % 7 == 3 ? -100 : dist_token(c, step, first + i / c->t, i % c->t, 1);
        }
    }
}

static inline struct ku_compile_opts dist_compile_opts(const struct dist_case *c)
{
    struct ku_compile_opts o =
        (struct ku_compile_opts){.compute = c->compute,
                                 .grads = c->grads,
                                 .reduce = c->reduce,
                                 .no_master = c->no_master,
                                 .stochastic_rounding = c->stochastic_rounding,
                                 .keep_f32 = c->keep_f32,
                                 .modules = c->modules,
                                 .is_training = 1,
                                 .optimizer = c->optimizer ? c->optimizer : KU_OP_adamw,
                                 .rule = ku_attrs_default,
                                 .bucket_bytes = c->bucket_bytes ? c->bucket_bytes : 1 << 20,
                                 .first_bucket_bytes = 4096,
                                 .overlap = !c->no_overlap,
                                 .sequence = c->sp,
                                 .tp_exact = c->tp_exact,
                                 .whole_vocabulary = c->whole_vocabulary,
                                 .plan = c->plan,
                                 .sequence_gathered = c->sp_keeps,
                                 .recompute = c->recompute,
                                 .recompute_every = c->every,
                                 .zero = c->zero,
                                 .prefetch = c->prefetch,
                                 .keep_gathered = c->keep_gathered,
                                 .persist_below = c->persist_below,
                                 .reshard_group = c->group,
                                 .gather_bucket_bytes = c->bucket_bytes,
                                 .offload = c->offload};
    for (int a = 0; a < KU_N_AXES; a++)
        o.mesh.extent[a] = 1;
    const int tp = c->tp ? c->tp : 1, pp = c->pp ? c->pp : 1, dp = c->n / (tp * pp);
    const int is_private = c->no_sharing || tp > 1 || pp > 1;
    const int hosts = c->hosts ? c->hosts : 1;
    const int inner = c->key_heads && c->key_heads < tp ? tp / c->key_heads : 1;
    o.mesh.extent[KU_AX_TP] = tp / inner;
    o.mesh.extent[KU_AX_TPI] = inner;
    o.mesh.extent[KU_AX_PP] = pp;
    o.schedule = c->order;
    o.stage_layers = c->layers;
    o.mesh.extent[KU_AX_LOCAL] = is_private ? 1 : dp / hosts;
    o.mesh.extent[KU_AX_REPLICATE] = c->zero && c->replicate ? c->replicate
                                     : c->zero               ? 1
                                     : is_private            ? dp
                                                             : hosts;
    o.mesh.extent[KU_AX_SHARD] = dp / ku_mesh_dp(&o.mesh);
    o.mesh.extent[KU_AX_VS] = c->v / dp;
    o.mesh.extent[KU_AX_MB] = c->k;
    o.mesh.mb_outer = c->by_micro;
    o.rule.lr = 1e-2;
    o.rule.clip = c->clip != 0 ? c->clip : 1;
    o.rule.weight_decay = 0.1;
    o.rule.eps = 1e-8;
    o.rule.ema = c->ema;
    o.rule.loss_scale = c->loss_scale;
    o.rule.scaler = c->scaler;
    o.rule.scale_window = c->window ? c->window : 1000;
    o.rule.clip_value = c->clip_value;
    o.rule.momentum = c->optimizer == KU_OP_rmsprop_both ? 0.5 : 0;
    o.groups = c->groups;
    o.n_groups = c->n_groups;
    if (c->optimizer == KU_OP_rmsprop_both || c->optimizer == KU_OP_lion)
        o.rule.lr = 1e-3;
    if (c->optimizer == KU_OP_lars)
        o.rule.lr = 5, o.rule.momentum = 0.9;
    return o;
}

static inline void dist_smooth(struct ku_graph *g, double share)
{
    for (ku_id node = 1; node < g->n_nodes; node++)
        if (g->node[node].op == KU_OP_softmax_xent) {
            struct ku_attrs a = g->attr[g->node[node].attr];
            a.smoothing = share;
            g->node[node].attr = ku_graph_attr(g, &a);
        }
}

/* Creates the trainer from a graph, which it takes, with the case's pipeline. */
static inline int dist_create(struct ku_job *job, const struct dist_case *c, struct ku_graph *g,
                              struct ku_trainer_opts *o, struct ku_trainer **t)
{
    struct dist_case own = {0}; /* without the results, which another rank may write already */
    struct ku_pp_schedule *order = NULL;
    int layers[64], status = KUMI_OK;
    memcpy(&own, c, offsetof(struct dist_case, digest));
    if (c->pp > 1) {
        const char *const name = c->schedule ? c->schedule : "1f1b";
        status =
            strchr(name, ',')
                ? ku_pp_schedule_parse("rows", name, strlen(name), &order)
                : ku_pp_schedule_create(name, c->pp, c->n_virtual ? c->n_virtual : 2,
                                        c->v * c->pp * (c->tp ? c->tp : 1) / c->n * c->k, &order);
        if (status == KUMI_OK)
            status = ku_stages_balance(g, NULL, order->rank_of, order->n_stages, layers);
        const int last = order ? order->n_stages - 1 : 0;
        if (c->end_alone && status == KUMI_OK)
            layers[last - 1] += layers[last], layers[last] = 0;
        own.order = order, own.layers = layers;
    }
    o->compile = dist_compile_opts(&own);
    if (status == KUMI_OK)
        status = ku_trainer_create(job, &g, 1, o, t);
    else
        ku_graph_destroy(g);
    ku_pp_schedule_destroy(order);
    return status;
}

static inline void dist_build_llama(struct kumi_graph *builder, const struct dist_case *c,
                                    const struct kumi_shape_of_batch *batch)
{
    struct kumi_llama m;
    kumi_llama_defaults(&m);
    m.num_hidden_layers = c->model.n_layer, m.hidden_size = c->model.n_embd;
    m.num_attention_heads = c->model.n_head, m.num_key_value_heads = c->key_heads;
    m.intermediate_size = 2 * c->model.n_embd, m.vocab_size = c->model.vocab_size;
    m.max_position_embeddings = c->model.n_positions;
    m.attention_dropout = c->model.attn_pdrop, m.attention_bias = 1;
    kumi_llama_build(builder, &m, batch);
}

static inline void dist_build_pair(struct kumi_graph *builder, const struct dist_case *c,
                                   const struct kumi_shape_of_batch *batch)
{
    struct kumi_transformer m;
    kumi_transformer_defaults(&m);
    m.encoder_layers = m.decoder_layers = c->model.n_layer / 2, m.d_model = c->model.n_embd;
    m.num_heads = c->model.n_head, m.ffn_dim = 2 * c->model.n_embd;
    m.src_vocab_size = m.tgt_vocab_size = c->model.vocab_size;
    m.max_positions = c->model.n_positions, m.norm_first = m.tie_word_embeddings = 1;
    m.dropout = c->model.resid_pdrop, m.attention_dropout = c->model.attn_pdrop;
    kumi_transformer_build(builder, &m, batch);
}

static inline int dist_trainer(struct ku_job *job, const struct dist_case *c, struct ku_trainer **t)
{
    struct kumi_graph *builder;
    struct ku_graph *g;
    struct ku_trainer_opts o = {.device = ku_device_find(c->device), .seed = 1337};
    struct kumi_shape_of_batch batch = {
        .n = (int64_t)c->v * c->micro * c->k, .s = c->is_pair ? c->t : 0, .t = c->t};
    KU_TRY(kumi_graph_create(&builder));
    if (c->is_pair)
        dist_build_pair(builder, c, &batch);
    else if (c->key_heads)
        dist_build_llama(builder, c, &batch);
    else
        kumi_gpt2_build(builder, &c->model, &batch);
    int status = ku_builder_take(builder, &g);
    kumi_graph_destroy(builder);
    KU_TRY(status);
    if (c->smoothing > 0)
        dist_smooth(g, c->smoothing);
    o.device_opts =
        (struct ku_device_opts){.n_threads = c->threads ? c->threads : 1, .isa = ku_cpu_isa()};
    o.target = c->target;
    return dist_create(job, c, g, &o, t);
}

/* Element i of a tensor as memory has it. */
static inline double dist_element(const struct ku_ckpt_tensor *x, int64_t i)
{
    const size_t each = kumi_dtype_bytes(x->dtype);
    for (int k = 0; k < x->n_parts; k++) {
        const struct ku_ckpt_part *p = &x->part[k];
        char element[8];
        if (i < p->begin || i >= p->end)
            continue;
        uint64_t at = p->at + (uint64_t)(i - p->begin) * each;
        assert_int_equal(p->store->move(p->store, 0, at, element, each), 0);
        return ku_load_f64(element, x->dtype, 0);
    }
    return ku_load_f64(x->data, x->dtype, i);
}

/* The padded rows of the vocabulary stay zero under every optimizer. */
static inline int dist_padding_is_zero(const struct ku_trainer *t)
{
    for (int k = 0; k < t->n_tensors; k++) {
        const struct ku_ckpt_tensor *x = &t->tensor[k];
        int64_t row = 1;
        if (x->owner.n_owners) /* other hosts have some of its elements */
            continue;
        for (int d = 1; d < x->ndim; d++)
            row *= x->dim[d];
        for (int64_t i = x->ndim ? x->dim[0] * row : 0; x->ndim && i < x->padded[0] * row; i++)
            if (dist_element(x, i) != 0)
                return 0;
    }
    return 1;
}

static inline int dist_rank(struct ku_job *job, void *arg)
{
    struct dist_case *c = arg;
    struct ku_trainer *t = NULL;
    KU_TRY(dist_trainer(job, c, &t));
    KU_TRY(ku_trainer_init_state(t));
    for (int step = 0; step < c->steps; step++) {
        const double *report;
        dist_fill(c, t, KU_PROG_TRAIN, step % 2);
        KU_TRY(ku_trainer_step(t, step, &report));
        if (job->rank == 0 && step < 64) {
            c->loss[step] = report[KU_REPORT_LOSS];
            c->norm[step] = report[KU_REPORT_NORM];
            c->scale[step] = ku_trainer_loss_scale(t);
        }
    }
    if (job->rank == 0 && !dist_padding_is_zero(t))
        return KU_ERR(KUMI_EBUG, "padding is not zero");
    ku_trainer_eval_begin(t);
    dist_fill(c, t, KU_PROG_EVAL, 1000);
    KU_TRY(ku_trainer_eval_run(t));
    if (job->rank == 0) {
        c->eval_loss = ku_trainer_eval_loss(t);
        c->update = ku_trainer_update_count(t);
    }
    char digest[72];
    KU_TRY(ku_trainer_digest_first(t, digest));
    if (job->rank == 0)
        memcpy(c->digest, digest, sizeof digest);
    ku_trainer_destroy(t);
    return KUMI_OK;
}

static inline void dist_run(struct dist_case *c)
{
    const struct ku_job_opts opts = {.hosts = c->on_hosts};
    int status = ku_comm_threads(c->n, c->on_hosts ? &opts : NULL, dist_rank, c);
    if (status < 0)
        fail_msg("n=%d zero=%d replicate=%d: %s", c->n, c->zero, c->replicate, ku_err_get()->text);
}

#endif
