/* SPDX-License-Identifier: Apache-2.0 */
/* Writes directories of weights that transformers loads. */
#include "model/export.h"

#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "ckpt/companions.h"
#include "model/model.h"

enum { MAX_CONFIG_BYTES = 1 << 20 };

int ku_export_parse_dtype(const struct kumi_weights_options *o, enum kumi_dtype *out)
{
    *out = KUMI_N_DTYPES;
    if (o->dtype == NULL)
        return KUMI_OK;
    KU_TRY(ku_dtype_parse(o->dtype, out));
    return ku_dtype_is_float(*out)
               ? KUMI_OK
               : KU_ERR(KUMI_EINVAL, "weights: dtype: %s; f32, bf16, f16 or f64", o->dtype);
}

/* The name of a dtype in Hugging Face's configurations. */
static const char *torch_dtype(enum kumi_dtype dtype)
{
    return dtype == KUMI_BF16  ? "bfloat16"
           : dtype == KUMI_F16 ? "float16"
           : dtype == KUMI_F64 ? "float64"
                               : "float32";
}

int ku_export_read_text(const char *file, char **out, size_t *bytes)
{
    return ku_os_slurp(file, MAX_CONFIG_BYTES, out, bytes) < 0
               ? KU_ERR(ku_os_status(KUMI_EINPUT), "weights: %s: %s", file, ku_os_why())
               : KUMI_OK;
}

int ku_export_parse_config(const char *file, const char *text, struct ku_json *doc)
{
    int status = ku_json_parse(file, text, strlen(text), doc);
    if (status == KUMI_OK || status == KUMI_ENOMEM)
        return status;
    const struct kumi_error e = *ku_err_get();
    return KU_ERR(KUMI_EINPUT, "weights: %.400s", e.text);
}

int ku_export_say_dtype(const char *file, enum kumi_dtype dtype, char **text)
{
    struct ku_json doc;
    if (dtype == KUMI_N_DTYPES)
        return KUMI_OK;
    KU_TRY(ku_export_parse_config(file, *text, &doc));
    /* the key is dtype from transformers 5 on, torch_dtype before */
    const char *key = json_object_get(doc.root, "dtype") ? "dtype" : "torch_dtype";
    json_object_set_new(doc.root, key, json_string(torch_dtype(dtype)));
    char *print = ku_json_print(doc.root, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    char *line = print ? ku_asprintf("%s\n", print) : NULL;
    ku_free(print);
    ku_json_fini(&doc);
    if (line == NULL)
        return KUMI_ENOMEM;
    ku_free(*text);
    *text = line;
    return KUMI_OK;
}

/*
 * Replace each parameter by its average. Parameters that are not trained have none.
 */
static int take_averages(struct ku_weights *w, const struct ku_st *averages)
{
    int n = 0;
    for (int i = 0; i < w->n; i++) {
        char *name = ku_asprintf("%s.ema", w->from[i].tensor->name);
        const struct ku_st_tensor *x = name ? ku_st_find(averages, name) : NULL;
        ku_free(name);
        if (name == NULL)
            return KUMI_ENOMEM;
        if (x == NULL)
            continue;
        w->from[i].file = averages;
        w->from[i].tensor = x;
        n++;
    }
    return n ? KUMI_OK
             : KU_ERR(KUMI_EINVAL,
                      "ema: %s: holds no averages of the weights; train with train.ema "
                      "above 0",
                      averages->path);
}

/* Reads the model of a config.json. If kumi does not have it, m->family is NULL. */
static int read_model(const char *file, const char *text, struct ku_model *m)
{
    struct ku_json doc;
    *m = (struct ku_model){0};
    KU_TRY(ku_export_parse_config(file, text, &doc));
    const char *type = json_string_value(json_object_get(doc.root, "model_type"));
    int status = ku_model_is_known(type) ? ku_model_parse(file, text, strlen(text), m) : KUMI_OK;
    ku_json_fini(&doc);
    return status;
}

int ku_export_directory(const char *dir, const char *to, const struct kumi_weights_options *o,
                        const struct ku_st *averages)
{
    struct ku_companions companions = {0};
    struct ku_weights_opts names = {0};
    struct ku_model m = {0};
    struct ku_weights w;
    enum kumi_dtype dtype;
    size_t bytes;
    KU_TRY(ku_export_parse_dtype(o, &dtype));
    char *config = NULL, *file = ku_asprintf("%s/config.json", dir);
    int status = file ? ku_export_read_text(file, &config, &bytes) : KUMI_ENOMEM;
    if (status == KUMI_OK)
        status = read_model(file, config, &m);
    if (m.family)
        names = ku_model_names(&m);
    if (status == KUMI_OK)
        status = ku_export_say_dtype(file, dtype, &config);
    if (status == KUMI_OK)
        status = ku_companions_read(&companions, dir, KU_COMPANION_ALL);
    if (status == KUMI_OK)
        status = ku_weights_open(dir, NULL, 0, &names, &w);
    if (status == KUMI_OK) {
        if (averages)
            status = take_averages(&w, averages);
        if (status == KUMI_OK)
            status = ku_weights_write(&w, to, dtype, o->shard_bytes, config, &companions);
        ku_weights_close(&w);
    }
    ku_companions_fini(&companions);
    ku_model_fini(&m);
    ku_free(config);
    ku_free(file);
    return status;
}

/* The old folder is removed only when the new one is complete. */
static int replace(const char *made, const char *to)
{
    struct stat info;
    if ((ku_os_stat(to, &info) == 0 && ku_os_rmtree(to) < 0) || ku_os_rename(made, to) < 0)
        return KU_ERR(ku_os_status(KUMI_ESTORAGE), "weights: %s: cannot be replaced: %s", to,
                      ku_os_why());
    return KUMI_OK;
}

int ku_export_replacing(const char *dir, const char *to, const struct kumi_weights_options *o)
{
    struct stat info;
    char *made = ku_asprintf("%s.new", to);
    int status = made ? KUMI_OK : KUMI_ENOMEM;
    if (made && ku_os_stat(made, &info) == 0 && ku_os_rmtree(made) < 0)
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "weights: %s: cannot be removed: %s", made,
                        ku_os_why());
    if (status == KUMI_OK)
        status = ku_export_directory(dir, made, o, NULL);
    if (status == KUMI_OK)
        status = replace(made, to);
    ku_free(made);
    return status;
}
