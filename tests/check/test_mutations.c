/* SPDX-License-Identifier: Apache-2.0 */
/* links: check pass nn ir op tensor base */
/*
 * The check over programs of small networks in many parallel layouts. Every legal program is
 * accepted. Then seeded mutations of the programs, one edit each, by class: all must be refused.
 * The report by class is printed. KUMI_TEST_SEED=N sets the seed.
 */
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
#include "base/str.h"
#include "check/check.h"
#include "nn/builder.h"
#include "pass/pass.h"
#include "pass/precision_rules.h"

/* Two residual blocks with dropout and a tied table. */
static struct ku_graph *tied(int64_t n)
{
    struct kumi_graph *b;
    struct ku_graph *g;
    int64_t width = 8, hidden = 16;
    static const char *const name[2][3] = {{"h.0.ln", "h.0.up", "h.0.down"},
                                           {"h.1.ln", "h.1.up", "h.1.down"}};
    assert_int_equal(kumi_graph_create(&b), 0);
    kumi_value ids = kumi_input(b, "tokens", KUMI_I32, "n", &n),
               y = kumi_input(b, "targets", KUMI_I32, "n", &n);
    kumi_value table = kumi_param(b, "wte.weight", "vc", (int64_t[]){1100, width},
                                  &(struct kumi_init){.std = 0.1});
    kumi_value x = kumi_embedding(b, table, ids);
    for (int i = 0; i < 2; i++) {
        kumi_value z = kumi_layer_norm(b, x, name[i][0], 0);
        z = kumi_linear(b, z, name[i][1], &(struct kumi_linear){.out = "f", .out_count = &hidden});
        z = kumi_dropout(b, kumi_activate(b, z, i ? KUMI_RELU : KUMI_GELU_TANH), 0.25);
        z = kumi_linear(b, z, name[i][2], &(struct kumi_linear){.out = "c", .out_count = &width});
        x = kumi_add(b, x, z);
    }
    x = kumi_linear(b, x, "head", &(struct kumi_linear){.out_in = 1, .weight = table});
    kumi_graph_metric(b, "logit", x, KUMI_METRIC_MAX);
    assert_int_equal(kumi_loss_cross_entropy(b, x, y, -100), 0);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    return g;
}

/* A plain network without tied weights. */
static struct ku_graph *mlp(int64_t n)
{
    struct kumi_graph *b;
    struct ku_graph *g;
    assert_int_equal(kumi_graph_create(&b), 0);
    kumi_value x = kumi_input(b, "x", KUMI_F32, "nc", (int64_t[]){n, 8}),
               y = kumi_input(b, "targets", KUMI_I32, "n", &n);
    int64_t hidden = 1024, classes = 5;
    x = kumi_linear(b, x, "up", &(struct kumi_linear){.out = "f", .out_count = &hidden});
    x = kumi_activate(b, x, KUMI_RELU);
    x = kumi_linear(b, x, "down", &(struct kumi_linear){.out = "v", .out_count = &classes});
    assert_int_equal(kumi_loss_cross_entropy(b, x, y, -100), 0);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    return g;
}

struct layout {
    struct ku_graph *(*model)(int64_t n);
    int ranks, zero, replicate, mb, vs, by_micro, recompute, group, is_private;
    enum kumi_dtype compute, reduce;
    int no_master, optimizer, offload, overlap, clip_value;
};

struct job {
    struct ku_graph *model, *graph;
    struct ku_program *p;
    struct ku_compile_opts o;
    struct ku_check_opts check;
    signed char wire[256];
};

static int make(const struct layout *l, struct job *j)
{
    static const char *const wrap[] = {"h.*", "up", "down", NULL};
    struct ku_compile_opts o = {.compute = l->compute,
                                .reduce = l->reduce,
                                .is_training = 1,
                                .no_master = l->no_master,
                                .optimizer = l->optimizer ? l->optimizer : KU_OP_adamw,
                                .rule = ku_attrs_default,
                                .bucket_bytes = 4096,
                                .first_bucket_bytes = 64,
                                .overlap = l->overlap,
                                .zero = l->zero,
                                .prefetch = 1,
                                .recompute = l->recompute,
                                .reshard_group = l->group};
    *j = (struct job){0};
    if (l->zero == 3)
        o.wrap = wrap;
    for (int a = 0; a < KU_N_AXES; a++)
        o.mesh.extent[a] = 1;
    o.mesh.extent[KU_AX_VS] = l->vs;
    o.mesh.extent[KU_AX_MB] = l->mb;
    o.mesh.mb_outer = l->by_micro;
    if (l->zero) {
        o.mesh.extent[KU_AX_REPLICATE] = l->replicate;
        o.mesh.extent[KU_AX_SHARD] = l->ranks / l->replicate;
    } else if (l->is_private) {
        o.mesh.extent[KU_AX_REPLICATE] = l->ranks;
    } else {
        o.mesh.extent[KU_AX_LOCAL] = l->ranks;
    }
    o.rule.lr = 1e-3;
    o.rule.clip = 1;
    o.rule.clip_value = l->clip_value;
    o.rule.ema = l->clip_value ? 0.9 : 0;
    if (l->compute == KUMI_F16)
        o.rule.loss_scale = 1024;
    if (l->offload)
        o.offload = (struct ku_offload){
            .optimizer = KU_TIER_FILE, .ratio = 1, .buffer_count = 2, .buffer_bytes = 3 * 16384};
    j->o = o;
    j->graph = l->model(24 * l->ranks * l->vs * l->mb);
    assert_int_equal(ku_graph_copy(j->graph, &j->model), 0);
    assert_int_equal(ku_compile_graph(j->model, &o, NULL, "precision"), 0);
    assert_true(j->model->n_tensors < sizeof j->wire);
    for (ku_id t = 1; t < j->model->n_tensors; t++)
        j->wire[t] = (signed char)ku_precision_wire(j->model, &o, t);
    j->check = (struct ku_check_opts){
        .is_training = 1, .compute = o.compute, .grads = o.grads, .wire = j->wire};
    int status = ku_compile_graph(j->graph, &o, NULL, NULL);
    return status ? status : ku_compile_program(j->graph, "train", &o, NULL, &j->p);
}

static void drop(struct job *j)
{
    ku_program_destroy(j->p);
    ku_graph_destroy(j->graph);
    ku_graph_destroy(j->model);
}

static struct layout random_layout(uint64_t *seed)
{
    static const int ranks[] = {1, 2, 4, 8},
                     rule[] = {KU_OP_adamw, KU_OP_sgd, KU_OP_lamb, KU_OP_lars};
    static const enum kumi_dtype types[] = {KUMI_F32, KUMI_BF16, KUMI_F16};
#define DRAW(n) ((int)((*seed = *seed * 6364136223846793005u + 1442695040888963407u) >> 40) % (n))
    struct layout l = {.model = DRAW(3) ? tied : mlp, .ranks = ranks[DRAW(4)]};
    l.zero = l.ranks > 1 ? DRAW(4) : 0;
    l.replicate = l.zero && l.ranks > 2 && DRAW(2) ? 2 : 1;
    l.mb = 1 + DRAW(4), l.vs = 1 << DRAW(3);
    l.by_micro = DRAW(3) == 0;
    l.recompute = DRAW(3);
    l.is_private = DRAW(2);
    l.compute = types[DRAW(3)];
    l.reduce = DRAW(4) ? KUMI_F32 : KUMI_BF16;
    l.no_master = l.compute == KUMI_BF16 && DRAW(3) == 0;
    l.optimizer = rule[DRAW(4)];
    l.offload = DRAW(5) == 0;
    l.overlap = DRAW(4) != 0;
    l.clip_value = DRAW(4) == 0;
    l.group = l.zero == 3 && l.ranks / l.replicate >= 4 && DRAW(2) ? 2 : 0;
    return l;
}

static void show(const struct layout *l)
{
    fprintf(
        stderr,
        "  %s ranks %d zero %d replicate %d mb %d vs %d micro %d recompute %d private %d group %d "
        "compute %d reduce %d no_master %d %s offload %d overlap %d clip %d\n",
        l->model == tied ? "tied" : "mlp", l->ranks, l->zero, l->replicate, l->mb, l->vs,
        l->by_micro, l->recompute, l->is_private, l->group, l->compute, l->reduce, l->no_master,
        ku_ops[l->optimizer].name, l->offload, l->overlap, l->clip_value);
}

static void legal(void **state)
{
    uint64_t seed = 1;
    int n = 0, n_refused = 0;
    (void)state;
    for (int i = 0; i < 400; i++) {
        struct layout l = random_layout(&seed);
        struct ku_check_report r;
        struct job j;
        if (make(&l, &j) == 0) {
            n++;
            if (ku_check_program(j.model, &j.check, j.p, &r) < 0) {
                if (n_refused++ < 12) {
                    fprintf(stderr, "%s\n", ku_err_get()->text);
                    show(&l);
                    struct ku_str text = {0};
                    if (getenv("SHOW")) { ku_program_print(j.p, NULL, &text); fputs(ku_str_get(&text), stderr); exit(1); }
                }
            }
        }
        drop(&j);
    }
    fprintf(stderr, "legal programs %d, refused %d\n", n, n_refused);
    assert_true(n >= 100);
    assert_int_equal(n_refused, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(legal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
