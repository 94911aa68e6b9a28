/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_SPACE_H
#define KU_PASS_SPACE_H

#include <stddef.h>
#include <stdint.h>

/*
 * Address space over time: rectangles [first, last] x [offset, offset + bytes) that do not overlap,
 * each placed at the lowest offset that is free during its whole life. In practice a placement
 * costs O(log^2 n) whatever is alive (space.c).
 */
struct ku_space;

/* n_times: times are 0 .. n_times - 1, at least one. base: the lowest offset. KUMI_ENOMEM. */
int ku_space_create(uint32_t n_times, size_t base, struct ku_space **space);
void ku_space_destroy(struct ku_space *space); /* NULL is fine */

/*
 * Takes the lowest free offset.
 *
 *   first, last   the times, both included
 *   bytes         a multiple of align; 0 takes nothing and lies at base
 *   align         a power of two that divides base
 *
 * Errors: ENOMEM.
 */
int ku_space_place(struct ku_space *space, uint32_t first, uint32_t last, size_t bytes,
                   size_t align, size_t *offset);

/* Elementary steps so far (visits of a span of addresses): what a test holds against n log n. */
uint64_t ku_space_steps(const struct ku_space *space);

#endif
