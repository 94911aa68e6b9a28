/* SPDX-License-Identifier: Apache-2.0 */
#include "device/host_memory.h"

#include <sys/mman.h>

#include "base/err.h"
#include "base/os/ipc.h"
#include "base/os/os.h"

int ku_host_alloc(void *dev, const char *what, size_t bytes, void **at)
{
    (void)dev;
    void *p = ku_os_mmap(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                         -1, 0);
    if (p == NULL)
        return KU_ERR(KUMI_ENOMEM, "memory: %s: %zu bytes: %s; see `kumi plan --memory`", what,
                      bytes, ku_os_why());
    ku_os_populate(p, bytes);
    *at = p;
    return KUMI_OK;
}

void ku_host_free(void *dev, void *at, size_t bytes)
{
    (void)dev;
    ku_os_munmap(at, bytes);
}

int ku_host_map(void *dev, void *at, size_t bytes, int access, void **host)
{
    (void)dev, (void)bytes, (void)access;
    *host = at;
    return KUMI_OK;
}

int ku_host_unmap(void *dev, void *at, size_t bytes, int access, void *host)
{
    (void)dev, (void)at, (void)bytes, (void)access, (void)host;
    return KUMI_OK;
}
