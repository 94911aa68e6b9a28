/* SPDX-License-Identifier: Apache-2.0 */
/* A model that the generator of layouts.h does not have: all its programs are proved. */
#include "layouts.h"

/* Batch norm over samples and tokens, after a pair of layers that tensor-parallel ranks divide. */
static struct ku_graph *normed_tokens(int64_t n)
{
    const int64_t hidden = 24, width = 8, ids[] = {n / 8, 6};
    struct kumi_graph *b;
    struct ku_graph *g;
    assert_int_equal(kumi_graph_create(&b), 0);
    const kumi_value tokens = kumi_input(b, "tokens", KUMI_I32, "nt", ids),
                     y = kumi_input(b, "targets", KUMI_I32, "nt", ids),
                     table = kumi_param(b, "wte.weight", "vc", (int64_t[]){40, width},
                                        &(struct kumi_init){.std = 0.1}),
                     x = kumi_embedding(b, table, tokens);
    kumi_value z = kumi_linear(b, x, "up", &(struct kumi_linear){.out = "f", .out_count = &hidden});
    z = kumi_linear(b, z, "down", &(struct kumi_linear){.out = "c", .out_count = &width});
    z = kumi_batch_norm(b, kumi_add(b, x, z), "norm", NULL);
    z = kumi_linear(b, z, "head", &(struct kumi_linear){.out_in = 1, .weight = table});
    assert_int_equal(kumi_loss_cross_entropy(b, z, y, -100), 0);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    return g;
}

static void proved(void **state)
{
    static const struct layout l = {.model = normed_tokens,
                                    .ranks = 2,
                                    .replicate = 1,
                                    .mb = 2,
                                    .vs = 1,
                                    .tp = 2,
                                    .sp = 1,
                                    .is_private = 1,
                                    .optimizer = KU_OP_adamw};
    struct job j[4];
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        if (make(&l, (enum ku_check_kind)kind, &j[kind]) < 0 || check(&j[kind]) < 0)
            fail_msg("kind %d: %s", kind, ku_err_get()->text);
        assert_int_equal(ku_check_same_state(j[0].p, j[kind].p), 0);
    }
    for (int kind = 0; kind < 4; kind++)
        drop(&j[kind]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(proved)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
