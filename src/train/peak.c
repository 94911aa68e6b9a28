/* SPDX-License-Identifier: Apache-2.0 */
#include "train/peak.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/os.h"
#include "device/bench.h"

enum { MAX_CACHE_BYTES = 1 << 20 }; /* some 10,000 rows */

/* FOLDER/peak.json and, if wanted, its folder made. NULL: the error record says why. */
static char *cache_path(int is_written)
{
    static const struct {
        const char *variable, *below;
    } places[] = {{"KUMI_CACHE", ""}, {"XDG_CACHE_HOME", "/kumi"}, {"HOME", "/.cache/kumi"}};
    char *folder = NULL, *path = NULL;
    for (int i = 0; i < 3 && folder == NULL; i++) {
        const char *value = getenv(places[i].variable);
        if (value && *value && (folder = ku_asprintf("%s%s", value, places[i].below)) == NULL)
            return NULL;
    }
    if (folder == NULL)
        KU_ERR(KUMI_EINPUT, "peak: no cache folder; set KUMI_CACHE or HOME");
    else if (is_written && ku_os_mkdirs(folder) < 0)
        KU_ERR(ku_os_status(KUMI_ESTORAGE), "peak: %s: %s; set KUMI_CACHE to a folder of yours",
               folder, ku_os_why());
    else
        path = ku_asprintf("%s/peak.json", folder);
    ku_free(folder);
    return path;
}

/* The rows that are there. Owned by the caller; a file that is no array counts as none. */
static json_t *load_rows(const char *path)
{
    struct ku_json doc;
    if (ku_json_load(path, MAX_CACHE_BYTES, &doc) < 0)
        return json_array();
    json_t *rows = json_is_array(doc.root) ? json_incref(doc.root) : json_array();
    ku_json_fini(&doc);
    return rows;
}

static int is_here(const json_t *row, enum ku_isa isa)
{
    const char *cpu = json_string_value(json_object_get(row, "cpu"));
    const char *name = json_string_value(json_object_get(row, "isa"));
    return cpu && name && strcmp(cpu, ku_cpu_model()) == 0 &&
           strcmp(name, ku_cpu_isa_name(isa)) == 0;
}

static int64_t threads_of(const json_t *row)
{
    return json_integer_value(json_object_get(row, "threads"));
}

static int find(const char *path, const char *dtype, int cores, double *flops)
{
    json_t *rows = load_rows(path), *row;
    size_t i;
    int64_t best = 0;
    enum ku_isa isa = ku_cpu_isa();
    json_array_foreach(rows, i, row)
    {
        double measured = json_number_value(json_object_get(row, dtype));
        int64_t n = threads_of(row);
        if (!is_here(row, isa) || !(measured > 0) || n < 1 || best == cores)
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
    return cache_path(0);
}

int ku_peak_read(const char *dtype, int cores, double *flops)
{
    char *path = cache_path(0);
    if (path == NULL)
        return ku_err_get()->status;
    if (strcmp(dtype, "f16") == 0)
        dtype = "f32"; /* what f16 is multiplied in */
    int status = find(path, dtype, cores, flops);
    ku_free(path);
    return status;
}

/* Takes the row that is measured anew out; of each figure the larger stays: a limit is the best
 * that was ever seen, and a busy machine shows less. */
static void merge_row(json_t *rows, struct ku_peak *peak)
{
    struct {
        const char *name;
        double *value;
    } const figures[] = {
        {"f32", &peak->flops_f32}, {"bf16", &peak->flops_bf16}, {"stream", &peak->stream_bytes}};
    for (size_t i = json_array_size(rows); i-- > 0;) {
        json_t *row = json_array_get(rows, i);
        if (!is_here(row, peak->isa) || threads_of(row) != peak->n_threads)
            continue;
        for (int f = 0; f < 3; f++) {
            double old = json_number_value(json_object_get(row, figures[f].name));
            *figures[f].value = old > *figures[f].value ? old : *figures[f].value;
        }
        json_array_remove(rows, i);
    }
}

int ku_peak_write(const struct ku_peak *measured)
{
    struct ku_peak best = *measured, *peak = &best;
    char *path = cache_path(1), *text;
    if (path == NULL)
        return ku_err_get()->status;
    json_t *rows = load_rows(path);
    merge_row(rows, peak);
    json_array_append_new(rows, json_pack("{s:s, s:s, s:i, s:f, s:f, s:f}", "cpu", ku_cpu_model(),
                                          "isa", ku_cpu_isa_name(peak->isa), "threads",
                                          peak->n_threads, "f32", peak->flops_f32, "bf16",
                                          peak->flops_bf16, "stream", peak->stream_bytes));
    text = ku_json_print(rows, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    json_decref(rows);
    int status = text ? KUMI_OK : KUMI_ENOMEM;
    if (text && ku_os_replace(path, text, strlen(text)) < 0)
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE),
                        "peak: %s: %s; set KUMI_CACHE to a folder of yours", path, ku_os_why());
    ku_free(text);
    ku_free(path);
    return status;
}
