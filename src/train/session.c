/* SPDX-License-Identifier: Apache-2.0 */
#include "train/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/json/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "batch/text_source.h"
#include "comm/consensus.h"
#include "comm/far_cost.h"
#include "comm/world.h"
#include "ir/state.h"
#include "job/hosts.h"
#include "config/deepspeed.h"
#include "model/model.h"
#include "config/precision_policy.h"
#include "config/optimizer.h"
#include "pass/pipe/block_schedule.h"
#include "pass/place/tensor_parallel.h"
#include "train/remote_update.h"
#include "sim/between_hosts.h"
#include "sim/kernel_choice.h"

enum { DEFAULT_STEPS = 1000 };

static int64_t given(int64_t key)
{
    return key == KU_NULL ? 0 : key;
}

/* A numerics key that is null takes the checkpoint's value. */
static int64_t from_checkpoint(int64_t key, const json_t *was, const char *name)
{
    int64_t value;
    return key == KU_NULL && was && ku_json_int(json_object_get(was, name), &value) == 0
               ? value
               : given(key);
}

int ku_session_data_ranks(const struct ku_session *s, int n)
{
    const int64_t each = s->is_eval_only ? 1 : s->cfg.parallel_tp * s->cfg.parallel_pp;
    return n < each ? 1 : n / (int)each;
}

static int configure_batch(struct ku_session *s, const json_t *was, int n_ranks)
{
    const struct ku_config *c = &s->cfg;
    if (s->is_eval_only) { /* the model is evaluated whole on each rank */
        s->cfg.parallel_tp = s->cfg.parallel_pp = 1;
        s->cfg.parallel_tp_exact = KU_NULL;
    }
    if (s->remote.update_by != KU_UPDATE_HERE && (c->parallel_tp > 1 || c->parallel_pp > 1))
        return KU_ERR(KUMI_EINVAL,
                      "ps: a worker is one rank; set parallel.tp and parallel.pp to 1 (tp %lld, "
                      "pp %lld)",
                      (long long)c->parallel_tp, (long long)c->parallel_pp);
    KU_TRY(ku_sharding_resolve(c, n_ranks, s->host_ranks, &s->sharding));
    KU_TRY(ku_sharding_share(c, s->host_ranks, s->has_even_hosts, &s->sharding));
    s->batch = (struct ku_batch){
        .n_ranks = n_ranks / (s->sharding.tp * s->sharding.pp),
        .is_free = strcmp(c->parallel_order, "free") == 0,
        .is_in_tokens = ku_batch_is_in_tokens(c, &s->model),
        .global_batch = from_checkpoint(c->train_global_batch, was, "train.global_batch"),
        .micro_batch = from_checkpoint(c->train_micro_batch, was, "train.micro_batch"),
        .virtual_shards = from_checkpoint(c->train_virtual_shards, was, "train.virtual_shards"),
        .accumulation = given(c->train_accumulation)};
    if (!s->batch.global_batch && !s->batch.micro_batch && !s->batch.is_in_tokens)
        s->batch.global_batch = KU_DEFAULT_GLOBAL_BATCH;
    const int status = ku_batch_resolve(&s->batch);
    if (status == KUMI_OK || was == NULL || !s->batch.is_free || c->train_micro_batch != KU_NULL)
        return status;
    s->batch.micro_batch = 0; /* the checkpoint's does not divide the batch among these ranks */
    if (s->batch.is_in_tokens)
        s->batch.global_batch = 0; /* it followed from the ranks */
    return ku_batch_resolve(&s->batch);
}

/* A resume uses the checkpoint's copy of the tokenizer if the configured one no longer exists. */
static int find_tokenizer(struct ku_session *s)
{
    char **where = &s->cfg.data_tokenizer;
    struct stat info;
    if (s->stored == NULL || strchr(*where, '/') == NULL || ku_os_stat(*where, &info) == 0 ||
        !ku_companions_has_tokenizer(s->stored))
        return KUMI_OK;
    ku_free(*where);
    *where = ku_strdup(s->stored);
    return *where ? KUMI_OK : KUMI_ENOMEM;
}

int ku_session_configure(struct ku_session *s, const char *path, const char *const *set, int n_sets,
                         const json_t *was, int n_ranks)
{
    KU_TRY(ku_config_load_over(path, set, n_sets, s->n_over, ku_model_hidden_size, &s->cfg));
    return ku_session_resolve(s, was, n_ranks);
}

/* A resume keeps the mask token that the checkpoint's run found. */
static void keep_mask_token(struct ku_session *s, const json_t *was)
{
    json_t *id = json_object_get(was, "data.mask_token");
    if (was == NULL || s->cfg.data_mask_token != KU_NULL)
        return;
    if (id)
        json_object_set(s->numerics, "data.mask_token", id);
    ku_text_keep_mask_token(&s->cfg, &s->model, was);
}

int ku_session_resolve(struct ku_session *s, const json_t *was, int n_ranks)
{
    struct ku_ds_batch deepspeed;
    s->groups = ku_rule_groups(&s->cfg);
    if (s->groups == NULL)
        return KUMI_ENOMEM;
    KU_TRY(ku_model_read_again(&s->cfg, s->stored, &s->model));
    KU_TRY(ku_batch_source_of(&s->cfg, &s->model)->check(&s->cfg, &s->model));
    KU_TRY(find_tokenizer(s));
    if (s->cfg.deepspeed && was == NULL) /* a resume takes missing values from the checkpoint */
        KU_TRY(ku_deepspeed_batch(&s->cfg, ku_session_data_ranks(s, n_ranks), &deepspeed));
    KU_TRY(configure_batch(s, was, n_ranks));
    KU_TRY(ku_batch_source_of(&s->cfg, &s->model)->seq_len(&s->cfg, &s->model, &s->seq_len));
    KU_TRY(ku_batch_source_create(&s->cfg, &s->model, &s->batch, s->seq_len, &s->source));
    s->n_steps = s->cfg.train_steps != KU_NULL ? s->cfg.train_steps : DEFAULT_STEPS;
    s->numerics = ku_config_numerics(&s->cfg);
    if (s->numerics == NULL)
        return KU_ERR(KUMI_ENOMEM, "config: no memory");
    keep_mask_token(s, was);
    if (s->cfg.schedule_decay_steps.n < 0) { /* changing train.steps keeps the schedule */
        const char *per = json_string_value(json_object_get(was, "schedule.per"));
        if (per == NULL || strcmp(per, s->cfg.schedule_per) == 0) /* else the unit differs */
            s->decay_steps = from_checkpoint(KU_NULL, was, "schedule.decay_steps");
        if (s->decay_steps > 0)
            json_object_set_new(s->numerics, "schedule.decay_steps", json_integer(s->decay_steps));
    }
    json_object_set_new(s->numerics, "train.global_batch", json_integer(s->batch.global_batch));
    json_object_set_new(s->numerics, "train.micro_batch", json_integer(s->batch.micro_batch));
    if (!s->batch.is_free) /* else it follows from the number of ranks */
        json_object_set_new(s->numerics, "train.virtual_shards",
                            json_integer(s->batch.virtual_shards));
    json_object_set_new(s->numerics, "data.seq_len", json_integer(s->seq_len));
    return KUMI_OK;
}

int64_t ku_session_steps_per_epoch(const struct ku_session *s)
{
    const int64_t n = s->source ? s->source->steps_per_epoch : 0;
    return s->remote.is_single ? n * ku_session_n_ranks(s) : n;
}

static bool is_per_epoch(const struct ku_config *c)
{
    return strcmp(c->schedule_per, "epoch") == 0;
}

/* A span in the schedule's unit: steps, or epochs with schedule.per "epoch". */
static int64_t schedule_span(const struct ku_session *s, struct ku_span span)
{
    return is_per_epoch(&s->cfg) ? span.n : ku_span_steps(span, ku_session_steps_per_epoch(s));
}

int64_t ku_session_schedule_length(const struct ku_session *s)
{
    int64_t per_epoch = ku_session_steps_per_epoch(s);
    if (!is_per_epoch(&s->cfg) || per_epoch == 0)
        return s->n_steps;
    return s->n_steps / per_epoch + (s->n_steps % per_epoch != 0);
}

static void schedule_of(const struct ku_session *s, struct ku_attrs *a)
{
    const struct ku_config *c = &s->cfg;
    int64_t at[KU_MAX_SPANS];
    _Static_assert((int)KU_MAX_SPANS <= (int)KU_MAX_ARGS, "an attribute's list holds them");
    ku_rule_schedule(c, a);
    a->period =
        is_per_epoch(c) && ku_session_steps_per_epoch(s) > 1 ? ku_session_steps_per_epoch(s) : 1;
    a->warmup = schedule_span(s, c->schedule_warmup_steps);
    a->decay = c->schedule_decay_steps.n >= 0 ? schedule_span(s, c->schedule_decay_steps)
               : s->decay_steps > 0           ? s->decay_steps
                                    : ku_session_schedule_length(s); /* a plan without data */
    a->step_size = schedule_span(s, c->schedule_step_size);
    for (int i = 0; i < c->schedule_milestones.n; i++)
        at[i] = schedule_span(s, c->schedule_milestones.item[i]);
    ku_rule_args(c, at, a);
}

/* Whole parameters that only one rank updates are not offloaded. */
static int offload_of(const struct ku_session *s, struct ku_compile_opts *o)
{
    const struct ku_offload_key *k = &s->cfg.memory_offload;
    if (k->params && ku_state_is_sharded(&o->mesh) && o->zero != 3)
        return ku_config_refuse(&s->cfg, "memory.offload.params",
                                ku_json_at(s->cfg.root, "memory.offload.params"),
                                "with parallel.zero 1 and 2 every rank reads its own copy; use "
                                "parallel.zero 3");
    o->persist_below = s->cfg.parallel_persist_below;
    o->offload = (struct ku_offload){.optimizer = (uint8_t)k->optimizer,
                                     .params = (uint8_t)k->params,
                                     .activations = (uint8_t)k->activations,
                                     .ratio = k->ratio,
                                     .buffer_count = (int)k->buffer_count,
                                     .buffer_bytes = k->buffer_size * 4};
    return KUMI_OK;
}

/* What tensor parallelism does not support. */
static int check_tp(const struct ku_session *s, const struct ku_compile_opts *o)
{
    const struct ku_config *c = &s->cfg;
    if (o->tp_exact && o->optimizer == KU_OP_adafactor)
        return ku_config_refuse(c, "optimizer.type", ku_json_at(c->root, "optimizer.type"),
                                "its sums of squares of updates are not in the slices of "
                                "parallel.tp_exact; use null or another optimizer");
    return KUMI_OK;
}

/* Tensor-parallel ranks that outnumber the key and value heads of grouped queries share these. */
static int divide_heads(const struct ku_session *s, struct ku_compile_opts *o)
{
    struct ku_graph *g;
    o->mesh.extent[KU_AX_TP] = s->sharding.tp;
    if (s->sharding.tp == 1 || o->tp_exact) /* its slices are of key and value heads */
        return KUMI_OK;
    KU_TRY(ku_session_graph(s, 0, &g));
    o->mesh.extent[KU_AX_TPI] = ku_tensor_inner(g, s->sharding.tp);
    o->mesh.extent[KU_AX_TP] /= o->mesh.extent[KU_AX_TPI];
    ku_graph_destroy(g);
    return KUMI_OK;
}

int ku_session_compile_opts(const struct ku_session *s, struct ku_compile_opts *o)
{
    const struct ku_config *c = &s->cfg;
    struct ku_remote_opts remote = s->remote;
    remote.compression = (int)c->ps_compression;
    remote.topk = c->ps_topk;
    *o = (struct ku_compile_opts){
        .is_training = !s->is_eval_only,
        .remote = remote,
        .watch = s->watch,
        .freeze = (const char *const *)c->train_freeze.item,
        .rule = ku_attrs_default,
        .bucket_bytes = (int64_t)(c->parallel_bucket_mb * 0x1p20),
        .first_bucket_bytes = (int64_t)(c->parallel_first_bucket_mb * 0x1p20),
        .gather_bucket_bytes = (int64_t)(c->parallel_allgather_bucket_mb * 0x1p20),
        .overlap = c->parallel_overlap,
        .zero = s->sharding.zero,
        .wrap = c->parallel_wrap.n ? (const char *const *)c->parallel_wrap.item : NULL,
        .prefetch = (int)c->parallel_prefetch,
        .keep_gathered = s->sharding.reshard == 1,
        .reshard_group = s->sharding.reshard < s->sharding.shard ? s->sharding.reshard : 0,
        .max_live = given(c->parallel_max_live_parameters)};
    KU_TRY(ku_precision_opts(c, o));
    o->split_vocabulary = json_is_true(ku_json_at(c->root, "parallel.loss_parallel"));
    o->whole_vocabulary = json_is_false(ku_json_at(c->root, "parallel.loss_parallel"));
    o->tp_exact = (int)given(c->parallel_tp_exact);
    o->tp_reduce = strcmp(c->precision_tp_reduce, "bf16") == 0 ? KUMI_BF16 : KUMI_F32;
    if (s->sharding.tp > 1 || o->tp_exact)
        o->plan = c->parallel_plan;
    o->sequence = c->parallel_sp && s->sharding.tp > 1;
    o->sequence_gathered = c->parallel_sp_keep_gathered;
    for (int a = 0; a < KU_N_AXES; a++)
        o->mesh.extent[a] = 1;
    o->mesh.extent[KU_AX_REPLICATE] = s->sharding.replicate;
    o->mesh.extent[KU_AX_SHARD] = s->sharding.shard;
    o->mesh.extent[KU_AX_LOCAL] = s->sharding.local;
    KU_TRY(divide_heads(s, o));
    o->mesh.extent[KU_AX_PP] = s->sharding.pp;
    KU_ASSERT(ku_mesh_dp(&o->mesh) == s->batch.n_ranks);
    o->mesh.extent[KU_AX_VS] = (int)(s->batch.virtual_shards / s->batch.n_ranks);
    o->mesh.extent[KU_AX_MB] = (int)s->batch.k;
    o->mesh.mb_outer = s->batch.k > 1 && strcmp(c->parallel_grad_sync, "micro") == 0;
    const struct ku_recompute_key *again = &c->memory_recompute;
    o->recompute = again->rule == KU_REC_FULL        ? KU_RECOMPUTE_FULL
                   : again->rule == KU_REC_SELECTIVE ? KU_RECOMPUTE_SELECTIVE
                                                     : KU_RECOMPUTE_NONE;
    o->recompute_every = again->every;
    o->recompute_match = (const char *const *)again->match.item;
    KU_TRY(offload_of(s, o));
    o->rule.clip = c->train_clip_norm;
    o->rule.clip_value = c->train_clip_value;
    KU_TRY(ku_rule_scaler(c, o));
    ku_rule_optimizer(c, s->batch.global_batch, o);
    KU_TRY(check_tp(s, o));
    if (s->remote.update_by == KU_UPDATE_SERVER) /* it stores its chunks of every parameter */
        o->zero = 3, o->persist_below = 0;
    schedule_of(s, &o->rule);
    o->groups = s->groups;
    o->n_groups = s->groups ? c->optimizer_groups.n : 0;
    return KUMI_OK;
}

/* Set label smoothing on all losses of the model. */
static int smooth(struct ku_graph *g, double share)
{
    for (ku_id n = 1; n < g->n_nodes && share > 0; n++) {
        struct ku_attrs a = g->attr[g->node[n].attr];
        if (g->node[n].op != KU_OP_softmax_xent)
            continue;
        a.smoothing = share;
        ku_id attr = ku_graph_attr(g, &a);
        if (attr == 0)
            return KUMI_ENOMEM;
        g->node[n].attr = attr;
    }
    return KUMI_OK;
}

int ku_session_graph(const struct ku_session *s, int shape, struct ku_graph **g)
{
    const struct ku_batch_shape of = s->source->ops->shape(s->source, shape);
    const struct kumi_shape_of_batch b = {
        .n = of.rows, .s = of.src_len, .t = of.tgt_len, .has_segments = s->cfg.data_segments};
    struct ku_graph *made;
    KU_TRY(s->graph ? ku_graph_copy(s->graph, &made) : ku_model_graph(&s->model, &b, &made));
    const int status = smooth(made, s->cfg.train_label_smoothing);
    if (status < 0)
        ku_graph_destroy(made);
    else
        *g = made;
    return status;
}

int ku_session_threads(const struct ku_session *s, int n_ranks, int n_cpus, int n_own)
{
    if (s->cfg.train_threads != KU_NULL)
        return (int)s->cfg.train_threads;
    const int share = n_cpus / n_ranks < n_own ? n_cpus / n_ranks : n_own;
    const int n = ku_env_threads() ? ku_env_threads() : share;
    return n < 1 ? 1 : n > 4096 ? 4096 : n;
}

int ku_session_cores(const struct ku_session *s, int local_n)
{
    const int n_cpus = ku_os_n_cpus(), cores = ku_os_n_cpus_host();
    const int threads = ku_session_threads(s, local_n, n_cpus, n_cpus) * local_n;
    return cores < threads ? cores : threads;
}

size_t ku_session_staging_bytes(const struct ku_session *s)
{
    size_t bytes = (size_t)s->cfg.checkpoint_staging_mb << 20;
    return !s->cfg.checkpoint_async       ? 0
           : bytes < KU_CKPT_WINDOW_BYTES ? KU_CKPT_WINDOW_BYTES
                                          : bytes / KU_CKPT_WINDOW_BYTES * KU_CKPT_WINDOW_BYTES;
}

int ku_session_exchange_bytes(const struct ku_session *s, const struct ku_mesh *m, size_t *bytes)
{
    const size_t full_rate = ku_far_full_rate(NULL, s->cfg.parallel_transport);
    const struct ku_host_ranks *largest = s->host;
    *bytes = 0;
    for (int h = 1; h < s->n_hosts; h++)
        largest = s->host[h].n > largest->n ? &s->host[h] : largest;
    for (int r = 0; largest && r < largest->n; r++) {
        size_t own;
        KU_TRY(ku_plan_far_pool(m, s->host, s->n_hosts, largest->first + r, full_rate, &own));
        *bytes = own > *bytes ? own : *bytes;
    }
    return KUMI_OK;
}

static bool has_batch_norm(const struct ku_graph *g)
{
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (g->node[n].op == KU_OP_batch_norm_sums)
            return true;
    return false;
}

/*
 * Padding samples of a short batch do not count in the loss, but would count in batch norm
 * statistics.
 */
static int refuse_short(const struct ku_session *s, const struct ku_graph *g)
{
    if (strcmp(s->cfg.data_last_batch, "short") != 0 || !has_batch_norm(g))
        return KUMI_OK;
    json_t *v = json_string(s->cfg.data_last_batch);
    const int status = ku_config_refuse(&s->cfg, "data.last_batch", v,
                                        "drop or wrap: batch norm would include the rows that fill "
                                        "a short batch");
    json_decref(v);
    return status;
}

/* A skipped sample leaves a row of zeros: not in the loss, but in the statistics of batch norm. */
static void tell_skipped(const struct ku_session *s, const struct ku_job *job,
                         const struct ku_graph *g)
{
    if (job->rank == 0 && !s->is_eval_only && strcmp(s->cfg.data_on_error, "skip") == 0 &&
        has_batch_norm(g))
        KU_LOG(TRAIN, WARN,
               "data.on_error skip: a sample that cannot be read becomes a row of zeros, which "
               "counts in the statistics of batch norm; repair or remove the files that are named");
}

/* Derive parameters and FLOP from the graphs of all n shapes, and check the data against them. */
static int look_at(struct ku_session *s, struct ku_graph *const *graph, int n)
{
    const struct ku_batch_source *source = s->source;
    KU_TRY(refuse_short(s, graph[0]));
    s->n_params = ku_graph_n_params(graph[0]);
    KU_TRY(source->ops->check_graph(source, graph[0]));
    s->shape_flops = ku_calloc((size_t)n, sizeof *s->shape_flops);
    for (int i = 0; i < n && s->shape_flops; i++)
        s->shape_flops[i] = ku_graph_model_flops(graph[i]);
    return s->shape_flops ? KUMI_OK : KUMI_ENOMEM;
}

/* Says which keys have no effect because the ranks of the host share one copy of the state. */
static void tell_common(const struct ku_session *s, const struct ku_job *job)
{
    struct ku_str why = {0};
    if (job->rank != 0 || s->is_eval_only || s->sharding.local == 1)
        return;
    ku_sharding_print_effect(&s->sharding, &why);
    if (why.bytes)
        KU_LOG(TRAIN, INFO, "%s", ku_str_get(&why));
    ku_str_fini(&why);
    if (s->cfg.memory_offload.params && (s->sharding.zero != 3 || s->sharding.shard == 1))
        KU_LOG(TRAIN, WARN,
               "memory.offload.params: no effect: the ranks of this host share one copy of the "
               "parameters; to offload them, use parallel.host_state private and parallel.zero 3");
}

/* Says which stage an omitted parallel.zero means on several hosts or with parallel.shard. */
static void tell_default(const struct ku_session *s, const struct ku_job *job)
{
    struct ku_str why = {0};
    if (job->rank != 0 || s->is_eval_only)
        return;
    ku_sharding_print_default(&s->sharding, &why);
    if (why.bytes)
        KU_LOG(TRAIN, INFO, "%s", ku_str_get(&why));
    ku_str_fini(&why);
}

/* Warns where the ranks that divide a layer are on several hosts: it waits for the link in each. */
static void tell_span(const struct ku_session *s, const struct ku_job *job)
{
    bool spans = false;
    for (int h = 1; h < job->n_hosts; h++)
        spans = spans || ku_job_hosts(job)[h].first_rank % s->sharding.tp;
    if (spans && job->rank == 0)
        KU_LOG(TRAIN, WARN,
               "parallel.tp %d: the ranks that divide a layer are on several hosts, which exchange "
               "its activations; let tp divide the ranks of each host",
               s->sharding.tp);
}

/* Workers and servers of different numerics keys must not talk. */
static int mix_numerics(struct ku_session *s)
{
    char *text = ku_json_print(s->numerics, JSON_SORT_KEYS | JSON_COMPACT);
    if (text == NULL)
        return KUMI_ENOMEM;
    s->t->remote->checksum = ku_hash64_mix(s->t->remote->checksum, ku_hash64(text, strlen(text)));
    ku_free(text);
    return KUMI_OK;
}

static int solve_recompute(struct ku_session *s, const struct ku_job *job,
                           const struct ku_target *target, struct ku_compile_opts *o)
{
    struct ku_host_ranks *host;
    KU_TRY(ku_hosts_of_job(job, &host));
    s->host = host, s->n_hosts = job->n_hosts;
    const int status = ku_session_solve_recompute(s, target, o);
    s->host = NULL, s->n_hosts = 0;
    ku_free(host);
    return status;
}

int ku_session_create_trainer(struct ku_session *s, struct ku_job *job)
{
    struct ku_trainer_opts o = {.device = ku_device_find(s->cfg.parallel_device),
                                .seed = (uint64_t)s->cfg.train_seed,
                                .staging_bytes = ku_session_staging_bytes(s)};
    KU_ASSERT(o.device != NULL);
    struct ku_target target = {.query = o.device->query, .ranks_per_host = job->local_n};
    KU_TRY(ku_session_check_ranks(s, job));
    KU_TRY(ku_session_compile_opts(s, &o.compile));
    KU_TRY(ku_session_plan_pipeline(s, &o.compile));
    if (s->remote.update_by != KU_UPDATE_SERVER) /* it has no activations */
        KU_TRY(solve_recompute(s, job, &target, &o.compile));
    o.worker = s->worker;
    o.target = (struct ku_offload_file_opts){s->cfg.memory_offload.path,
                                             (enum ku_aio_kind)s->cfg.memory_offload.io};
    tell_common(s, job);
    tell_default(s, job);
    tell_span(s, job);
    int n_sharing, n_cpus;
    ku_comm_cores(job, &n_sharing, &n_cpus);
    o.device_opts.n_cpus = n_cpus;
    o.device_opts.n_threads = ku_session_threads(s, n_sharing, n_cpus, ku_os_n_cpus());
    o.device_opts.n_runnable_threads = o.device_opts.n_threads * n_sharing;
    KU_TRY(ku_session_choose_isa(s, job, &o.device_opts.isa));
    int n = s->source->ops->n_shapes(s->source), status = KUMI_OK, made = 0;
    struct ku_graph **graph = ku_calloc((size_t)n, sizeof *graph);
    if (graph == NULL)
        return KUMI_ENOMEM;
    for (; made < n && status == KUMI_OK; made += status == KUMI_OK)
        status = ku_session_graph(s, made, &graph[made]);
    if (status == KUMI_OK)
        status = look_at(s, graph, n);
    if (status == KUMI_OK)
        tell_skipped(s, job, graph[0]);
    if (status == KUMI_OK)
        o.loader_bytes = s->source->ops->read_ahead_bytes(s->source, graph[0]);
    if (status == KUMI_OK)
        status = ku_trainer_create(job, graph, n, &o, &s->t);
    else
        for (int i = 0; i < made; i++)
            ku_graph_destroy(graph[i]);
    ku_free(graph);
    if (status == KUMI_OK && s->t->remote)
        status = mix_numerics(s);
    if (s->remote.update_by == KU_UPDATE_SERVER) /* workers read the data */
        return status;
    return status == KUMI_OK ? ku_session_resolve_feed(s) : status;
}

void ku_session_fini(struct ku_session *s)
{
    ku_session_save_end(s);
    ku_session_drop_feed(s);
    ku_batch_source_destroy(s->source);
    ku_trainer_destroy(s->t);
    ku_free(s->shape_flops);
    ku_free(s->recompute_level);
    ku_session_pipeline_fini(s);
    json_decref(s->numerics);
    ku_free(s->groups);
    ku_companions_fini(&s->companions);
    ku_model_fini(&s->model);
    ku_config_fini(&s->cfg);
    memset(s, 0, sizeof *s);
}
