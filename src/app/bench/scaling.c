/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Medians of a timed run's step times, and the causes of the time beyond ideal scaling. With T the
 * step time and r the ratio of rank counts (1 for weak scaling):
 *
 *   T(base) * r  ideal
 *   + comm, wait   exposed communication beyond r times that of base
 *   + cores        ideal * (rounds of ranks on the cores, relative to base, - 1)
 *   + kernels      the rest
 *   = T
 */
#include "app/bench/scaling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/math/sort.h"

enum { N_FIRST = 3 /* steps until memory, caches and thread pool are warm */ };

static double combine(double x, char how, double y)
{
    return how == '-' ? x - y : how == '/' ? x / y : x;
}

/*
 * Sorted values of a column, without the first steps. With `other`: minus (how '-') or divided by
 * ('/') that column. *n: number of values.
 */
static int column(const json_t *times, const char *name, char how, const char *other, double **out,
                  int *n)
{
    const json_t *list = json_object_get(times, name), *more = json_object_get(times, other);
    size_t size = json_array_size(list);
    if (size <= N_FIRST || (other && json_array_size(more) != size))
        return KU_ERR(KUMI_EINPUT,
                      "bench: scaling: %d steps; give more, the first %d are not counted",
                      (int)size, (int)N_FIRST);
    *n = (int)size - N_FIRST;
    double *x = ku_calloc((size_t)*n, sizeof *x);
    if (x == NULL)
        return KUMI_ENOMEM;
    for (int i = 0; i < *n; i++)
        x[i] = combine(json_number_value(json_array_get(list, (size_t)i + N_FIRST)), how,
                       json_number_value(json_array_get(more, (size_t)i + N_FIRST)));
    ku_sort_f64(x, *n);
    *out = x;
    return KUMI_OK;
}

static int median(const json_t *times, const char *name, char how, const char *other, double *out)
{
    double *x;
    int n;
    KU_TRY(column(times, name, how, other, &x, &n));
    *out = x[n / 2];
    ku_free(x);
    return KUMI_OK;
}

int ku_scaling_add_rank(struct ku_scaling *s, int rank, const json_t *times)
{
    double moved, waited, *step;
    KU_TRY(median(times, "exposed_comm_ms", '-', "wait_ms", &moved));
    KU_TRY(median(times, "wait_ms", 0, NULL, &waited));
    s->comm_ms += moved / s->n_ranks;
    s->wait_ms += waited / s->n_ranks;
    s->rank_wait_ms[rank] = waited;
    if (rank > 0)
        return KUMI_OK;
    const char *unit = json_string_value(json_object_get(times, "unit"));
    s->is_by_samples = unit && strcmp(unit, "samples") == 0;
    KU_TRY(median(times, "items", 0, NULL, &s->items));
    KU_TRY(median(times, "items", '/', "step_ms", &s->tps));
    s->tps *= 1e3;
    KU_TRY(column(times, "step_ms", 0, NULL, &step, &s->n_steps));
    s->step_ms = step[s->n_steps / 2];
    s->p10_ms = step[s->n_steps / 10];
    s->p90_ms = step[s->n_steps - 1 - s->n_steps / 10];
    ku_free(step);
    return KUMI_OK;
}

/* Rounds in which the cores of the fullest machine run its ranks. */
static double rounds(const struct ku_scaling *s, int n_cores)
{
    return s->n_together / fmin(s->n_together, fmax(1, (double)n_cores / s->n_threads));
}

struct ku_scaling_split ku_scaling_split(const struct ku_scaling *base, const struct ku_scaling *s,
                                         int is_weak, int n_cores)
{
    double ratio = is_weak ? 1 : (double)base->n_ranks / s->n_ranks;
    double crowd = rounds(s, n_cores) / rounds(base, n_cores);
    struct ku_scaling_split p = {.ideal_ms = base->step_ms * ratio,
                                 .comm_ms = s->comm_ms - base->comm_ms * ratio,
                                 .wait_ms = s->wait_ms - base->wait_ms * ratio};
    double lost = s->step_ms - p.ideal_ms, rest = lost - p.comm_ms - p.wait_ms;
    p.efficiency = p.ideal_ms / s->step_ms;
    p.cores_ms = fmax(0, fmin(p.ideal_ms * (crowd - 1), rest));
    p.kernels_ms = rest - p.cores_ms;
    return p;
}
