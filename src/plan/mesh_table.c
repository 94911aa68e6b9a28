/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/str.h"
#include "config/deepspeed.h"
#include "kumi/run.h"
#include "plan/plan.h"
#include "train/session.h"

/*
 * The ranks that form each group. Those of an axis, and of neighbouring axes together, lie at a
 * constant stride, so a group is {first, stride, n} and no list of ranks is made:
 *
 *     shard=2 tp=2:   shard  stride 2  groups {0 2} {1 3}
 *                     tp     stride 1  groups {0 1} {2 3}
 */
struct row {
    int axes; /* a mask of neighbours */
    int n, stride, n_groups;
    int min_hosts, max_hosts; /* that a group spans */
};
enum { MAX_ROWS = KU_AX_FIRST_TIME + 2 };

static const char *use_of(int axes, bool has_inner)
{
    switch (axes) {
    case 1 << KU_AX_PP:
        return "divide the layers";
    case 1 << KU_AX_REPLICATE:
        return "hold copies of the state";
    case 1 << KU_AX_SHARD:
        return "divide the state";
    case 1 << KU_AX_LOCAL:
        return "share one copy of the state";
    case 1 << KU_AX_TP:
        return has_inner ? "divide key and value heads" : "divide every layer";
    case 1 << KU_AX_TPI:
        return "divide the queries of a head";
    case KU_TP_AXES:
        return "divide every layer";
    default:
        return "divide the batch";
    }
}

/* First rank of group g. */
static int first_of(const struct row *r, int g)
{
    return g / r->stride * r->stride * r->n + g % r->stride;
}

static int host_at(const struct ku_plan *p, int rank)
{
    int low = 0, high = p->n_hosts - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (p->host[middle].first <= rank)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static void count_hosts(const struct ku_plan *p, struct row *r)
{
    r->min_hosts = p->host ? p->n_hosts : 1;
    r->max_hosts = 1;
    for (int g = 0; g < r->n_groups && p->host; g++) {
        int n = 1;
        for (int i = 1, rank = first_of(r, g); i < r->n; i++, rank += r->stride)
            n += host_at(p, rank) != host_at(p, rank + r->stride);
        r->min_hosts = n < r->min_hosts ? n : r->min_hosts;
        r->max_hosts = n > r->max_hosts ? n : r->max_hosts;
    }
}

/* mask: axes next to each other, apart from those of one rank */
static void add_row(const struct ku_plan *p, const struct ku_mesh *m, int axes, struct row *row,
                    int *n)
{
    struct row r = {.axes = axes, .n = 1, .stride = 1};
    for (int a = 0; a < KU_AX_FIRST_TIME; a++) {
        const bool is_inner = axes >> a == 0;
        r.n *= axes >> a & 1 ? m->extent[a] : 1;
        r.stride *= is_inner ? m->extent[a] : 1;
    }
    r.n_groups = ku_mesh_n_ranks(m) / r.n;
    count_hosts(p, &r);
    row[(*n)++] = r;
}

/* The axes of several ranks, and the data-parallel and the tensor-parallel ones together where they
 * are several. */
static int rows_of(const struct ku_plan *p, const struct ku_mesh *m, struct row row[MAX_ROWS])
{
    const int data = ku_mesh_wide(m, KU_DP_AXES), tp = ku_mesh_wide(m, KU_TP_AXES);
    int n = 0;
    if (data & (data - 1))
        add_row(p, m, data, row, &n);
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (m->extent[a] > 1)
            add_row(p, m, 1 << a, row, &n);
    if (tp & (tp - 1))
        add_row(p, m, tp, row, &n);
    return n;
}

static void add_name(const struct row *r, struct ku_str *out)
{
    const char *between = "";
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (r->axes >> a & 1) {
            ku_str_add(out, "%s%s", between, ku_axis_name(a));
            between = " x ";
        }
}

static void add_group(const struct row *r, int g, struct ku_str *out)
{
    enum { MAX_SHOWN = 4 };
    const int first = first_of(r, g);
    for (int i = 0; i < r->n; i++) {
        if (r->n > MAX_SHOWN && i == 2) {
            ku_str_add(out, " ..");
            i = r->n - 1;
        }
        ku_str_add(out, "%s%d", i ? " " : "{", first + i * r->stride);
    }
    ku_str_add(out, "}");
}

static int print_rows(const struct ku_plan *p, const struct ku_mesh *m, const struct row *row,
                      int n_rows, char **text)
{
    const int n = ku_mesh_n_ranks(m);
    const char *between = " = ";
    struct ku_str out = {0};
    ku_str_add(&out, "mesh: %d rank%s", n, n == 1 ? ", no groups" : "s");
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (m->extent[a] > 1) {
            ku_str_add(&out, "%s%s %d", between, ku_axis_name(a), m->extent[a]);
            between = " x ";
        }
    ku_str_add(&out, "\n");
    if (n_rows > 0)
        ku_str_add(&out, "\n  %-25s %6s %7s %7s %s %-28s %s\n", "axis", "ranks", "groups", "stride",
                   p->host ? "  hosts " : "", "the ranks of a group", "groups");
    for (int i = 0; i < n_rows; i++) {
        const struct row *r = &row[i];
        struct ku_str name = {0};
        char hosts[24] = "";
        add_name(r, &name);
        if (p->host && r->min_hosts == r->max_hosts)
            snprintf(hosts, sizeof hosts, "%7d ", r->max_hosts);
        else if (p->host)
            snprintf(hosts, sizeof hosts, "%4d-%d ", r->min_hosts, r->max_hosts);
        ku_str_add(&out, "  %-25s %6d %7d %7d %s %-28s ", ku_str_get(&name), r->n, r->n_groups,
                   r->stride, hosts, use_of(r->axes, m->extent[KU_AX_TPI] > 1));
        for (int g = 0; g < r->n_groups; g++) {
            if (r->n_groups > 3 && g == 2) {
                ku_str_add(&out, " ..");
                g = r->n_groups - 1;
            }
            ku_str_add(&out, g ? " " : "");
            add_group(r, g, &out);
        }
        ku_str_add(&out, "\n");
        ku_str_fini(&name);
    }
    return ku_text_take(&out, text);
}

static int rows_json(const struct ku_plan *p, const struct ku_mesh *m, const struct row *row,
                     int n_rows, char **text)
{
    json_t *list = json_array();
    for (int i = 0; i < n_rows; i++) {
        const struct row *r = &row[i];
        json_t *axes = json_array(), *one;
        for (int a = 0; a < KU_AX_FIRST_TIME; a++)
            if (r->axes >> a & 1)
                json_array_append_new(axes, json_string(ku_axis_name(a)));
        one = json_pack("{s:o, s:i, s:i, s:i}", "axes", axes, "ranks", r->n, "groups", r->n_groups,
                        "stride", r->stride);
        if (p->host)
            json_object_set_new(one, "hosts", json_pack("[i, i]", r->min_hosts, r->max_hosts));
        json_array_append_new(list, one);
    }
    return ku_text_json(json_pack("{s:i, s:o}", "ranks", ku_mesh_n_ranks(m), "mesh", list), text);
}

int kumi_plan_mesh(const struct kumi_settings *settings, const char *hosts, const char *hostfile,
                   int n_ranks, int as_json, char **text)
{
    KU_GIVEN(text, "text");
    struct ku_plan p;
    struct ku_compile_opts o;
    struct row row[MAX_ROWS];
    KU_TRY(ku_plan_open_at(&p, settings, hosts, hostfile, n_ranks));
    ku_deepspeed_warn(&p.s.cfg);
    int status = ku_session_compile_opts(&p.s, &o);
    if (status == KUMI_OK) {
        const int n = rows_of(&p, &o.mesh, row);
        status = (as_json ? rows_json : print_rows)(&p, &o.mesh, row, n, text);
    }
    ku_plan_fini(&p);
    return status;
}
