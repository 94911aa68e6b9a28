/* SPDX-License-Identifier: Apache-2.0 */
/* links: pass ir op tensor base */
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "fuzz.h"
#include "pass/pipe/block_schedule.h"

#include <string.h>

/* What a rank holds never ends below zero, nor above all micro-batches of its stages. */
static void check_peaks(const struct ku_pp_schedule *s, const struct ku_stage_bytes *bytes)
{
    for (int r = 0; r < s->n_ranks; r++) {
        int n_stages = 0;
        for (int k = 0; k < s->n_stages; k++)
            n_stages += s->rank_of[k] == r;
        const int peak = ku_pp_schedule_peak(s, r);
        const double held = ku_pp_schedule_peak_bytes(s, r, bytes);
        KU_ASSERT(peak >= 1 && peak <= n_stages * s->n_micro);
        KU_ASSERT(held >= 3 && held <= 5.0 * n_stages * s->n_micro);
    }
}

/* A schedule from a file: refused, or it runs to its end, and its text is read as the same one. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const struct ku_block_cost unit = {1, 1, 1, 0, NULL};
    struct ku_pp_schedule *s, *again;
    struct ku_str text = {0}, second = {0};
    double span = 0, bubble = 0;
    const int status = ku_pp_schedule_parse("F", (const char *)data, bytes, &s);
    KU_ASSERT(status == KUMI_OK || status == KUMI_EINVAL);
    if (status < 0)
        return 0;
    struct ku_stage_bytes *held = ku_calloc((size_t)s->n_stages, sizeof *held);
    KU_ASSERT(held && ku_pp_schedule_run(s, &unit, NULL, NULL, &span, NULL) == KUMI_OK);
    for (int k = 0; k < s->n_stages; k++)
        held[k] = (struct ku_stage_bytes){.f_to_i = 1, .f_to_w = 2, .i_to_w = 3};
    check_peaks(s, held);
    KU_ASSERT(ku_pp_schedule_bubble(s, &unit, 1, &bubble) == KUMI_OK && bubble < 1);
    KU_ASSERT(span >= 3 && bubble > -1e-9);
    KU_ASSERT(ku_pp_schedule_print(s, &text) == KUMI_OK);
    KU_ASSERT(ku_pp_schedule_parse("F", ku_str_get(&text), text.bytes, &again) == KUMI_OK);
    KU_ASSERT(ku_pp_schedule_print(again, &second) == KUMI_OK);
    KU_ASSERT(strcmp(ku_str_get(&text), ku_str_get(&second)) == 0);
    ku_pp_schedule_destroy(s), ku_pp_schedule_destroy(again);
    ku_str_fini(&text), ku_str_fini(&second);
    ku_free(held);
    return 0;
}
