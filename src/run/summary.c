/* SPDX-License-Identifier: Apache-2.0 */
#include "run/summary.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/os/os.h"

enum { MAX_SUMMARY_BYTES = 64 << 20 };

/* JSON has no NaN; it becomes null. */
static json_t *real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}
/* The median of no steps is 0; it becomes null. */
static json_t *measured(double x)
{
    return real(x > 0 ? x : (double)NAN);
}

/*
 * Bytes that all ranks store for collectives per step: planned and measured. NULL: one rank.
 */
static json_t *exchanged(const struct ku_summary *s)
{
    const double n_steps = (double)s->t->n_steps;
    if (s->t->job->n == 1 || s->t->n_steps == 0)
        return NULL;
    json_t *o = json_pack("{s:f, s:f, s:f}", "ring_bytes", s->planned.ring, "planned_bytes",
                          s->planned.stored, "moved_bytes", (double)s->step_bytes / n_steps);
    if (o && s->t->job->n_hosts > 1) {
        json_object_set_new(o, "planned_far_bytes", json_real(s->planned.far));
        json_object_set_new(o, "far_bytes", json_real((double)s->far_bytes / n_steps));
    }
    return o;
}

static char *path_of(const char *dir)
{
    return ku_asprintf("%s/summary.json", dir);
}

/*
 * NULL: missing or unreadable. New reference.
 */
static json_t *read_summary(const char *dir)
{
    char *path = path_of(dir), *text = NULL;
    size_t bytes;
    json_t *root = NULL;
    if (path && ku_os_slurp(path, MAX_SUMMARY_BYTES, &text, &bytes) == 0)
        root = json_loadb(text, bytes, 0, NULL);
    ku_free(text);
    ku_free(path);
    return root;
}

static int64_t step_of(const json_t *root)
{
    const json_t *step = json_object_get(root, "step");
    return json_is_integer(step) ? json_integer_value(step) : -1;
}

bool ku_summary_is_of(const char *dir, int64_t step, int has_val, double *val_loss)
{
    json_t *root = read_summary(dir), *val = json_object_get(root, "val_loss");
    bool is_of = step_of(root) == step && (val || !has_val);
    *val_loss = json_is_number(val) ? json_number_value(val) : (double)NAN;
    json_decref(root);
    return is_of;
}

int ku_summary_cut(const char *dir, int64_t step)
{
    json_t *root = read_summary(dir);
    char *path = path_of(dir);
    int status = path ? KUMI_OK : KU_ERR(KUMI_ENOMEM, "summary: no memory");
    if (path && step_of(root) > step && ku_os_unlink(path) < 0)
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "summary: %s: cannot be removed: %s", path,
                        ku_os_why());
    ku_free(path);
    json_decref(root);
    return status;
}

static void keep_measured(json_t *o, const char *dir, int64_t step)
{
    static const char *const keys[] = {"loss",
                                       "median_tps",
                                       "median_step_ms",
                                       "mfu",
                                       "step_over_roofline",
                                       "exchanged_a_step",
                                       "median_samples_per_s"};
    json_t *old = read_summary(dir);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && step_of(old) == step; i++) {
        json_t *v = json_object_get(old, keys[i]);
        if (v)
            json_object_set(o, keys[i], v);
    }
    json_decref(old);
}

static json_t *print(const struct ku_summary *s)
{
    const struct kumi_train_result *result = s->result;
    double step_ms = ku_metrics_median_step_ms(s->metrics);
    double min_ns = ku_roofline_program_ns(s->limits, s->t->program[KU_PROG_TRAIN]);
    double scale = ku_trainer_loss_scale(s->t);
    json_t *o = json_pack(
        "{s:I, s:I, s:i, s:i, s:o, s:o*, s:o, s:o, s:o, s:o, s:o, s:s, s:s, s:I, s:o, "
        "s:o}",
        "step", (json_int_t)result->step, "update", (json_int_t)result->update, "ranks",
        s->t->job->n, "cores", s->n_cores, "loss", real(s->loss), "val_loss",
        s->lacks_eval ? NULL : real(result->val_loss), "median_tps", measured(result->median_tps),
        "median_step_ms", measured(step_ms), "mfu", measured(ku_metrics_median_mfu(s->metrics)),
        "step_over_roofline", measured(min_ns > 0 ? step_ms * 1e6 / min_ns : 0), "limits",
        ku_limits_json(s->limits), "digest", result->digest, "checkpoint", result->checkpoint,
        "memory_planned_bytes", (json_int_t)ku_trainer_host_bytes(s->t), "memory_pss_bytes",
        s->held_bytes ? json_integer(s->held_bytes) : json_null(), "val_curve",
        ku_metrics_curve(s->metrics));
    if (o == NULL)
        return NULL;
    if (!isnan(scale)) {
        json_object_set_new(o, "loss_scale", real(scale));
        json_object_set_new(o, "skipped_steps", json_integer(ku_trainer_n_skipped(s->t)));
    }
    json_t *step = exchanged(s);
    if (step)
        json_object_set_new(o, "exchanged_a_step", step);
    if (s->n_unread)
        json_object_set_new(o, "skipped_samples", json_integer(s->n_unread));
    if (result->is_by_samples)
        json_object_set_new(o, "median_samples_per_s", measured(result->median_tps));
    for (int i = 0; i < result->val_metrics.n && !s->lacks_eval; i++) {
        char name[40];
        snprintf(name, sizeof name, "val_%s", result->val_metrics.item[i].name);
        json_object_set_new(o, name, real(result->val_metrics.item[i].value));
    }
    return o;
}

int ku_summary_write(const char *dir, const struct ku_summary *s)
{
    json_t *o = print(s);
    if (o && s->t->n_steps == 0)
        keep_measured(o, dir, s->result->step);
    char *text = o ? ku_json_print(o, JSON_INDENT(2)) : NULL;
    char *path = path_of(dir);
    int status = text && path ? KUMI_OK : KU_ERR(KUMI_ENOMEM, "summary: no memory");
    if (status == KUMI_OK && ku_os_replace(path, text, strlen(text)) < 0)
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "summary: %s: cannot be written: %s", path,
                        ku_os_why());
    ku_free(text);
    ku_free(path);
    json_decref(o);
    return status;
}
