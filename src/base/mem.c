/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"

static void *checked(void *at, size_t bytes)
{
    if (at == NULL)
        KU_ERR(KUMI_ENOMEM, "memory: %zu bytes could not be allocated", bytes);
    return at;
}

void *ku_malloc(size_t bytes)
{
    return checked(ku_fault_is_due(KU_FAULT_MEM) ? NULL : malloc(bytes ? bytes : 1), bytes);
}

void *ku_calloc(size_t count, size_t bytes)
{
    size_t total = 0;
    if (ku_mul_size(count, bytes, &total) < 0)
        return NULL;
    return checked(ku_fault_is_due(KU_FAULT_MEM) ? NULL : calloc(1, total ? total : 1), total);
}

void *ku_realloc(void *old, size_t count, size_t bytes)
{
    size_t total = 0;
    if (ku_mul_size(count, bytes, &total) < 0)
        return NULL;
    return checked(ku_fault_is_due(KU_FAULT_MEM) ? NULL : realloc(old, total ? total : 1), total);
}

void *ku_malloc_aligned(size_t align, size_t bytes)
{
    void *at = NULL;
    if (ku_fault_is_due(KU_FAULT_MEM) || posix_memalign(&at, align, bytes ? bytes : 1) != 0)
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
    char *text = NULL;
    if (bytes < 0)
        KU_ERR(KUMI_ENOMEM, "memory: a string of more than 2 GiB");
    else
        text = ku_malloc((size_t)bytes + 1);
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
