/* SPDX-License-Identifier: Apache-2.0 */
#include "data/text/source.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "data/input_file.h"
#include "data/text/token_files.h"
#include "data/text/token_file.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

int ku_source_check(int n_train, int64_t seq_len, int64_t vocab_count, double val_fraction)
{
    if (n_train < 1)
        return KU_ERR(KUMI_EINVAL, "data: data.train: no file; give a file, a list or a glob");
    if (seq_len < 1 || seq_len > KU_SEQ_LEN_MAX)
        return KU_ERR(KUMI_EINVAL, "data: data.seq_len: %lld; give 1 to %d", (long long)seq_len,
                      KU_SEQ_LEN_MAX);
    if (vocab_count < 1 || vocab_count > (int64_t)INT32_MAX + 1)
        return KU_ERR(KUMI_EINVAL, "data: model.vocab_size: %lld; give 1 to 2^31",
                      (long long)vocab_count);
    if (!(val_fraction >= 0.0 && val_fraction < 1.0))
        return KU_ERR(KUMI_EINVAL, "data: data.val_fraction: %g; give at least 0 and less than 1",
                      val_fraction);
    return KUMI_OK;
}

void ku_source_ports(struct ku_data_port port[3], int64_t seq_len)
{
    static const char *const name[] = {"tokens", "targets", "segments"};
    for (int i = 0; i < 3; i++)
        port[i] =
            (struct ku_data_port){.name = name[i], .dtype = KUMI_I32, .ndim = 1, .dim = {seq_len}};
}

/* Makes a source of an open file, which it takes, also on failure. */
static int make(struct ku_file *file, int token_bytes, uint64_t at, struct ku_source *out)
{
    struct ku_source s = {.file = *file, .token_bytes = token_bytes, .at = at};
    struct ku_sha256 h;
    s.count = (int64_t)((file->bytes - at) / (uint64_t)token_bytes);
    s.name = ku_strdup(file->name);
    int status = s.name ? ku_sha256_init(&h) : KUMI_ENOMEM;
    if (status == KUMI_OK) {
        ku_sha256_u64(&h, file->bytes);
        ku_sha256_u64(&h, (uint64_t)token_bytes);
        status = ku_file_identify(file, &h);
        ku_sha256_final(&h, s.id);
    }
    if (status < 0)
        ku_source_fini(&s);
    else
        *out = s;
    return status;
}

int ku_source_bytes(const char *name, struct ku_source *out)
{
    struct ku_file file;
    KU_TRY(ku_file_open(name, "text or tokens", &file));
    return make(&file, 1, 0, out);
}

/*
 * Returns the bytes per token if the file begins with one of llm.c's magic numbers, and checks that
 * header; 0 for other files; or an error.
 */
static int llmc_token_bytes(const struct ku_file *f)
{
    int32_t header[3];
    const struct ku_token_form *form = NULL;
    if (f->bytes < KU_TOKEN_HEADER_BYTES)
        return 0;
    KU_TRY(ku_file_get(f, 0, header, sizeof header));
    int32_t magic = (int32_t)le32toh((uint32_t)header[0]),
            version = (int32_t)le32toh((uint32_t)header[1]);
    uint32_t count = le32toh((uint32_t)header[2]);
    for (int i = 0; i < KU_N_TOKEN_FORMS; i++)
        if (magic == ku_token_forms[i].magic)
            form = &ku_token_forms[i];
    if (form == NULL)
        return 0;
    if (version != form->version)
        return KU_ERR(KUMI_EINPUT,
                      "data: %s: llm.c token file of version %d; version %d is supported", f->name,
                      version, form->version);
    const uint64_t width = (uint64_t)form->token_bytes, data = f->bytes - KU_TOKEN_HEADER_BYTES;
    if (data % width != 0 || data / width != count)
        return KU_ERR(KUMI_EINPUT,
                      "data: %s: its header counts %u tokens of %d bytes, %llu bytes follow; write "
                      "it again",
                      f->name, count, form->token_bytes, (unsigned long long)data);
    return form->token_bytes;
}

int ku_source_bin(const char *name, const char *format, struct ku_source *out)
{
    struct ku_file file;
    int token_bytes = !format                      ? 0
                      : strcmp(format, "u16") == 0 ? 2
                      : strcmp(format, "u32") == 0 ? 4
                                                   : -1;
    if (token_bytes < 0)
        return KU_ERR(KUMI_EINVAL, "token files: data.format: '%s'; give u16 or u32", format);
    KU_TRY(ku_file_open(name, "text or tokens", &file));
    int llmc = llmc_token_bytes(&file), status = llmc;
    if (llmc > 0)
        token_bytes = llmc;
    else if (llmc == 0 && token_bytes == 0)
        status =
            KU_ERR(KUMI_EINPUT, "data: %s: no llm.c header; set data.format to u16 or u32", name);
    else if (llmc == 0 && file.bytes % (uint64_t)token_bytes != 0)
        status = KU_ERR(
            KUMI_EINPUT,
            "data: %s: %llu bytes are not a whole number of %s; correct the file or data.format",
            name, (unsigned long long)file.bytes, format);
    uint64_t at = llmc > 0 ? KU_TOKEN_HEADER_BYTES : 0;
    if (status >= 0 && file.bytes == at)
        status = KU_ERR(KUMI_EINPUT, "data: %s: no tokens after the header; write it again", name);
    if (status < 0) {
        ku_file_close(&file);
        return status;
    }
    return make(&file, token_bytes, at, out);
}

void ku_source_fini(struct ku_source *s)
{
    ku_file_close(&s->file);
    ku_free(s->name);
    ku_free(s->memory);
    *s = (struct ku_source){0};
}

static int refuse_token(const struct ku_source *s, int64_t nth, uint32_t token, int64_t vocab_count)
{
    uint64_t byte = s->at + (uint64_t)nth * (uint64_t)s->token_bytes;
    if (s->is_cache || s->memory)
        return KU_ERR(KUMI_EINPUT,
                      "data: %s: token %lld of the text is %u; the model's vocabulary has %lld "
                      "(model.vocab_size)",
                      s->name, (long long)nth, token, (long long)vocab_count);
    return KU_ERR(
        KUMI_EINPUT,
        "data: %s: token %u at byte %llu; the model's vocabulary has %lld (model.vocab_size)",
        s->name, token, (unsigned long long)byte, (long long)vocab_count);
}

int ku_source_read(const struct ku_source *s, int64_t first, int n, int64_t vocab_count,
                   uint32_t *out)
{
    unsigned char chunk[KU_SOURCE_CHUNK * 4];
    uint32_t most = 0;
    KU_ASSERT(n >= 0 && n <= KU_SOURCE_CHUNK && first >= 0 && first <= s->count - n);
    size_t width = (size_t)s->token_bytes;
    const uint64_t at = s->at + (uint64_t)first * width;
    const unsigned char *raw = s->memory ? s->memory + at : chunk;
    if (!s->memory)
        KU_TRY(ku_file_get(&s->file, at, chunk, (size_t)n * width));
    for (int i = 0; i < n; i++) {
        uint16_t half;
        uint32_t whole;
        if (width == 1) {
            whole = raw[i];
        } else if (width == 2) {
            memcpy(&half, raw + 2 * i, 2);
            whole = le16toh(half);
        } else {
            memcpy(&whole, raw + 4 * i, 4);
            whole = le32toh(whole);
        }
        out[i] = whole;
        most = whole > most ? whole : most;
    }
    if (most < vocab_count)
        return KUMI_OK;
    int i = 0;
    while (out[i] < vocab_count)
        i++;
    return refuse_token(s, first + i, out[i], vocab_count);
}
