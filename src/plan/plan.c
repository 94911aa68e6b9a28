/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "ir/program_text.h"
#include "sim/volume.h"
#include "train/configure.h"
#include "base/progress_line.h"

void ku_plan_fini(struct ku_plan *p)
{
    for (int i = 0; i < KU_N_PROGS; i++)
        ku_program_destroy(p->program[i]);
    ku_session_fini(&p->s);
    ku_free(p->host);
    memset(p, 0, sizeof *p);
}

/* The bytes of all arenas that take memory. */
static size_t memory_bytes(const struct ku_program *p)
{
    size_t bytes = 0;
    for (int a = 0; a < KU_N_ARENAS; a++)
        bytes += a == KU_AR_FILE ? 0 : p->arena_bytes[a];
    return bytes;
}

static void raise_to(size_t *bytes, const size_t *other)
{
    for (int a = 0; a < KU_N_ARENAS; a++)
        if (other[a] > bytes[a])
            bytes[a] = other[a];
}

/* By which one of the programs is kept. */
static double weight(const struct ku_plan *p, const struct ku_program *program)
{
    return p->limits ? ku_roofline_program_ns(p->limits, program) : (double)memory_bytes(program);
}

/* What all coordinates move in a step of a shape. */
struct moved {
    struct ku_step_bytes step;
    struct ku_sent_bytes max;
};

/* Add the bytes of a step of the program's coordinate. */
static int add_step(const struct ku_plan *p, const struct ku_program *program, struct moved *moved)
{
    struct ku_step_bytes own, *step = &moved->step;
    struct ku_sent_bytes sent = {.messages = ku_plan_message_bytes(program)}, *max = &moved->max;
    struct ku_volume row[KU_MAX_VOLUMES];
    const int n = ku_plan_volumes(program, row);
    for (int i = 0; i < n; i++)
        *(row[i].axes & KU_TP_AXES ? &sent.tp : &sent.data) += row[i].ring_bytes;
    max->data = fmax(max->data, sent.data);
    max->tp = fmax(max->tp, sent.tp);
    max->messages = fmax(max->messages, sent.messages);
    KU_TRY(ku_plan_step_bytes(program, p->host, p->n_hosts, &own));
    step->ring += own.ring, step->stored += own.stored, step->far += own.far;
    step->messages += own.messages, step->far_messages += own.far_messages;
    return KUMI_OK;
}

/* Compile a batch shape for a coordinate of axis pp. p keeps the programs of the shape and
 * coordinate of the maximum weight. */
static int compile(struct ku_plan *p, int shape, int pp, unsigned which, struct moved *moved)
{
    struct ku_target target = ku_session_target(&p->s);
    struct ku_program *program[KU_N_PROGS] = {0};
    struct ku_compile_opts o;
    struct ku_graph *g = NULL;
    KU_TRY(ku_session_compile_opts(&p->s, &o));
    KU_TRY(ku_session_plan_pipeline(&p->s, &o));
    o.pp = pp;
    KU_TRY(ku_session_solve_recompute(&p->s, &target, &o));
    KU_TRY(ku_session_graph(&p->s, shape, &g));
    p->s.n_params = ku_graph_n_params(g);
    p->loader_bytes = p->s.source->ops->read_ahead_bytes(p->s.source, g);
    int status = ku_trainer_plan(g, &o, &target, which, program);
    if (status == KUMI_OK && p->host)
        status =
            ku_trainer_inbox_bytes(program[KU_PROG_TRAIN], g, p->host, p->n_hosts, &p->inbox_bytes);
    ku_graph_destroy(g);
    if (status == KUMI_OK)
        status = add_step(p, program[KU_PROG_TRAIN], moved);
    const struct ku_program *kept = p->program[KU_PROG_TRAIN];
    const bool is_kept =
        status == KUMI_OK && (kept == NULL || weight(p, program[KU_PROG_TRAIN]) > weight(p, kept));
    for (int i = 0; i < KU_N_PROGS; i++) {
        if (status == KUMI_OK && program[i])
            raise_to(i == KU_PROG_TRAIN ? p->arena_bytes : p->other_bytes, program[i]->arena_bytes);
        ku_program_destroy(is_kept ? p->program[i] : program[i]);
        if (is_kept)
            p->program[i] = program[i];
    }
    p->shape = is_kept ? shape : p->shape;
    return status;
}

static int compile_all(struct ku_plan *p, const size_t *other_bytes)
{
    const unsigned which = other_bytes ? 1u << KU_PROG_TRAIN : KU_ALL_PROGS;
    for (int i = 0; i < p->s.source->ops->n_shapes(p->s.source); i++) {
        struct moved moved = {0};
        for (int pp = 0; pp < p->s.sharding.pp; pp++)
            KU_TRY(compile(p, i, pp, which, &moved));
        p->step = p->shape == i ? moved.step : p->step;
        p->sent = p->shape == i ? moved.max : p->sent;
    }
    if (other_bytes)
        memcpy(p->other_bytes, other_bytes, sizeof p->other_bytes);
    raise_to(p->arena_bytes, p->other_bytes);
    return KUMI_OK;
}

/* Plans other than that of memory are of training by all-reduce. */
static int refuse_workers(const struct ku_plan *p)
{
    if (p->s.cfg.ps_workers == KU_NULL)
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL,
                  "plan: ps.workers: %lld; a parameter server has only the memory plan; --set "
                  "ps.workers=null plans training by all-reduce",
                  (long long)p->s.cfg.ps_workers);
}

int ku_plan_open(struct ku_plan *p, const struct kumi_settings *settings, int n_ranks,
                 const char *const *more)
{
    memset(p, 0, sizeof *p);
    KU_TRY(ku_settings_configure(&p->s, settings, n_ranks, more));
    int status = refuse_workers(p);
    if (status == KUMI_OK)
        status = ku_session_open_shapes(&p->s);
    if (status < 0)
        ku_plan_fini(p);
    return status;
}

int ku_plan_compile(struct ku_plan *p, const struct ku_watch *watch, const size_t *other_bytes)
{
    struct ku_compile_line line;
    if (p->host == NULL)
        p->max_local = ku_session_n_ranks(&p->s);
    const uint64_t n_local = (uint64_t)p->max_local;
    p->s.watch = watch ? *watch : ku_compile_line_start(&line);
    int status = compile_all(p, other_bytes);
    if (status == KUMI_OK)
        status =
            ku_session_exchange_bytes(&p->s, &p->program[KU_PROG_TRAIN]->mesh, &p->exchange_bytes);
    p->s.watch = (struct ku_watch){0};
    if (watch == NULL)
        ku_compile_line_end(&line);
    if (status < 0) {
        ku_plan_fini(p);
        return status;
    }
    for (int a = 0; a < KU_N_ARENAS; a++)
        p->rank_bytes += ku_arena_is_common(a) || a == KU_AR_FILE ? 0 : p->arena_bytes[a];
    p->rank_bytes += ku_session_staging_bytes(&p->s) + p->loader_bytes + p->exchange_bytes;
    p->rank_bytes += p->inbox_bytes;
    const uint64_t common = p->arena_bytes[KU_AR_HOST] + p->arena_bytes[KU_AR_GATHER];
    p->host_bytes = common + p->rank_bytes * n_local;
    p->table_bytes = (common + p->rank_bytes) / 4096 * 8 * n_local;
    return KUMI_OK;
}

int ku_plan_init(struct ku_plan *p, const struct kumi_settings *settings, int n_ranks,
                 const char *const *more, const struct ku_watch *watch)
{
    KU_TRY(ku_plan_open(p, settings, n_ranks, more));
    return ku_plan_compile(p, watch, NULL);
}

int ku_plan_try(struct ku_plan *p, const struct kumi_settings *settings, int n_ranks,
                const char *const *more, const struct ku_watch *watch, char **refusal)
{
    static const char budget[] = "memory.recompute: "; /* else memory for the compiler is short */
    const int status = ku_plan_init(p, settings, n_ranks, more, watch);
    const char *why = ku_err_get()->text;
    *refusal = NULL;
    if (status == KUMI_OK ||
        (status != KUMI_EINVAL &&
         (status != KUMI_ENOMEM || strncmp(why, budget, sizeof budget - 1) != 0)))
        return status;
    *refusal = ku_strdup(why);
    return *refusal ? KUMI_OK : KUMI_ENOMEM;
}

int ku_plan_open_hosts(struct ku_plan *p, const struct kumi_settings *settings,
                       const struct ku_hostlist *hosts)
{
    int n_ranks = 0;
    memset(p, 0, sizeof *p);
    if (hosts->n == 1)
        return ku_plan_open(p, settings, hosts->host[0].n, NULL);
    p->host = ku_calloc(hosts->n, sizeof *p->host);
    if (p->host == NULL)
        return KUMI_ENOMEM;
    p->n_hosts = (int)hosts->n;
    for (int h = 0; h < p->n_hosts; h++) {
        const int n = hosts->host[h].n;
        p->host[h] = (struct ku_host_ranks){n_ranks, n};
        n_ranks += n;
        p->max_local = n > p->max_local ? n : p->max_local;
    }
    p->s.host_ranks = ku_hostlist_divisor(hosts, &p->s.has_even_hosts);
    p->s.host = p->host, p->s.n_hosts = p->n_hosts;
    int status = ku_settings_configure(&p->s, settings, n_ranks, NULL);
    if (status == KUMI_OK)
        status = refuse_workers(p);
    if (status == KUMI_OK)
        status = ku_session_open_shapes(&p->s);
    if (status < 0)
        ku_plan_fini(p);
    return status;
}

int ku_plan_open_at(struct ku_plan *p, const struct kumi_settings *settings, const char *hosts,
                    const char *hostfile, int n_ranks)
{
    struct ku_hostlist list = {0};
    if (hosts == NULL && hostfile == NULL)
        return ku_plan_open(p, settings, n_ranks, NULL);
    if (n_ranks < 0)
        return KU_ERR(KUMI_EINVAL, "rank count: -n: %d; give a number from 1, or 0: all slots",
                      n_ranks);
    KU_TRY(ku_hostlist_open(&list, hosts, hostfile, n_ranks));
    int status = ku_plan_open_hosts(p, settings, &list);
    ku_hostlist_fini(&list);
    return status;
}

int ku_plan_init_hosts(struct ku_plan *p, const struct kumi_settings *settings,
                       const struct ku_hostlist *hosts)
{
    KU_TRY(ku_plan_open_hosts(p, settings, hosts));
    return ku_plan_compile(p, NULL, NULL);
}

int ku_plan_coordinate(const struct ku_plan *p)
{
    return p->program[KU_PROG_TRAIN]->pp;
}

size_t ku_plan_unused_bytes(const struct ku_memory_report *r)
{
    size_t used = 0;
    for (int c = 0; c < KU_N_CLASSES; c++)
        used += r->at_peak[c];
    return r->peak_bytes > used ? r->peak_bytes - used : 0;
}

void ku_plan_print_instr(const struct ku_program *p, uint32_t at, struct ku_str *out)
{
    if (at >= p->n_instrs)
        return;
    char text[KU_NAME_BYTES + 64];
    ku_program_instr_text(p, at, text, sizeof text);
    ku_str_add(out, "%s", text);
}
