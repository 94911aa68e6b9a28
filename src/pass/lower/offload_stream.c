/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams offloaded tensors through staging buffers: buffers of the step that are read from the
 * offload target ahead of their use and written back after it. Lowering emits operands as if the
 * target were memory; this pass replaces them and inserts starts and waits of reads and writes.
 *
 *   pieces        an element-wise update of a large tensor becomes several instructions, each for a
 *                 run of chunks, so that no staging buffer holds a whole tensor
 *   struct live_range  one live range of a staging buffer, from the first instruction that
 *                 uses it to the last
 *   struct group  consecutive live ranges, up to buffer_bytes in total: read together
 *
 *     group     0        1        2          buffer_count 3: one group is read ahead, one written
 *     reads     0 1      2        3          after its use
 *     waits     r0       r1       r2 w0
 *     writes         0        1        2
 *
 * If the read of a live range would start before the previous one of the same bytes ends, it
 * extends that one instead. An activation is written only if a live range ends between forward and
 * backward; one with a single live range stays in its buffer.
 */
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "pass/lower/lower.h"

struct live_range {
    ku_id target, staging;
    struct ku_operand like; /* the transferred bytes: offloaded buffer and piece */
    uint32_t first, last;   /* instructions */
    uint32_t group;
    uint32_t before,
        next_end; /* previous of the same buffer, + 1; next with the same `last`, + 1 */
    uint8_t reads, writes, is_wire, goes_on; /* goes_on: a later one uses its bytes */
};
struct group {
    uint32_t at, first_live, n_live;
    uint32_t handle; /* of its read; 0: no read */
    size_t bytes;
    int is_late; /* read where needed: its bytes are written just before */
};
/* Writes that start together (one handle), and one write of such a batch. */
struct batch {
    uint32_t handle, group; /* group: the last that had begun */
    int is_over;            /* already waited for */
};
struct write {
    uint32_t live, batch, next; /* next: of the same buffer, + 1 */
};

struct stream {
    struct ku_program *p;
    const struct ku_offload *o;
    int ahead, behind;
    ku_id *spilled;    /* per buffer: its offloaded buffer; 0 = none */
    uint32_t *live_of; /* per operand, + 1 */
    uint32_t *latest;  /* per buffer: its last live range so far, + 1 */
    uint32_t *last;    /* per buffer: the last use in its live ranges so far */
    uint32_t *wait_of; /* per handle */
    uint32_t *ends;    /* per instruction: the first live range that ends there, + 1 */
    struct live_range *live;
    struct group *group;
    struct batch *batch;                /* [n_batches]; the first n_settled are complete */
    struct write *write;                /* [n_writes] */
    uint32_t *first_write, *last_write; /* per buffer: pending writes, + 1 */
    struct ku_instr *made;
    uint32_t n_live, n_groups, n_batches, n_settled, n_writes, n_made;
    uint32_t n_read; /* groups whose reads have started */
    uint32_t cap_live, cap_groups, cap_batches, cap_writes, cap_made;
};

static size_t round_up(size_t bytes)
{
    return (bytes + KU_OFFLOAD_ALIGN_BYTES - 1) & ~(size_t)(KU_OFFLOAD_ALIGN_BYTES - 1);
}

static bool is_offloaded(const struct ku_program *p, ku_id buffer)
{
    return ku_arena_is_offload(p->buffer[buffer].arena);
}

static int add_made(struct stream *s, const struct ku_instr *i)
{
    KU_TRY(KU_GROW(&s->made, s->n_made, &s->cap_made));
    s->made[s->n_made++] = *i;
    return KUMI_OK;
}

/* Replaces the program's instructions by those made so far. */
static void take_made(struct stream *s)
{
    ku_free(s->p->instr);
    s->p->instr = s->made;
    s->p->n_instrs = s->n_made;
    s->p->cap[KU_CAP_INSTR] = s->cap_made;
    s->made = NULL;
    s->n_made = s->cap_made = 0;
}

/* Elements per piece of an update, a multiple of KU_BLOCK_COUNT, and in *shape the shape of the
 * operands to split; 0: the instruction is not split. */
static int64_t piece_count(const struct stream *s, const struct ku_instr *i, ku_id *shape)
{
    const struct ku_program *p = s->p;
    size_t each = 0;
    int64_t most = 0;
    if (i->kind != KU_COMPUTE || i->phase != KU_PH_O || !(ku_ops[i->op].traits & KU_OP_ELEMENT))
        return 0;
    for (uint32_t k = 0; k < (uint32_t)i->n_in + i->n_out; k++) {
        const struct ku_operand *o = &p->operand[i->operand + k];
        const struct ku_buffer *b = &p->buffer[o->buffer];
        size_t bytes = kumi_dtype_bytes((enum kumi_dtype)o->dtype);
        int is_again = 0; /* an in-place operand occurs twice */
        for (uint32_t j = 0; j < k; j++)
            is_again |= p->operand[i->operand + j].buffer == o->buffer;
        if (!is_offloaded(p, o->buffer) || is_again)
            continue;
        each += bytes;
        if ((int64_t)(b->bytes / bytes) > most) {
            most = (int64_t)(b->bytes / bytes);
            *shape = o->shape;
        }
    }
    int64_t count = each ? s->o->buffer_bytes / (int64_t)each / KU_BLOCK_COUNT * KU_BLOCK_COUNT : 0;
    count = count < KU_BLOCK_COUNT ? KU_BLOCK_COUNT : count;
    return most > count ? count : 0;
}

/* The placement of operand k in a piece after the first. Sums to which all pieces add (of
 * layer-wise optimizers) have that of the result from then on: the first piece made them partial.
 */
static ku_id layout_in_piece(const struct ku_program *p, const struct ku_instr *i, uint32_t k)
{
    const struct ku_operand *o = &p->operand[i->operand];
    for (uint32_t j = i->n_in; j < (uint32_t)i->n_in + i->n_out; j++)
        if (o[j].buffer == o[k].buffer)
            return o[j].layout;
    return o[k].layout;
}

static int cut_instr(struct stream *s, const struct ku_instr *whole, ku_id shape, int64_t count)
{
    struct ku_program *p = s->p;
    const uint32_t n = (uint32_t)whole->n_in + whole->n_out;
    int64_t most = 0;
    for (uint32_t k = 0; k < n; k++) {
        const struct ku_operand *o = &p->operand[whole->operand + k];
        int64_t kept =
            (int64_t)(p->buffer[o->buffer].bytes / kumi_dtype_bytes((enum kumi_dtype)o->dtype));
        most = is_offloaded(p, o->buffer) && kept > most ? kept : most;
    }
    for (int64_t piece = 0; piece * count < most; piece++) {
        struct ku_instr i = *whole;
        i.operand = p->n_operands;
        for (uint32_t k = 0; k < n; k++) {
            struct ku_operand o = p->operand[whole->operand + k];
            if (o.shape == shape) {
                o.piece = (int32_t)piece;
                o.piece_count = count;
            } else if (piece > 0) {
                o.layout = layout_in_piece(p, whole, k);
            }
            KU_TRY(KU_GROW(&p->operand, p->n_operands, &p->cap[KU_CAP_OPERAND]));
            p->operand[p->n_operands++] = o;
        }
        KU_TRY(add_made(s, &i));
    }
    return KUMI_OK;
}

static int cut_updates(struct stream *s)
{
    for (uint32_t at = 0; at < s->p->n_instrs; at++) {
        struct ku_instr i = s->p->instr[at];
        ku_id shape = 0;
        int64_t count = piece_count(s, &i, &shape);
        KU_TRY(count ? cut_instr(s, &i, shape, count) : add_made(s, &i));
    }
    take_made(s);
    return KUMI_OK;
}

/* Uses of a buffer, a mask. */
enum { BY_FORWARD = 1, BY_BACKWARD = 2, BY_OTHERS = 4 };

static void note_uses(const struct ku_program *p, unsigned char *uses)
{
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        const struct ku_instr *i = &p->instr[at];
        int by = i->kind != KU_COMPUTE                        ? BY_OTHERS
                 : i->phase == KU_PH_F                        ? BY_FORWARD
                 : i->phase == KU_PH_I || i->phase == KU_PH_W ? BY_BACKWARD
                                                              : BY_OTHERS;
        uint32_t n = i->kind == KU_START ? i->n_in + i->n_parts : (uint32_t)i->n_in + i->n_out;
        for (uint32_t k = 0; k < n && i->kind != KU_WAIT; k++) {
            const struct ku_operand *o = &p->operand[i->operand + k];
            uses[o->buffer] |= (unsigned char)by;
            uses[o->addend] |= BY_OTHERS;
            uses[o->out] |= BY_OTHERS;
        }
    }
    for (uint32_t i = 0; i < p->n_outputs; i++)
        uses[p->output[i].buffer] |= BY_OTHERS;
}

/* Adds an offloaded buffer for each activation that forward leaves for backward. Activations below
 * KU_BLOCK_COUNT elements stay in memory: too small for a request. */
static int spill_activations(struct stream *s)
{
    struct ku_program *p = s->p;
    ku_id n = p->n_buffers;
    unsigned char *uses = ku_calloc(n + 1, 1);
    int status = uses ? KUMI_OK : KUMI_ENOMEM;
    if (uses)
        note_uses(p, uses);
    for (ku_id b = 1; b < n && status == KUMI_OK; b++) {
        struct ku_buffer x = p->buffer[b];
        if (x.arena != KU_AR_STEP || x.cls != KU_CL_ACTIVATION || x.micro < 0 ||
            uses[b] != (BY_FORWARD | BY_BACKWARD) ||
            x.bytes < KU_BLOCK_COUNT * kumi_dtype_bytes((enum kumi_dtype)x.dtype))
            continue;
        x.arena = s->o->activations == KU_OFFLOAD_HOST ? KU_AR_OFFLOAD : KU_AR_FILE;
        x.cls = KU_CL_OFFLOAD;
        s->spilled[b] = ku_program_add_buffer(p, &x);
        status = s->spilled[b] ? KUMI_OK : KUMI_ENOMEM;
    }
    ku_free(uses);
    return status;
}

static bool is_same_piece(const struct ku_operand *a, const struct ku_operand *b)
{
    return a->piece == b->piece && a->piece_count == b->piece_count;
}
static bool overlaps(const struct ku_operand *a, const struct ku_operand *b)
{
    return a->piece_count != b->piece_count || a->piece == b->piece;
}

static size_t staging_bytes(const struct ku_program *p, const struct ku_operand *like)
{
    size_t bytes = p->buffer[like->buffer].bytes;
    size_t each = kumi_dtype_bytes((enum kumi_dtype)like->dtype);
    size_t piece = (size_t)like->piece_count * each, from = piece * (size_t)like->piece;
    if (piece)
        bytes = bytes - from < piece ? bytes - from : piece;
    return round_up(bytes);
}

/* The instruction before which the read starts: of the current group, or (is_new) of a group that
 * begins at `at`. */
static uint32_t read_at(const struct stream *s, int is_new, uint32_t at)
{
    uint32_t g = is_new ? s->n_groups : s->n_groups - 1, ahead = (uint32_t)s->ahead;
    if (ahead == 0)
        return is_new ? at : s->group[g].at;
    return s->n_groups == 0 ? at : s->group[g < ahead ? 0 : g - ahead].at;
}

static int add_live_range(struct stream *s, const struct live_range *v, int is_new, int is_late)
{
    KU_ASSERT(v->first <= v->last && v->last < s->p->n_instrs && is_offloaded(s->p, v->target));
    KU_ASSERT(is_new || s->n_groups > 0);
    if (is_new) {
        KU_TRY(KU_GROW(&s->group, s->n_groups, &s->cap_groups));
        s->group[s->n_groups++] =
            (struct group){.at = v->first, .first_live = s->n_live, .is_late = is_late};
    }
    struct group *g = &s->group[s->n_groups - 1];
    KU_TRY(KU_GROW(&s->live, s->n_live, &s->cap_live));
    s->live[s->n_live] = *v;
    s->live[s->n_live].group = s->n_groups - 1;
    s->live[s->n_live].before = s->latest[v->target];
    g->n_live++;
    g->bytes += staging_bytes(s->p, &v->like);
    s->latest[v->target] = ++s->n_live;
    if (s->last[v->target] < v->last)
        s->last[v->target] = v->last;
    return KUMI_OK;
}

/* Records a use of an offloaded buffer: extends its last live range or begins a new one. */
static int use(struct stream *s, uint32_t operand, const struct live_range *v)
{
    const struct group *g = s->n_groups ? &s->group[s->n_groups - 1] : NULL;
    int is_late = 0;
    int is_new = g == NULL || (g->at != v->first && g->bytes + staging_bytes(s->p, &v->like) >
                                                        (size_t)s->o->buffer_bytes);
    uint32_t start = v->reads ? read_at(s, is_new, v->first) : v->first;
    for (uint32_t u = s->latest[v->target]; u; u = s->live[u - 1].before) {
        struct live_range *x = &s->live[u - 1];
        if (is_same_piece(&x->like, &v->like) && x->last >= start) {
            x->last = v->last > x->last ? v->last : x->last;
            s->last[v->target] = x->last > s->last[v->target] ? x->last : s->last[v->target];
            x->writes |= v->writes;
            x->is_wire |= v->is_wire;
            s->live_of[operand] = u;
            return KUMI_OK;
        }
        if (overlaps(&x->like, &v->like))
            x->goes_on = 1;
        is_late |= x->writes && overlaps(&x->like, &v->like) && x->last >= start;
        if (is_same_piece(&x->like, &v->like) && s->last[v->target] < start)
            break; /* earlier ones ended before, and go on since x began */
    }
    KU_TRY(add_live_range(s, v, is_new || is_late, is_late));
    s->live_of[operand] = s->n_live;
    return KUMI_OK;
}

static int use_operand(struct stream *s, const struct ku_instr *i, uint32_t at, uint32_t k)
{
    struct ku_program *p = s->p;
    struct ku_operand *o = &p->operand[i->operand + k];
    ku_id target = s->spilled[o->buffer] ? s->spilled[o->buffer] : o->buffer;
    if (!is_offloaded(p, target))
        return KUMI_OK;
    struct live_range v = {.target = target, .like = *o, .first = at, .last = at};
    v.like.buffer = target;
    if (i->kind == KU_START) {
        KU_ASSERT(i->op == KU_X_ALL_GATHER || i->op == KU_X_SEND);
        KU_ASSERT(o->addend == 0 && !is_offloaded(p, o->out));
        v.last = s->wait_of[i->handle];
        v.reads = v.is_wire = 1;
        v.like.out = 0;
    } else {
        v.writes = k >= i->n_in;
        const struct ku_op_info *op = &ku_ops[i->op];
        int is_overwritten = (op->traits & KU_OP_OVERWRITE) && ku_op_pair(op->inout, 0) == (int)k;
        v.reads = !v.writes && !is_overwritten;
    }
    return use(s, i->operand + k, &v);
}

static int find_live_ranges(struct stream *s)
{
    struct ku_program *p = s->p;
    for (uint32_t at = 0; at < p->n_instrs; at++)
        if (p->instr[at].kind == KU_WAIT)
            s->wait_of[p->instr[at].handle] = at;
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        const struct ku_instr *i = &p->instr[at];
        uint32_t n = i->kind == KU_START  ? i->n_in + i->n_parts
                     : i->kind == KU_WAIT ? 0
                                          : (uint32_t)i->n_in + i->n_out;
        for (uint32_t k = 0; k < n; k++)
            KU_TRY(use_operand(s, i, at, k));
    }
    return KUMI_OK;
}

static bool is_state(const struct stream *s, const struct live_range *v)
{
    return s->p->buffer[v->target].cls != KU_CL_OFFLOAD;
}
/* An activation with a single live range stays in its own buffer: no staging buffer. */
static bool is_at_home(const struct stream *s, const struct live_range *v)
{
    return !is_state(s, v) && !v->goes_on && v->before == 0;
}
static bool is_written(const struct stream *s, const struct live_range *v)
{
    return v->writes && (is_state(s, v) || v->goes_on);
}

static int make_staging(struct stream *s)
{
    struct ku_program *p = s->p;
    for (uint32_t i = 0; i < s->n_live; i++) {
        struct live_range *v = &s->live[i];
        struct ku_buffer b = p->buffer[v->target];
        v->next_end = s->ends[v->last];
        s->ends[v->last] = i + 1;
        if (is_at_home(s, v))
            continue;
        b.arena = v->is_wire ? KU_AR_WIRE : KU_AR_STEP;
        b.cls = KU_CL_STAGING;
        b.micro = p->instr[v->first].micro;
        b.bytes = staging_bytes(p, &v->like);
        b.offset = 0;
        v->staging = ku_program_add_buffer(p, &b);
        if (v->staging == 0)
            return KUMI_ENOMEM;
    }
    for (uint32_t k = 0; k < p->n_operands; k++)
        if (s->live_of[k] && s->live[s->live_of[k] - 1].staging)
            p->operand[k].buffer = s->live[s->live_of[k] - 1].staging;
    return KUMI_OK;
}

static int add_part(struct stream *s, const struct live_range *v)
{
    struct ku_operand o = v->like;
    o.out = v->staging;
    KU_TRY(KU_GROW(&s->p->operand, s->p->n_operands, &s->p->cap[KU_CAP_OPERAND]));
    s->p->operand[s->p->n_operands++] = o;
    return KUMI_OK;
}

/* Adds a read or write of the parts from operand `first` on, near instruction `at`. *handle 0: no
 * parts. */
static int add_start(struct stream *s, int exchange, uint32_t at, uint32_t first, uint32_t *handle)
{
    struct ku_program *p = s->p;
    *handle = 0;
    if (p->n_operands == first)
        return KUMI_OK;
    *handle = ++p->n_handles;
    return add_made(s, &(struct ku_instr){.kind = KU_START,
                                          .phase = p->instr[at].phase,
                                          .op = (uint16_t)exchange,
                                          .stage = p->instr[at].stage,
                                          .micro = p->instr[at].micro,
                                          .operand = first,
                                          .n_parts = p->n_operands - first,
                                          .attr = 1,
                                          .path = p->buffer[p->operand[first].buffer].name,
                                          .handle = *handle});
}

static int add_wait(struct stream *s, uint32_t at, int exchange, uint32_t handle)
{
    const struct ku_instr *i = &s->p->instr[at < s->p->n_instrs ? at : at - 1];
    return add_made(s, &(struct ku_instr){.kind = KU_WAIT,
                                          .phase = i->phase,
                                          .op = (uint16_t)exchange,
                                          .stage = i->stage,
                                          .micro = i->micro,
                                          .attr = 1,
                                          .path = 1,
                                          .handle = handle});
}

static int wait_for(struct stream *s, uint32_t at, struct batch *b)
{
    if (b->is_over)
        return KUMI_OK;
    b->is_over = 1; /* a wait completes all parts of the batch */
    return add_wait(s, at, KU_X_WRITE, b->handle);
}

/* Waits for writes of groups up to number `group`. */
static int settle_groups(struct stream *s, uint32_t at, int64_t group)
{
    for (; s->n_settled < s->n_batches && (int64_t)s->batch[s->n_settled].group <= group;
         s->n_settled++)
        KU_TRY(wait_for(s, at, &s->batch[s->n_settled]));
    return KUMI_OK;
}

/* Waits for writes that overlap a live range, oldest first. */
static int settle(struct stream *s, uint32_t at, const struct live_range *v)
{
    uint32_t last = 0;
    for (uint32_t *link = &s->first_write[v->target]; *link;) {
        struct write *w = &s->write[*link - 1];
        const struct live_range *x = &s->live[w->live];
        if (overlaps(&x->like, &v->like))
            KU_TRY(wait_for(s, at, &s->batch[w->batch]));
        if (s->batch[w->batch].is_over) {
            *link = w->next;
        } else {
            last = *link;
            link = &w->next;
        }
    }
    s->last_write[v->target] = last;
    return KUMI_OK;
}

static int add_write(struct stream *s, uint32_t live)
{
    ku_id target = s->live[live].target;
    KU_TRY(KU_GROW(&s->write, s->n_writes, &s->cap_writes));
    s->write[s->n_writes++] = (struct write){.live = live, .batch = s->n_batches};
    if (s->first_write[target])
        s->write[s->last_write[target] - 1].next = s->n_writes;
    else
        s->first_write[target] = s->n_writes;
    s->last_write[target] = s->n_writes;
    return KUMI_OK;
}

static int start_read(struct stream *s, uint32_t group, uint32_t at)
{
    struct group *g = &s->group[group];
    for (uint32_t i = g->first_live; i < g->first_live + g->n_live; i++)
        if (s->live[i].reads && s->live[i].staging)
            KU_TRY(settle(s, at, &s->live[i]));
    uint32_t first = s->p->n_operands;
    for (uint32_t i = g->first_live; i < g->first_live + g->n_live; i++)
        if (s->live[i].reads && s->live[i].staging)
            KU_TRY(add_part(s, &s->live[i]));
    return add_start(s, KU_X_READ, at, first, &g->handle);
}

static int begin_group(struct stream *s, uint32_t group, uint32_t at)
{
    KU_TRY(settle_groups(s, at, (int64_t)group - 1 - s->behind));
    for (; s->n_read < s->n_groups && s->n_read <= group + (uint32_t)s->ahead; s->n_read++) {
        if (s->group[s->n_read].is_late && s->n_read > group)
            break;
        KU_TRY(start_read(s, s->n_read, at));
    }
    return s->group[group].handle ? add_wait(s, at, KU_X_READ, s->group[group].handle) : KUMI_OK;
}

/* After instruction `at`: starts the writes of the live ranges that end there. */
static int end_live_ranges(struct stream *s, uint32_t at, uint32_t n_begun)
{
    uint32_t handle;
    for (uint32_t i = s->ends[at]; i; i = s->live[i - 1].next_end)
        if (is_written(s, &s->live[i - 1]))
            KU_TRY(settle(s, at, &s->live[i - 1]));
    uint32_t first = s->p->n_operands;
    for (uint32_t i = s->ends[at]; i; i = s->live[i - 1].next_end) {
        if (!is_written(s, &s->live[i - 1]))
            continue;
        KU_TRY(add_part(s, &s->live[i - 1]));
        KU_TRY(add_write(s, i - 1));
    }
    KU_TRY(add_start(s, KU_X_WRITE, at, first, &handle));
    if (handle == 0)
        return KUMI_OK;
    KU_TRY(KU_GROW(&s->batch, s->n_batches, &s->cap_batches));
    s->batch[s->n_batches++] = (struct batch){.handle = handle, .group = n_begun - 1};
    return KUMI_OK;
}

static int weave(struct stream *s)
{
    uint32_t group = 0, n = s->p->n_instrs;
    for (uint32_t at = 0; at < n; at++) {
        for (; group < s->n_groups && s->group[group].at == at; group++)
            KU_TRY(begin_group(s, group, at));
        if (s->p->instr[at].kind == KU_START && s->p->instr[at].op == KU_X_BARRIER)
            KU_TRY(settle_groups(s, at, INT64_MAX)); /* other ranks read the state after it */
        KU_TRY(add_made(s, &s->p->instr[at]));
        KU_TRY(end_live_ranges(s, at, group));
    }
    KU_TRY(settle_groups(s, n, INT64_MAX));
    KU_ASSERT(group == s->n_groups && s->n_read == s->n_groups); /* all read */
    KU_ASSERT(s->n_settled == s->n_batches);                     /* all writes waited for */
    take_made(s);
    return KUMI_OK;
}

static void touch(struct ku_program *p, ku_id buffer, uint32_t at)
{
    struct ku_buffer *b = &p->buffer[buffer];
    b->first = at < b->first ? at : b->first;
    b->last = at > b->last ? at : b->last;
}

static void touch_operands(struct ku_program *p, const struct ku_instr *i, uint32_t at)
{
    uint32_t n = i->kind == KU_START ? i->n_in + i->n_parts : (uint32_t)i->n_in + i->n_out;
    for (uint32_t k = 0; k < n; k++) {
        const struct ku_operand *o = &p->operand[i->operand + k];
        touch(p, o->buffer, at);
        touch(p, o->addend, at);
        touch(p, o->out, at);
    }
    touch(p, i->workspace, at);
}

/* Sets all live ranges again; the operands of a start are live until its wait. */
static int live_again(struct ku_program *p)
{
    const struct ku_instr **start = ku_calloc(p->n_handles + 1, sizeof *start);
    if (start == NULL)
        return KUMI_ENOMEM;
    for (ku_id b = 0; b < p->n_buffers; b++) {
        p->buffer[b].first = UINT32_MAX;
        p->buffer[b].last = 0;
    }
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        const struct ku_instr *i = &p->instr[at];
        if (i->kind == KU_START)
            start[i->handle] = i;
        KU_ASSERT(i->kind != KU_WAIT || start[i->handle]);
        touch_operands(p, i->kind == KU_WAIT ? start[i->handle] : i, at);
    }
    for (uint32_t i = 0; i < p->n_outputs; i++)
        p->buffer[p->output[i].buffer].last = p->n_instrs;
    ku_free(start);
    return KUMI_OK;
}

static int run(struct stream *s)
{
    struct ku_program *p = s->p;
    KU_TRY(cut_updates(s));
    s->spilled = ku_calloc(2 * (size_t)p->n_buffers + 1, sizeof *s->spilled);
    if (s->spilled == NULL)
        return KUMI_ENOMEM;
    if (s->o->activations)
        KU_TRY(spill_activations(s));
    s->live_of = ku_calloc(p->n_operands + 1, sizeof *s->live_of);
    s->latest = ku_calloc(4 * ((size_t)p->n_buffers + 1), sizeof *s->latest);
    s->wait_of = ku_calloc(p->n_handles + 1, sizeof *s->wait_of);
    s->ends = ku_calloc(p->n_instrs + 1, sizeof *s->ends);
    if (!s->live_of || !s->latest || !s->wait_of || !s->ends)
        return KUMI_ENOMEM;
    s->first_write = s->latest + p->n_buffers + 1;
    s->last_write = s->first_write + p->n_buffers + 1;
    s->last = s->last_write + p->n_buffers + 1;
    KU_TRY(find_live_ranges(s));
    KU_TRY(make_staging(s));
    KU_TRY(weave(s));
    return live_again(p);
}

int ku_pass_stream(struct ku_program *p, const struct ku_compile_opts *o)
{
    struct stream s = {.p = p, .o = &o->offload};
    int has_state = p->arena_bytes[KU_AR_OFFLOAD] || p->arena_bytes[KU_AR_FILE];
    if (!has_state && !o->offload.activations)
        return KUMI_OK;
    int count = o->offload.buffer_count;
    s.ahead = count > 2 ? count - 2 : count - 1;
    s.behind = count > 2;
    KU_ASSERT(s.ahead >= 0);
    int status = run(&s);
    ku_free(s.spilled);
    ku_free(s.live_of);
    ku_free(s.latest);
    ku_free(s.wait_of);
    ku_free(s.ends);
    ku_free(s.live);
    ku_free(s.group);
    ku_free(s.batch);
    ku_free(s.write);
    ku_free(s.made);
    return status;
}
