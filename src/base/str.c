/* SPDX-License-Identifier: Apache-2.0 */
#include "base/str.h"

#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

/* Created once, constant afterwards. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t c_locale;

static void create_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/*
 * Gives this thread the C locale until uselocale() of the result. Without memory for a locale
 * nothing changes.
 */
static locale_t enter_c_locale(void)
{
    const int saved = errno; /* a format may have %m */
    pthread_once(&once, create_locale);
    const locale_t before = uselocale(c_locale);
    errno = saved;
    return before;
}

int ku_text_printv(char *out, size_t bytes, const char *format, va_list args)
{
    const locale_t before = enter_c_locale();
    const int n = vsnprintf(out, bytes, format, args);
    uselocale(before);
    return n;
}

int ku_text_print(char *out, size_t bytes, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int n = ku_text_printv(out, bytes, format, args);
    va_end(args);
    return n;
}

double ku_text_number(const char *text, char **end)
{
    const locale_t before = enter_c_locale();
    const double x = strtod(text, end);
    uselocale(before);
    return x;
}

static int make_room(struct ku_str *s, size_t more)
{
    size_t wanted;
    if (s->failed)
        return 0;
    if (ku_add_size(s->bytes + 1, more, &wanted) < 0) {
        s->failed = 1;
        return 0;
    }
    if (wanted <= s->cap)
        return 1;
    size_t cap = s->cap < 128 ? 256 : s->cap > SIZE_MAX / 2 ? wanted : s->cap * 2;
    if (cap < wanted)
        cap = wanted;
    char *text = ku_realloc(s->text, cap, 1);
    if (text == NULL) {
        s->failed = 1;
        return 0;
    }
    s->text = text;
    s->cap = cap;
    return 1;
}

void ku_str_append(struct ku_str *s, const void *data, size_t bytes)
{
    if (!make_room(s, bytes))
        return;
    memcpy(s->text + s->bytes, data, bytes);
    s->bytes += bytes;
    s->text[s->bytes] = '\0';
}

void ku_str_addv(struct ku_str *s, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int bytes = ku_text_printv(NULL, 0, format, args);
    if (bytes < 0)
        s->failed = 1;
    else if (make_room(s, (size_t)bytes)) {
        ku_text_printv(s->text + s->bytes, (size_t)bytes + 1, format, again);
        s->bytes += (size_t)bytes;
    }
    va_end(again);
}

void ku_str_add(struct ku_str *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    ku_str_addv(s, format, args);
    va_end(args);
}

const char *ku_str_get(const struct ku_str *s)
{
    return s->text ? s->text : "";
}

void ku_str_fini(struct ku_str *s)
{
    ku_free(s->text);
    *s = (struct ku_str){0};
}

/* Damerau-Levenshtein (optimal string alignment) over three rows. */
int ku_str_distance(const char *a, const char *b)
{
    enum { MOST = 128 };
    int row[3][MOST + 1];
    size_t n = strlen(a), m = strlen(b);
    if (n > MOST || m > MOST)
        return MOST;
    for (size_t j = 0; j <= m; j++)
        row[0][j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int *now = row[i % 3], *before = row[(i + 2) % 3], *second = row[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int best = before[j - 1] + (a[i - 1] != b[j - 1]);
            if (before[j] + 1 < best)
                best = before[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                second[j - 2] + 1 < best)
                best = second[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[n % 3][m];
}

const char *ku_str_nearest(const char *word, const char *const *names, int n)
{
    const char *best = NULL;
    int least = (int)strlen(word) / 3;
    least = least < 1 ? 1 : least;
    for (int i = 0; i < n; i++) {
        int d = ku_str_distance(word, names[i]);
        if (d <= least && (best == NULL || d < least)) {
            least = d;
            best = names[i];
        }
    }
    return best;
}

int ku_str_find_word(const char *words, const char *word)
{
    const size_t bytes = strlen(word);
    int i = 0;
    for (const char *p = words; *p; i++) {
        const size_t n = strcspn(p, " ");
        if (n == bytes && memcmp(p, word, n) == 0)
            return i;
        p += n + (p[n] == ' ');
    }
    return -1;
}

bool ku_str_glob(const char *pattern, const char *text)
{
    const char *star = NULL, *again = NULL;
    while (*text) {
        if (*pattern == '*') {
            star = ++pattern;
            again = text;
        } else if (*pattern == '?' || *pattern == *text) {
            pattern++;
            text++;
        } else if (star) {
            pattern = star;
            text = ++again;
        } else {
            return 0;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == '\0';
}

int ku_text_take(struct ku_str *s, char **text)
{
    ku_str_append(s, "", 0); /* an empty string is a valid result */
    if (s->failed) {
        ku_str_fini(s);
        return KU_ERR(KUMI_ENOMEM, "memory: the output could not be allocated");
    }
    *text = s->text;
    *s = (struct ku_str){0};
    return KUMI_OK;
}

const char *ku_text_bytes(uint64_t bytes, char out[16])
{
    static const char *const unit[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double x = (double)bytes / 1024;
    int u = 0;
    while (x >= 999.995 && u < 5) {
        x /= 1024;
        u++;
    }
    if (bytes < 1024)
        snprintf(out, 16, "%8u B", (unsigned)bytes);
    else
        ku_text_print(out, 16, "%6.2f %s", x, unit[u]);
    return out;
}
