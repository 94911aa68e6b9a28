/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */
#include "test_tokenizer_common.h"

/* GPT-2's own vocabulary, where it is at hand: KUMI_DATA_DIR or shared/data beside the source. */
static const char *vocabulary(void)
{
    static char path[4096];
    const char *dir = getenv("KUMI_DATA_DIR");
    struct stat st;
    snprintf(path, sizeof path, "%s/gpt2_tokenizer", dir ? dir : KUMI_SOURCE_DIR "/../shared/data");
    return ku_os_stat(path, &st) == 0 ? path : NULL;
}

static void agrees_with_the_reference(void **state)
{
    struct ku_tokenizer *t;
    char *text;
    size_t bytes, n = 0;
    (void)state;
    assert_int_equal(ku_tokenizer_open(vocabulary(), &t), 0);
    assert_int_equal(ku_tokenizer_vocab_count(t), 50257);
    assert_int_equal(ku_os_slurp(FIXTURES "/gpt2.txt", 1 << 24, &text, &bytes), 0);
    for (char *line, *rest = text; (line = next_line(&rest)) != NULL;) {
        if (*line == '=')
            continue;
        struct fixture f = fixture_parse(line);
        check_fixture(t, &f, "gpt2", 1);
        fixture_free(&f);
        n++;
    }
    assert_true(n > 250);
    ku_free(text);
    ku_tokenizer_destroy(t);
}

/* nanoGPT's data/shakespeare/prepare.py (tiktoken) counts 301,966 + 36,059 tokens in its two parts.
 */
static void counts_tiny_shakespeare(void **state)
{
    struct ku_tokenizer *t;
    struct ku_tokens all = {0};
    char *text;
    size_t bytes, cut;
    (void)state;
    assert_int_equal(ku_tokenizer_open(vocabulary(), &t), 0);
    assert_int_equal(
        ku_os_slurp(KUMI_SOURCE_DIR "/data/tinyshakespeare.txt", 1 << 24, &text, &bytes), 0);
    cut = (size_t)((double)bytes * 0.9);
    assert_int_equal(ku_tokenizer_encode(t, text, cut, &all), 0);
    assert_int_equal(all.count, 301966);
    assert_int_equal(ku_tokenizer_encode(t, text + cut, bytes - cut, &all), 0);
    assert_int_equal(all.count, 301966 + 36059);
    ku_tokens_fini(&all);
    ku_free(text);
    ku_tokenizer_destroy(t);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(agrees_with_the_reference),
                                              cmocka_unit_test(counts_tiny_shakespeare)};
    return vocabulary() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
