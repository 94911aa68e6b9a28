/* SPDX-License-Identifier: Apache-2.0 */
#include "pass/precision_rules.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"

static const struct ku_precision_rule kept_f32 = {.dtype = {[KU_ROLE_PARAM] = -1,
                                                            [KU_ROLE_COMPUTE] = KUMI_F32,
                                                            [KU_ROLE_REDUCE] = -1,
                                                            [KU_ROLE_OUTPUT] = -1,
                                                            [KU_ROLE_BUFFER] = -1},
                                                  .casts_inputs = true};

/* The number of bytes of the shortest enclosing module of `path` that the pattern matches; -1: it
 * matches none. */
static int match(const char *pattern, const char *path)
{
    const bool is_name = strchr(pattern, '.') == NULL;
    char part[KU_NAME_BYTES];
    for (const char *name = path;;) {
        const size_t n = strcspn(name, ".");
        const char *const from[] = {path, name};
        for (int i = 0; i <= is_name; i++) {
            const size_t bytes = (size_t)(name + n - from[i]);
            memcpy(part, from[i], bytes);
            part[bytes] = '\0';
            if (ku_str_glob(pattern, part))
                return (int)(name + n - path);
        }
        if (name[n] == '\0')
            return -1;
        name += n + 1;
    }
}

static void module_of_tensor(const struct ku_graph *g, ku_id tensor, char out[KU_NAME_BYTES])
{
    const char *name = g->tensor[tensor].name, *dot = strrchr(name, '.');
    snprintf(out, KU_NAME_BYTES, "%.*s", dot ? (int)(dot - name) : 0, name);
}

/* Whether a pattern matches the node's module or the module of a parameter that it reads. */
static bool has_node(const struct ku_graph *g, ku_id node, const char *pattern, int *n_bytes)
{
    const struct ku_node *n = &g->node[node];
    char module[KU_NAME_BYTES];
    const int bytes = match(pattern, g->name[n->path]);
    *n_bytes = bytes >= 0 ? bytes : (int)strlen(g->name[n->path]);
    if (bytes >= 0)
        return true;
    for (int i = 0; i < n->n_in; i++) {
        const struct ku_value *v = &g->value[ku_in(g, n, i)];
        if (v->role != KU_STATE || g->tensor[v->tensor].kind != KU_T_PARAM)
            continue;
        module_of_tensor(g, v->tensor, module);
        if (match(pattern, module) >= 0)
            return true;
    }
    return false;
}

static bool has_tensor(const struct ku_graph *g, ku_id tensor, const char *pattern)
{
    char module[KU_NAME_BYTES];
    module_of_tensor(g, tensor, module);
    return match(pattern, module) >= 0;
}

const struct ku_precision_rule *ku_precision_of_node(const struct ku_graph *g,
                                                     const struct ku_compile_opts *o, ku_id node,
                                                     int *n_bytes)
{
    int ignored;
    n_bytes = n_bytes ? n_bytes : &ignored;
    for (int r = 0; o->modules && r < o->modules->n; r++)
        for (const char *const *p = o->modules->rule[r].match; *p; p++)
            if (has_node(g, node, *p, n_bytes))
                return &o->modules->rule[r];
    for (const char *const *p = o->keep_f32; p && *p; p++)
        if (has_node(g, node, *p, n_bytes))
            return &kept_f32;
    return NULL;
}

const struct ku_precision_rule *
ku_precision_of_tensor(const struct ku_graph *g, const struct ku_compile_opts *o, ku_id tensor)
{
    for (int r = 0; o->modules && r < o->modules->n; r++)
        for (const char *const *p = o->modules->rule[r].match; *p; p++)
            if (has_tensor(g, tensor, *p))
                return &o->modules->rule[r];
    return NULL;
}

enum kumi_dtype ku_precision_wire(const struct ku_graph *g, const struct ku_compile_opts *o,
                                  ku_id tensor)
{
    const struct ku_precision_rule *rule = ku_precision_of_tensor(g, o, tensor);
    return rule && rule->dtype[KU_ROLE_REDUCE] >= 0 ? (enum kumi_dtype)rule->dtype[KU_ROLE_REDUCE]
                                                    : o->reduce;
}

/* Keeps in `best` the one of two module paths that is nearer to the pattern. */
static void compare(const char *pattern, const char *path, char best[KU_NAME_BYTES])
{
    const char *const both[] = {best, path};
    const char *nearer = ku_str_nearest(pattern, both, 2);
    if (nearer == path && *path)
        snprintf(best, KU_NAME_BYTES, "%s", path);
}

/* Refuses a pattern that matches nothing, with the nearest path of a module or enclosing module. */
static int refuse_pattern(const struct ku_graph *g, int rule, const char *pattern)
{
    char best[KU_NAME_BYTES] = "", part[KU_NAME_BYTES];
    const char *example = "";
    for (ku_id n = 1; n < g->n_nodes; n++) {
        const char *path = g->name[g->node[n].path];
        example = g->node[n].op == KU_OP_linear || *example == '\0' ? path : example;
        for (size_t bytes = 0; bytes < strlen(path); bytes++) {
            bytes += strcspn(path + bytes, ".");
            snprintf(part, sizeof part, "%.*s", (int)bytes, path);
            compare(pattern, part, best);
        }
    }
    return KU_ERR(
        KUMI_EINVAL, "precision.modules[%d]: match: %.200s: no module has such a path; %s %.200s",
        rule, pattern, *best ? "the nearest is" : "paths are like", *best ? best : example);
}

static int check_patterns(const struct ku_graph *g, const struct ku_compile_opts *o, int rule)
{
    int ignored;
    for (const char *const *p = o->modules->rule[rule].match; *p; p++) {
        bool found = false;
        for (ku_id n = 1; n < g->n_nodes && !found; n++)
            found = g->node[n].op != KU_OP_NONE && has_node(g, n, *p, &ignored);
        if (!found)
            return refuse_pattern(g, rule, *p);
    }
    return KUMI_OK;
}

/* Refuses what a rule says of parameters, gradients or buffers that its modules do not have. */
static int check_effect(const struct ku_graph *g, const struct ku_compile_opts *o, int rule)
{
    const struct ku_precision_rule *r = &o->modules->rule[rule];
    bool has_param = false, has_buffer = false;
    for (ku_id t = 1; t < g->n_tensors; t++) {
        if (ku_precision_of_tensor(g, o, t) != r)
            continue;
        has_param |= g->tensor[t].kind == KU_T_PARAM;
        has_buffer |= g->tensor[t].kind == KU_T_BUFFER &&
                      ku_dtype_is_float((enum kumi_dtype)g->tensor[t].dtype);
    }
    const struct {
        bool is_wrong;
        int role;
        const char *what;
    } check[] = {{!has_param, KU_ROLE_PARAM, "parameters"},
                 {!has_param, KU_ROLE_REDUCE, "parameters"},
                 {!has_buffer, KU_ROLE_BUFFER, "buffers"}};
    for (size_t i = 0; i < sizeof check / sizeof check[0]; i++)
        if (r->dtype[check[i].role] >= 0 && check[i].is_wrong)
            return KU_ERR(
                KUMI_EINVAL,
                "precision.modules[%d]: %s: %s of \"%.200s\": the modules that this rule is the "
                "first to match have no %s; leave it out",
                rule, ku_precision_roles[check[i].role],
                kumi_dtype_name((enum kumi_dtype)r->dtype[check[i].role]), r->match[0],
                check[i].what);
    return KUMI_OK;
}

/* At least one pattern of keep_f32 must match; the others may be for other models. */
static int check_kept(const struct ku_graph *g, const struct ku_compile_opts *o)
{
    const char *example = "";
    int ignored;
    if (o->keep_f32 == NULL || o->keep_f32[0] == NULL)
        return KUMI_OK;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        for (const char *const *p = o->keep_f32; *p; p++)
            if (has_node(g, n, *p, &ignored))
                return KUMI_OK;
        example = g->node[n].op == KU_OP_linear ? g->name[g->node[n].path] : example;
    }
    return KU_ERR(
        KUMI_EINVAL,
        "precision.keep_f32: %.200s: no module path matches; a path is for example %.200s",
        o->keep_f32[0], example);
}

int ku_precision_check_rules(const struct ku_graph *g, const struct ku_compile_opts *o)
{
    if (!o->is_training)
        return KUMI_OK;
    for (int r = 0; o->modules && r < o->modules->n; r++) {
        KU_TRY(check_patterns(g, o, r));
        KU_TRY(check_effect(g, o, r));
    }
    return check_kept(g, o);
}
