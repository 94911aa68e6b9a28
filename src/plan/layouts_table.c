/* SPDX-License-Identifier: Apache-2.0 */
/* A configuration under every parallel layout of n ranks: one plan a row. */
#include <stdio.h>
#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/progress_line.h"
#include "base/str.h"
#include "config/deepspeed.h"
#include "kumi/run.h"
#include "pass/pipe/block_schedule.h"
#include "plan/plan.h"
#include "train/configure.h"
#include "train/session.h"

enum { MAX_LAYOUTS = 32, MAX_KEYS = 16, KEY_BYTES = 40, MAX_TP = 8, MAX_PP = 16 };

struct layout {
    char name[32];
    const char *use; /* when to choose it */
    char key[MAX_KEYS][KEY_BYTES];
    int n_keys;
    char *refusal; /* NULL: it was planned, and the members below are set */
    uint64_t rank_bytes, state_bytes;
    struct ku_sent_bytes sent;
    double bubble; /* idle share of a pipeline, 0 without one */
};

struct layouts {
    int n_ranks, n;
    struct ku_str batch; /* of the first row that is planned */
    struct layout row[MAX_LAYOUTS];
};

static void set(struct layout *l, const char *key, const char *value)
{
    KU_ASSERT(l->n_keys < MAX_KEYS);
    snprintf(l->key[l->n_keys++], KEY_BYTES, "parallel.%s=%s", key, value);
}
static void set_count(struct layout *l, const char *key, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    set(l, key, text);
}

/* A row whose ranks have private state, without what the configuration says of its layout. */
static struct layout *add(struct layouts *s, const char *use, int zero)
{
    static const char *const own[] = {"share_host_state", "strategy", "replicate", "shard",
                                      "stages"};
    KU_ASSERT(s->n < MAX_LAYOUTS);
    struct layout *l = &s->row[s->n++];
    l->use = use;
    set(l, "host_state", "private");
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        set(l, own[i], "null");
    set_count(l, "zero", zero);
    set(l, "pp_schedule", "1f1b"), set(l, "sp", "false");
    return l;
}

static void list_layouts(struct layouts *s)
{
    static const char *const use[] = {"all of it fits on a rank",
                                      "the optimizer state does not fit", "gradients do not either",
                                      "parameters do not either"};
    const int n = s->n_ranks;
    for (int zero = 0; zero < 4; zero++) {
        struct layout *l = add(s, use[zero], zero);
        set(l, "tp", "1"), set(l, "pp", "1");
        snprintf(l->name, sizeof l->name, zero ? "zero %d" : "data parallel", zero);
    }
    for (int tp = 2; tp <= n && tp <= MAX_TP; tp *= 2)
        for (int sp = 0; sp < 2 && n % tp == 0; sp++) {
            struct layout *l = add(s,
                                   sp ? "activations between the layers do not fit"
                                      : "a layer or its activations do not fit",
                                   0);
            char dp[24] = "";
            set_count(l, "tp", tp), set(l, "pp", "1"), set(l, "sp", sp ? "true" : "false");
            if (n > tp)
                snprintf(dp, sizeof dp, " x dp %d", n / tp);
            snprintf(l->name, sizeof l->name, "tp %d%s%s", tp, sp ? " sp" : "", dp);
        }
    for (int pp = 2; pp <= n && pp <= MAX_PP; pp *= 2)
        if (n % pp == 0) {
            struct layout *l = add(s, "the layers do not fit, or links are slow", 0);
            set_count(l, "pp", pp), set(l, "tp", "1");
            snprintf(l->name, sizeof l->name, n > pp ? "pp %d x dp %d" : "pp %d", pp, n / pp);
        }
    if (n % 4 == 0) {
        struct layout *l = add(s, "neither of the two alone fits", n > 4);
        set(l, "tp", "2"), set(l, "pp", "2");
        snprintf(l->name, sizeof l->name, n > 4 ? "tp 2 x pp 2 x zero 1" : "tp 2 x pp 2");
    }
}

static int note_bubble(struct ku_plan *plan, struct layout *l)
{
    const int n = plan->s.schedule ? plan->s.schedule->n_stages : 0;
    struct ku_compile_opts o;
    if (n == 0)
        return KUMI_OK;
    struct ku_stage_cost *of = ku_calloc((size_t)n, sizeof *of);
    int status = of ? ku_session_compile_opts(&plan->s, &o) : KUMI_ENOMEM;
    if (status == KUMI_OK)
        status = ku_session_stage_costs(&plan->s, &o, of);
    if (status == KUMI_OK)
        status = ku_pp_schedule_bubble(plan->s.schedule, &(struct ku_block_cost){.of = of}, 1,
                                       &l->bubble);
    ku_free(of);
    return status;
}

static void note_bytes(const struct ku_plan *plan, struct layout *l)
{
    l->rank_bytes = plan->host_bytes / (uint64_t)ku_session_n_ranks(&plan->s);
    l->state_bytes = plan->arena_bytes[KU_AR_STATE] + plan->arena_bytes[KU_AR_SHARD] +
                     plan->arena_bytes[KU_AR_HOST] / (uint64_t)ku_session_n_ranks(&plan->s);
    l->sent = plan->sent;
    if (plan->s.sharding.tp > 1 && plan->sent.tp == 0)
        l->use = "never: no layer of this model can be divided";
}

static int plan_layout(const struct kumi_settings *settings, int n_ranks,
                       const struct ku_watch *watch, struct layout *l, struct ku_str *batch)
{
    const char *more[MAX_KEYS + 1] = {NULL};
    struct ku_plan plan;
    for (int i = 0; i < l->n_keys; i++)
        more[i] = l->key[i];
    KU_TRY(ku_plan_try(&plan, settings, n_ranks, more, watch, &l->refusal));
    if (l->refusal)
        return KUMI_OK;
    note_bytes(&plan, l);
    const int status = note_bubble(&plan, l);
    if (batch->bytes == 0) {
        plan.s.source->ops->print_plan(plan.s.source, plan.shape, batch);
        ku_deepspeed_warn(&plan.s.cfg);
    }
    ku_plan_fini(&plan);
    return status;
}

static int print(const struct layouts *s, char **text)
{
    struct ku_str out = {0};
    char bytes[6][16];
    ku_str_add(&out,
               "%d ranks under each layout; %s\n\n"
               "%-20s %10s  %10s  %10s   %s\n"
               "%-20s %10s  %10s  %10s   %10s  %10s  %10s   %6s   when\n",
               s->n_ranks, ku_str_get(&s->batch), "", "memory", "of it", "of it",
               "sent by a rank per step", "layout", "of a rank", "state", "the rest", "data", "tp",
               "pp", "bubble");
    for (int i = 0; i < s->n; i++) {
        const struct layout *l = &s->row[i];
        ku_str_add(&out, "%-20s ", l->name);
        if (l->refusal)
            ku_str_add(&out, "refused: %s\n", l->refusal);
        else
            ku_str_add(
                &out, "%s  %s  %s   %s  %s  %s   %4.1f %%   %s\n",
                ku_text_bytes(l->rank_bytes, bytes[0]), ku_text_bytes(l->state_bytes, bytes[1]),
                ku_text_bytes(l->rank_bytes - l->state_bytes, bytes[2]),
                ku_text_bytes((uint64_t)l->sent.data, bytes[3]),
                ku_text_bytes((uint64_t)l->sent.tp, bytes[4]),
                ku_text_bytes((uint64_t)l->sent.messages, bytes[5]), 100 * l->bubble, l->use);
    }
    return ku_text_take(&out, text);
}

static int print_json(const struct layouts *s, char **text)
{
    json_t *list = json_array();
    for (int i = 0; i < s->n; i++) {
        const struct layout *l = &s->row[i];
        json_array_append_new(
            list, l->refusal ? json_pack("{s:s, s:s}", "layout", l->name, "refused", l->refusal)
                             : json_pack("{s:s, s:I, s:I, s:f, s:f, s:f, s:f}", "layout", l->name,
                                         "rank_bytes", (json_int_t)l->rank_bytes, "state_bytes",
                                         (json_int_t)l->state_bytes, "data_bytes", l->sent.data,
                                         "tp_bytes", l->sent.tp, "pp_bytes", l->sent.messages,
                                         "bubble", l->bubble));
    }
    return ku_text_json(json_pack("{s:i, s:s, s:o}", "ranks", s->n_ranks, "batch",
                                  ku_str_get(&s->batch), "layouts", list),
                        text);
}

int kumi_plan_layouts(const struct kumi_settings *settings, int n_ranks, int as_json, char **text)
{
    KU_TRY(ku_settings_check(settings));
    KU_GIVEN(text, "text");
    struct layouts *s = ku_calloc(1, sizeof *s);
    struct ku_compile_line line;
    if (s == NULL)
        return KUMI_ENOMEM;
    s->n_ranks = n_ranks;
    int status = KUMI_OK;
    list_layouts(s);
    struct ku_watch watch = ku_compile_line_start(&line);
    for (int i = 0; i < s->n && status == KUMI_OK; i++)
        status = plan_layout(settings, n_ranks, &watch, &s->row[i], &s->batch);
    ku_compile_line_end(&line);
    if (status == KUMI_OK && s->batch.bytes == 0)
        status = KU_ERR(KUMI_EINVAL, "%s", s->row[0].refusal);
    if (status == KUMI_OK)
        status = (as_json ? print_json : print)(s, text);
    for (int i = 0; i < s->n; i++)
        ku_free(s->row[i].refusal);
    ku_str_fini(&s->batch);
    ku_free(s);
    return status;
}
