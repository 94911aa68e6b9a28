/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_PRECISION_POLICY_H
#define KU_CONFIG_PRECISION_POLICY_H

#include "pass/pass.h"
#include "config/config.h"

/* What a configuration's section precision says (docs/reference/precision-policy.md). */

/* What no single key of it shows. Errors: KUMI_EINVAL. */
int ku_precision_check(const struct ku_config *c);
/* As the compiler is told. Patterns stay the configuration's. */
int ku_precision_opts(const struct ku_config *c, struct ku_compile_opts *o);
/* compute, and what differs from its defaults, for headers: "bf16, no master, gradients bf16". */
void ku_precision_print(const struct ku_config *c, struct ku_str *out);
/* The table of ops, for `kumi help precision`. */
void ku_precision_help(int as_markdown, struct ku_str *out);

#endif
