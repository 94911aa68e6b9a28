/* SPDX-License-Identifier: Apache-2.0 */
#include "data/image/array.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"

#include <string.h>

/*
 * IDX, the format of MNIST. All integers are big endian:
 *
 *     0 0 | type (8: u8) | ndim | dim[0] as u32 … dim[ndim - 1] | elements
 */
int ku_idx_parse(const char *name, const unsigned char *data, size_t bytes, uint64_t file_bytes,
                 struct ku_array_header *out)
{
    struct ku_array_header h = {.type = "u1"};
    if (bytes >= 2 && data[0] == 0x1f && data[1] == 0x8b)
        return KU_ERR(KUMI_EINPUT, "data: %s: compressed; unpack it with gunzip", name);
    if (bytes < 4 || data[0] != 0 || data[1] != 0)
        return KU_ERR(KUMI_EINPUT, "data: %s: not an IDX file (MNIST's format)", name);
    if (data[2] != 8)
        return KU_ERR(KUMI_EINPUT,
                      "data: %s: IDX elements of type 0x%02x; only u8 (0x08) is supported", name,
                      data[2]);
    h.ndim = data[3];
    if (h.ndim < 1 || h.ndim > 4 || bytes < 4 + 4 * (size_t)h.ndim)
        return KU_ERR(
            KUMI_EINPUT,
            "data: %s: IDX header of %d dimensions in a file of %llu bytes; 1 to 4 are supported",
            name, h.ndim, (unsigned long long)file_bytes);
    h.at = 4 + 4 * (uint64_t)h.ndim;
    int64_t count = 1;
    int is_large = 0;
    for (int i = 0; i < h.ndim; i++) {
        const unsigned char *at = data + 4 + 4 * i;
        h.dim[i] = (int64_t)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
        is_large |= __builtin_mul_overflow(count, h.dim[i], &count);
    }
    if (is_large || count == 0 || (uint64_t)count != file_bytes - h.at)
        return KU_ERR(
            KUMI_EINPUT,
            "data: %s: %llu bytes after the IDX header, whose shape needs %lld; copy it again",
            name, (unsigned long long)(file_bytes - h.at),
            (long long)(is_large ? INT64_MAX : count));
    *out = h;
    return KUMI_OK;
}

static const struct {
    const char *images, *labels;
} names[KU_N_SPLITS][2] = {{{"train-images-idx3-ubyte", "train-labels-idx1-ubyte"},
                            {"train-images.idx3-ubyte", "train-labels.idx1-ubyte"}},
                           {{"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"},
                            {"t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte"}}};

/* Adds the files of a folder; uses the second spelling of the names if that file exists. */
static int add_folder(const char *root, enum ku_data_split split, struct ku_files *images,
                      struct ku_files *labels)
{
    struct stat st;
    char *path = ku_asprintf("%s/%s", root, names[split][1].images);
    if (!path)
        return KUMI_ENOMEM;
    int spelling = ku_os_stat(path, &st) == 0;
    ku_free(path);
    for (int k = 0; k < 2; k++) {
        path = ku_asprintf("%s/%s", root,
                           k ? names[split][spelling].labels : names[split][spelling].images);
        int status = path ? ku_files_add_name(k ? labels : images, path) : KUMI_ENOMEM;
        ku_free(path);
        KU_TRY(status);
    }
    return KUMI_OK;
}

/* Derives the label file's name: "train-images-idx3-ubyte" gives "train-labels-idx1-ubyte". */
static int add_labels_of(const char *images, struct ku_files *labels)
{
    const char *slash = strrchr(images, '/'), *file = slash ? slash + 1 : images;
    const char *word = strstr(file, "images"), *three = strstr(file, "idx3");
    if (!word || !three || three < word)
        return KU_ERR(
            KUMI_EINVAL,
            "data: %s: no labels file matches this name; set data.train_labels or data.val_labels",
            images);
    char *path = ku_asprintf("%.*slabels%.*sidx1%s", (int)(word - images), images,
                             (int)(three - word - 6), word + 6, three + 4);
    int status = path ? ku_files_add_name(labels, path) : KUMI_ENOMEM;
    ku_free(path);
    return status;
}

int ku_idx_open(const struct ku_image_source *src, struct ku_image_store **out)
{
    static const struct ku_array_format format = {"IDX images or labels", KU_IDX_HEADER_MAX,
                                                  ku_idx_parse};
    struct ku_files images = {0}, labels = {0};
    struct stat st;
    int status;
    if (src->n_paths == 1 && ku_os_stat(src->path[0], &st) == 0 && S_ISDIR(st.st_mode))
        KU_TRY_OUT(add_folder(src->path[0], src->split, &images, &labels));
    else
        KU_TRY_OUT(ku_files_add(&images, src->path, src->n_paths));
    KU_TRY_OUT(ku_files_add(&labels, src->labels, src->n_labels));
    for (uint32_t i = 0; labels.n < images.n && src->n_labels == 0; i++)
        KU_TRY_OUT(add_labels_of(images.name[i], &labels));
    status = ku_array_open(src, &format, &images, &labels, out);
out:
    ku_files_fini(&images);
    ku_files_fini(&labels);
    return status;
}
