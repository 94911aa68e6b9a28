/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer's state that is divided among hosts: ranks of one copy of the state (the mesh axes
 * shard and pp) are on several. Saved tensors then have owners, and what a reader of whole tensors
 * needs from other hosts comes through the job's comm, in windows of at most 1 MiB:
 *
 *     checkpoint   owners send their bytes of a chunk to its writer (ckpt/snapshot/spread.h)
 *     digest       owners of the first copy send their elements to rank 0, in the digest's order
 *     averages     each owner broadcasts its elements
 */
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "ckpt/digest.h"
#include "ckpt/snapshot/spread.h"
#include "comm/coll.h"
#include "comm/consensus.h"
#include "comm/far_cost.h"
#include "ir/state.h"
#include "job/hosts.h"
#include "train/trainer.h"

enum { WINDOW_BYTES = 1 << 20 };

/* Whether a host that begins with rank `first` > 0 lacks a part of the state. */
static bool is_cut(const struct ku_mesh *m, int first)
{
    return m->extent[KU_AX_PP] > 1 || first % (ku_state_n_owners(m) * ku_mesh_tp(m)) != 0;
}

bool ku_trainer_is_spread(const struct ku_program *p, const struct ku_job *job)
{
    bool is_spread = false;
    for (int h = 1; h < job->n_hosts && !is_spread; h++)
        is_spread = is_cut(&p->mesh, ku_job_hosts(job)[h].first_rank);
    return is_spread;
}

struct hosts {
    const struct ku_host_ranks *host;
    int n;
};

static int planned_host_of(const void *ctx, int rank)
{
    const struct hosts *hosts = ctx;
    int low = 0, high = hosts->n;
    while (high - low > 1) { /* host[low].first <= rank < host[high].first */
        const int middle = low + (high - low) / 2;
        if (hosts->host[middle].first <= rank)
            low = middle;
        else
            high = middle;
    }
    return low;
}

int ku_trainer_inbox_bytes(const struct ku_program *p, const struct ku_graph *g,
                           const struct ku_host_ranks *host, int n_hosts, size_t *bytes)
{
    const struct hosts hosts = {host, n_hosts};
    const struct ku_ckpt_world world = {
        .n_ranks = ku_mesh_n_ranks(&p->mesh), .host_of = planned_host_of, .ctx = &hosts};
    bool crosses = false;
    size_t most = 0;
    for (int h = 1; h < n_hosts && !crosses; h++)
        crosses = is_cut(&p->mesh, host[h].first);
    if (crosses) {
        struct ku_ckpt_tensor *tensor = ku_calloc(p->n_states + 1, sizeof *tensor);
        int n = 0;
        if (tensor == NULL)
            return KUMI_ENOMEM;
        for (uint32_t s = 0; s < p->n_states; s++)
            if (ku_trainer_is_saved(&p->state[s]))
                ku_trainer_describe_one(p, g, &p->state[s], crosses, &tensor[n++]);
        const int status = ku_ckpt_inbox_most(tensor, n, &world, &most);
        ku_free(tensor);
        KU_TRY(status);
    }
    *bytes = n_hosts > 1 ? most + WINDOW_BYTES : 0;
    return KUMI_OK;
}

static bool is_spread(const struct ku_trainer *t)
{
    return ku_trainer_is_spread(t->program[KU_PROG_TRAIN], t->job);
}

static int host_of(const void *job, int rank)
{
    return ku_job_host_of(job, rank);
}

static int message(struct ku_job *job, int is_sent, int peer, void *data, int64_t bytes)
{
    struct ku_coll coll = {.kind = is_sent ? KU_COLL_SEND : KU_COLL_RECV,
                           .dtype = KUMI_U8,
                           .wire = KUMI_U8,
                           .name = "state",
                           .root = peer,
                           .in = data,
                           .out = data,
                           .count = bytes};
    return ku_coll_run(job->world, &coll);
}

int ku_trainer_spread_writer(const struct ku_trainer *t, struct ku_ckpt_writer *w)
{
    const struct ku_job *job = t->job;
    const struct ku_ckpt_world world = {
        .rank = job->rank, .n_ranks = job->n, .host_of = host_of, .ctx = job};
    if (job->n_hosts == 1)
        return KUMI_OK;
    KU_TRY(ku_ckpt_writer_spread(w, &world));
    KU_ASSERT(ku_ckpt_writer_inbox_bytes(w) + WINDOW_BYTES <= t->inbox_bytes);
    return KUMI_OK;
}

/*
 * A rank whose tensors cannot be read sends zeros, and its status afterwards.
 */
int ku_trainer_exchange(struct ku_job *job, const struct ku_ckpt_writer *w)
{
    int64_t n;
    int status = KUMI_OK;
    struct kumi_error error;
    if (job->n_hosts == 1)
        return KUMI_OK;
    const struct ku_ckpt_message *m = ku_ckpt_writer_messages(w, &n);
    unsigned char *out = ku_calloc(1, WINDOW_BYTES);
    KU_TRY(ku_agree(job, out ? KUMI_OK : KUMI_ENOMEM));
    for (int64_t i = 0; i < n; i++) {
        KU_ASSERT(m[i].bytes <= WINDOW_BYTES);
        if (m[i].is_sent && status == KUMI_OK) {
            status = ku_ckpt_message_pack(w, &m[i], out);
            if (status < 0)
                error = *ku_err_get();
        }
        const int sent =
            message(job, m[i].is_sent, m[i].peer, m[i].is_sent ? out : m[i].data, m[i].bytes);
        if (sent < 0) {
            ku_free(out);
            return sent;
        }
        ku_job_tick(job);
    }
    ku_free(out);
    if (status < 0)
        ku_err_put(&error);
    return ku_agree_worst(job, status);
}

int ku_trainer_add_sums(struct ku_job *job, struct ku_ckpt_writer *w)
{
    enum { N = WINDOW_BYTES / sizeof(uint64_t) };
    if (job->n_hosts == 1)
        return KUMI_OK;
    const int64_t n_sums = ku_ckpt_writer_n_sums(w);
    uint64_t *sum = ku_malloc(WINDOW_BYTES);
    int status = ku_agree(job, sum ? KUMI_OK : KUMI_ENOMEM);
    for (int64_t at = 0, n; at < n_sums && status == KUMI_OK; at += n) {
        n = n_sums - at < N ? n_sums - at : N;
        ku_ckpt_writer_sums(w, at, n, sum);
        status = ku_agree_sum(job, (int64_t *)(void *)sum, (int)n); /* one term is not zero */
        if (status == KUMI_OK)
            ku_ckpt_writer_set_sums(w, at, n, sum);
    }
    ku_free(sum);
    return status;
}

/* Elements [at, at + count) to rank 0's `out`, from the first copy of the state. */
static int gather(void *ctx, const struct ku_ckpt_tensor *x, int64_t at, int64_t count, void *out)
{
    const struct ku_trainer *t = ctx;
    struct ku_job *job = t->job;
    const int64_t each = (int64_t)kumi_dtype_bytes(x->dtype), end = at + count;
    ku_job_tick(job);
    if (x->owner.n_owners == 0)
        return job->rank == 0 ? ku_ckpt_tensor_gather(x, at, count, out) : KUMI_OK;
    const int n_near = ku_job_hosts(job)[0].n_ranks;
    for (int64_t to; at < end; at = to) {
        const int owner = ku_ckpt_tensor_owner(x, at, 0, &to);
        to = to < end ? to : end;
        if (owner < n_near) {
            if (job->rank == 0)
                KU_TRY(ku_ckpt_tensor_gather(x, at, to - at, out));
        } else if (job->rank == owner) {
            unsigned char *data = ku_malloc((size_t)((to - at) * each));
            int status = data ? ku_ckpt_tensor_gather(x, at, to - at, data) : KUMI_ENOMEM;
            status = ku_agree_local(job, status);
            if (status == KUMI_OK)
                status = message(job, 1, 0, data, (to - at) * each);
            ku_free(data);
            KU_TRY(status);
        } else if (job->rank == 0) {
            KU_TRY(message(job, 0, owner, out, (to - at) * each));
        }
        if (out)
            out = (unsigned char *)out + (to - at) * each;
    }
    return KUMI_OK;
}

int ku_trainer_digest(const struct ku_trainer *t, int only_params, char out[72])
{
    const struct ku_digest_source from = {gather, (void *)(uintptr_t)t};
    if (!is_spread(t))
        return ku_digest_memory(t->tensor, t->n_tensors, only_params, out);
    out[0] = '\0';
    KU_TRY(ku_agree(t->job, KUMI_OK)); /* rank 0 reads the shards of this host's ranks in place */
    return ku_digest_stream(t->tensor, t->n_tensors, only_params, &from,
                            t->job->rank == 0 ? out : NULL);
}

int ku_trainer_digest_first(const struct ku_trainer *t, char out[72])
{
    KU_TRY(ku_agree(t->job, KUMI_OK)); /* no rank still writes what rank 0 reads in place */
    return t->job->rank == 0 || is_spread(t) ? ku_trainer_digest(t, 0, out) : KUMI_OK;
}

/* Broadcast elements of a tensor by their owner in the first copy of the state. */
static int broadcast(const struct ku_trainer *t, const struct ku_ckpt_tensor *x, int64_t at,
                     int64_t count, void *data)
{
    const int64_t each = (int64_t)kumi_dtype_bytes(x->dtype), end = at + count;
    for (int64_t to; at < end; at = to) {
        const int owner = ku_ckpt_tensor_owner(x, at, 0, &to);
        to = to < end ? to : end;
        int status = t->job->rank == owner ? ku_ckpt_tensor_gather(x, at, to - at, data) : KUMI_OK;
        KU_TRY(ku_agree_local(t->job, status));
        struct ku_coll coll = {.kind = KU_COLL_BROADCAST,
                               .dtype = KUMI_U8,
                               .wire = KUMI_U8,
                               .name = "state",
                               .root = owner,
                               .in = data,
                               .out = data,
                               .count = (to - at) * each};
        KU_TRY(ku_coll_run(t->job->world, &coll));
        data = (unsigned char *)data + (to - at) * each;
    }
    return KUMI_OK;
}

int ku_trainer_copy_spread(const struct ku_trainer *t, const struct ku_ckpt_tensor *to,
                           const struct ku_ckpt_tensor *from)
{
    const int64_t count = ku_ckpt_tensor_count(from);
    const int64_t most = WINDOW_BYTES / (int64_t)kumi_dtype_bytes(from->dtype);
    void *data = ku_malloc(WINDOW_BYTES);
    int status = ku_agree(t->job, data ? KUMI_OK : KUMI_ENOMEM);
    for (int64_t at = 0, n; at < count && status == KUMI_OK; at += n) {
        n = count - at < most ? count - at : most;
        status = broadcast(t, from, at, n, data);
        if (status == KUMI_OK && t->job->local_rank == 0)
            status =
                ku_agree_local(t->job, ku_ckpt_tensor_scatter(to, at, n, data, from->dtype, 0));
    }
    ku_free(data);
    return status;
}
