/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/progress_line.h"
#include "base/str.h"
#include "kumi/run.h"
#include "train/configure.h"
#include "train/proof.h"
#include "train/session.h"

/* Compiles the training program of a batch shape and checks it. */
static int prove(struct ku_session *s, int shape, struct ku_check_report *report)
{
    struct ku_target target = ku_session_target(s);
    struct ku_compile_opts o;
    struct ku_graph *g = NULL, *model = NULL;
    struct ku_program *p = NULL;
    int status;
    KU_TRY(ku_session_compile_opts(s, &o));
    KU_TRY(ku_session_solve_recompute(s, &target, &o));
    KU_TRY(ku_session_graph(s, shape, &g));
    KU_TRY_OUT(ku_graph_copy(g, &model));
    KU_TRY_OUT(ku_compile_graph(g, &o, &target, NULL));
    KU_TRY_OUT(ku_compile_program(g, "train", &o, &target, &p));
    status = ku_trainer_prove(model, &o, &target, p, report);
out:
    ku_program_destroy(p);
    ku_graph_destroy(model);
    ku_graph_destroy(g);
    return status;
}

int kumi_check_text(const struct kumi_settings *settings, int n_ranks, char **text)
{
    struct ku_session s = {0};
    struct ku_str out = {0};
    struct ku_check_report r = {0};
    struct ku_compile_line line;
    int status;
    KU_GIVEN(text, "text");
    KU_TRY(ku_settings_configure(&s, settings, n_ranks, NULL));
    KU_TRY_OUT(ku_session_open_shapes(&s));
    s.watch = ku_compile_line_start(&line);
    status = prove(&s, s.source->ops->largest_shape(s.source), &r);
    ku_compile_line_end(&line);
    KU_TRY_OUT(status);
    ku_str_add(&out,
               "accepted: %d rank%s in 1 class\n"
               "  instructions    %u\n"
               "  collectives     %u\n"
               "  terms           %u of the model\n"
               "  gradients       %u complete: every use, micro-batch and shard once\n"
               "  buffers         %u without overlap of live ranges\n"
               "  ordering edges  %u before state is overwritten\n"
               "  time            %.1f ms\n",
               n_ranks > 0 ? n_ranks : 1, n_ranks > 1 ? "s" : "", r.n_instrs, r.n_collectives,
               r.n_terms, r.n_gradients, r.n_buffers, r.n_edges, (double)r.ns * 1e-6);
    status = ku_text_take(&out, text);
out:
    ku_str_fini(&out);
    ku_session_fini(&s);
    return status;
}
