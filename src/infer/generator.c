/* SPDX-License-Identifier: Apache-2.0 */
#include "infer/generator.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "infer/inference.h"

/*
 * Tokens per row in one run of a program: one (decode), or a piece of a prompt (prefill). Larger
 * pieces than 256 make matrix products no faster and activations larger.
 */
enum { N_LENGTHS = 4 };
static const int64_t lengths[N_LENGTHS] = {1, 16, 64, 256};

/* Input ports of all programs, in this order in struct length. */
enum { TOKENS, IDS, POSITIONS, LENGTHS, INDEX, N_PORTS };
static const char *const port_names[N_PORTS] = {"tokens", "position_ids", "positions", "lengths",
                                                "index"};

struct length {
    int64_t t;
    struct ku_program *program;
    const struct ku_program_port *in[N_PORTS], *logits; /* NULL: the model has no such input */
    struct ku_exec *exec;                               /* loaded on first use */
};

struct ku_infer {
    struct ku_job *job;
    const struct ku_device_ops *ops;
    void *device;
    const struct ku_model *model;
    struct length program[N_LENGTHS];
    int n_programs;
    struct ku_program *derive; /* program that derives the compute-dtype copies of the parameters */
    struct ku_memory *memory;
    int64_t n_rows, places;  /* places: max tokens of a row */
    uint32_t *id;            /* [n_rows][places] */
    int64_t *count, *n_kept; /* [n_rows]: tokens; tokens with keys and values in the cache */
    unsigned char *is_asked; /* [n_rows]: takes part in the current run */
    struct ku_infer_work work;
};

static int check_graph(const struct ku_infer *m, const struct ku_graph *g)
{
    if (ku_graph_find_input(g, "positions") && ku_graph_find_output(g, "logits"))
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL,
                  "model: %s: models of this type cannot generate text; gpt2 and llama can",
                  ku_model_type(m->model));
}

/* *model: the graph before the passes, for the check. */
static int compile_all(struct ku_infer *m, const struct ku_infer_opts *o, struct ku_graph **g,
                       struct ku_graph **model)
{
    struct ku_target target = {.query = o->device->query, .ranks_per_host = 1};
    struct ku_compile_opts c = ku_inference_compile_opts(o->compute, o->keep_f32, o->modules);
    c.watch = o->watch;
    for (int i = 0; i < N_LENGTHS; i++) {
        struct length *l = &m->program[i];
        l->t = lengths[i] < m->places ? lengths[i] : m->places;
        struct kumi_shape_of_batch batch = {
            .n = m->n_rows, .t = l->t, .is_inference = 1, .cache = m->places};
        ku_graph_destroy(*g);
        ku_graph_destroy(*model);
        *g = *model = NULL;
        KU_TRY(ku_model_graph(m->model, &batch, g));
        KU_TRY(check_graph(m, *g));
        KU_TRY(ku_graph_copy(*g, model));
        KU_TRY(ku_compile_graph(*g, &c, &target, NULL));
        KU_TRY(ku_compile_program(*g, i ? "prefill" : "decode", &c, &target, &l->program));
        m->n_programs++;
        KU_TRY(ku_inference_check(*model, &c, &target, m->program[0].program, l->program, 0));
        for (int k = 0; k < N_PORTS; k++)
            l->in[k] = ku_program_find_port(l->program, 1, port_names[k]);
        l->logits = ku_program_find_port(l->program, 0, "logits");
        if (l->t == m->places)
            break;
    }
    KU_TRY(ku_compile_init(*g, 1, &c, &target, &m->derive));
    return ku_inference_check(*model, &c, &target, m->program[0].program, m->derive, 1);
}

/*
 * Compiles a program per length, and checks it. All lengths have the same tensors in the same
 * order, so they share one memory plan. *g is the graph of the longest; the caller destroys it.
 */
static int compile(struct ku_infer *m, const struct ku_infer_opts *o, struct ku_graph **g)
{
    struct ku_graph *model = NULL;
    const int status = compile_all(m, o, g, &model);
    ku_graph_destroy(model);
    return status;
}

static int allocate(struct ku_infer *m)
{
    const struct ku_program *all[N_LENGTHS + 1];
    char what[80];
    for (int i = 0; i < m->n_programs; i++)
        all[i] = m->program[i].program;
    all[m->n_programs] = m->derive;
    snprintf(what, sizeof what, "parameters and %lld samples of %lld tokens", (long long)m->n_rows,
             (long long)m->places);
    KU_TRY(ku_inference_check_memory(all, m->n_programs + 1, what,
                                     "ask for fewer samples or tokens, or free memory"));
    m->id = ku_calloc((size_t)(m->n_rows * m->places), sizeof *m->id);
    m->count = ku_calloc((size_t)m->n_rows, sizeof *m->count);
    m->n_kept = ku_calloc((size_t)m->n_rows, sizeof *m->n_kept);
    m->is_asked = ku_calloc((size_t)m->n_rows, 1);
    if (!m->id || !m->count || !m->n_kept || !m->is_asked)
        return KUMI_ENOMEM;
    return ku_memory_create(m->job, m->ops, m->device, all, m->n_programs + 1, NULL, &m->memory);
}

int ku_infer_create(struct ku_job *job, const struct ku_model *model, const char *dir,
                    const struct ku_infer_opts *o, struct ku_infer **out)
{
    struct ku_infer *m = ku_calloc(1, sizeof *m);
    struct ku_graph *g = NULL;
    int status;
    KU_ASSERT(job->n == 1 && o->max_tokens > 0 && o->n_rows > 0);
    if (m == NULL)
        return KUMI_ENOMEM;
    m->job = job;
    m->ops = o->device;
    m->model = model;
    m->n_rows = o->n_rows;
    m->places = o->max_tokens < model->properties.max_positions ? o->max_tokens
                                                                : model->properties.max_positions;
    KU_TRY_OUT(compile(m, o, &g));
    KU_TRY_OUT(m->ops->open(&o->device_opts, &m->device));
    KU_TRY_OUT(allocate(m));
    const struct ku_inference loaded = {m->ops,    m->device, model, m->program[0].program,
                                        m->derive, m->memory};
    KU_TRY_OUT(ku_inference_load(&loaded, g, dir, o->averages));
    *out = m;
    m = NULL;
out:
    ku_graph_destroy(g);
    ku_infer_destroy(m);
    return status;
}

void ku_infer_destroy(struct ku_infer *m)
{
    if (m == NULL)
        return;
    for (int i = 0; i < m->n_programs; i++)
        ku_exec_unload(m->program[i].exec);
    ku_memory_destroy(m->memory);
    if (m->device)
        m->ops->close(m->device);
    for (int i = 0; i < m->n_programs; i++)
        ku_program_destroy(m->program[i].program);
    ku_program_destroy(m->derive);
    ku_free(m->id);
    ku_free(m->count);
    ku_free(m->n_kept);
    ku_free(m->is_asked);
    ku_free(m);
}

/* Tokens of a row that a run of a program can still process. */
static int64_t left_of(const struct ku_infer *m, int64_t row)
{
    return m->is_asked[row] ? m->count[row] - m->n_kept[row] : 0;
}

/*
 * Fills the inputs of a row for a run of t tokens; returns the number of its tokens. Inputs after
 * the last token are zeros: their keys and values are written after the text and overwritten before
 * any use. A row that takes no part gets negative positions, at which nothing is written. Every
 * piece of a prompt gets the length of the whole prompt.
 */
static int64_t fill_row(struct ku_infer *m, const struct ku_mapping *in, int64_t row, int64_t t)
{
    int32_t *tokens = (int32_t *)in[TOKENS].data + row * t, *ids = in[IDS].data;
    int32_t *length = in[LENGTHS].data;
    const int64_t at = m->n_kept[row], left = left_of(m, row);
    const int64_t n = left < t ? left : t;
    for (int64_t i = 0; i < t; i++)
        tokens[i] = i < n ? (int32_t)m->id[row * m->places + at + i] : 0;
    for (int64_t i = 0; ids && i < t; i++)
        ids[row * t + i] = (int32_t)(i < n ? at + i : 0);
    ((int32_t *)in[POSITIONS].data)[row] = (int32_t)(n > 0 ? at : -t);
    if (length)
        length[row] = (int32_t)m->count[row];
    ((int32_t *)in[INDEX].data)[row] = (int32_t)(n > 0 ? n - 1 : 0);
    return n;
}

/* Fills the inputs of all rows. *total: the number of their tokens. */
static int fill(struct ku_infer *m, const struct length *l, int64_t *total)
{
    struct ku_mapping in[N_PORTS];
    KU_TRY(ku_exec_map_ports(l->exec, l->in, N_PORTS, KU_ACCESS_WRITE, in));
    *total = 0;
    for (int64_t row = 0; row < m->n_rows; row++)
        *total += fill_row(m, in, row, l->t);
    return ku_ranges_unmap(in, N_PORTS);
}

/* Whether a row's text ends in the next run of a program. */
static bool is_due(const struct ku_infer *m, const struct length *l, int64_t row)
{
    const int64_t left = left_of(m, row);
    return left > 0 && left <= l->t;
}

/* Reads the logits of the rows that are due. */
static int take_logits(const struct ku_infer *m, const struct length *l, double *logits)
{
    const int64_t vocab = m->model->properties.vocab_size;
    const int64_t width = ku_shape_count(&l->program->shape[l->logits->shape]) / m->n_rows;
    const enum kumi_dtype dtype = (enum kumi_dtype)l->logits->dtype;
    struct ku_mapping out;
    KU_TRY(ku_range_map(ku_exec_port_at(l->exec, l->logits), KU_ACCESS_READ, &out));
    for (int64_t row = 0; row < m->n_rows; row++) {
        const int64_t n = is_due(m, l, row) ? vocab : 0;
        for (int64_t v = 0; v < n; v++)
            logits[row * vocab + v] = ku_load_f64(out.data, dtype, row * width + v);
    }
    return ku_range_unmap(&out);
}

/*
 * Runs a program once: caches up to t tokens of each participating row, and reads the logits of
 * rows whose text ends in this run. Returns the number of tokens processed, or an error.
 */
static int64_t run(struct ku_infer *m, struct length *l, double *logits)
{
    int64_t total, n_due = 0;
    if (l->exec == NULL)
        KU_TRY(ku_exec_load(m->memory, l->program, m->ops, m->device, NULL, &l->exec));
    int64_t begin = ku_clock_ns();
    KU_TRY(fill(m, l, &total));
    KU_TRY(ku_exec_run(l->exec));
    for (int64_t row = 0; row < m->n_rows; row++)
        n_due += is_due(m, l, row);
    if (n_due)
        KU_TRY(take_logits(m, l, logits));
    for (int64_t row = 0; row < m->n_rows; row++) {
        const int64_t left = left_of(m, row);
        m->n_kept[row] += left < l->t ? left : l->t;
    }
    int64_t ns = ku_clock_ns() - begin;
    if (l->t == 1) {
        m->work.tokens += total, m->work.steps++, m->work.ns += ns;
    } else {
        m->work.prompt_tokens += total, m->work.prompt_ns += ns;
    }
    return total;
}

/* Runs until all participating rows have keys and values of all their tokens. */
static int catch_up(struct ku_infer *m, double *logits)
{
    for (;;) {
        int64_t most = 0;
        int i = 0;
        for (int64_t row = 0; row < m->n_rows; row++)
            if (left_of(m, row) > most)
                most = left_of(m, row);
        if (most == 0)
            return KUMI_OK;
        while (i < m->n_programs - 1 && m->program[i].t < most)
            i++;
        int64_t n = run(m, &m->program[i], logits);
        if (n < 0)
            return (int)n;
    }
}

int ku_infer_prompt(struct ku_infer *m, const struct ku_infer_text *text, double *logits)
{
    for (int64_t row = 0; row < m->n_rows; row++) {
        const struct ku_infer_text *x = &text[row];
        int64_t n = x->n < m->places ? x->n : m->places;
        KU_ASSERT(n > 0);
        memcpy(m->id + row * m->places, x->token + x->n - n, (size_t)n * sizeof *m->id);
        m->count[row] = n;
        m->n_kept[row] = 0;
        m->is_asked[row] = 1;
    }
    return catch_up(m, logits);
}

/*
 * Rows whose window slides are recomputed in separate runs, so that the other rows use the
 * one-token program.
 */
int ku_infer_next(struct ku_infer *m, const uint32_t *token, const unsigned char *is_done,
                  double *logits)
{
    int64_t n_full = 0;
    for (int64_t row = 0; row < m->n_rows; row++) {
        uint32_t *id = m->id + row * m->places;
        int is_full = m->count[row] == m->places;
        m->is_asked[row] = !(is_done && is_done[row]);
        if (!m->is_asked[row])
            continue;
        if (is_full) {
            memmove(id, id + 1, (size_t)(m->places - 1) * sizeof *id);
            m->count[row]--;
            m->n_kept[row] = 0;
            m->is_asked[row] = 2;
            n_full++;
        }
        id[m->count[row]++] = token[row];
    }
    for (int64_t row = 0; row < m->n_rows && n_full; row++)
        m->is_asked[row] = m->is_asked[row] == 1;
    KU_TRY(catch_up(m, logits));
    for (int64_t row = 0; row < m->n_rows && n_full; row++)
        m->is_asked[row] = !(is_done && is_done[row]);
    return n_full ? catch_up(m, logits) : KUMI_OK;
}

struct ku_infer_work ku_infer_work(const struct ku_infer *m)
{
    return m->work;
}
