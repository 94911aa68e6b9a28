/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "base/utf8.h"

void ku_json_place(const char *text, const char *at, int *line, int *column)
{
    *line = *column = 1;
    for (const char *c = text; c < at; c++) {
        *column = *c == '\n' ? 1 : *column + ((*c & 0xc0) != 0x80); /* characters, not bytes */
        *line += *c == '\n';
    }
}

static int refuse(const char *name, const json_error_t *error, const struct ku_json *doc,
                  size_t bytes)
{
    int line = error->line < 1 ? 1 : error->line, column = error->column < 1 ? 1 : error->column;
    /* jansson reports no text if an allocation of its own failed */
    if (error->text[0] == '\0' || json_error_code(error) == json_error_out_of_memory)
        return KU_ERR(KUMI_ENOMEM, "json: %s: no memory", name);
    if (doc->origin && error->position > 0 && (size_t)error->position <= bytes)
        ku_json_place(doc->source, doc->source + doc->origin[error->position - 1], &line, &column);
    return KU_ERR(KUMI_EINVAL, "json: %s:%d:%d: %s", name, line, column, error->text);
}

/* The length of the number at p. *is_integer: it has neither a point nor an exponent. */
static size_t number_bytes(const char *p, const char *end, int *is_integer)
{
    size_t n = 0;
    for (*is_integer = 1; p + n < end; n++)
        if (p[n] == '.' || p[n] == 'e' || p[n] == 'E')
            *is_integer = 0;
        else if (p[n] != '+' && p[n] != '-' && (p[n] < '0' || p[n] > '9'))
            break;
    return n;
}

/*
 * Replaces integers of more than 18 digits in place by a real number of as many characters, with
 * the first digit and the exponent: 1000000000000000019 becomes "1e18" and blanks.
 */
static void shorten_integers(char *text, size_t bytes)
{
    enum { DIGITS_MAX = 18 }; /* below 2^63 */
    int in_string = 0;
    for (char *p = text, *end = text + bytes; p < end; p++) {
        if (*p == '"') {
            in_string = !in_string;
        } else if (in_string) {
            p += *p == '\\';
        } else if (*p >= '0' && *p <= '9') {
            int is_integer;
            const size_t n = number_bytes(p, end, &is_integer);
            if (is_integer && n > DIGITS_MAX && *p != '0') {
                const int used = snprintf(p + 1, n, "e%zu", n - 1);
                memset(p + 1 + used, ' ', n - 1 - (size_t)used);
            }
            p += n - 1;
        }
    }
}

/* Sets all of *doc but source and origin; on failure ku_json_fini is due. */
static int fill(const char *name, const char *text, size_t bytes, unsigned flags,
                struct ku_json *doc)
{
    const size_t nul = flags & KU_JSON_NUL ? JSON_ALLOW_NUL : 0;
    json_error_t error;
    doc->name = ku_strdup(name);
    doc->text = ku_malloc(bytes + 1);
    if (doc->name == NULL || doc->text == NULL)
        return KUMI_ENOMEM;
    memcpy(doc->text, text, bytes);
    doc->text[bytes] = '\0';
    doc->bytes = bytes;
    if (flags & KU_JSON_LONG_INTEGERS)
        shorten_integers(doc->text, bytes);
    doc->root = json_loadb(doc->text, bytes, JSON_REJECT_DUPLICATES | nul, &error);
    return doc->root ? KUMI_OK : refuse(name, &error, doc, bytes);
}

int ku_json_parse_from(const char *name, const char *text, size_t bytes, char *source,
                       uint32_t *origin, struct ku_json *doc)
{
    *doc = (struct ku_json){.source = source, .origin = origin};
    int status = fill(name, text, bytes, 0, doc);
    if (status < 0)
        ku_json_fini(doc);
    return status;
}

int ku_json_parse_with(const char *name, const char *text, size_t bytes, unsigned flags,
                       struct ku_json *doc)
{
    *doc = (struct ku_json){0};
    int status = fill(name, text, bytes, flags, doc);
    if (status < 0)
        ku_json_fini(doc);
    return status;
}

int ku_json_parse(const char *name, const char *text, size_t bytes, struct ku_json *doc)
{
    return ku_json_parse_with(name, text, bytes, 0, doc);
}

int ku_json_load_by(const char *path, size_t max_bytes, ku_json_parse_fn *parse,
                    struct ku_json *doc)
{
    char *text;
    size_t bytes;
    memset(doc, 0, sizeof *doc);
    if (ku_os_slurp(path, max_bytes, &text, &bytes) < 0)
        return KU_ERR(ku_os_status(KUMI_EINVAL), "json: %s: cannot be read: %s", path, ku_os_why());
    int status = parse(path, text, bytes, doc);
    ku_free(text);
    return status;
}

int ku_json_load(const char *path, size_t max_bytes, struct ku_json *doc)
{
    return ku_json_load_by(path, max_bytes, ku_json_parse, doc);
}

void ku_json_fini(struct ku_json *doc)
{
    json_decref(doc->root);
    ku_free(doc->name);
    ku_free(doc->text);
    ku_free(doc->source);
    ku_free(doc->origin);
    memset(doc, 0, sizeof *doc);
}

/* The scanner below runs on text that jansson has accepted, so it only has to find ends. */
static const char *skip_blank(const char *p)
{
    while (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r')
        p++;
    return p;
}

static const char *skip_string(const char *p)
{
    for (p++; *p && *p != '"'; p++)
        if (*p == '\\' && p[1])
            p++;
    return *p ? p + 1 : p;
}

static const char *skip_value(const char *p)
{
    int depth = 0;
    do {
        p = skip_blank(p);
        if (*p == '"') {
            p = skip_string(p);
        } else if (*p == '{' || *p == '[') {
            depth++;
            p++;
        } else if (*p == '}' || *p == ']') {
            depth--;
            p++;
        } else if (*p == ',' || *p == ':') {
            p++;
        } else {
            while (*p && !strchr(",:]} \t\r\n", *p))
                p++;
        }
    } while (depth > 0 && *p);
    return p;
}

/*
 * Reads one element of a path, a key or [index]. Returns the rest of the path.
 */
static const char *next_step(const char *path, char *key, size_t bytes, long *index)
{
    size_t n = 0;
    *index = -1;
    if (*path == '[') {
        char *end;
        *index = strtol(path + 1, &end, 10);
        path = *end == ']' ? end + 1 : end;
    } else {
        while (*path && *path != '.' && *path != '[') {
            if (n + 1 < bytes)
                key[n++] = *path;
            path++;
        }
    }
    key[n] = '\0';
    return *path == '.' ? path + 1 : path;
}

/*
 * Finds a member of the object or array that starts at p. Returns its value and sets *key_at, or
 * NULL.
 */
static const char *find_member(const char *p, const char *key, long index, const char **key_at)
{
    char open = *p++;
    for (long i = 0;; i++) {
        p = skip_blank(p);
        if (*p == '\0' || *p == '}' || *p == ']')
            return NULL;
        const char *name = p, *end = p;
        if (open == '{') {
            end = skip_string(p);
            p = skip_blank(end);
            p = skip_blank(p + 1); /* ':' */
        }
        int is_it = index >= 0 ? open == '[' && i == index
                               : open == '{' && (size_t)(end - name) == strlen(key) + 2 &&
                                     memcmp(name + 1, key, strlen(key)) == 0;
        *key_at = name;
        if (is_it)
            return p;
        p = skip_blank(skip_value(p));
        if (*p == ',')
            p++;
    }
}

void ku_json_where(const struct ku_json *doc, const char *path, int is_value, int *line,
                   int *column)
{
    char key[256];
    const char *p = skip_blank(doc->text), *key_at = p;
    *line = *column = 0;
    while (*path) {
        long index;
        path = next_step(path, key, sizeof key, &index);
        if (*p != '{' && *p != '[')
            return;
        p = find_member(p, key, index, &key_at);
        if (p == NULL)
            return;
    }
    const char *at = is_value ? p : key_at;
    if (doc->origin && at < doc->text + doc->bytes)
        ku_json_place(doc->source, doc->source + doc->origin[at - doc->text], line, column);
    else
        ku_json_place(doc->text, at, line, column);
}

json_t *ku_json_at(json_t *root, const char *path)
{
    char key[256];
    while (root && *path) {
        long index;
        path = next_step(path, key, sizeof key, &index);
        root = index >= 0 ? json_array_get(root, (size_t)index) : json_object_get(root, key);
    }
    return root;
}

int ku_json_set(json_t *root, const char *path, json_t *value)
{
    char key[256];
    const char *whole = path;
    while (1) {
        long index;
        path = next_step(path, key, sizeof key, &index);
        if (!json_is_object(root) || key[0] == '\0') {
            json_decref(value);
            return KU_ERR(KUMI_EINVAL, "json: %s: a part of this path is not an object", whole);
        }
        if (*path == '\0')
            return json_object_set_new(root, key, value) == 0
                       ? KUMI_OK
                       : KU_ERR(KUMI_ENOMEM, "json: %s: no memory", whole);
        json_t *child = json_object_get(root, key);
        if ((child == NULL || json_is_null(child)) &&
            json_object_set_new(root, key, child = json_object()) < 0) {
            json_decref(value);
            return KU_ERR(KUMI_ENOMEM, "json: %s: no memory", whole);
        }
        root = child;
    }
}

static int append(const char *data, size_t bytes, void *out)
{
    struct ku_str *text = out;
    ku_str_append(text, data, bytes);
    return text->failed ? -1 : 0;
}

/*
 * Writes at `to` a real number given in `bytes` characters, in the shortest form that reads back as
 * the same double and still is a real. Returns the end.
 */
static char *put_real(char *to, const char *from, size_t bytes)
{
    char given[40], text[40];
    if (bytes < sizeof given) {
        memcpy(given, from, bytes);
        given[bytes] = '\0';
        double x = ku_text_number(given, NULL);
        for (int digits = 1; digits < 17; digits++) {
            int n = ku_text_print(text, sizeof text, "%.*g", digits, x);
            if (ku_text_number(text, NULL) != x || (strchr(text, 'e') && !strchr(given, 'e')))
                continue;
            n += strpbrk(text, ".e") ? 0 : snprintf(text + n, sizeof text - (size_t)n, ".0");
            if ((size_t)n >= bytes)
                break;
            memcpy(to, text, (size_t)n);
            return to + n;
        }
    }
    memmove(to, from, bytes);
    return to + bytes;
}

/*
 * Shortens reals in place (0.10000000000000001 becomes 0.1). No number becomes longer.
 */
static void shorten_reals(struct ku_str *text)
{
    char *to = text->text;
    for (const char *p = text->text, *end = p + text->bytes; p < end;) {
        size_t n = 1;
        if (*p == '"') {
            for (; p + n < end && p[n] != '"'; n++)
                n += p[n] == '\\';
            n++;
        } else if (*p == '-' || (*p >= '0' && *p <= '9')) {
            int is_integer;
            n = number_bytes(p, end, &is_integer);
            if (!is_integer) {
                to = put_real(to, p, n);
                p += n;
                continue;
            }
        }
        memmove(to, p, n);
        to += n;
        p += n;
    }
    *to = '\0';
    text->bytes = (size_t)(to - text->text);
}

char *ku_json_print(const json_t *v, size_t flags)
{
    struct ku_str text = {0};
    if (v && json_dump_callback(v, append, &text, flags) == 0) {
        shorten_reals(&text);
        return text.text;
    }
    if (v && !text.failed)
        KU_ERR(KUMI_ENOMEM, "json: no memory to print a value");
    ku_str_fini(&text);
    return NULL;
}

int ku_json_int(const json_t *v, int64_t *out)
{
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return 0;
    }
    double x = json_is_real(v) ? json_real_value(v) : (double)NAN;
    if (!(fabs(x) <= 9007199254740992.0) || x != floor(x))
        return -1;
    *out = (int64_t)x;
    return 0;
}

json_t *ku_json_text(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    return json_stringn(text, ku_utf8_valid(at, at + strlen(text)));
}

int ku_text_json(json_t *value, char **text)
{
    char *printed = value ? ku_json_print(value, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) : NULL;
    struct ku_str out = {0};
    json_decref(value);
    ku_str_add(&out, "%s\n", printed ? printed : "");
    out.failed |= printed == NULL;
    ku_free(printed);
    return ku_text_take(&out, text);
}
