/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */
#include "test_tokenizer_common.h"

#include <jansson.h>
#include <unistd.h>

static char folder[] = KUMI_BINARY_DIR "/test_tokenizer_XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return ku_os_rmtree(folder);
}

static const char *in_folder(const char *name)
{
    static char path[2][4096];
    static int turn;
    turn ^= 1;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void put(const char *name, const char *text)
{
    FILE *f = fopen(in_folder(name), "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

/* Completes a fixture's tokenizer.json with the small vocabulary as its model, and opens it. */
static struct ku_tokenizer *open_variant(const char *json)
{
    json_error_t error;
    json_t *full = json_loads(json, 0, &error),
           *vocab = json_load_file(FIXTURES "/small/encoder.json", 0, &error);
    json_t *merges = json_array(), *ignore = json_object_get(full, "ignore_merges");
    char line[4096];
    FILE *f = fopen(FIXTURES "/small/vocab.bpe", "r");
    assert_non_null(full);
    assert_non_null(vocab);
    assert_non_null(fgets(line, sizeof line, f));
    for (int n = 0; fgets(line, sizeof line, f); n++) {
        char *left = strtok(line, " \n"), *right = strtok(NULL, " \n");
        json_array_append_new(merges, n % 2 ? json_sprintf("%s %s", left, right)
                                            : json_pack("[ss]", left, right));
    }
    fclose(f);
    json_object_set_new(full, "model",
                        json_pack("{sssoso sO}", "type", "BPE", "vocab", vocab, "merges", merges,
                                  "ignore_merges", ignore));
    char *text = json_dumps(full, 0);
    put("tokenizer.json", text);
    free(text);
    json_decref(full);
    struct ku_tokenizer *t = NULL;
    int status = ku_tokenizer_open(in_folder("tokenizer.json"), &t);
    if (status < 0)
        fail_msg("%s", ku_err_get()->text);
    return t;
}

static void agrees_with_the_references(void **state)
{
    struct ku_tokenizer *t = NULL;
    char *text, name[64] = "", *json;
    size_t bytes, n = 0, n_variants = 0;
    (void)state;
    assert_int_equal(ku_os_slurp(FIXTURES "/small.txt", 1 << 24, &text, &bytes), 0);
    for (char *line, *rest = text; (line = next_line(&rest)) != NULL;) {
        if (*line == '=') {
            ku_tokenizer_destroy(t);
            json = strchr(line, ' ') + 1;
            snprintf(name, sizeof name, "%.*s", (int)(json - line - 2), line + 1);
            if (strcmp(json, "null") == 0)
                assert_int_equal(ku_tokenizer_open(FIXTURES "/small", &t), 0);
            else
                t = open_variant(json);
            n_variants++;
            continue;
        }
        struct fixture f = fixture_parse(line);
        int adds = strcmp(name, "prefix") == 0 || strcmp(name, "numbers") == 0 ||
                   strcmp(name, "removed") == 0;
        check_fixture(t, &f, name, !adds && strcmp(name, "words") != 0);
        fixture_free(&f);
        n++;
    }
    assert_int_equal(n_variants, 11);
    assert_true(n > 2000);
    ku_tokenizer_destroy(t);
    ku_free(text);
}

static void byte_is_itself(void **state)
{
    struct ku_tokenizer *t;
    struct ku_tokens got = {0};
    struct ku_str back = {0};
    unsigned char all[256];
    (void)state;
    for (int i = 0; i < 256; i++)
        all[i] = (unsigned char)i;
    assert_int_equal(ku_tokenizer_open("byte", &t), 0);
    assert_string_equal(ku_tokenizer_fingerprint(t), "byte");
    assert_int_equal(ku_tokenizer_vocab_count(t), 256);
    assert_int_equal(ku_tokenizer_encode(t, all, 256, &got), 0);
    assert_int_equal(got.count, 256);
    for (uint32_t i = 0; i < 256; i++)
        assert_int_equal(got.id[i], i);
    assert_int_equal(ku_tokenizer_decode(t, got.id, got.count, &back), 0);
    assert_memory_equal(back.text, all, 256);
    got.id[3] = 256;
    assert_int_equal(ku_tokenizer_decode(t, got.id, got.count, &back), KUMI_EINVAL);
    assert_int_equal(back.bytes, 256);
    assert_string_equal(
        ku_err_get()->text,
        "token id 256 at position 4: not in the vocabulary of 256; give ids of this tokenizer");
    ku_tokens_fini(&got);
    ku_str_fini(&back);
    ku_tokenizer_destroy(t);
}

/* A word in the cache, one merged by scan and one merged by heap are cut by the same merges. */
static void long_words_agree_with_short_ones(void **state)
{
    struct ku_tokenizer *t;
    struct ku_tokens one = {0}, many = {0};
    enum { TIMES = 3000 };
    static char text[TIMES + 1];
    (void)state;
    assert_int_equal(ku_tokenizer_open(FIXTURES "/small", &t), 0);
    memset(text, 'q', TIMES); /* no merge of q with q: q stays */
    assert_int_equal(ku_tokenizer_encode(t, "q", 1, &one), 0);
    assert_int_equal(ku_tokenizer_encode(t, text, TIMES, &many), 0);
    assert_int_equal(many.count, TIMES);
    for (size_t i = 0; i < TIMES; i++)
        assert_int_equal(many.id[i], one.id[0]);
    ku_tokens_fini(&one);
    ku_tokens_fini(&many);
    ku_tokenizer_destroy(t);
}

static void a_word_has_a_limit(void **state)
{
    struct ku_tokenizer *t;
    struct ku_tokens got = {0};
    char *block = ku_malloc(1 << 20);
    int status = 0;
    (void)state;
    memset(block, 'x', 1 << 20);
    block[9] = ' ';
    assert_int_equal(ku_tokenizer_open(FIXTURES "/small", &t), 0);
    assert_int_equal(ku_tokenizer_feed(t, block, 10, &got), 0);
    for (int i = 0; i < 18 && status == 0; i++) {
        block[9] = 'x';
        status = ku_tokenizer_feed(t, block, 1 << 20, &got);
    }
    assert_int_equal(status, KUMI_EINPUT);
    assert_string_equal(
        ku_err_get()->text,
        "text: word at byte 9: more than 16777216 bytes; split it by spaces or newlines");
    ku_tokenizer_reset(t);
    got.count = 0;
    assert_int_equal(ku_tokenizer_encode(t, "a b", 3, &got), 0);
    assert_int_equal(got.count, 2);
    ku_tokens_fini(&got);
    ku_free(block);
    ku_tokenizer_destroy(t);
}

#define BYTE_LEVEL                                                                                 \
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"                      \
    "\"ignore_merges\":false,\"added_tokens\":["

/* Opens the small vocabulary with added tokens; every other one is normalized if is_mixed. */
static struct ku_tokenizer *open_added(const char *const *token, int n, int is_mixed)
{
    struct ku_str json = {0};
    ku_str_add(&json, BYTE_LEVEL);
    for (int i = 0; i < n; i++)
        ku_str_add(&json, "%s{\"id\":%d,\"content\":\"%s\",\"normalized\":%s}", i ? "," : "",
                   656 + i, token[i], is_mixed && i % 2 ? "true" : "false");
    ku_str_add(&json, "]}");
    struct ku_tokenizer *t = open_variant(ku_str_get(&json));
    ku_str_fini(&json);
    return t;
}

static void the_longest_added_token_wins(void **state)
{
    static const char *const token[] = {"<a|>", "<a", "<b>", "<a>", "<a|", "||"};
    enum { TAG = 656, A, B, A_, A_BAR, BARS, N = 6 };
    uint32_t id[] = {A_BAR, TAG, A_, A, B, 87 /* x */, BARS, A, 27 /* < */, A};
    unsigned char text[] = "<a|<a|><a><a<b>x||<a<<a";
    (void)state;
    struct fixture f = {text, sizeof text - 1, id, sizeof id / sizeof *id};
    struct ku_tokenizer *t = open_added(token, N, 0);
    check_fixture(t, &f, "nested", 1);
    ku_tokenizer_destroy(t);
}

/* Without an index, each of 600,000 positions is compared with 10,000 tokens. */
static void one_of_many_added_tokens_is_found(void **state)
{
    enum { N = 10000, BYTES = 1 << 20, STEP = 7919 /* prime */ };
    static char name[N][16];
    static const char *token[N];
    struct ku_tokens got = {0}, plain = {0};
    struct ku_str text = {0};
    size_t at = 0;
    int n = 0;
    (void)state;
    for (int i = 0; i < N; i++) {
        snprintf(name[i], sizeof name[i], "<<%d>", i);
        token[i] = name[i];
    }
    struct ku_tokenizer *t = open_added(token, N, 1);
    for (; text.bytes < BYTES; n++)
        ku_str_add(&text, "<<<<<<<<<<%s", token[(n * STEP) % N]);
    assert_int_equal(ku_tokenizer_encode(t, "<<<<<<<<<<", 10, &plain), 0);
    assert_int_equal(ku_tokenizer_encode(t, text.text, text.bytes, &got), 0);
    assert_int_equal(got.count, (size_t)n * (plain.count + 1));
    for (int i = 0; i < n; i++) {
        assert_memory_equal(got.id + at, plain.id, plain.count * sizeof *plain.id);
        at += plain.count;
        assert_int_equal(got.id[at++], 656 + (i * STEP) % N);
    }
    ku_tokens_fini(&got);
    ku_tokens_fini(&plain);
    ku_str_fini(&text);
    ku_tokenizer_destroy(t);
}

#define HEAD                                                                                       \
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"model\":{\"type\":"  \
    "\"BPE\","
#define SPLIT(pattern)                                                                             \
    "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","            \
    "\"pattern\":{\"Regex\":\"" pattern                                                            \
    "\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\"}]},\"model\":{"       \
    "\"vocab\":{\"a\":0},\"merges\":[]}}"

#define POST(rule) HEAD "\"vocab\":{\"a\":0},\"merges\":[]},\"post_processor\":" rule "}"
#define TEMPLATE(single, ids)                                                                      \
    "{\"type\":\"TemplateProcessing\",\"single\":[" single                                         \
    "],\"special_tokens\":{\"a\":{\"ids\":" ids "}}}"
#define TEXT    "{\"Sequence\":{\"id\":\"A\"}}"
#define SPECIAL "{\"SpecialToken\":{\"id\":\"a\"}}"

/* tokenizer.json files that are refused, and a part of the line that says so. */
static const struct {
    const char *json, *text;
} refused[] = {
    {"", "tokenizer.json:"},
    {"[]", "pre_tokenizer: missing; kumi supports Split and Digits, with ByteLevel last"},
    {"{\"a\":1,\"a\":2}", "tokenizer.json:1:"},
    {"{\"normalizer\":{\"type\":\"NFC\"}}", "normalizer: {\"type\":\"NFC\"}; kumi supports null"},
    {"{\"decoder\":{\"type\":\"WordPiece\"}}",
     "decoder: {\"type\":\"WordPiece\"}; kumi supports ByteLevel"},
    {"{\"pre_tokenizer\":{\"type\":\"Whitespace\"}}",
     "pre_tokenizer: {\"type\":\"Whitespace\"}; kumi supports"},
    {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[]}}", "pre_tokenizer:"},
    {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":1}}",
     "true or false for add_prefix_space and use_regex"},
    {"{\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"normalizer\":{\"type\":"
     "\"BertNormalizer\"},\"model\":{\"type\":\"WordPiece\"}}",
     "model.type: \"WordPiece\"; kumi supports BPE"},
    {"{\"pre_tokenizer\":{\"type\":\"Metaspace\"},\"model\":{\"type\":\"Unigram\"}}",
     "model.type: \"Unigram\"; kumi supports BPE"},
    {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0}}}",
     "model.type: \"WordLevel\"; kumi supports BPE"},
    {HEAD "\"vocab\":{}}}", "vocabulary of 0 tokens"},
    {HEAD "\"vocab\":{\"a\":-1}}}", "token 'a': id -1"},
    {HEAD "\"vocab\":{\"a\":2000000}}}", "token 'a': id 2000000"},
    {HEAD "\"vocab\":{\"a\":1.5}}}", "token 'a': id -1"},
    {HEAD "\"vocab\":{\"a\":0,\"b\":0}}}", "its id 0 is given twice"},
    {HEAD "\"vocab\":{\"a\":0}}}", "model.merges: missing"},
    {HEAD "\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}",
     "merge 1 'a b': the right side is not in the vocabulary"},
    {HEAD "\"vocab\":{\"a\":0},\"merges\":[\"b a\"]}}",
     "merge 1 'b a': the left side is not in the vocabulary"},
    {HEAD "\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\"]]}}",
     "merge 1 'a a': the product is not in the vocabulary"},
    {HEAD "\"vocab\":{\"a\":0},\"merges\":[\"aa\"]}}", "model.merges: \"aa\"; kumi supports pairs"},
    {HEAD "\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}",
     "model.merges: \"a a a\"; kumi supports pairs"},
    {HEAD "\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}",
     "model.merges: [\"a\"]; kumi supports pairs"},
    {HEAD "\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\",\"a\"]]}}", "kumi supports pairs"},
    {HEAD "\"vocab\":{\"a\":0},\"merges\":[7]}}", "model.merges: 7; kumi supports pairs"},
    {HEAD "\"dropout\":0.5}}", "model.dropout: 0.5; kumi supports null"},
    {HEAD "\"end_of_word_suffix\":\"</w>\"}}", "end_of_word_suffix: \"</w>\"; kumi supports null"},
    {HEAD "\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[{\"id\":1,\"content\":\"x\","
          "\"lstrip\":true}]}",
     "only false for single_word, lstrip and rstrip"},
    {HEAD "\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[{\"id\":0,\"content\":\"x\"}]}",
     "free or belongs to this token"},
    {HEAD "\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[{\"id\":1,\"content\":\"\"}]}",
     "a content and an id"},
    {HEAD "\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":7}",
     "added_tokens: 7; kumi supports an array"},
    {POST("{\"type\":\"Strip\"}"),
     "post_processor: {\"type\":\"Strip\"}; kumi supports ByteLevel, one TemplateProcessing, "
     "RobertaProcessing or BertProcessing, or a Sequence of these"},
    {POST("{\"type\":\"RobertaProcessing\",\"cls\":[\"a\",0],\"sep\":[\"b\",1]}"),
     "\"sep\":[\"b\",1]}; kumi supports cls and sep, each a token with its id"},
    {POST("{\"type\":\"BertProcessing\",\"sep\":[\"a\",0]}"), "kumi supports cls and sep"},
    {POST("{\"type\":\"Sequence\",\"processors\":[" TEMPLATE(TEXT, "[0]") "," TEMPLATE(TEXT,
                                                                                       "[0]") "]}"),
     "post_processor: {\"type\":\"TemplateProcessing\""},
    {POST(TEMPLATE("{\"Sequence\":{\"id\":\"B\"}}", "[0]")),
     "post_processor.single: {\"Sequence\":{\"id\":\"B\"}}; kumi supports the text A and"},
    {POST(TEMPLATE("{\"SpecialToken\":{\"id\":\"b\"}}", "[0]")),
     "post_processor.single: {\"SpecialToken\":{\"id\":\"b\"}}; kumi supports the text A and"},
    {POST(TEMPLATE(SPECIAL, "[0]")), "kumi supports one text A, with special tokens around it"},
    {POST(TEMPLATE(TEXT "," TEXT, "[0]")), "kumi supports one text A, with special tokens"},
    {POST(TEMPLATE(SPECIAL "," TEXT, "[]")), "post_processor.single: {\"SpecialToken\""},
    {POST(TEMPLATE(SPECIAL "," TEXT, "[0,2]")),
     "post_processor.special_tokens: 2; kumi supports ids of the vocabulary and of added_tokens"},
    {SPLIT("a("), "regex 'a(': missing closing parenthesis"},
    {SPLIT("\\\\w+"), "character 2: an escape that differs"},
    {SPLIT("x\\\\b"), "character 3: an escape that differs"},
    {SPLIT("^x"), "character 1: an anchor"},
    {SPLIT("(?<=x)y"), "character 1: a group other than"},
    {SPLIT("(?<n>x)y"), "character 1: a group other than"},
    {SPLIT("(*UTF)x"), "character 1: a verb"},
    {SPLIT("[a&&b]"), "character 3: an operation on sets"},
    {SPLIT("[[:alpha:]]"), "character 2: an operation on sets"},
    {SPLIT("[]a]"), "an empty set"},
    {SPLIT("a{2}+"), "possessive in PCRE2"},
    {SPLIT("a{,2}"), "an interval without a lower bound"},
    {SPLIT("a*"), "a match of the empty string"},
    {SPLIT("\\\\x{110000}"), "regex '"},
    {SPLIT("\\\\x{"), "an invalid code point"},
    {SPLIT("\\\\pL"), "a property without braces"},
    {SPLIT("\\\\"), "an escape that differs"},
};

static void refuses_what_it_cannot_do(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct ku_tokenizer *t = NULL;
        put("tokenizer.json", refused[i].json);
        int status = ku_tokenizer_open(folder, &t);
        if (status != KUMI_EINPUT || !strstr(ku_err_get()->text, refused[i].text) || t)
            fail_msg("%s: status %d, '%s' instead of '%s'", refused[i].json, status,
                     ku_err_get()->text, refused[i].text);
    }
    assert_int_equal(unlink(in_folder("tokenizer.json")), 0);
}

static void refuses_broken_pairs(void **state)
{
    static const struct {
        const char *vocab, *merges, *text; /* NULL: no such file */
    } rows[] = {
        {NULL, NULL, "no tokenizer.json, encoder.json + vocab.bpe"},
        {"{\"a\":0}", NULL, "vocab.json without merges.txt"},
        {NULL, "a a\n", "merges.txt without vocab.json"},
        {"{\"a\":0", "", "vocab.json:1:"},
        {"{\"a\":\"0\"}", "", "token 'a': id -1"},
        {"{\"a\":0,\"aa\":1}", "#version: 0.2\na a\na\n", "merges.txt:3: 'a"},
        {"{\"a\":0,\"aa\":1}", "a  a\n", "merges.txt:1: 'a  a"},
        {"{\"a\":0,\"aa\":1}", "a a\naa a\n",
         "merge 2 'aa a': the product is not in the vocabulary"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ku_tokenizer *t = NULL;
        if (rows[i].vocab)
            put("vocab.json", rows[i].vocab);
        if (rows[i].merges)
            put("merges.txt", rows[i].merges);
        int status = ku_tokenizer_open(folder, &t);
        if (status != KUMI_EINPUT || !strstr(ku_err_get()->text, rows[i].text) || t)
            fail_msg("row %zu: status %d, '%s' instead of '%s'", i, status, ku_err_get()->text,
                     rows[i].text);
        unlink(in_folder("vocab.json"));
        unlink(in_folder("merges.txt"));
    }
    struct ku_tokenizer *t = NULL;
    assert_int_equal(ku_tokenizer_open("/nowhere", &t), KUMI_EINPUT);
    assert_string_equal(ku_err_get()->text, "tokenizer: /nowhere: No such file or directory; give "
                                            "\"byte\", a directory or a tokenizer.json");
}

/* A vocabulary without all bytes works as long as the text keeps to it. */
static void names_a_byte_without_token(void **state)
{
    struct ku_tokenizer *t;
    struct ku_tokens got = {0};
    (void)state;
    put("vocab.json", "{\"a\":0,\"b\":1,\"ab\":5,\"\\u0120\":3}");
    put("merges.txt", "a b\r\n");
    assert_int_equal(ku_tokenizer_open(folder, &t), 0);
    assert_int_equal(ku_tokenizer_vocab_count(t), 6);
    assert_int_equal(ku_tokenizer_encode(t, "ab aab", 6, &got), 0);
    assert_int_equal(got.count, 4);
    assert_int_equal(got.id[0], 5);
    assert_int_equal(got.id[3], 5);
    assert_int_equal(ku_tokenizer_encode(t, "ab ac", 5, &got), KUMI_EINPUT);
    assert_string_equal(
        ku_err_get()->text,
        "text: word at byte 2: no token for byte 0x63; use a tokenizer with all 256 bytes");
    got.id[0] = 4; /* a gap between ids */
    struct ku_str back = {0};
    assert_int_equal(ku_tokenizer_decode(t, got.id, 1, &back), KUMI_EINVAL);
    ku_tokens_fini(&got);
    ku_tokenizer_destroy(t);
    unlink(in_folder("vocab.json"));
    unlink(in_folder("merges.txt"));
}

static void fingerprint_says_what_matters(void **state)
{
    static const char vocab[] = "{\"a\":0,\"b\":1,\"ab\":2,\"aa\":3}",
                      swapped[] = "{\"aa\":3,\"ab\":2,\"b\":1,\"a\":0}";
    static const struct {
        const char *vocab, *merges;
        int same;
    } rows[] = {{vocab, "a b\na a\n", 1},
                {swapped, "#version: 0.2\na b\na a", 1},
                {vocab, "a a\na b\n", 0},
                {vocab, "a b\n", 0},
                {"{\"a\":1,\"b\":0,\"ab\":2,\"aa\":3}", "a b\na a\n", 0}};
    char first[65];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ku_tokenizer *t;
        put("vocab.json", rows[i].vocab);
        put("merges.txt", rows[i].merges);
        assert_int_equal(ku_tokenizer_open(folder, &t), 0);
        assert_int_equal(strlen(ku_tokenizer_fingerprint(t)), 64);
        if (i == 0)
            strcpy(first, ku_tokenizer_fingerprint(t));
        assert_int_equal(strcmp(first, ku_tokenizer_fingerprint(t)) == 0, rows[i].same);
        ku_tokenizer_destroy(t);
    }
    unlink(in_folder("vocab.json"));
    unlink(in_folder("merges.txt"));
}

/* One that adds no tokens around a text has the fingerprint of one without a post-processor. */
static void fingerprint_covers_tokens_around_a_text(void **state)
{
    static const struct {
        const char *json;
        int same;
    } rows[] = {{POST("null"), 1},
                {POST("{\"type\":\"ByteLevel\"}"), 1},
                {POST("{\"type\":\"Sequence\",\"processors\":[]}"), 1},
                {POST(TEMPLATE(TEXT, "[0]")), 1},
                {POST(TEMPLATE(SPECIAL "," TEXT, "[0]")), 0},
                {POST(TEMPLATE(SPECIAL "," TEXT, "[0,0]")), 0},
                {POST(TEMPLATE(TEXT "," SPECIAL, "[0]")), 0},
                {POST(TEMPLATE(SPECIAL "," TEXT "," SPECIAL, "[0]")), 0}};
    enum { N = sizeof rows / sizeof *rows };
    char print[N][65];
    (void)state;
    for (size_t i = 0; i < N; i++) {
        struct ku_tokenizer *t;
        put("tokenizer.json", rows[i].json);
        assert_int_equal(ku_tokenizer_open(folder, &t), 0);
        strcpy(print[i], ku_tokenizer_fingerprint(t));
        for (size_t k = 0; k < i; k++)
            assert_int_equal(strcmp(print[i], print[k]) == 0, rows[i].same && rows[k].same);
        ku_tokenizer_destroy(t);
    }
    unlink(in_folder("tokenizer.json"));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_references),
        cmocka_unit_test(byte_is_itself),
        cmocka_unit_test(long_words_agree_with_short_ones),
        cmocka_unit_test(a_word_has_a_limit),
        cmocka_unit_test(the_longest_added_token_wins),
        cmocka_unit_test(one_of_many_added_tokens_is_found),
        cmocka_unit_test(refuses_what_it_cannot_do),
        cmocka_unit_test(refuses_broken_pairs),
        cmocka_unit_test(names_a_byte_without_token),
        cmocka_unit_test(fingerprint_says_what_matters),
        cmocka_unit_test(fingerprint_covers_tokens_around_a_text)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
