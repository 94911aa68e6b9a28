/* SPDX-License-Identifier: Apache-2.0 */
#include "data/cache_index.h"
#include "data/text/source.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/reserve.h"
#include "base/os/os.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/*
 * Tokens of a text, stored in a cache folder:
 *
 *     text-<hash of device and inode>.idx   SHA-256 of the text, and its lock (cache_index.h); and
 *                                           the token files of the text that were checked
 *     tokens-<32 hex digits>.bin            a header, then the tokens; named by the SHA-256 of
 *                                           text, encoder and format
 *
 * The process that holds the lock hashes the text if the index is not valid, and tokenizes it if
 * the token file is missing. Other processes wait for the lock, then use both files. A token file
 * appears by rename, so it is complete. One that was changed later, by a copy or a fault of the
 * storage, is found by its checksum: a start reads all of a token file whose inode, length and time
 * of change are not in the index, and tokenizes the text again if it is damaged.
 */
enum { BLOCK_BYTES = 1 << 20, SYNC_BYTES = 256 << 20, MAX_CHECKED = 16 };

struct header {
    char magic[8];
    uint32_t token_bytes, zero;
    uint64_t count, vocab_count;
    unsigned char key[32];
    uint64_t tokens_hash; /* over blocks of 1 MiB */
    uint64_t header_hash; /* over all fields before it */
};
_Static_assert(sizeof(struct header) == 80, "no padding in a file's header");
static const char magic[8] = {'k', 'u', 'm', 'i', 't', 'o', 'k', '1'};

/* A token file that has the tokens of its checksum; little endian. */
struct checked {
    unsigned char key[32];
    uint64_t inode, bytes, mtime_ns;
};
_Static_assert(sizeof(struct checked) == 56, "no padding in an index");

struct index { /* its contents */
    unsigned char text_id[32];
    struct checked file[MAX_CHECKED]; /* as many as there are */
};

struct work {
    const char *name;
    struct ku_cache *cache;
    const struct ku_encoder *encoder;
    struct ku_progress progress; /* under the lock that of the index */
    struct ku_file text;
    struct ku_cache_index index; /* not locked: the cache cannot be written */
    struct index known;
    int n_checked; /* of known.file */
    unsigned char key[32];
    char *tokens_path;
};

/* Destination of tokens: a file, after its header; or memory, if fd = -1. */
struct sink {
    int fd, token_bytes;
    unsigned char *data; /* the current block, or all tokens */
    size_t bytes, cap;
    size_t unsynced; /* bounded, so that no fsync takes as long as a deadline */
    uint64_t hash, count;
};

static int progress_call(const struct work *w, const char *verb, uint64_t done_bytes)
{
    char what[256];
    snprintf(what, sizeof what, "%s %.200s", verb, w->name);
    return ku_progress_call(&w->progress, what, done_bytes, w->text.bytes);
}

/* Reads the text once, block by block; passes each block to `each`, then reports progress. */
static int read_text(const struct work *w, const char *verb,
                     int (*each)(void *ctx, const void *data, size_t bytes), void *ctx)
{
    unsigned char *block = ku_malloc(BLOCK_BYTES);
    int status = block ? KUMI_OK : KUMI_ENOMEM;
    for (uint64_t at = 0; at < w->text.bytes && status >= 0;) {
        uint64_t left = w->text.bytes - at;
        size_t bytes = left < BLOCK_BYTES ? (size_t)left : BLOCK_BYTES;
        ssize_t n = ku_os_pread_full(w->text.fd, block, bytes, (off_t)at);
        if (n < 0)
            status = KU_ERR(KUMI_EINPUT, "data: %s: byte %llu: %s; check the storage", w->name,
                            (unsigned long long)at, ku_os_why());
        else if ((size_t)n < bytes)
            status =
                KU_ERR(KUMI_EINPUT,
                       "data: %s: became shorter while it was read; start the run again", w->name);
        else
            status = each(ctx, block, bytes);
        at += bytes;
        if (status >= 0)
            status = progress_call(w, verb, at);
    }
    ku_free(block);
    return status;
}

static int hash_block(void *ctx, const void *data, size_t bytes)
{
    ku_sha256_update(ctx, data, bytes);
    return KUMI_OK;
}

static int hash_text(const struct work *w, unsigned char id[32])
{
    struct ku_sha256 h;
    KU_TRY(ku_sha256_init(&h));
    int status = read_text(w, "reading", hash_block, &h);
    ku_sha256_final(&h, id);
    return status;
}

static void write_index(const struct work *w)
{
    ku_cache_index_write(&w->index, &w->known,
                         offsetof(struct index, file) +
                             (size_t)w->n_checked * sizeof(struct checked));
}

/* Takes the contents of an index. Returns whether they are those of one. */
static bool take_index(struct work *w, const void *data, size_t bytes)
{
    const size_t head = offsetof(struct index, file), each = sizeof(struct checked);
    if (bytes < head || bytes > sizeof w->known || (bytes - head) % each != 0)
        return false;
    memcpy(&w->known, data, bytes);
    w->n_checked = (int)((bytes - head) / each);
    return true;
}

/* Finds the text's hash: in the cache's index, or by reading the text. */
static int find_text_id(struct work *w)
{
    void *data = NULL;
    size_t bytes = 0;
    int known = 0;
    if (w->cache->path) {
        KU_TRY(ku_cache_index_open(&w->index, w->cache, "text", &w->text, &w->progress));
        w->progress = ku_cache_index_progress(&w->index);
        known = ku_cache_index_read(&w->index, &data, &bytes);
        KU_TRY(known);
    }
    known = known && take_index(w, data, bytes);
    ku_free(data);
    if (known)
        return KUMI_OK;
    KU_TRY(hash_text(w, w->known.text_id));
    write_index(w);
    return KUMI_OK;
}

/* Finds the text's hash and, from it, the name of its token file. */
static int find_key(struct work *w)
{
    struct ku_sha256 h;
    char hex[65];
    const char *fingerprint = w->encoder->fingerprint;
    KU_TRY(find_text_id(w));
    KU_TRY(ku_sha256_init(&h));
    ku_sha256_update(&h, magic, sizeof magic);
    ku_sha256_update(&h, w->known.text_id, 32);
    ku_sha256_update(&h, fingerprint, strlen(fingerprint));
    ku_sha256_final(&h, w->key);
    ku_sha256_hex(w->key, hex);
    if (!w->cache->path)
        return KUMI_OK;
    w->tokens_path = ku_asprintf("%s/tokens-%.32s.bin", w->cache->path, hex);
    return w->tokens_path ? KUMI_OK : KUMI_ENOMEM;
}

static uint64_t header_hash(const struct header *h)
{
    return ku_hash64(h, offsetof(struct header, header_hash));
}

static void header_swap(struct header *h) /* host <-> little endian */
{
    h->token_bytes = htole32(h->token_bytes);
    h->count = htole64(h->count);
    h->vocab_count = htole64(h->vocab_count);
    h->tokens_hash = htole64(h->tokens_hash);
}

/*
 * Reads and checks a header. Returns 1; 0 for a foreign or truncated file, or one of another text.
 */
static int header_read(int fd, const unsigned char key[32], struct header *h)
{
    struct stat st;
    if (ku_os_fstat(fd, &st) < 0 || ku_os_pread_full(fd, h, sizeof *h, 0) != (ssize_t)sizeof *h)
        return 0;
    if (memcmp(h->magic, magic, sizeof magic) != 0 || le64toh(h->header_hash) != header_hash(h))
        return 0;
    header_swap(h);
    return memcmp(h->key, key, 32) == 0 && (h->token_bytes == 2 || h->token_bytes == 4) &&
           (uint64_t)st.st_size == sizeof *h + h->count * h->token_bytes;
}

/* The checksum of a token file's tokens. Returns 1; 0: they cannot be read; or an error. */
static int hash_tokens(int fd, uint64_t total, const struct ku_progress *progress, const char *what,
                       uint64_t *hash)
{
    unsigned char *block = ku_malloc(BLOCK_BYTES);
    int status = block ? 1 : KUMI_ENOMEM;
    *hash = 0;
    for (uint64_t at = 0; at < total && status > 0; at += BLOCK_BYTES) {
        const size_t bytes = total - at < BLOCK_BYTES ? (size_t)(total - at) : BLOCK_BYTES;
        const off_t from = (off_t)(sizeof(struct header) + at);
        if (ku_os_pread_full(fd, block, bytes, from) != (ssize_t)bytes)
            status = 0;
        else
            *hash = ku_hash64_mix(*hash, ku_hash64(block, bytes));
        const int told = ku_progress_call(progress, what, at + bytes, total);
        status = told < 0 ? told : status;
    }
    ku_free(block);
    return status;
}

static struct checked checked_of(const struct work *w, const struct stat *st)
{
    struct checked c = {.inode = htole64((uint64_t)st->st_ino),
                        .bytes = htole64((uint64_t)st->st_size),
                        .mtime_ns = htole64((uint64_t)st->st_mtim.tv_sec * 1000000000 +
                                            (uint64_t)st->st_mtim.tv_nsec)};
    memcpy(c.key, w->key, sizeof c.key);
    return c;
}

/* Lists a token file in the index, instead of an older one of its key; of many the newest. */
static void note_checked(struct work *w, const struct checked *c)
{
    int n = 0;
    for (int i = 0; i < w->n_checked; i++)
        if (memcmp(w->known.file[i].key, c->key, sizeof c->key) != 0)
            w->known.file[n++] = w->known.file[i];
    if (n == MAX_CHECKED) {
        memmove(w->known.file, w->known.file + 1, (MAX_CHECKED - 1) * sizeof *c);
        n--;
    }
    w->known.file[n++] = *c;
    w->n_checked = n;
    write_index(w);
}

/*
 * Whether a token file has the tokens of its checksum: 1; 0: it is damaged; or an error.
 *
 *   is_new   this process has just written it
 */
static int check_tokens(struct work *w, int fd, const struct header *h, bool is_new)
{
    struct stat st;
    char what[256];
    uint64_t hash;
    if (ku_os_fstat(fd, &st) < 0)
        return 0;
    const struct checked c = checked_of(w, &st);
    for (int i = 0; i < w->n_checked; i++)
        if (memcmp(&w->known.file[i], &c, sizeof c) == 0)
            return 1;
    if (!is_new) {
        snprintf(what, sizeof what, "checking the tokens of %.200s", w->name);
        const int found = hash_tokens(fd, h->count * h->token_bytes, &w->progress, what, &hash);
        if (found <= 0 || hash != h->tokens_hash)
            return found < 0 ? found : 0;
    }
    note_checked(w, &c);
    return 1;
}

/* Opens the cached tokens; returns 1, 0 if there are none, or an error. */
static int open_cached(struct work *w, struct ku_source *s, bool is_new)
{
    struct header h;
    int fd = w->tokens_path ? ku_os_open(w->tokens_path, O_RDONLY, 0) : -1;
    if (fd < 0)
        return 0;
    const int is_whole = header_read(fd, w->key, &h) ? check_tokens(w, fd, &h, is_new) : 0;
    if (is_whole <= 0) {
        if (is_whole == 0)
            KU_LOG(DATA, WARN, "cache: %s: damaged; the text is tokenized again", w->tokens_path);
        ku_os_close(fd);
        return is_whole;
    }
    s->file = (struct ku_file){ku_strdup(w->tokens_path), fd, 0};
    s->at = sizeof h;
    s->token_bytes = (int)h.token_bytes;
    s->count = (int64_t)h.count;
    s->is_cache = 1;
    if (!s->file.name)
        ku_os_close(fd);
    return s->file.name ? 1 : KUMI_ENOMEM;
}

/*
 * Writes the current block. Returns ESTORAGE without an error record, with errno set, so that the
 * caller can fall back to memory.
 */
static int sink_flush(struct sink *k)
{
    if (k->bytes == 0)
        return KUMI_OK;
    k->hash = ku_hash64_mix(k->hash, ku_hash64(k->data, k->bytes));
    if (ku_os_write_full(k->fd, k->data, k->bytes) < 0)
        return KUMI_ESTORAGE;
    k->unsynced += k->bytes;
    k->bytes = 0;
    if (k->unsynced < SYNC_BYTES)
        return KUMI_OK;
    k->unsynced = 0;
    return ku_os_fsync(k->fd) < 0 ? KUMI_ESTORAGE : KUMI_OK;
}

static int sink_put(struct sink *k, const uint32_t *id, size_t count)
{
    size_t width = (size_t)k->token_bytes;
    k->count += count;
    if (k->fd < 0)
        KU_TRY(KU_RESERVE(&k->data, k->bytes, count * width, &k->cap));
    for (size_t i = 0; i < count; i++) {
        uint16_t half = htole16((uint16_t)id[i]);
        uint32_t whole = htole32(id[i]);
        memcpy(k->data + k->bytes, width == 2 ? (const void *)&half : (const void *)&whole, width);
        k->bytes += width;
        if (k->fd >= 0 && k->bytes == BLOCK_BYTES)
            KU_TRY(sink_flush(k));
    }
    return KUMI_OK;
}

struct tokenizing {
    struct work *w;
    struct sink *sink;
    struct ku_tokens tokens;
    struct ku_sha256 text;
};

static int tokenize_block(void *ctx, const void *data, size_t bytes)
{
    struct tokenizing *z = ctx;
    ku_sha256_update(&z->text, data, bytes);
    z->tokens.count = 0;
    const struct ku_encoder *e = z->w->encoder;
    KU_TRY(e->feed(e->ctx, data, bytes, &z->tokens));
    return sink_put(z->sink, z->tokens.id, z->tokens.count);
}

/* Adds the file name to an error of the tokenizer. */
static int name_file(const struct work *w, int status)
{
    if (status != KUMI_EINPUT || strncmp(ku_err_get()->text, "data:", 5) == 0)
        return status;
    return KU_ERR(KUMI_EINPUT, "data: %s: %s", w->name, ku_err_get()->text);
}

static int tokenize(struct work *w, struct sink *k)
{
    struct tokenizing z = {.w = w, .sink = k};
    unsigned char id[32];
    KU_TRY(ku_sha256_init(&z.text));
    const struct ku_encoder *e = w->encoder;
    e->reset(e->ctx);
    int status = read_text(w, "tokenizing", tokenize_block, &z);
    ku_sha256_final(&z.text, id);
    if (status >= 0) {
        z.tokens.count = 0;
        status = e->finish(e->ctx, &z.tokens);
    }
    if (status >= 0)
        status = sink_put(k, z.tokens.id, z.tokens.count);
    if (status >= 0 && k->fd >= 0)
        status = sink_flush(k);
    if (status >= 0 && memcmp(id, w->known.text_id, 32) != 0)
        status = KU_ERR(KUMI_EINPUT, "data: %s: changed while it was read; start the run again",
                        w->name);
    e->reset(e->ctx);
    ku_tokens_fini(&z.tokens);
    return name_file(w, status);
}

static int width_of(const struct work *w)
{
    return w->encoder->vocab_count <= 65536 ? 2 : 4;
}

static int write_header(const struct work *w, const struct sink *k)
{
    struct header h = {.token_bytes = (uint32_t)k->token_bytes,
                       .count = k->count,
                       .vocab_count = (uint64_t)w->encoder->vocab_count,
                       .tokens_hash = k->hash};
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.key, w->key, 32);
    header_swap(&h);
    h.header_hash = htole64(header_hash(&h));
    return ku_os_pwrite_full(k->fd, &h, sizeof h, 0) < 0 ? KUMI_ESTORAGE : KUMI_OK;
}

/*
 * Tokenizes into the cache. Returns ESTORAGE without an error record if the cache cannot be
 * written.
 */
static int fill_cache(struct work *w)
{
    static const char zeros[sizeof(struct header)];
    char *temporary = ku_asprintf("%s.%016llx", w->tokens_path, /* unique under the lock */
                                  (unsigned long long)w->index.place);
    struct sink k = {
        .fd = -1, .token_bytes = width_of(w), .data = ku_malloc(BLOCK_BYTES), .cap = BLOCK_BYTES};
    int status = temporary && k.data ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK) {
        k.fd = ku_os_open(temporary, O_RDWR | O_CREAT | O_TRUNC, 0644);
        status =
            k.fd < 0 || ku_os_write_full(k.fd, zeros, sizeof zeros) < 0 ? KUMI_ESTORAGE : KUMI_OK;
    }
    if (status == KUMI_OK)
        status = tokenize(w, &k);
    if (status == KUMI_OK)
        status = write_header(w, &k);
    if (status == KUMI_OK && (ku_os_fsync(k.fd) < 0 || ku_os_rename(temporary, w->tokens_path) < 0))
        status = KUMI_ESTORAGE;
    int why = errno;
    if (k.fd >= 0) {
        ku_os_close(k.fd);
        if (status < 0)
            ku_os_unlink(temporary);
    }
    if (status == KUMI_OK)
        ku_os_fsync_dir(w->cache->path); /* failure is harmless: a lost file is made again */
    ku_free(k.data);
    ku_free(temporary);
    errno = why;
    return status;
}

static int fill_memory(struct work *w, struct ku_source *s)
{
    struct sink k = {.fd = -1, .token_bytes = width_of(w)};
    int status = tokenize(w, &k);
    if (status < 0) {
        ku_free(k.data);
        return status;
    }
    s->memory = k.data;
    s->token_bytes = k.token_bytes;
    s->count = (int64_t)k.count;
    return KUMI_OK;
}

static int find_or_fill(struct work *w, struct ku_source *s)
{
    KU_TRY(find_key(w));
    memcpy(s->id, w->key, 32);
    int found = open_cached(w, s, false);
    if (found)
        return found;
    if (w->index.is_locked) {
        int status = fill_cache(w);
        if (status == KUMI_OK && (found = open_cached(w, s, true)))
            return found;
        if (status < 0 && status != KUMI_ESTORAGE)
            return status;
        KU_LOG(DATA, WARN, "cache: %s: %s; the tokens of %s stay in memory", w->cache->path,
               ku_os_why(), w->name);
    }
    return fill_memory(w, s);
}

int ku_source_encode(const char *name, const struct ku_encoder *encoder, struct ku_cache *cache,
                     const struct ku_progress *progress, struct ku_source *out)
{
    struct work w = {.name = name, .cache = cache, .encoder = encoder, .index = {.fd = -1}};
    struct ku_source s = {0};
    int status;
    if (progress)
        w.progress = *progress;
    KU_TRY_OUT(ku_file_open(name, "text or tokens", &w.text));
    s.name = ku_strdup(name);
    KU_TRY_OUT(s.name ? KUMI_OK : KUMI_ENOMEM);
    KU_TRY_OUT(find_or_fill(&w, &s));
    if (s.count == 0) {
        status = KU_ERR(KUMI_EINPUT,
                        "data: %s: no tokens in %llu bytes of text; give another file or tokenizer",
                        name, (unsigned long long)w.text.bytes);
        goto out;
    }
    *out = s;
    s = (struct ku_source){0};
    status = KUMI_OK;
out:
    ku_source_fini(&s);
    ku_cache_index_close(&w.index);
    ku_file_close(&w.text);
    ku_free(w.tokens_path);
    return status;
}

static int tokenizer_feed(void *ctx, const void *text, size_t bytes, struct ku_tokens *out)
{
    return ku_tokenizer_feed(ctx, text, bytes, out);
}

static int tokenizer_finish(void *ctx, struct ku_tokens *out)
{
    return ku_tokenizer_finish(ctx, out);
}

static void tokenizer_reset(void *ctx)
{
    ku_tokenizer_reset(ctx);
}

int ku_source_text(const char *name, struct ku_tokenizer *t, struct ku_cache *cache,
                   const struct ku_progress *progress, struct ku_source *out)
{
    struct ku_encoder encoder = {t,
                                 ku_tokenizer_fingerprint(t),
                                 ku_tokenizer_vocab_count(t),
                                 tokenizer_feed,
                                 tokenizer_finish,
                                 tokenizer_reset};
    return ku_source_encode(name, &encoder, cache, progress, out);
}

int ku_source_check_cache(const struct ku_source *s, const struct ku_progress *progress)
{
    struct header h;
    uint64_t hash, total = (uint64_t)s->count * (uint64_t)s->token_bytes;
    if (!s->is_cache)
        return KUMI_OK;
    int fd = ku_os_open(s->file.name, O_RDONLY, 0), status = 0;
    if (fd >= 0 && ku_os_pread_full(fd, &h, sizeof h, 0) == (ssize_t)sizeof h)
        status = hash_tokens(fd, total, progress, "checking the cache", &hash);
    if (status > 0 && hash == le64toh(h.tokens_hash))
        status = KUMI_OK;
    else if (status >= 0)
        status =
            KU_ERR(KUMI_EINPUT, "data: %s: its cached tokens, %s, are damaged; remove that file",
                   s->name, s->file.name);
    if (fd >= 0)
        ku_os_close(fd);
    return status;
}
