/* SPDX-License-Identifier: Apache-2.0 */
#include "train/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/str.h"
#include "train/agree.h"
#include "train/profile_trace.h"
#include "train/roofline.h"

enum { MAX_STEPS = 1000, DEFAULT_SKIP = 2, DEFAULT_STEPS = 4 };

/* What instructions with one name took, on this rank, then over all. */
struct row {
    char *name;
    int64_t calls, sum_ns, worst_ns; /* of the profiled steps; sum over ranks, slowest rank */
    double flops, bytes, limit_ns;   /* of this rank: the same on all but for rounding */
};

struct ku_profile {
    const struct ku_trainer *t;
    char by[8], sort[8];
    int max_rows;
    int64_t first, n_steps; /* steps [first, first + n_steps) */
    int64_t *stamp;         /* [n_steps][n_instrs + 1] */
    struct row *row;
    int n_rows;
    struct ku_limits limits;
};

static const struct ku_program *program_of(const struct ku_profile *p)
{
    return p->t->program[KU_PROG_TRAIN];
}

static int take_word(const char *what, const char *given, const char *const *words, char out[8])
{
    for (int i = 0; words[i]; i++)
        if (strcmp(given ? given : words[0], words[i]) == 0) {
            snprintf(out, 8, "%s", words[i]);
            return KUMI_OK;
        }
    return KU_ERR(KUMI_EINVAL, "profile: %s: %s: unknown; one of: %s %s %s", what, given, words[0],
                  words[1], words[2]);
}

static int take_steps(struct ku_profile *p, const char *steps, int64_t first_step)
{
    int64_t last;
    int end = 0;
    if (steps == NULL || *steps == '\0') {
        p->first = first_step + DEFAULT_SKIP;
        p->n_steps = DEFAULT_STEPS;
        return KUMI_OK;
    }
    long long a, b;
    if (sscanf(steps, "%lld-%lld%n", &a, &b, &end) == 2 && steps[end] == '\0')
        p->first = a, last = b;
    else if (sscanf(steps, "%lld%n", &a, &end) == 1 && steps[end] == '\0')
        p->first = last = a;
    else
        return KU_ERR(KUMI_EINVAL, "profile: %s: not steps; give two as in 5-8", steps);
    p->n_steps = last - p->first + 1;
    if (p->first <= first_step || p->n_steps < 1 || p->n_steps > MAX_STEPS)
        return KU_ERR(KUMI_EINVAL,
                      "profile: %s: give 1 to %d steps behind step %lld, where the run begins",
                      steps, MAX_STEPS, (long long)first_step);
    p->first--; /* steps are named by their number when they are done */
    return KUMI_OK;
}

int ku_profile_create(const struct ku_profile_opts *o, const struct ku_trainer *t,
                      int64_t first_step, struct ku_profile **out)
{
    static const char *const by[] = {"op", "path", "shape", NULL};
    static const char *const sort[] = {"time", "calls", "name", NULL};
    struct ku_profile *p = ku_calloc(1, sizeof *p);
    if (p == NULL)
        return KUMI_ENOMEM;
    p->t = t;
    p->max_rows = o->rows;
    int status;
    KU_TRY_OUT(take_word("by", o->by, by, p->by));
    KU_TRY_OUT(take_word("sort", o->sort, sort, p->sort));
    KU_TRY_OUT(take_steps(p, o->steps, first_step));
    size_t n = (size_t)p->n_steps * (program_of(p)->n_instrs + 1);
    p->stamp = ku_calloc(n, sizeof *p->stamp);
    p->row = ku_calloc(program_of(p)->n_instrs + 1, sizeof *p->row);
    KU_TRY_OUT(p->stamp && p->row ? KUMI_OK : KUMI_ENOMEM);
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
    ku_free(p);
}

void ku_profile_before(struct ku_profile *p, int64_t step)
{
    if (p && step >= p->first && step < p->first + p->n_steps)
        ku_exec_stamp(p->t->exec[KU_PROG_TRAIN],
                      p->stamp + (step - p->first) * (program_of(p)->n_instrs + 1));
}

/* The name under which an instruction counts. NULL: no memory. */
static char *name_of(const struct ku_profile *p, uint32_t at, const struct ku_op_case *c)
{
    static const char *const exchange[] = {"reduce_scatter", "all_reduce", "barrier"};
    const struct ku_instr *i = &program_of(p)->instr[at];
    const char *path = program_of(p)->name_of[i->path];
    char shapes[2][80] = {"", ""};
    if (i->kind == KU_WAIT)
        return ku_strdup("wait");
    if (i->kind == KU_START)
        return ku_asprintf("start %s", exchange[i->op]);
    if (strcmp(p->by, "path") == 0)
        return ku_asprintf("%s %s", *path ? path : "-", ku_ops[i->op].name);
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

static int64_t ns_of(const struct ku_profile *p, uint32_t at)
{
    int64_t ns = 0;
    for (int64_t s = 0; s < p->n_steps; s++) {
        const int64_t *stamp = p->stamp + s * (program_of(p)->n_instrs + 1);
        ns += stamp[at + 1] - stamp[at];
    }
    return ns;
}

static int collect(struct ku_profile *p)
{
    struct ku_coord coord = ku_mesh_coord(&program_of(p)->mesh, p->t->job->rank);
    for (uint32_t at = 0; at < program_of(p)->n_instrs; at++) {
        struct ku_op_case c;
        struct ku_cost cost;
        ku_program_types(program_of(p), at, &coord, &c, &cost);
        char *name = name_of(p, at, &c);
        if (name == NULL)
            return KUMI_ENOMEM;
        struct row *r = row_of(p, name);
        double steps = (double)p->n_steps;
        r->calls += p->n_steps;
        r->sum_ns += ns_of(p, at);
        r->flops += cost.flops * steps;
        r->bytes += cost.bytes * steps;
        r->limit_ns += steps * ku_roofline_ns(&p->limits, &c, &cost);
    }
    return KUMI_OK;
}

/* Sums over ranks, and the slowest. Rows are the same on all: so is the program. */
static int gather(struct ku_profile *p)
{
    for (int i = 0; i < p->n_rows; i++) {
        struct row *r = &p->row[i];
        r->worst_ns = r->sum_ns;
        KU_TRY(ku_agree_max(p->t->job, &r->worst_ns));
        KU_TRY(ku_agree_sum(p->t->job, &r->sum_ns, 1));
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
    int64_t x = ((const struct row *)a)->calls, y = ((const struct row *)b)->calls;
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
    ku_str_add(out, "%-44.44s %7lld %10.3f %10.3f %6.1f %%", r->name,
               (long long)(r->calls / p->n_steps), ns / steps * 1e-6,
               (double)r->worst_ns / steps * 1e-6, 100 * ns / total_ns);
    if (r->bytes > 0 && ns > 0)
        ku_str_add(out, " %9.2f %8.2f", r->flops / ns, r->bytes / ns);
    if (r->bytes > 0 && r->limit_ns > 0)
        ku_str_add(out, " %6.1f %%", 100 * r->limit_ns / ns);
    ku_str_add(out, "\n");
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
    ku_str_add(out, "steps %lld to %lld, %d ranks; times of a step, mean of the ranks\n",
               (long long)p->first + 1, (long long)(p->first + p->n_steps), p->t->job->n);
    ku_str_add(out, "%-44s %7s %10s %10s %8s %9s %8s %8s\n", p->by, "calls", "ms", "slowest",
               "share", "GFLOP/s", "GB/s", "of limit");
    for (int i = 0; i < p->n_rows && (p->max_rows == 0 || i < p->max_rows); i++)
        print_row(p, &p->row[i], total, out);
    if (p->max_rows && p->n_rows > p->max_rows)
        ku_str_add(out, "… %d more\n", p->n_rows - p->max_rows);
    ku_str_add(out, "%-44s %7s %10.3f", "in all", "", total / steps * 1e-6);
    if (limit > 0)
        ku_str_add(out, "; the roofline's least: %.3f, %.1f %%", limit / steps * 1e-6,
                   100 * limit / total);
    else
        ku_str_add(out, "; `kumi bench peak` first, and the roofline is known");
    ku_str_add(out, "\n");
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

int ku_profile_after(struct ku_profile *p, int64_t step, const char *dir)
{
    struct ku_job *job;
    if (p == NULL || step < p->first || step >= p->first + p->n_steps)
        return KUMI_OK;
    job = p->t->job;
    ku_exec_stamp(p->t->exec[KU_PROG_TRAIN], NULL);
    if (step < p->first + p->n_steps - 1)
        return KUMI_OK;
    int cores = p->t->n_threads * job->local_n, n_cpus = ku_os_n_cpus_host();
    ku_limits_read(cores < n_cpus ? cores : n_cpus, job->n, &p->limits);
    KU_TRY(ku_agree_local(job, collect(p)));
    KU_TRY(gather(p));
    struct ku_trace trace = {p->t, p->first, p->n_steps, p->stamp};
    int status = job->rank == 0 ? write_table(p, dir) : KUMI_OK;
    KU_TRY(ku_agree_local(job, status));
    return ku_trace_write(&trace, dir);
}
