/* SPDX-License-Identifier: Apache-2.0 */
#include "kumi/run.h"

#include <stdint.h>
#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "data/text/token_file.h"
#include "data/tokenizer/tokenizer.h"

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
    KU_TRY_OUT(ku_tokenizer_encode_with_special(t, text, bytes, &tokens));
    for (size_t i = 0; i < tokens.count; i++)
        ku_str_add(&out, "%s%u", i ? " " : "", tokens.id[i]);
    status = ku_text_take(&out, ids);
out:
    ku_str_fini(&out);
    ku_tokens_fini(&tokens);
    ku_tokenizer_destroy(t);
    return status;
}

enum { PIECE_BYTES = 1 << 18 };

/* Tokenize the text in chunks. */
static int write_tokens(const struct kumi_token_file_options *o, struct ku_tokenizer *t,
                        struct ku_token_file *f)
{
    struct ku_tokens tokens = {0};
    char *piece = ku_malloc(PIECE_BYTES);
    int64_t n = 1;
    int status = piece ? KUMI_OK : KUMI_ENOMEM;
    while (n > 0 && status == KUMI_OK) {
        n = o->read(o->ctx, piece, PIECE_BYTES);
        tokens.count = 0;
        if (n < 0)
            status = KU_ERR(KUMI_EINPUT, "tokenizer: the text: %s", ku_os_why());
        else
            status = n > 0 ? ku_tokenizer_feed(t, piece, (size_t)n, &tokens)
                           : ku_tokenizer_finish(t, &tokens);
        if (status == KUMI_OK)
            status = ku_token_file_add(f, tokens.id, tokens.count);
    }
    ku_tokens_fini(&tokens);
    ku_free(piece);
    return status;
}

int kumi_tokenizer_write(const struct kumi_token_file_options *o, int64_t *n_tokens)
{
    KU_GIVEN(o, "options");
    KU_GIVEN(o->tokenizer, "options.tokenizer");
    KU_GIVEN(o->to, "options.to");
    KU_GIVEN(o->read, "options.read");
    KU_GIVEN(n_tokens, "n_tokens");
    struct ku_tokenizer *t = NULL;
    struct ku_token_file *f = NULL;
    const size_t bytes = strlen(o->to);
    int64_t count = 0;
    int status;
    if (bytes < 5 || strcmp(o->to + bytes - 4, ".bin") != 0)
        return KU_ERR(KUMI_EINVAL,
                      "tokenizer: --to: %s: give a name that ends in .bin, as data.train expects "
                      "of token files",
                      o->to);
    KU_TRY(ku_tokenizer_open(o->tokenizer, &t));
    KU_TRY_OUT(ku_token_file_create(o->to, o->overwrite, ku_tokenizer_vocab_count(t), &f));
    KU_TRY_OUT(write_tokens(o, t, f));
    KU_TRY_OUT(ku_token_file_commit(f, &count));
    *n_tokens = count;
out:
    ku_token_file_destroy(f);
    ku_tokenizer_destroy(t);
    return status;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/*
 * Parse the next id at *at. Returns 1; 0 at the end; KUMI_EINVAL for a word that is not an id.
 *
 *   number   ids parsed before, for the message
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
                          "tokenizer: id %zu, byte %zu: %.*s: not a token id; give ids separated "
                          "by spaces or newlines",
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
    uint32_t *id = ku_calloc(strlen(ids) / 2 + 1, sizeof *id); /* min. 2 bytes per id */
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
