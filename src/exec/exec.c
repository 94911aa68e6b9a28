/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading walks over the instructions once and makes a bound op for each:
 *
 *     COMPUTE                  device kernel with operand addresses (bind_compute)
 *     START, WAIT              collective of the handle, its parts as references (bind_start)
 *     OFFLOAD_START, OFFLOAD_WAIT    transfer from or to an offload target (bind_transfer)
 *
 * A run executes the bound ops in order. The write barrier is called before an op that
 * changes data of checkpoints. Outside computation, time is counted as exposed communication or as
 * offload.
 */
#include "exec/exec.h"

#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "exec/poison.h"
#include "ir/program_text.h"
#include "job/segment.h"

/* A bound instruction. */
enum step_kind { COMPUTE, START, WAIT, OFFLOAD_START, OFFLOAD_WAIT };
struct step {
    uint8_t kind;        /* enum step_kind */
    uint8_t has_barrier; /* writes data that checkpoints contain */
    union {
        struct ku_kernel *kernel;
        struct ku_work *work;
        struct ku_transfer *transfer;
    };
};

/* The text of an instruction, which other ranks print if this one dies in it. */
struct label {
    uint64_t word[KU_FLIGHT_NOW_WORDS];
};

/* A start that squares each reduced chunk while it is still in cache. */
struct squares {
    const struct ku_device_ops *ops;
    void *device;
    const struct ku_operand *part;
    int64_t *stats;
};

struct ku_exec {
    struct ku_memory *memory;
    const struct ku_program *program;
    const struct ku_device_ops *ops;
    void *device;
    struct ku_exec_comms comms;
    struct ku_coord coord;
    struct step *step;
    struct ku_work *work;                 /* one per handle */
    struct squares *squares;              /* likewise */
    struct ku_transfer *transfer;         /* likewise */
    struct ku_coll_part *part;            /* parts of all starts, concatenated */
    struct ku_offload_part *offload_part; /* likewise */
    struct ku_exec_times times;
    int64_t n_parts;          /* one more than the parts of all starts */
    uint32_t first_once;      /* first instruction after those of all micro-batches */
    struct label *label;      /* [n_instrs + 1], the last one empty; NULL: no other rank to tell */
    int64_t *stamp;           /* NULL: not recorded */
    struct ku_poison *poison; /* NULL unless built with AddressSanitizer */
    ku_exec_write_barrier *write_barrier;
    void *barrier_ctx;
    const uint32_t *notice_of; /* [n_instrs]; NULL: none */
    ku_exec_notice *notice;
    void *notice_ctx;
};

static void bind_view(const struct ku_exec *e, const struct ku_operand *o, int micro,
                      struct ku_view *v)
{
    const struct ku_buffer *b = &e->program->buffer[o->buffer];
    struct ku_part part;
    ku_program_part(e->program, o, &e->coord, micro, &part);
    v->data = e->memory->base[b->arena] + b->offset + part.offset;
    v->dtype = (enum kumi_dtype)o->dtype;
    v->shape = part.shape;
    KU_ASSERT(b->offset + part.offset +
                  (size_t)ku_shape_count(&part.shape) *
                      kumi_dtype_bytes((enum kumi_dtype)o->dtype) <=
              e->memory->bytes[b->arena]);
    memcpy(v->start, part.start, sizeof v->start);
    memcpy(v->logical, part.logical, sizeof v->logical);
    v->of = part.of;
}

/* 1 if checkpoints contain the buffer. */
static bool is_saved(const struct ku_buffer *b)
{
    return b->cls == KU_CL_PARAM || b->cls == KU_CL_OPTIMIZER || b->cls == KU_CL_BUFFER;
}

static int bind_compute(struct ku_exec *e, const struct ku_instr *i, struct step *s)
{
    const struct ku_program *p = e->program;
    struct ku_call call = {.op = i->op,
                           .n_in = i->n_in,
                           .n_out = i->n_out,
                           .accumulate = i->accumulate,
                           .attr = &p->attr[i->attr],
                           .stream = i->stream};
    KU_ASSERT(i->n_in <= KU_MAX_IN && i->n_out <= KU_MAX_OUT);
    KU_ASSERT(i->operand + i->n_in + i->n_out <= p->n_operands);
    for (int k = 0; k < i->n_in; k++)
        bind_view(e, &p->operand[i->operand + (uint32_t)k], i->micro, &call.in[k]);
    for (int k = 0; k < i->n_out; k++) {
        const struct ku_operand *o = &p->operand[i->operand + i->n_in + (uint32_t)k];
        bind_view(e, o, i->micro, &call.out[k]);
        s->has_barrier |= is_saved(&p->buffer[o->buffer]);
    }
    if (i->workspace)
        call.workspace = e->memory->base[KU_AR_STEP] + p->buffer[i->workspace].offset;
    return e->ops->bind(e->device, &call, &s->kernel);
}

static enum ku_coll_kind kind_of(int exchange)
{
    switch ((enum ku_exchange)exchange) {
    case KU_X_REDUCE_SCATTER:
        return KU_COLL_REDUCE_SCATTER;
    case KU_X_ALL_REDUCE:
        return KU_COLL_ALL_REDUCE;
    case KU_X_BARRIER:
        return KU_COLL_BARRIER;
    case KU_X_ALL_GATHER:
        return KU_COLL_ALL_GATHER;
    case KU_X_SEND:
        return KU_COLL_SEND;
    case KU_X_RECV:
        return KU_COLL_RECV;
    case KU_X_READ:
    case KU_X_WRITE:
    case KU_N_EXCHANGES:
        break;
    }
    return KU_COLL_BARRIER;
}

static void add_squares(void *ctx, int part, void *sum, int64_t count)
{
    const struct squares *s = ctx;
    const struct ku_operand *o = &s->part[part];
    const struct ku_view x = {
        .data = sum, .dtype = (enum kumi_dtype)o->dtype, .shape = ku_shape_of("z", &count)};
    if (o->stats_word)
        s->ops->add_squares(s->device, &x, s->stats, o->stats_word);
}

/* The first input of such a start is the stats to which the squares are added. */
static void bind_squares(struct ku_exec *e, const struct ku_instr *i, struct ku_coll *coll)
{
    const struct ku_buffer *b = &e->program->buffer[e->program->operand[i->operand].buffer];
    struct squares *s = &e->squares[i->handle];
    *s = (struct squares){e->ops, e->device, &e->program->operand[i->operand + i->n_in],
                          (int64_t *)(void *)(e->memory->base[b->arena] + b->offset)};
    coll->see = add_squares;
    coll->see_ctx = s;
}

/* Ranks along these mesh axes. */
static int n_members(const struct ku_mesh *mesh, int axes)
{
    int n = 1;
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        n *= axes >> a & 1 ? mesh->extent[a] : 1;
    return n;
}

/* Several hosts whose ranks share one copy each: the axes of a reduction that leaves the sum on
 * every host, in shards of axis local. 0: other meshes. */
static int shared_axes(const struct ku_mesh *mesh)
{
    const int axes = 1 << KU_AX_REPLICATE | 1 << KU_AX_LOCAL;
    return ku_mesh_wide(mesh, axes) == axes ? axes : 0;
}

/*
 * A buffer as a reference for collectives. Private if its arena is not addressed by peers.
 */
static struct ku_ref ref_of(const struct ku_exec *e, ku_id buffer)
{
    const struct ku_buffer *b = &e->program->buffer[buffer];
    const struct ku_arena *arena = b->arena == KU_AR_WIRE    ? e->memory->wire
                                   : b->arena == KU_AR_SHARD ? e->memory->shard
                                                             : NULL;
    if (ku_arena_is_common(b->arena)) {
        const struct ku_arena *common =
            b->arena == KU_AR_HOST ? e->memory->host : e->memory->gather;
        return (struct ku_ref){.arena = common->id, .flags = KU_ARENA_COMMON, .off = b->offset};
    }
    if (arena == NULL)
        return (struct ku_ref){.flags = KU_ARENA_PRIVATE,
                               .ptr = e->memory->base[b->arena] + b->offset};
    return (struct ku_ref){.arena = arena->id, .off = b->offset};
}

/* Elements of this rank's slice of an operand, before it is divided into chunks. */
static int64_t local_count(const struct ku_exec *e, const struct ku_operand *o)
{
    struct ku_shape local;
    ku_local_shape(&e->program->mesh, &e->program->shape[o->shape], &e->program->layout[o->layout],
                   &e->coord, &local);
    return ku_shape_count(&local);
}

static struct ku_coll_part bind_part(const struct ku_exec *e, const struct ku_operand *o, int kind)
{
    const struct ku_program *p = e->program;
    struct ku_coll_part part = {.in = ref_of(e, o->buffer),
                                .out = ref_of(e, o->out ? o->out : o->buffer),
                                .count = local_count(e, o),
                                .first_block = o->first_block,
                                .block_count = kind == KU_X_ALL_REDUCE ? 0 : KU_BLOCK_COUNT,
                                .has_addend = o->addend != 0};
    if (o->addend) {
        part.addend = ref_of(e, o->addend);
        part.kept |= p->buffer[o->addend].is_kept ? KU_KEPT_ADDEND : 0;
    }
    if (kind == KU_X_ALL_REDUCE && ku_layout_has(&p->layout[o->layout], KU_Z)) {
        struct ku_part own; /* replicas reduce only the chunks that they have in common */
        ku_program_part(p, o, &e->coord, -1, &own);
        part.count = ku_shape_count(&own.shape);
        part.in.off += own.offset;
        part.out.off += own.offset;
        part.kept = 0;
        return part;
    }
    part.kept |= p->buffer[o->buffer].is_kept ? KU_KEPT_IN : 0;
    part.kept |= p->buffer[o->out ? o->out : o->buffer].is_kept ? KU_KEPT_OUT : 0;
    return part;
}

/* The parts of a value that the ranks divide along a dim: one per vector. Returns their number. */
static int bind_split(const struct ku_exec *e, const struct ku_operand *o, int kind,
                      const struct ku_split_parts *split, struct ku_coll_part *part)
{
    const bool is_gather = kind == KU_X_ALL_GATHER;
    const size_t step = (size_t)split->count * kumi_dtype_bytes((enum kumi_dtype)o->dtype);
    KU_ASSERT(o->out && o->addend == 0 && (is_gather || kind == KU_X_REDUCE_SCATTER));
    for (int64_t k = 0; k < split->n; k++) {
        struct ku_coll_part *x = &part[k];
        *x = (struct ku_coll_part){.in = ref_of(e, o->buffer),
                                   .out = ref_of(e, o->out),
                                   .count = split->count,
                                   .block_count = (int32_t)split->chunk,
                                   .kept = is_gather ? KU_KEPT_IN : KU_KEPT_OUT,
                                   .row = k};
        struct ku_ref *whole = is_gather ? &x->out : &x->in;
        if (whole->flags & KU_ARENA_PRIVATE)
            whole->ptr = (unsigned char *)whole->ptr + (size_t)k * step;
        else
            whole->off += (size_t)k * step;
    }
    return (int)split->n;
}

/* The number of parts of a collective. */
static int64_t n_parts_of(const struct ku_program *p, const struct ku_instr *i,
                          const struct ku_coord *coord)
{
    int64_t n = 0;
    for (uint32_t k = 0; k < i->n_parts; k++) {
        struct ku_split_parts split = {.n = 1};
        ku_program_split_parts(p, &p->operand[i->operand + i->n_in + k], i->axes, coord, &split);
        n += split.n;
    }
    return n;
}

static int bind_start(struct ku_exec *e, const struct ku_instr *i, struct ku_coll_part *part,
                      struct step *s)
{
    const struct ku_program *p = e->program;
    struct ku_comm *comm = i->group ? e->comms.group : e->comms.on[i->axes];
    KU_ASSERT(comm != NULL);
    /* no axis is served by the communicator of another one */
    KU_ASSERT(comm->n == (i->group ? i->group : n_members(&p->mesh, i->axes)));
    KU_ASSERT(i->handle > 0 && i->handle <= p->n_handles);
    struct ku_coll coll = {.kind = kind_of(i->op),
                           .reduce = i->reduce == KU_REDUCE_MAX ? KUMI_MAX : KUMI_SUM,
                           .name = p->name_of[i->path],
                           .part = part};
    for (uint32_t k = 0; k < i->n_parts; k++) {
        const struct ku_operand *o = &p->operand[i->operand + i->n_in + k];
        struct ku_split_parts split;
        coll.dtype = (enum kumi_dtype)o->dtype;
        coll.wire = (enum kumi_dtype)i->wire;
        if (ku_program_split_parts(p, o, i->axes, &e->coord, &split))
            coll.n_parts += bind_split(e, o, i->op, &split, &part[coll.n_parts]);
        else
            part[coll.n_parts++] = bind_part(e, o, i->op);
    }
    if (i->op == KU_X_REDUCE_SCATTER && i->axes == shared_axes(&p->mesh))
        coll.n_owners = p->mesh.extent[KU_AX_LOCAL];
    if (i->n_in)
        bind_squares(e, i, &coll);
    s->work = &e->work[i->handle];
    return ku_work_init(s->work, comm, &coll);
}

/* A send to, or a receive from, another coordinate of axis pp. */
static int bind_message(struct ku_exec *e, const struct ku_instr *i, struct step *s)
{
    const struct ku_operand *o = &e->program->operand[i->operand];
    struct ku_comm *comm = e->comms.channel[i->group];
    struct ku_view view;
    KU_ASSERT(comm && comm->n == e->program->mesh.extent[KU_AX_PP] && i->n_parts == 1);
    KU_ASSERT(i->peer >= 0 && i->peer < comm->n && i->peer != comm->me);
    bind_view(e, o, i->micro, &view);
    const struct ku_coll coll = {.kind = kind_of(i->op),
                                 .dtype = view.dtype,
                                 .wire = view.dtype,
                                 .root = i->peer,
                                 .name = e->program->name_of[i->path],
                                 .in = view.data,
                                 .out = view.data,
                                 .count = ku_shape_count(&view.shape)};
    s->work = &e->work[i->handle];
    return ku_work_init(s->work, comm, &coll);
}

/* Binds a read from, or a write to, an offload target. */
static void bind_transfer(struct ku_exec *e, const struct ku_instr *i, struct ku_offload_part *part,
                          struct step *s)
{
    const struct ku_program *p = e->program;
    const struct ku_memory *m = e->memory;
    s->kind = OFFLOAD_START;
    s->transfer = &e->transfer[i->handle];
    *s->transfer = (struct ku_transfer){
        .job = m->job, .file = m->file, .part = part, .is_write = i->op == KU_X_WRITE};
    for (; s->transfer->n < (int)i->n_parts; s->transfer->n++, part++) {
        const struct ku_operand *o = &p->operand[i->operand + (uint32_t)s->transfer->n];
        const struct ku_buffer *b = &p->buffer[o->buffer], *w = &p->buffer[o->out];
        size_t each = kumi_dtype_bytes((enum kumi_dtype)o->dtype);
        *part = (struct ku_offload_part){.at = b->offset +
                                               (size_t)o->piece * (size_t)o->piece_count * each,
                                         .staging = m->base[w->arena] + w->offset,
                                         .bytes = w->bytes};
        KU_ASSERT(ku_arena_is_offload(b->arena) && part->at + part->bytes <= m->bytes[b->arena]);
        KU_ASSERT(w->offset + w->bytes <= m->bytes[w->arena]);
        if (b->arena == KU_AR_OFFLOAD)
            part->host = m->base[KU_AR_OFFLOAD] + part->at;
        s->has_barrier |= s->transfer->is_write && is_saved(b);
    }
}

static int bind_all(struct ku_exec *e)
{
    const struct ku_program *p = e->program;
    struct ku_coll_part *part = e->part;
    struct ku_offload_part *offload_part = e->offload_part;
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        const struct ku_instr *i = &p->instr[at];
        struct step *s = &e->step[at];
        int is_offloaded = i->kind != KU_COMPUTE && ku_exchange_is_offload(i->op);
        switch ((enum ku_instr_kind)i->kind) {
        case KU_COMPUTE:
            s->kind = COMPUTE;
            KU_TRY(bind_compute(e, i, s));
            break;
        case KU_START:
            s->kind = START;
            if (is_offloaded) {
                bind_transfer(e, i, offload_part, s);
                offload_part += i->n_parts;
                break;
            }
            if (ku_exchange_is_message(i->op)) {
                KU_TRY(bind_message(e, i, s));
                break;
            }
            KU_TRY(bind_start(e, i, part, s));
            part += s->work->coll.n_parts;
            break;
        case KU_WAIT:
            s->kind = is_offloaded ? OFFLOAD_WAIT : WAIT;
            if (is_offloaded)
                s->transfer = &e->transfer[i->handle];
            else
                s->work = &e->work[i->handle];
            break;
        }
    }
    KU_ASSERT(part - e->part < e->n_parts && offload_part - e->offload_part < e->n_parts);
    return KUMI_OK;
}

static int make_labels(struct ku_exec *e)
{
    const struct ku_program *p = e->program;
    if (e->memory->job->n == 1)
        return KUMI_OK;
    e->label = ku_calloc((size_t)p->n_instrs + 1, sizeof *e->label);
    for (uint32_t at = 0; at < p->n_instrs && e->label; at++)
        ku_program_instr_text(p, at, (char *)e->label[at].word, sizeof *e->label);
    return e->label ? KUMI_OK : KUMI_ENOMEM;
}

int ku_exec_load(struct ku_memory *memory, const struct ku_program *p,
                 const struct ku_device_ops *ops, void *device, const struct ku_exec_comms *comms,
                 struct ku_exec **out)
{
    struct ku_exec *e = ku_calloc(1, sizeof *e);
    const struct ku_coord coord = ku_mesh_coord(&p->mesh, memory->mesh_rank);
    size_t n_parts = 1;
    if (e == NULL)
        return KUMI_ENOMEM;
    for (uint32_t i = 0; i < p->n_instrs; i++)
        n_parts += (size_t)n_parts_of(p, &p->instr[i], &coord);
    uint32_t first_once = p->n_instrs;
    while (first_once > 0 && p->instr[first_once - 1].micro < 0)
        first_once--;
    *e = (struct ku_exec){.memory = memory,
                          .program = p,
                          .ops = ops,
                          .device = device,
                          .comms = comms ? *comms : (struct ku_exec_comms){.group = NULL},
                          .n_parts = (int64_t)n_parts,
                          .first_once = first_once,
                          .coord = coord};
    e->step = ku_calloc(p->n_instrs + 1, sizeof *e->step);
    e->work = ku_calloc(p->n_handles + 1, sizeof *e->work);
    e->squares = ku_calloc(p->n_handles + 1, sizeof *e->squares);
    e->transfer = ku_calloc(p->n_handles + 1, sizeof *e->transfer);
    e->part = ku_calloc(n_parts, sizeof *e->part);
    e->offload_part = ku_calloc(n_parts, sizeof *e->offload_part);
    int has_all = e->step && e->work && e->squares && e->transfer && e->part && e->offload_part;
    int status = has_all ? bind_all(e) : KUMI_ENOMEM;
    if (status == KUMI_OK)
        status = make_labels(e);
    if (status == KUMI_OK)
        status = ku_poison_create(p, memory->base[KU_AR_STEP], &e->poison);
    if (status == KUMI_OK && comms && !comms->is_alone)
        status = ku_comm_check_hash(comms->alike ? comms->alike : memory->job->world, p->name,
                                    ku_program_hash(p));
    if (status < 0) {
        ku_exec_unload(e);
        return status;
    }
    KU_LOG(EXEC, INFO, "program %s: %u instructions, %u buffers", p->name, p->n_instrs,
           p->n_buffers - 1);
    *out = e;
    return KUMI_OK;
}

void ku_exec_unload(struct ku_exec *e)
{
    if (e == NULL)
        return;
    for (uint32_t i = 0; e->step && i < e->program->n_instrs; i++)
        if (e->step[i].kind == COMPUTE && e->step[i].kernel)
            e->ops->unbind(e->device, e->step[i].kernel);
    for (uint32_t i = 0; e->transfer && i <= e->program->n_handles; i++) {
        int is_started = e->transfer[i].is_started; /* by a run that failed before its wait */
        ku_transfer_end(&e->transfer[i]);
        if (is_started)
            ku_memory_end(e->memory);
    }
    ku_poison_destroy(e->poison);
    ku_free(e->label);
    ku_free(e->step);
    ku_free(e->work);
    ku_free(e->squares);
    ku_free(e->transfer);
    ku_free(e->part);
    ku_free(e->offload_part);
    ku_free(e);
}

/*
 * Called between tiles of a kernel: progresses collectives of other ranks and reports that this
 * rank is alive.
 */
static void between_tiles(void *job)
{
    ku_job_tick(job);
    KU_IGNORE(ku_job_progress(job), "the next wait returns a failure");
}

/* Maps the results of an instruction and calls back. */
static int show(const struct ku_exec *e, uint32_t at, ku_exec_see *see, void *ctx)
{
    const struct ku_instr *i = &e->program->instr[at];
    struct ku_view out[KU_MAX_OUT];
    struct ku_range range[KU_MAX_OUT];
    struct ku_mapping map[KU_MAX_OUT];
    for (int k = 0; k < i->n_out; k++) {
        const struct ku_operand *o = &e->program->operand[i->operand + i->n_in + (uint32_t)k];
        const struct ku_buffer *b = &e->program->buffer[o->buffer];
        bind_view(e, o, i->micro, &out[k]);
        range[k] = ku_memory_buffer(e->memory, b);
        range[k].at = (size_t)((unsigned char *)out[k].data - e->memory->base[b->arena]);
        range[k].bytes = (size_t)ku_shape_count(&out[k].shape) * kumi_dtype_bytes(out[k].dtype);
    }
    KU_TRY(ku_ranges_map(range, i->n_out, KU_ACCESS_READ, map));
    for (int k = 0; k < i->n_out; k++)
        out[k].data = map[k].data;
    see(ctx, i, out);
    return ku_ranges_unmap(map, i->n_out);
}

int ku_exec_run(struct ku_exec *e)
{
    return ku_exec_run_seen(e, NULL, NULL);
}

static int wait(struct ku_exec *e, struct ku_work *work)
{
    const struct ku_job *job = e->memory->job;
    int64_t begin = ku_clock_ns(), moved = ku_job_moved_ns(job);
    KU_TRY(ku_work_wait(work));
    int64_t exposed = ku_clock_ns() - begin;
    e->times.exposed_ns += exposed;
    e->times.wait_ns += exposed - (ku_job_moved_ns(job) - moved);
    return KUMI_OK;
}

/* The staging buffers are accessed until the wait. */
static void start_transfer(struct ku_exec *e, struct ku_transfer *transfer)
{
    int64_t begin = ku_clock_ns();
    ku_memory_begin(e->memory);
    ku_transfer_start(transfer);
    e->times.offload_ns += ku_clock_ns() - begin;
}

static int wait_transfer(struct ku_exec *e, struct ku_transfer *transfer)
{
    int64_t begin = ku_clock_ns();
    int status = ku_transfer_wait(transfer);
    ku_memory_end(e->memory);
    e->times.offload_ns += ku_clock_ns() - begin;
    return status;
}

static int run_one(struct ku_exec *e, const struct step *s)
{
    switch ((enum step_kind)s->kind) {
    case COMPUTE:
        return e->ops->launch(e->device, s->kernel, e->memory->job->n > 1 ? between_tiles : NULL,
                              e->memory->job);
    case START:
        return ku_work_start(s->work);
    case WAIT:
        KU_ASSERT(s->work->state != KU_WORK_IDLE); /* a start precedes its wait */
        return wait(e, s->work);
    case OFFLOAD_START:
        start_transfer(e, s->transfer);
        return KUMI_OK;
    case OFFLOAD_WAIT:
        return wait_transfer(e, s->transfer);
    }
    return KUMI_EBUG;
}

int ku_exec_run_seen(struct ku_exec *e, ku_exec_see *see, void *ctx)
{
    struct ku_job *job = e->memory->job;
    struct ku_flight *flight = e->label ? ku_segment_flight(job->seg, job->local_rank) : NULL;
    int64_t begin = ku_clock_ns(), once = begin, exposed = 0;
    e->times = (struct ku_exec_times){0};
    if (e->poison)
        ku_poison_begin(e->poison, e->memory->bytes[KU_AR_STEP]);
    for (uint32_t at = 0; at < e->program->n_instrs; at++) {
        const struct step *s = &e->step[at];
        if (e->stamp)
            e->stamp[at] = ku_clock_ns();
        if (e->label)
            ku_flight_note(flight, e->label[at].word);
        if (e->poison)
            ku_poison_before(e->poison, at);
        if (at == e->first_once) {
            once = ku_clock_ns();
            exposed = e->times.exposed_ns + e->times.offload_ns;
        }
        if (s->has_barrier && e->write_barrier)
            KU_TRY(e->write_barrier(e->barrier_ctx, at));
        ku_memory_begin(e->memory);
        int status = run_one(e, s);
        ku_memory_end(e->memory);
        KU_TRY(status);
        if (see && s->kind == COMPUTE)
            KU_TRY(show(e, at, see, ctx));
        if (e->notice_of && e->notice_of[at])
            KU_TRY(e->notice(e->notice_ctx, e->notice_of[at]));
    }
    ku_job_tick(job);
    if (e->label)
        ku_flight_note(flight, e->label[e->program->n_instrs].word);
    int64_t end = ku_clock_ns();
    if (e->stamp)
        e->stamp[e->program->n_instrs] = end;
    e->times.run_ns = end - begin;
    e->times.once_ns = end - once - (e->times.exposed_ns + e->times.offload_ns - exposed);
    return KUMI_OK;
}

void ku_exec_set_write_barrier(struct ku_exec *e, ku_exec_write_barrier *write_barrier, void *ctx)
{
    e->write_barrier = write_barrier;
    e->barrier_ctx = ctx;
}

void ku_exec_set_notice(struct ku_exec *e, const uint32_t *of, ku_exec_notice *notice, void *ctx)
{
    e->notice_of = of;
    e->notice = notice;
    e->notice_ctx = ctx;
}

void ku_exec_stamp(struct ku_exec *e, int64_t *stamp)
{
    e->stamp = stamp;
}

struct ku_range ku_exec_port(const struct ku_exec *e, int is_input, const char *name)
{
    return ku_exec_port_at(e, ku_program_find_port(e->program, is_input, name));
}

struct ku_range ku_exec_port_at(const struct ku_exec *e, const struct ku_program_port *port)
{
    if (port == NULL)
        return (struct ku_range){.memory = e->memory};
    const struct ku_buffer *b = &e->program->buffer[port->buffer];
    KU_ASSERT(b->offset + b->bytes <= e->memory->bytes[b->arena]);
    return ku_memory_buffer(e->memory, b);
}

int ku_exec_map_ports(const struct ku_exec *e, const struct ku_program_port *const *port, int n,
                      int access, struct ku_mapping *map)
{
    for (int i = 0; i < n; i++) {
        int status = ku_range_map(ku_exec_port_at(e, port[i]), access, &map[i]);
        if (status < 0) {
            KU_IGNORE(ku_ranges_unmap(map, i), "the first failure is returned");
            return status;
        }
    }
    return KUMI_OK;
}

struct ku_exec_times ku_exec_times(const struct ku_exec *e)
{
    return e->times;
}
