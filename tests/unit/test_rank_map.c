/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
/* Which rank has what: the map of a layout against the ownership that its programs have. */
#include "test_commands.h"

#include <math.h>

#include "base/mem.h"
#include "base/os/os.h"
#include "ir/state.h"
#include "plan/ranks/map.h"

#define WIDE    "model.n_embd=128", "model.n_head=4", "model.n_layer=4"
#define PRIVATE "parallel.host_state=private"

static struct kumi_settings settings_of(const struct files *f, const char *const *set)
{
    struct kumi_settings s = {.config = f->config, .set = set};
    while (set && set[s.n_sets])
        s.n_sets++;
    return s;
}

/* What a layout must look like, by part of the model, on its ranks. */
enum { ALL = -1 };
static const struct layout {
    const char *set[8], *hosts;
    int n;
    double attention, norms; /* width that a rank stores of each parameter */
    double optimizer;        /* likewise of the largest tensor's optimizer state */
    bool is_gathered;        /* parameters are whole for a part of the step */
    int64_t tokens, samples; /* of a rank, of 8 each */
    int shared;              /* ranks that have one copy of the parameters */
} layouts[] = {
    {{WIDE, PRIVATE}, NULL, 4, 1, 1, 1, 0, 8, 2, 1},
    {{WIDE, PRIVATE, "parallel.zero=1"}, NULL, 4, 1, 1, 0.25, 0, 8, 2, 1},
    {{WIDE, PRIVATE, "parallel.zero=3", "parallel.persist_below=0"},
     NULL,
     4,
     0.25,
     ALL,
     0.25,
     1,
     8,
     2,
     1},
    {{WIDE, PRIVATE, "parallel.zero=3", "parallel.shard=2", "parallel.persist_below=0"},
     NULL,
     4,
     0.5,
     ALL,
     0.5,
     1,
     8,
     2,
     1},
    {{WIDE}, NULL, 4, 1, 1, 1, 0, 8, 2, 4},
    {{WIDE, "parallel.zero=2", "parallel.host_state=shared"}, "a:2,b:2", 4, 1, 1, 0.25, 0, 8, 2, 2},
    {{WIDE, "parallel.tp=2"}, NULL, 2, 0.5, 1, 0.5, 0, 8, 8, 1},
    {{WIDE, "parallel.tp=2", "parallel.sp=true"}, NULL, 4, 0.5, 1, 0.5, 0, 4, 4, 1},
    {{WIDE, "parallel.tp=2", "parallel.zero=1"}, NULL, 4, 0.5, 1, 0.25, 0, 8, 4, 1},
    {{WIDE, "parallel.pp=2", "train.micro_batch=2"}, NULL, 4, 1, 1, 1, 0, 8, 4, 1},
    {{WIDE, "parallel.pp=2", "parallel.tp=2", "train.micro_batch=2"},
     NULL,
     8,
     0.5,
     1,
     0.5,
     0,
     8,
     4,
     1}};

/* The state of this name in a program. */
static const struct ku_program_state *state_of(const struct ku_program *p, const char *name)
{
    for (uint32_t s = 0; s < p->n_states; s++)
        if (strcmp(p->name_of[p->state[s].name], name) == 0)
            return &p->state[s];
    fail_msg("no state %s", name);
    return NULL;
}

/* The elements are those of the program, and over the ranks they add up to whole tensors. */
static void check_item(const struct ku_rank_map *m, const struct ku_program *p,
                       const struct ku_rank_item *x)
{
    const struct ku_program_state *s = state_of(p, m->g->tensor[x->tensor].name);
    double sum = 0;
    for (int i = 0; i < m->n_columns; i++) {
        const struct ku_coord *at = &m->column[i].at;
        struct ku_rank_extent e = {.count = 0};
        int64_t begin = 0,
                end = ku_program_slice_count(&p->mesh, &p->shape[s->shape], &p->layout[s->split]);
        const bool has = ku_rank_extent_of(m, x, i, &e);
        if (x->is_kept && s->is_kept)
            ku_state_owned(p, s, at, &begin, &end);
        if (!ku_state_is_here(s, at->at[KU_AX_PP]))
            end = begin;
        assert_true(has || e.count == 0);
        assert_int_equal(has ? e.count : 0, end - begin);
        assert_true(fabs((e.own[1] - e.own[0]) * (double)x->count - (double)e.count) < 1);
        assert_true(0 <= e.slice[0] && e.slice[0] <= e.own[0] + 1e-9 &&
                    e.own[1] <= e.slice[1] + 1e-9 && e.slice[1] <= 1 + 1e-9);
        sum += e.own[1] - e.own[0];
    }
    const double copies = sum + 1e-9; /* each element is stored as often as every other */
    assert_true(copies >= 1 && fabs(copies - round(copies)) < 1e-6);
}

static const struct ku_rank_item *largest_of(const struct ku_rank_map *m, int kind, int part)
{
    const struct ku_rank_item *most = NULL;
    for (uint32_t k = 0; k < m->n_items; k++)
        if (m->item[k].kind == kind && m->item[k].part == part &&
            (most == NULL || m->item[k].count > most->count))
            most = &m->item[k];
    assert_non_null(most);
    return most;
}

/* Of the ranks that have the tensor: the width that they store. */
static void check_width(const struct ku_rank_map *m, int kind, int part, double width,
                        bool is_gathered)
{
    const struct ku_rank_item *x = largest_of(m, kind, part);
    struct ku_rank_extent e;
    for (int i = 0; i < m->n_columns && width != ALL; i++) {
        if (!ku_rank_extent_of(m, x, i, &e) || e.count == 0)
            continue;
        assert_true(fabs(e.own[1] - e.own[0] - width) < 0.1); /* owners differ by a chunk */
        assert_true(!is_gathered || e.slice[1] - e.slice[0] == 1);
    }
}

static void check_layout(const struct files *f, const struct layout *l)
{
    const struct kumi_settings s = settings_of(f, l->set);
    struct ku_rank_map m;
    struct ku_plan plan, opened;
    int64_t begin, end, n;
    assert_status(ku_plan_open_at(&opened, &s, l->hosts, NULL, l->n), KUMI_OK);
    assert_status(ku_rank_map_init(&m, &opened), KUMI_OK);
    assert_status(ku_plan_open_at(&plan, &s, l->hosts, NULL, l->n), KUMI_OK);
    assert_status(ku_plan_compile(&plan, NULL, NULL), KUMI_OK);
    assert_int_equal(m.n_columns, l->n);
    for (uint32_t k = 0; k < m.n_items; k++)
        if (m.item[k].kind != KU_SK_GRADS)
            check_item(&m, plan.program[KU_PROG_TRAIN], &m.item[k]);
    check_width(&m, KU_SK_PARAMS, KU_MP_ATTENTION, l->attention, l->is_gathered);
    check_width(&m, KU_SK_PARAMS, KU_MP_NORMS, l->norms, 0);
    check_width(&m, KU_SK_OPTIMIZER, KU_MP_ATTENTION, l->optimizer, 0);
    for (int i = 0; i < m.n_columns; i++) {
        ku_rank_samples(&m, i, &begin, &end, &n);
        assert_int_equal(n, 8);
        assert_int_equal(end - begin, l->samples);
        assert_int_equal(begin % l->samples, 0);
        ku_rank_tokens(&m, i, &begin, &end, &n);
        assert_int_equal(n, 8);
        assert_int_equal(end - begin, l->tokens);
    }
    assert_int_equal(largest_of(&m, KU_SK_PARAMS, KU_MP_TABLES)->is_common, l->shared > 1);
    assert_true(m.n_exchanges > 0);
    ku_rank_map_fini(&m);
    ku_plan_fini(&opened);
    ku_plan_fini(&plan);
}

static void test_layouts(void **state)
{
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        check_layout(*state, &layouts[i]);
}

/* A table that the first and the last stage read is stored by one and received by the other; a
 * frozen parameter has no gradient; gradients of stage 2 are owned chunks, of stage 1 whole. */
static void test_gradients(void **state)
{
    static const struct {
        const char *set[7];
        double stored; /* of a table's gradient */
    } row[] = {{{WIDE, "parallel.pp=4", "train.micro_batch=2"}, 1},
               {{WIDE, PRIVATE, "parallel.zero=1"}, 1},
               {{WIDE, PRIVATE, "parallel.zero=2"}, 0.25}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const struct kumi_settings s = settings_of(*state, row[i].set);
        struct ku_rank_extent first, last;
        struct ku_rank_map m;
        struct ku_plan plan;
        assert_status(ku_plan_open_at(&plan, &s, NULL, NULL, 4), KUMI_OK);
        assert_status(ku_rank_map_init(&m, &plan), KUMI_OK);
        const struct ku_rank_item *x = largest_of(&m, KU_SK_GRADS, KU_MP_TABLES);
        assert_true(ku_rank_extent_of(&m, x, 0, &first) && ku_rank_extent_of(&m, x, 3, &last));
        assert_true(fabs(first.own[1] - first.own[0] - row[i].stored) < 0.1);
        assert_true(first.slice[1] == 1 && last.slice[1] == 1);
        assert_true((last.count == 0) == (i == 0));
        assert_true(i > 0 || !ku_rank_extent_of(&m, x, 1, &first));
        ku_rank_map_fini(&m);
        ku_plan_fini(&plan);
    }
    const struct kumi_settings s =
        settings_of(*state, (const char *[]){"train.freeze=[\"wte*\", \"wpe*\"]", NULL});
    struct ku_rank_map m;
    struct ku_plan plan;
    assert_status(ku_plan_open_at(&plan, &s, NULL, NULL, 1), KUMI_OK);
    assert_status(ku_rank_map_init(&m, &plan), KUMI_OK);
    for (uint32_t k = 0; k < m.n_items; k++)
        assert_true(m.item[k].kind != KU_SK_GRADS || m.item[k].part != KU_MP_TABLES);
    assert_int_equal(m.n_exchanges, 0);
    ku_rank_map_fini(&m);
    ku_plan_fini(&plan);
}

/* Of many ranks the first ones and the last one of each axis are columns. */
static void test_columns(void **state)
{
    static const struct {
        const char *set[7];
        int n, n_columns, last, n_gaps;
    } row[] = {{{WIDE, "train.global_batch=64", PRIVATE}, 64, 16, 63, 1},
               {{WIDE, "train.global_batch=256", "parallel.tp=4"}, 256, 16, 255, 1},
               {{WIDE, "train.global_batch=64", "parallel.tp=4", "parallel.pp=4"}, 64, 16, 63, 3},
               {{WIDE, "train.global_batch=64", "parallel.tp=2", "parallel.pp=2"}, 16, 16, 15, 0}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const struct kumi_settings s = settings_of(*state, row[i].set);
        struct ku_rank_map m;
        struct ku_plan plan;
        int n_gaps = 0;
        assert_status(ku_plan_open_at(&plan, &s, NULL, NULL, row[i].n), KUMI_OK);
        assert_status(ku_rank_map_init(&m, &plan), KUMI_OK);
        assert_int_equal(m.n_columns, row[i].n_columns);
        assert_int_equal(m.column[m.n_columns - 1].rank, row[i].last);
        for (int k = 0; k < m.n_columns; k++) {
            n_gaps += m.column[k].is_after_gap;
            assert_int_equal(ku_mesh_rank(&m.mesh, &m.column[k].at), m.column[k].rank);
        }
        assert_int_equal(n_gaps, row[i].n_gaps);
        ku_rank_map_fini(&m);
        ku_plan_fini(&plan);
    }
}

/* The SVG is text, and equal each time. */
static void test_draw(void **state)
{
    static const char *const words[] = {"heads 2-3",        "tokens 4-7", "samples",
                                        "rank 3",           "attention",  "optimizer state",
                                        "reduce-scatter of"};
    static const char *const set[] = {WIDE, "parallel.tp=2", "parallel.sp=true", NULL};
    const struct files *f = *state;
    const struct kumi_settings s = settings_of(f, set), small = settings_of(f, NULL);
    char path[96], *text[2];
    size_t bytes;
    snprintf(path, sizeof path, "%s/ranks.svg", f->folder);
    for (int i = 0; i < 2; i++) {
        int status = kumi_plan_mesh_picture(&s, NULL, NULL, 4, path);
        if (status == KUMI_EINVAL && strstr(kumi_last_error()->text, "libcairo2-dev"))
            skip();
        assert_status(status, KUMI_OK);
        assert_int_equal(ku_os_slurp(path, 1 << 24, &text[i], &bytes), 0);
    }
    assert_string_equal(text[0], text[1]);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strstr(text[0], words[i]) == NULL)
            fail_msg("no %s", words[i]);
    ku_free(text[0]);
    ku_free(text[1]);
    with_faults(kumi_plan_mesh_picture(&small, NULL, NULL, 2, path));
    assert_error(kumi_plan_mesh_picture(&small, NULL, NULL, 2, "a.gif"), KUMI_EINVAL,
                 "plan: --picture: a.gif: give a name that ends");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layouts),
                                       cmocka_unit_test(test_gradients),
                                       cmocka_unit_test(test_columns), cmocka_unit_test(test_draw)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
