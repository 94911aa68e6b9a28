/* SPDX-License-Identifier: Apache-2.0 */
/* Documents and weighted shards under every layout: equal bits; attention that stays inside a
 * document; keys that do not go together. */
#include "dist.h"

#include <math.h>
#include <stdlib.h>

#include "base/os/os.h"
#include "base/str.h"
#include "train/session.h"

enum { STEPS = 5, MAX_SETS = 16 };
static const char gpt2[] =
    "model={\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":2,\"n_embd\":16,"
    "\"n_positions\":24,\"vocab_size\":61,\"attn_pdrop\":0.1}";
static const char llama[] = "model={\"model_type\":\"llama\",\"num_hidden_layers\":2,"
                            "\"num_attention_heads\":4,\"num_key_value_heads\":2,"
                            "\"hidden_size\":32,\"intermediate_size\":40,"
                            "\"max_position_embeddings\":24,\"vocab_size\":61}";

static char dir[] = "/tmp/kumi-documents-XXXXXX";

static const char *in_dir(const char *name)
{
    static char path[8][96];
    static int turn;
    turn = (turn + 1) % 8;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

struct run {
    const char *set[MAX_SETS];
    int n_sets, n, steps;
    double loss[STEPS], first, val; /* first: over the validation split, before any step */
    char digest[72];
};

static int train(struct ku_job *job, void *arg)
{
    struct run *r = arg, mine = *r;
    struct ku_session s = {0};
    const double *report;
    int status = KUMI_OK;
    KU_TRY_OUT(ku_session_configure(&s, in_dir("run.json"), r->set, r->n_sets, NULL, job->n));
    KU_TRY_OUT(ku_session_open_data(&s, job));
    KU_TRY_OUT(ku_session_create_trainer(&s, job));
    KU_TRY_OUT(ku_session_first_state(&s));
    KU_TRY_OUT(ku_session_evaluate(&s, NULL, &mine.first));
    for (int64_t step = 0; step < r->steps; step++) {
        KU_TRY_OUT(ku_session_fill_train(&s, step));
        KU_TRY_OUT(ku_trainer_step(s.t, step, &report));
        mine.loss[step] = report[KU_REPORT_LOSS];
    }
    KU_TRY_OUT(ku_session_evaluate(&s, NULL, &mine.val));
    KU_TRY_OUT(ku_trainer_digest(s.t, 0, mine.digest));
    if (job->rank == 0) { /* the other ranks may be at the settings yet */
        r->first = mine.first, r->val = mine.val;
        memcpy(r->loss, mine.loss, sizeof r->loss);
        memcpy(r->digest, mine.digest, sizeof r->digest);
    }
out:
    ku_session_fini(&s);
    return status;
}

/* set: NULL-terminated, over model and configuration. */
static struct run configured(const char *model, const char *const *set)
{
    struct run r = {.set = {model}, .n_sets = 1, .n = 1, .steps = STEPS};
    for (; *set; set++)
        r.set[r.n_sets++] = *set;
    return r;
}

static void go(struct run *r)
{
    if (ku_comm_threads(r->n, NULL, train, r) < 0)
        fail_msg("%s", ku_err_get()->text);
}

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 16;
}

/* Documents of least to most tokens; of every third the first half is not learnt. */
static void put_documents(const char *name, int n, uint32_t least, uint32_t most, uint32_t seed)
{
    struct ku_str s = {0};
    for (int i = 0; i < n; i++) {
        const int count = (int)(least + next(&seed) % (most - least + 1));
        const uint32_t from = seed;
        for (int labels = 0; labels <= (i % 3 == 0); labels++) {
            uint32_t again = from;
            ku_str_add(&s, labels ? ",\"labels\":[" : "{\"input_ids\":[");
            for (int k = 0; k < count; k++) {
                int token = (int)((unsigned)k * 7 + next(&again) % 5) % 61;
                ku_str_add(&s, "%s%d", k ? "," : "", labels && k < count / 2 ? -100 : token);
            }
            ku_str_add(&s, "]");
        }
        ku_str_add(&s, "}\n");
    }
    assert_int_equal(ku_os_replace(in_dir(name), s.bytes ? ku_str_get(&s) : "", s.bytes), 0);
    ku_str_fini(&s);
}

static void put_text(const char *name, size_t bytes, const char *words)
{
    struct ku_str s = {0};
    while (s.bytes < bytes) /* bytes below 61 */
        ku_str_add(&s, "%s", words);
    assert_int_equal(ku_os_replace(in_dir(name), ku_str_get(&s), s.bytes), 0);
    ku_str_fini(&s);
}

static int make_dir(void **state)
{
    (void)state;
    struct ku_str s = {0};
    if (mkdtemp(dir) == NULL || setenv("KUMI_CACHE", in_dir("cache"), 1) != 0)
        return -1;
    put_documents("docs.jsonl", 90, 2, 33, 5);
    put_documents("even.jsonl", 40, 13, 13, 9);
    put_text("a.txt", 1500, "0123\n4567 89\n");
    put_text("b.txt", 700, "98,76,54;\n");
    ku_str_add(&s,
               "{\"data\":{\"train\":\"%s\"},\"train\":{\"global_batch\":8,\"micro_batch\":1,"
               "\"virtual_shards\":4,\"threads\":1},\"optimizer\":{\"lr\":0.01}}",
               in_dir("docs.jsonl"));
    int status = ku_os_replace(in_dir("run.json"), ku_str_get(&s), s.bytes);
    ku_str_fini(&s);
    return status;
}

static int remove_dir(void **state)
{
    (void)state;
    return ku_os_rmtree(dir);
}

/* The same bits on 1, 2 and 4 ranks, and with what else is layout; returns one rank's. */
static struct run check_layouts(const char *model, const char *const *set)
{
    struct run one = configured(model, set);
    go(&one);
    assert_true(isfinite(one.loss[0]) && one.loss[STEPS - 1] < one.loss[0]);
    for (int i = 0; i < 3; i++) {
        struct run r = configured(model, set);
        r.n = 1 << i;
        r.set[r.n_sets++] = i == 0   ? "train.threads=2"
                            : i == 1 ? "data.workers=2"
                                     : "parallel.share_host_state=false";
        go(&r);
        assert_memory_equal(r.loss, one.loss, sizeof one.loss);
        assert_memory_equal(&r.val, &one.val, sizeof one.val);
        assert_string_equal(r.digest, one.digest);
    }
    return one;
}

static void equal_bits(void **state)
{
    static const char *const packed[] = {NULL}, *const within[] = {"data.segments=true", NULL};
    static const char *const padded[] = {"data.pack=false", NULL};
    static const char *const bf16[] = {"data.segments=true", "precision.compute=bf16", NULL};
    static const char *const *const rows[] = {packed, within, padded, bf16};
    (void)state;
    for (int m = 0; m < 2; m++) {
        struct run r[4];
        for (int i = 0; i < 4; i++)
            r[i] = check_layouts(m ? llama : gpt2, rows[i]);
        for (int i = 1; i < 4; i++)
            assert_string_not_equal(r[i].digest, r[0].digest);
    }
}

static void weighted_text(void **state)
{
    char files[256];
    snprintf(files, sizeof files, "data.train=[\"%s\",\"%s\"]", in_dir("a.txt"), in_dir("b.txt"));
    const char *const weighed[] = {files, "data.weights=[1,3]", NULL}, *const plain[] = {files,
                                                                                         NULL};
    const char *const within[] = {files, "data.weights=[1,3]", "data.segments=true",
                                  "data.separator=10", NULL};
    (void)state;
    struct run a = check_layouts(gpt2, weighed), b = check_layouts(gpt2, plain),
               c = check_layouts(llama, weighed), d = check_layouts(llama, within);
    assert_string_not_equal(a.digest, b.digest);
    assert_string_not_equal(c.digest, d.digest);
}

static double first_loss(const char *model, const char *file, const char *more, const char *also)
{
    char train_file[160];
    snprintf(train_file, sizeof train_file, "data.train=%s", in_dir(file));
    const char *const set[] = {train_file, "data.val_fraction=0.5", more, also, NULL};
    struct run r = configured(model, set);
    r.steps = 0;
    go(&r);
    return r.first;
}

/*
 * Two documents of 12 positions fill a sample of 24. Rotary positions are relative, so a document
 * behind another is as good as one alone, if it does not look at it; of learned positions that
 * holds for what is first in a sample alone.
 */
static void documents_are_alone(void **state)
{
    (void)state;
    double alone = first_loss(llama, "even.jsonl", "data.pack=false", NULL);
    double within = first_loss(llama, "even.jsonl", "data.segments=true", NULL);
    double mixed = first_loss(llama, "even.jsonl", "data.pack=true", NULL);
    assert_true(fabs(within - alone) < 1e-6 * alone);
    assert_true(fabs(mixed - alone) > 1e-5 * alone);
    alone = first_loss(gpt2, "docs.jsonl", "data.pack=false", NULL);
    within = first_loss(gpt2, "docs.jsonl", "data.pack=false", "data.segments=true");
    assert_true(fabs(within - alone) < 1e-6 * alone); /* padding lies behind what counts */
}

static void refuses(void **state)
{
    static const char bert[] = "model={\"model_type\":\"bert\",\"num_hidden_layers\":1,"
                               "\"num_attention_heads\":2,\"hidden_size\":16,\"vocab_size\":61,"
                               "\"max_position_embeddings\":24}";
    static const char pairs[] = "model={\"model_type\":\"transformer\"}";
    char text[160];
    snprintf(text, sizeof text, "data.train=%s", in_dir("a.txt"));
    const struct {
        const char *model, *set[3], *words;
        int status;
    } rows[] = {
        {bert,
         {text, "data.segments=true"},
         "data.segments: true; this model attends over the whole sample",
         KUMI_EINVAL},
        {bert, {NULL}, "a masked language model learns from text", KUMI_EINVAL},
        {gpt2,
         {"data.weights=[1]"},
         "data.weights: [1]; it is for text files; omit it",
         KUMI_EINVAL},
        {gpt2,
         {text, "data.separator=10"},
         "data.separator: 10; it is for text with data.segments",
         KUMI_EINVAL},
        {gpt2,
         {"data.segments=true", "data.separator=10"},
         "data.separator: 10; applies to text",
         KUMI_EINVAL},
        {gpt2,
         {text, "data.segments=true"},
         "data.separator: null; the tokenizer has no end-of-text token",
         KUMI_EINVAL},
        {gpt2,
         {text, "data.segments=true", "data.separator=61"},
         "data.separator: token 61",
         KUMI_EINVAL},
        {gpt2, {"data.pack=false", "data.on_long=error"}, "docs.jsonl: document", KUMI_EINPUT},
        {gpt2, {"data.on_long=drop"}, "data.on_long: \"drop\"; cut or error", KUMI_EINVAL},
        {pairs, {"data.on_long=cut"}, "data.on_long: \"cut\"; drop or error", KUMI_EINVAL},
        {pairs,
         {"data.segments=true"},
         "data.segments: true; this model attends over the whole sample",
         KUMI_EINVAL},
        {pairs, {"data.weights=[1]"}, "data.weights: [1]; it is for text", KUMI_EINVAL},
        {gpt2, {text, "data.kind=jsonl"}, "a.txt:1:", KUMI_EINPUT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *const set[] = {rows[i].set[0], rows[i].set[1], rows[i].set[2], NULL};
        struct run r = configured(rows[i].model, set);
        int status = ku_comm_threads(1, NULL, train, &r);
        if (status != rows[i].status || strstr(ku_err_get()->text, rows[i].words) == NULL)
            fail_msg("row %zu: %d: %s", i, status, ku_err_get()->text);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_bits), cmocka_unit_test(weighted_text),
        cmocka_unit_test(documents_are_alone), cmocka_unit_test(refuses)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
