/* SPDX-License-Identifier: Apache-2.0 */
#include "kumi/run.h"

#include <stdlib.h>

#include "base/arg.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "config/deepspeed.h"
#include "train/configure.h"
#include "train/session.h"

/* Enough steps for a median within two seconds. */
enum { MOST_STEPS = 1000 };
static const int64_t max_ns = INT64_C(2000000000);

struct timing {
    int64_t step_items, ns[MOST_STEPS]; /* step_items: mean */
    int n;
    double items_per_s;
};

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Bytes of a port for the largest batch of training. */
static size_t port_bytes(const struct ku_batch_source *source, const struct ku_data_port *port)
{
    size_t most = 0;
    for (int i = 0; i <= source->ops->largest_shape(source); i++) {
        struct ku_batch_shape shape = source->ops->shape(source, i);
        size_t bytes = (size_t)shape.rows * ku_batch_row_bytes(port, &shape);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Read a whole global batch. items: of what the loss counts, tokens or samples */
static int read_batch(const struct ku_batch_source *source, int64_t step, void *const *to,
                      int64_t *items)
{
    const struct ku_batch_source_ops *ops = source->ops;
    const int shape = ops->shape_at(source, KU_SPLIT_TRAIN, step);
    KU_TRY(ops->rows(source, KU_SPLIT_TRAIN, step, 0, ops->shape(source, shape).rows, to));
    *items = ops->n_targets(source, step, to);
    return KUMI_OK;
}

/* Read whole global batches one after the other, as a single rank does. */
static int measure(const struct ku_batch_source *s, struct timing *t)
{
    int64_t begin = ku_clock_ns(), total_ns = 0, items, total_items = 0;
    void *to[KU_DATA_PORTS_MAX] = {0};
    int status = KUMI_OK;
    for (int i = 0; i < s->data->n_ports && status == KUMI_OK; i++) {
        to[i] = ku_calloc(1, port_bytes(s, &s->data->port[i]));
        status = to[i] ? KUMI_OK : KUMI_ENOMEM;
    }
    while (status == KUMI_OK && t->n < MOST_STEPS && ku_clock_ns() - begin < max_ns) {
        int64_t before = ku_clock_ns();
        status = read_batch(s, t->n, to, &items);
        total_ns += t->ns[t->n++] = ku_clock_ns() - before;
        total_items += status == KUMI_OK ? items : 0;
    }
    for (int i = 0; i < KU_DATA_PORTS_MAX; i++)
        ku_free(to[i]);
    qsort(t->ns, (size_t)t->n, sizeof *t->ns, compare);
    t->step_items = t->n ? total_items / t->n : 0;
    t->items_per_s = (double)total_items / ((double)(total_ns + 1) * 1e-9);
    return status;
}

int kumi_bench_data(const struct kumi_settings *settings, int as_json, char **text)
{
    KU_GIVEN(text, "text");
    struct ku_session s = {0};
    struct ku_str out = {0};
    struct timing *t = ku_calloc(1, sizeof *t);
    if (t == NULL)
        return KUMI_ENOMEM;
    int status = ku_settings_configure(&s, settings, 1, NULL);
    KU_TRY_OUT(status);
    ku_deepspeed_warn(&s.cfg);
    KU_TRY_OUT(ku_session_open_data(&s, NULL));
    KU_TRY_OUT(measure(s.source, t));
    double p50_us = (double)t->ns[t->n / 2] * 1e-3, most_us = (double)t->ns[t->n - 1] * 1e-3;
    const bool has_tokens = s.source->data->item != NULL;
    const char *items = has_tokens ? s.source->data->item : "samples";
    if (as_json) {
        status = ku_text_json(json_pack("{s:i, s:I, s:f, s:f, s:f}", "steps", t->n,
                                        has_tokens ? "step_tokens" : "step_samples",
                                        (json_int_t)t->step_items,
                                        has_tokens ? "tokens_per_s" : "samples_per_s",
                                        t->items_per_s, "p50_us", p50_us, "max_us", most_us),
                              text);
    } else {
        ku_str_add(&out,
                   "%d batches of %lld %s: %.0f %s/s; per batch median %.1f us, max %.1f us\n",
                   t->n, (long long)t->step_items, items, t->items_per_s, items, p50_us, most_us);
        status = ku_text_take(&out, text);
    }
out:
    ku_session_fini(&s);
    ku_free(t);
    return status;
}
