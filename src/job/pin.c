/* SPDX-License-Identifier: Apache-2.0 */
#include "job/pin.h"

#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "job/job.h"

#include <hwloc.h>
#include <limits.h>
#include <string.h>

struct ku_pin {
    hwloc_topology_t topology;
    int n;
    hwloc_cpuset_t set[];
};

/* Restrict the topology to the CPUs of this process, if they can be determined. */
static void restrict_to_own(hwloc_topology_t topology)
{
    hwloc_bitmap_t own = hwloc_bitmap_alloc();
    if (own && hwloc_get_cpubind(topology, own, HWLOC_CPUBIND_PROCESS) == 0)
        (void)hwloc_topology_restrict(topology, own, 0);
    hwloc_bitmap_free(own);
}

static int distribute(struct ku_pin *pin, int threads)
{
    int n_sets = pin->n * threads;
    hwloc_obj_t root = hwloc_get_root_obj(pin->topology);
    hwloc_cpuset_t *one = ku_calloc((size_t)n_sets, sizeof(hwloc_cpuset_t));
    if (!one)
        return -1;
    int failed = hwloc_distrib(pin->topology, &root, 1, one, (unsigned)n_sets, INT_MAX, 0) < 0;
    for (int i = 0; i < n_sets && !failed; i++) {
        hwloc_cpuset_t set = pin->set[i / threads];
        hwloc_bitmap_singlify(one[i]);
        hwloc_bitmap_or(set, set, one[i]);
    }
    for (int i = 0; i < n_sets; i++)
        if (one[i])
            hwloc_bitmap_free(one[i]);
    ku_free(one);
    return failed ? -1 : 0;
}

int ku_pin_setting(enum ku_pinning *pinning)
{
    const char *text = ku_env("KUMI_PIN");
    *pinning = KU_PIN_AUTO;
    if (!text)
        return 0;
    if (strcmp(text, "0") && strcmp(text, "1"))
        return KU_ERR(KUMI_EINVAL, "KUMI_PIN: %.60s; give 0 or 1", text);
    *pinning = text[0] == '1' ? KU_PIN_ALWAYS : KU_PIN_NEVER;
    return 0;
}

bool ku_pin_is_due(enum ku_pinning pinning, int n, int threads, int n_allowed, int n_cpus)
{
    const int64_t n_threads = (int64_t)n * threads;
    if (pinning == KU_PIN_NEVER || n_threads > n_allowed)
        return false;
    return pinning == KU_PIN_ALWAYS || (n_cpus == n_allowed && 2 * n_threads > n_allowed);
}

struct ku_pin *ku_pin_create(enum ku_pinning pinning, int n, int threads)
{
    uint64_t mask[KU_OS_CPU_WORDS];
    ku_os_cpus(mask);
    const int n_allowed = ku_cpus_count(mask), n_cpus = ku_os_n_cpus();
    if (!ku_pin_is_due(pinning, n, threads, n_allowed, n_cpus)) {
        KU_LOG(COMM, INFO,
               "ranks are not bound to cores: %d x %d threads, %d CPUs in the affinity mask, %d "
               "within the quotas",
               n, threads, n_allowed, n_cpus);
        return NULL;
    }
    struct ku_pin *pin = ku_calloc(1, sizeof *pin + (size_t)n * sizeof pin->set[0]);
    if (!pin)
        return NULL;
    pin->n = n;
    int failed = hwloc_topology_init(&pin->topology);
    if (failed) {
        ku_free(pin);
        return NULL;
    }
    failed = hwloc_topology_load(pin->topology);
    if (!failed)
        restrict_to_own(pin->topology);
    for (int r = 0; r < n && !failed; r++)
        failed = !(pin->set[r] = hwloc_bitmap_alloc());
    if (!failed)
        failed = hwloc_get_nbobjs_by_type(pin->topology, HWLOC_OBJ_PU) < n * threads ||
                 distribute(pin, threads) < 0;
    if (failed) {
        KU_LOG(COMM, INFO,
               "ranks are not bound to cores: %d x %d threads need more than %d hardware threads",
               n, threads, hwloc_get_nbobjs_by_type(pin->topology, HWLOC_OBJ_PU));
        ku_pin_destroy(pin);
        return NULL;
    }
    return pin;
}

void ku_pin_destroy(struct ku_pin *pin)
{
    if (!pin)
        return;
    for (int r = 0; r < pin->n; r++)
        if (pin->set[r])
            hwloc_bitmap_free(pin->set[r]);
    hwloc_topology_destroy(pin->topology);
    ku_free(pin);
}

void ku_pin_apply(const struct ku_pin *pin, int rank)
{
    if (pin)
        (void)hwloc_set_cpubind(pin->topology, pin->set[rank], HWLOC_CPUBIND_THREAD);
}
