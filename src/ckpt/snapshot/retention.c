/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/snapshot/retention.h"

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "ckpt/snapshot/directory.h"

void ku_ckpt_verified_fini(struct ku_ckpt_verified *verified)
{
    ku_free(verified->one);
    *verified = (struct ku_ckpt_verified){0};
}

static struct ku_ckpt_verified_one *find(struct ku_ckpt_verified *verified, int64_t step)
{
    for (uint32_t i = 0; i < verified->n; i++)
        if (verified->one[i].step == step)
            return &verified->one[i];
    return NULL;
}

static void note(struct ku_ckpt_verified *verified, struct ku_ckpt_verified_one one)
{
    struct ku_ckpt_verified_one *at = find(verified, one.step);
    if (at == NULL && KU_GROW(&verified->one, verified->n, &verified->cap) == KUMI_OK)
        at = &verified->one[verified->n++];
    if (at)
        *at = one;
}

void ku_ckpt_verified_add(struct ku_ckpt_verified *verified, const struct ku_ckpt *c)
{
    note(verified, (struct ku_ckpt_verified_one){c->step, c->manifest_sum, 1});
}

static void forget(struct ku_ckpt_verified *verified, int64_t step)
{
    struct ku_ckpt_verified_one *at = find(verified, step);
    if (at)
        *at = verified->one[--verified->n];
}

/* Returns 1 if the snapshot is good, 0 if damaged, < 0 if unknown. */
static int is_good(const char *dir, int64_t step, struct ku_ckpt_verified *verified)
{
    const struct ku_ckpt_verified_one *at = find(verified, step);
    struct ku_ckpt c;
    if (at && !at->is_good)
        return 0;
    int status = ku_ckpt_open_step(dir, step, &c);
    if (status == KUMI_OK) {
        if (at == NULL || at->manifest_sum != c.manifest_sum)
            status = ku_ckpt_check(&c);
        if (status == KUMI_OK)
            ku_ckpt_verified_add(verified, &c);
        ku_ckpt_close(&c);
    }
    if (status != KUMI_ENOCKPT)
        return status < 0 ? status : 1;
    KU_LOG(CKPT, WARN, "%s; this snapshot does not count in checkpoint.keep", ku_err_get()->text);
    note(verified, (struct ku_ckpt_verified_one){.step = step});
    return 0;
}

/* Records the snapshot that this process has just written, replacing an older record. */
static void add_written(const char *dir, int64_t step, struct ku_ckpt_verified *verified)
{
    struct ku_ckpt c;
    forget(verified, step);
    if (ku_ckpt_open_step(dir, step, &c) < 0)
        return;
    ku_ckpt_verified_add(verified, &c);
    ku_ckpt_close(&c);
}

void ku_ckpt_prune(const char *dir, int64_t step, int keep, struct ku_ckpt_verified *verified)
{
    struct ku_ckpt_verified own = {0};
    int64_t *steps = NULL;
    int n = 0, n_good = 0;
    if (verified == NULL)
        verified = &own;
    add_written(dir, step, verified);
    int status = ku_ckpt_place_list(dir, &steps, &n);
    for (int i = 0; i < n && status == KUMI_OK; i++) {
        if (n_good < keep) {
            int good = is_good(dir, steps[i], verified);
            if (good < 0)
                status = good;
            n_good += good > 0;
        } else if (steps[i] != step) {
            ku_ckpt_place_remove(dir, steps[i]);
            forget(verified, steps[i]);
        }
    }
    if (status < 0)
        KU_LOG(CKPT, WARN, "%s; old snapshots stay until the next checkpoint", ku_err_get()->text);
    ku_free(steps);
    ku_ckpt_verified_fini(&own);
}
