/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_PRECISION_POLICY_H
#define KU_CONFIG_PRECISION_POLICY_H

#include "base/err.h"
#include "pass/pass.h"
#include "config/config.h"

/* The section precision (docs/reference/precision-policy.md). */

/* Checks conditions between its keys. Errors: EINVAL. */
KU_STATUS ku_precision_check(const struct ku_config *c);
/* Sets the compiler's precision options. Patterns are borrowed. */
KU_STATUS ku_precision_opts(const struct ku_config *c, struct ku_compile_opts *o);
/* The narrowest compute dtype of the model and its modules; f16 before bf16. */
const char *ku_precision_narrowest(const struct ku_config *c);
/* precision_modules.c: checks precision.modules against the other keys, and prints it for the
 * header: ", h.*.mlp: compute bf16 output f32". */
KU_STATUS ku_modules_check(const struct ku_config *c);
void ku_modules_print(const struct ku_modules_key *key, struct ku_str *out);
/* Prints compute and the values that differ from its defaults: "bf16, no master, gradients
 * bf16". */
void ku_precision_print(const struct ku_config *c, struct ku_str *out);
/* Prints the table of ops for `kumi help precision`. */
void ku_precision_help(int as_markdown, struct ku_str *out);

#endif
