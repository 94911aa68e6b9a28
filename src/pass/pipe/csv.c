/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules as text: a row per rank, a cell per block. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "pass/pipe/block_schedule.h"

/* A number of at most six digits; -1: none. */
static int number(const char **p, const char *end)
{
    int x = 0, n = 0;
    for (; *p < end && **p >= '0' && **p <= '9' && n < 6; (*p)++, n++)
        x = 10 * x + (**p - '0');
    return n ? x : -1;
}

struct cell {
    const char *name; /* of the file */
    int row, column;  /* from 1 */
    const char *from, *to;
};

static int bad_cell(const struct cell *c)
{
    return KU_ERR(
        KUMI_EINVAL,
        "%s: row %d, cell %d: %.*s: a cell is a stage, one of F B I W, and a micro-batch, "
        "as 0F0, or several as (0F1;3B0)OVERLAP_F_B",
        c->name, c->row, c->column, c->to - c->from < 64 ? (int)(c->to - c->from) : 64, c->from);
}

/* The block in the characters from p to end. */
static int read_block(struct ku_pp_schedule *s, const struct cell *c, const char *p,
                      const char *end)
{
    const char *const from = p;
    const int stage = number(&p, end);
    const char *letter = p < end ? memchr("FBIW", *p, 4) : NULL;
    if (stage < 0 || letter == NULL)
        return bad_cell(c);
    const int kind = (int)(*letter == 'F'   ? KU_BL_F
                           : *letter == 'B' ? KU_BL_B
                           : *letter == 'I' ? KU_BL_I
                                            : KU_BL_W);
    p++;
    const int micro = number(&p, end);
    if (micro < 0 || p != end)
        return bad_cell(c);
    if (stage >= KU_MAX_STAGES)
        return KU_ERR(KUMI_EINVAL, "%s: row %d, cell %d: stage %d; at most %d stages", c->name,
                      c->row, c->column, stage, KU_MAX_STAGES);
    for (int k = s->n_stages; k <= stage; k++)
        s->rank_of[k] = -1;
    s->n_stages = stage + 1 > s->n_stages ? stage + 1 : s->n_stages;
    s->n_micro = micro + 1 > s->n_micro ? micro + 1 : s->n_micro;
    if (s->rank_of[stage] >= 0 && s->rank_of[stage] != c->row - 1)
        return KU_ERR(KUMI_EINVAL, "%s: row %d, cell %d: %.*s: stage %d is on row %d already",
                      c->name, c->row, c->column, (int)(end - from), from, stage,
                      s->rank_of[stage] + 1);
    s->rank_of[stage] = c->row - 1;
    KU_ASSERT(s->n_stages <= KU_MAX_STAGES && c->row <= s->n_ranks);
    s->column[s->first[c->row]] = c->column;
    s->block[s->first[c->row]++] = (struct ku_block){(uint8_t)kind, (int16_t)stage, micro};
    return KUMI_OK;
}

/* Several blocks as (0F1;3B0)OVERLAP_F_B: in PyTorch they may overlap, here they run in order. */
static int read_overlapped(struct ku_pp_schedule *s, const struct cell *c)
{
    static const char after[] = ")OVERLAP_F_B";
    const ptrdiff_t bytes = sizeof after - 1;
    const char *const to = c->to - bytes;
    if (c->to - c->from < bytes + 2 || memcmp(to, after, (size_t)bytes) != 0)
        return bad_cell(c);
    for (const char *p = c->from + 1; p <= to;) {
        const char *semicolon = memchr(p, ';', (size_t)(to - p));
        const char *const end = semicolon ? semicolon : to;
        KU_TRY(read_block(s, c, p, end));
        p = end + 1;
    }
    return KUMI_OK;
}

/* One cell; an empty one adds nothing. */
static int read_cell(struct ku_pp_schedule *s, const char *name, int row, int column, const char *p,
                     const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    while (end > p && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r'))
        end--;
    const struct cell c = {name, row, column, p, end};
    if (p == end)
        return KUMI_OK;
    return *p == '(' ? read_overlapped(s, &c) : read_block(s, &c, p, end);
}

static int read_rows(struct ku_pp_schedule *s, const char *name, const char *text, size_t bytes)
{
    const char *p = text, *const end = text + bytes;
    while (p < end) {
        const char *line = memchr(p, '\n', (size_t)(end - p));
        const char *const stop = line ? line : end;
        if (s->n_ranks == KU_MAX_PP)
            return KU_ERR(KUMI_EINVAL, "%s: more than %d rows", name, KU_MAX_PP);
        const int row = ++s->n_ranks;
        s->first[row] = s->first[row - 1];
        for (int column = 1; p <= stop; column++) {
            const char *comma = p < stop ? memchr(p, ',', (size_t)(stop - p)) : NULL;
            const char *const to = comma ? comma : stop;
            KU_TRY(read_cell(s, name, row, column, p, to));
            p = to + 1;
        }
        p = stop + 1;
    }
    for (int k = 0; k < s->n_stages; k++)
        if (s->rank_of[k] < 0)
            return KU_ERR(KUMI_EINVAL, "%s: stage %d is on no row", name, k);
    for (int r = 0; r < s->n_ranks; r++)
        if (s->first[r] == s->first[r + 1])
            return KU_ERR(KUMI_EINVAL, "%s: row %d has no block", name, r + 1);
    return s->n_ranks ? ku_pp_schedule_check(s, name) : KU_ERR(KUMI_EINVAL, "%s: no rows", name);
}

int ku_pp_schedule_parse(const char *name, const char *text, size_t bytes,
                         struct ku_pp_schedule **out)
{
    struct ku_pp_schedule *s = ku_calloc(1, sizeof *s);
    int status = s ? KUMI_OK : KUMI_ENOMEM;
    if (s) {
        s->rank_of = ku_calloc(KU_MAX_STAGES, sizeof *s->rank_of);
        s->first = ku_calloc(KU_MAX_PP + 1, sizeof *s->first);
        s->block = ku_calloc(bytes / 2 + 2, sizeof *s->block); /* a cell has 3 bytes or more */
        s->column = ku_calloc(bytes / 2 + 2, sizeof *s->column);
        status = s->rank_of && s->first && s->block && s->column ? read_rows(s, name, text, bytes)
                                                                 : KUMI_ENOMEM;
    }
    if (status < 0)
        ku_pp_schedule_destroy(s);
    else
        *out = s;
    return status;
}

int ku_pp_schedule_print(const struct ku_pp_schedule *s, struct ku_str *out)
{
    const struct ku_block_cost unit = {1, 1, 1, 0, NULL};
    double *begin = ku_calloc((size_t)s->first[s->n_ranks] + 1, sizeof *begin);
    if (begin == NULL)
        return KUMI_ENOMEM;
    double makespan = 0;
    const int status = ku_pp_schedule_run(s, &unit, begin, NULL, &makespan, NULL);
    if (status < 0) {
        ku_free(begin);
        return status;
    }
    KU_ASSERT(makespan > 0);
    for (int r = 0; r < s->n_ranks; r++) {
        double at = 0;
        for (uint32_t i = s->first[r]; i < s->first[r + 1]; i++) {
            const struct ku_block *b = &s->block[i];
            ku_str_add(out, "%s", i > s->first[r] ? "," : "");
            for (; at < begin[i]; at++)
                ku_str_add(out, ",");
            ku_str_add(out, "%d%c%d", b->stage, ku_block_letter(b->kind), b->micro);
            at += b->kind == KU_BL_B ? 2 : 1;
        }
        ku_str_add(out, "\n");
    }
    ku_free(begin);
    return out->failed ? KUMI_ENOMEM : KUMI_OK;
}

int ku_pp_schedule_read(const char *path, struct ku_pp_schedule **out)
{
    enum { MAX_BYTES = 16 << 20 };
    char *text;
    size_t bytes;
    if (ku_os_slurp(path, MAX_BYTES, &text, &bytes) < 0)
        return KU_ERR(ku_os_status(KUMI_EINPUT), "schedule: %s: %s", path, ku_os_why());
    const int status = ku_pp_schedule_parse(path, text, bytes, out);
    ku_free(text);
    return status;
}
