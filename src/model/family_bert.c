/* SPDX-License-Identifier: Apache-2.0 */
#include "model/family.h"

#include <string.h>

#include "base/err.h"

static const struct ku_word activations[] = {
    {"gelu", KUMI_GELU}, {"gelu_new", KUMI_GELU_TANH}, {"gelu_pytorch_tanh", KUMI_GELU_TANH},
    {"relu", KUMI_RELU}, {"silu", KUMI_SILU},          {NULL, 0}};

#define AT(member) offsetof(struct kumi_bert, member)
static const struct ku_member members[] = {
    {"vocab_size", NULL, KU_M_INT, AT(vocab_size), 0, NULL},
    {"hidden_size", NULL, KU_M_INT, AT(hidden_size), 0, NULL},
    {"intermediate_size", NULL, KU_M_INT, AT(intermediate_size), 0, NULL},
    {"num_hidden_layers", NULL, KU_M_LAYERS, AT(num_hidden_layers), 0, NULL},
    {"num_attention_heads", NULL, KU_M_INT, AT(num_attention_heads), 0, NULL},
    {"max_position_embeddings", NULL, KU_M_INT, AT(max_position_embeddings), 0, NULL},
    {"type_vocab_size", NULL, KU_M_INT, AT(type_vocab_size), 0, NULL},
    {"hidden_act", NULL, KU_M_WORD, AT(hidden_act), 0, activations},
    {"layer_norm_eps", NULL, KU_M_POSITIVE, AT(layer_norm_eps), 0, NULL},
    {"hidden_dropout_prob", NULL, KU_M_PROB, AT(hidden_dropout_prob), 0, NULL},
    {"attention_probs_dropout_prob", NULL, KU_M_PROB, AT(attention_probs_dropout_prob), 0, NULL},
    {"initializer_range", NULL, KU_M_POSITIVE, AT(initializer_range), 0, NULL},
};
static const char *const inert[] = {"position_embedding_type",
                                    "is_decoder",
                                    "add_cross_attention",
                                    "tie_word_embeddings",
                                    "classifier_dropout",
                                    "chunk_size_feed_forward",
                                    "gradient_checkpointing",
                                    "pooler_fc_size",
                                    "pooler_num_attention_heads",
                                    "pooler_num_fc_layers",
                                    "pooler_size_per_head",
                                    "pooler_type",
                                    "directionality",
                                    NULL};

static void defaults(void *config)
{
    kumi_bert_defaults(config);
}

static int check(const struct ku_model_source *s, const json_t *model, void *config)
{
    static const struct {
        const char *key;
        int value;
    } fixed[] = {{"is_decoder", 0}, {"add_cross_attention", 0}, {"tie_word_embeddings", 1}};
    const struct kumi_bert *c = config;
    const json_t *positions = json_object_get(model, "position_embedding_type");
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        const json_t *v = json_object_get(model, fixed[i].key);
        if (v && !(fixed[i].value ? json_is_true(v) : json_is_false(v)))
            return ku_model_refuse(s, fixed[i].key, v,
                                   fixed[i].value ? "it must be true" : "it must be false");
    }
    if (positions &&
        !(json_is_string(positions) && strcmp(json_string_value(positions), "absolute") == 0))
        return ku_model_refuse(s, "position_embedding_type", positions, "it must be absolute");
    KU_TRY(ku_model_refuse_quantized(s, model));
    if (c->hidden_size % c->num_attention_heads)
        return ku_model_refuse_int(s, "hidden_size", c->hidden_size,
                                   "it must be divisible by num_attention_heads");
    return KUMI_OK;
}

static void properties(const void *config, struct ku_model_properties *out)
{
    const struct kumi_bert *c = config;
    out->vocab_size = c->vocab_size;
    out->max_positions = c->max_position_embeddings;
    out->positions_key = "max_position_embeddings";
    out->is_masked = 1;
}

static int build(struct kumi_graph *g, const void *config, const struct kumi_shape_of_batch *b)
{
    return kumi_bert_build(g, config, b);
}

static void names(const void *config, struct ku_weights_opts *out)
{
    /* pooler and next-sentence head (unused by masked language modelling), a buffer, and the second
     * name of a bias */
    static const char *const ignore[] = {"bert.pooler.dense.*", "cls.seq_relationship.*",
                                         "bert.embeddings.position_ids",
                                         "cls.predictions.decoder.bias"};
    /* of files converted from TensorFlow, such as bert-base-uncased; transformers renames them */
    static const struct ku_weights_ending ending[] = {{"LayerNorm.weight", "LayerNorm.gamma"},
                                                      {"LayerNorm.bias", "LayerNorm.beta"}};
    (void)config;
    out->ignore = ignore;
    out->n_ignore = sizeof ignore / sizeof ignore[0];
    out->ending = ending;
    out->n_endings = sizeof ending / sizeof ending[0];
    out->tied = "cls.predictions.decoder.weight";
    out->tied_to = "bert.embeddings.word_embeddings.weight";
}

const struct ku_model_family ku_model_bert = {.type = "bert",
                                              .architecture = "BertForMaskedLM",
                                              .config_bytes = sizeof(struct kumi_bert),
                                              .member = members,
                                              .n_members = sizeof members / sizeof members[0],
                                              .inert = inert,
                                              .defaults = defaults,
                                              .check = check,
                                              .properties = properties,
                                              .build = build,
                                              .names = names};
