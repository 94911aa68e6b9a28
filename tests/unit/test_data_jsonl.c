/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor ckpt data */
#include "ckpt_util.h"

#include "base/fault.h"
#include "data/text/jsonl.h"
#include "data/text/token_files.h"
#include "folder.h"

#define NO KU_NO_TARGET

static struct ku_jsonl_opts options(const char *const *train, int n_train)
{
    return (struct ku_jsonl_opts){.train = train,
                                  .n_train = n_train,
                                  .cache = folder,
                                  .seq_len = 4,
                                  .vocab_count = 100,
                                  .segments = 1};
}

/* Documents 1..5, 10..12, 20 21 and, in a second file, 30..36; three kinds of labels. */
static const char first_file[] =
    "{\"input_ids\": [1, 2, 3, 4, 5]}\n\n"
    "{\"labels\": [-100, -100, 12], \"input_ids\": [10, 11, 12], \"x\": {}}\r\n"
    "{\"input_ids\": [20, 21], \"labels\": [99, 98]}\n";
static const char second_file[] = "{\"input_ids\": [30, 31, 32, 33, 34, 35, 36]}";

struct sample {
    int32_t tokens[4], targets[4], segments[4];
};
static const struct sample packed[] = {{{1, 2, 3, 4}, {2, 3, 4, 5}, {0, 0, 0, 0}},
                                       {{10, 11, 20, 30}, {NO, 12, 98, 31}, {0, 0, 1, 2}},
                                       {{31, 32, 33, 34}, {32, 33, 34, 35}, {0, 0, 0, 0}},
                                       {{35, 0, 0, 0}, {36, NO, NO, NO}, {0, 1, 1, 1}}};
static const struct sample padded[] = {{{1, 2, 3, 4}, {2, 3, 4, 5}, {0, 0, 0, 0}},
                                       {{10, 11, 0, 0}, {NO, 12, NO, NO}, {0, 0, 1, 1}},
                                       {{20, 0, 0, 0}, {98, NO, NO, NO}, {0, 1, 1, 1}},
                                       {{30, 31, 32, 33}, {31, 32, 33, 34}, {0, 0, 0, 0}}};

static void assert_sample(const struct ku_data *d, enum ku_data_split split, int64_t i,
                          const struct sample *expected)
{
    struct sample got;
    void *port[] = {got.tokens, got.targets, got.segments};
    assert_status(ku_data_read(d, split, i, i, port), KUMI_OK);
    assert_memory_equal(&got, expected, sizeof got);
}

static void documents_packed_and_padded(void **state)
{
    const char *train[] = {put_text("a1.jsonl", first_file), put_text("a2.jsonl", second_file)};
    char pattern[128];
    const char *glob[] = {pattern};
    (void)state;
    snprintf(pattern, sizeof pattern, "%s/a?.jsonl", folder);
    for (int form = 0; form < 8; form++) { /* packed; a glob; an own validation split */
        int pack = form & 1, has_val = form & 4;
        struct ku_jsonl_opts o = form & 2 ? options(glob, 1) : options(train, 2);
        struct ku_data *d = NULL;
        o.pack = pack;
        o.val_fraction = has_val ? 0.0 : 0.25;
        o.val = has_val ? train : NULL;
        o.n_val = has_val ? 2 : 0;
        assert_status(ku_jsonl_open(&o, &d), KUMI_OK);
        assert_int_equal(d->n_samples[KU_SPLIT_TRAIN], has_val ? 4 : 3);
        assert_int_equal(d->n_samples[KU_SPLIT_VAL], has_val ? 4 : 1);
        assert_int_equal(ku_jsonl_n_cut(d), pack ? 0 : has_val ? 2 : 1);
        int64_t last = pack ? 1 : 6;
        assert_int_equal(d->n_items[KU_SPLIT_TRAIN], has_val ? 13 : 13 - last);
        assert_int_equal(d->n_items[KU_SPLIT_VAL], has_val ? 13 : last);
        for (int64_t i = 0; i < 4; i++) {
            enum ku_data_split split = !has_val && i == 3 ? KU_SPLIT_VAL : KU_SPLIT_TRAIN;
            assert_sample(d, split, split == KU_SPLIT_VAL ? 0 : i, pack ? &packed[i] : &padded[i]);
        }
        assert_status(ku_data_verify(d, NULL), KUMI_OK);
        assert_int_equal(d->n_ports, 3);
        ku_data_destroy(d);
    }
}

/* Longer than a chunk, cut and packed: every position once. */
/* Texts: the tokenizer's tokens and the token that ends a text, packed and padded; other members,
 * and what has nothing to learn, are passed over. */
static void documents_of_text(void **state)
{
    static const char file[] = "\n{\"id\": 18446744073709551615, \"text\": \"ab\\n\"}\n"
                               "{\"text\": \"\", \"x\": \"\\u0000\"}\n"
                               "{\"text\": \"c\", \"labels\": [1]}\n{\"text\": \"de\\u0000gh\"}";
    static const struct sample with_end[2][3] = {
        {{{97, 98, 10, 99}, {98, 10, 0, 0}, {0, 0, 0, 1}},
         {{100, 101, 0, 103}, {101, 0, 103, 104}, {0, 0, 0, 0}},
         {{104, 0, 0, 0}, {0, NO, NO, NO}, {0, 1, 1, 1}}},
        {{{97, 98, 10, 0}, {98, 10, 0, NO}, {0, 0, 0, 1}},
         {{99, 0, 0, 0}, {0, NO, NO, NO}, {0, 1, 1, 1}},
         {{100, 101, 0, 103}, {101, 0, 103, 104}, {0, 0, 0, 0}}}};
    static const struct sample plain = {{97, 98, 100, 101}, {98, 10, 101, 0}, {0, 0, 1, 1}};
    const char *train[] = {put_text("texts.jsonl", file)};
    const int64_t zero = 0;
    (void)state;
    for (int form = 0; form < 3; form++) {
        struct ku_jsonl_opts o = options(train, 1);
        struct ku_data *d = NULL;
        o.pack = form != 1;
        o.separator = form < 2 ? &zero : NULL; /* bytes have no end of text of their own */
        o.vocab_count = 256;
        assert_status(ku_jsonl_open(&o, &d), KUMI_OK);
        for (int i = 0; i < 3 && form < 2; i++)
            assert_sample(d, KU_SPLIT_TRAIN, i, &with_end[form][i]);
        if (form == 2)
            assert_sample(d, KU_SPLIT_TRAIN, 0, &plain);
        assert_status(ku_data_verify(d, NULL), KUMI_OK);
        ku_data_destroy(d);
    }
}

/* With a tokenizer of its own, whose end of text ends every document. */
static void texts_with_a_tokenizer(void **state)
{
    const char *train[] = {put_text("bpe.jsonl", "{\"text\": \"ab aab\"}\n{\"text\": \"a\"}\n")};
    const struct sample packed_texts[] = {{{2, 3, 0, 2}, {3, 0, 2, 4}, {0, 0, 0, 0}},
                                          {{0, 0, 0, 0}, {4, NO, NO, NO}, {0, 1, 1, 1}}};
    struct ku_jsonl_opts o = options(train, 1);
    struct ku_data *d = NULL;
    (void)state;
    put_text("vocab.json", "{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3,\"<|endoftext|>\":4}");
    put_text("merges.txt", "a b\n");
    o.pack = 1;
    o.tokenizer = folder;
    assert_status(ku_jsonl_open(&o, &d), KUMI_OK);
    for (int i = 0; i < 2; i++)
        assert_sample(d, KU_SPLIT_TRAIN, i, &packed_texts[i]);
    ku_data_destroy(d);
    d = NULL;
    o.vocab_count = 4;
    assert_status(ku_jsonl_open(&o, &d), KUMI_EINPUT);
    assert_non_null(strstr(ku_err_get()->text,
                           ".jsonl:1: token 4 of data.tokenizer; the model's vocabulary has 4"));
}

/* Tokens around a text; a document does not end twice with the same token. */
static void texts_with_tokens_around_them(void **state)
{
#define AROUND(single)                                                                             \
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"model\":{"           \
    "\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]},"                 \
    "\"added_tokens\":[{\"id\":4,\"content\":\"<|endoftext|>\"},{\"id\":5,\"content\":\"<s>\"}],"  \
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["                             \
    "{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}" single                     \
    "],\"special_tokens\":{\"<s>\":{\"ids\":[5]},\"end\":{\"ids\":[4]}}}}"
    static const char *const tokenizer[] = {AROUND(""),
                                            AROUND(",{\"SpecialToken\":{\"id\":\"end\"}}")};
    static const struct sample once = {{5, 2, 5, 0}, {2, 4, 0, 4}, {0, 0, 1, 1}},
                               another = {{5, 2, 4, 5}, {2, 4, 1, 0}, {0, 0, 0, 1}};
    const char *train[] = {put_text("around.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"a\"}\n")};
    const int64_t given = 1;
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct ku_jsonl_opts o = options(train, 1);
        struct ku_data *d = NULL;
        o.pack = 1;
        o.tokenizer = put_text("around.json", tokenizer[i > 0]);
        o.separator = i == 2 ? &given : NULL;
        assert_status(ku_jsonl_open(&o, &d), KUMI_OK);
        assert_int_equal(d->n_items[KU_SPLIT_TRAIN], i == 2 ? 6 : 4);
        assert_sample(d, KU_SPLIT_TRAIN, 0, i == 2 ? &another : &once);
        ku_data_destroy(d);
    }
}

static void long_documents(void **state)
{
    enum { N = 5000, T = 1500 };
    static char text[N * 6 + 64];
    static int32_t tokens[T], targets[T];
    size_t at = (size_t)sprintf(text, "{\"input_ids\":[");
    (void)state;
    for (int i = 0; i < N; i++)
        at += (size_t)sprintf(text + at, "%d,", i);
    strcpy(text + at - 1, "]}\n");
    const char *train[] = {put_text("long.jsonl", text)};
    struct ku_jsonl_opts o = options(train, 1);
    struct ku_data *d = NULL;
    o.pack = 1;
    o.segments = 0;
    o.seq_len = T;
    o.vocab_count = N;
    assert_status(ku_jsonl_open(&o, &d), KUMI_OK);
    assert_int_equal(d->n_samples[KU_SPLIT_TRAIN], (N - 1 + T - 1) / T);
    for (int i = 0; i < N - 1; i++) {
        void *port[] = {tokens, targets};
        if (i % T == 0)
            assert_status(ku_data_read(d, KU_SPLIT_TRAIN, i / T, 0, port), KUMI_OK);
        assert_int_equal(tokens[i % T], i);
        assert_int_equal(targets[i % T], i + 1);
    }
    ku_data_destroy(d);
}

static void refusals(void **state)
{
    static const struct {
        const char *text, *part;
        int64_t seq_len;
    } rows[] = {
        {"{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 2\n", ".jsonl:2: json: line:1:", 4},
        {"[1, 2]\n", ".jsonl:1: no input_ids; a line is", 4},
        {"{\"input_ids\": 5}\n", ".jsonl:1: no input_ids", 4},
        {"{\"text\": 5}\n", ".jsonl:1: no \"text\", which the first line has", 4},
        {"{\"text\": \"!\"}\n\n{\"input_ids\": [1]}\n", ".jsonl:3: no \"text\", which the first",
         4},
        {"{\"input_ids\": [1, 2]}\n{\"text\": \"ab\"}\n", ".jsonl:2: no input_ids; a line is", 4},
        {"{\"text\": \"!\"}\n", "no tokens in", 4},
        {"{\"text\": \"xyz\"}\n", ".jsonl:1: token 120 of data.tokenizer; the model's", 4},
        {"\n{\"input_ids\": [1]}\n", ".jsonl:2: fewer than two tokens", 4},
        {"{\"input_ids\": [1, 2, 3], \"labels\": [1, 2]}", "3 input_ids, 2 labels; give", 4},
        {"{\"input_ids\": [1, 2], \"labels\": 7}", "2 input_ids, 0 labels; give", 4},
        {"{\"input_ids\": [1, 100]}", "input_ids[1]: 100; give token ids below 100", 4},
        {"{\"input_ids\": [1, -100]}", "input_ids[1]: -100; give", 4},
        {"{\"input_ids\": [1.5, 1]}", "input_ids[0]: 1.5; give", 4},
        {"{\"input_ids\": [1, 2], \"labels\": [-100, -1]}", "labels[1]: -1; give", 4},
        {"{\"input_ids\": [1, 2], \"labels\": [0, null]}", "labels[1]: null; give", 4},
        {"{\"input_ids\": [1, \"\xff\"]}", ".jsonl:1: byte 20 (0xff) is not valid UTF-8", 4},
        {"{\"input_ids\": [1, 2], \"input_ids\": [1, 2]}", "duplicate object key", 4},
        {"\n\n", "no tokens in 2 bytes of text", 4},
        {"{\"input_ids\": [1, 2, 3, 4, 5, 6]}", "document 1 has 6 tokens; data.seq_len holds 5", 4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *train[] = {put_text("bad.jsonl", rows[i].text)};
        struct ku_jsonl_opts o = options(train, 1);
        struct ku_data *d = NULL;
        o.on_long = KU_LONG_ERROR;
        o.seq_len = rows[i].seq_len;
        assert_error(ku_jsonl_open(&o, &d), KUMI_EINPUT, rows[i].part);
        assert_null(d);
    }
    const char *train[] = {put_text("good.jsonl", second_file)};
    struct ku_jsonl_opts o = options(train, 1);
    struct ku_data *d = NULL;
    o.val_fraction = 0.5;
    assert_error(ku_jsonl_open(&o, &d), KUMI_EINPUT, "1 samples, none of them for training");
    o.val_fraction = 1.0;
    assert_error(ku_jsonl_open(&o, &d), KUMI_EINVAL, "data.val_fraction: 1");
    o.n_train = 0;
    assert_error(ku_jsonl_open(&o, &d), KUMI_EINVAL, "data.train");
}

/* Shards of tokens in proportion to their weights. */
static void weighted_shards(void **state)
{
    static const struct {
        double weight[3];
        int64_t draws[3];
    } rows[] = {
        /* 10, 20 and 5 samples of 4 tokens */
        {{1, 1, 1}, {20, 20, 20}},
        {{2, 4, 1}, {10, 20, 5}},
        {{0.5, 0.25, 0.25}, {40, 20, 20}},
        {{1, 100, 1}, {10, 1000, 10}},
    };
    static const int64_t samples[] = {10, 20, 5};
    uint16_t shard[3][81];
    const char *train[3];
    (void)state;
    for (int i = 0; i < 3; i++) {
        char name[16];
        for (int k = 0; k < 81; k++)
            shard[i][k] = (uint16_t)(1000 * i + k);
        snprintf(name, sizeof name, "s%d.bin", i);
        train[i] = put(name, shard[i], (size_t)(samples[i] * 4 + 1) * 2);
    }
    char fingerprint[sizeof rows / sizeof *rows][65];
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct ku_text_opts o = {.train = train,
                                 .n_train = 3,
                                 .weight = rows[r].weight,
                                 .format = "u16",
                                 .seq_len = 4,
                                 .vocab_count = 3000};
        struct ku_data *d = NULL;
        int64_t n = 0, next = 0;
        assert_status(ku_text_open(&o, &d), KUMI_OK);
        for (int i = 0; i < 3; i++)
            n += rows[r].draws[i];
        assert_int_equal(d->n_samples[KU_SPLIT_TRAIN], n);
        assert_int_equal(d->n_items[KU_SPLIT_TRAIN], 35 * 4 + 3);
        for (int i = 0; i < 3; i++)
            for (int64_t k = 0; k < rows[r].draws[i]; k++, next++) {
                int32_t tokens[4], targets[4];
                assert_status(ku_data_read(d, KU_SPLIT_TRAIN, next, 0, (void *[]){tokens, targets}),
                              KUMI_OK);
                assert_int_equal(tokens[0], 1000 * i + k % samples[i] * 4);
                assert_int_equal(targets[3], tokens[0] + 4);
            }
        strcpy(fingerprint[r], d->fingerprint);
        for (size_t before = 0; before < r; before++)
            assert_string_not_equal(fingerprint[before], fingerprint[r]);
        assert_status(ku_data_verify(d, NULL), KUMI_OK);
        ku_data_destroy(d);
        o.val_fraction = 0.25; /* of each shard */
        assert_status(ku_text_open(&o, &d), KUMI_OK);
        assert_int_equal(d->n_samples[KU_SPLIT_VAL], 2 + 5 + 1);
        ku_data_destroy(d);
    }
    static const double zero[] = {1, 0, 1}, far[] = {1e-300, 1, 1};
    const double *bad[] = {zero, far};
    static const char *const part[] = {"data: weight 0 of", "would have more than 1e+15 samples"};
    for (int i = 0; i < 2; i++) {
        struct ku_text_opts o = {.train = train,
                                 .n_train = 3,
                                 .weight = bad[i],
                                 .format = "u16",
                                 .seq_len = 4,
                                 .vocab_count = 3000};
        struct ku_data *d = NULL;
        assert_error(ku_text_open(&o, &d), KUMI_EINVAL, part[i]);
    }
}

static void segments_of_text(void **state)
{
    const char *train[] = {put_text("doc.txt", "ab.c..defghi.jk")};
    struct ku_text_opts o = {.train = train,
                             .n_train = 1,
                             .seq_len = 7,
                             .vocab_count = 256,
                             .segments = 1,
                             .separator = '.'};
    static const int32_t expected[2][7] = {{0, 0, 0, 1, 1, 2, 3}, {0, 0, 0, 0, 0, 0, 1}};
    struct ku_data *d = NULL;
    (void)state;
    assert_status(ku_text_open(&o, &d), KUMI_OK);
    assert_int_equal(d->n_samples[KU_SPLIT_TRAIN], 2);
    for (int i = 0; i < 2; i++) {
        int32_t tokens[7], targets[7], segments[7];
        void *port[] = {tokens, targets, segments};
        assert_status(ku_data_read(d, KU_SPLIT_TRAIN, i, i, port), KUMI_OK);
        assert_memory_equal(segments, expected[i], sizeof segments);
    }
    ku_data_destroy(d);
    o.separator = 256;
    assert_error(ku_text_open(&o, &d), KUMI_EINVAL, "data.separator: token 256");
    o.separator = -1;
    assert_error(ku_text_open(&o, &d), KUMI_EINVAL, "data.separator: token -1");
}

/* Every allocation and system call fails once: an error, or the same data. */
static void faults(void **state)
{
    static const char *const kinds[] = {"mem", "os"};
    const char *train[] = {put_text("f.jsonl", first_file)};
    (void)state;
    for (int kind = 0; kind < 2; kind++)
        for (int n = 1; n < 80; n++) {
            char fault[16], cache[128];
            struct ku_jsonl_opts o = options(train, 1);
            struct ku_data *d = NULL;
            snprintf(cache, sizeof cache, "%s/cache-%d-%d", folder, kind, n);
            snprintf(fault, sizeof fault, "%s:%d", kinds[kind], n);
            o.cache = cache;
            ku_fault_set(fault);
            int status = ku_jsonl_open(&o, &d);
            ku_fault_set(NULL);
            assert_true(status == KUMI_OK || status == KUMI_ENOMEM || status == KUMI_EINPUT);
            if (status == KUMI_OK)
                assert_int_equal(d->n_samples[KU_SPLIT_TRAIN], 3);
            ku_data_destroy(d);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(documents_packed_and_padded),
                                       cmocka_unit_test(documents_of_text),
                                       cmocka_unit_test(texts_with_a_tokenizer),
                                       cmocka_unit_test(texts_with_tokens_around_them),
                                       cmocka_unit_test(long_documents),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(weighted_shards),
                                       cmocka_unit_test(segments_of_text),
                                       cmocka_unit_test(faults)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
