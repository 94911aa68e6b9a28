/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the copies of the state on different ranks by their hashes (train.verify_every).
 *
 *     replicate 2 x shard 2     rank     0     1     2     3
 *     whole tensor              copies   abcd  abcd  abcd  abcd    compared over all ranks
 *     partitioned tensor        copies   ab..  ..cd  ab..  ..cd    compared over 0 2 and over 1 3
 *     one copy for each host    copies   abcd        abcd          one part for each of its ranks
 *
 * With pipeline parallelism these are the ranks of the coordinate that stores the tensor.
 */
#include "exec/replicas.h"

#include <stdbool.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "comm/consensus.h"
#include "ir/state.h"
#include "tensor/blocks.h"
#include "tensor/dtype.h"

enum { PIECE_BYTES = 1 << 20 };

/*
 * Where this rank's copy begins in memory, and its bytes; of a partitioned tensor its part, of a
 * copy that the ranks of the host share its chunks of them.
 */
static size_t own_bytes(const struct ku_program *p, const struct ku_program_state *x, int rank,
                        size_t *first)
{
    const size_t each = kumi_dtype_bytes((enum kumi_dtype)x->dtype);
    struct ku_coord at = ku_mesh_coord(&p->mesh, rank);
    struct ku_shape local = p->shape[x->shape];
    if (x->split)
        ku_local_shape(&p->mesh, &p->shape[x->shape], &p->layout[x->split], &at, &local);
    int64_t begin = 0, end = ku_shape_count(&local);
    if (x->arena == KU_AR_HOST)
        ku_blocks_range(end, KU_BLOCK_COUNT, x->first_block, p->mesh.extent[KU_AX_LOCAL],
                        at.at[KU_AX_LOCAL], &begin, &end);
    else if (x->is_kept)
        ku_state_owned(p, x, &at, &begin, &end);
    *first = x->is_kept ? 0 : (size_t)begin * each;
    return (size_t)(end - begin) * each;
}

/* Hash of this rank's copy, piece by piece; file: a buffer for pieces of arena `file`. */
static int hash_copy(const struct ku_memory *m, const struct ku_program *p,
                     const struct ku_program_state *x, void *file, uint64_t *hash)
{
    size_t first;
    const size_t bytes = own_bytes(p, x, m->job->rank, &first);
    const bool is_in_file = x->arena == KU_AR_FILE;
    uint64_t sum = 0;
    for (size_t at = 0, n; at < bytes; at += n) {
        const bool flips = at == 0 && ku_fault_is_due(KU_FAULT_FLIP);
        struct ku_range r = ku_memory_state(m, x);
        struct ku_mapping map = {.data = file};
        n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        r.at += first + at;
        r.bytes = n;
        KU_TRY(is_in_file ? ku_range_read(r, file)
                          : ku_range_map(r, flips ? KU_ACCESS_UPDATE : KU_ACCESS_READ, &map));
        if (flips)
            *(unsigned char *)map.data ^= 1;
        sum = ku_hash64_mix(sum, ku_hash64(map.data, n));
        KU_TRY(is_in_file ? KUMI_OK : ku_range_unmap(&map));
    }
    *hash = sum;
    return KUMI_OK;
}

static int verify(const struct ku_memory *m, const struct ku_program *p,
                  const struct ku_exec_comms *comms, void *file)
{
    for (uint32_t s = 0; s < p->n_states; s++) {
        const struct ku_program_state *x = &p->state[s];
        const int axes = ku_state_replica_axes(p, x);
        uint64_t hash = 0;
        if (axes == 0)
            continue;
        /* all ranks of the job compare together; those without the tensor have nothing to differ */
        if (ku_state_is_here(x, p->pp))
            KU_TRY(ku_agree_local(m->job, hash_copy(m, p, x, file, &hash)));
        KU_ASSERT(comms->on[axes] != NULL);
        KU_TRY(ku_agree_equal(m->job, comms->on[axes], p->name_of[x->name], hash));
    }
    return KUMI_OK;
}

int ku_replicas_verify(const struct ku_memory *m, const struct ku_program *p,
                       const struct ku_exec_comms *comms)
{
    if (m->job->n == 1)
        return KUMI_OK;
    void *file = ku_malloc(PIECE_BYTES);
    int status = ku_agree(m->job, file ? KUMI_OK : KUMI_ENOMEM);
    if (status == KUMI_OK)
        status = verify(m, p, comms, file);
    ku_free(file);
    return status;
}
