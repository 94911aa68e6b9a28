/* SPDX-License-Identifier: Apache-2.0 */
#include "data/tokenizer/bpe.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/reserve.h"
#include "data/tokenizer/word_count.h"

#include <string.h>

/*
 * Byte pair encoding (Sennrich et al., Neural Machine Translation of Rare Words with Subword Units,
 * 2016). A word starts as the tokens of its bytes. While some pair of neighbours has a merge, the
 * pair of the lowest rank, leftmost first, is merged into one token:
 *
 *     l o w e r   ->   lo w e r   ->   low e r   ->   low er        ranks: l o 0, lo w 1, e r 2
 *
 * Short words use two arrays and a linear scan per merge; longer words a linked list and a heap,
 * O(n log n). Both give the same tokens. A direct-mapped cache of 64-byte lines (4 MiB) answers
 * most words, because words of natural text repeat.
 */
enum {
    SHORT_BYTES = 64,    /* above it the heap is faster than the scan */
    LINE_KEY_BYTES = 22, /* key, two counts and LINE_TOKENS ids fill one cache line */
    LINE_TOKENS = 10,
    LINES = 1 << 16,
    TRIM_BYTES = 1 << 20,
};
static const uint32_t NONE = UINT32_MAX;

struct merge {
    uint32_t left, right; /* left = NONE: empty */
    uint32_t rank, id;
};
struct line {
    uint8_t key_bytes, n_tokens; /* key_bytes = 0: empty */
    unsigned char key[LINE_KEY_BYTES];
    uint32_t id[LINE_TOKENS];
};
_Static_assert(sizeof(struct line) == 64, "a line of the word cache is a line of the CPU's");

struct ku_bpe {
    struct ku_word_count strings; /* of the tokens */
    uint32_t *string;             /* by id: 1 + number of its string; 0: the id is unused */
    uint32_t *token;              /* by number of a string: 1 + id of its findable token, or 0 */
    uint32_t n_tokens, cap_tokens, cap_strings;
    struct merge *merge; /* hash table over (left, right), open addressing */
    uint32_t merge_mask, n_merges, n_ranks;
    uint32_t byte[256]; /* token of a single byte, or NONE */
    int ignore_merges;
    struct line *line;
    struct symbol *symbol; /* list of a long word */
    uint64_t *heap;
    size_t cap_symbols, cap_heap;
};

/*
 * A token in a long word's list. prev, next: indices, NONE at the ends; id = NONE: merged into its
 * left neighbour.
 */
struct symbol {
    uint32_t id, prev, next;
};

int ku_tokens_reserve(struct ku_tokens *tokens, size_t more)
{
    return KU_RESERVE(&tokens->id, tokens->count, more, &tokens->cap);
}

void ku_tokens_fini(struct ku_tokens *tokens)
{
    ku_free(tokens->id);
    *tokens = (struct ku_tokens){0};
}

int ku_bpe_create(struct ku_bpe **out)
{
    struct ku_bpe *b = ku_calloc(1, sizeof *b);
    if (!b)
        return KUMI_ENOMEM;
    *out = b;
    return KUMI_OK;
}

void ku_bpe_destroy(struct ku_bpe *b)
{
    if (!b)
        return;
    ku_word_count_fini(&b->strings);
    ku_free(b->string);
    ku_free(b->token);
    ku_free(b->merge);
    ku_free(b->line);
    ku_free(b->symbol);
    ku_free(b->heap);
    ku_free(b);
}

void ku_bpe_ignore_merges(struct ku_bpe *b)
{
    b->ignore_merges = 1;
}

uint32_t ku_bpe_vocab_count(const struct ku_bpe *b)
{
    return b->n_tokens;
}

const unsigned char *ku_bpe_token(const struct ku_bpe *b, uint32_t id, uint32_t *bytes)
{
    if (id >= b->n_tokens || !b->string[id])
        return NULL;
    *bytes = ku_word_bytes(&b->strings, b->string[id] - 1);
    return ku_word_text(&b->strings, b->string[id] - 1);
}

int ku_bpe_find(const struct ku_bpe *b, const void *data, size_t bytes, uint32_t *id)
{
    uint32_t number;
    if (!ku_word_count_find(&b->strings, data, bytes, &number) || !b->token[number])
        return 0;
    *id = b->token[number] - 1;
    return 1;
}

int ku_bpe_add_token(struct ku_bpe *b, uint32_t id, const void *data, size_t bytes, int findable)
{
    uint32_t number;
    if (id < b->n_tokens && b->string[id])
        return 1;
    if (findable && ku_bpe_find(b, data, bytes, &number))
        return 2;
    if (id >= b->n_tokens) {
        KU_TRY(ku_grow((void **)&b->string, sizeof *b->string, b->n_tokens, id - b->n_tokens + 1,
                       &b->cap_tokens));
        b->n_tokens = id + 1;
    }
    KU_TRY(ku_word_count_add(&b->strings, data, bytes, &number));
    KU_TRY(KU_GROW(&b->token, number, &b->cap_strings));
    b->string[id] = number + 1;
    if (findable)
        b->token[number] = id + 1;
    return KUMI_OK;
}

static inline struct merge *merge_slot(const struct ku_bpe *b, uint32_t left, uint32_t right)
{
    /* Fibonacci hashing of both ids: the factor is 2^64 / golden ratio, made odd. */
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    uint32_t i = (uint32_t)(h >> 32) & b->merge_mask;
    while (b->merge[i].left != NONE && (b->merge[i].left != left || b->merge[i].right != right))
        i = (i + 1) & b->merge_mask;
    return &b->merge[i];
}

/* The rank of a pair, or NONE. */
static inline uint32_t rank_of(const struct ku_bpe *b, uint32_t left, uint32_t right)
{
    const struct merge *m = merge_slot(b, left, right);
    return m->left == NONE ? NONE : m->rank;
}

static int merge_grow(struct ku_bpe *b)
{
    uint32_t slots = b->merge ? b->merge_mask + 1 : 0;
    if (2 * (b->n_merges + 1) <= slots)
        return KUMI_OK;
    struct merge *old = b->merge;
    uint32_t n_old = slots;
    slots = slots ? 2 * slots : 1024;
    struct merge *table = ku_malloc(slots * sizeof *table);
    if (!table)
        return KUMI_ENOMEM;
    memset(table, 0xFF, slots * sizeof *table);
    b->merge = table;
    b->merge_mask = slots - 1;
    for (uint32_t i = 0; i < n_old; i++)
        if (old[i].left != NONE)
            *merge_slot(b, old[i].left, old[i].right) = old[i];
    ku_free(old);
    return KUMI_OK;
}

int ku_bpe_add_merge(struct ku_bpe *b, const unsigned char *pair, size_t left_bytes,
                     size_t right_bytes)
{
    struct merge m = {.rank = b->n_ranks};
    if (!ku_bpe_find(b, pair, left_bytes, &m.left))
        return 1;
    if (!ku_bpe_find(b, pair + left_bytes, right_bytes, &m.right))
        return 2;
    if (!ku_bpe_find(b, pair, left_bytes + right_bytes, &m.id))
        return 3;
    KU_TRY(merge_grow(b));
    struct merge *slot = merge_slot(b, m.left, m.right);
    b->n_merges += slot->left == NONE;
    b->n_ranks++;
    *slot = m;
    return KUMI_OK;
}

static void hash_u32(struct ku_sha256 *h, uint32_t x)
{
    unsigned char le[4] = {(unsigned char)x, (unsigned char)(x >> 8), (unsigned char)(x >> 16),
                           (unsigned char)(x >> 24)};
    ku_sha256_update(h, le, 4);
}

/* Hashes tokens by id and merges by rank, so the order of entries in a file does not matter. */
static int hash_all(struct ku_bpe *b, unsigned char digest[32])
{
    uint32_t slots = b->merge_mask + 1,
             *by_rank = ku_malloc((b->n_ranks + (size_t)1) * sizeof *by_rank);
    if (!by_rank)
        return KUMI_ENOMEM;
    memset(by_rank, 0xFF, b->n_ranks * sizeof *by_rank);
    for (uint32_t i = 0; i < slots; i++)
        if (b->merge[i].left != NONE)
            by_rank[b->merge[i].rank] = i;
    struct ku_sha256 h;
    int status = ku_sha256_init(&h);
    if (status == KUMI_OK) {
        hash_u32(&h, b->n_tokens);
        for (uint32_t id = 0; id < b->n_tokens; id++) {
            uint32_t bytes = NONE;
            const unsigned char *text = ku_bpe_token(b, id, &bytes);
            hash_u32(&h, bytes);
            hash_u32(&h, text && b->token[b->string[id] - 1] == id + 1);
            ku_sha256_update(&h, text ? text : (const void *)"", text ? bytes : 0);
        }
        for (uint32_t rank = 0; rank < b->n_ranks; rank++) {
            if (by_rank[rank] == NONE)
                continue;
            hash_u32(&h, b->merge[by_rank[rank]].left);
            hash_u32(&h, b->merge[by_rank[rank]].right);
        }
        hash_u32(&h, (uint32_t)b->ignore_merges);
        ku_sha256_final(&h, digest);
    }
    ku_free(by_rank);
    return status;
}

int ku_bpe_seal(struct ku_bpe *b, unsigned char digest[32])
{
    KU_TRY(merge_grow(b)); /* an empty table can be searched as well */
    for (unsigned c = 0; c < 256; c++) {
        unsigned char byte = (unsigned char)c;
        if (!ku_bpe_find(b, &byte, 1, &b->byte[c]))
            b->byte[c] = NONE;
    }
    b->line = ku_malloc_aligned(sizeof *b->line, LINES * sizeof *b->line);
    if (!b->line)
        return KUMI_ENOMEM;
    memset(b->line, 0, LINES * sizeof *b->line);
    return hash_all(b, digest);
}

/*
 * Merges n tokens in place and returns how many remain. rank[i] is the rank of (id[i], id[i + 1]).
 */
static size_t merge_short(const struct ku_bpe *b, uint32_t *id, size_t n)
{
    uint32_t rank[SHORT_BYTES];
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = rank_of(b, id[i], id[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == NONE)
            break;
        id[best] = merge_slot(b, id[best], id[best + 1])->id;
        n--;
        memmove(id + best + 1, id + best + 2, (n - best - 1) * sizeof *id);
        memmove(rank + best, rank + best + 1, (n - best - 1) * sizeof *rank);
        if (best > 0)
            rank[best - 1] = rank_of(b, id[best - 1], id[best]);
        if (best + 1 < n)
            rank[best] = rank_of(b, id[best], id[best + 1]);
    }
    return n;
}

static void heap_down(uint64_t *heap, size_t n, size_t i)
{
    uint64_t x = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && heap[child + 1] < heap[child];
        if (heap[child] >= x)
            break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

static void heap_up(uint64_t *heap, size_t i)
{
    uint64_t x = heap[i];
    for (; i > 0 && heap[(i - 1) / 2] > x; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = x;
}

/*
 * Makes room for a word of n bytes. Each merge removes one heap entry and adds at most two, so 2n
 * suffice.
 */
static int long_reserve(struct ku_bpe *b, size_t n)
{
    if (n <= b->cap_symbols)
        return KUMI_OK;
    size_t cap = n + n / 2;
    ku_free(b->symbol);
    ku_free(b->heap);
    b->cap_symbols = 0;
    b->symbol = ku_malloc(cap * sizeof *b->symbol);
    b->heap = ku_malloc(2 * cap * sizeof *b->heap);
    if (!b->symbol || !b->heap)
        return KUMI_ENOMEM;
    b->cap_symbols = cap;
    return KUMI_OK;
}

/*
 * Pushes the pair at `at`. Entries order by rank, then position. Entries of pairs that no longer
 * exist are skipped when popped.
 */
static size_t heap_push(const struct ku_bpe *b, size_t n, uint32_t at)
{
    const struct symbol *s = &b->symbol[at];
    uint32_t rank = rank_of(b, s->id, b->symbol[s->next].id);
    if (rank == NONE)
        return n;
    b->heap[n] = (uint64_t)rank << 32 | at;
    heap_up(b->heap, n);
    return n + 1;
}

static void merge_long(struct ku_bpe *b, uint32_t n)
{
    struct symbol *symbol = b->symbol;
    size_t n_heap = 0;
    for (uint32_t i = 0; i + 1 < n; i++) {
        uint32_t rank = rank_of(b, symbol[i].id, symbol[i + 1].id);
        if (rank != NONE)
            b->heap[n_heap++] = (uint64_t)rank << 32 | i;
    }
    for (size_t i = n_heap / 2; i-- > 0;)
        heap_down(b->heap, n_heap, i);
    while (n_heap > 0) {
        uint32_t at = (uint32_t)b->heap[0], rank = (uint32_t)(b->heap[0] >> 32);
        b->heap[0] = b->heap[--n_heap];
        heap_down(b->heap, n_heap, 0);
        struct symbol *s = &symbol[at];
        if (s->id == NONE || s->next == NONE)
            continue;
        struct symbol *right = &symbol[s->next];
        const struct merge *m = merge_slot(b, s->id, right->id);
        if (m->left == NONE || m->rank != rank)
            continue;
        s->id = m->id;
        s->next = right->next;
        right->id = NONE;
        if (s->next != NONE) {
            symbol[s->next].prev = at;
            n_heap = heap_push(b, n_heap, at);
        }
        if (s->prev != NONE)
            n_heap = heap_push(b, n_heap, s->prev);
    }
}

static int encode_long(struct ku_bpe *b, const unsigned char *word, size_t bytes,
                       struct ku_tokens *out)
{
    uint32_t n = (uint32_t)bytes;
    KU_TRY(long_reserve(b, bytes));
    for (uint32_t i = 0; i < n; i++)
        b->symbol[i] = (struct symbol){b->byte[word[i]], i - 1, i + 1}; /* 0 - 1 is NONE */
    b->symbol[n - 1].next = NONE;
    merge_long(b, n);
    for (uint32_t i = 0; i != NONE; i = b->symbol[i].next)
        out->id[out->count++] = b->symbol[i].id;
    return KUMI_OK;
}

void ku_bpe_trim(struct ku_bpe *b)
{
    if (b->cap_symbols * sizeof *b->symbol <= TRIM_BYTES)
        return;
    ku_free(b->symbol);
    ku_free(b->heap);
    b->symbol = NULL;
    b->heap = NULL;
    b->cap_symbols = 0;
}

/* ku_bpe_encode without the cache; `out` has room. */
static int64_t encode_word(struct ku_bpe *b, const unsigned char *word, size_t bytes,
                           struct ku_tokens *out)
{
    uint32_t whole;
    if (b->ignore_merges && ku_bpe_find(b, word, bytes, &whole)) {
        out->id[out->count++] = whole;
        return KUMI_OK;
    }
    for (size_t i = 0; i < bytes; i++)
        if (b->byte[word[i]] == NONE)
            return 1 + (int64_t)i;
    if (bytes > SHORT_BYTES)
        return encode_long(b, word, bytes, out);
    uint32_t *id = out->id + out->count;
    for (size_t i = 0; i < bytes; i++)
        id[i] = b->byte[word[i]];
    out->count += merge_short(b, id, bytes);
    return KUMI_OK;
}

int64_t ku_bpe_encode(struct ku_bpe *b, const unsigned char *word, size_t bytes,
                      struct ku_tokens *out)
{
    KU_ASSERT(bytes >= 1 && bytes <= KU_WORD_BYTES_MAX);
    KU_TRY(ku_tokens_reserve(out, bytes < LINE_TOKENS ? LINE_TOKENS : bytes));
    if (bytes > LINE_KEY_BYTES)
        return encode_word(b, word, bytes, out);
    struct line *line = &b->line[ku_hash64(word, bytes) & (LINES - 1)];
    if (line->key_bytes == bytes && memcmp(line->key, word, bytes) == 0) {
        memcpy(out->id + out->count, line->id,
               sizeof line->id); /* all ten ids: a copy of constant size is faster */
        out->count += line->n_tokens;
        return KUMI_OK;
    }
    size_t first = out->count;
    int64_t result = encode_word(b, word, bytes, out);
    size_t n = out->count - first;
    if (result == KUMI_OK && n <= LINE_TOKENS) {
        line->key_bytes = (uint8_t)bytes;
        line->n_tokens = (uint8_t)n;
        memcpy(line->key, word, bytes);
        memcpy(line->id, out->id + first, n * sizeof *line->id);
    }
    return result;
}
