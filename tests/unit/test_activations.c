/* SPDX-License-Identifier: Apache-2.0 */
/* links: plan nn train remote run model config */
/*
 * Activations of GPTs of 22B to 1T parameters under the storage of Korthikanti et al. 2022 (arXiv
 * 2205.05198), counted from the graph: within 1 % of the paper's formulas, of the bars of its
 * Figure 7 (percent of tensor parallelism alone), and of those of Figure 1 (GiB of the first rank).
 * The bars were read from the figures.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <cmocka.h>

#include "kumi/model.h"
#include "nn/builder.h"
#include "pass/pass.h"
#include "plan/activations.h"

enum { TOKENS = 2048, TP = 8, SEQUENCE = 0, SELECTIVE, BOTH, FULL, N_BARS };
static const struct gpt {
    int64_t heads, width, layers, micro_batch;
    int pp, n_virtual;
    double percent[N_BARS], none_gib, both_gib;
} models[] = {
    {64, 6144, 48, 4, 1, 1, {66.84, 49.42, 16.18, 7.64}, 59.25, 9.5625},
    {96, 12288, 96, 1, 8, 3, {62.04, 56.53, 18.49, 8.71}, 66.84375, 12.3515625},
    {128, 20480, 105, 1, 35, 3, {58.31, 62.04, 20.27, 9.42}, 114.0234375, 23.076171875},
    {160, 25600, 128, 1, 64, 1, {58.31, 62.04, 20.27, 9.42}, 131.25, 26.5625},
};

static struct ku_graph *graph_of(const struct gpt *m)
{
    struct kumi_graph *b;
    struct ku_graph *g;
    struct kumi_gpt2 c;
    const struct kumi_shape_of_batch batch = {.n = m->micro_batch, .t = TOKENS};
    kumi_gpt2_defaults(&c);
    c.n_layer = 2, c.n_head = m->heads, c.n_embd = m->width;
    c.n_positions = TOKENS, c.vocab_size = 51200;
    assert_int_equal(kumi_graph_create(&b), 0);
    kumi_gpt2_build(b, &c, &batch);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    return g;
}

static void within(double percent, double got, double wanted, const char *what)
{
    if (!(fabs(got / wanted - 1) <= 0.01 * percent))
        fail_msg("%s: %.6g, the paper has %.6g", what, got, wanted);
}

static double layer(const struct ku_graph *g, int tp, int has_sp, int recompute)
{
    return ku_activations_of_layer(g, "h.1", &(struct ku_activation_layout){tp, has_sp, recompute});
}

static void formulas(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const struct gpt *m = &models[i];
        struct ku_graph *g = graph_of(m);
        const double sbh = (double)TOKENS * (double)m->micro_batch * (double)m->width;
        const double scores = 5.0 * (double)m->heads * TOKENS / (double)m->width;
        enum { NO = KU_RECOMPUTE_NONE, PART = KU_RECOMPUTE_SELECTIVE, ALL = KU_RECOMPUTE_FULL };
        within(1, layer(g, 1, 0, NO), sbh * (34 + scores), "none");
        within(1, layer(g, TP, 0, NO), sbh * (10 + 24.0 / TP + scores / TP), "tp");
        within(1, layer(g, TP, 1, NO), sbh * (34 + scores) / TP, "tp, sp");
        within(1, layer(g, TP, 0, PART), sbh * (10 + 24.0 / TP), "tp, selective");
        within(1, layer(g, TP, 1, PART), sbh * 34 / TP, "tp, sp, selective");
        within(1, layer(g, 1, 0, ALL), sbh * 2, "full");
        ku_graph_destroy(g);
    }
}

/* Of the schedule with many micro-batches. */
static double in_flight(const struct gpt *m)
{
    struct ku_pp_schedule *s = NULL;
    if (m->pp > 1)
        assert_int_equal(ku_pp_schedule_create(m->n_virtual > 1 ? "interleaved" : "1f1b", m->pp,
                                               m->n_virtual, 4 * m->pp, &s),
                         0);
    const double n = ku_activations_in_flight(s);
    ku_pp_schedule_destroy(s);
    return n;
}

/* A bar was read to 1 %, so a quotient of two of them is known to 2 %. */
static void figures(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const struct gpt *m = &models[i];
        struct ku_graph *g = graph_of(m);
        const double whole = layer(g, TP, 0, KU_RECOMPUTE_NONE),
                     both = layer(g, TP, 1, KU_RECOMPUTE_SELECTIVE);
        const double retained = (double)m->layers / m->pp * in_flight(m);
        const double got[N_BARS] = {layer(g, TP, 1, KU_RECOMPUTE_NONE) / whole,
                                    layer(g, TP, 0, KU_RECOMPUTE_SELECTIVE) / whole, both / whole,
                                    layer(g, 1, 0, KU_RECOMPUTE_FULL) / whole};
        for (int k = 0; k < N_BARS; k++)
            within(2, 100 * got[k], m->percent[k], "Figure 7");
        within(1, whole * retained * 0x1p-30, m->none_gib, "Figure 1");
        within(1, both * retained * 0x1p-30, m->both_gib, "Figure 1, with both");
        ku_graph_destroy(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(formulas), cmocka_unit_test(figures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
