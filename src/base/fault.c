/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/err.h"
#include "base/log.h"

/* Set once, before other threads get here; all threads decrement calls_left. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int armed;       /* enum ku_fault */
static atomic_long calls_left; /* until the call that fails */

static enum ku_fault parse(const char *spec, long *n)
{
    static const struct {
        const char *word;
        enum ku_fault kind;
    } table[] = {{"mem:", KU_FAULT_MEM},   {"os:", KU_FAULT_OS},   {"write:", KU_FAULT_WRITE},
                 {"kill:", KU_FAULT_KILL}, {"bug:", KU_FAULT_BUG}, {"flip:", KU_FAULT_FLIP},
                 {"hang:", KU_FAULT_HANG}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        size_t bytes = strlen(table[i].word);
        char *end;
        if (strncmp(spec, table[i].word, bytes) != 0)
            continue;
        *n = strtol(spec + bytes, &end, 10);
        if (*n >= 1 && *end == '\0')
            return table[i].kind;
    }
    ku_log_line("kumi: KUMI_FAULT: %.80s: unknown; write mem:N, os:N, write:N, kill:N, bug:N, "
                "flip:N or hang:N, N from 1",
                spec);
    return KU_FAULT_NONE;
}

static void arm(const char *spec)
{
    long n = 0;
    enum ku_fault kind = spec && *spec ? parse(spec, &n) : KU_FAULT_NONE;
    atomic_store(&calls_left, n);
    atomic_store(&armed, (int)kind);
}

static void read_environment(void)
{
    arm(ku_env("KUMI_FAULT"));
}

void ku_fault_set(const char *spec)
{
    pthread_once(&once, read_environment);
    arm(spec);
}

bool ku_fault_is_due(enum ku_fault kind)
{
    pthread_once(&once, read_environment);
    enum ku_fault now = (enum ku_fault)atomic_load_explicit(&armed, memory_order_relaxed);
    if (now == KU_FAULT_NONE)
        return 0;
    if (now == KU_FAULT_BUG && kind == KU_FAULT_MEM)
        KU_ASSERT(atomic_fetch_sub(&calls_left, 1) != 1);
    int is_system_call = kind == KU_FAULT_OS || kind == KU_FAULT_WRITE;
    if (now != kind && !(is_system_call && (now == KU_FAULT_OS || now == KU_FAULT_KILL)))
        return 0;
    long before = atomic_fetch_sub(&calls_left, 1);
    if (now == KU_FAULT_WRITE ? before > 1 : before != 1)
        return 0;
    if (now == KU_FAULT_KILL)
        raise(SIGKILL);
    errno = now == KU_FAULT_MEM ? ENOMEM : now == KU_FAULT_OS ? EIO : ENOSPC;
    return 1;
}
