/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens weights as one file or as shards. For shards, the index (weight_map: tensor -> file) and
 * the headers of the shards must list the same tensors.
 */
#include <errno.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "ckpt/safetensors.h"

/* A shard must be a file in the directory of its index: an untrusted index must not open other
 * paths. */
static int check_shard_name(const char *index, const char *tensor, json_t *v)
{
    const char *s = json_string_value(v);
    if (s == NULL || s[0] == '\0' || s[0] == '.' || strchr(s, '/') != NULL)
        return KU_ERR(KUMI_EINPUT,
                      "safetensors: %s: %.120s: \"%.80s\" is not the name of a file "
                      "beside the index",
                      index, tensor, s != NULL ? s : "");
    return KUMI_OK;
}

static int open_shard(const char *dir, const char *name, struct ku_st_set *set)
{
    for (int i = 0; i < set->n; i++) {
        const char *base = strrchr(set->file[i].path, '/');
        if (strcmp(base + 1, name) == 0)
            return KUMI_OK;
    }
    if (set->n == KU_ST_MAX_FILES)
        return KU_ERR(KUMI_EINPUT, "safetensors: %s: more than %d shards", dir,
                      (int)KU_ST_MAX_FILES);
    char *path = ku_asprintf("%s/%s", dir, name);
    struct ku_st *file =
        path == NULL ? NULL : ku_realloc(set->file, (size_t)set->n + 1, sizeof *file);
    int status = KUMI_ENOMEM;
    if (file != NULL) {
        set->file = file;
        status = ku_st_open(path, &file[set->n]);
        set->n += status == KUMI_OK;
    }
    ku_free(path);
    return status;
}

/* Every tensor of the index is in its shard, and the shards have no other tensors. */
static int check_agreement(const char *index, json_t *map, const struct ku_st_set *set)
{
    const char *name;
    json_t *v;
    size_t n_in_files = 0;
    json_object_foreach(map, name, v)
    {
        const struct ku_st *file;
        const char *shard = json_string_value(v);
        if (ku_st_set_find(set, name, &file) == NULL)
            return KU_ERR(KUMI_EINPUT,
                          "safetensors: %s: %.120s is in no shard; the index says %.80s", index,
                          name, shard);
        if (strcmp(strrchr(file->path, '/') + 1, shard) != 0)
            return KU_ERR(KUMI_EINPUT, "safetensors: %s: %.120s is in %s; the index says %.80s",
                          index, name, file->path, shard);
    }
    for (int i = 0; i < set->n; i++) {
        n_in_files += (size_t)set->file[i].n;
        for (int j = 0; j < set->file[i].n; j++)
            if (json_object_get(map, set->file[i].tensor[j].name) == NULL)
                return KU_ERR(KUMI_EINPUT, "safetensors: %s: %.120s of %s is not in the index",
                              index, set->file[i].tensor[j].name, set->file[i].path);
    }
    if (n_in_files != json_object_size(map))
        return KU_ERR(KUMI_EINPUT,
                      "safetensors: %s: %zu tensors in the shards, %zu names in the "
                      "index: a tensor is in two shards",
                      index, n_in_files, json_object_size(map));
    return KUMI_OK;
}

static int open_index(const char *dir, const char *index, struct ku_st_set *set)
{
    struct ku_json doc = {0};
    int status = KUMI_OK;
    if (ku_json_load(index, KU_ST_MAX_HEADER_BYTES, &doc) < 0) {
        const struct kumi_error e = *ku_err_get();
        return KU_ERR(e.status == KUMI_ENOMEM ? KUMI_ENOMEM : KUMI_EINPUT, "%.420s", e.text);
    }
    json_t *map = json_object_get(doc.root, "weight_map"), *v;
    const char *name;
    if (!json_is_object(map)) {
        status = KU_ERR(KUMI_EINPUT, "safetensors: %s: no object weight_map", index);
        goto out;
    }
    json_object_foreach(map, name, v)
    {
        KU_TRY_OUT(check_shard_name(index, name, v));
        KU_TRY_OUT(open_shard(dir, json_string_value(v), set));
    }
    KU_TRY_OUT(check_agreement(index, map, set));
out:
    ku_json_fini(&doc);
    return status;
}

/* Returns 1 if the file exists, 0 if not, KUMI_EINPUT if unknown. */
static int is_there(const char *path)
{
    struct stat info;
    if (ku_os_stat(path, &info) == 0)
        return 1;
    if (errno == ENOENT || errno == ENOTDIR)
        return 0;
    return KU_ERR(ku_os_status(KUMI_EINPUT), "safetensors: %s: %s", path, ku_os_why());
}

static bool ends_in(const char *name, const char *const *ending)
{
    size_t bytes = strlen(name);
    for (; *ending; ending++)
        if (bytes > strlen(*ending) && strcmp(name + bytes - strlen(*ending), *ending) == 0)
            return 1;
    return 0;
}

/* Refuses other weight formats, with the command that converts them. */
static int refuse_form(const char *dir, const char *name)
{
    static const char *const pickles[] = {".pth", ".pt", ".bin", ".ckpt", NULL};
    static const char *const hdf[] = {".h5", ".hdf5", ".keras", NULL};
    if (!ends_in(name, pickles) && !ends_in(name, hdf))
        return KUMI_OK;
    return KU_ERR(
        KUMI_EINPUT, "weights: %s%s%s: %s; convert it: python3 tools/pth2safetensors.py FILE OUT",
        dir ? dir : "", dir ? "/" : "", name,
        ends_in(name, hdf) ? "an HDF5 file" : "a pickle of PyTorch, which can run code when read");
}

static int refuse(const char *dir)
{
    char **names;
    int n, status = KUMI_OK;
    struct stat info;
    if (ku_os_stat(dir, &info) < 0 && errno == ENOENT)
        return KU_ERR(KUMI_EINPUT, "weights: %s: there is no such directory", dir);
    if (ku_os_list(dir, &names, &n) == 0) {
        for (int i = 0; i < n && status == KUMI_OK; i++)
            status = refuse_form(dir, names[i]);
        ku_free(names);
    }
    return status < 0 ? status
                      : KU_ERR(KUMI_EINPUT,
                               "weights: %s: neither model.safetensors nor "
                               "model.safetensors.index.json",
                               dir);
}

/* Opens a single file instead of a directory. */
static int open_file(const char *path, struct ku_st_set *set)
{
    set->file = ku_calloc(1, sizeof *set->file);
    if (set->file == NULL)
        return KUMI_ENOMEM;
    KU_TRY(refuse_form(NULL, path));
    KU_TRY(ku_st_open(path, set->file));
    set->n = 1;
    return KUMI_OK;
}

int ku_st_set_open(const char *dir, struct ku_st_set *out)
{
    struct ku_st_set set = {0};
    int status = KUMI_ENOMEM, one;
    char *single = ku_asprintf("%s/model.safetensors", dir);
    char *index = ku_asprintf("%s/model.safetensors.index.json", dir);
    struct stat info;
    if (single == NULL || index == NULL)
        goto out;
    int is_file = ku_os_stat(dir, &info) == 0 && S_ISREG(info.st_mode);
    KU_TRY_OUT(one = is_there(single));
    if (is_file)
        status = open_file(dir, &set);
    else if (one)
        status = open_shard(dir, "model.safetensors", &set);
    else if ((status = is_there(index)) >= 0)
        status = status ? open_index(dir, index, &set) : refuse(dir);
    if (status == KUMI_OK)
        *out = set;
out:
    if (status < 0)
        ku_st_set_close(&set);
    ku_free(single);
    ku_free(index);
    return status;
}

void ku_st_set_close(struct ku_st_set *set)
{
    for (int i = 0; i < set->n; i++)
        ku_st_close(&set->file[i]);
    ku_free(set->file);
    *set = (struct ku_st_set){0};
}

const struct ku_st_tensor *ku_st_set_find(const struct ku_st_set *set, const char *name,
                                          const struct ku_st **file)
{
    for (int i = 0; i < set->n; i++) {
        const struct ku_st_tensor *t = ku_st_find(&set->file[i], name);
        if (t != NULL) {
            *file = &set->file[i];
            return t;
        }
    }
    return NULL;
}
