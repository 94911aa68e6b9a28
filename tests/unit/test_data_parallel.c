/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor ckpt data */
#include "ckpt_util.h"

#include "base/fault.h"
#include "base/os/os.h"
#include "data/pairs/parallel_corpus.h"
#include "folder.h"

#define NO    KU_NO_TARGET
#define SMALL KUMI_SOURCE_DIR "/tests/fixtures/tokenizer/small"

static struct ku_vocab *open_vocab(const char *tokenizer, const char *const *file, int n_files,
                                   int64_t min_frequency)
{
    struct ku_vocab *v = NULL;
    struct ku_vocab_opts o = {
        .tokenizer = tokenizer, .file = file, .n_files = n_files, .min_frequency = min_frequency};
    assert_status(ku_vocab_open(&o, &v), KUMI_OK);
    return v;
}

static void words_by_frequency(void **state)
{
    (void)state;
    const char *file[] = {put_text("words.txt", "b a  a\tc\r\nc a <unk> b\n\n  d </s> \n"),
                          put_text("more.txt", "\xe7\xa7\x81 e e")};
    static const struct {
        int64_t min_frequency, max_words;
        const char *words;
    } rows[] = {{0, 0, "<pad>\n<s>\n</s>\n<unk>\na\nb\nc\ne\nd\n\xe7\xa7\x81\n"},
                {2, 0, "<pad>\n<s>\n</s>\n<unk>\na\nb\nc\ne\n"},
                {3, 0, "<pad>\n<s>\n</s>\n<unk>\na\n"},
                {1, 2, "<pad>\n<s>\n</s>\n<unk>\na\nb\n"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ku_vocab *v = NULL, *back = NULL;
        struct ku_str s = {0};
        struct ku_vocab_opts o = {.file = file,
                                  .n_files = 2,
                                  .min_frequency = rows[i].min_frequency,
                                  .max_words = rows[i].max_words};
        assert_status(ku_vocab_open(&o, &v), KUMI_OK);
        assert_status(ku_vocab_print(v, &s), KUMI_OK);
        assert_string_equal(s.text, rows[i].words);
        back = open_vocab(put_text("list.vocab", s.text), NULL, 0, 0);
        assert_int_equal(ku_vocab_count(back), ku_vocab_count(v));
        assert_string_equal(ku_vocab_fingerprint(back), ku_vocab_fingerprint(v));
        ku_str_fini(&s);
        ku_vocab_destroy(v);
        ku_vocab_destroy(back);
    }
}

/* Sentences to tokens and back, through words and through tokenizers, with and without their own
 * special tokens. */
static void sentences_come_back(void **state)
{
    (void)state;
    const char *file[] = {put_text("words.txt", "a b c a b a\n")};
    static const struct {
        const char *tokenizer, *text, *back;
        int64_t count;
        uint32_t special[4];
    } rows[] = {{"word", " a  c b ", "a c b", 7, {0, 1, 2, 3}},
                {"word", "a x </s>", "a <unk> <unk>", 7, {0, 1, 2, 3}},
                {"word", "", "", 7, {0, 1, 2, 3}},
                {"byte", "h\xc3\xa9!", "h\xc3\xa9!", 259, {256, 257, 258, 256}},
                {SMALL, "hello there", "hello there", 659, {656, 657, 658, 656}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ku_vocab *v = open_vocab(rows[i].tokenizer, file, 1, 0);
        struct ku_tokens tokens = {0};
        struct ku_str back = {0};
        assert_int_equal(ku_vocab_count(v), rows[i].count);
        for (int k = 0; k < KU_VOCAB_SPECIALS; k++)
            assert_int_equal(ku_vocab_special(v, (enum ku_vocab_special)k), rows[i].special[k]);
        assert_status(ku_vocab_encode(v, rows[i].text, strlen(rows[i].text), &tokens), KUMI_OK);
        for (size_t k = 0; k < tokens.count; k++)
            assert_in_range(tokens.id[k], 0, rows[i].count - 1);
        uint32_t list[64] = {rows[i].special[KU_VOCAB_BOS]};
        size_t n = 1 + tokens.count;
        if (tokens.count > 0)
            memcpy(list + 1, tokens.id, tokens.count * sizeof *list);
        list[n++] = rows[i].special[KU_VOCAB_EOS];
        list[n++] = 1000000; /* after the end: not read */
        assert_status(ku_vocab_decode(v, list, n, &back), KUMI_OK);
        assert_string_equal(ku_str_get(&back), rows[i].back);
        assert_status(ku_vocab_decode(v, list + n - 1, 1, &back), KUMI_EINVAL);
        ku_str_fini(&back);
        ku_tokens_fini(&tokens);
        ku_vocab_destroy(v);
    }
}

static struct ku_parallel_opts options(const char *const *src, const char *const *tgt, int n,
                                       struct ku_vocab *s, struct ku_vocab *t)
{
    return (struct ku_parallel_opts){.files = {{src, tgt, n}},
                                     .src_vocab = s,
                                     .tgt_vocab = t,
                                     .src_len_max = 4,
                                     .tgt_len_max = 5,
                                     .cache = folder};
}

static void ports_are_padded(void **state)
{
    (void)state;
    const char *src[] = {put_text("a.en", "a b c\nb\n\na a a a a\n"), put_text("b.en", "c z\r\nb")};
    const char *tgt[] = {put_text("a.ja", "x y\nx\ny\nx\n"), put_text("b.ja", "y y y y y\n   \n")};
    struct ku_vocab *s = open_vocab("word", src, 2, 2), *t = open_vocab("word", tgt, 2, 0);
    struct ku_parallel_opts o = options(src, tgt, 2, s, t);
    struct ku_data *d = NULL;
    o.files[KU_SPLIT_VAL] = (struct ku_parallel_files){src + 1, tgt + 1, 1};
    for (int again = 0; again < 2; again++) { /* into the cache, and from it */
        assert_status(ku_parallel_open(&o, &d), KUMI_OK);
        struct ku_parallel_counts c = ku_parallel_counts(d, KU_SPLIT_TRAIN);
        assert_int_equal(d->n_samples[KU_SPLIT_TRAIN], 3);
        assert_int_equal(d->n_samples[KU_SPLIT_VAL], 1);
        assert_int_equal(c.lines, 6);
        assert_int_equal(c.n_empty, 2);
        assert_int_equal(c.n_long, 1);
        assert_int_equal(c.src_tokens, 3 + 1 + 2);
        assert_int_equal(c.tgt_tokens, 2 + 1 + 5);
        assert_status(ku_data_verify(d, NULL), KUMI_OK);
        /* Words: a 4, b 5, c 6 ("z" once: unknown), x and y 4 and 5 by count, y 7 times. */
        static const struct {
            int64_t line;
            int32_t src[4], src_len, tgt_in[6], targets[6], tgt_len;
        } rows[] = {{1, {4, 5, 6, 0}, 3, {1, 5, 4, 0, 0, 0}, {5, 4, 2, NO, NO, NO}, 3},
                    {2, {5, 0, 0, 0}, 1, {1, 5, 0, 0, 0, 0}, {5, 2, NO, NO, NO, NO}, 2},
                    {5, {6, 3, 0, 0}, 2, {1, 4, 4, 4, 4, 4}, {4, 4, 4, 4, 4, 2}, 6},
                    {0, {0, 0, 0, 0}, 0, {0, 0, 0, 0, 0, 0}, {NO, NO, NO, NO, NO, NO}, 0}};
        for (int64_t i = 0; i < 4; i++) {
            int32_t src_[4], src_len, tgt_in[6], targets[6], tgt_len;
            void *port[] = {src_, &src_len, tgt_in, targets, &tgt_len};
            int64_t sample = i < 3 ? i : -1;
            assert_status(d->ops->read_shape(d, KU_SPLIT_TRAIN, sample, 0,
                                             &(struct ku_bucket_shape){1, 4, 6}, port),
                          KUMI_OK);
            assert_memory_equal(src_, rows[i].src, sizeof src_);
            assert_memory_equal(tgt_in, rows[i].tgt_in, sizeof tgt_in);
            assert_memory_equal(targets, rows[i].targets, sizeof targets);
            assert_true(src_len == rows[i].src_len && tgt_len == rows[i].tgt_len);
            if (i == 3)
                continue;
            assert_int_equal(ku_parallel_line(d, KU_SPLIT_TRAIN, i), rows[i].line);
            memset(src_, 1, sizeof src_);
            assert_status(ku_data_read(d, KU_SPLIT_TRAIN, i, i, port), KUMI_OK);
            assert_memory_equal(src_, rows[i].src, sizeof src_);
        }
        assert_string_equal(d->port[KU_PARALLEL_TARGETS].name, "targets");
        assert_int_equal(d->port[KU_PARALLEL_TARGETS].dim[0], 6);
        ku_data_destroy(d);
    }
    ku_vocab_destroy(s);
    ku_vocab_destroy(t);
}

static void buckets_of_pairs(void **state)
{
    enum { LINES = 500 };
    static char text[2][LINES * 64];
    size_t at[2] = {0, 0};
    (void)state;
    for (int i = 0; i < LINES; i++)
        for (int k = 0; k < 2; k++)
            for (int n = 1 + (i * 7 + k * i) % 20, j = 0; j < n; j++)
                at[k] += (size_t)sprintf(text[k] + at[k], "w%d%s", j, j + 1 < n ? " " : "\n");
    const char *src[] = {put_text("l.en", text[0])}, *tgt[] = {put_text("l.ja", text[1])};
    struct ku_vocab *v = open_vocab("word", src, 1, 0);
    struct ku_parallel_opts o = options(src, tgt, 1, v, v);
    o.src_len_max = o.tgt_len_max = 20;
    struct ku_buckets_opts b_opts = {4, 0, 400, 2, 0, KU_LAST_SHORT, 1, 3};
    struct ku_data *d = NULL;
    struct ku_buckets *b = NULL;
    assert_status(ku_parallel_open(&o, &d), KUMI_OK);
    assert_status(ku_buckets_of_data(d, KU_SPLIT_TRAIN, &b_opts, &b), KUMI_OK);
    assert_true(ku_buckets_n_shapes(b) > 1);
    for (int64_t step = 0; step < ku_buckets_steps_per_epoch(b); step++) {
        struct ku_bucket_shape s = ku_buckets_shape(b, ku_buckets_shape_at(b, step));
        for (int64_t p = 0; p < s.rows; p++) {
            int32_t src_[21], n_src, tgt_in[21], targets[21], n_tgt;
            void *port[] = {src_, &n_src, tgt_in, targets, &n_tgt};
            assert_status(
                d->ops->read_shape(d, KU_SPLIT_TRAIN, ku_buckets_at(b, step, p), 0, &s, port),
                KUMI_OK);
            assert_true(n_src <= s.src_len && n_tgt <= s.tgt_len);
        }
    }
    ku_buckets_destroy(b);
    ku_data_destroy(d);
    ku_vocab_destroy(v);
}

/* Lists that are no vocabulary, files that are no pairs: status and text, the folder as '@'. */
static void assert_text(const char *expected)
{
    char text[640];
    size_t before = strcspn(expected, "@");
    snprintf(text, sizeof text, "%.*s%s%s", (int)before, expected, expected[before] ? folder : "",
             expected[before] ? expected + before + 1 : "");
    if (!strstr(ku_err_get()->text, text))
        fail_msg("'%s', expected '%s'", ku_err_get()->text, text);
}

static void bad_vocabularies(void **state)
{
    static const struct {
        const char *name, *text, *tokenizer;
        int64_t min_frequency;
        int status;
        const char *expected;
    } rows[] = {
        {"v.vocab", "<s>\n", "file", 0, KUMI_EINPUT, "vocabulary: @/v.vocab:1: '<s>'; the first"},
        {"v.vocab", "<pad>\n<s>\n", "file", 0, KUMI_EINPUT, "vocabulary: @/v.vocab: 2 lines;"},
        {"v.vocab", "<pad>\n<s>\n</s>\n<unk>\na\nb\na\n", "file", 0, KUMI_EINPUT,
         "vocabulary: @/v.vocab:7: 'a' is already in line 5"},
        {"v.vocab", "<pad>\n<s>\n</s>\n<unk>\na b\n", "file", 0, KUMI_EINPUT,
         "vocabulary: @/v.vocab:5: 'a b'; a line is one word"},
        {"v.vocab", "<pad>\n<s>\n</s>\n<unk>\n\n", "file", 0, KUMI_EINPUT, "'; a line is one word"},
        {"v.txt", "a b\n", "word", 2, KUMI_EINPUT, "vocabulary: @/v.txt: no word occurs 2 times"},
        {"v.txt", "a \xff\n", "word", 1, KUMI_EINPUT,
         "data: @/v.txt:1: byte 3 (0xff) is not valid UTF-8"},
        {"v.txt", "a b\n", "word", -1, KUMI_EINVAL, "min_frequency -1"},
        {"v.txt", "a b\n", "/nowhere", 1, KUMI_EINPUT, "tokenizer: /nowhere: No such file"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *file[] = {put_text(rows[i].name, rows[i].text)};
        struct ku_vocab_opts o = {.tokenizer = rows[i].tokenizer,
                                  .file = file,
                                  .n_files = 1,
                                  .min_frequency = rows[i].min_frequency};
        struct ku_vocab *v = NULL;
        if (strcmp(rows[i].tokenizer, "file") == 0)
            o.tokenizer = file[0];
        assert_int_equal(ku_vocab_open(&o, &v), rows[i].status);
        assert_text(rows[i].expected);
        assert_null(v);
    }
}

static void bad_pairs(void **state)
{
    static const struct {
        const char *src, *tgt;
        enum ku_parallel_odd on_empty, on_long;
        int64_t src_len_max;
        int status;
        const char *expected;
    } rows[] = {
        {"a\nb\n", "x\n", 0, 0, 4, KUMI_EINPUT, "data: @/p.en has 2 lines, "},
        {"a\n", "x\ny", 0, 0, 4, KUMI_EINPUT, " 2; give files of equal length"},
        {"", "x\n", 0, 0, 4, KUMI_EINPUT, "data: @/p.en: empty"},
        {"a\n", "x\ny\xe3\x81\n", 0, 0, 4, KUMI_EINPUT,
         "data: @/p.ja:2: byte 2 (0xe3) is not valid UTF-8"},
        {"a\n\n", "x\ny\n", KU_ODD_ERROR, 0, 4, KUMI_EINPUT, "data: @/p.en:2: empty; remove"},
        {"a\nb\n", "x\n \t\n", KU_ODD_ERROR, 0, 4, KUMI_EINPUT, "data: @/p.ja:2: empty; remove"},
        {"a\na a a a a\n", "x\nx\n", 0, KU_ODD_ERROR, 4, KUMI_EINPUT,
         "data: @/p.en:2: 5 tokens; the limit is 4"},
        {"a\n", "x x x x x x\n", 0, KU_ODD_ERROR, 4, KUMI_EINPUT,
         "data: @/p.ja:1: 6 tokens; the limit is 5"},
        {"\na a a a a\n", "x\nx\n", 0, 0, 4, KUMI_EINPUT,
         "no pairs remain: of 2, 1 have an empty line and 1 are above the limits of 4 and 5"},
        {"a\n", "x\n", 0, 0, 0, KUMI_EINVAL, "data: source sentences of at most 0 tokens"},
        {"a\n", "x\n", 0, 0, 65537, KUMI_EINVAL, "at most 65537 tokens; give 1 to 65536"},
    };
    const char *words[] = {put_text("words.txt", "a b x y\n")};
    struct ku_vocab *v = open_vocab("word", words, 1, 0);
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *src[] = {put_text("p.en", rows[i].src)},
                   *tgt[] = {put_text("p.ja", rows[i].tgt)};
        struct ku_parallel_opts o = options(src, tgt, 1, v, v);
        struct ku_data *d = NULL;
        o.on_empty = rows[i].on_empty;
        o.on_long = rows[i].on_long;
        o.src_len_max = rows[i].src_len_max;
        assert_int_equal(ku_parallel_open(&o, &d), rows[i].status);
        assert_text(rows[i].expected);
        assert_null(d);
    }
    struct ku_parallel_opts none = options(NULL, NULL, 0, v, v);
    struct ku_data *d = NULL;
    assert_int_equal(ku_parallel_open(&none, &d), KUMI_EINVAL);
    ku_vocab_destroy(v);
}

/* Every allocation and system call fails once: an error, or the same data. */
static void faults(void **state)
{
    static const char *const kinds[] = {"mem", "os"};
    (void)state;
    const char *src[] = {put_text("f.en", "a b c\nb\n")}, *tgt[] = {put_text("f.ja", "x y\nx\n")};
    for (int kind = 0; kind < 2; kind++)
        for (int n = 1, failed = 1; failed && n < 400; n++) {
            char fault[16], cache[128];
            struct ku_vocab *v = NULL;
            struct ku_data *d = NULL;
            snprintf(cache, sizeof cache, "%s/cache-%d-%d", folder, kind, n);
            snprintf(fault, sizeof fault, "%s:%d", kinds[kind], n);
            struct ku_vocab_opts vocab_opts = {.file = src, .n_files = 1};
            ku_fault_set(fault);
            int status = ku_vocab_open(&vocab_opts, &v);
            if (status == KUMI_OK) {
                struct ku_parallel_opts o = options(src, tgt, 1, v, v);
                o.cache = cache;
                status = ku_parallel_open(&o, &d);
            }
            ku_fault_set(NULL);
            assert_true(status == KUMI_OK || status == KUMI_ENOMEM || status == KUMI_EINPUT);
            if (status == KUMI_OK)
                assert_int_equal(d->n_samples[KU_SPLIT_TRAIN], 2);
            failed = status < 0 || n < 60;
            ku_data_destroy(d);
            ku_vocab_destroy(v);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(words_by_frequency),
                                       cmocka_unit_test(sentences_come_back),
                                       cmocka_unit_test(ports_are_padded),
                                       cmocka_unit_test(buckets_of_pairs),
                                       cmocka_unit_test(bad_vocabularies),
                                       cmocka_unit_test(bad_pairs),
                                       cmocka_unit_test(faults)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
