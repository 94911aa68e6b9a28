/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State that is divided among hosts: a checkpoint of one rank, read, hashed, averaged and written
 * again in other layouts. Ranks as threads on pretended hosts. tsan
 */
#include "dist.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/os/os.h"
#include "ckpt/snapshot/spread.h"
#include "comm/consensus.h"

enum { STEPS = 2 };
struct spread {
    struct dist_case c;
    const char *hosts, *from, *to; /* from: checkpoint to read; NULL: train */
    char averages[72];
};

/* n_sharing: hosts whose ranks share one copy of the parameters each; 0: private memory */
static struct spread case_of(int n, const char *hosts, int zero, int replicate, int n_sharing)
{
    struct spread x = {.c = {.n = n,
                             .v = 8,
                             .micro = 1,
                             .k = 1,
                             .device = "cpu",
                             .model = dist_model(),
                             .no_sharing = n_sharing == 0,
                             .hosts = n_sharing,
                             .zero = zero,
                             .replicate = replicate,
                             .ema = 0.9,
                             .t = 5},
                       .hosts = hosts};
    x.c.model.n_layer = 1, x.c.model.n_embd = 48, x.c.model.vocab_size = 9001;
    return x;
}

/* A writer allocates what was planned: on the rank that gets the most, to the byte. */
static int compare_with_plan(const struct ku_trainer *t, const struct ku_ckpt_desc *desc)
{
    const struct ku_ckpt_desc d = ku_trainer_desc(t, desc);
    struct ku_ckpt_writer *w;
    if (t->job->n_hosts == 1)
        return t->inbox_bytes == 0 ? KUMI_OK : KU_ERR(KUMI_EINPUT, "one host needs an inbox");
    KU_TRY(ku_ckpt_writer_create(&d, &w));
    int status = ku_trainer_spread_writer(t, w);
    int64_t most = status == KUMI_OK ? (int64_t)ku_ckpt_writer_inbox_bytes(w) : 0;
    ku_ckpt_writer_destroy(w);
    KU_TRY(ku_agree(t->job, status));
    KU_TRY(ku_agree_max(t->job, &most));
    const int64_t planned = (int64_t)t->inbox_bytes - (1 << 20); /* but for a message */
    const bool is_spread = ku_trainer_is_spread(t->program[KU_PROG_TRAIN], t->job);
    return planned == most && is_spread == (most > 0)
               ? KUMI_OK
               : KU_ERR(KUMI_EINPUT, "planned %lld bytes, allocated %lld", (long long)planned,
                        (long long)most);
}

/* Trains or loads, then hashes, writes, and hashes the averages. */
static int rank(struct ku_job *job, void *arg)
{
    struct spread *x = arg;
    struct ku_trainer *t;
    char digest[72] = "", averages[72] = "";
    const double *report;
    int64_t step = STEPS;
    KU_TRY(dist_trainer(job, &x->c, &t));
    if (x->from)
        KU_TRY(ku_trainer_load(t, x->from, &step));
    else
        KU_TRY(ku_trainer_init_state(t));
    for (int i = 0; i < STEPS && x->from == NULL; i++) {
        dist_fill(&x->c, t, KU_PROG_TRAIN, i);
        KU_TRY(ku_trainer_step(t, i, &report));
    }
    KU_ASSERT(step == STEPS);
    KU_TRY(ku_trainer_digest_first(t, digest));
    struct ku_ckpt_desc d = {.dir = x->to, .step = step, .model_config = "{}"};
    KU_TRY(ku_agree_local(job, compare_with_plan(t, &d)));
    KU_TRY(ku_trainer_save(t, &d, KUMI_OK));
    KU_TRY(ku_trainer_verify_replicas(t));
    KU_TRY(ku_trainer_take_ema(t));
    KU_TRY(ku_trainer_digest_first(t, averages));
    KU_TRY(ku_trainer_verify_replicas(t));
    if (job->rank == 0) {
        memcpy(x->c.digest, digest, sizeof digest);
        memcpy(x->averages, averages, sizeof averages);
    }
    ku_trainer_destroy(t);
    return KUMI_OK;
}

static void run(struct spread *x)
{
    const struct ku_job_opts opts = {.hosts = x->hosts};
    if (ku_comm_threads(x->c.n, &opts, rank, x) < 0)
        fail_msg("%s zero=%d: %s", x->hosts ? x->hosts : "one host", x->c.zero, ku_err_get()->text);
}

static void expect_same(const char *a, const char *b, const char *hosts)
{
    static const char *const name[] = {"manifest.json",
                                       "manifest.json.xxh3",
                                       "model/model.safetensors",
                                       "model/model.safetensors.xxh3",
                                       "optimizer/optimizer.safetensors",
                                       "optimizer/optimizer.safetensors.xxh3"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        char *text[2], path[200];
        size_t bytes[2];
        for (int k = 0; k < 2; k++) {
            snprintf(path, sizeof path, "%s/step-%08d/%s", k ? b : a, STEPS, name[i]);
            if (ku_os_slurp(path, (size_t)1 << 30, &text[k], &bytes[k]) < 0)
                fail_msg("%s: %s", path, ku_os_why());
        }
        if (bytes[0] != bytes[1] || memcmp(text[0], text[1], bytes[0]) != 0)
            fail_msg("%s: %s differs from one host's", hosts, name[i]);
        ku_free(text[0]);
        ku_free(text[1]);
    }
}

static void layouts(void **state)
{
    static const struct {
        int n;
        const char *hosts;
        int zero, replicate, is_offloaded, n_sharing;
    } row[] = {{4, "2,2", 3, 0, 0, 0},     {4, "1,3", 2, 0, 0, 0}, {4, "1,1,1,1", 1, 0, 0, 0},
               {8, "4,4", 3, 0, 0, 0},     {4, "1,3", 3, 2, 0, 0}, {8, "2,2,2,2", 2, 2, 0, 0},
               {4, "2,2", 3, 0, 1, 0},     {4, "3,1", 0, 0, 0, 0}, {4, "2,2", 1, 0, 0, 2},
               {8, "2,2,2,2", 2, 0, 0, 4}, {4, "2,2", 2, 0, 1, 2}, {8, "4,4", 1, 0, 0, 2},
               {4, "2,2", 3, 0, 0, 2},     {8, "4,4", 3, 0, 0, 2}, {8, "2,2,2,2", 3, 2, 0, 4},
               {8, "2,2,2,2", 1, 2, 1, 4}};
    char dir[2][40] = {"/tmp/kumi-spread-XXXXXX", "/tmp/kumi-spread-XXXXXX"}, from[80];
    struct sample s = {.address = 4, .thread = 8};
    (void)state;
    assert_non_null(mkdtemp(dir[0]));
    struct spread one = case_of(1, NULL, 0, 0, 0);
    one.to = dir[0];
    run(&one);
    assert_string_not_equal(one.c.digest, one.averages);
    snprintf(from, sizeof from, "%s/step-%08d", dir[0], STEPS);
    for (int i = 0; i < (int)(sizeof row / sizeof *row); i++) {
        if (!sample_takes(&s, i, row[i].zero * 2 + row[i].is_offloaded, 8 + row[i].n_sharing))
            continue;
        strcpy(dir[1], "/tmp/kumi-spread-XXXXXX");
        assert_non_null(mkdtemp(dir[1]));
        struct spread x =
            case_of(row[i].n, row[i].hosts, row[i].zero, row[i].replicate, row[i].n_sharing);
        x.from = i % 2 ? from : NULL, x.to = dir[1];
        if (row[i].is_offloaded)
            x.c.offload = (struct ku_offload){.optimizer = KU_OFFLOAD_HOST,
                                              .ratio = 1,
                                              .buffer_count = 2,
                                              .buffer_bytes = 1 << 16};
        run(&x);
        assert_string_equal(x.c.digest, one.c.digest);
        assert_string_equal(x.averages, one.averages);
        expect_same(dir[0], dir[1], row[i].hosts);
        if (i % 2 == 0) { /* and one rank reads what the hosts wrote */
            char again[40] = "/tmp/kumi-spread-XXXXXX", there[80];
            assert_non_null(mkdtemp(again));
            snprintf(there, sizeof there, "%s/step-%08d", dir[1], STEPS);
            struct spread back = case_of(1, NULL, 0, 0, 0);
            back.from = there, back.to = again;
            run(&back);
            assert_string_equal(back.c.digest, one.c.digest);
            assert_int_equal(ku_os_rmtree(again), 0);
        }
        assert_int_equal(ku_os_rmtree(dir[1]), 0);
    }
    sample_end(&s, "layouts");
    assert_int_equal(ku_os_rmtree(dir[0]), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(layouts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
