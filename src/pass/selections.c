/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Refuses patterns of the options that select nothing in a trained model: a mistyped one would
 * train, decay or store what the user meant to leave out, without a word.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "pass/pass.h"

enum selected { PARAMETERS, NODES, MODULES /* above parameters */ };

/* Whether the pattern matches a module above the parameter: a part of its name before a dot. */
static bool matches_module(const char *pattern, const char *name)
{
    char part[KU_NAME_BYTES];
    for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.')) {
        snprintf(part, sizeof part, "%.*s", (int)(dot - name), name);
        if (ku_str_glob(pattern, part))
            return true;
    }
    return false;
}

static bool selects(const struct ku_graph *g, enum selected what, const char *pattern,
                    const char **example)
{
    bool found = false;
    *example = "";
    for (ku_id t = 1; t < g->n_tensors && what != NODES && !found; t++)
        if (g->tensor[t].kind == KU_T_PARAM) {
            *example = g->tensor[t].name;
            found = what == MODULES ? matches_module(pattern, *example)
                                    : ku_str_glob(pattern, *example);
        }
    for (ku_id n = 1; n < g->n_nodes && what == NODES && !found; n++)
        if (g->node[n].op != KU_OP_NONE && g->name[g->node[n].path][0]) {
            *example = g->name[g->node[n].path];
            found = ku_str_glob(pattern, *example);
        }
    return found;
}

bool ku_is_frozen(const struct ku_compile_opts *o, const char *parameter)
{
    for (int i = 0; o->freeze && o->freeze[i]; i++)
        if (ku_str_glob(o->freeze[i], parameter))
            return true;
    return false;
}

int ku_check_selections(const struct ku_graph *g, const struct ku_compile_opts *o)
{
    static const char *const name[] = {"parameter name matches; a name is",
                                       "module path matches; a path is",
                                       "module matches; a parameter is"};
    const struct {
        const char *key;
        const char *const *pattern; /* NULL: the key does not select by patterns */
        enum selected what;
    } list[] = {
        {"train.freeze", o->freeze, PARAMETERS},
        {"optimizer.decay", o->decay == KU_DECAY_PATTERNS ? o->decay_patterns : NULL, PARAMETERS},
        {"optimizer.adapt", o->adapt == KU_DECAY_PATTERNS ? o->adapt_patterns : NULL, PARAMETERS},
        {"memory.recompute.match", o->recompute_match, NODES},
        {"parallel.wrap", o->wrap, MODULES},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        for (int k = 0; list[i].pattern && list[i].pattern[k]; k++) {
            const char *example;
            if (!selects(g, list[i].what, list[i].pattern[k], &example))
                return KU_ERR(KUMI_EINVAL, "%s: %.200s: no %s for example %.200s", list[i].key,
                              list[i].pattern[k], name[list[i].what], example);
        }
    return KUMI_OK;
}
