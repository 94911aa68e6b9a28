/* SPDX-License-Identifier: Apache-2.0 */
#include "data/text/source.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "data/input_file.h"
#include "data/text/token_files.h"
#include "data/text/token_file.h"

#include <endian.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

/*
 * A file is identified by its length and 64 of its 4 KiB blocks, spread evenly, so that opening
 * does not read all data.
 */
enum { SAMPLES = 64, SAMPLE_BYTES = 4096 };

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

static int read_exactly(int fd, const char *name, void *data, size_t bytes, uint64_t at)
{
    ssize_t n = ku_os_pread_full(fd, data, bytes, (off_t)at);
    if (n < 0)
        return KU_ERR(KUMI_EINPUT, "data: %s: byte %llu: %s; check the storage", name,
                      (unsigned long long)at, ku_os_why());
    if ((size_t)n < bytes)
        return KU_ERR(KUMI_EINPUT,
                      "data: %s: ends at byte %llu, but was longer when opened; do not change it "
                      "while it is in use",
                      name, (unsigned long long)at + (uint64_t)n);
    return KUMI_OK;
}

static int sample_id(int fd, const char *name, uint64_t bytes, int token_bytes,
                     unsigned char id[32])
{
    unsigned char block[SAMPLE_BYTES], facts[16];
    struct ku_sha256 h;
    uint64_t size = htole64(bytes), width = htole64((uint64_t)token_bytes);
    memcpy(facts, &size, 8);
    memcpy(facts + 8, &width, 8);
    KU_TRY(ku_sha256_init(&h));
    ku_sha256_update(&h, facts, sizeof facts);
    int status = KUMI_OK;
    uint64_t n_blocks = (bytes + SAMPLE_BYTES - 1) / SAMPLE_BYTES,
             n = n_blocks < SAMPLES ? n_blocks : SAMPLES;
    for (uint64_t i = 0; i < n && status == KUMI_OK; i++) {
        uint64_t block_at =
            n == 1 ? 0 : (n_blocks - 1) / (n - 1) * i + (n_blocks - 1) % (n - 1) * i / (n - 1);
        uint64_t at = block_at * SAMPLE_BYTES, left = bytes - at;
        size_t part = left < SAMPLE_BYTES ? (size_t)left : SAMPLE_BYTES;
        status = read_exactly(fd, name, block, part, at);
        if (status == KUMI_OK)
            ku_sha256_update(&h, block, part);
    }
    ku_sha256_final(&h, id);
    return status;
}

/* Takes ownership of fd, also on failure. */
static int make(const char *name, int fd, int token_bytes, uint64_t at, uint64_t bytes,
                struct ku_source *out)
{
    struct ku_source s = {.fd = fd, .token_bytes = token_bytes, .at = at};
    s.count = (int64_t)((bytes - at) / (uint64_t)token_bytes);
    s.name = ku_strdup(name);
    s.path = ku_strdup(name);
    int status = s.name && s.path ? sample_id(fd, name, bytes, token_bytes, s.id) : KUMI_ENOMEM;
    if (status < 0) {
        ku_source_fini(&s);
        return status;
    }
    *out = s;
    return KUMI_OK;
}

int ku_source_bytes(const char *name, struct ku_source *out)
{
    int fd = -1;
    uint64_t bytes = 0;
    KU_TRY(ku_input_open(name, &fd, &bytes));
    return make(name, fd, 1, 0, bytes, out);
}

/*
 * Returns the bytes per token if the file begins with one of llm.c's magic numbers, and checks that
 * header; 0 for other files; or an error.
 */
static int llmc_token_bytes(int fd, const char *name, uint64_t bytes)
{
    int32_t header[3];
    const struct ku_token_form *form = NULL;
    if (bytes < KU_TOKEN_HEADER_BYTES)
        return 0;
    KU_TRY(read_exactly(fd, name, header, sizeof header, 0));
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
                      "data: %s: llm.c token file of version %d; version %d is supported", name,
                      version, form->version);
    const uint64_t width = (uint64_t)form->token_bytes, data = bytes - KU_TOKEN_HEADER_BYTES;
    if (data % width != 0 || data / width != count)
        return KU_ERR(KUMI_EINPUT,
                      "data: %s: its header counts %u tokens of %d bytes, %llu bytes follow; write "
                      "it again",
                      name, count, form->token_bytes, (unsigned long long)data);
    return form->token_bytes;
}

int ku_source_bin(const char *name, const char *format, struct ku_source *out)
{
    int fd = -1, token_bytes = !format                      ? 0
                               : strcmp(format, "u16") == 0 ? 2
                               : strcmp(format, "u32") == 0 ? 4
                                                            : -1;
    uint64_t bytes = 0;
    if (token_bytes < 0)
        return KU_ERR(KUMI_EINVAL, "token files: data.format: '%s'; give u16 or u32", format);
    KU_TRY(ku_input_open(name, &fd, &bytes));
    int llmc = llmc_token_bytes(fd, name, bytes), status = llmc;
    if (llmc > 0)
        token_bytes = llmc;
    else if (llmc == 0 && token_bytes == 0)
        status =
            KU_ERR(KUMI_EINPUT, "data: %s: no llm.c header; set data.format to u16 or u32", name);
    else if (llmc == 0 && bytes % (uint64_t)token_bytes != 0)
        status = KU_ERR(
            KUMI_EINPUT,
            "data: %s: %llu bytes are not a whole number of %s; correct the file or data.format",
            name, (unsigned long long)bytes, format);
    uint64_t at = llmc > 0 ? KU_TOKEN_HEADER_BYTES : 0;
    if (status >= 0 && bytes == at)
        status = KU_ERR(KUMI_EINPUT, "data: %s: no tokens after the header; write it again", name);
    if (status < 0) {
        ku_os_close(fd);
        return status;
    }
    return make(name, fd, token_bytes, at, bytes, out);
}

void ku_source_park(struct ku_source *s)
{
    if (s->fd >= 0)
        ku_os_close(s->fd);
    s->fd = -1;
}

void ku_source_fini(struct ku_source *s)
{
    ku_source_park(s);
    ku_free(s->name);
    ku_free(s->path);
    ku_free(s->memory);
    *s = (struct ku_source){.fd = -1};
}

static int read_raw(const struct ku_source *s, uint64_t at, void *data, size_t bytes)
{
    if (s->memory) {
        memcpy(data, s->memory + at, bytes);
        return KUMI_OK;
    }
    int fd = s->fd >= 0 ? s->fd : ku_os_open(s->path, O_RDONLY, 0);
    if (fd < 0)
        return KU_ERR(KUMI_EINPUT, "data: %s: %s; do not change it while it is in use", s->path,
                      ku_os_why());
    int status = read_exactly(fd, s->path, data, bytes, at);
    if (fd != s->fd)
        ku_os_close(fd);
    return status;
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
    unsigned char raw[KU_SOURCE_CHUNK * 4];
    uint32_t most = 0;
    KU_ASSERT(n >= 0 && n <= KU_SOURCE_CHUNK && first >= 0 && first <= s->count - n);
    size_t width = (size_t)s->token_bytes;
    KU_TRY(read_raw(s, s->at + (uint64_t)first * width, raw, (size_t)n * width));
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
