/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/env.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "ir/placement_rules.h"
#include "ir/state.h"
#include "pass/pass.h"

/*
 * The compiler as one list: {name, needed KU_HAS_* bits, bits it gives, training only, function}.
 */
static const struct ku_pass pass_list[] = {
    {"inference", 0, 0, 0, ku_pass_inference},
    {"precision", 0, KU_HAS_PRECISION, 0, ku_pass_precision},
    {"vocabulary", KU_HAS_PRECISION, 0, 0, ku_pass_vocabulary},
    {"slices", KU_HAS_PRECISION, 0, 0, ku_pass_slices},
    {"placement", KU_HAS_PRECISION, KU_HAS_PLACEMENT, 0, ku_pass_placement},
    {"autodiff", KU_HAS_PLACEMENT, KU_HAS_GRADIENTS, 1, ku_pass_autodiff},
    {"update", KU_HAS_PLACEMENT, KU_HAS_UPDATE, 0, ku_pass_update},
    {"zero", KU_HAS_UPDATE, KU_HAS_ZERO, 0, ku_pass_zero},
    {"recompute", KU_HAS_UPDATE, 0, 1, ku_pass_recompute},
    {"offload", KU_HAS_UPDATE | KU_HAS_ZERO, 0, 0, ku_pass_offload},
    {"bucket", KU_HAS_UPDATE, KU_HAS_BUCKETS, 0, ku_pass_bucket},
    {"fuse", KU_HAS_PLACEMENT, 0, 0, ku_pass_fuse},
};
enum { N_PASSES = sizeof pass_list / sizeof pass_list[0] };

const char *const *ku_pass_names(void)
{
    static const char *const names[] = {
        "build",  "inference", "precision", "vocabulary", "slices", "placement", "autodiff",
        "update", "zero",      "recompute", "offload",    "bucket", "fuse",      NULL};
    _Static_assert(sizeof names / sizeof names[0] == N_PASSES + 2,
                   "one name per pass, build, and the end");
    return names;
}

static void tell(const struct ku_compile_opts *o, const char *program, const char *pass)
{
    if (o->watch.see)
        o->watch.see(o->watch.ctx, program, pass);
}

int ku_compile_graph(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t,
                     const char *stop_after)
{
    KU_TRY(ku_graph_verify(g));
    if (stop_after && strcmp(stop_after, "build") == 0)
        return KUMI_OK;
    if (o->is_training)
        KU_TRY(ku_check_selections(g, o));
    for (int i = 0; i < N_PASSES; i++) {
        const struct ku_pass *pass = &pass_list[i];
        if (pass->training_only && !o->is_training)
            continue;
        KU_ASSERT((g->has & pass->needs) == pass->needs);
        tell(o, o->is_training ? "train" : "eval", pass->name);
        KU_TRY(pass->run(g, o, t));
        g->has |= pass->gives;
        int status = ku_graph_verify(g);
        if (status < 0)
            KU_LOG(PASS, ERROR, "after pass %s: %s", pass->name, ku_err_get()->text);
        KU_TRY(status);
        if (stop_after && strcmp(stop_after, pass->name) == 0)
            return KUMI_OK;
    }
    return KUMI_OK;
}

static int check_live(const struct ku_program *p, const struct ku_compile_opts *o)
{
    uint32_t at;
    int64_t live = ku_program_live_parameters(p, &at);
    if (o->max_live == 0 || live <= o->max_live)
        return KUMI_OK;
    return KU_ERR(
        KUMI_EINVAL,
        "parallel.max_live_parameters: %lld; program %s gathers %lld elements at once, at "
        "instruction %u of module %s; lower parallel.prefetch, wrap smaller modules, or "
        "raise the limit",
        (long long)o->max_live, p->name, (long long)live, at, p->name_of[p->instr[at].path]);
}

/*
 * With KUMI_PROGRAM_TEXT set, what runs is what the text says: the program is printed, parsed, and
 * replaced by the parsed one; or with the name of a folder by NAME.txt there, in a pipeline by
 * NAME.ppK.txt of coordinate K, if it exists. For tests.
 */
static int through_text(const char *folder, struct ku_program **p)
{
    struct ku_str text = {0}, path = {0};
    struct ku_program *again = NULL;
    struct stat info;
    ku_str_add(&path, "%s/%s", folder, (*p)->name);
    if ((*p)->mesh.extent[KU_AX_PP] > 1)
        ku_str_add(&path, ".pp%d", (*p)->pp);
    ku_str_add(&path, ".txt");
    int status = ku_program_print(*p, NULL, &text);
    if (status == KUMI_OK && ku_os_stat(ku_str_get(&path), &info) == 0)
        status = ku_program_read(ku_str_get(&path), &again);
    else if (status == KUMI_OK)
        status = ku_program_parse((*p)->name, ku_str_get(&text), text.bytes, &again);
    ku_str_fini(&path);
    ku_str_fini(&text);
    if (status == KUMI_OK) {
        ku_program_destroy(*p);
        *p = again;
    }
    return status;
}

int ku_compile_program(const struct ku_graph *g, const char *name, const struct ku_compile_opts *o,
                       const struct ku_target *t, struct ku_program **out)
{
    struct ku_program *p = ku_calloc(1, sizeof *p);
    if (p == NULL)
        return KUMI_ENOMEM;
    snprintf(p->name, sizeof p->name, "%s", name);
    tell(o, name, "lower");
    int status = ku_pass_lower(g, o, t, p);
    KU_ASSERT(status < 0 || p->n_states + 1 == g->n_tensors);
    if (status == KUMI_OK)
        status = ku_pass_stream(p, o);
    tell(o, name, "memory");
    if (status == KUMI_OK)
        status = ku_pass_memory(p);
    if (status == KUMI_OK)
        status = check_live(p, o);
    if (status == KUMI_OK && ku_env("KUMI_PROGRAM_TEXT"))
        status = through_text(ku_env("KUMI_PROGRAM_TEXT"), &p);
    if (status < 0) {
        ku_program_destroy(p);
        return status;
    }
    *out = p;
    return KUMI_OK;
}

/*
 * Whether a tensor's initial value is what its memory holds from the start: devices and arenas hand
 * out zeros. Half of Adam's state is.
 */
static bool is_zero_at_first(const struct ku_graph *g, const struct ku_tensor *x)
{
    const double value = g->attr[x->init_attr].value;
    return x->kind != KU_T_DERIVED && x->offload == KU_OFFLOAD_NONE && x->init_op == KU_OP_fill &&
           value == 0 && !signbit(value);
}

/* Ranks that store chunks or slices of a tensor initialise these. */
static int place_initial(struct ku_graph *init, ku_id value, const struct ku_layout *stored)
{
    struct ku_layout l = ku_layout_all(KU_C);
    if (ku_layout_has(stored, KU_Z))
        l = *stored;
    for (int a = KU_AX_TP; a <= KU_AX_TPI; a++)
        if (stored->at[a].kind == KU_S)
            l.at[a] = stored->at[a];
    const ku_id layout = ku_graph_layout(init, &l);
    init->value[value].layout = layout;
    return layout ? KUMI_OK : KUMI_ENOMEM;
}

/* Builds a graph with the same tensors whose phase O makes their initial values; is_load: only the
 * derived tensors, from loaded parameters. */
static int build_init(const struct ku_graph *g, int is_load, struct ku_graph *init)
{
    int64_t words = KU_CONTROL_WORDS;
    struct ku_shape shape = ku_shape_of("w", &words);
    ku_id control = ku_graph_input(init, "control", KUMI_I64, &shape);
    if (control == 0)
        return ku_err_get()->status;
    for (ku_id t = 1; t < g->n_tensors; t++) {
        const struct ku_tensor *x = &g->tensor[t];
        ku_id made =
            ku_graph_tensor(init, x->name, x->kind, (enum kumi_dtype)x->dtype, &g->shape[x->shape]);
        if (made == 0)
            return ku_err_get()->status;
        struct ku_tensor copy = init->tensor[made];
        copy.first_block = x->first_block;
        copy.stage = x->stage;
        copy.offload = x->offload;
        copy.trainable = 0;
        init->tensor[made] = copy;
        if (x->of)
            ku_graph_belong(init, made, x->of);
        KU_TRY(place_initial(init, copy.value, &g->layout[g->value[x->value].layout]));
        if (is_zero_at_first(g, x) || (is_load && x->kind != KU_T_DERIVED))
            continue;
        struct ku_make m = {.op = x->init_op,
                            .phase = KU_PH_O,
                            .n_in = 1,
                            .in = {copy.value},
                            .path = x->name,
                            .attr = &g->attr[x->init_attr],
                            .stream = x->stream};
        if (ku_ops[x->init_op].traits & KU_OP_RANDOM)
            m.in[m.n_in++] = control;
        if (x->kind == KU_T_DERIVED) {
            m = (struct ku_make){.op = KU_OP_derive, .phase = KU_PH_O, .n_in = 2, .path = x->name};
            m.in[0] = init->tensor[x->of].next;
            m.in[1] = copy.value;
        }
        ku_id node = ku_graph_node(init, &m);
        if (node == 0)
            return ku_err_get()->status;
        KU_TRY(ku_place_node(init, node));
        init->tensor[made].next = ku_out(init, node, 0);
    }
    return KUMI_OK;
}

/* Partitions the initialisation, except counters and what is divided anyway, over ranks that share
 * memory: each fills its owned shard. */
static int partition_init(struct ku_graph *init)
{
    struct ku_layout blocks = ku_layout_all(KU_C);
    blocks.at[KU_AX_LOCAL].kind = KU_Z;
    ku_id layout = ku_graph_layout(init, &blocks);
    for (ku_id n = 1; n < init->n_nodes; n++) {
        ku_id out = ku_out(init, n, 0);
        int is_counter =
            init->tensor[init->value[ku_in(init, &init->node[n], 0)].tensor].kind == KU_T_COUNTER &&
            init->value[ku_in(init, &init->node[n], 0)].role == KU_STATE;
        if (!is_counter &&
            !ku_state_is_divided(&init->mesh, &init->layout[init->value[out].layout]))
            init->value[out].layout = layout;
    }
    return layout ? KUMI_OK : KUMI_ENOMEM;
}

int ku_compile_init(const struct ku_graph *g, int is_load, const struct ku_compile_opts *o,
                    const struct ku_target *t, struct ku_program **program)
{
    struct ku_graph *init = NULL;
    KU_TRY(ku_graph_create(&init));
    int status = build_init(g, is_load, init);
    init->mesh = g->mesh;
    init->mesh.extent[KU_AX_VS] = init->mesh.extent[KU_AX_MB] = 1;
    if (status == KUMI_OK && ku_state_is_common(&g->mesh))
        status = partition_init(init);
    if (status == KUMI_OK)
        status = ku_zero_gather(init);
    if (status == KUMI_OK)
        status = ku_compile_program(init, is_load ? "derive" : "init", o, t, program);
    ku_graph_destroy(init);
    return status;
}
