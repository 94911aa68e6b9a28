/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_EXEC_POISON_H
#define KU_EXEC_POISON_H

#include "ir/program.h"

/*
 * Under AddressSanitizer every byte of arena `step` that no living buffer holds is poisoned, from
 * instruction to instruction: a memory plan that ends a life too early, or a kernel that touches
 * what it was not given, is a report. Otherwise nothing happens.
 */
struct ku_poison;

/* Errors: KUMI_ENOMEM. Elsewhere *poison is NULL. Borrows p and the arena. */
int ku_poison_create(const struct ku_program *p, unsigned char *arena, struct ku_poison **poison);
void ku_poison_destroy(struct ku_poison *poison); /* NULL is fine; nothing is poisoned any more */
/* At a run's begin, arena_bytes being the arena's; then before each of its instructions. */
void ku_poison_begin(struct ku_poison *poison, size_t arena_bytes);
void ku_poison_before(struct ku_poison *poison, uint32_t instr);

#endif
