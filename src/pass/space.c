/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A segment tree over time whose nodes have four children. A rectangle covers O(log n) nodes
 * completely. Each node has two sets of addresses:
 *
 *     covers   of rectangles that span the node's whole time, but not its parent's
 *     within   of all rectangles at or below it (of a leaf: those that cover it)
 *
 *     time     0   1   2   3   4   5   6   7   8 ..      [1, 8] covers leaves 1 to 3, node 4-7 and
 *              |-------------| |-------------| |-- ..    leaf 8
 *                  [=============================]
 *
 * The addresses in use during [first, last] are the union of `within` of the nodes that make up the
 * interval and of `covers` of all ancestors of its ends. Each set finds its lowest gap from an
 * address on; the sets are queried in turn, from the root down, until one address is free in all.
 * Adjacent rectangles merge into one span, so activations and temporaries make small sets. An
 * insertion stops climbing at a node that already has the addresses.
 *
 * A set is one span (the usual case) or a B-tree of spans with the widest gap of each subtree.
 *
 * Interleaved activations (several sizes per layer) leave one gap per layer that only the union of
 * all sets excludes. After MAX_MOVES queries without a result, subsets of the sets ("parts") are
 * queried first. The result of a part is a lower bound, and it is cached: addresses are never
 * released, so for rectangles at least as large it only grows. Many rectangles share a part:
 *
 *     path    the `covers` of the ancestors of one end of the interval, from the root down
 *     core    the addresses in use during the complete nodes of one level inside the interval
 */
#include "pass/space.h"

#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/reserve.h"

/* Spans in address order, with the widest gap inside each subtree. Spans never touch each other. */
enum { FANOUT = 8 };
struct entry {
    size_t low, high, gap; /* a span, gap 0; of an inner node: bounds and widest gap of a child */
    uint32_t child;        /* 0: a span */
};
struct node {
    uint32_t n; /* 0: free, the next free node is entry[0].child */
    struct entry entry[FANOUT];
};
struct set {
    size_t low, high, gap; /* those of the root; low == high: empty */
    uint32_t root;         /* 0: one span, or none */
};

/* Cache entry: the lowest gap `at` of a part for rectangles of at least `bytes`. */
struct part {
    uint32_t a,
        b; /* core: first and last time; path: node and IS_PATH + its level; b 0: a free slot */
    size_t bytes, align, at;
};
#define IS_PATH UINT32_C(0x80000000)

enum { FANOUT_BITS = 2, MAX_LEVELS = 32 / FANOUT_BITS, MAX_SETS = 8 * MAX_LEVELS };
enum {
    MIN_CORE_LEVEL = 3, /* shorter intervals overlap few rectangles */
    MAX_MOVES = 24      /* queries before parts are used; most intervals need fewer */
};

struct ku_space {
    struct node *node; /* [n_nodes]; 0 is none */
    size_t cap_nodes;
    uint32_t n_nodes, free; /* free: the first of a list */
    uint32_t n_times;
    size_t base;
    int n_levels;                   /* level 0: the leaves; the last one: the root */
    struct set *covers[MAX_LEVELS]; /* per level, per node */
    struct set *within[MAX_LEVELS]; /* per level, per node; level 0: the same as covers */
    struct part *part;              /* [part_mask + 1] hash table, at most half full */
    uint32_t n_parts, part_mask;
    uint64_t steps;
};

int ku_space_create(uint32_t n_times, size_t base, struct ku_space **out)
{
    struct ku_space *s = ku_calloc(1, sizeof *s);
    if (s == NULL)
        return KUMI_ENOMEM;
    KU_ASSERT(n_times > 0 && n_times <= UINT32_MAX / 4);
    s->n_times = n_times;
    s->base = base;
    s->n_nodes = 1;
    for (uint32_t n = n_times;; n = ((n - 1) >> FANOUT_BITS) + 1) {
        int k = s->n_levels++;
        s->covers[k] = ku_calloc(n, sizeof *s->covers[k]);
        s->within[k] = k ? ku_calloc(n, sizeof *s->within[k]) : s->covers[k];
        if (s->covers[k] == NULL || s->within[k] == NULL) {
            ku_space_destroy(s);
            return KUMI_ENOMEM;
        }
        if (n == 1)
            break;
    }
    *out = s;
    return KUMI_OK;
}

void ku_space_destroy(struct ku_space *s)
{
    if (s == NULL)
        return;
    for (int k = 0; k < s->n_levels; k++) {
        ku_free(s->covers[k]);
        if (k > 0)
            ku_free(s->within[k]);
    }
    ku_free(s->part);
    ku_free(s->node);
    ku_free(s);
}

uint64_t ku_space_steps(const struct ku_space *s)
{
    return s->steps;
}

static size_t max(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static int new_node(struct ku_space *s, uint32_t *out)
{
    uint32_t at = s->free;
    if (at) {
        s->free = s->node[at].entry[0].child;
    } else {
        KU_TRY(KU_RESERVE(&s->node, s->n_nodes, 1, &s->cap_nodes));
        at = s->n_nodes++;
    }
    s->node[at].n = 0;
    *out = at;
    return KUMI_OK;
}

static void free_node(struct ku_space *s, uint32_t at)
{
    struct node *x = &s->node[at];
    for (uint32_t i = 0; i < x->n; i++)
        if (x->entry[i].child)
            free_node(s, x->entry[i].child);
    x->n = 0;
    x->entry[0].child = s->free;
    s->free = at;
}

/* The entry for a node in its parent. */
static struct entry summary(struct ku_space *s, uint32_t at)
{
    const struct node *x = &s->node[at];
    struct entry all = x->entry[0];
    for (uint32_t i = 1; i < x->n; i++)
        all.gap = max(all.gap, max(x->entry[i].gap, x->entry[i].low - x->entry[i - 1].high));
    all.high = x->entry[x->n - 1].high;
    all.child = at;
    s->steps++;
    return all;
}

/* The first entry that ends at or above `at`. */
static uint32_t first_from(const struct node *x, size_t at)
{
    uint32_t i = 0;
    while (i < x->n && x->entry[i].high < at)
        i++;
    return i;
}

/* Widens the one span that [begin, end) touches. */
enum extent { HAS_ALL, IS_WIDER, TOUCHES_NONE, TOUCHES_MORE };
static enum extent widen(struct ku_space *s, uint32_t at, size_t begin, size_t end)
{
    struct node *x = &s->node[at];
    const uint32_t i = first_from(x, begin);
    struct entry *e = &x->entry[i];
    s->steps++;
    if (i == x->n || e->low > end)
        return TOUCHES_NONE;
    if (i + 1 < x->n && e[1].low <= end)
        return TOUCHES_MORE;
    if (e->child) {
        const enum extent extent = widen(s, e->child, begin, end);
        if (extent == IS_WIDER)
            *e = summary(s, e->child);
        return extent;
    }
    if (e->low <= begin && end <= e->high)
        return HAS_ALL;
    e->low = min(e->low, begin);
    e->high = max(e->high, end);
    return IS_WIDER;
}

/* Removes all spans that [*begin, *end) touches and widens it to their union. */
static void extract(struct ku_space *s, uint32_t at, size_t *begin, size_t *end)
{
    struct node *x = &s->node[at];
    uint32_t n = first_from(x, *begin), i = n;
    const size_t first = *begin, last = *end;
    for (; i < x->n && x->entry[i].low <= last; i++) {
        struct entry *e = &x->entry[i];
        const uint32_t child = e->child;
        s->steps++;
        if (child && (e->low < first || e->high > last)) {
            extract(s, child, begin, end);
            if (s->node[child].n)
                x->entry[n++] = summary(s, child);
        } else {
            *begin = min(*begin, e->low);
            *end = max(*end, e->high);
        }
        if (child && (n == 0 || x->entry[n - 1].child != child))
            free_node(s, child);
    }
    memmove(&x->entry[n], &x->entry[i], (x->n - i) * sizeof *x->entry);
    x->n -= i - n;
}
/* Adds a span that touches no other; *sibling: 0, or a new node for the parent, after `at`. */
static int put(struct ku_space *s, uint32_t at, struct entry span, uint32_t *sibling)
{
    struct node *x = &s->node[at], *y;
    uint32_t i = first_from(x, span.low), more = 0;
    uint32_t child = x->n ? x->entry[0].child : 0;
    *sibling = 0;
    if (child) {
        i -= i == x->n;
        child = x->entry[i].child;
        KU_TRY(put(s, child, span, &more));
        s->node[at].entry[i++] = summary(s, child);
        if (more == 0)
            return KUMI_OK;
        span = summary(s, more);
    }
    if (s->node[at].n == FANOUT) {
        KU_TRY(new_node(s, sibling));
        x = &s->node[at], y = &s->node[*sibling];
        x->n = i == FANOUT ? FANOUT : FANOUT / 2; /* spans often come in ascending order */
        y->n = FANOUT - x->n;
        memcpy(y->entry, &x->entry[x->n], y->n * sizeof *y->entry);
        if (i > x->n || x->n == FANOUT)
            at = *sibling, i -= x->n;
    }
    x = &s->node[at];
    memmove(&x->entry[i + 1], &x->entry[i], (x->n++ - i) * sizeof *x->entry);
    x->entry[i] = span;
    return KUMI_OK;
}

/* Replaces all spans that [begin, end) touches by their union with it. */
static int insert(struct ku_space *s, uint32_t *root, size_t begin, size_t end)
{
    uint32_t sibling, top;
    extract(s, *root, &begin, &end);
    KU_TRY(put(s, *root, (struct entry){.low = begin, .high = end}, &sibling));
    if (sibling) {
        KU_TRY(new_node(s, &top));
        s->node[top].n = 2;
        s->node[top].entry[0] = summary(s, *root);
        s->node[top].entry[1] = summary(s, sibling);
        *root = top;
    }
    return KUMI_OK;
}

static size_t align_up(size_t at, size_t align)
{
    return (at + align - 1) & ~(align - 1);
}

/* The lowest aligned address >= `at` with `bytes` free in a subtree, or after it. */
static size_t lowest(struct ku_space *s, uint32_t node, size_t at, size_t bytes, size_t align)
{
    const struct node *x = &s->node[node];
    for (uint32_t i = first_from(x, at + 1); i < x->n; i++) {
        const struct entry *e = &x->entry[i];
        s->steps++;
        if (at + bytes <= e->low)
            return at;
        if (e->gap >= bytes)
            at = lowest(s, e->child, at, bytes, align);
        else if (at < e->high)
            at = align_up(e->high, align);
    }
    return at;
}

static int add(struct ku_space *s, struct set *set, size_t begin, size_t end, int *is_new)
{
    *is_new = 1;
    s->steps++;
    if (set->low == set->high) {
        *set = (struct set){.low = begin, .high = end};
        return KUMI_OK;
    }
    if (set->root == 0 && begin <= set->high && set->low <= end) {
        *is_new = begin < set->low || end > set->high;
        set->low = min(set->low, begin);
        set->high = max(set->high, end);
        return KUMI_OK;
    }
    if (set->root == 0) {
        KU_TRY(new_node(s, &set->root));
        s->node[set->root].n = 1;
        s->node[set->root].entry[0] = (struct entry){.low = set->low, .high = set->high};
    }
    enum extent extent = widen(s, set->root, begin, end);
    *is_new = extent != HAS_ALL;
    if (extent == TOUCHES_NONE || extent == TOUCHES_MORE)
        KU_TRY(insert(s, &set->root, begin, end));
    const struct entry all = summary(s, set->root);
    set->low = all.low, set->high = all.high, set->gap = all.gap;
    if (all.gap == 0) {
        free_node(s, set->root);
        set->root = 0;
    }
    return KUMI_OK;
}

static size_t lowest_in(struct ku_space *s, const struct set *set, size_t at, size_t bytes,
                        size_t align)
{
    s->steps++;
    if (at >= set->high || at + bytes <= set->low)
        return at;
    return set->gap < bytes ? align_up(set->high, align) : lowest(s, set->root, at, bytes, align);
}

/* The nodes that make up [first, last], at most six per level: those of level k are [*a, *b) and
 * [*c, *d). Called for levels 0, 1, ..; *l and *r bound the remainder, in nodes of that level. */
static void peel(uint32_t *l, uint32_t *r, uint32_t *a, uint32_t *b, uint32_t *c, uint32_t *d)
{
    const uint32_t rest = (1 << FANOUT_BITS) - 1;
    *a = *b = *l;
    while (*b & rest && *b < *r)
        ++*b;
    *c = *d = *r;
    while (*c & rest && *c > *b)
        --*c;
    *l = *b >> FANOUT_BITS;
    *r = *c >> FANOUT_BITS;
}

/* The sets whose union is the addresses in use at some time in [first, last]. */
static int sets_of(const struct ku_space *s, uint32_t first, uint32_t last,
                   const struct set *set[MAX_SETS])
{
    uint32_t l = first, r = last + 1, a, b, c, d;
    int n = 0;
    for (int k = s->n_levels - 1; k > 0; k--) {
        const uint32_t begin = first >> k * FANOUT_BITS, end = last >> k * FANOUT_BITS;
        set[n] = &s->covers[k][begin];
        n += set[n]->high > 0;
        set[n] = &s->covers[k][end];
        n += begin != end && set[n]->high > 0;
    }
    for (int k = 0; k < s->n_levels && l < r; k++) {
        peel(&l, &r, &a, &b, &c, &d);
        for (a = a < b ? a : c; a < d; a = a + 1 == b ? c : a + 1) {
            set[n] = &s->within[k][a];
            n += set[n]->high > 0;
        }
    }
    KU_ASSERT(n <= MAX_SETS);
    return n;
}

/* Adds a rectangle to nodes [a, b) of level k. *is_new is set if a node lacked some of it. */
static int cover(struct ku_space *s, int k, uint32_t a, uint32_t b, size_t begin, size_t end,
                 int *is_new)
{
    int is_news = 0;
    for (; a < b; a++) {
        KU_TRY(add(s, &s->covers[k][a], begin, end, &is_news));
        if (k > 0)
            KU_TRY(add(s, &s->within[k][a], begin, end, &is_news));
        *is_new |= is_news;
    }
    return KUMI_OK;
}

/* Inserts from the leaves up along both ends: a parent changes only if one of its nodes did. */
static int take(struct ku_space *s, uint32_t first, uint32_t last, size_t begin, size_t end)
{
    uint32_t l = first, r = last + 1, a, b, c, d;
    int is_new[2] = {0, 0};
    for (int k = 0; k < s->n_levels && (l < r || is_new[0] || is_new[1]); k++) {
        const uint32_t node[2] = {first >> k * FANOUT_BITS, last >> k * FANOUT_BITS};
        if (node[0] == node[1]) { /* one path from here on */
            is_new[0] |= is_new[1];
            is_new[1] = 0;
        }
        for (int side = 0; side < 2; side++)
            if (is_new[side])
                KU_TRY(add(s, &s->within[k][node[side]], begin, end, &is_new[side]));
        if (l >= r)
            continue;
        peel(&l, &r, &a, &b, &c, &d);
        KU_TRY(cover(s, k, a, b, begin, end, &is_new[0]));
        KU_TRY(cover(s, k, c, d, begin, end, &is_new[1]));
    }
    return KUMI_OK;
}

/* The lowest aligned address >= `at` that is free in all sets; a lower bound of it when *n_moves
 * reaches 0. The sets are queried in turn until none moves the address. */
static size_t lowest_of_all(struct ku_space *s, const struct set *const *set, int n, size_t at,
                            size_t bytes, size_t align, uint32_t *n_moves)
{
    for (int i = 0, n_free = 0; n_free < n && *n_moves; i = i + 1 < n ? i + 1 : 0) {
        const size_t next = lowest_in(s, set[i], at, bytes, align);
        n_free = next == at ? n_free + 1 : 1;
        *n_moves -= next != at;
        at = next;
    }
    return at;
}

static struct part *find_part(const struct ku_space *s, uint32_t a, uint32_t b)
{
    uint32_t at = (uint32_t)ku_hash64_mix(a, b) & s->part_mask;
    while (s->part[at].b && (s->part[at].a != a || s->part[at].b != b))
        at = (at + 1) & s->part_mask;
    return &s->part[at];
}

static int grow_parts(struct ku_space *s)
{
    struct part *old = s->part;
    uint32_t n = old ? s->part_mask + 1 : 0, mask = n ? 2 * n - 1 : 63;
    if (2 * s->n_parts < n)
        return KUMI_OK;
    struct part *grown = ku_calloc((size_t)mask + 1, sizeof *grown);
    if (grown == NULL)
        return KUMI_ENOMEM;
    s->part = grown;
    s->part_mask = mask;
    for (uint32_t i = 0; i < n; i++)
        if (old[i].b)
            *find_part(s, old[i].a, old[i].b) = old[i];
    ku_free(old);
    return KUMI_OK;
}

/* Raises *at, a lower bound from fewer of these sets, to the result of all of them. */
static int lowest_in_part(struct ku_space *s, uint32_t a, uint32_t b, const struct set *const *set,
                          int n, size_t bytes, size_t align, size_t *at)
{
    uint32_t n_moves = UINT32_MAX;
    KU_TRY(grow_parts(s));
    struct part *p = find_part(s, a, b);
    s->n_parts += p->b == 0;
    if (p->b && bytes >= p->bytes && align == p->align && p->at > *at)
        *at = p->at;
    *at = lowest_of_all(s, set, n, *at, bytes, align, &n_moves);
    *p = (struct part){a, b, bytes, align, *at};
    return KUMI_OK;
}

/* *at starts at base, here and below: an address raised by other sets must not enter the cache. */
static int lowest_on_path(struct ku_space *s, uint32_t time, size_t bytes, size_t align, size_t *at)
{
    const struct set *path[MAX_LEVELS];
    int n = 0;
    for (int k = s->n_levels - 1; k > 0; k--) {
        const uint32_t node = time >> k * FANOUT_BITS;
        if (s->covers[k][node].high == 0)
            continue;
        path[n++] = &s->covers[k][node];
        KU_TRY(lowest_in_part(s, node, IS_PATH + (uint32_t)k, path, n, bytes, align, at));
    }
    return KUMI_OK;
}

/* From the smallest core to the largest: per level the complete nodes in [first, last], if there
 * are at least two. */
static int lowest_in_cores(struct ku_space *s, uint32_t first, uint32_t last, size_t bytes,
                           size_t align, size_t *at)
{
    const struct set *set[MAX_SETS];
    for (int k = s->n_levels - 1; k >= MIN_CORE_LEVEL; k--) {
        const int shift = k * FANOUT_BITS;
        const uint64_t begin = ((uint64_t)first + (1u << shift) - 1) >> shift;
        const uint64_t end = ((uint64_t)last + 1) >> shift;
        if (end < begin + 2)
            continue;
        const uint32_t a = (uint32_t)(begin << shift), b = (uint32_t)(end << shift) - 1;
        KU_TRY(lowest_in_part(s, a, b, set, sets_of(s, a, b, set), bytes, align, at));
    }
    return KUMI_OK;
}

/* The highest lower bound of the parts of [first, last]. */
static int lowest_in_parts(struct ku_space *s, uint32_t first, uint32_t last, size_t bytes,
                           size_t align, size_t *at)
{
    size_t before = s->base, after = s->base, between = s->base;
    KU_TRY(lowest_on_path(s, first, bytes, align, &before));
    KU_TRY(lowest_on_path(s, last, bytes, align, &after));
    KU_TRY(lowest_in_cores(s, first, last, bytes, align, &between));
    *at = max(*at, max(between, max(before, after)));
    return KUMI_OK;
}

int ku_space_place(struct ku_space *s, uint32_t first, uint32_t last, size_t bytes, size_t align,
                   size_t *offset)
{
    const struct set *set[MAX_SETS];
    size_t at = s->base;
    uint32_t n_moves = MAX_MOVES;
    KU_ASSERT(first <= last && last < s->n_times && bytes % align == 0 && s->base % align == 0);
    *offset = s->base;
    if (bytes == 0)
        return KUMI_OK;
    int n = sets_of(s, first, last, set);
    at = lowest_of_all(s, set, n, at, bytes, align, &n_moves);
    if (n_moves == 0) {
        KU_TRY(lowest_in_parts(s, first, last, bytes, align, &at));
        n_moves = UINT32_MAX;
        at = lowest_of_all(s, set, n, at, bytes, align, &n_moves);
    }
    *offset = at;
    return take(s, first, last, at, at + bytes);
}
