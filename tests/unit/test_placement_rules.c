/* SPDX-License-Identifier: Apache-2.0 */
/* links: pass nn ir op tensor base */
/*
 * Placement rules: every combination of placements of the operands of an op, on a rank axis. The
 * rows name the legal ones with their result; all others must be refused. Then the changes that a
 * convert may make, and golden graphs in which one placement was changed.
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
#include "base/os/os.h"
#include "base/str.h"
#include "ir/graph.h"
#include "ir/placement_rules.h"

/*
 * operands: "nc": a parameter with these dims; "#n": i32 that depends on no parameter; "!w": i64.
 * legal: placements of the operands ("C", "Sn") and, after '>', of all results.
 */
static const struct row {
    int op;
    const char *operands, *attrs, *legal;
} rows[] = {
    {KU_OP_add, "nc nc", "", "C C>C;R R>R;P P>P;Sn Sn>Sn;Sc Sc>Sc"},
    {KU_OP_mul, "nc nc", "", "C C>C;R R>R;Sn Sn>Sn;Sc Sc>Sc"},
    {KU_OP_glu, "nf nf", "", "C C>C;R R>R;Sn Sn>Sn;Sf Sf>Sf"},
    {KU_OP_act, "nc", "act=relu", "C>C;R>R;Sn>Sn;Sc>Sc"},
    {KU_OP_act_dx, "nc nc", "act=relu", "C C>C;R R>R;Sn Sn>Sn;Sc Sc>Sc"},
    {KU_OP_scale, "nc", "", "C>C;R>R;P>P;Sn>Sn;Sc>Sc"},
    {KU_OP_cast, "nc", "dtype=bf16", "C>C;R>R;P>P;Sn>Sn;Sc>Sc"},
    {KU_OP_dropout, "nc !w", "p=0.5", "C C>C;R C>R;R R>R;Sn C>Sn;Sn R>Sn;Sc C>Sc;Sc R>Sc"},
    {KU_OP_linear, "nc cf", "", "C C>C;R R>R;Sn R>Sn;Sc Sc>P;R Sf>Sf;P R>P"},
    {KU_OP_linear, "nc cf f", "", "C C C>C;R R R>R;Sn R R>Sn;R Sf Sf>Sf"},
    {KU_OP_linear, "nc cf", "act=relu", "C C>C;R R>R;Sn R>Sn;R Sf>Sf"},
    {KU_OP_linear, "nc cf", "dtype=bf16", "C C>C;R R>R;Sn R>Sn;Sc Sc>P;R Sf>Sf;P R>P"},
    {KU_OP_linear, "~nc ~cf", "", "C C>C;R R>R;Sn R>Sn;R Sf>Sf;P R>P"},
    {KU_OP_linear_dx, "nf cf", "", "C C>C;R R>R;Sn R>Sn;Sf Sf>P;R Sc>Sc;P R>P"},
    {KU_OP_linear_dw, "nc nf", "", "C C>C;R R>R;R P>P;Sn Sn>P;Sc R>Sc;R Sf>Sf"},
    {KU_OP_linear_db, "nf", "", "C>C;R>R;P>P;Sn>P;Sf>Sf"},
    {KU_OP_bias_add, "nc c", "", "C C>C;R R>R;Sn R>Sn;Sc Sc>Sc"},
    {KU_OP_embedding, "vc #n", "", "C C>C;R C>R;R R>R;Sv C>P;Sv R>P;R Sn>Sn;Sc C>Sc;Sc R>Sc"},
    {KU_OP_embedding_dw, "#n nc", "rows=8 rows_seen=8 row_name=118",
     "C C>C;C R>R;R R>R;Sn Sn>P;C Sc>Sc;R Sc>Sc"},
    {KU_OP_embedding_dw, "#n nc", "rows=8 rows_seen=8 row_name=118 axes=tp", "C R>Sv;R R>Sv"},
    {KU_OP_add_rows, "ntc pc", "", "C C>C;R R>R;Sn R>Sn;St R>St;Sc Sc>Sc"},
    {KU_OP_layer_norm, "nc c c", "", "C C C>C;R R R>R;Sn R R>Sn"},
    {KU_OP_rms_norm, "nc c", "", "C C>C;R R>R;Sn R>Sn"},
    {KU_OP_attention, "ntqhd !w", "", "C C>C;R C>R;R R>R;Sn C>Sn;Sn R>Sn;Sh C>Sh;Sh R>Sh"},
    {KU_OP_attention_kv, "nthd nshd nshd !w", "",
     "C C C C>C;R R R C>R;R R R R>R;Sn Sn Sn C>Sn;Sn Sn Sn R>Sn;Sh Sh Sh C>Sh;Sh Sh Sh R>Sh"},
    {KU_OP_attention_kv, "nthrd nshd nshd !w", "",
     "C C C C>C;R R R C>R;R R R R>R;Sn Sn Sn C>Sn;Sn Sn Sn R>Sn;Sh Sh Sh C>Sh;Sh Sh Sh R>Sh;"
     "Sr R R C>Sr;Sr R R R>Sr"},
    {KU_OP_rope, "nthd", "", "C>C;R>R;P>P;Sn>Sn;St>St;Sh>Sh"},
    {KU_OP_rope, "nthrd", "", "C>C;R>R;P>P;Sn>Sn;St>St;Sh>Sh;Sr>Sr"},
    {KU_OP_softmax_xent, "nv #n", "", "C C>C;R C>R;R R>R;Sn Sn>Sn"},
    {KU_OP_softmax_xent_dx, "n nv #n n", "",
     "C C C C>C;C R C C>R;C R R C>R;C R C R>R;C R R R>R;R C C C>R;R C C R>R;R C R C>R;R C R R>R;"
     "C C C R>R;C C R C>R;C C R R>R;R R C C>R;R R C R>R;R R R C>R;R R R R>R;Sn Sn Sn Sn>Sn;"
     "C Sv C C>Sv;C Sv C R>Sv;C Sv R C>Sv;C Sv R R>Sv;R Sv C C>Sv;R Sv C R>Sv;R Sv R C>Sv;"
     "R Sv R R>Sv"},
    {KU_OP_xent_max, "nv", "", "C>C;R>R;Sn>Sn;Sv>P"},
    {KU_OP_xent_sums, "nv n #n", "",
     "C C C>C;C C R>R;C R C>R;C R R>R;R C C>R;R C R>R;R R C>R;R R R>R;Sn Sn Sn>Sn;"
     "Sv C C>P;Sv C R>P;Sv R C>P;Sv R R>P"},
    {KU_OP_xent_finish, "nv n nq #n", "",
     "C C C C>C;R R R C>R;R R R R>R;Sn Sn Sn Sn>Sn;Sv C C C>C"},
    {KU_OP_top_k, "nv #n", "", "C C>C;R C>R;R R>R;Sn Sn>Sn"},
    {KU_OP_exact_sum, "n", "", "C>C;R>R;Sn>P"},
    {KU_OP_max_all, "nc", "", "C>C;R>R;Sn>P;Sc>P"},
    {KU_OP_count_valid, "#n", "", "C>C;R>R;Sn>P"},
};

static int64_t count_of(char dim)
{
    return dim == 'q' ? 3 : dim == 'w' ? 4 : 8;
}

/* The operands of a row as values of a new graph; one node of the op. */
static struct ku_graph *one_node(const struct row *r, ku_id *node)
{
    struct ku_graph *g;
    struct ku_attrs a = ku_attrs_default;
    struct ku_make m = {.op = r->op, .phase = KU_PH_F, .attr = &a, .path = "m", .is_silent = 1};
    char text[128], name[8], *save = NULL, *pair;
    assert_int_equal(ku_graph_create(&g), 0);
    snprintf(text, sizeof text, "%s", r->attrs);
    for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        pair = strchr(word, '=');
        *pair = '\0';
        assert_int_equal(ku_attrs_set(&a, word, pair + 1), 0);
    }
    snprintf(text, sizeof text, "%s", r->operands);
    for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        const char *dims = strchr("#!~", *word) ? word + 1 : word; /* i32, i64, bf16 */
        int64_t count[KU_MAX_DIMS];
        for (int d = 0; dims[d]; d++)
            count[d] = count_of(dims[d]);
        struct ku_shape s = ku_shape_of(dims, count);
        snprintf(name, sizeof name, "v%d", m.n_in);
        const enum kumi_dtype dtype = *word == '~' ? KUMI_BF16 : KUMI_F32;
        if (*word == '#' || *word == '!')
            m.in[m.n_in] = ku_graph_input(g, name, *word == '#' ? KUMI_I32 : KUMI_I64, &s);
        else
            m.in[m.n_in] = g->tensor[ku_graph_tensor(g, name, KU_T_PARAM, dtype, &s)].value;
        m.n_in++;
    }
    *node = ku_graph_node(g, &m);
    if (*node == 0)
        fail_msg("%s", ku_err_get()->text);
    return g;
}

/* Alternative i of a value's placement on the axis: C, R, P, then S of each dim. */
static void place(struct ku_graph *g, ku_id value, int axis, int i, char out[4])
{
    struct ku_layout l = ku_layout_all(KU_C);
    l.at[axis].kind = (uint16_t)(i < 3 ? i : KU_S);
    l.at[axis].dim = (uint16_t)(i < 3 ? 0 : i - 3);
    g->value[value].layout = ku_graph_layout(g, &l);
    snprintf(out, 4, i < 3 ? "%c" : "S%c",
             i < 3 ? "CRP"[i] : g->shape[g->value[value].shape].dim[i - 3].name);
}

/* Finds "C R>" in the legal rows: the result, or NULL. */
static const char *legal(const struct row *r, const char *operands)
{
    size_t bytes = strlen(operands);
    for (const char *p = r->legal; p; p = strchr(p, ';') ? strchr(p, ';') + 1 : NULL)
        if (strncmp(p, operands, bytes) == 0 && p[bytes] == '>')
            return p + bytes + 1;
    return NULL;
}

static void check_result(const struct ku_graph *g, ku_id node, int axis,
                         const struct ku_layout *out, const char *want, const char *operands)
{
    for (int o = 0; o < g->node[node].n_out; o++) {
        struct ku_place p = out[o].at[axis];
        const struct ku_shape *s = &g->shape[g->value[ku_out(g, node, o)].shape];
        char name = p.kind == KU_S ? s->dim[p.dim].name : want[1];
        if ("CRPSZ"[p.kind] != want[0] || (p.kind == KU_S && name != want[1]))
            fail_msg("%s (%s): result %d is %c, expected %.2s", ku_ops[g->node[node].op].name,
                     operands, o, "CRPSZ"[p.kind], want);
    }
}

static int n_refused;

static void check_row(const struct row *r, int axis)
{
    ku_id node;
    struct ku_graph *g = one_node(r, &node);
    const int n_in = g->node[node].n_in;
    int at[KU_MAX_IN] = {0}, n_legal = 0, n_rows = 1, i;
    for (const char *p = r->legal; *p; p++)
        n_rows += *p == ';';
    do {
        char text[64] = "", one[4];
        struct ku_layout out[KU_MAX_OUT];
        for (i = 0; i < n_in; i++) {
            place(g, ku_in(g, &g->node[node], i), axis, at[i], one);
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? " " : "", one);
        }
        const char *want = legal(r, text);
        int status = ku_place_infer(g, node, out);
        if (want && status < 0)
            fail_msg("%s (%s): %s", ku_ops[r->op].name, text, ku_err_get()->text);
        if (want == NULL && status == KUMI_OK)
            fail_msg("%s %s (%s): not refused", ku_ops[r->op].name, r->attrs, text);
        if (want)
            check_result(g, node, axis, out, want, text);
        else
            assert_non_null(strstr(ku_err_get()->text, ku_axis_name(axis)));
        n_legal += want != NULL;
        n_refused += want == NULL;
        for (i = 0; i < n_in; i++) { /* the next combination */
            const ku_id v = ku_in(g, &g->node[node], i);
            if (++at[i] < 3 + g->shape[g->value[v].shape].ndim)
                break;
            at[i] = 0;
        }
    } while (i < n_in);
    assert_int_equal(n_legal, n_rows);
    ku_graph_destroy(g);
}

static void combinations(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_row(&rows[i], KU_AX_TP);
    assert_true(n_refused >= 100);
}

/* What the message of a wrong sum says. */
static void wrong_sums(void **state)
{
    static const struct {
        struct row row;
        int at[3]; /* alternatives, as of place */
        const char *text;
    } wrong[] = {
        {{KU_OP_linear, "nc cf f", "", ""},
         {4, 3, 1},
         "linear m, axis tp, operands (S(c), S(c), R): the bias"},
        {{KU_OP_linear, "nc cf", "act=relu", ""}, {4, 3}, "the activation of a partial sum"},
        {{KU_OP_add, "nc nc", "", ""}, {2, 0}, "(P, C): an operand is C beside R, P or S"},
        {{KU_OP_add, "nc nc", "", ""}, {2, 1}, "(P, R): a partial sum is added to partial sums"},
        {{KU_OP_linear, "nc cf", "", ""}, {0, 4}, "(C, S(f)): an operand is C beside"},
        {{KU_OP_linear, "nc cf", "", ""}, {1, 2}, "(R, P): the op is linear in its first"},
        {{KU_OP_act, "nc", "act=relu", ""}, {2}, "(P): only linear ops"},
        {{KU_OP_linear, "~nc ~cf", "", ""}, {4, 3}, "a partial product is f32"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ku_id node;
        char one[4];
        struct ku_layout out[KU_MAX_OUT];
        struct ku_graph *g = one_node(&wrong[i].row, &node);
        for (int k = 0; k < g->node[node].n_in; k++)
            place(g, ku_in(g, &g->node[node], k), KU_AX_TP, wrong[i].at[k], one);
        assert_int_equal(ku_place_infer(g, node, out), KUMI_EINVAL);
        if (strstr(ku_err_get()->text, wrong[i].text) == NULL)
            fail_msg("%s\nlacks: %s", ku_err_get()->text, wrong[i].text);
        ku_graph_destroy(g);
    }
}

/* Placements by letter: n and c are the dims. */
static struct ku_place place_of(char letter)
{
    if (letter == 'n' || letter == 'c')
        return (struct ku_place){KU_S, letter == 'c'};
    return (struct ku_place){(uint16_t)(strchr("CRPSZ", letter) - "CRPSZ"), 0};
}

static void converts(void **state)
{
    static const char letters[] = "CRPncZ";
    static const struct {
        int axis, phase;
        const char *legal; /* from, to */
    } cases[] = {
        {KU_AX_TP, KU_PH_F, "CR Cn Cc PC PR Pn Pc nR nC nc cR cC cn ZC ZR"},
        {KU_AX_LOCAL, KU_PH_O, "CR Cn Cc PC PR Pn Pc nR nC nc cR cC cn ZC ZR PZ CZ RZ RC"},
        {KU_AX_MB, KU_PH_O, "PC"},
        {KU_AX_MB, KU_PH_F, ""},
    };
    int n_bad = 0;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int k = 0; k < 36; k++) {
            const char pair[3] = {letters[k / 6], letters[k % 6], '\0'};
            const int64_t count[2] = {8, 8};
            struct ku_shape s = ku_shape_of("nc", count);
            struct ku_graph *g;
            struct ku_layout from = ku_layout_all(KU_C), to = from;
            from.at[cases[i].axis] = place_of(pair[0]);
            to.at[cases[i].axis] = place_of(pair[1]);
            assert_int_equal(ku_graph_create(&g), 0);
            ku_id x = g->tensor[ku_graph_tensor(g, "x", KU_T_PARAM, KUMI_F32, &s)].value;
            ku_id node = ku_graph_node(g, &(struct ku_make){.op = KU_OP_convert,
                                                            .phase = cases[i].phase,
                                                            .n_in = 1,
                                                            .in = {x},
                                                            .path = "m",
                                                            .is_silent = 1});
            assert_int_not_equal(node, 0);
            g->value[x].layout = ku_graph_layout(g, &from);
            g->value[ku_out(g, node, 0)].layout = ku_graph_layout(g, &to);
            const int want = pair[0] == pair[1] || strstr(cases[i].legal, pair) != NULL;
            if ((ku_place_check_convert(g, node) == KUMI_OK) != want)
                fail_msg("convert %s on %s in %s", pair, ku_axis_name(cases[i].axis),
                         ku_phase_name(cases[i].phase));
            n_bad += !want;
            ku_graph_destroy(g);
        }
    assert_true(n_bad > 60);
}

/* 1 if an edited golden text is refused: by the parser or by the verifier. */
static int is_refused(const char *text, size_t bytes, uint32_t has)
{
    struct ku_graph *g;
    if (ku_graph_parse("edited", text, bytes, &g) < 0)
        return 1;
    g->has = has;
    int status = ku_graph_verify(g);
    ku_graph_destroy(g);
    return status < 0;
}

static const char *line_of(const char *text, size_t at)
{
    while (at && text[at - 1] != '\n')
        at--;
    return text + at;
}

/*
 * Each placement of each value of a golden graph, changed to each other kind. C and R hold the same
 * data, so the one may stand for the other where there is no adjoint: in phase O, in state that
 * only O reads, and in ports. What O reads may be
 * in blocks or whole: after pass zero these are other layouts, not wrong ones.
 */
static void mutations(void **state)
{
    static const struct {
        const char *name;
        uint32_t has;
    } golden[] = {
        {"after_placement", KU_HAS_PLACEMENT},
        {"after_autodiff", KU_HAS_PLACEMENT | KU_HAS_GRADIENTS},
        {"after_update", KU_HAS_PLACEMENT | KU_HAS_GRADIENTS | KU_HAS_UPDATE},
        {"after_zero", KU_HAS_PLACEMENT | KU_HAS_GRADIENTS | KU_HAS_UPDATE | KU_HAS_ZERO},
    };
    int n_edits = 0;
    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof golden[0]; i++) {
        char path[512], *text = NULL;
        size_t bytes = 0;
        snprintf(path, sizeof path, "%s/tests/golden/%s.txt", KUMI_SOURCE_DIR, golden[i].name);
        assert_int_equal(ku_os_slurp(path, 1 << 22, &text, &bytes), 0);
        assert_false(is_refused(text, bytes, golden[i].has));
        char *edited = ku_calloc(bytes + 1, 1);
        assert_non_null(edited);
        for (size_t at = 1; at < bytes; at++) {
            if (text[at - 1] != ':' || strchr("RPSZ", text[at]) == NULL ||
                strchr(" }(", text[at + 1]) == NULL)
                continue;
            const size_t skip = text[at] == 'S' ? 4 : 1; /* "S(n)" */
            for (const char *kind = "CRPZ"; *kind; kind++) {
                if (*kind == text[at] || (*kind == 'C' && text[at] == 'R') ||
                    (text[at] == 'Z' && *kind != 'P') ||
                    (*kind == 'Z' && (golden[i].has & KU_HAS_ZERO) &&
                     strncmp(line_of(text, at), "state ", 6) == 0))
                    continue;
                memcpy(edited, text, at);
                edited[at] = *kind;
                memcpy(edited + at + 1, text + at + skip, bytes - at - skip);
                n_edits++;
                if (!is_refused(edited, bytes - skip + 1, golden[i].has))
                    fail_msg("%s: accepted with %c at %zu: %.160s", golden[i].name, *kind,
                             (size_t)(text + at - line_of(text, at)), line_of(text, at));
            }
        }
        ku_free(edited);
        ku_free(text);
    }
    assert_true(n_edits > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(combinations),
        cmocka_unit_test(wrong_sums),
        cmocka_unit_test(converts),
        cmocka_unit_test(mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
