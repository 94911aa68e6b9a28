/* SPDX-License-Identifier: Apache-2.0 */
#include "exec/step_times.h"

#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/os/os.h"

enum column { STEP, EXPOSED, WAIT, DATA, ITEMS, N_COLUMNS };

struct ku_step_times {
    int64_t n, cap;
    int64_t (*row)[N_COLUMNS]; /* [cap] in ns; ITEMS: a count */
};

int ku_step_times_create(int64_t n_steps, struct ku_step_times **out)
{
    struct ku_step_times *t = ku_calloc(1, sizeof *t);
    if (t == NULL)
        return KUMI_ENOMEM;
    t->cap = n_steps;
    t->row = ku_calloc((size_t)n_steps + 1, sizeof *t->row);
    if (t->row == NULL) {
        ku_free(t);
        return KUMI_ENOMEM;
    }
    *out = t;
    return KUMI_OK;
}

void ku_step_times_destroy(struct ku_step_times *t)
{
    if (t == NULL)
        return;
    ku_free(t->row);
    ku_free(t);
}

void ku_step_times_note(struct ku_step_times *t, const struct ku_exec_times *step, int64_t data_ns,
                        int64_t items)
{
    if (t == NULL || t->n == t->cap)
        return;
    t->row[t->n][STEP] = step->run_ns + data_ns;
    t->row[t->n][EXPOSED] = step->exposed_ns;
    t->row[t->n][WAIT] = step->wait_ns;
    t->row[t->n][DATA] = data_ns;
    t->row[t->n++][ITEMS] = items;
}

static json_t *column(const struct ku_step_times *t, enum column c, double unit)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < t->n; i++)
        json_array_append_new(list, json_real((double)t->row[i][c] * unit));
    return list;
}

int ku_step_times_write(const struct ku_step_times *t, int rank, const char *unit, const char *dir)
{
    json_t *o = json_pack("{s:i, s:s, s:o, s:o, s:o, s:o, s:o}", "rank", rank, "unit", unit,
                          "items", column(t, ITEMS, 1), "step_ms", column(t, STEP, 1e-6),
                          "exposed_comm_ms", column(t, EXPOSED, 1e-6), "wait_ms",
                          column(t, WAIT, 1e-6), "data_ms", column(t, DATA, 1e-6));
    char *text = o ? ku_json_print(o, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    char *path = ku_asprintf("%s/rank-%d.json", dir, rank);
    int status = text && path ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK && ku_os_replace(path, text, strlen(text)) < 0)
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "timed run: %s: cannot be written: %s", path,
                        ku_os_why());
    ku_free(text);
    ku_free(path);
    json_decref(o);
    return status;
}
