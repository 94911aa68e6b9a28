/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ResNet classifiers. `depth` selects a standard network; `depths` gives the residual blocks of
 * each stage instead. kumi_resnet_check (kumi/model.h) checks the combination. Keys of Hugging
 * Face's ResNetConfig for networks that kumi does not build are refused.
 */
#include "model/family.h"

#include <string.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/str.h"
#include "nn/resnet.h"

static const struct ku_word stems[] = {
    {"imagenet", KUMI_STEM_IMAGENET}, {"cifar", KUMI_STEM_CIFAR}, {NULL, 0}};
static const struct ku_word shortcuts[] = {{"auto", KUMI_SHORTCUT_AUTO},
                                           {"A", KUMI_SHORTCUT_PAD},
                                           {"B", KUMI_SHORTCUT_PROJECTION},
                                           {NULL, 0}};
static const struct ku_word layer_types[] = {{"basic", 0}, {"bottleneck", 1}, {NULL, 0}};

#define AT(member) offsetof(struct kumi_resnet, member)
static const struct ku_member members[] = {
    {"depth", NULL, KU_M_INT, AT(depth), 0, NULL},
    {"num_classes", "num_labels", KU_M_INT, AT(num_classes), 0, NULL},
    {"num_channels", NULL, KU_M_INT, AT(num_channels), 0, NULL},
    {"image_size", NULL, KU_M_INT, AT(image_size), 1, NULL},
    {"width", "embedding_size", KU_M_INT, AT(width), 1, NULL},
    {"layer_type", NULL, KU_M_WORD, AT(bottleneck), 0, layer_types},
    {"stem", NULL, KU_M_WORD, AT(stem), 0, stems},
    {"shortcut", NULL, KU_M_WORD, AT(shortcut), 0, shortcuts},
    {"zero_init_residual", NULL, KU_M_BOOL, AT(zero_init_residual), 0, NULL},
    {"sync_batch_norm", NULL, KU_M_BOOL, AT(sync_batch_norm), 0, NULL},
    {"batch_norm_eps", NULL, KU_M_POSITIVE, AT(batch_norm_eps), 0, NULL},
    {"batch_norm_momentum", NULL, KU_M_PROB, AT(batch_norm_momentum), 0, NULL},
};
static const char *const inert[] = {"depths",
                                    "hidden_act",
                                    "hidden_sizes",
                                    "downsample_in_bottleneck",
                                    "downsample_in_first_stage",
                                    "id2label",
                                    "label2id",
                                    NULL};

static void defaults(void *config)
{
    kumi_resnet_defaults(config);
}

/* Reads the number of residual blocks per stage, which overrides depth. */
static int read_depths(const struct ku_model_source *s, const json_t *v, struct kumi_resnet *c)
{
    size_t n = json_array_size(v);
    if (v == NULL || json_is_null(v))
        return KUMI_OK;
    for (size_t i = 0; i < n && n <= 4; i++)
        if (ku_json_int(json_array_get(v, i), &c->depths[i]) < 0 || c->depths[i] < 1 ||
            c->depths[i] > 1000)
            return ku_model_refuse(s, "depths", v, "1 to 1000 blocks in each stage");
    return n < 1 || n > 4 ? ku_model_refuse(s, "depths", v, "a list of 1 to 4 stages' blocks")
                          : KUMI_OK;
}

/* Reads the number of classes from their names, if it is not given. */
static int read_labels(const struct ku_model_source *s, const json_t *model, struct kumi_resnet *c)
{
    const json_t *v = json_object_get(model, "id2label");
    if (v == NULL || json_is_null(v) || json_object_get(model, "num_labels") ||
        json_object_get(model, "num_classes"))
        return KUMI_OK;
    if (json_object_size(v) == 0)
        return ku_model_refuse(s, "id2label", v, "an object with the name of each class");
    c->num_classes = (int64_t)json_object_size(v);
    return KUMI_OK;
}

/* Checks the keys that Hugging Face's networks have and kumi's do not. */
static int check_fixed(const struct ku_model_source *s, const json_t *model)
{
    static const char *const off[] = {"downsample_in_bottleneck", "downsample_in_first_stage"};
    const json_t *act = json_object_get(model, "hidden_act");
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++) {
        const json_t *v = json_object_get(model, off[i]);
        if (v && !json_is_false(v))
            return ku_model_refuse(s, off[i], v, "it must be false");
    }
    if (act && !(json_is_string(act) && strcmp(json_string_value(act), "relu") == 0))
        return ku_model_refuse(s, "hidden_act", act, "it must be relu");
    return KUMI_OK;
}

/* Checks hidden_sizes, the channels of each stage's result, which follow from the other keys. */
static int check_widths(const struct ku_model_source *s, const json_t *model,
                        const struct kumi_resnet *c)
{
    const json_t *v = json_object_get(model, "hidden_sizes");
    int64_t width[KU_RESNET_STAGES], given;
    struct ku_str wanted = {0};
    const int n = ku_resnet_widths(c, width);
    KU_TRY(n);
    bool is_equal = json_array_size(v) == (size_t)n;
    ku_str_add(&wanted, "this network's are [");
    for (int i = 0; i < n; i++) {
        is_equal =
            is_equal && ku_json_int(json_array_get(v, (size_t)i), &given) == 0 && given == width[i];
        ku_str_add(&wanted, "%s%lld", i ? "," : "", (long long)width[i]);
    }
    ku_str_add(&wanted, "]");
    int status = v == NULL || is_equal ? KUMI_OK
                                       : ku_model_refuse(s, "hidden_sizes", v, ku_str_get(&wanted));
    ku_str_fini(&wanted);
    return status;
}

/* Turns the builder's error "resnet: key: value; wanted" into one with the key's place. */
static int refuse(const struct ku_model_source *s, const json_t *model)
{
    struct kumi_error e = *ku_err_get();
    char *key = strstr(e.text, ": ") + 2, *end = strstr(key, ": "), *wanted = strstr(key, "; ");
    KU_ASSERT(end != NULL && wanted != NULL);
    *end = '\0';
    return ku_model_refuse(s, key, json_object_get(model, key), wanted + 2);
}

static int check(const struct ku_model_source *s, const json_t *model, void *config)
{
    struct kumi_resnet *c = config;
    KU_TRY(read_depths(s, json_object_get(model, "depths"), c));
    if (c->batch_norm_momentum == 0) /* the builder takes 0 for the default */
        return ku_model_refuse(s, "batch_norm_momentum",
                               json_object_get(model, "batch_norm_momentum"),
                               "a number above 0 and below 1: the weight of a new statistic");
    KU_TRY(read_labels(s, model, c));
    KU_TRY(check_fixed(s, model));
    return kumi_resnet_check(c, NULL) < 0 ? refuse(s, model) : check_widths(s, model, c);
}

static int print(const void *config, json_t *out)
{
    const struct kumi_resnet *c = config;
    json_t *list = c->depths[0] ? json_array() : json_null();
    for (int i = 0; i < 4 && c->depths[i]; i++)
        json_array_append_new(list, json_integer(c->depths[i]));
    return json_object_set_new(out, "depths", list) < 0 ? KUMI_ENOMEM : KUMI_OK;
}

static void properties(const void *config, struct ku_model_properties *out)
{
    const struct kumi_resnet *c = config;
    int64_t size = 0;
    kumi_resnet_check(c, &size);
    out->n_classes = c->num_classes;
    out->image[0] = out->image[1] = size;
    out->image[2] = c->num_channels;
}

static int build(struct kumi_graph *g, const void *config, const struct kumi_shape_of_batch *b)
{
    return kumi_resnet_build(g, config, b);
}

const struct ku_model_family ku_model_resnet = {.type = "resnet",
                                                .config_bytes = sizeof(struct kumi_resnet),
                                                .member = members,
                                                .n_members = sizeof members / sizeof members[0],
                                                .inert = inert,
                                                .defaults = defaults,
                                                .check = check,
                                                .print = print,
                                                .properties = properties,
                                                .build = build};
