/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */
#include "base/err.h"
#include "base/os/os.h"
#include "data/tokenizer/bpe_train.h"
#include "data/tokenizer/tokenizer.h"
#include "fuzz.h"

#include <string.h>

/* Any bytes are a text, the first also the options. Refused, or learnt: then what is written opens,
 * and gives the text back. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const special[] = {"<s>", "a b"};
    if (bytes < 2)
        return 0;
    char path[64];
    struct ku_word_count words = {0};
    struct ku_bpe_trained trained = {0};
    struct ku_bpe_train_opts o = {.vocab_count = 258 + data[0],
                                  .min_frequency = 1 + data[1] % 4,
                                  .special = special,
                                  .n_special = data[1] % 3};
    int fd = ku_fuzz_file(data, bytes, path, sizeof path);
    int status = ku_bpe_count_words(path, NULL, &words);
    ku_os_close(fd);
    if (status == 0 && ku_bpe_train(&words, &o, &trained) == 0) {
        struct ku_str json = {0}, back = {0};
        struct ku_tokenizer *t = NULL;
        struct ku_tokens tokens = {0};
        KU_ASSERT(ku_bpe_trained_json(&trained, &json) == 0);
        fd = ku_fuzz_file((const uint8_t *)json.text, json.bytes, path, sizeof path);
        KU_ASSERT(ku_tokenizer_open(path, &t) == 0);
        ku_os_close(fd);
        KU_ASSERT(ku_tokenizer_vocab_count(t) <= o.vocab_count);
        KU_ASSERT(ku_tokenizer_encode(t, data, bytes, &tokens) == 0);
        KU_ASSERT(ku_tokenizer_decode(t, tokens.id, tokens.count, &back) == 0);
        KU_ASSERT(back.bytes == bytes && memcmp(back.text, data, bytes) == 0);
        ku_tokens_fini(&tokens);
        ku_str_fini(&json);
        ku_str_fini(&back);
        ku_tokenizer_destroy(t);
    }
    ku_bpe_trained_fini(&trained);
    ku_word_count_fini(&words);
    return 0;
}
