/* SPDX-License-Identifier: Apache-2.0 */
#include "data/tokenizer/regex.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

struct ku_regex {
    pcre2_general_context *memory;
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *match;
    pcre2_jit_stack *stack;
};

/* The longest pattern in use has about 300 bytes. */
enum { PATTERN_BYTES_MAX = 4096, JIT_STACK_BYTES = 32 << 10, JIT_STACK_BYTES_MAX = 8 << 20 };

static void *pcre_malloc(size_t bytes, void *ctx)
{
    (void)ctx;
    return ku_malloc(bytes);
}

static void pcre_free(void *old, void *ctx)
{
    (void)ctx;
    ku_free(old);
}

static int refuse(const char *pattern, size_t at, const char *what)
{
    return KU_ERR(KUMI_EINPUT,
                  "regex '%s': character %zu: %s, which is not supported; rewrite the pattern",
                  pattern, at + 1, what);
}

/* Writes \xHH, \x{H..} or \uHHHH as PCRE2's \x{H..}. *at is the index of the x or u. */
static int rewrite_hex(const char *pattern, size_t *at, struct ku_str *out)
{
    static const char digits[] = "0123456789abcdefABCDEF";
    const char *p = pattern + *at + 1;
    int is_braced = pattern[*at] == 'x' && *p == '{';
    size_t n = strspn(p + is_braced, digits), most = pattern[*at] == 'u' ? 4 : is_braced ? 6 : 2;
    if (n > most && !is_braced)
        n = most;
    if (n == 0 || n > most || (pattern[*at] == 'u' && n < 4) || (is_braced && p[1 + n] != '}'))
        return refuse(pattern, *at, "an invalid code point");
    ku_str_add(out, "\\x{%.*s}", (int)n, p + is_braced);
    *at += n + (is_braced ? 2 : 0);
    return KUMI_OK;
}

/* *at is the index after the backslash; on return, the last character of the escape. */
static int rewrite_escape(const char *pattern, size_t *at, struct ku_str *out)
{
    char c = pattern[*at];
    size_t n;
    switch (c) {
    case 's':
    case 'S':
        ku_str_add(out, "\\%c{White_Space}", c == 's' ? 'p' : 'P');
        return KUMI_OK;
    case 'v':
        ku_str_add(out, "\\x{0b}");
        return KUMI_OK;
    case 'x':
    case 'u':
        return rewrite_hex(pattern, at, out);
    case 'p':
    case 'P':
        n = strcspn(pattern + *at, "}");
        if (pattern[*at + 1] != '{' || pattern[*at + n] != '}')
            return refuse(pattern, *at, "a property without braces");
        ku_str_add(out, "\\%.*s", (int)n + 1, pattern + *at);
        *at += n;
        return KUMI_OK;
    case 'd': /* Unicode class Nd in both engines */
    case 'D':
    case 'n':
    case 'r':
    case 't':
    case 'f':
        ku_str_add(out, "\\%c", c);
        return KUMI_OK;
    default:
        if (c == '\0' ||
            strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", c) ||
            (unsigned char)c >= 0x80)
            return refuse(pattern, *at, "an escape that differs between regex engines");
        ku_str_add(out, "\\%c", c);
        return KUMI_OK;
    }
}

/* Accepts only groups with the same meaning in both engines. */
static int check_group(const char *pattern, size_t at)
{
    const char *p = pattern + at + 1;
    if (*p == '*')
        return refuse(pattern, at, "a verb");
    if (*p != '?')
        return KUMI_OK;
    if (strncmp(p, "?i:", 3) == 0 || (p[1] && strchr(":=!>", p[1])))
        return KUMI_OK;
    return refuse(pattern, at, "a group other than (, (?:, (?i:, (?=, (?!, (?>");
}

static int rewrite(const char *pattern, struct ku_str *out)
{
    int in_class = 0;
    for (size_t i = 0; pattern[i]; i++) {
        char c = pattern[i];
        if (c == '\\') {
            i++;
            KU_TRY(rewrite_escape(pattern, &i, out));
            continue;
        }
        if (in_class && (c == '[' || (c == '&' && pattern[i + 1] == '&')))
            return refuse(pattern, i, "an operation on sets of characters");
        if (!in_class && (c == '^' || c == '$'))
            return refuse(pattern, i, "an anchor");
        if (!in_class && c == '(')
            KU_TRY(check_group(pattern, i));
        if (!in_class && c == '}' && pattern[i + 1] == '+')
            return refuse(pattern, i, "'}+' (repeated in Oniguruma, possessive in PCRE2)");
        if (!in_class && c == '{' && pattern[i + 1] == ',')
            return refuse(pattern, i, "an interval without a lower bound");
        ku_str_append(out, &c, 1);
        if (!in_class && c == '[') {
            in_class = 1;
            if (pattern[i + 1] == '^')
                ku_str_append(out, &pattern[++i], 1);
            if (pattern[i + 1] == ']')
                return refuse(pattern, i + 1,
                              "an empty set of characters, or a ']' without backslash");
        } else if (in_class && c == ']') {
            in_class = 0;
        }
    }
    return out->failed ? KUMI_ENOMEM : KUMI_OK;
}

static int compile(struct ku_regex *r, const char *pattern, const char *rewritten)
{
    int error;
    size_t at;
    pcre2_compile_context *ctx = pcre2_compile_context_create(r->memory);
    if (!ctx)
        return KUMI_ENOMEM;
    pcre2_set_newline(ctx, PCRE2_NEWLINE_LF); /* '.' excludes only \n in any build of PCRE2 */
    r->code = pcre2_compile((PCRE2_SPTR)rewritten, strlen(rewritten), PCRE2_UTF | PCRE2_UCP, &error,
                            &at, ctx);
    pcre2_compile_context_free(ctx);
    if (!r->code) {
        char why[160];
        if (error == PCRE2_ERROR_HEAP_FAILED)
            return KUMI_ENOMEM;
        if (pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why) < 0)
            why[0] = '\0';
        return KU_ERR(KUMI_EINPUT, "regex '%s': %s; correct the pattern", pattern, why);
    }
    uint32_t behind = 0, empty = 0;
    pcre2_pattern_info(r->code, PCRE2_INFO_MAXLOOKBEHIND, &behind);
    pcre2_pattern_info(r->code, PCRE2_INFO_MATCHEMPTY, &empty);
    if (behind > 0)
        return refuse(pattern, 0, "a lookbehind");
    if (empty)
        return refuse(pattern, 0, "a match of the empty string");
    return KUMI_OK;
}

int ku_regex_create(const char *pattern, struct ku_regex **out)
{
    struct ku_regex *r = NULL;
    struct ku_str rewritten = {0};
    int status;
    if (strlen(pattern) > PATTERN_BYTES_MAX)
        return KU_ERR(KUMI_EINPUT, "regex: %zu bytes; at most %d", strlen(pattern),
                      PATTERN_BYTES_MAX);
    KU_TRY_OUT(rewrite(pattern, &rewritten));
    status = KUMI_ENOMEM;
    r = ku_calloc(1, sizeof *r);
    if (!r || !(r->memory = pcre2_general_context_create(pcre_malloc, pcre_free, NULL)))
        goto out;
    KU_TRY_OUT(compile(r, pattern, ku_str_get(&rewritten)));
    status = KUMI_ENOMEM;
    r->data = pcre2_match_data_create_from_pattern(r->code, r->memory);
    r->match = pcre2_match_context_create(r->memory);
    if (!r->data || !r->match)
        goto out;
    /*
     * Without JIT support or permission for executable memory, matching falls back to the
     * interpreter.
     */
    if (pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0) {
        r->stack = pcre2_jit_stack_create(JIT_STACK_BYTES, JIT_STACK_BYTES_MAX, r->memory);
        if (!r->stack)
            goto out;
        pcre2_jit_stack_assign(r->match, NULL, r->stack);
    }
    *out = r;
    r = NULL;
    status = KUMI_OK;
out:
    ku_regex_destroy(r);
    ku_str_fini(&rewritten);
    return status;
}

void ku_regex_destroy(struct ku_regex *r)
{
    if (!r)
        return;
    pcre2_jit_stack_free(r->stack);
    pcre2_match_context_free(r->match);
    pcre2_match_data_free(r->data);
    pcre2_code_free(r->code);
    pcre2_general_context_free(r->memory);
    ku_free(r);
}

int ku_regex_match(struct ku_regex *r, const unsigned char *at, const unsigned char *end,
                   int is_last, struct ku_match *m)
{
    uint32_t options = PCRE2_NO_UTF_CHECK | (is_last ? 0 : PCRE2_PARTIAL_HARD);
    int n = pcre2_match(r->code, at, (size_t)(end - at), 0, options, r->data, r->match);
    if (n == PCRE2_ERROR_NOMATCH || n == PCRE2_ERROR_PARTIAL)
        return 0;
    if (n < 0) {
        char why[160];
        if (pcre2_get_error_message(n, (PCRE2_UCHAR *)why, sizeof why) < 0)
            why[0] = '\0';
        return KU_ERR(KUMI_EINPUT, "regex: in %zu bytes of text: %s; simplify the pattern",
                      (size_t)(end - at), why);
    }
    const size_t *range = pcre2_get_ovector_pointer(r->data);
    *m = (struct ku_match){.start = range[0], .stop = range[1], .group = n - 1};
    return 1;
}
