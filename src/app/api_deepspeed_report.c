/* SPDX-License-Identifier: Apache-2.0 */
#include "kumi/run.h"

#include <stdio.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/str.h"
#include "train/configure.h"
#include "train/ineffective_keys.h"
#include "config/deepspeed.h"
#include "model/model.h"
#include "pass/pass.h"
#include "train/session.h"

static void print_batch(const struct ku_ds_batch *b, int dp, struct ku_str *out)
{
    ku_str_add(out,
               "batch: train_batch_size %lld = train_micro_batch_size_per_gpu %lld x "
               "gradient_accumulation_steps %lld x %d rank%s\n",
               (long long)b->train, (long long)b->micro, (long long)b->accumulation, dp,
               dp == 1 ? "" : "s");
}

static json_t *batch_json(const struct ku_ds_batch *b, int dp)
{
    return json_pack("{s:I, s:I, s:I, s:i}", "train_batch_size", (json_int_t)b->train,
                     "train_micro_batch_size_per_gpu", (json_int_t)b->micro,
                     "gradient_accumulation_steps", (json_int_t)b->accumulation, "ranks", dp);
}

/* Check all that training checks before it opens data, so that both end with the same error. */
static int resolve(struct ku_session *s, int n_ranks, struct ku_ds_batch *batch)
{
    KU_TRY(ku_config_finish(&s->cfg));
    if (s->cfg.ps_workers != KU_NULL) { /* such a training runs without -n */
        n_ranks = (int)s->cfg.ps_workers;
        s->host_ranks = 1;
        s->remote.update_by = KU_UPDATE_WORKER;
    }
    KU_TRY(ku_session_resolve(s, NULL, n_ranks));
    ku_effect_deepspeed(s);
    return ku_deepspeed_batch(&s->cfg, s->batch.n_ranks, batch);
}

int kumi_deepspeed_text(const struct kumi_settings *settings, int n_ranks, int is_all, int as_json,
                        char **text)
{
    KU_GIVEN(text, "text");
    struct ku_session s = {0};
    struct ku_config *cfg = &s.cfg;
    struct ku_ds_batch batch;
    struct ku_str out = {0};
    json_t *keys = NULL;
    KU_TRY(ku_settings_check(settings));
    if (n_ranks < 1 || n_ranks > KU_MAX_PLANNED)
        return KU_ERR(KUMI_EINVAL, "rank count: -n: %d; give a number from 1 to %d", n_ranks,
                      KU_MAX_PLANNED);
    KU_TRY(ku_config_open(settings->config, settings->set, settings->n_sets, ku_model_hidden_size,
                          cfg));
    if (cfg->deepspeed == NULL) {
        ku_config_fini(cfg);
        return KU_ERR(KUMI_EINVAL,
                      "config: %s: no DeepSpeed configuration in it; give "
                      "--deepspeed FILE, or a key \"deepspeed\"",
                      settings->config);
    }
    const int status = resolve(&s, n_ranks, &batch), dp = s.batch.n_ranks;
    const struct kumi_error why = *ku_err_get();
    if (as_json)
        keys = ku_deepspeed_json(cfg->deepspeed);
    else
        ku_deepspeed_print(cfg->deepspeed, settings->config, is_all, &out);
    if (status == KUMI_OK && !as_json)
        print_batch(&batch, dp, &out);
    json_t *root = as_json ? json_pack("{s:o, s:o*, s:o*}", "keys", keys, "batch",
                                       status == KUMI_OK ? batch_json(&batch, dp) : NULL, "error",
                                       status < 0 ? ku_json_text(why.text) : NULL)
                           : NULL;
    ku_session_fini(&s);
    const int printed = as_json ? ku_text_json(root, text) : ku_text_take(&out, text);
    return printed < 0 ? printed : status < 0 ? ku_err_put(&why) : KUMI_OK;
}

char *kumi_deepspeed_help(int as_markdown)
{
    struct ku_str s = {0};
    char *text = NULL;
    ku_deepspeed_help(as_markdown, &s);
    return ku_text_take(&s, &text) == KUMI_OK ? text : NULL;
}
