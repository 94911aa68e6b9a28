/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of the builder's arguments: names, values, numbers. The first failure is the graph's
 * error.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "nn/builder.h"
#include "tensor/dtype.h"

bool ku_builder_has_failed(const struct kumi_graph *g)
{
    if (g)
        return g->error.status < 0;
    KU_ERR(KUMI_EINVAL, "graph: NULL; make one with kumi_graph_create");
    return 1;
}

kumi_value ku_builder_fail(struct kumi_graph *g)
{
    if (g->error.status == KUMI_OK)
        g->error = *ku_err_get();
    return 0;
}

/*
 * Blanks, '@', '%' and '=' are syntax of the graph's text form; ':' is used in names of derived
 * tensors.
 */
static bool is_admitted(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("_-./", c));
}

int ku_builder_check_name(struct kumi_graph *g, const char *name)
{
    size_t at = 0;
    if (ku_builder_has_failed(g))
        return 0;
    while (name && is_admitted(name[at]))
        at++;
    if (name && at > 0 && name[at] == '\0' && strlen(g->scope) + at < KU_MAX_NAME_BYTES)
        return 1;
    if (name == NULL)
        KU_ERR(KUMI_EINVAL, "graph: %s: a name is NULL", g->scope);
    else if (name[at] != '\0')
        KU_ERR(
            KUMI_EINVAL,
            "graph: %s: name '%.64s': byte %zu is 0x%02x; names have letters, digits and _ - . /",
            g->scope, name, at, (unsigned)(unsigned char)name[at]);
    else if (at == 0)
        KU_ERR(KUMI_EINVAL, "graph: %s: a name is empty", g->scope);
    else
        KU_ERR(KUMI_EINVAL, "graph: %.100s%.40s..: a name of %zu bytes; at most %d", g->scope, name,
               strlen(g->scope) + at, (int)KU_MAX_NAME_BYTES - 1);
    ku_builder_fail(g);
    return 0;
}

int ku_builder_check_value(struct kumi_graph *g, kumi_value x, const char *what)
{
    if (ku_builder_has_failed(g))
        return 0;
    if (x > 0 && x < g->ir->n_values)
        return 1;
    KU_ERR(KUMI_EINVAL, "graph: %s%s: %u is not a value of this graph", g->scope, what, x);
    ku_builder_fail(g);
    return 0;
}

int ku_builder_check_floating(struct kumi_graph *g, kumi_value x, const char *what)
{
    if (!ku_builder_check_value(g, x, what))
        return 0;
    enum kumi_dtype dtype = (enum kumi_dtype)g->ir->value[x].dtype;
    if (ku_dtype_is_float(dtype))
        return 1;
    KU_ERR(KUMI_EINVAL, "graph: %s%s: takes a floating-point value, got %s", g->scope, what,
           kumi_dtype_name(dtype));
    ku_builder_fail(g);
    return 0;
}

int ku_builder_check_port(struct kumi_graph *g, kumi_value x, const char *what)
{
    if (!ku_builder_check_value(g, x, what))
        return 0;
    if (g->ir->value[x].role == KU_INPUT)
        return 1;
    KU_ERR(KUMI_EINVAL,
           "graph: %s%s: takes an input (kumi_input), whose values are checked when it is filled",
           g->scope, what);
    ku_builder_fail(g);
    return 0;
}

int ku_builder_check_number(struct kumi_graph *g, const char *what, double x, double least,
                            double most)
{
    if (ku_builder_has_failed(g))
        return 0;
    if (x >= least && x <= most)
        return 1;
    KU_ERR(KUMI_EINVAL, "graph: %s%s: %g; give a number from %g to %g", g->scope, what, x, least,
           most);
    ku_builder_fail(g);
    return 0;
}

int ku_builder_check_counts(struct kumi_graph *g, const char *name, const char *dims,
                            const int64_t *count)
{
    if (!ku_builder_check_name(g, name))
        return 0;
    if (dims == NULL || strlen(dims) > KU_MAX_DIMS || (dims[0] && count == NULL)) {
        KU_ERR(KUMI_EINVAL, "graph: %s%s: dims '%.20s', count %s; give at most %d dimensions",
               g->scope, name, dims ? dims : "NULL", count ? "given" : "NULL", KU_MAX_DIMS);
        ku_builder_fail(g);
        return 0;
    }
    for (int i = 0; dims[i]; i++)
        if (count[i] < 1) {
            KU_ERR(KUMI_EINVAL, "graph: %s%s: dimension %c has %lld elements; at least 1", g->scope,
                   name, dims[i], (long long)count[i]);
            ku_builder_fail(g);
            return 0;
        }
    return 1;
}
