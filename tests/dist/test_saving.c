/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints written while training goes on are, byte for byte, those written while it stands
 * still, however the state lies, and do not change how the training ends. tsan
 */
#include "dist.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/os/os.h"
#include "train/saving.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { VOCAB = 6007, EMBD = 48 };
#else
enum { VOCAB = 60013, EMBD = 48 }; /* 35 MB: a step without a write barrier overtakes the write */
#endif
enum { STEPS = 7, SAVED = 3, SAVED_AGAIN = 5 };

struct saving_case {
    struct dist_case c;
    const char *dir;
    int is_async;
    size_t staging_bytes;
    const char *hosts; /* ranks of each host; NULL: one host */
};

static int save(struct ku_trainer *t, struct ku_saving *s, const struct saving_case *x,
                int64_t step)
{
    struct ku_ckpt_desc d = {.dir = x->dir, .step = step, .model_config = "{}"};
    return s ? ku_saving_start(s, &d, KUMI_OK) : ku_trainer_save(t, &d, KUMI_OK);
}

static int saving_rank(struct ku_job *job, void *arg)
{
    struct saving_case *x = arg;
    struct ku_trainer *t = NULL;
    struct ku_saving *s = NULL;
    const double *report;
    KU_TRY(dist_trainer(job, &x->c, &t));
    t->staging_bytes = x->staging_bytes;
    if (x->is_async)
        KU_TRY(ku_saving_create(t, &s));
    KU_TRY(ku_trainer_init_state(t));
    for (int step = 0; step < STEPS; step++) {
        dist_fill(&x->c, t, KU_PROG_TRAIN, step % 2);
        KU_TRY(ku_trainer_step(t, step, &report));
        if (s)
            KU_TRY(ku_saving_poll(s));
        if (step + 1 != SAVED && step + 1 != SAVED_AGAIN)
            continue;
        if (s)
            KU_TRY(ku_saving_wait(s));
        KU_TRY(save(t, s, x, step + 1));
        KU_ASSERT(ku_saving_is_pending(s) == x->is_async);
    }
    if (s)
        KU_TRY(ku_saving_wait(s));
    KU_ASSERT(!ku_saving_is_pending(s));
    KU_TRY(ku_trainer_digest_first(t, job->rank == 0 ? x->c.digest : (char[72]){0}));
    ku_saving_destroy(s);
    ku_trainer_destroy(t);
    return KUMI_OK;
}

static void run(struct saving_case *x)
{
    const struct ku_job_opts opts = {.hosts = x->hosts};
    if (ku_comm_threads(x->c.n, &opts, saving_rank, x) < 0)
        fail_msg("n=%d %s: %s", x->c.n, x->hosts ? x->hosts : "", ku_err_get()->text);
}

static void expect_same_files(const char *a, const char *b, int step)
{
    static const char *const name[] = {"manifest.json",
                                       "manifest.json.xxh3",
                                       "model/config.json",
                                       "model/model.safetensors",
                                       "model/model.safetensors.xxh3",
                                       "optimizer/optimizer.safetensors",
                                       "optimizer/optimizer.safetensors.xxh3"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        char *text[2], path[200];
        size_t bytes[2];
        for (int k = 0; k < 2; k++) {
            snprintf(path, sizeof path, "%s/step-%08d/%s", k ? b : a, step, name[i]);
            if (ku_os_slurp(path, (size_t)1 << 30, &text[k], &bytes[k]) < 0)
                fail_msg("%s: %s", path, ku_os_why());
        }
        if (bytes[0] != bytes[1] || memcmp(text[0], text[1], bytes[0]) != 0)
            fail_msg("%s differs from the one written while training stood still", path);
        ku_free(text[0]);
        ku_free(text[1]);
    }
}

static struct saving_case case_of(int n, const char *dir)
{
    struct saving_case x = {.c = {.n = n,
                                  .v = 4,
                                  .micro = 1,
                                  .k = 1,
                                  .device = "cpu",
                                  .model = dist_model(),
                                  .compute = KUMI_BF16,
                                  .t = 5},
                            .dir = dir};
    x.c.model.n_layer = 1, x.c.model.n_embd = EMBD, x.c.model.vocab_size = VOCAB;
    return x;
}

static void same_bytes(void **state)
{
    static const struct {
        int n, no_sharing, zero;
        size_t staging_bytes;
        const char *hosts;
        int is_sync, replicate, n_sharing;
    } row[] = {{1, 0, 0, 4 << 20, NULL, 0, 0, 0},      {2, 0, 0, 4 << 20, NULL, 0, 0, 0},
               {2, 1, 0, 4 << 20, NULL, 0, 0, 0},      {4, 0, 0, 4 << 20, NULL, 0, 0, 0},
               {2, 0, 0, 64 << 20, NULL, 0, 0, 0},     {4, 1, 0, 8 << 20, NULL, 0, 0, 0},
               {4, 1, 1, 4 << 20, NULL, 0, 0, 0},      {4, 1, 0, 4 << 20, "2,2", 0, 0, 0},
               {4, 1, 3, 4 << 20, "2,2", 0, 0, 0},     {4, 1, 2, 64 << 20, "1,3", 0, 0, 0},
               {4, 1, 1, 4 << 20, "1,1,1,1", 1, 0, 0}, {4, 1, 3, 4 << 20, "1,3", 0, 2, 0},
               {4, 0, 1, 4 << 20, "2,2", 0, 0, 2}};
    char dir[2][40] = {"/tmp/kumi-saving-XXXXXX", "/tmp/kumi-saving-XXXXXX"};
    struct sample s = {.address = 4, .thread = 8};
    (void)state;
    assert_non_null(mkdtemp(dir[0]));
    struct saving_case plain = case_of(1, dir[0]);
    run(&plain);
    for (int i = 0; i < (int)(sizeof row / sizeof *row); i++) {
        if (!sample_takes(&s, i, row[i].zero * 2 + (row[i].hosts != NULL), 8 + row[i].no_sharing))
            continue;
        strcpy(dir[1], "/tmp/kumi-saving-XXXXXX");
        assert_non_null(mkdtemp(dir[1]));
        struct saving_case x = case_of(row[i].n, dir[1]);
        x.is_async = !row[i].is_sync;
        x.hosts = row[i].hosts, x.c.replicate = row[i].replicate;
        x.c.hosts = row[i].n_sharing;
        x.c.no_sharing = row[i].no_sharing, x.c.zero = row[i].zero;
        x.staging_bytes = row[i].staging_bytes;
        run(&x);
        assert_string_equal(x.c.digest, plain.c.digest);
        expect_same_files(dir[0], dir[1], SAVED);
        expect_same_files(dir[0], dir[1], SAVED_AGAIN);
        assert_int_equal(ku_os_rmtree(dir[1]), 0);
    }
    sample_end(&s, "places of state");
    assert_int_equal(ku_os_rmtree(dir[0]), 0);
}

/* A folder that cannot be made fails the start, on every rank, and training would go on. */
static int refused_rank(struct ku_job *job, void *arg)
{
    struct saving_case *x = arg;
    struct ku_trainer *t = NULL;
    struct ku_saving *s = NULL;
    const double *report;
    KU_TRY(dist_trainer(job, &x->c, &t));
    t->staging_bytes = x->staging_bytes;
    KU_TRY(ku_saving_create(t, &s));
    KU_TRY(ku_trainer_init_state(t));
    KU_ASSERT(save(t, s, x, 1) == KUMI_ESTORAGE);
    KU_ASSERT(strstr(ku_err_get()->text, "/dev/null/x: Not a directory") != NULL);
    KU_ASSERT(!ku_saving_is_pending(s) && ku_saving_wait(s) == KUMI_OK);
    dist_fill(&x->c, t, KU_PROG_TRAIN, 0);
    KU_TRY(ku_trainer_step(t, 0, &report));
    ku_saving_destroy(s);
    ku_trainer_destroy(t);
    return KUMI_OK;
}

static void refused(void **state)
{
    (void)state;
    struct saving_case x = case_of(2, "/dev/null/x");
    x.c.model.vocab_size = 61;
    x.staging_bytes = 4 << 20;
    if (ku_comm_threads(2, NULL, refused_rank, &x) < 0)
        fail_msg("%s", ku_err_get()->text);
}

/* Adds how often this rank has reported progress since the last call. */
static int64_t ticks(const struct ku_job *job, int64_t *before)
{
    const int64_t now = (int64_t)atomic_load(&ku_segment_line(job->seg, job->local_rank)->progress);
    const int64_t n = now - *before;
    *before = now;
    return n;
}

/* Saving, loading and hashing gigabytes are progress: the other ranks wait meanwhile. */
static int ticks_rank(struct ku_job *job, void *arg)
{
    struct saving_case *x = arg;
    struct ku_trainer *t = NULL;
    char path[80];
    int64_t step, before = 0, bytes = 0;
    KU_TRY(dist_trainer(job, &x->c, &t));
    KU_TRY(ku_trainer_init_state(t));
    for (int i = 0; i < t->n_tensors; i++)
        bytes += ku_ckpt_tensor_count(&t->tensor[i]) * kumi_dtype_bytes(t->tensor[i].dtype);
    ticks(job, &before);
    KU_TRY(save(t, NULL, x, 1));
    KU_ASSERT(ticks(job, &before) >= bytes / job->n / KU_CKPT_WINDOW_BYTES);
    KU_TRY(ku_trainer_digest_first(t, job->rank == 0 ? x->c.digest : (char[72]){0}));
    KU_ASSERT(ticks(job, &before) >= (job->rank == 0 ? bytes >> 20 : 0));
    snprintf(path, sizeof path, "%s/step-00000001", x->dir);
    KU_TRY(ku_trainer_load(t, path, &step));
    KU_ASSERT(ticks(job, &before) >= (bytes >> 20) / job->n);
    ku_trainer_destroy(t);
    return KUMI_OK;
}

static void progress(void **state)
{
    char dir[] = "/tmp/kumi-saving-XXXXXX";
    (void)state;
    assert_non_null(mkdtemp(dir));
    struct saving_case x = case_of(2, dir);
    if (ku_comm_threads(2, NULL, ticks_rank, &x) < 0)
        fail_msg("%s", ku_err_get()->text);
    assert_int_equal(ku_os_rmtree(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bytes), cmocka_unit_test(refused),
                                       cmocka_unit_test(progress)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
