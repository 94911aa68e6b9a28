/* SPDX-License-Identifier: Apache-2.0 */
/* Export and import of weights (kumi_ckpt_export, kumi_ckpt_import). */
#include "kumi/run.h"

#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/utf8.h"
#include "ckpt/weights.h"
#include "model/export.h"
#include "model/model.h"
#include "train/session.h"
#include "model/pretrained.h"

enum { MAX_CONFIG_BYTES = 1 << 20 };

/* Export the averages from a checkpoint's optimizer file, after checking every byte of it. */
static int export_averages(const struct ku_ckpt *c, const char *dir, const char *to,
                           const struct kumi_weights_options *o)
{
    struct ku_st st;
    char *path = ku_asprintf("%s/%s", c->path, ku_ckpt_file_name(KU_CKPT_FILE_OPTIMIZER));
    int status = path ? ku_pretrained_check(c, KU_CKPT_FILE_OPTIMIZER) : KUMI_ENOMEM;
    if (status == KUMI_OK && c->update == 0)
        status = KU_ERR(KUMI_EINVAL, "ema: %s: no update has been made, so there are no averages",
                        c->path);
    if (status == KUMI_OK)
        status = ku_st_open(path, &st);
    if (status == KUMI_OK) {
        status = ku_export_directory(dir, to, o, &st);
        ku_st_close(&st);
    }
    ku_free(path);
    return status;
}

/* The model's tensors with the names and shapes of files. */
static int describe(const struct ku_graph *g, struct ku_ckpt_tensor **out, int *n)
{
    struct ku_ckpt_tensor *list = ku_calloc(g->n_tensors, sizeof *list);
    *n = 0;
    for (ku_id t = 1; t < g->n_tensors && list; t++) {
        if (!ku_tensor_is_model(&g->tensor[t]))
            continue;
        struct ku_ckpt_tensor *x = &list[(*n)++];
        *x = (struct ku_ckpt_tensor){.name = g->tensor[t].name,
                                     .dtype = (enum kumi_dtype)g->tensor[t].dtype};
        x->ndim = ku_tensor_file_shape(g, t, x->dim);
        memcpy(x->padded, x->dim, sizeof x->padded);
    }
    *out = list;
    return list ? KUMI_OK : KUMI_ENOMEM;
}

/*
 * Check the weights of a directory against a model, and report all differences at once. w borrows
 * names from *g: the caller destroys *g after w, also on failure.
 */
static int open_model(const struct ku_model *m, const char *dir, const struct ku_weights_opts *how,
                      struct ku_graph **g, struct ku_weights *w)
{
    struct kumi_shape_of_batch one = {.n = 1, .t = 1};
    struct ku_ckpt_tensor *tensor = NULL;
    int n;
    *g = NULL;
    KU_TRY(ku_model_graph(m, &one, g));
    int status = describe(*g, &tensor, &n);
    if (status == KUMI_OK)
        status = ku_weights_open(dir, tensor, n, how, w);
    ku_free(tensor);
    return status;
}

/* Check a directory's weights against its config.json, if kumi has the model. */
static int check_directory(const char *dir, const struct kumi_weights_options *o)
{
    struct ku_model m = {0};
    struct ku_graph *g;
    struct ku_json doc;
    struct ku_weights w;
    size_t bytes;
    char *text = NULL, *file = ku_asprintf("%s/config.json", dir);
    int status = file ? ku_export_read_text(file, &text, &bytes) : KUMI_ENOMEM;
    if (status == KUMI_OK)
        status = ku_export_parse_config(file, text, &doc);
    if (status == KUMI_OK && !json_is_object(doc.root)) {
        ku_json_fini(&doc);
        status =
            KU_ERR(KUMI_EINPUT, "weights: %s: not a JSON object; give a model's config.json", file);
    }
    if (status == KUMI_OK) {
        const char *type = json_string_value(json_object_get(doc.root, "model_type"));
        int is_known = ku_model_is_known(type);
        if (!is_known)
            KU_LOG(CKPT, WARN,
                   "%s: model_type %s: unknown to kumi; names and shapes of its weights are not "
                   "checked",
                   file, type ? type : "missing");
        status = is_known ? ku_model_parse(file, text, bytes, &m) : KUMI_OK;
        ku_json_fini(&doc);
    }
    if (status == KUMI_OK && m.family) {
        struct ku_weights_opts how = ku_model_names(&m);
        how.allow_missing |= o->allow_missing;
        status = open_model(&m, dir, &how, &g, &w);
        if (status == KUMI_OK)
            ku_weights_close(&w);
        ku_graph_destroy(g);
    }
    ku_model_fini(&m);
    ku_free(text);
    ku_free(file);
    return status;
}

struct export_options {
    const char *to;
    const struct kumi_weights_options *o;
};

static int export_checkpoint(void *ctx, const struct ku_ckpt *c)
{
    const struct export_options *e = ctx;
    KU_TRY(ku_ckpt_check_companions(c));
    char *dir = ku_asprintf("%s/model", c->path);
    const int status = dir == NULL ? KUMI_ENOMEM
                       : e->o->ema ? export_averages(c, dir, e->to, e->o)
                                   : ku_export_directory(dir, e->to, e->o, NULL);
    ku_free(dir);
    return status;
}

int kumi_ckpt_export(const char *source, const char *to, const struct kumi_weights_options *options)
{
    KU_GIVEN(source, "source");
    KU_GIVEN(to, "to");
    static const struct kumi_weights_options none;
    const struct kumi_weights_options *o = options ? options : &none;
    if (ku_pretrained_is_weights(source)) {
        if (o->ema)
            return KU_ERR(
                KUMI_EINVAL,
                "ema: %s: a directory of weights has no averages; give a run, or leave out --ema",
                source);
        KU_TRY(check_directory(source, o));
        return ku_export_directory(source, to, o, NULL);
    }
    return ku_pretrained_use(source, export_checkpoint, &(struct export_options){to, o});
}

/* {"name in the files": "kumi's name"} from "name in the files=kumi's name". */
static int parse_map(const struct kumi_weights_options *o, json_t **out)
{
    json_t *map = json_object();
    int status = map ? KUMI_OK : KUMI_ENOMEM;
    for (int i = 0; i < o->n_map && status == KUMI_OK; i++) {
        const char *equal = strchr(o->map[i], '=');
        char *source =
            equal ? ku_asprintf("%.*s", (int)(equal - o->map[i]), o->map[i]) : ku_strdup("");
        if (equal == NULL || equal == o->map[i] || equal[1] == '\0')
            status = KU_ERR(KUMI_EINVAL, "weights: map: %s; give SOURCE=TENSOR", o->map[i]);
        else
            status = ku_utf8_check("weights: map", o->map[i]);
        if (status == KUMI_OK &&
            (source == NULL || json_object_set_new(map, source, json_string(equal + 1)) < 0))
            status = KU_ERR(KUMI_ENOMEM, "weights: no memory");
        ku_free(source);
    }
    if (status < 0)
        json_decref(map);
    else
        *out = map;
    return status;
}

static int import_model(const struct ku_model *m, const char *source, const char *to,
                        const struct kumi_weights_options *o, const char *config)
{
    struct ku_weights_opts how = ku_model_names(m);
    struct ku_companions companions = {0};
    struct ku_graph *g = NULL;
    struct ku_weights w;
    enum kumi_dtype dtype;
    json_t *map = NULL;
    int status;
    KU_TRY_OUT(ku_export_parse_dtype(o, &dtype));
    KU_TRY_OUT(parse_map(o, &map));
    if (o->n_map > 0)
        how.map = map;
    how.allow_missing |= o->allow_missing;
    KU_TRY_OUT(ku_companions_read(&companions, source, KU_COMPANION_ALL));
    KU_TRY_OUT(open_model(m, source, &how, &g, &w));
    for (int i = 0; i < w.n; i++)
        if (w.from[i].tensor)
            w.tensor[i].dtype = w.from[i].tensor->dtype;
    status = ku_weights_write(&w, to, dtype, o->shard_bytes, config, &companions);
    ku_weights_close(&w);
out:
    ku_graph_destroy(g);
    ku_companions_fini(&companions);
    json_decref(map);
    return status;
}

/* Read section `model` of a training configuration. *text becomes the equivalent config.json. */
static int read_training(const char *file, char **text, size_t bytes, struct ku_model *m)
{
    struct ku_config c;
    KU_TRY(ku_config_parse(file, *text, bytes, NULL, 0, ku_model_hidden_size, &c));
    int status = ku_model_read(&c, m);
    if (status == KUMI_OK && m->properties.is_pairs && m->properties.vocab_size == 0)
        status = KU_ERR(KUMI_EINVAL,
                        "weights: %s: the vocabulary sizes come from the data; give "
                        "model.src_vocab_size and model.tgt_vocab_size",
                        file);
    ku_config_fini(&c);
    char *own = status == KUMI_OK ? ku_model_print(m) : NULL;
    if (own) {
        ku_free(*text);
        *text = own;
    }
    return status == KUMI_OK && own == NULL ? KUMI_ENOMEM : status;
}

/* Read a config.json, or a training configuration, which has sections. */
static int read_model(const char *file, char **text, size_t bytes, struct ku_model *m)
{
    struct ku_json doc;
    KU_TRY(ku_json_parse(file, *text, bytes, &doc));
    int has_sections = json_is_object(json_object_get(doc.root, "model"));
    ku_json_fini(&doc);
    return has_sections ? read_training(file, text, bytes, m)
                        : ku_model_parse(file, *text, bytes, m);
}

int kumi_ckpt_import(const char *source, const char *to, const struct kumi_weights_options *options)
{
    KU_GIVEN(source, "source");
    KU_GIVEN(to, "to");
    static const struct kumi_weights_options none;
    const struct kumi_weights_options *o = options ? options : &none;
    KU_GIVEN_LIST(o->map, o->n_map, "options.map");
    struct ku_model m = {0};
    enum kumi_dtype dtype;
    char *file = o->model ? ku_strdup(o->model) : ku_asprintf("%s/config.json", source);
    char *text = NULL;
    size_t bytes;
    int status = file ? KUMI_OK : KUMI_ENOMEM;
    KU_TRY_OUT(status);
    KU_TRY_OUT(ku_export_parse_dtype(o, &dtype));
    if (ku_os_slurp(file, MAX_CONFIG_BYTES, &text, &bytes) < 0) {
        status = KU_ERR(ku_os_status(KUMI_EINPUT),
                        "weights: %s: %s; name the model's config.json with --model FILE", file,
                        ku_os_why());
        const struct kumi_error missing = *ku_err_get();
        struct ku_weights w; /* unreadable weights are the more useful error */
        KU_TRY_OUT(o->model ? status : ku_weights_open(source, NULL, 0, NULL, &w));
        ku_weights_close(&w);
        status = ku_err_put(&missing);
    }
    KU_TRY_OUT(status);
    KU_TRY_OUT(read_model(file, &text, bytes, &m));
    KU_TRY_OUT(ku_export_say_dtype(file, dtype, &text));
    status = import_model(&m, source, to, o, text);
out:
    ku_free(text);
    ku_free(file);
    ku_model_fini(&m);
    return status;
}
