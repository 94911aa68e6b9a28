/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a configuration under each stage of ZeRO: five plans side by side. */
#include "kumi/run.h"
#include "plan/zero_stages.h"

#include <stdio.h>
#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "train/configure.h"
#include "plan/picture.h"
#include "base/progress_line.h"
#include "config/deepspeed.h"
#include "train/session.h"

enum { SHARED = KU_N_STAGES - 1 };
static const char *const kind_name[KU_N_KINDS] = {
    "parameters",    "gradients", "master weights", "optimizer", "activations",
    "communication", "workspace", "offloaded",      "other",     "unused at peak"};

const char *ku_plan_kind_name(int kind)
{
    return kind_name[kind];
}

/*
 * [n_names]: whether forward reads a low-precision copy of the parameter with this name
 * ("wte.weight:bf16"). NULL: no memory.
 */
static unsigned char *note_copies(const struct ku_program *p)
{
    unsigned char *has_copy = ku_calloc(p->n_names, 1);
    for (uint32_t s = 0; s < p->n_states && has_copy; s++)
        if (p->state[s].kind == KU_T_DERIVED && p->state[s].of)
            has_copy[p->state[p->state[s].of - 1].name] = 1;
    return has_copy;
}

/* Of a buffer of a class; a parameter with a copy is KU_KIND_MASTER. */
static const enum ku_plan_kind kind_of[KU_N_CLASSES] = {[KU_CL_PARAM] = KU_KIND_PARAMS,
                                                        [KU_CL_DERIVED] = KU_KIND_PARAMS,
                                                        [KU_CL_BUFFER] = KU_KIND_PARAMS,
                                                        [KU_CL_OPTIMIZER] = KU_KIND_OPTIMIZER,
                                                        [KU_CL_GRAD] = KU_KIND_GRADS,
                                                        [KU_CL_PARTIAL] = KU_KIND_GRADS,
                                                        [KU_CL_ACTIVATION] = KU_KIND_ACTIVATIONS,
                                                        [KU_CL_ADJOINT] = KU_KIND_ACTIVATIONS,
                                                        [KU_CL_GATHER] = KU_KIND_COMM,
                                                        [KU_CL_OFFLOAD] = KU_KIND_OFFLOADED,
                                                        [KU_CL_STAGING] = KU_KIND_WORKSPACE,
                                                        [KU_CL_WORKSPACE] = KU_KIND_WORKSPACE,
                                                        [KU_CL_COUNTER] = KU_KIND_OTHER,
                                                        [KU_CL_SCALAR] = KU_KIND_OTHER,
                                                        [KU_CL_INPUT] = KU_KIND_OTHER};

/* Bytes of a compiled plan by kind, at the training program's peak instruction. */
static int stage_of(const struct ku_plan *plan, struct ku_plan_stage *out)
{
    const struct ku_program *p = plan->program[KU_PROG_TRAIN];
    const uint64_t n = (uint64_t)ku_session_n_ranks(&plan->s);
    struct ku_memory_report r;
    uint64_t shared[KU_N_KINDS] = {0}, used = 0;
    unsigned char *has_copy = note_copies(p);
    if (has_copy == NULL)
        return KUMI_ENOMEM;
    memset(out->bytes, 0, sizeof out->bytes);
    ku_program_memory(p, &r);
    for (ku_id id = 1; id < p->n_buffers; id++) {
        const struct ku_buffer *b = &p->buffer[id];
        const enum ku_class cls = ku_buffer_class(b);
        const enum ku_plan_kind kind =
            cls == KU_CL_PARAM && has_copy[b->name] ? KU_KIND_MASTER : kind_of[cls];
        if (ku_program_is_live(p, id, r.peak_instr))
            (ku_arena_is_common(b->arena) ? shared : out->bytes)[kind] += b->bytes;
    }
    ku_free(has_copy);
    out->bytes[KU_KIND_OTHER] += ku_session_staging_bytes(&plan->s) + plan->loader_bytes;
    for (int k = 0; k < KU_N_KINDS; k++)
        used += out->bytes[k] += shared[k] / n;
    out->host_bytes = plan->host_bytes;
    out->table_bytes = plan->table_bytes;
    out->rank_bytes = plan->host_bytes / n;
    out->bytes[KU_KIND_IDLE] = out->rank_bytes > used ? out->rank_bytes - used : 0;
    return KUMI_OK;
}

/* Properties that all plans have in common. */
static void note_job(const struct ku_plan *p, struct ku_plan_stages *s)
{
    struct ku_str batch = {0};
    p->s.source->ops->print_plan(p->s.source, p->shape, &batch);
    snprintf(s->batch, sizeof s->batch, "%s", ku_str_get(&batch));
    ku_str_fini(&batch);
    snprintf(s->compute, sizeof s->compute, "%s", p->s.cfg.precision_compute);
    s->n_params = p->s.n_params;
    ku_deepspeed_warn(&p->s.cfg);
}

static int plan_stage(const struct kumi_settings *settings, int i, const struct ku_watch *watch,
                      struct ku_plan_stages *s)
{
    struct ku_plan_stage *stage = &s->stage[i];
    struct ku_plan plan;
    char zero[32];
    const char *const own[] = {"parallel.host_state=private",
                               "parallel.share_host_state=null",
                               "parallel.strategy=null",
                               zero,
                               i == 0 ? "parallel.shard=null" : NULL,
                               "parallel.replicate=null",
                               NULL};
    const char *const shared[] = {"parallel.host_state=shared", "parallel.share_host_state=null",
                                  NULL};
    snprintf(zero, sizeof zero, "parallel.zero=%d", i);
    snprintf(stage->name, sizeof stage->name, i == SHARED ? "shared" : "zero %d", i);
    KU_TRY(ku_plan_try(&plan, settings, s->n_ranks, i == SHARED ? shared : own, watch,
                       &stage->refusal));
    if (stage->refusal)
        return KUMI_OK;
    if (s->n_params == 0)
        note_job(&plan, s);
    int status = stage_of(&plan, stage);
    ku_plan_fini(&plan);
    return status;
}

/* A row, unless it is all zero. at: offset of the bytes in struct ku_plan_stage. */
static void print_row(const struct ku_plan_stages *s, const char *name, size_t at,
                      struct ku_str *out)
{
    uint64_t bytes[KU_N_STAGES], any = 0;
    char text[16];
    for (int i = 0; i < KU_N_STAGES; i++) {
        memcpy(&bytes[i], (const char *)&s->stage[i] + at, sizeof bytes[i]);
        any |= bytes[i];
    }
    if (any)
        ku_str_add(out, "\n%-16s", name);
    for (int i = 0; i < KU_N_STAGES && any; i++)
        ku_str_add(out, " %12s", s->stage[i].refusal ? "-" : ku_text_bytes(bytes[i], text));
}

static int print(const struct ku_plan_stages *s, char **text)
{
    struct ku_str out = {0};
    ku_str_add(
        &out, "memory per rank by ZeRO stage: %d rank%s on one host, %s\n%lld parameters; %s\n\n",
        s->n_ranks, s->n_ranks == 1 ? "" : "s", s->compute, (long long)s->n_params, s->batch);
    ku_str_add(&out, "%-16s", "");
    for (int i = 0; i < KU_N_STAGES; i++)
        ku_str_add(&out, " %12s", s->stage[i].name);
    for (int k = 0; k < KU_N_KINDS; k++)
        print_row(s, kind_name[k], offsetof(struct ku_plan_stage, bytes[k]), &out);
    print_row(s, "a rank", offsetof(struct ku_plan_stage, rank_bytes), &out);
    print_row(s, "all ranks", offsetof(struct ku_plan_stage, host_bytes), &out);
    ku_str_add(&out, "\n");
    for (int i = 0; i < KU_N_STAGES; i++)
        if (s->stage[i].refusal)
            ku_str_add(&out, "%s is refused: %s\n", s->stage[i].name, s->stage[i].refusal);
    return ku_text_take(&out, text);
}

static int print_json(const struct ku_plan_stages *s, char **text)
{
    json_t *list = json_array();
    for (int i = 0; i < KU_N_STAGES; i++) {
        const struct ku_plan_stage *x = &s->stage[i];
        if (x->refusal) {
            json_array_append_new(list,
                                  json_pack("{s:s, s:s}", "name", x->name, "refused", x->refusal));
            continue;
        }
        json_t *kinds = json_object();
        for (int k = 0; k < KU_N_KINDS; k++)
            json_object_set_new(kinds, kind_name[k], json_integer((json_int_t)x->bytes[k]));
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:I, s:o}", "name", x->name,
                                              "rank_bytes", (json_int_t)x->rank_bytes, "host_bytes",
                                              (json_int_t)x->host_bytes, "page_table_bytes",
                                              (json_int_t)x->table_bytes, "a_rank", kinds));
    }
    return ku_text_json(
        json_pack("{s:i, s:I, s:s, s:s, s:o, s:o}", "ranks", s->n_ranks, "params",
                  (json_int_t)s->n_params, "compute", s->compute, "batch", s->batch, "limit_bytes",
                  s->limit_bytes ? json_integer((json_int_t)s->limit_bytes) : json_null(), "stages",
                  list),
        text);
}

/* Plans all stages. *smallest: the stage with the min memory of a rank; NULL: all are refused. */
static int plan_all(const struct kumi_settings *settings, struct ku_plan_stages *s,
                    const struct ku_plan_stage **smallest)
{
    struct ku_compile_line line;
    struct ku_watch watch = ku_compile_line_start(&line);
    int status = KUMI_OK;
    *smallest = NULL;
    for (int i = 0; i < KU_N_STAGES && status == KUMI_OK; i++) {
        const struct ku_plan_stage *x = &s->stage[i];
        status = plan_stage(settings, i, &watch, s);
        if (!x->refusal && (*smallest == NULL || x->rank_bytes < (*smallest)->rank_bytes))
            *smallest = x;
    }
    ku_compile_line_end(&line);
    return status == KUMI_OK && *smallest == NULL ? KU_ERR(KUMI_EINVAL, "%s", s->stage[0].refusal)
                                                  : status;
}

int kumi_plan_stages(const struct kumi_settings *settings, int n_ranks,
                     const struct kumi_plan_stages_options *options, char **text)
{
    static const struct kumi_plan_stages_options none;
    const struct kumi_plan_stages_options *o = options ? options : &none;
    KU_TRY(ku_settings_check(settings));
    KU_GIVEN(text, "text");
    struct ku_plan_stages s = {
        .config = settings->config, .n_ranks = n_ranks, .limit_bytes = o->limit_bytes};
    const struct ku_plan_stage *smallest;
    char bytes[16], limit[16];
    if (o->picture)
        KU_TRY(ku_picture_check(o->picture));
    int status = plan_all(settings, &s, &smallest);
    if (status == KUMI_OK && o->picture)
        status = ku_plan_stages_draw(&s, o->picture);
    if (status == KUMI_OK)
        status = o->as_json ? print_json(&s, text) : print(&s, text);
    for (int i = 0; i < KU_N_STAGES; i++)
        ku_free(s.stage[i].refusal);
    KU_TRY(status);
    if (o->limit_bytes == 0 || smallest->rank_bytes <= o->limit_bytes)
        return KUMI_OK;
    return KU_ERR(KUMI_ENOMEM,
                  "plan: --limit: no ZeRO stage fits in %s per rank; the smallest, %s, needs %s",
                  ku_picture_bytes(o->limit_bytes, limit), smallest->name,
                  ku_picture_bytes(smallest->rank_bytes, bytes));
}
