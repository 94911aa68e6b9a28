/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor ckpt data */
#include "ckpt_util.h"

#include <math.h>

#include "base/fault.h"
#include "data/pairs/bleu.h"
#include "data/lines.h"

static void assert_close(const char *name, const char *what, double got, double expected)
{
    if (!(fabs(got - expected) <= 1e-13 * fmax(1.0, fabs(expected))))
        fail_msg("%s: %s %.17g, sacreBLEU has %.17g", name, what, got, expected);
}

static void assert_figures(const char *name, const struct ku_bleu *b, const char *figures)
{
    static const char *const what[] = {
        "bleu", "effective bleu", "brevity penalty", "chrf", "p1", "p2", "p3", "p4"};
    struct ku_bleu_score s = ku_bleu_score(b, 0), e = ku_bleu_score(b, 1);
    const double got[] = {s.bleu,         e.bleu,         s.brevity_penalty, s.chrf,
                          s.precision[0], s.precision[1], s.precision[2],    s.precision[3]};
    char *at = NULL;
    for (int i = 0; i < 8; i++, figures = at)
        assert_close(name, what[i], got[i], strtod(figures, &at));
    assert_int_equal(b->hyp_len, strtoll(figures, &at, 10));
    assert_int_equal(b->ref_len, strtoll(at, &at, 10));
}

/* Every corpus of the fixture, as a whole and as two parts that are put together. */
static void figures_are_sacrebleus(void **state)
{
    struct ku_lines *lines;
    const char *line;
    char name[64] = "";
    size_t bytes;
    int n_corpora = 0;
    struct ku_bleu all = {0}, part[2] = {{0}};
    (void)state;
    assert_status(ku_lines_open(KUMI_SOURCE_DIR "/tests/fixtures/bleu.txt", 0, &lines), KUMI_OK);
    while (ku_lines_next(lines, &line, &bytes) > 0) {
        if (bytes > 0 && line[0] == '=') {
            snprintf(name, sizeof name, "%.*s", (int)bytes - 1, line + 1);
            memset(&all, 0, sizeof all);
            memset(part, 0, sizeof part);
        } else if (bytes > 0 && line[0] == '?') {
            char figures[512];
            snprintf(figures, sizeof figures, "%.*s", (int)bytes - 1, line + 1);
            assert_figures(name, &all, figures);
            for (size_t i = 0; i < sizeof all / sizeof(int64_t); i++)
                assert_int_equal(((int64_t *)&part[0])[i] + ((int64_t *)&part[1])[i],
                                 ((int64_t *)&all)[i]);
            n_corpora++;
        } else {
            const char *tab = memchr(line, '\t', bytes);
            assert_non_null(tab);
            size_t n = (size_t)(tab - line);
            struct ku_bleu *both[] = {&all, &part[all.n_sentences % 2]};
            for (int i = 0; i < 2; i++)
                assert_status(ku_bleu_add(both[i], line, n, tab + 1, bytes - n - 1), KUMI_OK);
        }
    }
    assert_int_equal(n_corpora, 11);
    ku_lines_close(lines);
}

static void bytes_that_are_no_text(void **state)
{
    struct ku_bleu b = {0}, same = {0};
    (void)state;
    assert_status(ku_bleu_add(&b, "a \xff\xe3\x81 b", 7, "a ? b", 5), KUMI_OK);
    assert_int_equal(b.hyp_len, 3);
    assert_int_equal(b.correct[0], 2);
    assert_int_equal(b.chr_match[0], 2);
    assert_int_equal(b.chr_hyp[0], 5);
    for (int n = 1, status = KUMI_ENOMEM; status < 0; n++) {
        char fault[16];
        snprintf(fault, sizeof fault, "mem:%d", n);
        ku_fault_set(fault);
        struct ku_bleu before = same;
        status = ku_bleu_add(&same, "a b", 3, "b c", 3);
        ku_fault_set(NULL);
        assert_true(status == KUMI_OK || memcmp(&before, &same, sizeof same) == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(figures_are_sacrebleus),
                                       cmocka_unit_test(bytes_that_are_no_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
