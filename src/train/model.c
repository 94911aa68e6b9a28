/* SPDX-License-Identifier: Apache-2.0 */
#include "train/model.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

enum { MAX_MODEL_BYTES = 1 << 20 };

/* Hugging Face's names, both spellings of GPT2Config's attribute map. */
enum member_type { M_INT, M_PROB, M_POSITIVE, M_BOOL };
static const struct member {
    const char *name, *alias;
    enum member_type type;
    size_t offset;
} members[] = {
    {"n_layer", "num_hidden_layers", M_INT, offsetof(struct kumi_gpt2, n_layer)},
    {"n_head", "num_attention_heads", M_INT, offsetof(struct kumi_gpt2, n_head)},
    {"n_embd", "hidden_size", M_INT, offsetof(struct kumi_gpt2, n_embd)},
    {"n_positions", "max_position_embeddings", M_INT, offsetof(struct kumi_gpt2, n_positions)},
    {"vocab_size", NULL, M_INT, offsetof(struct kumi_gpt2, vocab_size)},
    {"n_inner", NULL, M_INT, offsetof(struct kumi_gpt2, n_inner)},
    {"layer_norm_epsilon", NULL, M_POSITIVE, offsetof(struct kumi_gpt2, layer_norm_epsilon)},
    {"resid_pdrop", NULL, M_PROB, offsetof(struct kumi_gpt2, resid_pdrop)},
    {"embd_pdrop", NULL, M_PROB, offsetof(struct kumi_gpt2, embd_pdrop)},
    {"attn_pdrop", NULL, M_PROB, offsetof(struct kumi_gpt2, attn_pdrop)},
    {"initializer_range", NULL, M_POSITIVE, offsetof(struct kumi_gpt2, initializer_range)},
    {"tie_word_embeddings", NULL, M_BOOL, offsetof(struct kumi_gpt2, tie_word_embeddings)},
    {"scale_attn_weights", NULL, M_BOOL, offsetof(struct kumi_gpt2, scale_attn_weights)},
    {"scale_attn_by_inverse_layer_idx", NULL, M_BOOL,
     offsetof(struct kumi_gpt2, scale_attn_by_inverse_layer_idx)},
};
enum { N_MEMBERS = sizeof members / sizeof members[0], M_N_HEAD = 1, M_N_EMBD = 2 /* rows */ };
/* Keys of Hugging Face's files that say nothing of the computation. */
static const char *const inert[] = {"model_type",
                                    "path",
                                    "activation_function",
                                    "architectures",
                                    "bos_token_id",
                                    "eos_token_id",
                                    "pad_token_id",
                                    "n_ctx",
                                    "torch_dtype",
                                    "dtype",
                                    "transformers_version",
                                    "use_cache",
                                    "reorder_and_upcast_attn",
                                    "summary_activation",
                                    "summary_first_dropout",
                                    "summary_proj_to_labels",
                                    "summary_type",
                                    "summary_use_proj",
                                    "task_specific_params",
                                    "_name_or_path",
                                    "add_cross_attention"};
enum { N_INERT = sizeof inert / sizeof inert[0] };
static const struct {
    const char *name;
    enum kumi_activation act;
} activations[] = {{"gelu_new", KUMI_GELU_TANH},
                   {"gelu_pytorch_tanh", KUMI_GELU_TANH},
                   {"gelu_fast", KUMI_GELU_TANH},
                   {"gelu", KUMI_GELU},
                   {"relu", KUMI_RELU}};

/* Where keys come from: the configuration, a config.json, or the one over the other. */
struct source {
    const struct ku_config *cfg; /* NULL: a config.json alone */
    const char *name;            /* of the config.json; NULL: none */
};

/* An error about a key: in the configuration with its place, else with the file's name. */
static int refuse(const struct source *s, const char *key, const json_t *v, const char *wanted)
{
    char path[128];
    snprintf(path, sizeof path, "model.%.100s", key);
    if (s->cfg && (s->name == NULL || json_object_get(s->cfg->model, key)))
        return ku_config_refuse(s->cfg, path, v, wanted);
    return KU_ERR(KUMI_EINPUT, "model: %s: %s: wrong; %s", s->name, key, wanted);
}

/* The name under which the model gives a member. */
static const char *spelling(const json_t *model, const struct member *m)
{
    return m->alias && json_object_get(model, m->alias) ? m->alias : m->name;
}

static int read_member(const struct source *s, const struct member *m, const char *name,
                       const json_t *v, struct kumi_gpt2 *c)
{
    char *at = (char *)c + m->offset;
    int64_t whole;
    double real = json_is_number(v) ? json_number_value(v) : -1;
    switch (m->type) {
    case M_INT:
        if (json_is_null(v) && m->offset == offsetof(struct kumi_gpt2, n_inner))
            return KUMI_OK;
        if (ku_json_int(v, &whole) < 0 || whole < 1 || whole > 1 << 30)
            return refuse(s, name, v, "an integer from 1 to 2^30");
        memcpy(at, &whole, sizeof whole);
        return KUMI_OK;
    case M_PROB:
        if (!(real >= 0 && real < 1))
            return refuse(s, name, v, "a probability in [0, 1)");
        memcpy(at, &real, sizeof real);
        return KUMI_OK;
    case M_POSITIVE:
        if (!(real > 0 && real < 1e6))
            return refuse(s, name, v, "a number above 0");
        memcpy(at, &real, sizeof real);
        return KUMI_OK;
    case M_BOOL:
        if (!json_is_boolean(v))
            return refuse(s, name, v, "true or false");
        *(int *)(void *)at = json_is_true(v);
        return KUMI_OK;
    }
    return KUMI_OK;
}

static int check_names(const struct source *s, json_t *model)
{
    const char *names[2 * N_MEMBERS + N_INERT], *key;
    json_t *value;
    int n = 0;
    for (int i = 0; i < N_MEMBERS; i++) {
        names[n++] = members[i].name;
        if (members[i].alias)
            names[n++] = members[i].alias;
    }
    for (int i = 0; i < N_INERT; i++)
        names[n++] = inert[i];
    json_object_foreach(model, key, value)
    {
        char path[128];
        int known = 0;
        for (int i = 0; i < n; i++)
            known |= strcmp(names[i], key) == 0;
        snprintf(path, sizeof path, "model.%.100s", key);
        if (!known)
            return ku_config_refuse_unknown(s->cfg, path, key, names, n);
    }
    return KUMI_OK;
}

static int read_activation(const struct source *s, json_t *model, struct kumi_gpt2 *c)
{
    json_t *v = json_object_get(model, "activation_function");
    if (v == NULL)
        return KUMI_OK;
    for (size_t i = 0; i < sizeof activations / sizeof activations[0]; i++)
        if (json_is_string(v) && strcmp(json_string_value(v), activations[i].name) == 0) {
            c->activation = activations[i].act;
            return KUMI_OK;
        }
    return refuse(s, "activation_function", v,
                  "one of: gelu_new gelu_pytorch_tanh gelu_fast gelu relu");
}

static int refuse_heads(const struct source *s, const json_t *model, const struct kumi_gpt2 *c)
{
    char wanted[96];
    const char *width = spelling(model, &members[M_N_EMBD]),
               *heads = spelling(model, &members[M_N_HEAD]);
    /* over a config.json, the key that the configuration gives is the one to change */
    int is_heads = s->name && s->cfg && json_object_get(s->cfg->model, heads) &&
                   !json_object_get(s->cfg->model, width);
    if (is_heads)
        snprintf(wanted, sizeof wanted, "it must divide n_embd, %lld", (long long)c->n_embd);
    else
        snprintf(wanted, sizeof wanted, "it must be divisible by n_head, %lld",
                 (long long)c->n_head);
    json_t *v = json_integer(is_heads ? c->n_head : c->n_embd);
    int status = refuse(s, is_heads ? heads : width, v, wanted);
    json_decref(v);
    return status;
}

static int read_object(const struct source *s, json_t *model, struct ku_model *m)
{
    struct kumi_gpt2 *c = &m->gpt2;
    json_t *type = json_object_get(model, "model_type");
    kumi_gpt2_defaults(c);
    if (!json_is_string(type) || strcmp(json_string_value(type), "gpt2") != 0)
        return refuse(s, "model_type", type, "\"gpt2\" is what there is");
    for (int i = 0; i < N_MEMBERS; i++) {
        const char *name = spelling(model, &members[i]);
        json_t *v = json_object_get(model, name), *other = json_object_get(model, members[i].name);
        if (v)
            KU_TRY(read_member(s, &members[i], name, v, c));
        if (other && !json_equal(v, other))
            return refuse(s, name, v, "its other spelling is given too, with another value");
    }
    KU_TRY(read_activation(s, model, c));
    return c->n_embd % c->n_head ? refuse_heads(s, model, c) : KUMI_OK;
}

/* The configuration's keys over a config.json's; what is overridden may be spelled otherwise. */
static int override(json_t *model, const json_t *keys)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)keys, key, value)
    {
        if (strcmp(key, "path") == 0)
            continue;
        for (int i = 0; i < N_MEMBERS; i++) {
            const struct member *m = &members[i];
            if (m->alias && strcmp(key, m->alias) == 0 && !json_object_get(keys, m->name))
                json_object_del(model, m->name);
            else if (m->alias && strcmp(key, m->name) == 0 && !json_object_get(keys, m->alias))
                json_object_del(model, m->alias);
        }
        if (json_object_set(model, key, value) < 0)
            return KUMI_ENOMEM;
    }
    return KUMI_OK;
}

static int read_directory(const struct ku_config *cfg, const char *dir, struct ku_model *m)
{
    struct ku_json doc;
    char *file = ku_asprintf("%s/config.json", dir);
    m->path = ku_strdup(dir);
    if (file == NULL || m->path == NULL) {
        ku_free(file);
        return KUMI_ENOMEM;
    }
    int status = ku_json_load(file, MAX_MODEL_BYTES, &doc);
    if (status < 0) {
        struct kumi_error e = *ku_err_get();
        status = KU_ERR(KUMI_EINPUT, "model: %s: %.300s", dir, e.text);
    } else {
        struct source s = {cfg, file};
        status = json_is_object(doc.root) ? override(doc.root, cfg->model) : KUMI_OK;
        if (status == KUMI_OK)
            status = read_object(&s, doc.root, m);
        ku_json_fini(&doc);
    }
    ku_free(file);
    return status;
}

int ku_model_read(const struct ku_config *cfg, struct ku_model *m)
{
    struct source s = {cfg, NULL};
    json_t *path = json_object_get(cfg->model, "path");
    memset(m, 0, sizeof *m);
    KU_TRY(check_names(&s, cfg->model));
    if (path && !json_is_string(path))
        return refuse(&s, "path", path, "a directory with config.json and model.safetensors");
    int status =
        path ? read_directory(cfg, json_string_value(path), m) : read_object(&s, cfg->model, m);
    if (status < 0)
        ku_model_fini(m);
    return status;
}

int ku_model_parse(const char *name, const char *text, size_t bytes, struct ku_model *m)
{
    struct ku_json doc;
    struct source s = {NULL, name};
    memset(m, 0, sizeof *m);
    KU_TRY(ku_json_parse(name, text, bytes, &doc));
    int status = read_object(&s, doc.root, m);
    ku_json_fini(&doc);
    return status;
}

void ku_model_fini(struct ku_model *m)
{
    ku_free(m->path);
    memset(m, 0, sizeof *m);
}

char *ku_model_print(const struct ku_model *m)
{
    const struct kumi_gpt2 *c = &m->gpt2;
    const char *act = c->activation == KUMI_RELU   ? "relu"
                      : c->activation == KUMI_GELU ? "gelu"
                                                   : "gelu_new";
    json_t *o = json_pack(
        "{s:s, s:[s], s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:f, s:f, s:f, s:f, s:b, s:b, s:b, s:s}",
        "model_type", "gpt2", "architectures", "GPT2LMHeadModel", "n_layer", (json_int_t)c->n_layer,
        "n_head", (json_int_t)c->n_head, "n_embd", (json_int_t)c->n_embd, "n_positions",
        (json_int_t)c->n_positions, "vocab_size", (json_int_t)c->vocab_size, "activation_function",
        act, "layer_norm_epsilon", c->layer_norm_epsilon, "resid_pdrop", c->resid_pdrop,
        "embd_pdrop", c->embd_pdrop, "attn_pdrop", c->attn_pdrop, "initializer_range",
        c->initializer_range, "tie_word_embeddings", c->tie_word_embeddings, "scale_attn_weights",
        c->scale_attn_weights, "scale_attn_by_inverse_layer_idx",
        c->scale_attn_by_inverse_layer_idx, "torch_dtype", "float32");
    if (o)
        json_object_set_new(o, "n_inner", c->n_inner ? json_integer(c->n_inner) : json_null());
    char *text = o ? ku_json_print(o, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) : NULL,
         *copy = NULL;
    if (text)
        copy = ku_asprintf("%s\n", text);
    ku_free(text);
    json_decref(o);
    return copy;
}

int64_t ku_model_n_params(const struct ku_model *m)
{
    const struct kumi_gpt2 *c = &m->gpt2;
    int64_t d = c->n_embd, f = c->n_inner ? c->n_inner : 4 * d;
    int64_t layer = 4 * d + d * 3 * d + 3 * d + d * d + d + d * f + f + f * d + d;
    return c->vocab_size * d * (c->tie_word_embeddings ? 1 : 2) + c->n_positions * d +
           c->n_layer * layer + 2 * d;
}

double ku_model_flops_per_token(const struct ku_model *m, int64_t t)
{
    const struct kumi_gpt2 *c = &m->gpt2;
    double n = (double)(ku_model_n_params(m) - c->n_positions * c->n_embd);
    return 6 * n + 12 * (double)c->n_layer * (double)c->n_embd * (double)t;
}
