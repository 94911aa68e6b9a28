/* SPDX-License-Identifier: Apache-2.0 */
#include "run/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/math/sort.h"
#include "base/str.h"

enum { MAX_KEPT = 4096, MAX_METRICS_BYTES = 1 << 30 };

struct ku_metrics {
    char *path;
    int fd, has_progress, failed;
    double flops_per_token, peak_flops;
    /*
     * Step times of the run. When the arrays are full every second entry is dropped, which keeps
     * the median accurate.
     */
    double step_ms[MAX_KEPT], tps[MAX_KEPT];
    int n_kept;
    int64_t every, seen;
    json_t *curve;
    double elapsed_ms;
};

/*
 * Add a point to the curve unless the loss is not finite. accuracy: a new reference; NULL: none.
 */
static void add_point(struct ku_metrics *m, int64_t step, double val_loss, json_t *accuracy)
{
    json_t *point = isfinite(val_loss) ? json_pack("[I, f]", (json_int_t)step, val_loss) : NULL;
    if (point && accuracy)
        json_array_append(point, accuracy);
    if (point)
        json_array_append_new(m->curve, point);
    json_decref(accuracy);
}

static int cannot_write(const char *path)
{
    return KU_ERR(ku_os_status(KUMI_ESTORAGE), "metrics: %s: cannot be written: %s", path,
                  ku_os_why());
}

/* Lines up to first_step go to `kept`, all others to `cut`. */
static void split(struct ku_metrics *m, const char *text, size_t bytes, int64_t first_step,
                  struct ku_str *kept, struct ku_str *cut)
{
    const char *stop, *end = text + bytes;
    for (const char *line = text; line < end; line = stop + 1) {
        stop = memchr(line, '\n', (size_t)(end - line));
        if (stop == NULL) { /* the run was killed while writing */
            ku_str_append(cut, line, (size_t)(end - line));
            ku_str_append(cut, "\n", 1);
            return;
        }
        json_t *row = json_loadb(line, (size_t)(stop - line), 0, NULL);
        json_t *step = json_object_get(row, "step"), *val = json_object_get(row, "val_loss");
        int is_kept =
            first_step > 0 && json_is_integer(step) && json_integer_value(step) <= first_step;
        ku_str_append(is_kept ? kept : cut, line, (size_t)(stop - line) + 1);
        if (is_kept && json_is_number(val))
            add_point(m, json_integer_value(step), json_number_value(val),
                      json_incref(json_object_get(row, "val_accuracy")));
        json_decref(row);
    }
}

/*
 * The lines are on disk before metrics.jsonl loses them. A kill in between duplicates lines and
 * loses none.
 */
static int append(const char *path, const struct ku_str *lines)
{
    int fd = ku_os_open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (fd < 0)
        return cannot_write(path);
    int status = ku_os_write_full(fd, lines->text, lines->bytes) < 0 || ku_os_fsync(fd) < 0
                     ? cannot_write(path)
                     : KUMI_OK;
    return ku_os_close(fd) < 0 && status == KUMI_OK ? cannot_write(path) : status;
}

/*
 * Move lines of steps that will be repeated to metrics.cut.jsonl, so that metrics.jsonl has each
 * step once.
 */
static int cut_file(struct ku_metrics *m, const char *dir, int64_t first_step)
{
    char *text = NULL, *aside = ku_asprintf("%s/metrics.cut.jsonl", dir);
    size_t bytes = 0;
    struct ku_str kept = {0}, cut = {0};
    int status = KUMI_ENOMEM;
    if (aside == NULL)
        return status;
    if (ku_os_slurp(m->path, MAX_METRICS_BYTES, &text, &bytes) < 0) {
        status = errno == ENOENT ? KUMI_OK
                                 : KU_ERR(ku_os_status(KUMI_ESTORAGE),
                                          "metrics: %s: cannot be read: %s", m->path, ku_os_why());
        goto out;
    }
    ku_str_add(&cut, "{\"cut_at_step\":%lld}\n", (long long)first_step);
    size_t head_bytes = cut.bytes;
    split(m, text, bytes, first_step, &kept, &cut);
    KU_TRY_OUT(kept.failed || cut.failed ? KUMI_ENOMEM : KUMI_OK);
    if (cut.bytes == head_bytes)
        goto out;
    KU_TRY_OUT(append(aside, &cut));
    KU_TRY_OUT(ku_os_replace(m->path, ku_str_get(&kept), kept.bytes) < 0 ? cannot_write(m->path)
                                                                         : KUMI_OK);
out:
    ku_str_fini(&kept);
    ku_str_fini(&cut);
    ku_free(aside);
    ku_free(text);
    return status;
}

int ku_metrics_open(const char *dir, int64_t first_step, double flops_per_token, double peak_flops,
                    struct ku_metrics **out)
{
    struct ku_metrics *m = ku_calloc(1, sizeof *m);
    if (m == NULL)
        return KUMI_ENOMEM;
    int status = KUMI_OK;
    m->fd = -1;
    m->every = 1;
    m->flops_per_token = flops_per_token;
    m->peak_flops = peak_flops;
    m->has_progress = ku_progress_is_shown();
    m->curve = json_array();
    m->path = ku_asprintf("%s/metrics.jsonl", dir);
    if (m->path == NULL || m->curve == NULL)
        status = KUMI_ENOMEM;
    else
        status = cut_file(m, dir, first_step);
    if (status == KUMI_OK) {
        m->fd = ku_os_open(m->path, O_WRONLY | O_CREAT | O_APPEND, 0666);
        if (m->fd < 0)
            status = cannot_write(m->path);
    }
    if (status < 0) {
        ku_metrics_close(m);
        return status;
    }
    *out = m;
    return KUMI_OK;
}

void ku_metrics_close(struct ku_metrics *m)
{
    if (m == NULL)
        return;
    if (m->has_progress)
        ku_progress_show(NULL);
    if (m->fd >= 0)
        ku_os_close(m->fd);
    json_decref(m->curve);
    ku_free(m->path);
    ku_free(m);
}

static void write_row(struct ku_metrics *m, const char *text, size_t bytes)
{
    if (m->failed || ku_os_write_full(m->fd, text, bytes) == 0)
        return;
    m->failed = 1;
    KU_LOG(TRAIN, WARN, "metrics: %s: cannot be written: %s; training continues without it",
           m->path, ku_os_why());
}

static void keep(struct ku_metrics *m, double step_ms, double tps)
{
    if (m->seen++ < 3 || m->seen % m->every)
        return;
    if (m->n_kept == MAX_KEPT) {
        for (int i = 0; i < MAX_KEPT / 2; i++) {
            m->step_ms[i] = m->step_ms[2 * i];
            m->tps[i] = m->tps[2 * i];
        }
        m->n_kept = MAX_KEPT / 2;
        m->every *= 2;
    }
    m->step_ms[m->n_kept] = step_ms;
    m->tps[m->n_kept++] = tps;
}

/*
 * The shortest text that parses to the same double. NaN and infinity, which JSON lacks, become
 * null.
 */
static const char *number(double x, char out[32])
{
    if (!isfinite(x))
        return "null";
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, x);
        if (strtod(out, NULL) == x)
            break;
    }
    return out;
}

double ku_metrics_mfu(const struct ku_metrics *m, double tps)
{
    return m->peak_flops > 0 ? tps * m->flops_per_token / m->peak_flops : (double)NAN;
}

/* "2:05", "1:02:05" */
static const char *duration(double seconds, char out[32])
{
    long long s = seconds < 1e9 ? (long long)seconds : 1000000000;
    if (s < 3600)
        snprintf(out, 32, "%lld:%02lld", s / 60, s % 60);
    else
        snprintf(out, 32, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    return out;
}

static void say(const struct ku_metrics *m, const struct ku_metrics_line *l, double tps)
{
    double left_s =
        (double)(l->n_steps - l->step) * m->elapsed_ms / (double)(m->seen ? m->seen : 1) * 1e-3;
    char left[32];
    double mfu = ku_metrics_mfu(m, tps);
    char share[32] = "";
    struct ku_str text = {0};
    if (isfinite(mfu))
        snprintf(share, sizeof share, "  mfu %.1f %%", 100 * mfu);
    ku_str_add(&text, "step %lld/%lld", (long long)l->step, (long long)l->n_steps);
    if (l->samples)
        ku_str_add(&text, "  epoch %.2f", l->epoch);
    ku_str_add(&text, "  loss %.4f", l->loss);
    for (int i = 0; l->metrics && i < l->metrics->n; i++)
        ku_str_add(&text, "  %s %.4f", l->metrics->item[i].name, l->metrics->item[i].value);
    ku_str_add(&text, "  lr %.2e  %.0f %s/s%s  %s left", l->lr, tps, l->samples ? "samples" : "tok",
               share, duration(left_s, left));
    if (text.failed)
        ;
    else if (m->has_progress)
        ku_progress_show(text.text);
    else
        KU_MESSAGE(INFO, "%s", text.text);
    ku_str_fini(&text);
}

/* ",\"accuracy\":0.5" */
static void add_values(struct ku_str *row, const char *prefix, const struct kumi_result_metrics *v)
{
    char b[32];
    for (int i = 0; v && i < v->n; i++)
        ku_str_add(row, ",\"%s%s\":%s", prefix, v->item[i].name, number(v->item[i].value, b));
}

void ku_metrics_step(struct ku_metrics *m, const struct ku_metrics_line *l, int is_logged)
{
    double whole_ms = l->step_ms + l->data_ms;
    double tps = whole_ms > 0 ? (double)l->tokens / whole_ms * 1e3 : 0;
    m->elapsed_ms += whole_ms;
    keep(m, whole_ms, tps);
    if (!is_logged)
        return;
    char b[6][32];
    struct ku_str row = {0};
    ku_str_add(&row,
               "{\"step\":%lld,\"epoch\":%s,\"loss\":%s,\"grad_norm\":%s,\"lr\":%s,\"tokens\":%lld",
               (long long)l->step, number(l->epoch, b[0]), number(l->loss, b[1]),
               number(l->grad_norm, b[2]), number(l->lr, b[3]), (long long)l->tokens);
    if (!isnan(l->loss_scale))
        ku_str_add(&row, ",\"loss_scale\":%s,\"skipped_steps\":%lld", number(l->loss_scale, b[5]),
                   (long long)l->n_skipped);
    add_values(&row, "", l->metrics);
    ku_str_add(&row, ",\"step_ms\":%.3f,\"tps\":%.1f,\"mfu\":%s", l->step_ms, tps,
               number(ku_metrics_mfu(m, tps), b[4]));
    if (l->samples)
        ku_str_add(&row, ",\"samples_per_s\":%.1f",
                   whole_ms > 0 ? (double)l->samples / whole_ms * 1e3 : 0);
    ku_str_add(&row, ",\"memory_gib\":%s",
               number(l->held_bytes ? (double)l->held_bytes / (1 << 30) : (double)NAN, b[5]));
    ku_str_add(&row, ",\"data_ms\":%.3f,\"exposed_comm_ms\":%.3f,\"wait_ms\":%.3f", l->data_ms,
               l->exposed_ms, l->wait_ms);
    ku_str_add(&row, ",\"optimizer_ms\":%.3f", l->optimizer_ms);
    if (l->offload_ms > 0)
        ku_str_add(&row, ",\"offload_ms\":%.3f", l->offload_ms);
    ku_str_add(&row, "}\n");
    if (!row.failed)
        write_row(m, row.text, row.bytes);
    ku_str_fini(&row);
    say(m, l, tps);
}

bool ku_metrics_has_eval(const struct ku_metrics *m, int64_t step)
{
    const json_t *last = json_array_get(m->curve, json_array_size(m->curve) - 1);
    return last && json_integer_value(json_array_get(last, 0)) == step;
}

void ku_metrics_eval(struct ku_metrics *m, int64_t step, double epoch, double val_loss,
                     const struct kumi_result_metrics *val)
{
    char b[2][32];
    struct ku_str row = {0}, text = {0};
    json_t *accuracy = NULL;
    for (int i = 0; i < val->n && accuracy == NULL; i++)
        if (strcmp(val->item[i].name, "accuracy") == 0)
            accuracy = json_real(val->item[i].value);
    ku_str_add(&row, "{\"step\":%lld,\"epoch\":%s,\"val_loss\":%s", (long long)step,
               number(epoch, b[0]), number(val_loss, b[1]));
    add_values(&row, "val_", val);
    ku_str_add(&row, "}\n");
    if (!ku_metrics_has_eval(m, step)) { /* write each evaluation once */
        if (!row.failed)
            write_row(m, row.text, row.bytes);
        add_point(m, step, val_loss, json_incref(accuracy));
    }
    json_decref(accuracy);
    ku_str_add(&text, "step %lld  validation loss %.4f", (long long)step, val_loss);
    for (int i = 0; i < val->n; i++)
        ku_str_add(&text, "  %s %.4f", val->item[i].name, val->item[i].value);
    if (!text.failed)
        KU_MESSAGE(INFO, "%s", text.text);
    ku_str_fini(&row);
    ku_str_fini(&text);
}

static double median(const double *x, int n)
{
    double sorted[MAX_KEPT];
    memcpy(sorted, x, (size_t)n * sizeof *x);
    ku_sort_f64(sorted, n);
    return ku_median_f64(sorted, n);
}

double ku_metrics_median_tps(const struct ku_metrics *m)
{
    return median(m->tps, m->n_kept);
}
double ku_metrics_median_step_ms(const struct ku_metrics *m)
{
    return median(m->step_ms, m->n_kept);
}
json_t *ku_metrics_curve(const struct ku_metrics *m)
{
    return json_deep_copy(m->curve);
}
