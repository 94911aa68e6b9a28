/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline of a configuration in time: a row per coordinate of axis pp. F, I and W take what
 * the model's nodes cost, or one unit each and B two; transfers take what parallel.pp_flop_per_byte
 * says of their bytes. The shortest block is as wide as the longest label.
 *
 *     pp 0  F0>F1>.  .  B0    .  B1    O
 *     pp 1  .  F0 B0<   F1 B1<   .  .  O
 *
 * After a label, > is a transfer of activations to the next stage on another coordinate, < one of
 * gradients to the stage before. O is the optimizer, which begins after the last block of all.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "config/deepspeed.h"
#include "kumi/run.h"
#include "plan/picture.h"
#include "plan/plan.h"
#include "plan/schedule_report.h"
#include "train/configure.h"

enum { MAX_COLUMNS = 120, LABEL_BYTES = 24, SIDE = 7 /* "pp 63  " */ };

void ku_schedule_label(const struct ku_pp_schedule *s, const struct ku_block *b, char out[24])
{
    if (s->n_stages == s->n_ranks)
        snprintf(out, LABEL_BYTES, "%c%d", ku_block_letter(b->kind), b->micro);
    else
        snprintf(out, LABEL_BYTES, "%d%c%d", b->stage, ku_block_letter(b->kind), b->micro);
}

/* Characters of a unit of time: the longest label and a space. */
static int unit_width(const struct ku_pp_schedule *s)
{
    const struct ku_block last = {KU_BL_F, (int16_t)(s->n_stages - 1), s->n_micro - 1};
    char label[LABEL_BYTES];
    ku_schedule_label(s, &last, label);
    return (int)strlen(label) + 1;
}

/* Appends text at a column; *column is where `out` ends. */
static void print_at(struct ku_str *out, int *column, int at, const char *text)
{
    ku_str_add(out, "%*s%s", at > *column ? at - *column : 0, "", text);
    *column = at + (int)strlen(text);
}

/* "." in every free place of a row up to the next block or the row's end. */
static void print_idle(struct ku_str *out, int *column, int at, int to, int width)
{
    for (; at + 1 < to; at += width)
        print_at(out, column, SIDE + at, ".");
}

/* per_unit: characters of a unit of time; width: of the shortest block. */
static void print_row(const struct ku_plan_schedule *t, int r, double per_unit, int width,
                      struct ku_str *out)
{
    const struct ku_pp_schedule *s = t->s;
    const int last = (int)lround(t->makespan * per_unit), limit = MAX_COLUMNS - SIDE;
    char label[LABEL_BYTES];
    int column = 0, at = 0;
    snprintf(label, sizeof label, "pp %d", r);
    print_at(out, &column, 0, label);
    for (uint32_t i = s->first[r]; i < s->first[r + 1]; i++) {
        const int from = (int)lround(t->begin[i] * per_unit);
        print_idle(out, &column, at, from < limit ? from : limit, width);
        at = (int)lround(t->end[i] * per_unit);
        if (from > limit - width)
            break;
        ku_schedule_label(s, &s->block[i], label);
        print_at(out, &column, SIDE + from, label);
        if (t->reader[i] != KU_NO_BLOCK)
            print_at(out, &column, column, s->block[i].kind == KU_BL_F ? ">" : "<");
    }
    print_idle(out, &column, at, last < limit ? last : limit, width);
    print_at(out, &column, SIDE + (last < limit ? last : limit), last > limit ? " .. O\n" : "O\n");
}

/* Time of the shortest block. */
static double shortest(const struct ku_plan_schedule *t)
{
    double min = t->makespan;
    for (uint32_t i = 0; i < t->s->first[t->s->n_ranks]; i++) {
        const double own = t->end[i] - t->begin[i];
        min = own > 0 && own < min ? own : min;
    }
    return min;
}

/* What a coordinate sends to others. */
static int n_transfers(const struct ku_plan_schedule *t, int r)
{
    int n = 0;
    for (uint32_t i = t->s->first[r]; i < t->s->first[r + 1]; i++)
        n += t->reader[i] != KU_NO_BLOCK;
    return n;
}

/* "F 0.98, I 1.10, W 0.97" of the stages of a coordinate. */
static struct ku_stage_cost cost_of(const struct ku_plan_schedule *t, int r)
{
    struct ku_stage_cost sum = {0};
    for (int k = 0; k < t->s->n_stages; k++)
        if (t->s->rank_of[k] == r)
            sum.f += t->cost[k].f, sum.i += t->cost[k].i, sum.w += t->cost[k].w;
    return sum;
}
static void print_costs(const struct ku_plan_schedule *t, int r, struct ku_str *out)
{
    const struct ku_stage_cost sum = cost_of(t, r);
    ku_str_add(out, " %7.2f %7.2f %7.2f", sum.f, sum.i, sum.w);
}

/* Units of the longest transfer between stages. */
static double longest_transfer(const struct ku_plan_schedule *t)
{
    double most = 0;
    for (int k = 0; k < t->s->n_stages; k++)
        most = fmax(most, fmax(t->cost[k].sent, t->cost[k].sent_back));
    return most;
}

/* The least and the most work of a coordinate (F, I and W), in means. */
static void find_balance(const struct ku_plan_schedule *t, double *least, double *most)
{
    double all = 0;
    for (int r = 0; r < t->s->n_ranks; r++) {
        const struct ku_stage_cost c = cost_of(t, r);
        const double work = c.f + c.i + c.w;
        *least = r == 0 || work < *least ? work : *least;
        *most = r == 0 || work > *most ? work : *most;
        all += work;
    }
    *least *= t->s->n_ranks / all;
    *most *= t->s->n_ranks / all;
}

static void print_coordinates(const struct ku_plan_schedule *t, struct ku_str *out)
{
    const struct ku_pp_schedule *s = t->s;
    ku_str_add(out, "\n%-12s %-22s %14s %12s %10s %10s%s\n", "coordinate", "layers of its stages",
               "micro-batches", "activations", "transfers", "idle",
               t->cost ? "    units of F, I and W" : "");
    ku_str_add(out, "%-12s %-22s %14s %12s %10s\n", "", "", "in flight", "of a rank", "sent");
    for (int r = 0; r < s->n_ranks; r++) {
        struct ku_str layers = {0};
        for (int k = 0; k < s->n_stages; k++)
            if (s->rank_of[k] == r)
                ku_str_add(&layers, "%s%d", layers.bytes ? ", " : "", t->layers[k]);
        char held[16];
        ku_str_add(out, "%-12d %-22s %14d %12s %10d %8.1f %%", r, ku_str_get(&layers),
                   ku_pp_schedule_peak(s, r), ku_text_bytes((uint64_t)t->held[r], held),
                   n_transfers(t, r), 100 * t->idle[r]);
        if (t->cost)
            print_costs(t, r, out);
        ku_str_add(out, "\n");
        ku_str_fini(&layers);
    }
    if (t->cost) {
        double least, most;
        find_balance(t, &least, &most);
        ku_str_add(out, "work of a coordinate (F, I and W): %.2f to %.2f of the mean\n", least,
                   most);
        if (longest_transfer(t) > 0)
            ku_str_add(out, "a transfer between stages takes at most %.3g units\n",
                       longest_transfer(t));
    }
    ku_str_add(out,
               "bubble %.1f %% from a coordinate's first block to its last; %.1f %% of a step, in "
               "which all update together\n",
               100 * t->bubble, 100 * t->joint_bubble);
}

static int print(const struct ku_plan_schedule *t, char **text)
{
    const struct ku_pp_schedule *s = t->s;
    const int width = unit_width(s);
    const double per_unit = width / shortest(t), fit = (MAX_COLUMNS - SIDE) / per_unit;
    struct ku_str out = {0};
    ku_str_add(&out, "pp %d, %s, %d stages, %d micro-batches; %s\n\n", s->n_ranks, t->name,
               s->n_stages, s->n_micro, ku_schedule_units(t));
    for (int r = 0; r < s->n_ranks; r++)
        print_row(t, r, per_unit, width, &out);
    ku_str_add(&out, "> activations to the next stage, < gradients to the stage before, on another "
                     "coordinate; O the optimizer\n");
    if (t->makespan > fit)
        ku_str_add(&out, "the first %.0f of %.0f units; --csv and --picture have all\n", fit,
                   t->makespan);
    print_coordinates(t, &out);
    return ku_text_take(&out, text);
}

static int print_json(const struct ku_plan_schedule *t, char **text)
{
    const struct ku_pp_schedule *s = t->s;
    json_t *list = json_array();
    for (int r = 0; r < s->n_ranks; r++) {
        json_t *stages = json_array(), *layers = json_array();
        json_t *costs = t->cost ? json_array() : NULL;
        for (int k = 0; k < s->n_stages; k++)
            if (s->rank_of[k] == r) {
                json_array_append_new(stages, json_integer(k));
                json_array_append_new(layers, json_integer(t->layers[k]));
                if (costs)
                    json_array_append_new(costs, json_pack("{s:f, s:f, s:f, s:f, s:f}", "f",
                                                           t->cost[k].f, "i", t->cost[k].i, "w",
                                                           t->cost[k].w, "sent", t->cost[k].sent,
                                                           "sent_back", t->cost[k].sent_back));
            }
        json_array_append_new(list, json_pack("{s:o, s:o, s:o*, s:i, s:I, s:i, s:f}", "stages",
                                              stages, "layers", layers, "costs", costs, "in_flight",
                                              ku_pp_schedule_peak(s, r), "activation_bytes",
                                              (json_int_t)t->held[r], "transfers",
                                              n_transfers(t, r), "idle", t->idle[r]));
    }
    double work[2] = {0};
    if (t->cost)
        find_balance(t, &work[0], &work[1]);
    json_t *balance = t->cost ? json_pack("[f, f]", work[0], work[1]) : NULL;
    return ku_text_json(json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:o*, s:o}", "schedule",
                                  t->name, "pp", s->n_ranks, "n_stages", s->n_stages, "n_micro",
                                  s->n_micro, "units", t->makespan, "bubble", t->bubble,
                                  "step_bubble", t->joint_bubble, "work", balance, "coordinates",
                                  list),
                        text);
}

static int print_csv(const struct ku_plan_schedule *t, char **text)
{
    struct ku_str out = {0};
    const int status = ku_pp_schedule_print(t->s, &out);
    if (status < 0) {
        ku_str_fini(&out);
        return status;
    }
    return ku_text_take(&out, text);
}

static void schedule_fini(struct ku_plan_schedule *t, struct ku_stage_cost *cost)
{
    ku_free(cost);
    ku_free(t->begin);
    ku_free(t->end);
    ku_free(t->reader);
    ku_free(t->idle);
    ku_free(t->held);
}

const char *ku_schedule_units(const struct ku_plan_schedule *t)
{
    return t->cost ? "a unit of time is the mean cost of an F, by the model's FLOP"
                   : "F, I and W take a unit of time, B two";
}

/* The stages' costs in units of the mean F. */
static int find_costs(struct ku_session *session, const struct ku_compile_opts *o,
                      struct ku_stage_cost **out)
{
    const int n = session->schedule->n_stages;
    struct ku_stage_cost *cost = ku_calloc((size_t)n, sizeof *cost);
    double all = 0;
    if (cost == NULL)
        return KUMI_ENOMEM;
    *out = cost;
    KU_TRY(ku_session_stage_costs(session, o, cost));
    for (int k = 0; k < n; k++)
        all += cost[k].f;
    for (int k = 0; k < n && all > 0; k++) {
        const double unit = all / n;
        cost[k].f /= unit, cost[k].i /= unit, cost[k].w /= unit;
        cost[k].sent /= unit, cost[k].sent_back /= unit;
    }
    return KUMI_OK;
}

/* The activations of each coordinate. */
static int find_held(struct ku_session *session, const struct ku_compile_opts *o,
                     const struct ku_plan_schedule *t)
{
    struct ku_stage_bytes *bytes = ku_calloc((size_t)t->s->n_stages, sizeof *bytes);
    const int status = bytes ? ku_session_stage_bytes(session, o, bytes) : KUMI_ENOMEM;
    for (int r = 0; r < t->s->n_ranks && status == KUMI_OK; r++)
        t->held[r] = ku_pp_schedule_peak_bytes(t->s, r, bytes);
    ku_free(bytes);
    return status;
}

/* The times of all blocks; the schedule, the layers and the costs are borrowed. cost: NULL: units
 */
static int schedule_init(const struct ku_session *session, const struct ku_stage_cost *cost,
                         struct ku_plan_schedule *t)
{
    const struct ku_block_cost unit = {1, 1, 1, 0, cost};
    const struct ku_pp_schedule *s = session->schedule;
    const size_t n = s->first[s->n_ranks];
    *t = (struct ku_plan_schedule){
        .s = s,
        .name = session->schedule_name ? session->schedule_name : session->cfg.parallel_pp_schedule,
        .layers = session->stage_layers,
        .cost = cost};
    t->begin = ku_calloc(n, sizeof *t->begin);
    t->end = ku_calloc(n, sizeof *t->end);
    t->reader = ku_calloc(n, sizeof *t->reader);
    t->idle = ku_calloc((size_t)s->n_ranks, sizeof *t->idle);
    t->held = ku_calloc((size_t)s->n_ranks, sizeof *t->held);
    if (!t->begin || !t->end || !t->reader || !t->idle || !t->held) {
        schedule_fini(t, NULL);
        return KUMI_ENOMEM;
    }
    int status = ku_pp_schedule_run(s, &unit, t->begin, t->end, &t->makespan, NULL);
    if (status == KUMI_OK)
        status = ku_pp_schedule_readers(s, t->reader);
    if (status == KUMI_OK)
        status = ku_pp_schedule_bubble(s, &unit, 0, &t->bubble);
    if (status == KUMI_OK)
        status = ku_pp_schedule_bubble(s, &unit, 1, &t->joint_bubble);
    if (status < 0) {
        schedule_fini(t, NULL);
        return status;
    }
    t->span = ku_pp_schedule_span(s, t->begin, t->end);
    KU_ASSERT(t->span > 0 && t->bubble >= 0 && t->joint_bubble < 1);
    for (int r = 0; r < s->n_ranks; r++) {
        double busy = 0;
        for (uint32_t i = s->first[r]; i < s->first[r + 1]; i++)
            busy += t->end[i] - t->begin[i];
        t->idle[r] = 1 - busy / t->span;
    }
    return KUMI_OK;
}

int kumi_plan_schedule(const struct kumi_settings *settings, int n_ranks, const char *picture,
                       enum kumi_plan_form form, int unit_costs, char **text)
{
    struct ku_plan_schedule t;
    struct ku_stage_cost *cost = NULL;
    struct ku_compile_opts o;
    struct ku_plan plan;
    KU_TRY(ku_settings_check(settings));
    KU_GIVEN(text, "text");
    if (form < KUMI_PLAN_TEXT || form > KUMI_PLAN_CSV)
        return KU_ERR(KUMI_EINVAL, "plan: form %d: unknown", (int)form);
    if (picture)
        KU_TRY(ku_picture_check(picture));
    KU_TRY(ku_plan_open(&plan, settings, n_ranks, NULL));
    ku_deepspeed_warn(&plan.s.cfg);
    int status = ku_session_compile_opts(&plan.s, &o);
    if (status == KUMI_OK && plan.s.sharding.pp == 1)
        status = KU_ERR(KUMI_EINVAL, "plan: parallel.pp is 1: there is no pipeline; set it to the "
                                     "number of stages or ranks of a pipeline, such as 2");
    if (status == KUMI_OK)
        status = ku_session_plan_pipeline(&plan.s, &o);
    if (status == KUMI_OK && !unit_costs)
        status = find_costs(&plan.s, &o, &cost);
    if (status == KUMI_OK)
        status = schedule_init(&plan.s, cost, &t);
    if (status < 0)
        ku_free(cost);
    if (status == KUMI_OK) {
        if (form != KUMI_PLAN_CSV)
            status = find_held(&plan.s, &o, &t);
        if (status == KUMI_OK && picture)
            status = ku_plan_schedule_draw(&t, picture);
        if (status == KUMI_OK)
            status = form == KUMI_PLAN_CSV    ? print_csv(&t, text)
                     : form == KUMI_PLAN_JSON ? print_json(&t, text)
                                              : print(&t, text);
        schedule_fini(&t, cost);
    }
    ku_plan_fini(&plan);
    return status;
}
