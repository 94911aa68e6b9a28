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
                }
            }
        }
        drop(&j);
    }
    fprintf(stderr, "legal programs %d, refused %d\n", n, n_refused);
    assert_true(n >= 100);
    assert_int_equal(n_refused, 0);
}

/* ---- mutations ---- */

static uint32_t draw(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % n;
}

/* A random instruction of a kind (op < 0: any); UINT32_MAX: none. */
static uint32_t any(const struct ku_program *p, int kind, int op, uint64_t *seed)
{
    uint32_t from = draw(seed, p->n_instrs);
    for (uint32_t k = 0; k < p->n_instrs; k++) {
        uint32_t at = (from + k) % p->n_instrs;
        if (p->instr[at].kind == kind && (op < 0 || p->instr[at].op == op))
            return at;
    }
    return UINT32_MAX;
}
static uint32_t any_collective(const struct ku_program *p, uint64_t *seed)
{
    uint32_t from = draw(seed, p->n_instrs);
    for (uint32_t k = 0; k < p->n_instrs; k++) {
        const struct ku_instr *i = &p->instr[(from + k) % p->n_instrs];
        if (i->kind == KU_START && !ku_exchange_is_tier(i->op) && i->n_parts)
            return (from + k) % p->n_instrs;
    }
    return UINT32_MAX;
}
static uint32_t wait_of(const struct ku_program *p, uint32_t start)
{
    for (uint32_t at = start + 1; at < p->n_instrs; at++)
        if (p->instr[at].kind == KU_WAIT && p->instr[at].handle == p->instr[start].handle)
            return at;
    return UINT32_MAX;
}
static void erase(struct ku_program *p, uint32_t at)
{
    memmove(p->instr + at, p->instr + at + 1, (p->n_instrs - at - 1) * sizeof *p->instr);
    p->n_instrs--;
}
static void insert(struct ku_program *p, uint32_t at, struct ku_instr i)
{
    struct ku_instr *more = ku_calloc(p->n_instrs + 1, sizeof *more);
    assert_non_null(more);
    memcpy(more, p->instr, at * sizeof *more);
    more[at] = i;
    memcpy(more + at + 1, p->instr + at, (p->n_instrs - at) * sizeof *more);
    ku_free(p->instr);
    p->instr = more;
    p->n_instrs++;
}
static void move(struct ku_program *p, uint32_t from, uint32_t to)
{
    struct ku_instr i = p->instr[from];
    erase(p, from);
    insert(p, to, i);
}
/* Another buffer of the same bytes and dtype; 0: none. */
static ku_id twin(const struct ku_program *p, ku_id b, uint64_t *seed)
{
    uint32_t from = draw(seed, p->n_buffers);
    for (uint32_t k = 0; k < p->n_buffers; k++) {
        ku_id x = (from + k) % p->n_buffers;
        if (x && x != b && p->buffer[x].bytes == p->buffer[b].bytes &&
            p->buffer[x].dtype == p->buffer[b].dtype && p->buffer[x].first != UINT32_MAX)
            return x;
    }
    return 0;
}
static ku_id edit_attr(struct ku_program *p, uint32_t at, size_t offset, int64_t add)
{
    struct ku_attrs a = p->attr[p->instr[at].attr];
    *(int64_t *)(void *)((char *)&a + offset) += add;
    return p->instr[at].attr = ku_program_attr(p, &a);
}

static char last_edit[256]; /* what the mutation did, for messages */

/* One edit of a program; 0: the class does not apply to it. */
typedef int mutation(struct ku_program *p, uint64_t *seed);

static int drop_collective(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    erase(p, wait_of(p, at));
    erase(p, at);
    return 1;
}
static int drop_wait(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_WAIT, -1, seed);
    if (at == UINT32_MAX)
        return 0;
    erase(p, at);
    return 1;
}
static int duplicate_collective(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    uint32_t wait = wait_of(p, at);
    if (p->operand[p->instr[at].operand + p->instr[at].n_in].out &&
        p->instr[at].op == KU_X_ALL_GATHER)
        return 0; /* harmless: the same shards are copied to the same buffer again */
    struct ku_instr start = p->instr[at], end = p->instr[wait];
    start.handle = end.handle = p->n_handles++ + 1;
    insert(p, wait + 1, start);
    insert(p, wait + 2, end);
    return 1;
}
/* A collective begins before the last instruction that writes its operand. */
static int early_collective(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    const struct ku_instr *i = &p->instr[at];
    for (uint32_t to = at; to-- > 0;)
        for (uint32_t k = 0; p->instr[to].kind == KU_COMPUTE && k < p->instr[to].n_out; k++)
            for (uint32_t n = 0; n < i->n_parts; n++)
                if (p->operand[p->instr[to].operand + p->instr[to].n_in + k].buffer ==
                    p->operand[i->operand + i->n_in + n].buffer) {
                    move(p, at, to);
                    return 1;
                }
    return 0;
}
static int late_wait(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    uint32_t wait = wait_of(p, at);
    const struct ku_operand *o = &p->operand[p->instr[at].operand + p->instr[at].n_in];
    ku_id result = o->out ? o->out : o->buffer;
    for (uint32_t k = wait + 1; k + 1 < p->n_instrs && p->instr[at].op != KU_X_ALL_GATHER; k++)
        for (int n = 0; p->instr[k].kind == KU_COMPUTE && n < p->instr[k].n_in; n++)
            if (p->operand[p->instr[k].operand + (uint32_t)n].buffer == result) {
                move(p, wait, p->n_instrs - 1);
                return 1;
            }
    return 0; /* harmless: only ports and the next step read the result */
}
static int wrong_axes(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    p->instr[at].axes ^= (uint8_t)(1 << (KU_AX_REPLICATE + (int)draw(seed, 3)));
    return 1;
}
static int wrong_group(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    p->instr[at].group = p->instr[at].group ? 0 : 2;
    return 1;
}
static int wrong_wire(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    p->instr[at].wire = p->instr[at].wire == KUMI_F16 ? KUMI_F32 : KUMI_F16;
    return 1;
}
static int wrong_kind(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    p->instr[at].op = p->instr[at].op == KU_X_ALL_REDUCE ? KU_X_REDUCE_SCATTER : KU_X_ALL_REDUCE;
    return 1;
}
static int wrong_reduction(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX || p->instr[at].op == KU_X_ALL_GATHER)
        return 0;
    p->instr[at].reduce ^= 1;
    return 1;
}
/* Another shape or run of chunks: the count of a part. */
static int wrong_count(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    struct ku_operand *o =
        &p->operand[p->instr[at].operand + p->instr[at].n_in + draw(seed, p->instr[at].n_parts)];
    ku_id other = 1 + draw(seed, p->n_shapes - 1);
    if (ku_shape_count(&p->shape[other]) == ku_shape_count(&p->shape[o->shape]))
        return 0;
    o->shape = other;
    return 1;
}
static int missing_part(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX || p->instr[at].n_parts < 2)
        return 0;
    p->instr[at].n_parts--;
    return 1;
}
static int drop_compute(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, -1, seed);
    snprintf(last_edit, sizeof last_edit, "drops %u of %u, %s %s", at, p->n_instrs,
             ku_ops[p->instr[at].op].name, p->name_of[p->instr[at].path]);
    erase(p, at);
    return 1;
}
static int drop_barrier(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_START, KU_X_BARRIER, seed);
    if (at == UINT32_MAX)
        return 0;
    erase(p, wait_of(p, at));
    erase(p, at);
    return 1;
}
static int drop_op(struct ku_program *p, int op, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, op, seed);
    if (at == UINT32_MAX)
        return 0;
    erase(p, at);
    return 1;
}
static int norm_missing(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    for (uint32_t n = 0; at != UINT32_MAX && n < p->instr[at].n_parts; n++) {
        struct ku_operand *o = &p->operand[p->instr[at].operand + p->instr[at].n_in + n];
        if (o->stats_word) {
            o->stats_word = 0;
            return 1;
        }
    }
    return drop_op(p, KU_OP_sumsq, seed);
}
static int norm_twice(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, KU_OP_sumsq, seed);
    if (at == UINT32_MAX)
        return 0;
    insert(p, at, p->instr[at]);
    return 1;
}
static int wrong_shift(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, draw(seed, 2) ? KU_OP_step_scalars : KU_OP_loss_seed, seed);
    return at != UINT32_MAX && edit_attr(p, at, offsetof(struct ku_attrs, shift), 1);
}
static int wrong_attr(struct ku_program *p, uint64_t *seed)
{
    static const int op[] = {KU_OP_dropout, KU_OP_linear, KU_OP_linear_dw, KU_OP_layer_norm,
                             KU_OP_exact_sum};
    uint32_t at = any(p, KU_COMPUTE, op[draw(seed, 5)], seed);
    return at != UINT32_MAX && edit_attr(p, at, offsetof(struct ku_attrs, trans), 1);
}
static int scalars_twice(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, KU_OP_step_scalars, seed);
    insert(p, at, p->instr[at]);
    return 1;
}
static int wrong_stream(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, KU_OP_dropout, seed);
    if (at == UINT32_MAX)
        return 0;
    p->instr[at].stream++;
    return 1;
}
static int wrong_input(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, -1, seed);
    const struct ku_instr *i = &p->instr[at];
    if (i->n_in == 0)
        return 0;
    if (i->op == KU_OP_widen)
        return 0; /* its second operand is not read */
    struct ku_operand *o = &p->operand[i->operand + draw(seed, i->n_in)];
    ku_id other = twin(p, o->buffer, seed);
    if (other == 0)
        return 0;
    snprintf(last_edit, sizeof last_edit, "instruction %u %s: b%u %s -> b%u %s", at,
             ku_ops[p->instr[at].op].name, o->buffer, p->name_of[p->buffer[o->buffer].name], other,
             p->name_of[p->buffer[other].name]);
    o->buffer = other;
    return 1;
}
static int is_read(const struct ku_program *p, uint32_t at, ku_id b)
{
    for (at++; at < p->n_instrs; at++)
        for (uint32_t k = 0;
             p->instr[at].kind != KU_WAIT && k < p->instr[at].n_in + p->instr[at].n_parts; k++)
            if (p->operand[p->instr[at].operand + k].buffer == b)
                return 1;
    return 0;
}
static int wrong_output(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, -1, seed);
    const struct ku_instr *i = &p->instr[at];
    struct ku_operand *o = &p->operand[i->operand + i->n_in + draw(seed, i->n_out)];
    if (!is_read(p, at, o->buffer))
        return 0; /* harmless: a result that is not read, as after recomputation */
    ku_id other = twin(p, o->buffer, seed);
    if (other == 0)
        return 0;
    snprintf(last_edit, sizeof last_edit, "instruction %u %s: b%u %s -> b%u %s", at,
             ku_ops[p->instr[at].op].name, o->buffer, p->name_of[p->buffer[o->buffer].name], other,
             p->name_of[p->buffer[other].name]);
    o->buffer = other;
    return 1;
}
static int wrong_part(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    struct ku_operand *o =
        &p->operand[p->instr[at].operand + p->instr[at].n_in + draw(seed, p->instr[at].n_parts)];
    ku_id other = twin(p, o->buffer, seed);
    if (other == 0)
        return 0;
    snprintf(last_edit, sizeof last_edit, "instruction %u %s: b%u %s -> b%u %s", at,
             ku_ops[p->instr[at].op].name, o->buffer, p->name_of[p->buffer[o->buffer].name], other,
             p->name_of[p->buffer[other].name]);
    o->buffer = other;
    return 1;
}
/* A buffer whose bytes a later result takes is alive for less time than it says. */
static int is_home(const struct ku_program *p, const struct ku_buffer *x)
{
    for (ku_id b = 1; b < p->n_buffers; b++)
        if (p->buffer[b].home && &p->buffer[p->buffer[b].home] == x)
            return 1;
    return 0;
}
/* A buffer moves into the bytes of another that is live at the same time. */
static int overlap(struct ku_program *p, uint64_t *seed)
{
    for (int k = 0; k < 200; k++) {
        struct ku_buffer *x = &p->buffer[1 + draw(seed, p->n_buffers - 1)],
                         *y = &p->buffer[1 + draw(seed, p->n_buffers - 1)];
        if (x == y || x->arena != y->arena || x->first == UINT32_MAX || y->first == UINT32_MAX ||
            x->home || y->home || is_home(p, x) || is_home(p, y) || x->first >= y->last ||
            y->first >= x->last || x->bytes == 0 || y->bytes == 0 || ku_arena_is_tier(x->arena) ||
            x->offset == y->offset)
            continue;
        x->offset = y->offset;
        return 1;
    }
    return 0;
}
static int beyond(struct ku_program *p, uint64_t *seed)
{
    ku_id b = 1 + draw(seed, p->n_buffers - 1);
    if (p->buffer[b].first == UINT32_MAX || p->buffer[b].bytes == 0)
        return 0;
    p->buffer[b].offset = p->arena_bytes[p->buffer[b].arena];
    return 1;
}
static int wrong_micro(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, draw(seed, 2) ? KU_OP_softmax_xent : KU_OP_count_valid, seed);
    int n = ku_mesh_n_micro(&p->mesh);
    if (at == UINT32_MAX || n < 2)
        return 0;
    p->instr[at].micro = (p->instr[at].micro + 1) % n;
    return 1;
}
static int no_accumulate(struct ku_program *p, uint64_t *seed)
{
    uint32_t from = draw(seed, p->n_instrs);
    for (uint32_t k = 0; k < p->n_instrs; k++) {
        struct ku_instr *i = &p->instr[(from + k) % p->n_instrs];
        if (i->kind == KU_COMPUTE && i->accumulate) {
            i->accumulate = 0;
            return 1;
        }
    }
    return drop_op(p, KU_OP_fold, seed);
}
static int tied_missing(struct ku_program *p, uint64_t *seed)
{
    for (uint32_t at = 0; at < p->n_instrs; at++)
        for (uint32_t k = 0; p->instr[at].kind == KU_START && k < p->instr[at].n_parts; k++) {
            struct ku_operand *o = &p->operand[p->instr[at].operand + p->instr[at].n_in + k];
            if (o->addend) {
                o->addend = 0;
                return 1;
            }
        }
    uint32_t at = any(p, KU_COMPUTE, KU_OP_add, seed);
    return at != UINT32_MAX && p->instr[at].phase == KU_PH_O ? (erase(p, at), 1) : 0;
}
/* An update moves in front of the collective that completes its gradient or the report. */
static int early_update(struct ku_program *p, uint64_t *seed)
{
    uint32_t scalars = any(p, KU_COMPUTE, KU_OP_step_scalars, seed);
    uint32_t from = scalars + draw(seed, p->n_instrs - scalars);
    for (uint32_t at = from; at < p->n_instrs; at++)
        if (p->instr[at].kind == KU_COMPUTE && ku_ops[p->instr[at].op].state[0]) {
            move(p, at, scalars);
            return 1;
        }
    return 0;
}
static int update_twice(struct ku_program *p, uint64_t *seed)
{
    uint32_t from = draw(seed, p->n_instrs);
    for (uint32_t at = from; at < p->n_instrs; at++)
        if (p->instr[at].kind == KU_COMPUTE && ku_ops[p->instr[at].op].state[0]) {
            insert(p, at, p->instr[at]);
            return 1;
        }
    return 0;
}
static int wrong_partition(struct ku_program *p, uint64_t *seed)
{
    uint32_t from = draw(seed, p->n_instrs);
    for (uint32_t k = 0; k < p->n_instrs; k++) {
        const struct ku_instr *i = &p->instr[(from + k) % p->n_instrs];
        if (i->kind == KU_WAIT || i->n_in + i->n_parts == 0)
            continue;
        struct ku_operand *o =
            &p->operand[i->operand + (i->kind == KU_START ? i->n_in : draw(seed, i->n_in))];
        if (i->op != KU_OP_widen &&
            ku_layout_axes(&p->layout[o->layout], KU_Z) & ku_mesh_wide(&p->mesh, KU_DP_AXES)) {
            snprintf(last_edit, sizeof last_edit, "operand %d of %s %s", (int)(o - p->operand),
                     i->kind == KU_START ? ku_exchange_name(i->op) : ku_ops[i->op].name,
                     p->name_of[p->buffer[o->buffer].name]);
            o->first_block++;
            return 1;
        }
    }
    return 0;
}
static int missing_edge(struct ku_program *p, uint64_t *seed)
{
    /* the norm's collective is what keeps updates behind the last reader of shared state */
    for (uint32_t at = 0; at < p->n_instrs; at++)
        if (p->instr[at].kind == KU_START && p->instr[at].op == KU_X_ALL_REDUCE &&
            p->operand[p->instr[at].operand].dtype == KUMI_I64) {
            erase(p, wait_of(p, at));
            erase(p, at--);
            (void)seed;
            return 1;
        }
    return 0;
}

static const struct {
    const char *name;
    mutation *run;
} classes[] = {{"collective dropped", drop_collective},
               {"collective duplicated", duplicate_collective},
               {"collective before its operand is complete", early_collective},
               {"wait dropped", drop_wait},
               {"wait too late", late_wait},
               {"wrong mesh axes", wrong_axes},
               {"wrong group", wrong_group},
               {"wrong wire dtype", wrong_wire},
               {"wrong kind of collective", wrong_kind},
               {"wrong reduction", wrong_reduction},
               {"wrong count", wrong_count},
               {"part missing in a collective", missing_part},
               {"wrong owner of chunks", wrong_partition},
               {"barrier dropped", drop_barrier},
               {"ordering edge missing", missing_edge},
               {"computation dropped", drop_compute},
               {"gradient missing in the norm", norm_missing},
               {"gradient twice in the norm", norm_twice},
               {"loss divided by another power of two", wrong_shift},
               {"report made twice", scalars_twice},
               {"wrong attribute", wrong_attr},
               {"wrong random stream", wrong_stream},
               {"wrong operand of the same size", wrong_input},
               {"wrong result buffer of the same size", wrong_output},
               {"wrong part of the same size", wrong_part},
               {"live buffers overlap", overlap},
               {"buffer beyond its arena", beyond},
               {"wrong micro-batch", wrong_micro},
               {"micro-batch not accumulated", no_accumulate},
               {"use of tied weights not added", tied_missing},
               {"update before the report", early_update},
               {"update twice", update_twice}};
enum { N_CLASSES = sizeof classes / sizeof classes[0] };

static void mutations(void **state)
{
    const char *given = getenv("KUMI_TEST_SEED"), *many = getenv("KUMI_TEST_ALL");
    uint64_t seed = given ? strtoull(given, NULL, 10) : 7;
    int applied[N_CLASSES] = {0}, refused[N_CLASSES] = {0}, layouts = many ? 400 : 60, left = 0;
    (void)state;
    for (int i = 0; i < layouts; i++) {
        struct layout l = random_layout(&seed);
        for (int k = 0; k < N_CLASSES; k++) {
            struct ku_check_report r;
            struct job j;
            uint64_t own = seed + (uint64_t)k;
            if (make(&l, &j) == 0 && classes[k].run(j.p, &own)) {
                int status = ku_check_program(j.model, &j.check, j.p, &r);
                applied[k]++;
                refused[k] += status == KUMI_EPLAN;
                if (status == KUMI_OK && left++ < 24) {
                    fprintf(stderr, "accepted: %s (seed %llu; last edit of an operand: %s)\n",
                            classes[k].name, (unsigned long long)seed, last_edit);
                    show(&l);
                }
            }
            drop(&j);
        }
    }
    for (int k = 0; k < N_CLASSES; k++)
        fprintf(stderr, "%-44s %4d of %4d refused\n", classes[k].name, refused[k], applied[k]);
    assert_int_equal(left, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(legal), cmocka_unit_test(mutations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
