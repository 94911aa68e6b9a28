/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cpu/caches.h"

#include <hwloc.h>
#include <pthread.h>

/* The smallest of the last ten years' server cores; a shape for them runs well in larger caches. */
enum { L1D_BYTES = 32 << 10, L2_BYTES = 512 << 10 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct ku_caches found;

/* The smallest cache of a type: its size and its cores. 0: the topology has none, or no sizes. */
static int64_t smallest(hwloc_topology_t t, hwloc_obj_type_t type, int *n_cores)
{
    int64_t bytes = 0;
    for (hwloc_obj_t o = hwloc_get_next_obj_by_type(t, type, NULL); o != NULL;
         o = hwloc_get_next_obj_by_type(t, type, o)) {
        const int64_t size = (int64_t)o->attr->cache.size;
        const int n = hwloc_get_nbobjs_inside_cpuset_by_type(t, o->cpuset, HWLOC_OBJ_CORE);
        if (size > 0 && (bytes == 0 || size < bytes))
            bytes = size, *n_cores = n > 0 ? n : 1;
    }
    return bytes;
}

static void detect(void)
{
    hwloc_topology_t t;
    int l1_cores = 1, l2_cores = 1, l3_cores = 1;
    found = (struct ku_caches){.l1d_bytes = L1D_BYTES, .l2_bytes = L2_BYTES, .l3_cores = 1};
    if (hwloc_topology_init(&t) < 0)
        return;
    if (hwloc_topology_load(t) == 0) {
        const int64_t l1 = smallest(t, HWLOC_OBJ_L1CACHE, &l1_cores);
        const int64_t l2 = smallest(t, HWLOC_OBJ_L2CACHE, &l2_cores);
        found.l1d_bytes = l1 ? l1 / l1_cores : L1D_BYTES;
        found.l2_bytes = l2 ? l2 / l2_cores : L2_BYTES;
        found.l3_bytes = smallest(t, HWLOC_OBJ_L3CACHE, &l3_cores);
        found.l3_cores = l3_cores;
    }
    hwloc_topology_destroy(t);
}

const struct ku_caches *ku_caches_here(void)
{
    (void)pthread_once(&once, detect);
    return &found;
}
