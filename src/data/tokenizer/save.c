/* SPDX-License-Identifier: Apache-2.0 */
#include "data/tokenizer/bpe_train.h"

#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "data/tokenizer/bpe.h"

#include <string.h>

/*
 * Notation of tokens in files: printable Latin-1 represents itself; the other 68 bytes (0 to 32,
 * 127 to 160, 173) are U+0100, U+0101, … in ascending order (OpenAI's bytes_to_unicode).
 */
uint32_t ku_token_spell(unsigned byte)
{
    if (byte <= 32)
        return 256 + byte;
    if (byte >= 127 && byte <= 160)
        return 289 + (byte - 127);
    return byte == 173 ? 323 : byte;
}

/* The byte that a character represents, or -1. */
static int byte_of(uint32_t c)
{
    int byte = c <= 255   ? (int)c
               : c <= 288 ? (int)c - 256
               : c <= 322 ? (int)c - 289 + 127
               : c == 323 ? 173
                          : -1;
    return byte >= 0 && ku_token_spell((unsigned)byte) == c ? byte : -1;
}

int ku_token_unspell(const unsigned char *text, size_t bytes, unsigned char *out, size_t *out_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes;) {
        uint32_t c = text[i++];
        if (c >= 0xC2 && c <= 0xC5 && i < bytes) /* U+0080 to U+017F: two bytes */
            c = (c & 31) << 6 | (text[i++] & 63u);
        else if (c >= 0x80)
            c = UINT32_MAX;
        int byte = byte_of(c);
        if (byte < 0) {
            memcpy(out, text, bytes);
            *out_bytes = bytes;
            return 0;
        }
        out[n++] = (unsigned char)byte;
    }
    *out_bytes = n;
    return 1;
}

/* Appends a special token as a JSON string. */
static int put_text(struct ku_str *out, const unsigned char *text, size_t bytes)
{
    json_t *value = json_stringn((const char *)text, bytes);
    char *quoted = value ? ku_json_print(value, JSON_ENCODE_ANY) : NULL;
    json_decref(value);
    if (!quoted)
        return KUMI_ENOMEM;
    ku_str_add(out, "%s", quoted);
    ku_free(quoted);
    return KUMI_OK;
}

/* Appends a token in file notation as a JSON string; a special token as its text. */
static int put_token(const struct ku_bpe_trained *t, uint32_t id, struct ku_str *out)
{
    uint32_t bytes = 0;
    const unsigned char *text = ku_bpe_token(t->vocab, id, &bytes);
    uint32_t found;
    if (id < t->n_special && (!ku_bpe_find(t->vocab, text, bytes, &found) || found != id))
        return put_text(out, text, bytes);
    ku_str_append(out, "\"", 1);
    for (uint32_t i = 0; i < bytes; i++) {
        uint32_t c = ku_token_spell(text[i]);
        char spelled[2] = {(char)(0xC0 | c >> 6), (char)(0x80 | (c & 63))};
        char ascii[2] = {'\\', (char)c};
        if (c >= 0x80)
            ku_str_append(out, spelled, 2);
        else if (c == '"' || c == '\\')
            ku_str_append(out, ascii, 2);
        else
            ku_str_append(out, ascii + 1, 1);
    }
    ku_str_append(out, "\"", 1);
    return KUMI_OK;
}

static int put_added(const struct ku_bpe_trained *t, struct ku_str *out)
{
    ku_str_add(out, "  \"added_tokens\": [");
    for (uint32_t id = 0; id < t->n_special; id++) {
        ku_str_add(out, "%s\n    {\n      \"id\": %u,\n      \"content\": ", id ? "," : "", id);
        KU_TRY(put_token(t, id, out));
        ku_str_add(out, ",\n      \"single_word\": false,\n      \"lstrip\": false,\n"
                        "      \"rstrip\": false,\n      \"normalized\": false,\n"
                        "      \"special\": true\n    }");
    }
    ku_str_add(out, "%s],\n", t->n_special ? "\n  " : "");
    return KUMI_OK;
}

static void put_byte_level(struct ku_str *out, const char *key, const char *prefix_space,
                           const char *trim_offsets)
{
    ku_str_add(out,
               "  \"%s\": {\n    \"type\": \"ByteLevel\",\n    \"add_prefix_space\": %s,\n"
               "    \"trim_offsets\": %s,\n    \"use_regex\": true\n  },\n",
               key, prefix_space, trim_offsets);
}

int ku_bpe_trained_json(const struct ku_bpe_trained *t, struct ku_str *out)
{
    uint32_t n = ku_bpe_vocab_count(t->vocab);
    ku_str_add(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
    KU_TRY(put_added(t, out));
    ku_str_add(out, "  \"normalizer\": null,\n");
    put_byte_level(out, "pre_tokenizer", "false", "true");
    put_byte_level(out, "post_processor", "true", "false");
    put_byte_level(out, "decoder", "true", "true");
    ku_str_add(out, "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n"
                    "    \"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n"
                    "    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
                    "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n"
                    "    \"vocab\": {\n");
    for (uint32_t id = 0; id < n; id++) {
        ku_str_add(out, "      ");
        KU_TRY(put_token(t, id, out));
        ku_str_add(out, ": %u%s\n", id, id + 1 < n ? "," : "");
    }
    ku_str_add(out, "    },\n    \"merges\": [");
    for (uint32_t i = 0; i < t->n_merges; i++) {
        ku_str_add(out, "%s\n      [\n        ", i ? "," : "");
        KU_TRY(put_token(t, t->merge[i].left, out));
        ku_str_add(out, ",\n        ");
        KU_TRY(put_token(t, t->merge[i].right, out));
        ku_str_add(out, "\n      ]");
    }
    ku_str_add(out, "%s]\n  }\n}", t->n_merges ? "\n    " : "");
    return out->failed ? KUMI_ENOMEM : KUMI_OK;
}
