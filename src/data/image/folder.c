/* SPDX-License-Identifier: Apache-2.0 */
#include "data/image/store.h"

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/math/search.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/*
 * Images in root/class/image files, as torchvision's ImageFolder. Memory: one block of names per
 * class and one pointer per image; files are opened on demand.
 */
enum { CLASSES_MAX = 1 << 20, IDENTIFIED = 64 };

struct class_folder {
    char *name;
    char **image; /* names of the images in the folder; one allocation with all names of it */
    int64_t first;
    int32_t label;
};
struct folder {
    struct ku_image_store store;
    char *root;
    struct class_folder *class;
    int n_classes;
};

static void folder_close(struct ku_image_store *s)
{
    struct folder *x = (struct folder *)s;
    for (int i = 0; i < x->n_classes; i++) {
        ku_free(x->class[i].name);
        ku_free(x->class[i].image);
    }
    ku_free(x->class);
    ku_free(x->root);
    ku_free(x);
}

static int class_of(const struct folder *x, int64_t i)
{
    return (int)ku_search(&x->class->first, sizeof *x->class, (size_t)x->n_classes, i);
}

static void folder_name(const struct ku_image_store *s, int64_t i, char *text, size_t bytes)
{
    const struct folder *x = (const struct folder *)s;
    const struct class_folder *c = &x->class[class_of(x, i)];
    snprintf(text, bytes, "%s/%s/%s", x->root, c->name, c->image[i - c->first]);
}

/*
 * Reads image i. A file that cannot be read gives EINPUT with w->why and no error record, because
 * only this image is affected.
 */
static int read_file(const struct folder *x, int64_t i, struct ku_image_work *w, size_t *bytes)
{
    char name[4096];
    struct stat st;
    folder_name(&x->store, i, name, sizeof name);
    int status = KUMI_EINPUT, fd = ku_os_open(name, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0 || ku_os_fstat(fd, &st) < 0)
        snprintf(w->why, sizeof w->why, "%s", ku_os_why());
    else if (!S_ISREG(st.st_mode))
        snprintf(w->why, sizeof w->why, "not a regular file");
    else if (st.st_size > KU_IMAGE_BYTES_MAX)
        snprintf(w->why, sizeof w->why, "%lld bytes; an image has at most %d",
                 (long long)st.st_size, KU_IMAGE_BYTES_MAX);
    else {
        *bytes = (size_t)st.st_size;
        const struct ku_file f = {name, fd, *bytes};
        status = ku_scratch_need(&w->file, *bytes + 1);
        if (status == KUMI_OK)
            status = ku_file_read(&f, 0, w->file.data, *bytes, w->why, sizeof w->why);
    }
    if (fd >= 0)
        ku_os_close(fd);
    return status;
}

static int folder_read(const struct ku_image_store *s, int64_t i, struct ku_image_work *work,
                       struct ku_pixels *out, int32_t *label)
{
    const struct folder *x = (const struct folder *)s;
    size_t bytes = 0;
    KU_TRY(read_file(x, i, work, &bytes));
    *label = x->class[class_of(x, i)].label;
    return ku_image_decode(work, bytes, out);
}

/* Hashes all names and the contents of up to 64 images. */
static int folder_identify(const struct ku_image_store *s, struct ku_sha256 *h)
{
    const struct folder *x = (const struct folder *)s;
    for (int c = 0; c < x->n_classes; c++) {
        int64_t end = c + 1 < x->n_classes ? x->class[c + 1].first : x->store.n;
        ku_sha256_update(h, x->class[c].name, strlen(x->class[c].name) + 1);
        for (int64_t i = x->class[c].first; i < end; i++) {
            const char *name = x->class[c].image[i - x->class[c].first];
            ku_sha256_update(h, name, strlen(name) + 1);
        }
        ku_sha256_update(h, "", 1);
    }
    struct ku_image_work w = {0};
    int64_t n = s->n < IDENTIFIED ? s->n : IDENTIFIED;
    int status = KUMI_OK;
    for (int64_t i = 0; i < n && status == KUMI_OK; i++) {
        size_t bytes;
        status = read_file(x, i * (s->n / n), &w, &bytes);
        if (status == KUMI_OK)
            ku_sha256_update(h, w.file.data, bytes);
        else if (status == KUMI_EINPUT) /* reported, or skipped, when the image is read */
            status = KUMI_OK;
    }
    ku_scratch_fini(&w.file);
    return status;
}

static const struct ku_image_store_ops folder_ops = {folder_close, folder_read, folder_name,
                                                     folder_identify};

static bool is_image(const char *name)
{
    const char *dot = strrchr(name, '.');
    return name[0] != '.' && dot && ku_image_is_ending(dot + 1);
}

/* A class of val gets the number it has in train. */
static int label_of(const struct folder *x, const struct ku_image_source *src, const char *name,
                    int32_t *label)
{
    const struct folder *train = (const struct folder *)src->train;
    *label = x->n_classes;
    if (!train)
        return KUMI_OK;
    for (*label = 0; *label < train->n_classes; ++*label)
        if (strcmp(train->class[*label].name, name) == 0)
            return KUMI_OK;
    return KU_ERR(KUMI_EINPUT, "data: %s/%s: not a class of %s; correct its name or remove it",
                  x->root, name, train->root);
}

static int add_class(struct folder *x, const struct ku_image_source *src, const char *name,
                     int64_t *n_ignored)
{
    int32_t label;
    KU_TRY(label_of(x, src, name, &label));
    char **image = NULL;
    int n = 0, n_images = 0;
    char *path = ku_asprintf("%s/%s", x->root, name);
    if (!path)
        return KUMI_ENOMEM;
    int status =
        ku_os_list(path, &image, &n) < 0
            ? KU_ERR(ku_os_status(KUMI_EINPUT), "data: %s: %s; make it readable", path, ku_os_why())
            : KUMI_OK;
    for (int i = 0; i < n && status == KUMI_OK; i++)
        if (is_image(image[i]))
            image[n_images++] = image[i];
    if (status == KUMI_OK && n_images == 0)
        status = KU_ERR(
            KUMI_EINPUT,
            "data: %s: no images (.jpg, .jpeg, .png) in this class folder; add some or remove it",
            path);
    ku_free(path);
    char *own = status == KUMI_OK ? ku_strdup(name) : NULL;
    if (!own) {
        ku_free(image);
        return status < 0 ? status : KUMI_ENOMEM;
    }
    x->class[x->n_classes++] = (struct class_folder){own, image, x->store.n, label};
    x->store.n += n_images;
    *n_ignored += n - n_images;
    return KUMI_OK;
}

static int add_classes(struct folder *x, const struct ku_image_source *src, char **names, int n)
{
    int64_t n_ignored = 0;
    x->class = ku_calloc((size_t)n + 1, sizeof *x->class);
    if (!x->class)
        return KUMI_ENOMEM;
    for (int i = 0; i < n; i++) {
        struct stat st;
        char *path = ku_asprintf("%s/%s", x->root, names[i]);
        if (!path)
            return KUMI_ENOMEM;
        int is_folder = ku_os_stat(path, &st) == 0 && S_ISDIR(st.st_mode);
        ku_free(path);
        if (!is_folder || names[i][0] == '.')
            continue;
        if (x->n_classes == CLASSES_MAX)
            return KU_ERR(KUMI_EINPUT, "data: %s: more than %d classes", x->root, CLASSES_MAX);
        KU_TRY(add_class(x, src, names[i], &n_ignored));
    }
    if (x->n_classes == 0)
        return KU_ERR(KUMI_EINPUT,
                      "data: %s: no class folders in it; give the folder that contains them",
                      x->root);
    if (src->opts->n_classes && x->n_classes > src->opts->n_classes)
        return KU_ERR(KUMI_EINPUT, "data: %s: %d class folders; the model has %lld classes",
                      x->root, x->n_classes, (long long)src->opts->n_classes);
    if (n_ignored && ku_err_get_rank() <= 0)
        KU_LOG(DATA, WARN,
               "%s: %lld files in class folders are not .jpg, .jpeg or .png and are skipped",
               x->root, (long long)n_ignored);
    x->store.n_classes = src->train ? src->train->n_classes : x->n_classes;
    return KUMI_OK;
}

int ku_folder_open(const struct ku_image_source *src, struct ku_image_store **out)
{
    char **names = NULL;
    int n = 0;
    if (src->n_paths != 1)
        return KU_ERR(KUMI_EINVAL,
                      "data: %s: %d paths; give one, the folder that contains the class folders",
                      src->split == KU_SPLIT_TRAIN ? "data.train" : "data.val", src->n_paths);
    struct folder *x = ku_calloc(1, sizeof *x);
    if (!x)
        return KUMI_ENOMEM;
    x->store = (struct ku_image_store){.ops = &folder_ops, .c = 3, .dtype = KUMI_U8};
    x->root = ku_strdup(src->path[0]);
    int status = x->root ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK && ku_os_list(x->root, &names, &n) < 0)
        status = KU_ERR(ku_os_status(KUMI_EINPUT),
                        "data: %s: %s; give the folder that contains the class folders", x->root,
                        ku_os_why());
    if (status == KUMI_OK)
        status = add_classes(x, src, names, n);
    ku_free(names);
    return ku_store_opened(&x->store, status, out);
}
