/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_OS_GUARD_H
#define KU_BASE_OS_GUARD_H

#include <stddef.h>

#include "base/err.h"

/*
 * Pages that are accessible only during declared accesses, to find code that does not declare its
 * own. Any other access ends the process (SIGSEGV), or fails with EFAULT in a system call. Accesses
 * nest, and threads overlap: a count decides.
 *
 *     thread A    begin ─────────────── end
 *     thread B             begin ─────────────── end
 *     pages       | ........ accessible ........ |     inaccessible (PROT_NONE) otherwise
 *
 * All functions but create accept NULL: pages without a guard are always accessible.
 * Threads: any.
 */
struct ku_guard;
/*
 * Make the pages of a mapping inaccessible. `at` is the start of a page. Errors: KUMI_ENOMEM.
 */
KU_STATUS ku_guard_create(void *at, size_t bytes, struct ku_guard **guard);
void ku_guard_destroy(struct ku_guard *guard); /* the pages are accessible again */
void ku_guard_begin(struct ku_guard *guard);
void ku_guard_end(struct ku_guard *guard);

#endif
