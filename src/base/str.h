/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_STR_H
#define KU_BASE_STR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * Growing string. After a failed append (no memory) the text is unchanged and `failed` is set;
 * check it once at the end.
 *
 *     struct ku_str s = {0};
 *     ku_str_add(&s, "%d ranks", n);
 *     ku_str_fini(&s);
 */
struct ku_str {
    char *text; /* NUL-terminated, or NULL while empty */
    size_t bytes, cap;
    int failed;
};
void ku_str_add(struct ku_str *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void ku_str_addv(struct ku_str *s, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));
void ku_str_append(struct ku_str *s, const void *data, size_t bytes);
const char *ku_str_get(const struct ku_str *s); /* never NULL */
void ku_str_fini(struct ku_str *s);
/*
 * Moves the finished string to *text (freed with kumi_text_free) and empties s. KUMI_ENOMEM if an
 * append failed.
 */
KU_STATUS ku_text_take(struct ku_str *s, char **text);
/*
 * snprintf, vsnprintf and strtod with a decimal point, as files, options and reports have it. Those
 * of the C library follow LC_NUMERIC, where the calling program may have set a decimal comma.
 * ku_str_add prints numbers likewise.
 */
int ku_text_print(char *out, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int ku_text_printv(char *out, size_t bytes, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));
double ku_text_number(const char *text, char **end);
/* Formats "9.65 MiB", right-aligned in 10 characters. */
const char *ku_text_bytes(uint64_t bytes, char out[16]);

/* Number of edits (insert, delete, replace, swap of neighbours) from a to b, for "did you mean". */
int ku_str_distance(const char *a, const char *b);
/* The nearest of n names, or NULL if more than a third of the characters differ in all of them. */
const char *ku_str_nearest(const char *word, const char *const *names, int n);
/* The index of a word in a list of words separated by single blanks; -1: it is not there. */
int ku_str_find_word(const char *words, const char *word);
/*
 * Glob match: '*' is any run of characters (dots included), '?' one character. Used for module
 * paths and for the patterns of train.freeze and optimizer.decay.
 */
bool ku_str_glob(const char *pattern, const char *text);

#endif
