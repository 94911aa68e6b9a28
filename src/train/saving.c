/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of one rank while a checkpoint is written:
 *
 *   main thread     start ─ step ─ poll ─ step ─ … ─ poll: all written ─ … ─ poll: committed
 *                              │ write barrier                │
 *   writing thread  copy, write, …, fsync      rank 0: manifest, rename, removal of the oldest
 *
 * Each rank has a turn in shared memory: tensors with a lower turn are copied. The turn of a tensor
 * is that of the instruction that overwrites it (ku_trainer_turn). Before that instruction a rank
 * waits for the turns of all local ranks if the state is shared, and for its own if it is a
 * replica. Waiting counts as progress while the threads waited for tick. Bytes for writers on other
 * hosts leave on the main thread, in ku_saving_start.
 */
#include "train/saving.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/tick.h"
#include "base/os/os.h"
#include "base/os/ipc.h"
#include "base/os/process.h"
#include "comm/consensus.h"

enum { SLEEP_NS = 20000000 /* between two checks of the other ranks: <= 50 ms */ };
enum phase { IDLE, WRITING, COMMITTING };

struct word {
    _Alignas(128) _Atomic uint32_t turn;
    _Atomic uint32_t n_ticks; /* of the rank's thread */
};

struct ku_saving {
    struct ku_trainer *t;
    struct ku_job *job;
    const struct ku_arena *arena;
    struct word *word; /* [local_n] */
    unsigned char *staging;
    size_t staging_bytes;
    struct ku_ckpt_writer *w;
    enum phase phase;
    pthread_t thread;
    int has_thread;
    _Atomic uint32_t is_done; /* set last: status and error may be read */
    atomic_int stop;
    int status;
    struct kumi_error error;
};

static struct word *own_word(const struct ku_saving *s)
{
    return &s->word[s->job->local_rank];
}

static void say_copied(struct ku_saving *s, uint32_t turn)
{
    atomic_store(&own_word(s)->turn, turn);
    ku_os_futex_wake(&own_word(s)->turn, s->job->local_n);
}

static int copied(void *ctx, uint32_t turn)
{
    struct ku_saving *s = ctx;
    say_copied(s, turn);
    return atomic_load(&s->stop) ? KU_ERR(KUMI_ESTOPPED, "checkpoint: abandoned, the run ends")
                                 : KUMI_OK;
}

static void count_tick(void *ctx)
{
    struct ku_saving *s = ctx;
    atomic_fetch_add(&own_word(s)->n_ticks, 1);
}

/* Ticks for a writer that got on since *before, and checks the job. */
static int watch(struct ku_saving *s, const struct word *word, uint32_t *before)
{
    const uint32_t now = atomic_load(&word->n_ticks);
    if (now != *before)
        ku_job_tick(s->job);
    *before = now;
    return ku_job_check(s->job);
}

/* Write barrier before an instruction that overwrites state. */
static int write_barrier(void *ctx, uint32_t instr)
{
    struct ku_saving *s = ctx;
    const uint32_t turn = ku_trainer_turn(s->t->program[KU_PROG_TRAIN], instr);
    int first = 0, end = s->job->local_n;
    if (s->phase != WRITING)
        return KUMI_OK;
    if (ku_trainer_n_readers(s->t) == 1) {
        first = s->job->local_rank;
        end = first + 1;
    }
    for (int r = first; r < end; r++) {
        uint32_t seen, before = 0;
        while ((seen = atomic_load(&s->word[r].turn)) <= turn) {
            KU_TRY(watch(s, &s->word[r], &before));
            ku_os_futex_wait(&s->word[r].turn, seen, SLEEP_NS);
        }
    }
    return KUMI_OK;
}

static void *work(void *arg)
{
    struct ku_saving *s = arg;
    struct ku_ckpt_writing how = {s->staging, s->staging_bytes, copied, s};
    ku_err_rank(s->job->rank);
    s->status = s->phase == WRITING ? ku_ckpt_writer_write_so(s->w, s->job->rank, s->job->n, &how)
                                    : ku_ckpt_writer_commit(s->w);
    s->error = *ku_err_get();
    say_copied(s, UINT32_MAX); /* done or failed: no rank has to wait for it */
    atomic_store(&s->is_done, 1);
    ku_os_futex_wake(&s->is_done, 1);
    return NULL;
}

static void *work_patiently(void *arg)
{
    ku_os_be_patient();
    ku_ticker = (struct ku_ticker){count_tick, arg};
    return work(arg);
}

/* Run a phase in a thread; if none can be created, run it here. */
static void begin_phase(struct ku_saving *s, enum phase phase)
{
    sigset_t all, old;
    s->phase = phase;
    s->status = KUMI_OK;
    atomic_store(&s->is_done, phase == COMMITTING && s->job->rank != 0);
    if (atomic_load(&s->is_done))
        return;
    sigfillset(&all); /* block all signals in the new thread */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    s->has_thread = pthread_create(&s->thread, NULL, work_patiently, s) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!s->has_thread)
        work(s);
}

static void join(struct ku_saving *s)
{
    if (s->has_thread)
        pthread_join(s->thread, NULL);
    s->has_thread = 0;
}

static void end(struct ku_saving *s)
{
    ku_ckpt_writer_destroy(s->w);
    s->w = NULL;
    s->phase = IDLE;
}

int ku_saving_start(struct ku_saving *s, const struct ku_ckpt_desc *desc, int status)
{
    struct ku_ckpt_desc d = ku_trainer_desc(s->t, desc);
    KU_ASSERT(s->phase == IDLE);
    if (status == KUMI_OK)
        status = ku_ckpt_writer_create(&d, &s->w);
    if (status == KUMI_OK)
        status = ku_trainer_spread_writer(s->t, s->w);
    atomic_store(&own_word(s)->turn, 0); /* visible to all ranks after the next ku_agree_worst */
    status = ku_agree_worst(s->job, status);
    if (status == KUMI_OK)
        status = ku_agree_worst(s->job, s->job->rank == 0 ? ku_ckpt_writer_begin(s->w) : KUMI_OK);
    if (status == KUMI_OK) {
        status = ku_trainer_exchange(s->job, s->w);
        if (status < 0 && s->job->rank == 0)
            ku_ckpt_writer_abort(s->w);
    }
    if (status == KUMI_OK)
        begin_phase(s, WRITING);
    else
        end(s);
    return status;
}

bool ku_saving_is_pending(const struct ku_saving *s)
{
    return s != NULL && s->phase != IDLE;
}

/* Called when the threads of all ranks are done. */
static int advance(struct ku_saving *s)
{
    join(s);
    if (s->status < 0)
        ku_err_put(&s->error);
    int status = ku_agree_worst(s->job, s->status);
    if (status == KUMI_OK && s->phase == WRITING)
        status = ku_trainer_add_sums(s->job, s->w);
    if (status == KUMI_OK && s->phase == WRITING) {
        begin_phase(s, COMMITTING);
        return KUMI_OK;
    }
    if (status < 0 && s->phase == WRITING && s->job->rank == 0)
        ku_ckpt_writer_abort(s->w);
    end(s);
    return status;
}

int ku_saving_poll(struct ku_saving *s)
{
    if (!ku_saving_is_pending(s))
        return KUMI_OK;
    int64_t n_busy = !atomic_load(&s->is_done);
    KU_TRY(ku_agree_max(s->job, &n_busy));
    return n_busy ? KUMI_OK : advance(s);
}

int ku_saving_wait(struct ku_saving *s)
{
    int status = KUMI_OK;
    while (status == KUMI_OK && ku_saving_is_pending(s)) {
        uint32_t before = 0;
        while (!atomic_load(&s->is_done)) {
            KU_TRY(watch(s, own_word(s), &before));
            ku_os_futex_wait(&s->is_done, 0, SLEEP_NS);
        }
        status = advance(s);
    }
    return status;
}

static int map_staging(struct ku_saving *s)
{
    if (s->staging_bytes == 0)
        return KUMI_OK;
    s->staging =
        ku_os_mmap(s->staging_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s->staging == NULL)
        return KU_ERR(KUMI_ENOMEM, "memory: checkpoint.staging_mb: %zu bytes: %s", s->staging_bytes,
                      ku_os_why());
    ku_os_populate(s->staging, s->staging_bytes);
    return KUMI_OK;
}

static void set_write_barrier(struct ku_trainer *t, ku_exec_write_barrier *to, void *ctx)
{
    for (int i = 0; i < t->n_shapes; i++)
        ku_exec_set_write_barrier(t->shape[i].exec[KU_PROG_TRAIN], to, ctx);
}

int ku_saving_create(struct ku_trainer *t, struct ku_saving **out)
{
    struct ku_saving *s = ku_calloc(1, sizeof *s);
    int status = s ? KUMI_OK : KUMI_ENOMEM;
    if (s) {
        s->t = t;
        s->job = t->job;
        s->staging_bytes = t->staging_bytes / KU_CKPT_WINDOW_BYTES * KU_CKPT_WINDOW_BYTES;
        status = map_staging(s);
    }
    status = ku_agree(t->job, status);
    if (status == KUMI_OK)
        status = ku_arena_create(t->job, "saving", (size_t)t->job->local_n * sizeof(struct word), 0,
                                 &s->arena);
    if (status < 0) {
        ku_saving_destroy(s);
        return status;
    }
    s->word = (struct word *)(void *)ku_arena_common(s->arena);
    set_write_barrier(t, write_barrier, s);
    *out = s;
    return KUMI_OK;
}

void ku_saving_destroy(struct ku_saving *s)
{
    if (s == NULL)
        return;
    atomic_store(&s->stop, 1);
    join(s);
    end(s);
    if (s->arena) {
        set_write_barrier(s->t, NULL, NULL);
        KU_IGNORE(ku_arena_destroy(s->job, s->arena), "the job keeps its cause");
    }
    if (s->staging)
        ku_os_munmap(s->staging, s->staging_bytes);
    ku_free(s);
}
