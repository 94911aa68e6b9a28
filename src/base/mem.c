/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* KUMI_FAULT=mem:N: the N-th allocation of the process fails. */
static atomic_long fault_in; /* 0 = not read yet, LONG_MAX-like = never */

static int is_faulted(void)
{
    long left = atomic_load(&fault_in);
    if (left == 0) {
        const char *text = getenv("KUMI_FAULT");
        long n = text && strncmp(text, "mem:", 4) == 0 ? strtol(text + 4, NULL, 10) : 0;
        long zero = 0;
        atomic_compare_exchange_strong(&fault_in, &zero, n > 0 ? n + 1 : -1);
        left = atomic_load(&fault_in);
    }
    return left > 0 && atomic_fetch_sub(&fault_in, 1) == 2;
}

static void *checked(void *at, size_t bytes)
{
    if (at == NULL)
        KU_ERR(KUMI_ENOMEM, "memory: %zu bytes could not be allocated", bytes);
    return at;
}

void *ku_malloc(size_t bytes)
{
    return checked(is_faulted() ? NULL : malloc(bytes ? bytes : 1), bytes);
}

void *ku_calloc(size_t count, size_t bytes)
{
    size_t total = 0;
    if (ku_mul_size(count, bytes, &total) < 0)
        return NULL;
    return checked(is_faulted() ? NULL : calloc(1, total ? total : 1), total);
}

void *ku_realloc(void *old, size_t count, size_t bytes)
{
    size_t total = 0;
    if (ku_mul_size(count, bytes, &total) < 0)
        return NULL;
    return checked(is_faulted() ? NULL : realloc(old, total ? total : 1), total);
}

void *ku_malloc_aligned(size_t align, size_t bytes)
{
    void *at = NULL;
    if (is_faulted() || posix_memalign(&at, align, bytes ? bytes : 1) != 0)
        at = NULL;
    return checked(at, bytes);
}

char *ku_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = ku_malloc(bytes);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

char *ku_asprintf(const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int bytes = vsnprintf(NULL, 0, format, args);
    char *text = bytes < 0 ? NULL : ku_malloc((size_t)bytes + 1);
    if (text)
        vsnprintf(text, (size_t)bytes + 1, format, again);
    va_end(again);
    va_end(args);
    return text;
}

void ku_free(void *old)
{
    free(old);
}

int ku_grow(void **array, size_t bytes_each, uint32_t count, uint32_t more, uint32_t *cap)
{
    if (more > UINT32_MAX - count)
        return KU_ERR(KUMI_ENOMEM, "memory: more than 2^32 elements");
    if (count + more <= *cap)
        return KUMI_OK;
    uint32_t wanted = *cap < 16 ? 16 : *cap > UINT32_MAX / 2 ? UINT32_MAX : *cap * 2;
    if (wanted < count + more)
        wanted = count + more;
    void *grown = ku_realloc(*array, wanted, bytes_each);
    if (grown == NULL)
        return KUMI_ENOMEM;
    memset((char *)grown + (size_t)*cap * bytes_each, 0, (size_t)(wanted - *cap) * bytes_each);
    *array = grown;
    *cap = wanted;
    return KUMI_OK;
}

int ku_mul_size(size_t a, size_t b, size_t *out)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return KU_ERR(KUMI_ENOMEM, "memory: size overflow: %zu x %zu bytes", a, b);
    *out = product;
    return KUMI_OK;
}

int ku_add_size(size_t a, size_t b, size_t *out)
{
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return KU_ERR(KUMI_ENOMEM, "memory: size overflow: %zu + %zu bytes", a, b);
    *out = sum;
    return KUMI_OK;
}
