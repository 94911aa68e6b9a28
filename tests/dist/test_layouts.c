/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrix of layouts: a GPT-2 with dropout and a ResNet-20, 4 steps each (12 where gradients
 * overflow), end with one digest under every stage of ZeRO, rank count, split into shards and
 * replicas, accumulation, recomputation, bucket size and overlap, also where another layout goes on
 * from a checkpoint, or where the first was killed.
 *
 * Three tables: what is trained, numerics (each has a digest of its own), layouts. All of it is
 * said in a configuration's words.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/os/os.h"
#include "base/math/random.h"
#include "comm/world.h"
#include "kumi/model.h"
#include "nn/builder.h"
#include "app/api_options.h"

#include "host.h"
#include "sample.h"

/* STEPS: f16 overflows, recovers and grows its scale again; FEW_STEPS: two before and two after a
 * resume. Short: first state, two updates, the last of them a resumed one. */
enum { STEPS = 12, FEW_STEPS = 4, SHORT_STEPS = 2 };
enum { VOCAB = 257, IMAGE = 9, CLASSES = 7 };
enum { MAX_SETS = 6, MAX_ALL = 32 };

static const struct model {
    const char *name;
    int is_resnet, v, micro, k, t, layers, steps; /* steps: 0: as many as all */
    const char *set[MAX_SETS];
} gpt2 = {.name = "gpt2",
          .v = 8,
          .micro = 1,
          .k = 2,
          .t = 16,
          .layers = 3,
          .set = {"optimizer.lr=3e-3", "optimizer.weight_decay=0.1", "train.clip_norm=1"}},
  resnet = {.name = "resnet20",
            .is_resnet = 1,
            .v = 8,
            .micro = 2,
            .k = 1,
            .set = {"optimizer.type=sgd", "optimizer.lr=0.01", "optimizer.momentum=0.9"}},
  /* 4,096 tokens of a micro-batch add up in each weight's gradient */
    wide = {.name = "gpt2 of 4,096 tokens",
            .v = 2,
            .micro = 64,
            .k = 1,
            .t = 64,
            .layers = 2,
            .steps = 2,
            .set = {"optimizer.lr=3e-3"}};

static const struct numerics {
    const char *name, *set[MAX_SETS];
    int n_skipped; /* steps that at least are no updates: overflows */
    int plain;     /* one layout in so many */
} numerics[] = {
    {.name = "f32", .set = {"precision.compute=f32"}, .plain = 5},
    {.name = "bf16", .set = {"precision.compute=bf16"}, .plain = 5},
    {.name = "f16, overflowing",
     .set = {"precision.compute=f16", "precision.initial_scale_power=24", "precision.window=6"},
     .n_skipped = 2,
     .plain = 10},
    {.name = "bf16 by micro-batch",
     .set = {"precision.compute=bf16", "parallel.grad_sync=micro"},
     .plain = 12},
    {.name = "bf16 without a master",
     .set = {"precision.compute=bf16", "precision.master=false",
             "precision.stochastic_rounding=true", "precision.grads=bf16"},
     .plain = 12},
    {.name = "f16 by micro-batch, on the wire bf16",
     .set = {"precision.compute=f16", "precision.initial_scale_power=24",
             "parallel.grad_sync=micro", "precision.reduce=bf16"},
     .n_skipped = 2,
     .plain = 16},
};
enum { N_NUMERICS = sizeof numerics / sizeof numerics[0] };

/* The step that another layout goes on from: after the overflows, where there are any. */
static int resumed_at(const struct numerics *x)
{
    return sample_count(x->n_skipped > 0 ? 5 : 2, 1);
}
/* Without overflows nothing happens later that did not happen in the first steps. */
static int n_steps(const struct numerics *x)
{
    return sample_count(x->n_skipped > 0 ? STEPS : FEW_STEPS, SHORT_STEPS);
}

#define OWN           "parallel.share_host_state=false"
#define SMALL         "parallel.bucket_mb=0.003", "parallel.first_bucket_mb=0.001"
#define OFFLOAD(what) "memory.offload={\"path\": \"/tmp\", " what "}"
#define HYBRID2       "parallel.strategy=_HYBRID_SHARD_ZERO2"
#define HYBRID3       "parallel.strategy=HYBRID_SHARD"
/* n ranks; budget: of what recomputing everything saves, so much. Then, if n_then, from step AT on
 * the other half. */
struct half {
    int n;
    const char *set[MAX_SETS];
    double budget;
};
#define ON(ranks, ...)                                                                             \
    {                                                                                              \
        .n = ranks, .set = { __VA_ARGS__ }                                                         \
    }
static const struct layout {
    struct half first, then;
} layout[] = {
    {.first = ON(1, "memory.recompute=selective")},
    {.first = ON(1, "memory.recompute=full", "train.threads=2")},
    {.first = {.n = 1, .budget = 0.5}},
    {.first = ON(2, SMALL)},
    {.first = ON(4, "parallel.overlap=false")},
    {.first = ON(8, "memory.recompute={\"every\": 2}")},
    {.first = ON(4, "parallel.zero=3", "parallel.persist_below=0")},
    {.first = ON(8, "parallel.host_state=shared", HYBRID2, "parallel.shard=2")},
    {.first = ON(4, "parallel.host_state=private", HYBRID2, "parallel.shard=2")},
    {.first = ON(2, OWN, "parallel.zero=0", "train.threads=2")},
    {.first = ON(4, OWN, "parallel.zero=1", SMALL)},
    {.first = ON(8, OWN, "parallel.zero=1", "parallel.shard=4")},
    {.first = ON(2, OWN, "parallel.zero=2", "memory.recompute=full")},
    {.first = ON(4, OWN, "parallel.zero=2", "parallel.overlap=false")},
    {.first = ON(8, OWN, "parallel.zero=2", "parallel.shard=8", SMALL)},
    {.first = ON(8, OWN, HYBRID2, "parallel.shard=4")},
    {.first = ON(8, OWN, HYBRID3, "parallel.shard=2", "memory.recompute=selective")},
    {.first = ON(4, OWN, HYBRID3, "parallel.shard=2", "memory.recompute=full")},
    {.first = ON(8, OWN, "parallel.zero=3", "parallel.shard=8", "parallel.persist_below=0")},
    {.first = ON(2, OWN, "parallel.zero=3", "parallel.prefetch=0", "parallel.persist_below=1000")},
    {.first = {.n = 4,
               .set = {OWN, "parallel.zero=3", "parallel.reshard_after_forward=false", SMALL},
               .budget = 0.7}},
    {.first = ON(2, OWN, "parallel.zero=3", "parallel.persist_below=0"),
     .then = ON(8, OWN, HYBRID2, "parallel.shard=2")},
    {.first = ON(8, SMALL), .then = ON(1, "memory.recompute=full")},
    {.first = ON(4, OWN, "parallel.zero=2", "parallel.shard=2"),
     .then = ON(2, OWN, "parallel.zero=0")},
    {.first = ON(1, OFFLOAD("\"optimizer\": \"host\", \"params\": \"file\""))},
    {.first = ON(2, OFFLOAD("\"optimizer\": \"host\", \"activations\": \"host\""), SMALL)},
    {.first = ON(4, OWN, "parallel.zero=2", OFFLOAD("\"optimizer\": \"file\""))},
    {.first = ON(2, OWN, "parallel.zero=3", "parallel.persist_below=0",
                 OFFLOAD("\"optimizer\": \"file\", \"params\": \"file\""))},
    {.first = ON(8, OWN, HYBRID3, "parallel.shard=4", "memory.recompute=full",
                 OFFLOAD("\"params\": \"host\", \"activations\": \"file\""))},
    {.first = ON(2, OWN, "parallel.zero=1", OFFLOAD("\"optimizer\": \"file\"")),
     .then = ON(4, OWN, "parallel.zero=3", OFFLOAD("\"optimizer\": \"host\""))},
    {.first = {.n = 1}, .then = ON(4, OWN, "parallel.zero=3", "memory.recompute=selective")},
};
enum { N_LAYOUTS = sizeof layout / sizeof layout[0] };

struct run {
    const struct model *model;
    const struct numerics *numerics;
    const char *set[MAX_ALL]; /* all, NULL-terminated */
    const char *dir;          /* of checkpoints; NULL: none */
    int from, to, is_plan;    /* steps; plan: no step is made */
    /* results */
    double loss[STEPS], eval_loss, bytes;
    int n_skipped, level; /* the most that a budget's solution recomputes of a block */
    char digest[72];
};

static int build_gpt2(const struct model *m, struct kumi_graph *g)
{
    struct kumi_gpt2 c;
    kumi_gpt2_defaults(&c);
    c.n_layer = m->layers, c.n_head = 3, c.n_embd = 48, c.n_positions = m->t, c.vocab_size = VOCAB;
    c.resid_pdrop = c.embd_pdrop = c.attn_pdrop = 0.1;
    return kumi_gpt2_build(
        g, &c, &(struct kumi_shape_of_batch){.n = (int64_t)m->v * m->micro * m->k, .t = m->t});
}

static int build_resnet(const struct model *m, struct kumi_graph *g)
{
    struct kumi_resnet c;
    kumi_resnet_defaults(&c);
    c.depth = 20, c.width = 8, c.num_classes = CLASSES, c.image_size = IMAGE;
    return kumi_resnet_build(g, &c,
                             &(struct kumi_shape_of_batch){.n = (int64_t)m->v * m->micro * m->k});
}

static int build(const struct model *m, struct ku_graph **g)
{
    struct kumi_graph *builder;
    KU_TRY(kumi_graph_create(&builder));
    int status = (m->is_resnet ? build_resnet : build_gpt2)(m, builder);
    if (status == KUMI_OK)
        status = ku_builder_take(builder, g);
    kumi_graph_destroy(builder);
    return status;
}

static void fill_gpt2(const struct model *m, struct ku_trainer *t, enum ku_trainer_program p, int u,
                      int64_t step)
{
    int64_t first, n = ku_trainer_rows(t, u, &first);
    size_t row_bytes;
    int32_t *tokens = host_of(ku_trainer_port(t, p, "tokens", u, &row_bytes));
    int32_t *targets = host_of(ku_trainer_port(t, p, "targets", u, &row_bytes));
    for (int64_t i = 0; i < n * m->t; i++) {
        uint64_t at = (uint64_t)(first * m->t + i);
        tokens[i] = (int32_t)(ku_random_u32(7, (uint32_t)step, 1, at) % VOCAB);
        targets[i] = i % 7 == 3 ? -100 : (tokens[i] * 3 + 1) % VOCAB;
    }
}

static void fill_resnet(struct ku_trainer *t, enum ku_trainer_program p, int u, int64_t step)
{
    const int64_t pixels = (int64_t)IMAGE * IMAGE * 3;
    int64_t first, n = ku_trainer_rows(t, u, &first);
    size_t row_bytes;
    float *images = host_of(ku_trainer_port(t, p, "images", u, &row_bytes));
    int32_t *targets = host_of(ku_trainer_port(t, p, "targets", u, &row_bytes));
    for (int64_t i = 0; i < n * pixels; i++)
        images[i] = ku_random_normal(3, (uint32_t)step, 1, (uint64_t)(first * pixels + i));
    for (int64_t i = 0; i < n; i++)
        targets[i] =
            (int32_t)(ku_random_u32(3, (uint32_t)step, 2, (uint64_t)(first + i)) % CLASSES);
}

static void fill(const struct model *m, struct ku_trainer *t, enum ku_trainer_program p,
                 int64_t step)
{
    for (int u = 0; u < ku_trainer_n_micro(t); u++)
        if (m->is_resnet)
            fill_resnet(t, p, u, step % 5);
        else
            fill_gpt2(m, t, p, u, step % 5);
}

static int take_steps(struct run *r, struct ku_job *job, struct ku_trainer *t)
{
    for (int step = r->from; step < r->to; step++) {
        const double *report;
        if (r->dir && step == resumed_at(r->numerics)) {
            json_t *state = ku_trainer_scaler_json(t);
            struct ku_ckpt_desc d = {
                .dir = r->dir, .step = step, .model_config = "{}", .state = state};
            int status = ku_trainer_save(t, &d, KUMI_OK);
            json_decref(state);
            KU_TRY(status);
        }
        fill(r->model, t, KU_PROG_TRAIN, step);
        KU_TRY(ku_trainer_step(t, step, &report));
        if (job->rank != 0 || step >= STEPS)
            continue;
        r->loss[step] = report[KU_REPORT_LOSS];
        r->n_skipped += report[KU_REPORT_APPLY] == 0;
    }
    return KUMI_OK;
}

static int start(struct run *r, struct ku_trainer *t)
{
    char path[128];
    int64_t step;
    if (r->from == 0)
        return ku_trainer_init_state(t);
    snprintf(path, sizeof path, "%s/step-%08d", r->dir, r->from);
    r->dir = NULL; /* which is written once */
    KU_TRY(ku_trainer_load(t, path, &step));
    KU_ASSERT(step == r->from);
    return KUMI_OK;
}

static int finish(struct run *r, struct ku_job *job, struct ku_trainer *t)
{
    ku_trainer_eval_begin(t);
    fill(r->model, t, KU_PROG_EVAL, 3);
    KU_TRY(ku_trainer_eval_run(t));
    if (job->rank != 0)
        return KUMI_OK;
    r->eval_loss = ku_trainer_eval_loss(t);
    return ku_trainer_digest(t, 0, r->digest);
}

static int rank_main(struct ku_job *job, void *arg)
{
    struct run mine = *(struct run *)arg, *r = job->rank == 0 ? arg : &mine;
    struct ku_session s = {0};
    struct ku_graph *g = NULL;
    int status;
    KU_TRY_OUT(build(r->model, &g));
    KU_TRY_OUT(ku_api_configure(&(struct kumi_trainer_options){.set = r->set}, g, job->n, &s));
    KU_TRY_OUT(ku_session_create_trainer(&s, job));
    if (job->rank == 0)
        for (int a = 0; a < KU_N_ARENAS; a++)
            r->bytes += (double)s.t->memory->bytes[a] / (a == KU_AR_HOST ? job->n : 1);
    for (int i = 0; s.recompute_level && i < s.n_recompute; i++)
        r->level = s.recompute_level[i] > r->level ? s.recompute_level[i] : r->level;
    if (r->is_plan)
        goto out;
    KU_TRY_OUT(start(r, s.t));
    KU_TRY_OUT(take_steps(r, job, s.t));
    status = finish(r, job, s.t);
out:
    ku_session_fini(&s);
    ku_graph_destroy(g);
    return status;
}

/* A run with all its settings; `more` is one of them, or NULL. */
static struct run run_of(const struct model *m, const struct numerics *x, const struct half *h,
                         const char *more)
{
    static const char *const common[MAX_SETS] = {"train.seed=11", "train.virtual_shards=8"};
    static const char *const two[MAX_SETS] = {"train.seed=11", "train.virtual_shards=2"};
    const char *const *list[] = {m->v == 8 ? common : two, m->set, x->set, h->set};
    struct run r = {.model = m, .numerics = x, .to = m->steps ? m->steps : n_steps(x)};
    int n = 0;
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < MAX_SETS && list[k][i]; i++)
            r.set[n++] = list[k][i];
    if (!m->is_resnet || m->micro > 1)
        r.set[n++] = m->micro == 1   ? "train.micro_batch=1"
                     : m->micro == 2 ? "train.micro_batch=2"
                                     : "train.micro_batch=64";
    r.set[n++] = more;
    return r;
}

static void run(struct run *r, int n)
{
    if (ku_comm_threads(n, NULL, rank_main, r) < 0)
        fail_msg("%s, %s, %d ranks, %s: %s", r->model->name, r->numerics->name, n,
                 r->set[0] ? r->set[0] : "", ku_err_get()->text);
}

/* A layout's half from step `from` to `to`. */
static struct run run_half(const struct model *m, const struct numerics *x, const struct half *h,
                           const char *dir, int from, int to)
{
    char budget[96];
    struct run r = run_of(m, x, h, NULL);
    if (h->budget > 0) { /* between everything kept and everything made again */
        struct run none = r, full = run_of(m, x, h, "memory.recompute=full");
        none.is_plan = full.is_plan = 1;
        run(&none, h->n);
        run(&full, h->n);
        assert_true(full.bytes < none.bytes);
        snprintf(budget, sizeof budget, "memory.recompute={\"budget_gib\": %.17g}",
                 (none.bytes - h->budget * (none.bytes - full.bytes)) * 0x1p-30);
        r = run_of(m, x, h, budget);
    }
    r.from = from, r.to = to, r.dir = dir;
    run(&r, h->n);
    assert_true(h->budget == 0 || r.level > 0); /* it had something to choose */
    return r;
}

static void expect_equal(const struct run *a, const struct run *b, const char *what, int i)
{
    for (int step = b->from; step < a->to; step++)
        if (memcmp(&a->loss[step], &b->loss[step], sizeof a->loss[step]) != 0)
            fail_msg("%s, %s, %s %d: step %d: loss %.17g, not %.17g", a->model->name,
                     a->numerics->name, what, i, step, b->loss[step], a->loss[step]);
    if (strcmp(a->digest, b->digest) != 0)
        fail_msg("%s, %s, %s %d: digests differ", a->model->name, a->numerics->name, what, i);
    assert_memory_equal(&a->eval_loss, &b->eval_loss, sizeof a->eval_loss);
}

static struct run alone(const struct model *m, const struct numerics *x)
{
    static const struct half one = {.n = 1};
    struct run r = run_half(m, x, &one, NULL, 0, m->steps ? m->steps : n_steps(x));
    double first = 0, last = 0;
    if (r.to < STEPS)
        return r;
    for (int i = 0; i < 5; i++)
        first += r.loss[i], last += r.loss[STEPS - 1 - i];
    assert_true(last < first); /* it learns */
    assert_true(r.n_skipped >= x->n_skipped);
    return r;
}

static void check_layout(const struct run *one, const struct layout *l, int i)
{
    char dir[] = "/tmp/kumi-layouts-XXXXXX";
    struct run r;
    if (l->then.n == 0) {
        r = run_half(one->model, one->numerics, &l->first, NULL, 0, one->to);
    } else {
        assert_non_null(mkdtemp(dir));
        const int at = resumed_at(one->numerics);
        run_half(one->model, one->numerics, &l->first, dir, 0, at + 1);
        r = run_half(one->model, one->numerics, &l->then, dir, at, one->to);
        assert_int_equal(ku_os_rmtree(dir), 0);
    }
    expect_equal(one, &r, "layout", i);
}

/* Of each numerics at least one layout, and one of each three neighbours in the table. */
static void check_matrix(const struct model *m)
{
    static struct sample s = {.address = 96};
    for (int k = 0; k < N_NUMERICS; k++) {
        const struct numerics *x = &numerics[k];
        const int first = m->is_resnet * N_NUMERICS + k;
        struct run one = alone(m, x);
        s.plain = x->plain;
        for (int l = 0; l < N_LAYOUTS; l++) {
            const int i = (l + 5 * first) % N_LAYOUTS;
            if (sample_takes(&s, first * N_LAYOUTS + i, i / 3, N_LAYOUTS + first))
                check_layout(&one, &layout[i], i);
        }
    }
    sample_end(&s, "layouts");
}

static void of_gpt2(void **state)
{
    (void)state;
    check_matrix(&gpt2);
}
static void of_resnet(void **state)
{
    (void)state;
    check_matrix(&resnet);
}

static void of_long_sums(void **state)
{
    static const struct half half[] = {
        ON(1, "train.threads=3"),
        ON(2, OWN, "parallel.zero=3", "memory.recompute=full", "train.threads=2"),
        ON(2, OWN, "parallel.zero=2", SMALL)};
    struct model m = wide;
    (void)state;
    m.t = sample_count(wide.t, 8); /* threads take parts of 512 tokens as they do of 4,096 */
    struct sample s = {.address = 32};
    for (int k = 0; k < N_NUMERICS; k++) {
        struct run one = {.to = 0};
        for (int i = 0; i < 3; i++) {
            if (!sample_takes(&s, k * 3 + i, -1, -1) && k + i > 0)
                continue;
            if (one.to == 0)
                one = alone(&m, &numerics[k]);
            struct run r = run_half(&m, &numerics[k], &half[i], NULL, 0, m.steps);
            expect_equal(&one, &r, "half", i);
        }
    }
    sample_end(&s, "layouts of long sums");
}

static int exists(const char *dir, const struct numerics *x)
{
    char path[128];
    snprintf(path, sizeof path, "%s/step-%08d", dir, resumed_at(x));
    return access(path, F_OK) == 0;
}

/* Killed at whatever it did when its first checkpoint was there; another layout goes on. */
static void killed_and_resumed(void **state)
{
    static const struct layout row[] = {
        {.first = ON(2, OWN, "parallel.zero=3", "parallel.persist_below=0"),
         .then = ON(4, OWN, HYBRID3, "parallel.shard=2")},
        {.first = ON(8, SMALL), .then = ON(2, OWN, "parallel.zero=1", "memory.recompute=full")}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        const struct model *m = i ? &resnet : &gpt2;
        const struct numerics *x = &numerics[i];
        struct run one = alone(m, x);
        char dir[] = "/tmp/kumi-layouts-XXXXXX";
        struct timespec wait = {.tv_nsec = 2000000};
        int ended = 0;
        assert_non_null(mkdtemp(dir));
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            run_half(m, x, &row[i].first, dir, 0, 1 << 20);
            _exit(0);
        }
        for (int ms = 0; ms < 120000 && !exists(dir, x) && waitpid(child, &ended, WNOHANG) == 0;
             ms += 2)
            nanosleep(&wait, NULL);
        assert_true(exists(dir, x));
        kill(child, SIGKILL);
        waitpid(child, &ended, 0);
        assert_true(WIFSIGNALED(ended));
        struct run r = run_half(m, x, &row[i].then, dir, resumed_at(x), one.to);
        expect_equal(&one, &r, "killed", i);
        assert_int_equal(ku_os_rmtree(dir), 0);
    }
}

/* Shards of a rank as if they were its micro-batches: bits depend on the rank count, and on nothing
 * else; another rank count goes on from a checkpoint. */
static void free_order(void **state)
{
    static const struct half two = ON(2, "parallel.order=free"),
                             zero = ON(2, "parallel.order=free", OWN, "parallel.zero=3", SMALL),
                             micro = ON(2, "train.virtual_shards=2"),
                             four = ON(4, "parallel.order=free"),
                             micro_four = ON(4, "train.virtual_shards=4");
    const struct numerics *x = &numerics[0];
    const int at = resumed_at(x), to = n_steps(x);
    char dir[] = "/tmp/kumi-layouts-XXXXXX";
    (void)state;
    struct run tree = alone(&gpt2, x);
    struct run one = run_half(&gpt2, x, &two, NULL, 0, to);
    struct run r = run_half(&gpt2, x, &micro, NULL, 0, to);
    expect_equal(&one, &r, "free", 0);
    r = run_half(&gpt2, x, &zero, NULL, 0, to);
    expect_equal(&one, &r, "free", 1);
    assert_string_not_equal(tree.digest, one.digest);
    assert_non_null(mkdtemp(dir));
    run_half(&gpt2, x, &two, dir, 0, at + 1);
    r = run_half(&gpt2, x, &four, dir, at, to);
    assert_string_not_equal(r.digest, one.digest);
    struct run plain = run_half(&gpt2, x, &micro_four, dir, at, to);
    expect_equal(&plain, &r, "free, resumed", 2);
    assert_int_equal(ku_os_rmtree(dir), 0);
}

static void refused(void **state)
{
    static const struct {
        struct half half;
        const char *part;
    } row[] = {
        {ON(2, "train.virtual_shards=6"), "6 on 2 ranks; each rank takes a power of two of them"},
        {{.n = 3}, "8 on 3 ranks; each rank takes a power of two of them: use 1, 2, 4, 8 ranks"},
        {ON(4, OWN, "parallel.zero=2", "parallel.shard=3"), "replicate x shard must be 4, "},
        {ON(6, "train.virtual_shards=12", "train.micro_batch=null", OWN, "parallel.zero=1",
            "parallel.replicate=4"),
         "replicate x shard must be 6"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct run r = run_of(&gpt2, &numerics[0], &row[i].half, NULL);
        int status = ku_comm_threads(row[i].half.n, NULL, rank_main, &r);
        if (status != KUMI_EINVAL || strstr(ku_err_get()->text, row[i].part) == NULL)
            fail_msg("%zu: %d, %s", i, status, ku_err_get()->text);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_gpt2),      cmocka_unit_test(of_resnet),
        cmocka_unit_test(of_long_sums), cmocka_unit_test(killed_and_resumed),
        cmocka_unit_test(free_order),   cmocka_unit_test(refused)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
