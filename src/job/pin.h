/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_PIN_H
#define KU_JOB_PIN_H

#include <stdbool.h>

#include "base/err.h"

/*
 * Binding of ranks to cores (hwloc): n disjoint sets of `threads` hardware threads, spread over the
 * CPUs that this process may use.
 *
 * The sets depend on those CPUs, n and threads alone. Two jobs with the same CPUs that are both
 * bound, in one shell or in two containers of a machine, therefore get the same cores and share
 * them while others idle. So by default a job is bound only where a second one like it would find
 * no cores of its own: its threads are more than half of the CPUs that it may run on, and no quota
 * says that it has fewer of them.
 */
enum ku_pinning {
    KU_PIN_AUTO,
    KU_PIN_NEVER,
    KU_PIN_ALWAYS, /* where there is a CPU for each thread */
};
/* KUMI_PIN: KU_PIN_ALWAYS, KU_PIN_NEVER; unset: KU_PIN_AUTO. Errors: KUMI_EINVAL. */
KU_STATUS ku_pin_setting(enum ku_pinning *pinning);
/*
 * Whether n ranks of `threads` compute threads are to be bound.
 *
 *   n_allowed   CPUs that this process may run on
 *   n_cpus      those that it may use at a time: n_allowed, or fewer by a quota
 */
bool ku_pin_is_due(enum ku_pinning pinning, int n, int threads, int n_allowed, int n_cpus);

/*
 * NULL: the ranks are not bound. It is not due, there are too few CPUs, or the topology is unknown.
 */
struct ku_pin;
struct ku_pin *ku_pin_create(enum ku_pinning pinning, int n, int threads);
void ku_pin_destroy(struct ku_pin *pin); /* takes NULL */
/*
 * Bind the calling thread and the threads that it creates. NULL: no effect.
 */
void ku_pin_apply(const struct ku_pin *pin, int rank);

#endif
