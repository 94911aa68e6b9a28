/* SPDX-License-Identifier: Apache-2.0 */
#include "model/family.h"

#include <stdio.h>

#include "base/err.h"

static const struct ku_word activations[] = {
    {"relu", KUMI_RELU}, {"gelu", KUMI_GELU}, {"gelu_new", KUMI_GELU_TANH}, {NULL, 0}};
static const struct ku_word positions[] = {{"sinusoidal", 0}, {"learned", 1}, {NULL, 0}};

#define AT(member) offsetof(struct kumi_transformer, member)
static const struct ku_member members[] = {
    {"d_model", "hidden_size", KU_M_INT, AT(d_model), 0, NULL},
    {"encoder_layers", NULL, KU_M_LAYERS, AT(encoder_layers), 0, NULL},
    {"decoder_layers", NULL, KU_M_LAYERS, AT(decoder_layers), 0, NULL},
    {"num_heads", "num_attention_heads", KU_M_INT, AT(num_heads), 0, NULL},
    {"ffn_dim", "intermediate_size", KU_M_INT, AT(ffn_dim), 0, NULL},
    {"src_vocab_size", NULL, KU_M_INT, AT(src_vocab_size), 1, NULL},
    {"tgt_vocab_size", NULL, KU_M_INT, AT(tgt_vocab_size), 1, NULL},
    {"max_positions", "max_position_embeddings", KU_M_INT, AT(max_positions), 0, NULL},
    {"activation_function", NULL, KU_M_WORD, AT(activation), 0, activations},
    {"positions", NULL, KU_M_WORD, AT(learned_positions), 0, positions},
    {"dropout", NULL, KU_M_PROB, AT(dropout), 0, NULL},
    {"attention_dropout", NULL, KU_M_PROB, AT(attention_dropout), 0, NULL},
    {"activation_dropout", NULL, KU_M_PROB, AT(activation_dropout), 0, NULL},
    {"layer_norm_epsilon", "layer_norm_eps", KU_M_POSITIVE, AT(layer_norm_eps), 0, NULL},
    {"norm_first", NULL, KU_M_BOOL, AT(norm_first), 0, NULL},
    {"scale_embedding", NULL, KU_M_BOOL, AT(scale_embedding), 0, NULL},
    {"share_embeddings", NULL, KU_M_BOOL, AT(share_embeddings), 0, NULL},
    {"tie_word_embeddings", NULL, KU_M_BOOL, AT(tie_word_embeddings), 0, NULL},
};
enum { WIDTH = 0, HEADS = 3 /* rows of members */ };

static void defaults(void *config)
{
    kumi_transformer_defaults(config);
}

static int check(const struct ku_model_source *s, const json_t *model, void *config)
{
    const struct kumi_transformer *c = config;
    char wanted[96];
    if (c->d_model % c->num_heads == 0)
        return KUMI_OK;
    snprintf(wanted, sizeof wanted, "it must be divisible by %s, %lld",
             ku_member_spelling(model, &members[HEADS]), (long long)c->num_heads);
    return ku_model_refuse_int(s, ku_member_spelling(model, &members[WIDTH]), c->d_model, wanted);
}

static void properties(const void *config, struct ku_model_properties *out)
{
    const struct kumi_transformer *c = config;
    out->max_positions = c->max_positions;
    out->positions_key = "max_positions";
    out->is_pairs = 1;
    out->one_vocab_key = c->share_embeddings ? "share_embeddings" : NULL;
    out->vocab_size = c->tgt_vocab_size;
    out->src_vocab_size = c->src_vocab_size;
}

static int fit(void *config, int64_t src_vocab, int64_t tgt_vocab)
{
    struct kumi_transformer *c = config;
    if ((c->src_vocab_size && c->src_vocab_size < src_vocab) ||
        (c->tgt_vocab_size && c->tgt_vocab_size < tgt_vocab))
        return KU_ERR(KUMI_EINVAL,
                      "model: src_vocab_size %lld, tgt_vocab_size %lld; the data's vocabularies "
                      "have %lld and %lld tokens: omit them, or give at least these",
                      (long long)c->src_vocab_size, (long long)c->tgt_vocab_size,
                      (long long)src_vocab, (long long)tgt_vocab);
    c->src_vocab_size = c->src_vocab_size ? c->src_vocab_size : src_vocab;
    c->tgt_vocab_size = c->tgt_vocab_size ? c->tgt_vocab_size : tgt_vocab;
    return KUMI_OK;
}

static int build(struct kumi_graph *g, const void *config, const struct kumi_shape_of_batch *b)
{
    return kumi_transformer_build(g, config, b);
}

const struct ku_model_family ku_model_transformer = {
    .type = "transformer",
    .is_own = 1,
    .config_bytes = sizeof(struct kumi_transformer),
    .member = members,
    .n_members = sizeof members / sizeof members[0],
    .defaults = defaults,
    .check = check,
    .properties = properties,
    .fit = fit,
    .build = build};
