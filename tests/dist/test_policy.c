/* SPDX-License-Identifier: Apache-2.0 */
/* Each key of the precision policy: equal bits under every layout, and a checkpoint of one in
 * another. Ranks as threads. tsan */
#include "resume.h"

static struct dist_case base_case(enum kumi_dtype compute)
{
    struct dist_case c = {.n = 1,
                          .v = 8,
                          .micro = 1,
                          .k = 2,
                          .steps = sample_count(4, 2),
                          .device = "cpu",
                          .compute = compute,
                          .model = dist_model(),
                          .t = sample_count(11, 5)};
    c.model.n_embd = 48; /* tensors of several blocks, of one, and of less */
    c.model.vocab_size = 301;
    return c;
}

static const struct layout {
    int n, zero, replicate, sharing, no_overlap, bucket_bytes, recompute;
} layout[] = {
    {.n = 2, .sharing = 1, .bucket_bytes = 3000},
    {.n = 8, .sharing = 1, .recompute = KU_RECOMPUTE_FULL},
    {.n = 4, .no_overlap = 1},
    {.n = 8, .zero = 1, .bucket_bytes = 3000},
    {.n = 4, .zero = 1, .replicate = 2, .recompute = KU_RECOMPUTE_SELECTIVE},
    {.n = 4, .zero = 2, .bucket_bytes = 3000},
    {.n = 8, .zero = 2, .replicate = 4, .no_overlap = 1},
    {.n = 2, .zero = 3, .recompute = KU_RECOMPUTE_FULL},
    {.n = 8, .zero = 3, .replicate = 2, .bucket_bytes = 3000},
};
enum { N_LAYOUTS = sizeof layout / sizeof layout[0] };

static struct dist_case laid_out(const struct dist_case *one, const struct layout *l)
{
    struct dist_case c = *one;
    c.n = l->n, c.zero = l->zero, c.replicate = l->replicate, c.no_sharing = !l->sharing;
    c.no_overlap = l->no_overlap, c.bucket_bytes = l->bucket_bytes, c.recompute = l->recompute;
    c.threads = l->n == 2 ? 2 : 1;
    return c;
}

/* One layout in 3 * plain, of each policy at least one; the digest comes out. */
static void check_layouts(const char *name, struct dist_case *one, int policy_i, int plain)
{
    static struct sample sample = {.address = 12, .thread = 48};
    sample.plain = 3 * plain;
    dist_run(one);
    for (int k = 0; k < N_LAYOUTS; k++) {
        const int i = (k + policy_i) % N_LAYOUTS;
        if (!sample_takes(&sample, policy_i * N_LAYOUTS + i, i, N_LAYOUTS + policy_i))
            continue;
        struct dist_case c = laid_out(one, &layout[i]);
        dist_run(&c);
        for (int s = 0; s < one->steps; s++)
            if (memcmp(&one->loss[s], &c.loss[s], 8) || memcmp(&one->norm[s], &c.norm[s], 8))
                fail_msg("%s: layout %d: step %d: loss %.17g %.17g norm %.17g %.17g", name, i, s,
                         one->loss[s], c.loss[s], one->norm[s], c.norm[s]);
        if (strcmp(one->digest, c.digest) != 0)
            fail_msg("%s: layout %d: digests differ", name, i);
        assert_memory_equal(&one->eval_loss, &c.eval_loss, 8);
    }
    sample_end(&sample, "layouts");
}

static const char *const attention[] = {"attn", "ln_f", NULL},
                         *const mlp[] = {"h.1.mlp", "wpe", NULL}, *const table[] = {"wte", NULL};

/* Rules of modules: param, compute, reduce, output, buffer; -1: as in the whole model. */
static const char *const all_mlp[] = {"h.*.mlp", NULL}, *const block[] = {"h.0", NULL},
                         *const last[] = {"ln_f", NULL};
static struct ku_precision_rule in_f32[] = {
    {all_mlp, {KUMI_BF16, KUMI_BF16, KUMI_BF16, KUMI_F32, -1}, true},
    {attention, {-1, KUMI_F16, -1, -1, -1}, true}};
static struct ku_precision_rule in_bf16[] = {{last, {-1, KUMI_F32, -1, KUMI_BF16, -1}, true},
                                             {block, {-1, KUMI_F16, KUMI_F16, KUMI_F32, -1}, true},
                                             {table, {KUMI_BF16, -1, KUMI_BF16, -1, -1}, true}};
static struct ku_precision_rule in_narrow[] = {{attention, {KUMI_F32, -1, KUMI_BF16, -1, -1}, true},
                                               {mlp, {-1, KUMI_F32, -1, -1, -1}, false}};
static const struct ku_precision_rules modules_f32 = {in_f32, 2}, modules_bf16 = {in_bf16, 3},
                                       modules_narrow = {in_narrow, 2};
static const struct policy {
    const char *name;
    enum kumi_dtype compute, grads, reduce;
    int no_master, stochastic_rounding, optimizer;
    const char *const *keep_f32;
    double ema;
    const struct ku_precision_rules *modules;
} policy[] = {
    {.name = "f32"},
    {.name = "f32, reduce bf16", .reduce = KUMI_BF16},
    {.name = "f32, reduce f16", .reduce = KUMI_F16},
    {.name = "f32, grads bf16", .grads = KUMI_BF16},
    {.name = "bf16", .compute = KUMI_BF16},
    {.name = "bf16, reduce bf16", .compute = KUMI_BF16, .reduce = KUMI_BF16},
    {.name = "bf16, grads bf16", .compute = KUMI_BF16, .grads = KUMI_BF16},
    {.name = "no master", .compute = KUMI_BF16, .no_master = 1, .ema = 0.9},
    {.name = "stochastic", .compute = KUMI_BF16, .no_master = 1, .stochastic_rounding = 1},
    {.name = "all of it",
     .compute = KUMI_BF16,
     .grads = KUMI_BF16,
     .no_master = 1,
     .stochastic_rounding = 1},
    {.name = "attention f32", .compute = KUMI_BF16, .keep_f32 = attention},
    {.name = "modules f32", .compute = KUMI_BF16, .keep_f32 = mlp},
    {.name = "modules of f32", .modules = &modules_f32},
    {.name = "modules of bf16", .compute = KUMI_BF16, .modules = &modules_bf16},
    {.name = "modules, no master",
     .compute = KUMI_BF16,
     .no_master = 1,
     .stochastic_rounding = 1,
     .modules = &modules_narrow},
    {.name = "table f32, no master",
     .compute = KUMI_BF16,
     .reduce = KUMI_BF16,
     .no_master = 1,
     .keep_f32 = table},
    {.name = "lamb",
     .compute = KUMI_BF16,
     .no_master = 1,
     .stochastic_rounding = 1,
     .optimizer = KU_OP_lamb},
    {.name = "lars",
     .compute = KUMI_BF16,
     .reduce = KUMI_BF16,
     .no_master = 1,
     .optimizer = KU_OP_lars},
    {.name = "adafactor",
     .compute = KUMI_BF16,
     .no_master = 1,
     .stochastic_rounding = 1,
     .optimizer = KU_OP_adafactor},
    {.name = "adafactor, grads bf16",
     .compute = KUMI_BF16,
     .grads = KUMI_BF16,
     .optimizer = KU_OP_adafactor},
    {.name = "rmsprop",
     .compute = KUMI_BF16,
     .grads = KUMI_BF16,
     .no_master = 1,
     .stochastic_rounding = 1,
     .optimizer = KU_OP_rmsprop_both},
    {.name = "sgd", .compute = KUMI_BF16, .no_master = 1, .optimizer = KU_OP_sgd},
};
enum { N_POLICIES = sizeof policy / sizeof policy[0] };

static struct dist_case case_of(const struct policy *p)
{
    struct dist_case c = base_case(p->compute);
    c.grads = p->grads, c.reduce = p->reduce, c.no_master = p->no_master;
    c.stochastic_rounding = p->stochastic_rounding, c.keep_f32 = p->keep_f32;
    c.optimizer = p->optimizer, c.ema = p->ema, c.modules = p->modules;
    return c;
}

/* Races do not depend on numerics: of ThreadSanitizer's policies, one of each wire dtype and of
 * each dtype of parameters, and a share of the others. */
static int is_taken(int i)
{
    static struct sample sample = {.address = 8, .thread = 12};
    const struct policy *p = &policy[i];
    return sample_takes(&sample, i, p->reduce,
                        8 + (int)p->compute + 8 * p->no_master + 16 * (p->modules != NULL));
}

/* Every key shows in the bits: two policies of one optimizer never agree. */
static void test_layouts(void **state)
{
    static char digest[N_POLICIES][72];
    (void)state;
    for (int i = 0; i < N_POLICIES; i++) {
        if (!is_taken(i))
            continue;
        struct dist_case one = case_of(&policy[i]);
        check_layouts(policy[i].name, &one, i, policy[i].optimizer ? 2 : 1);
        memcpy(digest[i], one.digest, sizeof digest[i]);
        for (int k = 0; k < i; k++)
            if (strcmp(digest[k], digest[i]) == 0)
                fail_msg("%s and %s: one digest", policy[k].name, policy[i].name);
    }
}

/* An odd number of shards: the one that is carried up rounds, too. */
static void test_odd(void **state)
{
    (void)state;
    for (int i = 0; i < N_POLICIES; i++) {
        struct dist_case one = case_of(&policy[i]), three;
        if ((policy[i].reduce == KUMI_F32 && policy[i].grads == KUMI_F32) || policy[i].optimizer)
            continue;
        if (sample_races_only() && i > 3)
            continue; /* another tree of the same collectives */
        one.v = 3;
        three = one;
        three.n = 3;
        dist_run(&one);
        dist_run(&three);
        assert_string_equal(one.digest, three.digest);
    }
}

/* -- checkpoints of one precision in another -----------------------------------------------------
 */

struct passed {
    struct dist_case c;
    const char *dir;
    int from, to; /* step that is loaded, 0: none; step that is saved */
    char loaded[72];
};
static int passed_rank(struct ku_job *job, void *arg)
{
    struct passed *r = arg;
    struct ku_trainer *t = NULL;
    KU_TRY(dist_begin(job, &r->c, r->dir, r->from, &t));
    if (job->rank == 0)
        KU_TRY(ku_trainer_digest(t, 1, r->loaded));
    if (r->from == 0)
        KU_TRY(dist_steps(&r->c, t, 0, r->to));
    KU_TRY(dist_save(t, r->dir, r->to));
    if (job->rank == 0)
        KU_TRY(ku_trainer_digest(t, 1, r->c.digest));
    ku_trainer_destroy(t);
    return KUMI_OK;
}
static void pass(struct passed *r)
{
    if (ku_comm_threads(r->c.n, NULL, passed_rank, r) < 0)
        fail_msg("from %d to %d: %s", r->from, r->to, ku_err_get()->text);
}

/* Parameters of 16 bits are f32 ones, exactly, and come back as they were; those of a master round
 * on their way to a run without one, once. */
static void test_conversion(void **state)
{
    char dir[] = "/tmp/kumi-policy-XXXXXX";
    (void)state;
    assert_non_null(mkdtemp(dir));
    struct dist_case narrow = base_case(KUMI_BF16), wide = narrow;
    narrow.no_master = narrow.stochastic_rounding = 1;
    struct passed made = {narrow, dir, 0, 2, ""};
    pass(&made);
    struct passed widened = {wide, dir, 2, 3, ""};
    widened.c.n = 2, widened.c.zero = 3, widened.c.no_sharing = 1;
    pass(&widened);
    struct passed back = {narrow, dir, 3, 4, ""};
    back.c.n = 4;
    pass(&back);
    assert_string_equal(back.loaded, made.c.digest);
    assert_string_not_equal(widened.loaded, made.c.digest); /* other dtypes */
    struct passed trained = {wide, dir, 0, 5, ""};
    pass(&trained);
    struct passed rounded = {narrow, dir, 5, 6, ""}, again = {narrow, dir, 6, 7, ""};
    pass(&rounded);
    pass(&again);
    assert_string_equal(rounded.loaded, again.loaded);
    assert_int_equal(ku_os_rmtree(dir), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layouts), cmocka_unit_test(test_odd),
                                       cmocka_unit_test(test_conversion)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
