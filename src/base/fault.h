/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_FAULT_H
#define KU_BASE_FAULT_H

/*
 * Faults on purpose, for tests: KUMI_FAULT=mem:N fails the N-th allocation of the process, os:N the
 * N-th system call made through base (EIO), write:N every write from the N-th on (ENOSPC), kill:N
 * ends the process by SIGKILL in place of its N-th system call made through base, and bug:N finds
 * an invariant of ours broken at the N-th allocation. Read at the first use; a count below 1 or
 * another word is named once on stderr and ignored.
 */
enum ku_fault {
    KU_FAULT_NONE,
    KU_FAULT_MEM,
    KU_FAULT_OS,
    KU_FAULT_WRITE,
    KU_FAULT_KILL,
    KU_FAULT_BUG
};

/* 1 when this call shall fail; sets errno. KU_FAULT_WRITE calls are system calls, too. */
int ku_fault_is_due(enum ku_fault kind);
/* As if the process began now with KUMI_FAULT=spec; NULL: none. For tests, while one thread runs.
 */
void ku_fault_set(const char *spec);

#endif
