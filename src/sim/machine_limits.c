/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/machine_limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "device/peak_bench.h"
#include "sim/machine_file.h"

static const char file[] = "peak.json";

/*
 * 1 if the row belongs to this machine. Rows without machine or cores, written by earlier versions,
 * do.
 */
static bool is_here(const json_t *row, enum ku_isa isa)
{
    char here[KU_MACHINE_ID_BYTES];
    const char *cpu = json_string_value(json_object_get(row, "cpu"));
    const char *name = json_string_value(json_object_get(row, "isa"));
    const char *machine = json_string_value(json_object_get(row, "machine"));
    const json_t *cores = json_object_get(row, "cores");
    ku_machine_id(here);
    return cpu && name && strcmp(cpu, ku_cpu_model()) == 0 &&
           strcmp(name, ku_cpu_isa_name(isa)) == 0 && (!machine || strcmp(machine, here) == 0) &&
           (!cores || json_integer_value(cores) == ku_os_n_cpus_host());
}

static int64_t threads_of(const json_t *row)
{
    return json_integer_value(json_object_get(row, "threads"));
}

/* This machine's row for n_threads, borrowed; NULL: none. */
static json_t *find_row(json_t *rows, enum ku_isa isa, int n_threads)
{
    json_t *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        if (is_here(row, isa) && threads_of(row) == n_threads)
            return row;
    }
    return NULL;
}

static int find(const char *path, const char *dtype, int cores, double *flops)
{
    json_t *rows = ku_machine_rows(path), *row;
    size_t i;
    int64_t best = 0;
    enum ku_isa isa = ku_cpu_isa();
    json_array_foreach(rows, i, row)
    {
        double measured = json_number_value(json_object_get(row, dtype));
        int64_t n = threads_of(row);
        if (!(measured > 0) || n < 1 || best == cores || !is_here(row, isa))
            continue;
        if (n == cores || n > best) {
            best = n;
            *flops = measured * cores / (double)n;
        }
    }
    json_decref(rows);
    return best ? KUMI_OK
                : KU_ERR(KUMI_EINPUT, "peak: %s: %s of %s was not measured; run `kumi bench peak`",
                         path, dtype, ku_cpu_model());
}

char *ku_peak_path(void)
{
    return ku_machine_file(file);
}

int ku_peak_read(const char *dtype, int cores, double *flops)
{
    char *path = ku_machine_file(file);
    if (path == NULL)
        return ku_err_get()->status;
    if (strcmp(dtype, "f16") == 0)
        dtype = "f32"; /* f16 products are computed in f32 */
    int status = find(path, dtype, cores, flops);
    ku_free(path);
    return status;
}

static const char *const figure_name[KU_N_PEAK_FIGURES] = {"f32", "bf16", "stream"};

/* Inserts a value into a list sorted in descending order and cuts the list to KU_PEAK_STARTS. */
static void add_start(json_t *starts, double value)
{
    size_t at = 0;
    while (at < json_array_size(starts) && json_number_value(json_array_get(starts, at)) >= value)
        at++;
    json_array_insert_new(starts, at, json_real(value));
    if (json_array_size(starts) > KU_PEAK_STARTS)
        json_array_remove(starts, KU_PEAK_STARTS);
}

/*
 * The values of a figure in the row. A row of an earlier version has one.
 */
static json_t *starts_of(json_t *row, const char *name)
{
    json_t *all = json_object_get(row, "starts"), *starts = json_object_get(all, name);
    double only = json_number_value(json_object_get(row, name));
    if (json_is_array(starts))
        return starts;
    if (!json_is_object(all))
        json_object_set_new(row, "starts", all = json_object());
    json_object_set_new(all, name, starts = json_array());
    if (only > 0)
        add_start(starts, only);
    return starts;
}

static void look_at(json_t *row, struct ku_peak_kept *out)
{
    const char *date = json_string_value(json_object_get(row, "date"));
    *out = (struct ku_peak_kept){0};
    snprintf(out->date, sizeof out->date, "%s", date ? date : "");
    for (int f = 0; f < KU_N_PEAK_FIGURES; f++) {
        json_t *starts = starts_of(row, figure_name[f]);
        double best = json_number_value(json_array_get(starts, 0));
        double second = json_number_value(json_array_get(starts, 1));
        out->figure[f].best = best;
        out->figure[f].n_starts = (int)json_array_size(starts);
        out->figure[f].is_confirmed = best > 0 && second >= 0.95 * best;
    }
}

static void day_of(time_t now, char day[KU_PEAK_DAY_BYTES])
{
    struct tm tm;
    if (gmtime_r(&now, &tm) == NULL || strftime(day, KU_PEAK_DAY_BYTES, "%Y-%m-%d", &tm) == 0)
        day[0] = '\0';
}

/*
 * Adds a start to a row. The limit is the maximum of all starts, since other load only lowers a
 * value.
 */
static void merge(json_t *row, const struct ku_peak *peak, time_t now)
{
    const double value[KU_N_PEAK_FIGURES] = {peak->flops_f32, peak->flops_bf16, peak->stream_bytes};
    char day[KU_PEAK_DAY_BYTES];
    int is_better = 0;
    day_of(now, day);
    for (int f = 0; f < KU_N_PEAK_FIGURES; f++) {
        json_t *starts = starts_of(row, figure_name[f]);
        if (value[f] > 0)
            add_start(starts, value[f]);
        double best = json_number_value(json_array_get(starts, 0));
        if (best > json_number_value(json_object_get(row, figure_name[f]))) {
            json_object_set_new(row, figure_name[f], json_real(best));
            is_better = 1;
        }
    }
    if (is_better || !json_object_get(row, "date"))
        json_object_set_new(row, "date", json_string(day));
    json_object_set_new(row, "last", json_string(day));
}

static json_t *new_row(const struct ku_peak *peak)
{
    char machine[KU_MACHINE_ID_BYTES];
    ku_machine_id(machine);
    return json_pack("{s:s, s:s, s:s, s:i, s:i}", "cpu", ku_cpu_model(), "machine", machine, "isa",
                     ku_cpu_isa_name(peak->isa), "cores", ku_os_n_cpus_host(), "threads",
                     peak->n_threads);
}

int ku_peak_write(const struct ku_peak *measured, time_t now)
{
    char *path = ku_machine_file(file);
    if (path == NULL)
        return ku_err_get()->status;
    json_t *rows = ku_machine_rows(path), *row = find_row(rows, measured->isa, measured->n_threads);
    if (row == NULL && (row = new_row(measured)) != NULL)
        json_array_append_new(rows, row);
    if (row)
        merge(row, measured, now);
    int status = ku_machine_rows_write(path, rows);
    json_decref(rows);
    ku_free(path);
    return status;
}

int ku_peak_look(int n_threads, struct ku_peak_kept *out)
{
    char *path = ku_machine_file(file);
    *out = (struct ku_peak_kept){0};
    if (path == NULL)
        return 0;
    json_t *rows = ku_machine_rows(path), *row = find_row(rows, ku_cpu_isa(), n_threads);
    if (row)
        look_at(row, out);
    json_decref(rows);
    ku_free(path);
    return row != NULL;
}

bool ku_peak_is_due(int n_threads, time_t now)
{
    char *path = ku_machine_file(file), day[KU_PEAK_DAY_BYTES];
    struct ku_peak_kept kept;
    int is_due = 1;
    if (path == NULL)
        return 1;
    day_of(now, day);
    json_t *rows = ku_machine_rows(path), *row = find_row(rows, ku_cpu_isa(), n_threads);
    const char *last = json_string_value(json_object_get(row, "last"));
    if (row && last) {
        look_at(row, &kept);
        const int is_confirmed =
            kept.figure[KU_PEAK_F32].is_confirmed && kept.figure[KU_PEAK_BF16].is_confirmed;
        is_due = strcmp(last, day) < 0 ||
                 (!is_confirmed && kept.figure[KU_PEAK_F32].n_starts < KU_PEAK_STARTS);
    }
    json_decref(rows);
    ku_free(path);
    return is_due;
}
