/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ways to need less memory. Each alternative is a list of settings on top of the user's, as further
 * --set options; it is compiled like the plan itself, and kept if it is valid and needs less. The
 * plan is the first task of a queue, the alternatives the others, and one thread per core takes
 * tasks:
 *
 *     core 0   plan          compute=bf16     offload.params    recompute=full ..
 *     core 1   micro-batch   offload.optimizer ..   recompute=selective ..
 *
 * Alternatives that leave evaluation and initialization as they are come last: they are compiled
 * for training only and take the bytes of the other programs from the plan, if it is compiled by
 * then.
 */
#include "plan/advice.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/progress_line.h"
#include "config/deepspeed.h"

struct trials {
    struct ku_plan *plan; /* opened; task 0 compiles it */
    const struct kumi_settings *settings;
    const struct ku_watch *watch;
    struct ku_advice advice[KU_MAX_ADVICE]; /* task i + 1 */
    struct kumi_error plan_error, error[KU_MAX_ADVICE];
    int n, order[KU_MAX_ADVICE + 1]; /* task numbers in the order of the queue */
    atomic_int next;
    atomic_bool is_compiled; /* the plan */
};

static struct ku_advice *suggest(struct trials *t, const char *price)
{
    KU_ASSERT(t->n < KU_MAX_ADVICE);
    t->advice[t->n].price = price;
    return &t->advice[t->n++];
}

/* Add a setting, such as "train.micro_batch=%d", to an alternative. */
__attribute__((format(printf, 2, 3))) static void set(struct ku_advice *a, const char *format, ...)
{
    va_list args;
    KU_ASSERT(a->n_sets < (int)(sizeof a->set / sizeof a->set[0]));
    va_start(args, format);
    vsnprintf(a->set[a->n_sets++], sizeof a->set[0], format, args);
    va_end(args);
}

static int try_settings(struct trials *t, struct ku_advice *a)
{
    struct ku_plan other;
    struct kumi_settings s = *t->settings;
    const char **set = ku_calloc((size_t)(s.n_sets + a->n_sets), sizeof *set);
    if (set == NULL)
        return KUMI_ENOMEM;
    for (int i = 0; i < s.n_sets; i++)
        set[i] = s.set[i];
    for (int i = 0; i < a->n_sets; i++)
        set[s.n_sets++] = a->set[i];
    s.set = set;
    const bool trains_only = a->trains_only && atomic_load(&t->is_compiled);
    const int status = ku_plan_open(&other, &s, ku_session_n_ranks(&t->plan->s), NULL);
    ku_free(set);
    KU_TRY(status);
    KU_TRY(ku_plan_compile(&other, t->watch, trains_only ? t->plan->other_bytes : NULL));
    a->host_bytes = other.host_bytes;
    ku_plan_fini(&other);
    return KUMI_OK;
}

static void *run_tasks(void *arg)
{
    struct trials *t = arg;
    for (int k = atomic_fetch_add(&t->next, 1); k <= t->n; k = atomic_fetch_add(&t->next, 1)) {
        const int i = t->order[k];
        if (i > 0 && try_settings(t, &t->advice[i - 1]) < 0)
            t->error[i - 1] = *ku_err_get();
        if (i > 0)
            continue;
        if (ku_plan_compile(t->plan, t->watch, NULL) == KUMI_OK) {
            atomic_store(&t->is_compiled, true);
        } else {
            t->plan_error = *ku_err_get();
            atomic_store(&t->next, t->n + 1); /* alternatives to no plan have no use */
        }
    }
    return NULL;
}

static void sort_tasks(struct trials *t)
{
    int n = 1;
    for (int last = 0; last < 2; last++)
        for (int i = 0; i < t->n; i++)
            if (t->advice[i].trains_only == last)
                t->order[n++] = i + 1;
}

/* If a thread cannot start, the others do its work. */
static int run_all(struct trials *t)
{
    pthread_t thread[KU_MAX_ADVICE];
    int n = ku_os_n_cpus() - 1 < t->n ? ku_os_n_cpus() - 1 : t->n, n_started = 0;
    sort_tasks(t);
    while (n_started < n && pthread_create(&thread[n_started], NULL, run_tasks, t) == 0)
        n_started++;
    run_tasks(t);
    for (int i = 0; i < n_started; i++)
        pthread_join(thread[i], NULL);
    return t->plan_error.status < 0 ? ku_err_put(&t->plan_error) : KUMI_OK;
}

/* Keep the alternatives that are valid and need less memory than the plan. */
static int keep_less(const struct trials *t, struct ku_advice *kept, int *n_kept)
{
    for (int i = 0; i < t->n; i++) {
        const int status = t->error[i].status;
        if (status == KUMI_EINVAL || status == KUMI_ENOMEM)
            continue; /* invalid, or exceeds memory.recompute's budget */
        if (status < 0)
            return ku_err_put(&t->error[i]);
        if (t->advice[i].host_bytes < t->plan->host_bytes)
            kept[(*n_kept)++] = t->advice[i];
    }
    return KUMI_OK;
}

static void advise_batch_in_tokens(const struct ku_batch *b, struct trials *t)
{
    set(suggest(t, "more and smaller micro-batches; changes the order of sums"),
        "train.accumulation=%lld", 2 * (long long)b->accumulation);
    if (b->virtual_shards > b->n_ranks)
        set(suggest(t, "changes the order of sums, which then depends on the rank count"),
            "train.virtual_shards=%d", b->n_ranks);
}

static void advise_batch(const struct ku_batch *b, struct trials *t)
{
    struct ku_advice *a;
    if (b->is_in_tokens) {
        advise_batch_in_tokens(b, t);
        return;
    }
    int64_t micro = b->micro_batch / 2, of_shard = b->global_batch / b->virtual_shards;
    while (micro > 1 && of_shard % micro != 0)
        micro--;
    if (micro >= 1) {
        a = suggest(t, "more and smaller micro-batches; changes the order of sums");
        set(a, "train.micro_batch=%lld", (long long)micro);
        set(a, "train.global_batch=%lld", (long long)b->global_batch);
        set(a, "train.accumulation=null");
    }
    if (b->virtual_shards > b->n_ranks) {
        a = suggest(t, "changes the order of sums, which then depends on the rank count");
        set(a, "train.virtual_shards=%d", b->n_ranks);
        set(a, "train.global_batch=%lld", (long long)b->global_batch);
        set(a, "train.micro_batch=%lld", (long long)b->micro_batch);
    }
}

static void advise_recompute(const struct ku_plan *p, struct trials *t)
{
    static const char *const price[] = {"recomputes attention and cheap operations; same bits",
                                        "recomputes the layers' forward; same bits"};
    for (int i = p->s.cfg.memory_recompute.rule; i < 2; i++) {
        struct ku_advice *a = suggest(t, price[i]);
        set(a, "memory.recompute=%s", i ? "full" : "selective");
        a->trains_only = true;
    }
}

/*
 * Suggest offload to files. Offload to host memory is not suggested, since it takes the same
 * memory.
 */
static void advise_offload(const struct ku_plan *p, struct trials *t)
{
    const struct ku_offload_key *k = &p->s.cfg.memory_offload;
    static const char *const what[] = {"optimizer", "params", "activations"};
    const int now[] = {k->optimizer, k->params, k->activations};
    for (int i = 0; i < 3; i++)
        if (now[i] != KU_OFFLOAD_FILE) {
            struct ku_advice *a = suggest(t, "reads and writes a disk in each step; same bits");
            a->trains_only = i == 2;
            set(a, "memory.offload.%s=file", what[i]);
            if (k->path == NULL)
                set(a, "memory.offload.path=.");
        }
}

static void advise(const struct ku_plan *p, struct trials *t)
{
    advise_batch(&p->s.batch, t);
    advise_recompute(p, t);
    advise_offload(p, t);
    if (p->s.sharding.tp == 1 && p->s.sharding.pp == 1 && p->s.sharding.local < p->s.batch.n_ranks)
        set(suggest(t, "same bits"), "parallel.%s",
            json_is_false(ku_json_at(p->s.cfg.root, "parallel.share_host_state"))
                ? "share_host_state=true"
                : "host_state=shared");
    if (strcmp(p->s.cfg.precision_compute, "f32") == 0 &&
        strcmp(p->s.cfg.parallel_device, "cpu") == 0)
        set(suggest(t, "activations rounded to bf16; changes the bits"), "precision.compute=bf16");
}

static int is_advised(const struct ku_plan *p, bool *is)
{
    struct ku_graph *g;
    KU_TRY(ku_session_graph(&p->s, 0, &g));
    *is = p->s.batch.k * (int64_t)g->n_nodes <= KU_MAX_ADVISED_OPS;
    ku_graph_destroy(g);
    return KUMI_OK;
}

int ku_plan_init_advised(struct ku_plan *p, const struct kumi_settings *settings, int n_ranks,
                         struct ku_advice *advice, int *n)
{
    bool is;
    struct ku_compile_line line;
    struct ku_watch watch = ku_compile_line_start(&line);
    struct trials t = {.plan = p, .settings = settings, .watch = &watch};
    *n = 0;
    int status = ku_plan_open(p, settings, n_ranks, NULL);
    if (status == KUMI_OK && (status = is_advised(p, &is)) < 0)
        ku_plan_fini(p);
    if (status == KUMI_OK) {
        ku_deepspeed_warn(&p->s.cfg);
        if (is)
            advise(p, &t);
        status = run_all(&t);
        if (status == KUMI_OK && (status = keep_less(&t, advice, n)) < 0)
            ku_plan_fini(p);
    }
    ku_compile_line_end(&line);
    if (status == KUMI_OK && !is)
        *n = -1;
    return status;
}
