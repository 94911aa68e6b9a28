/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/kernel_choice.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "sim/machine_file.h"

static const char file[] = "kernels.json";

struct key {
    char identity[KU_MACHINE_CPU_BYTES], machine[KU_MACHINE_ID_BYTES];
};

static bool has(const json_t *row, const char *name, const char *value)
{
    const char *found = json_string_value(json_object_get(row, name));
    return found && strcmp(found, value) == 0;
}

/* Index of this machine's row; the number of rows: there is none. */
static size_t find(const json_t *rows, const struct key *key)
{
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        if (has(row, "identity", key->identity) && has(row, "machine", key->machine))
            break;
    }
    return i;
}

/* Reads the rates of one dtype; false: one that this CPU has is missing. */
static bool read_rates(const json_t *from, double rate[KU_N_ISAS])
{
    const enum ku_isa top = ku_cpu_isa();
    for (int isa = top > KU_ISA_BASE ? KU_ISA_AVX2 : KU_ISA_BASE; isa <= (int)top; isa++) {
        rate[isa] = json_number_value(json_object_get(from, ku_cpu_isa_name((enum ku_isa)isa)));
        if (!(rate[isa] > 0))
            return 0;
    }
    return 1;
}

static json_t *rates_json(const double rate[KU_N_ISAS])
{
    json_t *out = json_object();
    for (int isa = 0; isa < KU_N_ISAS; isa++)
        if (rate[isa] > 0)
            json_object_set_new(out, ku_cpu_isa_name((enum ku_isa)isa), json_real(rate[isa]));
    return out;
}

static void store(const char *path, json_t *rows, const struct key *key,
                  const struct ku_kernel_rates *r, const char *day)
{
    json_t *row =
        json_pack("{s:s, s:s, s:s, s:o, s:o}", "identity", key->identity, "machine", key->machine,
                  "date", day, "f32", rates_json(r->f32), "bf16", rates_json(r->bf16));
    const size_t at = find(rows, key);
    if (at < json_array_size(rows))
        json_array_remove(rows, at);
    json_array_append_new(rows, row);
    if (ku_machine_rows_write(path, rows) < 0)
        KU_LOG(TRAIN, INFO, "%s: the rates of the kernels were not stored", ku_err_get()->text);
}

/* Takes this machine's row; false: there is none, or it lacks a set that this CPU has. */
static bool take(const json_t *rows, const struct key *key, struct ku_kernel_rates *out,
                 char day[KU_KERNEL_DAY_BYTES])
{
    struct ku_kernel_rates r = {0};
    const json_t *row = json_array_get(rows, rows ? find(rows, key) : 0);
    const char *date = json_string_value(json_object_get(row, "date"));
    if (!read_rates(json_object_get(row, "f32"), r.f32) ||
        !read_rates(json_object_get(row, "bf16"), r.bf16))
        return 0;
    *out = r;
    snprintf(day, KU_KERNEL_DAY_BYTES, "%s", date ? date : "");
    return 1;
}

int ku_kernel_rates_get(struct ku_kernel_rates *out, char day[KU_KERNEL_DAY_BYTES])
{
    struct ku_kernel_rates r = {0};
    struct key key;
    char today[KU_KERNEL_DAY_BYTES] = "";
    struct tm tm;
    time_t now = time(NULL);
    KU_TRY(ku_cpu_isa_check());
    char *path = ku_machine_file(file);
    json_t *rows = path ? ku_machine_rows(path) : NULL;
    ku_machine_cpu(key.identity);
    ku_machine_id(key.machine);
    int status = KUMI_OK;
    if (!take(rows, &key, &r, today)) {
        KU_TRY_OUT(ku_kernel_rates_measure(&r));
        const int lock = path ? ku_machine_lock(path) : -1;
        json_decref(rows); /* another process may have measured meanwhile: one choice for both */
        rows = path ? ku_machine_rows(path) : NULL;
        if (!take(rows, &key, &r, today)) {
            if (gmtime_r(&now, &tm) == NULL || strftime(today, sizeof today, "%Y-%m-%d", &tm) == 0)
                today[0] = '\0';
            if (rows)
                store(path, rows, &key, &r, today);
        }
        if (lock >= 0)
            ku_os_close(lock);
    }
    *out = r;
    if (day)
        memcpy(day, today, sizeof today);
out:
    json_decref(rows);
    ku_free(path);
    return status;
}

int ku_isa_resolve(const char *pinned, enum kumi_dtype compute, enum ku_isa *out)
{
    struct ku_kernel_rates rates;
    KU_TRY(ku_cpu_isa_check());
    if (pinned)
        return ku_cpu_isa_at_most(pinned, out);
    KU_TRY(ku_kernel_rates_get(&rates, NULL));
    *out = ku_kernel_choose(&rates, compute);
    return KUMI_OK;
}
