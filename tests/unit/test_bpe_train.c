/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt_util.h"

#include "base/fault.h"
#include "base/os/os.h"
#include "data/tokenizer/bpe_train.h"
#include "data/tokenizer/tokenizer.h"
#include "kumi/run.h"

#define FIXTURES KUMI_SOURCE_DIR "/tests/fixtures/tokenizer_train/"

static const char *const special[] = {"<pad>", "<s>", "</s>", "<unk>", "[ a \xc3\xa9]\t\"\\"};
static const char *const end_of_text[] = {"<|endoftext|>"};
static const char *const words[] = {FIXTURES "words.txt", FIXTURES "runs.txt"};
static const char *const reversed[] = {FIXTURES "runs.txt", FIXTURES "words.txt"};

static const struct row {
    const char *expected;
    struct kumi_tokenizer_options o;
} rows[] = {
    {FIXTURES "words.json", {words, 1, NULL, 420, 0, special, 5, 0}},
    {FIXTURES "runs.json", {reversed, 1, NULL, 4000, 1, NULL, 0, 0}},
    {FIXTURES "both.json", {words, 2, NULL, 500, 3, end_of_text, 1, 0}},
    {FIXTURES "both.json", {reversed, 2, NULL, 500, 3, end_of_text, 1, 0}},
};

static int setup(void **state)
{
    static char folder[64];
    folder_make(folder);
    *state = folder;
    return 0;
}

static int teardown(void **state)
{
    folder_remove(*state);
    return 0;
}

/* What Hugging Face writes, byte for byte; and kumi reads it back. */
static void same_file_as_hugging_face(void **state)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kumi_tokenizer_options o = rows[i].o;
        char path[160], *text = NULL, *got, *expected;
        size_t n_got, n_expected;
        struct ku_tokenizer *t = NULL;
        snprintf(path, sizeof path, "%s/%zu", (char *)*state, i);
        o.out = path;
        assert_status(kumi_tokenizer_train(&o, &text), KUMI_OK);
        kumi_text_free(text);
        snprintf(path, sizeof path, "%s/%zu/tokenizer.json", (char *)*state, i);
        assert_int_equal(ku_os_slurp(path, 1 << 20, &got, &n_got), 0);
        assert_int_equal(ku_os_slurp(rows[i].expected, 1 << 20, &expected, &n_expected), 0);
        assert_int_equal(n_got, n_expected);
        assert_memory_equal(got, expected, n_got);
        assert_status(ku_tokenizer_open(path, &t), KUMI_OK);
        ku_tokenizer_destroy(t);
        ku_free(got);
        ku_free(expected);
    }
}

static void reports(void **state)
{
    char path[160], expected[256], *text = NULL;
    snprintf(path, sizeof path, "%s/small.json", (char *)*state);
    struct kumi_tokenizer_options o = rows[1].o;
    o.out = path;
    assert_status(kumi_tokenizer_train(&o, &text), KUMI_OK);
    snprintf(expected, sizeof expected, "%s: ", path);
    assert_memory_equal(text, expected, strlen(expected));
    assert_non_null(strstr(text, "fewer tokens than 4000: no remaining pair occurs 1 times\n"));
    kumi_text_free(text);
    o.as_json = 1;
    o.vocab_size = 300;
    assert_status(kumi_tokenizer_train(&o, &text), KUMI_OK);
    assert_non_null(strstr(text, "\"vocab_size\": 300"));
    assert_non_null(strstr(text, "\"merges\": 44"));
    kumi_text_free(text);
}

static void refusals(void **state)
{
    static const char *const none[] = {"/nowhere"}, *const twice[] = {"<s>", "<s>"};
    static const char *const byte[] = {"\xc3\xa9"}, *const blank[] = {"a b", "a b"};
    static const char *const empty[] = {""}, *const bad[] = {"\xff<s>"};
    char broken[160];
    const char *broken_list[] = {broken};
    snprintf(broken, sizeof broken, "%s/broken.txt", (char *)*state);
    file_write(broken, "good\nal\xffso\n", 11);
    const struct {
        struct kumi_tokenizer_options o;
        int status;
        const char *part;
    } row[] = {
        {{NULL, 0, NULL, 0, 0, NULL, 0, 0}, KUMI_EINVAL, "no text to learn from"},
        {{none, 1, NULL, 0, 0, NULL, 0, 0}, KUMI_EINPUT, "data: /nowhere: No such file"},
        {{broken_list, 1, NULL, 0, 0, NULL, 0, 0},
         KUMI_EINPUT,
         "broken.txt:2: byte 3 (0xff) is not valid UTF-8"},
        {{words, 1, NULL, 255, 0, NULL, 0, 0}, KUMI_EINVAL, "a vocabulary of 255 tokens; give 256"},
        {{words, 1, NULL, 260, 0, special, 5, 0}, KUMI_EINVAL, "260 tokens; give 261"},
        {{words, 1, NULL, 1 << 25, 0, NULL, 0, 0}, KUMI_EINVAL, "to 16777216"},
        {{words, 1, NULL, 300, -1, NULL, 0, 0}, KUMI_EINVAL, "a minimum frequency of -1"},
        {{words, 1, NULL, 300, 0, twice, 2, 0}, KUMI_EINVAL, "'<s>': it is given twice"},
        {{words, 1, NULL, 300, 0, blank, 2, 0}, KUMI_EINVAL, "'a b': it is given twice"},
        {{words, 1, NULL, 300, 0, byte, 1, 0},
         KUMI_EINVAL,
         "it is the notation of a byte in vocabulary files"},
        {{words, 1, NULL, 300, 0, empty, 1, 0}, KUMI_EINVAL, "'': empty"},
        {{words, 1, NULL, 300, 0, bad, 1, 0}, KUMI_EINVAL, "not valid UTF-8"},
        {{words, 1, "/nowhere/x.json", 300, 0, NULL, 0, 0}, KUMI_ESTORAGE, "/nowhere/x.json"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char *text = NULL;
        assert_error(kumi_tokenizer_train(&row[i].o, &text), row[i].status, row[i].part);
        assert_null(text);
    }
}

/* Writes `times` times a text, and `last`. */
static void write_repeated(const char *path, const char *text, size_t times, const char *last)
{
    const size_t bytes = strlen(text), n = times * bytes + strlen(last);
    char *all = ku_malloc(n + 1);
    for (size_t i = 0; i < times; i++)
        memcpy(all + i * bytes, text, bytes);
    strcpy(all + times * bytes, last);
    file_write(path, all, n);
    ku_free(all);
}

static int64_t count_of(const struct ku_word_count *counted, const char *text)
{
    uint32_t number;
    return ku_word_count_find(counted, text, strlen(text), &number) ? counted->word[number].count
                                                                    : 0;
}

#define LONG_WORD                                                                                  \
    " abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"              \
    "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"

/* A long line is read in parts, which end at any place of a word and of a character. */
static void lines_of_any_length(void **state)
{
    static const char text[] = " It're  \xe6\x97\xa5\xe6\x9c\xac\t4!!" LONG_WORD;
    static const char *const word[] = {" It", "'re",    " \xe6\x97\xa5\xe6\x9c\xac", "\t", "4",
                                       "!!",  LONG_WORD};
    enum { N = sizeof word / sizeof *word, TIMES = (17 << 20) / (sizeof text - 1) };
    struct ku_word_count counted = {0};
    char path[160];
    snprintf(path, sizeof path, "%s/long.txt", (char *)*state);
    write_repeated(path, text, TIMES, " \n  end");
    assert_status(ku_bpe_count_words(path, NULL, &counted), KUMI_OK);
    for (int i = 0; i < N; i++)
        assert_int_equal(count_of(&counted, word[i]), TIMES);
    assert_int_equal(count_of(&counted, " "), TIMES + 1); /* of two blanks, and at the end */
    assert_int_equal(count_of(&counted, " \n"), 1);
    assert_int_equal(count_of(&counted, " end"), 1);
    assert_int_equal(counted.total, (N + 1) * TIMES + 3);
    ku_word_count_fini(&counted);
}

static void faults_of_long_lines(void **state)
{
    struct ku_word_count counted = {0};
    char path[160];
    snprintf(path, sizeof path, "%s/long.txt", (char *)*state);
    write_repeated(path, "x y ", 200000, "z\xff\n");
    assert_error(ku_bpe_count_words(path, NULL, &counted), KUMI_EINPUT,
                 "long.txt:1: byte 800002 (0xff) is not valid UTF-8");
    write_repeated(path, "x y ", 200000, "z\xe6\x97");
    assert_error(ku_bpe_count_words(path, NULL, &counted), KUMI_EINPUT,
                 "long.txt:1: byte 800002 (0xe6) is not valid UTF-8");
    write_repeated(path, "xxxxxxxx", 17 << 17, "");
    assert_error(ku_bpe_count_words(path, NULL, &counted), KUMI_EINPUT,
                 "long.txt:1: a word of more than 16777216 bytes; split it");
    ku_word_count_fini(&counted);
}

/* Every allocation fails once: an error, nothing lost, nothing written. */
static void faults(void **state)
{
    struct ku_word_count counted = {0};
    struct ku_bpe_train_opts o = {.vocab_count = 300, .min_frequency = 2};
    (void)state;
    assert_status(ku_bpe_count_words(words[0], NULL, &counted), KUMI_OK);
    for (int n = 1, status = KUMI_ENOMEM; status < 0; n++) {
        struct ku_bpe_trained t = {0};
        struct ku_word_count again = {0};
        char fault[32];
        snprintf(fault, sizeof fault, "mem:%d", n);
        ku_fault_set(fault);
        status = ku_bpe_count_words(words[0], NULL, &again);
        if (status == KUMI_OK)
            status = ku_bpe_train(&counted, &o, &t);
        ku_fault_set(NULL);
        assert_true(status == KUMI_OK || status == KUMI_ENOMEM);
        assert_true(n < 10000);
        ku_bpe_trained_fini(&t);
        ku_word_count_fini(&again);
    }
    ku_word_count_fini(&counted);
}

/* The two are inverse to each other. */
static void spelling(void **state)
{
    (void)state;
    for (unsigned b = 0; b < 256; b++) {
        uint32_t c = ku_token_spell(b);
        unsigned char text[2] = {(unsigned char)(0xC0 | c >> 6), (unsigned char)(0x80 | (c & 63))};
        unsigned char ascii = (unsigned char)c, out[2];
        size_t n = 0;
        assert_int_equal(ku_token_unspell(c < 128 ? &ascii : text, c < 128 ? 1 : 2, out, &n), 1);
        assert_int_equal(n, 1);
        assert_int_equal(out[0], b);
        for (unsigned other = 0; other < b; other++)
            assert_int_not_equal(ku_token_spell(other), c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_file_as_hugging_face),
                                       cmocka_unit_test(reports),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(lines_of_any_length),
                                       cmocka_unit_test(faults_of_long_lines),
                                       cmocka_unit_test(faults),
                                       cmocka_unit_test(spelling)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
