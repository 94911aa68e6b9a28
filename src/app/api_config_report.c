/* SPDX-License-Identifier: Apache-2.0 */
#include "kumi/run.h"

#include <stdio.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "job/segment.h"
#include "device/device.h"
#include "train/configure.h"
#include "config/deepspeed.h"
#include "model/model.h"
#include "config/precision_policy.h"
#include "train/session.h"

void kumi_text_free(char *text)
{
    ku_free(text);
}

int kumi_config_text(const struct kumi_settings *settings, char **json)
{
    KU_GIVEN(json, "json");
    struct ku_config cfg = {0};
    struct ku_model model = {0};
    int status;
    KU_TRY(ku_settings_check(settings));
    KU_TRY_OUT(ku_config_load(settings->config, settings->set, settings->n_sets,
                              ku_model_hidden_size, &cfg));
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
