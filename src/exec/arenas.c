/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocation of a rank's arenas:
 *
 *     HOST                        one per host, shared by its ranks
 *     SHARD, OFFLOAD, WIRE        one part per rank in shared memory
 *     STATE, STEP, INPUT          private mappings of this rank
 *     FILE                        one part per rank in an anonymous file
 */
#include <sys/mman.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/ipc.h"
#include "exec/exec.h"

static bool is_private(int arena)
{
    return arena == KU_AR_STATE || arena == KU_AR_STEP || arena == KU_AR_INPUT;
}

static int map_private(struct ku_memory *m, int arena)
{
    if (m->bytes[arena] == 0)
        return KUMI_OK;
    m->base[arena] = ku_os_mmap(m->bytes[arena], PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m->base[arena] == NULL)
        return KU_ERR(KUMI_ENOMEM, "memory: arena %s: %zu bytes: %s; see `kumi plan --memory`",
                      ku_arena_name(arena), m->bytes[arena], ku_os_why());
    ku_os_populate(m->base[arena], m->bytes[arena]);
    return KUMI_OK;
}

static int map_shared(struct ku_memory *m)
{
    if (m->bytes[KU_AR_HOST]) {
        KU_TRY(ku_arena_create(m->job, "state", m->bytes[KU_AR_HOST], 0, &m->host));
        m->base[KU_AR_HOST] = ku_arena_common(m->host);
    }
    if (m->bytes[KU_AR_SHARD]) {
        KU_TRY(ku_arena_create(m->job, "shard", 0, m->bytes[KU_AR_SHARD], &m->shard));
        m->base[KU_AR_SHARD] = ku_arena_part(m->shard, m->job->local_rank);
    }
    if (m->bytes[KU_AR_OFFLOAD]) {
        KU_TRY(ku_arena_create(m->job, "offload", 0, m->bytes[KU_AR_OFFLOAD], &m->offload));
        m->base[KU_AR_OFFLOAD] = ku_arena_part(m->offload, m->job->local_rank);
    }
    if (m->bytes[KU_AR_WIRE]) {
        KU_TRY(ku_arena_create(m->job, "wire", 0, m->bytes[KU_AR_WIRE], &m->wire));
        m->base[KU_AR_WIRE] = ku_arena_part(m->wire, m->job->local_rank);
    }
    return KUMI_OK;
}

int ku_memory_create(struct ku_job *job, const struct ku_program *const *program, int n_programs,
                     const struct ku_tier_opts *tier, struct ku_memory **out)
{
    struct ku_memory *m = ku_calloc(1, sizeof *m);
    if (m == NULL)
        return KUMI_ENOMEM;
    m->job = job;
    for (int i = 0; i < n_programs; i++)
        for (int a = 0; a < KU_N_ARENAS; a++)
            if (program[i]->arena_bytes[a] > m->bytes[a])
                m->bytes[a] = program[i]->arena_bytes[a];
    /*
     * Private arenas first: a rank that fails here has no shared memory to release, which is
     * collective.
     */
    int status = KUMI_OK;
    for (int a = 0; a < KU_N_ARENAS && status == KUMI_OK; a++)
        if (is_private(a))
            status = map_private(m, a);
    if (status == KUMI_OK)
        status = map_shared(m);
    if (status == KUMI_OK && m->bytes[KU_AR_FILE]) {
        KU_ASSERT(tier && tier->path);
        status = ku_tier_file_open(job, tier, m->bytes[KU_AR_FILE], &m->file);
    }
    if (status < 0) {
        ku_memory_destroy(m);
        return status;
    }
    for (int a = 0; a < KU_N_ARENAS; a++)
        KU_ASSERT(m->bytes[a] == 0 || m->base[a] || (a == KU_AR_FILE && m->file));
    *out = m;
    return KUMI_OK;
}

void ku_memory_destroy(struct ku_memory *m)
{
    if (m == NULL)
        return;
    for (int a = 0; a < KU_N_ARENAS; a++)
        if (is_private(a) && m->base[a])
            ku_os_munmap(m->base[a], m->bytes[a]);
    ku_tier_file_close(m->file);
    if (m->offload)
        KU_IGNORE(ku_arena_destroy(m->job, m->offload),
                  "destroy returns nothing; the job keeps its cause");
    if (m->wire)
        KU_IGNORE(ku_arena_destroy(m->job, m->wire),
                  "destroy returns nothing; the job keeps its cause");
    if (m->shard)
        KU_IGNORE(ku_arena_destroy(m->job, m->shard),
                  "destroy returns nothing; the job keeps its cause");
    if (m->host)
        KU_IGNORE(ku_arena_destroy(m->job, m->host),
                  "destroy returns nothing; the job keeps its cause");
    ku_free(m);
}
