/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/mem.h"
#include "data/tokenizer.h"
#include "train/commands.h"

int kumi_tokenizer_encode(const char *tokenizer, const char *text, size_t bytes, char **ids)
{
    KU_GIVEN(tokenizer, "tokenizer");
    KU_GIVEN(text, "text");
    KU_GIVEN(ids, "ids");
    struct ku_tokenizer *t = NULL;
    struct ku_tokens tokens = {0};
    struct ku_str out = {0};
    int status;
    KU_TRY(ku_tokenizer_open(tokenizer, &t));
    KU_TRY_OUT(ku_tokenizer_encode(t, text, bytes, &tokens));
    for (size_t i = 0; i < tokens.count; i++)
        ku_str_add(&out, "%s%u", i ? " " : "", tokens.id[i]);
    status = ku_text_take(&out, ids);
out:
    ku_str_fini(&out);
    ku_tokens_fini(&tokens);
    ku_tokenizer_destroy(t);
    return status;
}

static int is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* The next id at *at. 1, 0 at the end, KUMI_EINVAL for a word that is no id; number counts from 0.
 */
static int next_id(const char *ids, size_t *at, size_t number, uint32_t *id)
{
    uint64_t value = 0;
    while (is_blank(ids[*at]))
        ++*at;
    size_t begin = *at, end = begin;
    while (ids[end] && !is_blank(ids[end]))
        end++;
    if (end == begin)
        return 0;
    for (size_t i = begin; i < end; i++) {
        value = value * 10 + (uint64_t)(ids[i] - '0');
        if (ids[i] < '0' || ids[i] > '9' || value > UINT32_MAX)
            return KU_ERR(KUMI_EINVAL,
                          "tokenizer: id %zu, byte %zu: %.*s: not a token's number; give numbers "
                          "separated by blanks or newlines",
                          number + 1, begin + 1, (int)(end - begin > 40 ? 40 : end - begin),
                          ids + begin);
    }
    *at = end;
    *id = (uint32_t)value;
    return 1;
}

int kumi_tokenizer_decode(const char *tokenizer, const char *ids, char **text, size_t *bytes)
{
    KU_GIVEN(tokenizer, "tokenizer");
    KU_GIVEN(ids, "ids");
    KU_GIVEN(text, "text");
    KU_GIVEN(bytes, "bytes");
    struct ku_tokenizer *t = NULL;
    struct ku_str out = {0};
    size_t at = 0, n = 0;
    uint32_t *id = ku_calloc(strlen(ids) / 2 + 1, sizeof *id); /* a digit and a blank each */
    int status = id ? KUMI_OK : KUMI_ENOMEM;
    KU_TRY_OUT(status);
    KU_TRY_OUT(ku_tokenizer_open(tokenizer, &t));
    while ((status = next_id(ids, &at, n, &id[n])) > 0)
        n++;
    KU_TRY_OUT(status);
    KU_TRY_OUT(ku_tokenizer_decode(t, id, n, &out));
    size_t n_bytes = out.bytes;
    KU_TRY_OUT(ku_text_take(&out, text));
    *bytes = n_bytes;
out:
    ku_str_fini(&out);
    ku_free(id);
    ku_tokenizer_destroy(t);
    return status;
}
