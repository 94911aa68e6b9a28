/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/remote_table.h"

#include <string.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "config/deepspeed.h"
#include "tensor/blocks.h"
#include "train/configure.h"
#include "train/remote_update.h"
#include "train/session.h"

/* One side: its programs, and the layout, which is the same on both. */
struct side {
    size_t arena_bytes; /* of the programs, offloaded tensors included, files not */
    struct ku_remote_layout *layout;
    int64_t n_params;
};

static size_t bytes_of(struct ku_program *const *program)
{
    size_t most[KU_N_ARENAS] = {0}, total = 0;
    for (int i = 0; i < KU_N_PROGS; i++)
        for (int a = 0; a < KU_N_ARENAS && program[i]; a++)
            if (program[i]->arena_bytes[a] > most[a])
                most[a] = program[i]->arena_bytes[a];
    for (int a = 0; a < KU_N_ARENAS; a++)
        total += a == KU_AR_FILE ? 0 : most[a];
    return total;
}

static int compile(struct ku_session *s, struct side *side)
{
    const struct ku_target target = {.query = ku_device_find(s->cfg.parallel_device)->query,
                                     .ranks_per_host = 1};
    struct ku_program *program[KU_N_PROGS] = {NULL};
    struct ku_compile_opts o;
    struct ku_graph *g;
    KU_TRY(ku_session_open_shapes(s));
    KU_TRY(ku_session_compile_opts(s, &o));
    if (s->remote.update_by == KU_UPDATE_WORKER)
        KU_TRY(ku_session_solve_recompute(s, &target, &o));
    KU_TRY(ku_session_graph(s, s->source->ops->largest_shape(s->source), &g));
    side->n_params = ku_graph_n_params(g);
    int status = ku_trainer_plan(g, &o, &target, KU_TRAIN_PROGS, program);
    if (status == KUMI_OK)
        status = ku_remote_layout_create(g, &o, &side->layout);
    side->arena_bytes = bytes_of(program);
    for (int i = 0; i < KU_N_PROGS; i++)
        ku_program_destroy(program[i]);
    ku_graph_destroy(g);
    return status;
}

static int plan_side(const struct kumi_settings *settings, int update_by, struct side *side)
{
    struct ku_session s = {0};
    KU_TRY(ku_settings_configure_side(&s, settings, update_by));
    if (update_by == KU_UPDATE_WORKER)
        ku_deepspeed_warn(&s.cfg);
    const int status = compile(&s, side);
    ku_session_fini(&s);
    return status;
}

/* Sums and maxima over the servers. */
struct bytes {
    uint64_t push, pull;           /* of a worker, all servers */
    uint64_t most_push, most_pull; /* of a worker, on the server with most */
    uint64_t encoded, residual;    /* of a worker: pushes in another form, error feedback */
    uint64_t tracked;              /* on the server with most: to pull what has changed */
    uint64_t zeros;                /* of a worker: bytes of its pushes that are not sent */
};

static struct bytes add_up(const struct side side[2])
{
    const struct ku_remote_layout *l = side[1].layout;
    struct bytes b = {0};
    for (int s = 0; s < l->n_servers; s++) {
        b.push += l->push_bytes[s];
        b.pull += l->pull_bytes[s];
        b.most_push = l->push_bytes[s] > b.most_push ? l->push_bytes[s] : b.most_push;
        b.most_pull = l->pull_bytes[s] > b.most_pull ? l->pull_bytes[s] : b.most_pull;
        const uint64_t tracked = ku_remote_tracked_bytes(l, s);
        b.tracked = tracked > b.tracked ? tracked : b.tracked;
    }
    for (uint32_t i = 0; i < l->n_push; i++) {
        const struct ku_remote_entry *x = &l->push[i];
        const uint64_t bytes = ku_remote_wire_bytes(x, x->count);
        if (x->form != KU_REMOTE_DENSE)
            b.residual += 2 * (uint64_t)x->count * sizeof(float);
        if (x->form != KU_REMOTE_DENSE || x->wire != x->dtype)
            b.encoded += bytes;
        if (x->form == KU_REMOTE_DENSE)
            b.zeros += (uint64_t)side[0].layout->push[i].zero_count * kumi_dtype_bytes(x->wire);
    }
    return b;
}

/* Of a server, beside its programs. */
static uint64_t server_bytes(const struct ku_remote_layout *l, const struct bytes *b)
{
    const uint64_t n = (uint64_t)l->n_workers, copies = l->is_single ? n : 0;
    return n * b->most_push + copies * b->most_pull + b->tracked +
           (b->residual ? n * KU_BLOCK_COUNT * sizeof(float) : 0);
}

/* Of a worker, and of a server */
struct memory {
    uint64_t messages[2], all[2];
};

static struct memory memory_of(const struct side side[2], const struct bytes *b)
{
    const uint64_t server = server_bytes(side[1].layout, b), worker = b->pull + b->encoded;
    return (struct memory){
        .messages = {worker, server},
        .all = {side[0].arena_bytes + worker + b->residual, side[1].arena_bytes + server}};
}

static void print(const struct side side[2], struct ku_str *out)
{
    const struct ku_remote_layout *l = side[1].layout;
    const struct bytes b = add_up(side);
    const uint64_t n = (uint64_t)l->n_workers;
    const struct memory m = memory_of(side, &b);
    char text[2][16];
    ku_str_add(out, "parameter server: %d worker%s, %d server%s; %lld parameters\n", l->n_workers,
               l->n_workers == 1 ? "" : "s", l->n_servers, l->n_servers == 1 ? "" : "s",
               (long long)side[0].n_params);
    ku_str_add(out, "  %-24s %14s %14s\n", "", "each worker", "each server");
    const struct {
        const char *what;
        uint64_t worker, server;
    } row[] = {
        {"gradients, a step", b.push, n * b.most_push},
        {"  zeros, not sent", b.zeros, n * b.zeros / (uint64_t)l->n_servers},
        {"parameters, a step", b.pull, n * b.most_pull},
        {"memory of programs", side[0].arena_bytes, side[1].arena_bytes},
        {"memory of messages", m.messages[0], m.messages[1]},
        {"memory of error feedback", b.residual, 0},
        {"memory", m.all[0], m.all[1]},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        if (row[i].worker == 0)
            continue;
        ku_str_add(out, "  %-24s %14s %14s\n", row[i].what, ku_text_bytes(row[i].worker, text[0]),
                   ku_text_bytes(row[i].server, text[1]));
    }
    if (l->is_single)
        ku_str_add(out, "  gradients and parameters are those of one push of every worker\n");
}

static json_t *json_of(const struct side side[2])
{
    const struct ku_remote_layout *l = side[1].layout;
    const struct bytes b = add_up(side);
    const int64_t n = l->n_workers;
    return json_pack(
        "{s:i, s:i, s:{s:I, s:I, s:I, s:I, s:I, s:I}, s:{s:I, s:I, s:I, s:I}}", "workers",
        l->n_workers, "servers", l->n_servers, "worker", "push_bytes", (json_int_t)b.push,
        "zero_bytes", (json_int_t)b.zeros, "pull_bytes", (json_int_t)b.pull, "program_bytes",
        (json_int_t)side[0].arena_bytes, "message_bytes", (json_int_t)(b.pull + b.encoded),
        "feedback_bytes", (json_int_t)b.residual, "server", "push_bytes",
        (json_int_t)(n * (int64_t)b.most_push), "pull_bytes",
        (json_int_t)(n * (int64_t)b.most_pull), "program_bytes", (json_int_t)side[1].arena_bytes,
        "message_bytes", (json_int_t)server_bytes(l, &b));
}

static int plan_sides(const struct kumi_settings *settings, struct side side[2])
{
    KU_TRY(plan_side(settings, KU_UPDATE_WORKER, &side[0]));
    return plan_side(settings, KU_UPDATE_SERVER, &side[1]);
}

static void fini_sides(struct side side[2])
{
    ku_remote_layout_destroy(side[0].layout);
    ku_remote_layout_destroy(side[1].layout);
}

int ku_plan_remote_limit(const struct kumi_settings *settings, uint64_t limit_bytes)
{
    static const char *const name[2] = {"worker", "server"};
    struct side side[2] = {{0}};
    int status = plan_sides(settings, side);
    if (status == KUMI_OK) {
        const struct bytes b = add_up(side);
        const struct memory m = memory_of(side, &b);
        const int k = m.all[1] > m.all[0];
        char text[3][16];
        if (m.all[k] > limit_bytes)
            status = KU_ERR(KUMI_ENOMEM,
                            "plan: --limit: a %s needs %s, %s more than the limit of %s; `kumi "
                            "plan CONFIG --memory` lists what for",
                            name[k], ku_text_bytes(m.all[k], text[0]),
                            ku_text_bytes(m.all[k] - limit_bytes, text[1]),
                            ku_text_bytes(limit_bytes, text[2]));
    }
    fini_sides(side);
    return status;
}

int ku_plan_remote(const struct kumi_settings *settings, int as_json, char **text)
{
    struct side side[2] = {{0}};
    struct ku_str out = {0};
    int status = plan_sides(settings, side);
    if (status == KUMI_OK && as_json) {
        json_t *root = json_of(side);
        *text = root ? ku_json_print(root, JSON_INDENT(2)) : NULL;
        status = *text ? KUMI_OK : KUMI_ENOMEM;
        json_decref(root);
    } else if (status == KUMI_OK) {
        print(side, &out);
        status = ku_text_take(&out, text);
    }
    ku_str_fini(&out);
    fini_sides(side);
    return status;
}
