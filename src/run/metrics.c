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

enum { MAX_KEPT = 4096, PIECE_BYTES = 1 << 20 };

struct ku_metrics {
    char *path;
    int fd, has_progress;
    off_t end;         /* bytes of the complete lines in the file */
    bool has_failed;   /* the last row could not be written; what there is of it is cut off */
    int64_t eval_step; /* of the last evaluation, whatever its loss; -1: none */
    double peak_flops;
    /*
     * Step times of the run. When the arrays are full every second entry is dropped, which keeps
     * the median accurate.
     */
    double step_ms[MAX_KEPT], tps[MAX_KEPT], flops[MAX_KEPT]; /* flops: per second */
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

static int cannot_read(const char *path)
{
    return KU_ERR(ku_os_status(KUMI_ESTORAGE), "metrics: %s: cannot be read: %s", path,
                  ku_os_why());
}

/*
 * A file's lines, read in pieces. A line that is longer than a piece is not of this file's kind,
 * and is returned empty.
 */
struct lines {
    int fd;
    char *text;        /* [PIECE_BYTES]; [begin, end) is read and not yet returned */
    size_t begin, end; /* bytes */
    bool is_long;      /* the beginning of the line at `begin` was dropped */
    off_t next;        /* offset in the file of the line after the returned one */
};

/*
 * line: out: the next line, its newline replaced by NUL. Returns 1; 0: no complete line is left;
 * < 0: failure.
 */
static int next_line(struct lines *l, const char **line)
{
    for (;;) {
        char *first = l->text + l->begin, *stop = memchr(first, '\n', l->end - l->begin);
        if (stop) {
            *stop = '\0';
            *line = l->is_long ? "" : first;
            l->next += stop + 1 - first;
            l->begin += (size_t)(stop + 1 - first);
            l->is_long = false;
            return 1;
        }
        if (l->begin == 0 && l->end == PIECE_BYTES) {
            l->is_long = true;
            l->next += PIECE_BYTES;
            l->begin = PIECE_BYTES;
        }
        memmove(l->text, l->text + l->begin, l->end - l->begin);
        l->end -= l->begin;
        l->begin = 0;
        const ssize_t n = ku_os_read_full(l->fd, l->text + l->end, PIECE_BYTES - l->end);
        if (n <= 0)
            return (int)n;
        l->end += (size_t)n;
    }
}

/* The step of a line; INT64_MAX: it has none. */
static int64_t step_of(const char *line)
{
    static const char begin[] = "{\"step\":"; /* as this file writes them */
    char *end;
    if (strncmp(line, begin, sizeof begin - 1) == 0) {
        const long long step = strtoll(line + sizeof begin - 1, &end, 10);
        if (*end == ',' || *end == '}')
            return step;
    }
    json_t *row = json_loads(line, 0, NULL), *step = json_object_get(row, "step");
    const int64_t value = json_is_integer(step) ? json_integer_value(step) : INT64_MAX;
    json_decref(row);
    return value;
}

/* A loss that is not finite is null: the step is evaluated, but the curve has no point of it. */
static void take_eval(struct ku_metrics *m, const char *line)
{
    json_t *row = strstr(line, "\"val_loss\"") ? json_loads(line, 0, NULL) : NULL;
    json_t *val = json_object_get(row, "val_loss");
    if (val)
        m->eval_step = json_integer_value(json_object_get(row, "step"));
    if (json_is_number(val))
        add_point(m, m->eval_step, json_number_value(val),
                  json_incref(json_object_get(row, "val_accuracy")));
    json_decref(row);
}

/* end: out: bytes up to the last line of a step up to first_step, whose evaluations are taken. */
static int read_kept(struct ku_metrics *m, int fd, int64_t first_step, off_t *end)
{
    struct lines l = {.fd = fd, .text = ku_malloc(PIECE_BYTES)};
    const char *line = "";
    int found;
    *end = 0;
    if (l.text == NULL)
        return KUMI_ENOMEM;
    while ((found = next_line(&l, &line)) > 0)
        if (step_of(line) <= first_step) {
            *end = l.next;
            take_eval(m, line);
        }
    const int status = found < 0 ? cannot_read(m->path) : KUMI_OK;
    ku_free(l.text);
    return status;
}

bool ku_metrics_file_has_eval(const char *dir, int64_t step)
{
    char *path = ku_asprintf("%s/metrics.jsonl", dir);
    struct lines l = {.fd = path ? ku_os_open(path, O_RDONLY, 0) : -1,
                      .text = ku_malloc(PIECE_BYTES)};
    const char *line;
    bool has = false;
    while (!has && l.fd >= 0 && l.text && next_line(&l, &line) > 0)
        has = strstr(line, "\"val_loss\"") && step_of(line) == step;
    if (l.fd >= 0)
        ku_os_close(l.fd);
    ku_free(l.text);
    ku_free(path);
    return has;
}

/* Appends bytes [at, end) of a file to another one, with a last newline. */
static int copy(struct ku_metrics *m, int from, off_t at, off_t end, const char *path, int to)
{
    char *piece = ku_malloc(PIECE_BYTES), last = '\n';
    int status = piece ? KUMI_OK : KUMI_ENOMEM;
    while (at < end && status == KUMI_OK) {
        const size_t bytes = end - at < PIECE_BYTES ? (size_t)(end - at) : PIECE_BYTES;
        if (ku_os_pread_full(from, piece, bytes, at) != (ssize_t)bytes)
            status = cannot_read(m->path);
        else if (ku_os_write_full(to, piece, bytes) < 0)
            status = cannot_write(path);
        last = piece[bytes - 1];
        at += (off_t)bytes;
    }
    ku_free(piece);
    if (status == KUMI_OK && last != '\n' && ku_os_write_full(to, "\n", 1) < 0)
        status = cannot_write(path);
    return status;
}

/* Appends bytes [at, end) of metrics.jsonl to DIR/metrics.cut.jsonl, after a line with the step. */
static int set_aside(struct ku_metrics *m, const char *dir, int from, off_t at, off_t end,
                     int64_t first_step)
{
    char head[64], *path = ku_asprintf("%s/metrics.cut.jsonl", dir);
    if (path == NULL)
        return KUMI_ENOMEM;
    const int to = ku_os_open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    const int n = snprintf(head, sizeof head, "{\"cut_at_step\":%lld}\n", (long long)first_step);
    int status = to < 0 || ku_os_write_full(to, head, (size_t)n) < 0 ? cannot_write(path) : KUMI_OK;
    if (status == KUMI_OK)
        status = copy(m, from, at, end, path, to);
    if (status == KUMI_OK && ku_os_fsync(to) < 0)
        status = cannot_write(path);
    if (to >= 0 && ku_os_close(to) < 0 && status == KUMI_OK)
        status = cannot_write(path);
    ku_free(path);
    return status;
}

/*
 * Move lines of steps that will be repeated to metrics.cut.jsonl, so that metrics.jsonl has each
 * step once. They are on disk there before metrics.jsonl loses them: a kill in between duplicates
 * lines and loses none.
 */
static int cut_file(struct ku_metrics *m, const char *dir, int64_t first_step)
{
    struct stat info;
    off_t end = 0;
    const int fd = ku_os_open(m->path, O_RDWR, 0);
    int status = KUMI_OK;
    if (fd < 0)
        return errno == ENOENT ? KUMI_OK : cannot_read(m->path);
    if (ku_os_fstat(fd, &info) < 0)
        status = cannot_read(m->path);
    if (status == KUMI_OK && first_step > 0)
        status = read_kept(m, fd, first_step, &end);
    if (status == KUMI_OK && end < info.st_size) {
        status = set_aside(m, dir, fd, end, info.st_size, first_step);
        if (status == KUMI_OK && (ku_os_ftruncate(fd, end) < 0 || ku_os_fsync(fd) < 0))
            status = cannot_write(m->path);
    }
    ku_os_close(fd);
    return status;
}

static int open_file(struct ku_metrics *m)
{
    struct stat info;
    m->fd = ku_os_open(m->path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (m->fd < 0 || ku_os_fstat(m->fd, &info) < 0)
        return cannot_write(m->path);
    m->end = info.st_size;
    return KUMI_OK;
}

int ku_metrics_open(const char *dir, int64_t first_step, double peak_flops, struct ku_metrics **out)
{
    struct ku_metrics *m = ku_calloc(1, sizeof *m);
    if (m == NULL)
        return KUMI_ENOMEM;
    int status = KUMI_OK;
    m->fd = -1;
    m->every = 1;
    m->eval_step = -1;
    m->peak_flops = peak_flops;
    m->has_progress = ku_progress_is_shown();
    m->curve = json_array();
    m->path = ku_asprintf("%s/metrics.jsonl", dir);
    if (m->path == NULL || m->curve == NULL)
        status = KUMI_ENOMEM;
    else
        status = cut_file(m, dir, first_step);
    if (status == KUMI_OK)
        status = open_file(m);
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

/* -1 with errno */
static int append(struct ku_metrics *m, const char *text, size_t bytes)
{
    if (m->has_failed && ku_os_ftruncate(m->fd, m->end) < 0)
        return -1;
    if (ku_os_write_full(m->fd, text, bytes) == 0) {
        m->end += (off_t)bytes;
        return 0;
    }
    const int why = errno;
    (void)ku_os_ftruncate(m->fd, m->end); /* if this fails too, the next row repeats it */
    errno = why;
    return -1;
}

/*
 * A row that cannot be written, as on a full disk, is lost; it leaves no part in the file, and the
 * next one is tried. One warning is logged for rows that fail one after the other.
 */
static void write_row(struct ku_metrics *m, const char *text, size_t bytes)
{
    const bool has_failed = append(m, text, bytes) < 0;
    if (has_failed && !m->has_failed)
        KU_LOG(TRAIN, WARN,
               "metrics: %s: cannot be written: %s; training continues and leaves lines out until "
               "the file can be written",
               m->path, ku_os_why());
    m->has_failed = has_failed;
}

static void keep(struct ku_metrics *m, double step_ms, double tps, double flops)
{
    if (m->seen++ < 3 || m->seen % m->every)
        return;
    if (m->n_kept == MAX_KEPT) {
        for (int i = 0; i < MAX_KEPT / 2; i++) {
            m->step_ms[i] = m->step_ms[2 * i];
            m->tps[i] = m->tps[2 * i];
            m->flops[i] = m->flops[2 * i];
        }
        m->n_kept = MAX_KEPT / 2;
        m->every *= 2;
    }
    m->step_ms[m->n_kept] = step_ms;
    m->flops[m->n_kept] = flops;
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
        ku_text_print(out, 32, "%.*g", digits, x);
        if (ku_text_number(out, NULL) == x)
            break;
    }
    return out;
}

/* Of model FLOP/s; NaN: unknown */
static double mfu_of(const struct ku_metrics *m, double flops)
{
    return m->peak_flops > 0 && flops > 0 ? flops / m->peak_flops : (double)NAN;
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

static void say(const struct ku_metrics *m, const struct ku_metrics_line *l, double tps, double mfu)
{
    double left_s =
        (double)(l->n_steps - l->step) * m->elapsed_ms / (double)(m->seen ? m->seen : 1) * 1e-3;
    char left[32];
    char share[32] = "";
    struct ku_str text = {0};
    if (isfinite(mfu))
        snprintf(share, sizeof share, "  mfu %.1f %%", 100 * mfu);
    ku_str_add(&text, "step %lld/%lld", (long long)l->step, (long long)l->n_steps);
    if (l->is_by_samples)
        ku_str_add(&text, "  epoch %.2f", l->epoch);
    ku_str_add(&text, "  loss %.4f", l->loss);
    for (int i = 0; l->metrics && i < l->metrics->n; i++)
        ku_str_add(&text, "  %s %.4f", l->metrics->item[i].name, l->metrics->item[i].value);
    ku_str_add(&text, "  lr %.2e  %.0f %s/s%s  %s left", l->lr, tps,
               l->is_by_samples ? "samples" : "tok", share, duration(left_s, left));
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
    double flops = whole_ms > 0 ? l->flops / whole_ms * 1e3 : 0, mfu = mfu_of(m, flops);
    m->elapsed_ms += whole_ms;
    keep(m, whole_ms, tps, flops);
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
               number(mfu, b[4]));
    if (l->is_by_samples)
        ku_str_add(&row, ",\"samples_per_s\":%.1f", tps);
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
    say(m, l, tps, mfu);
}

bool ku_metrics_has_eval(const struct ku_metrics *m, int64_t step)
{
    return m->eval_step == step;
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
        m->eval_step = step;
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
double ku_metrics_median_mfu(const struct ku_metrics *m)
{
    return mfu_of(m, median(m->flops, m->n_kept));
}
json_t *ku_metrics_curve(const struct ku_metrics *m)
{
    return json_deep_copy(m->curve);
}
