/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of every parameter of GPT-2, Llama and an encoder-decoder, in f32 under layouts of
 * tensor, sequence and pipeline parallelism, against those of one rank of the reference device in
 * f64: |got - truth| <= 1e-5 |truth|. They are read from the first moments after one step:
 * (1 - beta1) g.
 */
#include <math.h>

#include "base/mem.h"
#include "comm/consensus.h"
#include "dist.h"

enum { MAX_TENSORS = 96, MAX_COUNT = 64 * 256 };

struct gradients {
    int n;
    double square; /* |g|^2 of all */
    char name[MAX_TENSORS][KU_NAME_BYTES];
    int64_t count[MAX_TENSORS];
    double *v[MAX_TENSORS];
};
struct gradients_case {
    struct dist_case c;
    struct gradients g;
};

static int gather_all(const struct ku_trainer *t, struct gradients *g)
{
    static const char suffix[] = ".exp_avg";
    for (int k = 0; k < t->n_tensors; k++) {
        const struct ku_ckpt_tensor *x = &t->tensor[k];
        const size_t bytes = strlen(x->name), each = kumi_dtype_bytes(x->dtype);
        int64_t count = 1;
        if (bytes < sizeof suffix || strcmp(x->name + bytes - sizeof suffix + 1, suffix) != 0)
            continue;
        for (int d = 0; d < x->ndim; d++)
            count *= x->dim[d];
        assert_true(g->n < MAX_TENSORS && count <= MAX_COUNT);
        void *raw = ku_malloc((size_t)count * each);
        g->v[g->n] = ku_calloc((size_t)count, sizeof **g->v);
        assert_true(raw && g->v[g->n]);
        const int status = ku_ckpt_tensor_gather(x, 0, count, raw);
        for (int64_t i = 0; i < count; i++) {
            g->v[g->n][i] = ku_load_f64(raw, x->dtype, i);
            g->square += g->v[g->n][i] * g->v[g->n][i];
        }
        ku_free(raw);
        snprintf(g->name[g->n], sizeof g->name[0], "%s", x->name);
        g->count[g->n++] = count;
        KU_TRY(status);
    }
    return KUMI_OK;
}

static int step_on_rank(struct ku_job *job, void *arg)
{
    struct gradients_case *x = arg;
    struct ku_trainer *t = NULL;
    const double *report;
    KU_TRY(dist_trainer(job, &x->c, &t));
    KU_TRY(ku_trainer_init_state(t));
    dist_fill(&x->c, t, KU_PROG_TRAIN, 0);
    KU_TRY(ku_trainer_step(t, 0, &report));
    KU_TRY(ku_agree(job, KUMI_OK)); /* rank 0 reads the slices of all */
    if (job->rank == 0)
        KU_TRY(gather_all(t, &x->g));
    KU_TRY(ku_agree(job, KUMI_OK));
    ku_trainer_destroy(t);
    return KUMI_OK;
}

static void run(struct gradients_case *x)
{
    x->g.n = 0, x->g.square = 0;
    if (ku_comm_threads(x->c.n, NULL, step_on_rank, x) < 0)
        fail_msg("n=%d tp=%d sp=%d pp=%d: %s", x->c.n, x->c.tp, x->c.sp, x->c.pp,
                 ku_err_get()->text);
    assert_true(x->g.n > 10);
}
static void drop(struct gradients *g)
{
    for (int k = 0; k < g->n; k++)
        ku_free(g->v[k]);
}

/* Of a tensor whose gradient is zero but for rounding, relative to that of all. A bias of keys has
 * none: it moves all scores of a query alike. */
static double error_of(const struct gradients *truth, const struct gradients *got, int k)
{
    double sum[2] = {0};
    assert_string_equal(truth->name[k], got->name[k]);
    assert_int_equal(truth->count[k], got->count[k]);
    for (int64_t i = 0; i < got->count[k]; i++) {
        const double want = truth->v[k][i], d = got->v[k][i] - want;
        sum[0] += d * d;
        sum[1] += want * want;
    }
    const bool is_zero = sum[1] < 1e-24 * truth->square;
    assert_true(!is_zero || strstr(got->name[k], "k_proj.bias"));
    return sqrt(sum[0] / (is_zero ? truth->square : sum[1]));
}

static char match[][16] = {"h.*.mlp.c_fc", "h.*.mlp.c_proj", "ln_1", "wpe"};
static struct ku_tp_rule gathered[] = {{match[0], KU_TP_COL_GATHER}, {match[1], KU_TP_COL_GATHER}},
                         replicated[] = {{match[2], KU_TP_REPLICATE}, {match[3], KU_TP_REPLICATE}};

/* The rows of a model stand together. */
enum model { GPT2, GROUPED, ONE_KEY_HEAD, PAIR, THIRDS, GROUPED_THIRDS, PAIR_THIRDS };
static const struct row {
    enum model model;
    int dp, tp, sp, pp, zero, recompute, keeps, is_whole;
    const char *schedule;
    struct ku_tp_plan plan;
} row[] = {
    {GPT2, 1, 1, 0, 1, 0, 0, 0, 0, NULL, {NULL, 0}},
    {GPT2, 2, 1, 0, 1, 3, 2, 0, 0, NULL, {NULL, 0}},
    {GPT2, 1, 2, 0, 1, 0, 0, 0, 0, NULL, {NULL, 0}},
    {GPT2, 1, 2, 1, 1, 0, 0, 0, 0, NULL, {NULL, 0}},
    {GPT2, 1, 4, 1, 1, 0, 0, 1, 0, NULL, {NULL, 0}},
    {GPT2, 2, 2, 1, 1, 3, 2, 0, 0, NULL, {NULL, 0}},
    {GPT2, 2, 2, 1, 1, 2, 1, 1, 1, NULL, {NULL, 0}},
    {GPT2, 1, 4, 1, 1, 0, 2, 0, 1, NULL, {NULL, 0}},
    {GPT2, 1, 2, 1, 1, 0, 0, 0, 0, NULL, {gathered, 2}},
    {GPT2, 1, 2, 1, 1, 0, 0, 0, 0, NULL, {replicated, 2}},
    {GPT2, 1, 2, 1, 2, 0, 0, 0, 0, "1f1b", {NULL, 0}},
    {GPT2, 2, 2, 1, 2, 1, 2, 0, 0, "zb-h1", {NULL, 0}},
    {GPT2, 1, 1, 0, 4, 0, 0, 0, 0, "1f1b", {NULL, 0}},
    {GPT2, 1, 4, 1, 2, 0, 0, 0, 0, "zb-v", {NULL, 0}},
    {GPT2, 2, 1, 0, 2, 0, 0, 0, 0, "gpipe", {NULL, 0}},
    {GPT2, 1, 2, 0, 2, 0, 0, 0, 0, "interleaved", {NULL, 0}},
    {GPT2, 1, 2, 1, 2, 0, 1, 0, 0, "zb-h2", {NULL, 0}},
    {GPT2, 2, 1, 0, 2, 2, 0, 0, 0, "v-half", {NULL, 0}},
    {GROUPED, 1, 2, 0, 1, 0, 0, 0, 0, NULL, {NULL, 0}},
    {GROUPED, 1, 2, 1, 1, 0, 2, 0, 0, NULL, {NULL, 0}},
    {GROUPED, 1, 4, 0, 1, 0, 0, 0, 0, NULL, {NULL, 0}}, /* ranks share key heads */
    {GROUPED, 2, 4, 1, 1, 3, 2, 0, 0, NULL, {NULL, 0}},
    {GROUPED, 2, 1, 0, 2, 0, 0, 0, 0, "interleaved", {NULL, 0}},
    {GROUPED, 1, 2, 1, 2, 0, 0, 0, 0, "zb-h2", {NULL, 0}},
    {GROUPED, 1, 4, 1, 2, 0, 0, 0, 0, "v-half", {NULL, 0}},
    {ONE_KEY_HEAD, 1, 2, 1, 1, 0, 0, 0, 0, NULL, {NULL, 0}},
    {ONE_KEY_HEAD, 1, 4, 0, 2, 0, 0, 0, 0, "gpipe", {NULL, 0}},
    {PAIR, 2, 1, 0, 1, 3, 2, 0, 0, NULL, {NULL, 0}},
    {PAIR, 1, 2, 0, 1, 0, 0, 0, 0, NULL, {NULL, 0}},
    {PAIR, 1, 4, 1, 1, 0, 0, 0, 0, NULL, {NULL, 0}},
    {PAIR, 1, 1, 0, 4, 0, 0, 0, 0, "gpipe", {NULL, 0}},
    {PAIR, 2, 1, 0, 2, 1, 0, 0, 0, "zb-h2", {NULL, 0}},
    {PAIR, 1, 2, 1, 2, 0, 0, 0, 0, "interleaved", {NULL, 0}},
    {PAIR, 1, 2, 0, 2, 0, 0, 0, 0, "v-half", {NULL, 0}},
    {THIRDS, 1, 3, 0, 1, 0, 0, 0, 0, NULL, {NULL, 0}}, /* vocabularies get more padding */
    {THIRDS, 2, 3, 1, 1, 3, 2, 0, 0, NULL, {NULL, 0}},
    {THIRDS, 1, 3, 1, 2, 0, 0, 0, 0, "zb-h1", {NULL, 0}},
    {THIRDS, 1, 6, 0, 1, 0, 0, 0, 1, NULL, {NULL, 0}},
    {GROUPED_THIRDS, 1, 3, 1, 1, 0, 0, 0, 0, NULL, {NULL, 0}},
    {GROUPED_THIRDS, 1, 6, 0, 1, 0, 0, 0, 0, NULL, {NULL, 0}}, /* ranks share key heads */
    {PAIR_THIRDS, 1, 3, 0, 1, 0, 0, 0, 0, NULL, {NULL, 0}},
};

static struct dist_case base_case(enum model model, const char *device, enum kumi_dtype compute)
{
    struct dist_case c = {.n = 1,
                          .v = 2,
                          .micro = 1,
                          .k = 2,
                          .steps = 1,
                          .device = device,
                          .compute = compute,
                          .clip = 1e30,
                          .no_sharing = 1,
                          .model = dist_model(),
                          .key_heads = model == GROUPED          ? 2
                                       : model == GROUPED_THIRDS ? 3
                                                                 : model == ONE_KEY_HEAD,
                          .is_pair = model == PAIR || model == PAIR_THIRDS,
                          .t = 8};
    c.model.n_layer = 4, c.model.n_head = model >= THIRDS ? 6 : 4, c.model.n_embd = 48;
    return c;
}

/* Returns the largest error of a gradient. */
static double check_row(int i, const struct gradients *truth)
{
    struct gradients_case x = {.c = base_case(row[i].model, "cpu", KUMI_F32)};
    double most = 0;
    x.c.tp = row[i].tp, x.c.sp = row[i].sp, x.c.pp = row[i].pp, x.c.zero = row[i].zero;
    x.c.n = row[i].dp * row[i].tp * row[i].pp, x.c.schedule = row[i].schedule;
    x.c.recompute = row[i].recompute, x.c.sp_keeps = row[i].keeps;
    x.c.whole_vocabulary = row[i].is_whole, x.c.plan = row[i].plan;
    run(&x);
    assert_int_equal(x.g.n, truth->n);
    for (int k = 0; k < x.g.n; k++) {
        const double error = error_of(truth, &x.g, k);
        most = error > most ? error : most;
        if (!(error <= 1e-5))
            fail_msg("row %d, %s: error %.3g of the gradient", i, x.g.name[k], error);
    }
    drop(&x.g);
    return most;
}

static void against_reference(void **state)
{
    struct gradients_case truth = {0};
    double most = 0;
    (void)state;
    for (int i = 0; i < (int)(sizeof row / sizeof row[0]); i++) {
        if (i == 0 || row[i].model != row[i - 1].model) {
            drop(&truth.g);
            truth.c = base_case(row[i].model, "ref", KUMI_F64);
            run(&truth);
        }
        most = fmax(most, check_row(i, &truth.g));
    }
    print_message("largest error of a gradient: %.2g of its norm\n", most);
    drop(&truth.g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(against_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
