/* SPDX-License-Identifier: Apache-2.0 */
#include "kumi/run.h"

#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/str.h"
#include "train/configure.h"
#include "base/progress_line.h"
#include "config/deepspeed.h"
#include "train/session.h"

/* Check --after: the name of a graph pass, or "lower" for the program. */
static int check_after(const char *after, int as_dot, int *is_program)
{
    const char *const *name = ku_pass_names();
    *is_program = after ? strcmp(after, "lower") == 0 : !as_dot;
    if (*is_program && as_dot)
        return KU_ERR(KUMI_EINVAL, "graph: --after lower: a program has no Graphviz form; omit "
                                   "--dot, or name a pass of the graph");
    if (*is_program || after == NULL)
        return KUMI_OK;
    struct ku_str names = {0};
    for (int i = 0; name[i]; i++) {
        if (strcmp(name[i], after) == 0) {
            ku_str_fini(&names);
            return KUMI_OK;
        }
        ku_str_add(&names, "%s ", name[i]);
    }
    int status = KU_ERR(KUMI_EINVAL, "graph: --after %.64s: no such pass; one of %slower", after,
                        ku_str_get(&names));
    ku_str_fini(&names);
    return status;
}

struct form {
    const char *after; /* NULL: the last pass */
    int is_program, as_dot;
    int program, pp; /* KU_PROG_*, of this coordinate of axis pp */
    int rank;        /* the program of this rank, with its sizes; -1: whole, as it is read */
};

static int print(struct ku_session *s, const struct form *form, struct ku_str *out)
{
    struct ku_target target = ku_session_target(s);
    struct ku_compile_opts o;
    struct ku_graph *g = NULL;
    struct ku_program *p[KU_N_PROGS] = {NULL};
    int status;
    KU_TRY(ku_session_compile_opts(s, &o));
    KU_TRY(ku_session_plan_pipeline(s, &o));
    const struct ku_coord at = ku_mesh_coord(&o.mesh, form->rank < 0 ? 0 : form->rank);
    o.pp = form->rank < 0 ? form->pp : at.at[KU_AX_PP];
    if (o.pp < 0 || o.pp >= o.mesh.extent[KU_AX_PP])
        return KU_ERR(KUMI_EINVAL, "graph: --coordinate: %d; give a number from 0 to %d", o.pp,
                      o.mesh.extent[KU_AX_PP] - 1);
    KU_TRY(ku_session_solve_recompute(s, &target, &o));
    KU_TRY(ku_session_graph(s, s->source->ops->largest_shape(s->source), &g));
    if (form->is_program) {
        const unsigned which = 1u << KU_PROG_TRAIN | 1u << form->program;
        KU_TRY_OUT(ku_trainer_plan(g, &o, &target, which, p));
        status = ku_program_print(p[form->program], form->rank < 0 ? NULL : &at, out);
    } else {
        KU_TRY_OUT(ku_compile_graph(g, &o, &target, form->after));
        status = form->as_dot ? ku_graph_print_dot(g, out) : ku_graph_print(g, out);
    }
out:
    for (int i = 0; i < KU_N_PROGS; i++)
        ku_program_destroy(p[i]);
    ku_graph_destroy(g);
    return status;
}

static int text_of(const struct kumi_settings *settings, int n_ranks, const struct form *form,
                   char **text)
{
    struct ku_session s = {0};
    struct ku_str out = {0};
    struct ku_compile_line line;
    int status;
    KU_TRY(ku_settings_configure(&s, settings, n_ranks, NULL));
    ku_deepspeed_warn(&s.cfg);
    KU_TRY_OUT(ku_session_open_shapes(&s));
    s.watch = ku_compile_line_start(&line);
    status = print(&s, form, &out);
    ku_compile_line_end(&line);
    KU_TRY_OUT(status);
    status = ku_text_take(&out, text);
out:
    ku_str_fini(&out);
    ku_session_fini(&s);
    return status;
}

int kumi_graph_text(const struct kumi_settings *settings, int n_ranks, const char *after,
                    int as_dot, char **text)
{
    struct form form = {.after = after, .as_dot = as_dot, .rank = -1};
    KU_GIVEN(text, "text");
    KU_TRY(check_after(after, as_dot, &form.is_program));
    return text_of(settings, n_ranks, &form, text);
}

int kumi_program_text(const struct kumi_settings *settings, int n_ranks, int rank, char **text)
{
    KU_GIVEN(text, "text");
    if (rank < 0 || (n_ranks > 0 && rank >= n_ranks))
        return KU_ERR(KUMI_EINVAL, "graph: --rank: %d; give a number from 0 to %d", rank,
                      n_ranks > 0 ? n_ranks - 1 : 0);
    return text_of(settings, n_ranks, &(struct form){.is_program = 1, .rank = rank}, text);
}

int kumi_coordinate_text(const struct kumi_settings *settings, int n_ranks, const char *program,
                         int coordinate, char **text)
{
    struct form form = {.is_program = 1, .pp = coordinate, .rank = -1};
    KU_GIVEN(text, "text");
    KU_GIVEN(program, "program");
    form.program = ku_trainer_program_find(program);
    if (form.program < 0)
        return KU_ERR(KUMI_EINVAL, "graph: --program: %.64s; give train, eval, init or derive",
                      program);
    return text_of(settings, n_ranks, &form, text);
}
