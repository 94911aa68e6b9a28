/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_SPACE_H
#define KU_PASS_SPACE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * An arena's addresses over time: rectangles [first, last] x [offset, offset + bytes) that do not
 * overlap, each placed at the lowest offset that is free during its whole live range. In practice a
 * placement costs O(log^2 n), however many buffers are alive (space.c).
 */
struct ku_space;

/*
 * Create an empty address space.
 *
 *   n_times   times are 0 .. n_times - 1; at least 1
 *   base      the lowest offset, bytes
 *
 * Errors: ENOMEM.
 */
KU_STATUS ku_space_create(uint32_t n_times, size_t base, struct ku_space **space);
void ku_space_destroy(struct ku_space *space); /* NULL: nothing */

/*
 * Reserve the lowest free offset.
 *
 *   first, last   the live range in times, both included
 *   bytes         a multiple of align; 0 reserves nothing and gives base
 *   align         a power of two that divides base
 *   offset        result, a multiple of align
 *
 * Errors: ENOMEM.
 */
KU_STATUS ku_space_place(struct ku_space *space, uint32_t first, uint32_t last, size_t bytes,
                         size_t align, size_t *offset);

/* Elementary operations on spans so far; a test compares them with n log n. */
uint64_t ku_space_steps(const struct ku_space *space);

#endif
