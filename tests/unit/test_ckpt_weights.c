/* SPDX-License-Identifier: Apache-2.0 */
/* links: ckpt tensor base */
#include "unit/ckpt_util.h"

#include <math.h>

#include "ckpt/safetensors.h"
#include "ckpt/weights.h"

static const char *const ignore[] = {"h.*.attn.bias", "h.*.attn.masked_bias"};
static const struct ku_weights_ending ending[] = {{"ln.weight", "ln.gamma"},
                                                  {"ln.bias", "ln.beta"}};
static const struct ku_weights_opts gpt2 = {.prefix = "transformer.",
                                            .ignore = ignore,
                                            .n_ignore = 2,
                                            .ending = ending,
                                            .n_endings = 2,
                                            .tied = "lm_head.weight",
                                            .tied_to = "wte.weight"};

/* A file of small f32 tensors [2,3] by name; the values count on from tensor to tensor, or repeat
 * where a name begins with '='. */
static void make_file(const char *dir, const char *file, const char *const *names,
                      enum kumi_dtype dtype)
{
    struct ku_ckpt_tensor t[8];
    const struct ku_ckpt_tensor *sorted[8];
    double data[8][6];
    struct ku_str s = {0};
    uint64_t at[9];
    int n = 0;
    char path[256];
    for (; names[n] != NULL; n++) {
        t[n] = (struct ku_ckpt_tensor){
            .name = names[n], .dtype = dtype, .ndim = 2, .dim = {2, 3}, .padded = {2, 3}};
        t[n].data = data[n];
        sorted[n] = &t[n];
        int repeat = names[n][0] == '=';
        t[n].name += repeat;
        for (int i = 0; i < 6; i++)
            ku_store_f64(data[n], dtype, i, (repeat ? 0 : n * 10) + i + 0.5);
    }
    ku_st_sort(sorted, n);
    assert_status(ku_st_header_print(sorted, n, &s, at), KUMI_OK);
    for (int i = 0; i < n; i++)
        ku_str_append(&s, sorted[i]->data, 6 * kumi_dtype_bytes(dtype));
    snprintf(path, sizeof path, "%s/%s", dir, file);
    file_write(path, s.text, s.bytes);
    ku_str_fini(&s);
}

struct model {
    float wte[4 * 3], ln[2 * 3];
    struct ku_ckpt_tensor t[2];
};
static void model_init(struct model *m)
{
    memset(m, 0xA5, sizeof *m);
    m->t[0] = (struct ku_ckpt_tensor){.name = "wte.weight",
                                      .dtype = KUMI_F32,
                                      .ndim = 2,
                                      .dim = {2, 3},
                                      .padded = {4, 3},
                                      .data = m->wte,
                                      .group = KU_CKPT_MODEL};
    m->t[1] = m->t[0];
    m->t[1].name = "h.0.ln.weight";
    m->t[1].padded[0] = 2;
    m->t[1].data = m->ln;
}

static void names(void **unused)
{
    (void)unused;
    static const struct {
        const char *name[8];
        const char *error;
        int has_prefix, has_tied, n_ignored;
    } row[] = {
        {{"wte.weight", "h.0.ln.weight"}, NULL, 0, 0, 0},
        {{"transformer.wte.weight", "transformer.h.0.ln.weight"}, NULL, 1, 0, 0},
        {{"wte.weight", "h.0.ln.weight", "h.0.attn.bias", "h.11.attn.masked_bias"}, NULL, 0, 0, 2},
        {{"transformer.wte.weight", "transformer.h.0.ln.weight", "transformer.h.0.attn.bias",
          "=lm_head.weight"},
         NULL,
         1,
         1,
         1},
        {{"wte.weight", "h.0.ln.weight", "=lm_head.weight"}, NULL, 0, 1, 0},
        {{"wte.weight", "h.0.ln.weight", "lm_head.weight"},
         "lm_head.weight differs from wte.weight, but the model ties them",
         0,
         0,
         0},
        {{"wte.weight", "h.0.ln.weight", "h.1.ln.weight"},
         "0 missing, 1 extra, 0 misshapen: extra "
         "h.1.ln.weight",
         0,
         0,
         0},
        {{"h.0.ln.weight", "lm_head.weight"},
         "1 missing, 1 extra, 0 misshapen: missing wte.weight, extra lm_head.weight",
         0,
         0,
         0},
        {{"wte.weight", "transformer.wte.weight", "h.0.ln.weight"},
         "both wte.weight and transformer.wte.weight",
         0,
         0,
         0},
        {{"model.wte.weight", "h.0.ln.weight"}, "1 missing, 1 extra", 0, 0, 0},
        {{"wte.weight", "h.0.ln.gamma"}, NULL, 0, 0, 0},
        {{"transformer.wte.weight", "transformer.h.0.ln.gamma"}, NULL, 1, 0, 0},
        {{"wte.weight", "h.0.ln.weight", "h.0.ln.gamma"}, "extra h.0.ln.gamma", 0, 0, 0},
        {{"wte.weight", "h.0.ln.beta"}, "missing h.0.ln.weight, extra h.0.ln.beta", 0, 0, 0},
    };
    char dir[64];
    folder_make(dir);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct model m;
        struct ku_weights_report r;
        model_init(&m);
        make_file(dir, "model.safetensors", row[i].name, KUMI_F32);
        if (row[i].error != NULL) {
            assert_error(ku_weights_load(dir, m.t, 2, &gpt2, &r), KUMI_EINPUT, row[i].error);
            assert_int_equal(((unsigned char *)m.wte)[0], 0xA5); /* nothing was written */
            continue;
        }
        assert_status(ku_weights_load(dir, m.t, 2, &gpt2, &r), KUMI_OK);
        assert_int_equal(r.has_prefix, row[i].has_prefix);
        assert_int_equal(r.has_tied, row[i].has_tied);
        assert_int_equal(r.n_ignored, row[i].n_ignored);
        for (int j = 0; j < 6; j++) {
            assert_true(m.wte[j] == (float)j + 0.5f);
            assert_true(m.ln[j] == (float)(10 + j) + 0.5f);
        }
        assert_int_equal(((unsigned char *)m.wte)[6 * 4], 0xA5); /* padding stays */
    }
    folder_remove(dir);
}

static void dtypes(void **unused)
{
    (void)unused;
    static const char *const name[] = {"wte.weight", "h.0.ln.weight", NULL};
    char dir[64];
    folder_make(dir);
    for (enum kumi_dtype d = 0; d < KUMI_N_DTYPES; d++) {
        struct model m;
        struct ku_weights_report r;
        model_init(&m);
        make_file(dir, "model.safetensors", name, d);
        if (d > KUMI_F16) {
            assert_error(ku_weights_load(dir, m.t, 2, NULL, &r), KUMI_EINPUT,
                         "the model needs f32");
            continue;
        }
        assert_status(ku_weights_load(dir, m.t, 2, NULL, &r), KUMI_OK);
        assert_int_equal(r.n_rounded, d == KUMI_F64 ? 2 : 0);
        assert_true(m.ln[5] == 15.5f);
    }
    folder_remove(dir);
}

static void shapes_and_shards(void **unused)
{
    (void)unused;
    static const char *const one[] = {"transformer.wte.weight", NULL};
    static const char *const two[] = {"transformer.h.0.ln.weight", NULL};
    const char *index = "{\"metadata\":{\"total_size\":48},\"weight_map\":{"
                        "\"transformer.wte.weight\":\"model-00001-of-00002.safetensors\","
                        "\"transformer.h.0.ln.weight\":\"model-00002-of-00002.safetensors\"}}";
    char dir[64], path[256];
    struct model m;
    struct ku_weights_report r;
    folder_make(dir);
    make_file(dir, "model-00001-of-00002.safetensors", one, KUMI_F32);
    make_file(dir, "model-00002-of-00002.safetensors", two, KUMI_F32);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    file_write(path, index, strlen(index));
    model_init(&m);
    assert_status(ku_weights_load(dir, m.t, 2, &gpt2, &r), KUMI_OK);
    assert_true(r.has_prefix && m.ln[5] == 5.5f && m.wte[5] == 5.5f);
    m.t[0].dim[0] = 3;
    m.t[1].ndim = 1;
    assert_error(
        ku_weights_load(dir, m.t, 2, &gpt2, &r), KUMI_EINPUT,
        "0 missing, 0 extra, 2 misshapen: transformer.wte.weight is [2,3] instead of [3,3], "
        "transformer.h.0.ln.weight is [2,3] instead of [2]");
    folder_remove(dir);
}

/* More differences than a record holds: the counts are whole, some of each sort are named. */
static void long_list(void **unused)
{
    (void)unused;
    static const char *const name[] = {"wte.weight", NULL};
    char dir[64], names_of[40][32];
    struct ku_ckpt_tensor t[40];
    float memory[6];
    folder_make(dir);
    make_file(dir, "model.safetensors", name, KUMI_F32);
    for (int i = 0; i < 40; i++) {
        snprintf(names_of[i], sizeof names_of[i], "h.%d.attn.c_attn.weight", i);
        t[i] = (struct ku_ckpt_tensor){
            .name = names_of[i], .dtype = KUMI_F32, .ndim = 1, .data = memory};
        t[i].dim[0] = t[i].padded[0] = 6;
    }
    assert_error(ku_weights_load(dir, t, 40, NULL, NULL), KUMI_EINPUT,
                 "40 missing, 1 extra, 0 misshapen: missing h.0.attn.c_attn.weight, ");
    assert_non_null(strstr(ku_err_get()->text,
                           "missing h.3.attn.c_attn.weight, extra wte.weight and 36 more; "));
    folder_remove(dir);
}

/* Element i of a tensor, exact in every floating dtype. */
static double value_at(int64_t i)
{
    return (double)((i * 2654435761) >> 7 & 255) - 128;
}

/* Tensors "a", "b", … in this order, whose data begin `odd` bytes behind a multiple of 8. */
static void make_large(const char *path, const int64_t *count, const enum kumi_dtype *dtype, int n,
                       size_t odd)
{
    struct ku_str s = {0};
    uint64_t at = 0;
    ku_str_append(&s, "01234567{", 9);
    for (int i = 0; i < n; i++) {
        uint64_t end = at + (uint64_t)count[i] * kumi_dtype_bytes(dtype[i]);
        ku_str_add(&s, "%s\"%c\":{\"dtype\":\"%s\",\"shape\":[%lld],\"data_offsets\":[%llu,%llu]}",
                   i ? "," : "", 'a' + i, ku_st_type_name(dtype[i]), (long long)count[i],
                   (unsigned long long)at, (unsigned long long)end);
        at = end;
    }
    ku_str_append(&s, "}", 1);
    while (s.bytes % 8 != odd)
        ku_str_append(&s, " ", 1);
    uint64_t header_bytes = s.bytes - 8;
    memcpy(s.text, &header_bytes, 8);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < count[i]; k++) {
            unsigned char x[8] = {0};
            ku_store_f64(x, dtype[i], 0, value_at(k + i));
            ku_str_append(&s, x, kumi_dtype_bytes(dtype[i]));
        }
    file_write(path, s.text, s.bytes);
    ku_str_fini(&s);
}

/* Files of several windows of every alignment: ranks read disjoint parts, all of it together. */
static void parts_of_ranks(void **unused)
{
    (void)unused;
    enum { N = 5, MIB = 1 << 20 };
    static const int64_t count[N] = {MIB + 3, 1, 0, 513, 2 * MIB - 77};
    static const enum kumi_dtype dtype[N] = {KUMI_BF16, KUMI_F64, KUMI_F32, KUMI_F16, KUMI_F32};
    static const int n_ranks[] = {1, 2, 3, 7};
    static const char *const name[N] = {"a", "b", "c", "d", "e"};
    struct ku_ckpt_tensor t[N];
    char dir[64], path[128];
    folder_make(dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    for (int i = 0; i < N; i++) {
        t[i] = (struct ku_ckpt_tensor){
            .name = name[i], .dtype = KUMI_F32, .ndim = 1, .group = KU_CKPT_MODEL};
        t[i].dim[0] = t[i].padded[0] = count[i];
        t[i].data = ku_malloc((size_t)count[i] * 4 + 4);
    }
    for (size_t odd = 0; odd < 8; odd++) {
        make_large(path, count, dtype, N, odd);
        for (size_t r = 0; r < sizeof n_ranks / sizeof *n_ranks; r++) {
            int64_t n_written = 0, n_all = 0;
            for (int rank = 0; rank < n_ranks[r]; rank++) {
                struct ku_weights w;
                for (int i = 0; i < N; i++)
                    memset(t[i].data, 0xFF, (size_t)count[i] * 4); /* NaN */
                assert_status(ku_weights_open(dir, t, N, NULL, &w), KUMI_OK);
                assert_status(ku_weights_read(&w, rank, n_ranks[r]), KUMI_OK);
                ku_weights_close(&w);
                for (int i = 0; i < N; i++)
                    for (int64_t k = 0; k < count[i]; k++) {
                        float x = ((float *)t[i].data)[k];
                        assert_true(x != x || x == (float)value_at(k + i));
                        n_written += x == x;
                    }
            }
            for (int i = 0; i < N; i++)
                n_all += count[i];
            assert_int_equal(n_written, n_all);
        }
    }
    for (int i = 0; i < N; i++)
        ku_free(t[i].data);
    folder_remove(dir);
}

/* A file that is cut short between opening and reading. */
static void shortened(void **unused)
{
    (void)unused;
    static const char *const name[] = {"wte.weight", "h.0.ln.weight", NULL};
    char dir[64], path[256];
    struct model m;
    struct ku_weights w;
    folder_make(dir);
    make_file(dir, "model.safetensors", name, KUMI_F32);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    model_init(&m);
    assert_status(ku_weights_open(dir, m.t, 2, &gpt2, &w), KUMI_OK);
    assert_int_equal(truncate(path, (off_t)w.set.file[0].file_bytes - 1), 0);
    assert_error(ku_weights_read(&w, 0, 1), KUMI_EINPUT, "when opened; do not change it while");
    ku_weights_close(&w);
    folder_remove(dir);
}

/* 65520 rounds to infinity in f16: reading and writing refuse it, and keep infinity and NaN. */
static void range(void **unused)
{
    (void)unused;
    static const struct {
        float x;
        enum kumi_dtype to;
        const char *error;
    } row[] = {{65519, KUMI_F16, NULL},
               {65520, KUMI_F16, "exceeds the range of f16; choose a wider dtype"},
               {-1e30f, KUMI_F16, "a: element 2: -1.0000000150474662e+30 of dtype f32 exceeds"},
               {1e30f, KUMI_BF16, NULL},
               {3.4e38f, KUMI_BF16, "exceeds the range of bf16"},
               {INFINITY, KUMI_F16, NULL},
               {NAN, KUMI_F16, NULL}};
    char dir[64], path[128], to[128];
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        float data[3] = {1, 0.1f, row[i].x};
        uint16_t read[3];
        struct ku_ckpt_tensor t = {
            .name = "a", .dtype = KUMI_F32, .ndim = 1, .dim = {3}, .padded = {3}, .data = data};
        const struct ku_ckpt_tensor *sorted = &t;
        struct ku_str s = {0};
        struct ku_weights w;
        struct stat info;
        uint64_t at[2];
        folder_make(dir);
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        snprintf(to, sizeof to, "%s/written", dir);
        assert_status(ku_st_header_print(&sorted, 1, &s, at), KUMI_OK);
        ku_str_append(&s, (const char *)data, sizeof data);
        file_write(path, s.text, s.bytes);
        ku_str_fini(&s);
        assert_status(ku_weights_open(dir, NULL, 0, NULL, &w), KUMI_OK);
        int status = ku_weights_write(&w, to, row[i].to, 0, "{}", NULL);
        t.dtype = row[i].to, t.data = read, t.group = KU_CKPT_MODEL;
        if (row[i].error) {
            assert_error(status, KUMI_EINPUT, row[i].error);
            assert_int_equal(ku_os_stat(to, &info), -1);
            assert_error(ku_weights_load(dir, &t, 1, NULL, NULL), KUMI_EINPUT, row[i].error);
        } else {
            assert_status(status, KUMI_OK);
            assert_status(ku_weights_load(dir, &t, 1, NULL, NULL), KUMI_OK);
        }
        ku_weights_close(&w);
        folder_remove(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(dtypes),
        cmocka_unit_test(shapes_and_shards),
        cmocka_unit_test(long_list),
        cmocka_unit_test(parts_of_ranks),
        cmocka_unit_test(shortened),
        cmocka_unit_test(range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
