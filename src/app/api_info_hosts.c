/* SPDX-License-Identifier: Apache-2.0 */
#include "kumi/run.h"

#include "app/host_probe.h"
#include "base/arg.h"
#include "base/err.h"
#include "comm/world.h"

int kumi_info_hosts(int as_json, char **text)
{
    KU_GIVEN(text, "text");
    struct ku_job *job = NULL;
    struct ku_probe probe;
    char *report = NULL;
    /* the whole takes a few seconds, so a rank that stands still is known early */
    const struct ku_job_opts opts = {.timeout_ns = INT64_C(60000000000)};
    KU_TRY(ku_comm_join(&opts, &job));
    int status = ku_probe_run(job, &probe);
    if (status == KUMI_OK && job->rank == 0)
        status = ku_probe_print(job, &probe, as_json, &report);
    ku_probe_fini(&probe);
    if (status < 0 && job->n > 1)
        status = ku_job_fail(job);
    struct kumi_error error = *ku_err_get();
    int left = ku_comm_leave(job);
    if (status < 0)
        return ku_err_put(&error);
    if (left < 0) {
        error = *ku_err_get();
        kumi_text_free(report);
        return ku_err_put(&error);
    }
    *text = report;
    return KUMI_OK;
}
