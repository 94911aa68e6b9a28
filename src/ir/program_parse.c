/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses the text of a program (ir/program_text.h), line by line, in one pass over a copy in which
 * line feeds are NUL. Equal shapes, placements, attributes and names get one id. What follows from
 * other lines (the fields of waits, `of` of state) is set at the end.
 *
 * Limits: 256 MiB of text; 2^22 lines, buffers, operands and handles; addresses below 2^60.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "ir/program_text.h"
#include "tensor/dtype.h"

enum { MAX_TEXT_BYTES = 256 << 20, MAX_COUNT = 1 << 22 };
#define MAX_BYTES (UINT64_C(1) << 60)

/* A hash table of the elements of one array: slot = id + 1. */
struct table {
    uint32_t *slot, n_slots, cap;
};
struct type {
    ku_id shape, layout; /* 0: not stated */
    int32_t first_block;
};
struct reader {
    const char *name;
    int line;
    char *start, *p; /* the line, and the position in it */
    struct ku_program *g;
    struct table shapes, layouts, attrs, names;
    struct type *type; /* per buffer */
    struct ku_operand *result;
    bool has_header;    /* the first line that is no comment was read */
    uint32_t *state_of; /* per state: the name id of its parameter; 0: none */
    uint32_t cap_type, cap_result, cap_state, cap_state_of, cap_input, cap_output, cap_name;
};

static int bad(const struct reader *r, const char *what)
{
    return KU_ERR(KUMI_EINVAL, "program text: %.100s:%d:%d: %.200s, at '%.40s'", r->name, r->line,
                  (int)(r->p - r->start) + 1, what, r->p);
}

static int as_bad(const struct reader *r)
{
    char text[200];
    if (ku_err_get()->status == KUMI_ENOMEM)
        return KUMI_ENOMEM;
    snprintf(text, sizeof text, "%.199s", ku_err_get()->text);
    return bad(r, text);
}

static int skip(struct reader *r, const char *text)
{
    const size_t bytes = strlen(text);
    if (strncmp(r->p, text, bytes) != 0)
        return 0;
    r->p += bytes;
    return 1;
}

static void blank(struct reader *r)
{
    while (*r->p == ' ')
        r->p++;
}

static int number(struct reader *r, uint64_t max, uint64_t *out)
{
    uint64_t x = *out = 0;
    if (*r->p < '0' || *r->p > '9')
        return bad(r, "a number is missing");
    for (; *r->p >= '0' && *r->p <= '9'; r->p++)
        if (__builtin_mul_overflow(x, 10, &x) ||
            __builtin_add_overflow(x, (uint64_t)(*r->p - '0'), &x) || x > max)
            return bad(r, "the number is too large");
    *out = x;
    return KUMI_OK;
}

/* Reads characters up to a blank or one of `ends`. */
static int word(struct reader *r, const char *ends, char *out, size_t bytes)
{
    size_t n = 0;
    for (; *r->p && *r->p != ' ' && !strchr(ends, *r->p); r->p++) {
        if (n + 1 >= bytes)
            return bad(r, "a word is too long");
        out[n++] = *r->p;
    }
    out[n] = '\0';
    return n ? KUMI_OK : bad(r, "a word is missing");
}

/* The index of the word in `name(0 ..)`, below n. */
static int one_of(struct reader *r, const char *ends, const char *(*name)(int), int n,
                  const char *what, int *out)
{
    char text[32], *before = r->p;
    KU_TRY(word(r, ends, text, sizeof text));
    for (*out = 0; *out < n; ++*out)
        if (strcmp(name(*out), text) == 0)
            return KUMI_OK;
    r->p = before;
    return bad(r, what);
}

static const char *dtype_name(int dtype)
{
    return kumi_dtype_name((enum kumi_dtype)dtype);
}

static int dtype(struct reader *r, int *out)
{
    return one_of(r, "[()", dtype_name, KUMI_N_DTYPES, "no such dtype", out);
}

/* The slot of an element: the one that `is_same` accepts, or a free one. */
static int find_slot(struct table *t, uint64_t hash, const void *array, const void *x,
                     int (*is_same)(const void *array, uint32_t id, const void *x), uint32_t *at)
{
    KU_ASSERT(t->cap > 0);
    *at = (uint32_t)hash & (t->cap - 1);
    for (; t->slot[*at]; *at = (*at + 1) & (t->cap - 1))
        if (is_same(array, t->slot[*at] - 1, x))
            return 1;
    return 0;
}

static int is_same_shape(const void *array, uint32_t id, const void *x)
{
    return memcmp((const struct ku_shape *)array + id, x, sizeof(struct ku_shape)) == 0;
}
static int is_same_layout(const void *array, uint32_t id, const void *x)
{
    return memcmp((const struct ku_layout *)array + id, x, sizeof(struct ku_layout)) == 0;
}
static int is_same_attrs(const void *array, uint32_t id, const void *x)
{
    return memcmp((const struct ku_attrs *)array + id, x, sizeof(struct ku_attrs)) == 0;
}
static int is_same_name(const void *array, uint32_t id, const void *x)
{
    return strcmp(((char *const *)array)[id], x) == 0;
}

/* Doubles a table that is half full. hash_of: of an element of the array. */
static int grow_table(struct table *t, const void *array, size_t bytes_each, int is_text)
{
    const uint32_t cap = t->cap ? 2 * t->cap : 64;
    if (t->cap && 2 * t->n_slots < t->cap)
        return KUMI_OK;
    uint32_t *grown = ku_calloc(cap, sizeof *grown);
    if (grown == NULL)
        return KUMI_ENOMEM;
    for (uint32_t i = 0; i < t->cap; i++) {
        if (t->slot[i] == 0)
            continue;
        const char *x = (const char *)array + (t->slot[i] - 1) * bytes_each;
        const char *text = is_text ? *(char *const *)(const void *)x : x;
        uint32_t at = (uint32_t)ku_hash64(text, is_text ? strlen(text) : bytes_each) & (cap - 1);
        while (grown[at])
            at = (at + 1) & (cap - 1);
        grown[at] = t->slot[i];
    }
    ku_free(t->slot);
    t->slot = grown;
    t->cap = cap;
    return KUMI_OK;
}

/* Interns an element of fixed size; ids begin at 1. */
#define INTERN(r, table, array, n, x, same, out)                                                   \
    intern((r), (table), (void **)(array), (n), sizeof **(array), (x), (same), (out))
static int intern(struct reader *r, struct table *t, void **array, uint32_t *n, size_t bytes_each,
                  const void *x, int (*same)(const void *, uint32_t, const void *), ku_id *out)
{
    uint32_t at;
    if (*n >= MAX_COUNT)
        return bad(r, "too many different shapes, placements or attributes");
    KU_TRY(grow_table(t, *array, bytes_each, 0));
    if (find_slot(t, ku_hash64(x, bytes_each), *array, x, same, &at)) {
        *out = t->slot[at] - 1;
        return KUMI_OK;
    }
    if (*n == 0 || (*n & (*n - 1)) == 0) { /* capacities are powers of two */
        void *grown = ku_realloc(*array, *n ? 2 * (size_t)*n : 1, bytes_each);
        if (grown == NULL)
            return KUMI_ENOMEM;
        *array = grown;
    }
    memcpy((char *)*array + *n * bytes_each, x, bytes_each);
    *out = (*n)++;
    t->slot[at] = *out + 1;
    t->n_slots++;
    KU_ASSERT(t->n_slots < t->cap); /* a search ends at a free slot */
    return KUMI_OK;
}

static int intern_name(struct reader *r, const char *text, ku_id *out)
{
    struct ku_program *g = r->g;
    uint32_t at;
    KU_TRY(grow_table(&r->names, g->name_of, sizeof *g->name_of, 1));
    if (find_slot(&r->names, ku_hash64(text, strlen(text)), g->name_of, text, is_same_name, &at)) {
        *out = r->names.slot[at] - 1;
        return KUMI_OK;
    }
    KU_TRY(KU_GROW(&g->name_of, g->n_names, &r->cap_name));
    g->name_of[g->n_names] = ku_strdup(text);
    if (g->name_of[g->n_names] == NULL)
        return KUMI_ENOMEM;
    *out = g->n_names++;
    r->names.slot[at] = *out + 1;
    r->names.n_slots++;
    return KUMI_OK;
}

static int hex_digit(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* A name, which may be empty. */
static int name(struct reader *r, ku_id *out)
{
    char text[KU_NAME_BYTES];
    size_t n = 0;
    for (; *r->p > ' ' && *r->p <= '~' && (*r->p == '\\' || !strchr(KU_NAME_ENDS, *r->p)); r->p++) {
        char c = *r->p;
        if (n + 1 >= sizeof text)
            return bad(r, "the name is too long");
        if (c == '\\') {
            int high = r->p[1] == 'x' ? hex_digit(r->p[2]) : -1;
            int low = high >= 0 ? hex_digit(r->p[3]) : -1;
            if (low < 0 || high + low == 0)
                return bad(r, "a backslash must begin \\xHH");
            c = (char)(high * 16 + low);
            r->p += 3;
        }
        text[n++] = c;
    }
    text[n] = '\0';
    return intern_name(r, text, out);
}

static int shape(struct reader *r, ku_id *out)
{
    struct ku_shape s;
    uint64_t x;
    memset(&s, 0, sizeof s); /* padding too: shapes are compared as bytes */
    if (!skip(r, "["))
        return bad(r, "a shape is missing");
    while (!skip(r, "]")) {
        blank(r);
        if (s.ndim == KU_MAX_DIMS || r->p[0] == '\0' || r->p[1] != '=')
            return bad(r, "a dimension must be name=count");
        struct ku_dim *d = &s.dim[s.ndim++];
        d->name = *r->p;
        r->p += 2;
        KU_TRY(number(r, INT64_MAX, &x));
        d->count = d->seen = (int64_t)x;
        if (skip(r, ":")) {
            KU_TRY(number(r, INT64_MAX, &x));
            d->seen = (int64_t)x;
        }
    }
    if (ku_shape_check(&s, "text") < 0)
        return as_bad(r);
    return INTERN(r, &r->shapes, &r->g->shape, &r->g->n_shapes, &s, is_same_shape, out);
}

static int place(struct reader *r, const struct ku_shape *s, struct ku_place *at)
{
    static const char kinds[] = "CRPSZ";
    const char *kind = *r->p ? strchr(kinds, *r->p) : NULL;
    uint64_t group = 0;
    if (kind == NULL)
        return bad(r, "a placement must be axis:C, R, P, Z or S(dim)");
    r->p++;
    *at = (struct ku_place){.kind = (uint16_t)(kind - kinds)};
    if (at->kind == KU_Z && skip(r, "(")) {
        KU_TRY(number(r, UINT16_MAX, &group));
        at->dim = (uint16_t)group;
        return group && skip(r, ")") ? KUMI_OK : bad(r, "Z(g) needs a group size g from 1 on");
    }
    if (at->kind != KU_S)
        return KUMI_OK;
    int dim = r->p[0] == '(' && r->p[1] && r->p[2] == ')' ? ku_shape_find(s, r->p[1]) : -1;
    if (dim < 0)
        return bad(r, "S(dim): the shape has no such dimension");
    at->dim = (uint16_t)dim;
    r->p += 3;
    return KUMI_OK;
}

static int layout(struct reader *r, ku_id of, ku_id *out)
{
    struct ku_layout l = ku_layout_all(KU_C);
    char axis[16];
    if (!skip(r, "{"))
        return bad(r, "a placement is missing");
    for (blank(r); !skip(r, "}"); blank(r)) {
        KU_TRY(word(r, ":}", axis, sizeof axis));
        int a = ku_axis_parse(axis);
        if (a < 0 || !skip(r, ":"))
            return bad(r, "a placement must be axis:C, R, P, Z or S(dim)");
        KU_TRY(place(r, &r->g->shape[of], &l.at[a]));
    }
    return INTERN(r, &r->layouts, &r->g->layout, &r->g->n_layouts, &l, is_same_layout, out);
}

/* b7, or with is_named b7:up@0, the name of which must be that of the buffer. */
static int buffer(struct reader *r, int is_named, ku_id *out)
{
    uint64_t id, micro = 0;
    if (!skip(r, "b"))
        return bad(r, "a buffer (b1 ..) is missing");
    KU_TRY(number(r, MAX_COUNT, &id));
    if (id == 0 || id >= r->g->n_buffers)
        return bad(r, "no buffer line has this number");
    const struct ku_buffer *b = &r->g->buffer[id];
    *out = (ku_id)id;
    if (!is_named)
        return KUMI_OK;
    ku_id text = 1;
    if (skip(r, ":"))
        KU_TRY(name(r, &text));
    if (skip(r, "@"))
        KU_TRY(number(r, INT32_MAX, &micro));
    else
        micro = UINT64_MAX;
    if (text != b->name || (int64_t)micro != b->micro)
        return bad(r, "the buffer has another name");
    return KUMI_OK;
}

/* Arena, offset and bytes. */
static int place_of(struct reader *r, uint8_t *arena, size_t *offset, size_t *bytes)
{
    uint64_t x;
    int a;
    blank(r);
    KU_TRY(one_of(r, "+", ku_arena_name, KU_N_ARENAS, "no such arena", &a));
    *arena = (uint8_t)a;
    if (!skip(r, "+"))
        return bad(r, "arena+offset is missing");
    KU_TRY(number(r, MAX_BYTES, &x));
    *offset = (size_t)x;
    if (!skip(r, " bytes="))
        return bad(r, "bytes= is missing");
    KU_TRY(number(r, MAX_BYTES, &x));
    *bytes = (size_t)x;
    return KUMI_OK;
}

static int mesh_line(struct reader *r)
{
    char axis[16];
    uint64_t x;
    int64_t ranks = 1, micros = 1;
    for (blank(r); *r->p; blank(r)) {
        KU_TRY(word(r, "=", axis, sizeof axis));
        if (strcmp(axis, "mb_outer") == 0) {
            r->g->mesh.mb_outer = 1;
            continue;
        }
        if (strcmp(axis, "at_pp") == 0 && skip(r, "=")) {
            KU_TRY(number(r, INT16_MAX, &x));
            r->g->pp = (int)x;
            continue;
        }
        int a = ku_axis_parse(axis);
        if (a < 0 || !skip(r, "="))
            return bad(r, "the mesh must be axis=extent ..");
        KU_TRY(number(r, INT32_MAX, &x));
        int64_t *product = a < KU_AX_FIRST_TIME ? &ranks : &micros;
        if (x == 0 || r->g->mesh.extent[a] != 1 ||
            __builtin_mul_overflow(*product, (int64_t)x, product) || *product > MAX_COUNT)
            return bad(r, "an extent must be 1 or more, given once, and their product below 2^22");
        r->g->mesh.extent[a] = (int)x;
    }
    return KUMI_OK;
}

static int arenas_line(struct reader *r)
{
    uint64_t x;
    int a;
    for (blank(r); *r->p; blank(r)) {
        KU_TRY(one_of(r, "=", ku_arena_name, KU_N_ARENAS, "no such arena", &a));
        if (!skip(r, "="))
            return bad(r, "arena=bytes is missing");
        KU_TRY(number(r, MAX_BYTES, &x));
        r->g->arena_bytes[a] = (size_t)x;
    }
    return KUMI_OK;
}

static int state_line(struct reader *r)
{
    struct ku_program *g = r->g;
    struct ku_program_state s = {0};
    int kind, type;
    uint64_t x;
    ku_id of = 0;
    KU_TRY(name(r, &s.name));
    blank(r);
    KU_TRY(one_of(r, "", ku_state_kind_word, KU_T_CACHE + 1, "no such kind of state", &kind));
    blank(r);
    KU_TRY(dtype(r, &type));
    KU_TRY(shape(r, &s.shape));
    KU_TRY(place_of(r, &s.arena, &s.offset, &s.bytes));
    if (skip(r, " block=")) {
        KU_TRY(number(r, INT32_MAX, &x));
        s.first_block = (int32_t)x;
    }
    if (skip(r, " blocks=")) {
        KU_TRY(layout(r, s.shape, &s.blocks));
        if (!ku_layout_has(&g->layout[s.blocks], KU_Z))
            return bad(r, "blocks= needs Z on an axis");
    }
    if (skip(r, " split=")) {
        KU_TRY(layout(r, s.shape, &s.split));
        if (g->layout[s.split].at[KU_AX_TP].kind != KU_S)
            return bad(r, "split= needs S on axis tp");
    }
    s.pp = -1;
    if (skip(r, " pp=")) {
        KU_TRY(number(r, INT16_MAX, &x));
        s.pp = (int16_t)x;
    }
    s.is_kept = (uint8_t)skip(r, " kept");
    if (skip(r, " of="))
        KU_TRY(name(r, &of));
    s.kind = (uint8_t)kind, s.dtype = (uint8_t)type;
    KU_TRY(KU_GROW(&g->state, g->n_states, &r->cap_state));
    KU_TRY(KU_GROW(&r->state_of, g->n_states, &r->cap_state_of));
    r->state_of[g->n_states] = of;
    g->state[g->n_states++] = s;
    return KUMI_OK;
}

static int live(struct reader *r, struct ku_buffer *b)
{
    uint64_t first = UINT32_MAX, last = 0;
    b->first = UINT32_MAX;
    if (!skip(r, " live="))
        return KUMI_OK;
    if (!skip(r, "never"))
        KU_TRY(number(r, MAX_COUNT, &first));
    if (!skip(r, ".."))
        return bad(r, "live=first..last is missing");
    KU_TRY(number(r, MAX_COUNT, &last));
    if (first != UINT32_MAX && first > last)
        return bad(r, "the first instruction is after the last");
    b->first = (uint32_t)first, b->last = (uint32_t)last;
    return KUMI_OK;
}

static int buffer_line(struct reader *r)
{
    struct ku_program *g = r->g;
    struct ku_buffer b = {.micro = -1, .name = 1};
    struct type type = {0};
    uint64_t x;
    int kind;
    if (!skip(r, "b"))
        return bad(r, "a buffer (b1 ..) is missing");
    KU_TRY(number(r, MAX_COUNT - 1, &x));
    if (x != g->n_buffers)
        return bad(r, "buffers must be numbered from b1 on");
    if (skip(r, ":"))
        KU_TRY(name(r, &b.name));
    if (skip(r, "@")) {
        KU_TRY(number(r, INT32_MAX, &x));
        b.micro = (int32_t)x;
    }
    blank(r);
    KU_TRY(one_of(r, "", ku_class_word, KU_N_CLASSES, "no such category of buffers", &kind));
    b.cls = (uint8_t)kind;
    blank(r);
    KU_TRY(dtype(r, &kind));
    b.dtype = (uint8_t)kind;
    if (*r->p == '[') {
        KU_TRY(shape(r, &type.shape));
        KU_TRY(layout(r, type.shape, &type.layout));
    }
    if (skip(r, " block=")) {
        KU_TRY(number(r, INT32_MAX, &x));
        type.first_block = (int32_t)x;
    }
    KU_TRY(place_of(r, &b.arena, &b.offset, &b.bytes));
    KU_TRY(live(r, &b));
    b.is_kept = (uint8_t)skip(r, " kept");
    if (skip(r, " in=b")) {
        KU_TRY(number(r, MAX_COUNT, &x));
        b.home = (ku_id)x;
    }
    if (skip(r, " %")) {
        KU_TRY(number(r, UINT32_MAX, &x));
        b.value = (ku_id)x;
    }
    KU_TRY(KU_GROW(&g->buffer, g->n_buffers, &g->cap[1]));
    KU_TRY(KU_GROW(&r->type, g->n_buffers, &r->cap_type));
    r->type[g->n_buffers] = type;
    g->buffer[g->n_buffers++] = b;
    return KUMI_OK;
}

/* The type of an operand or port: the buffer's, and what differs. */
static int type_of(struct reader *r, ku_id id, uint8_t *dtype_out, ku_id *shape_out,
                   ku_id *layout_out)
{
    const struct type *t = &r->type[id];
    KU_ASSERT(id > 0 && id < r->g->n_buffers);
    int kind = r->g->buffer[id].dtype;
    if (skip(r, "(")) {
        KU_TRY(dtype(r, &kind));
        if (!skip(r, ")"))
            return bad(r, "(dtype) is not closed");
    }
    *dtype_out = (uint8_t)kind;
    *shape_out = t->shape;
    *layout_out = t->layout;
    if (*r->p == '[')
        KU_TRY(shape(r, shape_out));
    if (*shape_out == 0)
        return bad(r, "the buffer's line states no type; give [shape]{placement}");
    if (*r->p == '{')
        return layout(r, *shape_out, layout_out);
    for (int a = 0; a < KU_N_AXES; a++) {
        const struct ku_place *at = &r->g->layout[*layout_out].at[a];
        if (at->kind == KU_S && at->dim >= r->g->shape[*shape_out].ndim)
            return bad(r, "the buffer's placement does not fit this shape; give a placement");
    }
    return *layout_out ? KUMI_OK : bad(r, "a placement is missing");
}

static int port_line(struct reader *r, struct ku_program_port **list, uint32_t *n, uint32_t *cap)
{
    struct ku_program_port x = {0};
    KU_TRY(name(r, &x.name));
    blank(r);
    KU_TRY(buffer(r, 0, &x.buffer));
    KU_TRY(type_of(r, x.buffer, &x.dtype, &x.shape, &x.layout));
    KU_TRY(KU_GROW(list, *n, cap));
    (*list)[(*n)++] = x;
    return KUMI_OK;
}
static int input_line(struct reader *r)
{
    return port_line(r, &r->g->input, &r->g->n_inputs, &r->cap_input);
}
static int output_line(struct reader *r)
{
    return port_line(r, &r->g->output, &r->g->n_outputs, &r->cap_output);
}

/* <block=1 slot=2 piece=3/4096 add=b5 out=b6 word=4> */
static int extra(struct reader *r, struct ku_operand *o)
{
    uint64_t x = 0, y;
    if (!skip(r, "<"))
        return KUMI_OK;
    for (blank(r); !skip(r, ">"); blank(r)) {
        if (skip(r, "block=")) {
            KU_TRY(number(r, INT32_MAX, &x));
            o->first_block = (int32_t)x;
        } else if (skip(r, "slot=")) {
            KU_TRY(number(r, INT32_MAX, &x));
            o->slot = (int32_t)x;
        } else if (skip(r, "piece=")) {
            KU_TRY(number(r, INT32_MAX, &x));
            if (!skip(r, "/"))
                return bad(r, "piece=number/elements is missing");
            KU_TRY(number(r, UINT64_C(1) << 48, &y));
            if (y == 0 || x > (UINT64_C(1) << 48) / y)
                return bad(r, "a piece has no elements, or is beyond 2^48");
            o->piece = (int32_t)x, o->piece_count = (int64_t)y;
        } else if (skip(r, "add=")) {
            KU_TRY(buffer(r, 0, &o->addend));
        } else if (skip(r, "out=")) {
            KU_TRY(buffer(r, 0, &o->out));
        } else if (skip(r, "word=")) {
            KU_TRY(number(r, UINT32_MAX, &x));
            o->stats_word = (uint32_t)x;
        } else {
            return bad(r, "an operand has block, slot, piece, add, out, word; no other");
        }
    }
    return KUMI_OK;
}

/* Whether a buffer's number follows. */
static int is_operand(const struct reader *r)
{
    return r->p[0] == 'b' && r->p[1] >= '0' && r->p[1] <= '9';
}

static int operand(struct reader *r, int is_result, struct ku_operand *o)
{
    *o = (struct ku_operand){0};
    KU_TRY(buffer(r, is_result, &o->buffer));
    o->first_block = r->type[o->buffer].first_block;
    KU_TRY(type_of(r, o->buffer, &o->dtype, &o->shape, &o->layout));
    return extra(r, o);
}

/* Results, `<-`, inputs; in the program inputs come first. */
static int operands(struct reader *r, struct ku_instr *i)
{
    struct ku_program *g = r->g;
    uint32_t n_results = 0, n_in = 0;
    i->operand = g->n_operands;
    for (blank(r); is_operand(r); blank(r)) {
        KU_TRY(KU_GROW(&r->result, n_results, &r->cap_result));
        KU_TRY(operand(r, 1, &r->result[n_results++]));
    }
    if (skip(r, "<-"))
        for (blank(r); is_operand(r); blank(r), n_in++) {
            KU_TRY(KU_GROW(&g->operand, g->n_operands, &g->cap[2]));
            KU_TRY(operand(r, 0, &g->operand[g->n_operands]));
            g->n_operands++;
        }
    for (uint32_t k = 0; k < n_results; k++) {
        KU_TRY(KU_GROW(&g->operand, g->n_operands, &g->cap[2]));
        g->operand[g->n_operands++] = r->result[k];
    }
    if (g->n_operands > MAX_COUNT)
        return bad(r, "too many operands");
    const struct ku_op_info *op = &ku_ops[i->op];
    int is_right = i->kind == KU_START
                       ? n_in <= 1
                       : n_in >= (uint32_t)op->min_in && n_in <= (uint32_t)op->max_in &&
                             n_results >= (uint32_t)op->min_out &&
                             n_results <= (uint32_t)op->max_out;
    if (!is_right)
        return bad(r, "the number of operands does not fit the op");
    KU_ASSERT(i->operand + n_in + n_results == g->n_operands);
    i->n_in = (uint8_t)n_in;
    i->n_out = i->kind == KU_START ? 0 : (uint8_t)n_results;
    i->n_parts = i->kind == KU_START ? n_results : 0;
    return KUMI_OK;
}

/* name=value items up to '@', and the path. */
static int attributes(struct reader *r, struct ku_instr *i)
{
    struct ku_attrs a = ku_attrs_default;
    uint64_t x;
    char item[KU_NAME_BYTES];
    for (blank(r); *r->p && *r->p != '@'; blank(r)) {
        char *before = r->p;
        if (skip(r, "stream=")) {
            KU_TRY(number(r, UINT32_MAX, &x));
            i->stream = (uint32_t)x;
        } else if (skip(r, "workspace=")) {
            KU_TRY(buffer(r, 0, &i->workspace));
        } else if (skip(r, "source=")) {
            KU_TRY(name(r, &i->source));
        } else {
            KU_TRY(word(r, "", item, sizeof item));
            char *value = strchr(item, '=');
            if (value)
                *value++ = '\0';
            if (value == NULL || ku_attrs_set(&a, item, value) < 0) {
                r->p = before;
                return bad(r, "no such attribute or value");
            }
        }
    }
    if (!skip(r, "@"))
        return bad(r, "the path (@..) is missing");
    KU_TRY(name(r, &i->path));
    return INTERN(r, &r->attrs, &r->g->attr, &r->g->n_attrs, &a, is_same_attrs, &i->attr);
}

static int handle(struct reader *r, struct ku_instr *i)
{
    uint64_t x;
    blank(r);
    if (!skip(r, "#"))
        return bad(r, "a handle (#1 ..) is missing");
    KU_TRY(number(r, MAX_COUNT, &x));
    if (x == 0)
        return bad(r, "handles begin at #1");
    i->handle = (uint32_t)x;
    r->g->n_handles = i->handle > r->g->n_handles ? i->handle : r->g->n_handles;
    return KUMI_OK;
}

static const char *reduce_name(int accumulate)
{
    return ku_attr_reductions[accumulate];
}

static int start(struct reader *r, struct ku_instr *i)
{
    int kind, wire = -1;
    uint64_t x;
    char axis[16];
    i->kind = KU_START;
    blank(r);
    KU_TRY(one_of(r, "", ku_exchange_name, KU_N_EXCHANGES, "no such exchange", &kind));
    i->op = (uint16_t)kind;
    KU_TRY(handle(r, i));
    for (blank(r); *r->p && *r->p != '@' && *r->p != '<' && !is_operand(r); blank(r)) {
        if (skip(r, "group=")) {
            KU_TRY(number(r, UINT16_MAX, &x));
            i->group = (uint16_t)x;
        } else if (skip(r, "peer=")) {
            KU_TRY(number(r, INT16_MAX, &x));
            i->peer = (int16_t)x;
        } else if (skip(r, "reduce=")) {
            KU_TRY(one_of(r, "", reduce_name, KU_REDUCE_MAX + 1, "no such reduction", &kind));
            i->reduce = (uint8_t)kind;
        } else if (skip(r, "wire=")) {
            KU_TRY(dtype(r, &wire));
        } else {
            char *before = r->p;
            KU_TRY(word(r, "=", axis, sizeof axis));
            int a = ku_axis_parse(axis);
            if (a < 0 || a >= KU_AX_FIRST_TIME) {
                r->p = before;
                return bad(r, "neither an axis of ranks nor peer=, group=, reduce= or wire=");
            }
            i->axes |= (uint8_t)(1 << a);
        }
    }
    KU_TRY(operands(r, i));
    i->wire = (uint8_t)(wire >= 0    ? wire
                        : i->n_parts ? r->g->operand[i->operand + i->n_in].dtype
                                     : 0);
    return attributes(r, i);
}

/* 0F2: stage, phase, micro-batch. */
static int turn(struct reader *r, struct ku_instr *i)
{
    uint64_t x;
    KU_TRY(number(r, INT16_MAX, &x));
    i->stage = (int16_t)x;
    for (i->phase = 0; i->phase < KU_N_PHASES; i->phase++)
        if (skip(r, ku_phase_name(i->phase)))
            break;
    if (i->phase == KU_N_PHASES)
        return bad(r, "the phase must be A, F, I, W or O");
    i->micro = -1;
    if (*r->p != ' ') {
        KU_TRY(number(r, INT32_MAX, &x));
        i->micro = (int32_t)x;
    }
    if (i->micro >= ku_mesh_n_micro(&r->g->mesh))
        return bad(r, "the mesh has fewer micro-batches");
    blank(r);
    return KUMI_OK;
}

static int instr_line(struct reader *r)
{
    struct ku_program *g = r->g;
    struct ku_instr i = {0};
    char op[32], *before = r->p;
    uint64_t index;
    KU_TRY(number(r, MAX_COUNT, &index));
    if (*r->p != ' ')
        r->p = before; /* no index */
    else if (index != g->n_instrs)
        return bad(r, "the index of the instruction differs from its place");
    blank(r);
    KU_TRY(turn(r, &i));
    if (skip(r, "wait ")) {
        i.kind = KU_WAIT;
        KU_TRY(handle(r, &i));
        blank(r);
        if (skip(r, "@"))
            KU_TRY(name(r, &i.path));
    } else if (skip(r, "start ")) {
        KU_TRY(start(r, &i));
    } else {
        before = r->p;
        KU_TRY(word(r, "+", op, sizeof op));
        i.op = (uint16_t)ku_op_find(op);
        i.accumulate = (uint8_t)skip(r, "+");
        if (i.op == KU_OP_NONE || ku_ops[i.op].operands[0] == '\0') {
            r->p = before;
            return bad(r, "no such op");
        }
        KU_TRY(operands(r, &i));
        KU_TRY(attributes(r, &i));
    }
    KU_TRY(KU_GROW(&g->instr, g->n_instrs, &g->cap[0]));
    g->instr[g->n_instrs++] = i;
    return KUMI_OK;
}

static int header_line(struct reader *r)
{
    if (!skip(r, "kumi program 2 "))
        return bad(r, "the text does not begin with 'kumi program 2'");
    KU_TRY(word(r, "", r->g->name, sizeof r->g->name));
    return *r->p ? bad(r, "the text of one rank is not a program; print it without --rank")
                 : KUMI_OK;
}

static int one_line(struct reader *r)
{
    static const struct {
        const char *word;
        int (*parse)(struct reader *);
    } table[] = {{"mesh", mesh_line},      {"arenas", arenas_line}, {"state ", state_line},
                 {"buffer ", buffer_line}, {"input ", input_line},  {"output ", output_line}};
    int (*parse)(struct reader *) = r->has_header ? NULL : header_line;
    if (*r->p == '#')
        return KUMI_OK;
    r->has_header = true;
    for (size_t i = 0; parse == NULL && i < sizeof table / sizeof table[0]; i++)
        if (skip(r, table[i].word))
            parse = table[i].parse;
    if (parse == NULL) {
        blank(r);
        if (*r->p == '\0')
            return KUMI_OK;
        if (*r->p < '0' || *r->p > '9')
            return bad(r, "no such kind of line");
        parse = instr_line;
    }
    KU_TRY(parse(r));
    blank(r);
    return *r->p ? bad(r, "the line does not end here") : KUMI_OK;
}

/* Sets what other lines state: `of` by name, the fields of waits. */
static int finish(struct reader *r)
{
    struct ku_program *g = r->g;
    KU_ASSERT(g->n_names > 1 && g->n_attrs > 1 && g->n_layouts > 1); /* begin() */
    uint32_t *state = ku_calloc(g->n_names, sizeof *state);
    uint32_t *begun = ku_calloc((size_t)g->n_handles + 1, sizeof *begun);
    int status = state && begun ? KUMI_OK : KUMI_ENOMEM;
    for (uint32_t s = 0; status == KUMI_OK && s < g->n_states; s++) {
        if (state[g->state[s].name])
            status = bad(r, "two states have one name");
        state[g->state[s].name] = s + 1;
    }
    for (uint32_t s = 0; status == KUMI_OK && s < g->n_states; s++) {
        g->state[s].of = state[r->state_of[s]];
        if (r->state_of[s] && g->state[s].of == 0)
            status = bad(r, "of=: no such state");
    }
    for (ku_id b = 1; status == KUMI_OK && b < g->n_buffers; b++)
        if (g->buffer[b].home >= g->n_buffers || g->buffer[b].home == b ||
            g->buffer[b].last > g->n_instrs)
            status = bad(r, "in= or live= of a buffer is beyond the end of the program");
    for (uint32_t at = 0; status == KUMI_OK && at < g->n_instrs; at++)
        if (g->instr[at].kind == KU_START)
            begun[g->instr[at].handle] = at + 1;
    for (uint32_t at = 0; status == KUMI_OK && at < g->n_instrs; at++) {
        struct ku_instr *w = &g->instr[at];
        if (w->kind != KU_WAIT)
            continue;
        if (begun[w->handle] == 0) { /* no start: a claim for the check to refuse */
            w->path = w->path ? w->path : 1;
            continue;
        }
        const struct ku_instr *s = &g->instr[begun[w->handle] - 1];
        w->op = s->op, w->axes = s->axes, w->group = s->group, w->reduce = s->reduce,
        w->peer = s->peer;
        w->wire = s->wire, w->attr = s->attr, w->path = w->path ? w->path : s->path;
    }
    ku_free(state);
    ku_free(begun);
    return status;
}

/* Id 0 of every table, the default attributes and the empty name. */
static int begin(struct reader *r)
{
    struct ku_program *g = r->g;
    const struct ku_layout common = ku_layout_all(KU_C);
    ku_id id;
    for (int a = 0; a < KU_N_AXES; a++)
        g->mesh.extent[a] = 1;
    KU_TRY(KU_GROW(&g->buffer, 0, &g->cap[1]));
    KU_TRY(KU_GROW(&r->type, 0, &r->cap_type));
    KU_TRY(KU_GROW(&g->name_of, 0, &r->cap_name));
    g->shape = ku_calloc(1, sizeof *g->shape);
    g->layout = ku_calloc(1, sizeof *g->layout);
    g->attr = ku_calloc(1, sizeof *g->attr);
    if (!g->shape || !g->layout || !g->attr)
        return KUMI_ENOMEM;
    g->n_buffers = g->n_names = g->n_shapes = g->n_layouts = g->n_attrs = 1;
    KU_TRY(INTERN(r, &r->layouts, &g->layout, &g->n_layouts, &common, is_same_layout, &id));
    KU_TRY(INTERN(r, &r->attrs, &g->attr, &g->n_attrs, &ku_attrs_default, is_same_attrs, &id));
    return intern_name(r, "", &id);
}

static int all_lines(struct reader *r, char *text, size_t bytes)
{
    char *end = text + bytes;
    KU_TRY(begin(r));
    while (text < end) {
        char *stop = memchr(text, '\n', (size_t)(end - text));
        stop = stop ? stop : end;
        r->line++;
        r->start = r->p = text;
        if (memchr(text, '\0', (size_t)(stop - text)) || r->line > MAX_COUNT)
            return bad(r, "the line has a NUL byte, or there are too many lines");
        *stop = '\0';
        KU_TRY(one_line(r));
        text = stop + 1;
    }
    return r->has_header ? finish(r) : bad(r, "the text is empty");
}

int ku_program_parse(const char *name_of, const char *text, size_t bytes, struct ku_program **out)
{
    struct reader r = {.name = name_of};
    if (bytes > MAX_TEXT_BYTES)
        return KU_ERR(KUMI_EINVAL, "program text: %.100s: %zu bytes; at most %d", name_of, bytes,
                      MAX_TEXT_BYTES);
    char *copy = ku_malloc(bytes + 1);
    r.g = ku_calloc(1, sizeof *r.g);
    int status = KUMI_ENOMEM;
    if (copy && r.g) {
        if (bytes)
            memcpy(copy, text, bytes);
        copy[bytes] = '\0';
        r.start = r.p = copy;
        status = all_lines(&r, copy, bytes);
    }
    ku_free(r.shapes.slot);
    ku_free(r.layouts.slot);
    ku_free(r.attrs.slot);
    ku_free(r.names.slot);
    ku_free(r.type);
    ku_free(r.result);
    ku_free(r.state_of);
    ku_free(copy);
    if (status < 0)
        ku_program_destroy(r.g);
    else
        *out = r.g;
    return status;
}

int ku_program_read(const char *path, struct ku_program **out)
{
    char *text;
    size_t bytes;
    if (ku_os_slurp(path, MAX_TEXT_BYTES, &text, &bytes) < 0)
        return KU_ERR(ku_os_status(KUMI_EINPUT), "program text: %s: %s", path, ku_os_why());
    int status = ku_program_parse(path, text, bytes, out);
    ku_free(text);
    if (status != KUMI_EINVAL)
        return status;
    const struct kumi_error e = *ku_err_get();
    return KU_ERR(KUMI_EINPUT, "%.500s", e.text);
}
