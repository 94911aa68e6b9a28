/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conditions between DeepSpeed keys, and DeepSpeed's batch relation, with DeepSpeed's own messages
 * where it has one.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "config/batch_relation.h"
#include "config/deepspeed/deepspeed_impl.h"

static double number(const struct ku_deepspeed *ds, const char *key)
{
    const struct ku_ds_item *item = ku_ds_find(ds, key);
    return item == NULL ? 0 : json_is_true(item->value) ? 1 : json_number_value(item->value);
}

int ku_ds_check_rules(const struct ku_config *cfg)
{
    const struct ku_deepspeed *ds = cfg->deepspeed;
    const int fp16 = number(ds, "fp16.enabled") != 0, bf16 = number(ds, "bf16.enabled") != 0;
    const int is_dynamic = fp16 && number(ds, "fp16.loss_scale") == 0;
    const int stage = (int)number(ds, "zero_optimization.stage");
    const struct {
        int is_wrong;
        const char *key, *wanted;
    } rule[] = {
        {fp16 && bf16, "fp16.enabled",
         "bfloat16 and fp16 modes cannot be simultaneously enabled; give one of them"},
        {is_dynamic && number(ds, "fp16.loss_scale_window") <= 0, "fp16.loss_scale_window",
         "fp16.loss_scale_window must be > 0 when dynamic loss scaling is enabled (loss_scale=0)"},
        {is_dynamic && number(ds, "fp16.min_loss_scale") <= 0, "fp16.min_loss_scale",
         "fp16.min_loss_scale must be > 0 when dynamic loss scaling is enabled (loss_scale=0)"},
        {fp16 && number(ds, "fp16.fp16_master_weights_and_grads") != 0 && stage == 0,
         "fp16.fp16_master_weights_and_grads", "it needs zero_optimization.stage 1, 2 or 3"},
        {bf16 && number(ds, "bf16.bf16_master_weights_and_grads") != 0 && stage == 0,
         "bf16.bf16_master_weights_and_grads", "it needs zero_optimization.stage 1, 2 or 3"},
        {bf16 && number(ds, "bf16.bf16_optimizer_states") != 0 &&
             number(ds, "bf16.bf16_master_weights_and_grads") == 0,
         "bf16.bf16_optimizer_states", "it needs bf16_master_weights_and_grads"},
        {stage == 3 && number(ds, "zero_optimization.reduce_scatter") != 0 &&
             number(ds, "gradient_predivide_factor") != 1,
         "gradient_predivide_factor", "stage 3 with reduce_scatter takes 1.0 alone"},
        {stage == 3 && number(ds, "zero_optimization.reduce_scatter") != 0 &&
             number(ds, "prescale_gradients") != 0,
         "prescale_gradients", "stage 3 with reduce_scatter takes false alone"},
        {stage != 3 && number(ds, "zero_optimization.offload_optimizer.ratio") < 1,
         "zero_optimization.offload_optimizer.ratio",
         "Partial offloading only supported for ZeRO Stage 3."},
    };
    for (size_t i = 0; i < sizeof rule / sizeof rule[0]; i++)
        if (rule[i].is_wrong) {
            const struct ku_ds_item *item = ku_ds_find(ds, rule[i].key);
            return ku_ds_refuse(cfg, item->spelled, item->value, "%s", rule[i].wanted);
        }
    return KUMI_OK;
}

enum { WORDS_BYTES = 256 };

/* Prints the multiples of unit next to a value: "16 or 18". */
static void nearest(int64_t value, int64_t unit, char out[WORDS_BYTES])
{
    const int64_t below = value / unit * unit;
    if (below > 0 && below != value)
        snprintf(out, WORDS_BYTES, "%lld or %lld", (long long)below, (long long)(below + unit));
    else
        snprintf(out, WORDS_BYTES, "%lld", (long long)(below ? below : unit));
}

/* Refuses a batch with values that fit the ones that the user gave: a batch size and, if integers
 * result, gradient_accumulation_steps or a rank count. */
static int refuse_relation(const struct ku_config *cfg, const char *sentence,
                           const struct ku_ds_batch *b, const struct ku_ds_batch *given, int world)
{
    char place[KU_WHERE_BYTES], list[WORDS_BYTES], more[WORDS_BYTES] = "", ranks[64] = "";
    const int64_t micro = given->micro ? given->micro : 1;
    const int64_t gas = given->accumulation ? given->accumulation : 1, each = micro * gas;
    const int64_t n = b->train / each, fitting = b->train / (micro * world);
    if (given->micro && given->accumulation && b->train % (micro * world) == 0 && fitting > 0)
        snprintf(more, sizeof more, ", or gradient_accumulation_steps: %lld", (long long)fitting);
    if (b->train > 0 && b->train % each == 0 && n != world && (given->accumulation || n < world))
        snprintf(ranks, sizeof ranks, ", or run on %lld rank%s", (long long)n, n == 1 ? "" : "s");
    if (given->micro && given->accumulation)
        snprintf(list, sizeof list, "%lld", (long long)(each * world));
    else
        nearest(b->train, each * world, list);
    return KU_ERR(KUMI_EINVAL,
                  "config: %s: %s; world size seen: %d%s; nearest valid train_batch_size: %s%s%s",
                  ku_config_where(cfg, "train.global_batch", place), sentence, world,
                  world == 1 ? " (no -n N, kumi run, torchrun, mpirun or srun?)" : "", list, more,
                  ranks);
}

static bool is_auto(const struct ku_config *cfg, const char *key)
{
    const struct ku_ds_item *item = ku_ds_find(cfg->deepspeed, key);
    return item && item->source == KU_DS_AUTO;
}

int ku_deepspeed_batch(const struct ku_config *cfg, int world, struct ku_ds_batch *out)
{
    const struct ku_ds_batch given = {
        cfg->train_global_batch == KU_NULL ? 0 : cfg->train_global_batch,
        cfg->train_micro_batch == KU_NULL ? 0 : cfg->train_micro_batch,
        cfg->train_accumulation == KU_NULL ? 0 : cfg->train_accumulation};
    struct ku_ds_batch b = given;
    char text[WORDS_BYTES];
    int64_t samples;
    if (__builtin_mul_overflow(b.micro * world, b.accumulation, &samples))
        return KU_ERR(KUMI_EINVAL, "config: train_micro_batch_size_per_gpu x "
                                   "gradient_accumulation_steps x world size is too large");
    if (!b.train && !b.micro &&
        (is_auto(cfg, "train_batch_size") || is_auto(cfg, "train_micro_batch_size_per_gpu")))
        b.train = KU_DEFAULT_GLOBAL_BATCH;
    if (!b.train && !b.micro)
        return KU_ERR(KUMI_EINVAL, "config: Either train_batch_size or "
                                   "train_micro_batch_size_per_gpu needs to be provided; or "
                                   "train.global_batch of the configuration");
    if (b.train && b.micro && !b.accumulation)
        b.accumulation = b.train / b.micro / world;
    else if (b.train && !b.micro && b.accumulation)
        b.micro = b.train / world / b.accumulation;
    else if (b.train && !b.micro) {
        b.accumulation = 1;
        b.micro = b.train / world;
    } else if (!b.train) {
        b.accumulation = b.accumulation ? b.accumulation : 1;
        b.train = b.micro * b.accumulation * world;
    }
    *out = b;
    const struct {
        const char *name;
        int64_t value;
    } part[] = {{"Train batch size", b.train},
                {"Micro batch size per gpu", b.micro},
                {"Gradient accumulation steps", b.accumulation}};
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++)
        if (part[i].value <= 0) {
            snprintf(text, sizeof text, "%s: %lld has to be greater than 0", part[i].name,
                     (long long)part[i].value);
            return refuse_relation(cfg, text, &b, &given, world);
        }
    if (b.train == b.micro * b.accumulation * world)
        return KUMI_OK;
    snprintf(text, sizeof text,
             "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu "
             "* gradient_acc_step * world_size %lld != %lld * %lld * %d",
             (long long)b.train, (long long)b.micro, (long long)b.accumulation, world);
    return refuse_relation(cfg, text, &b, &given, world);
}
