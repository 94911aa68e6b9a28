/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the copies of the state on different ranks by their hashes (train.verify_every).
 *
 *     replicate 2 x shard 2     rank     0     1     2     3
 *     whole tensor              copies   abcd  abcd  abcd  abcd    compared over all ranks
 *     partitioned tensor        copies   ab..  ..cd  ab..  ..cd    compared over 0 2 and over 1 3
 *     one copy for each host    copies   abcd        abcd          halves, as partitioned ones
 */
#include "exec/replicas.h"

#include <stdbool.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "comm/consensus.h"
#include "ir/state.h"
#include "tensor/dtype.h"

enum { PIECE_BYTES = 1 << 20 };

/*
 * Where this rank's copy begins in memory, and its bytes; of a partitioned tensor its part, of a
 * copy that the ranks of the host share the chunks that it owns.
 */
static size_t own_bytes(const struct ku_program *p, const struct ku_program_state *x, int rank,
                        size_t *first)
{
    const size_t each = kumi_dtype_bytes((enum kumi_dtype)x->dtype);
    int64_t begin = 0, end = ku_shape_count(&p->shape[x->shape]);
    struct ku_coord at = ku_mesh_coord(&p->mesh, rank);
    if (x->is_kept || x->arena == KU_AR_HOST)
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

static int verify(const struct ku_memory *m, const struct ku_program *p, struct ku_comm *replicate,
                  void *file)
{
    for (uint32_t s = 0; s < p->n_states; s++) {
        const struct ku_program_state *x = &p->state[s];
        const int axes = ku_state_replica_axes(p, x);
        const bool is_part = axes == 1 << KU_AX_REPLICATE && replicate;
        uint64_t hash = 0;
        if (axes == 0)
            continue;
        KU_TRY(ku_agree_local(m->job, hash_copy(m, p, x, file, &hash)));
        KU_TRY(
            ku_agree_equal(m->job, is_part ? replicate : m->job->world, p->name_of[x->name], hash));
    }
    return KUMI_OK;
}

int ku_replicas_verify(const struct ku_memory *m, const struct ku_program *p,
                       struct ku_comm *replicate)
{
    if (m->job->n == 1)
        return KUMI_OK;
    void *file = ku_malloc(PIECE_BYTES);
    int status = ku_agree(m->job, file ? KUMI_OK : KUMI_ENOMEM);
    if (status == KUMI_OK)
        status = verify(m, p, replicate, file);
    ku_free(file);
    return status;
}
