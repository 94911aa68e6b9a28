/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_OP_TEMPLATE_H
#define TESTS_OP_TEMPLATE_H

#include "op/call.h"

/* One statement of an op's gradient template on the operands of a forward call. */
struct op_statement {
    int n_targets, target[KU_MAX_OUT]; /* g<k>: result i is the gradient of input target[i] */
    int passed;                        /* "g0=d0": the adjoint passed on; else -1 and `call` */
    struct op_call call;
};

/* The adjoint of a result: of its type; of an exact sum, the scalar's; of a part of a product,
 * which is f32, the dtype to which the whole is rounded. */
static inline struct ku_view adjoint_make(const struct op_call *c, int out)
{
    const struct ku_view *v = &c->out[out];
    struct ku_shape scalar = {0};
    struct ku_view d =
        v->dtype == KUMI_I64
            ? view_make(c->in[0].dtype == KUMI_F64 ? KUMI_F64 : KUMI_F32, &scalar)
            : view_make(c->op == KU_OP_linear ? c->in[0].dtype : v->dtype, &v->shape);
    fill_normal(&d, 200 + (uint32_t)out, 0);
    return d;
}

static inline const struct ku_view *operand_of(const struct op_call *c, const struct op_result *r,
                                               const struct ku_view *adjoint, const char *name,
                                               const struct op_result *before)
{
    int index = name[1] - '0';
    assert_in_range(index, 0, 9);
    assert_non_null(strchr("iodt", name[0]));
    if (name[0] == 't') {
        assert_in_range(index, 0, before->n - 1);
        return &before->out[index];
    }
    return name[0] == 'i' ? &c->in[index] : name[0] == 'o' ? &r->out[index] : &adjoint[index];
}

/*
 * Parses the next statement of `text` ("g1,g2=op(d0,i0,o1); ...") and binds its operands. Returns
 * what is left, or NULL at the end. Attributes and stream are the forward call's; a cast goes back
 * to the input's dtype.
 *
 *   before   results of the statement before this one on ref, replaced by this one's: begins as {0}
 */
static inline const char *statement_parse(const char *text, const struct op_call *c,
                                          const struct op_result *r, const struct ku_view *adjoint,
                                          struct op_result *before, struct op_statement *s)
{
    char name[32];
    memset(s, 0, sizeof *s);
    s->passed = -1;
    text += strspn(text, "; ");
    if (*text == '\0') {
        result_fini(before);
        return NULL;
    }
    for (; *text == 'g' || *text == ','; text++)
        if (*text == 'g')
            s->target[s->n_targets++] = *++text - '0';
    assert_int_equal(*text++, '=');
    size_t bytes = strcspn(text, "(;");
    assert_in_range(bytes, 1, sizeof name - 1);
    memcpy(name, text, bytes);
    name[bytes] = '\0';
    text += bytes;
    if (*text != '(') {
        assert_int_equal(name[0], 'd');
        s->passed = name[1] - '0';
        return text;
    }
    s->call.op = ku_op_find(name);
    assert_int_not_equal(s->call.op, KU_OP_NONE);
    int n_least = ku_ops[s->call.op].min_out;
    s->call.n_out = s->n_targets > n_least ? s->n_targets : n_least;
    s->call.attr = c->attr;
    s->call.stream = c->stream;
    if (s->call.op == KU_OP_cast)
        s->call.attr.dtype = c->in[0].dtype;
    else if (s->call.op != KU_OP_linear_dx)
        s->call.attr.dtype = -1;
    snprintf(s->call.text, sizeof s->call.text, "%s of %.200s", name, c->text);
    for (text++; text[-1] != ')'; text += 3) {
        if (text[2] != '+') {
            s->call.in[s->call.n_in++] = view_clone(operand_of(c, r, adjoint, text, before));
            continue;
        }
        for (int i = text[1] - '0'; i < c->n_in; i++) /* "i0+": and all behind it */
            s->call.in[s->call.n_in++] = view_clone(&c->in[i]);
        text++;
    }
    call_infer(&s->call);
    result_fini(before);
    if (strstr(text, "t0") || strstr(text, "t1") || strstr(text, "t2")) {
        struct op_device ref = device_open(&ku_device_ref, KU_ISA_BASE, 1);
        *before = call_run(&ref, &s->call, 0);
        device_close(&ref);
    }
    return text;
}
/* Statements for operands that the call does not have (a bias) are left out. */
static inline int statement_is_wanted(const struct op_statement *s, const struct op_call *c)
{
    return s->target[0] < c->n_in;
}

#endif
