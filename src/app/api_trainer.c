/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public trainer (kumi/trainer.h). It holds a session whose graph comes from the program; each
 * rank copies its own rows of a batch into the ports.
 */
#include "kumi/trainer.h"

#include <stdio.h>
#include <string.h>

#include "base/arg.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "ckpt/digest.h"
#include "comm/api/api.h"
#include "nn/builder.h"
#include "comm/consensus.h"
#include "app/api_options.h"
#include "train/ineffective_keys.h"
#include "train/seen.h"
#include "ir/id_range.h"

struct kumi_trainer {
    struct ku_session s;
    struct ku_ids ids; /* allowed ranges of the i32 ports */
    int64_t step;
    char *seen; /* the directory of the last save, which every host sees; NULL: none yet */
};

int kumi_trainer_create(struct kumi_comm *world, struct kumi_graph *graph,
                        const struct kumi_trainer_options *options, struct kumi_trainer **out)
{
    KU_GIVEN(world, "world");
    KU_GIVEN(graph, "graph");
    KU_GIVEN(out, "trainer");
    static const struct kumi_trainer_options defaults = {0};
    struct ku_job *job = NULL;
    KU_TRY(ku_comm_api_job(world, "trainer", &job));
    struct kumi_trainer *t = ku_calloc(1, sizeof *t);
    struct ku_graph *g = NULL;
    int status = t ? KUMI_OK : KUMI_ENOMEM;
    KU_TRY_OUT(status);
    KU_TRY_OUT(ku_builder_take(graph, &g));
    KU_TRY_OUT(ku_ids_list(g, &t->ids));
    t->s.host_ranks = ku_job_host_ranks(job);
    t->s.has_even_hosts = ku_job_hosts_are_even(job);
    KU_TRY_OUT(ku_api_configure(options ? options : &defaults, g, job->n, &t->s));
    if (job->rank == 0)
        ku_effect_warn(&t->s);
    KU_TRY_OUT(ku_session_create_trainer(&t->s, job));
    KU_TRY_OUT(ku_trainer_init_state(t->s.t));
    *out = t;
    t = NULL;
out:
    ku_graph_destroy(g);
    if (status == KUMI_OK)
        (*out)->s.graph = NULL;
    kumi_trainer_destroy(t);
    return status;
}

void kumi_trainer_destroy(struct kumi_trainer *t)
{
    if (t == NULL)
        return;
    ku_session_fini(&t->s);
    ku_ids_fini(&t->ids);
    ku_free(t->seen);
    ku_free(t);
}

/*
 * Copy the rows of a port that this rank's micro-batches read; the whole port if it has no samples.
 */
static int fill_port(const struct kumi_trainer *t, enum ku_trainer_program p,
                     const struct ku_program_port *port, const void *data)
{
    const struct ku_program *program = t->s.t->program[p];
    const struct ku_shape *shape = &program->shape[port->shape];
    const char *name = program->name_of[port->name];
    for (int u = 0; u < ku_trainer_n_micro(t->s.t); u++) {
        size_t row_bytes;
        int64_t first, n = ku_trainer_rows(t->s.t, u, &first);
        struct ku_range to = ku_trainer_port_rows(t->s.t, p, port, u, &row_bytes);
        if (ku_shape_find(shape, 'n') < 0) {
            first = 0;
            n = shape->ndim ? shape->dim[0].count : 1;
        }
        const char *from = (const char *)data + (size_t)first * row_bytes;
        if (port->dtype == KUMI_I32)
            KU_TRY(
                ku_ids_check(&t->ids, name, shape, (const int32_t *)(const void *)from, first, n));
        to.bytes = (size_t)n * row_bytes;
        KU_TRY(ku_range_write(to, from));
    }
    return KUMI_OK;
}

static int fill(const struct kumi_trainer *t, enum ku_trainer_program p,
                const struct kumi_batch *batch, int n_ports)
{
    const struct ku_program *program = t->s.t->program[p];
    if (n_ports < 0 || (n_ports > 0 && batch == NULL))
        return KU_ERR(KUMI_EINVAL, "trainer: batch: n_ports is %d, batch is %s", n_ports,
                      batch ? "given" : "NULL");
    for (int k = 0; k < n_ports; k++)
        if (batch[k].port == NULL || batch[k].data == NULL)
            return KU_ERR(KUMI_EINVAL, "trainer: batch: entry %d: %s is NULL", k,
                          batch[k].port ? "data" : "port");
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
        KU_TRY(fill_port(t, p, &program->input[i], from->data));
    }
    return KUMI_OK;
}

int kumi_trainer_step(struct kumi_trainer *t, const struct kumi_batch *batch, int n_ports,
                      struct kumi_metrics *metrics)
{
    KU_GIVEN(t, "trainer");
    const double *report;
    KU_TRY(ku_agree_local(t->s.t->job, fill(t, KU_PROG_TRAIN, batch, n_ports)));
    KU_TRY(ku_trainer_step(t->s.t, t->step, &report));
    struct ku_exec_times times = ku_exec_times(t->s.t->exec[KU_PROG_TRAIN]);
    if (metrics)
        *metrics = (struct kumi_metrics){.loss = report[KU_REPORT_LOSS],
                                         .grad_norm = report[KU_REPORT_NORM],
                                         .lr = report[KU_REPORT_LR],
                                         .step = t->step,
                                         .update = ku_trainer_update_count(t->s.t),
                                         .tokens = (int64_t)report[KU_REPORT_TOKENS],
                                         .applied = report[KU_REPORT_APPLY] != 0,
                                         .loss_scale = ku_trainer_loss_scale(t->s.t),
                                         .step_ms = (double)times.run_ns * 1e-6,
                                         .exposed_comm_ms = (double)times.exposed_ns * 1e-6,
                                         .wait_ms = (double)times.wait_ns * 1e-6,
                                         .optimizer_ms = (double)times.once_ns * 1e-6};
    t->step++;
    return ku_trainer_check_scale(t->s.t);
}

int kumi_trainer_evaluate(struct kumi_trainer *t, const struct kumi_batch *batch, int n_ports,
                          double *loss)
{
    KU_GIVEN(t, "trainer");
    KU_GIVEN(loss, "loss");
    KU_TRY(ku_agree_local(t->s.t->job, fill(t, KU_PROG_EVAL, batch, n_ports)));
    ku_trainer_eval_begin(t->s.t);
    KU_TRY(ku_trainer_eval_run(t->s.t));
    *loss = ku_trainer_eval_loss(t->s.t);
    return KUMI_OK;
}

int kumi_trainer_metric(const struct kumi_trainer *t, const char *name, int is_eval, double *value)
{
    KU_GIVEN(t, "trainer");
    KU_GIVEN(name, "name");
    KU_GIVEN(value, "value");
    return ku_trainer_metric(t->s.t, name, is_eval, value);
}

int kumi_trainer_output(const struct kumi_trainer *t, const char *name, float *out, int64_t count,
                        int64_t *first)
{
    KU_GIVEN(t, "trainer");
    KU_GIVEN(name, "name");
    KU_GIVEN(out, "out");
    const struct ku_program *p = t->s.t->program[KU_PROG_EVAL];
    const struct ku_program_port *port = ku_program_find_port(p, 0, name);
    if (port == NULL)
        return KU_ERR(KUMI_EINVAL, "trainer: output %s: %s has none of this name", name,
                      p->mesh.extent[KU_AX_PP] > 1 ? "this rank's stages (parallel.pp)"
                                                   : "the graph");
    if (p->layout[port->layout].at[KU_AX_TP].kind == KU_S)
        return KU_ERR(KUMI_EINVAL,
                      "trainer: output %s: each rank of parallel.tp has a part of the sequence; "
                      "use parallel.sp false",
                      name);
    const struct ku_shape *shape = &p->shape[port->shape];
    struct ku_mapping rows;
    if (ku_shape_find(shape, 'n') != 0)
        return KU_ERR(KUMI_EINVAL, "trainer: output %s: it has no rows of samples (first dim n)",
                      name);
    int64_t n = 0, begin, row = ku_shape_seen(shape) / shape->dim[0].seen;
    for (int u = ku_trainer_n_micro(t->s.t); u-- > 0;)
        n += ku_trainer_rows(t->s.t, u, &begin);
    if (count != n * row)
        return KU_ERR(KUMI_EINVAL,
                      "trainer: output %s: %lld samples of %lld elements on this rank, asked for "
                      "%lld elements",
                      name, (long long)n, (long long)row, (long long)count);
    KU_TRY(ku_range_map(ku_exec_port(t->s.t->exec[KU_PROG_EVAL], 0, name), KU_ACCESS_READ, &rows));
    for (int64_t i = 0, from = 0; i < count;) {
        const int64_t run = ku_shape_seen_run(shape, &from, INT64_MAX);
        for (const int64_t end = from + run; from < end && i < count; from++)
            out[i++] = (float)ku_load_f64(rows.data, (enum kumi_dtype)port->dtype, from);
    }
    KU_TRY(ku_range_unmap(&rows));
    if (first)
        *first = begin;
    return KUMI_OK;
}

static const struct ku_ckpt_tensor *find(const struct kumi_trainer *t, const char *name)
{
    for (int i = 0; i < t->s.t->n_tensors; i++)
        if (strcmp(t->s.t->tensor[i].name, name) == 0)
            return &t->s.t->tensor[i];
    return NULL;
}

int kumi_trainer_read(const struct kumi_trainer *t, const char *name, float *out, int64_t count)
{
    KU_GIVEN(t, "trainer");
    KU_GIVEN(name, "name");
    KU_GIVEN(out, "out");
    const struct ku_ckpt_tensor *x = find(t, name);
    if (x == NULL)
        return KU_ERR(KUMI_EINVAL, "trainer: %s: no such tensor", name);
    if (count != ku_ckpt_tensor_count(x))
        return KU_ERR(KUMI_EINVAL, "trainer: %s: has %lld elements, asked for %lld", name,
                      (long long)ku_ckpt_tensor_count(x), (long long)count);
    if (x->owner.n_owners)
        return KU_ERR(
            KUMI_EINVAL,
            "trainer: %s: its elements are divided among hosts; read it from a checkpoint "
            "(kumi_trainer_save)",
            name);
    _Alignas(16) unsigned char piece[4096];
    const int64_t most = (int64_t)(sizeof piece / kumi_dtype_bytes(x->dtype));
    for (int64_t at = 0; at < count; at += most) {
        const int64_t n = count - at < most ? count - at : most;
        KU_TRY(ku_ckpt_tensor_gather(x, at, n, piece));
        for (int64_t i = 0; i < n; i++)
            out[at + i] = (float)ku_load_f64(piece, x->dtype, i);
    }
    return KUMI_OK;
}

int kumi_trainer_take_ema(struct kumi_trainer *t)
{
    KU_GIVEN(t, "trainer");
    return ku_trainer_take_ema(t->s.t);
}

int kumi_trainer_digest(const struct kumi_trainer *t, char *text)
{
    KU_GIVEN(t, "trainer");
    KU_GIVEN(text, "text");
    const struct ku_trainer *x = t->s.t;
    KU_TRY(ku_trainer_digest(x, 0, text));
    return ku_trainer_is_spread(x->program[KU_PROG_TRAIN], x->job)
               ? ku_agree_bytes(x->job, text, 72)
               : KUMI_OK;
}

/* Rank 0 creates the directory; several hosts check that each sees it, unless the last save did. */
static int open_directory(struct kumi_trainer *t, const char *dir)
{
    struct ku_job *job = t->s.t->job;
    int status = KUMI_OK;
    int64_t is_new = t->seen == NULL || strcmp(t->seen, dir) != 0;
    if (job->rank == 0 && ku_os_mkdirs(dir) < 0)
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "checkpoint: %s: cannot be created: %s", dir,
                        ku_os_why());
    KU_TRY(ku_agree_worst(job, status));
    if (job->n_hosts == 1)
        return KUMI_OK;
    KU_TRY(ku_agree_max(job, &is_new));
    if (is_new == 0)
        return KUMI_OK;
    KU_TRY(ku_check_seen(job, "checkpoint directory", dir));
    ku_free(t->seen);
    t->seen = ku_strdup(dir); /* NULL: the next save checks again */
    return KUMI_OK;
}

int kumi_trainer_save(struct kumi_trainer *t, const char *dir, int keep)
{
    KU_GIVEN(t, "trainer");
    KU_GIVEN(dir, "dir");
    if (keep < 0)
        return KU_ERR(KUMI_EINVAL, "trainer: keep: %d; give 0 (all) or more", keep);
    KU_TRY(open_directory(t, dir));
    json_t *state = ku_trainer_scaler_json(t->s.t);
    struct ku_ckpt_desc d = {.dir = dir,
                             .step = t->step,
                             .model_config = "{}",
                             .numerics = t->s.numerics,
                             .state = state,
                             .keep = keep,
                             .verified = &t->s.verified};
    const int status = ku_trainer_save(t->s.t, &d, KUMI_OK);
    json_decref(state);
    return status;
}

/* Checkpoints that are all damaged are a bad input; KUMI_ENOCKPT says that there is none. */
static int damaged(int status)
{
    struct kumi_error error = *ku_err_get();
    if (status != KUMI_ENOCKPT)
        return status;
    error.status = KUMI_EINPUT;
    return ku_err_put(&error);
}

/* Rank 0: find the newest checkpoint. */
static int find_newest(const char *dir, char *path)
{
    struct ku_ckpt c;
    const int has_any = ku_ckpt_has_any(dir), status = ku_ckpt_find(dir, INT64_MAX, &c);
    KU_TRY(has_any ? damaged(status) : status);
    snprintf(path, KU_CKPT_PATH_BYTES, "%s", c.path);
    ku_ckpt_close(&c);
    return KUMI_OK;
}

/* Rank 0: compare the options of a checkpoint. */
static int check_options(const struct kumi_trainer *t, const char *path)
{
    struct ku_ckpt c;
    struct ku_str names = {0};
    int status = KUMI_OK;
    KU_TRY(ku_ckpt_open(path, &c));
    if (ku_config_compare(json_object_get(c.manifest.root, "numerics"), t->s.numerics, &names) > 0)
        status = KU_ERR(KUMI_EINVAL, "resume: %s: made with other options: %.300s; give the same",
                        c.path, ku_str_get(&names));
    ku_str_fini(&names);
    ku_ckpt_close(&c);
    return status;
}

int kumi_trainer_load(struct kumi_trainer *t, const char *dir, int64_t *step)
{
    KU_GIVEN(t, "trainer");
    KU_GIVEN(dir, "dir");
    struct ku_job *job = t->s.t->job;
    char path[KU_CKPT_PATH_BYTES] = "";
    KU_TRY(ku_agree_worst(job, job->rank == 0 ? find_newest(dir, path) : KUMI_OK));
    KU_TRY(ku_agree_bytes(job, path, sizeof path));
    for (int status = KUMI_ENOCKPT; status != KUMI_OK;) {
        KU_TRY(ku_agree_worst(job, job->rank == 0 ? damaged(check_options(t, path)) : KUMI_OK));
        status = ku_trainer_load(t->s.t, path, &t->step);
        if (status == KUMI_ENOCKPT)
            KU_TRY(damaged(ku_trainer_previous(job, dir, path)));
        else
            KU_TRY(status);
    }
    if (job->rank == 0)
        ku_session_add_verified(&t->s, path);
    if (step)
        *step = t->step;
    return KUMI_OK;
}
