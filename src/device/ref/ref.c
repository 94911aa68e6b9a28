/* SPDX-License-Identifier: Apache-2.0 */
#include "device/ref/ref.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "device/host_memory.h"

typedef void ref_fn(const struct ku_call *c, struct ku_ref_poll *poll);
struct ku_kernel {
    struct ku_call call;
    struct ku_attrs attr;
    ref_fn *run;
};

static ref_fn *const run_of[KU_N_OPS] = {
#define KU_OP(name, ...) [KU_OP_##name] = ku_ref_##name,
#include "op/ops.def"
#undef KU_OP
};

/*
 * The dtypes of an op's inputs and outputs: f any float, i i32, u u16, w i64, d f64, s a sum (f32,
 * f64 or i64), * any. Optional operands are last on their side.
 */
static const char *const form_of[KU_N_OPS] = {
    [KU_OP_embedding] = "fi>f",
    [KU_OP_embedding_dw] = "if>f",
    [KU_OP_add_rows] = "ff>f",
    [KU_OP_add_rows_dw] = "f>f",
    [KU_OP_linear] = "fff>ff",
    [KU_OP_linear_dx] = "ff>f",
    [KU_OP_linear_dw] = "ff>f",
    [KU_OP_linear_db] = "f>f",
    [KU_OP_act] = "f>f",
    [KU_OP_act_dx] = "ff>f",
    [KU_OP_glu] = "ff>f",
    [KU_OP_glu_dx] = "fff>ff",
    [KU_OP_add] = "ff>f",
    [KU_OP_mul] = "ff>f",
    [KU_OP_scale] = "f>f",
    [KU_OP_sinusoid] = ">f",
    [KU_OP_dropout] = "fw>f",
    [KU_OP_layer_norm] = "fff>fff",
    [KU_OP_layer_norm_dx] = "fffff>f",
    [KU_OP_layer_norm_dgb] = "ffff>ff",
    [KU_OP_rms_norm] = "ff>ff",
    [KU_OP_rms_norm_dx] = "ffff>f",
    [KU_OP_rms_norm_dg] = "fff>f",
    [KU_OP_rope] = "fi>f",
    [KU_OP_rope_dx] = "fi>f",
    [KU_OP_batch_norm_sums] = "f>d",
    [KU_OP_batch_norm_moments] = "dffw>fff",
    [KU_OP_batch_norm] = "ffffff>f",
    [KU_OP_batch_norm_dsums] = "fffff>ffdf",
    [KU_OP_batch_norm_dx] = "fffffd>f",
    [KU_OP_attention] = "f**>ff", /* inference checks masks and the control input */
    [KU_OP_attention_dx] = "ffff**>f",
    [KU_OP_attention_kv] = "fff***>ff",
    [KU_OP_attention_kv_dx] = "ffffff***>fff",
    [KU_OP_softmax_xent] = "fi>ff",
    [KU_OP_softmax_xent_dx] = "ffif>f",
    [KU_OP_top_k] = "fi>f",
    [KU_OP_select] = "fi>f",
    [KU_OP_pick] = "f>f",
    [KU_OP_cache_write] = "ffi>f",
    [KU_OP_conv2d] = "fff>f",
    [KU_OP_conv2d_dx] = "ff>f",
    [KU_OP_conv2d_dw] = "ff>f",
    [KU_OP_max_pool] = "f>fu",
    [KU_OP_max_pool_dx] = "fu>f",
    [KU_OP_avg_pool] = "f>f",
    [KU_OP_avg_pool_dx] = "f>f",
    [KU_OP_flatten] = "f>f",
    [KU_OP_unflatten] = "f>f",
    [KU_OP_rename] = "ff>f",
    [KU_OP_pad_last] = "f>f",
    [KU_OP_crop_last] = "f>f",
    [KU_OP_cast] = "f>f",
    [KU_OP_exact_sum] = "f>w",
    [KU_OP_expand] = "ff>f",
    [KU_OP_count_valid] = "i>w",
    [KU_OP_max_all] = "f>d",
    [KU_OP_loss_seed] = "d>f",
    [KU_OP_fold] = "ss>s",
    [KU_OP_stats_zero] = ">w",
    [KU_OP_sumsq] = "fw>w",
    [KU_OP_step_scalars] = "wwwwd>dw",
    [KU_OP_loss_scaler] = "dd>d",
    [KU_OP_clip_value] = "fd>f",
    [KU_OP_loss_scalars] = "ww>d",
    [KU_OP_adamw] = "ffffd>ffff",
    [KU_OP_adam] = "ffffd>ffff",
    [KU_OP_sgd] = "fffd>fff",
    [KU_OP_adagrad] = "fffd>fff",
    [KU_OP_lion] = "fffd>fff",
    [KU_OP_rmsprop] = "fffd>fff",
    [KU_OP_rmsprop_momentum] = "ffffd>ffff",
    [KU_OP_rmsprop_centered] = "ffffd>ffff",
    [KU_OP_rmsprop_both] = "fffffd>fffff",
    [KU_OP_ema] = "ffd>f",
    [KU_OP_widen] = "ff>f",
    [KU_OP_stochastic_round] = "fw>f",
    [KU_OP_factor_sums] = "fdw>w",
    [KU_OP_factor_means] = "wffd>ffd",
    [KU_OP_factor_norms] = "ffffddw>w",
    [KU_OP_adafactor] = "ffffddd>ff",
    [KU_OP_variance_norms] = "fffdw>fw",
    [KU_OP_adafactor_vector] = "fffdd>ff",
    [KU_OP_trust_sums] = "ffw>w",
    [KU_OP_lamb_moments] = "ffffdw>ffw",
    [KU_OP_trust_norms] = "w>d",
    [KU_OP_lamb] = "fffdd>ff",
    [KU_OP_lars] = "fffdd>fff",
    [KU_OP_batch_norm_track] = "fff>ff",
    [KU_OP_count_up] = "w>w",
    [KU_OP_fill] = "*>*",
    [KU_OP_random_normal] = "fw>f",
    [KU_OP_random_uniform] = "fw>f",
    [KU_OP_derive] = "ff>f",
};

static int is_of_form(char form, enum kumi_dtype d)
{
    switch (form) {
    case 'f':
        return ku_dtype_is_float(d);
    case 'i':
        return d == KUMI_I32;
    case 'u':
        return d == KUMI_U16;
    case 'w':
        return d == KUMI_I64;
    case 'd':
        return d == KUMI_F64;
    case 's':
        return ku_dtype_is_float(d) || d == KUMI_I64;
    case '*':
        return 1;
    }
    return 0;
}

static int check_side(const struct ku_call *c, const char *side, const char *form, int n,
                      const struct ku_view *v)
{
    for (int i = 0; i < n; i++)
        if (!is_of_form(form[i], v[i].dtype))
            return KU_ERR(KUMI_EINVAL, "device ref: %s: %s %d is %s; %s", ku_ops[c->op].name, side,
                          i, kumi_dtype_name(v[i].dtype),
                          form[i] == 'f'   ? "it takes f64, f32, bf16 and f16"
                          : form[i] == 'i' ? "it takes i32"
                          : form[i] == 'u' ? "it takes u16"
                          : form[i] == 'w' ? "it takes i64"
                          : form[i] == 'd' ? "it takes f64"
                                           : "it takes f64, f32, bf16, f16 and i64");
    return KUMI_OK;
}

static int check(const struct ku_call *c)
{
    const struct ku_op_info *info = &ku_ops[c->op];
    const char *form = form_of[c->op];
    if (form == NULL)
        return KU_ERR(KUMI_EBUG,
                      "device ref: %s: not a computation; lowering turns it into folds "
                      "and collectives",
                      info->name);
    if (c->n_in < info->min_in || c->n_in > info->max_in || c->n_out < info->min_out ||
        c->n_out > info->max_out)
        return KU_ERR(KUMI_EINVAL,
                      "device ref: %s: %d inputs, %d outputs; takes %d to %d and %d "
                      "to %d",
                      info->name, c->n_in, c->n_out, info->min_in, info->max_in, info->min_out,
                      info->max_out);
    KU_TRY(check_side(c, "input", form, c->n_in, c->in));
    KU_TRY(check_side(c, "output", strchr(form, '>') + 1, c->n_out, c->out));
    for (int o = 0; o < c->n_out; o++) {
        int i = ku_op_pair(info->inout, o);
        if (i >= 0 && c->in[i].data != c->out[o].data)
            return KU_ERR(KUMI_EINVAL,
                          "device ref: %s: output %d is input %d updated in place; give one buffer",
                          info->name, o, i);
    }
    if (c->accumulate && !(info->traits & KU_OP_ACCUM))
        return KU_ERR(KUMI_EINVAL, "device ref: %s: has no accumulate form", info->name);
    if ((info->traits & KU_OP_RANDOM) && !(c->attr->p >= 0 && c->attr->p < 1))
        return KU_ERR(KUMI_EINVAL, "device ref: %s: p=%g; 0 <= p < 1", info->name, c->attr->p);
    const int is_by_blocks =
        c->op == KU_OP_sumsq || c->op == KU_OP_trust_sums || c->op == KU_OP_lamb_moments;
    if (is_by_blocks && c->in[0].shape.ndim == 1 && c->in[0].start[0] % KU_BLOCK_COUNT != 0)
        return KU_ERR(KUMI_EINVAL, "device ref: %s: part begins at element %lld; a multiple of %d",
                      info->name, (long long)c->in[0].start[0], KU_BLOCK_COUNT);
    return KUMI_OK;
}

static int ref_open(const struct ku_device_opts *opts, void **dev)
{
    (void)opts; /* one thread, one instruction set, no state */
    *dev = NULL;
    return KUMI_OK;
}

static void ref_close(void *dev)
{
    (void)dev;
}

static int ref_query(void *dev, const struct ku_op_case *c, struct ku_target_op *out)
{
    (void)dev;
    size_t bytes = 0;
    if (c->op == KU_OP_attention || c->op == KU_OP_attention_dx || c->op == KU_OP_attention_kv ||
        c->op == KU_OP_attention_kv_dx)
        bytes = ku_ref_workspace_attention(c);
    else if (c->op == KU_OP_rope || c->op == KU_OP_rope_dx)
        bytes = ku_ref_workspace_rope(c);
    *out = (struct ku_target_op){.workspace_bytes = (bytes + 63) / 64 * 64};
    return KUMI_OK;
}

static int ref_bind(void *dev, const struct ku_call *call, struct ku_kernel **kernel)
{
    (void)dev;
    KU_ASSERT(call->op > KU_OP_NONE && call->op < KU_N_OPS);
    struct ku_kernel *k = ku_calloc(1, sizeof *k);
    if (k == NULL)
        return KUMI_ENOMEM;
    k->call = *call;
    k->attr = call->attr ? *call->attr : ku_attrs_default;
    k->call.attr = &k->attr;
    k->run = run_of[call->op];
    int status = check(&k->call);
    if (status < 0) {
        ku_free(k);
        return status;
    }
    *kernel = k;
    return KUMI_OK;
}

static void ref_unbind(void *dev, struct ku_kernel *kernel)
{
    (void)dev;
    ku_free(kernel);
}

static int ref_launch(void *dev, struct ku_kernel *k, void (*hook)(void *), void *hook_ctx)
{
    (void)dev;
    struct ku_ref_poll poll = {.hook = hook, .ctx = hook_ctx};
    k->run(&k->call, &poll);
    if (hook)
        hook(hook_ctx);
    return KUMI_OK;
}

/* The executor changes placements; check() rejects this op. */
void ku_ref_convert(const struct ku_call *c, struct ku_ref_poll *poll)
{
    (void)c, (void)poll;
    KU_ASSERT(!"convert is no computation");
}

const struct ku_device_ops ku_device_ref = {.name = "ref",
                                            .open = ref_open,
                                            .close = ref_close,
                                            .query = ref_query,
                                            .bind = ref_bind,
                                            .unbind = ref_unbind,
                                            .launch = ref_launch,
                                            .add_squares = ku_ref_add_squares,
                                            .alloc = ku_host_alloc,
                                            .free = ku_host_free,
                                            .map = ku_host_map,
                                            .unmap = ku_host_unmap};
