/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_PIN_H
#define KU_COMM_PIN_H

/*
 * Cores for ranks: n disjoint sets of `threads` hardware threads each, spread over the machine
 * (hwloc), within what this process may use. NULL when the machine has too few or its topology is
 * unknown: then nobody is bound.
 */
struct ku_pin;
struct ku_pin *ku_pin_create(int n, int threads);
void ku_pin_destroy(struct ku_pin *pin); /* takes NULL */
void ku_pin_apply(const struct ku_pin *pin,
                  int rank); /* binds the calling thread and those that it makes; NULL: nothing */

#endif
