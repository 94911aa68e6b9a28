/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_FAULT_H
#define KU_BASE_FAULT_H

#include <stdbool.h>

/*
 * Fault injection for tests. The environment variable KUMI_FAULT selects one fault. It is read at
 * the first use; an unknown kind or a count below 1 is reported once on stderr and ignored.
 *
 *     mem:N    the N-th allocation of the process fails (ENOMEM)
 *     os:N     the N-th system call made through base fails (EIO)
 *     write:N  every write from the N-th on fails (ENOSPC)
 *     kill:N   SIGKILL in place of the N-th system call made through base
 *     bug:N    KU_ASSERT fails at the N-th allocation
 *     flip:N   a bit flips in the N-th tensor that is compared with its replicas
 *     hang:N   the N-th piece of a transfer to or from an offload file never ends
 */
enum ku_fault {
    KU_FAULT_NONE,
    KU_FAULT_MEM,
    KU_FAULT_OS,
    KU_FAULT_WRITE,
    KU_FAULT_KILL,
    KU_FAULT_BUG,
    KU_FAULT_FLIP,
    KU_FAULT_HANG
};

/*
 * Returns 1 if this call must fail (KU_FAULT_FLIP: flip a bit; KU_FAULT_HANG: hang), with errno
 * set. KU_FAULT_WRITE calls count as system calls too.
 */
bool ku_fault_is_due(enum ku_fault kind);
/*
 * Behaves as if the process started now with KUMI_FAULT=spec; NULL: no fault. For tests, with one
 * thread running.
 */
void ku_fault_set(const char *spec);

#endif
