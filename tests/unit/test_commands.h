/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of kumi/run.h's reporting functions share: a folder, a configuration and its
 * text. */
#ifndef TESTS_UNIT_TEST_COMMANDS_H
#define TESTS_UNIT_TEST_COMMANDS_H

#include "ckpt_util.h"

#include "base/fault.h"
#include "base/json/json.h"
#include "kumi/run.h"

struct files {
    char folder[64], config[96], text[96];
};

static int setup(void **state)
{
    static struct files f;
    static char
        letters[1041]; /* 936 tokens to train on, 104 at the end to validate, and one more */
    char json[640];
    folder_make(f.folder);
    snprintf(f.config, sizeof f.config, "%s/config.json", f.folder);
    snprintf(f.text, sizeof f.text, "%s/text.txt", f.folder);
    memset(letters, 'a', sizeof letters);
    int n = snprintf(json, sizeof json,
                     "{\"model\":{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":2,\"n_embd\":16,"
                     "\"n_positions\":8,\"vocab_size\":256},\"data\":{\"train\":\"%s\"},"
                     "\"train\":{\"steps\":40,\"global_batch\":8}}",
                     f.text);
    file_write(f.config, json, (size_t)n);
    file_write(f.text, letters, sizeof letters);
    assert_int_equal(setenv("KUMI_CACHE", f.folder, 1), 0);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    const struct files *f = *state;
    folder_remove(f->folder);
    return 0;
}

/* Parses a text that was handed out, and gives it back. */
static inline json_t *take_json(char *text)
{
    json_t *v = json_loads(text, 0, NULL);
    if (v == NULL)
        fail_msg("no JSON: %s", text);
    assert_int_equal(text[strlen(text) - 1], '\n');
    kumi_text_free(text);
    return v;
}
static inline int64_t int_at(json_t *v, const char *path)
{
    int64_t n = -1;
    if (ku_json_int(ku_json_at(v, path), &n) < 0)
        fail_msg("%s is no integer", path);
    return n;
}

/* Every allocation fails once, and the call says so; at last none does. */
#define with_faults(call)                                                                          \
    do {                                                                                           \
        int fault_status = KUMI_ENOMEM;                                                            \
        char spec[32];                                                                             \
        for (int64_t at = 1; fault_status == KUMI_ENOMEM; at += 1 + at / 16) {                     \
            snprintf(spec, sizeof spec, "mem:%lld", (long long)at);                                \
            ku_fault_set(spec);                                                                    \
            fault_status = (call);                                                                 \
            ku_fault_set(NULL);                                                                    \
        }                                                                                          \
        assert_status(fault_status, KUMI_OK);                                                      \
    } while (0)

#endif
