/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A parameter server leaves the bits of an all-reduce job with as many ranks as it has workers:
 * workers and servers as threads of this process, over the direct link. tsan
 */
#include "dist.h"

#include <pthread.h>
#include <time.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/os/os.h"
#include "exec/exec.h"
#include "kumi/model.h"
#include "remote/direct.h"
#include "train/plan_proof.h"
#include "remote/worker.h"

enum { STEPS = 3, IMAGE = 9, CLASSES = 7 };
enum model { GPT2, RESNET, TRANSFORMER, N_MODELS };

struct remote {
    struct dist_case c; /* n: workers */
    enum model model;
    int n_servers;
    const char *const *freeze;
    int schedule; /* enum ku_schedule */
    struct ku_remote_engine_opts engine;
    int compression; /* enum ku_remote_form */
    double topk;
    const char *dir;   /* of the workers' error feedback; NULL: memory */
    bool repeats_data; /* every step has the samples of step 0 */
    int restart;       /* the worker is made anew before this step; 0: never */
    bool forgets;      /* then without its live error feedback */
    int n_updates;
    int late; /* a worker that is slow; -1: none */
    /* Of two workers, 1 is away before this step, until a while later (returns) or for good. */
    int away;
    bool returns, both;   /* both: 0 is away at the same time, as the servers see it */
    const int64_t *begin; /* the workers' first steps, as after a restart of the servers */
    struct ku_remote_engine *first; /* server 0's */
    int broken, bad_update; /* a worker that fails in its step 1; an update that fails; -1: none */
    const int *order;       /* replayed */
    bool reads;             /* server 0 is read while it updates */
    int n_reads;
    int applied[64], n_applied;
    struct ku_remote_direct *link;
};

/* Of a thread that runs one side. */
struct side {
    struct remote *r;
    int worker;                 /* -1: the servers */
    struct ku_remote_link link; /* where a first step is given */
    int status;
    struct kumi_error error;
    pthread_t thread;
};

static int build(const struct remote *r, struct ku_graph **g)
{
    const struct dist_case *c = &r->c;
    struct kumi_graph *builder;
    struct kumi_shape_of_batch batch = {.n = (int64_t)c->v * c->micro * c->k, .t = c->t};
    KU_TRY(kumi_graph_create(&builder));
    if (r->model == GPT2) {
        kumi_gpt2_build(builder, &c->model, &batch);
    } else if (r->model == RESNET) {
        struct kumi_resnet m;
        kumi_resnet_defaults(&m);
        m.depth = 8, m.width = 8, m.num_classes = CLASSES, m.image_size = IMAGE;
        m.stem = KUMI_STEM_CIFAR;
        batch.t = 0;
        kumi_resnet_build(builder, &m, &batch);
    } else {
        struct kumi_transformer m;
        kumi_transformer_defaults(&m);
        m.d_model = 24, m.num_heads = 3, m.ffn_dim = 40, m.max_positions = 12;
        m.encoder_layers = m.decoder_layers = 1;
        m.src_vocab_size = m.tgt_vocab_size = c->model.vocab_size;
        m.share_embeddings = m.tie_word_embeddings = 1;
        batch.s = c->t;
        kumi_transformer_build(builder, &m, &batch);
    }
    int status = ku_builder_take(builder, g);
    kumi_graph_destroy(builder);
    return status;
}

/* Fills every input of a step from its rows' numbers. */
static void fill(const struct remote *r, struct ku_trainer *t, int64_t step)
{
    const struct ku_program *p = t->program[KU_PROG_TRAIN];
    for (uint32_t i = 0; i < p->n_inputs; i++) {
        const char *name = p->name_of[p->input[i].name];
        const bool is_image = strcmp(name, "images") == 0, is_len = strstr(name, "_len") != NULL;
        for (int u = 0; u < ku_trainer_n_micro(t) && strcmp(name, "control") != 0; u++) {
            int64_t first, n = ku_trainer_rows(t, u, &first);
            size_t row_bytes;
            void *row = host_of(ku_trainer_port(t, KU_PROG_TRAIN, name, u, &row_bytes));
            const enum kumi_dtype dtype = (enum kumi_dtype)p->input[i].dtype;
            const int64_t each = (int64_t)(row_bytes / kumi_dtype_bytes(dtype));
            const uint32_t below = r->model == RESNET ? CLASSES : (uint32_t)r->c.model.vocab_size;
            for (int64_t k = 0; k < n * each; k++) {
                uint32_t x = ku_random_u32(7 + i, r->repeats_data ? 0 : (uint32_t)step, 1,
                                           (uint64_t)(first * each + k));
                ku_store_f64(row, dtype, k,
                             is_image ? x % 256 / 128.0 - 1
                             : is_len ? 1 + x % (uint32_t)r->c.t
                                      : x % below);
            }
        }
    }
}

/* A schedule that changes the learning rate in each of the first steps. */
static void set_schedule(struct ku_attrs *rule, int schedule)
{
    static const struct ku_args args[] = {
        [KU_SCHED_MULTI_STEP] = {{1, 2}},
        [KU_SCHED_LR_RANGE_TEST] = {{1e-3, 1, 1, 0}},
        [KU_SCHED_DS_ONE_CYCLE] = {{1e-3, 1e-2, 1, 1, 1, 0.5, 0.8, 0.9, 0.1}},
        [KU_SCHED_WARMUP_LR] = {{1e-3, 1e-2, 3, 1, 5}},
        [KU_SCHED_WARMUP_DECAY_LR] = {{1e-3, 1e-2, 1, 1, 5}},
        [KU_SCHED_WARMUP_COSINE_LR] = {{0.1, 0.01, 1, 1, 5}}};
    rule->schedule = schedule;
    rule->min_lr = rule->warmup_lr = 1e-3;
    rule->warmup = 1;
    rule->decay = 4;
    rule->step_size = 1;
    rule->gamma = 0.5;
    rule->d_model = 16;
    rule->cycle_momentum = 1;
    rule->args = args[schedule];
}

static struct ku_trainer_opts opts_of(const struct remote *r, int update_by)
{
    struct ku_trainer_opts o = {.device = ku_device_find(r->c.device), .seed = 1337};
    o.device_opts = (struct ku_device_opts){.n_threads = 1, .isa = ku_cpu_isa()};
    o.compile = dist_compile_opts(&r->c);
    if (r->c.optimizer == KU_OP_sgd)
        o.compile.rule.momentum = 0.9;
    o.compile.freeze = r->freeze;
    if (r->schedule != KU_SCHED_CONSTANT)
        set_schedule(&o.compile.rule, r->schedule);
    if (update_by == KU_UPDATE_HERE)
        return o;
    o.compile.zero = update_by == KU_UPDATE_SERVER ? 3 : 0;
    o.compile.remote = (struct ku_remote_opts){.update_by = update_by,
                                               .n_servers = r->n_servers,
                                               .is_single = r->engine.mode != KU_REMOTE_SYNC,
                                               .compression = r->compression,
                                               .topk = r->topk};
    return o;
}

static int create(const struct remote *r, struct ku_job *job, int update_by, int worker,
                  struct ku_trainer **t)
{
    struct ku_trainer_opts o = opts_of(r, update_by);
    struct ku_graph *g;
    o.worker = worker;
    KU_TRY(build(r, &g));
    return ku_trainer_create(job, &g, 1, &o, t);
}

static int all_reduce_rank(struct ku_job *job, void *arg)
{
    struct remote *r = arg;
    struct ku_trainer *t = NULL;
    const double *report;
    KU_TRY(create(r, job, KU_UPDATE_HERE, 0, &t));
    KU_TRY(ku_trainer_init_state(t));
    for (int step = 0; step < r->c.steps; step++) {
        fill(r, t, step);
        KU_TRY(ku_trainer_step(t, step, &report));
        if (job->rank == 0)
            r->c.loss[step] = report[KU_REPORT_LOSS];
    }
    KU_TRY(ku_trainer_digest_first(t, r->c.digest));
    ku_trainer_destroy(t);
    return KUMI_OK;
}

static int note(void *ctx, int64_t version, int n, const int32_t *worker, const int64_t *step)
{
    struct remote *r = ctx;
    (void)step;
    if (version == r->bad_update)
        return KU_ERR(KUMI_ESTORAGE, "the log is full");
    for (int k = 0; k < n; k++) {
        assert_true(r->n_applied < 64);
        r->applied[r->n_applied++] = worker[k];
    }
    return KUMI_OK;
}

static int replay(void *ctx, int64_t version, int32_t *worker)
{
    const struct remote *r = ctx;
    worker[0] = r->order[version - 1];
    return 1;
}

/* Records that no worker makes. */
static void check_records(struct ku_remote_engine *e)
{
    const struct ku_remote_layout *l = ku_remote_engine_layout(e);
    uint32_t i = 0;
    while (i < l->n_push && l->push[i].form != KU_REMOTE_TOPK)
        i++;
    assert_true(i < l->n_push);
    const struct ku_remote_entry *x = &l->push[i];
    const struct ku_remote_part part = ku_remote_part_of(l, true, i, 0);
    const size_t each = ku_remote_record_bytes(x, KU_BLOCK_COUNT),
                 k = (size_t)ku_remote_topk(x, KU_BLOCK_COUNT);
    assert_true(part.end - part.begin >= KU_BLOCK_COUNT && k >= 2);
    unsigned char *record = ku_calloc(each, 1);
    uint16_t *index = (uint16_t *)(void *)(record + 4 * k);
    for (size_t n = 0; n < k; n++)
        index[n] = (uint16_t)(n + 1);
    index[k - 1] = KU_BLOCK_COUNT - 1;
    assert_int_equal(ku_remote_check_contents(e, 0, 0, part.offset, record, each, false), 0);
    const struct {
        uint16_t first, last;
    } bad[] = {{2, KU_BLOCK_COUNT - 1}, {1, KU_BLOCK_COUNT}, {9, 8}, {1, 1}, {1, 65535}};
    for (size_t n = 0; n < sizeof bad / sizeof *bad; n++) {
        index[0] = bad[n].first, index[k - 1] = bad[n].last;
        assert_int_equal(ku_remote_check_contents(e, 0, 0, part.offset, record, each, false),
                         KUMI_EINVAL);
        assert_non_null(strstr(ku_err_get()->text, "do not ascend, or exceed the chunk"));
    }
    assert_int_equal(ku_remote_check_contents(e, 0, 0, part.offset, record, each - 4, false),
                     KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "are sent whole"));
    ku_free(record);
}

/* While an update runs: a read, also of the parameters that are there, does not wait. */
static int read_at_once(void *ctx, uint32_t number)
{
    struct remote *r = ctx;
    int64_t seen = 0;
    char byte;
    (void)number;
    r->n_reads++;
    KU_TRY(ku_remote_read(r->first, 0, 0, 0, &byte, 1, &seen));
    return seen == -1 ? KUMI_OK : KU_ERR(KUMI_EBUG, "read during an update: %d", (int)seen);
}

static int serve(struct remote *r, struct ku_trainer *t, struct ku_remote_engine *e, bool is_read)
{
    struct ku_exec *exec = t->exec[KU_PROG_TRAIN];
    uint32_t *of = ku_calloc(t->program[KU_PROG_TRAIN]->n_instrs, sizeof *of);
    of[0] = 1;
    if (is_read)
        ku_exec_set_notice(exec, of, read_at_once, r);
    const int status = ku_remote_serve(e, r->n_updates);
    ku_exec_set_notice(exec, NULL, NULL, NULL);
    ku_free(of);
    return status;
}

static int server_rank(struct ku_job *job, void *arg)
{
    struct remote *r = arg;
    struct ku_trainer *t = NULL;
    struct ku_remote_engine *e = NULL;
    char digest[72];
    const struct ku_remote_events events = {
        .ctx = r, .on_apply = note, .next = r->order ? replay : NULL};
    KU_TRY(create(r, job, KU_UPDATE_SERVER, 0, &t));
    KU_TRY(ku_trainer_init_state(t));
    KU_TRY(ku_remote_engine_create(t, &r->engine, &e));
    if (r->compression == KU_REMOTE_TOPK && job->rank == 0)
        check_records(e);
    if (r->begin)
        ku_remote_begin_at(e, r->begin);
    if (job->rank == 0)
        r->first = e; /* workers begin later */
    ku_remote_direct_attach(r->link, e, NULL, r->dir, job->rank == 0 ? &events : NULL);
    int status = serve(r, t, e, r->reads && job->rank == 0);
    if (status < 0)
        ku_remote_direct_fail(r->link, status);
    else
        status = ku_trainer_digest_first(t, digest);
    if (status == KUMI_OK && job->rank == 0)
        memcpy(r->c.digest, digest, sizeof digest);
    ku_remote_direct_detach(r->link, e);
    ku_remote_engine_destroy(e);
    ku_trainer_destroy(t);
    return status;
}

static int open_worker(const struct side *x, struct ku_trainer *t, struct ku_remote_worker **w)
{
    const struct ku_remote_link *link = ku_remote_direct_link(x->r->link, x->worker);
    return ku_remote_worker_create(t, x->r->begin ? &x->link : link, NULL, w);
}

/* As a process that takes the place of one that was killed between two steps. */
static int restart(const struct side *x, struct ku_trainer *t, struct ku_remote_worker **w)
{
    char path[128];
    ku_remote_worker_destroy(*w);
    *w = NULL;
    snprintf(path, sizeof path, "%s/workers/worker-%d.residual", x->r->dir, x->worker);
    if (x->r->forgets)
        assert_int_equal(ku_os_unlink(path), 0);
    return open_worker(x, t, w);
}

/* The steps of a worker: where 1 is away, 0 pushes for it. */
static int steps_of(const struct remote *r, int worker)
{
    const int lost = r->away == 0 ? 0 : r->returns ? 6 : r->c.steps - r->away;
    return r->c.steps + (worker == 0 ? lost : -lost);
}

static void be_away(const struct side *x, int64_t step)
{
    struct remote *r = x->r;
    const bool is_last = step == steps_of(r, x->worker);
    if (r->away == 0 || x->worker != 1 || (step != r->away && !is_last))
        return;
    ku_remote_exclude(r->first, 1, true);
    if (r->both && !is_last)
        ku_remote_exclude(r->first, 0, true);
    nanosleep(&(struct timespec){.tv_nsec = is_last ? 0 : r->both ? 30000000 : 20000000}, NULL);
    if (!is_last)
        ku_remote_exclude(r->first, 1, false);
    if (r->both && !is_last)
        ku_remote_exclude(r->first, 0, false);
}

/* After a restart a worker beyond the bound begins with the first update that lets it. */
static void check_begin(const struct side *x, int64_t step)
{
    const struct remote *r = x->r;
    const int64_t wanted = r->begin ? step - r->begin[1] - r->engine.staleness : 0;
    int64_t seen = -1;
    char byte;
    if (wanted <= 0 || x->worker != 0 || step != r->begin[0])
        return;
    for (int i = 0; i < 5000 && seen < 0; i++) {
        assert_int_equal(ku_remote_read(r->first, 0, step, 0, &byte, 1, &seen), 0);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    assert_int_equal(seen, wanted);
}

/* How long a worker takes for a step: with `returns` 1 catches up with 0, then it is the slower. */
static long delay_ns(const struct side *x, int64_t step)
{
    const struct remote *r = x->r;
    if (r->returns && x->worker == 1 && step > (r->both ? 6 : r->away))
        return 50000000;
    if (r->both)
        return x->worker == 0 && step < 8 ? 20000000 : 0;
    return x->worker == r->late || (r->returns && step < 4) ? 20000000 : 0;
}

static int work(const struct side *x, struct ku_trainer *t, struct ku_remote_worker **w)
{
    struct remote *r = x->r;
    for (int64_t step = r->begin ? r->begin[x->worker] : 0;; step++) {
        const double *report;
        if (r->restart > 0 && step == r->restart)
            KU_TRY(restart(x, t, w));
        KU_TRY(ku_remote_begin(*w, &step, &report));
        check_begin(x, step);
        if (step > 0 && x->worker == 0)
            r->c.loss[step - 1] = report[KU_REPORT_LOSS];
        be_away(x, step);
        if (step == steps_of(r, x->worker))
            return KUMI_OK;
        if (x->worker == r->broken && step == 1)
            return KU_ERR(KUMI_EINPUT, "a sample is broken");
        if (delay_ns(x, step))
            nanosleep(&(struct timespec){.tv_nsec = delay_ns(x, step)}, NULL);
        fill(r, t, step);
        KU_TRY(ku_remote_step(*w, step));
    }
}

static int worker_rank(struct ku_job *job, void *arg)
{
    const struct side *x = arg;
    struct ku_trainer *t = NULL;
    struct ku_remote_worker *w = NULL;
    int status = create(x->r, job, KU_UPDATE_WORKER, x->worker, &t);
    if (status == KUMI_OK)
        status = open_worker(x, t, &w);
    if (status == KUMI_OK)
        status = work(x, t, &w);
    const struct kumi_error error = *ku_err_get();
    ku_remote_worker_destroy(w);
    ku_trainer_destroy(t);
    return status < 0 ? ku_err_put(&error) : KUMI_OK;
}

static void *run_side(void *arg)
{
    struct side *x = arg;
    if (x->worker >= 0 && x->r->begin) {
        x->link = *ku_remote_direct_link(x->r->link, x->worker);
        x->link.first_step = x->r->begin[x->worker];
    }
    x->status = x->worker < 0 ? ku_comm_threads(x->r->n_servers, NULL, server_rank, x->r)
                              : ku_comm_threads(1, NULL, worker_rank, x);
    x->error = *ku_err_get();
    if (x->status < 0)
        ku_remote_direct_fail(x->r->link, x->status);
    if (x->worker >= 0)
        ku_remote_direct_leave(x->r->link);
    return NULL;
}

/* side: [1 + workers], the servers first */
static void run_sides(struct remote *r, struct side *side)
{
    assert_int_equal(ku_remote_direct_create(r->c.n, r->n_servers, &r->link), 0);
    for (int i = 0; i <= r->c.n; i++) {
        side[i] = (struct side){.r = r, .worker = i - 1};
        assert_int_equal(pthread_create(&side[i].thread, NULL, run_side, &side[i]), 0);
    }
    for (int i = 0; i <= r->c.n; i++)
        pthread_join(side[i].thread, NULL);
    ku_remote_direct_destroy(r->link);
}

static void run_remote(struct remote *r)
{
    struct side side[1 + 8];
    run_sides(r, side);
    for (int i = 0; i <= r->c.n; i++)
        if (side[i].status < 0)
            fail_msg("%s %d: %s", i ? "worker" : "servers", i - 1, side[i].error.text);
}

static struct remote case_of(enum model model, int n, int n_servers, int optimizer,
                             enum kumi_dtype compute)
{
    struct remote r = {.c = {.n = n,
                             .v = 4,
                             .micro = 1,
                             .k = 2,
                             .steps = STEPS,
                             .device = "cpu",
                             .compute = compute,
                             .optimizer = optimizer,
                             .no_sharing = 1,
                             .model = dist_model(),
                             .t = 5},
                       .model = model,
                       .n_servers = n_servers,
                       .late = -1,
                       .broken = -1,
                       .bad_update = -1,
                       .n_updates = STEPS};
    return r;
}

static void check_equal(struct remote r)
{
    struct remote all = r;
    if (ku_comm_threads(r.c.n, NULL, all_reduce_rank, &all) < 0)
        fail_msg("all-reduce: %s", ku_err_get()->text);
    run_remote(&r);
    assert_int_equal(strlen(all.c.digest), 71);
    if (strcmp(all.c.digest, r.c.digest) != 0)
        fail_msg("model %d, %d workers, %d servers, optimizer %d, dtype %d: %s, all-reduce %s",
                 r.model, r.c.n, r.n_servers, r.c.optimizer, (int)r.c.compute, r.c.digest,
                 all.c.digest);
    for (int i = 0; i < r.c.steps; i++)
        assert_true(all.c.loss[i] == r.c.loss[i]);
}

static void sync_is_all_reduce(void **state)
{
    static const int optimizer[] = {KU_OP_sgd, KU_OP_adamw, KU_OP_lamb};
    static const enum kumi_dtype dtype[] = {KUMI_F32, KUMI_BF16};
    struct sample s = {.plain = 40, .address = 1000, .thread = 1000};
    (void)state;
    for (int i = 0; i < N_MODELS * 3 * 2 * 3 * 3; i++) {
        const int model = i % N_MODELS, k = i / 3 % 3, d = i / 9 % 2, n = 1 << i / 18 % 3;
        if (sample_takes(&s, i, model, -1))
            check_equal(case_of((enum model)model, n, 1 + i / 54, optimizer[k], dtype[d]));
    }
    sample_end(&s, "workers, servers, models, optimizers and dtypes");
}

static void check_sampled(struct sample *s, struct remote r)
{
    if (sample_takes(s, s->n_rows, 0, -1))
        check_equal(r);
}

/* Every optimizer, and what else phase O does: 2 workers, 3 servers. */
static void every_update(void **state)
{
    struct sample s = {.plain = 2, .address = 8, .thread = 24};
    static const int optimizer[] = {KU_OP_adam,
                                    KU_OP_adagrad,
                                    KU_OP_lion,
                                    KU_OP_rmsprop,
                                    KU_OP_rmsprop_momentum,
                                    KU_OP_rmsprop_centered,
                                    KU_OP_rmsprop_both,
                                    KU_OP_lars,
                                    KU_OP_adafactor};
    static const char *const match[] = {"*bias", NULL}, *const frozen[] = {"*h.0.*", NULL};
    const struct ku_update_group bias = {.match = match,
                                         .set = {{offsetof(struct ku_attrs, weight_decay), 0.3},
                                                 {offsetof(struct ku_attrs, lr), 3e-3}},
                                         .n_set = 2};
    (void)state;
    for (size_t i = 0; i < sizeof optimizer / sizeof *optimizer; i++)
        check_sampled(&s, case_of(GPT2, 2, 3, optimizer[i], i % 2 ? KUMI_BF16 : KUMI_F32));
    struct remote r = case_of(GPT2, 2, 3, KU_OP_adamw, KUMI_F32), x = r;
    x.c.clip_value = 1e-3, x.c.ema = 0.9; /* averages */
    check_sampled(&s, x);
    x = r;
    x.c.compute = KUMI_F16, x.c.loss_scale = 0x1p24, x.c.window = 2, x.c.steps = x.n_updates = 8;
    check_sampled(&s, x); /* overflows, recovers, grows */
    x = r;
    x.c.reduce = KUMI_BF16; /* rounds operands and sums */
    check_sampled(&s, x);
    x.c.n = 4, x.n_servers = 1;
    check_sampled(&s, x);
    x = r;
    x.c.compute = x.c.grads = KUMI_BF16, x.c.no_master = 1;
    check_sampled(&s, x);
    x.c.stochastic_rounding = 1;
    check_sampled(&s, x);
    x = r;
    x.freeze = frozen;
    check_sampled(&s, x);
    x = r;
    x.c.groups = &bias;
    x.c.n_groups = 1;
    check_sampled(&s, x);
    x = r;
    x.c.recompute = KU_RECOMPUTE_FULL, x.c.bucket_bytes = 1024, x.c.no_overlap = 1;
    check_sampled(&s, x);
    x = r;
    x.c.compute = KUMI_F64, x.c.device = "ref";
    check_sampled(&s, x);
    sample_end(&s, "kinds of update");
}

/* Every schedule counts the servers' updates. */
static void every_schedule(void **state)
{
    struct sample s = {.plain = 2, .address = 8, .thread = 16};
    char constant[sizeof((struct dist_case *)0)->digest];
    struct remote r = case_of(GPT2, 2, 3, KU_OP_adamw, KUMI_F32);
    (void)state;
    run_remote(&r);
    memcpy(constant, r.c.digest, sizeof constant);
    for (int k = KU_SCHED_CONSTANT + 1; k <= KU_SCHED_WARMUP_COSINE_LR; k++) {
        if (!sample_takes(&s, s.n_rows, 0, -1))
            continue;
        r = case_of(GPT2, 2, 3, KU_OP_adamw, KUMI_F32);
        r.schedule = k;
        check_equal(r);
        run_remote(&r);
        if (strcmp(r.c.digest, constant) == 0)
            fail_msg("schedule %d is constant", k);
    }
    sample_end(&s, "schedules");
}

/*
 * The largest number of pushes by which a worker was ahead of the slowest one; where worker 1
 * returns, from then until its last push.
 */
static int widest(const struct remote *r)
{
    int count[8] = {0}, most = 0;
    bool is_back = !r->returns;
    for (int i = 0; i < r->n_applied; i++) {
        count[r->applied[i]]++;
        if (r->returns && count[1] == steps_of(r, 1))
            break;
        is_back |= count[1] > r->away && count[0] - count[1] <= r->engine.staleness;
        if (!is_back)
            continue;
        for (int w = 0; w < r->c.n; w++)
            if (count[r->applied[i]] - count[w] > most)
                most = count[r->applied[i]] - count[w];
    }
    return most;
}

/* Async and ssp: the order in which pushes were applied gives the bits, on any number of servers.
 */
static void order_is_all(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        struct remote r = case_of(k == 3 ? RESNET : GPT2, 2, 1 + k % 2, KU_OP_lamb, KUMI_F32);
        r.engine.mode = k < 2 ? KU_REMOTE_ASYNC : KU_REMOTE_SSP;
        r.engine.staleness = k == 2 ? 0 : 1;
        r.n_updates = r.c.n * STEPS;
        r.late = 1;
        run_remote(&r);
        assert_int_equal(r.n_applied, r.n_updates);
        if (r.engine.mode == KU_REMOTE_SSP)
            assert_true(widest(&r) <= r.engine.staleness + 1);
        struct remote again = r;
        again.order = r.applied, again.n_applied = 0, again.late = 0, again.n_servers = 3;
        again.c.digest[0] = '\0';
        run_remote(&again);
        assert_memory_equal(again.applied, r.applied, sizeof r.applied);
        assert_string_equal(again.c.digest, r.c.digest);
        again.order = (const int[]){1, 0, 1, 0, 1, 0}, again.n_applied = 0;
        run_remote(&again);
        if (memcmp(again.applied, r.applied, sizeof r.applied) != 0)
            assert_string_not_equal(again.c.digest, r.c.digest);
    }
}

/*
 * Ssp: the others go on without a worker that is away, and wait for it again when it is back. The
 * moment decides when they may begin a step, so no other run can be held to the order of this one.
 */
static void absent(void **state)
{
    (void)state;
    for (int k = 0; k < 8; k++) {
        struct remote r = case_of(GPT2, 2, 1 + k % 3, KU_OP_adamw, KUMI_F32);
        r.engine.mode = KU_REMOTE_SSP;
        r.both = k >= 6;
        r.engine.staleness = r.both ? k - 6 : k / 2;
        r.away = 2;
        r.returns = k % 2 || r.both;
        r.c.steps = r.returns ? 12 : 6;
        r.n_updates = 2 * r.c.steps;
        run_remote(&r);
        assert_int_equal(r.n_applied, r.n_updates);
        if (r.returns) {
            assert_true(widest(&r) <= r.engine.staleness + 1);
            continue;
        }
        struct remote again = r;
        again.order = r.applied, again.n_applied = 0, again.n_servers = 2;
        again.c.digest[0] = '\0';
        run_remote(&again);
        assert_memory_equal(again.applied, r.applied, sizeof r.applied);
        assert_string_equal(again.c.digest, r.c.digest);
    }
}

/* The servers start again while worker 0 waits for the bound. */
static void begins_later(void **state)
{
    static const int64_t begin[2] = {3, 0};
    (void)state;
    for (int k = 0; k < 4; k++) {
        struct remote r = case_of(GPT2, 2, 1 + k % 2, KU_OP_adamw, KUMI_F32);
        r.engine.mode = KU_REMOTE_SSP;
        r.engine.staleness = k / 2;
        r.begin = begin;
        r.c.steps = 6;
        r.n_updates = 3 + 6;
        run_remote(&r);
        assert_int_equal(r.n_applied, r.n_updates);
    }
}

/* A late worker's push is dropped, and it goes on with the servers' step. */
static void backup(void **state)
{
    (void)state;
    struct remote r = case_of(GPT2, 4, 2, KU_OP_adamw, KUMI_F32);
    r.engine.backup = 1;
    r.late = 2;
    r.c.steps = r.n_updates = 6;
    run_remote(&r);
    assert_in_range(r.n_applied, 18, 24);
}

/* The check of one side after an edit of its program; "" or the error. */
static const char *prove(int update_by, void (*edit)(struct ku_program *p))
{
    static char text[512];
    const struct remote r = case_of(GPT2, 2, 3, KU_OP_adamw, KUMI_F32);
    const struct ku_trainer_opts o = opts_of(&r, update_by);
    const struct ku_target target = {.query = o.device->query, .ranks_per_host = 1};
    struct ku_program *p[KU_N_PROGS] = {NULL};
    struct ku_check_report report[KU_N_PROGS];
    struct ku_graph *g, *model;
    assert_int_equal(build(&r, &g), 0);
    assert_int_equal(ku_graph_copy(g, &model), 0);
    assert_int_equal(ku_trainer_plan(g, &o.compile, &target, KU_TRAIN_PROGS, p), 0);
    if (edit)
        edit(p[KU_PROG_TRAIN]);
    const int status =
        ku_trainer_prove(model, &o.compile, &target, (const struct ku_program *const *)p, report);
    snprintf(text, sizeof text, "%s", status < 0 ? ku_err_get()->text : "");
    for (int i = 0; i < KU_N_PROGS; i++)
        ku_program_destroy(p[i]);
    ku_graph_destroy(model);
    ku_graph_destroy(g);
    return text;
}

static void drop_output(struct ku_program *p)
{
    p->n_outputs--;
}

/* Two gradients of one shape and dtype change places; those of two uses of a tensor add up. */
static void swap(struct ku_program *p, struct ku_program_port *port, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = i + 1; k < n; k++)
            if (port[i].shape == port[k].shape && port[i].dtype == port[k].dtype &&
                port[i].layout == port[k].layout &&
                strstr(p->name_of[port[i].name], "wte") == NULL) {
                const ku_id buffer = port[i].buffer;
                port[i].buffer = port[k].buffer;
                port[k].buffer = buffer;
                return;
            }
    fail_msg("no two ports are alike");
}
static void swap_outputs(struct ku_program *p)
{
    swap(p, p->output, p->n_outputs);
}
static void swap_inputs(struct ku_program *p)
{
    swap(p, p->input, p->n_inputs);
}
/* A micro-batch is left out of a sum. */
static void drop_fold(struct ku_program *p)
{
    for (uint32_t i = 0; i < p->n_instrs; i++)
        if (p->instr[i].kind == KU_COMPUTE && p->instr[i].accumulate) {
            p->instr[i].accumulate = 0;
            return;
        }
    fail_msg("no instruction accumulates");
}
/* The norm of one server is not summed over the others. */
static void drop_axes(struct ku_program *p)
{
    for (uint32_t i = 0; i < p->n_instrs; i++)
        if (p->instr[i].kind == KU_START && p->instr[i].op == KU_X_ALL_REDUCE) {
            p->instr[i].reduce = KU_REDUCE_MAX;
            return;
        }
    fail_msg("no sum over servers");
}

static void check_refuses(void **state)
{
    static const struct {
        int update_by;
        void (*edit)(struct ku_program *p);
        const char *text;
    } row[] = {
        {KU_UPDATE_WORKER, NULL, ""},
        {KU_UPDATE_SERVER, NULL, ""},
        {KU_UPDATE_WORKER, drop_output, "does not push every gradient and sum"},
        {KU_UPDATE_WORKER, swap_outputs, "is not the sum over the worker's shards"},
        {KU_UPDATE_WORKER, drop_fold, "check:"},
        {KU_UPDATE_SERVER, swap_inputs, "check:"},
        {KU_UPDATE_SERVER, drop_axes, "check:"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const char *got = prove(row[i].update_by, row[i].edit);
        if (strstr(got, row[i].text) == NULL || (row[i].text[0] == '\0') != (got[0] == '\0'))
            fail_msg("row %zu: wanted %s, got %s", i, row[i].text, got);
    }
}

/* GPT-2 with tensors of several chunks, and one that ends within a chunk. */
static struct remote compressed_case(enum model model, int form, int n_servers)
{
    struct remote r = case_of(model, 2, n_servers, KU_OP_adamw, KUMI_F32);
    r.c.model.n_embd = 48, r.c.model.vocab_size = 301;
    r.compression = form, r.topk = 0.05;
    r.c.steps = r.n_updates = 4;
    return r;
}

static void check_digest(struct remote r, const char *want, const char *what)
{
    run_remote(&r);
    if (strcmp(r.c.digest, want) != 0)
        fail_msg("model %d, form %d, %d servers: %s: %s, wanted %s", r.model, r.compression,
                 r.n_servers, what, r.c.digest, want);
}

/*
 * Compressed pushes give the same bits on 1 to 3 servers, and after a worker was started again,
 * which continues from its error feedback.
 */
static void compressed(void **state)
{
    static const struct {
        enum model model;
        int form;
    } row[] = {{GPT2, KU_REMOTE_INT8},
               {GPT2, KU_REMOTE_INT8_STOCHASTIC},
               {GPT2, KU_REMOTE_TOPK},
               {RESNET, KU_REMOTE_TOPK}};
    char dir[64];
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/kumi-remote-%d", (int)getpid());
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct remote r = compressed_case(row[i].model, row[i].form, 1), x = r;
        run_remote(&r);
        for (int s = sample_count(2, 3); s <= 3; s++, x = r) {
            x.n_servers = s;
            check_digest(x, r.c.digest, "servers");
        }
        x.dir = dir, x.restart = 2;
        check_digest(x, r.c.digest, "started again");
        if (!sample_races_only()) {
            x.forgets = true;
            run_remote(&x); /* with zeros, which it says */
            assert_string_not_equal(x.c.digest, r.c.digest);
            x = r, x.compression = KU_REMOTE_DENSE;
            run_remote(&x);
            assert_string_not_equal(x.c.digest, r.c.digest);
        }
        ku_os_rmtree(dir);
    }
    struct remote r = compressed_case(GPT2, KU_REMOTE_TOPK, 2), again = r; /* the order is all */
    r.engine.mode = again.engine.mode = KU_REMOTE_ASYNC;
    r.n_updates = again.n_updates = 2 * STEPS, r.c.steps = again.c.steps = STEPS;
    r.late = 1;
    run_remote(&r);
    again.order = r.applied, again.n_servers = 3;
    check_digest(again, r.c.digest, "replayed");
}

/* Error feedback keeps training on its way. */
static void compressed_converges(void **state)
{
    double loss[4];
    (void)state;
    if (sample_is_short())
        skip(); /* numerics */
    for (int form = KU_REMOTE_DENSE; form <= KU_REMOTE_TOPK; form++) {
        struct remote r = compressed_case(GPT2, form, 2);
        r.c.model.resid_pdrop = r.c.model.embd_pdrop = r.c.model.attn_pdrop = 0;
        r.repeats_data = true;
        r.c.steps = r.n_updates = 30;
        run_remote(&r);
        loss[form] = r.c.loss[29];
    }
    for (int form = KU_REMOTE_DENSE; form <= KU_REMOTE_TOPK; form++)
        if (!(loss[form] < 0.3)) /* from 5.7; 0.01 to 0.04 were seen */
            fail_msg("form %d: loss %.4f, dense %.4f", form, loss[form], loss[0]);
}

/* What compression cannot hold is refused, by the worker and by the servers. */
static void compressed_refuses(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        struct remote r = compressed_case(GPT2, KU_REMOTE_INT8, 1);
        struct side side[1 + 8];
        if (k == 0)
            r.c.reduce = KUMI_BF16;
        if (k == 1)
            r.c.compute = r.c.grads = KUMI_BF16;
        if (k == 2)
            r.c.compute = KUMI_F16, r.c.loss_scale = 0x1p10, r.c.window = 2;
        run_sides(&r, side);
        for (int i = 0; i <= r.c.n; i++)
            if (side[i].status != KUMI_EINVAL ||
                strstr(side[i].error.text, k < 2 ? "set precision.grads and precision.reduce to f32"
                                                 : "the loss scale") == NULL)
                fail_msg("row %d: side %d: %d %s", k, i - 1, side[i].status, side[i].error.text);
    }
}

static void does_not_wait(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct remote r = case_of(GPT2, 2, 1 + k, KU_OP_adamw, KUMI_F32);
        r.engine.mode = k ? KU_REMOTE_ASYNC : KU_REMOTE_SYNC;
        r.n_updates = k ? 2 * STEPS : STEPS;
        r.reads = true;
        run_remote(&r);
        assert_true(r.n_reads >= r.n_updates);
    }
}

/* The failure of a worker or of a server ends all, with its status. */
static void failure_ends_all(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        struct remote r = case_of(GPT2, 2, 1 + k % 2, KU_OP_adamw, KUMI_F32);
        struct side side[1 + 8];
        r.broken = k < 2 ? 1 : -1;
        r.bad_update = k < 2 ? -1 : 2;
        run_sides(&r, side);
        for (int i = 0; i <= r.c.n; i++)
            if (side[i].status != (k < 2 ? KUMI_EINPUT : KUMI_ESTORAGE))
                fail_msg("row %d: side %d: %d %s", k, i - 1, side[i].status, side[i].error.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_refuses),        cmocka_unit_test(every_update),
        cmocka_unit_test(every_schedule),       cmocka_unit_test(compressed),
        cmocka_unit_test(compressed_converges), cmocka_unit_test(compressed_refuses),
        cmocka_unit_test(order_is_all),         cmocka_unit_test(absent),
        cmocka_unit_test(begins_later),         cmocka_unit_test(backup),
        cmocka_unit_test(does_not_wait),        cmocka_unit_test(failure_ends_all),
        cmocka_unit_test(sync_is_all_reduce)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
