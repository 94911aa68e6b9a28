/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */
#include "test_tokenizer_common.h"

#include <jansson.h>

/* Special tokens of directories: tests/fixtures/tokenizer/special.txt, which
 * tools/fixtures/make_tokenizer_special.py makes with Hugging Face's libraries. */
static char folder[] = KUMI_BINARY_DIR "/test_special_XXXXXX";

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
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const char *text)
{
    assert_int_equal(ku_os_replace(in_folder(name), text, strlen(text)), 0);
}

/* What transformers writes where a text may have any length: beyond 64 bits. */
#define NO_MAX "1000000000000000019884624838656"

static void put_json(const char *name, json_t *value)
{
    char *text = json_dumps(value, 0), *at = strstr(text, "\"NO_MAX\"");
    char *whole = at ? ku_asprintf("%.*s" NO_MAX "%s", (int)(at - text), text, at + 8) : NULL;
    put(name, whole ? whole : text);
    ku_free(whole);
    free(text);
}

static char *merges_text(void)
{
    char *text;
    size_t bytes;
    assert_int_equal(ku_os_slurp(FIXTURES "/small/vocab.bpe", 1 << 20, &text, &bytes), 0);
    return text;
}

/* The small vocabulary and `more` as vocab.json and merges.txt. */
static void put_pair(json_t *more)
{
    json_t *vocab = json_load_file(FIXTURES "/small/encoder.json", 0, NULL);
    char *merges = merges_text();
    assert_int_equal(json_object_update(vocab, more), 0);
    put_json("vocab.json", vocab);
    put("merges.txt", merges);
    ku_free(merges);
    json_decref(vocab);
}

static void put_tokenizer_json(json_t *rest)
{
    json_t *vocab = json_load_file(FIXTURES "/small/encoder.json", 0, NULL), *list = json_array();
    char *merges = merges_text(), *left = merges;
    next_line(&left); /* its version */
    for (char *line; (line = next_line(&left)) != NULL;)
        json_array_append_new(list, json_string(line));
    json_t *model = json_pack("{s:s, s:o, s:o}", "type", "BPE", "vocab", vocab, "merges", list);
    json_object_set_new(rest, "model", model);
    put_json("tokenizer.json", rest);
    ku_free(merges);
}

static void clear(void)
{
    assert_int_equal(ku_os_rmtree(folder), 0);
    assert_int_equal(ku_os_mkdir(folder, 0777), 0);
}

/* The tokens before a text, those of f, those after it. */
static void check_around(struct ku_tokenizer *t, json_t *around, const struct fixture *f,
                         const char *name)
{
    struct ku_tokens got = {0};
    json_t *side[] = {json_array_get(around, 0), json_array_get(around, 1)};
    const size_t n_before = json_array_size(side[0]), n_after = json_array_size(side[1]);
    assert_int_equal(ku_tokenizer_encode_with_special(t, f->text, f->bytes, &got), 0);
    assert_int_equal(got.count, n_before + f->count + n_after);
    for (size_t i = 0; i < n_before; i++)
        assert_int_equal(got.id[i], json_integer_value(json_array_get(side[0], i)));
    for (size_t i = 0; i < n_after; i++)
        assert_int_equal(got.id[n_before + f->count + i],
                         json_integer_value(json_array_get(side[1], i)));
    const struct ku_tokens inner = {.id = got.id + n_before, .count = f->count};
    assert_tokens(&inner, f, name, "with tokens around it");
    if (n_after)
        assert_true(ku_tokenizer_adds_last(t, got.id[got.count - 1]));
    assert_int_equal(ku_tokenizer_adds_last(t, 64), 0);
    ku_tokens_fini(&got);
}

/* around: the tokens before and after a text */
static struct ku_tokenizer *open_variant(const char *json, json_t **around)
{
    struct ku_tokenizer *t;
    const char *name;
    uint32_t end;
    json_t *head = json_loads(json, 0, NULL), *files = json_object_get(head, "files"), *content;
    assert_non_null(head);
    clear();
    if (json_object_get(files, "tokenizer.json") == NULL)
        put_pair(json_object_get(head, "vocab"));
    json_object_foreach(files, name, content)
    {
        if (strcmp(name, "tokenizer.json") == 0)
            put_tokenizer_json(content);
        else
            put_json(name, content);
    }
    if (ku_tokenizer_open(folder, &t) < 0)
        fail_msg("%s: %s", json, ku_err_get()->text);
    assert_int_equal(ku_tokenizer_end_of_text(t, &end), 1);
    assert_int_equal(end, json_integer_value(json_object_get(head, "eos")));
    json_decref(*around);
    *around = json_incref(json_object_get(head, "around"));
    json_decref(head);
    return t;
}

static void agrees_with_the_reference(void **state)
{
    struct ku_tokenizer *t = NULL;
    char *text, name[64] = "", *json;
    size_t bytes, n = 0, n_variants = 0;
    json_t *around = NULL;
    (void)state;
    assert_int_equal(ku_os_slurp(FIXTURES "/special.txt", 1 << 20, &text, &bytes), 0);
    for (char *line, *rest = text; (line = next_line(&rest)) != NULL;) {
        if (*line == '=') {
            ku_tokenizer_destroy(t);
            json = strchr(line, ' ') + 1;
            snprintf(name, sizeof name, "%.*s", (int)(json - line - 2), line + 1);
            t = open_variant(json, &around);
            n_variants++;
            continue;
        }
        struct fixture f = fixture_parse(line);
        check_fixture(t, &f, name, strcmp(name, "prefix") != 0);
        check_around(t, around, &f, name);
        fixture_free(&f);
        n++;
    }
    assert_int_equal(n_variants, 20);
    assert_int_equal(n, 12 * n_variants);
    json_decref(around);
    ku_tokenizer_destroy(t);
    ku_free(text);
}

static void refuses_what_contradicts(void **state)
{
    static const struct {
        const char *file, *json, *text;
    } rows[] = {
        {"tokenizer_config.json", "{", "tokenizer_config.json:1:"},
        {"tokenizer_config.json", "{\"eos_token\":7}", "eos_token: 7; kumi supports a string, or"},
        {"tokenizer_config.json", "{\"eos_token\":\"\"}",
         "eos_token: \"\"; kumi supports a string, or"},
        {"tokenizer_config.json", "{\"mask_token\":{\"content\":\"<m>\",\"lstrip\":true}}",
         "only false for single_word, lstrip and rstrip"},
        {"tokenizer_config.json", "{\"added_tokens_decoder\":[]}",
         "kumi supports an object of tokens"},
        {"tokenizer_config.json", "{\"added_tokens_decoder\":{\"x\":\"<m>\"}}",
         "added_tokens_decoder: 'x': no id"},
        {"tokenizer_config.json", "{\"added_tokens_decoder\":{\"5\":\"<m>\"}}",
         "an id that is free or belongs to this token"},
        {"tokenizer_config.json", "{\"added_tokens_decoder\":{\"700\":\"<|endoftext|>\"}}",
         "'<|endoftext|>': id 700, but 656 in the vocabulary"},
        {"tokenizer_config.json", "{\"added_tokens_decoder\":{\"99999999\":\"<m>\"}}",
         "an id within the vocabulary or right after it"},
        {"special_tokens_map.json", "{\"additional_special_tokens\":[3]}",
         "additional_special_tokens: 3; kumi supports"},
        {"added_tokens.json", "{\"<m>\":-1}", "added_tokens: '<m>': no id"},
        {"added_tokens.json", "[7]", "kumi supports an object of tokens"},
        {"tokenizer_config.json", "{\"add_bos_token\":1}",
         "add_bos_token: 1; kumi supports true or false"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ku_tokenizer *t = NULL;
        json_t *more = json_pack("{s:i}", "<|endoftext|>", 656);
        clear();
        put_pair(more);
        json_decref(more);
        put(rows[i].file, rows[i].json);
        int status = ku_tokenizer_open(folder, &t);
        if (status != KUMI_EINPUT || !strstr(ku_err_get()->text, rows[i].text) || t)
            fail_msg("%s: status %d, '%s' instead of '%s'", rows[i].json, status,
                     ku_err_get()->text, rows[i].text);
    }
}

static void a_token_before_a_text_needs_a_name(void **state)
{
    static const char *const key[] = {"bos_token", "eos_token"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct ku_tokenizer *t = NULL;
        char config[64], said[128];
        json_t *none = json_object();
        clear();
        put_pair(none);
        json_decref(none);
        snprintf(config, sizeof config, "{\"add_%s\": true}", key[i]);
        snprintf(said, sizeof said,
                 "tokenizer_config.json: add_%s: true, but there is no %s; name one", key[i],
                 key[i]);
        put("tokenizer_config.json", config);
        assert_int_equal(ku_tokenizer_open(folder, &t), KUMI_EINPUT);
        if (!strstr(ku_err_get()->text, said))
            fail_msg("%s instead of %s", ku_err_get()->text, said);
    }
}

/* Tokens are kept in the cache under the fingerprint, so what decides one is part of it. */
static void fingerprint_covers_them(void **state)
{
    static const char *const config[] = {
        "{}",
        "{\"eos_token\":\"</s>\"}",
        "{\"eos_token\":\"</t>\"}",
        "{\"add_prefix_space\":true}",
        "{\"eos_token\":\"</s>\",\"add_eos_token\":true}",
        "{\"bos_token\":\"</s>\",\"add_bos_token\":true}",
        "{\"added_tokens_decoder\":{\"656\":{\"content\":\"</s>\",\"normalized\":true}}}"};
    enum { N = sizeof config / sizeof *config };
    char print[N][65];
    (void)state;
    for (int i = 0; i < N; i++) {
        struct ku_tokenizer *t;
        json_t *none = json_object();
        clear();
        put_pair(none);
        json_decref(none);
        put("tokenizer_config.json", config[i]);
        assert_int_equal(ku_tokenizer_open(folder, &t), 0);
        snprintf(print[i], sizeof print[i], "%s", ku_tokenizer_fingerprint(t));
        for (int k = 0; k < i; k++)
            assert_string_not_equal(print[i], print[k]);
        ku_tokenizer_destroy(t);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(agrees_with_the_reference),
                                              cmocka_unit_test(refuses_what_contradicts),
                                              cmocka_unit_test(a_token_before_a_text_needs_a_name),
                                              cmocka_unit_test(fingerprint_covers_them)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
