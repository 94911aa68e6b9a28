/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/shape.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"

struct ku_shape ku_shape_of(const char *names, const int64_t *count)
{
    struct ku_shape s = {0};
    for (; names[s.ndim] != '\0'; s.ndim++) {
        KU_ASSERT(s.ndim < KU_MAX_DIMS);
        s.dim[s.ndim] = (struct ku_dim){count[s.ndim], count[s.ndim], names[s.ndim]};
    }
    return s;
}

bool ku_shape_is_equal(const struct ku_shape *a, const struct ku_shape *b)
{
    if (a->ndim != b->ndim)
        return 0;
    for (int i = 0; i < a->ndim; i++)
        if (a->dim[i].count != b->dim[i].count || a->dim[i].seen != b->dim[i].seen ||
            a->dim[i].name != b->dim[i].name)
            return 0;
    return 1;
}

int ku_shape_find(const struct ku_shape *s, char name)
{
    for (int i = 0; i < s->ndim; i++)
        if (s->dim[i].name == name)
            return i;
    return -1;
}

int64_t ku_shape_count(const struct ku_shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->ndim; i++)
        n *= s->dim[i].count;
    return n;
}

int64_t ku_shape_seen(const struct ku_shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->ndim; i++)
        n *= s->dim[i].seen;
    return n;
}

int64_t ku_shape_seen_run(const struct ku_shape *s, int64_t *at, int64_t end)
{
    while (*at < end) {
        int64_t inner = 1, to = end;
        int d = s->ndim - 1;
        for (; d >= 0; d--) {
            const int64_t row = inner * s->dim[d].count, begin = *at / row * row;
            const int64_t padding = begin + inner * s->dim[d].seen;
            if (*at >= padding) {
                *at = begin + row;
                break;
            }
            to = s->dim[d].seen < s->dim[d].count && padding < to ? padding : to;
            inner = row;
        }
        if (d < 0)
            return to - *at;
    }
    return 0;
}

int ku_shape_check(const struct ku_shape *s, const char *what)
{
    int64_t total = 1;
    if (s->ndim < 0 || s->ndim > KU_MAX_DIMS)
        return KU_ERR(KUMI_EINVAL, "shape: %s: %d dimensions; at most %d", what, s->ndim,
                      KU_MAX_DIMS);
    for (int i = 0; i < s->ndim; i++) {
        const struct ku_dim *d = &s->dim[i];
        if (d->name <= ' ' || d->name > '~' || strchr("=:[]{}(),\"\\", d->name))
            return KU_ERR(KUMI_EINVAL, "shape: %s: dimension %d has no usable one-letter name",
                          what, i);
        if (d->count < 0 || d->seen < 0 || d->seen > d->count)
            return KU_ERR(KUMI_EINVAL,
                          "shape: %s: %c=%lld:%lld (count:seen); give 0 <= seen <= count", what,
                          d->name, (long long)d->count, (long long)d->seen);
        for (int j = 0; j < i; j++)
            if (s->dim[j].name == d->name)
                return KU_ERR(KUMI_EINVAL,
                              "shape: %s: two dimensions are named %c; names are unique in a shape",
                              what, d->name);
        /* an empty dim is left out, so that the product of any of the dims is within the limit */
        if (__builtin_mul_overflow(total, d->count ? d->count : 1, &total) || total > (int64_t)1
                                                                                          << 48)
            return KU_ERR(KUMI_EINVAL, "shape: %s: more than 2^48 elements", what);
    }
    return KUMI_OK;
}

char *ku_shape_print(const struct ku_shape *s, char *out, size_t bytes)
{
    size_t at = 0;
    KU_ASSERT(bytes >= 3);
    at += (size_t)snprintf(out, bytes, "[");
    for (int i = 0; i < s->ndim && at < bytes; i++) {
        const struct ku_dim *d = &s->dim[i];
        at += (size_t)snprintf(out + at, bytes - at, "%s%c=%lld", i ? " " : "", d->name,
                               (long long)d->count);
        if (d->seen != d->count && at < bytes)
            at += (size_t)snprintf(out + at, bytes - at, ":%lld", (long long)d->seen);
    }
    if (at < bytes)
        snprintf(out + at, bytes - at, "]");
    return out;
}
