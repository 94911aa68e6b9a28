/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/snapshot/resume.h"

#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/log.h"
#include "ckpt/snapshot/directory.h"
#include "ckpt/snapshot/snapshot.h"

/* "10, 20, 30", from steps in descending order; of a long list only the newest. */
static void print_steps(const int64_t *steps, int n, struct ku_str *out)
{
    enum { MAX_STEPS = 16 };
    int n_shown = n < MAX_STEPS ? n : MAX_STEPS;
    if (n > n_shown)
        ku_str_add(out, "…, ");
    for (int i = n_shown - 1; i >= 0; i--)
        ku_str_add(out, "%lld%s", (long long)steps[i], i > 0 ? ", " : "");
}

static int open_newest(const char *run, const char *dir, int n, struct ku_ckpt *c)
{
    int status = ku_ckpt_find(dir, INT64_MAX, c);
    if (status != KUMI_ENOCKPT)
        return status;
    return KU_ERR(KUMI_ENOCKPT,
                  "resume: %s: none of %d checkpoint%s is usable (the warnings above say why); "
                  "restore one, or start a new run with --overwrite",
                  run, n, n == 1 ? "" : "s");
}

static int open_one(const char *run, const char *dir, int64_t step, const int64_t *steps, int n,
                    struct ku_ckpt *c)
{
    struct ku_str there = {0};
    int is_there = 0;
    for (int i = 0; i < n; i++)
        is_there |= steps[i] == step;
    int status = is_there ? ku_ckpt_open_step(dir, step, c) : KUMI_ENOCKPT;
    if (status != KUMI_ENOCKPT)
        return status;
    print_steps(steps, n, &there);
    if (is_there) {
        const struct kumi_error e = *ku_err_get();
        status = KU_ERR(KUMI_ENOCKPT, "resume: step %lld: %.300s; the run's checkpoints: %s",
                        (long long)step, e.text, ku_str_get(&there));
    } else {
        status = KU_ERR(KUMI_ENOCKPT, "resume: %s: no checkpoint of step %lld; the run has %s", run,
                        (long long)step, ku_str_get(&there));
    }
    ku_str_fini(&there);
    return status;
}

static int find_nothing(const char *run, enum ku_resume how)
{
    if (how != KU_RESUME_AUTO)
        return KU_ERR(
            KUMI_ENOCKPT,
            "resume: %s: no checkpoint; start a new run with --overwrite or --resume=auto", run);
    KU_MESSAGE(WARN, "kumi: %s: no checkpoint to resume; starting a new run", run);
    return KUMI_OK;
}

int ku_resume_find(const char *run, enum ku_resume how, int64_t step,
                   char found[KU_CKPT_PATH_BYTES])
{
    struct ku_ckpt c = {0};
    int64_t *steps = NULL;
    int n, status = KUMI_ENOMEM;
    char *dir = ku_asprintf("%s/checkpoints", run);
    found[0] = '\0';
    if (dir == NULL)
        return status;
    KU_TRY_OUT(ku_ckpt_place_list(dir, &steps, &n));
    if (n == 0) {
        status = find_nothing(run, how);
        goto out;
    }
    KU_TRY_OUT(step > 0 ? open_one(run, dir, step, steps, n, &c) : open_newest(run, dir, n, &c));
    snprintf(found, KU_CKPT_PATH_BYTES, "%s", c.path);
    ku_ckpt_close(&c);
out:
    ku_free(steps);
    ku_free(dir);
    return status;
}

int ku_resume_cut(const char *run, int64_t step)
{
    char *dir = ku_asprintf("%s/checkpoints", run), *to = ku_asprintf("%s/checkpoints.cut", run);
    int n = 0, status = dir && to ? ku_ckpt_place_aside(dir, step, to, &n) : KUMI_ENOMEM;
    if (n > 0)
        KU_MESSAGE(WARN, "kumi: %s: %d checkpoint%s of later steps moved to %s", run, n,
                   n == 1 ? "" : "s", to);
    ku_free(dir);
    ku_free(to);
    return status;
}
