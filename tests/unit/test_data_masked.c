/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */
/* Masked language modelling over a text of a fixed alphabet: shares, repetition, what is kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/mem.h"
#include "data/text/masked.h"

enum { T = 50, N = 4000, MASK = 9, VOCAB = 10 };

/* Token i of sample s is 1 + (s + i) % 8: never the mask, never 0. */
static int plain_read(const struct ku_data *d, enum ku_data_split split, int64_t sample,
                      int64_t number, void *const *port)
{
    (void)d, (void)split, (void)number;
    for (int64_t i = 0; i < T; i++) {
        ((int32_t *)port[0])[i] = (int32_t)(1 + (sample + i) % 8);
        ((int32_t *)port[1])[i] = -7; /* must not be seen */
    }
    return KUMI_OK;
}
static void plain_destroy(struct ku_data *d)
{
    ku_free(d);
}
static int plain_verify(const struct ku_data *d, const struct ku_progress *progress)
{
    (void)d, (void)progress;
    return KUMI_OK;
}

static struct ku_data *open_masked(double probability, uint64_t seed)
{
    static const struct ku_data_ops ops = {
        .kind = "plain", .destroy = plain_destroy, .read = plain_read, .verify = plain_verify};
    static const struct ku_data_port port[] = {
        {.name = "tokens", .dtype = KUMI_I32, .ndim = 1, .dim = {T}},
        {.name = "targets", .dtype = KUMI_I32, .ndim = 1, .dim = {T}}};
    struct ku_data *text = ku_calloc(1, sizeof *text), *out;
    assert_non_null(text);
    *text = (struct ku_data){.ops = &ops, .n_samples = {N, 5}, .port = port, .n_ports = 2};
    const struct ku_masked_opts o = {probability, MASK, VOCAB, seed};
    assert_int_equal(ku_masked_open(text, &o, &out), KUMI_OK);
    return out;
}

struct sample {
    int32_t token[T], target[T], type[T], length;
};
static void read_sample(const struct ku_data *d, enum ku_data_split split, int64_t sample,
                        int64_t number, struct sample *s)
{
    void *const port[] = {s->token, s->target, s->type, &s->length};
    memset(s, 0xff, sizeof *s);
    assert_int_equal(ku_data_read(d, split, sample, number, port), KUMI_OK);
}

static void expect_share(const char *what, double count, double of, double p)
{
    double sigma = sqrt(of * p * (1 - p));
    if (!(fabs(count - of * p) <= 4 * sigma))
        fail_msg("%s: %g of %g, expected %g +- %g", what, count, of, of * p, sigma);
}

static void shares(void **state)
{
    struct ku_data *d = open_masked(0.15, 5);
    double chosen = 0, masked = 0, kept = 0, other[VOCAB] = {0}, others = 0;
    (void)state;
    assert_string_equal(d->port[2].name, "token_type_ids");
    assert_string_equal(d->port[3].name, "lengths");
    for (int64_t n = 0; n < N; n++) {
        struct sample s;
        read_sample(d, KU_SPLIT_TRAIN, n, n, &s);
        assert_int_equal(s.length, T);
        for (int64_t i = 0; i < T; i++) {
            const int32_t was = (int32_t)(1 + (n + i) % 8);
            assert_int_equal(s.type[i], 0);
            assert_true(s.target[i] == -100 ? s.token[i] == was : s.target[i] == was);
            if (s.target[i] == -100)
                continue;
            chosen++;
            masked += s.token[i] == MASK;
            kept += s.token[i] == was;
            if (s.token[i] != MASK && s.token[i] != was)
                other[s.token[i]]++, others++;
        }
    }
    expect_share("chosen", chosen, (double)N * T, 0.15);
    expect_share("mask", masked, chosen, 0.8 + 0.1 / VOCAB);
    expect_share("kept", kept, chosen, 0.1 + 0.1 / VOCAB);
    assert_true(other[0] > 0); /* a token that the text has not */
    for (int v = 1; v < 9; v++)
        expect_share("another", other[v], others, 7. / 8 / (8 * 7. / 8 + 1));
    ku_data_destroy(d);
}

/* A function of (seed, draw): the same again, another in the next epoch or with another seed. */
static void repetition(void **state)
{
    struct ku_data *d = open_masked(0.15, 5), *e = open_masked(0.15, 6);
    struct sample a, b;
    (void)state;
    read_sample(d, KU_SPLIT_TRAIN, 17, 3 * (int64_t)N + 2, &a);
    read_sample(d, KU_SPLIT_TRAIN, 17, 3 * (int64_t)N + 2, &b);
    assert_memory_equal(&a, &b, sizeof a);
    read_sample(d, KU_SPLIT_TRAIN, 17, 4 * (int64_t)N + 2, &b);
    assert_memory_not_equal(&a, &b, sizeof a);
    read_sample(e, KU_SPLIT_TRAIN, 17, 3 * (int64_t)N + 2, &b);
    assert_memory_not_equal(&a, &b, sizeof a);
    read_sample(d, KU_SPLIT_VAL, 3, 0, &a); /* validation: by the sample, whatever the draw */
    read_sample(d, KU_SPLIT_VAL, 3, 99, &b);
    assert_memory_equal(&a, &b, sizeof a);
    ku_data_destroy(d);
    ku_data_destroy(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shares), cmocka_unit_test(repetition)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
