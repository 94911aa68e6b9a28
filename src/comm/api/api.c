/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public functions of kumi/comm.h. They check the arguments and translate them to struct
 * ku_coll.
 */
#include "kumi/comm.h"

#include "base/arg.h"
#include "base/err.h"
#include "base/mem.h"
#include "comm/api/api.h"
#include "comm/private.h"
#include "comm/world.h"

/*
 * A work is the caller's until it is waited for, also when it has finished meanwhile. Until then
 * its communicator stays. After a failure they are freed in any order; a work then uses its job
 * alone.
 */
struct kumi_comm {
    struct ku_comm *c;
    int n_works; /* that the caller has */
};
struct kumi_work {
    struct ku_work w;
    struct ku_job *job;
    struct kumi_comm *comm;
    struct ku_waiter waiter; /* of the polls */
    struct kumi_work *next;  /* next in the job's list of idle works */
};

_Static_assert((int)KUMI_BARRIER == KU_COLL_BARRIER && (int)KUMI_ALL_REDUCE == KU_COLL_ALL_REDUCE &&
                   (int)KUMI_REDUCE_SCATTER == KU_COLL_REDUCE_SCATTER &&
                   (int)KUMI_ALL_GATHER == KU_COLL_ALL_GATHER &&
                   (int)KUMI_BROADCAST == KU_COLL_BROADCAST && (int)KUMI_REDUCE == KU_COLL_REDUCE &&
                   (int)KUMI_GATHER == KU_COLL_GATHER && (int)KUMI_SCATTER == KU_COLL_SCATTER &&
                   (int)KUMI_ALL_TO_ALL == KU_COLL_ALL_TO_ALL && (int)KUMI_SEND == KU_COLL_SEND &&
                   (int)KUMI_RECV == KU_COLL_RECV,
               "one numbering of kinds");

int ku_comm_api_wrap(struct ku_comm *c, struct kumi_comm **out)
{
    *out = ku_malloc(sizeof **out);
    if (!*out)
        return KUMI_ENOMEM;
    **out = (struct kumi_comm){.c = c};
    return 0;
}

/*
 * Limited to 32 years, a time that can be added to the clock. Below 1 ns it is 1 ns, because 0
 * means the default.
 */
static int64_t ns_of(double seconds)
{
    const double ns = seconds * 1e9, max_ns = 1e18;
    return ns >= max_ns ? (int64_t)max_ns : ns > 0 && ns < 1 ? 1 : (int64_t)ns;
}

int kumi_comm_join(const struct kumi_comm_options *options, struct kumi_comm **world)
{
    KU_GIVEN(world, "world");
    struct ku_job_opts o = {0};
    struct ku_job *job = NULL;
    if (options) {
        if (!(options->timeout_s >= 0) || !(options->join_timeout_s >= 0) || options->threads < 0)
            return KU_ERR(
                KUMI_EINVAL,
                "join: options: timeout %g s, join timeout %g s, %d threads; none may be negative",
                options->timeout_s, options->join_timeout_s, options->threads);
        o.timeout_ns = ns_of(options->timeout_s);
        o.join_timeout_ns = ns_of(options->join_timeout_s);
        o.threads = options->threads;
        o.chaos = options->chaos;
    }
    KU_TRY(ku_comm_join(&o, &job));
    int status = ku_comm_api_wrap(job->world, world);
    if (status < 0)
        KU_IGNORE(ku_comm_leave(job), "the first failure is returned");
    return status;
}

int ku_comm_api_job(const struct kumi_comm *comm, const char *call, struct ku_job **job)
{
    if (comm->c != comm->c->job->world)
        return KU_ERR(KUMI_EINVAL,
                      "%s: comm %s: not the world communicator; pass the one from kumi_comm_join",
                      call, comm->c->name);
    *job = comm->c->job;
    return KUMI_OK;
}

static void free_works(struct ku_job *job)
{
    for (struct kumi_work *w = job->comm->free_works; w;) {
        struct kumi_work *next = w->next;
        ku_free(w);
        w = next;
    }
    job->comm->free_works = NULL;
}

int kumi_comm_leave(struct kumi_comm *world)
{
    if (!world)
        return 0;
    struct ku_job *job = NULL;
    KU_TRY(ku_comm_api_job(world, "leave", &job));
    const struct ku_comm_rank *p = job->comm;
    if ((p->n_started || p->n_works) && !ku_job_has_failed(job))
        return KU_ERR(KUMI_EINVAL, "leave: operations in flight: %d; wait for them first",
                      p->n_started > p->n_works ? p->n_started : p->n_works);
    free_works(job);
    ku_free(world);
    return ku_comm_leave(job);
}

int kumi_comm_rank(const struct kumi_comm *comm)
{
    KU_GIVEN(comm, "comm");
    return comm->c->me;
}

int kumi_comm_size(const struct kumi_comm *comm)
{
    KU_GIVEN(comm, "comm");
    return comm->c->n;
}

int kumi_comm_split(struct kumi_comm *comm, int color, int key, struct kumi_comm **out)
{
    KU_GIVEN(comm, "comm");
    KU_GIVEN(out, "out");
    struct ku_comm *c = NULL;
    char name[24] = "split";
    KU_TRY(ku_comm_split(comm->c, color, key, name, &c));
    if (!c) {
        *out = NULL;
        return 0;
    }
    int status = ku_comm_api_wrap(c, out);
    if (status < 0)
        ku_comm_free(c);
    return status;
}

int kumi_comm_free(struct kumi_comm *comm)
{
    if (!comm)
        return 0;
    if (comm->c == comm->c->job->world)
        return KU_ERR(KUMI_EINVAL,
                      "free: the world communicator cannot be freed; call kumi_comm_leave");
    if (comm->n_works && !ku_job_has_failed(comm->c->job))
        return KU_ERR(KUMI_EINVAL, "free: comm %s: operations in flight: %d; wait for them first",
                      comm->c->name, comm->n_works);
    int status = ku_comm_destroy(comm->c);
    ku_free(comm);
    return status;
}

int kumi_comm_alloc(struct kumi_comm *world, size_t bytes, void **memory)
{
    KU_GIVEN(world, "world");
    KU_GIVEN(memory, "memory");
    const struct ku_arena *a;
    struct ku_job *job = NULL;
    KU_TRY(ku_comm_api_job(world, "alloc", &job));
    KU_TRY(ku_arena_create(job, "alloc", 0, bytes ? bytes : 1, &a));
    *memory = ku_arena_part(a, job->local_rank);
    return 0;
}

int kumi_comm_dealloc(struct kumi_comm *world, void *memory)
{
    KU_GIVEN(world, "world");
    struct ku_job *job = NULL;
    KU_TRY(ku_comm_api_job(world, "dealloc", &job));
    for (int i = 0; memory && i < KU_MAX_ARENAS; i++) {
        const struct ku_arena *a = &job->comm->arenas->arena[i];
        if (a->base && ku_arena_part(a, job->local_rank) == memory)
            return ku_arena_destroy(job, a);
    }
    return memory ? KU_ERR(KUMI_EINVAL, "dealloc: %p: not allocated by kumi_comm_alloc in this job",
                           memory)
                  : 0;
}

uint64_t kumi_comm_staged_bytes(const struct kumi_comm *comm)
{
    KU_GIVEN_OR(0, comm, "comm");
    return ku_job_staged_bytes(comm->c->job);
}

static int check_given(const struct ku_coll *o, const char *name, const void *at, int64_t count)
{
    if (at || count == 0)
        return 0;
    return KU_ERR(KUMI_EINVAL, "%s%s: %s: NULL, for %lld elements", ku_coll_kind_name(o->kind),
                  o->counts ? "_v" : "", name, (long long)count);
}

static int64_t sum(const int64_t *counts, int n)
{
    int64_t all = 0;
    for (int i = 0; i < n; i++)
        all += counts[i];
    return all;
}

/*
 * Refuse NULL and overlap. In place is allowed: equal buffers where in and out have equal sizes,
 * else the shorter buffer is this rank's block of the longer one.
 */
static int check_buffers(const struct ku_comm *c, const struct ku_coll *o)
{
    int64_t each = (int64_t)kumi_dtype_bytes(o->dtype), block = o->count, before = 0, all = 0;
    int am_root = c->me == o->root;
    for (int i = 0; i < c->n; i++) {
        before = i == c->me ? all : before;
        all += o->counts ? o->counts[i] : o->count;
    }
    if (o->counts)
        block = o->counts[c->me];
    const char *in = o->in, *out = o->out, *same = in;
    int64_t in_count = block, out_count = block;
    switch (o->kind) {
    case KU_COLL_ALL_REDUCE:
        break;
    case KU_COLL_REDUCE:
        out_count = am_root ? block : 0;
        break;
    case KU_COLL_ALL_TO_ALL:
        in_count = all;
        out_count = o->recv_counts ? sum(o->recv_counts, c->n) : all;
        if (o->counts && in && in == out && in_count + out_count > 0)
            return KU_ERR(KUMI_EINVAL, "all_to_all_v: in and out are the same buffer; give two");
        break;
    case KU_COLL_REDUCE_SCATTER:
    case KU_COLL_SCATTER:
        in_count = o->kind == KU_COLL_SCATTER && !am_root ? 0 : all;
        same = in + before * each;
        break;
    case KU_COLL_ALL_GATHER:
    case KU_COLL_GATHER:
        out_count = o->kind == KU_COLL_GATHER && !am_root ? 0 : all;
        same = out + before * each;
        break;
    case KU_COLL_BROADCAST:
    case KU_COLL_RECV:
        return check_given(o, "data", out, block);
    case KU_COLL_SEND:
        return check_given(o, "data", in, block);
    case KU_COLL_BARRIER:
    case KU_COLL_INTERNAL:
        return 0;
    }
    KU_TRY(check_given(o, "in", in, in_count));
    KU_TRY(check_given(o, "out", out, out_count));
    int is_in_place =
        o->kind == KU_COLL_ALL_GATHER || o->kind == KU_COLL_GATHER ? same == in : same == out;
    if (is_in_place || in_count == 0 || out_count == 0 || in + in_count * each <= out ||
        out + out_count * each <= in)
        return 0;
    return KU_ERR(KUMI_EINVAL,
                  "%s: in and out overlap; in place, the shorter buffer is this rank's block of "
                  "the longer one",
                  ku_coll_kind_name(o->kind));
}

static int translate(const struct kumi_comm *comm, const struct kumi_collective *from,
                     struct ku_coll *o)
{
    if (comm == NULL)
        return KU_ERR(KUMI_EINVAL, "collective: comm: NULL is not allowed here");
    if ((unsigned)from->kind > KUMI_RECV)
        return KU_ERR(KUMI_EINVAL, "collective: kind: %d: unknown", (int)from->kind);
    *o = (struct ku_coll){.kind = (enum ku_coll_kind)from->kind,
                          .dtype = from->dtype,
                          .reduce = from->reduce,
                          .root = from->root,
                          .scale = from->scale,
                          .in = from->in,
                          .out = from->out,
                          .count = from->count,
                          .counts = from->counts,
                          .recv_counts = from->recv_counts};
    if (o->kind == KU_COLL_BARRIER)
        *o = (struct ku_coll){.kind = KU_COLL_BARRIER};
    if (o->kind != KU_COLL_ALL_TO_ALL)
        o->recv_counts = NULL;
    if (o->kind != KU_COLL_ALL_REDUCE && o->kind != KU_COLL_REDUCE &&
        o->kind != KU_COLL_REDUCE_SCATTER)
        o->reduce = KUMI_SUM;
    if (o->kind == KU_COLL_ALL_REDUCE || o->kind == KU_COLL_REDUCE ||
        o->kind == KU_COLL_BROADCAST || o->kind == KU_COLL_SEND || o->kind == KU_COLL_RECV)
        o->counts = NULL;
    if (o->counts)
        o->count = 0;
    o->wire = o->dtype;
    KU_TRY(ku_coll_check(comm->c, o));
    return check_buffers(comm->c, o);
}

/* A work of the caller's, compiled and not started */
static int take(struct kumi_comm *comm, const struct kumi_collective *collective,
                struct kumi_work **work)
{
    struct ku_coll coll;
    KU_TRY(translate(comm, collective, &coll));
    struct ku_comm_rank *p = comm->c->job->comm;
    struct kumi_work *w = p->free_works;
    if (w)
        p->free_works = w->next;
    else if (!(w = ku_malloc(sizeof *w)))
        return KUMI_ENOMEM;
    w->job = comm->c->job;
    w->comm = comm;
    w->waiter.looked_ns = 0;
    const int status = ku_work_init(&w->w, comm->c, &coll);
    if (status < 0) {
        w->next = p->free_works;
        p->free_works = w;
        return status;
    }
    comm->n_works++;
    p->n_works++;
    *work = w;
    return 0;
}

static int give_back(struct kumi_work *work, int result)
{
    struct ku_comm_rank *p = work->job->comm;
    p->n_works--;
    if (!ku_job_has_failed(work->job))
        work->comm->n_works--;
    work->next = p->free_works;
    p->free_works = work;
    return result;
}

int kumi_work_start(struct kumi_comm *comm, const struct kumi_collective *collective,
                    struct kumi_work **work)
{
    KU_GIVEN(comm, "comm");
    KU_GIVEN(collective, "collective");
    KU_GIVEN(work, "work");
    struct kumi_work *w = NULL;
    KU_TRY(take(comm, collective, &w));
    const int status = ku_work_start(&w->w);
    if (status < 0)
        return give_back(w, status);
    *work = w;
    return 0;
}

/* The root cause for a work that a failure keeps from finishing */
static int root_of(const struct kumi_work *work)
{
    return work->w.state == KU_WORK_STARTED ? ku_job_root(work->job) : 0;
}

int kumi_work_wait(struct kumi_work *work)
{
    KU_GIVEN(work, "work");
    int status = root_of(work);
    if (!status)
        status = ku_work_wait(&work->w);
    return give_back(work, status);
}

int kumi_work_test(struct kumi_work *work)
{
    KU_GIVEN(work, "work");
    int status = root_of(work);
    if (!status)
        status = ku_work_poll(&work->w, &work->waiter);
    return status == 0 ? 0 : give_back(work, status);
}

int kumi_batch(struct kumi_comm *comm, const struct kumi_collective *collectives, int n)
{
    if (n < 0 || (n > 0 && collectives == NULL))
        return KU_ERR(KUMI_EINVAL, "batch: n is %d, collectives is %s", n,
                      collectives ? "given" : "NULL");
    struct kumi_work **works = ku_malloc((size_t)(n ? n : 1) * sizeof *works);
    int n_taken = 0, status = works ? 0 : KUMI_ENOMEM;
    while (n_taken < n && !status) { /* none starts before all are compiled */
        status = take(comm, &collectives[n_taken], &works[n_taken]);
        n_taken += !status;
    }
    for (int i = 0; i < n && !status; i++)
        status = ku_work_start(&works[i]->w);
    for (int i = 0; i < n && !status; i++)
        status = ku_work_wait(&works[i]->w);
    while (n_taken > 0)
        status = give_back(works[--n_taken], status);
    ku_free(works);
    return status;
}

int kumi_comm_progress(struct kumi_comm *comm)
{
    KU_GIVEN(comm, "comm");
    return ku_job_poll(comm->c->job);
}

static int call(struct kumi_comm *comm, const struct kumi_collective *collective)
{
    struct ku_coll coll;
    KU_TRY(translate(comm, collective, &coll));
    return ku_coll_run(comm->c, &coll);
}

int kumi_all_reduce(struct kumi_comm *comm, const void *in, void *out, int64_t count,
                    enum kumi_dtype dtype, enum kumi_reduce reduce)
{
    return call(comm, &(struct kumi_collective){.kind = KUMI_ALL_REDUCE,
                                                .dtype = dtype,
                                                .reduce = reduce,
                                                .in = in,
                                                .out = out,
                                                .count = count});
}

int kumi_reduce(struct kumi_comm *comm, const void *in, void *out, int64_t count,
                enum kumi_dtype dtype, enum kumi_reduce reduce, int root)
{
    return call(comm, &(struct kumi_collective){.kind = KUMI_REDUCE,
                                                .dtype = dtype,
                                                .reduce = reduce,
                                                .root = root,
                                                .in = in,
                                                .out = out,
                                                .count = count});
}

int kumi_broadcast(struct kumi_comm *comm, void *data, int64_t count, enum kumi_dtype dtype,
                   int root)
{
    return call(
        comm,
        &(struct kumi_collective){
            .kind = KUMI_BROADCAST, .dtype = dtype, .root = root, .out = data, .count = count});
}

int kumi_reduce_scatter(struct kumi_comm *comm, const void *in, void *out, int64_t count,
                        enum kumi_dtype dtype, enum kumi_reduce reduce)
{
    return call(comm, &(struct kumi_collective){.kind = KUMI_REDUCE_SCATTER,
                                                .dtype = dtype,
                                                .reduce = reduce,
                                                .in = in,
                                                .out = out,
                                                .count = count});
}

int kumi_reduce_scatter_v(struct kumi_comm *comm, const void *in, void *out, const int64_t *counts,
                          enum kumi_dtype dtype, enum kumi_reduce reduce)
{
    KU_GIVEN(counts, "counts");
    return call(comm, &(struct kumi_collective){.kind = KUMI_REDUCE_SCATTER,
                                                .dtype = dtype,
                                                .reduce = reduce,
                                                .in = in,
                                                .out = out,
                                                .counts = counts});
}

int kumi_all_gather(struct kumi_comm *comm, const void *in, void *out, int64_t count,
                    enum kumi_dtype dtype)
{
    return call(comm,
                &(struct kumi_collective){
                    .kind = KUMI_ALL_GATHER, .dtype = dtype, .in = in, .out = out, .count = count});
}

int kumi_all_gather_v(struct kumi_comm *comm, const void *in, void *out, const int64_t *counts,
                      enum kumi_dtype dtype)
{
    KU_GIVEN(counts, "counts");
    return call(
        comm, &(struct kumi_collective){
                  .kind = KUMI_ALL_GATHER, .dtype = dtype, .in = in, .out = out, .counts = counts});
}

int kumi_gather(struct kumi_comm *comm, const void *in, void *out, int64_t count,
                enum kumi_dtype dtype, int root)
{
    return call(comm, &(struct kumi_collective){.kind = KUMI_GATHER,
                                                .dtype = dtype,
                                                .root = root,
                                                .in = in,
                                                .out = out,
                                                .count = count});
}

int kumi_gather_v(struct kumi_comm *comm, const void *in, void *out, const int64_t *counts,
                  enum kumi_dtype dtype, int root)
{
    KU_GIVEN(counts, "counts");
    return call(comm, &(struct kumi_collective){.kind = KUMI_GATHER,
                                                .dtype = dtype,
                                                .root = root,
                                                .in = in,
                                                .out = out,
                                                .counts = counts});
}

int kumi_scatter(struct kumi_comm *comm, const void *in, void *out, int64_t count,
                 enum kumi_dtype dtype, int root)
{
    return call(comm, &(struct kumi_collective){.kind = KUMI_SCATTER,
                                                .dtype = dtype,
                                                .root = root,
                                                .in = in,
                                                .out = out,
                                                .count = count});
}

int kumi_scatter_v(struct kumi_comm *comm, const void *in, void *out, const int64_t *counts,
                   enum kumi_dtype dtype, int root)
{
    KU_GIVEN(counts, "counts");
    return call(comm, &(struct kumi_collective){.kind = KUMI_SCATTER,
                                                .dtype = dtype,
                                                .root = root,
                                                .in = in,
                                                .out = out,
                                                .counts = counts});
}

int kumi_all_to_all(struct kumi_comm *comm, const void *in, void *out, int64_t count,
                    enum kumi_dtype dtype)
{
    return call(comm,
                &(struct kumi_collective){
                    .kind = KUMI_ALL_TO_ALL, .dtype = dtype, .in = in, .out = out, .count = count});
}

int kumi_all_to_all_v(struct kumi_comm *comm, const void *in, void *out, const int64_t *send_counts,
                      const int64_t *recv_counts, enum kumi_dtype dtype)
{
    KU_GIVEN(send_counts, "send_counts");
    KU_GIVEN(recv_counts, "recv_counts");
    return call(comm, &(struct kumi_collective){.kind = KUMI_ALL_TO_ALL,
                                                .dtype = dtype,
                                                .in = in,
                                                .out = out,
                                                .counts = send_counts,
                                                .recv_counts = recv_counts});
}

int kumi_barrier(struct kumi_comm *comm)
{
    return call(comm, &(struct kumi_collective){.kind = KUMI_BARRIER});
}

int kumi_send(struct kumi_comm *comm, const void *data, int64_t count, enum kumi_dtype dtype,
              int peer)
{
    return call(comm,
                &(struct kumi_collective){
                    .kind = KUMI_SEND, .dtype = dtype, .root = peer, .in = data, .count = count});
}

int kumi_recv(struct kumi_comm *comm, void *data, int64_t count, enum kumi_dtype dtype, int peer)
{
    return call(comm,
                &(struct kumi_collective){
                    .kind = KUMI_RECV, .dtype = dtype, .root = peer, .out = data, .count = count});
}
