/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_PLACE_USER_PLAN_H
#define KU_PASS_PLACE_USER_PLAN_H

#include "base/err.h"
#include "ir/graph.h"
#include "op/tensor_plan.h"

struct ku_compile_opts;

/* The user's tensor-parallel plan (op/tensor_plan.h) over the tensors of a graph. */
struct ku_styles {
    const struct ku_graph *g;
    const struct ku_compile_opts *o;
    unsigned char *style; /* per tensor: enum ku_tp_style */
    /* Per tensor: why it stays whole, "reads it whole", and the node that does; NULL: no reason */
    struct ku_why {
        const char *what;
        ku_id node;
    } * why;
};

/* Errors: EINVAL: a pattern matches no module, with the nearest; ENOMEM. */
KU_STATUS ku_styles_create(const struct ku_graph *g, const struct ku_compile_opts *o,
                           struct ku_styles *s);
void ku_styles_fini(struct ku_styles *s);
enum ku_tp_style ku_styles_of(const struct ku_styles *s, ku_id tensor);
/* The letter of the dim to divide a tensor along; `letter`: that of the default plan. 0: none. */
char ku_styles_letter(const struct ku_styles *s, ku_id tensor, char letter);
/* Notes why a tensor stays whole; the first reason counts. */
void ku_styles_note(struct ku_styles *s, ku_id tensor, ku_id node, const char *what);
/*
 * Checks the chosen plan: letter per tensor. Errors: EINVAL: the plan cannot hold, with tensor,
 * axis and reason.
 */
KU_STATUS ku_styles_check(const struct ku_styles *s, const char *letter);

#endif
