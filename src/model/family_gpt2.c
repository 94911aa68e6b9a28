/* SPDX-License-Identifier: Apache-2.0 */
#include "model/family.h"

#include <stdio.h>

#include "base/err.h"

static const struct ku_word activations[] = {
    {"gelu_new", KUMI_GELU_TANH},  {"gelu_pytorch_tanh", KUMI_GELU_TANH},
    {"gelu_fast", KUMI_GELU_TANH}, {"gelu", KUMI_GELU},
    {"relu", KUMI_RELU},           {NULL, 0}};

#define AT(member) offsetof(struct kumi_gpt2, member)
/* With both spellings of GPT2Config's attribute_map. */
static const struct ku_member members[] = {
    {"n_layer", "num_hidden_layers", KU_M_LAYERS, AT(n_layer), 0, NULL},
    {"n_head", "num_attention_heads", KU_M_INT, AT(n_head), 0, NULL},
    {"n_embd", "hidden_size", KU_M_INT, AT(n_embd), 0, NULL},
    {"n_positions", "max_position_embeddings", KU_M_INT, AT(n_positions), 0, NULL},
    {"vocab_size", NULL, KU_M_INT, AT(vocab_size), 0, NULL},
    {"n_inner", NULL, KU_M_INT, AT(n_inner), 1, NULL},
    {"activation_function", NULL, KU_M_WORD, AT(activation), 0, activations},
    {"layer_norm_epsilon", NULL, KU_M_POSITIVE, AT(layer_norm_epsilon), 0, NULL},
    {"resid_pdrop", NULL, KU_M_PROB, AT(resid_pdrop), 0, NULL},
    {"embd_pdrop", NULL, KU_M_PROB, AT(embd_pdrop), 0, NULL},
    {"attn_pdrop", NULL, KU_M_PROB, AT(attn_pdrop), 0, NULL},
    {"initializer_range", NULL, KU_M_POSITIVE, AT(initializer_range), 0, NULL},
    {"tie_word_embeddings", NULL, KU_M_BOOL, AT(tie_word_embeddings), 0, NULL},
    {"scale_attn_weights", NULL, KU_M_BOOL, AT(scale_attn_weights), 0, NULL},
    {"scale_attn_by_inverse_layer_idx", NULL, KU_M_BOOL, AT(scale_attn_by_inverse_layer_idx), 0,
     NULL},
};
enum { HEADS = 1, WIDTH = 2 /* rows of members */ };
static const char *const inert[] = {"n_ctx",
                                    "reorder_and_upcast_attn",
                                    "summary_activation",
                                    "summary_first_dropout",
                                    "summary_proj_to_labels",
                                    "summary_type",
                                    "summary_use_proj",
                                    "add_cross_attention",
                                    NULL};

static void defaults(void *config)
{
    kumi_gpt2_defaults(config);
}

static int check(const struct ku_model_source *s, const json_t *model, void *config)
{
    const struct kumi_gpt2 *c = config;
    const char *width = ku_member_spelling(model, &members[WIDTH]),
               *heads = ku_member_spelling(model, &members[HEADS]);
    char wanted[96];
    const json_t *cross = json_object_get(model, "add_cross_attention");
    if (cross && !json_is_false(cross))
        return ku_model_refuse(s, "add_cross_attention", cross, "it must be false");
    KU_TRY(ku_model_refuse_quantized(s, model));
    if (c->n_embd % c->n_head == 0)
        return KUMI_OK;
    /* names the key that the configuration overrides, if only one */
    int is_heads = ku_model_overrides(s, heads) && !ku_model_overrides(s, width);
    if (is_heads)
        snprintf(wanted, sizeof wanted, "it must divide n_embd, %lld", (long long)c->n_embd);
    else
        snprintf(wanted, sizeof wanted, "it must be divisible by n_head, %lld",
                 (long long)c->n_head);
    return ku_model_refuse_int(s, is_heads ? heads : width, is_heads ? c->n_head : c->n_embd,
                               wanted);
}

static void properties(const void *config, struct ku_model_properties *out)
{
    const struct kumi_gpt2 *c = config;
    out->vocab_size = c->vocab_size;
    out->max_positions = c->n_positions;
    out->positions_key = "n_positions";
    out->is_causal = 1;
}

static int build(struct kumi_graph *g, const void *config, const struct kumi_shape_of_batch *b)
{
    return kumi_gpt2_build(g, config, b);
}

static void names(const void *config, struct ku_weights_opts *out)
{
    /* attention masks written by older versions of transformers */
    static const char *const ignore[] = {"h.*.attn.bias", "h.*.attn.masked_bias"};
    const struct kumi_gpt2 *c = config;
    out->prefix = "transformer.";
    out->ignore = ignore;
    out->n_ignore = 2;
    if (c->tie_word_embeddings) {
        out->tied = "lm_head.weight";
        out->tied_to = "wte.weight";
    } else {
        out->head = "lm_head.weight";
    }
}

const struct ku_model_family ku_model_gpt2 = {.type = "gpt2",
                                              .architecture = "GPT2LMHeadModel",
                                              .config_bytes = sizeof(struct kumi_gpt2),
                                              .member = members,
                                              .n_members = sizeof members / sizeof members[0],
                                              .inert = inert,
                                              .defaults = defaults,
                                              .check = check,
                                              .properties = properties,
                                              .build = build,
                                              .names = names};
