/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_VECTOR_H
#define KU_PS_VECTOR_H

#include <stdint.h>

#include "base/err.h"
#include "ps/proto.h"

/*
 * The parameter server of the textbooks: one vector of f32 that begins with zeros, and an optimizer
 * that is applied to every gradient on arrival, under a lock. The optimizer is an op of op/ops.def
 * on the CPU device, with the keys and defaults of the configuration's section `optimizer`; those
 * that work element by element are possible.
 */
enum { KU_PS_MAX_VECTOR = 1 << 28 }; /* elements: a message has less than 2^31 bytes */

struct ku_ps_vector;
struct ku_ps_vector_opts {
    int64_t count;         /* 1 .. KU_PS_MAX_VECTOR */
    const char *optimizer; /* optimizer.type; NULL: sgd */
    double lr;
    const char *const *set; /* [n_set] "optimizer.momentum=0.9" */
    int n_set;
};
/* Errors: KUMI_EINVAL (which value, and what is allowed), ENOMEM. */
KU_STATUS ku_ps_vector_create(const struct ku_ps_vector_opts *o, struct ku_ps_vector **v);
void ku_ps_vector_destroy(struct ku_ps_vector *v); /* NULL is allowed */
int64_t ku_ps_vector_count(const struct ku_ps_vector *v);
/*
 * Apply the gradients of a message GradientRequest (proto/parameter_server.proto).
 *
 *   n_updates   out: updates so far, with this one
 *
 * Threads: any. Errors: KUMI_EINVAL, nothing changed: another length, a number that is not finite,
 * a negative worker, a malformed message.
 */
KU_STATUS ku_ps_vector_push(struct ku_ps_vector *v, struct ku_proto_in *in, int64_t *n_updates);
/* Copy all parameters, as f32. Threads: any. */
void ku_ps_vector_pull(struct ku_ps_vector *v, void *out); /* of any alignment */

#endif
