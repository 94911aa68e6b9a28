/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Llama models (LlamaForCausalLM), with grouped-query attention and rotary positions of the types
 * default, linear, dynamic and llama3.
 */
#include "model/family.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/json/json.h"

static const struct ku_word activations[] = {{"silu", KUMI_SILU},
                                             {"swish", KUMI_SILU},
                                             {"gelu", KUMI_GELU},
                                             {"gelu_new", KUMI_GELU_TANH},
                                             {"gelu_pytorch_tanh", KUMI_GELU_TANH},
                                             {"relu", KUMI_RELU},
                                             {NULL, 0}};

#define AT(member) offsetof(struct kumi_llama, member)
static const struct ku_member members[] = {
    {"vocab_size", NULL, KU_M_INT, AT(vocab_size), 0, NULL},
    {"hidden_size", NULL, KU_M_INT, AT(hidden_size), 0, NULL},
    {"intermediate_size", NULL, KU_M_INT, AT(intermediate_size), 0, NULL},
    {"num_hidden_layers", NULL, KU_M_LAYERS, AT(num_hidden_layers), 0, NULL},
    {"num_attention_heads", NULL, KU_M_INT, AT(num_attention_heads), 0, NULL},
    {"num_key_value_heads", NULL, KU_M_INT, AT(num_key_value_heads), 1, NULL},
    {"head_dim", NULL, KU_M_INT, AT(head_dim), 1, NULL},
    {"max_position_embeddings", NULL, KU_M_INT, AT(max_position_embeddings), 0, NULL},
    {"hidden_act", NULL, KU_M_WORD, AT(hidden_act), 0, activations},
    {"rms_norm_eps", NULL, KU_M_POSITIVE, AT(rms_norm_eps), 0, NULL},
    {"attention_dropout", NULL, KU_M_PROB, AT(attention_dropout), 0, NULL},
    {"initializer_range", NULL, KU_M_POSITIVE, AT(initializer_range), 0, NULL},
    {"tie_word_embeddings", NULL, KU_M_BOOL, AT(tie_word_embeddings), 0, NULL},
    {"attention_bias", NULL, KU_M_BOOL, AT(attention_bias), 0, NULL},
    {"mlp_bias", NULL, KU_M_BOOL, AT(mlp_bias), 0, NULL},
};
static const char *const inert[] = {"rope_parameters", "rope_theta", "rope_scaling",
                                    "pretraining_tp", NULL};

static const char *const printed[] = {"rope_parameters", NULL};

static void defaults(void *config)
{
    kumi_llama_defaults(config);
}

/*
 * Rotary positions have two spellings: {"rope_parameters": {"rope_theta", "rope_type", ..}}, and
 * the older "rope_theta" with "rope_scaling": {"rope_type", ..} or null.
 */

static const char *const rope_types[] = {"default", "linear", "dynamic", "llama3"};
enum { N_ROPE_TYPES = sizeof rope_types / sizeof rope_types[0] };

static int read_positive(const struct ku_model_source *s, const char *key, const json_t *from,
                         const char *name, const char *wanted, double *out)
{
    const json_t *v = json_object_get(from, name);
    if (v == NULL)
        return KUMI_OK;
    if (!json_is_number(v) || !(json_number_value(v) > 0 && json_number_value(v) < 1e12))
        return ku_model_refuse(s, key, v, wanted);
    *out = json_number_value(v);
    return KUMI_OK;
}

static int read_rope_type(const struct ku_model_source *s, const char *key, const json_t *o,
                          struct kumi_rope *rope)
{
    const json_t *v = json_object_get(o, "rope_type");
    v = v ? v : json_object_get(o, "type"); /* spelling of older files */
    for (int i = 0; i < N_ROPE_TYPES; i++)
        if (v == NULL || (json_is_string(v) && strcmp(json_string_value(v), rope_types[i]) == 0)) {
            rope->type = (enum kumi_rope_type)i;
            return KUMI_OK;
        }
    return ku_model_refuse(s, key, v, "a rope_type that is default, linear, dynamic or llama3");
}

static int read_rope(const struct ku_model_source *s, const char *key, const json_t *o,
                     struct kumi_rope *rope)
{
    double original = 0, part = 1;
    if (!json_is_object(o))
        return ku_model_refuse(s, key, o, "{\"rope_type\": ..}");
    KU_TRY(read_rope_type(s, key, o, rope));
    if (rope->type != KUMI_ROPE_DEFAULT && json_object_get(o, "factor") == NULL)
        return ku_model_refuse(s, key, o, "a factor, which this rope_type needs");
    KU_TRY(read_positive(s, key, o, "rope_theta", "a rope_theta above 0", &rope->theta));
    KU_TRY(read_positive(s, key, o, "factor", "a factor above 0", &rope->factor));
    KU_TRY(read_positive(s, key, o, "low_freq_factor", "a low_freq_factor above 0",
                         &rope->low_freq_factor));
    KU_TRY(read_positive(s, key, o, "high_freq_factor", "a high_freq_factor above low_freq_factor",
                         &rope->high_freq_factor));
    KU_TRY(read_positive(s, key, o, "original_max_position_embeddings",
                         "original_max_position_embeddings above 0", &original));
    KU_TRY(
        read_positive(s, key, o, "partial_rotary_factor", "a partial_rotary_factor of 1", &part));
    if (part != 1)
        return ku_model_refuse(s, key, o, "a partial_rotary_factor of 1");
    rope->original_max_position_embeddings = (int64_t)original;
    return KUMI_OK;
}

static int check_rope(const struct ku_model_source *s, const char *key, const json_t *o,
                      struct kumi_llama *c)
{
    struct kumi_rope *r = &c->rope;
    if (r->type == KUMI_ROPE_DYNAMIC) /* as transformers: scaling starts at this length */
        r->original_max_position_embeddings = c->max_position_embeddings;
    if (r->type != KUMI_ROPE_LLAMA3)
        return KUMI_OK;
    if (r->original_max_position_embeddings == 0 || r->low_freq_factor == 0 ||
        r->high_freq_factor <= r->low_freq_factor)
        return ku_model_refuse(s, key, o,
                               "llama3 needs factor, low_freq_factor < high_freq_factor and "
                               "original_max_position_embeddings");
    return KUMI_OK;
}

/* Reads rope_theta and rope_scaling, where given. */
static int read_older(const struct ku_model_source *s, const json_t *model, struct kumi_rope *rope)
{
    const json_t *scaling = json_object_get(model, "rope_scaling");
    KU_TRY(read_positive(s, "rope_theta", model, "rope_theta", "a number above 0", &rope->theta));
    if (scaling)
        *rope = (struct kumi_rope){.theta = rope->theta, .factor = 1};
    if (scaling && !json_is_null(scaling))
        return read_rope(s, "rope_scaling", scaling, rope);
    return KUMI_OK;
}

/* Reads both spellings. If both are given, the last one read wins: the configuration's over that of
 * config.json, else rope_parameters. */
static int read_spellings(const struct ku_model_source *s, const json_t *model, struct kumi_rope *r)
{
    const json_t *both = json_object_get(model, "rope_parameters");
    const int is_given = both && !json_is_null(both);
    const int is_older_over =
        (ku_model_overrides(s, "rope_theta") || ku_model_overrides(s, "rope_scaling")) &&
        !ku_model_overrides(s, "rope_parameters");
    if (is_given && is_older_over)
        KU_TRY(read_rope(s, "rope_parameters", both, r));
    KU_TRY(read_older(s, model, r));
    if (is_given && !is_older_over)
        KU_TRY(read_rope(s, "rope_parameters", both, r));
    return KUMI_OK;
}

static int check(const struct ku_model_source *s, const json_t *model, void *config)
{
    struct kumi_llama *c = config;
    const json_t *both = json_object_get(model, "rope_parameters");
    const json_t *tp = json_object_get(model, "pretraining_tp");
    KU_TRY(read_spellings(s, model, &c->rope));
    KU_TRY(check_rope(s, both ? "rope_parameters" : "rope_scaling",
                      both ? both : json_object_get(model, "rope_scaling"), c));
    if (tp && !(json_is_integer(tp) && json_integer_value(tp) == 1))
        return ku_model_refuse(s, "pretraining_tp", tp, "it must be 1");
    KU_TRY(ku_model_refuse_quantized(s, model));
    int64_t keys = c->num_key_value_heads ? c->num_key_value_heads : c->num_attention_heads;
    if (c->num_attention_heads % keys)
        return ku_model_refuse_int(s, "num_key_value_heads", keys,
                                   "it must divide num_attention_heads");
    if (c->head_dim == 0 && c->hidden_size % c->num_attention_heads)
        return ku_model_refuse_int(s, "hidden_size", c->hidden_size,
                                   "it must be divisible by num_attention_heads; or give head_dim");
    int64_t width = c->head_dim ? c->head_dim : c->hidden_size / c->num_attention_heads;
    if (width % 2)
        return ku_model_refuse_int(s, c->head_dim ? "head_dim" : "hidden_size",
                                   c->head_dim ? c->head_dim : c->hidden_size,
                                   "heads need an even width: rotary positions turn pairs");
    return KUMI_OK;
}

/* Prints the older spelling, which all versions of transformers read. */
static int print(const void *config, json_t *out)
{
    const struct kumi_llama *c = config;
    const struct kumi_rope *r = &c->rope;
    json_t *o = json_null();
    if (r->type != KUMI_ROPE_DEFAULT)
        o = json_pack("{s:s, s:f}", "rope_type", rope_types[r->type], "factor", r->factor);
    if (r->type == KUMI_ROPE_LLAMA3 &&
        (json_object_set_new(o, "low_freq_factor", json_real(r->low_freq_factor)) < 0 ||
         json_object_set_new(o, "high_freq_factor", json_real(r->high_freq_factor)) < 0 ||
         json_object_set_new(o, "original_max_position_embeddings",
                             json_integer(r->original_max_position_embeddings)) < 0)) {
        json_decref(o);
        return KUMI_ENOMEM;
    }
    if (json_object_set_new(out, "rope_theta", json_real(r->theta)) < 0 ||
        json_object_set_new(out, "rope_scaling", o) < 0)
        return KUMI_ENOMEM;
    return KUMI_OK;
}

static void properties(const void *config, struct ku_model_properties *out)
{
    const struct kumi_llama *c = config;
    out->vocab_size = c->vocab_size;
    out->max_positions = c->max_position_embeddings;
    if (c->rope.type == KUMI_ROPE_DYNAMIC && c->rope.factor > 1) /* extends them */
        out->max_positions = (int64_t)floor(c->rope.factor * (double)out->max_positions);
    out->positions_key = "max_position_embeddings";
    out->is_causal = 1;
}

static int build(struct kumi_graph *g, const void *config, const struct kumi_shape_of_batch *b)
{
    return kumi_llama_build(g, config, b);
}

static void names(const void *config, struct ku_weights_opts *out)
{
    /* tables written by older versions of transformers */
    static const char *const ignore[] = {"model.layers.*.self_attn.rotary_emb.inv_freq"};
    const struct kumi_llama *c = config;
    out->ignore = ignore;
    out->n_ignore = 1;
    if (c->tie_word_embeddings) {
        out->tied = "lm_head.weight";
        out->tied_to = "model.embed_tokens.weight";
    }
}

const struct ku_model_family ku_model_llama = {.type = "llama",
                                               .architecture = "LlamaForCausalLM",
                                               .config_bytes = sizeof(struct kumi_llama),
                                               .member = members,
                                               .n_members = sizeof members / sizeof members[0],
                                               .inert = inert,
                                               .printed = printed,
                                               .defaults = defaults,
                                               .check = check,
                                               .print = print,
                                               .properties = properties,
                                               .build = build,
                                               .names = names};
