/* SPDX-License-Identifier: Apache-2.0 */
#include "data/image/store.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"

#include <stdio.h>
#include <string.h>

/*
 * CIFAR's binary format: records of one label byte (CIFAR-100: two, coarse and fine) and 32 x 32
 * pixels in planar order:
 *
 *     CIFAR-10    label          R[1024] G[1024] B[1024]     3073 bytes
 *     CIFAR-100   coarse fine    R[1024] G[1024] B[1024]     3074 bytes
 */
enum { SIDE = 32, PLANE = SIDE * SIDE, PIXELS = 3 * PLANE };

struct cifar {
    struct ku_image_store store;
    int label_bytes, label_at;
};

static int cifar_read(const struct ku_image_store *s, int64_t i, struct ku_image_work *work,
                      struct ku_pixels *out, int32_t *label)
{
    const struct cifar *x = (const struct cifar *)s;
    KU_TRY(ku_store_read(s, i, (size_t)x->label_bytes + PIXELS, work));
    *label = work->file.data[x->label_at];
    *out = (struct ku_pixels){
        work->file.data + x->label_bytes, KUMI_U8, SIDE, SIDE, 3, SIDE, 1, PLANE};
    return KUMI_OK;
}

static void cifar_name(const struct ku_image_store *s, int64_t i, char *text, size_t bytes)
{
    const struct ku_image_part *p = ku_store_part(s, i);
    snprintf(text, bytes, "%s: record %lld", p->file.name, (long long)(i - p->first));
}

static const struct ku_image_store_ops cifar_ops = {ku_store_close, cifar_read, cifar_name,
                                                    ku_store_identify};

/* Files of the published folder, and the number of records in each. */
struct layout {
    const char *kind, *below, *train[5], *val;
    int n_train, records_train, records_val;
};
static const struct layout layouts[] = {
    {"cifar10",
     "cifar-10-batches-bin",
     {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
      "data_batch_5.bin"},
     "test_batch.bin",
     5,
     10000,
     10000},
    {"cifar100", "cifar-100-binary", {"train.bin"}, "test.bin", 1, 50000, 10000}};

/* Adds one file. records: the number of records it must hold; 0: any. */
static int add_file(struct cifar *x, const char *name, int64_t records, const char *kind)
{
    uint64_t each = (uint64_t)x->label_bytes + PIXELS;
    KU_TRY(ku_store_add(&x->store, name,
                        "CIFAR records, or the folder with them (docs/reference/workloads.md)"));
    uint64_t bytes = x->store.part[x->store.n_parts - 1].file.bytes;
    if (bytes % each != 0 || (records && bytes != (uint64_t)records * each))
        return KU_ERR(KUMI_EINPUT,
                      "data: %s: %llu bytes; a file of %s has %s%llu bytes; copy it again", name,
                      (unsigned long long)bytes, kind,
                      !records           ? "records of "
                      : records == 10000 ? "10000 records of "
                                         : "50000 records of ",
                      (unsigned long long)each);
    x->store.n += (int64_t)(bytes / each);
    return KUMI_OK;
}

static int add_folder(struct cifar *x, const char *root, const struct layout *l,
                      enum ku_data_split split)
{
    struct stat st;
    int n = split == KU_SPLIT_TRAIN ? l->n_train : 1, status = KUMI_OK;
    char *below = ku_asprintf("%s/%s", root, l->below);
    if (!below)
        return KUMI_ENOMEM;
    const char *folder = ku_os_stat(below, &st) == 0 ? below : root;
    for (int i = 0; i < n && status == KUMI_OK; i++) {
        char *name = ku_asprintf("%s/%s", folder, split == KU_SPLIT_TRAIN ? l->train[i] : l->val);
        int64_t records = split == KU_SPLIT_TRAIN ? l->records_train : l->records_val;
        status = name ? add_file(x, name, records, l->kind) : KUMI_ENOMEM;
        ku_free(name);
    }
    ku_free(below);
    return status;
}

static int open_files(struct cifar *x, const struct ku_image_source *src, const struct layout *l,
                      const struct ku_files *files)
{
    struct stat st;
    if (files->n == 1 && ku_os_stat(files->name[0], &st) == 0 && S_ISDIR(st.st_mode))
        return add_folder(x, files->name[0], l, src->split);
    for (uint32_t i = 0; i < files->n; i++)
        KU_TRY(add_file(x, files->name[i], 0, l->kind));
    return KUMI_OK;
}

int ku_cifar_open(const struct ku_image_source *src, struct ku_image_store **out)
{
    const struct layout *l = &layouts[strcmp(src->opts->kind, "cifar100") == 0];
    const char *labels = src->opts->labels ? src->opts->labels : "fine";
    int is_100 = l == &layouts[1], is_coarse = strcmp(labels, "coarse") == 0;
    struct ku_files files = {0};
    if (!is_coarse && strcmp(labels, "fine") != 0)
        return KU_ERR(KUMI_EINVAL, "data: data.labels: '%s'; give fine or coarse", labels);
    if (is_coarse && !is_100)
        return KU_ERR(KUMI_EINVAL, "data: data.labels: coarse; only cifar100 has such labels");
    struct cifar *x = ku_calloc(1, sizeof *x);
    if (!x)
        return KUMI_ENOMEM;
    x->store = (struct ku_image_store){.ops = &cifar_ops,
                                       .n_classes = !is_100     ? 10
                                                    : is_coarse ? 20
                                                                : 100,
                                       .h = SIDE,
                                       .w = SIDE,
                                       .c = 3,
                                       .dtype = KUMI_U8};
    x->label_bytes = is_100 ? 2 : 1;
    x->label_at = is_100 && !is_coarse;
    int status = ku_files_add(&files, src->path, src->n_paths);
    if (status == KUMI_OK)
        status = open_files(x, src, l, &files);
    ku_files_fini(&files);
    return ku_store_opened(&x->store, status, out);
}
