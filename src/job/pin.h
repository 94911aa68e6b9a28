/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_PIN_H
#define KU_JOB_PIN_H

/*
 * Binding of ranks to cores (hwloc): n disjoint sets of `threads` hardware threads, spread over the
 * CPUs that this process may use. ku_pin_create returns NULL if there are too few or if the
 * topology is unknown; then ranks are not bound.
 */
struct ku_pin;
struct ku_pin *ku_pin_create(int n, int threads);
void ku_pin_destroy(struct ku_pin *pin); /* takes NULL */
/*
 * Bind the calling thread and the threads that it creates. NULL: no effect.
 */
void ku_pin_apply(const struct ku_pin *pin, int rank);

#endif
