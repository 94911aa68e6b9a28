/* SPDX-License-Identifier: Apache-2.0 */
/* links: ps */
/*
 * Calls of the service of a parameter server of one server, in any order, by several workers and
 * incarnations: connect, push, pull, join, leave. Between them there are updates, checkpoints,
 * faults of the disk and of memory, and kills of the server, which begins again from a checkpoint
 * and its journal. A model (ps_model.h) says what each call answers, and what the state is then:
 *
 *     input   byte 0   mode, staleness      byte 1   journal: sync, length of segments, keeps
 *             then 4 bytes for each call: which one, worker and incarnation, two arguments
 *
 *     after each call     status, answer, ledger and counters are those of the model; a call that
 *                         failed has added no record
 *     after an update     the parameters are those that the pushes give which it applied
 *     after a pull        its bytes are those of the update that it names
 *     after a restart     ledger and parameters are those before; a torn record is gone
 *
 * The learning rate is a power of two and gradients are small integers, so sums are exact in any
 * order, and a push that is lost or applied twice shows.
 */
#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "comm/world.h"
#include "fuzz.h"
#include "kumi/messages.h"
#include "memory_folder.h"
#include "nn/builder.h"
#include "ps/journal_record.h"
#include "ps/service_private.h"
#include "ps_model.h"
#include "remote/sparse.h"
#include "train/trainer.h"

enum { MAX_CALLS = 120, HEAD_BYTES = 2, MAX_KILLS = 4 /* they take most of the time */ };

/* A compiled server, for the life of the process: [0] sync with 2 workers, [1] single with 3. */
struct server {
    struct ku_job *job;
    struct ku_trainer *t;
    struct ku_range table; /* of the state */
};

static int build(int n_workers, struct ku_graph **g)
{
    struct kumi_graph *b;
    const int64_t n = n_workers;
    KU_TRY(kumi_graph_create(&b));
    const kumi_value tokens = kumi_input(b, "tokens", KUMI_I32, "n", &n),
                     targets = kumi_input(b, "targets", KUMI_I32, "n", &n),
                     table = kumi_param(b, "table", "ve", (int64_t[]){ROWS, COLS}, NULL);
    kumi_loss_cross_entropy(b, kumi_embedding(b, table, tokens), targets, -100);
    const int status = ku_builder_take(b, g);
    kumi_graph_destroy(b);
    return status;
}

static void compile(struct server *x, int n_workers, bool is_single)
{
    struct ku_trainer_opts o = {.device = ku_device_find("cpu"), .seed = 1};
    struct ku_graph *g;
    o.device_opts = (struct ku_device_opts){.n_threads = 1, .isa = ku_cpu_isa()};
    o.compile = (struct ku_compile_opts){.is_training = 1,
                                         .optimizer = KU_OP_sgd,
                                         .rule = ku_attrs_default,
                                         .zero = 3,
                                         .bucket_bytes = 1 << 20};
    for (int a = 0; a < KU_N_AXES; a++)
        o.compile.mesh.extent[a] = 1;
    o.compile.mesh.extent[KU_AX_REPLICATE] = n_workers;
    o.compile.rule.lr = (double)LEARNING_RATE;
    o.compile.remote = (struct ku_remote_opts){
        .update_by = KU_UPDATE_SERVER, .n_servers = 1, .is_single = is_single};
    KU_ASSERT(ku_comm_join(NULL, &x->job) == KUMI_OK);
    KU_ASSERT(build(n_workers, &g) == KUMI_OK);
    KU_ASSERT(ku_trainer_create(x->job, &g, 1, &o, &x->t) == KUMI_OK);
    KU_ASSERT(ku_trainer_init_state(x->t) == KUMI_OK);
    const struct ku_program *p = x->t->program[KU_PROG_TRAIN];
    for (uint32_t s = 0; s < p->n_states; s++)
        if (strcmp(p->name_of[p->state[s].name], "table") == 0)
            x->table = ku_memory_state(x->t->memory, &p->state[s]);
    const struct ku_remote_layout *l = x->t->remote;
    KU_ASSERT(l->push_bytes[0] == PUSH_BYTES && l->push_payload[0] == PUSH_PAYLOAD);
    KU_ASSERT(l->pull_bytes[0] == PULL_BYTES && x->table.bytes == 4 * (size_t)COUNT);
}

/* What a worker has pulled. */
struct reader {
    unsigned char image[PULL_BYTES];
    int64_t whole, seen; /* all of the image is as of this update, -1: nothing; of the last pull */
};
struct run {
    const struct server *server;
    struct model m;
    struct ku_ps_opts o;
    struct ku_ps_service *service;
    struct ku_remote_engine *engine;
    char dir[80];
    sem_t opened;
    int64_t begin_ns;
    int n_kills;
    int64_t saved, snapped; /* updates of checkpoints: the service knows; it does not yet, -1 */
    struct reader reader[MAX_WORKERS];
    int streams[MAX_WORKERS];
    uint64_t pushes, repeated, refused; /* as struct ku_ps_state */
    /* Before the last call, if that wrote one record which nothing depends on: its number, or 0. */
    struct model_state before;
    uint64_t last_record;
    char fault[16]; /* of the next call; "": none */
};
struct call {
    unsigned char kind, who, a, b;
};

/* -- the life of a server --------------------------------------------------------------------- */

static int note_opened(void *ctx)
{
    struct run *r = ctx;
    return sem_post(&r->opened);
}

static void await_opened(struct run *r)
{
    struct timespec until;
    int status;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    while ((status = sem_timedwait(&r->opened, &until)) < 0 && errno == EINTR)
        ; /* libFuzzer's alarm */
    KU_ASSERT(status == 0);
}

static void check_table(const struct run *r)
{
    float is[COUNT];
    KU_ASSERT(ku_range_read(r->server->table, is) == KUMI_OK);
    KU_ASSERT(memcmp(is, r->m.table[r->m.is.version], sizeof is) == 0);
}

/* A process starts with the checkpoint of an update, and repeats what its journal has. */
static void start(struct run *r, int64_t version)
{
    struct ku_trainer *t = r->server->t;
    struct ku_remote_engine_opts o = r->m.o;
    o.version = version;
    KU_ASSERT(ku_range_write(r->server->table, r->m.table[version]) == KUMI_OK);
    KU_ASSERT(ku_trainer_write_scalars(t, version, NULL) == KUMI_OK);
    KU_ASSERT(ku_remote_engine_create(t, &o, &r->engine) == KUMI_OK);
    KU_ASSERT(ku_ps_service_create(&r->o, &r->service) == KUMI_OK);
    const struct ku_run_served served = {.job = r->server->job,
                                         .engine = r->engine,
                                         .opts = &o,
                                         .numerics = "{}",
                                         .out = r->dir,
                                         .timeout_ns = INT64_C(3600000000000)};
    if (ku_ps_attach(r->service, &served) < 0)
        ku_bug(__FILE__, __LINE__, ku_err_get()->text);
    KU_ASSERT(r->service->target == r->m.is.version);
    KU_ASSERT(ku_remote_serve(r->engine, r->m.is.version) == KUMI_OK);
    await_opened(r);
    model_restart(&r->m, version);
    for (int w = 0; w < MAX_WORKERS; w++)
        r->reader[w].whole = r->reader[w].seen = -1;
    memset(r->streams, 0, sizeof r->streams);
    r->pushes = r->repeated = r->refused = r->last_record = 0;
    r->saved = version;
    r->snapped = -1;
    check_table(r);
}

static void end(struct run *r)
{
    const struct ku_ps_hello from = {.worker = 0, .incarnation = 1};
    struct ku_ps_welcome w;
    ku_remote_stop(r->engine, KU_ERR(KUMI_ESTOPPED, "the end"));
    KU_ASSERT(ku_ps_connect(r->service, &from, &w) == KUMI_ESTOPPED);
    ku_ps_detach(r->service, r->engine);
    ku_remote_engine_destroy(r->engine);
    ku_ps_service_destroy(r->service);
}

static struct ku_ps_journal *journal_of(const struct run *r)
{
    return r->service->journal;
}

/* -- what holds after each call --------------------------------------------------------------- */

static void check_worker(const struct model_worker *is, const struct ku_ps_worker *x)
{
    uint64_t has = 0;
    KU_ASSERT(x->incarnation == is->incarnation && x->next == is->next);
    KU_ASSERT(x->received == model_received(is));
    for (uint32_t i = 0; i < x->n_ranges; i++) {
        KU_ASSERT(i == 0 || x->range[i - 1].end < x->range[i].begin);
        has |= model_units(x->range[i].begin, x->range[i].end);
    }
    KU_ASSERT(has == is->has);
}

static void check_all(const struct run *r)
{
    const struct model_state *is = &r->m.is;
    const struct ku_ps_ledger *l = &r->service->ledger;
    struct ku_ps_state s;
    int n_present = 0;
    KU_ASSERT(ku_ps_state(r->service, &s) == KUMI_OK);
    KU_ASSERT(l->version == is->version && s.version == is->version);
    KU_ASSERT(s.dropped == is->dropped && s.saved == (r->saved ? r->saved : -1));
    KU_ASSERT(s.pushes == r->pushes && s.repeated == r->repeated && s.refused == r->refused);
    for (int w = 0; w < r->m.n; w++) {
        check_worker(&is->worker[w], &l->worker[w]);
        n_present += r->streams[w] > 0;
    }
    KU_ASSERT(s.n_present == n_present);
}

/* The fault of a call. */
static void begin_call(struct run *r)
{
    ku_fault_set(r->fault);
}

/* Its status is that of the model, or the fault's. Returns whether it has had an effect. */
static bool end_call(struct run *r, int status, bool is_right)
{
    const bool has_fault = r->fault[0] != '\0';
    ku_fault_set(NULL);
    r->fault[0] = '\0';
    if (status == KUMI_OK) {
        KU_ASSERT(is_right);
        return true;
    }
    const char *why = ku_err_get()->text;
    KU_ASSERT(why[0] != '\0' && strchr(why, '\n') == NULL);
    KU_ASSERT(has_fault ? status == KUMI_ESTORAGE || status == KUMI_ENOMEM || !is_right
                        : status == KUMI_EINVAL && !is_right);
    return false;
}

/* The records of a call: none; one, perhaps after the head of a segment. */
static void check_records(struct run *r, uint64_t before, int n, bool had_fault)
{
    const uint64_t is = ku_ps_journal_last(journal_of(r));
    KU_ASSERT(is >= before + (uint64_t)n && is <= before + (uint64_t)n + (n > 0 || had_fault));
    r->last_record = n ? is : 0;
}

/* -- calls ------------------------------------------------------------------------------------ */

/* Which worker a call is from: 6 and 7 are none. */
static int worker_of(const struct run *r, const struct call *c)
{
    const int w = c->who & 7;
    return w == 7 ? r->m.n : w == 6 ? -1 : w % r->m.n;
}

/* Mostly the known incarnation; is_new: mostly one more. */
static uint64_t incarnation_of(const struct run *r, const struct call *c, bool is_new)
{
    static const uint64_t odd[] = {0, 1, INT64_MAX, UINT64_C(1) << 63, UINT64_MAX};
    const int w = worker_of(r, c), which = c->who >> 3 & 7;
    const uint64_t known = w >= 0 && w < r->m.n ? r->m.is.worker[w].incarnation : 1;
    if (which < 5)
        return known + (known == 0 || (is_new && which < 3));
    return which == 5 ? known + 1 : which == 6 ? known - 1 : odd[c->b % 5];
}

/* Mostly the step after those that are complete. */
static int64_t step_of(const struct run *r, int worker, unsigned char a, unsigned char b)
{
    static const int64_t odd[] = {INT64_MIN, INT64_MAX, -1, 0, 1};
    const bool is_known = worker >= 0 && worker < r->m.n;
    const int64_t begin = is_known ? model_begin(&r->m, worker) : 0;
    return a % 8 < 5 ? begin : a % 8 == 5 ? begin - 1 : a % 8 == 6 ? begin + 1 : odd[b % 5];
}

static void call_connect(struct run *r, const struct call *c)
{
    const bool knows_layout = c->a % 8 != 7, is_other = c->a % 8 == 6, begins = c->a % 8 == 5;
    const uint64_t layout = r->server->t->remote->checksum + is_other;
    const struct ku_ps_hello in = {.worker = worker_of(r, c),
                                   .incarnation = incarnation_of(r, c, true),
                                   .layout = knows_layout ? layout : 0,
                                   .begin = begins ? c->b : -1};
    struct ku_ps_welcome out = {0};
    const uint64_t before = ku_ps_journal_last(journal_of(r));
    const bool may = model_may_connect(&r->m, in.worker, in.incarnation) && !begins && !is_other;
    const bool has_fault = r->fault[0] != '\0';
    begin_call(r);
    const int status = ku_ps_connect(r->service, &in, &out);
    const bool is_done = status == KUMI_EMISMATCH && is_other
                             ? end_call(r, KUMI_EINVAL, false)
                             : end_call(r, status, may || !knows_layout);
    r->refused += !is_done;
    r->before = r->m.is;
    const bool is_new =
        is_done && knows_layout && in.incarnation > r->m.is.worker[in.worker].incarnation;
    if (is_done && knows_layout)
        model_connect(&r->m, in.worker, in.incarnation);
    check_records(r, before, is_new, has_fault);
    if (!is_done || in.worker < 0 || in.worker >= r->m.n)
        return;
    KU_ASSERT(out.version == r->m.is.version && out.begin == model_begin(&r->m, in.worker));
    KU_ASSERT(out.incarnation == r->m.is.worker[in.worker].incarnation);
}

/* The push of a worker's step, of 256 kinds: gradients in every row, in few or in none. */
static void make_push(unsigned char *push, int worker, int64_t step, unsigned char kind)
{
    static const float row[COLS] = {1, -1, 2, 1, 3, -2, 1, 1, 2, 2, -3, 1, 1, -1, 4, 1};
    const int64_t n_targets = 1;
    memset(push, 0, GAP_AT);
    memset(push + GAP_AT, kind, GRADIENT_AT - GAP_AT);
    memcpy(push + TARGETS_AT, &n_targets, sizeof n_targets);
    for (uint32_t i = 0; i < ROWS; i++) {
        const uint32_t x = (uint32_t)worker * 2654435761U + (uint32_t)step * 40503U + kind;
        const bool is_zero = kind % 4 == 2 || (kind % 4 == 1 && i % 8 != kind / 4 % 8);
        const float factor = is_zero ? 0 : (float)((x + i) * 2246822519U >> 13 & 7) - 3;
        float g[COLS];
        for (int k = 0; k < COLS; k++)
            g[k] = factor * row[k] + 0; /* not -0, which is not a zero of remote/sparse.h */
        memcpy(push + GRADIENT_AT + i * sizeof g, g, sizeof g);
    }
}

/* A range of a push, as the service is given it. */
struct range {
    struct ku_ps_hello from;
    int64_t step;
    size_t offset, bytes;      /* bytes: that it stands for */
    const unsigned char *data; /* [bytes] */
    bool is_sparse;            /* it is sent as what is not zero, where that is shorter */
};

static enum model_answer call_push_range(struct run *r, const struct range *x, bool *is_complete)
{
    unsigned char body[PUSH_BYTES + KU_SPARSE_HEAD_BYTES];
    struct ku_ps_piece p = {
        .step = x->step, .offset = x->offset, .data = x->data, .bytes = x->bytes};
    const int w = x->from.worker;
    const uint64_t before = ku_ps_journal_last(journal_of(r));
    const bool has_fault = r->fault[0] != '\0',
               is_known = model_knows(&r->m, w, x->from.incarnation);
    uint64_t number = 0;
    size_t extent = x->bytes;
    const size_t bytes =
        x->is_sparse && x->bytes ? ku_sparse_encode(x->data, x->bytes, body, &extent) : 0;
    if (bytes)
        p.data = body, p.bytes = bytes, p.is_sparse = true;
    else
        extent = x->bytes;
    const enum model_answer answer =
        is_known ? model_answer_of(&r->m, w, x->step, x->offset, extent) : MODEL_REFUSES;
    begin_call(r);
    const int status = ku_ps_push(r->service, &x->from, &p, &number, is_complete);
    const bool is_done = end_call(r, status, answer != MODEL_REFUSES);
    r->refused += !is_done;
    r->repeated += is_done && answer == MODEL_REPEATS;
    r->pushes += is_done && answer == MODEL_TAKES;
    r->before = r->m.is;
    if (is_done && answer == MODEL_TAKES)
        model_take(&r->m, w, x->offset, x->data, extent);
    check_records(r, before, is_done && answer == MODEL_TAKES, has_fault);
    check_all(r);
    if (!is_done)
        return MODEL_REFUSES;
    KU_ASSERT(number == ku_ps_journal_last(journal_of(r)));
    KU_ASSERT(*is_complete == (x->step < model_begin(&r->m, w)));
    return answer;
}

/* A step in ranges of equal length, or one range anywhere. A complete one is acknowledged. */
static void call_push(struct run *r, const struct call *c, bool is_whole)
{
    unsigned char push[PUSH_BYTES + 256 * CELL];
    const int w = worker_of(r, c);
    struct range x = {.from = {.worker = w, .incarnation = incarnation_of(r, c, false)},
                      .step = step_of(r, w, is_whole ? c->a : c->who >> 3, c->b),
                      .is_sparse = c->b & 4};
    const size_t cells = is_whole ? 1 + (size_t)(c->a >> 3) : c->b >> 3;
    bool is_complete = false;
    make_push(push, w, x.step, c->b);
    memset(push + PUSH_BYTES, 0, sizeof push - PUSH_BYTES);
    x.offset = is_whole ? 0 : (size_t)c->a % 36 * CELL + (c->a > 250);
    do {
        const size_t left = is_whole ? PUSH_BYTES - x.offset : sizeof push - x.offset;
        x.data = push + x.offset;
        x.bytes = cells * CELL < left ? cells * CELL : left;
        if (x.offset < GAP_AT && x.offset + x.bytes == GRADIENT_AT && c->b & 8)
            x.bytes -= GRADIENT_AT - GAP_AT;
        if (call_push_range(r, &x, &is_complete) == MODEL_REFUSES)
            return;
        x.offset = (x.offset + x.bytes + CELL - 1) / CELL * CELL;
    } while (is_whole && x.offset < PUSH_BYTES);
    if (!is_complete)
        return;
    begin_call(r);
    const int status = ku_ps_sync(r->service, ku_ps_journal_last(journal_of(r)));
    if (end_call(r, status, true))
        r->last_record = 0;
}

static void check_pulled(const struct run *r, int worker, int64_t seen)
{
    const struct model_worker *x = &r->m.is.worker[worker];
    if (!model_is_single(&r->m) || !x->is_gone)
        KU_ASSERT(memcmp(r->reader[worker].image, r->m.table[seen], sizeof r->m.table[seen]) == 0);
}

/* What a pull asks for: everything, a range, rows. */
enum { OF_ALL, OF_RANGE, OF_ROWS, ROW_BYTES = 128 };
static const uint32_t rows[] = {0, 3, 4, 11};
static struct ku_ps_selection selection_of(int form)
{
    if (form == OF_RANGE)
        return (struct ku_ps_selection){.offset = 64, .bytes = 1000};
    if (form == OF_ROWS)
        return (struct ku_ps_selection){
            .row_bytes = ROW_BYTES, .bytes = 4 * COUNT, .row = rows, .n_rows = 4};
    return (struct ku_ps_selection){0};
}

/* A part of an answer from byte `at` on, without what the reader has of the whole. */
static void check_selected(const struct run *r, int worker, int form, size_t at,
                           const struct ku_ps_pulled *x, const unsigned char *data)
{
    const unsigned char *table = (const unsigned char *)r->m.table[x->seen];
    if (model_is_single(&r->m) && r->m.is.worker[worker].is_gone)
        return;
    for (size_t i = at; i < at + x->extent; i++) {
        const size_t in_table =
            form == OF_RANGE ? 64 + i : rows[i / ROW_BYTES] * (size_t)ROW_BYTES + i % ROW_BYTES;
        KU_ASSERT(data[i - at] == table[in_table]);
    }
}

static bool call_select(struct run *r, const struct ku_ps_hello *from, bool is_known,
                        struct ku_ps_selection *what)
{
    begin_call(r);
    const int status = ku_ps_select(r->service, from, what);
    const bool is_done = end_call(r, status, is_known);
    r->refused += !is_done && !is_known;
    return is_done;
}

static void call_pull(struct run *r, const struct call *c)
{
    static unsigned char data[KU_PS_MAX_BODY_BYTES];
    const int w = worker_of(r, c),
              form = c->b >> 6 == OF_RANGE || c->b >> 6 == OF_ROWS ? c->b >> 6 : 0;
    const struct ku_ps_hello from = {.worker = w, .incarnation = incarnation_of(r, c, false)};
    const bool is_known = model_knows(&r->m, w, from.incarnation);
    struct reader *y = is_known ? &r->reader[w] : NULL;
    struct ku_ps_selection what = selection_of(form);
    struct ku_ps_pulled x = {.step = step_of(r, w, c->a, c->b),
                             .what = &what,
                             .since = y && form == OF_ALL && c->a & 8 ? y->whole : -1};
    const int64_t seen = is_known ? model_seen(&r->m, w, x.step) : -1;
    if (!call_select(r, &from, is_known, &what))
        return;
    const size_t all = ku_ps_selection_bytes(&what);
    while (x.offset < all) {
        begin_call(r);
        const int status = ku_ps_pull(r->service, &from, &x, data);
        if (!end_call(r, status, is_known))
            return;
        KU_ASSERT(x.seen == seen);
        if (seen < 0)
            return;
        KU_ASSERT(x.extent > 0 && x.extent <= all - x.offset);
        if (form != OF_ALL)
            check_selected(r, w, form, x.offset, &x, data);
        else if (x.is_sparse)
            ku_sparse_merge(data, y->image + x.offset);
        else
            memcpy(y->image + x.offset, data, x.extent);
        x.offset += x.extent;
    }
    KU_ASSERT(seen >= y->seen);
    y->seen = seen;
    if (form != OF_ALL)
        return;
    check_pulled(r, w, seen);
    y->whole = r->m.is.worker[w].is_gone ? -1 : seen;
}

static void call_update(struct run *r)
{
    int worker[MAX_WORKERS];
    const int n = model_choose(&r->m, worker);
    const uint64_t before = ku_ps_journal_last(journal_of(r));
    if (n == 0 || r->m.is.version == MAX_VERSIONS)
        return;
    KU_ASSERT(ku_remote_serve(r->engine, r->m.is.version + 1) == KUMI_OK);
    r->before = r->m.is;
    model_update(&r->m, worker, n);
    check_records(r, before, 1, false);
    if (r->o.sync != KU_PS_SYNC_NONE && model_is_single(&r->m))
        r->last_record = 0; /* it is on the disk before anything depends on it */
    check_table(r);
}

static void call_presence(struct run *r, const struct call *c)
{
    const int w = worker_of(r, c);
    const struct ku_ps_hello from = {.worker = w, .incarnation = incarnation_of(r, c, false)};
    if (c->a & 1) {
        begin_call(r);
        const int status = ku_ps_join(r->service, &from);
        const bool is_done = end_call(r, status, model_knows(&r->m, w, from.incarnation));
        r->refused += !is_done;
        r->streams[is_done ? w : 0] += is_done;
    } else if (w >= 0 && w < r->m.n && r->streams[w] > 0) {
        ku_ps_leave(r->service, &from);
        r->streams[w]--;
    }
}

/* A checkpoint is written, or the service is told of it. */
static void call_save(struct run *r, const struct call *c)
{
    if (c->a & 1 && r->snapped > r->saved) {
        begin_call(r);
        ku_ps_saved(r->service, r->snapped);
        (void)end_call(r, KUMI_OK, true);
        r->saved = r->snapped;
    } else {
        r->snapped = r->m.is.version;
    }
    r->last_record = 0;
}

/* The offset of the last record in its file. */
static int note_record(void *ctx, const struct ku_ps_record *x)
{
    uint64_t *at = ctx;
    *at = x->at;
    return KUMI_OK;
}

static void append(const char *path, int n)
{
    FILE *f = fopen(path, "ab");
    KU_ASSERT(f != NULL);
    for (int i = 0; i < n; i++)
        fputc(i * 37, f);
    KU_ASSERT(fclose(f) == 0);
}

/*
 * What a process leaves that is killed while it writes: its last record torn, more bytes, or the
 * next segment, before which the last one is cut.
 */
static void tear(struct run *r, const struct call *c)
{
    struct ku_ps_end end;
    uint64_t at = 0;
    char *dir = ku_asprintf("%s/journal/server-0", r->dir);
    KU_ASSERT(dir && ku_ps_journal_read(dir, note_record, &at, &end) == KUMI_OK && end.last > 0);
    char *last = ku_ps_journal_file(dir, end.last), *next = ku_ps_journal_file(dir, end.last + 1);
    KU_ASSERT(last && next);
    if (c->a % 4 == 1 && r->last_record) {
        KU_ASSERT(truncate(last, (off_t)(at + c->b % (end.bytes - at))) == 0);
        r->m.is = r->before;
    } else if (c->a % 4 == 2) {
        append(last, c->b % CELL);
    } else if (c->a % 4 == 3) {
        KU_ASSERT(truncate(last, (off_t)end.bytes) == 0);
        append(next, c->b % CELL);
    }
    ku_free(last);
    ku_free(next);
    ku_free(dir);
}

static void call_kill(struct run *r, const struct call *c)
{
    int64_t version = c->b & 1 && r->snapped > r->saved ? r->snapped : r->saved;
    if (++r->n_kills > MAX_KILLS)
        return;
    end(r);
    tear(r, c);
    if (r->o.keeps)
        version = c->b % (r->m.is.version + 1);
    start(r, version);
}

static void call(struct run *r, const struct call *c)
{
    static const char *const faults[] = {"write", "os", "mem"};
    static const unsigned char kinds[] = {0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8};
    const int kind = kinds[c->kind % sizeof kinds];
    r->last_record = kind == 7 ? r->last_record : 0;
    if (kind == 0)
        call_connect(r, c);
    else if (kind <= 2)
        call_push(r, c, kind == 1);
    else if (kind == 3)
        call_pull(r, c);
    else if (kind == 4)
        call_update(r);
    else if (kind == 5)
        call_presence(r, c);
    else if (kind == 6)
        call_save(r, c);
    else if (kind == 7)
        call_kill(r, c);
    else
        snprintf(r->fault, sizeof r->fault, "%s:%d", faults[c->a % 3], 1 + c->b % 8);
    if (ku_ps_journal_sync(journal_of(r), 0, false) < 0) { /* it has failed: the run ends */
        end(r);
        start(r, r->saved);
    }
    check_all(r);
}

/* -- inputs ----------------------------------------------------------------------------------- */

static void ignore(void *ctx, const char *line, size_t bytes)
{
    (void)ctx, (void)line, (void)bytes;
}

static void begin(struct run *r, const struct server *server, const uint8_t *head)
{
    static const uint64_t segment_bytes[] = {0, 256, 1024, 4096};
    const int mode = head[0] % 4;
    memset(&r->m.is, 0, sizeof r->m.is);
    r->fault[0] = '\0';
    r->n_kills = 0;
    r->server = &server[mode >= 2];
    r->m.n = mode >= 2 ? 3 : 2;
    r->m.o.mode = mode < 2 ? KU_REMOTE_SYNC : mode == 2 ? KU_REMOTE_ASYNC : KU_REMOTE_SSP;
    r->m.o.backup = mode == 1;
    r->m.o.staleness = mode == 3 ? head[0] >> 2 & 3 : 0;
    for (int i = 0; i < COUNT; i++)
        r->m.table[0][i] = (float)(i % 64);
    r->o = (struct ku_ps_opts){.sync = head[1] & 1 ? KU_PS_SYNC_EVERY : KU_PS_SYNC_NONE,
                               .keeps = head[1] & 2,
                               .segment_bytes = segment_bytes[head[1] >> 2 & 3],
                               .opened = note_opened,
                               .ctx = r};
    snprintf(r->dir, sizeof r->dir, "%s/test-kumi-fuzz-ps-service-%d", memory_folder(),
             (int)getpid());
    KU_ASSERT(sem_init(&r->opened, 0, 0) == 0);
    r->begin_ns = ku_clock_ns();
    start(r, 0);
}

/* With ssp the service excludes a worker that has been away for a second. */
static bool is_late(const struct run *r)
{
    return r->m.o.mode == KU_REMOTE_SSP && ku_clock_ns() - r->begin_ns > 500000000;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const struct kumi_messages messages = {.line = ignore};
    static struct server server[2];
    static struct run r;
    struct call c;
    if (server[0].t == NULL) {
        kumi_messages_set(&messages);
        compile(&server[0], 2, false);
        compile(&server[1], 3, true);
    }
    if (bytes < HEAD_BYTES)
        return 0;
    begin(&r, server, data);
    for (int i = 0; i < MAX_CALLS && !is_late(&r); i++) {
        const size_t at = HEAD_BYTES + sizeof c * (size_t)i;
        if (at + sizeof c > bytes)
            break;
        memcpy(&c, data + at, sizeof c);
        call(&r, &c);
    }
    end(&r);
    sem_destroy(&r.opened);
    KU_ASSERT(ku_os_rmtree(r.dir) == 0);
    return 0;
}
