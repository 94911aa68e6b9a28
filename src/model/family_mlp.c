/* SPDX-License-Identifier: Apache-2.0 */
#include "model/family.h"

#include "base/err.h"
#include "base/json/json.h"

static const struct ku_word activations[] = {{"relu", KUMI_RELU},
                                             {"gelu", KUMI_GELU},
                                             {"gelu_new", KUMI_GELU_TANH},
                                             {"gelu_pytorch_tanh", KUMI_GELU_TANH},
                                             {NULL, 0}};

#define AT(member) offsetof(struct kumi_mlp, member)
static const struct ku_member members[] = {
    {"num_classes", "num_labels", KU_M_INT, AT(num_classes), 0, NULL},
    {"activation", "hidden_act", KU_M_WORD, AT(activation), 0, activations},
    {"dropout", NULL, KU_M_PROB, AT(dropout), 0, NULL},
};
static const char *const inert[] = {"input", "hidden", NULL};

static void defaults(void *config)
{
    kumi_mlp_defaults(config);
}

/* Reads a list of `least` to `most` positive integers; if absent, *to and *n are unchanged. */
static int read_list(const struct ku_model_source *s, const json_t *model, const char *key,
                     int least, int most, int64_t *to, int *n)
{
    const json_t *list = json_object_get(model, key);
    const int size = (int)json_array_size(list);
    int is_good = json_is_array(list) && size >= least && size <= most;
    char wanted[96];
    if (list == NULL)
        return KUMI_OK;
    for (int i = 0; i < size && is_good; i++)
        is_good = ku_json_int(json_array_get(list, (size_t)i), &to[i]) == 0 && to[i] >= 1 &&
                  to[i] <= 1 << 30;
    snprintf(wanted, sizeof wanted, "a list of %d to %d integers from 1 to 2^30", least, most);
    *n = size;
    return is_good ? KUMI_OK : ku_model_refuse(s, key, list, wanted);
}

static int check(const struct ku_model_source *s, const json_t *model, void *config)
{
    struct kumi_mlp *c = config;
    KU_TRY(read_list(s, model, "input", 1, KUMI_MLP_MAX_INPUT, c->input, &c->n_input));
    return read_list(s, model, "hidden", 0, KUMI_MLP_MAX_HIDDEN, c->hidden, &c->n_hidden);
}

static int add_list(json_t *out, const char *key, const int64_t *from, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer(from[i]));
    return json_object_set_new(out, key, list);
}

static int print(const void *config, json_t *out)
{
    const struct kumi_mlp *c = config;
    return add_list(out, "input", c->input, c->n_input) < 0 ||
                   add_list(out, "hidden", c->hidden, c->n_hidden) < 0
               ? KUMI_ENOMEM
               : KUMI_OK;
}

static void properties(const void *config, struct ku_model_properties *out)
{
    const struct kumi_mlp *c = config;
    out->n_classes = c->num_classes;
    const bool is_vector = c->n_input == 1; /* [length] is a row of pixels, [h, w] has 1 channel */
    for (int i = 0; i < 3; i++)
        out->image[i] = 1;
    for (int i = 0; i < c->n_input; i++)
        out->image[i + is_vector] = c->input[i];
}

static int build(struct kumi_graph *g, const void *config, const struct kumi_shape_of_batch *b)
{
    return kumi_mlp_build(g, config, b);
}

const struct ku_model_family ku_model_mlp = {.type = "mlp",
                                             .is_own = 1,
                                             .config_bytes = sizeof(struct kumi_mlp),
                                             .member = members,
                                             .n_members = sizeof members / sizeof members[0],
                                             .inert = inert,
                                             .defaults = defaults,
                                             .check = check,
                                             .print = print,
                                             .properties = properties,
                                             .build = build};
