/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/replay.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "ckpt/snapshot/snapshot.h"
#include "comm/world.h"
#include "ps/recovery.h"
#include "ps/service.h"

struct replay {
    const char *journal;
    struct kumi_train_options options;
    struct ku_remote_engine_opts engine;
    struct kumi_train_result *result; /* of server 0 */
    struct ku_ps_extent extent;       /* of server 0's journal */
};

static int run_server(struct ku_job *job, void *arg)
{
    const struct replay *r = arg;
    const struct ku_ps_opts o = {.replayed = r->journal};
    struct kumi_train_result result = {0};
    struct ku_run_server server = {.n_workers = r->extent.identity.n_workers,
                                   .engine = r->engine,
                                   .attach = ku_ps_attach,
                                   .detach = ku_ps_detach};
    struct ku_ps_service *s = NULL;
    KU_TRY(ku_ps_service_create(&o, &s));
    server.ctx = s;
    const int status = ku_run_rank(job, 0, &r->options, &server, &result);
    ku_ps_service_destroy(s);
    if (job->rank == 0)
        *r->result = result;
    return status;
}

/* Makes the checkpoint of a step visible in the directory of the repeated run. */
static int link_checkpoint(const char *from, const char *out, int64_t step)
{
    char full[PATH_MAX];
    char *folder = ku_asprintf("%s/checkpoints", out);
    char *to = ku_asprintf("%s/step-%08lld", folder, (long long)step);
    int status = folder && to ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK &&
        (realpath(from, full) == NULL || ku_os_mkdirs(folder) < 0 || symlink(full, to) < 0))
        status = KU_ERR(KUMI_ESTORAGE, "ps replay: %s: cannot be linked: %s", to, ku_os_why());
    ku_free(folder);
    ku_free(to);
    return status;
}

/* The configuration of a checkpoint as a file. */
static int write_config(const struct ku_ckpt *c, const char *out, char **path)
{
    char *text = ku_json_print(json_object_get(c->manifest.root, "config"), JSON_SORT_KEYS);
    int status = KUMI_OK;
    *path = ku_asprintf("%s/config.json", out);
    if (text == NULL || *path == NULL)
        status = KUMI_ENOMEM;
    else if (ku_os_mkdirs(out) < 0 || ku_os_replace(*path, text, strlen(text)) < 0)
        status = KU_ERR(KUMI_ESTORAGE, "ps replay: %s: cannot be written: %s", *path, ku_os_why());
    ku_free(text);
    return status;
}

/*
 * A usable checkpoint from which the journal goes on: the newest one before its last update. Of a
 * whole journal any one, for its configuration. */
static int find_first(const char *dir, int64_t base, int64_t last, struct ku_ckpt *c)
{
    struct ku_ckpt_entry *entry = NULL;
    int n = 0;
    int64_t first = -1;
    KU_TRY(ku_ckpt_list(dir, &entry, &n));
    for (int i = 0; i < n; i++) /* newest first */
        if (entry[i].is_usable && entry[i].step >= base && entry[i].step <= last &&
            (first < 0 || first == last))
            first = entry[i].step;
    ku_free(entry);
    if (first < 0)
        return KU_ERR(KUMI_ENOCKPT,
                      "ps replay: %s: no usable checkpoint of updates %lld to %lld, which the "
                      "journal holds",
                      dir, (long long)base, (long long)last);
    char *folder = ku_asprintf("%s/checkpoints", dir);
    const int status = folder ? ku_ckpt_open_step(folder, first, c) : KUMI_ENOMEM;
    ku_free(folder);
    return status;
}

static int replay(struct replay *r, const char *dir, const char *out)
{
    struct ku_ckpt c;
    char *config = NULL;
    KU_TRY(find_first(dir, r->extent.base, r->extent.last, &c));
    int status = write_config(&c, out, &config);
    if (status == KUMI_OK && r->extent.base > 0)
        status = link_checkpoint(c.path, out, c.step);
    ku_ckpt_close(&c);
    r->options = (struct kumi_train_options){.settings.config = config,
                                             .out = out,
                                             .resume = r->extent.base > 0 ? 1 : 2,
                                             .until = r->extent.last};
    if (status == KUMI_OK)
        status = ku_run_remote_of(&r->options.settings, &r->engine);
    if (status == KUMI_OK)
        status = ku_comm_threads(r->extent.identity.n_servers, NULL, run_server, r);
    ku_free(config);
    return status;
}

int ku_ps_replay(const char *dir, const char *out, struct kumi_train_result *result)
{
    struct replay r = {.result = result};
    char *journal = ku_asprintf("%s/journal", dir),
         *first = ku_asprintf("%s/journal/server-0", dir);
    int status = journal && first ? KUMI_OK : KUMI_ENOMEM;
    r.journal = journal;
    if (status == KUMI_OK)
        status = ku_ps_journal_measure(first, &r.extent, NULL);
    if (status == KUMI_OK && r.extent.last <= r.extent.base)
        status = KU_ERR(KUMI_EINVAL, "ps replay: %s: no journal with updates", first);
    if (status == KUMI_OK)
        status = replay(&r, dir, out);
    const struct kumi_error error = *ku_err_get();
    ku_free(journal);
    ku_free(first);
    return status < 0 ? ku_err_put(&error) : KUMI_OK;
}
