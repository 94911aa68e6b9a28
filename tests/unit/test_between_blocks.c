/* SPDX-License-Identifier: Apache-2.0 */
/* links: pass nn ir op tensor base */
/*
 * The bytes between the blocks of a pipeline, from the graph of the layers, against the live ranges
 * of the programs that run: every buffer of an activation or adjoint that one block makes or
 * receives and a later one reads.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "kumi/model.h"
#include "nn/builder.h"
#include "pass/pass.h"
#include "pass/pipe/between_blocks.h"
#include "pass/pipe/layer_stages.h"

enum { N_LAYERS = 4, MICRO = 8, PP = 2, MAX_STAGES = 4 };

static struct ku_graph *build(bool is_llama)
{
    const struct kumi_shape_of_batch batch = {.n = MICRO, .t = 6};
    struct kumi_graph *b;
    struct ku_graph *g;
    struct kumi_gpt2 c;
    struct kumi_llama l;
    kumi_gpt2_defaults(&c);
    c.n_layer = N_LAYERS, c.n_head = 4, c.n_embd = 24, c.n_positions = 8, c.vocab_size = 40;
    kumi_llama_defaults(&l);
    l.num_hidden_layers = N_LAYERS, l.num_attention_heads = 4, l.num_key_value_heads = 2;
    l.hidden_size = 48, l.intermediate_size = 48, l.vocab_size = 40, l.max_position_embeddings = 8;
    assert_int_equal(kumi_graph_create(&b), 0);
    assert_int_equal(is_llama ? kumi_llama_build(b, &l, &batch) : kumi_gpt2_build(b, &c, &batch),
                     0);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    return g;
}

static struct ku_compile_opts opts_of(int tp, bool has_sp, int recompute, enum kumi_dtype compute)
{
    struct ku_compile_opts o = {.compute = compute,
                                .is_training = 1,
                                .optimizer = KU_OP_adamw,
                                .rule = ku_attrs_default,
                                .bucket_bytes = 1 << 20,
                                .first_bucket_bytes = 1 << 20,
                                .sequence = has_sp,
                                .recompute = recompute};
    for (int a = 0; a < KU_N_AXES; a++)
        o.mesh.extent[a] = 1;
    o.mesh.extent[KU_AX_TP] = tp;
    o.mesh.extent[KU_AX_MB] = MICRO;
    return o;
}

static void find(const struct ku_compile_opts *o, bool is_llama, const int *count, int n_stages,
                 struct ku_stage_bytes *bytes)
{
    static const int one[N_LAYERS + 1] = {1, 1, 1, 1, 0};
    struct ku_compile_opts own = *o;
    struct ku_graph *g = build(is_llama);
    struct ku_pp_schedule *each;
    struct ku_between b;
    assert_int_equal(ku_pp_schedule_empty(1, N_LAYERS + 1, 1, &each), 0);
    own.schedule = each, own.stage_layers = one;
    assert_int_equal(ku_compile_graph(g, &own, NULL, NULL), 0);
    assert_int_equal(ku_between_find(g, N_LAYERS + 1, &b), 0);
    ku_between_add_up(&b, count, n_stages, bytes);
    ku_between_fini(&b);
    ku_pp_schedule_destroy(each);
    ku_graph_destroy(g);
}

/* The block of each instruction of micro-batches, from 1: a run of F, I or W of one micro-batch; I
 * and W are one where the schedule has B. 0: of none. Waits count to the block they are in. */
static uint32_t number_blocks(const struct ku_program *p, bool has_b, uint32_t *block)
{
    uint32_t n = 0;
    int micro = -1, phase = -1;
    for (uint32_t i = 0; i < p->n_instrs; i++) {
        const struct ku_instr *x = &p->instr[i];
        const int own = has_b && x->phase != KU_PH_F ? KU_PH_W : x->phase;
        if (x->kind != KU_WAIT && x->micro >= 0 && (x->micro != micro || own != phase))
            micro = x->micro, phase = own, n++;
        block[i] = x->micro >= 0 ? n : 0;
    }
    return n;
}

static bool is_held(const struct ku_buffer *x)
{
    return (x->cls == KU_CL_ACTIVATION || x->cls == KU_CL_ADJOINT) && x->micro >= 0 &&
           x->first != UINT32_MAX;
}

/* Whether an earlier buffer has the same bytes between two blocks: results in place of operands. */
static bool is_counted(const struct ku_program *p, uint32_t b, const uint32_t *block, uint32_t k)
{
    const struct ku_buffer *x = &p->buffer[b];
    for (uint32_t a = 1; a < b; a++) {
        const struct ku_buffer *y = &p->buffer[a];
        if (is_held(y) && y->arena == x->arena && y->offset == x->offset && block[y->first] <= k &&
            block[y->last] > k)
            return true;
    }
    return false;
}

/* The most bytes that lie between two blocks of a program. */
static double held_by(const struct ku_program *p, bool has_b)
{
    uint32_t *block = ku_calloc(p->n_instrs, sizeof *block);
    assert_non_null(block);
    const uint32_t n = number_blocks(p, has_b, block);
    double *held = ku_calloc(n + 1, sizeof *held), most = 0;
    assert_non_null(held);
    for (uint32_t b = 1; b < p->n_buffers; b++) {
        const struct ku_buffer *x = &p->buffer[b];
        for (uint32_t k = is_held(x) ? block[x->first] : n + 1; k <= n && k < block[x->last]; k++)
            held[k] += is_counted(p, b, block, k) ? 0 : (double)x->bytes;
    }
    for (uint32_t k = 1; k <= n; k++)
        most = held[k] > most ? held[k] : most;
    ku_free(block);
    ku_free(held);
    return most;
}

/* Equal to the byte, but for gradients that the plan has sent and that the stage before has not yet
 * answered: three at most. */
static void is_what_programs_hold(void **state)
{
    static const struct {
        const char *schedule;
        bool is_llama, has_sp;
        int tp, recompute, compute;
    } row[] = {
        {"1f1b", 0, 0, 1, KU_RECOMPUTE_NONE, KUMI_F32},
        {"zb-h1", 0, 0, 1, KU_RECOMPUTE_NONE, KUMI_BF16},
        {"zb-h2", 1, 0, 2, KU_RECOMPUTE_NONE, KUMI_F32},
        {"zb-h1", 0, 1, 2, KU_RECOMPUTE_NONE, KUMI_BF16},
        {"zb-h1", 1, 0, 1, KU_RECOMPUTE_FULL, KUMI_BF16},
        {"1f1b", 0, 1, 2, KU_RECOMPUTE_SELECTIVE, KUMI_F32},
        {"gpipe", 1, 1, 2, KU_RECOMPUTE_FULL, KUMI_F32},
        {"zb-v", 0, 0, 1, KU_RECOMPUTE_NONE, KUMI_F32},
        {"interleaved", 1, 0, 1, KU_RECOMPUTE_FULL, KUMI_BF16},
    };
    static const int whole[] = {2, 2}, halves[] = {1, 1, 1, 1};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_compile_opts o =
            opts_of(row[i].tp, row[i].has_sp, row[i].recompute, (enum kumi_dtype)row[i].compute);
        struct ku_stage_bytes bytes[MAX_STAGES];
        struct ku_pp_schedule *s;
        struct ku_graph *g = build(row[i].is_llama);
        assert_int_equal(ku_pp_schedule_create(row[i].schedule, PP, 2, MICRO, &s), 0);
        const int *count = s->n_stages == PP ? whole : halves;
        find(&o, row[i].is_llama, count, s->n_stages, bytes);
        o.mesh.extent[KU_AX_PP] = PP;
        o.schedule = s, o.stage_layers = count;
        assert_int_equal(ku_compile_graph(g, &o, NULL, NULL), 0);
        for (int r = 0; r < PP; r++) {
            struct ku_program *p;
            o.pp = r;
            assert_int_equal(ku_compile_program(g, "train", &o, NULL, &p), 0);
            const double wanted = held_by(p, s->block[s->first[1] - 1].kind == KU_BL_B),
                         got = ku_pp_schedule_peak_bytes(s, r, bytes);
            if (got <= 0 || got > wanted || got + 3 * bytes[1].sent_back < wanted)
                fail_msg("row %zu, coordinate %d: %.0f bytes, the program has %.0f", i, r, got,
                         wanted);
            ku_program_destroy(p);
        }
        for (int k = 0; k < s->n_stages; k++) {
            assert_true((bytes[k].sent > 0) == (k < s->n_stages - 1));
            assert_true((bytes[k].sent_back > 0) == (k > 0));
        }
        ku_pp_schedule_destroy(s);
        ku_graph_destroy(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_what_programs_hold)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
