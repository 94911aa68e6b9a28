/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_EXEC_POISON_H
#define KU_EXEC_POISON_H

#include "base/err.h"
#include "ir/program.h"

/*
 * Checks the memory plan at run time. In AddressSanitizer builds, memory of arena `step` outside
 * the live range of every buffer is poisoned between instructions. A plan that ends a live range
 * too early, or a kernel that accesses memory outside its operands, is then reported. In other
 * builds these functions do nothing.
 *
 *     instr    0    1    2    3    4
 *     buf a    [---------]  x    x        x = poisoned
 *     buf b    x    [---------]  x
 */
struct ku_poison;

/*
 * Borrows p and the arena. Without AddressSanitizer *poison is NULL. Errors: KUMI_ENOMEM.
 */
KU_STATUS ku_poison_create(const struct ku_program *p, unsigned char *arena,
                           struct ku_poison **poison);
void ku_poison_destroy(struct ku_poison *poison); /* unpoisons the arena; NULL is allowed */
/* ku_poison_begin is called at the start of a run, ku_poison_before before each instruction. */
void ku_poison_begin(struct ku_poison *poison, size_t arena_bytes);
void ku_poison_before(struct ku_poison *poison, uint32_t instr);

#endif
