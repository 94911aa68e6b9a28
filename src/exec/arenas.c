/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's arenas, and the host's accesses to them:
 *
 *     HOST, GATHER                one per host, shared by its ranks
 *     SHARD, OFFLOAD, WIRE        one part per rank in shared memory
 *     STATE, STEP, INPUT          private memory of this rank, from the device
 *     FILE                        one part per rank in an anonymous file
 */
#include "exec/arenas.h"

#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os/guard.h"
#include "comm/consensus.h"

static bool is_private(int arena)
{
    return arena == KU_AR_STATE || arena == KU_AR_STEP || arena == KU_AR_INPUT;
}

static int alloc_private(struct ku_memory *m, int arena)
{
    char what[32];
    void *at;
    if (m->bytes[arena] == 0)
        return KUMI_OK;
    snprintf(what, sizeof what, "arena %s", ku_arena_name(arena));
    KU_TRY(m->ops->alloc(m->device, what, m->bytes[arena], &at));
    m->base[arena] = at;
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
    if (m->bytes[KU_AR_GATHER]) {
        KU_TRY(ku_arena_create(m->job, "gather", m->bytes[KU_AR_GATHER], 0, &m->gather));
        m->base[KU_AR_GATHER] = ku_arena_common(m->gather);
    }
    return KUMI_OK;
}

/* The arena of a kind that the ranks share; NULL: none, or private. */
static const struct ku_arena *shared(const struct ku_memory *m, int arena)
{
    return arena == KU_AR_HOST      ? m->host
           : arena == KU_AR_SHARD   ? m->shard
           : arena == KU_AR_WIRE    ? m->wire
           : arena == KU_AR_GATHER  ? m->gather
           : arena == KU_AR_OFFLOAD ? m->offload
                                    : NULL;
}

static int protect(struct ku_memory *m)
{
    m->is_protected = 1;
    for (int a = 0; a < KU_N_ARENAS; a++) {
        const struct ku_arena *arena = shared(m, a);
        if (arena) {
            KU_TRY(ku_arena_guard(m->job, arena));
            m->guard[a] = arena->guard;
        } else if (m->base[a]) {
            KU_TRY(ku_guard_create(m->base[a], m->bytes[a], &m->guard[a]));
        }
    }
    return KUMI_OK;
}

/* The stages of a pipeline have different programs: whether a shared arena exists is common. */
static int agree_on_arenas(struct ku_memory *m, const struct ku_mesh *mesh)
{
    static const int arena[] = {KU_AR_WIRE, KU_AR_OFFLOAD, KU_AR_FILE};
    for (size_t i = 0; i < sizeof arena / sizeof *arena && mesh->extent[KU_AX_PP] > 1; i++) {
        int64_t bytes = (int64_t)m->bytes[arena[i]];
        KU_TRY(ku_agree_max(m->job, &bytes));
        m->bytes[arena[i]] = (size_t)bytes;
    }
    return KUMI_OK;
}

int ku_memory_create(struct ku_job *job, const struct ku_device_ops *ops, void *device,
                     const struct ku_program *const *program, int n_programs,
                     const struct ku_offload_file_opts *target, struct ku_memory **out)
{
    struct ku_memory *m = ku_calloc(1, sizeof *m);
    if (m == NULL)
        return KUMI_ENOMEM;
    m->job = job;
    m->mesh_rank = job->rank;
    m->ops = ops;
    m->device = device;
    for (int i = 0; i < n_programs; i++)
        for (int a = 0; a < KU_N_ARENAS; a++)
            if (program[i]->arena_bytes[a] > m->bytes[a])
                m->bytes[a] = program[i]->arena_bytes[a];
    int status = n_programs ? agree_on_arenas(m, &program[0]->mesh) : KUMI_OK;
    for (int a = 0; a < KU_N_ARENAS && status == KUMI_OK; a++)
        if (is_private(a))
            status = alloc_private(m, a);
    if (status == KUMI_OK)
        status = map_shared(m);
    if (status == KUMI_OK && m->bytes[KU_AR_FILE]) {
        KU_ASSERT(target && target->path);
        status = ku_offload_file_open(job, target, m->bytes[KU_AR_FILE], &m->file);
    }
    if (status == KUMI_OK && ku_env("KUMI_PROTECT_ARENAS"))
        status = protect(m);
    if (status < 0) {
        if (job->n > 1) /* before the destroy: the other ranks wait in another collective */
            status = ku_job_fail(job);
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
        if (is_private(a) && m->base[a]) {
            ku_guard_destroy(m->guard[a]);
            m->ops->free(m->device, m->base[a], m->bytes[a]);
        }
    ku_offload_file_close(m->file);
    const struct ku_arena *const shared[] = {m->gather, m->wire, m->offload, m->shard, m->host};
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        KU_IGNORE(ku_arena_destroy(m->job, shared[i]), "the job keeps its cause");
    ku_free(m);
}

struct ku_range ku_memory_state(const struct ku_memory *m, const struct ku_program_state *s)
{
    return (struct ku_range){m, s->arena, m->job->local_rank, s->offset, s->bytes};
}

struct ku_range ku_memory_buffer(const struct ku_memory *m, const struct ku_buffer *b)
{
    return (struct ku_range){m, b->arena, m->job->local_rank, b->offset, b->bytes};
}

static void *address_of(const struct ku_range *r)
{
    const struct ku_memory *m = r->memory;
    if (r->rank == m->job->local_rank)
        return m->base[r->arena] + r->at;
    KU_ASSERT(!ku_arena_is_common(r->arena) && shared(m, r->arena));
    return ku_arena_part(shared(m, r->arena), r->rank) + r->at;
}

int ku_range_map(struct ku_range r, int access, struct ku_mapping *map)
{
    const struct ku_memory *m = r.memory;
    *map = (struct ku_mapping){r, access, NULL};
    if (r.bytes == 0)
        return KUMI_OK;
    KU_ASSERT(m->base[r.arena] != NULL);
    ku_guard_begin(m->guard[r.arena]);
    int status = m->ops->map(m->device, address_of(&r), r.bytes, access, &map->data);
    if (status < 0)
        ku_guard_end(m->guard[r.arena]);
    return status;
}

int ku_range_unmap(struct ku_mapping *map)
{
    const struct ku_range *r = &map->range;
    if (map->data == NULL)
        return KUMI_OK;
    int status =
        r->memory->ops->unmap(r->memory->device, address_of(r), r->bytes, map->access, map->data);
    ku_guard_end(r->memory->guard[r->arena]);
    map->data = NULL;
    return status;
}

int ku_ranges_map(const struct ku_range *range, int n, int access, struct ku_mapping *map)
{
    for (int i = 0; i < n; i++) {
        int status = ku_range_map(range[i], access, &map[i]);
        if (status < 0) {
            KU_IGNORE(ku_ranges_unmap(map, i), "the first failure is returned");
            return status;
        }
    }
    return KUMI_OK;
}

int ku_ranges_unmap(struct ku_mapping *map, int n)
{
    int status = KUMI_OK;
    for (int i = 0; i < n; i++) {
        int one = ku_range_unmap(&map[i]);
        status = status < 0 ? status : one;
    }
    return status;
}

int ku_range_read(struct ku_range r, void *to)
{
    struct ku_mapping map;
    if (r.arena == KU_AR_FILE)
        return ku_offload_file_move(r.memory->file, r.rank, 0, r.at, to, r.bytes);
    KU_TRY(ku_range_map(r, KU_ACCESS_READ, &map));
    if (r.bytes)
        memcpy(to, map.data, r.bytes);
    return ku_range_unmap(&map);
}

int ku_range_write(struct ku_range r, const void *from)
{
    struct ku_mapping map;
    if (r.arena == KU_AR_FILE)
        return ku_offload_file_move(r.memory->file, r.rank, 1, r.at, (void *)(uintptr_t)from,
                                    r.bytes);
    KU_TRY(ku_range_map(r, KU_ACCESS_WRITE, &map));
    if (r.bytes)
        memcpy(map.data, from, r.bytes);
    return ku_range_unmap(&map);
}

void ku_memory_begin(const struct ku_memory *m)
{
    for (int a = 0; a < KU_N_ARENAS && m->is_protected; a++)
        ku_guard_begin(m->guard[a]);
}

void ku_memory_end(const struct ku_memory *m)
{
    for (int a = 0; a < KU_N_ARENAS && m->is_protected; a++)
        ku_guard_end(m->guard[a]);
}
