/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens and lists snapshots: parses the manifest and checks the sizes of the files. Contents are
 * verified only when they are read.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/json/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "ckpt/snapshot/directory.h"
#include "ckpt/snapshot/region_reader.h"
#include "ckpt/snapshot/snapshot.h"

const char *ku_ckpt_file_name(int file)
{
    static const char *const names[] = {"model/config.json", "model/model.safetensors",
                                        "optimizer/optimizer.safetensors"};
    return names[file];
}

static int not_a_manifest(const struct ku_ckpt *c, const char *what)
{
    return KU_ERR(KUMI_ENOCKPT, "checkpoint: %s/manifest.json: %s", c->path, what);
}

static int parse_file(struct ku_ckpt *c, int i, json_t *v)
{
    const char *path = json_string_value(json_object_get(v, "path"));
    const char *hex = json_string_value(json_object_get(v, "xxh3"));
    json_t *bytes = json_object_get(v, "bytes");
    char again[17];
    if (path == NULL || strcmp(path, ku_ckpt_file_name(i)) != 0)
        return not_a_manifest(c, "its list of files does not match this format version");
    if (!json_is_integer(bytes) || json_integer_value(bytes) < 0 || hex == NULL)
        return not_a_manifest(c, "the size or xxh3 of a file is missing");
    c->file[i].bytes = (uint64_t)json_integer_value(bytes);
    if (sscanf(hex, "%16" SCNx64, &c->file[i].sum) != 1)
        return not_a_manifest(c, "an xxh3 is not a number");
    snprintf(again, sizeof again, "%016" PRIx64, c->file[i].sum);
    return strcmp(again, hex) == 0 ? KUMI_OK
                                   : not_a_manifest(c, "an xxh3 is not 16 hexadecimal digits");
}

static int parse_manifest(struct ku_ckpt *c)
{
    json_t *root = c->manifest.root;
    const char *format = json_string_value(json_object_get(root, "format"));
    int64_t version = json_integer_value(json_object_get(root, "version"));
    json_t *step = json_object_get(root, "step"), *update = json_object_get(root, "update");
    json_t *files = json_object_get(root, "files");
    if (format == NULL || strcmp(format, "kumi-checkpoint") != 0)
        return not_a_manifest(c, "its format is not \"kumi-checkpoint\"");
    if (version != KU_CKPT_VERSION)
        return KU_ERR(KUMI_ENOCKPT, "checkpoint: %s: format version %lld; this kumi supports %d",
                      c->path, (long long)version, (int)KU_CKPT_VERSION);
    if (!json_is_integer(step) || !json_is_integer(update) || json_integer_value(step) < 0)
        return not_a_manifest(c, "step or update is missing");
    c->step = json_integer_value(step);
    c->update = json_integer_value(update);
    if (json_array_size(files) != KU_CKPT_N_FILES)
        return not_a_manifest(c, "its list of files does not match this format version");
    for (int i = 0; i < KU_CKPT_N_FILES; i++)
        KU_TRY(parse_file(c, i, json_array_get(files, (size_t)i)));
    return KUMI_OK;
}

static int load_manifest(struct ku_ckpt *c)
{
    char *path = ku_asprintf("%s/manifest.json", c->path), *text;
    size_t bytes;
    if (path == NULL)
        return KUMI_ENOMEM;
    int status = ku_scan_small(path, KU_CKPT_MAX_MANIFEST_BYTES, &text, &bytes);
    if (status == KUMI_OK) {
        c->manifest_sum = ku_hash64(text, bytes);
        status = ku_json_parse(path, text, bytes, &c->manifest);
        if (status < 0 && status != KUMI_ENOMEM)
            status = not_a_manifest(c, "not valid JSON");
        ku_free(text);
    }
    ku_free(path);
    return status < 0 ? status : parse_manifest(c);
}

static int check_sizes(const struct ku_ckpt *c)
{
    for (int i = 0; i < KU_CKPT_N_FILES; i++) {
        struct stat info;
        char *path = ku_asprintf("%s/%s", c->path, ku_ckpt_file_name(i));
        if (path == NULL)
            return KUMI_ENOMEM;
        int status = KUMI_OK;
        if (ku_os_stat(path, &info) < 0)
            status = KU_ERR(ku_os_status(KUMI_ENOCKPT), "checkpoint: damaged: %s: %s", path,
                            ku_os_why());
        else if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size != c->file[i].bytes)
            status =
                KU_ERR(KUMI_ENOCKPT, "checkpoint: damaged: %s: %lld bytes, the manifest says %llu",
                       path, (long long)info.st_size, (unsigned long long)c->file[i].bytes);
        ku_free(path);
        KU_TRY(status);
    }
    return KUMI_OK;
}

int ku_ckpt_open(const char *path, struct ku_ckpt *out)
{
    struct ku_ckpt c = {.path = ku_strdup(path)};
    int status = KUMI_ENOMEM;
    if (c.path == NULL)
        return status;
    KU_TRY_OUT(load_manifest(&c));
    KU_TRY_OUT(check_sizes(&c));
    *out = c;
    return KUMI_OK;
out:
    ku_ckpt_close(&c);
    return status;
}

void ku_ckpt_close(struct ku_ckpt *c)
{
    ku_json_fini(&c->manifest);
    ku_free(c->path);
    *c = (struct ku_ckpt){0};
}

/* Returns 1 if the file exists, 0 if not, < 0 if unknown. */
static int is_there(const char *dir, const char *name)
{
    struct stat info;
    char *path = ku_asprintf("%s/%s", dir, name);
    if (path == NULL)
        return KUMI_ENOMEM;
    int result = ku_os_stat(path, &info) == 0;
    if (!result && errno != ENOENT && errno != ENOTDIR)
        result = KU_ERR(ku_os_status(KUMI_ENOCKPT), "checkpoint: %s: %s", path, ku_os_why());
    ku_free(path);
    return result;
}

static int check_exists(const char *dir)
{
    const int found = is_there(dir, ".");
    struct stat info;
    if (found)
        return found < 0 ? found : KUMI_OK;
    return KU_ERR(KUMI_ENOCKPT, "checkpoint: %s: %s; give a run, its checkpoints or one of them",
                  dir,
                  ku_os_stat(dir, &info) == 0 ? "not a directory" : "there is no such directory");
}

/* The directory of snapshots: DIR/checkpoints of a run, or DIR itself. The caller frees *folder. */
static int folder_of(const char *dir, char **folder)
{
    int is_run = is_there(dir, "checkpoints");
    if (is_run < 0)
        return is_run;
    *folder = ku_asprintf("%s%s", dir, is_run ? "/checkpoints" : "");
    return *folder == NULL ? KUMI_ENOMEM : KUMI_OK;
}

int ku_ckpt_open_step(const char *folder, int64_t step, struct ku_ckpt *c)
{
    char *path = ku_asprintf("%s/step-%08lld", folder, (long long)step);
    if (path == NULL)
        return KUMI_ENOMEM;
    int status = ku_ckpt_open(path, c);
    if (status == KUMI_OK && c->step != step) {
        status =
            KU_ERR(KUMI_ENOCKPT, "checkpoint: %s: its manifest says step %lld; was it renamed?",
                   path, (long long)c->step);
        ku_ckpt_close(c);
    }
    ku_free(path);
    return status;
}

/* Whether a run in training has removed the snapshot since it was listed (checkpoint.keep). */
static bool is_removed(const char *folder, int64_t step)
{
    char *path = ku_asprintf("%s/step-%08lld", folder, (long long)step);
    const bool result = path && ku_os_is_missing(path);
    ku_free(path);
    return result;
}

/* Opens the newest usable one of the snapshots of one listing, and counts the others. */
static int open_newest(const char *folder, const int64_t *steps, int n, int64_t before,
                       struct ku_ckpt *c, int *n_damaged, int *n_removed)
{
    int status = KUMI_ENOCKPT;
    *n_damaged = *n_removed = 0;
    for (int i = 0; i < n && status == KUMI_ENOCKPT; i++) {
        if (steps[i] >= before)
            continue;
        status = ku_ckpt_open_step(folder, steps[i], c);
        if (status != KUMI_ENOCKPT)
            continue;
        if (is_removed(folder, steps[i])) {
            (*n_removed)++;
            continue;
        }
        KU_LOG(CKPT, WARN, "%s; it is not used", ku_err_get()->text);
        (*n_damaged)++;
    }
    return status;
}

static int find_in(const char *folder, int64_t before, struct ku_ckpt *c)
{
    int64_t *steps;
    int n, n_damaged, n_removed, status, n_listed = 0;
    do { /* where one was removed, a newer one may have been committed */
        KU_TRY(ku_ckpt_place_list(folder, &steps, &n));
        status = open_newest(folder, steps, n, before, c, &n_damaged, &n_removed);
        ku_free(steps);
    } while (status == KUMI_ENOCKPT && n_removed > 0 && ++n_listed < KU_CKPT_MAX_REMOVED);
    if (status != KUMI_ENOCKPT)
        return status;
    return n_damaged > 0 ? KU_ERR(KUMI_ENOCKPT,
                                  "checkpoint: %s: none of %d snapshots is usable; the warnings "
                                  "above say why",
                                  folder, n_damaged)
           : n_removed > 0
               ? KU_ERR(KUMI_ENOCKPT,
                        "checkpoint: %s: the run removed each snapshot before it was opened; raise "
                        "its checkpoint.keep, or use a copy of one",
                        folder)
           : before != INT64_MAX
               ? KU_ERR(KUMI_ENOCKPT, "checkpoint: %s: no usable snapshot before step %lld", folder,
                        (long long)before)
               : KU_ERR(KUMI_ENOCKPT,
                        "checkpoint: %s: holds no checkpoint; give a run, its checkpoints or "
                        "one of them",
                        folder);
}

int ku_ckpt_find(const char *dir, int64_t before, struct ku_ckpt *c)
{
    int is_snapshot = is_there(dir, "manifest.json");
    if (is_snapshot < 0)
        return is_snapshot;
    if (is_snapshot) {
        struct ku_ckpt one;
        KU_TRY(ku_ckpt_open(dir, &one));
        if (one.step >= before) {
            ku_ckpt_close(&one);
            return KU_ERR(KUMI_ENOCKPT, "checkpoint: %s: no usable snapshot before step %lld", dir,
                          (long long)before);
        }
        *c = one;
        return KUMI_OK;
    }
    char *folder;
    KU_TRY(check_exists(dir));
    KU_TRY(folder_of(dir, &folder));
    int status = find_in(folder, before, c);
    ku_free(folder);
    return status;
}

int ku_ckpt_has_any(const char *dir)
{
    char *folder;
    int64_t *steps;
    int n, is_snapshot = is_there(dir, "manifest.json");
    if (is_snapshot)
        return is_snapshot;
    KU_TRY(folder_of(dir, &folder));
    const int status = ku_ckpt_place_list(folder, &steps, &n);
    ku_free(folder);
    KU_TRY(status);
    ku_free(steps);
    return n > 0;
}

static int describe(const char *folder, int64_t step, struct ku_ckpt_entry *e)
{
    struct ku_ckpt c;
    *e = (struct ku_ckpt_entry){.step = step};
    snprintf(e->name, sizeof e->name, "step-%08lld", (long long)step);
    int status = ku_ckpt_open_step(folder, step, &c);
    if (status < 0) {
        snprintf(e->problem, sizeof e->problem, "%.255s", ku_err_get()->text);
        return status == KUMI_ENOCKPT ? KUMI_OK : status;
    }
    e->is_usable = 1;
    e->update = c.update;
    for (int i = 0; i < KU_CKPT_N_FILES; i++)
        e->bytes += c.file[i].bytes;
    ku_ckpt_close(&c);
    return KUMI_OK;
}

/* Describes the snapshots of one listing that are still there. n_removed: the others */
static int describe_all(const char *folder, struct ku_ckpt_entry **entries, int *n, int *n_removed)
{
    int64_t *steps;
    int n_steps, status = KUMI_OK;
    KU_TRY(ku_ckpt_place_list(folder, &steps, &n_steps));
    struct ku_ckpt_entry *e = ku_calloc((size_t)n_steps + 1, sizeof *e);
    KU_TRY_OUT(e == NULL ? KUMI_ENOMEM : KUMI_OK);
    *n = 0;
    for (int i = 0; i < n_steps; i++) {
        KU_TRY_OUT(describe(folder, steps[i], &e[*n]));
        *n += e[*n].is_usable || !is_removed(folder, steps[i]);
    }
    *n_removed = n_steps - *n;
    *entries = e;
    e = NULL;
out:
    ku_free(e);
    ku_free(steps);
    return status;
}

int ku_ckpt_list(const char *dir, struct ku_ckpt_entry **entries, int *n_entries)
{
    char *folder;
    struct ku_ckpt_entry *e = NULL;
    int status, n = 0, n_removed = 0, n_listed = 0;
    KU_TRY(check_exists(dir));
    KU_TRY(folder_of(dir, &folder));
    do {
        ku_free(e);
        e = NULL;
        status = describe_all(folder, &e, &n, &n_removed);
    } while (status == KUMI_OK && n == 0 && n_removed > 0 && ++n_listed < KU_CKPT_MAX_REMOVED);
    ku_free(folder);
    KU_TRY(status);
    *entries = e;
    *n_entries = n;
    return KUMI_OK;
}
