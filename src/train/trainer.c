/* SPDX-License-Identifier: Apache-2.0 */
#include "train/trainer.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/os/os.h"
#include "ckpt/digest.h"
#include "comm/consensus.h"
#include "comm/world.h"
#include "exec/replicas.h"
#include "ir/state.h"
#include "pass/pipe/block_schedule.h"
#include "pass/place/vocabulary.h"
#include "train/plan_proof.h"
#include "train/remote_update.h"

static int note_params(const struct ku_graph *g, char ***params, int *n_params)
{
    char **name = ku_calloc(g->n_tensors, sizeof *name);
    int n = 0;
    if (name == NULL)
        return KUMI_ENOMEM;
    for (ku_id t = 1; t < g->n_tensors; t++) { /* the update pass numbers them in this order */
        const struct ku_tensor *x = &g->tensor[t];
        if (x->kind != KU_T_PARAM || !x->trainable || !x->used)
            continue;
        name[n] = ku_strdup(x->name);
        if (name[n++] == NULL)
            break;
    }
    *params = name;
    *n_params = n;
    return n && name[n - 1] == NULL ? KUMI_ENOMEM : KUMI_OK;
}

const char *ku_trainer_program_name(int program)
{
    static const char *const name[KU_N_PROGS] = {[KU_PROG_TRAIN] = "train",
                                                 [KU_PROG_EVAL] = "eval",
                                                 [KU_PROG_INIT] = "init",
                                                 [KU_PROG_DERIVE] = "derive"};
    return name[program];
}

int ku_trainer_program_find(const char *name)
{
    for (int i = 0; i < KU_N_PROGS; i++)
        if (strcmp(ku_trainer_program_name(i), name) == 0)
            return i;
    return -1;
}

/* Says why the vocabulary of a placed graph is whole on every rank, unless that was asked for. */
static void tell_vocabulary(const struct ku_trainer *t, const struct ku_graph *g,
                            const struct ku_compile_opts *o)
{
    const int tp = ku_mesh_tp(&o->mesh), parts = o->tp_exact ? o->tp_exact : tp;
    bool is_whole = false;
    struct ku_dim tokens = {0};
    for (ku_id i = 1; i < g->n_nodes && !is_whole; i++) {
        if (g->node[i].op != KU_OP_embedding)
            continue;
        const struct ku_value *table = &g->value[ku_in(g, &g->node[i], 0)];
        if (ku_shape_find(&g->shape[table->shape], 'v') != 0)
            continue;
        is_whole = g->layout[table->layout].at[KU_AX_TP].kind != KU_S;
        tokens = g->shape[table->shape].dim[0];
    }
    if (t->job->rank != 0 || !is_whole || tp == 1 || !o->is_training || o->whole_vocabulary ||
        o->plan.n)
        return;
    if (tokens.count % parts && !ku_vocabulary_can_grow(g, &tokens))
        KU_MESSAGE(INFO,
                   "kumi: %s: %d does not divide the vocabulary of %lld tokens, which cannot be "
                   "padded: token table, output layer and loss are whole on every rank",
                   o->tp_exact ? "parallel.tp_exact" : "parallel.tp", parts,
                   (long long)tokens.count);
    else
        KU_MESSAGE(INFO, "kumi: parallel.tp: more than the loss reads the logits: token table, "
                         "output layer and loss are whole on every rank");
}

/* Says that the ranks of axis tp of a placed graph divide nothing. */
static void tell_undivided(const struct ku_trainer *t, const struct ku_graph *g,
                           const struct ku_compile_opts *o)
{
    const int tp = ku_mesh_tp(&o->mesh);
    for (ku_id i = 1; i < g->n_tensors; i++)
        if (g->layout[g->value[g->tensor[i].value].layout].at[KU_AX_TP].kind == KU_S)
            return;
    if (t->job->rank == 0 && tp > 1 && o->is_training)
        KU_MESSAGE(INFO,
                   "kumi: parallel.tp: %d: no layer of this model is divided: the %d ranks of a "
                   "group compute the same, which costs time and memory and changes no bits",
                   tp, tp);
}

/* The programs of one coordinate of axis pp, from compiled graphs; eval may be NULL. */
static int lower(const struct ku_graph *graph, const struct ku_graph *eval,
                 const struct ku_compile_opts *o, const struct ku_target *target, unsigned which,
                 struct ku_program **program)
{
    struct ku_compile_opts for_eval = *o;
    for_eval.is_training = 0;
    KU_TRY(ku_compile_program(graph, o->is_training ? "train" : "eval", o, target,
                              &program[KU_PROG_TRAIN]));
    if (eval)
        KU_TRY(ku_compile_program(eval, "eval", &for_eval, target, &program[KU_PROG_EVAL]));
    for (int i = KU_PROG_INIT; i <= KU_PROG_DERIVE; i++)
        if (which & 1u << i)
            KU_TRY(ku_compile_init(graph, i == KU_PROG_DERIVE, o, target, &program[i]));
    return KUMI_OK;
}

int ku_trainer_plan_at(struct ku_graph *graph, const struct ku_compile_opts *o, uint64_t at,
                       const struct ku_target *target, unsigned which, struct ku_program **program)
{
    struct ku_graph *eval = NULL;
    struct ku_compile_opts here = *o, for_eval = *o;
    int status = KUMI_OK;
    KU_ASSERT(which & 1u << KU_PROG_TRAIN);
    for_eval.is_training = 0;
    if (which & 1u << KU_PROG_EVAL)
        KU_TRY(ku_graph_copy(graph, &eval));
    KU_TRY_OUT(ku_compile_graph(graph, o, target, NULL));
    if (eval)
        KU_TRY_OUT(ku_compile_graph(eval, &for_eval, target, NULL));
    for (here.pp = 0; here.pp < o->mesh.extent[KU_AX_PP]; here.pp++) {
        if (!(at >> here.pp & 1))
            continue;
        KU_TRY_OUT(lower(graph, eval, &here, target, which, program));
        program += KU_N_PROGS;
    }
out:
    ku_graph_destroy(eval);
    return status;
}

int ku_trainer_plan(struct ku_graph *graph, const struct ku_compile_opts *o,
                    const struct ku_target *target, unsigned which, struct ku_program **program)
{
    return ku_trainer_plan_at(graph, o, UINT64_C(1) << o->pp, target, which, program);
}

static int by_place(const void *a, const void *b)
{
    const struct ku_program_state *x = *(const struct ku_program_state *const *)a,
                                  *y = *(const struct ku_program_state *const *)b;
    if (x->arena != y->arena)
        return x->arena < y->arena ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/*
 * Record `at` as the first write of each state at b's position. place: states, sorted by position.
 */
static void note_write(const struct ku_program *p, const struct ku_program_state *const *place,
                       const struct ku_buffer *b, uint32_t at, uint32_t *turn)
{
    uint32_t low = 0, high = p->n_states;
    const struct ku_program_state key = {.arena = b->arena, .offset = b->offset}, *const wanted =
                                                                                      &key;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (by_place(&place[mid], &wanted) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    for (; low < p->n_states && by_place(&place[low], &wanted) == 0; low++) {
        size_t s = (size_t)(place[low] - p->state);
        if (place[low]->bytes == b->bytes && turn[s] == 0)
            turn[s] = ku_trainer_turn(p, at);
    }
}

/*
 * [n_states]: turn of the first instruction that writes a tensor of the state; 0: none. NULL: no
 * memory.
 */
static uint32_t *first_writes(const struct ku_program *p)
{
    uint32_t *turn = ku_calloc(p->n_states + 1, sizeof *turn);
    const struct ku_program_state **place = ku_calloc(p->n_states + 1, sizeof *place);
    for (uint32_t s = 0; s < p->n_states && place; s++)
        place[s] = &p->state[s];
    if (place && p->n_states)
        qsort(place, p->n_states, sizeof *place, by_place);
    for (uint32_t at = 0; at < p->n_instrs && turn && place; at++) {
        const struct ku_instr *i = &p->instr[at];
        uint32_t n = i->kind == KU_COMPUTE                        ? i->n_out
                     : i->kind == KU_START && i->op == KU_X_WRITE ? i->n_parts
                                                                  : 0;
        for (uint32_t k = i->n_in; k < i->n_in + n; k++)
            note_write(p, place, &p->buffer[p->operand[i->operand + k].buffer], at, turn);
    }
    if (place == NULL) {
        ku_free(turn);
        turn = NULL;
    }
    ku_free(place);
    return turn;
}

static struct ku_range range_of(const struct ku_ckpt_store *s, uint64_t at, size_t bytes)
{
    return (struct ku_range){s->ctx, s->arena, s->rank, at, bytes};
}

static int move_stored(const struct ku_ckpt_store *s, int is_write, uint64_t at, void *data,
                       size_t bytes)
{
    const struct ku_range r = range_of(s, at, bytes);
    return is_write ? ku_range_write(r, data) : ku_range_read(r, data);
}

static int map_stored(const struct ku_ckpt_store *s, uint64_t at, size_t bytes, void **data)
{
    struct ku_mapping map;
    KU_TRY(ku_range_map(range_of(s, at, bytes), KU_ACCESS_WRITE, &map));
    *data = map.data;
    return KUMI_OK;
}

static int unmap_stored(const struct ku_ckpt_store *s, uint64_t at, size_t bytes, void *data)
{
    struct ku_mapping map = {range_of(s, at, bytes), KU_ACCESS_WRITE, data};
    return ku_range_unmap(&map);
}

/* [KU_N_ARENAS][local_n]: the arenas of the local ranks, as checkpoints read and write them. */
static void list_stores(const struct ku_memory *m, struct ku_ckpt_store *store)
{
    for (int a = 0; a < KU_N_ARENAS; a++)
        for (int r = 0; r < m->job->local_n; r++, store++) {
            *store = (struct ku_ckpt_store){.move = move_stored, .ctx = m, .arena = a, .rank = r};
            if (a != KU_AR_FILE) {
                store->map = map_stored;
                store->unmap = unmap_stored;
            }
        }
}

/* Part of a tensor in local rank r's arena, from byte `at` of the tensor on. */
static struct ku_ckpt_part part_of(const struct ku_program_state *x, const struct ku_memory *memory,
                                   const struct ku_ckpt_store *store, int r, size_t at)
{
    return (struct ku_ckpt_part){.store = &store[x->arena * memory->job->local_n + r],
                                 .at = x->offset + at};
}

/* Up to three parts for elements [begin, end) of a rank's slice: the rest of a run, whole runs, the
 * begin of one. at: of element `begin`. Returns their number. */
enum { MOST_PARTS = 4 }; /* of a rank: those, and a copy */
static int cut_runs(const struct ku_runs *r, int64_t begin, int64_t end, size_t each,
                    struct ku_ckpt_part at, struct ku_ckpt_part *part)
{
    int n = 0;
    for (int64_t len; begin < end; begin += len, n++) {
        const int64_t in_run = begin % r->run, rest = end - begin;
        const bool is_whole = in_run == 0 && rest >= r->run;
        const int64_t to_end = r->run - in_run;
        len = is_whole ? rest / r->run * r->run : to_end < rest ? to_end : rest;
        part[n] = at;
        part[n].begin = ku_runs_at(r, begin);
        part[n].end = ku_runs_at(r, begin + len - 1) + 1;
        if (is_whole)
            part[n].run = r->run, part[n].pitch = r->pitch;
        at.at += (uint64_t)len * each;
    }
    return n;
}

/* The parts for elements [begin, end) of a tensor, or of the slice that `rank` has of it. */
static int cut_part(const struct ku_program *p, const struct ku_program_state *x, int rank,
                    int64_t begin, int64_t end, struct ku_ckpt_part at, struct ku_ckpt_part *part)
{
    const struct ku_coord coord = ku_mesh_coord(&p->mesh, rank);
    struct ku_runs r = {0};
    if (x->split)
        r = ku_runs_of(&p->mesh, &p->shape[x->shape], &p->layout[x->split], &coord);
    if (r.run)
        return cut_runs(&r, begin, end, kumi_dtype_bytes((enum kumi_dtype)x->dtype), at, part);
    *part = at;
    part->begin = begin, part->end = end;
    return begin < end;
}

/*
 * Lists where the elements of a tensor are in the arenas of the local ranks: first the owned
 * shards, then the copies of tensors that every rank has in full (of a replica only its own).
 * Returns their number.
 *
 *   store   of list_stores
 */
static int list_parts(const struct ku_program *p, const struct ku_program_state *x,
                      const struct ku_memory *memory, const struct ku_ckpt_store *store,
                      struct ku_ckpt_part *part)
{
    const int64_t count = ku_program_slice_count(&p->mesh, &p->shape[x->shape],
                                                 &p->layout[x->split ? x->split : x->blocks]);
    const int first = memory->job->first_rank;
    size_t each = kumi_dtype_bytes((enum kumi_dtype)x->dtype);
    int n = 0, is_alone = !ku_state_is_addressed(&p->mesh);
    for (int r = 0; r < memory->job->local_n && x->blocks; r++) {
        struct ku_coord at = ku_mesh_coord(&p->mesh, first + r);
        int64_t begin, end;
        if (!ku_state_is_here(x, at.at[KU_AX_PP]))
            continue;
        ku_state_owned(p, x, &at, &begin, &end);
        n +=
            cut_part(p, x, first + r, begin, end,
                     part_of(x, memory, store, r, x->is_kept ? 0 : (size_t)begin * each), &part[n]);
    }
    for (int r = 0; r < memory->job->local_n && !x->is_kept; r++) {
        const struct ku_coord at = ku_mesh_coord(&p->mesh, memory->job->first_rank + r);
        if ((is_alone && r != memory->job->local_rank) || !ku_state_is_here(x, at.at[KU_AX_PP]))
            continue;
        n += cut_part(p, x, first + r, 0, count, part_of(x, memory, store, r, 0), &part[n]);
    }
    return n;
}

/* Which ranks have the elements of a tensor, if a host may lack some; n_owners 0: none does. */
static struct ku_ckpt_owners owners_of(const struct ku_program *p, const struct ku_program_state *x)
{
    const struct ku_mesh *m = &p->mesh;
    const int tp = ku_mesh_tp(m), n_owners = x->is_kept ? ku_state_n_owners(m) : 1;
    const int stage = ku_mesh_n_ranks(m) / m->extent[KU_AX_PP];
    const struct ku_coord zero = {0};
    struct ku_runs r = {0};
    if (!x->is_kept && !x->split && m->extent[KU_AX_PP] == 1)
        return (struct ku_ckpt_owners){0};
    KU_ASSERT(!x->is_kept || ku_mesh_wide(m, ku_layout_axes(&p->layout[x->blocks], KU_Z)) ==
                                 ku_state_owner_axes(m));
    KU_ASSERT(m->extent[KU_AX_PP] == 1 || x->pp >= 0); /* only counters are on all coordinates */
    if (x->split)
        r = ku_runs_of(m, &p->shape[x->shape], &p->layout[x->split], &zero);
    const bool is_shared = p->layout[x->split].at[KU_AX_TPI].kind != KU_S;
    const int copy_stride = x->is_kept || x->split ? n_owners * tp : 1;
    return (struct ku_ckpt_owners){.n_owners = n_owners,
                                   .block_count = KU_BLOCK_COUNT,
                                   .first_block = x->first_block,
                                   .first = x->pp > 0 ? x->pp * stage : 0,
                                   .n_copies = stage / copy_stride,
                                   .copy_stride = copy_stride,
                                   .n_slice_ranks = tp,
                                   .slice_stride = is_shared ? m->extent[KU_AX_TPI] : 1,
                                   .run = r.run,
                                   .pitch = r.run ? r.pitch : 0};
}

void ku_trainer_describe_one(const struct ku_program *p, const struct ku_graph *g,
                             const struct ku_program_state *x, bool is_spread,
                             struct ku_ckpt_tensor *out)
{
    const ku_id id = ku_graph_find_tensor(g, p->name_of[x->name]);
    const struct ku_shape *shape = &p->shape[x->shape];
    out->name = p->name_of[x->name];
    out->dtype = (enum kumi_dtype)x->dtype;
    out->group = x->kind == KU_T_OPTIMIZER ? KU_CKPT_OPTIMIZER : KU_CKPT_MODEL;
    out->ndim = ku_tensor_file_shape(g, id, out->dim);
    memcpy(out->padded, out->dim, sizeof out->padded);
    /* only a first dim is padded: kumi_init.pad_first */
    if (out->ndim && shape->dim[0].seen)
        out->padded[0] = out->dim[0] / shape->dim[0].seen * shape->dim[0].count;
    if (is_spread)
        out->owner = owners_of(p, x);
}

int ku_trainer_describe(const struct ku_program *p, const struct ku_graph *g,
                        const struct ku_memory *memory, struct ku_ckpt_tensor **tensor, int *n)
{
    const size_t n_local = (size_t)memory->job->local_n, n_states = p->n_states + 1;
    struct ku_ckpt_tensor *list = ku_calloc(
        1, n_states * (sizeof *list + MOST_PARTS * n_local * sizeof(struct ku_ckpt_part)) +
               KU_N_ARENAS * n_local * sizeof(struct ku_ckpt_store));
    uint32_t *turn = list ? first_writes(p) : NULL;
    if (turn == NULL) {
        ku_free(list);
        return KUMI_ENOMEM;
    }
    struct ku_ckpt_part *part = (struct ku_ckpt_part *)(void *)&list[n_states];
    struct ku_ckpt_store *store =
        (struct ku_ckpt_store *)(void *)&part[MOST_PARTS * n_local * n_states];
    list_stores(memory, store);
    const bool is_spread = ku_trainer_is_spread(p, memory->job);
    *n = 0;
    for (uint32_t s = 0; s < p->n_states; s++) {
        const struct ku_program_state *x = &p->state[s];
        if (!ku_trainer_is_saved(x))
            continue;
        struct ku_ckpt_tensor *out = &list[(*n)++];
        ku_trainer_describe_one(p, g, x, is_spread, out);
        out->part = part;
        if (x->arena == KU_AR_SHARD || ku_arena_is_offload(x->arena)) {
            out->n_parts = list_parts(p, x, memory, store, part);
        } else {
            part[0] = part_of(x, memory, store, memory->job->local_rank, 0);
            part[0].end = ku_shape_count(&p->shape[x->shape]);
            out->n_parts = 1;
        }
        part += out->n_parts;
        /* coordinates of axis pp number instructions differently: all is copied before updates */
        out->turn = p->mesh.extent[KU_AX_PP] > 1 ? 1 : turn[s];
    }
    ku_free(turn);
    *tensor = list;
    return KUMI_OK;
}

/*
 * All programs, each once. The caller frees the array; NULL: no memory.
 */
static const struct ku_program **all_programs(const struct ku_trainer *t, int *n)
{
    const struct ku_program **all = ku_calloc((size_t)(2 * t->n_shapes + KU_N_PROGS), sizeof *all);
    *n = 0;
    for (int p = KU_PROG_INIT; p < KU_N_PROGS && all; p++)
        all[(*n)++] = t->program[p];
    for (int i = 0; i < t->n_shapes && all; i++)
        for (int p = 0; p < 2; p++)
            if (t->shape[i].program[p])
                all[(*n)++] = t->shape[i].program[p];
    return all;
}

size_t ku_trainer_host_bytes(const struct ku_trainer *t)
{
    size_t most[KU_N_ARENAS] = {0}, total = 0;
    for (int a = 0; a < KU_N_ARENAS; a++) { /* programs use the same arenas in turn */
        for (int p = 0; p < KU_N_PROGS; p++)
            if (t->program[p] && t->program[p]->arena_bytes[a] > most[a])
                most[a] = t->program[p]->arena_bytes[a];
        for (int i = 0; i < 2 * t->n_shapes; i++) {
            const struct ku_program *p = t->shape[i / 2].program[i % 2];
            if (p && p->arena_bytes[a] > most[a])
                most[a] = p->arena_bytes[a];
        }
        if (a != KU_AR_FILE)
            total += ku_arena_is_common(a) ? most[a] : most[a] * (size_t)t->job->local_n;
    }
    return total + t->pool_bytes +
           (t->staging_bytes + t->loader_bytes + t->inbox_bytes) * (size_t)t->job->local_n;
}

/*
 * The bytes of a step. What several hosts need: the chunk pools of this host's ranks for exchanges,
 * and the bytes that each gets from other hosts for a checkpoint.
 */
static int plan_hosts(struct ku_trainer *t, const struct ku_graph *g)
{
    const struct ku_job *job = t->job;
    const struct ku_program *p = t->program[KU_PROG_TRAIN];
    struct ku_host_ranks *host;
    int status = KUMI_OK;
    KU_TRY(ku_hosts_of_job(job, &host));
    for (int r = 0; r < job->local_n && host && status == KUMI_OK; r++) {
        size_t bytes;
        status = ku_plan_far_pool(&p->mesh, host, job->n_hosts, job->first_rank + r,
                                  ku_far_full_rate(job, NULL), &bytes);
        t->pool_bytes += status == KUMI_OK ? bytes : 0;
    }
    if (status == KUMI_OK)
        status = ku_plan_step_bytes(p, host, job->n_hosts, &t->planned);
    if (host && status == KUMI_OK && t->is_training)
        status = ku_trainer_inbox_bytes(p, g, host, job->n_hosts, &t->inbox_bytes);
    ku_free(host);
    return status;
}

/* Check the plan against the available memory. */
static int check_memory(const struct ku_trainer *t)
{
    struct ku_memory_report r;
    size_t total = ku_trainer_host_bytes(t);
    total += total / 4096 * 8 * (size_t)t->job->local_n; /* page tables: 8 bytes per page */
    uint64_t free_bytes = ku_os_mem_available();
    if (total <= free_bytes)
        return KUMI_OK;
    ku_program_memory(t->program[KU_PROG_TRAIN], &r);
    double gib = 1.0 / (1 << 30);
    const bool has_hosts = t->job->n_hosts > 1;
    return KU_ERR(
        KUMI_ENOMEM,
        "memory: plan of %d rank%s on %s%s: %.2f GiB, available %.2f GiB, short of %.2f; per "
        "rank state "
        "%.2f, gradients %.2f, activations %.2f, workspace %.2f GiB; lower train.micro_batch or "
        "the ranks",
        t->job->local_n, t->job->local_n == 1 ? "" : "s", has_hosts ? "host " : "this ",
        has_hosts ? ku_job_hosts(t->job)[t->job->host].name : "host", (double)total * gib,
        (double)free_bytes * gib, (double)(total - free_bytes) * gib,
        (double)(r.at_peak[KU_CL_PARAM] + r.at_peak[KU_CL_OPTIMIZER] + r.at_peak[KU_CL_DERIVED]) *
            gib,
        (double)(r.at_peak[KU_CL_GRAD] + r.at_peak[KU_CL_PARTIAL]) * gib,
        (double)(r.at_peak[KU_CL_ACTIVATION] + r.at_peak[KU_CL_ADJOINT]) * gib,
        (double)r.at_peak[KU_CL_WORKSPACE] * gib);
}

static int load(struct ku_trainer *t, const struct ku_program *program, struct ku_exec **exec)
{
    return ku_exec_load(t->memory, program, t->ops, t->device, t->job->n > 1 ? &t->comms : NULL,
                        exec);
}

/*
 * Programs of all shapes share the state, and a checkpoint's turns are those of any of them: both
 * must be equal. Forward and backward may differ: what is recomputed depends on the shape.
 */
static int check_shape(const struct ku_program *a, const struct ku_program *b, int i)
{
    int same = a->n_states == b->n_states;
    uint32_t *turn = first_writes(a), *other = first_writes(b);
    int is_made = turn && other;
    for (uint32_t s = 0; s < a->n_states && same && is_made; s++)
        same = a->state[s].offset == b->state[s].offset && a->state[s].bytes == b->state[s].bytes &&
               turn[s] == other[s];
    ku_free(turn);
    ku_free(other);
    if (!is_made)
        return KUMI_ENOMEM;
    return same ? KUMI_OK
                : KU_ERR(KUMI_EINVAL,
                         "trainer: batch shape %d: the parameters or layers of its model differ "
                         "from those of shape 0",
                         i);
}

/*
 * What rank 0 has checked is what this rank runs: it compiled the programs of all coordinates of
 * axis pp itself.
 */
static int compare_checked(const struct ku_trainer *t, const struct ku_program *const *program,
                           uint64_t *hash)
{
    const struct ku_mesh *m = &program[KU_PROG_TRAIN]->mesh;
    const int pp = program[KU_PROG_TRAIN]->pp;
    KU_TRY(ku_agree_bytes(t->job, hash, (size_t)m->extent[KU_AX_PP] * KU_N_PROGS * sizeof *hash));
    for (int i = 0; i < KU_N_PROGS; i++)
        if (program[i] && ku_program_hash(program[i]) != hash[pp * KU_N_PROGS + i])
            return KU_ERR(KUMI_EMISMATCH,
                          "program %s of coordinate %d of axis pp is not the one that rank 0 has "
                          "checked; start every rank with the same build and configuration",
                          program[i]->name, pp);
    return KUMI_OK;
}

/* Whether the program is one side of a parameter server: it has no evaluation. */
static bool is_remote(const struct ku_compile_opts *o)
{
    return o->remote.update_by != KU_UPDATE_HERE;
}

/*
 * Compile the programs of a batch shape. Rank 0 checks them, which are the same for all ranks of a
 * coordinate of axis pp (they compare their hashes), and all learn the verdict.
 */
static int plan_shape(struct ku_trainer *t, struct ku_graph *graph, const struct ku_trainer_opts *o,
                      unsigned which, struct ku_program **program)
{
    const struct ku_target target = {.query = o->device->query, .ranks_per_host = t->job->local_n};
    struct ku_check_report report[KU_N_PROGS] = {{0}}, *const r = &report[KU_PROG_TRAIN];
    struct ku_graph *model = NULL;
    int status = KUMI_OK;
    const struct ku_program *const *own = (const struct ku_program *const *)program;
    const bool is_piped = o->compile.mesh.extent[KU_AX_PP] > 1;
    uint64_t hash[KU_MAX_PP * KU_N_PROGS] = {0};
    if (t->job->rank == 0)
        KU_TRY(ku_graph_copy(graph, &model));
    KU_TRY_OUT(ku_trainer_plan(graph, &o->compile, &target, which, program));
    if (model == NULL) {
        status = is_piped ? compare_checked(t, own, hash) : KUMI_OK;
        goto out;
    }
    KU_TRY_OUT(ku_trainer_prove_job(model, &o->compile, &target, which, own, hash, report));
    if (is_piped)
        KU_TRY_OUT(compare_checked(t, own, hash));
    int64_t ns = 0;
    for (int i = 0; i < KU_N_PROGS; i++)
        ns += report[i].ns;
    KU_LOG(TRAIN, INFO, "check: %u instructions, %u collectives, %u gradients: proved in %.1f ms",
           r->n_instrs, r->n_collectives, r->n_gradients, (double)ns * 1e-6);
out:
    ku_graph_destroy(model);
    return status;
}

static int plan(struct ku_trainer *t, struct ku_graph *const *graph, int n,
                const struct ku_trainer_opts *o)
{
    int64_t begin = ku_clock_ns();
    t->shape = ku_calloc((size_t)n, sizeof *t->shape);
    if (t->shape == NULL)
        return KUMI_ENOMEM;
    const unsigned eval = is_remote(&o->compile) ? 0 : 1u << KU_PROG_EVAL;
    KU_TRY(plan_shape(t, graph[0], o, KU_TRAIN_PROGS | eval, t->program));
    KU_TRY(note_params(graph[0], &t->param, &t->n_params));
    tell_vocabulary(t, graph[0], &o->compile);
    tell_undivided(t, graph[0], &o->compile);
    for (int i = 0; i < n; i++) {
        struct ku_program **program = t->shape[t->n_shapes++].program;
        if (i == 0)
            memcpy(program, t->program, sizeof t->shape->program);
        else
            KU_TRY(plan_shape(t, graph[i], o, 1u << KU_PROG_TRAIN | eval, program));
        KU_TRY(check_shape(t->program[KU_PROG_TRAIN], program[KU_PROG_TRAIN], i));
    }
    t->compile_ns = ku_clock_ns() - begin;
    KU_TRY(plan_hosts(t, graph[0]));
    return check_memory(t);
}

/* The mesh axes of the communicators that programs and replica checks need: bit m for mask m. */
static uint64_t axes_in_use(const struct ku_program *const *program, int n)
{
    uint64_t masks = 0;
    _Static_assert(1 << KU_AX_FIRST_TIME <= 64, "a bit per mask of rank axes");
    for (int k = 0; k < n; k++) {
        const struct ku_program *p = program[k];
        for (uint32_t i = 0; i < p->n_instrs; i++)
            if (p->instr[i].kind == KU_START && !ku_exchange_is_offload(p->instr[i].op) &&
                !ku_exchange_is_message(p->instr[i].op) && p->instr[i].group == 0)
                masks |= UINT64_C(1) << p->instr[i].axes;
        for (uint32_t i = 0; i < p->n_states; i++)
            masks |= UINT64_C(1) << ku_state_replica_axes(p, &p->state[i]);
    }
    return masks & ~UINT64_C(1);
}

/*
 * The channels between the coordinates of axis pp, and the ranks of this coordinate, which run the
 * same programs.
 */
static int open_channels(struct ku_trainer *t, const struct ku_program *const *program, int n)
{
    const struct ku_mesh *m = &program[0]->mesh;
    const int pp = m->extent[KU_AX_PP], stride = t->job->n / pp;
    int64_t in_use[KU_MAX_CHANNELS] = {0};
    if (pp == 1)
        return KUMI_OK;
    for (int k = 0; k < n; k++)
        for (uint32_t i = 0; i < program[k]->n_instrs; i++) {
            const struct ku_instr *x = &program[k]->instr[i];
            if (x->kind == KU_START && ku_exchange_is_message(x->op))
                in_use[x->group] = 1;
        }
    KU_TRY(ku_agree_sum(t->job, in_use, KU_MAX_CHANNELS));
    for (int c = 0; c < KU_MAX_CHANNELS; c++)
        if (in_use[c])
            KU_TRY(ku_comm_mesh(t->job, "pp", t->job->rank % stride, stride, pp,
                                &t->comms.channel[c]));
    t->comms.is_alone = stride == 1;
    return stride == 1 ? KUMI_OK
                       : ku_comm_mesh(t->job, "stage", t->job->rank / stride * stride, 1, stride,
                                      &t->comms.alike);
}

/* The communicator of this rank along some axes of the mesh; the names of the axes are its name. */
static int open_comm(struct ku_trainer *t, const struct ku_mesh *m, int axes)
{
    struct ku_coord first = ku_mesh_coord(m, t->job->rank), second, last;
    struct ku_str name = {0};
    int n = 1, innermost = 0;
    if (axes == ku_mesh_wide(m, (1 << KU_AX_FIRST_TIME) - 1)) {
        t->comms.on[axes] = t->job->world;
        return KUMI_OK;
    }
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (axes >> a & 1) {
            KU_ASSERT(m->extent[a] > 1);
            ku_str_add(&name, "%s%s", n > 1 ? "," : "", ku_axis_name(a));
            first.at[a] = 0;
            n *= m->extent[a];
            innermost = a;
        }
    second = last = first;
    second.at[innermost] = 1;
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        last.at[a] = axes >> a & 1 ? m->extent[a] - 1 : first.at[a];
    const int from = ku_mesh_rank(m, &first), stride = ku_mesh_rank(m, &second) - from;
    const bool is_even = ku_mesh_rank(m, &last) == from + stride * (n - 1);
    int status = is_even
                     ? ku_comm_mesh(t->job, ku_str_get(&name), from, stride, n, &t->comms.on[axes])
                     : ku_comm_split(t->job->world, from, t->job->rank, ku_str_get(&name),
                                     &t->comms.on[axes]);
    ku_str_fini(&name);
    return status;
}

static int open_comms(struct ku_trainer *t, const struct ku_program *const *program, int n,
                      int group)
{
    const struct ku_mesh *m = &t->program[KU_PROG_TRAIN]->mesh;
    const uint64_t masks = axes_in_use(program, n);
    const int rank = t->job->rank, stride = m->extent[KU_AX_LOCAL] * ku_mesh_tp(m);
    const int from = rank - ku_mesh_coord(m, rank).at[KU_AX_SHARD] % (group ? group : 1) * stride;
    if (group)
        KU_TRY(ku_comm_mesh(t->job, "group", from, stride, group, &t->comms.group));
    for (int axes = 1; axes < 1 << KU_AX_FIRST_TIME; axes++)
        if (masks >> axes & 1)
            KU_TRY(open_comm(t, m, axes));
    return open_channels(t, program, n);
}

/* Resolve the names of the ports of steps, in all shapes. */
static void find_ports(struct ku_trainer *t)
{
    static const char *const name[KU_N_STEP_PORTS] = {
        [KU_PORT_CONTROL] = "control",       [KU_PORT_REPORT] = "report",
        [KU_PORT_STATS] = "stats",           [KU_PORT_LOSS_SUM] = "loss_sum",
        [KU_PORT_LOSS_VALID] = "loss_valid",
    };
    for (int i = 0; i < 2 * t->n_shapes; i++) {
        struct ku_trainer_shape *s = &t->shape[i / 2];
        for (int k = 0; k < KU_N_STEP_PORTS; k++)
            s->port[i % 2][k] =
                s->program[i % 2]
                    ? ku_program_find_port(s->program[i % 2], k == KU_PORT_CONTROL, name[k])
                    : NULL;
    }
}

struct ku_range ku_trainer_step_port(const struct ku_trainer *t, enum ku_trainer_program p,
                                     enum ku_step_port port)
{
    return ku_exec_port_at(t->exec[p], t->shape[t->shape_at].port[p][port]);
}

static int build(struct ku_trainer *t, struct ku_graph *const *graph, int n,
                 const struct ku_trainer_opts *o)
{
    int n_programs;
    KU_TRY(plan(t, graph, n, o));
    KU_TRY(ku_trainer_note_metrics(t, graph));
    KU_TRY(t->ops->open(&o->device_opts, &t->device));
    const struct ku_program **all = all_programs(t, &n_programs);
    int status =
        all ? ku_memory_create(t->job, t->ops, t->device, all, n_programs, &o->target, &t->memory)
            : KUMI_ENOMEM;
    if (status == KUMI_OK && o->compile.remote.update_by == KU_UPDATE_WORKER)
        t->memory->mesh_rank = o->worker;
    else if (status == KUMI_OK)
        status = open_comms(t, all, n_programs, ku_zero_group(&o->compile));
    ku_free(all);
    KU_TRY(status);
    KU_TRY(ku_trainer_describe(t->program[KU_PROG_TRAIN], graph[0], t->memory, &t->tensor,
                               &t->n_tensors));
    ku_trainer_note_scalars(t);
    find_ports(t);
    for (int i = 0; i < n; i++)
        for (int p = t->is_training ? 0 : 1; p < (o->no_eval ? 1 : 2); p++)
            if (t->shape[i].program[p])
                KU_TRY(load(t, t->shape[i].program[p], &t->shape[i].exec[p]));
    ku_trainer_use(t, 0);
    return is_remote(&o->compile) ? ku_remote_layout_create(graph[0], &o->compile, &t->remote)
                                  : KUMI_OK;
}

void ku_trainer_use(struct ku_trainer *t, int i)
{
    KU_ASSERT(i >= 0 && i < t->n_shapes);
    t->shape_at = i;
    memcpy(t->program, t->shape[i].program, sizeof t->shape->program);
    memcpy(t->exec, t->shape[i].exec, sizeof t->shape->exec);
}

int ku_trainer_create(struct ku_job *job, struct ku_graph *const *graph, int n,
                      const struct ku_trainer_opts *o, struct ku_trainer **out)
{
    struct ku_trainer *t = ku_calloc(1, sizeof *t);
    int status = t ? KUMI_OK : KUMI_ENOMEM;
    struct ku_trainer_opts own = *o;
    KU_ASSERT(o->compile.remote.update_by != KU_UPDATE_SERVER ||
              (o->compile.zero == 3 && o->compile.persist_below == 0));
    own.compile.pp = ku_mesh_coord(&o->compile.mesh, job->rank).at[KU_AX_PP];
    if (t) {
        t->job = job;
        t->ops = o->device;
        t->seed = o->seed;
        t->staging_bytes = o->staging_bytes;
        t->loader_bytes = o->loader_bytes;
        t->isa = o->device_opts.isa;
        t->is_training = o->compile.is_training;
        t->n_threads = o->device_opts.n_threads;
        status = build(t, graph, n, &own);
    }
    for (int i = 0; i < n; i++)
        ku_graph_destroy(graph[i]);
    if (status < 0) {
        if (job->n > 1) /* the other ranks wait for this one: tell them why */
            status = ku_job_fail(job);
        ku_trainer_destroy(t);
        return status;
    }
    *out = t;
    return KUMI_OK;
}

void ku_trainer_destroy(struct ku_trainer *t)
{
    if (t == NULL)
        return;
    for (int i = 0; i < 2 * t->n_shapes; i++)
        ku_exec_unload(t->shape[i / 2].exec[i % 2]);
    for (int p = KU_PROG_INIT; p < KU_N_PROGS; p++)
        ku_exec_unload(t->exec[p]);
    ku_memory_destroy(t->memory);
    KU_IGNORE(ku_comm_destroy(t->comms.group), "the job keeps its cause");
    KU_IGNORE(ku_comm_destroy(t->comms.alike), "the job keeps its cause");
    for (int c = KU_MAX_CHANNELS - 1; c >= 0; c--)
        KU_IGNORE(ku_comm_destroy(t->comms.channel[c]), "the job keeps its cause");
    for (int axes = (1 << KU_AX_FIRST_TIME) - 1; axes > 0; axes--)
        if (t->comms.on[axes] != t->job->world)
            KU_IGNORE(ku_comm_destroy(t->comms.on[axes]), "the job keeps its cause");
    if (t->device)
        t->ops->close(t->device);
    for (int i = 0; i < 2 * t->n_shapes; i++)
        ku_program_destroy(t->shape[i / 2].program[i % 2]);
    for (int p = t->n_shapes ? KU_PROG_INIT : 0; p < KU_N_PROGS; p++)
        ku_program_destroy(t->program[p]);
    ku_trainer_drop_metrics(t);
    ku_remote_layout_destroy(t->remote);
    ku_free(t->shape);
    for (int i = 0; i < t->n_params; i++)
        ku_free(t->param[i]);
    ku_free(t->param);
    ku_free(t->tensor);
    ku_free(t);
}

static int set_control(const struct ku_trainer *t, struct ku_range port, int64_t step)
{
    struct ku_mapping map;
    KU_TRY(ku_range_map(port, KU_ACCESS_UPDATE, &map));
    int64_t *control = map.data;
    if (control) {
        control[KU_CONTROL_STEP] = step;
        control[KU_CONTROL_SEED] = (int64_t)t->seed;
    }
    return ku_range_unmap(&map);
}

static int run_once(struct ku_trainer *t, int program)
{
    if (t->exec[program] == NULL)
        KU_TRY(load(t, t->program[program], &t->exec[program]));
    int status = set_control(t, ku_exec_port(t->exec[program], 1, "control"), 0);
    if (status == KUMI_OK)
        status = ku_exec_run(t->exec[program]);
    if (t->remote == NULL || program != KU_PROG_DERIVE) { /* a worker runs it in every step */
        ku_exec_unload(t->exec[program]);
        t->exec[program] = NULL;
    }
    return status < 0 ? status : ku_trainer_read_scalars(t);
}

int ku_trainer_init_state(struct ku_trainer *t)
{
    return run_once(t, KU_PROG_INIT);
}

int ku_trainer_derive(struct ku_trainer *t)
{
    return run_once(t, KU_PROG_DERIVE);
}

int ku_trainer_n_micro(const struct ku_trainer *t)
{
    return ku_mesh_n_micro(&t->program[KU_PROG_TRAIN]->mesh);
}

int ku_trainer_cores(const struct ku_trainer *t, int *n_ranks)
{
    int n_cpus;
    ku_comm_cores(t->job, n_ranks, &n_cpus);
    const int n_cores = ku_os_n_cpus_host(), n_threads = t->n_threads * *n_ranks;
    return n_cores < n_threads ? n_cores : n_threads;
}

/* The part of a port that micro-batch u reads. */
static void port_part(const struct ku_trainer *t, const struct ku_program *p,
                      const struct ku_program_port *port, int u, struct ku_part *part)
{
    struct ku_coord at = ku_mesh_coord(&p->mesh, t->memory->mesh_rank);
    struct ku_operand o = {
        .buffer = port->buffer, .shape = port->shape, .layout = port->layout, .dtype = port->dtype};
    ku_program_part(p, &o, &at, u, part);
}

int64_t ku_trainer_rows(const struct ku_trainer *t, int u, int64_t *first)
{
    const struct ku_program *p = t->program[KU_PROG_TRAIN];
    for (uint32_t i = 0; i < p->n_inputs; i++) {
        int dim = ku_shape_find(&p->shape[p->input[i].shape], 'n');
        if (dim < 0)
            continue;
        struct ku_part part;
        port_part(t, p, &p->input[i], u, &part);
        *first = part.start[dim];
        return part.shape.dim[dim].count;
    }
    *first = 0;
    return 0;
}

const struct ku_program_port *ku_trainer_find_port(const struct ku_trainer *t,
                                                   enum ku_trainer_program p, const char *name)
{
    return t->program[p] ? ku_program_find_port(t->program[p], 1, name) : NULL;
}

struct ku_range ku_trainer_port(const struct ku_trainer *t, enum ku_trainer_program p,
                                const char *name, int u, size_t *row_bytes)
{
    return ku_trainer_port_rows(t, p, ku_trainer_find_port(t, p, name), u, row_bytes);
}

struct ku_range ku_trainer_port_rows(const struct ku_trainer *t, enum ku_trainer_program program,
                                     const struct ku_program_port *port, int u, size_t *row_bytes)
{
    const struct ku_program *p = t->program[program];
    if (port == NULL)
        return (struct ku_range){.memory = t->memory};
    struct ku_part part;
    port_part(t, p, port, u, &part);
    int64_t rows = part.shape.ndim ? part.shape.dim[0].count : 1;
    size_t bytes =
        (size_t)ku_shape_count(&part.shape) * kumi_dtype_bytes((enum kumi_dtype)port->dtype);
    struct ku_range r = ku_memory_buffer(t->memory, &p->buffer[port->buffer]);
    *row_bytes = bytes / (size_t)(rows ? rows : 1);
    r.at += part.offset;
    r.bytes = bytes;
    return r;
}

/* Copy a result of the program's last run. */
static int read_port(struct ku_range r, void *to, size_t bytes)
{
    KU_ASSERT(r.bytes >= bytes);
    r.bytes = bytes;
    return ku_range_read(r, to);
}

int ku_trainer_step(struct ku_trainer *t, int64_t step, const double **report)
{
    uint64_t before = ku_job_moved_bytes(t->job), far_before = ku_job_far_bytes(t->job);
    KU_TRY(set_control(t, ku_trainer_step_port(t, KU_PROG_TRAIN, KU_PORT_CONTROL), step));
    KU_TRY(ku_exec_run(t->exec[KU_PROG_TRAIN]));
    t->n_steps++;
    t->step_bytes += (int64_t)(ku_job_moved_bytes(t->job) - before);
    t->far_bytes += (int64_t)(ku_job_far_bytes(t->job) - far_before);
    KU_TRY(ku_trainer_read_scalars(t));
    const struct ku_range made = ku_trainer_step_port(t, KU_PROG_TRAIN, KU_PORT_REPORT);
    if (made.bytes) /* a worker gets it from the servers */
        KU_TRY(read_port(made, t->report, sizeof t->report));
    KU_TRY(ku_trainer_take_metrics(t));
    *report = t->report;
    return KUMI_OK;
}

int ku_trainer_step_seen(struct ku_trainer *t, int64_t step, ku_exec_see *see, void *ctx)
{
    KU_TRY(set_control(t, ku_trainer_step_port(t, KU_PROG_TRAIN, KU_PORT_CONTROL), step));
    return ku_exec_run_seen(t->exec[KU_PROG_TRAIN], see, ctx);
}

int ku_trainer_eval_run(struct ku_trainer *t)
{
    KU_TRY(set_control(t, ku_trainer_step_port(t, KU_PROG_EVAL, KU_PORT_CONTROL), 0));
    KU_TRY(ku_exec_run(t->exec[KU_PROG_EVAL]));
    return ku_trainer_eval_add(t);
}

int ku_trainer_bad_gradient(const struct ku_trainer *t, const char **name)
{
    struct ku_mapping map;
    KU_TRY(
        ku_range_map(ku_trainer_step_port(t, KU_PROG_TRAIN, KU_PORT_STATS), KU_ACCESS_READ, &map));
    const int64_t *stats = map.data;
    int i = 0;
    while (i < t->n_params && stats[KU_EXACT_WORDS + i] == 0)
        i++;
    *name = i < t->n_params ? t->param[i] : NULL;
    return ku_range_unmap(&map);
}

int ku_trainer_verify_replicas(struct ku_trainer *t)
{
    return ku_replicas_verify(t->memory, t->program[KU_PROG_TRAIN], &t->comms);
}
