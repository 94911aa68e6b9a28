/* SPDX-License-Identifier: Apache-2.0 */
/* A step that is not finite names its tensor and the rank whose part it is, the same on all ranks.
 */
#include "dist.h"

#include <math.h>

#include "run/nonfinite.h"

enum { RARE = 60, V = 4 };

/* Virtual shard `shard` alone meets a token whose row of the (untied) embedding is not a number. */
struct fault {
    struct dist_case c;
    int shard;
    struct ku_nonfinite found[V];
    char tensor[V][64];
    int is_same; /* the search left parameters and optimizer as they were */
};

static void poison(const struct fault *f, struct ku_trainer *t)
{
    size_t row_bytes;
    for (int u = 0; u < ku_trainer_n_micro(t); u++) {
        int64_t first, n = ku_trainer_rows(t, u, &first);
        int32_t *tokens = host_of(ku_trainer_port(t, KU_PROG_TRAIN, "tokens", u, &row_bytes));
        for (int64_t i = 0; i < n * f->c.t; i++) {
            tokens[i] %= RARE;
            if (f->shard >= 0 && (first + i / f->c.t) / (f->c.micro * f->c.k) == f->shard)
                tokens[i] = RARE;
        }
    }
    for (int i = 0; i < t->n_tensors; i++)
        if (strcmp(t->tensor[i].name, "transformer.wte.weight") == 0 ||
            strcmp(t->tensor[i].name, "wte.weight") == 0)
            assert_int_equal(
                ku_ckpt_tensor_scatter(&t->tensor[i], RARE * 24, 1, &(float){NAN}, KUMI_F32, 0), 0);
}

static int run(struct ku_job *job, struct fault *f, struct ku_trainer *t)
{
    const double *report;
    char before[72], after[72];
    struct ku_nonfinite *found = &f->found[job->rank];
    struct ku_comm *world = job->world;
    KU_TRY(ku_trainer_init_state(t));
    dist_fill(&f->c, t, KU_PROG_TRAIN, 0);
    if (job->n > 1)
        KU_TRY(ku_coll_run(world, &(struct ku_coll){.kind = KU_COLL_BARRIER, .name = "state"}));
    poison(f, t); /* every rank writes the same */
    KU_TRY(ku_trainer_derive(t));
    KU_TRY(ku_trainer_step(t, 0, &report));
    if ((report[KU_REPORT_APPLY] == 0) != (f->shard >= 0))
        return KU_ERR(KUMI_EBUG, "shard %d: loss %g", f->shard, report[KU_REPORT_LOSS]);
    if (f->shard < 0)
        return KUMI_OK;
    if (job->rank == 0)
        KU_TRY(ku_trainer_digest(t, 0, before));
    KU_TRY(ku_nonfinite_find(t, 0, found));
    snprintf(f->tensor[job->rank], 64, "%s", found->tensor ? found->tensor : "loss");
    if (job->rank == 0) {
        KU_TRY(ku_trainer_digest(t, 0, after));
        f->is_same = strcmp(before, after) == 0;
    }
    return KUMI_OK;
}

static int fault_rank(struct ku_job *job, void *arg)
{
    struct fault *f = arg;
    struct ku_trainer *t;
    KU_TRY(dist_trainer(job, &f->c, &t));
    int status = run(job, f, t);
    ku_trainer_destroy(t);
    return status;
}

static struct fault fault(int n, int shard, const char *device)
{
    struct fault f = {
        .shard = shard,
        .c = {
            .n = n, .v = V, .micro = 1, .k = 2, .device = device, .model = dist_model(), .t = 11}};
    f.c.model.tie_word_embeddings = 0;
    return f;
}

static void check(struct fault *f)
{
    if (ku_comm_threads(f->c.n, NULL, fault_rank, f) < 0)
        fail_msg("n=%d: %s", f->c.n, ku_err_get()->text);
    for (int r = 0; r < f->c.n && f->shard >= 0; r++) {
        assert_int_equal(f->found[r].rank, f->shard / (V / f->c.n));
        assert_string_equal(f->tensor[r], f->tensor[0]);
        assert_non_null(strstr(f->tensor[r], "wpe.weight"));
    }
    assert_true(f->shard < 0 || f->is_same);
}

static void test_rank(void **state)
{
    (void)state;
    for (int n = 1; n <= V; n *= 2)
        for (int shard = -1; shard < V; shard++) {
            struct fault f = fault(n, shard, "cpu");
            check(&f);
        }
}

static void test_layouts(void **state)
{
    (void)state;
    struct fault f = fault(4, 3, "ref");
    check(&f);
    f = fault(2, 2, "cpu");
    f.c.no_sharing = 1;
    for (f.c.zero = 0; f.c.zero <= 2; f.c.zero++)
        check(&f);
    f = fault(4, 1, "cpu");
    f.c.compute = KUMI_BF16;
    check(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rank), cmocka_unit_test(test_layouts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
