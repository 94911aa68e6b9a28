/* SPDX-License-Identifier: Apache-2.0 */
/* The public trainer: options become compile options, batches are cut to this rank's rows. */
#include "kumi/trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/str.h"
#include "ckpt/digest.h"
#include "comm/api.h"
#include "nn/builder.h"
#include "train/agree.h"
#include "train/batch.h"
#include "train/config.h"
#include "train/rule.h"
#include "train/trainer.h"

struct kumi_trainer {
    struct ku_trainer *t;
    json_t *numerics; /* options that decide bits, derived ones resolved */
    int64_t step;
};

static double or_default(double x, double otherwise)
{
    return x != 0 ? x : otherwise;
}

static int optimizer_of(const char *name, int *op)
{
    *op = name ? ku_op_find(name) : KU_OP_adamw;
    if (*op == KU_OP_adamw || *op == KU_OP_adam || *op == KU_OP_sgd || *op == KU_OP_lars ||
        *op == KU_OP_lamb)
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL, "trainer: optimizer: %s: unknown; adamw, adam, sgd, lars or lamb",
                  name);
}

static struct ku_attrs rule_of(const struct kumi_trainer_options *o)
{
    struct ku_attrs a = ku_attrs_default;
    a.lr = or_default(o->lr, 1e-3);
    a.beta1 = or_default(o->beta1, 0.9);
    a.beta2 = or_default(o->beta2, 0.999);
    a.eps = or_default(o->eps, 1e-8);
    a.weight_decay = o->weight_decay;
    a.momentum = o->momentum;
    a.nesterov = o->nesterov != 0;
    a.dampening = o->dampening;
    a.trust_coefficient = or_default(o->trust_coefficient, a.trust_coefficient);
    a.min_coeff = or_default(o->min_coeff, a.min_coeff);
    a.max_coeff = or_default(o->max_coeff, a.max_coeff);
    a.clip = o->clip_norm;
    a.warmup = o->warmup_steps;
    a.decay = o->decay_steps;
    a.min_lr = o->min_lr;
    a.schedule = o->decay_steps > 0 ? KU_SCHED_COSINE : KU_SCHED_CONSTANT;
    return a;
}

/* Samples of the global batch. */
static int batch_of(const struct ku_graph *g, int64_t *n)
{
    *n = 0;
    for (uint32_t i = 0; i < g->n_inputs; i++) {
        const struct ku_shape *s = &g->shape[g->value[g->input[i].value].shape];
        int dim = ku_shape_find(s, 'n');
        if (dim < 0)
            continue;
        if (*n && *n != s->dim[dim].count)
            return KU_ERR(KUMI_EINVAL, "trainer: port %s: %lld samples; another port has %lld",
                          g->input[i].name, (long long)s->dim[dim].count, (long long)*n);
        *n = s->dim[dim].count;
    }
    return *n ? KUMI_OK
              : KU_ERR(KUMI_EINVAL, "trainer: no port has a dim n: nothing to share among ranks");
}

static int compile_opts(const struct ku_graph *g, const struct kumi_trainer_options *o, int n_ranks,
                        struct ku_compile_opts *out)
{
    int64_t n;
    struct ku_batch b = {
        .n_ranks = n_ranks, .virtual_shards = o->virtual_shards, .micro_batch = o->micro_batch};
    enum kumi_dtype compute = KUMI_F32;
    if (o->precision)
        KU_TRY(ku_dtype_parse(o->precision, &compute));
    KU_TRY(batch_of(g, &n));
    b.global_batch = n;
    KU_TRY(ku_batch_resolve(&b));
    *out = (struct ku_compile_opts){.compute = compute,
                                    .is_training = 1,
                                    .freeze = o->freeze,
                                    .rule = rule_of(o),
                                    .bucket_bytes = 25 << 20,
                                    .first_bucket_bytes = 1 << 20,
                                    .overlap = 1,
                                    .share_host_state = 1};
    for (int a = 0; a < KU_N_AXES; a++)
        out->mesh.extent[a] = 1;
    out->mesh.extent[KU_AX_REPLICATE] = n_ranks;
    out->mesh.extent[KU_AX_VS] = (int)b.virtual_shards / n_ranks;
    out->mesh.extent[KU_AX_MB] = (int)b.k;
    out->rule.loss_scale = 0x1p16;
    KU_TRY(
        ku_rule_loss_scale(compute, o->loss_scale == 0 ? (double)NAN : o->loss_scale, &out->rule));
    return optimizer_of(o->optimizer, &out->optimizer);
}

static json_t *numerics_of(const struct kumi_trainer_options *o, const struct ku_trainer_opts *to)
{
    const struct ku_compile_opts *c = &to->compile;
    json_t *freeze = json_array();
    for (int i = 0; o->freeze && o->freeze[i]; i++)
        json_array_append_new(freeze, json_string(o->freeze[i]));
    json_t *all = json_pack(
        "{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:b, s:f, s:I, s:I, "
        "s:f, s:I, s:I, s:s, s:s, s:I, "
        "s:o}",
        "optimizer", ku_ops[c->optimizer].name, "lr", c->rule.lr, "beta1", c->rule.beta1, "beta2",
        c->rule.beta2, "eps", c->rule.eps, "weight_decay", c->rule.weight_decay, "momentum",
        c->rule.momentum, "dampening", c->rule.dampening, "trust_coefficient",
        c->rule.trust_coefficient, "min_coeff", c->rule.min_coeff, "max_coeff", c->rule.max_coeff,
        "nesterov", (int)c->rule.nesterov, "clip_norm", c->rule.clip, "warmup_steps",
        (json_int_t)c->rule.warmup, "decay_steps", (json_int_t)c->rule.decay, "min_lr",
        c->rule.min_lr, "k", (json_int_t)c->mesh.extent[KU_AX_MB], "virtual_shards",
        (json_int_t)c->mesh.extent[KU_AX_VS] * c->mesh.extent[KU_AX_REPLICATE], "precision",
        kumi_dtype_name(c->compute), "device", to->device->name, "seed", (json_int_t)to->seed,
        "freeze", freeze);
    if (all && c->rule.loss_scale > 0) {
        json_object_set_new(all, "loss_scale", json_real(c->rule.loss_scale));
        json_object_set_new(all, "scaler", json_string(ku_attr_scalers[c->rule.scaler]));
    }
    return all;
}

int kumi_trainer_create(struct kumi_comm *world, struct kumi_graph *graph,
                        const struct kumi_trainer_options *options, struct kumi_trainer **out)
{
    static const struct kumi_trainer_options defaults = {0};
    const struct kumi_trainer_options *o = options ? options : &defaults;
    struct ku_job *job = ku_comm_api_job(world);
    struct ku_trainer_opts to = {.device = ku_device_find(o->device ? o->device : "cpu"),
                                 .seed = o->seed};
    struct ku_graph *g;
    if (to.device == NULL)
        return KU_ERR(KUMI_EINVAL, "trainer: device: %s: unknown; cpu or ref", o->device);
    KU_TRY(ku_builder_take(graph, &g));
    int status = compile_opts(g, o, job->n, &to.compile);
    if (status < 0) {
        ku_graph_destroy(g);
        return status;
    }
    to.device_opts.n_threads = o->threads > 0 ? o->threads : 1;
    to.device_opts.n_runnable_threads = to.device_opts.n_threads * job->local_n;
    to.device_opts.n_cpus = ku_job_n_cpus(job);
    to.device_opts.isa = ku_cpu_isa();
    struct kumi_trainer *t = ku_calloc(1, sizeof *t);
    if (t == NULL) {
        ku_graph_destroy(g);
        return KUMI_ENOMEM;
    }
    t->numerics = numerics_of(o, &to);
    if (t->numerics == NULL) {
        ku_graph_destroy(g);
        status = KU_ERR(KUMI_ENOMEM, "trainer: no memory for its options");
    } else {
        status = ku_trainer_create(job, &g, 1, &to, &t->t);
    }
    if (status == KUMI_OK)
        status = ku_trainer_init_state(t->t);
    if (status < 0) {
        kumi_trainer_destroy(t);
        return status;
    }
    *out = t;
    return KUMI_OK;
}

void kumi_trainer_destroy(struct kumi_trainer *t)
{
    if (t == NULL)
        return;
    ku_trainer_destroy(t->t);
    json_decref(t->numerics);
    ku_free(t);
}

static int fill(const struct kumi_trainer *t, enum ku_trainer_program p,
                const struct kumi_batch *batch, int n_ports)
{
    const struct ku_program *program = t->t->program[p];
    for (uint32_t i = 0; i < program->n_inputs; i++) {
        const char *name = program->name_of[program->input[i].name];
        const struct kumi_batch *from = NULL;
        for (int k = 0; k < n_ports; k++)
            if (strcmp(batch[k].port, name) == 0)
                from = &batch[k];
        if (strcmp(name, "control") == 0)
            continue;
        if (from == NULL)
            return KU_ERR(KUMI_EINVAL, "trainer: batch: the model's port %s is missing", name);
        for (int u = 0; u < ku_trainer_n_micro(t->t); u++) {
            size_t row_bytes;
            int64_t first, n = ku_trainer_rows(t->t, u, &first);
            void *to = ku_trainer_port(t->t, p, name, u, &row_bytes);
            memcpy(to, (const char *)from->data + (size_t)first * row_bytes, (size_t)n * row_bytes);
        }
    }
    return KUMI_OK;
}

int kumi_trainer_step(struct kumi_trainer *t, const struct kumi_batch *batch, int n_ports,
                      struct kumi_metrics *metrics)
{
    const double *report;
    KU_TRY(fill(t, KU_PROG_TRAIN, batch, n_ports));
    KU_TRY(ku_trainer_step(t->t, t->step, &report));
    struct ku_exec_times times = ku_exec_times(t->t->exec[KU_PROG_TRAIN]);
    if (metrics)
        *metrics = (struct kumi_metrics){.loss = report[KU_REPORT_LOSS],
                                         .grad_norm = report[KU_REPORT_NORM],
                                         .lr = report[KU_REPORT_LR],
                                         .step = t->step,
                                         .update = *ku_trainer_update_count(t->t),
                                         .tokens = (int64_t)report[KU_REPORT_TOKENS],
                                         .applied = report[KU_REPORT_APPLY] != 0,
                                         .loss_scale = ku_trainer_loss_scale(t->t),
                                         .step_ms = (double)times.run_ns * 1e-6,
                                         .exposed_comm_ms = (double)times.exposed_ns * 1e-6,
                                         .wait_ms = (double)times.wait_ns * 1e-6,
                                         .optimizer_ms = (double)times.once_ns * 1e-6};
    t->step++;
    return ku_trainer_check_scale(t->t);
}

int kumi_trainer_evaluate(struct kumi_trainer *t, const struct kumi_batch *batch, int n_ports,
                          double *loss)
{
    KU_TRY(fill(t, KU_PROG_EVAL, batch, n_ports));
    ku_trainer_eval_begin(t->t);
    KU_TRY(ku_trainer_eval_run(t->t));
    *loss = ku_trainer_eval_loss(t->t);
    return KUMI_OK;
}

int kumi_trainer_metric(const struct kumi_trainer *t, const char *name, int is_eval, double *value)
{
    return ku_trainer_metric(t->t, name, is_eval, value);
}

static int is_padding(const struct ku_shape *s, int64_t element)
{
    for (int d = s->ndim - 1; d > 0; d--) {
        if (element % s->dim[d].count >= s->dim[d].seen)
            return 1;
        element /= s->dim[d].count;
    }
    return 0;
}

int kumi_trainer_output(const struct kumi_trainer *t, const char *name, float *out, int64_t count,
                        int64_t *first)
{
    const struct ku_program *p = t->t->program[KU_PROG_EVAL];
    const struct ku_program_port *port = ku_program_find_port(p, 0, name);
    if (port == NULL)
        return KU_ERR(KUMI_EINVAL, "trainer: output %s: the graph has none of this name", name);
    const struct ku_shape *shape = &p->shape[port->shape];
    const void *rows = ku_exec_port(t->t->exec[KU_PROG_EVAL], 0, name, NULL);
    if (ku_shape_find(shape, 'n') != 0)
        return KU_ERR(KUMI_EINVAL, "trainer: output %s: it has no rows of samples (first dim n)",
                      name);
    int64_t n = 0, begin, row = ku_shape_seen(shape) / shape->dim[0].seen;
    for (int u = ku_trainer_n_micro(t->t); u-- > 0;)
        n += ku_trainer_rows(t->t, u, &begin);
    if (count != n * row)
        return KU_ERR(KUMI_EINVAL,
                      "trainer: output %s: %lld samples of %lld elements on this rank, asked for "
                      "%lld elements",
                      name, (long long)n, (long long)row, (long long)count);
    for (int64_t i = 0, from = 0; i < count; from++)
        if (!is_padding(shape, from))
            out[i++] = (float)ku_load_f64(rows, (enum kumi_dtype)port->dtype, from);
    if (first)
        *first = begin;
    return KUMI_OK;
}

static const struct ku_ckpt_tensor *find(const struct kumi_trainer *t, const char *name)
{
    for (int i = 0; i < t->t->n_tensors; i++)
        if (strcmp(t->t->tensor[i].name, name) == 0)
            return &t->t->tensor[i];
    return NULL;
}

int kumi_trainer_read(const struct kumi_trainer *t, const char *name, float *out, int64_t count)
{
    const struct ku_ckpt_tensor *x = find(t, name);
    if (x == NULL)
        return KU_ERR(KUMI_EINVAL, "trainer: %s: no such tensor", name);
    if (count != ku_ckpt_tensor_count(x))
        return KU_ERR(KUMI_EINVAL, "trainer: %s: has %lld elements, asked for %lld", name,
                      (long long)ku_ckpt_tensor_count(x), (long long)count);
    for (int64_t at = 0; at < count;) {
        int64_t from, n = ku_ckpt_tensor_run(x, at, &from);
        for (int64_t i = 0; i < n; i++)
            out[at + i] = (float)ku_load_f64(x->data, x->dtype, from + i);
        at += n;
    }
    return KUMI_OK;
}

int kumi_trainer_digest(const struct kumi_trainer *t, char *text)
{
    return ku_trainer_digest(t->t, 0, text);
}

int kumi_trainer_save(struct kumi_trainer *t, const char *dir, int keep)
{
    json_t *state = ku_trainer_scaler_json(t->t);
    struct ku_ckpt_desc d = {.dir = dir,
                             .step = t->step,
                             .model_config = "{}",
                             .numerics = t->numerics,
                             .state = state,
                             .keep = keep};
    int status = KUMI_OK;
    if (t->t->job->rank == 0 && ku_os_mkdirs(dir) < 0)
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "checkpoint: %s: cannot be made: %s", dir,
                        ku_os_why());
    status = ku_trainer_save(t->t, &d, status);
    json_decref(state);
    return status;
}

/* Rank 0: where the newest is, and whether it was made with the same options. */
static int find_newest(const struct kumi_trainer *t, const char *dir, char *path)
{
    struct ku_ckpt c;
    struct ku_str names = {0};
    KU_TRY(ku_ckpt_find(dir, INT64_MAX, &c));
    int status = KUMI_OK;
    if (ku_config_compare(json_object_get(c.manifest.root, "numerics"), t->numerics, &names) > 0)
        status = KU_ERR(KUMI_EINVAL, "resume: %s: made with other options: %.300s; give the same",
                        c.path, ku_str_get(&names));
    snprintf(path, KU_CKPT_PATH_BYTES, "%s", c.path);
    ku_str_fini(&names);
    ku_ckpt_close(&c);
    return status;
}

int kumi_trainer_load(struct kumi_trainer *t, const char *dir, int64_t *step)
{
    struct ku_job *job = t->t->job;
    char path[KU_CKPT_PATH_BYTES] = "";
    KU_TRY(ku_agree_worst(job, job->rank == 0 ? find_newest(t, dir, path) : KUMI_OK));
    KU_TRY(ku_agree_bytes(job, path, sizeof path));
    KU_TRY(ku_trainer_resume(t->t, dir, path, &t->step));
    if (step)
        *step = t->step;
    return KUMI_OK;
}
