/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pretrained models. A checkpoint has manifest.json with the run's configuration and model/ with
 * config.json, weights and tokenizer; a transformers directory has the contents of model/ only.
 */
#include "model/pretrained.h"

#include <string.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/utf8.h"
#include "ckpt/snapshot/file_layout.h"
#include "ckpt/snapshot/region_reader.h"
#include "ckpt/weights.h"
#include "model/model.h"

enum { MAX_CONFIG_BYTES = 1 << 20, BYTE_VOCAB = 256 };

/* The manifest's configuration as text, with model and tokenizer replaced by the checkpoint's own.
 * Freed by the caller; NULL: failed, with the error set. */
static char *config_text(const struct ku_ckpt *c, const char *dir)
{
    json_t *config = json_deep_copy(json_object_get(c->manifest.root, "config"));
    json_t *data = json_object_get(config, "data");
    const char *tokenizer = json_string_value(json_object_get(data, "tokenizer"));
    char *text = NULL;
    if (tokenizer && strcmp(tokenizer, "byte") != 0 && ku_companions_has_tokenizer(dir))
        json_object_set_new(data, "tokenizer", json_string(dir));
    if (config && json_object_set_new(config, "model", json_pack("{s:s}", "path", dir)) == 0)
        text = ku_json_print(config, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    else
        KU_ERR(KUMI_ENOCKPT, "checkpoint: %s/manifest.json: no configuration in it", c->path);
    json_decref(config);
    return text;
}

int ku_pretrained_config(const struct ku_ckpt *c, const char *const *set, int n_sets,
                         struct ku_config *cfg)
{
    KU_TRY(ku_utf8_check("checkpoint", c->path));
    char *dir = ku_asprintf("%s/model", c->path), *text = NULL;
    char *name = ku_asprintf("%s/manifest.json: config", c->path);
    int status = dir && name ? ku_ckpt_check_companions(c) : KUMI_ENOMEM;
    if (status == KUMI_OK) {
        text = config_text(c, dir);
        status = text ? KUMI_OK : ku_err_get()->status;
    }
    if (status == KUMI_OK)
        status = ku_config_parse(name, text, strlen(text), set, n_sets, ku_model_hidden_size, cfg);
    ku_free(text);
    ku_free(name);
    ku_free(dir);
    return status;
}

static int holds(const char *dir, const char *name)
{
    struct stat info;
    char *path = ku_asprintf("%s/%s", dir, name);
    int found = path && ku_os_stat(path, &info) == 0;
    ku_free(path);
    return found;
}

/* A copy of the checkpoint elsewhere has another directory two levels above it. */
int ku_pretrained_home(const struct ku_ckpt *c, char **home)
{
    struct stat info;
    char *above = ku_asprintf("%s/../..", c->path);
    char *listed =
        ku_asprintf("%s/../../checkpoints/step-%08lld/manifest.json", c->path, (long long)c->step);
    const int status = above && listed ? KUMI_OK : KUMI_ENOMEM;
    const bool is_home = status == KUMI_OK && ku_os_stat(listed, &info) == 0;
    *home = is_home ? above : NULL;
    if (!is_home)
        ku_free(above);
    ku_free(listed);
    return status;
}

bool ku_pretrained_is_weights(const char *dir)
{
    return holds(dir, "config.json") &&
           (holds(dir, "model.safetensors") || holds(dir, "model.safetensors.index.json"));
}

int ku_pretrained_tokenizer(const char *dir, const char *wanted, int64_t vocab_count,
                            const char **where)
{
    *where = wanted                             ? wanted
             : ku_companions_has_tokenizer(dir) ? dir
             : vocab_count == BYTE_VOCAB        ? "byte"
                                                : NULL;
    return *where ? KUMI_OK
                  : KU_ERR(KUMI_EINPUT,
                           "model: %s: no tokenizer for a vocabulary of %lld; name one with "
                           "--tokenizer, or put tokenizer.json, or vocab.json and merges.txt, "
                           "beside the model",
                           dir, (long long)vocab_count);
}

/* Reads eos_token_id of a file. Returns 1 if it is there, 0 if file or key is absent, or < 0. */
static int read_ends(const char *dir, const char *name, struct ku_pretrained_ends *out)
{
    struct ku_json doc;
    int found = 0;
    char *path = ku_asprintf("%s/%s", dir, name);
    if (path == NULL)
        return KUMI_ENOMEM;
    int status = holds(dir, name) ? ku_json_load(path, MAX_CONFIG_BYTES, &doc) : 1;
    if (status == KUMI_OK) {
        json_t *list = json_object_get(doc.root, "eos_token_id");
        size_t n = json_is_array(list) ? json_array_size(list) : !(!list || json_is_null(list));
        int is_bad = n > KU_PRETRAINED_ENDS_MAX;
        for (size_t i = 0; i < n && !is_bad; i++) {
            json_t *id = json_is_array(list) ? json_array_get(list, i) : list;
            is_bad = !json_is_integer(id) || json_integer_value(id) < -1 ||
                     json_integer_value(id) > INT32_MAX;
            if (!is_bad && json_integer_value(id) >= 0) /* some files have -1 for none */
                out->id[out->n++] = (uint32_t)json_integer_value(id);
        }
        found = list != NULL;
        if (is_bad)
            status = KU_ERR(KUMI_EINPUT,
                            "model: %s: eos_token_id: give a token id, or a list of at most %d",
                            path, (int)KU_PRETRAINED_ENDS_MAX);
        ku_json_fini(&doc);
    } else if (status < 0 && status != KUMI_ENOMEM) {
        const struct kumi_error e = *ku_err_get();
        status = KU_ERR(KUMI_EINPUT, "model: %.400s", e.text);
    }
    ku_free(path);
    return status < 0 ? status : found;
}

int ku_pretrained_read_ends(const char *dir, const struct ku_tokenizer *t,
                            struct ku_pretrained_ends *out)
{
    uint32_t id;
    *out = (struct ku_pretrained_ends){.n = 0};
    int found = read_ends(dir, "generation_config.json", out);
    if (found == 0)
        found = read_ends(dir, "config.json", out);
    KU_TRY(found);
    if (!found && ku_tokenizer_end_of_text(t, &id))
        out->id[out->n++] = id;
    return KUMI_OK;
}

int ku_pretrained_weights(const char *dir, const struct ku_model *model,
                          const struct ku_ckpt_tensor *tensor, int n, int rank, int n_ranks)
{
    struct ku_weights_opts o = ku_model_names(model);
    struct ku_weights w;
    KU_TRY(ku_weights_open(dir, tensor, n, &o, &w));
    int status = ku_weights_read(&w, rank, n_ranks);
    ku_weights_close(&w);
    return status;
}

/* Lists the parameters that have an average in the file, renamed to it ("NAME.ema"). */
static int name_averages(const struct ku_st *file, const struct ku_ckpt_tensor *tensor, int n,
                         struct ku_ckpt_tensor *out, int *n_out)
{
    *n_out = 0;
    for (int i = 0; i < n; i++) {
        char *name =
            tensor[i].group == KU_CKPT_MODEL ? ku_asprintf("%s.ema", tensor[i].name) : NULL;
        if (name == NULL && tensor[i].group == KU_CKPT_MODEL)
            return KUMI_ENOMEM;
        if (name == NULL || ku_st_find(file, name) == NULL) {
            ku_free(name);
            continue;
        }
        out[*n_out] = tensor[i];
        out[*n_out].group = KU_CKPT_OPTIMIZER;
        out[(*n_out)++].name = name;
    }
    return KUMI_OK;
}

static int read_averages(const struct ku_ckpt *c, const struct ku_st *file,
                         const struct ku_ckpt_tensor *tensor, int n, int rank, int n_ranks)
{
    struct ku_ckpt_tensor *list = ku_calloc((size_t)n + 1, sizeof *list);
    int n_list = 0, status = list ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK)
        status = name_averages(file, tensor, n, list, &n_list);
    if (status == KUMI_OK && (n_list == 0 || c->update == 0))
        status = KU_ERR(KUMI_EINVAL, "ema: %s: %s; train with train.ema above 0", c->path,
                        n_list ? "no update has been made, so there are no averages yet"
                               : "this run keeps no averages of its weights");
    if (status == KUMI_OK)
        status = ku_ckpt_read_only(c, list, n_list, rank, n_ranks);
    for (int i = 0; i < n_list; i++)
        ku_free((void *)(uintptr_t)list[i].name);
    ku_free(list);
    return status;
}

int ku_pretrained_averages(const char *path, const struct ku_ckpt_tensor *tensor, int n, int rank,
                           int n_ranks)
{
    struct ku_ckpt c;
    struct ku_st file;
    KU_TRY(ku_ckpt_open(path, &c));
    char *name = ku_asprintf("%s/%s", path, ku_ckpt_file_name(KU_CKPT_FILE_OPTIMIZER));
    int status = name ? ku_st_open(name, &file) : KUMI_ENOMEM;
    if (status == KUMI_OK) {
        status = read_averages(&c, &file, tensor, n, rank, n_ranks);
        ku_st_close(&file);
    }
    ku_free(name);
    ku_ckpt_close(&c);
    return status;
}

static int refuse_damage(void *scan, const struct ku_piece *p, const unsigned char *data,
                         int is_good)
{
    (void)data;
    return is_good ? KUMI_OK : ku_scan_damaged(scan, p);
}

int ku_pretrained_check(const struct ku_ckpt *c, int file)
{
    struct ku_scan s;
    KU_TRY(ku_scan_open(c, file, &s));
    int status = ku_scan_run(&s, 0, ku_pieces_n_chunks(s.bytes), refuse_damage, &s);
    ku_scan_close(&s);
    return status;
}

static int check_model(const struct ku_ckpt *c)
{
    KU_TRY(ku_pretrained_check(c, KU_CKPT_FILE_CONFIG));
    return ku_pretrained_check(c, KU_CKPT_FILE_MODEL);
}

int ku_pretrained_use(const char *dir, int (*use)(void *ctx, const struct ku_ckpt *c), void *ctx)
{
    struct kumi_error damage = {0};
    struct ku_ckpt c;
    int n_removed = 0;
    for (int64_t before = INT64_MAX;;) {
        int status = ku_ckpt_find(dir, before, &c);
        if (status == KUMI_ENOCKPT && damage.status < 0)
            return ku_err_put(&damage); /* the newest one's damage, not "no snapshot before" */
        KU_TRY(status);
        status = check_model(&c);
        if (status == KUMI_OK)
            status = use(ctx, &c);
        const struct kumi_error error = *ku_err_get();
        const bool is_removed =
            (status == KUMI_ENOCKPT || status == KUMI_EINPUT) && ku_os_is_missing(c.path);
        if (is_removed)
            KU_LOG(CKPT, INFO, "%s: removed meanwhile; taking the newest checkpoint", c.path);
        else if (status == KUMI_ENOCKPT)
            KU_LOG(CKPT, WARN, "%s; taking the previous checkpoint", error.text);
        before = is_removed ? INT64_MAX : c.step;
        ku_ckpt_close(&c);
        if (is_removed && ++n_removed == KU_CKPT_MAX_REMOVED)
            return KU_ERR(KUMI_ENOCKPT,
                          "checkpoint: %s: the run removed %d checkpoints before they were read; "
                          "raise its checkpoint.keep, or use a copy of one",
                          dir, n_removed);
        if (!is_removed && status != KUMI_ENOCKPT)
            return status < 0 ? ku_err_put(&error) : status;
        if (!is_removed && damage.status == KUMI_OK)
            damage = error;
    }
}
