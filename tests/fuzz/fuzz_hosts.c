/* SPDX-License-Identifier: Apache-2.0 */
/* links: base job */
#include "base/err.h"
#include "base/mem.h"
#include "fuzz.h"
#include "job/launch/hostlist.h"
#include "job/launch/wire.h"
#include "job/segment.h"
#include "job/slurm.h"

#include <string.h>

/*
 * The first byte chooses: a list of -H, a hostfile, Slurm's lists, or the job that a launcher sends
 * to an agent. Refused, or within the limits; names hold nothing that a shell would read.
 */
static void check_list(struct ku_hostlist *list, int status)
{
    int64_t n_slots = 0;
    KU_ASSERT(status == 0 || status == KUMI_EINVAL);
    for (uint32_t i = 0; i < list->n; i++) {
        const struct ku_slots *h = &list->host[i];
        KU_ASSERT(h->n >= 1 && h->n <= KU_MAX_LOCAL && h->name[0] && h->name[0] != '-');
        KU_ASSERT(strlen(h->name) < KU_HOST_NAME_BYTES && !strpbrk(h->name, " '\"\\$`;&|<>()\n\t"));
        n_slots += h->n;
    }
    KU_ASSERT(n_slots == list->n_slots && list->n <= KU_MAX_HOSTS);
    if (status == 0 && ku_hostlist_fill(list, 0) == 0 && n_slots > 1) {
        KU_ASSERT(ku_hostlist_fill(list, n_slots - 1) == 0 && list->n_slots == n_slots - 1);
        KU_ASSERT(ku_hostlist_fill(list, n_slots) == KUMI_EINVAL);
    }
    ku_hostlist_fini(list);
}

static void check_slurm(const char *text)
{
    struct ku_slurm_tasks t;
    char name[KU_HOST_NAME_BYTES];
    for (int node = 0; node < 3; node++)
        if (ku_slurm_read_tasks(text, node, &t) == 0)
            KU_ASSERT(t.n_here >= 0 && t.n_before >= 0 && t.n_before + t.n_here <= t.n_total);
    if (ku_slurm_first_node(text, name) == 0)
        KU_ASSERT(name[0] && !strpbrk(name, "[], "));
}

static void check_job(const char *data, size_t bytes)
{
    struct ku_host_job job;
    struct ku_str again = {0};
    if (ku_host_job_decode(data, bytes, &job) < 0)
        return;
    ku_host_job_encode(&job, &again);
    KU_ASSERT(again.bytes == bytes && memcmp(again.text, data, bytes) == 0);
    ku_str_fini(&again);
    ku_host_job_fini(&job);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct ku_hostlist list = {0};
    if (bytes == 0)
        return 0;
    char *text = ku_malloc(bytes);
    KU_ASSERT(text);
    memcpy(text, data + 1, bytes - 1);
    text[bytes - 1] = '\0';
    switch (data[0] % 4) {
    case 0:
        check_list(&list, ku_hostlist_add(&list, text));
        break;
    case 1:
        check_list(&list, ku_hostlist_add_lines(&list, "F", (const char *)data + 1, bytes - 1));
        break;
    case 2:
        check_slurm(text);
        break;
    case 3:
        check_job((const char *)data + 1, bytes - 1);
        break;
    }
    ku_free(text);
    return 0;
}
