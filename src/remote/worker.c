/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gradient is pushed as soon as the last instruction that writes its port has run, while backward
 * continues. Ports keep their values to the end of the step, which waits until the link has sent
 * them, so that they are sent from where they are. A narrower wire dtype needs a copy, rounded as a
 * collective rounds its operands; compression (remote/compress.h) needs one, and the residual.
 */
#include "remote/worker.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "comm/sum.h"
#include "base/hash.h"
#include "base/log.h"
#include "exec/exec.h"
#include "remote/compress.h"
#include "remote/residual.h"
#include "tensor/blocks.h"
#include "tensor/dtype.h"

struct ku_remote_worker {
    struct ku_trainer *t;
    const struct ku_remote_link *link;
    const struct ku_remote_layout *layout;
    const struct ku_sum_kernels *kernels;
    struct ku_remote_part *push, *pull; /* [n_push or n_pull][n_servers] */
    struct ku_range *port, *target;     /* [n_push] outputs; [n_pull] state, bytes 0: the report */
    uint32_t *complete;                 /* [n_instrs] 1 + first entry that it completes; 0: none */
    uint32_t *next;                     /* [n_push] likewise, of the same instruction */
    unsigned char *encoded; /* entries in a wire dtype or form of their own, concatenated */
    size_t *encoded_at;     /* [n_push] */
    struct ku_remote_worker_opts o;
    struct ku_remote_residual *residual;          /* NULL: nothing is compressed */
    unsigned char *pulled[KU_REMOTE_MAX_SERVERS]; /* [pull_bytes] */
    int64_t seen[KU_REMOTE_MAX_SERVERS];
    int64_t step;
    int64_t asked; /* the step whose pulls are under way; -1: none */
    bool has_pushed;
    double report[KU_REPORT_WORDS];
};

static const struct ku_remote_part *part_of(const struct ku_remote_worker *w, bool is_push,
                                            uint32_t i, int server)
{
    return &(is_push ? w->push
                     : w->pull)[(size_t)i * (size_t)w->layout->n_servers + (size_t)server];
}

/* Sends the parts of an entry from `data`, its elements in the wire dtype. */
static int push_parts(struct ku_remote_worker *w, uint32_t i, const unsigned char *data)
{
    const struct ku_remote_entry *x = &w->layout->push[i];
    size_t most = SIZE_MAX; /* pieces of whole records that fit into a frame */
    if (x->form != KU_REMOTE_DENSE) {
        const size_t group = KU_REMOTE_RECORD_GROUP * ku_remote_record_bytes(x, KU_BLOCK_COUNT);
        most = KU_REMOTE_FRAME_BYTES / group * group;
    }
    for (int s = 0; s < w->layout->n_servers; s++) {
        const struct ku_remote_part *part = part_of(w, true, i, s);
        const size_t from = ku_remote_wire_bytes(x, part->begin);
        size_t left = ku_remote_wire_bytes(x, part->end - part->begin);
        for (size_t at = 0, bytes; left > 0; at += bytes, left -= bytes) {
            bytes = left < most ? left : most;
            KU_TRY(w->link->ops->push(w->link->ctx, s, w->step, part->offset + at, data + from + at,
                                      bytes));
        }
    }
    return KUMI_OK;
}

/* Which random numbers round an entry: no two workers and entries share them. */
static uint32_t stream_of(const struct ku_remote_worker *w, uint32_t i)
{
    const uint64_t word[] = {(uint64_t)w->link->worker, i, UINT64_C(0x70757368) /* "push" */};
    return (uint32_t)ku_hash64(word, sizeof word);
}

static void compress(struct ku_remote_worker *w, uint32_t i, const float *g)
{
    const struct ku_remote_entry *x = &w->layout->push[i];
    const float *before = ku_remote_residual_before(w->residual, i);
    float *after = ku_remote_residual_after(w->residual, i);
    unsigned char *to = w->encoded + w->encoded_at[i];
    struct ku_compress_draw draw = {
        .seed = w->t->seed, .step = (uint32_t)w->step, .stream = stream_of(w, i)};
    uint64_t sum = 0;
    for (int64_t at = 0; at < x->count; at += KU_BLOCK_COUNT) {
        const int64_t left = x->count - at, n = left < KU_BLOCK_COUNT ? left : KU_BLOCK_COUNT;
        draw.first = (uint64_t)at;
        ku_compress_chunk(x, &draw, n, g + at, before + at, to, after + at);
        sum = ku_hash64_mix(sum, ku_hash64(after + at, (size_t)n * sizeof *after));
        to += ku_remote_record_bytes(x, n);
    }
    ku_remote_residual_note(w->residual, i, sum);
}

static void narrow(const struct ku_remote_worker *w, const struct ku_remote_entry *x,
                   const void *from, void *to)
{
    ku_sum(w->kernels, &(struct ku_sum){.n_src = 1,
                                        .n_dst = 1,
                                        .src = &from,
                                        .dst = &to,
                                        .count = x->count,
                                        .dtype = x->dtype,
                                        .wire = x->wire,
                                        .reduce = x->reduce,
                                        .is_node = true});
}

static bool is_encoded(const struct ku_remote_entry *x)
{
    return x->wire != x->dtype || x->form != KU_REMOTE_DENSE;
}

/* The callback after an instruction: pushes the entries that it completed. */
static int push_complete(void *ctx, uint32_t number)
{
    struct ku_remote_worker *w = ctx;
    for (uint32_t i = number - 1;; i = w->next[i] - 1) {
        const struct ku_remote_entry *x = &w->layout->push[i];
        struct ku_mapping map;
        KU_TRY(ku_range_map(w->port[i], KU_ACCESS_READ, &map));
        const void *data = map.data;
        if (x->form != KU_REMOTE_DENSE)
            compress(w, i, map.data);
        else if (x->wire != x->dtype)
            narrow(w, x, map.data, w->encoded + w->encoded_at[i]);
        if (is_encoded(x))
            data = w->encoded + w->encoded_at[i];
        const int status = push_parts(w, i, data);
        KU_TRY(ku_range_unmap(&map));
        KU_TRY(status);
        if (w->next[i] == 0)
            return KUMI_OK;
    }
}

/* The last instruction that writes a buffer. */
static uint32_t last_write(const struct ku_program *p, ku_id buffer)
{
    uint32_t last = p->n_instrs;
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        const struct ku_instr *x = &p->instr[at];
        for (uint32_t k = 0; x->kind == KU_COMPUTE && k < x->n_out; k++)
            if (p->operand[x->operand + x->n_in + k].buffer == buffer)
                last = at;
    }
    KU_ASSERT(last < p->n_instrs);
    return last;
}

static void find_ports(struct ku_remote_worker *w)
{
    const struct ku_program *p = w->t->program[KU_PROG_TRAIN];
    size_t encoded_bytes = 0;
    for (uint32_t i = 0; i < w->layout->n_push; i++) {
        const struct ku_remote_entry *x = &w->layout->push[i];
        const struct ku_program_port *port = ku_program_find_port(p, 0, x->name);
        KU_ASSERT(port != NULL);
        const uint32_t at = last_write(p, port->buffer);
        w->port[i] = ku_exec_port_at(w->t->exec[KU_PROG_TRAIN], port);
        w->port[i].bytes = (size_t)x->count * kumi_dtype_bytes(x->dtype);
        w->next[i] = w->complete[at];
        w->complete[at] = i + 1;
        w->encoded_at[i] = encoded_bytes;
        if (is_encoded(x))
            encoded_bytes += (ku_remote_wire_bytes(x, x->count) + 63) & ~(size_t)63;
    }
    w->encoded = ku_calloc(encoded_bytes + 1, 1);
    for (uint32_t i = 0; i < w->layout->n_pull; i++)
        for (uint32_t s = 0; s < p->n_states; s++)
            if (strcmp(p->name_of[p->state[s].name], w->layout->pull[i].name) == 0)
                w->target[i] = ku_memory_state(w->t->memory, &p->state[s]);
}

static int allocate(struct ku_remote_worker *w)
{
    const struct ku_remote_layout *l = w->layout;
    const size_t n_servers = (size_t)l->n_servers;
    w->push = ku_calloc(l->n_push * n_servers + 1, sizeof *w->push);
    w->pull = ku_calloc(l->n_pull * n_servers + 1, sizeof *w->pull);
    w->port = ku_calloc(l->n_push + 1, sizeof *w->port);
    w->target = ku_calloc(l->n_pull + 1, sizeof *w->target);
    w->complete = ku_calloc(w->t->program[KU_PROG_TRAIN]->n_instrs + 1, sizeof *w->complete);
    w->next = ku_calloc(l->n_push + 1, sizeof *w->next);
    w->encoded_at = ku_calloc(l->n_push + 1, sizeof *w->encoded_at);
    if (!w->push || !w->pull || !w->port || !w->target || !w->complete || !w->next ||
        !w->encoded_at)
        return KUMI_ENOMEM;
    for (int s = 0; s < l->n_servers; s++) {
        w->pulled[s] = ku_calloc(l->pull_bytes[s] + 1, 1);
        if (w->pulled[s] == NULL)
            return KUMI_ENOMEM;
        for (uint32_t i = 0; i < l->n_push; i++)
            w->push[(size_t)i * n_servers + (size_t)s] = ku_remote_part_of(l, true, i, s);
        for (uint32_t i = 0; i < l->n_pull; i++)
            w->pull[(size_t)i * n_servers + (size_t)s] = ku_remote_part_of(l, false, i, s);
    }
    find_ports(w);
    return w->encoded ? KUMI_OK : KUMI_ENOMEM;
}

int ku_remote_worker_create(struct ku_trainer *t, const struct ku_remote_link *link,
                            const struct ku_remote_worker_opts *o, struct ku_remote_worker **out)
{
    struct ku_remote_worker *w = ku_calloc(1, sizeof *w);
    KU_ASSERT(t->remote != NULL && link->worker == t->memory->mesh_rank);
    if (w == NULL)
        return KUMI_ENOMEM;
    w->t = t;
    w->link = link;
    w->layout = t->remote;
    w->kernels = ku_sum_choose();
    w->asked = -1;
    if (o)
        w->o = *o;
    int status = t->n_shapes == 1
                     ? allocate(w)
                     : KU_ERR(KUMI_EINVAL, "ps: %d batch shapes; workers support one", t->n_shapes);
    const char *ignored;
    if (status == KUMI_OK)
        status = link->ops->connect(link->ctx, t->remote, &ignored);
    if (status == KUMI_OK && ku_remote_residual_bytes(w->layout))
        status = ku_remote_residual_open(w->layout, link->worker, link->out, &w->residual);
    if (status < 0) {
        ku_remote_worker_destroy(w);
        return status;
    }
    ku_exec_set_notice(t->exec[KU_PROG_TRAIN], w->complete, push_complete, w);
    *out = w;
    return KUMI_OK;
}

void ku_remote_worker_destroy(struct ku_remote_worker *w)
{
    if (w == NULL)
        return;
    if (w->link->ops->stop) /* pushes are sent from the arenas, which the caller frees next */
        w->link->ops->stop(w->link->ctx);
    ku_exec_set_notice(w->t->exec[KU_PROG_TRAIN], NULL, NULL, NULL);
    for (int s = 0; s < w->layout->n_servers; s++)
        ku_free(w->pulled[s]);
    ku_free(w->push);
    ku_free(w->pull);
    ku_free(w->port);
    ku_free(w->target);
    ku_free(w->complete);
    ku_free(w->next);
    ku_free(w->encoded);
    ku_free(w->encoded_at);
    ku_remote_residual_close(w->residual);
    ku_free(w);
}

/* Writes the servers' parts of a tensor to the state. */
static int scatter(struct ku_remote_worker *w, uint32_t i)
{
    const struct ku_remote_entry *x = &w->layout->pull[i];
    const size_t each = kumi_dtype_bytes(x->dtype);
    for (int s = 0; s < (x->is_split ? w->layout->n_servers : 1); s++) {
        const struct ku_remote_part *part = part_of(w, false, i, s);
        struct ku_range r = w->target[i];
        r.at += (size_t)part->begin * each;
        r.bytes = (size_t)(part->end - part->begin) * each;
        if (w->target[i].bytes == 0)
            memcpy(w->report, w->pulled[s] + part->offset, sizeof w->report);
        else if (r.bytes)
            KU_TRY(ku_range_write(r, w->pulled[s] + part->offset));
    }
    return KUMI_OK;
}

/* Starts the pulls of the next step: the servers answer as soon as they have its parameters. */
static int ask_ahead(struct ku_remote_worker *w, int64_t step)
{
    for (int s = 0; s < w->layout->n_servers; s++) {
        w->seen[s] = -1;
        KU_TRY(w->link->ops->pull(w->link->ctx, s, step, w->pulled[s], &w->seen[s]));
    }
    w->asked = step;
    return KUMI_OK;
}

/* Pulls from all servers, until those that apply one push of each worker are at one update. */
static int pull_all(struct ku_remote_worker *w, int64_t *step)
{
    const struct ku_remote_link_ops *ops = w->link->ops;
    const int n = w->layout->n_servers;
    bool is_even = false;
    if (!w->has_pushed && w->link->first_step > *step)
        *step = w->link->first_step;
    bool is_asked = w->asked == *step;
    if (w->asked >= 0 && !is_asked)
        KU_TRY(ops->wait(w->link->ctx));
    w->asked = -1;
    for (int s = 0; s < n && !is_asked; s++)
        w->seen[s] = -1;
    for (; !is_even; is_asked = false) {
        for (int s = 0; s < n && !is_asked; s++)
            if (w->seen[s] < *step || w->layout->is_single)
                KU_TRY(ops->pull(w->link->ctx, s, *step, w->pulled[s], &w->seen[s]));
        KU_TRY(ops->wait(w->link->ctx));
        is_even = true;
        if (!w->has_pushed && w->layout->is_single && w->link->first_step == 0)
            *step = w->seen[0];
        for (int s = 0; s < n && !w->layout->is_single; s++)
            *step = w->seen[s] > *step ? w->seen[s] : *step;
        for (int s = 0; s < n && !w->layout->is_single; s++)
            is_even = is_even && w->seen[s] == *step;
    }
    return KUMI_OK;
}

int ku_remote_begin(struct ku_remote_worker *w, int64_t *step, const double **report)
{
    KU_TRY(pull_all(w, step));
    for (uint32_t i = 0; i < w->layout->n_pull; i++)
        KU_TRY(scatter(w, i));
    memcpy(w->t->report, w->report, sizeof w->report);
    *report = w->t->report;
    return ku_trainer_derive(w->t);
}

static int begin_residual(struct ku_remote_worker *w, int64_t step)
{
    char text[200];
    if (w->residual == NULL)
        return KUMI_OK;
    ku_remote_residual_begin(w->residual, step, text);
    if (text[0])
        KU_MESSAGE(WARN, "kumi: ps: %s", text);
    return step > 0 && w->o.save_every > 0 && step % w->o.save_every == 0
               ? ku_remote_residual_save(w->residual, w->o.keep)
               : KUMI_OK;
}

int ku_remote_step(struct ku_remote_worker *w, int64_t step)
{
    const double *ignored;
    w->step = step;
    KU_TRY(begin_residual(w, step));
    w->has_pushed = true;
    KU_TRY(ku_trainer_step(w->t, step, &ignored));
    if (w->link->ops->awaits)
        KU_TRY(ask_ahead(w, step + 1));
    return w->link->ops->flush(w->link->ctx);
}
