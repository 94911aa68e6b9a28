/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */

#include <unistd.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/mem.h"
#include "data/image/decode.h"
#include "data/image/image.h"
#include "folder.h"

#define FIXTURES KUMI_SOURCE_DIR "/tests/fixtures/images/"
enum { W = 19, H = 13, RECORD = 3073 };

static char *slurp_fixture(const char *name, size_t *bytes)
{
    char path[512], *data;
    snprintf(path, sizeof path, FIXTURES "%s", name);
    assert_int_equal(ku_os_slurp(path, 1 << 20, &data, bytes), 0);
    return data;
}

static void put_fixture(const char *name, const char *fixture)
{
    size_t bytes;
    char *data = slurp_fixture(fixture, &bytes);
    put(name, data, bytes);
    ku_free(data);
}

/* text with the folder in place of '@', and "…" at its end for any rest. */
static void assert_error(int status, int expected, const char *text)
{
    char want[1024];
    const char *at = strchr(text, '@'), *got = ku_err_get()->text;
    if (at)
        snprintf(want, sizeof want, "%.*s%s%s", (int)(at - text), text, folder, at + 1);
    else
        snprintf(want, sizeof want, "%s", text);
    char *rest = strstr(want, "…");
    size_t n = rest ? (size_t)(rest - want) : strlen(want) + 1;
    if (status != expected || strncmp(got, want, n) != 0)
        fail_msg("status %d '%s', expected %d '%s'", status, got, expected, want);
}

static struct ku_data *open_images(const struct ku_image_opts *o)
{
    struct ku_data *d = NULL;
    if (ku_image_open(o, &d) < 0)
        fail_msg("%s", ku_err_get()->text);
    return d;
}

static void assert_refused(const struct ku_image_opts *o, int expected, const char *text)
{
    struct ku_data *d = NULL;
    int status = ku_image_open(o, &d);
    assert_error(status, expected, text);
    assert_null(d);
}

/* Record i of a CIFAR file: labels, then byte k is i + k + plane. */
static const char *put_cifar(const char *name, int n, int first, int label_bytes)
{
    unsigned char *data = malloc((size_t)n * (RECORD + 1)), *at = data;
    for (int i = first; i < first + n; i++) {
        *at++ = (unsigned char)(i % 10);
        if (label_bytes == 2)
            *at++ = (unsigned char)(i % 100);
        for (int k = 0; k < 3072; k++)
            *at++ = (unsigned char)(i + k + k / 1024);
    }
    const char *path = put(name, data, (size_t)(at - data));
    free(data);
    return path;
}

static void reads_cifar(void **state)
{
    static const struct {
        const char *kind, *labels;
        int label_bytes, n_classes;
    } rows[] = {
        {"cifar10", NULL, 1, 10}, {"cifar100", NULL, 2, 100}, {"cifar100", "coarse", 2, 20}};
    unsigned char *out = malloc(3072);
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *train[] = {put_cifar("a.bin", 7, 0, rows[i].label_bytes),
                               put_cifar("b.bin", 5, 7, rows[i].label_bytes)},
                   *val[] = {put_cifar("c.bin", 3, 20, rows[i].label_bytes)};
        struct ku_image_opts o = {.kind = rows[i].kind,
                                  .train = train,
                                  .n_train = 2,
                                  .val = val,
                                  .n_val = 1,
                                  .labels = rows[i].labels,
                                  .augment = {.dtype = KUMI_U8}};
        struct ku_data *d = open_images(&o);
        assert_int_equal(d->n_samples[0], 12);
        assert_int_equal(d->n_samples[1], 3);
        assert_string_equal(d->port[0].name, "images");
        assert_int_equal(d->port[0].dim[0] * 100 + d->port[0].dim[2], 3203);
        for (int k = 0; k < 15; k++) {
            int32_t label;
            int n = k < 12 ? k : 20 + k - 12;
            assert_int_equal(
                ku_data_read(d, k >= 12, k < 12 ? k : k - 12, 0, (void *[]){out, &label}), 0);
            assert_int_equal(label, rows[i].n_classes == 100 ? n % 100 : n % 10);
            for (int p = 0; p < 3072; p++) /* planes become pixels */
                if (out[p] != (unsigned char)(n + p % 3 * 1025 + p / 3))
                    fail_msg("image %d, byte %d", n, p);
        }
        assert_int_equal(ku_data_verify(d, NULL), 0);
        ku_data_destroy(d);
    }
    free(out);
}

/* A folder of the official files, which have official lengths (sparse files here). */
static void reads_a_cifar_folder(void **state)
{
    static const char *const names[] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                        "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"};
    char name[128], text[256];
    const char *root[] = {in_folder("official")};
    struct ku_image_opts o = {
        .kind = "cifar10", .train = root, .n_train = 1, .val = root, .n_val = 1};
    (void)state;
    for (int within = 0; within < 2; within++) {
        for (int i = 0; i < 6; i++) {
            snprintf(name, sizeof name, "official/%s%s", within ? "cifar-10-batches-bin/" : "",
                     names[i]);
            const char *path = put(name, "", 0);
            assert_int_equal(truncate(path, 10000 * RECORD), 0);
        }
        struct ku_data *d = open_images(&o);
        assert_int_equal(d->n_samples[0], 50000);
        assert_int_equal(d->n_samples[1], 10000);
        ku_data_destroy(d);
        for (int half = 0; half < 2; half++) { /* half of the records; a byte too many */
            int64_t bytes = half ? 5000 * RECORD : 10000 * RECORD + 1;
            assert_int_equal(truncate(in_folder(name), bytes), 0);
            snprintf(text, sizeof text,
                     "data: @/%s: %lld bytes; a file of cifar10 has 10000 records of 3073 bytes; "
                     "copy it again",
                     name, (long long)bytes);
            assert_refused(&o, KUMI_EINPUT, text);
        }
        ku_os_unlink(in_folder(name));
        snprintf(text, sizeof text,
                 "data: @/%s: No such file or directory; give a file with CIFAR records…", name);
        assert_refused(&o, KUMI_EINPUT, text);
    }
}

/* The share is exact, the two parts are disjoint and whole, and the order is kept. */
static void holds_out_a_fraction(void **state)
{
    static const struct {
        double fraction;
        int n_val;
    } rows[] = {{0.0, 0}, {0.1, 10}, {0.5, 50}, {0.99, 99}, {0.001, 0}, {0.337, 34}};
    const char *train[] = {put_cifar("h.bin", 100, 0, 1)};
    unsigned char *out = malloc(3072);
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ku_image_opts o = {.kind = "cifar10",
                                  .train = train,
                                  .n_train = 1,
                                  .val_fraction = rows[i].fraction,
                                  .augment = {.dtype = KUMI_U8}};
        struct ku_data *d = open_images(&o);
        int seen[100] = {0};
        assert_int_equal(d->n_samples[1], rows[i].n_val);
        assert_int_equal(d->n_samples[0], 100 - rows[i].n_val);
        for (int split = 0; split < 2; split++)
            for (int64_t k = 0, last = -1; k < d->n_samples[split]; k++) {
                int32_t label;
                assert_int_equal(ku_data_read(d, split, k, k, (void *[]){out, &label}), 0);
                assert_int_equal(label, out[0] % 10);
                assert_true(out[0] > last && out[0] < 100);
                last = out[0];
                seen[out[0]]++;
            }
        for (int k = 0; k < 100; k++)
            assert_int_equal(seen[k], 1);
        ku_data_destroy(d);
    }
    free(out);
}

/* ---- image files */

static void put_images(const char *root)
{
    static const struct {
        const char *name, *fixture;
    } files[] = {{"dog/z.JPG", "jpeg_420.jpg"},     {"dog/b.png", "png_rgb.png"},
                 {"cat/1.jpeg", "jpeg_444.jpg"},    {"ant/x.png", "png_palette.png"},
                 {"dog/a.jpg", "jpeg_gray.jpg"},    {"ant/notes.txt", "source.gray"},
                 {"ant/.hidden.png", "source.gray"}};
    char path[128];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", root, files[i].name);
        put_fixture(path, files[i].fixture);
    }
    snprintf(path, sizeof path, "%s/README", root);
    put(path, "x", 1);
}

/* Sample i of a split is this fixture. */
static void assert_image(const struct ku_data *d, int64_t i, const char *fixture, int32_t label)
{
    unsigned char out[3 * H * W];
    size_t bytes;
    int32_t got;
    char *rgb = slurp_fixture(fixture, &bytes);
    if (ku_data_read(d, KU_SPLIT_TRAIN, i, i, (void *[]){out, &got}) < 0)
        fail_msg("%s", ku_err_get()->text);
    assert_int_equal(got, label);
    assert_memory_equal(out, rgb, sizeof out);
    ku_free(rgb);
}

static struct ku_image_opts image_opts(const char *kind, const char *const *train)
{
    return (struct ku_image_opts){
        .kind = kind,
        .train = train,
        .n_train = 1,
        .cache = in_folder("cache"),
        .augment = {.height = H, .width = W, .resize = H, .dtype = KUMI_U8}};
}

static void reads_folders(void **state)
{
    const char *root[] = {in_folder("tree")}, *val[] = {in_folder("tree_val")};
    struct ku_image_opts o = image_opts("folder", root);
    (void)state;
    if (!ku_jpeg_version() || !ku_png_version())
        skip();
    put_images("tree");
    put_fixture("tree_val/dog/q.png", "png_rgb.png");
    o.val = val;
    o.n_val = 1;
    struct ku_data *d = open_images(&o);
    assert_int_equal(d->n_samples[0], 5);
    assert_image(d, 0, "png_palette.rgb", 0);
    assert_image(d, 1, "jpeg_444.rgb", 1);
    assert_image(d, 2, "jpeg_gray.rgb", 2);
    assert_image(d, 3, "png_rgb.rgb", 2);
    assert_image(d, 4, "jpeg_420.rgb", 2);
    unsigned char out[3 * H * W];
    int32_t label;
    assert_int_equal(ku_data_read(d, KU_SPLIT_VAL, 0, 0, (void *[]){out, &label}), 0);
    assert_int_equal(label, 2); /* dog's number in train, though the only class here */
    assert_int_equal(ku_data_verify(d, NULL), 0);
    char before[65];
    memcpy(before, d->fingerprint, 65);
    ku_data_destroy(d);
    put_fixture("tree/dog/b.png", "png_interlaced.png");
    d = open_images(&o);
    assert_string_not_equal(d->fingerprint, before);
    ku_data_destroy(d);
    put_fixture("tree_val/fish/q.png", "png_rgb.png");
    assert_refused(&o, KUMI_EINPUT, "data: @/tree_val/fish: not a class of …");
}

static void names_wrong_folders(void **state)
{
    const char *root[] = {in_folder("bad"), in_folder("bad2")};
    struct ku_image_opts o = image_opts("folder", root);
    unsigned char out[3 * H * W];
    int32_t label;
    struct ku_data *d;
    (void)state;
    if (!ku_jpeg_version() || !ku_png_version())
        skip();
    assert_refused(
        &o, KUMI_EINPUT,
        "data: @/bad: No such file or directory; give the folder that contains the class folders");
    put("bad/file.png", "x", 1);
    assert_refused(&o, KUMI_EINPUT,
                   "data: @/bad: no class folders in it; give the folder that contains them");
    put_fixture("bad/b/1.png", "png_rgb.png");
    put("bad/a/notes.txt", "x", 1);
    assert_refused(
        &o, KUMI_EINPUT,
        "data: @/bad/a: no images (.jpg, .jpeg, .png) in this class folder; add some or remove it");
    put("bad/a/cut.jpg", "\xff\xd8\xff", 3);
    o.n_classes = 1;
    assert_refused(&o, KUMI_EINPUT, "data: @/bad: 2 class folders; the model has 1 classes");
    o.n_train = 2;
    assert_refused(
        &o, KUMI_EINVAL,
        "data: data.train: 2 paths; give one, the folder that contains the class folders");
    o = image_opts("folder", root);
    d = open_images(&o);
    int status = ku_data_read(d, KU_SPLIT_TRAIN, 0, 0, (void *[]){out, &label});
    assert_error(status, KUMI_EINPUT,
                 "data: @/bad/a/cut.jpg: JPEG: Premature end of JPEG file; replace or remove it");
    assert_int_equal(ku_data_verify(d, NULL), KUMI_EINPUT);
    ku_os_unlink(in_folder("bad/a/cut.jpg"));
    status = ku_data_read(d, KU_SPLIT_TRAIN, 0, 0, (void *[]){out, &label});
    assert_error(status, KUMI_EINPUT,
                 "data: @/bad/a/cut.jpg: No such file or directory; replace or remove it");
    assert_int_equal(ku_data_read(d, KU_SPLIT_TRAIN, 1, 0, (void *[]){out, &label}), 0);
    ku_data_destroy(d);
}

/* ---- tar */

struct tar {
    unsigned char data[1 << 17];
    size_t bytes;
};

static void tar_add(struct tar *t, char type, const char *name, const void *data, size_t bytes)
{
    unsigned char *h = t->data + t->bytes;
    unsigned sum = 0;
    memset(h, 0, 512);
    snprintf((char *)h, 100, "%s", name);
    snprintf((char *)h + 100, 8, "0000644");
    snprintf((char *)h + 124, 12, "%011o", (unsigned)bytes);
    memcpy(h + 257, "ustar\00000", 8);
    h[156] = (unsigned char)type;
    memset(h + 148, ' ', 8);
    for (int i = 0; i < 512; i++)
        sum += h[i];
    snprintf((char *)h + 148, 8, "%06o", sum);
    memcpy(h + 512, data, bytes);
    memset(h + 512 + bytes, 0, 511);
    t->bytes += 512 + (bytes + 511) / 512 * 512;
}

static void tar_image(struct tar *t, const char *name, const char *fixture)
{
    size_t bytes;
    char *data = slurp_fixture(fixture, &bytes);
    tar_add(t, '0', name, data, bytes);
    ku_free(data);
}

static const char *tar_put(struct tar *t, const char *name)
{
    memset(t->data + t->bytes, 0, 1024);
    return put(name, t->data, t->bytes + 1024);
}

static void reads_tars(void **state)
{
    static struct tar a, b;
    static const char pax[] = "28 path=long/but/not/so.cls\n";
    char listed[512];
    const char *train[] = {listed};
    struct ku_image_opts o = image_opts("tar", train);
    (void)state;
    if (!ku_jpeg_version() || !ku_png_version())
        skip();
    a.bytes = b.bytes = 0;
    tar_add(&a, '5', "dir/", "", 0);
    tar_image(&a, "dir/0.jpg", "jpeg_420.jpg");
    tar_add(&a, '0', "dir/0.cls", "3", 1);
    tar_add(&a, '0', "dir/0.json", "{}", 2);
    tar_add(&a, '0', "alone.json", "{}", 2);
    tar_add(&a, '0', "1.cls", "12\n", 3);
    tar_image(&a, "1.PNG", "png_rgb.png");
    tar_add(&b, 'g', "global", "9 a=bcd\n", 8);
    tar_image(&b, "long/but/not/so.jpeg", "jpeg_444.jpg");
    tar_add(&b, 'x', "pax", pax, strlen(pax));
    tar_add(&b, '0', "short", "0", 1);
    tar_add(&b, 'L', "@LongLink", "other.png", 10);
    tar_image(&b, "cut", "png_palette.png");
    tar_add(&b, '0', "other.cls", "7 \n", 3);
    tar_put(&a, "shard-08.tar");
    tar_put(&b, "shard-09.tar");
    snprintf(listed, sizeof listed, "%s/shard-{08..09}.tar", folder);
    /* Younger than 2 s, so walked; then old enough, so kept; then from the cache. */
    for (int turn = 0; turn < 3; turn++) {
        if (turn == 1)
            sleep(3);
        struct ku_data *d = open_images(&o);
        assert_int_equal(d->n_samples[0], 4);
        assert_image(d, 0, "jpeg_420.rgb", 3);
        assert_image(d, 1, "png_rgb.rgb", 12);
        assert_image(d, 2, "jpeg_444.rgb", 0);
        assert_image(d, 3, "png_palette.rgb", 7);
        ku_data_destroy(d);
        char **names;
        int n = 0;
        if (ku_os_list(in_folder("cache"), &names, &n) == 0)
            ku_free(names);
        assert_int_equal(n, 2);
        if (turn == 1) { /* one index is damaged: it is made again */
            char path[1024];
            assert_int_equal(ku_os_list(in_folder("cache"), &names, &n), 0);
            snprintf(path, sizeof path, "cache/%s", names[0]);
            char *data;
            size_t bytes;
            assert_int_equal(ku_os_slurp(in_folder(path), 1 << 16, &data, &bytes), 0);
            assert_int_equal(bytes, 64 + 2 * 16);
            data[70] ^= 1;
            put(path, data, bytes);
            ku_free(data);
            ku_free(names);
        }
    }
    o.n_classes = 12;
    assert_refused(&o, KUMI_EINPUT,
                   "data: @/shard-08.tar: image 1: label 12; the labels are 0 to 11");
}

static void names_wrong_tars(void **state)
{
    static const struct {
        const char *name[3];
        const char *data[3];
        char type[3];
        int cut;          /* bytes taken off the end, which is 1024 zeros */
        const char *text; /* behind "data: FILE: " */
    } rows[] = {
        {{"0.jpg"}, {"x"}, "0", 0, "byte 1024: 0: an image without a .cls"},
        {{"0.cls"}, {"1"}, "0", 0, "byte 1024: 0: a .cls without an image"},
        {{"0.jpg", "0.cls"}, {"", "1"}, "00", 0, "byte 0: an empty file"},
        {{"0.jpg", "0.cls"}, {"x", ""}, "00", 0, "byte 1024: an empty file"},
        {{"0.jpg", "0.cls"},
         {"x", "cat"},
         "00",
         0,
         "byte 1536: a .cls file without a class number (0, 1…"},
        {{"0.jpg", "0.cls"},
         {"x", "99999999999"},
         "00",
         0,
         "byte 1536: a .cls file without a class…"},
        {{"0.jpg", "0.cls"}, {"x", "-1"}, "00", 0, "byte 1536: a .cls file without a class…"},
        {{"0.jpg", "0.png"}, {"x", "y"}, "00", 0, "byte 1024: a second file of this kind in…"},
        {{"0.jpg", "0.cls"}, {"x", "1"}, "10", 0, "byte 0: a sample is a link or a sparse file;…"},
        {{"0.txt"}, {"x"}, "0", 0, "no sample (KEY.jpg and KEY.cls) in the archive"},
        {{"0.jpg", "0.cls"},
         {"x", "1"},
         "00",
         1024,
         "byte 2048: the archive's end marker is missing: it is truncated"},
        {{"0.jpg", "0.cls"},
         {"x", "1"},
         "00",
         1024 + 512,
         "byte 1024: a file extends past the end of the archive: it is truncated"},
        {{"0.jpg", "0.cls"},
         {"x", "1"},
         "00",
         1024 + 600,
         "byte 1024: the archive's end marker is missing: it is truncated"},
        {{"p", "0.cls"}, {"xx path", "1"}, "x0", 0, "byte 0: pax header: not a record of length…"},
        {{"p", "0.cls"}, {"\n\n\n\n\n5 xx", "1"}, "x0", 0, "byte 0: pax header: not a record…"},
    };
    static struct tar t;
    const char *train[] = {in_folder("wrong.tar")};
    struct ku_image_opts o = image_opts("tar", train);
    char text[512];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        t.bytes = 0;
        for (int k = 0; k < 3 && rows[i].name[k]; k++)
            tar_add(&t, rows[i].type[k], rows[i].name[k], rows[i].data[k], strlen(rows[i].data[k]));
        memset(t.data + t.bytes, 0, 1024);
        put("wrong.tar", t.data, t.bytes + 1024 - (size_t)rows[i].cut);
        snprintf(text, sizeof text, "data: @/wrong.tar: %s", rows[i].text);
        assert_refused(&o, KUMI_EINPUT, text);
    }
    put("wrong.tar", "no tar", 6);
    assert_refused(&o, KUMI_EINPUT, "data: @/wrong.tar: byte 0: the archive's end marker…");
    memset(t.data, 'x', 2048);
    put("wrong.tar", t.data, 2048);
    assert_refused(&o, KUMI_EINPUT, "data: @/wrong.tar: byte 0: not a tar header (wrong checksum…");
    const char *none[] = {in_folder("none-{0..1}*.tar")};
    o.train = none;
    assert_refused(&o, KUMI_EINPUT, "data: @/none-0*.tar: no file matches; correct the pattern");
}

/* ---- arrays */

/* n images of h x w x c: byte k of the array is k mod 251. */
static const char *put_idx(const char *name, int ndim, const int *dim)
{
    static unsigned char data[1 << 16];
    size_t n = 1, at = 4;
    memcpy(data, (unsigned char[]){0, 0, 8, (unsigned char)ndim}, 4);
    for (int i = 0; i < ndim; i++, at += 4) {
        for (int k = 0; k < 4; k++)
            data[at + (size_t)k] = (unsigned char)(dim[i] >> (24 - 8 * k));
        n *= (size_t)dim[i];
    }
    for (size_t i = 0; i < n; i++)
        data[at + i] = (unsigned char)(ndim == 1 ? i % 10 : i % 251);
    return put(name, data, at + n);
}

static void reads_idx(void **state)
{
    const char *root[] = {in_folder("mnist")}, *images[1];
    struct ku_image_opts o = {.kind = "idx", .train = root, .n_train = 1, .val = root, .n_val = 1};
    (void)state;
    images[0] = put_idx("mnist/train-images-idx3-ubyte", 3, (int[]){20, 5, 4});
    put_idx("mnist/train-labels-idx1-ubyte", 1, (int[]){20});
    put_idx("mnist/t10k-images-idx3-ubyte", 3, (int[]){6, 5, 4});
    put_idx("mnist/t10k-labels-idx1-ubyte", 1, (int[]){6});
    for (int turn = 0; turn < 2; turn++) {
        float out[20];
        struct ku_data *d = open_images(&o);
        assert_int_equal(d->n_samples[0], 20);
        assert_int_equal(d->n_samples[1], turn ? 0 : 6);
        assert_int_equal(d->port[0].ndim, 3);
        assert_int_equal(d->port[0].dim[2], 1);
        for (int i = 0; i < 20; i++) {
            int32_t label;
            assert_int_equal(ku_data_read(d, KU_SPLIT_TRAIN, i, i, (void *[]){out, &label}), 0);
            assert_int_equal(label, i % 10);
            for (int k = 0; k < 20; k++)
                assert_true(out[k] == (float)((i * 20 + k) % 251 / 255.0));
        }
        ku_data_destroy(d);
        o.train = images; /* files, whose labels are found by name */
        o.n_val = 0;
    }
    put_idx("mnist/train-labels-idx1-ubyte", 1, (int[]){19});
    assert_refused(&o, KUMI_EINPUT, "data: @/mnist/train-labels-idx1-ubyte: 19 labels; …");
    o.n_classes = 9;
    put_idx("mnist/train-labels-idx1-ubyte", 1, (int[]){20});
    assert_refused(&o, KUMI_EINPUT,
                   "data: @/mnist/train-labels-idx1-ubyte: image 9: label 9; the "
                   "labels are 0 to 8");
}

static void names_wrong_idx(void **state)
{
    static const struct {
        unsigned char data[20];
        size_t bytes;
        const char *text;
    } rows[] = {
        {{0x1f, 0x8b, 8}, 18, "compressed; unpack it with gunzip"},
        {{0, 0, 8}, 3, "not an IDX file (MNIST's format)"},
        {{1, 0, 8, 3}, 20, "not an IDX file (MNIST's format)"},
        {{0, 0, 0x0d, 3}, 20, "IDX elements of type 0x0d; only u8 (0x08) is supported"},
        {{0, 0, 8, 9}, 20, "IDX header of 9 dimensions in a file of 20 bytes; 1 to 4…"},
        {{0, 0, 8, 3, 0, 0}, 10, "IDX header of 3 dimensions in a file of 10 bytes; 1…"},
        {{0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3},
         20,
         "4 bytes after the IDX header, whose shape needs 6; copy it again"},
        {{0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255},
         20,
         "4 bytes after the IDX header, whose shape needs 9223372036854775807; copy…"},
        {{0, 0, 8, 3}, 16, "0 bytes after the IDX header, whose shape needs 0; copy it again"},
        {{0, 0, 8, 1, 0, 0, 0, 12}, 20, "1 dimensions, 0 x 0 with 1 channels; images have…"}};
    const char *train[1];
    struct ku_image_opts o = {
        .kind = "idx", .train = train, .n_train = 1, .train_labels = train, .n_train_labels = 1};
    char text[256];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        train[0] = put("wrong.idx", rows[i].data, rows[i].bytes);
        snprintf(text, sizeof text, "data: @/wrong.idx: %s", rows[i].text);
        assert_refused(&o, KUMI_EINPUT, text);
    }
    o.n_train_labels = 0;
    assert_refused(&o, KUMI_EINVAL, "data: @/wrong.idx: no labels file matches this name; set…");
}

/* An .npy file: version 1 or 2, this dictionary, then n bytes counting from 0. */
static const char *put_npy(const char *name, int version, const char *dict, size_t n)
{
    static unsigned char data[1 << 16];
    size_t length = strlen(dict) + 1, at = version == 1 ? 10 : 12;
    memcpy(data, "\x93NUMPY", 6);
    data[6] = (unsigned char)version, data[7] = 0;
    data[8] = (unsigned char)length, data[9] = (unsigned char)(length >> 8);
    data[10] = data[11] = 0;
    memcpy(data + at, dict, length - 1);
    data[at + length - 1] = '\n';
    for (size_t i = 0; i < n; i++)
        data[at + length + i] = (unsigned char)i;
    return put(name, data, at + length + n);
}

#define DICT(type, shape) "{'descr': '" type "', 'fortran_order': False, 'shape': " shape ", }"

static void reads_npy(void **state)
{
    static const struct {
        const char *images, *layout;
        int version, ndim, dim[3];
        int at[4]; /* bytes of image 1's elements (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0) */
    } rows[] = {
        {DICT("|u1", "(4, 3, 5, 3)"), NULL, 1, 3, {3, 5, 3}, {45, 46, 48, 60}},
        {DICT("|u1", "(4, 3, 5, 3)"), "nhwc", 2, 3, {3, 5, 3}, {45, 46, 48, 60}},
        {DICT("|u1", "(4, 3, 5, 3)"), "nchw", 3, 3, {5, 3, 3}, {45, 60, 46, 48}},
        {DICT("|u1", "(4, 3, 5, 2)"), NULL, 1, 3, {5, 2, 3}, {30, 40, 31, 32}},
        {DICT("u1", "(4, 5, 2)"), NULL, 1, 3, {5, 2, 1}, {10, -1, 11, 12}},
        {DICT("|u1", "(4, 7)"), NULL, 1, 1, {7}, {7, -1, 8, -1}},
    };
    unsigned char out[64];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static const size_t counts[] = {180, 180, 180, 120, 40, 28};
        const char *train[] = {put_npy("x.npy", rows[i].version, rows[i].images, counts[i])},
                   *labels[] = {put_npy("y.npy", 1, DICT("<i2", "(4,)"), 8)};
        struct ku_image_opts o = {.kind = "npy",
                                  .train = train,
                                  .n_train = 1,
                                  .train_labels = labels,
                                  .n_train_labels = 1,
                                  .layout = rows[i].layout,
                                  .augment = {.dtype = KUMI_U8}};
        if (i == 0) { /* neither side says which are the channels */
            assert_refused(&o, KUMI_EINPUT, "data: @/x.npy: [4, 3, 5, 3]: set data.layout…");
            continue;
        }
        struct ku_data *d = open_images(&o);
        const struct ku_data_port *p = &d->port[0];
        int32_t label;
        assert_int_equal(p->ndim, rows[i].ndim);
        for (int k = 0; k < p->ndim; k++)
            assert_int_equal(p->dim[k], rows[i].dim[k]);
        assert_int_equal(ku_data_read(d, KU_SPLIT_TRAIN, 1, 0, (void *[]){out, &label}), 0);
        assert_int_equal(label, 2 + 3 * 256); /* bytes 2 and 3 */
        int64_t w = p->ndim == 1 ? p->dim[0] : p->dim[1], c = p->ndim == 1 ? 1 : p->dim[2];
        const int64_t at[] = {0, 1, c, w * c};
        for (int k = 0; k < 4; k++)
            if (rows[i].at[k] >= 0)
                assert_int_equal(out[at[k]], rows[i].at[k]);
        ku_data_destroy(d);
    }
}

static void names_wrong_npy(void **state)
{
    static const struct {
        const char *dict;
        size_t bytes;
        const char *text;
    } rows[] = {
        {DICT("|u1", "(2, 3)"), 5,
         "5 bytes after the NumPy header, whose shape needs 6; write it…"},
        {DICT("|u1", "(0, 3)"), 0,
         "0 bytes after the NumPy header, whose shape needs 0; write it…"},
        {DICT("|u1", "()"), 1, "1 bytes after the NumPy header, whose shape needs 1; write it…"},
        {DICT(">f4", "(2, 3)"), 24, "NumPy header: dtype '>f4'; images are u1 or <f4, labels…"},
        {DICT("<f8", "(2, 3)"), 48, "NumPy header: dtype '<f8'; images are…"},
        {DICT("<i4", "(2, 3)"), 24, "elements of i4; images are u1 or <f4"},
        {DICT("|u1", "(1, 1, 1, 1, 1)"), 1,
         "NumPy header: shape: not a tuple of at most 4 dimensions"},
        {DICT("|u1", "(99999999999999999999,)"), 1, "json: NumPy header:…"},
        {DICT("|u1", "(4294967296, 4294967296)"), 1,
         "NumPy header: shape: the product exceeds 63 bits"},
        {DICT("|u1", "(2 3)"), 6, "json: NumPy header:…"},
        {DICT("|u1", "(-2, 3)"), 6, "NumPy header: shape: not a number"},
        {"{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3)}", 6,
         "NumPy header: Fortran order; save numpy.ascontiguousarray of the array"},
        {"{'descr': '|u1', 'shape': (2, 3)}", 6,
         "NumPy header: not a dictionary of descr, fortran_order and shape"},
        {"{'descr': '|u1', 'descr': '|u1', 'shape': (2, 3)}", 6, "json: NumPy header:…"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", 8,
         "NumPy header: descr: not a string; structured arrays are not supported"},
        {"{'descr': '|u1'", 6, "json: NumPy header:…"},
        {"hello", 6, "json: NumPy header:…"},
    };
    const char *train[1];
    struct ku_image_opts o = {
        .kind = "npy", .train = train, .n_train = 1, .train_labels = train, .n_train_labels = 1};
    char text[256];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        train[0] = put_npy("wrong.npy", 1, rows[i].dict, rows[i].bytes);
        snprintf(text, sizeof text, "data: @/wrong.npy: %s", rows[i].text);
        assert_refused(&o, KUMI_EINPUT, text);
    }
    train[0] = put("wrong.npy", "\x93NUMPY\x09\x00\x01\x00", 10);
    assert_refused(&o, KUMI_EINPUT,
                   "data: @/wrong.npy: NumPy header: unknown version; 1 to 3 are…");
    train[0] = put("wrong.npy", "\x93NUMPY\x01\x00\xff\x0f", 10);
    assert_refused(&o, KUMI_EINPUT, "data: @/wrong.npy: NumPy header: longer than the file, or…");
    train[0] = put("wrong.npy", "PK", 2);
    assert_refused(&o, KUMI_EINPUT, "data: @/wrong.npy: NumPy header: missing; give a file that…");
    o.n_train_labels = 0;
    assert_refused(&o, KUMI_EINVAL,
                   "data: data.train_labels: 0 files of labels for 1 files of images;…");
}

static void names_wrong_options(void **state)
{
    const char *train[] = {put_cifar("o.bin", 10, 0, 1)}, *cut[] = {put("cut.bin", "abc", 3)},
               *label[] = {put_cifar("l.bin", 1, 0, 1)};
    const struct {
        struct ku_image_opts o;
        int status;
        const char *text;
    } rows[] = {
        {{.kind = "mnist", .train = train, .n_train = 1}, KUMI_EINVAL, "data: data.kind: 'mnist'…"},
        {{.kind = "cifar10"}, KUMI_EINVAL, "data: data.train: empty; give a path"},
        {{.kind = "cifar10", .train = train, .n_train = 1, .val_fraction = 1.0},
         KUMI_EINVAL,
         "data: data.val_fraction: 1; give at least 0 and less than 1"},
        {{.kind = "cifar10", .train = train, .n_train = 1, .val_fraction = 0.99},
         KUMI_EINPUT,
         "data: data.val_fraction: 0.99 of 10 images leaves none for training; give more…"},
        {{.kind = "cifar10", .train = train, .n_train = 1, .labels = "coarse"},
         KUMI_EINVAL,
         "data: data.labels: coarse; only cifar100 has such labels"},
        {{.kind = "cifar100", .train = train, .n_train = 1, .labels = "super"},
         KUMI_EINVAL,
         "data: data.labels: 'super'; give fine or coarse"},
        {{.kind = "cifar100", .train = train, .n_train = 1},
         KUMI_EINPUT,
         "data: @/o.bin: 30730 bytes; a file of cifar100 has records of 3074 bytes; copy it "
         "again"},
        {{.kind = "cifar10", .train = cut, .n_train = 1},
         KUMI_EINPUT,
         "data: @/cut.bin: 3 bytes; a file of cifar10 has records of 3073 bytes; copy it "
         "again"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_refused(&rows[i].o, rows[i].status, rows[i].text);
    FILE *f = fopen(label[0], "r+b");
    assert_non_null(f);
    assert_int_equal(fputc(200, f), 200);
    fclose(f);
    struct ku_image_opts o = {.kind = "cifar10", .train = label, .n_train = 1};
    struct ku_data *d = open_images(&o);
    static float out[3072];
    int32_t got;
    int status = ku_data_read(d, KU_SPLIT_TRAIN, 0, 0, (void *[]){out, &got});
    assert_error(status, KUMI_EINPUT, "data: @/l.bin: record 0: label 200; the labels are 0 to 9");
    assert_int_equal(truncate(label[0], 100), 0);
    status = ku_data_read(d, KU_SPLIT_TRAIN, 0, 0, (void *[]){out, &got});
    assert_error(status, KUMI_EINPUT,
                 "data: @/l.bin: record 0: ends at byte 100, 2973 of 3073 bytes…");
    ku_data_destroy(d);
}

/* The n-th allocation or system call fails, for every n: the status says which, nothing leaks, and
 * what could be opened reads right. */
static void survives_faults(void **state)
{
    static const struct {
        const char *spec;
        int status;
    } faults[] = {{"mem", KUMI_ENOMEM}, {"os", KUMI_EINPUT}};
    static struct tar t;
    (void)state;
    if (!ku_png_version())
        skip();
    t.bytes = 0;
    tar_image(&t, "0.png", "png_rgb.png");
    tar_add(&t, '0', "0.cls", "1", 1);
    char tar[2048], root[2048], npy[2048], classes[2048];
    const char *paths[][1] = {{tar}, {root}, {npy}}, *labels[] = {classes};
    snprintf(tar, sizeof tar, "%s", tar_put(&t, "fault.tar"));
    snprintf(root, sizeof root, "%s", in_folder("fault"));
    put_fixture("fault/a/0.png", "png_rgb.png");
    snprintf(npy, sizeof npy, "%s",
             put_npy("f.npy", 1, DICT("|u1", "(2, 13, 19, 3)"), 2 * 3 * H * W));
    snprintf(classes, sizeof classes, "%s", put_npy("g.npy", 1, DICT("|u1", "(2,)"), 2));
    for (int i = 0; i < 6; i++) {
        static const char *const kinds[] = {"tar", "folder", "npy"};
        int n = 1, n_failed = 0, is_npy = i % 3 == 2;
        for (int last = 0; !last; n++) {
            unsigned char out[3 * H * W];
            char spec[32];
            struct ku_data *d = NULL;
            int32_t label;
            struct ku_image_opts o = image_opts(kinds[i % 3], paths[i % 3]);
            o.train_labels = labels;
            o.n_train_labels = is_npy;
            o.augment.resize = 0;
            snprintf(spec, sizeof spec, "%s:%d", faults[i / 3].spec, n);
            ku_fault_set(spec);
            int status = ku_image_open(&o, &d);
            if (status == KUMI_OK)
                status = ku_data_read(d, KU_SPLIT_TRAIN, 0, 0, (void *[]){out, &label});
            ku_fault_set(NULL);
            if (status != KUMI_OK && status != faults[i / 3].status)
                fail_msg("%s %s: status %d '%s'", kinds[i % 3], spec, status, ku_err_get()->text);
            n_failed += status != KUMI_OK;
            last = status == KUMI_OK && n > 60;
            ku_data_destroy(d);
        }
        assert_true(n_failed > 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_cifar),          cmocka_unit_test(reads_a_cifar_folder),
        cmocka_unit_test(holds_out_a_fraction), cmocka_unit_test(reads_folders),
        cmocka_unit_test(names_wrong_folders),  cmocka_unit_test(reads_tars),
        cmocka_unit_test(names_wrong_tars),     cmocka_unit_test(reads_idx),
        cmocka_unit_test(names_wrong_idx),      cmocka_unit_test(reads_npy),
        cmocka_unit_test(names_wrong_npy),      cmocka_unit_test(names_wrong_options),
        cmocka_unit_test(survives_faults),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
