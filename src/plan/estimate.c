/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Estimate of the memory of a model's state under each stage of ZeRO, from the number of its
 * parameters alone, for kumi's optimizers and precisions. Activations, buckets and uneven shards
 * are not included; `kumi plan CONFIG` computes them exactly.
 *
 * Source: Rajbhandari et al. 2020, section 3 and Table 1.
 */
#include "kumi/run.h"

#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/str.h"

/* Optimizers, and the number of their f32 moments per parameter. */
static const char optimizers[] = "adamw adam lamb sgd momentum lars adagrad rmsprop lion adafactor";
static const int n_moments[] = {2, 2, 2, 0, 1, 1, 1, 1, 1, 0};
enum { N_STAGES = 4 };

/* Bytes per rank for each parameter of the model, by class; the last row is the sum. */
enum { PARAMETERS, GRADIENTS, OPTIMIZER, ALL, N_ROWS };
static const char *const row_name[N_ROWS] = {"parameters", "gradients", "optimizer", "total"};

static int bytes_of(const char *key, const char *name, double *bytes)
{
    const int at = ku_str_find_word("f32 bf16 f16", name);
    *bytes = at == 0 ? 4 : 2;
    return at >= 0 ? KUMI_OK
                   : KU_ERR(KUMI_EINVAL, "plan: --%s: %.60s: unknown; give f32, bf16 or f16", key,
                            name);
}

static int per_parameter(const struct kumi_estimate *e, double table[N_STAGES][N_ROWS])
{
    const char *precision = e->precision ? e->precision : "bf16",
               *optimizer = e->optimizer ? e->optimizer : "adamw";
    double compute, grads, shard = (double)e->n_ranks / (e->replicate > 0 ? e->replicate : 1);
    KU_TRY(bytes_of("precision", precision, &compute));
    KU_TRY(bytes_of("grads", e->grads ? e->grads : "f32", &grads));
    const int at = ku_str_find_word(optimizers, optimizer);
    if (at < 0)
        return KU_ERR(KUMI_EINVAL,
                      "plan: --optimizer: %.60s: unknown; give one of adamw, adam, lamb, sgd, "
                      "momentum (SGD with "
                      "momentum), lars, adagrad, rmsprop, lion, adafactor",
                      optimizer);
    double kept =
        4.0 * n_moments[at] + (compute < 4 && !e->no_master ? 4 : 0); /* the f32 master copy */
    for (int z = 0; z < N_STAGES; z++) {
        double *row = table[z];
        row[PARAMETERS] = compute / (z >= 3 ? shard : 1);
        row[GRADIENTS] = grads / (z >= 2 ? shard : 1);
        row[OPTIMIZER] = kept / (z >= 1 ? shard : 1);
        row[ALL] = row[PARAMETERS] + row[GRADIENTS] + row[OPTIMIZER];
    }
    return KUMI_OK;
}

/* The requested stages: [first, end). */
static int span_of(const char *zero, int *first, int *end)
{
    *first = 0, *end = N_STAGES;
    if (zero == NULL)
        return KUMI_OK;
    if (zero[0] < '0' || zero[0] >= '0' + N_STAGES || zero[1] != '\0')
        return KU_ERR(KUMI_EINVAL, "plan: --zero: %.60s; give 0, 1, 2 or 3", zero);
    *first = zero[0] - '0', *end = *first + 1;
    return KUMI_OK;
}

static int print_json(const struct kumi_estimate *e, double table[N_STAGES][N_ROWS], int first,
                      int end, char **text)
{
    json_t *stages = json_array();
    for (int z = first; z < end; z++) {
        json_t *stage = json_pack("{s:i}", "zero", z);
        for (int r = 0; r < N_ROWS; r++)
            json_object_set_new(stage, r == ALL ? "bytes" : row_name[r],
                                json_real(table[z][r] * e->n_params));
        json_array_append_new(stages, stage);
    }
    return ku_text_json(json_pack("{s:f, s:i, s:i, s:o}", "params", e->n_params, "ranks",
                                  e->n_ranks, "replicate", e->replicate > 0 ? e->replicate : 1,
                                  "stages", stages),
                        text);
}

int kumi_plan_estimate(const struct kumi_estimate *e, int as_json, char **text)
{
    KU_GIVEN(e, "estimate");
    KU_GIVEN(text, "text");
    double table[N_STAGES][N_ROWS];
    int replicate = e->replicate > 0 ? e->replicate : 1, first, end;
    if (!(e->n_params >= 1 && e->n_params <= 1e18))
        return KU_ERR(KUMI_EINVAL, "plan: --params: %g; give 1 to 1e18", e->n_params);
    if (e->n_ranks < 1 || e->replicate < 0)
        return KU_ERR(KUMI_EINVAL, "plan: -n: %d, --replicate: %d; give 1 or more", e->n_ranks,
                      e->replicate);
    if (e->n_ranks % replicate != 0)
        return KU_ERR(KUMI_EINVAL, "plan: --replicate: %d does not divide %d ranks", replicate,
                      e->n_ranks);
    KU_TRY(span_of(e->zero, &first, &end));
    KU_TRY(per_parameter(e, table));
    if (as_json)
        return print_json(e, table, first, end, text);
    struct ku_str out = {0};
    ku_str_add(
        &out, "state of %.0f parameters on %d rank%s = %d replica%s x %d shard%s, GB per rank\n\n",
        e->n_params, e->n_ranks, e->n_ranks == 1 ? "" : "s", replicate, replicate == 1 ? "" : "s",
        e->n_ranks / replicate, e->n_ranks == replicate ? "" : "s");
    ku_str_add(&out, "%-12s", "zero");
    for (int z = first; z < end; z++)
        ku_str_add(&out, " %11d", z);
    for (int r = 0; r < N_ROWS; r++) {
        ku_str_add(&out, "\n%-12s", row_name[r]);
        for (int z = first; z < end; z++)
            ku_str_add(&out, " %11.4g", table[z][r] * e->n_params * 1e-9);
    }
    ku_str_add(&out, "\n\nactivations, buckets and gathered parameters are not included; see `kumi "
                     "plan CONFIG`\n");
    return ku_text_take(&out, text);
}
