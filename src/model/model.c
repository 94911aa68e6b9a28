/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the section "model": finds the family by model_type, reads the members of its table from
 * the configuration, from a config.json, or from both (the configuration overrides), and keeps the
 * other keys of config.json for ku_model_print.
 */
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "nn/builder.h"
#include "model/family.h"

enum { MAX_MODEL_BYTES = 1 << 20, MAX_NAMES = 128 };

static const struct ku_model_family *const families[] = {&ku_model_gpt2,   &ku_model_llama,
                                                         &ku_model_bert,   &ku_model_mlp,
                                                         &ku_model_resnet, &ku_model_transformer};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

/* Keys of Hugging Face's config.json that do not affect the computation. */
static const char *const inert[] = {"model_type",
                                    "path",
                                    "map",
                                    "allow_missing",
                                    "architectures",
                                    "bos_token_id",
                                    "eos_token_id",
                                    "pad_token_id",
                                    "torch_dtype",
                                    "dtype",
                                    "transformers_version",
                                    "use_cache",
                                    "task_specific_params",
                                    "_name_or_path",
                                    NULL};

/* Further keys that transformers writes into any config.json. */
static const char *const bookkeeping[] = {"id2label",
                                          "label2id",
                                          "problem_type",
                                          "finetuning_task",
                                          "tokenizer_class",
                                          "sep_token_id",
                                          "decoder_start_token_id",
                                          "is_encoder_decoder",
                                          "return_dict",
                                          "output_attentions",
                                          "output_hidden_states",
                                          "_commit_hash",
                                          "_attn_implementation_autoset",
                                          NULL};

/* The source of keys: the configuration, a config.json, or both. */
struct ku_model_source {
    const struct ku_config *cfg; /* NULL: only a config.json */
    const char *name;            /* path of the config.json; NULL: none */
};

int ku_model_overrides(const struct ku_model_source *s, const char *key)
{
    return s->name && s->cfg && json_object_get(s->cfg->model, key) != NULL;
}

int ku_model_refuse(const struct ku_model_source *s, const char *key, const json_t *v,
                    const char *wanted)
{
    char path[128];
    snprintf(path, sizeof path, "model.%.100s", key);
    if (s->cfg && (s->name == NULL || ku_model_overrides(s, key)))
        return ku_config_refuse(s->cfg, path, v, wanted);
    char *text = v ? ku_json_print(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    int status = KU_ERR(KUMI_EINPUT, "model: %s: %s: %.100s; %s", s->name, key,
                        text ? text : "missing", wanted);
    ku_free(text);
    return status;
}

int ku_model_refuse_int(const struct ku_model_source *s, const char *key, int64_t value,
                        const char *wanted)
{
    json_t *v = json_integer(value);
    int status = ku_model_refuse(s, key, v, wanted);
    json_decref(v);
    return status;
}

int ku_model_refuse_quantized(const struct ku_model_source *s, const json_t *model)
{
    const json_t *v = json_object_get(model, "quantization_config");
    return v == NULL || json_is_null(v)
               ? KUMI_OK
               : ku_model_refuse(s, "quantization_config", v,
                                 "null: quantized weights are not supported");
}

const char *ku_member_spelling(const json_t *model, const struct ku_member *m)
{
    return m->alias && json_object_get(model, m->alias) ? m->alias : m->name;
}

static int refuse_word(const struct ku_model_source *s, const struct ku_member *m, const json_t *v)
{
    struct ku_str wanted = {0};
    ku_str_add(&wanted, "one of:");
    for (const struct ku_word *w = m->words; w->name; w++)
        ku_str_add(&wanted, " %s", w->name);
    int status = ku_model_refuse(s, m->name, v, ku_str_get(&wanted));
    ku_str_fini(&wanted);
    return status;
}

static int read_member(const struct ku_model_source *s, const struct ku_member *m, const char *name,
                       const json_t *v, void *config)
{
    char *at = (char *)config + m->offset;
    char wanted[64];
    int64_t whole;
    double real = json_is_number(v) ? json_number_value(v) : -1;
    switch (m->type) {
    case KU_M_INT:
        if (json_is_null(v) && m->is_nullable)
            return KUMI_OK;
        if (ku_json_int(v, &whole) < 0 || whole < 1 || whole > 1 << 30)
            return ku_model_refuse(s, name, v, "an integer from 1 to 2^30");
        memcpy(at, &whole, sizeof whole);
        return KUMI_OK;
    case KU_M_LAYERS:
        if (ku_json_int(v, &whole) < 0 || whole < 1 || whole > KU_MAX_LAYERS) {
            snprintf(wanted, sizeof wanted, "an integer from 1 to %d, the limit", KU_MAX_LAYERS);
            return ku_model_refuse(s, name, v, wanted);
        }
        memcpy(at, &whole, sizeof whole);
        return KUMI_OK;
    case KU_M_PROB:
        if (!(real >= 0 && real < 1))
            return ku_model_refuse(s, name, v, "a probability in [0, 1)");
        memcpy(at, &real, sizeof real);
        return KUMI_OK;
    case KU_M_POSITIVE:
        if (!(real > 0 && real < 1e9))
            return ku_model_refuse(s, name, v, "a number above 0");
        memcpy(at, &real, sizeof real);
        return KUMI_OK;
    case KU_M_BOOL:
        if (!json_is_boolean(v))
            return ku_model_refuse(s, name, v, "true or false");
        *(int *)(void *)at = json_is_true(v);
        return KUMI_OK;
    case KU_M_WORD:
        for (const struct ku_word *w = m->words; w->name; w++)
            if (json_is_string(v) && strcmp(json_string_value(v), w->name) == 0) {
                memcpy(at, &w->value, sizeof w->value);
                return KUMI_OK;
            }
        return refuse_word(s, m, v);
    }
    return KUMI_OK;
}

static int add_names(const char *const *list, const char **names, int n)
{
    for (; list && *list; list++) {
        KU_ASSERT(n < MAX_NAMES);
        names[n++] = *list;
    }
    return n;
}

static int refuse_unknown(const struct ku_model_source *s, const char *key,
                          const char *const *names, int n)
{
    char path[128];
    snprintf(path, sizeof path, "model.%.100s", key);
    if (s->cfg && json_object_get(s->cfg->model, key))
        return ku_config_refuse_unknown(s->cfg, path, key, names, n);
    const char *near = ku_str_nearest(key, names, n);
    return KU_ERR(KUMI_EINPUT, "model: %s: %.100s: unknown key%s%s%s", s->name, key,
                  near ? "; did you mean " : "; remove it", near ? near : "", near ? "?" : "");
}

/* Refuses keys of the configuration, or of a config.json (is_file), that the family does not
 * have. */
static int check_names(const struct ku_model_source *s, const json_t *model, int is_file,
                       const struct ku_model_family *f)
{
    const char *names[MAX_NAMES], *key;
    json_t *value;
    int n = 0;
    for (int i = 0; i < f->n_members; i++) {
        const char *const both[] = {f->member[i].name, f->member[i].alias, NULL};
        n = add_names(both, names, n);
    }
    n = add_names(f->inert, names, add_names(inert, names, n));
    n = add_names(is_file ? bookkeeping : NULL, names, n);
    json_object_foreach((json_t *)(uintptr_t)model, key, value)
    {
        int known = 0;
        for (int i = 0; i < n; i++)
            known |= strcmp(names[i], key) == 0;
        if (!known)
            return refuse_unknown(s, key, names, n);
    }
    return KUMI_OK;
}

static int find_family(const struct ku_model_source *s, const json_t *model,
                       const struct ku_model_family **out)
{
    const json_t *type = json_object_get(model, "model_type");
    struct ku_str wanted = {0};
    for (int i = 0; i < N_FAMILIES; i++)
        if (json_is_string(type) && strcmp(json_string_value(type), families[i]->type) == 0) {
            *out = families[i];
            return KUMI_OK;
        }
    ku_str_add(&wanted, "one of:");
    for (int i = 0; i < N_FAMILIES; i++)
        ku_str_add(&wanted, " %s", families[i]->type);
    int status = ku_model_refuse(s, "model_type", type, ku_str_get(&wanted));
    ku_str_fini(&wanted);
    return status;
}

/* Keeps the keys of the model that ku_model_print does not print itself (m->rest). */
static int keep_rest(const json_t *model, struct ku_model *m)
{
    static const char *const own[] = {"model_type",    "path",        "map",   "allow_missing",
                                      "architectures", "torch_dtype", "dtype", NULL};
    const struct ku_model_family *f = m->family;
    m->rest = json_copy((json_t *)(uintptr_t)model);
    for (const char *const *name = own; m->rest && *name; name++)
        json_object_del(m->rest, *name);
    for (const char *const *name = f->printed; m->rest && name && *name; name++)
        json_object_del(m->rest, *name);
    for (int i = 0; m->rest && i < f->n_members; i++) {
        json_object_del(m->rest, f->member[i].name);
        if (f->member[i].alias)
            json_object_del(m->rest, f->member[i].alias);
    }
    return m->rest ? KUMI_OK : KUMI_ENOMEM;
}

static int read_object(const struct ku_model_source *s, const json_t *model, struct ku_model *m)
{
    const struct ku_model_family *f;
    KU_TRY(find_family(s, model, &f));
    if (s->cfg)
        KU_TRY(check_names(s, s->cfg->model, 0, f));
    if (s->name && f->is_own)
        KU_TRY(check_names(s, model, 1, f));
    m->family = f;
    m->config = ku_calloc(1, f->config_bytes);
    if (m->config == NULL)
        return KUMI_ENOMEM;
    f->defaults(m->config);
    for (int i = 0; i < f->n_members; i++) {
        const struct ku_member *x = &f->member[i];
        const char *name = ku_member_spelling(model, x);
        const json_t *v = json_object_get(model, name), *other = json_object_get(model, x->name);
        if (v)
            KU_TRY(read_member(s, x, name, v, m->config));
        if (other && !json_equal(v, other))
            return ku_model_refuse(
                s, name, v, "the key is given under two names with different values; remove one");
    }
    if (f->check)
        KU_TRY(f->check(s, model, m->config));
    f->properties(m->config, &m->properties);
    return keep_rest(model, m);
}

/* Overrides keys of a config.json by those of the configuration, under either spelling. */
static int override(const struct ku_model_source *s, json_t *model)
{
    const json_t *keys = s->cfg->model;
    const struct ku_model_family *f;
    const char *key;
    json_t *value, *type = json_object_get(keys, "model_type");
    if (type && json_object_set(model, "model_type", type) < 0)
        return KUMI_ENOMEM;
    KU_TRY(find_family(s, model, &f));
    json_object_foreach((json_t *)(uintptr_t)keys, key, value)
    {
        if (strcmp(key, "path") == 0)
            continue;
        for (int i = 0; i < f->n_members; i++) {
            const struct ku_member *m = &f->member[i];
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

/* The path of dir's config.json; if it does not exist, of that in `stored`. */
static char *find_config(const char *dir, const char *stored)
{
    struct stat info;
    char *file = ku_asprintf("%s/config.json", dir);
    if (file && stored && ku_os_stat(file, &info) < 0) {
        ku_free(file);
        file = ku_asprintf("%s/config.json", stored);
    }
    return file;
}

static int read_directory(const struct ku_config *cfg, const char *dir, const char *stored,
                          struct ku_model *m)
{
    struct ku_json doc;
    char *file = find_config(dir, stored);
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
        struct ku_model_source s = {cfg, file};
        status = json_is_object(doc.root) ? override(&s, doc.root) : KUMI_OK;
        if (status == KUMI_OK)
            status = read_object(&s, doc.root, m);
        ku_json_fini(&doc);
    }
    ku_free(file);
    return status;
}

/* Reads map and allow_missing, the options for pretrained weights. */
static int read_taking(const struct ku_model_source *s, const json_t *model, struct ku_model *m)
{
    json_t *map = json_object_get(model, "map"), *v;
    const json_t *missing = json_object_get(model, "allow_missing");
    const char *old;
    if (map && !json_is_object(map))
        return ku_model_refuse(s, "map", map, "{\"name in the files\": \"name of a tensor\", ..}");
    json_object_foreach(map, old, v)
    {
        if (!json_is_string(v))
            return ku_model_refuse(s, "map", v,
                                   "{\"name in the files\": \"name of a tensor\", ..}");
    }
    if (missing && !json_is_boolean(missing))
        return ku_model_refuse(s, "allow_missing", missing, "true or false");
    m->map = json_incref(map);
    m->allow_missing = json_is_true(missing);
    return KUMI_OK;
}

int ku_model_read(const struct ku_config *cfg, struct ku_model *m)
{
    return ku_model_read_again(cfg, NULL, m);
}

int ku_model_read_again(const struct ku_config *cfg, const char *stored, struct ku_model *m)
{
    struct ku_model_source s = {cfg, NULL};
    json_t *path = json_object_get(cfg->model, "path");
    memset(m, 0, sizeof *m);
    if (path && !json_is_string(path))
        return ku_model_refuse(&s, "path", path,
                               "a directory with config.json and model.safetensors");
    if (path && json_object_get(cfg->model, "model_type")) { /* checked before files are opened */
        const struct ku_model_family *f;
        KU_TRY(find_family(&s, cfg->model, &f));
        KU_TRY(check_names(&s, cfg->model, 0, f));
    }
    int status = path ? read_directory(cfg, json_string_value(path), stored, m)
                      : read_object(&s, cfg->model, m);
    if (status == KUMI_OK)
        status = read_taking(&s, cfg->model, m);
    if (status < 0)
        ku_model_fini(m);
    return status;
}

int ku_model_parse(const char *name, const char *text, size_t bytes, struct ku_model *m)
{
    struct ku_json doc;
    struct ku_model_source s = {NULL, name};
    memset(m, 0, sizeof *m);
    KU_TRY(ku_json_parse(name, text, bytes, &doc));
    int status = read_object(&s, doc.root, m);
    ku_json_fini(&doc);
    if (status < 0)
        ku_model_fini(m);
    return status;
}

void ku_model_fini(struct ku_model *m)
{
    ku_free(m->config);
    ku_free(m->path);
    json_decref(m->map);
    json_decref(m->rest);
    memset(m, 0, sizeof *m);
}

static json_t *print_member(const struct ku_member *m, const void *config)
{
    const void *at = (const char *)config + m->offset;
    const struct ku_word *w = m->words;
    int64_t whole;
    double real;
    int word;
    switch (m->type) {
    case KU_M_INT:
    case KU_M_LAYERS:
        memcpy(&whole, at, sizeof whole);
        return m->is_nullable && whole == 0 ? json_null() : json_integer(whole);
    case KU_M_PROB:
    case KU_M_POSITIVE:
        memcpy(&real, at, sizeof real);
        return json_real(real);
    case KU_M_BOOL:
        memcpy(&word, at, sizeof word);
        return json_boolean(word);
    case KU_M_WORD:
        memcpy(&word, at, sizeof word);
        while (w->name && w->value != word)
            w++;
        return w->name ? json_string(w->name) : NULL;
    }
    return NULL;
}

char *ku_model_print(const struct ku_model *m)
{
    const struct ku_model_family *f = m->family;
    json_t *o = json_pack("{s:s}", "model_type", f->type);
    char *text = NULL, *copy = NULL;
    int failed = o == NULL;
    if (o && f->architecture)
        failed |= json_object_set_new(o, "architectures", json_pack("[s]", f->architecture)) < 0;
    for (int i = 0; i < f->n_members && !failed; i++)
        failed |=
            json_object_set_new(o, f->member[i].name, print_member(&f->member[i], m->config)) < 0;
    if (!failed && f->print)
        failed |= f->print(m->config, o) < 0;
    if (!failed)
        failed |= json_object_update_missing(o, m->rest) < 0;
    if (!failed && json_object_set_new(o, "torch_dtype", json_string("float32")) == 0)
        text = ku_json_print(o, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    if (text)
        copy = ku_asprintf("%s\n", text);
    ku_free(text);
    json_decref(o);
    return copy;
}

bool ku_model_is_known(const char *type)
{
    for (int i = 0; i < N_FAMILIES; i++)
        if (type && strcmp(type, families[i]->type) == 0)
            return 1;
    return 0;
}

const char *ku_model_type(const struct ku_model *m)
{
    return m->family->type;
}

int ku_model_fit(struct ku_model *m, int64_t src_vocab, int64_t tgt_vocab)
{
    KU_ASSERT(m->family->fit != NULL);
    KU_TRY(m->family->fit(m->config, src_vocab, tgt_vocab));
    m->family->properties(m->config, &m->properties);
    return KUMI_OK;
}

int ku_model_graph(const struct ku_model *m, const struct kumi_shape_of_batch *b,
                   struct ku_graph **g)
{
    struct kumi_graph *builder;
    KU_TRY(kumi_graph_create(&builder));
    int status = m->family->build(builder, m->config, b);
    if (status == KUMI_OK)
        status = ku_builder_take(builder, g);
    kumi_graph_destroy(builder);
    return status;
}

struct ku_weights_opts ku_model_names(const struct ku_model *m)
{
    struct ku_weights_opts o = {0};
    if (m->family->names)
        m->family->names(m->config, &o);
    o.map = m->map;
    o.allow_missing = m->allow_missing;
    return o;
}

int64_t ku_graph_n_params(const struct ku_graph *g)
{
    int64_t total = 0, dim[KU_MAX_DIMS];
    for (ku_id t = 1; t < g->n_tensors; t++) {
        int64_t count = g->tensor[t].kind == KU_T_PARAM;
        int n = count ? ku_tensor_file_shape(g, t, dim) : 0;
        for (int i = 0; i < n; i++)
            count *= dim[i];
        total += count;
    }
    return total;
}

double ku_graph_model_flops(const struct ku_graph *g)
{
    struct ku_type in[KU_MAX_IN], out[KU_MAX_OUT];
    double flops = 0;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        const struct ku_node *node = &g->node[n];
        const struct ku_op_info *op = &ku_ops[node->op];
        if (node->op == KU_OP_NONE || node->phase != KU_PH_F || !(op->traits & KU_OP_PRODUCT))
            continue;
        for (int i = 0; i < node->n_in; i++)
            in[i] = ku_type_of(g, ku_in(g, node, i));
        for (int i = 0; i < node->n_out; i++)
            out[i] = ku_type_of(g, ku_out(g, n, i));
        flops += op->cost(&g->attr[node->attr], 0, node->n_in, in, node->n_out, out).flops;
    }
    return 3 * flops;
}

int ku_model_hidden_size(const struct ku_config *cfg, int64_t *width)
{
    static const char *const name[] = {"hidden_size", "n_embd", "d_model"};
    struct ku_config view = *cfg; /* the other sections are not read yet */
    struct ku_model m;
    *width = 0;
    view.model = json_object_get(cfg->root, "model");
    if (!json_is_object(view.model))
        return KUMI_OK; /* reported when that section is checked */
    KU_TRY(ku_model_read(&view, &m));
    char *text = ku_model_print(&m);
    json_t *config = text ? json_loads(text, 0, NULL) : NULL, *list;
    for (size_t i = 0; i < sizeof name / sizeof name[0] && *width == 0; i++)
        ku_json_int(json_object_get(config, name[i]), width);
    list = json_object_get(config, "hidden_sizes");
    for (size_t i = 0; i < json_array_size(list); i++) {
        int64_t each = 0;
        ku_json_int(json_array_get(list, i), &each);
        *width = each > *width ? each : *width;
    }
    json_decref(config);
    ku_free(text);
    ku_model_fini(&m);
    return text ? KUMI_OK : KUMI_ENOMEM;
}
