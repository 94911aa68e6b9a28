/* SPDX-License-Identifier: Apache-2.0 */
/* links: base pass */
/*
 * Pipeline schedules: bubbles and micro-batches in flight by the papers' formulas and tables, and
 * the text form.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/str.h"
#include "pass/pipe/block_schedule.h"

static const struct ku_block_cost unit = {1, 1, 1, 0, NULL};

static struct ku_pp_schedule *make(const char *name, int p, int v, int m)
{
    struct ku_pp_schedule *s;
    if (ku_pp_schedule_create(name, p, v, m, &s) < 0)
        fail_msg("%s, %d ranks, %d micro-batches: %s", name, p, m, ku_err_get()->text);
    return s;
}

static double bubble_of(const struct ku_pp_schedule *s, const struct ku_block_cost *cost)
{
    double bubble = -1;
    assert_int_equal(ku_pp_schedule_bubble(s, cost, 0, &bubble), KUMI_OK);
    return bubble;
}

static double makespan_of(const struct ku_pp_schedule *s, const struct ku_block_cost *cost)
{
    double makespan = -1;
    assert_int_equal(ku_pp_schedule_run(s, cost, NULL, NULL, &makespan, NULL), KUMI_OK);
    return makespan;
}

static void expect_bubble(const char *name, int p, int v, int m, double want)
{
    struct ku_pp_schedule *s = make(name, p, v, m);
    const double got = bubble_of(s, &unit);
    if (fabs(got - want) > 1e-12)
        fail_msg("%s, %d ranks, %d micro-batches: bubble %.6f, expected %.6f", name, p, m, got,
                 want);
    ku_pp_schedule_destroy(s);
}

/* Huang et al. 2019; Narayanan et al. 2021, section 2.2; Qi et al. 2023, 2024. */
static void bubbles(void **state)
{
    (void)state;
    for (int p = 2; p <= 8; p++)
        for (int m = p; m <= 4 * p; m++) {
            expect_bubble("gpipe", p, 1, m, (p - 1.0) / (m + p - 1));
            expect_bubble("1f1b", p, 1, m, (p - 1.0) / (m + p - 1));
            for (int v = 2; v <= 4 && m % p == 0; v++)
                expect_bubble("interleaved", p, v, m, (p - 1.0) / (v * m + p - 1));
            expect_bubble("zb-h1", p, 1, m, (p - 1.0) / (3 * m + p - 1));
            if (m >= 2 * p)
                expect_bubble("zb-h2", p, 1, m, 0);
            if (m >= 2 * p - 1)
                expect_bubble("zb-v", p, 1, m, 0);
        }
}

static void in_flight(void **state)
{
    (void)state;
    for (int p = 2; p <= 8; p++)
        for (int m = p; m <= 4 * p; m += p) {
            struct ku_pp_schedule *g = make("gpipe", p, 1, m), *o = make("1f1b", p, 1, m);
            for (int r = 0; r < p; r++) {
                assert_int_equal(ku_pp_schedule_peak(g, r), m);
                assert_int_equal(ku_pp_schedule_peak(o, r), p - r);
            }
            ku_pp_schedule_destroy(g);
            ku_pp_schedule_destroy(o);
        }
}

/* Both ways of every micro-batch between neighbouring stages on two ranks, each once. */
static void transfers(void **state)
{
    enum { P = 4, M = 8 };
    (void)state;
    for (const char *const *name = ku_pp_schedule_names(); *name; name++) {
        struct ku_pp_schedule *s = make(*name, P, 2, M);
        const uint32_t n = s->first[s->n_ranks];
        double *begin = calloc(n, sizeof *begin), *end = calloc(n, sizeof *end), makespan;
        int64_t *reader = calloc(n, sizeof *reader);
        int want = 0, got = 0;
        assert_true(begin && end && reader);
        assert_int_equal(ku_pp_schedule_run(s, &unit, begin, end, &makespan, NULL), KUMI_OK);
        assert_int_equal(ku_pp_schedule_readers(s, reader), KUMI_OK);
        for (int k = 1; k < s->n_stages; k++)
            want += s->rank_of[k] != s->rank_of[k - 1] ? 2 * M : 0;
        for (uint32_t i = 0; i < n; i++) {
            if (reader[i] == KU_NO_BLOCK)
                continue;
            const struct ku_block *b = &s->block[i], *to = &s->block[reader[i]];
            assert_int_equal(to->micro, b->micro);
            assert_int_equal(to->stage, b->stage + (b->kind == KU_BL_F ? 1 : -1));
            assert_int_equal(to->kind, b->kind);
            assert_int_not_equal(s->rank_of[to->stage], s->rank_of[b->stage]);
            assert_true(begin[reader[i]] >= end[i]);
            got++;
        }
        assert_int_equal(got, want);
        free(begin), free(end), free(reader);
        ku_pp_schedule_destroy(s);
    }
}

/*
 * V-Half idles for about half of 1F1B's time in about half of its memory, V-Min for 3/4 in a third
 * (Qi et al. 2024, section 3.3), with their stages half as long; neither waits for ever at any m.
 */
static void v_shapes(void **state)
{
    static const char *const name[] = {"v-half", "v-min"};
    static const double most_idle[] = {0.60, 0.75};
    (void)state;
    for (int is_min = 0; is_min < 2; is_min++)
        for (int p = 1; p <= 32; p++)
            for (int m = 1; m <= 3 * p; m += m < p ? 1 : p) {
                struct ku_pp_schedule *s = make(name[is_min], p, 1, m);
                const double idle = makespan_of(s, &unit) - 6 * m;
                for (int r = 0; r < p; r++)
                    assert_true(ku_pp_schedule_peak(s, r) <= ku_pp_v_limit(p, is_min));
                if (m >= 2 * p && idle > most_idle[is_min] * 6 * (p - 1))
                    fail_msg("%s, %d ranks, %d micro-batches: idle for %.0f", name[is_min], p, m,
                             idle);
                ku_pp_schedule_destroy(s);
            }
    assert_int_equal(ku_pp_v_limit(8, 0), 10);
    assert_int_equal(ku_pp_v_limit(8, 1), 8);
    assert_int_equal(ku_pp_v_limit(64, 0), 66);
    assert_int_equal(ku_pp_v_limit(64, 1), 44);
}

/*
 * Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024: times of Table 9 (ms), bubble rates of
 * Table 5 to the printed digit. A transfer is a pure latency.
 */
static void published(void **state)
{
    static const struct {
        int p, m;
        double f, b, w, comm, bubble[3];
    } row[] = {
        {8, 24, 18.522, 18.086, 9.337, 0.601, {0.2431, 0.1585, 0.1083}},
        {8, 32, 18.513, 18.086, 9.331, 0.626, {0.1985, 0.1242, 0.0837}},
        {8, 64, 18.546, 18.097, 9.321, 0.762, {0.1240, 0.0674, 0.0444}},
        {8, 24, 29.718, 29.444, 19.927, 0.527, {0.2347, 0.1323, 0.0698}},
        {8, 32, 29.802, 29.428, 19.530, 0.577, {0.1898, 0.1045, 0.0559}},
        {8, 64, 29.935, 29.621, 19.388, 0.535, {0.1091, 0.0554, 0.0294}},
        {16, 48, 11.347, 11.248, 8.132, 0.377, {0.2552, 0.1397, 0.0672}},
        {16, 64, 11.307, 11.254, 8.101, 0.379, {0.2082, 0.1088, 0.0516}},
        {16, 128, 11.325, 11.308, 8.109, 0.378, {0.1251, 0.0576, 0.0266}},
        {32, 96, 10.419, 10.207, 7.715, 0.408, {0.2646, 0.1421, 0.0641}},
        {32, 128, 10.408, 10.204, 7.703, 0.408, {0.2168, 0.1106, 0.0490}},
        {32, 256, 10.402, 10.248, 7.698, 0.460, {0.1352, 0.0594, 0.0257}},
    };
    static const char *const name[] = {"1f1b", "zb-h1", "zb-h2"};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        for (int k = 0; k < 3; k++) {
            const struct ku_block_cost cost = {row[i].f, row[i].b, row[i].w, row[i].comm, NULL};
            struct ku_pp_schedule *s = make(name[k], row[i].p, 1, row[i].m);
            const double got = bubble_of(s, &cost);
            if (fabs(got - row[i].bubble[k]) > 0.00005 + 1e-9)
                fail_msg("%s, p %d, m %d: bubble %.5f, published %.4f", name[k], row[i].p, row[i].m,
                         got, row[i].bubble[k]);
            ku_pp_schedule_destroy(s);
        }
}

/* Transfers take what the stage that sends them says, and none between stages of one rank. */
static void stage_transfers(void **state)
{
    static const struct ku_stage_cost of[] = {
        {1, 1, 1, 0.5, 0}, {1, 1, 1, 0.25, 4}, {1, 1, 1, 2, 8}, {1, 1, 1, 0, 3}};
    const struct ku_block_cost cost = {.of = of};
    struct ku_pp_schedule *s = make("gpipe", 2, 1, 1), *v = make("zb-v", 2, 1, 1);
    (void)state;
    /* 0F 1F 1B 0B */
    assert_true(makespan_of(s, &cost) == 1 + 0.5 + 1 + 2 + 4 + 2);
    /* 0F 1F 2F 3F 3I 2I 2W 1I 0I 0W: stages 1 and 2 are on one rank */
    assert_true(makespan_of(v, &cost) == 4 + 0.5 + 2 + 3 + 4 + 6);
    struct ku_pp_schedule *l;
    const struct ku_pp_limit limit = {.in_flight = 1};
    assert_int_equal(ku_pp_schedule_list(2, 1, &cost, &limit, 1, &l), KUMI_OK);
    assert_true(makespan_of(l, &cost) == 1 + 0.5 + 1 + 1 + 4 + 1 + 1);
    ku_pp_schedule_destroy(s), ku_pp_schedule_destroy(v), ku_pp_schedule_destroy(l);
}

/*
 * The list scheduler holds its limit, whatever the costs. At equal costs it is as fast as ZB-H2
 * with 2 p - 1 micro-batches in flight, and no slower than 1F1B with p.
 */
static void lists(void **state)
{
    static const struct ku_stage_cost uneven[] = {
        {6, 6, 3, 0, 0}, {8, 8, 4, 0, 0}, {8, 8, 4, 0, 0}, {8, 8, 4, 0, 0},
        {8, 8, 4, 0, 0}, {8, 8, 4, 0, 0}, {8, 8, 4, 0, 0}, {10, 10, 5, 0, 0}};
    static const struct ku_block_cost costs[] = {
        {1, 1, 1, 0, NULL}, {1, 1.2, 2, 0.1, NULL}, {0, 0, 0, 0.3, uneven}};
    (void)state;
    for (int p = 2; p <= 8; p += 2)
        for (int m = 2 * p; m <= 4 * p; m += p)
            for (int c = 0; c < 3; c++) {
                struct ku_pp_schedule *o = make("1f1b", p, 1, m);
                const double plain = makespan_of(o, &costs[c]);
                for (int limit = 1; limit <= 2 * p; limit++)
                    for (int is_eager = 0; is_eager < 2; is_eager++) {
                        struct ku_pp_schedule *s;
                        const struct ku_pp_limit most = {.in_flight = limit};
                        assert_int_equal(ku_pp_schedule_list(p, m, &costs[c], &most, is_eager, &s),
                                         KUMI_OK);
                        const double span = makespan_of(s, &costs[c]);
                        for (int r = 0; r < p; r++)
                            assert_true(ku_pp_schedule_peak(s, r) <= limit);
                        if (limit == 1)
                            assert_true(span > plain);
                        if (c == 0 && limit >= 2 * p - 1)
                            assert_true(bubble_of(s, &unit) < 1e-12);
                        if (c == 0 && limit >= p && span > plain * (1 + 1e-9))
                            fail_msg("p %d, m %d, costs %d, limit %d: %.3f, 1f1b %.3f", p, m, c,
                                     limit, span, plain);
                        ku_pp_schedule_destroy(s);
                    }
                ku_pp_schedule_destroy(o);
            }
}

/*
 * The list scheduler holds a limit in bytes on every coordinate, down to that of one micro-batch,
 * where I frees more than it leaves and where it leaves more. With room for 2 p micro-batches it is
 * no slower than 1F1B.
 */
static void lists_of_bytes(void **state)
{
    static const struct ku_stage_bytes kinds[] = {{.f_to_i = 5, .f_to_w = 3, .i_to_w = 1},
                                                  {.f_to_i = 1, .f_to_w = 3, .i_to_w = 5},
                                                  {.f_to_i = 8, .f_to_w = 0, .i_to_w = 0},
                                                  {.f_to_i = 0, .f_to_w = 1, .i_to_w = 9}};
    enum { P = 4, M = 8 };
    struct ku_pp_schedule *plain = make("1f1b", P, 1, M);
    (void)state;
    for (int k = 0; k < 4 * 2; k++) {
        struct ku_stage_bytes of[P];
        double one = 0;
        for (int r = 0; r < P; r++) {
            of[r] = kinds[k % 2 ? (k / 2 + r) % 4 : k / 2]; /* equal, or one of each */
            one = ku_stage_bytes_max(&of[r]) > one ? ku_stage_bytes_max(&of[r]) : one;
        }
        for (int bytes = (int)one; bytes <= 2 * P * (int)one; bytes++)
            for (int is_eager = 0; is_eager < 2; is_eager++) {
                const struct ku_pp_limit limit = {.in_flight = M, .bytes = bytes, .of = of};
                struct ku_pp_schedule *s;
                assert_int_equal(ku_pp_schedule_list(P, M, &unit, &limit, is_eager, &s), KUMI_OK);
                for (int r = 0; r < P; r++)
                    assert_true(ku_pp_schedule_peak_bytes(s, r, of) <= bytes);
                if (bytes == 2 * P * (int)one && makespan_of(s, &unit) > makespan_of(plain, &unit))
                    fail_msg("bytes %d: %.0f", k, makespan_of(s, &unit));
                ku_pp_schedule_destroy(s);
            }
    }
    /* by hand: all F first, then a B frees what is held; I and W free and leave their parts */
    const struct ku_stage_bytes by_hand[] = {kinds[0], kinds[1], kinds[1], kinds[1]};
    struct ku_pp_schedule *g = make("gpipe", P, 1, M), *z = make("zb-h2", P, 1, M);
    assert_true(ku_pp_schedule_peak_bytes(g, 1, by_hand) == 4 * M);
    assert_true(ku_pp_schedule_peak_bytes(z, P - 1, by_hand) >= 7 * 8);
    ku_pp_schedule_destroy(g), ku_pp_schedule_destroy(z), ku_pp_schedule_destroy(plain);
}

/* parse(print(s)) = s, for every generator. */
static void round_trips(void **state)
{
    (void)state;
    for (const char *const *name = ku_pp_schedule_names(); *name; name++)
        for (int p = 1; p <= 5; p++)
            for (int m = p; m <= 3 * p; m += p) {
                struct ku_pp_schedule *s = make(*name, p, 2, m), *back;
                struct ku_str text = {0}, again = {0};
                assert_int_equal(ku_pp_schedule_print(s, &text), KUMI_OK);
                if (ku_pp_schedule_parse("x", ku_str_get(&text), text.bytes, &back) < 0)
                    fail_msg("%s p %d m %d: %s", *name, p, m, ku_err_get()->text);
                assert_int_equal(ku_pp_schedule_print(back, &again), KUMI_OK);
                assert_string_equal(ku_str_get(&text), ku_str_get(&again));
                assert_int_equal(back->n_stages, s->n_stages);
                ku_str_fini(&text), ku_str_fini(&again);
                ku_pp_schedule_destroy(s), ku_pp_schedule_destroy(back);
            }
}

static void refusals(void **state)
{
    static const struct {
        const char *text, *says;
    } row[] = {
        {"", "no rows"},
        {"0F0,0B0\n\n", "row 2 has no block"},
        {"0F0,0X0\n", "row 1, cell 2: 0X0: a cell is a stage"},
        {"0F0,0B\n", "row 1, cell 2: 0B: a cell is a stage"},
        {"0F0,0B0\n0F1,1B0\n", "row 2, cell 1: 0F1: stage 0 is on row 1 already"},
        {"0F0,0B0,2F0\n", "stage 1 is on no row"},
        {"0F0,0F0,0B0\n", "row 1, cell 2: 0F0: the next F of stage 0 is that of micro-batch 1"},
        {"0F0,,,0F0,0B0\n", "row 1, cell 4: 0F0: the next F of stage 0 is that of micro-batch 1"},
        {"0F0,0B0,0B0\n", "row 1, cell 3: 0B0: the next B of stage 0 is that of micro-batch 1"},
        {"0F1,0F0,0B0,0B1\n", "row 1, cell 1: 0F1: the next F of stage 0 is that of micro-batch 0"},
        {"0F0,,0B0\n1F0,,\n", "row 2: 1I0 is missing"},
        {"0F0,0F1,0B0\n", "row 1: 0B1 is missing"},
        {"0F0,0I0\n", "row 1: 0W0 is missing"},
        {"0F0,0W0,0I0\n", "row 1, cell 2: 0W0: comes before the I that it needs"},
        {"0B0,0F0\n", "row 1, cell 1: 0B0: comes before the F that it needs"},
        /* B of some micro-batches: it counts as I and as W */
        {"0F0,0B0,0F1,0I0\n", "row 1, cell 4: 0I0: the next I of stage 0 is that of micro-batch 1"},
        {"0F0,0I0,0F1,0B1,0W0\n",
         "row 1, cell 4: 0B1: comes before 0W0; B is I and W, and W of a stage run in the order of "
         "micro-batches"},
        {"0F0,0B0,0W0\n", "row 1, cell 3: 0W0: the next W of stage 0 is that of micro-batch 1"},
        {"0F0,0I0,0B0\n", "row 1, cell 3: 0B0: the next B of stage 0 is that of micro-batch 1"},
        {"0F0,0F1,0B0,0I1\n", "row 1: 0W1 is missing"},
        {"0F0,0F1,0F2,0B0,0I1,0W1\n", "row 1: 0I2 is missing"},
        {"(0F0;0B0\n", "row 1, cell 1: (0F0;0B0: a cell is a stage"},
        {"(0F0;)OVERLAP_F_B\n", "row 1, cell 1: (0F0;)OVERLAP_F_B: a cell is a stage"},
        {"()OVERLAP_F_B\n", "a cell is a stage"},
        {"(0F0;0B0)OVERLAP\n", "a cell is a stage"},
        {"0F0,(0F1;0B1)OVERLAP_F_B\n",
         "row 1, cell 2: 0B1: the next B of stage 0 is that of micro-batch 0"},
        {"0F0,,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "row 1, cell 3: 0B0: waits for ever"},
        {"9999F0\n", "at most 1024 stages"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_pp_schedule *s;
        if (ku_pp_schedule_parse("x", row[i].text, strlen(row[i].text), &s) != KUMI_EINVAL)
            fail_msg("row %zu is read", i);
        if (strstr(ku_err_get()->text, row[i].says) == NULL)
            fail_msg("row %zu: %s", i, ku_err_get()->text);
    }
    struct ku_pp_schedule *s;
    assert_int_equal(ku_pp_schedule_create("2f2b", 2, 1, 4, &s), KUMI_EINVAL);
    assert_int_equal(ku_pp_schedule_create("interleaved", 4, 2, 6, &s), KUMI_EINVAL);
    assert_int_equal(ku_pp_schedule_create("interleaved", 4, 1, 8, &s), KUMI_EINVAL);
    assert_int_equal(ku_pp_schedule_create("interleaved", 64, 17, 64, &s), KUMI_EINVAL);
}

/* Makes, runs and lists a schedule; *n: the calls that succeed. */
static int use_all(int *n)
{
    struct ku_pp_schedule *s, *listed;
    struct ku_str text = {0};
    double makespan, bubble;
    *n = 0;
    KU_TRY(ku_pp_schedule_create("1f1b", 2, 1, 4, &s));
    ++*n;
    int status = ku_pp_schedule_list(2, 4, &unit, &(struct ku_pp_limit){2, 0, NULL}, 0, &listed);
    if (status == KUMI_OK) {
        ++*n;
        ku_pp_schedule_destroy(listed);
        status = ku_pp_schedule_run(s, &unit, NULL, NULL, &makespan, NULL);
    }
    if (status == KUMI_OK) {
        ++*n;
        status = ku_pp_schedule_bubble(s, &unit, 1, &bubble);
    }
    if (status == KUMI_OK) {
        ++*n;
        status = ku_pp_schedule_print(s, &text);
    }
    *n += status == KUMI_OK;
    ku_str_fini(&text);
    ku_pp_schedule_destroy(s);
    return status;
}

/* Every allocation fails once: that is ENOMEM of each call, and no other result. */
static void without_memory(void **state)
{
    int failed[6] = {0}, n = 0, status = KUMI_ENOMEM;
    char spec[32];
    (void)state;
    for (int at = 1; status == KUMI_ENOMEM; at++) {
        snprintf(spec, sizeof spec, "mem:%d", at);
        ku_fault_set(spec);
        status = use_all(&n);
        ku_fault_set(NULL);
        failed[n]++;
    }
    assert_int_equal(status, KUMI_OK);
    for (n = 0; n < 5; n++)
        assert_true(failed[n] >= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bubbles),         cmocka_unit_test(in_flight),
        cmocka_unit_test(transfers),       cmocka_unit_test(v_shapes),
        cmocka_unit_test(published),       cmocka_unit_test(lists),
        cmocka_unit_test(stage_transfers), cmocka_unit_test(lists_of_bytes),
        cmocka_unit_test(round_trips),     cmocka_unit_test(refusals),
        cmocka_unit_test(without_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
