/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 16-bit weights beside each checkpoint (parallel.gather_16bit_on_save). All ranks have written
 * their parts of the checkpoint's model; rank 0 then converts it through one buffer into a folder
 * of its own. No rank ever holds the whole model.
 */
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "comm/consensus.h"
#include "model/export.h"
#include "train/session.h"

static void tick(void *job)
{
    ku_job_tick(job);
}

/* The old folder is removed only when the new one is complete. */
static int replace(const char *made, const char *to)
{
    struct stat info;
    if ((ku_os_stat(to, &info) == 0 && ku_os_rmtree(to) < 0) || ku_os_rename(made, to) < 0)
        return KU_ERR(ku_os_status(KUMI_ESTORAGE), "weights: %s: cannot be replaced: %s", to,
                      ku_os_why());
    return KUMI_OK;
}

static int gather(const struct ku_session *s, const char *from, const char *made, const char *to)
{
    const struct kumi_weights_options o = {
        .dtype = strcmp(s->cfg.precision_compute, "f16") == 0 ? "f16" : "bf16"};
    struct stat info;
    if (ku_os_stat(made, &info) == 0 && ku_os_rmtree(made) < 0) /* left by an interrupted run */
        return KU_ERR(ku_os_status(KUMI_ESTORAGE), "weights: %s: cannot be removed: %s", made,
                      ku_os_why());
    KU_TRY(ku_export_directory(from, made, &o, NULL, tick, s->t->job));
    return replace(made, to);
}

int ku_session_gather_16bit(struct ku_session *s, const char *dir, int64_t step, const char *run)
{
    int status = KUMI_OK;
    if (s->t->job->rank == 0) {
        char *from = ku_asprintf("%s/step-%08lld/model", dir, (long long)step);
        char *to = ku_asprintf("%s/weights", run), *made = ku_asprintf("%s/weights.new", run);
        status = from && to && made ? gather(s, from, made, to) : KUMI_ENOMEM;
        ku_free(from);
        ku_free(made);
        ku_free(to);
    }
    return ku_agree_worst(s->t->job, status);
}
