/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/guard.h"

#include <pthread.h>
#include <sys/mman.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"

struct ku_guard {
    pthread_mutex_t lock; /* protects n_open and the pages' protection */
    int n_open;
    void *at;
    size_t bytes;
};

static void protect(const struct ku_guard *g, int prot)
{
    int result = ku_os_mprotect(g->at, g->bytes, prot);
    KU_ASSERT(result == 0);
}

int ku_guard_create(void *at, size_t bytes, struct ku_guard **guard)
{
    struct ku_guard *g = ku_calloc(1, sizeof *g);
    if (g == NULL)
        return KUMI_ENOMEM;
    g->at = at;
    g->bytes = bytes;
    pthread_mutex_init(&g->lock, NULL);
    if (ku_os_mprotect(at, bytes, PROT_NONE) < 0) {
        int status = KU_ERR(KUMI_ENOMEM, "memory: protecting %zu bytes: %s", bytes, ku_os_why());
        ku_guard_destroy(g);
        return status;
    }
    *guard = g;
    return KUMI_OK;
}

void ku_guard_destroy(struct ku_guard *g)
{
    if (g == NULL)
        return;
    protect(g, PROT_READ | PROT_WRITE);
    pthread_mutex_destroy(&g->lock);
    ku_free(g);
}

void ku_guard_begin(struct ku_guard *g)
{
    if (g == NULL)
        return;
    pthread_mutex_lock(&g->lock);
    if (g->n_open++ == 0)
        protect(g, PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&g->lock);
}

void ku_guard_end(struct ku_guard *g)
{
    if (g == NULL)
        return;
    pthread_mutex_lock(&g->lock);
    KU_ASSERT(g->n_open > 0);
    if (--g->n_open == 0)
        protect(g, PROT_NONE);
    pthread_mutex_unlock(&g->lock);
}
