/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/changes.h"

#include <string.h>

#include "base/mem.h"

enum { GRAIN_BYTES = KU_REMOTE_GRAIN_BYTES, READ_BYTES = KU_REMOTE_COMPARED_BYTES };

/* A part of the pull space that may rest. */
struct tracked {
    size_t begin, end;    /* bytes of the space */
    unsigned char *image; /* [end - begin] */
    int64_t *changed_in;  /* per grain: the last update that changed it */
};

struct ku_remote_changes {
    bool has_image;
    uint32_t n;
    struct tracked *part; /* [n], ascending */
    unsigned char *now;   /* [READ_BYTES], so many are compared at a time */
};

/* The bytes of entry i that are tracked; false: none. */
static bool bytes_of(const struct ku_remote_layout *l, int server, uint32_t i, size_t *begin,
                     size_t *end)
{
    if (!l->pull[i].may_rest)
        return false;
    const struct ku_remote_part part = ku_remote_part_of(l, false, i, server);
    *begin = part.offset;
    *end = part.offset + ku_remote_wire_bytes(&l->pull[i], part.end - part.begin);
    return *end > *begin;
}

static int add(struct ku_remote_changes *c, size_t begin, size_t end)
{
    struct tracked *x = &c->part[c->n++];
    *x = (struct tracked){.begin = begin,
                          .end = end,
                          .image = ku_malloc(end - begin),
                          .changed_in =
                              ku_calloc((end - begin) / GRAIN_BYTES + 1, sizeof *x->changed_in)};
    return x->image && x->changed_in ? KUMI_OK : KUMI_ENOMEM;
}

int ku_remote_changes_create(const struct ku_remote_layout *l, int server,
                             struct ku_remote_changes **out)
{
    size_t begin, end;
    *out = NULL;
    if (ku_remote_tracked_bytes(l, server) == 0)
        return KUMI_OK;
    struct ku_remote_changes *c = ku_calloc(1, sizeof *c);
    if (c == NULL)
        return KUMI_ENOMEM;
    c->part = ku_calloc(l->n_pull, sizeof *c->part);
    c->now = ku_malloc(READ_BYTES);
    int status = c->part && c->now ? KUMI_OK : KUMI_ENOMEM;
    for (uint32_t i = 0; i < l->n_pull && status == KUMI_OK; i++)
        if (bytes_of(l, server, i, &begin, &end))
            status = add(c, begin, end);
    if (status < 0) {
        ku_remote_changes_destroy(c);
        return status;
    }
    *out = c;
    return KUMI_OK;
}

void ku_remote_changes_destroy(struct ku_remote_changes *c)
{
    if (c == NULL)
        return;
    for (uint32_t i = 0; i < c->n; i++) {
        ku_free(c->part[i].image);
        ku_free(c->part[i].changed_in);
    }
    ku_free(c->part);
    ku_free(c->now);
    ku_free(c);
}

/* Bytes of a part from `at` on, as they are now; `at` is a multiple of the grain. */
static void compare(struct ku_remote_changes *c, struct tracked *x, size_t at, size_t bytes,
                    int64_t version)
{
    for (size_t k = 0; k < bytes; k += GRAIN_BYTES) {
        const size_t each = bytes - k < GRAIN_BYTES ? bytes - k : GRAIN_BYTES;
        unsigned char *is = x->image + at + k;
        if (c->has_image && memcmp(is, c->now + k, each) == 0)
            continue;
        memcpy(is, c->now + k, each);
        x->changed_in[(at + k) / GRAIN_BYTES] = version;
    }
}

int ku_remote_changes_note(struct ku_remote_changes *c, int64_t version, ku_remote_read_fn *copy,
                           const void *ctx)
{
    for (uint32_t i = 0; i < c->n; i++) {
        struct tracked *x = &c->part[i];
        for (size_t at = 0, bytes; at < x->end - x->begin; at += bytes) {
            const size_t left = x->end - x->begin - at;
            bytes = left < READ_BYTES ? left : (size_t)READ_BYTES;
            KU_TRY(copy(ctx, x->begin + at, bytes, c->now));
            compare(c, x, at, bytes, version);
        }
    }
    c->has_image = true;
    return KUMI_OK;
}

bool ku_remote_has_changed(const struct ku_remote_changes *c, size_t offset, int64_t since)
{
    uint32_t low = 0, high = c->n;
    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;
        if (c->part[mid].end <= offset)
            low = mid + 1;
        else
            high = mid;
    }
    const struct tracked *x = &c->part[low];
    return low == c->n || offset < x->begin ||
           x->changed_in[(offset - x->begin) / GRAIN_BYTES] > since;
}
