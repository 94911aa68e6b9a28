/* SPDX-License-Identifier: Apache-2.0 */
/* links: pass nn ir op tensor base */
/*
 * A small network's text after every pass, against files; KUMI_UPDATE=1 writes them anew. Each text
 * is read back, verified and printed again.
 */
#define KUMI_NO_SOURCE /* texts that do not move with the lines of this file */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "nn/builder.h"
#include "pass/pass.h"
#include "pass/pipe/block_schedule.h"
#include "pass/pipe/layer_stages.h"
#include "program_equal.h"

/* Two blocks: what recomputation calls units. */
static struct ku_graph *blocks(int64_t n)
{
    struct kumi_graph *b;
    struct ku_graph *g;
    int64_t width = 8, hidden = 16;
    static const char *const name[2][3] = {{"h.0.ln", "h.0.up", "h.0.down"},
                                           {"h.1.ln", "h.1.up", "h.1.down"}};
    assert_int_equal(kumi_graph_create(&b), 0);
    kumi_value ids = kumi_input(b, "tokens", KUMI_I32, "n", &n),
               y = kumi_input(b, "targets", KUMI_I32, "n", &n);
    kumi_value table =
        kumi_param(b, "wte.weight", "vc", (int64_t[]){32, width}, &(struct kumi_init){.std = 0.1});
    kumi_value x = kumi_embedding(b, table, ids);
    for (int i = 0; i < 2; i++) {
        kumi_value z = kumi_layer_norm(b, x, name[i][0], 0);
        z = kumi_linear(b, z, name[i][1], &(struct kumi_linear){.out = "f", .out_count = &hidden});
        z = kumi_dropout(b, kumi_activate(b, z, i ? KUMI_RELU : KUMI_GELU_TANH), 0.25);
        z = kumi_linear(b, z, name[i][2], &(struct kumi_linear){.out = "c", .out_count = &width});
        x = kumi_add(b, x, z);
    }
    x = kumi_linear(b, x, "head", &(struct kumi_linear){.out_in = 1, .weight = table});
    assert_int_equal(kumi_loss_cross_entropy(b, x, y, -100), 0);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    return g;
}

static struct ku_graph *network(int64_t n)
{
    struct kumi_graph *b;
    struct ku_graph *g;
    int64_t hidden = 6, classes = 5;
    assert_int_equal(kumi_graph_create(&b), 0);
    kumi_value ids = kumi_input(b, "tokens", KUMI_I32, "n", &n),
               y = kumi_input(b, "targets", KUMI_I32, "n", &n);
    kumi_value table = kumi_param(b, "wte.weight", "vc", (int64_t[]){classes, 4},
                                  &(struct kumi_init){.std = 0.1, .pad_first = 4});
    kumi_value x = kumi_layer_norm(b, kumi_embedding(b, table, ids), "ln", 0);
    x = kumi_linear(b, x, "up", &(struct kumi_linear){.out = "f", .out_count = &hidden});
    x = kumi_dropout(b, kumi_activate(b, x, KUMI_GELU_TANH), 0.25);
    x = kumi_linear(b, x, "down",
                    &(struct kumi_linear){.out = "c", .out_count = (int64_t[]){4}, .no_bias = 1});
    x = kumi_linear(b, x, "head", &(struct kumi_linear){.out_in = 1, .weight = table});
    kumi_graph_metric(b, "logit", x, KUMI_METRIC_MAX);
    assert_int_equal(kumi_loss_cross_entropy(b, x, y, -100), 0);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    return g;
}

static struct ku_compile_opts options(int ranks, enum kumi_dtype compute)
{
    struct ku_compile_opts o = {.compute = compute,
                                .is_training = 1,
                                .optimizer = KU_OP_adamw,
                                .rule = ku_attrs_default,
                                .bucket_bytes = 1 << 20,
                                .first_bucket_bytes = 64,
                                .overlap = 1};
    for (int a = 0; a < KU_N_AXES; a++)
        o.mesh.extent[a] = 1;
    o.mesh.extent[KU_AX_LOCAL] = ranks;
    o.mesh.extent[KU_AX_VS] = 2;
    o.mesh.extent[KU_AX_MB] = 2;
    o.rule.lr = 1e-3;
    o.rule.weight_decay = 0.1;
    o.rule.schedule = KU_SCHED_STEP;
    o.rule.step_size = 2;
    o.rule.gamma = 0.5;
    o.rule.period = 10;
    return o;
}

static void compare(const char *name, const struct ku_str *text)
{
    char path[512];
    char *want = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/tests/golden/%s.txt", KUMI_SOURCE_DIR, name);
    if (getenv("KUMI_UPDATE")) {
        assert_int_equal(ku_os_replace(path, text->text, text->bytes), 0);
        return;
    }
    if (ku_os_slurp(path, 1 << 22, &want, &bytes) < 0)
        fail_msg("%s: missing; KUMI_UPDATE=1 writes it", path);
    if (bytes != text->bytes || memcmp(want, text->text, bytes) != 0) {
        size_t at = 0, line = 1;
        while (at < bytes && at < text->bytes && want[at] == text->text[at])
            line += want[at++] == '\n';
        fail_msg("%s:%zu: differs; KUMI_UPDATE=1 shows how in git diff", path, line);
    }
    ku_free(want);
}

static void check_round_trip(const char *name, const struct ku_program *p)
{
    struct ku_program *again;
    const char *what = program_round_trip(p, &again);
    if (what)
        fail_msg("%s: %s", name, what);
    ku_program_destroy(again);
}

/* Text is a fixed point of parse and print, and what is read verifies. A copy has the same text. */
static void read_back(const char *name, const struct ku_str *text)
{
    struct ku_graph *again, *copy;
    struct ku_str second = {0}, third = {0}, of_copy = {0};
    if (ku_graph_parse(name, text->text, text->bytes, &again) < 0)
        fail_msg("%s: %s", name, ku_err_get()->text);
    assert_int_equal(ku_graph_verify(again), 0);
    assert_int_equal(ku_graph_print(again, &second), 0);
    assert_int_equal(ku_graph_copy(again, &copy), 0);
    ku_graph_destroy(again);
    assert_int_equal(ku_graph_verify(copy), 0);
    assert_int_equal(ku_graph_print(copy, &of_copy), 0);
    assert_string_equal(second.text, of_copy.text);
    ku_graph_destroy(copy);
    ku_str_fini(&of_copy);
    assert_int_equal(ku_graph_parse(name, second.text, second.bytes, &again), 0);
    assert_int_equal(ku_graph_print(again, &third), 0);
    assert_string_equal(second.text, third.text);
    ku_graph_destroy(again);
    ku_str_fini(&second);
    ku_str_fini(&third);
}

static void after_each_pass(void **state)
{
    (void)state;
    for (const char *const *pass = ku_pass_names(); *pass; pass++) {
        struct ku_graph *g = network(24);
        struct ku_compile_opts o = options(2, KUMI_BF16);
        struct ku_str text = {0};
        char name[64];
        if (ku_compile_graph(g, &o, NULL, *pass) < 0)
            fail_msg("%s: %s", *pass, ku_err_get()->text);
        assert_int_equal(ku_graph_print(g, &text), 0);
        snprintf(name, sizeof name, "after_%s", *pass);
        compare(name, &text);
        read_back(name, &text);
        ku_str_fini(&text);
        ku_graph_destroy(g);
    }
}

/* The two phases of LARS and LAMB, around one sum over the ranks; biases are not adapted. */
static void layerwise(void **state)
{
    static const int optimizer[] = {KU_OP_lars, KU_OP_lamb};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct ku_graph *g = network(24);
        struct ku_compile_opts o = options(2, KUMI_BF16);
        struct ku_str text = {0};
        o.optimizer = optimizer[i];
        o.rule.momentum = 0.9;
        assert_int_equal(ku_compile_graph(g, &o, NULL, NULL), 0);
        assert_int_equal(ku_graph_print(g, &text), 0);
        compare(ku_ops[optimizer[i]].name, &text);
        read_back(ku_ops[optimizer[i]].name, &text);
        ku_str_fini(&text);
        ku_graph_destroy(g);
    }
}

static void compare_graph(const char *name, const struct ku_compile_opts *o, const char *pass)
{
    struct ku_graph *g = network(24);
    struct ku_str text = {0};
    if (ku_compile_graph(g, o, NULL, pass) < 0)
        fail_msg("%s: %s", name, ku_err_get()->text);
    assert_int_equal(ku_graph_print(g, &text), 0);
    compare(name, &text);
    read_back(name, &text);
    ku_str_fini(&text);
    ku_graph_destroy(g);
}

/* A loss scaler, which backward starts from and the report moves, and clipping by value. */
static void half(void **state)
{
    struct ku_compile_opts o = options(2, KUMI_F16);
    (void)state;
    o.rule.loss_scale = 65536;
    o.rule.clip_value = 0.5;
    compare_graph("half", &o, NULL);
}

/* The precision policy: casts at the edges of a module that stays f32; parameters without a master
 * with gradients of their dtype; reductions that round on the wire. */
static void precision_policy(void **state)
{
    static const char *const keep[] = {"down", NULL};
    struct ku_compile_opts kept = options(2, KUMI_BF16), narrow = kept, wire = kept;
    (void)state;
    kept.keep_f32 = keep;
    compare_graph("precision_keep_f32", &kept, "precision");
    narrow.grads = KUMI_BF16;
    narrow.no_master = narrow.stochastic_rounding = 1;
    compare_graph("precision_no_master", &narrow, NULL);
    wire.reduce = KUMI_F16;
    compare_graph("precision_reduce", &wire, NULL);
}

/* Rules of modules: casts where values enter and leave a module, a parameter without a master, a
 * gradient that travels in bf16, a compute copy in f16, a norm that reads f16. */
static void precision_modules(void **state)
{
    static const char *const up[] = {"up", NULL}, *const norm[] = {"ln", "nothing-else", NULL},
                             *const down[] = {"down", NULL}, *const table[] = {"wte", NULL};
    static struct ku_precision_rule rule[] = {
        {up, {KUMI_BF16, KUMI_BF16, KUMI_BF16, KUMI_F32, -1}, true},
        {norm, {-1, KUMI_F16, -1, -1, -1}, true},
        {down, {KUMI_F32, KUMI_F16, -1, -1, -1}, true},
        {table, {-1, -1, KUMI_F16, -1, -1}, true}};
    static const struct ku_precision_rules rules = {rule, 4};
    static const char *const known[] = {"ln", NULL};
    struct ku_compile_opts o = options(2, KUMI_F32);
    struct ku_graph *g = network(24);
    (void)state;
    o.modules = &rules;
    assert_int_equal(ku_compile_graph(g, &o, NULL, NULL), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text,
                           "precision.modules[1]: match: nothing-else: no module "
                           "has such a path; paths are like"));
    ku_graph_destroy(g);
    rule[1].match = known;
    compare_graph("precision_modules", &o, "precision");
    compare_graph("precision_modules_full", &o, NULL);
}

/* Sums in slices, before the ranks divide them: two layers of an MLP. */
static void slices(void **state)
{
    struct ku_compile_opts o = options(2, KUMI_BF16);
    (void)state;
    o.tp_exact = 2;
    compare_graph("slices", &o, "slices");
    o.mesh.extent[KU_AX_TP] = 2;
    compare_graph("slices_placed", &o, "placement");
}

/* Patterns that no module has, and a dtype that nothing computes in. */
static void precision_refused(void **state)
{
    static const char *const keep[] = {"h.*.attn", "*.norm", NULL};
    struct ku_compile_opts o = options(1, KUMI_BF16);
    struct ku_graph *g = network(24);
    (void)state;
    o.keep_f32 = keep;
    assert_int_equal(ku_compile_graph(g, &o, NULL, NULL), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "h.*.attn: no module path matches"));
    ku_graph_destroy(g);
    static const struct {
        const char *match[2];
        int dtype[KU_N_ROLES];
        const char *want;
    } row[] = {
        {{"dawn"},
         {-1, KUMI_F32, -1, -1, -1},
         "match: dawn: no module has such a path; the nearest is down"},
        {{"down"},
         {-1, -1, -1, -1, KUMI_BF16},
         "buffer: bf16 of \"down\": the modules that this rule is the first to match have no "
         "buffers"},
        {{"logit"},
         {-1, -1, KUMI_BF16, -1, -1},
         "reduce: bf16 of \"logit\": the modules that this rule is the first to match have no "
         "parameters"},
        {{"head"},
         {-1, KUMI_F16, -1, -1, -1},
         "wte.weight is read in bf16 by one module and in f16 by another"},
        {{"head"}, {-1, KUMI_F32, -1, -1, -1}, NULL},
        {{"wte"}, {KUMI_F16, KUMI_F16, -1, -1, -1}, NULL},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_precision_rule rule = {.match = row[i].match, .casts_inputs = true};
        const struct ku_precision_rules rules = {&rule, 1};
        memcpy(rule.dtype, row[i].dtype, sizeof rule.dtype);
        o = options(1, KUMI_BF16);
        o.modules = &rules;
        g = network(24);
        const int status = ku_compile_graph(g, &o, NULL, NULL);
        if (status != (row[i].want ? KUMI_EINVAL : KUMI_OK) ||
            (row[i].want && strstr(ku_err_get()->text, row[i].want) == NULL))
            fail_msg("rule %zu: %d: %s", i, status, ku_err_get()->text);
        ku_graph_destroy(g);
    }
    g = network(24);
    o = options(1, KUMI_I32);
    assert_int_equal(ku_compile_graph(g, &o, NULL, NULL), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "compute: i32"));
    ku_graph_destroy(g);
}

/* Of a policy: the text, and that nothing of a full block but what leaves it is kept. */
static void recomputation(void **state)
{
    static const char *const policy[] = {NULL, "selective", "full"};
    (void)state;
    for (int i = KU_RECOMPUTE_SELECTIVE; i < KU_N_RECOMPUTE; i++) {
        struct ku_graph *g = blocks(24);
        struct ku_compile_opts o = options(2, KUMI_BF16);
        struct ku_str text = {0};
        int n_again = 0;
        o.recompute = i;
        assert_int_equal(ku_compile_graph(g, &o, NULL, "recompute"), 0);
        for (ku_id n = 1; n < g->n_nodes; n++) {
            const struct ku_node *node = &g->node[n];
            int is_backward = node->phase == KU_PH_I || node->phase == KU_PH_W;
            n_again += is_backward && (node->op == KU_OP_layer_norm || node->op == KU_OP_linear ||
                                       node->op == KU_OP_act || node->op == KU_OP_dropout);
            for (int k = 0; is_backward && i == KU_RECOMPUTE_FULL && k < node->n_in; k++) {
                const struct ku_value *v = &g->value[ku_in(g, node, k)];
                const struct ku_node *def = &g->node[v->def];
                int is_inside = v->role == KU_TEMP && def->phase == KU_PH_F &&
                                strncmp(g->name[def->path], "h.", 2) == 0;
                assert_true(!is_inside || def->op == KU_OP_add);
            }
        }
        assert_true(n_again >=
                    6); /* 2 norms, an activation or two, dropouts, with full the products */
        assert_int_equal(ku_graph_print(g, &text), 0);
        compare(policy[i], &text);
        read_back(policy[i], &text);
        ku_str_fini(&text);
        ku_graph_destroy(g);
    }
}

/* The stages of ZeRO over ranks with memory of their own; "up" and "down" are units. */
static void deal(struct ku_compile_opts *o, int zero)
{
    static const char *const wrap[] = {"up", "down", NULL};
    o->zero = zero;
    o->wrap = wrap;
    o->prefetch = 1;
    o->mesh.extent[KU_AX_SHARD] = o->mesh.extent[KU_AX_LOCAL];
    o->mesh.extent[KU_AX_LOCAL] = 1;
}

static void programs(void **state)
{
    static const struct {
        int ranks, zero, replicate;
        enum kumi_dtype compute;
        const char *name;
        enum kumi_dtype reduce;
        int no_master, by_micro, group;
    } row[] = {{1, 0, 1, KUMI_F32, "program_1", KUMI_F32, 0, 0, 0},
               {2, 0, 1, KUMI_F32, "program_2", KUMI_F32, 0, 0, 0},
               {2, 0, 1, KUMI_F32, "program_micro", KUMI_F32, 0, 1, 0},
               {2, 1, 1, KUMI_BF16, "program_zero_1", KUMI_F32, 0, 0, 0},
               {4, 2, 2, KUMI_F32, "program_zero_2_hybrid", KUMI_F32, 0, 0, 0},
               {4, 2, 2, KUMI_F32, "program_zero_2_hybrid_micro", KUMI_F32, 0, 1, 0},
               {2, 3, 1, KUMI_BF16, "program_zero_3", KUMI_F32, 0, 0, 0},
               {4, 3, 1, KUMI_BF16, "program_zero_3_group", KUMI_F32, 0, 0, 2},
               {4, 2, 2, KUMI_BF16, "program_no_master", KUMI_BF16, 1, 0, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_graph *g = network(12 * row[i].ranks);
        struct ku_compile_opts o = options(row[i].ranks, row[i].compute);
        struct ku_program *p;
        struct ku_str text = {0};
        if (row[i].zero)
            deal(&o, row[i].zero);
        o.reduce = row[i].reduce;
        o.no_master = row[i].no_master;
        o.mesh.extent[KU_AX_SHARD] /= row[i].replicate;
        o.mesh.extent[KU_AX_REPLICATE] *= row[i].replicate;
        o.mesh.mb_outer = row[i].by_micro;
        o.reshard_group = row[i].group;
        assert_int_equal(ku_compile_graph(g, &o, NULL, NULL), 0);
        assert_int_equal(ku_compile_program(g, "train", &o, NULL, &p), 0);
        assert_int_equal(ku_program_print(p, NULL, &text), 0);
        compare(row[i].name, &text);
        check_round_trip(row[i].name, p);
        ku_str_fini(&text);
        ku_program_destroy(p);
        ku_graph_destroy(g);
    }
}

/* A norm, a pair of layers and a tied table over sequences, which two ranks divide. */
static struct ku_graph *sequences(int64_t n)
{
    struct kumi_graph *b;
    struct ku_graph *g;
    int64_t hidden = 6, width = 4;
    const int64_t dims[] = {n, 6};
    assert_int_equal(kumi_graph_create(&b), 0);
    kumi_value ids = kumi_input(b, "tokens", KUMI_I32, "nt", dims),
               y = kumi_input(b, "targets", KUMI_I32, "nt", dims);
    kumi_value table =
        kumi_param(b, "wte.weight", "vc", (int64_t[]){8, width}, &(struct kumi_init){.std = 0.1});
    kumi_value x = kumi_embedding(b, table, ids), z = kumi_layer_norm(b, x, "ln", 0);
    z = kumi_linear(b, z, "up", &(struct kumi_linear){.out = "f", .out_count = &hidden});
    z = kumi_activate(b, z, KUMI_GELU_TANH);
    z = kumi_linear(b, z, "down", &(struct kumi_linear){.out = "c", .out_count = &width});
    x = kumi_add(b, x, kumi_dropout(b, z, 0.25));
    x = kumi_linear(b, x, "head", &(struct kumi_linear){.out_in = 1, .weight = table});
    assert_int_equal(kumi_loss_cross_entropy(b, x, y, -100), 0);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    return g;
}

static void sequence_parallel(void **state)
{
    struct ku_graph *g = sequences(2);
    struct ku_compile_opts o = options(1, KUMI_BF16);
    struct ku_program *p;
    struct ku_str text = {0};
    (void)state;
    o.mesh.extent[KU_AX_TP] = 2;
    o.mesh.extent[KU_AX_VS] = o.mesh.extent[KU_AX_MB] = 1;
    o.sequence = 1;
    assert_int_equal(ku_compile_graph(g, &o, NULL, NULL), 0);
    assert_int_equal(ku_compile_program(g, "train", &o, NULL, &p), 0);
    assert_int_equal(ku_program_print(p, NULL, &text), 0);
    compare("program_sequence", &text);
    check_round_trip("program_sequence", p);
    ku_str_fini(&text);
    ku_program_destroy(p);
    ku_graph_destroy(g);
}

/* The programs of both coordinates of a pipeline: sends, receives, and a table of both. */
static void pipeline(void **state)
{
    struct ku_graph *g = blocks(8);
    struct ku_compile_opts o = options(1, KUMI_F32);
    struct ku_pp_schedule *schedule;
    int layers[2];
    (void)state;
    o.mesh.extent[KU_AX_PP] = 2;
    o.mesh.extent[KU_AX_VS] = 1;
    assert_int_equal(ku_pp_schedule_create("1f1b", 2, 1, 2, &schedule), 0);
    assert_int_equal(ku_stages_balance(g, NULL, schedule->rank_of, schedule->n_stages, layers), 0);
    o.schedule = schedule;
    o.stage_layers = layers;
    assert_int_equal(ku_compile_graph(g, &o, NULL, NULL), 0);
    for (o.pp = 0; o.pp < 2; o.pp++) {
        const char *name = o.pp ? "program_pipeline_1" : "program_pipeline_0";
        struct ku_program *p;
        struct ku_str text = {0};
        assert_int_equal(ku_compile_program(g, "train", &o, NULL, &p), 0);
        assert_int_equal(ku_program_print(p, NULL, &text), 0);
        assert_non_null(strstr(text.text, " start send #"));
        assert_non_null(strstr(text.text, " start recv #"));
        compare(name, &text);
        check_round_trip(name, p);
        ku_str_fini(&text);
        ku_program_destroy(p);
    }
    ku_pp_schedule_destroy(schedule);
    ku_graph_destroy(g);
}

/* A table of three blocks, read twice: its update comes in pieces. */
static struct ku_graph *table_of_blocks(int64_t n)
{
    struct kumi_graph *b;
    struct ku_graph *g;
    int64_t hidden = 8;
    assert_int_equal(kumi_graph_create(&b), 0);
    kumi_value ids = kumi_input(b, "tokens", KUMI_I32, "n", &n),
               y = kumi_input(b, "targets", KUMI_I32, "n", &n);
    kumi_value table = kumi_param(b, "wte.weight", "vc", (int64_t[]){1100, hidden},
                                  &(struct kumi_init){.std = 0.1});
    kumi_value x = kumi_embedding(b, table, ids);
    x = kumi_linear(b, x, "up", &(struct kumi_linear){.out = "f", .out_count = &hidden});
    x = kumi_linear(b, x, "down", &(struct kumi_linear){.out = "c", .out_count = &hidden});
    x = kumi_linear(b, x, "head", &(struct kumi_linear){.out_in = 1, .weight = table});
    assert_int_equal(kumi_loss_cross_entropy(b, x, y, -100), 0);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    return g;
}

static const struct offloaded {
    int ranks, zero, optimizer, params, activations, buffer_count;
    enum kumi_dtype compute;
    const char *name;
} offloaded[] = {
    {1, 0, KU_OFFLOAD_FILE, KU_OFFLOAD_NONE, KU_OFFLOAD_NONE, 3, KUMI_F32, "offload_optimizer"},
    {2, 0, KU_OFFLOAD_HOST, KU_OFFLOAD_NONE, KU_OFFLOAD_NONE, 1, KUMI_BF16, "offload_shared"},
    {2, 3, KU_OFFLOAD_FILE, KU_OFFLOAD_HOST, KU_OFFLOAD_NONE, 2, KUMI_BF16, "offload_zero_3"},
    {1, 0, KU_OFFLOAD_NONE, KU_OFFLOAD_NONE, KU_OFFLOAD_FILE, 2, KUMI_F32, "offload_activations"}};

static struct ku_program *offload(const struct offloaded *r, struct ku_str *graph)
{
    struct ku_graph *g = table_of_blocks(4 * 4096);
    struct ku_compile_opts o = options(r->ranks, r->compute);
    struct ku_program *p;
    if (r->zero)
        deal(&o, r->zero);
    o.offload = (struct ku_offload){.optimizer = (uint8_t)r->optimizer,
                                    .params = (uint8_t)r->params,
                                    .activations = (uint8_t)r->activations,
                                    .ratio = 1,
                                    .buffer_count = r->buffer_count,
                                    .buffer_bytes = 3 * 16384};
    assert_int_equal(ku_compile_graph(g, &o, NULL, NULL), 0);
    assert_int_equal(ku_graph_print(g, graph), 0);
    assert_int_equal(ku_compile_program(g, "train", &o, NULL, &p), 0);
    ku_graph_destroy(g);
    return p;
}

/* Reads and writes among the instructions, and each window whole between its own. */
static void offloads(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof offloaded / sizeof offloaded[0]; i++) {
        struct ku_str graph = {0}, text = {0};
        struct ku_program *p = offload(&offloaded[i], &graph);
        int n_moves = 0;
        assert_int_equal(ku_program_print(p, NULL, &text), 0);
        compare(offloaded[i].name, &text);
        check_round_trip(offloaded[i].name, p);
        read_back(offloaded[i].name, &graph);
        for (uint32_t at = 0; at < p->n_instrs; at++) {
            const struct ku_instr *x = &p->instr[at];
            for (uint32_t k = 0; x->kind != KU_START && k < (uint32_t)x->n_in + x->n_out; k++)
                assert_false(
                    ku_arena_is_offload(p->buffer[p->operand[x->operand + k].buffer].arena));
            for (uint32_t k = 0;
                 x->kind == KU_START && ku_exchange_is_offload(x->op) && k < x->n_parts; k++) {
                const struct ku_operand *o = &p->operand[x->operand + k];
                assert_true(ku_arena_is_offload(p->buffer[o->buffer].arena));
                assert_int_equal(p->buffer[o->buffer].offset % KU_OFFLOAD_ALIGN_BYTES, 0);
                assert_int_equal(p->buffer[o->out].offset % KU_OFFLOAD_ALIGN_BYTES, 0);
                n_moves++;
            }
        }
        assert_true(n_moves > 0);
        ku_program_destroy(p);
        ku_str_fini(&graph);
        ku_str_fini(&text);
    }
}

/* No two buffers that live at one time share a byte, unless one was told to live in the other. */
static void check_buffers(const struct ku_program *p)
{
    int pairs = 0;
    for (ku_id a = 1; a < p->n_buffers; a++)
        for (ku_id b = a + 1; b < p->n_buffers; b++) {
            const struct ku_buffer *x = &p->buffer[a], *y = &p->buffer[b];
            if (x->arena != y->arena || x->home || y->home || x->first == UINT32_MAX ||
                y->first == UINT32_MAX)
                continue;
            int is_state = x->arena == KU_AR_HOST || x->arena == KU_AR_STATE ||
                           x->arena == KU_AR_SHARD || x->arena == KU_AR_INPUT ||
                           (ku_arena_is_offload(x->arena) && (x->micro < 0 || y->micro < 0));
            if (!is_state && (x->last < y->first || y->last < x->first))
                continue;
            pairs++;
            assert_true(x->offset + x->bytes <= y->offset || y->offset + y->bytes <= x->offset);
        }
    assert_true(pairs > 100);
}

static void check_plan(int zero, int by_micro)
{
    struct ku_graph *g = network(24);
    struct ku_compile_opts o = options(2, KUMI_F32);
    struct ku_program *p;
    if (zero)
        deal(&o, zero);
    o.mesh.mb_outer = by_micro;
    assert_int_equal(ku_compile_graph(g, &o, NULL, NULL), 0);
    assert_int_equal(ku_compile_program(g, "train", &o, NULL, &p), 0);
    check_buffers(p);
    ku_program_destroy(p);
    ku_graph_destroy(g);
}

static void plans_do_not_overlap(void **state)
{
    (void)state;
    for (int zero = 0; zero <= 3; zero++)
        for (int by_micro = 0; by_micro < 2; by_micro++)
            check_plan(zero, by_micro);
    for (size_t i = 0; i < sizeof offloaded / sizeof offloaded[0]; i++) {
        struct ku_str graph = {0};
        struct ku_program *p = offload(&offloaded[i], &graph);
        check_buffers(p);
        ku_program_destroy(p);
        ku_str_fini(&graph);
    }
}

static void frozen_and_unused(void **state)
{
    (void)state;
    static const char *const freeze[] = {"up.*", NULL};
    struct ku_graph *g = network(24);
    struct ku_compile_opts o = options(2, KUMI_F32);
    o.freeze = freeze;
    assert_int_equal(ku_compile_graph(g, &o, NULL, NULL), 0);
    for (ku_id t = 1; t < g->n_tensors; t++) {
        int is_frozen = strncmp(g->tensor[t].name, "up.", 3) == 0;
        if (g->tensor[t].kind == KU_T_PARAM)
            assert_int_equal(g->tensor[t].next == g->tensor[t].value, is_frozen);
        if (is_frozen)
            assert_null(strstr(g->tensor[t].name, "exp_avg"));
    }
    ku_graph_destroy(g);
}

/* What a broken text says. */
static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"kumi graph 2\n", "x:1: the text does not begin"},
        {"kumi graph 1\nfoo\n", "x:2: no such kind of line"},
        {"kumi graph 1\ninput %1 f33 [n=2] {} a\n", "x:2: no such dtype"},
        {"kumi graph 1\ninput %1 f32 [n=2 n=3] {} a\n", "two dimensions are named n"},
        {"kumi graph 1\ninput %1 f32 [n=2] {} a\ninput %1 f32 [n=2] {} b\n",
         "x:3: this value is defined twice"},
        {"kumi graph 1\ninput %1 f32 [n=2] {} a\n%2 f32 [n=2] {} = F act(%7) @\n",
         "x:3: this value is not defined above"},
        {"kumi graph 1\ninput %1 f32 [n=2] {} a\n%2 f32 [n=3] {} = F act(%1) act=relu @\n",
         "does not follow from its operands"},
        {"kumi graph 1\ninput %1 f32 [n=2] {} a\n%2 f32 [n=2] {} = F act(%1) act=swish @\n",
         "no such attribute or value"},
        {"kumi graph 1\ninput %1 f32 [n=2] {} a\n%2 f32 [n=2] {} = F act(%1) stage=x @\n",
         "stage=: a number from 1 to 32767"},
        {"kumi graph 1\ninput %1 f32 [n=2] {} a\n%2 f32 [n=2] {} = F act(%1) stage=32768 @\n",
         "stage=: a number from 1 to 32767"},
        {"kumi graph 1\ninput %1 f32 [n=2] {tp:S(q)} a\n", "the shape has no such dimension"},
        {"kumi graph 1\nmesh pp=0\n", "an extent must be 1 or more"},
        {"kumi graph 1\noutput a %0\n", "this value is not defined above"},
        {"kumi graph 1\nbucket  \n", "x:2: a bucket must name a value"},
        {"kumi graph 1\ninput %1 f32 [n=2] {} a\nbucket %1\n",
         "x:3: a bucket holds results of nodes"},
        {"kumi graph 1\nstate %1 f32 [n=2] {} w param rows=300 init=fill\n",
         "rows=: a number from 0 to"},
        {"kumi graph 1\nstate %1 f32 [n=2] {} w param block=-1 init=fill\n",
         "block=: a number from 0 to 2147483647"},
        {"kumi graph 1\nstate %1 f32 [n=2] {} w param init=fill stream=9x\n",
         "stream=: a number from 0 to 4294967295"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct ku_graph *g;
        assert_int_equal(ku_graph_parse("x", rows[i].text, strlen(rows[i].text), &g), KUMI_EINVAL);
        if (strstr(ku_err_get()->text, rows[i].says) == NULL)
            fail_msg("row %zu: %s", i, ku_err_get()->text);
    }
}

/* The pipeline stage of a node is part of the text. */
static void stages(void **state)
{
    struct ku_graph *g = network(24);
    struct ku_str text = {0};
    int n = 0;
    (void)state;
    for (ku_id id = 1; id < g->n_nodes; id++)
        g->node[id].stage = (int16_t)(id % 3);
    assert_int_equal(ku_graph_print(g, &text), 0);
    for (const char *at = text.text; (at = strstr(at, " stage=")) != NULL; at++)
        n++;
    assert_int_equal(n, g->n_nodes - 1 - (g->n_nodes - 1) / 3);
    read_back("stages", &text);
    struct ku_graph *again;
    assert_int_equal(ku_graph_parse("stages", text.text, text.bytes, &again), 0);
    for (ku_id id = 1; id < g->n_nodes; id++)
        assert_int_equal(again->node[id].stage, g->node[id].stage);
    ku_graph_destroy(again);
    ku_graph_destroy(g);
    ku_str_fini(&text);
}

/* The whole program is hashed, field by field. */
#define CHANGES(field)                                                                             \
    do {                                                                                           \
        (field)++;                                                                                 \
        assert_true(ku_program_hash(p) != hash);                                                   \
        (field)--;                                                                                 \
        assert_true(ku_program_hash(p) == hash);                                                   \
    } while (0)
static void check_hash_of_tables(struct ku_program *p)
{
    const uint64_t hash = ku_program_hash(p);
    for (uint32_t s = 0; s < p->n_states; s++) {
        CHANGES(p->state[s].offset);
        CHANGES(p->state[s].kind);
        CHANGES(p->state[s].of);
        CHANGES(p->state[s].first_block);
        CHANGES(p->state[s].is_kept);
        CHANGES(p->name_of[p->state[s].name][0]);
    }
    for (uint32_t k = 0; k < p->n_inputs; k++)
        CHANGES(p->input[k].dtype);
    for (uint32_t k = 0; k < p->n_outputs; k++)
        CHANGES(p->name_of[p->output[k].name][0]);
    CHANGES(p->mesh.extent[KU_AX_REPLICATE]);
    for (int a = 0; a < KU_N_ARENAS; a++)
        CHANGES(p->arena_bytes[a]);
}
static void check_hash(struct ku_program *p, int *n_added, int *n_out, int *n_stats)
{
    const uint64_t hash = ku_program_hash(p);
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        struct ku_instr *i = &p->instr[at];
        CHANGES(i->phase);
        CHANGES(i->stage);
        CHANGES(i->micro);
        CHANGES(i->op);
        CHANGES(i->accumulate);
        CHANGES(i->stream);
        CHANGES(i->workspace);
        CHANGES(i->handle);
        CHANGES(i->axes);
        CHANGES(i->reduce);
        CHANGES(i->group);
        CHANGES(i->peer);
        CHANGES(i->wire);
        if (i->attr) {
            CHANGES(p->attr[i->attr].p);
            CHANGES(p->attr[i->attr].slices);
        }
        for (uint32_t k = 0; k < i->n_in + i->n_out + i->n_parts; k++) {
            struct ku_operand *x = &p->operand[i->operand + k];
            CHANGES(x->stats_word);
            CHANGES(x->first_block);
            CHANGES(x->slot);
            CHANGES(x->piece);
            CHANGES(x->piece_count);
            CHANGES(x->dtype);
            if (p->shape[x->shape].ndim)
                CHANGES(p->shape[x->shape].dim[0].count);
            CHANGES(p->layout[x->layout].at[KU_AX_SHARD].kind);
            CHANGES(p->layout[x->layout].at[KU_AX_TP].dim);
            CHANGES(p->buffer[x->buffer].is_kept);
            CHANGES(p->buffer[x->buffer].offset);
            CHANGES(p->buffer[x->buffer].arena);
            if (x->addend)
                CHANGES(p->buffer[x->addend].offset);
            if (x->out)
                CHANGES(p->buffer[x->out].offset);
            *n_added += x->addend != 0, *n_out += x->out != 0, *n_stats += x->stats_word != 0;
        }
    }
    check_hash_of_tables(p);
    /* the tables of a program that is read back have another order */
    struct ku_str text = {0};
    struct ku_program *again;
    assert_int_equal(ku_program_print(p, NULL, &text), 0);
    assert_int_equal(ku_program_parse("again", text.text, text.bytes, &again), 0);
    assert_true(ku_program_hash(again) == hash);
    ku_program_destroy(again);
    ku_str_fini(&text);
}
#undef CHANGES
static void hashes(void **state)
{
    int n_added = 0, n_out = 0, n_stats = 0;
    (void)state;
    for (int replicas = 1; replicas <= 2; replicas++) {
        struct ku_graph *g = network(48);
        struct ku_compile_opts o = options(4, KUMI_F32);
        struct ku_program *p;
        deal(&o, 2);
        o.mesh.extent[KU_AX_SHARD] /= replicas;
        o.mesh.extent[KU_AX_REPLICATE] *= replicas;
        o.mesh.mb_outer = 1;
        assert_int_equal(ku_compile_graph(g, &o, NULL, NULL), 0);
        assert_int_equal(ku_compile_program(g, "train", &o, NULL, &p), 0);
        check_hash(p, &n_added, &n_out, &n_stats);
        ku_program_destroy(p);
        ku_graph_destroy(g);
    }
    assert_true(n_added && n_out && n_stats);
}

/* With one data-parallel rank, a sum over tp gets its collective all the same. */
static void sum_over_tp(void **state)
{
    struct ku_graph *g = network(24);
    struct ku_compile_opts o = options(1, KUMI_F32);
    struct ku_program *p;
    int n_sums = 0;
    (void)state;
    assert_int_equal(ku_compile_graph(g, &o, NULL, NULL), 0);
    g->mesh.extent[KU_AX_TP] = 2;
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (g->node[n].op == KU_OP_convert) {
            struct ku_value *v = &g->value[ku_in(g, &g->node[n], 0)];
            struct ku_layout l = g->layout[v->layout];
            l.at[KU_AX_TP].kind = KU_P;
            v->layout = ku_graph_layout(g, &l);
            break;
        }
    assert_int_equal(ku_compile_program(g, "train", &o, NULL, &p), 0);
    for (uint32_t i = 0; i < p->n_instrs; i++)
        n_sums += p->instr[i].kind == KU_START && p->instr[i].op == KU_X_ALL_REDUCE &&
                  p->instr[i].axes == 1 << KU_AX_TP;
    assert_int_equal(n_sums, 1);
    ku_program_destroy(p);
    ku_graph_destroy(g);
}

/* A node keeps the line that built it, through calls inside of calls, text, gradients, update. */
static void source_lines(void **state)
{
    (void)state;
    struct kumi_graph *b;
    struct ku_graph *g, *again;
    struct ku_str text = {0};
    int64_t n = 8, wide = 4;
    const struct kumi_linear layer = {.out = "f", .out_count = &wide};
    int n_of[4] = {0};
    assert_int_equal(kumi_graph_create(&b), 0);
    kumi_value x = kumi_input(b, "x", KUMI_F32, "nc", (int64_t[]){n, 3});
    kumi_value y = kumi_input(b, "y", KUMI_I32, "n", &n);
    x = kumi_graph_built(
        b, "a/my net.c", 2,
        kumi_activate(b, kumi_graph_built(b, "my net.c", 1, kumi_linear(b, x, "up", &layer)),
                      KUMI_RELU));
    assert_int_equal(kumi_graph_closed(b, "my net.c", 3, kumi_loss_cross_entropy(b, x, y, -100)),
                     0);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    assert_int_equal(ku_graph_print(g, &text), 0);
    assert_non_null(strstr(text.text, " act=relu source=my_net.c:2 @"));
    assert_int_equal(ku_graph_parse("text", text.text, text.bytes, &again), 0);
    ku_graph_destroy(g);
    struct ku_compile_opts o = options(1, KUMI_F32);
    assert_int_equal(ku_compile_graph(again, &o, NULL, "update"), 0);
    for (ku_id i = 1; i < again->n_nodes; i++) {
        const struct ku_node *node = &again->node[i];
        const char *line = node->source ? again->name[node->source] : "my_net.c:0";
        assert_memory_equal(line, "my_net.c:", 9);
        n_of[line[9] - '0']++;
        if (node->op == KU_OP_linear || node->op == KU_OP_linear_dw || node->op == KU_OP_adamw)
            assert_string_equal(line, "my_net.c:1");
        if (node->op == KU_OP_act || node->op == KU_OP_act_dx)
            assert_string_equal(line, "my_net.c:2");
        if (node->op == KU_OP_softmax_xent || node->op == KU_OP_softmax_xent_dx)
            assert_string_equal(line, "my_net.c:3");
    }
    assert_true(n_of[1] >= 7 && n_of[2] == 2 && n_of[3] >= 4);
    ku_graph_destroy(again);
    ku_str_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(after_each_pass),
                                       cmocka_unit_test(layerwise),
                                       cmocka_unit_test(precision_policy),
                                       cmocka_unit_test(precision_modules),
                                       cmocka_unit_test(slices),
                                       cmocka_unit_test(precision_refused),
                                       cmocka_unit_test(half),
                                       cmocka_unit_test(recomputation),
                                       cmocka_unit_test(programs),
                                       cmocka_unit_test(sequence_parallel),
                                       cmocka_unit_test(pipeline),
                                       cmocka_unit_test(offloads),
                                       cmocka_unit_test(plans_do_not_overlap),
                                       cmocka_unit_test(frozen_and_unused),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(stages),
                                       cmocka_unit_test(hashes),
                                       cmocka_unit_test(sum_over_tp),
                                       cmocka_unit_test(source_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
