/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/progress_line.h"
#include "base/str.h"
#include "config/deepspeed.h"
#include "kumi/run.h"
#include "train/configure.h"
#include "pass/pipe/block_schedule.h"
#include "train/plan_proof.h"
#include "train/session.h"

/* What is checked: the compiled programs, or those of files. */
struct subject {
    const char *const *path; /* [n] texts of programs; NULL: none */
    int n;
    const struct ku_program *program[KU_N_PROGS]; /* compiled ones */
    struct ku_str *out;                           /* the table of what was proved */
};

static void print(const char *name, const struct ku_check_report *r, struct ku_str *out)
{
    ku_str_add(out, "%-8s %12u %12u %9u %10u %9u %14u %6.1f ms\n", name, r->n_instrs,
               r->n_collectives, r->n_terms, r->n_gradients, r->n_buffers, r->n_edges,
               (double)r->ns * 1e-6);
}

/* Reads a program into its place. Ranks of one class have one program, so files of the same program
 * and coordinate must be equal. */
static int read_program(const struct subject *x, const char *path, struct ku_program **given)
{
    struct ku_program *p;
    int status = KUMI_OK;
    KU_TRY(ku_program_read(path, &p));
    const int i = ku_trainer_program_find(p->name);
    struct ku_program **at = NULL;
    if (i < 0)
        status = KU_ERR(KUMI_EINPUT,
                        "program text: %.200s: program %s; the name must be train, eval, init or "
                        "derive",
                        path, p->name);
    else if (memcmp(&p->mesh, &x->program[i]->mesh, sizeof p->mesh) != 0)
        status = KU_ERR(KUMI_EPLAN,
                        "check: program %s of %.200s: the mesh is not that of the configuration; "
                        "give its -n and parallel layout",
                        p->name, path);
    else if (p->pp >= p->mesh.extent[KU_AX_PP])
        status = KU_ERR(KUMI_EPLAN, "check: program %s of %.200s: at_pp=%d; axis pp has %d ranks",
                        p->name, path, p->pp, p->mesh.extent[KU_AX_PP]);
    else if (*(at = &given[p->pp * KU_N_PROGS + i]) && ku_program_hash(*at) != ku_program_hash(p))
        status = KU_ERR(KUMI_EPLAN,
                        "check: program %s of %.200s: ranks of one class have different programs; "
                        "another file has coordinate %d of axis pp too",
                        p->name, path, p->pp);
    if (status < 0 || *at) {
        ku_program_destroy(p);
        return status;
    }
    *at = p;
    return KUMI_OK;
}

/* The coordinates of axis pp are executed together, so a program is given for all or for none. */
static int check_complete(struct ku_program *const *given, int n_pp)
{
    bool is_given[KU_N_PROGS] = {false};
    for (int at = 0; at < n_pp * KU_N_PROGS; at++)
        is_given[at % KU_N_PROGS] |= given[at] != NULL;
    for (int at = 0; at < n_pp * KU_N_PROGS; at++) {
        const char *name = ku_trainer_program_name(at % KU_N_PROGS);
        const int k = at / KU_N_PROGS;
        if (is_given[at % KU_N_PROGS] && given[at] == NULL)
            return KU_ERR(KUMI_EINVAL,
                          "check: --program: program %s of coordinate %d of axis pp is missing; "
                          "kumi graph --program %s --coordinate %d prints it",
                          name, k, name, k);
    }
    return KUMI_OK;
}

static int prove_files(struct subject *x, const struct ku_graph *model,
                       const struct ku_compile_opts *o, const struct ku_target *target)
{
    const int n_pp = o->mesh.extent[KU_AX_PP];
    struct ku_check_report report[KU_N_PROGS];
    struct ku_program **given = ku_calloc((size_t)n_pp * KU_N_PROGS, sizeof *given);
    int status = given ? KUMI_OK : KUMI_ENOMEM;
    for (int k = 0; k < x->n && status == KUMI_OK; k++)
        status = read_program(x, x->path[k], given);
    if (status == KUMI_OK)
        status = check_complete(given, n_pp);
    if (status == KUMI_OK)
        status =
            ku_trainer_prove(model, o, target, (const struct ku_program *const *)given, report);
    for (int i = 0; i < KU_N_PROGS && status == KUMI_OK; i++)
        if (given[i])
            print(ku_trainer_program_name(i), &report[i], x->out);
    for (int i = 0; i < n_pp * KU_N_PROGS && given; i++)
        ku_program_destroy(given[i]);
    ku_free(given);
    return status;
}

/* Compiles the programs `which` of a batch shape and checks them, or those of files in their place.
 */
static int prove_shape(struct ku_session *s, int shape, unsigned which,
                       const struct ku_compile_opts *o, struct subject *x)
{
    const struct ku_target target = ku_session_target(s);
    struct ku_check_report report[KU_N_PROGS];
    struct ku_graph *g = NULL, *model = NULL;
    struct ku_program *p[KU_N_PROGS] = {NULL};
    uint64_t hash[KU_MAX_PP * KU_N_PROGS];
    int status;
    KU_TRY(ku_session_graph(s, shape, &g));
    KU_TRY_OUT(ku_graph_copy(g, &model));
    KU_TRY_OUT(ku_trainer_plan(g, o, &target, which, p));
    for (int i = 0; i < KU_N_PROGS; i++)
        x->program[i] = p[i];
    if (x->path)
        KU_TRY_OUT(prove_files(x, model, o, &target));
    else
        KU_TRY_OUT(ku_trainer_prove_job(model, o, &target, which, x->program, hash, report));
    for (int i = 0; i < KU_N_PROGS && x->path == NULL; i++)
        if (p[i])
            print(ku_trainer_program_name(i), &report[i], x->out);
out:
    for (int i = 0; i < KU_N_PROGS; i++)
        ku_program_destroy(p[i]);
    ku_graph_destroy(model);
    ku_graph_destroy(g);
    return status;
}

/* The programs of all batch shapes; files are those of the largest. */
static int prove(struct ku_session *s, struct subject *x)
{
    const bool evaluates = s->remote.update_by == KU_UPDATE_HERE;
    const struct ku_batch_source_ops *ops = s->source->ops;
    const struct ku_target target = ku_session_target(s);
    struct ku_compile_opts o;
    KU_TRY(ku_session_compile_opts(s, &o));
    KU_TRY(ku_session_plan_pipeline(s, &o));
    KU_TRY(ku_session_solve_recompute(s, &target, &o));
    if (x->path)
        return prove_shape(s, ops->largest_shape(s->source), KU_ALL_PROGS, &o, x);
    for (int i = 0; i < ops->n_shapes(s->source); i++) {
        const struct ku_batch_shape shape = ops->shape(s->source, i);
        const unsigned once = i == 0 ? KU_TRAIN_PROGS : 1u << KU_PROG_TRAIN;
        if (ops->has_shapes)
            ku_str_add(x->out, "%s batches of %lld rows, %lld and %lld tokens\n",
                       shape.split == KU_SPLIT_VAL ? "validation" : "training",
                       (long long)shape.rows, (long long)shape.src_len, (long long)shape.tgt_len);
        KU_TRY(prove_shape(s, i, evaluates ? once | 1u << KU_PROG_EVAL : once, &o, x));
    }
    return KUMI_OK;
}

static void print_head(struct ku_str *out)
{
    ku_str_add(out, "%-8s %12s %12s %9s %10s %9s %14s %9s\n", "program", "instructions",
               "collectives", "terms", "gradients", "buffers", "ordering edges", "time");
}

/* The programs of a worker and of a server. */
static int check_remote(const struct kumi_settings *settings, struct subject *x)
{
    struct ku_compile_line line;
    for (int side = KU_UPDATE_WORKER; side <= KU_UPDATE_SERVER; side++) {
        struct ku_session s = {0};
        KU_TRY(ku_settings_configure_side(&s, settings, side));
        if (side == KU_UPDATE_WORKER)
            ku_deepspeed_warn(&s.cfg);
        if (side == KU_UPDATE_WORKER)
            ku_str_add(x->out, "accepted: %d worker%s", s.batch.n_ranks,
                       s.batch.n_ranks == 1 ? "" : "s");
        else
            ku_str_add(x->out, "%d server%s", s.remote.n_servers,
                       s.remote.n_servers == 1 ? "" : "s");
        ku_str_add(x->out, ", each\n");
        print_head(x->out);
        s.watch = ku_compile_line_start(&line);
        int status = ku_session_open_shapes(&s);
        if (status == KUMI_OK)
            status = prove(&s, x);
        ku_compile_line_end(&line);
        ku_session_fini(&s);
        KU_TRY(status);
    }
    return KUMI_OK;
}

static int check(const struct kumi_settings *settings, int n_ranks, struct subject *x, char **text)
{
    struct ku_session s = {0};
    struct ku_str out = {0};
    struct ku_compile_line line;
    int status, n_workers;
    KU_GIVEN(text, "text");
    x->out = &out;
    KU_TRY(ku_settings_workers(settings, &n_workers));
    if (n_workers > 0 && x->path)
        return KU_ERR(KUMI_EINVAL, "check: --program with ps.workers is not supported");
    if (n_workers > 0) {
        status = check_remote(settings, x);
        status = status == KUMI_OK ? ku_text_take(&out, text) : status;
        ku_str_fini(&out);
        return status;
    }
    KU_TRY(ku_settings_configure(&s, settings, n_ranks, NULL));
    ku_deepspeed_warn(&s.cfg);
    KU_TRY_OUT(ku_session_open_shapes(&s));
    ku_str_add(&out, "accepted: %d rank%s in %lld class%s\n", n_ranks > 0 ? n_ranks : 1,
               n_ranks > 1 ? "s" : "", (long long)s.cfg.parallel_pp,
               s.cfg.parallel_pp > 1 ? "es" : "");
    print_head(&out);
    s.watch = ku_compile_line_start(&line);
    status = prove(&s, x);
    ku_compile_line_end(&line);
    KU_TRY_OUT(status);
    status = ku_text_take(&out, text);
out:
    ku_str_fini(&out);
    ku_session_fini(&s);
    return status;
}

int kumi_check_text(const struct kumi_settings *settings, int n_ranks, char **text)
{
    return check(settings, n_ranks, &(struct subject){0}, text);
}

int kumi_check_programs(const struct kumi_settings *settings, int n_ranks, const char *const *path,
                        int n, char **text)
{
    KU_GIVEN(path, "path");
    if (n < 1)
        return KU_ERR(KUMI_EINVAL, "check: %d programs; give one or more", n);
    return check(settings, n_ranks, &(struct subject){.path = path, .n = n}, text);
}
