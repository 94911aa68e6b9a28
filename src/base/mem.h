/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_MEM_H
#define KU_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * Memory allocation. This is the only place that calls malloc. Every function returns NULL with the
 * error record set (KUMI_ENOMEM) if memory is short or a size overflows; 0 bytes give a unique
 * pointer. Faults can be injected (base/fault.h).
 */
void *ku_malloc(size_t bytes);
void *ku_calloc(size_t count, size_t bytes);
void *ku_realloc(void *old, size_t count, size_t bytes); /* old stays valid on failure */
void *ku_malloc_aligned(size_t align, size_t bytes);     /* free with ku_free */
char *ku_strdup(const char *text);
char *ku_asprintf(const char *format, ...) __attribute__((format(printf, 1, 2)));
void ku_free(void *old); /* NULL is allowed */

/*
 * Makes room for one more element at the end of an array.
 *
 *     struct ku_node *node; uint32_t n_nodes, cap_nodes;
 *     KU_TRY(KU_GROW(&g->node, g->n_nodes, &g->cap_nodes));
 *
 * Returns 0 or KUMI_ENOMEM. New elements are zero.
 */
#define KU_GROW(array, count, cap) ku_grow((void **)(array), sizeof **(array), (count), 1, (cap))
KU_STATUS ku_grow(void **array, size_t bytes_each, uint32_t count, uint32_t more, uint32_t *cap);

/*
 * Checked size arithmetic. Returns 0 and sets *out, or returns KUMI_ENOMEM ("size overflow").
 */
KU_STATUS ku_mul_size(size_t a, size_t b, size_t *out);
KU_STATUS ku_add_size(size_t a, size_t b, size_t *out);

#endif
