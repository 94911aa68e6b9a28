/* SPDX-License-Identifier: Apache-2.0 */
#include "exec/poison.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <stdlib.h>

#include "base/mem.h"

/* Live range of a buffer together with the buffers that reuse its bytes in place. */
struct life {
    uint32_t first, last;
    size_t begin, end;
};
struct ku_poison {
    unsigned char *arena;
    size_t arena_bytes;
    uint32_t n, n_begun, n_ended;
    struct life *by_first, *by_last;
};

static int compare_first(const void *a, const void *b)
{
    uint32_t x = ((const struct life *)a)->first, y = ((const struct life *)b)->first;
    return (x > y) - (x < y);
}
static int compare_last(const void *a, const void *b)
{
    uint32_t x = ((const struct life *)a)->last, y = ((const struct life *)b)->last;
    return (x > y) - (x < y);
}

static ku_id root_of(const struct ku_program *p, ku_id b)
{
    while (p->buffer[b].home)
        b = p->buffer[b].home;
    return b;
}

static void add_life(const struct ku_program *p, ku_id id, struct life *of_root)
{
    const struct ku_buffer *b = &p->buffer[id];
    struct life *l = &of_root[root_of(p, id)];
    if (l->end == 0)
        *l = (struct life){b->first, b->last, b->offset, b->offset + b->bytes};
    l->first = b->first < l->first ? b->first : l->first;
    l->last = b->last > l->last ? b->last : l->last;
    l->begin = b->offset < l->begin ? b->offset : l->begin;
    l->end = b->offset + b->bytes > l->end ? b->offset + b->bytes : l->end;
}

int ku_poison_create(const struct ku_program *p, unsigned char *arena, struct ku_poison **out)
{
    struct ku_poison *t = ku_calloc(1, sizeof *t);
    struct life *l = ku_calloc(p->n_buffers + 1, sizeof *l);
    struct life *l2 = ku_calloc(p->n_buffers + 1, sizeof *l2);
    if (t == NULL || l == NULL || l2 == NULL) {
        ku_free(t);
        ku_free(l);
        ku_free(l2);
        return KUMI_ENOMEM;
    }
    *t = (struct ku_poison){.arena = arena, .by_first = l, .by_last = l2};
    for (ku_id b = 1; b < p->n_buffers; b++)
        if (p->buffer[b].arena == KU_AR_STEP && p->buffer[b].first != UINT32_MAX &&
            p->buffer[b].bytes > 0)
            add_life(p, b, l2);
    for (ku_id b = 1; b < p->n_buffers; b++)
        if (l2[b].end > 0)
            l[t->n++] = l2[b];
    for (uint32_t i = 0; i < t->n; i++)
        l2[i] = l[i];
    qsort(t->by_first, t->n, sizeof *l, compare_first);
    qsort(t->by_last, t->n, sizeof *l, compare_last);
    *out = t;
    return KUMI_OK;
}

void ku_poison_destroy(struct ku_poison *t)
{
    if (t == NULL)
        return;
    ASAN_UNPOISON_MEMORY_REGION(t->arena, t->arena_bytes);
    ku_free(t->by_first);
    ku_free(t->by_last);
    ku_free(t);
}

void ku_poison_begin(struct ku_poison *t, size_t arena_bytes)
{
    t->arena_bytes = arena_bytes;
    t->n_begun = t->n_ended = 0;
    ASAN_POISON_MEMORY_REGION(t->arena, arena_bytes);
}

void ku_poison_before(struct ku_poison *t, uint32_t at)
{
    for (; t->n_ended < t->n && t->by_last[t->n_ended].last < at; t->n_ended++) {
        const struct life *l = &t->by_last[t->n_ended];
        ASAN_POISON_MEMORY_REGION(t->arena + l->begin, l->end - l->begin);
    }
    for (; t->n_begun < t->n && t->by_first[t->n_begun].first <= at; t->n_begun++) {
        const struct life *l = &t->by_first[t->n_begun];
        ASAN_UNPOISON_MEMORY_REGION(t->arena + l->begin, l->end - l->begin);
    }
}

#else
int ku_poison_create(const struct ku_program *p, unsigned char *arena, struct ku_poison **out)
{
    (void)p, (void)arena;
    *out = NULL;
    return KUMI_OK;
}
void ku_poison_destroy(struct ku_poison *t)
{
    (void)t;
}
void ku_poison_begin(struct ku_poison *t, size_t arena_bytes)
{
    (void)t, (void)arena_bytes;
}
void ku_poison_before(struct ku_poison *t, uint32_t at)
{
    (void)t, (void)at;
}
#endif
