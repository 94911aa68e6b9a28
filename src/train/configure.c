/* SPDX-License-Identifier: Apache-2.0 */
#include "train/configure.h"

#include "base/arg.h"
#include "base/err.h"
#include "base/mem.h"
#include "job/segment.h"
#include "device/device.h"
#include "model/model.h"
#include "train/remote_update.h"

enum { MAX_MORE = 16 };

int ku_settings_check(const struct kumi_settings *settings)
{
    if (settings == NULL || settings->config == NULL)
        return KU_ERR(KUMI_EINVAL,
                      "config: no configuration file; give one, such as those in configs/");
    return ku_arg_list("config", "settings.set", settings->set, settings->n_sets);
}

/* The user's settings, followed by those of the caller, which override them. *n_more: of these. */
static int join_settings(const struct kumi_settings *settings, const char *const *more,
                         const char ***all, int *n_all, int *n_more)
{
    int n = 0;
    const char **set = ku_calloc((size_t)settings->n_sets + MAX_MORE + 1, sizeof *set);
    if (set == NULL)
        return KUMI_ENOMEM;
    for (; n < settings->n_sets; n++)
        set[n] = settings->set[n];
    for (int i = 0; more && more[i]; i++) {
        KU_ASSERT(i < MAX_MORE);
        set[n++] = more[i];
    }
    *all = set;
    *n_all = n;
    *n_more = n - settings->n_sets;
    return KUMI_OK;
}

int ku_settings_configure(struct ku_session *s, const struct kumi_settings *settings, int n_ranks,
                          const char *const *more)
{
    const char **set;
    int n;
    KU_TRY(ku_settings_check(settings));
    if (n_ranks < 1 || n_ranks > KU_MAX_PLANNED)
        return KU_ERR(KUMI_EINVAL, "rank count: -n: %d; give a number from 1 to %d", n_ranks,
                      KU_MAX_PLANNED);
    KU_TRY(join_settings(settings, more, &set, &n, &s->n_over));
    int status = ku_session_configure(s, settings->config, set, n, NULL, n_ranks);
    if (status < 0)
        ku_session_fini(s);
    ku_free(set);
    return status;
}

int ku_settings_workers(const struct kumi_settings *settings, int *n)
{
    struct ku_config cfg;
    KU_TRY(ku_settings_check(settings));
    KU_TRY(ku_config_load(settings->config, settings->set, settings->n_sets, ku_model_hidden_size,
                          &cfg));
    *n = cfg.ps_workers == KU_NULL ? 0 : (int)cfg.ps_workers;
    ku_config_fini(&cfg);
    return KUMI_OK;
}

int ku_settings_configure_side(struct ku_session *s, const struct kumi_settings *settings,
                               int update_by)
{
    int n_workers;
    KU_TRY(ku_settings_workers(settings, &n_workers));
    KU_ASSERT(n_workers > 0);
    *s = (struct ku_session){.remote = {.update_by = update_by}, .host_ranks = 1};
    KU_TRY(ku_settings_configure(s, settings, n_workers, NULL));
    s->remote.n_servers = (int)s->cfg.ps_servers;
    s->remote.is_single = s->cfg.ps_mode != KU_REMOTE_SYNC;
    return KUMI_OK;
}

int ku_session_open_shapes(struct ku_session *s)
{
    return s->source->ops->has_shapes ? ku_session_open_data(s, NULL) : KUMI_OK;
}

struct ku_target ku_session_target(const struct ku_session *s)
{
    const struct ku_device_ops *device = ku_device_find(s->cfg.parallel_device);
    KU_ASSERT(device != NULL);
    return (struct ku_target){.query = device->query,
                              .ranks_per_host =
                                  s->host_ranks ? s->host_ranks : ku_session_n_ranks(s)};
}
