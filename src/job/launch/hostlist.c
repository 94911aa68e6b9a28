/* SPDX-License-Identifier: Apache-2.0 */
#include "job/launch/hostlist.h"

#include "base/mem.h"
#include "base/os/os.h"
#include "job/segment.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 4 << 20 };

/* A part of the text that is read, and where it stands, for messages. */
struct place {
    const char *path; /* NULL: -H */
    int line;
};

static int refuse(const struct place *p, const char *at, size_t bytes, const char *what)
{
    const int shown = bytes < 80 ? (int)bytes : 80;
    if (p->path)
        return KU_ERR(KUMI_EINVAL, "hosts: %s:%d: %.*s: %s", p->path, p->line, shown, at, what);
    return KU_ERR(KUMI_EINVAL, "hosts: -H: %.*s: %s", shown, at, what);
}

/* A number from 1 to max that is the whole of text[0, bytes). -1: it is none, or out of range. */
static int parse_slots(const char *text, size_t bytes, int max)
{
    int n = 0;
    if (bytes < 1 || bytes > 9)
        return -1;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -1;
        n = n * 10 + text[i] - '0';
    }
    return n >= 1 && n <= max ? n : -1;
}

/* Names go to a shell's command line: no blanks, no quotes, no options. */
static bool is_name(const char *at, size_t bytes, int is_address)
{
    for (size_t i = 0; i < bytes; i++)
        if (!isalnum((unsigned char)at[i]) && !strchr(is_address ? ":.%-_" : "@.-_", at[i]))
            return 0;
    return bytes > 0 && *at != '-' && memchr(at, '\0', bytes) == NULL;
}

static int add_host(struct ku_hostlist *list, const struct place *p, const char *at, size_t bytes,
                    int n)
{
    struct ku_slots *last = list->n ? &list->host[list->n - 1] : NULL;
    if (bytes >= KU_HOST_NAME_BYTES)
        return refuse(p, at, bytes, "a name has at most 63 bytes");
    if (last && strlen(last->name) == bytes && memcmp(last->name, at, bytes) == 0) {
        if (last->n + n > KU_MAX_LOCAL)
            return refuse(p, at, bytes, "more than 512 slots on one host");
        last->n += n;
    } else {
        if (list->n == KU_MAX_HOSTS)
            return refuse(p, at, bytes, "more than 16384 hosts");
        KU_TRY(KU_GROW(&list->host, list->n, &list->cap));
        last = &list->host[list->n++];
        memcpy(last->name, at, bytes);
        last->name[bytes] = '\0';
        last->n = n;
    }
    list->n_slots += n;
    return 0;
}

/* "slots=4 max_slots=8" after a host in a hostfile. */
static int parse_keys(const struct place *p, const char *at, size_t bytes, int *n)
{
    int max = KU_MAX_LOCAL;
    const char *first = at, *end = at + bytes;
    while (at < end) {
        const char *word = at;
        while (at < end && *at != ' ' && *at != '\t')
            at++;
        const size_t word_bytes = (size_t)(at - word);
        const char *eq = memchr(word, '=', word_bytes);
        const size_t key_bytes = eq ? (size_t)(eq - word) : word_bytes;
        const int is_slots = key_bytes == 5 && memcmp(word, "slots", 5) == 0;
        const int is_max = key_bytes == 9 &&
                           (memcmp(word, "max_slots", 9) == 0 || memcmp(word, "max-slots", 9) == 0);
        if (!is_slots && !is_max)
            return refuse(p, word, word_bytes, "unknown; write NAME slots=N [max_slots=M]");
        const int value =
            eq ? parse_slots(eq + 1, word_bytes - key_bytes - 1, is_slots ? KU_MAX_LOCAL : INT_MAX)
               : -1;
        if (value < 0)
            return refuse(p, word, word_bytes,
                          is_slots ? "give a number from 1 to 512"
                                   : "give a number from 1 to 999999999");
        if (is_slots)
            *n = value;
        else
            max = value;
        while (at < end && (*at == ' ' || *at == '\t'))
            at++;
    }
    return *n <= max ? 0 : refuse(p, first, bytes, "more slots than max_slots");
}

/* One host: NAME, NAME:N or [ADDRESS]:N, in a file with keys after it. */
static int parse_host(struct ku_hostlist *list, const struct place *p, const char *at, size_t bytes)
{
    const char *end = at + bytes, *name = at, *name_end;
    const int is_address = bytes > 0 && *at == '[';
    int n = 1;
    if (is_address) {
        name_end = memchr(++name, ']', bytes - 1);
        if (name_end == NULL)
            return refuse(p, at, bytes, "a bracket is not closed");
        at = name_end + 1;
    } else {
        while (at < end && *at != ':' && *at != ' ' && *at != '\t')
            at++;
        name_end = at;
    }
    if (!is_name(name, (size_t)(name_end - name), is_address))
        return refuse(p, name, (size_t)(end - name), "not a host; write NAME, NAME:N or [IPv6]:N");
    if (at < end && *at == ':') {
        const char *number = ++at;
        while (at < end && *at != ' ' && *at != '\t')
            at++;
        if (memchr(number, ':', (size_t)(at - number)))
            return refuse(p, name, (size_t)(end - name),
                          "an IPv6 address stands in brackets, as in [fe80::1]:4");
        if ((n = parse_slots(number, (size_t)(at - number), KU_MAX_LOCAL)) < 0)
            return refuse(p, name, (size_t)(end - name), "give a number of slots from 1 to 512");
    } else if (at < end && *at != ' ' && *at != '\t') {
        return refuse(p, name - 1, (size_t)(end - name + 1), "write [ADDRESS]:N");
    }
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    if (at < end && p->path == NULL)
        return refuse(p, name, (size_t)(end - name), "a blank; write NAME:N,NAME:N");
    KU_TRY(parse_keys(p, at, (size_t)(end - at), &n));
    return add_host(list, p, name, (size_t)(name_end - name), n);
}

int ku_hostlist_add(struct ku_hostlist *list, const char *text)
{
    const struct place place = {0};
    for (;;) {
        size_t bytes = strcspn(text, ",");
        KU_TRY(parse_host(list, &place, text, bytes));
        text += bytes;
        if (*text == '\0')
            return 0;
        text++;
    }
}

int ku_hostlist_add_lines(struct ku_hostlist *list, const char *path, const char *text,
                          size_t bytes)
{
    struct place place = {path, 0};
    const char *end = text + bytes;
    while (text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        const char *stop = newline ? newline : end, *next = newline ? newline + 1 : end;
        const char *comment = memchr(text, '#', (size_t)(stop - text));
        place.line++;
        if (comment)
            stop = comment;
        while (stop > text && strchr(" \t\r", stop[-1]) && stop[-1])
            stop--;
        while (text < stop && (*text == ' ' || *text == '\t'))
            text++;
        if (text < stop)
            KU_TRY(parse_host(list, &place, text, (size_t)(stop - text)));
        text = next;
    }
    return 0;
}

int ku_hostlist_read(struct ku_hostlist *list, const char *path)
{
    char *text;
    size_t bytes;
    if (ku_os_slurp(path, FILE_BYTES_MAX, &text, &bytes) < 0)
        return KU_ERR(ku_os_status(KUMI_EINPUT), "hosts: %s: %s; give a file with a host per line",
                      path, ku_os_why());
    int status = ku_hostlist_add_lines(list, path, text, bytes);
    ku_free(text);
    return status;
}

static int compare(const void *a, const void *b)
{
    const struct ku_slots *const *x = a, *const *y = b;
    const int order = strcmp((*x)->name, (*y)->name);
    return order ? order : (*x > *y) - (*x < *y);
}

static int check_unique(const struct ku_hostlist *list)
{
    const struct ku_slots **sorted = ku_malloc(list->n * sizeof(const struct ku_slots *));
    int status = 0;
    if (!sorted)
        return KUMI_ENOMEM;
    for (uint32_t i = 0; i < list->n; i++)
        sorted[i] = &list->host[i];
    qsort(sorted, list->n, sizeof *sorted, compare);
    for (uint32_t i = 1; i < list->n && !status; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            status =
                KU_ERR(KUMI_EINVAL,
                       "hosts: %s stands at places %td and %td, with others between; ranks "
                       "are numbered host by host: give its slots at one place",
                       sorted[i]->name, sorted[i - 1] - list->host + 1, sorted[i] - list->host + 1);
    ku_free(sorted);
    return status;
}

int ku_hostlist_fill(struct ku_hostlist *list, int64_t n)
{
    if (list->n == 0)
        return KU_ERR(KUMI_EINVAL, "hosts: none; write -H NAME:N,NAME:N, or a host per line");
    KU_TRY(check_unique(list));
    if (n > list->n_slots)
        return KU_ERR(KUMI_EINVAL,
                      "rank count: -n: %lld, but the %u hosts have %lld slots; give fewer ranks or "
                      "more slots",
                      (long long)n, list->n, (long long)list->n_slots);
    if (n == 0)
        return 0;
    list->n_slots = n;
    for (uint32_t i = 0; i < list->n; i++) {
        if (list->host[i].n > n)
            list->host[i].n = (int)n;
        n -= list->host[i].n;
        if (n == 0)
            list->n = i + 1;
    }
    return 0;
}

int ku_hostlist_open(struct ku_hostlist *list, const char *hosts, const char *hostfile, int64_t n)
{
    if (!hosts == !hostfile)
        return KU_ERR(KUMI_EINVAL, "hosts: give either -H or --hostfile");
    KU_TRY(hosts ? ku_hostlist_add(list, hosts) : ku_hostlist_read(list, hostfile));
    return ku_hostlist_fill(list, n);
}

int ku_hostlist_divisor(const struct ku_hostlist *list, bool *is_even)
{
    int divisor = 0;
    for (uint32_t h = 0; h < list->n && list->n > 1; h++)
        for (int n = list->host[h].n; n;) {
            const int rest = divisor % n;
            divisor = n;
            n = rest;
        }
    *is_even = list->n <= 1 || (int64_t)divisor * list->n == list->n_slots;
    return divisor;
}

void ku_hostlist_fini(struct ku_hostlist *list)
{
    ku_free(list->host);
    *list = (struct ku_hostlist){0};
}
