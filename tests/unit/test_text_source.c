/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
#include "folder.h"

#include "batch/text_source.h"
#include "base/err.h"
#include "train/session.h"

/* The mask token of a masked language model whose configuration names none. */
#define BERT(vocab)                                                                                \
    "model={\"model_type\":\"bert\",\"num_hidden_layers\":1,\"num_attention_heads\":1,"            \
    "\"hidden_size\":4,\"intermediate_size\":4,\"max_position_embeddings\":8,"                     \
    "\"vocab_size\":" vocab "}"
#define TOKENIZER(added)                                                                           \
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"vocab\":{\"a\":0,\"\\u0120\":1,"     \
    "\"<mask>\":2},\"merges\":[]},\"added_tokens\":[" added "]}"
#define ADDED(id, text) "{\"id\":" id ",\"content\":\"" text "\"}"

static int open_session(struct ku_session *s, const char *const *set, int n, const json_t *was)
{
    char text[600], json[4096];
    memset(text, 'a', sizeof text);
    snprintf(json, sizeof json,
             "{\"model\":{\"model_type\":\"bert\"},\"data\":{\"train\":\"%s\"},"
             "\"train\":{\"steps\":4,\"global_batch\":4}}",
             put("a.txt", text, sizeof text));
    *s = (struct ku_session){0};
    int status = ku_session_configure(s, put_text("c.json", json), set, n, was, 1);
    return status == KUMI_OK ? ku_session_open_data(s, NULL) : status;
}

static int64_t mask_of(const struct ku_session *s)
{
    return json_integer_value(json_object_get(s->numerics, "data.mask_token"));
}

static void mask_tokens_are_found(void **state)
{
    static const struct {
        const char *model, *tokenizer, *config; /* NULL: "byte", no tokenizer_config.json */
        int is_tokens;                          /* a token file */
        int64_t id;                             /* -1: refused */
        const char *words;
    } rows[] = {
        {BERT("257"), NULL, NULL, 0, 256, ""},
        {BERT("256"), NULL, NULL, 0, -1, "the tokenizer has no mask token, and the model's last"},
        {BERT("257"), NULL, NULL, 1, -1, "the tokenizer of the token files is not known"},
        {BERT("3"), TOKENIZER(ADDED("2", "<mask>")), NULL, 0, 2, ""},
        {BERT("9"), TOKENIZER(ADDED("2", "<mask>")), NULL, 1, 2, ""},
        {BERT("9"), TOKENIZER(ADDED("2", "<mask>") "," ADDED("3", "[MASK]")), NULL, 0, 3, ""},
        {BERT("9"), TOKENIZER(ADDED("2", "<mask>") "," ADDED("4", "<m>")),
         "{\"mask_token\":\"<m>\"}", 0, 4, ""},
        {BERT("9"), TOKENIZER(""), NULL, 0, 8, ""},
        {BERT("3"), TOKENIZER(""), NULL, 0, -1, "the tokenizer has no mask token, and the model's"},
        {BERT("4"), TOKENIZER(ADDED("4", "<mask>")), NULL, 0, -1,
         "data.mask_token: 4; an id below the model's vocab_size"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char tokenizer[2100] = "data.tokenizer=byte", train[2100] = "data.train=";
        const uint16_t token[300] = {0};
        const char *set[] = {rows[i].model, tokenizer, train, "data.format=u16"};
        struct ku_session s;
        ku_os_rmtree(in_folder("t"));
        assert_int_equal(ku_os_mkdir(in_folder("t"), 0777), 0);
        if (rows[i].tokenizer) {
            put_text("t/tokenizer.json", rows[i].tokenizer);
            snprintf(tokenizer, sizeof tokenizer, "data.tokenizer=%s", in_folder("t"));
        }
        if (rows[i].config)
            put_text("t/tokenizer_config.json", rows[i].config);
        snprintf(train, sizeof train, "data.train=%s", put("a.bin", token, sizeof token));
        const int status = open_session(&s, set, rows[i].is_tokens ? 4 : 2, NULL);
        if (status != (rows[i].id < 0 ? KUMI_EINVAL : KUMI_OK))
            fail_msg("row %zu: status %d, %s", i, status, ku_err_get()->text);
        if (status == KUMI_OK)
            assert_int_equal(mask_of(&s), rows[i].id);
        else if (!strstr(ku_err_get()->text, rows[i].words))
            fail_msg("row %zu: %s", i, ku_err_get()->text);
        ku_session_fini(&s);
    }
}

/* Whatever is found now, a resume masks as its checkpoint's run did. */
static void a_resume_keeps_the_mask_token(void **state)
{
    static const char *const set[] = {BERT("257"), "data.mask_token=9"};
    static const struct {
        const char *stored; /* among the checkpoint's numerics keys */
        int n_set, n_changes;
        int64_t id;
    } rows[] = {{"256", 1, 0, 256},
                {"7", 1, 0, 7},
                {"null", 1, 0, 256}, /* of an older version */
                {"7", 2, 1, 9}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ku_session first, second;
        struct ku_str names = {0};
        assert_int_equal(open_session(&first, set, 1, NULL), KUMI_OK);
        json_object_set_new(first.numerics, "data.mask_token",
                            json_loads(rows[i].stored, JSON_DECODE_ANY, NULL));
        second = (struct ku_session){0};
        assert_int_equal(ku_session_configure(&second, in_folder("c.json"), set, rows[i].n_set,
                                              first.numerics, 1),
                         KUMI_OK);
        assert_int_equal(ku_config_compare(first.numerics, second.numerics, &names),
                         rows[i].n_changes);
        assert_int_equal(ku_session_open_data(&second, NULL), KUMI_OK);
        assert_int_equal(mask_of(&second), rows[i].id);
        assert_int_equal(ku_text_mask_token(second.source), rows[i].id);
        ku_session_fini(&second);
        ku_session_fini(&first);
        ku_str_fini(&names);
    }
}

static int setup(void **state)
{
    return make_folder(state) < 0 ? -1 : setenv("KUMI_CACHE", in_folder("cache"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(mask_tokens_are_found),
                                       cmocka_unit_test(a_resume_keeps_the_mask_token)};
    return cmocka_run_group_tests(tests, setup, remove_folder);
}
