/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_PRECISION_RULES_H
#define KU_PASS_PRECISION_RULES_H

#include "base/err.h"
#include "pass/pass.h"

/*
 * Which rule of precision.modules governs a module. The first rule that matches counts; a module
 * that none matches follows the options for the whole model. precision.keep_f32 is a rule after all
 * others: {compute f32}.
 *
 * A pattern matches a module path or an enclosing module and, without a dot, any one name of a
 * path. The module instance of h.3.mlp.c_fc is the shortest path that matches:
 *
 *     "h.*.mlp"   h.3.mlp
 *     "mlp"       h.3.mlp
 *     "h.*"       h.3
 *
 * An op also belongs to the modules whose parameters it reads: an output layer tied to the
 * embedding belongs to both. A parameter or buffer belongs to the module in its name alone.
 */

/* The rule of a node; NULL: none. n_bytes, if not NULL: the length of the instance's path. */
const struct ku_precision_rule *ku_precision_of_node(const struct ku_graph *g,
                                                     const struct ku_compile_opts *o, ku_id node,
                                                     int *n_bytes);
/* The rule of precision.modules for a parameter or buffer; NULL: none. */
const struct ku_precision_rule *
ku_precision_of_tensor(const struct ku_graph *g, const struct ku_compile_opts *o, ku_id tensor);
/* The wire dtype of a parameter's gradient. */
enum kumi_dtype ku_precision_wire(const struct ku_graph *g, const struct ku_compile_opts *o,
                                  ku_id tensor);
/* Refuses patterns that match no module of a trained model, and dtypes of rules whose modules have
 * nothing to apply them to. Errors: EINVAL. */
KU_STATUS ku_precision_check_rules(const struct ku_graph *g, const struct ku_compile_opts *o);

#endif
