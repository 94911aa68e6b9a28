/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reduction over the ranks' copies in the order of the neighbour tree.
 *
 * The tree is walked with a binary counter: source i is pushed on a stack; for each trailing one
 * bit of i the two top nodes, which have equal size, combine. At the end the remaining nodes
 * combine from the top down. That carries an odd node up, exactly as level-by-level pairing does.
 * A source that is a node of 2^k leaves is pushed as the walk over its leaves would leave it, and
 * counts from bit k on. For n = 7:
 *
 *     push       0   1      2      3          4          5          6
 *     stack      0   (01)   (01)2  ((01)(23)) ..4        ..(45)     ..(45)6
 *     result     ((01)(23)) ((45)6)
 *
 * A node is one block of 4 KiB, so the walk stays in the L1 cache. The root is computed from its
 * two children directly into the destinations.
 */
#include "comm/sum.h"

#include "base/cpu/cpu_features.h"
#include "base/err.h"
#include "comm/message_stream.h"

#include <string.h>

#define KU_SUM_TABLE ku_sum_base
#include "comm/sum/kernels.h"

enum {
    BLOCK_BYTES = 4096,
    /*
     * Bytes of a block that bypasses the caches, or that has an addend. Smaller blocks let reads go
     * on while the stores drain: 64 MiB on 2 ranks take 4.3 ms, with 4 KiB 6.4. With an addend all
     * streams are read at once: 76 MiB take 14.9 ms, with 4 KiB 17.3.
     */
    STREAM_BYTES = 512,
    N_ROOMS = 11,            /* of BLOCK_BYTES: trees of up to 2^10 leaves, thus of any host */
    MAX_LEVELS = 4 * N_ROOMS /* of BLOCK_BYTES / 4: trees of up to 2^31 leaves */
};

const struct ku_sum_kernels *ku_sum_choose(void)
{
#if defined(__x86_64__)
    enum ku_isa isa = ku_cpu_isa();
    if (isa >= KU_ISA_AVX512)
        return &ku_sum_avx512;
    if (isa >= KU_ISA_AVX2)
        return &ku_sum_avx2;
#endif
    return &ku_sum_base;
}

static enum ku_pair_op pair_of(enum kumi_reduce reduce)
{
    switch (reduce) {
    case KUMI_MIN:
        return KU_PAIR_MIN;
    case KUMI_MAX:
        return KU_PAIR_MAX;
    case KUMI_PROD:
        return KU_PAIR_PROD;
    case KUMI_SUM:
    case KUMI_AVG:
    case KUMI_PREMUL_SUM:
    case KUMI_N_REDUCES:
        break;
    }
    return KU_PAIR_SUM;
}

int ku_sum_check(enum kumi_dtype dtype, enum kumi_dtype wire, enum kumi_reduce reduce)
{
    static const char *const name[] = {"sum", "avg", "min", "max", "prod", "premul_sum"};
    if ((unsigned)reduce >= KUMI_N_REDUCES)
        return KU_ERR(KUMI_EINVAL,
                      "collective: reduction: %d; give one of sum avg min max prod premul_sum",
                      (int)reduce);
    if (!ku_sum_base.pair[dtype][0])
        return KU_ERR(KUMI_EINVAL,
                      "collective: dtype: no reduction over %s; use f32 f64 bf16 f16 i64 i32 or u8",
                      kumi_dtype_name(dtype));
    if ((reduce == KUMI_AVG || reduce == KUMI_PREMUL_SUM) && !ku_dtype_is_float(dtype))
        return KU_ERR(KUMI_EINVAL, "collective: reduction: %s of %s; use a floating type, or sum",
                      name[reduce], kumi_dtype_name(dtype));
    if (wire != dtype && !(dtype == KUMI_F32 && (wire == KUMI_BF16 || wire == KUMI_F16)))
        return KU_ERR(KUMI_EINVAL,
                      "collective: wire: %s for %s data; only f32 has narrower wires, bf16 and f16",
                      kumi_dtype_name(wire), kumi_dtype_name(dtype));
    return 0;
}

/*
 * Divide the elements of a block by n in the dtype's own precision; 16-bit types in f32, rounded.
 */
static void divide_block(void *data, int64_t count, enum kumi_dtype dtype, int n)
{
    if (dtype == KUMI_F32) {
        float *x = data;
        for (int64_t i = 0; i < count; i++)
            x[i] /= (float)n;
    } else if (dtype == KUMI_F64) {
        double *x = data;
        for (int64_t i = 0; i < count; i++)
            x[i] /= n;
    } else {
        uint16_t *x = data;
        for (int64_t i = 0; i < count; i++)
            x[i] = dtype == KUMI_BF16 ? ku_bf16_from_f32(ku_bf16_to_f32(x[i]) / (float)n)
                                      : ku_f16_from_f32(ku_f16_to_f32(x[i]) / (float)n);
    }
}

void ku_sum_scale(void *out, const void *in, int64_t count, enum kumi_dtype dtype, double scale)
{
    _Alignas(64) unsigned char block[BLOCK_BYTES];
    size_t each = kumi_dtype_bytes(dtype);
    const unsigned char *from = in;
    unsigned char *to = out;
    for (int64_t left = count; left > 0;) {
        int64_t n = left < (int64_t)(BLOCK_BYTES / each) ? left : (int64_t)(BLOCK_BYTES / each);
        memcpy(block, from, (size_t)n * each);
        for (int64_t i = 0; i < n; i++) {
            if (dtype == KUMI_F32)
                ((float *)(void *)block)[i] *= (float)scale;
            else if (dtype == KUMI_F64)
                ((double *)(void *)block)[i] *= scale;
            else
                ku_store_f64(block, dtype, i,
                             (double)((float)ku_load_f64(block, dtype, i) * (float)scale));
        }
        memcpy(to, block, (size_t)n * each);
        from += (size_t)n * each, to += (size_t)n * each, left -= n;
    }
}

/* Stack of the walk. node[i] points at a source or into the i-th room, of two halves. */
struct walk {
    _Alignas(64) unsigned char room[N_ROOMS * 2 * BLOCK_BYTES];
    size_t half_bytes;
    const void *node[MAX_LEVELS + 1];
    uint8_t side[MAX_LEVELS + 1];
    int n;
};

/*
 * The half of room i that does not hold the operand
 */
static void *room_of(struct walk *w, int i)
{
    w->side[i] ^= 1;
    return w->room + (size_t)(2 * i + w->side[i]) * w->half_bytes;
}

/*
 * Combine the two top nodes. The result goes to the lower node's room.
 */
static void combine(struct walk *w, ku_pair *pair, int64_t count)
{
    int i = w->n - 2;
    KU_ASSERT(i >= 0 && i < MAX_LEVELS);
    void *to = room_of(w, i);
    pair(to, NULL, w->node[i], w->node[i + 1], count);
    w->node[i] = to;
    w->n--;
}

/*
 * Walk over the block at element `at` of each source, up to the two children of the root. With one
 * source that node remains.
 */
static void reduce_leaves(struct walk *w, const struct ku_sum *s, ku_pair *pair, int64_t at,
                          int64_t count)
{
    size_t each = kumi_dtype_bytes(s->dtype);
    w->n = 0;
    for (int i = 0; i < s->n_src; i++) {
        const void *leaf = (const unsigned char *)s->src[i] + (size_t)at * each;
        if (s->wire != s->dtype) {
            void *to = room_of(w, w->n);
            ku_convert(to, s->wire, leaf, s->dtype, count);
            leaf = to;
        }
        w->node[w->n++] = leaf;
        for (int ones = i; (ones & 1) && i < s->n_src - 1; ones >>= 1)
            combine(w, pair, count);
    }
    while (w->n > 2)
        combine(w, pair, count);
    KU_ASSERT(w->n == (s->n_src == 1 ? 1 : 2));
}

/* The same over sources that are nodes, or stored in the wire dtype. */
static __attribute__((noinline)) void reduce_nodes(struct walk *w, const struct ku_sum *s,
                                                   ku_pair *pair, int64_t at, int64_t count)
{
    w->n = 0;
    for (int i = 0; i < s->n_src; i++) {
        bool in_wire = s->wire == s->dtype || (s->in_wire && s->in_wire[i]);
        size_t offset = (size_t)at * kumi_dtype_bytes(in_wire ? s->wire : s->dtype);
        const void *node = (const unsigned char *)s->src[i] + offset;
        if (!in_wire) {
            void *to = room_of(w, w->n);
            ku_convert(to, s->wire, node, s->dtype, count);
            node = to;
        }
        w->node[w->n++] = node;
        if (i == s->n_src - 1)
            break;
        /* The counter is at `end`; the node has set its bits below `size`. */
        uint32_t size = s->first ? (uint32_t)(s->first[i + 1] - s->first[i]) : 1;
        uint32_t end = s->first ? (uint32_t)(s->first[i + 1] - s->first[0]) : (uint32_t)i + 1;
        for (; !(end & size); size <<= 1)
            combine(w, pair, count);
    }
    while (w->n > 2)
        combine(w, pair, count);
    KU_ASSERT(w->n == (s->n_src == 1 ? 1 : 2));
}

static bool is_room(const struct walk *w, const void *node)
{
    const unsigned char *p = node;
    return p >= w->room && p < w->room + sizeof w->room;
}

/*
 * Compute the root directly into the destinations; a copy through L1 would halve the speed. Returns
 * 0 if that is impossible: with more than two destinations the first pair may overwrite a leaf.
 */
static bool store_root(const struct walk *w, const struct ku_sum *s, ku_pair *pair, size_t offset,
                       int64_t count)
{
    int n = s->n_dst - s->n_streamed;
    if (n < 1 || w->n != 2 || (n > 2 && (!is_room(w, w->node[0]) || !is_room(w, w->node[1]))))
        return 0;
    for (int d = 0; d < n; d++)
        if ((uintptr_t)s->dst[d] % kumi_dtype_bytes(s->is_node ? s->wire : s->dtype))
            return 0;
    for (int d = 0; d < n; d += 2) {
        unsigned char *to = s->dst[d], *to2 = d + 1 < n ? s->dst[d + 1] : NULL;
        pair(to + offset, to2 ? to2 + offset : NULL, w->node[0], w->node[1], count);
    }
    return 1;
}

/* The root of a block before it is stored: converted and divided in `last`, or as it is */
static const void *finish_root(struct walk *w, const struct ku_sum *s, ku_pair *pair,
                               unsigned char *last, int64_t count)
{
    if (w->n > 1)
        combine(w, pair, count);
    KU_ASSERT(w->n == 1);
    const void *result = w->node[0];
    if (s->is_node)
        return result;
    if (s->wire != s->dtype) {
        ku_convert(last, s->dtype, result, s->wire, count);
        result = last;
    }
    if (s->divide > 1) {
        if (result != last)
            memcpy(last, result, (size_t)count * kumi_dtype_bytes(s->dtype));
        divide_block(last, count, s->dtype, s->divide);
        result = last;
    }
    return result;
}

/* Check what the sources are: the walk would add in another order, or run off its stack. */
static void check_sources(const struct ku_sum *s)
{
    for (int i = 0; i < s->n_src; i++) {
        uint32_t at = (uint32_t)(s->first[i] - s->first[0]);
        uint32_t n = (uint32_t)(s->first[i + 1] - s->first[i]);
        bool is_last = i == s->n_src - 1, is_full = (n & (n - 1)) == 0 && (at & (n - 1)) == 0;
        KU_ASSERT(s->first[i + 1] > s->first[i]);
        KU_ASSERT(is_full || (is_last && (at == 0 || n < (at & -at))));
    }
}

/*
 * Bytes of a block: a tree of more leaves has more rooms, of a half or a quarter of the bytes.
 */
static size_t choose_half(const struct ku_sum *s)
{
    int64_t n_leaves = (int64_t)s->first[s->n_src] - s->first[0], n_rooms = N_ROOMS;
    size_t bytes = BLOCK_BYTES;
    for (; n_leaves > INT64_C(1) << (n_rooms - 1); n_rooms *= 2)
        bytes /= 2;
    KU_ASSERT(n_rooms <= MAX_LEVELS);
    return bytes;
}

void ku_sum(const struct ku_sum_kernels *k, const struct ku_sum *s)
{
    struct walk w;
    _Alignas(64) unsigned char last[BLOCK_BYTES];
    ku_pair *pair = k->pair[s->wire][pair_of(s->reduce)];
    size_t src_each = kumi_dtype_bytes(s->dtype);
    size_t each = s->is_node ? kumi_dtype_bytes(s->wire) : src_each;
    size_t block_bytes = s->n_streamed || s->addend ? STREAM_BYTES : BLOCK_BYTES;
    int is_plain = s->is_node || (s->wire == s->dtype && s->divide <= 1);
    int is_leaves = !s->first && !s->in_wire, n_plain = s->n_dst - s->n_streamed;
    KU_ASSERT(s->n_src > 0 && s->n_dst > 0 && s->count >= 0 && pair != NULL);
    KU_ASSERT(s->n_streamed >= 0 && s->n_streamed <= s->n_dst);
    KU_ASSERT(!s->addend || (s->divide <= 1 && s->reduce == KUMI_SUM && !s->is_node));
    KU_ASSERT(!s->is_node || s->divide <= 1);
    KU_ASSERT(s->first || s->n_src <= 1 << (N_ROOMS - 1));
    w.half_bytes = BLOCK_BYTES;
    if (s->first) {
        check_sources(s);
        w.half_bytes = choose_half(s);
        block_bytes = block_bytes < w.half_bytes ? block_bytes : w.half_bytes;
    }
    int64_t block = (int64_t)(block_bytes / src_each);
    memset(w.side, 0, sizeof w.side);
    for (int64_t at = 0; at < s->count; at += block) {
        int64_t n = s->count - at < block ? s->count - at : block;
        size_t offset = (size_t)at * each, bytes = (size_t)n * each;
        const void *result;
        if (is_leaves)
            reduce_leaves(&w, s, pair, at, n);
        else
            reduce_nodes(&w, s, pair, at, n);
        if (s->addend && is_plain) {
            if (w.n > 1)
                combine(&w, pair, n);
            w.node[w.n++] = (const unsigned char *)s->addend + offset;
        }
        if (is_plain && store_root(&w, s, pair, offset, n)) {
            result = (unsigned char *)s->dst[0] + offset;
        } else {
            result = finish_root(&w, s, pair, last, n);
            if (s->addend && !is_plain)
                k->pair[s->dtype][KU_PAIR_SUM](last, NULL, last,
                                               (const unsigned char *)s->addend + offset, n);
            for (int d = 0; d < n_plain; d++) {
                void *to = (unsigned char *)s->dst[d] + offset;
                if (to != result)
                    memcpy(to, result, bytes);
            }
        }
        for (int d = n_plain; d < s->n_dst; d++)
            ku_stream_copy((unsigned char *)s->dst[d] + offset, result, bytes);
    }
    if (s->n_streamed)
        ku_stream_fence();
}
