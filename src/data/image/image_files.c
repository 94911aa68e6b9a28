/* SPDX-License-Identifier: Apache-2.0 */
#include "data/image/store.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/math/search.h"
#include "data/input_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { FILES_MAX = 1 << 20, NAME_MAX_BYTES = 4096, BRACES_MAX = 16 };

void ku_files_fini(struct ku_files *f)
{
    for (uint32_t i = 0; i < f->n; i++)
        ku_free(f->name[i]);
    ku_free(f->name);
    *f = (struct ku_files){0};
}

int ku_files_add_name(struct ku_files *f, const char *name)
{
    if (f->n == FILES_MAX)
        return KU_ERR(KUMI_EINPUT, "data: %s: more than %d files; merge some", name, FILES_MAX);
    KU_TRY(KU_GROW(&f->name, f->n, &f->cap));
    f->name[f->n] = ku_strdup(name);
    if (!f->name[f->n])
        return KUMI_ENOMEM;
    f->n++;
    return KUMI_OK;
}

static int add_match(void *files, const char *name)
{
    return ku_files_add_name(files, name);
}

static int expand(struct ku_files *f, const char *pattern, int depth);

/* Expands the pattern with one choice in place of the braces [open, close]. */
static int expand_one(struct ku_files *f, const char *pattern, const char *open, const char *close,
                      const char *choice, size_t bytes, int depth)
{
    char name[NAME_MAX_BYTES];
    int n = snprintf(name, sizeof name, "%.*s%.*s%s", (int)(open - pattern), pattern, (int)bytes,
                     choice, close + 1);
    if (n < 0 || (size_t)n >= sizeof name)
        return KU_ERR(KUMI_EINPUT, "data: %.60s…: longer than %d bytes", pattern,
                      NAME_MAX_BYTES - 1);
    return expand(f, name, depth + 1);
}

/*
 * Parses "000..147" as bash and WebDataset do; *width is the width of the first number. Returns 1
 * if it is a range.
 */
static int parse_range(const char *open, const char *close, long *from, long *to, int *width)
{
    char *end, *stop;
    if (open[1] < '0' || open[1] > '9')
        return 0;
    *from = strtol(open + 1, &end, 10);
    *width = (int)(end - open - 1);
    if (*width > 9 || strncmp(end, "..", 2) != 0 || end[2] < '0' || end[2] > '9')
        return 0;
    *to = strtol(end + 2, &stop, 10);
    return stop == close && stop - end <= 11;
}

static int expand(struct ku_files *f, const char *pattern, int depth)
{
    const char *open = strchr(pattern, '{'), *close = open ? strchr(open, '}') : NULL;
    struct stat st;
    if (!close || ku_os_stat(pattern, &st) == 0)
        return ku_input_glob(pattern, add_match, f);
    long from, to;
    int width;
    if (depth == BRACES_MAX)
        return KU_ERR(KUMI_EINPUT, "data: %s: more than %d braces", pattern, BRACES_MAX);
    if (parse_range(open, close, &from, &to, &width)) {
        if (from > to || to - from >= FILES_MAX)
            return KU_ERR(KUMI_EINPUT, "data: %s: %ld to %ld; give ascending numbers, at most %d",
                          pattern, from, to, FILES_MAX);
        for (long i = from; i <= to; i++) {
            char number[32];
            int n = snprintf(number, sizeof number, "%0*ld", width, i);
            KU_TRY(expand_one(f, pattern, open, close, number, (size_t)n, depth));
        }
        return KUMI_OK;
    }
    for (const char *at = open + 1;; at++) {
        size_t n = strcspn(at, ",}");
        KU_TRY(expand_one(f, pattern, open, close, at, n, depth));
        at += n;
        if (*at == '}')
            return KUMI_OK;
    }
}

int ku_files_add(struct ku_files *f, const char *const *pattern, int n)
{
    for (int i = 0; i < n; i++)
        KU_TRY(expand(f, pattern[i], 0));
    return KUMI_OK;
}

bool ku_image_is_ending(const char *ending)
{
    return strcasecmp(ending, "jpg") == 0 || strcasecmp(ending, "jpeg") == 0 ||
           strcasecmp(ending, "png") == 0;
}

int ku_store_opened(struct ku_image_store *s, int status, struct ku_image_store **out)
{
    if (status < 0)
        s->ops->close(s);
    else
        *out = s;
    return status;
}

int ku_store_add(struct ku_image_store *s, const char *name, const char *what)
{
    KU_TRY(KU_GROW(&s->part, s->n_parts, &s->cap_parts));
    struct ku_image_part *p = &s->part[s->n_parts];
    KU_TRY(ku_file_open(name, what, &p->file));
    p->first = s->n;
    if (s->n_parts++ >= KU_OPEN_FILES_MAX)
        ku_file_park(&p->file);
    return KUMI_OK;
}

const struct ku_image_part *ku_store_part(const struct ku_image_store *s, int64_t i)
{
    return &s->part[ku_search(&s->part->first, sizeof *s->part, s->n_parts, i)];
}

int ku_store_read(const struct ku_image_store *s, int64_t i, size_t bytes,
                  struct ku_image_work *work)
{
    const struct ku_image_part *p = ku_store_part(s, i);
    KU_TRY(ku_scratch_need(&work->file, bytes));
    return ku_file_read(&p->file, p->at + (uint64_t)(i - p->first) * bytes, work->file.data, bytes,
                        work->why, sizeof work->why);
}

int ku_store_identify(const struct ku_image_store *s, struct ku_sha256 *h)
{
    for (uint32_t i = 0; i < s->n_parts; i++) {
        ku_sha256_u64(h, s->part[i].file.bytes);
        KU_TRY(ku_file_identify(&s->part[i].file, h));
    }
    return KUMI_OK;
}

void ku_store_close(struct ku_image_store *s)
{
    for (uint32_t i = 0; i < s->n_parts; i++)
        ku_file_close(&s->part[i].file);
    ku_free(s->part);
    ku_free(s);
}
