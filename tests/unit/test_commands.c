/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
#include "kumi/run.h"
#include "test_commands.h"

#include "base/json/json.h"
#include "base/str.h"
#include "base/tick.h"
#include "ckpt/digest.h"
#include "device/peak_bench.h"
#include "app/bench/bench_report.h"
#include "plan/picture.h"
#include "sim/machine_limits.h"

static void test_bytes(void **state)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } row[] = {{0, "       0 B"},         {1023, "    1023 B"},
               {1024, "  1.00 KiB"},      {1023989, "999.99 KiB"},
               {1023999, "  0.98 MiB"},   {1 << 20, "  1.00 MiB"},
               {3 << 29, "  1.50 GiB"},   {UINT64_C(5) << 40, "  5.00 TiB"},
               {UINT64_MAX, " 16.00 EiB"}};
    char text[16];
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        assert_string_equal(ku_text_bytes(row[i].bytes, text), row[i].text);
}

static void test_data(void **state)
{
    const struct files *f = *state;
    struct kumi_settings s = {.config = f->config, .n_sets = 1};
    const char *set = "train.seed=1";
    char *text = NULL, wanted[512], fingerprint[80];
    s.set = &set;
    assert_status(kumi_data_verify(&s, &text), KUMI_OK);
    snprintf(wanted, sizeof wanted,
             "samples of 8 tokens, each below 256; tokenizer byte\n"
             "train: %s: 936 tokens, 116 samples\n"
             "validation: the end of train: 105 tokens, 13 samples\nfingerprint: ",
             f->text);
    assert_int_equal(strncmp(text, wanted, strlen(wanted)), 0);
    assert_int_equal(sscanf(text + strlen(wanted), "%79s", fingerprint), 1);
    assert_int_equal(strlen(fingerprint), 64);
    kumi_text_free(text);
    text = NULL;
    with_faults(kumi_data_verify(&s, &text));
    kumi_text_free(text);
    text = NULL;

    static const struct {
        int status;
        const char *set, *part;
    } row[] = {{KUMI_EINPUT, "model.vocab_size=97", "97"}, /* 'a' is token 97 */
               {KUMI_EINPUT, "data.train=/nowhere/x.txt", "/nowhere/x.txt"},
               {KUMI_EINPUT, "data.tokenizer=/nowhere", "/nowhere"},
               {KUMI_EINVAL, "data.trian=1", "train"}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        s.set = &row[i].set;
        assert_error(kumi_data_verify(&s, &text), row[i].status, row[i].part);
        assert_null(text);
    }
    set = "data.val_fraction=0";
    s.set = &set;
    assert_status(kumi_data_verify(&s, &text), KUMI_OK);
    assert_non_null(strstr(text, "\nvalidation: none\n"));
    kumi_text_free(text);
}

static void test_tokenizer(void **state)
{
    static const char small[] = KUMI_SOURCE_DIR "/tests/fixtures/tokenizer/small";
    static const struct {
        const char *tokenizer, *text;
        size_t bytes;
    } row[] = {
        {"byte", "", 0}, {"byte", "h\xc3\xa9\0\xff", 5}, {small, "hello there, 12  x\n", 19}};
    char *ids = NULL, *text = NULL;
    size_t bytes;
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        assert_status(kumi_tokenizer_encode(row[i].tokenizer, row[i].text, row[i].bytes, &ids),
                      KUMI_OK);
        assert_status(kumi_tokenizer_decode(row[i].tokenizer, ids, &text, &bytes), KUMI_OK);
        assert_int_equal(bytes, row[i].bytes);
        assert_memory_equal(text, row[i].text, bytes);
        kumi_text_free(ids);
        kumi_text_free(text);
    }
    assert_status(kumi_tokenizer_encode("byte", "h\xc3\xa9", 3, &ids), KUMI_OK);
    assert_string_equal(ids, "104 195 169");
    kumi_text_free(ids);
    assert_status(kumi_tokenizer_decode("byte", "\n 104\t105\r\n\n33  ", &text, &bytes), KUMI_OK);
    assert_string_equal(text, "hi!");
    kumi_text_free(text);
    with_faults(kumi_tokenizer_decode(small, "1 2 3", &text, &bytes));
    kumi_text_free(text);
    with_faults(kumi_tokenizer_encode(small, "a few words", 11, &ids));
    kumi_text_free(ids);

    static const struct {
        int status;
        const char *tokenizer, *ids, *part;
    } bad[] = {{KUMI_EINVAL, "byte", "104 19x5 3", "id 2, byte 5: 19x5: not a token id"},
               {KUMI_EINVAL, "byte", "-1", "id 1, byte 1: -1"},
               {KUMI_EINVAL, "byte", "1, 2", "id 1, byte 1: 1,"},
               {KUMI_EINVAL, "byte", "7 4294967296", "id 2, byte 3: 4294967296"},
               {KUMI_EINVAL, "byte", "7 18446744073709551617", "id 2, byte 3"},
               {KUMI_EINVAL, "byte", "7 256", "token id 256 at position 2"},
               {KUMI_EINPUT, "/nowhere", "1", "/nowhere"}};
    text = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_error(kumi_tokenizer_decode(bad[i].tokenizer, bad[i].ids, &text, &bytes),
                     bad[i].status, bad[i].part);
        assert_null(text);
    }
}

/* Two checkpoints of a run, in the test's folder. */
static void save_two(const char *run, char newest[160])
{
    char dir[128];
    struct state s;
    snprintf(dir, sizeof dir, "%s/checkpoints", run);
    assert_int_equal(ku_os_mkdirs(dir), 0);
    state_init_sized(&s, 3, 5);
    for (int step = 10; step <= 20; step += 10) {
        struct ku_ckpt_desc d = state_desc(&s, dir, step);
        state_fill(&s, (uint32_t)step);
        assert_status(ku_ckpt_save(&d), KUMI_OK);
    }
    state_fini(&s);
    snprintf(newest, 160, "%s/step-00000020", dir);
}

static void check_whole(const char *run, const char *newest)
{
    char folder[128], digest[4][72], *text = NULL;
    snprintf(folder, sizeof folder, "%s/checkpoints", run);
    const char *places[] = {run, folder, newest};
    for (int i = 0; i < 3; i++) {
        assert_status(kumi_ckpt_list(places[i], 1, &text), KUMI_OK);
        json_t *rows = take_json(text), *first = json_array_get(rows, 0);
        assert_int_equal(json_array_size(rows), i < 2 ? 2 : 1);
        assert_int_equal(int_at(first, "step"), 20);
        assert_int_equal(int_at(first, "update"), 20);
        assert_true(int_at(first, "bytes") > 100);
        assert_true(json_is_true(json_object_get(first, "usable")));
        assert_string_equal(json_string_value(json_object_get(first, "name")), "step-00000020");
        assert_string_equal(json_string_value(json_object_get(first, "path")), newest);
        json_decref(rows);
        assert_status(kumi_ckpt_verify(places[i], &text), KUMI_OK);
        assert_null(strstr(text, "damaged"));
        assert_int_equal(strstr(text, "step-00000010: intact, ") != NULL, i < 2);
        assert_non_null(strstr(text, "step-00000020: intact, "));
        kumi_text_free(text);
        assert_status(kumi_ckpt_digest(places[i], 0, digest[i]), KUMI_OK);
        assert_string_equal(digest[i], digest[0]);
    }
    assert_status(ku_digest_snapshot(newest, 0, digest[3]), KUMI_OK);
    assert_string_equal(digest[3], digest[0]);
    assert_status(kumi_ckpt_digest(run, 1, digest[3]), KUMI_OK);
    assert_string_not_equal(digest[3], digest[0]);
    assert_status(kumi_ckpt_list(run, 0, &text), KUMI_OK);
    assert_int_equal(strncmp(text, "checkpoint ", 11), 0);
    assert_non_null(strstr(text, "\nstep-00000020 "));
    kumi_text_free(text);
}

/* A run in training that commits step 20 and removes step 10 at a tick of the reader */
struct pruning {
    const char *run;
    int at, n_ticks;
};
static void move(const char *run, const char *from, const char *to)
{
    char path[2][192];
    snprintf(path[0], sizeof path[0], "%s/%s", run, from);
    snprintf(path[1], sizeof path[1], "%s/%s", run, to);
    assert_int_equal(ku_os_rename(path[0], path[1]), 0);
}
static void prune(void *ctx)
{
    struct pruning *p = ctx;
    if (p->n_ticks++ != p->at)
        return;
    move(p->run, "checkpoints/step-00000010", "older");
    move(p->run, "newer", "checkpoints/step-00000020");
}

/* Verification and digest read what is there: a removed checkpoint is no damage. */
static void check_pruned(const char *run)
{
    char digest[3][72], *text = NULL;
    struct pruning p = {.run = run, .at = -1};
    assert_status(kumi_ckpt_digest(run, 0, digest[0]), KUMI_OK);
    move(run, "checkpoints/step-00000020", "newer");
    assert_status(kumi_ckpt_digest(run, 0, digest[1]), KUMI_OK);
    assert_string_not_equal(digest[0], digest[1]);
    ku_ticker = (struct ku_ticker){prune, &p};
    assert_status(kumi_ckpt_digest(run, 0, digest[2]), KUMI_OK); /* counts the ticks of opening */
    const int n_ticks = p.n_ticks;
    assert_true(n_ticks >= 2);
    for (int at = 0; at < n_ticks; at++) {
        p = (struct pruning){.run = run, .at = at};
        assert_status(kumi_ckpt_digest(run, 0, digest[2]), KUMI_OK);
        assert_string_equal(digest[2], digest[0]);
        move(run, "checkpoints/step-00000020", "newer");
        move(run, "older", "checkpoints/step-00000010");
    }
    p = (struct pruning){.run = run, .at = 0};
    assert_status(kumi_ckpt_verify(run, &text), KUMI_OK);
    assert_null(strstr(text, "damaged"));
    assert_non_null(strstr(text, "step-00000010: removed meanwhile\n"));
    assert_non_null(strstr(text, "step-00000020: intact, "));
    kumi_text_free(text);
    ku_ticker = (struct ku_ticker){NULL, NULL};
    move(run, "older", "checkpoints/step-00000010");
}

static void check_damaged(const char *run, const char *newest)
{
    char path[256], digest[72], *text = NULL;
    struct stat info;
    snprintf(path, sizeof path, "%s/model/model.safetensors", newest);
    file_flip(path, -1);
    assert_error(kumi_ckpt_verify(run, &text), KUMI_ENOCKPT, "model.safetensors: mask: bytes ");
    assert_non_null(strstr(text, "step-00000020: damaged\n  damaged: model/model.safetensors: "));
    assert_non_null(strstr(text, "step-00000010: intact"));
    kumi_text_free(text);
    assert_error(kumi_ckpt_digest(run, 0, digest), KUMI_ENOCKPT, "mask: bytes ");
    assert_status(ku_os_stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 1), 0);
    assert_status(kumi_ckpt_list(newest, 0, &text), KUMI_OK);
    assert_non_null(strstr(text, "step-00000020            not usable: checkpoint: damaged: "));
    kumi_text_free(text);
    assert_error(kumi_ckpt_verify(run, &text), KUMI_ENOCKPT, "bytes, the manifest says");
    assert_non_null(strstr(text, "step-00000020: damaged\n  checkpoint: damaged: "));
    kumi_text_free(text);
    assert_status(kumi_ckpt_list(run, 1, &text), KUMI_OK);
    json_t *rows = take_json(text);
    assert_true(json_is_false(json_object_get(json_array_get(rows, 0), "usable")));
    assert_true(json_is_true(json_object_get(json_array_get(rows, 1), "usable")));
    json_decref(rows);
}

static void test_ckpt(void **state)
{
    const struct files *f = *state;
    char run[96], newest[160], out[128], digest[72], *text = NULL;
    struct stat info;
    snprintf(run, sizeof run, "%s/run", f->folder);
    save_two(run, newest);
    check_whole(run, newest);
    with_faults(kumi_ckpt_list(run, 0, &text));
    kumi_text_free(text);
    with_faults(kumi_ckpt_verify(run, &text));
    kumi_text_free(text);
    snprintf(out, sizeof out, "%s/exported", f->folder);
    assert_status(kumi_ckpt_export(run, out, NULL), KUMI_OK);
    assert_error(kumi_ckpt_export(run, out, NULL), KUMI_EBUSY, out);
    snprintf(out, sizeof out, "%s/exported/model.safetensors", f->folder);
    assert_status(ku_os_stat(out, &info), 0);
    check_pruned(run);
    check_damaged(run, newest);

    const char *none[] = {"/nowhere/run", f->folder};
    for (int i = 0; i < 2; i++) {
        text = NULL;
        assert_error(kumi_ckpt_list(none[i], 0, &text), KUMI_ENOCKPT, none[i]);
        assert_error(kumi_ckpt_verify(none[i], &text), KUMI_ENOCKPT, none[i]);
        assert_error(kumi_ckpt_digest(none[i], 0, digest), KUMI_ENOCKPT, none[i]);
        assert_error(kumi_ckpt_export(none[i], out, NULL), KUMI_ENOCKPT, none[i]);
        assert_null(text);
    }
}

static void test_info(void **state)
{
    char *text = NULL;
    (void)state;
    assert_status(kumi_info_text(1, &text), KUMI_OK);
    json_t *v = take_json(text);
    enum ku_isa isa;
    assert_true(int_at(v, "cpu.cores") >= 1);
    assert_true(int_at(v, "memory.total_bytes") >= 1 << 20);
    assert_true(int_at(v, "memory.page_bytes") >= 4096);
    assert_status(ku_cpu_isa_parse(json_string_value(ku_json_at(v, "cpu.isa")), &isa), KUMI_OK);
    static const char *const library[] = {"jansson", "openssl", "pcre2", "xxhash", "hwloc"};
    for (int i = 0; i < 5; i++) {
        const char *version =
            json_string_value(json_object_get(json_object_get(v, "libraries"), library[i]));
        if (version == NULL || *version < '0' || *version > '9')
            fail_msg("version of %s: %s", library[i], version ? version : "missing");
    }
    const json_t *cairo = json_object_get(json_object_get(v, "libraries"), "cairo");
    assert_int_equal(ku_picture_check("a.svg"), json_is_null(cairo) ? KUMI_EINVAL : KUMI_OK);
    assert_status(kumi_info_text(0, &text), KUMI_OK);
    static const char *const part[] = {"kumi        ", "\ntransports  shm ", " nccl ", " gloo ",
                                       " mpi ",        "\ndevices     cpu ", " hwloc "};
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++)
        if (strstr(text, part[i]) == NULL)
            fail_msg("\"%s\" is not in:\n%s", part[i], text);
    kumi_text_free(text);
    json_decref(v);
    with_faults(kumi_info_text(0, &text));
    kumi_text_free(text);
}

/* A job of one rank; tests/cli/test_info_hosts.sh has several hosts. */
static void test_info_hosts(void **state)
{
    char *text = NULL;
    (void)state;
    assert_status(kumi_info_hosts(1, &text), KUMI_OK);
    json_t *v = take_json(text);
    assert_int_equal(int_at(v, "ranks"), 1);
    assert_int_equal(json_array_size(json_object_get(v, "hosts")), 1);
    assert_int_equal(json_array_size(json_object_get(v, "all_reduce")), 0);
    json_decref(v);
    text = NULL;
    with_faults(kumi_info_hosts(0, &text));
    assert_non_null(strstr(text, "job         1 rank on 1 host\n"));
    kumi_text_free(text);
    text = NULL;
    with_faults(kumi_info_hosts(1, &text));
    kumi_text_free(text);
}

/* Counts lines, and looks at each as JSON or for a word. */
struct lines {
    int n, n_found;
    const char *word; /* text; NULL: JSON */
};
static void see(void *ctx, const char *text)
{
    struct lines *l = ctx;
    l->n++;
    assert_null(strchr(text, '\n'));
    if (l->word) {
        l->n_found += strstr(text, l->word) != NULL;
        return;
    }
    json_t *row = json_loads(text, 0, NULL);
    l->n_found += json_is_string(json_object_get(row, "what"));
    json_decref(row);
}

enum { DAY = 1767571200 }; /* 2026-01-05 */

static int bench(const char *what, int threads, int as_json, struct lines *l)
{
    const struct kumi_bench_options b = {
        .what = what, .threads = threads, .as_json = as_json, .line = see, .ctx = l};
    return kumi_bench(&b);
}

static void test_bench(void **state)
{
    struct lines l = {0};
    double one, four, bf16;
    struct ku_bench_out out = {.line = see, .ctx = &l, .as_json = 1};
    (void)state;
    assert_status(ku_bench_peak_quick_run(&out, 1), KUMI_OK);
    assert_int_equal(l.n, 2); /* the matrix peaks, which are not stored: */
    assert_error(ku_peak_read("f32", 1, &one), KUMI_EINPUT, "run `kumi bench peak`");
    l = (struct lines){0};
    assert_status(bench("peak", 1, 1, &l), KUMI_OK);
    assert_int_equal(l.n_found, l.n);
    assert_true(l.n >= 9 + 2); /* the limits, and at least one kernel for each dtype */
    assert_status(ku_peak_read("f32", 1, &one), KUMI_OK);
    assert_status(ku_peak_read("f32", 4, &four), KUMI_OK);
    assert_status(ku_peak_read("bf16", 1, &bf16), KUMI_OK);
    assert_true(one > 0 && bf16 > 0 && four == 4 * one); /* how large they are is not a test's */

    out.only = "layer_norm_dgb";
    l = (struct lines){0};
    assert_status(ku_bench_op_run(&out, 1), KUMI_OK);
    assert_int_equal(l.n, 2); /* f32 and bf16 */
    assert_int_equal(l.n_found, 2);
    out.only = NULL;
    out.bytes = 4096;
    for (out.as_json = 0; out.as_json < 2; out.as_json++) {
        l = (struct lines){.word = "all_reduce"};
        assert_status(ku_bench_comm_run(&out, 2), KUMI_OK);
        /* bookkeeping, barrier; two with programs and two dtypes, one with dtypes, six */
        assert_int_equal(l.n, (out.as_json ? 0 : 2) + 2 + 2 * 6 + 4 + 6 * 2);
        assert_int_equal(l.n_found, 6);
    }
    out.only = "gath";
    out.bytes = 12;
    l = (struct lines){.word = "gather"};
    assert_status(ku_bench_comm_run(&out, 3), KUMI_OK);
    assert_int_equal(l.n, 2);
    assert_int_equal(l.n_found, 2);
    out.only = "scatter_reduce";
    assert_error(ku_bench_comm_run(&out, 2), KUMI_EINVAL,
                 "no collective of this dtype has a name with this prefix");
    out = (struct ku_bench_out){.line = see, .ctx = &l, .bytes = 3};
    assert_error(ku_bench_comm_run(&out, 2), KUMI_EINVAL, "--bytes: 3; give a multiple of 4");
    char *text;
    struct kumi_settings set = {KUMI_SOURCE_DIR "/configs/no-such.json", NULL, 0};
    assert_int_equal(kumi_bench_data(&set, 1, &text) < 0, 1);
    assert_error(bench("speed", 0, 0, &l), KUMI_EINVAL, "bench: speed: unknown");
    const struct kumi_bench_options quick = {.what = "comm", .line = see, .ctx = &l, .is_quick = 1};
    assert_error(kumi_bench(&quick), KUMI_EINVAL, "comm: --quick applies to peak only");
    assert_error(bench("peak", -1, 0, &l), KUMI_EINVAL, "--threads: -1");
    assert_error(bench("comm", 513, 0, &l), KUMI_EINVAL, "--threads: 513");
}

/* A start beside other load shows less than the machine allows, for all its figures or for one:
 * limits are the best of all starts, and measured again until a second start confirms them. */
static void test_peak_starts(void **state)
{
    const struct files *f = *state;
    static const struct {
        int day;
        double f32, bf16, stream;   /* measured */
        double best_f32, best_bf16; /* kept */
        int confirmed_f32, is_due;  /* afterwards, on that day */
        const char *date;           /* when a best was reached */
    } row[] = {{0, 431e9, 202e9, 0, 431e9, 202e9, 0, 1, "2026-01-05"},
               {0, 200e9, 900e9, 0, 431e9, 900e9, 0, 1, "2026-01-05"},
               {1, 430e9, 500e9, 9e9, 431e9, 900e9, 1, 1, "2026-01-06"},
               {2, 100e9, 899e9, 0, 431e9, 900e9, 1, 0, "2026-01-06"},
               {3, 100e9, 100e9, 0, 431e9, 900e9, 1, 0, "2026-01-06"},
               {4, 433e9, 100e9, 8e9, 433e9, 900e9, 1, 0, "2026-01-09"}};
    enum { N = sizeof row / sizeof row[0] };
    struct ku_peak_kept kept;
    char path[128];
    snprintf(path, sizeof path, "%s/peak.json", f->folder);
    unlink(path);
    assert_int_equal(ku_peak_look(3, &kept), 0);
    assert_int_equal(ku_peak_is_due(3, DAY), 1);
    for (int i = 0; i < N; i++) {
        const time_t now = DAY + row[i].day * 86400;
        const struct ku_peak p = {.isa = ku_cpu_isa(),
                                  .n_threads = 3,
                                  .flops_f32 = row[i].f32,
                                  .flops_bf16 = row[i].bf16,
                                  .stream_bytes = row[i].stream};
        if (i > 0 && row[i].day > row[i - 1].day)
            assert_int_equal(ku_peak_is_due(3, now), 1);
        assert_status(ku_peak_write(&p, now), KUMI_OK);
        assert_int_equal(ku_peak_look(3, &kept), 1);
        assert_true(kept.figure[KU_PEAK_F32].best == row[i].best_f32);
        assert_true(kept.figure[KU_PEAK_BF16].best == row[i].best_bf16);
        assert_int_equal(kept.figure[KU_PEAK_F32].n_starts, i + 1);
        assert_int_equal(kept.figure[KU_PEAK_F32].is_confirmed, row[i].confirmed_f32);
        assert_int_equal(ku_peak_is_due(3, now), row[i].is_due);
        assert_string_equal(kept.date, row[i].date);
    }
    assert_int_equal(kept.figure[KU_PEAK_STREAM].n_starts, 2);
    assert_int_equal(kept.figure[KU_PEAK_STREAM].is_confirmed, 0);
    assert_int_equal(ku_peak_is_due(2, DAY), 1);
    /* values that never come near the maximum: eight starts, then one per day */
    for (int i = 0; i < KU_PEAK_STARTS; i++) {
        const struct ku_peak p = {.isa = ku_cpu_isa(), .n_threads = 5, .flops_f32 = 1e9 * (1 << i)};
        assert_int_equal(ku_peak_is_due(5, DAY), 1);
        assert_status(ku_peak_write(&p, DAY), KUMI_OK);
    }
    assert_int_equal(ku_peak_is_due(5, DAY), 0);
    assert_int_equal(ku_peak_is_due(5, DAY + 86400), 1);
    /* another machine of this CPU model; a row of an earlier version, which may be repeated */
    static const char others[] =
        "[{\"cpu\":\"%s\",\"machine\":\"another\",\"isa\":\"%s\",\"threads\":3,"
        "\"f32\":1e12},{\"cpu\":\"%s\",\"isa\":\"%s\",\"threads\":3,\"f32\":4e9}]";
    char text[512];
    int n = snprintf(text, sizeof text, others, ku_cpu_model(), ku_cpu_isa_name(ku_cpu_isa()),
                     ku_cpu_model(), ku_cpu_isa_name(ku_cpu_isa()));
    file_write(path, text, (size_t)n);
    assert_int_equal(ku_peak_look(3, &kept), 1);
    assert_true(kept.figure[KU_PEAK_F32].best == 4e9 && kept.figure[KU_PEAK_F32].n_starts == 1);
    assert_int_equal(ku_peak_is_due(3, DAY), 1);
    /* a spread tells a start that was disturbed in part */
    struct ku_peak p = {.f32 = {1, 9.5, 10}, .bf16 = {1, 10, 10}, .stream = {1, 9.1, 10}};
    assert_int_equal(ku_peak_is_disturbed(&p), 0);
    p.bf16.median = 8;
    assert_int_equal(ku_peak_is_disturbed(&p), 1);
}

/* Rows of other machines stay, one's own is replaced, a broken file is begun anew. */
static void test_peak_cache(void **state)
{
    const struct files *f = *state;
    char path[128];
    double flops;
    struct ku_peak p = {.isa = ku_cpu_isa(), .n_threads = 2, .flops_f32 = 2e9, .flops_bf16 = 4e9};
    static const char other[] =
        "[{\"cpu\":\"another\",\"isa\":\"avx2\",\"threads\":64,\"f32\":1e12,\"bf16\":1e12}, 7]";
    snprintf(path, sizeof path, "%s/peak.json", f->folder);
    file_write(path, "{", 1);
    assert_error(ku_peak_read("f32", 2, &flops), KUMI_EINPUT, path);
    file_write(path, other, sizeof other - 1);
    assert_error(ku_peak_read("f32", 64, &flops), KUMI_EINPUT, path);
    assert_status(ku_peak_write(&p, DAY), KUMI_OK);
    p.flops_f32 = 3e9;
    assert_status(ku_peak_write(&p, DAY), KUMI_OK);
    p.n_threads = 1;
    p.flops_f32 = 1e9;
    assert_status(ku_peak_write(&p, DAY), KUMI_OK);
    struct ku_json doc;
    assert_status(ku_json_load(path, 1 << 20, &doc), KUMI_OK);
    assert_int_equal(json_array_size(doc.root), 4);
    ku_json_fini(&doc);
    static const struct {
        const char *dtype;
        int cores;
        double flops;
    } row[] = {{"f32", 1, 1e9}, {"f32", 2, 3e9}, {"f32", 8, 12e9}, {"bf16", 2, 4e9}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        assert_status(ku_peak_read(row[i].dtype, row[i].cores, &flops), KUMI_OK);
        assert_true(flops == row[i].flops);
    }
    assert_error(ku_peak_read("f64", 1, &flops), KUMI_EINPUT, "f64");
    assert_int_equal(setenv("KUMI_CACHE", "/proc/nowhere", 1), 0);
    assert_error(ku_peak_write(&p, DAY), KUMI_ESTORAGE, "/proc/nowhere");
    assert_error(ku_peak_read("f32", 1, &flops), KUMI_EINPUT, "/proc/nowhere");
    assert_int_equal(setenv("KUMI_CACHE", f->folder, 1), 0);
    with_faults(ku_peak_write(&p, DAY));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),     cmocka_unit_test(test_data),
        cmocka_unit_test(test_tokenizer), cmocka_unit_test(test_ckpt),
        cmocka_unit_test(test_info),      cmocka_unit_test(test_info_hosts),
        cmocka_unit_test(test_bench),     cmocka_unit_test(test_peak_starts),
        cmocka_unit_test(test_peak_cache)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
