/* SPDX-License-Identifier: Apache-2.0 */
/* The public data interface (kumi/data.h): rows of batches of text. */
#include "kumi/data.h"

#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/mem.h"
#include "data/text/token_files.h"
#include "data/batch_rows.h"

struct kumi_data {
    struct ku_data *data;
    struct ku_sampler sampler;
};

static int open_data(const struct kumi_data_options *o, struct kumi_data *d)
{
    struct ku_text_opts text = {.train = o->train,
                                .n_train = o->n_train,
                                .val = o->val,
                                .n_val = o->n_val,
                                .val_fraction = o->val_fraction,
                                .tokenizer = o->tokenizer,
                                .format = o->format,
                                .seq_len = o->seq_len,
                                .vocab_count = o->vocab_size ? o->vocab_size : (int64_t)1 << 31};
    enum ku_last_batch last = KU_LAST_DROP;
    if (o->global_batch < 1)
        return KU_ERR(KUMI_EINVAL, "data: global_batch: %lld; give 1 or more",
                      (long long)o->global_batch);
    if (o->n_train < 1)
        return KU_ERR(KUMI_EINVAL, "data: train: no file; give a file, a list or a glob");
    if (o->last_batch)
        KU_TRY(ku_last_batch_parse(o->last_batch, &last));
    KU_TRY(ku_text_open(&text, &d->data));
    return ku_sampler_init(&d->sampler, d->data->n_samples[KU_SPLIT_TRAIN], o->global_batch, last,
                           !o->in_order, o->seed);
}

int kumi_data_open(const struct kumi_data_options *options, struct kumi_data **out)
{
    KU_GIVEN(options, "options");
    KU_GIVEN(out, "data");
    KU_GIVEN_LIST(options->train, options->n_train, "options.train");
    KU_GIVEN_LIST(options->val, options->n_val, "options.val");
    struct kumi_data *d = ku_calloc(1, sizeof *d);
    if (d == NULL)
        return KUMI_ENOMEM;
    int status = open_data(options, d);
    if (status < 0) {
        kumi_data_close(d);
        return status;
    }
    *out = d;
    return KUMI_OK;
}

void kumi_data_close(struct kumi_data *d)
{
    if (d == NULL)
        return;
    ku_data_destroy(d->data);
    ku_free(d);
}

int64_t kumi_data_steps_per_epoch(const struct kumi_data *d)
{
    KU_GIVEN(d, "data");
    return d->sampler.steps_per_epoch;
}

int64_t kumi_data_n_val(const struct kumi_data *d)
{
    KU_GIVEN(d, "data");
    return d->data->n_samples[KU_SPLIT_VAL];
}

static int check_rows(int64_t first, int64_t n, int64_t limit)
{
    if (first >= 0 && n >= 0 && first <= limit - n)
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL, "data: rows %lld to %lld; a batch has %lld", (long long)first,
                  (long long)first + n, (long long)limit);
}

int kumi_data_train_batch(const struct kumi_data *d, int64_t step, int64_t first, int64_t n,
                          int32_t *tokens, int32_t *targets)
{
    KU_GIVEN(d, "data");
    KU_GIVEN(tokens, "tokens");
    KU_GIVEN(targets, "targets");
    KU_TRY(check_rows(first, n, d->sampler.global_batch));
    if (step < 0)
        return KU_ERR(KUMI_EINVAL, "data: step: %lld; give 0 or more", (long long)step);
    return ku_rows_train(d->data, &d->sampler, step, first, n, (void *[]){tokens, targets});
}

int kumi_data_val_batch(const struct kumi_data *d, int64_t first, int64_t n, int32_t *tokens,
                        int32_t *targets)
{
    KU_GIVEN(d, "data");
    KU_GIVEN(tokens, "tokens");
    KU_GIVEN(targets, "targets");
    KU_TRY(check_rows(first, n, INT64_MAX));
    return ku_rows_val(d->data, kumi_data_n_val(d), first, n, (void *[]){tokens, targets});
}
