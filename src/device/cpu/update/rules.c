/* SPDX-License-Identifier: Apache-2.0 */
/* Adagrad, Lion, RMSProp; exponential moving averages of weights. */
#include <string.h>

#include "base/err.h"
#include "device/cpu/cpu.h"
#include "device/step_scalars.h"
#include "op/schedule.h"

static enum ku_rule_kind kind_of(int op)
{
    return op == KU_OP_adagrad            ? KU_RULE_ADAGRAD
           : op == KU_OP_lion             ? KU_RULE_LION
           : op == KU_OP_rmsprop          ? KU_RULE_RMSPROP
           : op == KU_OP_rmsprop_momentum ? KU_RULE_RMSPROP_MOMENTUM
           : op == KU_OP_rmsprop_centered ? KU_RULE_RMSPROP_CENTERED
                                          : KU_RULE_RMSPROP_BOTH;
}

static struct ku_rule rule_of(const struct ku_kernel *k, int n_state, const double *report)
{
    const struct ku_call *c = &k->call;
    const struct ku_attrs *a = &k->attr;
    const double t = report[KU_REPORT_UPDATE], rate = report[KU_REPORT_LR] * a->lr_mult;
    const double beta1 = ku_schedule_momentum(a, a->beta1, (int64_t)t - 1);
    const double beta2 = c->op == KU_OP_lion ? a->beta2 : a->alpha;
    const double slower = c->op == KU_OP_adagrad ? 1 + (t - 1) * a->lr_decay : 1;
    struct ku_rule u = {.kind = kind_of(c->op),
                        .p = c->out[0].data,
                        .g = c->in[n_state].data,
                        .g_dtype = c->in[n_state].dtype,
                        .scale = (float)report[KU_REPORT_SCALE],
                        .lr = (float)(rate / slower),
                        .weight_decay = (float)a->weight_decay,
                        .keep = (float)(1 - rate * a->weight_decay),
                        .eps = (float)a->eps,
                        .beta1 = (float)beta1,
                        .add1 = (float)(1 - beta1),
                        .beta2 = (float)beta2,
                        .add2 = (float)(1 - beta2),
                        .momentum = (float)ku_schedule_momentum(a, a->momentum, (int64_t)t - 1)};
    for (int s = 1; s < n_state; s++)
        u.s[s - 1] = c->out[s].data;
    if (c->n_out > n_state)
        u.copy = c->out[n_state].data, u.copy_dtype = c->out[n_state].dtype;
    return u;
}

/*
 * A skipped update leaves the state. The compute copy is written in any case: it may be a fresh
 * buffer.
 */
static void tile_rule(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    const int n_state = ku_ops[c->op].min_out;
    const double *report = c->in[n_state + 1].data;
    struct ku_rule u = rule_of(k, n_state, report);
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    if (report[KU_REPORT_APPLY] != 0)
        k->cpu->ops->update_rule(&u, from, n);
    else if (u.copy)
        k->cpu->ops->cast(ku_cpu_at(&c->out[n_state], from), u.copy_dtype, u.p + from, KUMI_F32, n);
}

static int bind_in_place(struct ku_kernel *k, int n_state, ku_cpu_tile_fn *fn)
{
    const struct ku_call *c = &k->call;
    for (int i = 0; i < n_state; i++) {
        KU_TRY(ku_cpu_check(k, i ? "state" : "parameter", &c->in[i], KUMI_F32));
        if (c->in[i].data != c->out[i].data)
            return KU_ERR(KUMI_EINVAL,
                          "device cpu: %s: operand %d is updated in place; give one buffer",
                          ku_ops[c->op].name, i);
    }
    KU_TRY(ku_cpu_check(k, "report", &c->in[c->n_in - 1], KUMI_F64));
    k->count = ku_cpu_count(&c->out[0]);
    k->per_tile = KU_CPU_TILE_COUNT;
    ku_cpu_phase(k, fn, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}
static int bind_rule(struct ku_kernel *k)
{
    const int n_state = ku_ops[k->call.op].min_out;
    KU_TRY(ku_cpu_check_float(k, "gradient", &k->call.in[n_state]));
    if (k->call.n_out > n_state)
        KU_TRY(ku_cpu_check_float(k, "copy", &k->call.out[n_state]));
    return bind_in_place(k, n_state, tile_rule);
}
int ku_cpu_bind_adagrad(struct ku_kernel *k)
{
    return bind_rule(k);
}
int ku_cpu_bind_lion(struct ku_kernel *k)
{
    return bind_rule(k);
}
int ku_cpu_bind_rmsprop(struct ku_kernel *k)
{
    return bind_rule(k);
}
int ku_cpu_bind_rmsprop_momentum(struct ku_kernel *k)
{
    return bind_rule(k);
}
int ku_cpu_bind_rmsprop_centered(struct ku_kernel *k)
{
    return bind_rule(k);
}
int ku_cpu_bind_rmsprop_both(struct ku_kernel *k)
{
    return bind_rule(k);
}

static void tile_ema(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    const double *report = c->in[2].data;
    const double keep = ku_ema_decay(&k->attr, report[KU_REPORT_UPDATE]);
    float *average = c->out[0].data;
    const float *p = c->in[1].data;
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    if (report[KU_REPORT_APPLY] == 0)
        return;
    if (keep == 0)
        memcpy(average + from, p + from, (size_t)n * sizeof *p);
    else
        k->cpu->ops->ema(average + from, p + from, (float)(1 - keep), n);
}
int ku_cpu_bind_ema(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check(k, "parameter", &k->call.in[1], KUMI_F32));
    return bind_in_place(k, 1, tile_ema);
}
