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

static ku_workspace_fn *const workspace_of[KU_N_OPS] = {
#define KU_OP(name, min_in, max_in, min_out, max_out, traits, map, sum, inout, alias, grad, infer, \
              cost, operands, workspace)                                                           \
    [KU_OP_##name] = ku_ref_workspace_##workspace,
#include "op/ops.def"
#undef KU_OP
};

/* The oracle computes these families without memory. */
#define WITHOUT(family)                                                                            \
    size_t ku_ref_workspace_##family(const struct ku_op_case *c)                                   \
    {                                                                                              \
        (void)c;                                                                                   \
        return 0;                                                                                  \
    }
WITHOUT(none)
WITHOUT(product)
WITHOUT(slices)
WITHOUT(norm)
WITHOUT(lists)
WITHOUT(trust)
WITHOUT(chunks)
WITHOUT(conv)

static bool is_of_form(char form, enum kumi_dtype d)
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
    const char *form = info->operands;
    if (form[0] == '\0')
        return KU_ERR(KUMI_EBUG,
                      "device ref: %s: not a computation; lowering turns it into accumulations and "
                      "collectives",
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
        return KU_ERR(KUMI_EINVAL, "device ref: %s: p=%g; give 0 <= p < 1", info->name, c->attr->p);
    struct ku_slices slices;
    if (c->op == KU_OP_linear || c->op == KU_OP_linear_dx)
        KU_TRY(ku_slices_of(c->op, c->attr, &c->in[1].shape, &slices));
    if (c->op == KU_OP_linear_db || c->op == KU_OP_layer_norm_dgb || c->op == KU_OP_rms_norm_dg)
        KU_TRY(ku_slices_of_tokens(c->op, c->attr, &c->in[0].shape, &slices));
    if (c->op == KU_OP_xent_sums)
        KU_TRY(ku_slices_of_last(c->attr, &c->in[0].shape, &slices));
    if ((info->traits & KU_OP_CHUNKS) && ku_view_is_flat(&c->in[0]) &&
        c->in[0].start[0] % KU_BLOCK_COUNT != 0)
        return KU_ERR(
            KUMI_EINVAL,
            "device ref: %s: the part begins at element %lld; it must begin at a multiple of %d",
            info->name, (long long)c->in[0].start[0], KU_BLOCK_COUNT);
    return KUMI_OK;
}

void ku_ref_tree_add(struct ku_ref_tree *t, double sum)
{
    int at = ku_slices_node(t->n);
    const bool is_f32 = t->dtype == KUMI_F32;
    t->node[at] = is_f32 ? (double)(float)sum : sum;
    for (int n = ku_slices_folds(t->n_slices, t->n); n > 0; n--, at--) {
        const double both = t->node[at - 1] + t->node[at];
        t->node[at - 1] = is_f32 ? (double)(float)both : both;
    }
    t->n++;
}

double ku_ref_sum_rows(const struct ku_call *c, int64_t n_rows, int64_t column, ku_ref_term *term)
{
    const bool is_f64 = c->out[0].dtype == KUMI_F64;
    struct ku_slices s;
    const int status = ku_slices_of_tokens(c->op, c->attr, &c->in[0].shape, &s);
    struct ku_ref_tree tree = {.dtype = is_f64 ? KUMI_F64 : KUMI_F32, .n_slices = s.n};
    double sum = 0;
    KU_ASSERT(status == KUMI_OK); /* check() */
    for (int64_t r = 0; r < n_rows && s.n == 0; r++)
        sum += term(c, r, column);
    for (int64_t slice = 0; slice < s.n; slice++, sum = 0) {
        for (int64_t o = 0; o < s.outer; o++)
            for (int64_t r = (o * s.n + slice) * s.run, end = r + s.run; r < end; r++)
                sum += term(c, r, column);
        ku_ref_tree_add(&tree, sum);
    }
    return s.n ? tree.node[0] : sum;
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
    size_t bytes = workspace_of[c->op](c);
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
