/* SPDX-License-Identifier: Apache-2.0 */
/* links: pass nn ir op tensor base */
/* Which ranks store, update and repeat each tensor of the state, under every parallel layout. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/err.h"
#include "ir/state.h"
#include "nn/builder.h"
#include "pass/pass.h"
#include "tensor/dtype.h"

enum { C = 128, F = 200, R = 1 << KU_AX_REPLICATE, S = 1 << KU_AX_SHARD, L = 1 << KU_AX_LOCAL };

/* One layer: a weight of 7 chunks, a bias of one. */
static struct ku_graph *network(int64_t n)
{
    struct kumi_graph *b;
    struct ku_graph *g;
    const int64_t width = C, classes = F;
    assert_int_equal(kumi_graph_create(&b), 0);
    kumi_value ids = kumi_input(b, "tokens", KUMI_I32, "n", &n),
               y = kumi_input(b, "targets", KUMI_I32, "n", &n);
    kumi_value table =
        kumi_param(b, "wte.weight", "vc", (int64_t[]){32, width}, &(struct kumi_init){.std = 0.1});
    kumi_value x =
        kumi_linear(b, kumi_embedding(b, table, ids), "up",
                    &(struct kumi_linear){.out = "f", .out_count = (int64_t[]){classes}});
    assert_int_equal(kumi_loss_cross_entropy(b, x, y, -100), 0);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    return g;
}

/* How a tensor is stored, and the axes on which other ranks have the same. */
struct want {
    int arena, is_kept, replicas;
};
#define HOST               KU_AR_HOST, 0, 0     /* one copy */
#define HOST_OF(axes)      KU_AR_HOST, 0, axes  /* one copy on each host */
#define OWN(axes)          KU_AR_STATE, 0, axes /* whole, in memory of the rank */
#define WHOLE(axes)        KU_AR_SHARD, 0, axes /* whole, and read by peers */
#define PART(axes)         KU_AR_SHARD, 1, axes
#define FAR(is_kept, axes) KU_AR_OFFLOAD, is_kept, axes
static const struct row {
    int replicate, shard, local, zero;
    enum kumi_dtype compute;
    struct {
        uint8_t optimizer, params;
    } offload;
    struct want weight, copy, moment, update; /* copy: in bf16 */
} rows[] = {
    /* one rank; replicas */
    {1, 1, 1, 0, KUMI_BF16, {0, 0}, {OWN(0)}, {OWN(0)}, {OWN(0)}, {OWN(0)}},
    {4, 1, 1, 0, KUMI_BF16, {0, 0}, {OWN(R)}, {OWN(R)}, {OWN(R)}, {OWN(R)}},
    /* one copy for all: the stage changes nothing */
    {1, 1, 4, 0, KUMI_BF16, {0, 0}, {HOST}, {HOST}, {HOST}, {OWN(L)}},
    {1, 1, 4, 3, KUMI_BF16, {0, 0}, {HOST}, {HOST}, {HOST}, {OWN(L)}},
    /* stages: masters and moments from 1 on, what forward reads from 3 on */
    {1, 4, 1, 1, KUMI_F32, {0, 0}, {WHOLE(S)}, {0}, {PART(0)}, {OWN(S)}},
    {1, 4, 1, 2, KUMI_BF16, {0, 0}, {PART(0)}, {WHOLE(S)}, {PART(0)}, {OWN(S)}},
    {1, 4, 1, 3, KUMI_BF16, {0, 0}, {PART(0)}, {PART(0)}, {PART(0)}, {OWN(S)}},
    /* hybrid: each shard has a replica */
    {2, 2, 1, 1, KUMI_BF16, {0, 0}, {PART(R)}, {WHOLE(R | S)}, {PART(R)}, {OWN(R | S)}},
    /* offload: of a shared copy each rank stores its part, of replicas all */
    {1, 1, 4, 0, KUMI_BF16, {KU_OFFLOAD_HOST, 0}, {FAR(1, 0)}, {HOST}, {FAR(1, 0)}, {OWN(L)}},
    {2, 1, 1, 0, KUMI_BF16, {KU_OFFLOAD_HOST, 0}, {FAR(0, R)}, {OWN(R)}, {FAR(0, R)}, {OWN(R)}},
    {1, 2, 1, 3, KUMI_BF16, {0, KU_OFFLOAD_HOST}, {PART(0)}, {FAR(1, 0)}, {PART(0)}, {OWN(S)}},
    /* hosts whose ranks share: masters and moments are divided among all, the rest once a host */
    {1, 2, 2, 2, KUMI_BF16, {0, 0}, {PART(0)}, {HOST_OF(S)}, {PART(0)}, {OWN(S | L)}},
    {1, 2, 2, 3, KUMI_BF16, {0, 0}, {PART(0)}, {PART(0)}, {PART(0)}, {OWN(S | L)}},
    {2, 2, 2, 3, KUMI_BF16, {0, 0}, {PART(R)}, {PART(R)}, {PART(R)}, {OWN(R | S | L)}},
    {2, 2, 2, 1, KUMI_F32, {0, 0}, {HOST_OF(R | S)}, {0}, {PART(R)}, {OWN(R | S | L)}},
};

static struct ku_program *compile(const struct row *r)
{
    struct ku_compile_opts o = {.compute = r->compute,
                                .is_training = 1,
                                .optimizer = KU_OP_adamw,
                                .rule = ku_attrs_default,
                                .bucket_bytes = 1 << 20,
                                .first_bucket_bytes = 64,
                                .zero = r->zero,
                                .offload = {.optimizer = r->offload.optimizer,
                                            .params = r->offload.params,
                                            .ratio = 1,
                                            .buffer_count = 2,
                                            .buffer_bytes = 1 << 16}};
    struct ku_program *p;
    for (int a = 0; a < KU_N_AXES; a++)
        o.mesh.extent[a] = 1;
    o.mesh.extent[KU_AX_REPLICATE] = r->replicate;
    o.mesh.extent[KU_AX_SHARD] = r->shard;
    o.mesh.extent[KU_AX_LOCAL] = r->local;
    struct ku_graph *g = network(8);
    assert_int_equal(ku_compile_graph(g, &o, NULL, NULL), 0);
    assert_int_equal(ku_compile_program(g, "train", &o, NULL, &p), 0);
    ku_graph_destroy(g);
    return p;
}

static const struct want *want_of(const struct row *r, const struct ku_program *p,
                                  const struct ku_program_state *x)
{
    const char *name = p->name_of[x->name];
    return strcmp(name, "up.weight") == 0           ? &r->weight
           : strcmp(name, "up.weight.exp_avg") == 0 ? &r->moment
           : strcmp(name, "update") == 0            ? &r->update
           : strncmp(name, "up.weight:", 10) == 0   ? &r->copy
                                                    : NULL;
}

/* The ranks of one copy own each element once; ranks without a part own all. */
static void check_owners(const struct ku_program *p, const struct ku_program_state *x, size_t row)
{
    const int64_t count = ku_shape_count(&p->shape[x->shape]);
    const int n = ku_mesh_n_ranks(&p->mesh), axes = ku_state_owner_axes(&p->mesh);
    int64_t begin, end, sum = 0, most = 0;
    for (int r = 0; r < n; r++) {
        struct ku_coord at = ku_mesh_coord(&p->mesh, r);
        ku_state_owned(p, x, &at, &begin, &end);
        assert_true(begin >= 0 && begin <= end && end <= count);
        sum += end - begin;
        most = end - begin > most ? end - begin : most;
    }
    const int n_copies = x->blocks ? p->mesh.extent[KU_AX_REPLICATE] : n;
    if (sum != count * n_copies)
        fail_msg("row %zu: %s: %lld owned of %lld", row, p->name_of[x->name], (long long)sum,
                 (long long)(count * n_copies));
    assert_true(x->blocks == 0 || axes != 0);
    const size_t each = kumi_dtype_bytes((enum kumi_dtype)x->dtype);
    assert_int_equal(x->bytes, (size_t)(x->is_kept ? most : count) * each);
}

static void tensors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct ku_program *p = compile(&rows[i]);
        int n_seen = 0;
        for (uint32_t s = 0; s < p->n_states; s++) {
            const struct ku_program_state *x = &p->state[s];
            const struct want *w = want_of(&rows[i], p, x);
            check_owners(p, x, i);
            n_seen += w != NULL;
            if (w && (x->arena != w->arena || x->is_kept != w->is_kept ||
                      ku_state_replica_axes(p, x) != w->replicas))
                fail_msg("row %zu: %s: arena %s, kept %d, replicas %x", i, p->name_of[x->name],
                         ku_arena_name(x->arena), x->is_kept, ku_state_replica_axes(p, x));
        }
        assert_int_equal(n_seen, rows[i].compute == KUMI_F32 ? 3 : 4);
        ku_program_destroy(p);
    }
}

/*
 * A head whose result does not reach the loss: its weight has no optimizer state, and no gradient
 * of the table comes from there.
 */
static void unreached(void **state)
{
    const int64_t n = 8, width = C;
    struct ku_compile_opts o = {.compute = KUMI_BF16,
                                .is_training = 1,
                                .optimizer = KU_OP_adamw,
                                .rule = ku_attrs_default,
                                .bucket_bytes = 1 << 20,
                                .first_bucket_bytes = 64};
    const struct kumi_linear up = {.out = "f", .out_count = (int64_t[]){F}};
    struct kumi_graph *b;
    struct ku_graph *g;
    struct ku_program *p = NULL;
    int n_moments = 0;
    (void)state;
    for (int a = 0; a < KU_N_AXES; a++)
        o.mesh.extent[a] = 1;
    assert_int_equal(kumi_graph_create(&b), 0);
    kumi_value ids = kumi_input(b, "tokens", KUMI_I32, "n", &n);
    kumi_value table =
        kumi_param(b, "wte.weight", "vc", (int64_t[]){32, width}, &(struct kumi_init){.std = 0.1});
    kumi_value x = kumi_embedding(b, table, ids);
    assert_int_equal(kumi_graph_output(b, "side", kumi_linear(b, x, "side", &up)), 0);
    kumi_value logits =
        kumi_linear(b, x, "head", &(struct kumi_linear){.out_in = 1, .weight = table});
    assert_int_equal(kumi_graph_output(b, "tied", logits), 0);
    kumi_value y = kumi_input(b, "targets", KUMI_I32, "n", &n);
    assert_int_equal(kumi_loss_cross_entropy(b, kumi_linear(b, x, "up", &up), y, -100), 0);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    if (ku_compile_graph(g, &o, NULL, NULL) < 0 || ku_compile_program(g, "train", &o, NULL, &p) < 0)
        fail_msg("%s", ku_err_get()->text);
    for (uint32_t s = 0; s < p->n_states; s++) {
        const char *name = p->name_of[p->state[s].name];
        assert_true(strcmp(name, "side.weight.exp_avg") != 0);
        n_moments += strstr(name, ".exp_avg") != NULL;
    }
    assert_int_equal(n_moments, 6); /* two of wte.weight, up.weight and up.bias */
    ku_program_destroy(p);
    ku_graph_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tensors), cmocka_unit_test(unreached)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
