/* SPDX-License-Identifier: Apache-2.0 */
/* parallel.pp: the schedule, and which layers form a stage. */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "pass/pipe/between_blocks.h"
#include "pass/pipe/choose.h"
#include "pass/pipe/layer_stages.h"
#include "train/session.h"

static int refuse_schedule(const struct ku_session *s, const char *wanted)
{
    return ku_config_refuse(&s->cfg, "parallel.pp_schedule",
                            ku_json_at(s->cfg.root, "parallel.pp_schedule"), wanted);
}

/* A schedule from a file is for one number of coordinates and of micro-batches. */
static int read_schedule(struct ku_session *s, int n_micro)
{
    struct ku_str wanted = {0};
    KU_TRY(ku_pp_schedule_read(s->cfg.parallel_pp_schedule, &s->schedule));
    if (s->schedule->n_ranks == s->sharding.pp && s->schedule->n_micro == n_micro)
        return KUMI_OK;
    ku_str_add(&wanted,
               "has %d rows and %d micro-batches; this run needs %d rows (parallel.pp) and %d "
               "micro-batches",
               s->schedule->n_ranks, s->schedule->n_micro, s->sharding.pp, n_micro);
    const int status = refuse_schedule(s, ku_str_get(&wanted));
    ku_str_fini(&wanted);
    return status;
}

/*
 * Compiles the training graph with a stage for each of its n layers and one for what follows them,
 * on one coordinate of axis pp.
 *
 *   has_tp       with the ranks of axes tp and tpi, else undivided
 *   stop_after   a pass, or NULL: to the end
 */
static int compile_layers(const struct ku_compile_opts *o, int n, bool has_tp,
                          const char *stop_after, struct ku_graph *g)
{
    struct ku_compile_opts own = *o;
    struct ku_pp_schedule *each = NULL;
    int *one = ku_calloc((size_t)n + 1, sizeof *one);
    int status = one ? ku_pp_schedule_empty(1, n + 1, 1, &each) : KUMI_ENOMEM;
    for (int i = 0; i < n && one; i++)
        one[i] = 1; /* and none of the last stage */
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (!(has_tp && KU_TP_AXES >> a & 1))
            own.mesh.extent[a] = 1;
    own.mesh.extent[KU_AX_REPLICATE] = ku_mesh_dp(&o->mesh);
    own.schedule = each, own.stage_layers = one;
    own.pp = own.zero = own.reshard_group = 0;
    own.offload = (struct ku_offload){0};
    if (status == KUMI_OK)
        status = ku_compile_graph(g, &own, NULL, stop_after);
    ku_free(one);
    ku_pp_schedule_destroy(each);
    return status;
}

/* Reads the layers of a compiled graph with n + 1 stages. */
static int cost_layers(struct ku_session *s, const struct ku_compile_opts *o, struct ku_graph *g,
                       int n)
{
    s->layer_cost = ku_calloc((size_t)n + 1, sizeof *s->layer_cost);
    if (s->layer_cost == NULL)
        return KUMI_ENOMEM;
    KU_TRY(compile_layers(o, n, 0, "recompute", g)); /* costs are of the global batch */
    ku_stages_cost(g, n + 1, s->layer_cost);
    return KUMI_OK;
}

static int find_between(struct ku_session *s, const struct ku_compile_opts *o, struct ku_graph *g,
                        int n)
{
    struct ku_between *b = ku_calloc(1, sizeof *b);
    int status = b ? compile_layers(o, n, 1, NULL, g) : KUMI_ENOMEM;
    if (status == KUMI_OK)
        status = ku_between_find(g, n + 1, b);
    if (status < 0)
        ku_free(b);
    else
        s->between = b;
    return status;
}

typedef int use_layers(struct ku_session *s, const struct ku_compile_opts *o, struct ku_graph *g,
                       int n);

static int with_layers(struct ku_session *s, const struct ku_compile_opts *o, use_layers *use)
{
    struct ku_layers l;
    struct ku_graph *g;
    KU_TRY(ku_session_graph(s, 0, &g));
    int status = ku_layers_find(g, &l);
    if (status == KUMI_OK) {
        status = l.n > 0 && l.n < KU_MAX_STAGES ? use(s, o, g, l.n)
                                                : KU_ERR(KUMI_EINVAL,
                                                         "parallel.pp: the model has %d layers; a "
                                                         "pipeline has 1 to %d stages",
                                                         l.n, KU_MAX_STAGES - 1);
        ku_layers_fini(&l);
    }
    ku_graph_destroy(g);
    return status;
}

static int make_costs(struct ku_session *s, const struct ku_compile_opts *o)
{
    return s->layer_cost ? KUMI_OK : with_layers(s, o, cost_layers);
}

static int make_between(struct ku_session *s, const struct ku_compile_opts *o)
{
    return s->between ? KUMI_OK : with_layers(s, o, find_between);
}

/*
 * What a byte between stages costs in the unit of layer_cost: the FLOP of all micro-batches and of
 * the ranks that divide these and the layers.
 */
static double cost_per_byte(const struct ku_session *s, const struct ku_compile_opts *o)
{
    const double each = s->cfg.parallel_pp_flop_per_byte;
    return isnan(each)
               ? 0
               : each * ku_mesh_n_micro(&o->mesh) * ku_mesh_dp(&o->mesh) * ku_mesh_tp(&o->mesh);
}

int ku_session_stage_costs(struct ku_session *s, const struct ku_compile_opts *o,
                           struct ku_stage_cost *cost)
{
    const int n = s->schedule->n_stages;
    KU_TRY(make_costs(s, o));
    ku_stages_add_up(s->layer_cost, s->stage_layers, n, cost);
    if (cost_per_byte(s, o) == 0)
        return KUMI_OK;
    struct ku_stage_bytes *bytes = ku_calloc((size_t)n, sizeof *bytes);
    const int status = bytes ? ku_session_stage_bytes(s, o, bytes) : KUMI_ENOMEM;
    if (status == KUMI_OK)
        ku_between_add_transfers(bytes, n, cost_per_byte(s, o), cost);
    ku_free(bytes);
    return status;
}

int ku_session_stage_bytes(struct ku_session *s, const struct ku_compile_opts *o,
                           struct ku_stage_bytes *bytes)
{
    KU_TRY(make_between(s, o));
    ku_between_add_up(s->between, s->stage_layers, s->schedule->n_stages, bytes);
    return KUMI_OK;
}

void ku_session_pipeline_fini(struct ku_session *s)
{
    ku_pp_schedule_destroy(s->schedule);
    ku_free(s->stage_layers);
    ku_free(s->layer_cost);
    if (s->between)
        ku_between_fini(s->between);
    ku_free(s->between);
}

/* Stages on each coordinate of an interleaved schedule. */
static int n_virtual_stages(const struct ku_session *s)
{
    const int64_t n = s->cfg.parallel_virtual_stages;
    return n == KU_NULL ? 2 : (int)n;
}

/* The schedule and the division of the layers together. */
static int choose_schedule(struct ku_session *s, const struct ku_compile_opts *o, int n_micro)
{
    const struct ku_list *by_hand = &s->cfg.parallel_stages;
    const int64_t in_flight = s->cfg.parallel_pp_in_flight;
    const double gib = s->cfg.parallel_pp_activation_gib;
    const int all = isnan(gib) ? s->sharding.pp : n_micro; /* what an omitted pp_in_flight means */
    KU_TRY(make_costs(s, o));
    if (!isnan(gib) || cost_per_byte(s, o) > 0)
        KU_TRY(make_between(s, o));
    const struct ku_pp_request q = {.n_ranks = s->sharding.pp,
                                    .n_virtual = n_virtual_stages(s),
                                    .n_micro = n_micro,
                                    .in_flight = in_flight == KU_NULL ? all : (int)in_flight,
                                    .bytes = isnan(gib) ? 0 : gib * 0x1p30,
                                    .per_byte = cost_per_byte(s, o),
                                    .between = s->between,
                                    .stages = (const char *const *)by_hand->item,
                                    .n_stages = by_hand->n,
                                    .layer = s->layer_cost};
    struct ku_graph *g;
    KU_TRY(ku_session_graph(s, 0, &g));
    const int status = ku_pp_choose(g, &q, &s->schedule, &s->stage_layers, &s->schedule_name);
    ku_graph_destroy(g);
    return status;
}

static int make_schedule(struct ku_session *s, const struct ku_compile_opts *o)
{
    const int n_micro = ku_mesh_n_micro(&o->mesh);
    const char *name = s->cfg.parallel_pp_schedule;
    struct ku_str wanted = {0};
    if (strpbrk(name, "/."))
        return read_schedule(s, n_micro);
    if (strcmp(name, "auto") == 0)
        return choose_schedule(s, o, n_micro);
    for (const char *const *known = ku_pp_schedule_names(); *known; known++) {
        if (strcmp(*known, name) == 0) {
            ku_str_fini(&wanted);
            return ku_pp_schedule_create(name, s->sharding.pp, n_virtual_stages(s), n_micro,
                                         &s->schedule);
        }
        ku_str_add(&wanted, "%s%s", wanted.bytes ? ", " : "one of ", *known);
    }
    ku_str_add(&wanted, ", auto, or a file: a name with a slash or a dot");
    const int status = refuse_schedule(s, ku_str_get(&wanted));
    ku_str_fini(&wanted);
    return status;
}

static int divide_layers(struct ku_session *s, const struct ku_compile_opts *o)
{
    const struct ku_list *by_hand = &s->cfg.parallel_stages;
    const int n = s->schedule->n_stages;
    struct ku_graph *g;
    s->stage_layers = ku_calloc((size_t)n, sizeof *s->stage_layers);
    if (s->stage_layers == NULL)
        return KUMI_ENOMEM;
    if (by_hand->n == 0)
        KU_TRY(make_costs(s, o));
    KU_TRY(ku_session_graph(s, 0, &g));
    const int status =
        by_hand->n
            ? ku_stages_parse(g, (const char *const *)by_hand->item, by_hand->n, n, s->stage_layers)
            : ku_stages_balance(g, s->layer_cost, s->schedule->rank_of, n, s->stage_layers);
    ku_graph_destroy(g);
    return status;
}

int ku_session_plan_pipeline(struct ku_session *s, struct ku_compile_opts *o)
{
    if (s->sharding.pp == 1)
        return KUMI_OK;
    if (s->schedule == NULL)
        KU_TRY(make_schedule(s, o));
    if (s->stage_layers == NULL)
        KU_TRY(divide_layers(s, o));
    o->schedule = s->schedule;
    o->stage_layers = s->stage_layers;
    return KUMI_OK;
}

void ku_session_print_pipeline(const struct ku_session *s, struct ku_str *out)
{
    if (s->sharding.pp == 1)
        return;
    ku_str_add(out, "pp %d (%s%s%s; layers", s->sharding.pp, s->cfg.parallel_pp_schedule,
               s->schedule_name ? ": " : "", s->schedule_name ? s->schedule_name : "");
    for (int i = 0; i < s->schedule->n_stages; i++)
        ku_str_add(out, " %d", s->stage_layers[i]);
    ku_str_add(out, "), ");
}
