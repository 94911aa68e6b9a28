/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/mem.h"
#include "comm/segment.h"
#include "device/device.h"
#include "train/commands.h"
#include "train/deepspeed.h"
#include "train/precision.h"

enum { MAX_MORE = 6 };

void kumi_text_free(char *text)
{
    ku_free(text);
}

int ku_text_take(struct ku_str *s, char **text)
{
    ku_str_append(s, "", 0); /* nothing to say is a text, too */
    if (s->failed) {
        ku_str_fini(s);
        return KU_ERR(KUMI_ENOMEM, "memory: no room for the text of the answer");
    }
    *text = s->text;
    *s = (struct ku_str){0};
    return KUMI_OK;
}

int ku_text_json(json_t *value, char **text)
{
    char *printed = value ? ku_json_print(value, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) : NULL;
    struct ku_str out = {0};
    json_decref(value);
    ku_str_add(&out, "%s\n", printed ? printed : "");
    out.failed |= printed == NULL;
    ku_free(printed);
    return ku_text_take(&out, text);
}

const char *ku_text_bytes(uint64_t bytes, char out[16])
{
    static const char *const unit[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double x = (double)bytes / 1024;
    int u = 0;
    while (x >= 999.995 && u < 5) {
        x /= 1024;
        u++;
    }
    if (bytes < 1024)
        snprintf(out, 16, "%8u B", (unsigned)bytes);
    else
        snprintf(out, 16, "%6.2f %s", x, unit[u]);
    return out;
}

int ku_commands_check(const struct kumi_settings *settings)
{
    if (settings == NULL || settings->config == NULL)
        return KU_ERR(KUMI_EINVAL, "config: no file is given; name one, as in configs/");
    return ku_arg_list("config", "settings.set", settings->set, settings->n_sets);
}

/* The user's settings, then ours, which win. */
static int join_settings(const struct kumi_settings *settings, const char *const *more,
                         const char ***all, int *n_all)
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
    return KUMI_OK;
}

int ku_commands_configure(struct ku_session *s, const struct kumi_settings *settings, int n_ranks,
                          const char *const *more)
{
    const char **set;
    int n;
    KU_TRY(ku_commands_check(settings));
    if (n_ranks < 1 || n_ranks > KU_MAX_LOCAL)
        return KU_ERR(KUMI_EINVAL, "rank count: -n: %d; give a number from 1 to %d", n_ranks,
                      KU_MAX_LOCAL);
    KU_TRY(join_settings(settings, more, &set, &n));
    int status = ku_session_configure(s, settings->config, set, n, NULL, n_ranks);
    if (status < 0)
        ku_session_fini(s);
    if (status == KUMI_OK)
        ku_deepspeed_warn(&s->cfg);
    s->cfg.set = NULL; /* ours, and gone now */
    s->cfg.n_sets = 0;
    ku_free(set);
    return status;
}

int ku_commands_open_shapes(struct ku_session *s)
{
    return s->model.facts.is_pairs ? ku_session_open_data(s, NULL) : KUMI_OK;
}

struct ku_target ku_commands_target(const struct ku_session *s)
{
    const struct ku_device_ops *device = ku_device_find(s->cfg.parallel_device);
    KU_ASSERT(device != NULL);
    return (struct ku_target){.query = device->query, .ranks_per_host = s->batch.n_ranks};
}

int kumi_config_text(const struct kumi_settings *settings, char **json)
{
    KU_GIVEN(json, "json");
    struct ku_config cfg = {0};
    struct ku_model model = {0};
    int status;
    KU_TRY(ku_commands_check(settings));
    KU_TRY_OUT(ku_config_load(settings->config, settings->set, settings->n_sets, &cfg));
    KU_TRY_OUT(ku_model_read(&cfg, &model));
    status = ku_text_json(ku_config_dump(&cfg), json);
out:
    ku_model_fini(&model);
    ku_config_fini(&cfg);
    return status;
}

char *kumi_precision_help(int as_markdown)
{
    struct ku_str s = {0};
    char *text = NULL;
    ku_precision_help(as_markdown, &s);
    return ku_text_take(&s, &text) == KUMI_OK ? text : NULL;
}

char *kumi_config_help(int as_markdown)
{
    struct ku_str s = {0};
    char *text = NULL;
    ku_config_help(as_markdown, &s);
    return ku_text_take(&s, &text) == KUMI_OK ? text : NULL;
}
