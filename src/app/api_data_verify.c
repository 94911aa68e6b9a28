/* SPDX-License-Identifier: Apache-2.0 */
#include "kumi/run.h"
#include "base/arg.h"
#include "base/err.h"
#include "base/str.h"
#include "train/configure.h"
#include "model/model.h"
#include "base/progress_line.h"
#include "config/deepspeed.h"
#include "train/session.h"

static void print_split(const char *name, const struct ku_data *d, enum ku_data_split split,
                        const struct ku_list *files, struct ku_str *out)
{
    ku_str_add(out, "%s: ", name);
    for (int i = 0; i < files->n; i++)
        ku_str_add(out, "%s%s", i ? ", " : "", files->item[i]);
    if (files->n == 0)
        ku_str_add(out, !d->n_samples[split] ? "none"
                        : d->item            ? "the end of train"
                                             : "a part of train");
    if (d->n_samples[split])
        ku_str_add(out, ": ");
    if (d->n_samples[split] && d->item)
        ku_str_add(out, "%lld %s, ", (long long)d->n_items[split], d->item);
    if (d->n_samples[split])
        ku_str_add(out, "%lld samples", (long long)d->n_samples[split]);
    ku_str_add(out, "\n");
}

static int verify(struct ku_batch_source *source, struct ku_str *out)
{
    const struct ku_batch_source_ops *ops = source->ops;
    struct ku_progress_line line;
    source->progress = ku_progress_line_start(&line);
    int status = ops->has_shapes ? ku_batch_source_open(source, NULL) : ops->open_data(source);
    if (status == KUMI_OK)
        status = ku_data_verify(source->data, &source->progress);
    ku_progress_line_end(&line);
    if (status < 0)
        return status;
    ops->print_data(source, out);
    print_split("train", source->data, KU_SPLIT_TRAIN, &source->cfg->data_train, out);
    ops->print_split(source, KU_SPLIT_TRAIN, out);
    print_split("validation", source->data, KU_SPLIT_VAL, &source->cfg->data_val, out);
    ops->print_split(source, KU_SPLIT_VAL, out);
    if (ops->has_shapes) {
        ops->print(source, out);
        ku_str_add(out, "\n");
    }
    ku_str_add(out, "fingerprint: %s\n", source->data->fingerprint);
    return KUMI_OK;
}

/* A batch that does not depend on the number of ranks is enough where batches have one shape. */
static int verify_one_shape(struct ku_config *cfg, struct ku_model *model, struct ku_str *out)
{
    struct ku_batch_source *source = NULL;
    int64_t seq_len;
    KU_TRY(ku_batch_source_of(cfg, model)->seq_len(cfg, model, &seq_len));
    KU_TRY(ku_batch_source_create(cfg, model, NULL, seq_len, &source));
    int status = verify(source, out);
    ku_batch_source_destroy(source);
    return status;
}

static int verify_shapes(const struct kumi_settings *settings, struct ku_str *out)
{
    struct ku_session s = {0};
    int status = ku_settings_configure(&s, settings, 1, NULL);
    if (status == KUMI_OK)
        status = verify(s.source, out);
    ku_session_fini(&s);
    return status;
}

int kumi_data_verify(const struct kumi_settings *settings, char **text)
{
    KU_GIVEN(text, "text");
    struct ku_config cfg = {0};
    struct ku_model model = {0};
    struct ku_str out = {0};
    int status;
    KU_TRY(ku_settings_check(settings));
    KU_TRY_OUT(ku_config_load(settings->config, settings->set, settings->n_sets,
                              ku_model_hidden_size, &cfg));
    ku_deepspeed_warn(&cfg);
    KU_TRY_OUT(ku_model_read(&cfg, &model));
    KU_TRY_OUT(ku_batch_source_of(&cfg, &model)->has_shapes ? verify_shapes(settings, &out)
                                                            : verify_one_shape(&cfg, &model, &out));
    status = ku_text_take(&out, text);
out:
    ku_str_fini(&out);
    ku_model_fini(&model);
    ku_config_fini(&cfg);
    return status;
}
