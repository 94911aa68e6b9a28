/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Per-instruction times of a few steps. The interpreter stores a clock stamp before each
 * instruction:
 *
 *   stamp[step]    t0   t1   t2  ..  tn        time of instruction i = stamp[i + 1] - stamp[i]
 *
 * At the end each rank sums the times per row name (op, path, shape or source). Row names and costs
 * are those of the first rank, so all ranks have the same rows; one sum over ranks then gathers the
 * times. The coordinates of a pipeline exchange their rows before that. Rank 0 writes the table;
 * the first ranks write the trace.
 */
#include "run/profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "comm/consensus.h"
#include "pass/pipe/block_schedule.h"
#include "run/profile_trace.h"
#include "sim/roofline.h"

enum { MAX_STEPS = 1000, DEFAULT_SKIP = 2, DEFAULT_STEPS = 4, MAX_RANK_LINES = 16 };
/* Categories of a rank's time. */
enum { IN_COMPUTE, IN_START, IN_WAIT, IN_DATA, IN_CHECKPOINT, N_IN };

/* Instructions with the same name. */
struct row {
    char *name;
    /* Of the profiled steps: after gather, sum_ns is the sum over ranks and rank_ns is [ranks]. */
    int64_t sum_ns, *rank_ns;
    double calls, flops, bytes, limit_ns; /* of the first rank; the mean over a pipeline */
};

struct ku_profile {
    const struct ku_trainer *t;
    char by[8], sort[8];
    bool is_gathered, is_written;
    bool is_delayed; /* the files could not be written during the run */
    int max_rows;
    int64_t first, n_steps, n_done; /* steps [first, first + n_steps) */
    int64_t *stamp;                 /* [n_steps][n_instrs + 1] */
    int *shape;                     /* [n_steps]: batch shape of each step */
    struct row *row;
    int n_rows;
    int64_t *rank_ns; /* [rows][ranks], then [N_IN][ranks] */
    struct ku_profile_mark *mark;
    int n_marks, max_marks;
    struct ku_limits limits;
};

/* Stamps of a step: of the batch shape with the most instructions. */
static size_t n_stamps(const struct ku_profile *p)
{
    size_t most = 0;
    for (int i = 0; i < p->t->n_shapes; i++) {
        const size_t n = p->t->shape[i].program[KU_PROG_TRAIN]->n_instrs + (size_t)1;
        most = n > most ? n : most;
    }
    return most;
}

static const struct ku_program *program_of(const struct ku_profile *p, int shape)
{
    return p->t->shape[shape].program[KU_PROG_TRAIN];
}

static int take_word(const char *what, const char *given, const char *const *words, char out[8])
{
    for (int i = 0; words[i]; i++)
        if (strcmp(given ? given : words[0], words[i]) == 0) {
            snprintf(out, 8, "%s", words[i]);
            return KUMI_OK;
        }
    return KU_ERR(KUMI_EINVAL, "profile: %s: %s: unknown; one of: %s %s %s%s%s", what, given,
                  words[0], words[1], words[2], words[3] ? " " : "", words[3] ? words[3] : "");
}

static int take_steps(struct ku_profile *p, const char *steps, int64_t first_step, int64_t end_step)
{
    long long first, last = 0;
    int end = 0;
    if (steps == NULL || *steps == '\0') {
        p->first = first_step + DEFAULT_SKIP;
        p->n_steps = DEFAULT_STEPS;
        return KUMI_OK;
    }
    const int n = sscanf(steps, "%lld%n-%lld%n", &first, &end, &last, &end);
    if (n < 1 || steps[end] != '\0')
        return KU_ERR(KUMI_EINVAL,
                      "profile: %s: not a range of steps; give one step, or two such as 5-8",
                      steps);
    if (n == 1)
        last = first;
    if (first < 1 || last < first || last - first >= MAX_STEPS)
        return KU_ERR(KUMI_EINVAL, "profile: %s: give a range of 1 to %d steps, counted from 1",
                      steps, MAX_STEPS);
    if (first > end_step)
        return KU_ERR(KUMI_EINVAL, "profile: %s: the run ends with step %lld", steps,
                      (long long)end_step);
    p->first = first - 1; /* the user counts steps from 1 */
    if (p->first < first_step)
        p->first = first_step;
    p->n_steps = last - p->first;
    return KUMI_OK;
}

int ku_profile_create(const struct ku_profile_opts *o, const struct ku_trainer *t,
                      int64_t first_step, int64_t end_step, struct ku_profile **out)
{
    static const char *const by[] = {"op", "path", "shape", "source", NULL};
    static const char *const sort[] = {"time", "calls", "name", NULL};
    struct ku_profile *p = ku_calloc(1, sizeof *p);
    if (p == NULL)
        return KUMI_ENOMEM;
    p->t = t;
    p->max_rows = o->rows;
    int status;
    KU_TRY_OUT(take_word("by", o->by, by, p->by));
    KU_TRY_OUT(take_word("sort", o->sort, sort, p->sort));
    KU_TRY_OUT(take_steps(p, o->steps, first_step, end_step));
    if (p->n_steps <= 0) {
        *out = NULL;
        goto out;
    }
    p->stamp = ku_calloc((size_t)p->n_steps * n_stamps(p), sizeof *p->stamp);
    p->shape = ku_calloc((size_t)p->n_steps, sizeof *p->shape);
    p->row = ku_calloc((size_t)t->n_shapes * n_stamps(p), sizeof *p->row);
    p->max_marks = (int)(p->n_steps * KU_PROFILE_N);
    p->mark = ku_calloc((size_t)p->max_marks, sizeof *p->mark);
    KU_TRY_OUT(p->stamp && p->shape && p->row && p->mark ? KUMI_OK : KUMI_ENOMEM);
    *out = p;
    return KUMI_OK;
out:
    ku_profile_destroy(p);
    return status;
}

void ku_profile_destroy(struct ku_profile *p)
{
    if (p == NULL)
        return;
    for (int i = 0; i < p->n_rows; i++)
        ku_free(p->row[i].name);
    ku_free(p->row);
    ku_free(p->stamp);
    ku_free(p->shape);
    ku_free(p->rank_ns);
    ku_free(p->mark);
    ku_free(p);
}

/*
 * Name of the row that an instruction counts in. NULL: no memory.
 */
static char *name_of(const struct ku_profile *p, const struct ku_program *program, uint32_t at,
                     const struct ku_op_case *c)
{
    const struct ku_instr *i = &program->instr[at];
    const char *path = program->name_of[i->path];
    const char *source = i->source ? program->name_of[i->source] : "-";
    char shapes[2][80] = {"", ""};
    if (i->kind == KU_WAIT)
        return ku_strdup("wait");
    if (i->kind == KU_START)
        return ku_asprintf("start %s", ku_exchange_name(i->op));
    if (strcmp(p->by, "path") == 0)
        return ku_asprintf("%s %s", *path ? path : "-", ku_ops[i->op].name);
    if (strcmp(p->by, "source") == 0)
        return ku_asprintf("%s %s", source, ku_ops[i->op].name);
    if (strcmp(p->by, "op") == 0)
        return ku_strdup(ku_ops[i->op].name);
    for (int k = 0; k < 2 && k < c->n_in; k++)
        ku_shape_print(&c->in[k].shape, shapes[k], sizeof shapes[k]);
    return ku_asprintf("%s %s %s %s", ku_ops[i->op].name,
                       kumi_dtype_name(c->n_in ? c->in[0].dtype : c->out[0].dtype), shapes[0],
                       shapes[1]);
}

static struct row *row_of(struct ku_profile *p, char *name)
{
    for (int i = 0; i < p->n_rows; i++)
        if (strcmp(p->row[i].name, name) == 0) {
            ku_free(name);
            return &p->row[i];
        }
    p->row[p->n_rows].name = name;
    return &p->row[p->n_rows++];
}

/* Total time of an instruction over the profiled steps of a shape. */
static int64_t ns_of(const struct ku_profile *p, int shape, uint32_t at)
{
    int64_t ns = 0;
    for (int64_t s = 0; s < p->n_steps; s++) {
        const int64_t *stamp = p->stamp + (size_t)s * n_stamps(p);
        ns += p->shape[s] == shape ? stamp[at + 1] - stamp[at] : 0;
    }
    return ns;
}

/*
 * Names and costs of rows come from the first rank's shapes, so that all ranks have the same rows.
 */
static int collect_shape(struct ku_profile *p, int shape)
{
    const struct ku_program *program = program_of(p, shape);
    struct ku_coord first = ku_mesh_coord(&program->mesh, 0);
    int64_t n = 0;
    for (int64_t s = 0; s < p->n_steps; s++)
        n += p->shape[s] == shape;
    for (uint32_t at = 0; at < program->n_instrs && n; at++) {
        struct ku_op_case c;
        struct ku_cost cost;
        ku_program_types(program, at, &first, &c, &cost);
        char *name = name_of(p, program, at, &c);
        if (name == NULL)
            return KUMI_ENOMEM;
        struct row *r = row_of(p, name);
        r->calls += (double)n;
        r->sum_ns += ns_of(p, shape, at);
        r->flops += cost.flops * (double)n;
        r->bytes += cost.bytes * (double)n;
        r->limit_ns += (double)n * ku_roofline_ns(&p->limits, &c, &cost);
    }
    return KUMI_OK;
}

/* Takes the rows named in text, each once, in place of p's; those that p has keep their times. */
static int take_names(struct ku_profile *p, const char *text, size_t bytes)
{
    struct row *own = p->row;
    const int n_own = p->n_rows;
    int status = KUMI_OK;
    p->n_rows = 0;
    p->row = ku_calloc(bytes / 2 + 1, sizeof *p->row); /* a name has a character at least */
    for (const char *t = text; t < text + bytes && p->row && status == KUMI_OK;
         t += strlen(t) + 1) {
        char *name = ku_strdup(t);
        status = name ? KUMI_OK : KUMI_ENOMEM;
        const int before = p->n_rows;
        struct row *r = name ? row_of(p, name) : NULL;
        for (int i = 0; i < n_own && p->n_rows > before; i++)
            if (strcmp(own[i].name, t) == 0) {
                own[i].rank_ns = NULL;
                *r = own[i];
                r->name = name;
            }
    }
    for (int i = 0; i < n_own; i++)
        ku_free(own[i].name);
    ku_free(own);
    return p->row ? status : KUMI_ENOMEM;
}

/* The mean over coordinates of what rows have beside times; of each its first rank counts. */
static int average(struct ku_profile *p, int pp, bool is_first)
{
    enum { N = 4 };
    int64_t *sum = ku_calloc((size_t)p->n_rows * N + 1, sizeof *sum);
    int status = ku_agree_local(p->t->job, sum ? KUMI_OK : KUMI_ENOMEM);
    for (int i = 0; i < p->n_rows && status == KUMI_OK && is_first; i++) {
        const struct row *r = &p->row[i];
        const double of[N] = {r->calls, r->flops, r->bytes, r->limit_ns};
        for (int k = 0; k < N; k++)
            sum[i * N + k] = llround(of[k]);
    }
    if (status == KUMI_OK)
        status = ku_agree_sum(p->t->job, sum, (int64_t)p->n_rows * N);
    for (int i = 0; i < p->n_rows && status == KUMI_OK; i++) {
        struct row *r = &p->row[i];
        double *const of[N] = {&r->calls, &r->flops, &r->bytes, &r->limit_ns};
        for (int k = 0; k < N; k++)
            *of[k] = (double)sum[i * N + k] / pp;
    }
    ku_free(sum);
    return status;
}

/*
 * The coordinates of axis pp run different programs: all ranks take the rows of each, in the order
 * of the coordinates. The first rank of a coordinate puts the names of its rows, one after the
 * other, where all others have zeros, and the texts are added up.
 */
static int unite(struct ku_profile *p)
{
    struct ku_job *job = p->t->job;
    const int pp = p->t->program[KU_PROG_TRAIN]->mesh.extent[KU_AX_PP], each = job->n / pp;
    const bool is_first = job->rank % each == 0;
    int64_t bytes[KU_MAX_PP] = {0}, at = 0, total = 0;
    if (pp == 1)
        return KUMI_OK;
    for (int i = 0; i < p->n_rows && is_first; i++)
        bytes[job->rank / each] += (int64_t)strlen(p->row[i].name) + 1;
    KU_TRY(ku_agree_sum(job, bytes, pp));
    for (int c = 0; c < pp; c++) {
        at += c < job->rank / each ? bytes[c] : 0;
        total += bytes[c];
    }
    const int words = (int)(total / (int64_t)sizeof(int64_t) + 1);
    int64_t *text = ku_calloc((size_t)words, sizeof *text);
    int status = ku_agree_local(job, text ? KUMI_OK : KUMI_ENOMEM);
    for (int i = 0; i < p->n_rows && is_first && status == KUMI_OK; i++) {
        const size_t n = strlen(p->row[i].name) + 1;
        memcpy((char *)text + at, p->row[i].name, n);
        at += (int64_t)n;
    }
    if (status == KUMI_OK)
        status = ku_agree_sum(job, text, words);
    if (status == KUMI_OK)
        status = ku_agree_local(job, take_names(p, (const char *)text, (size_t)total));
    ku_free(text);
    return status == KUMI_OK ? average(p, pp, is_first) : status;
}

static int collect(struct ku_profile *p)
{
    for (int i = 0; i < p->t->n_shapes; i++)
        KU_TRY(collect_shape(p, i));
    return KUMI_OK;
}

static int make_times(struct ku_profile *p)
{
    p->rank_ns = ku_calloc((size_t)(p->n_rows + N_IN) * (size_t)p->t->job->n, sizeof *p->rank_ns);
    return p->rank_ns ? KUMI_OK : KUMI_ENOMEM;
}

/*
 * All-gather of the times: each rank writes its own into an array of zeros, and the arrays are
 * summed.
 */
static int gather(struct ku_profile *p)
{
    const size_t n = (size_t)p->t->job->n, n_rows = (size_t)p->n_rows;
    int64_t *mine = p->rank_ns + p->t->job->rank, *in = mine + n_rows * n;
    for (size_t i = 0; i < n_rows; i++)
        mine[i * n] = p->row[i].sum_ns;
    for (int64_t s = 0; s < p->n_steps; s++)
        for (uint32_t at = 0; at < program_of(p, p->shape[s])->n_instrs; at++) {
            int kind = program_of(p, p->shape[s])->instr[at].kind;
            const int64_t *stamp = p->stamp + (size_t)s * n_stamps(p) + at;
            const size_t part = kind == KU_COMPUTE ? IN_COMPUTE
                                : kind == KU_START ? IN_START
                                                   : IN_WAIT;
            in[n * part] += stamp[1] - stamp[0];
        }
    for (int i = 0; i < p->n_marks; i++) {
        const struct ku_profile_mark *m = &p->mark[i];
        in[n * (m->what == KU_PROFILE_DATA ? IN_DATA : IN_CHECKPOINT)] += m->end_ns - m->begin_ns;
    }
    KU_TRY(ku_agree_sum(p->t->job, p->rank_ns, (int64_t)((n_rows + N_IN) * n)));
    for (size_t i = 0; i < n_rows; i++) {
        struct row *r = &p->row[i];
        r->rank_ns = p->rank_ns + i * n;
        r->sum_ns = 0;
        for (size_t k = 0; k < n; k++)
            r->sum_ns += r->rank_ns[k];
    }
    return KUMI_OK;
}

static int by_time(const void *a, const void *b)
{
    int64_t x = ((const struct row *)a)->sum_ns, y = ((const struct row *)b)->sum_ns;
    return (x < y) - (x > y);
}
static int by_calls(const void *a, const void *b)
{
    double x = ((const struct row *)a)->calls, y = ((const struct row *)b)->calls;
    return x == y ? by_time(a, b) : (x < y) - (x > y);
}
static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct row *)a)->name, ((const struct row *)b)->name);
}

static void print_row(const struct ku_profile *p, const struct row *r, double total_ns,
                      struct ku_str *out)
{
    double n = p->t->job->n, steps = (double)p->n_steps, ns = (double)r->sum_ns / n;
    int fastest = 0, slowest = 0;
    for (int k = 1; k < p->t->job->n; k++) {
        fastest = r->rank_ns[k] < r->rank_ns[fastest] ? k : fastest;
        slowest = r->rank_ns[k] > r->rank_ns[slowest] ? k : slowest;
    }
    ku_str_add(out, "%-44.44s %7.6g %10.3f %10.3f %4d %10.3f %4d %6.1f %%", r->name,
               r->calls / steps, ns / steps * 1e-6, (double)r->rank_ns[slowest] / steps * 1e-6,
               slowest, (double)r->rank_ns[fastest] / steps * 1e-6, fastest, 100 * ns / total_ns);
    if (r->bytes > 0 && ns > 0)
        ku_str_add(out, " %9.2f %8.2f", r->flops / ns, r->bytes / ns);
    if (r->bytes > 0 && r->limit_ns > 0)
        ku_str_add(out, " %6.1f %%", 100 * r->limit_ns / ns);
    ku_str_add(out, "\n");
}

static void print_ranks(const struct ku_profile *p, struct ku_str *out)
{
    int n = p->t->job->n;
    const int64_t *in = p->rank_ns + (size_t)p->n_rows * (size_t)n;
    double ms = 1e-6 / (double)p->n_steps;
    ku_str_add(out, "\n%-8s %10s %10s %10s %10s %10s %10s\n", "by rank", "ms", "compute", "start",
               "wait", "data", "checkpoint");
    for (int k = 0; k < n && k < MAX_RANK_LINES; k++) {
        const double of[N_IN] = {(double)in[IN_COMPUTE * n + k] * ms,
                                 (double)in[IN_START * n + k] * ms,
                                 (double)in[IN_WAIT * n + k] * ms, (double)in[IN_DATA * n + k] * ms,
                                 (double)in[IN_CHECKPOINT * n + k] * ms};
        ku_str_add(out, "rank %-3d %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f\n", k,
                   of[IN_COMPUTE] + of[IN_START] + of[IN_WAIT], of[IN_COMPUTE], of[IN_START],
                   of[IN_WAIT], of[IN_DATA], of[IN_CHECKPOINT]);
    }
    if (n > MAX_RANK_LINES)
        ku_str_add(out, "... %d more ranks\n", n - MAX_RANK_LINES);
}

static void print_table(struct ku_profile *p, struct ku_str *out)
{
    double total = 0, limit = 0, steps = (double)p->n_steps;
    for (int i = 0; i < p->n_rows; i++) {
        total += (double)p->row[i].sum_ns / p->t->job->n;
        limit += p->row[i].limit_ns;
    }
    qsort(p->row, (size_t)p->n_rows, sizeof *p->row,
          p->sort[0] == 't'   ? by_time
          : p->sort[0] == 'c' ? by_calls
                              : by_name);
    ku_str_add(out, "steps %lld to %lld, %d rank%s; times are means over steps and ranks\n",
               (long long)p->first + 1, (long long)(p->first + p->n_steps), p->t->job->n,
               p->t->job->n == 1 ? "" : "s");
    ku_str_add(out, "%-44s %7s %10s %10s %4s %10s %4s %8s %9s %8s %8s\n", p->by, "calls", "ms",
               "slowest", "rank", "fastest", "rank", "share", "GFLOP/s", "GB/s", "of limit");
    for (int i = 0; i < p->n_rows && (p->max_rows == 0 || i < p->max_rows); i++)
        print_row(p, &p->row[i], total, out);
    if (p->max_rows && p->n_rows > p->max_rows)
        ku_str_add(out, "... %d more rows\n", p->n_rows - p->max_rows);
    ku_str_add(out, "%-44s %7s %10.3f", "total", "", total / steps * 1e-6);
    if (limit > 0)
        ku_str_add(out, "; min at the roofline: %.3f ms, %.1f %%", limit / steps * 1e-6,
                   100 * limit / total);
    else
        ku_str_add(out, "; run `kumi bench peak` once to include the roofline");
    ku_str_add(out, "\n");
    print_ranks(p, out);
}

static int write_table(struct ku_profile *p, const char *dir)
{
    struct ku_str out = {0};
    print_table(p, &out);
    char *path = ku_asprintf("%s/profile.txt", dir);
    int status = path && !out.failed ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK && ku_os_replace(path, ku_str_get(&out), out.bytes) < 0)
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "profile: %s: %s", path, ku_os_why());
    ku_free(path);
    ku_str_fini(&out);
    return status;
}

static bool is_profiled(const struct ku_profile *p, int64_t step)
{
    return p && !p->is_written && step >= p->first && step < p->first + p->n_steps;
}

void ku_profile_before(struct ku_profile *p, int64_t step)
{
    if (!is_profiled(p, step))
        return;
    p->shape[step - p->first] = p->t->shape_at;
    ku_exec_stamp(p->t->exec[KU_PROG_TRAIN], p->stamp + (size_t)(step - p->first) * n_stamps(p));
}

void ku_profile_after(struct ku_profile *p, int64_t step)
{
    if (!is_profiled(p, step))
        return;
    ku_exec_stamp(p->t->exec[KU_PROG_TRAIN], NULL);
    p->n_done = step - p->first + 1;
}

void ku_profile_note(struct ku_profile *p, int64_t step, enum ku_profile_what what,
                     int64_t begin_ns, int64_t end_ns)
{
    if (is_profiled(p, step) && p->n_marks < p->max_marks)
        p->mark[p->n_marks++] = (struct ku_profile_mark){what, begin_ns, end_ns};
}

/* Those of rank 0's machine, for all: another machine may have measured none. */
static int take_limits(struct ku_profile *p)
{
    int n_ranks, n_cores = ku_trainer_cores(p->t, &n_ranks);
    if (p->t->job->rank == 0)
        ku_limits_read(n_cores, n_ranks, &p->limits);
    return ku_agree_bytes(p->t->job, &p->limits, sizeof p->limits);
}

/* The rows of all ranks, once. */
static int gather_rows(struct ku_profile *p)
{
    struct ku_job *job = p->t->job;
    p->n_steps = p->n_done;
    KU_TRY(take_limits(p));
    KU_TRY(ku_agree_local(job, collect(p)));
    KU_TRY(unite(p));
    KU_TRY(ku_agree_local(job, make_times(p)));
    KU_TRY(gather(p));
    p->is_gathered = true;
    return KUMI_OK;
}

static int write_files(struct ku_profile *p, const char *dir)
{
    struct ku_job *job = p->t->job;
    struct ku_trace trace = {p->t,        p->first, p->n_steps, p->stamp,
                             n_stamps(p), p->shape, p->mark,    p->n_marks};
    KU_TRY(ku_agree_worst(job, job->rank == 0 ? write_table(p, dir) : KUMI_OK));
    return ku_trace_write(&trace, dir);
}

int ku_profile_write(struct ku_profile *p, const char *dir, int is_over)
{
    if (p == NULL || p->is_written || p->n_done == 0)
        return KUMI_OK;
    if (!is_over && (p->n_done < p->n_steps || p->is_delayed))
        return KUMI_OK;
    if (!p->is_gathered)
        KU_TRY(gather_rows(p));
    const int status = write_files(p, dir);
    p->is_written = status == KUMI_OK;
    if (status != KUMI_ESTORAGE || is_over || ku_job_has_failed(p->t->job))
        return status;
    p->is_delayed = true;
    if (p->t->job->rank == 0)
        KU_LOG(TRAIN, WARN, "%s; training continues and writes the profile at its end",
               ku_err_get()->text);
    return KUMI_OK;
}
