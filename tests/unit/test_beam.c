/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config base */
/* Beam search on models so small that every text can be looked at. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/math/random.h"
#include "infer/beam.h"

enum { VOCAB = 4, END = 1, FIRST = 2, MAX_TOKENS = 6, MAX_ROWS = 4096, MAX_TEXTS = 4096 };

/* A model that remembers whole texts: its probabilities are a function of all of them. */
struct toy {
    uint32_t text[MAX_ROWS][MAX_TOKENS + 1];
    int n[MAX_ROWS];
    int64_t n_rows, k;
    uint32_t seed[MAX_ROWS]; /* of a sentence */
    double sharpness;
    int n_steps, fail_at;
};

static void distribution(const struct toy *t, int64_t sentence, const uint32_t *text, int n,
                         double *log_p)
{
    double total = 0;
    uint32_t hash = t->seed[sentence];
    for (int i = 0; i < n; i++)
        hash = hash * 31 + text[i] + 7;
    for (int v = 0; v < VOCAB; v++) {
        log_p[v] = t->sharpness * (double)ku_random_normal(hash, 0, 1, (uint64_t)v);
        total += exp(log_p[v]);
    }
    for (int v = 0; v < VOCAB; v++)
        log_p[v] -= log(total);
    log_p[0] = -HUGE_VAL; /* padding is never said */
}

static int toy_step(void *ctx, const uint32_t *token, const unsigned char *is_done, double *log_p)
{
    struct toy *t = ctx;
    if (++t->n_steps == t->fail_at)
        return KU_ERR(KUMI_EDEVICE, "toy: no longer");
    for (int64_t row = 0; row < t->n_rows; row++) {
        if (is_done[row]) /* not read any more */
            continue;
        assert_in_range(t->n[row], 0, MAX_TOKENS);
        t->text[row][t->n[row]++] = token[row];
        distribution(t, row / t->k, t->text[row], t->n[row], log_p + row * VOCAB);
    }
    return KUMI_OK;
}
static int toy_select(void *ctx, const int64_t *parent)
{
    struct toy *t = ctx;
    static struct toy old;
    old = *t;
    for (int64_t row = 0; row < t->n_rows; row++) {
        assert_int_equal(parent[row] / t->k, row / t->k);
        memcpy(t->text[row], old.text[parent[row]], sizeof t->text[row]);
        t->n[row] = old.n[parent[row]];
    }
    return KUMI_OK;
}

struct text {
    uint32_t token[MAX_TOKENS];
    int n, has_end;
    double log_p, score;
};
struct texts {
    struct text text[MAX_TEXTS];
    int n;
};

/* Every text of at most `most` tokens. */
static void spell(const struct toy *t, int64_t sentence, int most, double alpha, struct text *x,
                  struct texts *all)
{
    double log_p[VOCAB];
    uint32_t behind[MAX_TOKENS + 1] = {FIRST};
    memcpy(behind + 1, x->token, (size_t)x->n * sizeof *behind);
    distribution(t, sentence, behind, x->n + 1, log_p);
    for (uint32_t v = 1; v < VOCAB; v++) {
        struct text y = *x;
        y.token[y.n++] = v;
        y.log_p += log_p[v];
        y.has_end = v == END;
        y.score = y.log_p / pow((5 + (double)y.n) / 6, alpha);
        if (y.has_end || y.n == most) {
            assert_true(all->n < MAX_TEXTS);
            all->text[all->n++] = y;
        } else {
            spell(t, sentence, most, alpha, &y, all);
        }
    }
}
static int by_score(const void *a, const void *b)
{
    const struct text *x = a, *y = b;
    if (x->has_end != y->has_end)
        return y->has_end - x->has_end;
    return (x->score < y->score) - (x->score > y->score);
}

static void toy_init(struct toy *t, const struct ku_beam_opts *o, uint32_t seed)
{
    memset(t, 0, sizeof *t);
    t->k = o->beam_size;
    t->n_rows = o->n_sentences * o->beam_size;
    t->sharpness = 1.5;
    assert_in_range(t->n_rows, 0, MAX_ROWS);
    for (int64_t i = 0; i < o->n_sentences; i++)
        t->seed[i] = seed + (uint32_t)i * 1000;
}
static void search(struct toy *t, const struct ku_beam_opts *o, struct ku_beam_results *r)
{
    const struct ku_beam_model m = {toy_step, toy_select, t};
    if (ku_beam_search(o, &m, r) < 0)
        fail_msg("%s", ku_err_get()->text);
}
static void expect_text(const struct ku_beam_text *is, const struct text *want)
{
    assert_int_equal(is->n, want->n);
    assert_memory_equal(is->token, want->token, (size_t)want->n * sizeof *want->token);
    assert_int_equal(is->has_end, want->has_end);
    assert_true(fabs(is->log_p - want->log_p) < 1e-12);
    assert_true(fabs(is->score - want->score) < 1e-12);
}

/* A beam that holds everything finds the best of everything. */
static void finds_the_best(void **state)
{
    static struct toy t;
    static struct texts all;
    static const int64_t most[] = {5, 2, 1};
    static const double alpha[] = {0, 0.6, 1, 2};
    (void)state;
    for (int a = 0; a < 4; a++)
        for (uint32_t seed = 0; seed < 8; seed++) {
            struct ku_beam_opts o = {.n_sentences = 3,
                                     .vocab_size = VOCAB,
                                     .beam_size = 243, /* more than open texts of 5 tokens */
                                     .n_best = 5,
                                     .alpha = alpha[a],
                                     .max_tokens = most,
                                     .first = FIRST,
                                     .end = END};
            struct ku_beam_results r;
            toy_init(&t, &o, seed);
            search(&t, &o, &r);
            for (int i = 0; i < 3; i++) {
                struct text empty = {0};
                all.n = 0;
                spell(&t, i, (int)most[i], alpha[a], &empty, &all);
                qsort(all.text, (size_t)all.n, sizeof all.text[0], by_score);
                for (int b = 0; b < 5; b++)
                    if (b < all.n)
                        expect_text(&r.text[i * 5 + b], &all.text[b]);
                    else
                        assert_int_equal(r.text[i * 5 + b].n, 0);
            }
            ku_beam_fini(&r);
        }
}

/* The search as its header says, without ever stopping early: candidates sorted, one sentence. */
struct plain {
    struct text open[16], ended[512];
    int n_open, n_ended;
};
static int by_log_p(const void *a, const void *b)
{
    const struct text *x = a, *y = b;
    return (x->log_p < y->log_p) - (x->log_p > y->log_p);
}
static void plain_step(const struct toy *t, int64_t sentence, int k, double alpha, struct plain *p)
{
    struct text next[16 * VOCAB];
    int n = 0, n_open = 0;
    for (int i = 0; i < p->n_open; i++) {
        double log_p[VOCAB];
        uint32_t behind[MAX_TOKENS + 1] = {FIRST};
        memcpy(behind + 1, p->open[i].token, sizeof p->open[i].token);
        distribution(t, sentence, behind, p->open[i].n + 1, log_p);
        for (uint32_t v = 1; v < VOCAB; v++) {
            struct text y = p->open[i];
            y.token[y.n++] = v;
            y.log_p += log_p[v];
            y.has_end = v == END;
            y.score = y.log_p / pow((5 + (double)y.n) / 6, alpha);
            next[n++] = y;
        }
    }
    qsort(next, (size_t)n, sizeof next[0], by_log_p);
    for (int i = 0; i < n && i < 2 * k; i++)
        if (next[i].has_end) {
            if (i < k)
                p->ended[p->n_ended++] = next[i];
        } else if (n_open < k) {
            p->open[n_open++] = next[i];
        }
    p->n_open = n_open;
}
static void plain_search(const struct toy *t, int64_t sentence, int k, int most, double alpha,
                         struct plain *p)
{
    memset(p, 0, sizeof *p);
    p->n_open = 1;
    for (int length = 1; length <= most; length++) {
        plain_step(t, sentence, k, alpha, p);
        if (k == 1 && p->n_ended)
            break;
    }
    for (int i = 0; i < p->n_open && !(k == 1 && p->n_ended); i++)
        p->ended[p->n_ended++] = p->open[i];
    qsort(p->ended, (size_t)p->n_ended, sizeof p->ended[0], by_score);
}

static void stops_without_a_loss(void **state)
{
    static struct toy t;
    static const int64_t most[] = {6, 6, 3, 6, 1, 6, 5, 6};
    static const int beams[] = {1, 2, 3, 4, 7};
    static struct plain p;
    int n_saved = 0;
    (void)state;
    for (int k = 0; k < 5; k++)
        for (uint32_t seed = 0; seed < 20; seed++) {
            struct ku_beam_opts o = {.n_sentences = 8,
                                     .vocab_size = VOCAB,
                                     .beam_size = beams[k],
                                     .n_best = beams[k],
                                     .alpha = seed % 2 ? 0.6 : 0,
                                     .max_tokens = most,
                                     .first = FIRST,
                                     .end = END};
            struct ku_beam_results r;
            toy_init(&t, &o, 77 + seed);
            t.sharpness = seed % 3 ? 1.5 : 4;
            search(&t, &o, &r);
            n_saved += t.n_steps < 6;
            for (int i = 0; i < 8; i++) {
                plain_search(&t, i, beams[k], (int)most[i], o.alpha, &p);
                for (int b = 0; b < beams[k]; b++)
                    if (b < p.n_ended)
                        expect_text(&r.text[i * beams[k] + b], &p.ended[b]);
                    else
                        assert_int_equal(r.text[i * beams[k] + b].n, 0);
            }
            ku_beam_fini(&r);
        }
    assert_true(n_saved > 0); /* greedy searches at least */
}

static void refuses(void **state)
{
    static struct toy t;
    static const int64_t most[] = {3}, none[] = {0};
    const struct ku_beam_opts good = {.n_sentences = 1,
                                      .vocab_size = VOCAB,
                                      .beam_size = 2,
                                      .alpha = 0.6,
                                      .max_tokens = most,
                                      .first = FIRST,
                                      .end = END};
    struct ku_beam_opts bad[] = {good, good, good, good, good};
    static const char *const word[] = {"beam size 0", "n-best: 3", "length penalty",
                                       "length penalty", "max length 0"};
    const struct ku_beam_model m = {toy_step, toy_select, &t};
    struct ku_beam_results r;
    (void)state;
    bad[0].beam_size = 0;
    bad[1].n_best = 3;
    bad[2].alpha = -1;
    bad[3].alpha = (double)NAN;
    bad[4].max_tokens = none;
    for (int i = 0; i < 5; i++) {
        toy_init(&t, &good, 1);
        assert_int_equal(ku_beam_search(&bad[i], &m, &r), KUMI_EINVAL);
        assert_non_null(strstr(ku_err_get()->text, word[i]));
        assert_null(r.text);
    }
    toy_init(&t, &good, 1);
    t.fail_at = 2;
    assert_int_equal(ku_beam_search(&good, &m, &r), KUMI_EDEVICE);
    toy_init(&t, &good, 1);
    t.sharpness = (double)NAN;
    assert_int_equal(ku_beam_search(&good, &m, &r), KUMI_ENUMERIC);
    struct ku_beam_opts nothing = good;
    nothing.n_sentences = 0;
    assert_int_equal(ku_beam_search(&nothing, &m, &r), KUMI_OK);
    ku_beam_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(finds_the_best),
                                       cmocka_unit_test(stops_without_a_loss),
                                       cmocka_unit_test(refuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
