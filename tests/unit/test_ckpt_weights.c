/* SPDX-License-Identifier: Apache-2.0 */
/* links: ckpt tensor base */
#include "unit/ckpt_util.h"

#include "ckpt/safetensors.h"
#include "ckpt/weights.h"

static const char *const ignore[] = {"h.*.attn.bias", "h.*.attn.masked_bias"};
static const struct ku_weights_opts gpt2 = {.prefix = "transformer.",
                                            .ignore = ignore,
                                            .n_ignore = 2,
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
         "lm_head.weight differs from wte.weight, and the model ties them",
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
            assert_error(ku_weights_load(dir, m.t, 2, NULL, &r), KUMI_EINPUT, "f32 is wanted");
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

/* More differences than a record holds: the rest is logged, the counts are whole. */
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
    assert_non_null(strstr(ku_err_get()->text, "all above"));
    folder_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(dtypes),
        cmocka_unit_test(shapes_and_shards),
        cmocka_unit_test(long_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
