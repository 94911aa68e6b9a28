/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
#include "test_commands.h"

#include <unistd.h>

#include "base/mem.h"
#include "base/os/os.h"
#include "comm/world.h"
#include "device/peak_bench.h"
#include "pass/pass.h"
#include "plan/memory_picture.h"
#include "plan/plan.h"
#include "sim/machine_limits.h"
#include "train/session.h"

static struct kumi_settings settings_of(const struct files *f, const char *const *set)
{
    struct kumi_settings s = {.config = f->config, .set = set};
    while (set && set[s.n_sets])
        s.n_sets++;
    return s;
}

enum { MAX_MAPPED = 4 };

/* What the plan says is what the ranks of a run map, arena by arena: those of the coordinate of
 * axis pp that maps the most. */
struct mapped {
    const struct kumi_settings *settings;
    size_t bytes[MAX_MAPPED][KU_N_ARENAS];
};
static int map(struct ku_job *job, void *arg)
{
    struct mapped *m = arg;
    struct ku_session s = {0};
    int status = ku_session_configure(&s, m->settings->config, m->settings->set,
                                      m->settings->n_sets, NULL, job->n);
    if (status == KUMI_OK)
        status = ku_session_create_trainer(&s, job);
    if (status == KUMI_OK)
        memcpy(m->bytes[job->rank], s.t->memory->bytes, sizeof m->bytes[0]);
    ku_session_fini(&s);
    return status;
}

static void check_mapped(const struct kumi_settings *s, int n)
{
    struct mapped m = {.settings = s};
    char *text = NULL, path[64];
    int64_t own = 0;
    assert_true(n <= MAX_MAPPED);
    assert_status(ku_comm_threads(n, NULL, map, &m), KUMI_OK);
    assert_status(kumi_plan_memory(s, n, 1, &text), KUMI_OK);
    json_t *plan = take_json(text);
    for (int a = 0; a < KU_N_ARENAS; a++) {
        size_t most = 0;
        for (int r = 0; r < n; r++)
            most = m.bytes[r][a] > most ? m.bytes[r][a] : most;
        snprintf(path, sizeof path, "arena_bytes.%s", ku_arena_name(a));
        assert_int_equal(int_at(plan, path), most);
        if (a != KU_AR_HOST && a != KU_AR_FILE)
            own += (int64_t)most;
    }
    const int64_t host = (int64_t)m.bytes[0][KU_AR_HOST] + n * own;
    assert_true(host > 0);
    assert_int_equal(int_at(plan, "ranks"), n);
    assert_int_equal(int_at(plan, "rank_bytes"), own);
    assert_int_equal(int_at(plan, "host_bytes"), host);
    json_decref(plan);
}

static void test_plan_is_what_is_mapped(void **state)
{
    static const struct {
        int from, to; /* ranks */
        const char *set[5];
    } row[] = {
        {1, 2, {NULL}},
        {1, 2, {"parallel.share_host_state=false"}},
        {1, 2, {"precision.compute=bf16", "train.virtual_shards=4"}},
        {1,
         2,
         {"precision={\"compute\":\"bf16\",\"master\":false,\"grads\":\"bf16\","
          "\"stochastic_rounding\":true}",
          "parallel.zero=2"}},
        {1, 2, {"parallel.share_host_state=false", "parallel.zero=1"}},
        {1, 2, {"parallel.share_host_state=false", "parallel.zero=3"}},
        {1, 2, {"memory.offload={\"optimizer\":\"host\"}"}},
        {1,
         2,
         {"memory.offload={\"optimizer\":\"file\",\"activations\":\"file\",\"params\":\"file\","
          "\"path\":\".\",\"buffer_size\":4096}",
          "parallel.share_host_state=false", "parallel.zero=3"}},
        {2, 2, {"parallel.tp=2"}},
        {2, 2, {"parallel.tp=2", "parallel.sp=true", "precision.compute=bf16"}},
        {4, 4, {"parallel.tp=2", "parallel.sp=true", "parallel.zero=2"}},
        {2, 2, {"parallel.pp=2", "train.micro_batch=2"}},
        {2, 2, {"parallel.pp=2", "train.micro_batch=2", "parallel.pp_schedule=zb-h2"}},
        {4, 4, {"parallel.pp=2", "train.micro_batch=2", "parallel.tp=2", "parallel.sp=true"}},
        {4, 4, {"parallel.pp=2", "train.micro_batch=2", "parallel.zero=3"}},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        for (int n = row[i].from; n <= row[i].to; n++) {
            const struct kumi_settings s = settings_of(*state, row[i].set);
            check_mapped(&s, n);
        }
}

/* Bytes of a rank: on one host, or two with as many ranks each. */
static double rank_bytes(const struct kumi_settings *s, int n_local, const char *hosts)
{
    char *text = NULL;
    assert_status(hosts ? kumi_plan_memory_hosts(s, hosts, NULL, 0, 1, &text)
                        : kumi_plan_memory(s, n_local, 1, &text),
                  KUMI_OK);
    json_t *plan = take_json(text);
    const double bytes = (double)int_at(plan, "host_bytes") / n_local;
    json_decref(plan);
    return bytes;
}

/* A budget between nothing recomputed and everything holds; one below the least says what that is.
 */
static void try_budgets(const struct kumi_settings *s, int n_local, const char *hosts, char set[96])
{
    static const char *const rule[] = {"none", "full", "selective"};
    double bytes[3], before = 0;
    for (int i = 0; i < 3; i++) {
        snprintf(set, 96, "memory.recompute=%s", rule[i]);
        bytes[i] = rank_bytes(s, n_local, hosts);
    }
    assert_true(bytes[1] < bytes[2] && bytes[2] < bytes[0]);
    for (double part = 0; part < 1.2; part += 0.25) {
        const double budget = bytes[1] + part * (bytes[0] - bytes[1]);
        snprintf(set, 96, "memory.recompute={\"budget_gib\":%.12g}", budget * 0x1p-30 + 1e-9);
        const double is = rank_bytes(s, n_local, hosts);
        if (is > budget + 2 || is < before || (part >= 1 && is != bytes[0]))
            fail_msg("%s: %.0f bytes, after %.0f", set, is, before);
        before = is;
    }
    snprintf(set, 96, "memory.recompute={\"budget_gib\":%.12g}", bytes[1] * 0x1p-31);
}

static void test_recompute_budget(void **state)
{
    char set[96], *text = NULL;
    const char *sets[] = {set, "train.global_batch=16", "train.micro_batch=4", "data.workers=1",
                          NULL};
    struct kumi_settings s = settings_of(*state, sets);
    try_budgets(&s, 2, "a:2,b:2", set);
    try_budgets(&s, 1, NULL, set);
    assert_int_equal(kumi_plan_memory(&s, 1, 1, &text), KUMI_ENOMEM);
    assert_non_null(strstr(ku_err_get()->text, "with all layers recomputed a rank needs"));
    /* in a pipeline the coordinate that needs the most, here the last */
    const char *staged[] = {set,
                            "model.n_layer=4",
                            "parallel.pp=2",
                            "parallel.stages=[1,3]",
                            "train.global_batch=16",
                            "train.micro_batch=4",
                            "data.workers=1",
                            NULL};
    s = settings_of(*state, staged);
    try_budgets(&s, 2, NULL, set);
}

/* Classes at the peak add up to it, the largest tensors come first, and settings that hold less
 * do. */
static void test_peak_and_advice(void **state)
{
    static const char *const set[] = {"parallel.share_host_state=false", "train.virtual_shards=4",
                                      NULL};
    struct kumi_settings s = settings_of(*state, set);
    char *text = NULL;
    size_t i, k;
    const char *name;
    json_t *program, *bytes, *row;
    assert_status(kumi_plan_memory(&s, 2, 1, &text), KUMI_OK);
    json_t *plan = take_json(text);
    assert_int_equal(json_array_size(json_object_get(plan, "programs")), 2);
    json_array_foreach(json_object_get(plan, "programs"), i, program)
    {
        int64_t sum = 0, last = INT64_MAX;
        json_object_foreach(json_object_get(program, "at_peak"), name, bytes) sum +=
            json_integer_value(bytes);
        assert_int_equal(sum, int_at(program, "peak_bytes"));
        assert_true(int_at(program, "peak_instruction") < int_at(program, "instructions"));
        assert_true(json_array_size(json_object_get(program, "largest")) > 3);
        json_array_foreach(json_object_get(program, "largest"), k, row)
        {
            assert_true(int_at(row, "bytes") <= last);
            last = int_at(row, "bytes");
        }
    }
    json_t *less = json_object_get(plan, "to_hold_less");
    assert_int_equal(json_array_size(less), 5); /* at 2 samples and tiny sizes bf16 adds copies */
    json_array_foreach(less, i, row)
    {
        const char *more[8] = {set[0], set[1]};
        const json_t *own = json_object_get(row, "set");
        assert_in_range(json_array_size(own), 1, 3);
        for (k = 0; k < json_array_size(own); k++)
            more[2 + k] = json_string_value(json_array_get(own, k));
        struct kumi_settings other = settings_of(*state, more);
        assert_status(kumi_plan_memory(&other, 2, 1, &text), KUMI_OK);
        json_t *smaller = take_json(text);
        assert_int_equal(int_at(smaller, "host_bytes"), int_at(row, "host_bytes"));
        assert_true(int_at(smaller, "host_bytes") < int_at(plan, "host_bytes"));
        json_decref(smaller);
    }
    json_decref(plan);
}

/* Alternatives that change training alone take the other programs' bytes from the plan. */
static void test_training_alternatives(void **state)
{
    static const char *const base[][4] = {
        {"model.n_layer=4", "model.n_positions=64"},
        {"model.n_layer=3", "parallel.zero=3", "parallel.share_host_state=false"},
        {"precision.compute=bf16", "memory.offload.params=host"},
        {"memory.offload.optimizer=host", "train.virtual_shards=4"}};
    static const char *const more[][3] = {
        {"memory.recompute=selective"},
        {"memory.recompute=full"},
        {"memory.offload.activations=file", "memory.offload.path=."}};
    for (int i = 0; i < 12; i++) {
        struct kumi_settings s = settings_of(*state, base[i / 3]);
        struct ku_plan p, part, all;
        assert_status(ku_plan_init(&p, &s, 2, NULL, NULL), KUMI_OK);
        assert_status(ku_plan_open(&part, &s, 2, more[i % 3]), KUMI_OK);
        assert_status(ku_plan_compile(&part, NULL, p.other_bytes), KUMI_OK);
        assert_status(ku_plan_init(&all, &s, 2, more[i % 3], NULL), KUMI_OK);
        assert_null(part.program[KU_PROG_EVAL]);
        assert_memory_equal(part.arena_bytes, all.arena_bytes, sizeof all.arena_bytes);
        assert_int_equal(part.host_bytes, all.host_bytes);
        ku_plan_fini(&part);
        ku_plan_fini(&all);
        ku_plan_fini(&p);
    }
}

static void test_plan_text(void **state)
{
    struct kumi_settings s = settings_of(*state, NULL);
    char *text = NULL;
    assert_status(kumi_plan_memory(&s, 2, 0, &text), KUMI_OK);
    static const char *const part[] = {"memory plan: 2 ranks on one host, cpu, f32\n",
                                       (" parameters; global batch 8 = 2 virtual shards x "
                                        "1 micro-batch of 4 samples, 8 tokens per sample\n"),
                                       "\nhost    host ",
                                       "\nthis host, ",
                                       "\ntrain: peak at instruction ",
                                       "\neval: peak at instruction ",
                                       "  optimizer ",
                                       "wte.weight",
                                       "  --set train.micro_batch=2 --set train.global_batch=8 "
                                       "--set train.accumulation=null "};
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++)
        if (strstr(text, part[i]) == NULL)
            fail_msg("\"%s\" is not in:\n%s", part[i], text);
    kumi_text_free(text);
}

/* T against a machine whose limits are known: by hand where that is easy, and as a sum. */
static void test_roofline(void **state)
{
    struct kumi_settings s = settings_of(*state, NULL);
    const struct ku_peak peak = {.isa = ku_cpu_isa(),
                                 .n_threads = 1,
                                 .flops_f32 = 1e9,
                                 .flops_bf16 = 2e9,
                                 .stream_bytes = 4e9};
    const int64_t weights = 2 * (16 * 48 + 16 * 16 + 2 * 16 * 64) + 16 * 256;
    char *text = NULL;
    size_t i;
    json_t *row;
    assert_status(ku_peak_write(&peak, 0), KUMI_OK);
    for (int n = 1; n <= 2; n++) {
        const char *set[] = {"train.threads=1", NULL};
        struct kumi_settings one = settings_of(*state, set);
        assert_status(kumi_plan_roofline(&one, n, 1, &text), KUMI_OK);
        json_t *plan = take_json(text);
        double sum = 0, cores = (double)int_at(plan, "limits.cores");
        json_array_foreach(json_object_get(plan, "ops"), i, row)
        {
            double ms = json_real_value(json_object_get(row, "least_ms")), flop_ms, byte_ms;
            flop_ms = json_real_value(json_object_get(row, "flops")) / (1e9 * cores / n) * 1e3;
            byte_ms = json_real_value(json_object_get(row, "bytes")) / (4e9 * cores / n) * 1e3;
            assert_true(ms >= flop_ms * 0.999999 && ms >= byte_ms * 0.999999);
            assert_true(ms <= (flop_ms + byte_ms) * 1.000001);
            sum += ms;
            if (strcmp(json_string_value(json_object_get(row, "op")), "linear") != 0)
                continue;
            assert_int_equal(int_at(row, "calls"), 9); /* four a layer, and the head */
            assert_true(json_real_value(json_object_get(row, "flops")) ==
                        2.0 * (double)weights * 64 / n); /* 64 tokens */
            assert_string_equal(json_string_value(json_object_get(row, "limit")), "peak");
        }
        double total = json_real_value(json_object_get(plan, "least_ms"));
        assert_true(sum > total * 0.999999 && sum < total * 1.000001);
        assert_true(json_real_value(json_object_get(plan, "tps")) * total / 64e3 < 1.000001);
        assert_true(json_real_value(json_object_get(plan, "tps")) * total / 64e3 > 0.999999);
        json_decref(plan);
    }
    assert_status(kumi_plan_roofline(&s, 2, 0, &text), KUMI_OK);
    assert_non_null(strstr(text, "roofline: 2 ranks on one host, cpu, f32; a step of 64 tokens\n"));
    assert_non_null(strstr(text, "\nT allows "));
    kumi_text_free(text);
    with_faults(kumi_plan_roofline(&s, 1, 1, &text));
    kumi_text_free(text);
}

/* Without a cache the limits are measured, and stay. */
static void test_roofline_measures(void **state)
{
    const struct files *f = *state;
    struct kumi_settings s = settings_of(f, NULL);
    char path[96], *text = NULL;
    snprintf(path, sizeof path, "%s/peak.json", f->folder);
    unlink(path);
    assert_status(kumi_plan_roofline(&s, 1, 1, &text), KUMI_OK);
    json_t *plan = take_json(text);
    assert_string_equal(json_string_value(ku_json_at(plan, "limits.source")), path);
    assert_true(json_real_value(ku_json_at(plan, "limits.flops.f32")) > 0);
    assert_int_equal(access(path, R_OK), 0);
    json_decref(plan);
}

static int count_of(const char *text, const char *part)
{
    int n = 0;
    while ((text = strstr(text, part)) != NULL) {
        text++;
        n++;
    }
    return n;
}

#define BACKGROUND_COLOUR "fill:rgb(96.078431%,96.078431%,96.078431%)"
#define OPTIMIZER_COLOUR  "fill:rgb(62.745098%,79.607843%,90.980392%)"

/* Constant state is one bar, a path for each class; endings decide the form. */
static void test_picture(void **state)
{
    static const struct {
        const char *ending, *begin;
    } row[] = {{"svg", "<?xml"}, {"png", "\x89PNG\r\n"}, {"pdf", "%PDF-"}};
    const struct files *f = *state;
    struct kumi_settings s = settings_of(f, NULL);
    char path[96];
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char *text;
        size_t bytes;
        snprintf(path, sizeof path, "%s/plan.%s", f->folder, row[i].ending);
        int status = kumi_plan_picture(&s, 1, path, KUMI_PLAN_INSTRUCTIONS);
        if (status == KUMI_EINVAL && strstr(kumi_last_error()->text, "libcairo2-dev"))
            skip();
        assert_status(status, KUMI_OK);
        assert_int_equal(ku_os_slurp(path, 1 << 24, &text, &bytes), 0);
        assert_memory_equal(text, row[i].begin, strlen(row[i].begin));
        if (i == 0) /* the bar's and the legend's, however many tensors there are */
            assert_int_equal(count_of(text, OPTIMIZER_COLOUR), 2);
        ku_free(text);
    }
    snprintf(path, sizeof path, "%s/none/plan.svg", f->folder);
    assert_error(kumi_plan_picture(&s, 1, path, KUMI_PLAN_INSTRUCTIONS), KUMI_ESTORAGE,
                 "none/plan.svg: No such file");
    snprintf(path, sizeof path, "%s/plan.svg", f->folder);
    with_faults(kumi_plan_picture(&s, 1, path, KUMI_PLAN_INSTRUCTIONS));
}

static char *slurp(const char *path, size_t *bytes)
{
    char *text;
    assert_int_equal(ku_os_slurp(path, 1 << 24, &text, bytes), 0);
    return text;
}

/*
 * The optimizer state of a coordinate of a pipeline is drawn within the frame of its arena; the
 * other box of that colour is in the legend, right of the panels.
 */
static void test_picture_of_a_coordinate(void **state)
{
    static const char *const set[] = {"model.n_layer=4", "parallel.pp=2", "train.micro_batch=4",
                                      NULL};
    const struct files *f = *state;
    struct kumi_settings s = settings_of(f, set);
    char path[96];
    size_t bytes;
    int n_bars = 0;
    snprintf(path, sizeof path, "%s/plan.svg", f->folder);
    int status = kumi_plan_picture(&s, 2, path, KUMI_PLAN_INSTRUCTIONS);
    if (status == KUMI_EINVAL && strstr(kumi_last_error()->text, "libcairo2-dev"))
        skip();
    assert_status(status, KUMI_OK);
    char *text = slurp(path, &bytes);
    for (const char *at = text; (at = strstr(at, OPTIMIZER_COLOUR)) != NULL; at++) {
        double left, top, right;
        const char *points = strstr(at, " d=\"");
        assert_non_null(points);
        assert_int_equal(sscanf(points, " d=\"M %lf %lf L %lf ", &left, &top, &right), 3);
        if (left > KU_PANEL_RIGHT)
            continue;
        if (right > KU_PANEL_RIGHT + 0.01)
            fail_msg("the bar of optimizer state is drawn from %g to %g", left, right);
        n_bars++;
    }
    assert_int_equal(n_bars, 1);
    ku_free(text);
}

/* The step's memory has a panel, with its background and axes, however small a part it is. */
static void test_picture_of_frozen(void **state)
{
    static const char *const set[] = {"model.n_layer=4",
                                      "model.n_embd=16384",
                                      "model.n_head=128",
                                      "train.global_batch=1",
                                      "train.freeze=[\"wte*\", \"wpe*\", \"h.*\"]",
                                      NULL};
    const struct files *f = *state;
    struct kumi_settings s = settings_of(f, set);
    char path[96], *text = NULL;
    size_t bytes;
    assert_status(kumi_plan_memory(&s, 1, 1, &text), KUMI_OK);
    json_t *plan = take_json(text);
    assert_true(int_at(plan, "arena_bytes.step") < int_at(plan, "rank_bytes") / 1000);
    json_decref(plan);
    snprintf(path, sizeof path, "%s/plan.svg", f->folder);
    int status = kumi_plan_picture(&s, 1, path, KUMI_PLAN_INSTRUCTIONS);
    if (status == KUMI_EINVAL && strstr(kumi_last_error()->text, "libcairo2-dev"))
        skip();
    assert_status(status, KUMI_OK);
    text = slurp(path, &bytes);
    assert_int_equal(count_of(text, BACKGROUND_COLOUR), 1);
    ku_free(text);
}

/* The picture does not grow with the layers: thin bars are merged. Time is another picture. */
static void test_picture_size(void **state)
{
    static const char *const deep[] = {"model.n_layer=12", "train.accumulation=8", NULL};
    const struct files *f = *state;
    struct kumi_settings small = settings_of(f, NULL), large = settings_of(f, deep);
    char path[96];
    size_t bytes[3];
    snprintf(path, sizeof path, "%s/plan.svg", f->folder);
    int status = kumi_plan_picture(&small, 1, path, KUMI_PLAN_INSTRUCTIONS);
    if (status == KUMI_EINVAL && strstr(kumi_last_error()->text, "libcairo2-dev"))
        skip();
    assert_status(status, KUMI_OK);
    char *instructions = slurp(path, &bytes[0]);
    assert_status(kumi_plan_picture(&small, 1, path, KUMI_PLAN_TIME), KUMI_OK);
    char *time = slurp(path, &bytes[1]);
    assert_int_not_equal(strcmp(instructions, time), 0);
    ku_free(time);
    ku_free(instructions);
    assert_status(kumi_plan_picture(&large, 1, path, KUMI_PLAN_INSTRUCTIONS), KUMI_OK);
    ku_free(slurp(path, &bytes[2]));
    assert_true(bytes[2] < 2 * bytes[0] && bytes[2] < 1000000);
    with_faults(kumi_plan_picture(&small, 1, path, KUMI_PLAN_TIME));
}

/* Each stage is the plan of those settings, and its kinds add up to it. */
static void test_stages(void **state)
{
    static const char *const own[] = {"parallel.share_host_state=false", "parallel.zero=0",
                                      "parallel.zero=1", "parallel.zero=2", "parallel.zero=3"};
    static const char *const compute[] = {"precision.compute=f32", "precision.compute=bf16",
                                          "precision.compute=bf16"};
    /* The user's own layout does not count. */
    static const char *const layout[][3] = {
        {NULL},
        {"parallel.share_host_state=false", "parallel.strategy=HYBRID_SHARD", "parallel.shard=2"},
        {"parallel.zero=2", "parallel.replicate=1"}};
    for (size_t k = 0; k < 3; k++) {
        const char *set[] = {compute[k], layout[k][0], layout[k][1], layout[k][2], NULL};
        struct kumi_settings s = settings_of(*state, set);
        char *text = NULL;
        const char *name;
        json_t *bytes;
        assert_status(
            kumi_plan_stages(&s, 2, &(struct kumi_plan_stages_options){.as_json = 1}, &text),
            KUMI_OK);
        json_t *stages = take_json(text);
        assert_int_equal(json_array_size(json_object_get(stages, "stages")), 5);
        for (size_t i = 0; i < 5; i++) {
            json_t *stage = json_array_get(json_object_get(stages, "stages"), i);
            const char *same[] = {compute[k], i < 4 ? own[0] : NULL, own[i + (i < 4)], NULL};
            struct kumi_settings alone = settings_of(*state, same);
            int64_t sum = 0;
            assert_status(kumi_plan_memory(&alone, 2, 1, &text), KUMI_OK);
            json_t *plan = take_json(text);
            assert_int_equal(int_at(stage, "host_bytes"), int_at(plan, "host_bytes"));
            assert_int_equal(int_at(stage, "page_table_bytes"), int_at(plan, "page_table_bytes"));
            json_object_foreach(json_object_get(stage, "a_rank"), name, bytes) sum +=
                json_integer_value(bytes);
            assert_int_equal(sum, int_at(stage, "rank_bytes"));
            assert_int_equal(int_at(stage, "rank_bytes"), int_at(stage, "host_bytes") / 2);
            assert_true((int_at(stage, "a_rank.master weights") > 0) == (k > 0));
            assert_true(int_at(stage, "a_rank.optimizer") > 0);
            json_decref(plan);
        }
        json_decref(stages);
    }
}

/*
 * A stage's bytes of state and of offloaded memory are those of the memory plan: state of other
 * coordinates of axis pp is not counted, bytes that activations use in turn are counted once.
 */
static void test_stages_and_memory(void **state)
{
    static const char *const row[][3] = {
        {"model.n_layer=4", "parallel.pp=2", "train.micro_batch=4"},
        {"train.accumulation=4", "memory.offload={\"activations\":\"host\"}", NULL},
        {"memory.offload={\"optimizer\":\"host\"}", NULL, NULL}};
    static const char *const kind[] = {"optimizer", "offloaded"};
    const struct kumi_plan_stages_options o = {.as_json = 1};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const struct kumi_settings s =
            settings_of(*state, (const char *[]){row[i][0], row[i][1], row[i][2], NULL});
        char *text = NULL, zero[32];
        const char *name;
        json_t *bytes;
        assert_status(kumi_plan_stages(&s, 2, &o, &text), KUMI_OK);
        json_t *stages = take_json(text);
        for (size_t k = 0; k < 4; k++) {
            json_t *stage = json_array_get(json_object_get(stages, "stages"), k);
            const char *set[] = {
                "parallel.share_host_state=false", zero, row[i][0], row[i][1], row[i][2], NULL};
            int64_t sum = 0;
            snprintf(zero, sizeof zero, "parallel.zero=%zu", k);
            assert_true(k > 0 || json_object_get(stage, "refused") == NULL);
            if (json_object_get(stage, "refused"))
                continue;
            struct kumi_settings alone = settings_of(*state, set);
            assert_status(kumi_plan_memory(&alone, 2, 1, &text), KUMI_OK);
            json_t *plan = take_json(text);
            json_t *peak = ku_json_at(plan, "programs[0].at_peak");
            json_t *a_rank = json_object_get(stage, "a_rank");
            for (size_t j = 0; j < 2; j++)
                assert_int_equal(int_at(a_rank, kind[j]), int_at(peak, kind[j]));
            json_object_foreach(a_rank, name, bytes) sum += json_integer_value(bytes);
            assert_int_equal(sum, int_at(stage, "rank_bytes"));
            json_decref(plan);
        }
        json_decref(stages);
    }
}

static void test_stages_picture(void **state)
{
    const struct files *f = *state;
    struct kumi_settings s = settings_of(f, NULL);
    char path[96], *text = NULL, *drawn;
    size_t bytes;
    snprintf(path, sizeof path, "%s/stages.svg", f->folder);
    struct kumi_plan_stages_options o = {.picture = path, .limit_bytes = 1000};
    int status = kumi_plan_stages(&s, 2, &o, &text);
    if (status == KUMI_EINVAL && strstr(kumi_last_error()->text, "libcairo2-dev"))
        skip();
    assert_error(status, KUMI_ENOMEM, "plan: --limit: no ZeRO stage fits in 1000 B per rank; ");
    assert_non_null(strstr(text, "unused at peak")); /* both are there all the same */
    kumi_text_free(text);
    assert_int_equal(ku_os_slurp(path, 1 << 24, &drawn, &bytes), 0);
    assert_int_equal(count_of(drawn, OPTIMIZER_COLOUR), 5 + 1);
    ku_free(drawn);
    o.limit_bytes = 0;
    with_faults(kumi_plan_stages(&s, 2, &o, &text));
    kumi_text_free(text);
    o.picture = "a.gif";
    text = NULL;
    assert_error(kumi_plan_stages(&s, 2, &o, &text), KUMI_EINVAL, "a.gif: give a name that ends");
    assert_null(text);
}

static void test_graph(void **state)
{
    struct kumi_settings s = settings_of(*state, NULL);
    const char *const *pass = ku_pass_names();
    char *text = NULL, *last = NULL;
    for (int i = 0; pass[i]; i++) {
        assert_status(kumi_graph_text(&s, 2, pass[i], 0, &text), KUMI_OK);
        assert_int_equal(strncmp(text, "kumi graph 1\n", 13), 0);
        if (strcmp(pass[i], "autodiff") == 0 || strcmp(pass[i], "bucket") == 0)
            assert_string_not_equal(text, last); /* f32 leaves precision nothing to do */
        kumi_text_free(last);
        last = text;
        assert_status(kumi_graph_text(&s, 2, pass[i], 1, &text), KUMI_OK);
        assert_int_equal(strncmp(text, "digraph", 7), 0);
        kumi_text_free(text);
    }
    kumi_text_free(last);
    assert_status(kumi_graph_text(&s, 2, NULL, 1, &text), KUMI_OK);
    assert_int_equal(strncmp(text, "digraph", 7), 0);
    kumi_text_free(text);
    assert_status(kumi_graph_text(&s, 2, "lower", 0, &text), KUMI_OK);
    assert_status(kumi_graph_text(&s, 2, NULL, 0, &last), KUMI_OK);
    assert_int_equal(strncmp(text, "kumi program 2 train\nmesh local=2", 33), 0);
    assert_non_null(strstr(text, "step+")); /* offsets */
    assert_string_equal(text, last);
    kumi_text_free(text);
    kumi_text_free(last);
}

/* The global batch of 8 is cut over two ranks; the first layers' samples begin at 0 and at 4. */
static void test_rank(void **state)
{
    struct kumi_settings s = settings_of(*state, NULL);
    char *text[2];
    for (int rank = 0; rank < 2; rank++)
        assert_status(kumi_program_text(&s, 2, rank, &text[rank]), KUMI_OK);
    assert_null(strstr(text[0], "](n=4)"));
    assert_non_null(strstr(text[1], "](n=4)"));
    assert_string_not_equal(text[0], text[1]);
    kumi_text_free(text[0]);
    kumi_text_free(text[1]);
    assert_error(kumi_program_text(&s, 2, 2, &text[0]), KUMI_EINVAL,
                 "--rank: 2; give a number from 0");
    assert_error(kumi_program_text(&s, 2, -1, &text[0]), KUMI_EINVAL, "--rank: -1; give a number");
    assert_error(kumi_program_text(&s, 0, 0, &text[0]), KUMI_EINVAL, "rank count: -n: 0");
}

static void test_config(void **state)
{
    static const char *const set[] = {"optimizer.lr=0.5", NULL};
    struct kumi_settings s = settings_of(*state, set);
    char *text = NULL;
    assert_status(kumi_config_text(&s, &text), KUMI_OK);
    json_t *v = take_json(text);
    assert_true(json_real_value(ku_json_at(v, "optimizer.lr")) == 0.5);
    assert_int_equal(int_at(v, "train.global_batch"), 8);
    assert_int_equal(int_at(v, "train.seed"), 1337); /* a default */
    assert_int_equal(int_at(v, "model.n_embd"), 16);
    json_decref(v);
    for (int as_markdown = 0; as_markdown < 2; as_markdown++) {
        text = kumi_config_help(as_markdown);
        assert_non_null(text);
        assert_non_null(strstr(text, "virtual_shards"));
        kumi_text_free(text);
    }
}

static void test_refuses(void **state)
{
    static const struct {
        int n;
        const char *set, *after, *part;
        int as_dot;
    } row[] = {
        {0, NULL, NULL, "rank count: -n: 0; give a number from 1 to 1048576", 0},
        {1048577, NULL, NULL, "rank count: -n: 1048577; ", 0},
        {16, NULL, NULL, "batch: ", 0},
        {2, "train.virtual_shards=3", NULL, "virtual_shards: 3 on 2 ranks", 0},
        {1, "parallel.replicate=2", NULL, "parallel.replicate", 0},
        {1, "train.sed=1", NULL, "did you mean seed?", 0},
        {1, NULL, "fusion", "graph: --after fusion: no such pass; one of build inference precision",
         0},
        {1, NULL, "lower", "a program has no Graphviz form", 1},
        {1, NULL, "", "no such pass", 0},
    };
    char *text = NULL;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const char *set[] = {row[i].set, NULL};
        struct kumi_settings s = settings_of(*state, set);
        assert_error(kumi_graph_text(&s, row[i].n, row[i].after, row[i].as_dot, &text), KUMI_EINVAL,
                     row[i].part);
        if (row[i].after == NULL)
            assert_error(kumi_plan_memory(&s, row[i].n, 0, &text), KUMI_EINVAL, row[i].part);
    }
    struct kumi_settings none = {0}, missing = {.config = "/nowhere/c.json"};
    assert_error(kumi_plan_memory(&none, 1, 0, &text), KUMI_EINVAL,
                 "config: no configuration file");
    assert_error(kumi_config_text(&none, &text), KUMI_EINVAL, "config: no configuration file");
    assert_error(kumi_plan_picture(&none, 1, "a.gif", KUMI_PLAN_TIME), KUMI_EINVAL,
                 "plan: --picture: a.gif: give a name that ends with .svg, .png or .pdf");
    assert_error(kumi_plan_picture(&none, 1, "svg", KUMI_PLAN_TIME), KUMI_EINVAL,
                 "plan: --picture: svg: give");
    assert_error(kumi_data_verify(&none, &text), KUMI_EINVAL, "config: no configuration file");
    assert_error(kumi_plan_memory(&missing, 1, 0, &text), KUMI_EINVAL, "/nowhere/c.json");
    assert_error(kumi_config_text(&missing, &text), KUMI_EINVAL, "/nowhere/c.json");
    assert_null(text); /* handed out on success only */
}

/* The programs of both coordinates of a pipeline, printed and checked. */
static void check_fails_allocations(const struct kumi_settings *pipeline, const struct files *f)
{
    char path[2][96], *text = NULL;
    for (int k = 0; k < 2; k++) {
        snprintf(path[k], sizeof path[k], "%s/%d", f->folder, k);
        with_faults(kumi_coordinate_text(pipeline, 2, "init", k, &text));
        file_write(path[k], text, strlen(text));
        kumi_text_free(text);
    }
    with_faults(
        kumi_check_programs(pipeline, 2, (const char *const[]){path[1], path[0]}, 2, &text));
    kumi_text_free(text);
}

static void test_faults(void **state)
{
    struct kumi_settings s = settings_of(*state, NULL);
    char *text = NULL;
    with_faults(kumi_plan_memory(&s, 2, 0, &text));
    kumi_text_free(text);
    with_faults(kumi_plan_memory(&s, 1, 1, &text));
    kumi_text_free(text);
    static const char *const piped[] = {"model.n_layer=4", "parallel.pp=2", "train.micro_batch=4",
                                        NULL};
    struct kumi_settings pipeline = settings_of(*state, piped);
    with_faults(kumi_plan_schedule(&pipeline, 2, NULL, KUMI_PLAN_JSON, 0, &text));
    kumi_text_free(text);
    with_faults(kumi_plan_schedule(&pipeline, 2, NULL, KUMI_PLAN_CSV, 1, &text));
    kumi_text_free(text);
    check_fails_allocations(&pipeline, *state);
    with_faults(kumi_graph_text(&s, 2, "zero", 0, &text));
    kumi_text_free(text);
    with_faults(kumi_graph_text(&s, 2, "lower", 0, &text));
    kumi_text_free(text);
    with_faults(kumi_config_text(&s, &text));
    kumi_text_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plan_is_what_is_mapped),
                                       cmocka_unit_test(test_peak_and_advice),
                                       cmocka_unit_test(test_training_alternatives),
                                       cmocka_unit_test(test_recompute_budget),
                                       cmocka_unit_test(test_plan_text),
                                       cmocka_unit_test(test_roofline),
                                       cmocka_unit_test(test_picture),
                                       cmocka_unit_test(test_picture_of_a_coordinate),
                                       cmocka_unit_test(test_picture_of_frozen),
                                       cmocka_unit_test(test_picture_size),
                                       cmocka_unit_test(test_stages),
                                       cmocka_unit_test(test_stages_and_memory),
                                       cmocka_unit_test(test_stages_picture),
                                       cmocka_unit_test(test_roofline_measures),
                                       cmocka_unit_test(test_graph),
                                       cmocka_unit_test(test_rank),
                                       cmocka_unit_test(test_config),
                                       cmocka_unit_test(test_refuses),
                                       cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
