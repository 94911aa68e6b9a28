/* SPDX-License-Identifier: Apache-2.0 */
/* Models that the generator of layouts.h does not have: all their programs are proved. */
#include "layouts.h"

static kumi_value tokens_of(struct kumi_graph *b, int64_t n, kumi_value *table, kumi_value *targets)
{
    const int64_t ids[] = {n / 8, 6};
    const kumi_value x = kumi_input(b, "tokens", KUMI_I32, "nt", ids);
    *targets = kumi_input(b, "targets", KUMI_I32, "nt", ids);
    *table = kumi_param(b, "wte.weight", "vc", (int64_t[]){40, 8}, &(struct kumi_init){.std = 0.1});
    return kumi_embedding(b, *table, x);
}

static struct ku_graph *finish(struct kumi_graph *b, kumi_value logits, kumi_value targets)
{
    struct ku_graph *g;
    assert_int_equal(kumi_loss_cross_entropy(b, logits, targets, -100), 0);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    return g;
}

/* Batch norm over samples and tokens, after a pair of layers that tensor-parallel ranks divide. */
static struct ku_graph *normed_tokens(int64_t n)
{
    const int64_t hidden = 24, width = 8;
    struct kumi_graph *b;
    kumi_value table, y;
    assert_int_equal(kumi_graph_create(&b), 0);
    const kumi_value x = tokens_of(b, n, &table, &y);
    kumi_value z = kumi_linear(b, x, "up", &(struct kumi_linear){.out = "f", .out_count = &hidden});
    z = kumi_linear(b, z, "down", &(struct kumi_linear){.out = "c", .out_count = &width});
    z = kumi_batch_norm(b, kumi_add(b, x, z), "norm", NULL);
    z = kumi_linear(b, z, "head", &(struct kumi_linear){.out_in = 1, .weight = table});
    return finish(b, z, y);
}

static void proved(void **state)
{
    static const struct layout row[] = {
        {.model = normed_tokens,
         .ranks = 2,
         .replicate = 1,
         .mb = 2,
         .vs = 1,
         .tp = 2,
         .sp = 1,
         .is_private = 1,
         .optimizer = KU_OP_adamw},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct job j[4];
        for (int kind = 0; kind < 4; kind++) {
            if (make(&row[i], (enum ku_check_kind)kind, &j[kind]) < 0 || check(&j[kind]) < 0)
                fail_msg("row %zu, kind %d: %s", i, kind, ku_err_get()->text);
            assert_int_equal(ku_check_same_state(j[0].p, j[kind].p), 0);
        }
        for (int kind = 0; kind < 4; kind++)
            drop(&j[kind]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(proved)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
