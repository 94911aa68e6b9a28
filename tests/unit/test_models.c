/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
/* Hugging Face's keys of Llama and BERT: spellings, defaults, what is printed, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/mem.h"
#include "kumi/model.h"
#include "op/rope.h"
#include "model/model.h"

static int parse(const char *text, struct ku_model *m)
{
    return ku_model_parse("config.json", text, strlen(text), m);
}

static void expect_same(const struct ku_model *a, const struct ku_model *b)
{
    char *text[2] = {ku_model_print(a), ku_model_print(b)};
    assert_non_null(text[0]);
    assert_non_null(text[1]);
    assert_string_equal(text[0], text[1]);
    ku_free(text[0]);
    ku_free(text[1]);
}

/* Parameters of a model as configured; what it prints is the same model. */
static int64_t n_params(const char *text)
{
    struct ku_model m, again;
    struct ku_graph *g;
    if (parse(text, &m) < 0)
        fail_msg("%s: %s", text, ku_err_get()->text);
    char *printed = ku_model_print(&m);
    assert_non_null(printed);
    if (parse(printed, &again) < 0)
        fail_msg("%s: %s", printed, ku_err_get()->text);
    expect_same(&m, &again);
    assert_int_equal(ku_model_graph(&m, &(struct kumi_shape_of_batch){.n = 1, .t = 8}, &g),
                     KUMI_OK);
    int64_t n = ku_graph_n_params(g);
    ku_graph_destroy(g);
    ku_free(printed);
    ku_model_fini(&again);
    ku_model_fini(&m);
    return n;
}

/* The counts that the models are known by. */
static void test_sizes(void **state)
{
    (void)state;
    assert_int_equal(n_params("{\"model_type\":\"llama\"}"), 6738415616); /* Llama 2 7B */
    assert_int_equal(n_params("{\"model_type\":\"llama\",\"vocab_size\":128256,"
                              "\"intermediate_size\":14336,\"num_key_value_heads\":8,"
                              "\"max_position_embeddings\":8192,\"rope_theta\":500000.0,"
                              "\"rope_scaling\":null,\"rms_norm_eps\":1e-5}"),
                     8030261248); /* Llama 3 8B */
    static const struct {
        int layers, heads, width;
        int64_t n;
    } gpt2[] = {{12, 12, 768, 124439808},
                {24, 16, 1024, 354823168},
                {36, 20, 1280, 774030080},
                {48, 25, 1600, 1557611200}}; /* small, medium, large, XL */
    for (size_t i = 0; i < sizeof gpt2 / sizeof gpt2[0]; i++) {
        char text[160];
        snprintf(text, sizeof text,
                 "{\"model_type\":\"gpt2\",\"n_layer\":%d,\"n_head\":%d,\"n_embd\":%d,"
                 "\"n_ctx\":1024,\"vocab_size\":50257}",
                 gpt2[i].layers, gpt2[i].heads, gpt2[i].width);
        assert_int_equal(n_params(text), gpt2[i].n);
    }
    assert_int_equal(
        n_params("{\"model_type\":\"llama\",\"vocab_size\":128256,\"hidden_size\":2048,"
                 "\"intermediate_size\":8192,\"num_hidden_layers\":16,"
                 "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"head_dim\":64,"
                 "\"max_position_embeddings\":131072,\"tie_word_embeddings\":true,"
                 "\"rope_theta\":500000.0,\"rope_scaling\":{\"factor\":32.0,"
                 "\"high_freq_factor\":4.0,\"low_freq_factor\":1.0,"
                 "\"original_max_position_embeddings\":8192,"
                 "\"rope_type\":\"llama3\"}}"),
        1235814400);                                                    /* Llama 3.2 1B */
    assert_int_equal(n_params("{\"model_type\":\"bert\"}"), 109514298); /* base, no pooler */
    assert_int_equal(n_params("{\"model_type\":\"bert\",\"hidden_size\":1024,"
                              "\"num_hidden_layers\":24,\"num_attention_heads\":16,"
                              "\"intermediate_size\":4096}"),
                     335174458); /* large, no pooler */
}

/* Hugging Face's config.json of a ResNet, whose classes have names instead of a number. */
static void test_resnet(void **state)
{
    static const char *const keys =
        "{\"model_type\":\"resnet\",\"depths\":[1,2],\"layer_type\":\"bottleneck\","
        "\"embedding_size\":8,\"hidden_sizes\":[32,64],\"hidden_act\":\"relu\","
        "\"downsample_in_bottleneck\":false,\"downsample_in_first_stage\":false,"
        "\"out_features\":[\"stage2\"],%s}";
    static const char *const classes[] = {
        "\"id2label\":{\"0\":\"a\",\"1\":\"b\",\"2\":\"c\"},\"label2id\":{\"a\":0}",
        "\"num_labels\":3,\"id2label\":{\"0\":\"a\"}", "\"num_classes\":3,\"id2label\":null"};
    (void)state;
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, keys, classes[i]);
        assert_int_equal(n_params(text), 13451);
    }
}

/* The sizes of an image that an MLP of 1 to 3 dimensions reads. */
static void test_mlp_images(void **state)
{
    static const struct {
        const char *input;
        int64_t image[3];
    } row[] = {{"[7]", {1, 7, 1}}, {"[5,7]", {5, 7, 1}}, {"[5,7,3]", {5, 7, 3}}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_model m;
        char text[80];
        snprintf(text, sizeof text, "{\"model_type\":\"mlp\",\"input\":%s}", row[i].input);
        assert_int_equal(parse(text, &m), KUMI_OK);
        for (int k = 0; k < 3; k++)
            assert_int_equal(m.properties.image[k], row[i].image[k]);
        ku_model_fini(&m);
    }
}

/* What transformers writes into any config.json, in one of a model_type that only kumi has. */
static void test_bookkeeping(void **state)
{
    (void)state;
    n_params("{\"model_type\":\"mlp\",\"architectures\":[\"MLP\"],\"torch_dtype\":\"float32\","
             "\"transformers_version\":\"4.57.0\",\"label2id\":{\"a\":0},\"return_dict\":true,"
             "\"problem_type\":null,\"_name_or_path\":\"x\"}");
}

/* Both spellings mean one thing. */
static void test_spellings(void **state)
{
    static const char *const same[][2] = {
        {"\"rope_theta\":500000.0", "\"rope_parameters\":{\"rope_theta\":500000.0}"},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}",
         "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4.0,\"rope_theta\":10000.0}"},
        {"\"rope_theta\":7.0,\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2}",
         "\"rope_parameters\":{\"rope_type\":\"dynamic\",\"factor\":2.0,\"rope_theta\":7.0}"},
        {"\"rope_scaling\":null", "\"rope_parameters\":null"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        struct ku_model m[2];
        for (int k = 0; k < 2; k++) {
            char text[256];
            snprintf(text, sizeof text, "{\"model_type\":\"llama\",%s}", same[i][k]);
            if (parse(text, &m[k]) < 0)
                fail_msg("%s: %s", text, ku_err_get()->text);
        }
        expect_same(&m[0], &m[1]);
        ku_model_fini(&m[0]);
        ku_model_fini(&m[1]);
    }
}

static void test_refused(void **state)
{
    static const char *const row[][2] = {
        {"\"llama\",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0}",
         "rope_scaling: \"yarn\"; a rope_type that is default, linear, dynamic or llama3"},
        {"\"mistral\"", "model_type: \"mistral\"; one of: gpt2 llama bert"},
        {"null", "model_type: null; one of: gpt2 llama bert"},
        {"\"gpt2\",\"add_cross_attention\":true", "add_cross_attention: true; it must be false"},
        {"\"gpt2\",\"activation_function\":\"mish\"", "activation_function: \"mish\"; one of: "},
        {"\"gpt2\",\"n_head\":5", "n_embd: 768; it must be divisible by n_head, 5"},
        {"\"llama\",\"rope_parameters\":{\"rope_type\":\"longrope\"}", "rope_parameters"},
        {"\"llama\",\"rope_parameters\":{\"partial_rotary_factor\":0.5}", "partial_rotary_factor"},
        {"\"llama\",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0}", "original_max"},
        {"\"llama\",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":-1}", "factor"},
        {"\"llama\",\"rope_scaling\":\"linear\"", "rope_scaling"},
        {"\"llama\",\"rope_scaling\":{\"type\":\"linear\"}",
         "a factor, which this rope_type needs"},
        {"\"llama\",\"rope_parameters\":{\"rope_type\":\"dynamic\"}", "a factor"},
        {"\"gpt2\",\"quantization_config\":{\"bits\":4}",
         "quantization_config: {\"bits\":4}; null"},
        {"\"bert\",\"quantization_config\":{}", "quantization_config: {}; null"},
        {"\"llama\",\"rope_theta\":0", "rope_theta"},
        {"\"llama\",\"pretraining_tp\":2", "pretraining_tp: 2; it must be 1"},
        {"\"llama\",\"quantization_config\":{\"bits\":4}",
         "quantization_config: {\"bits\":4}; null"},
        {"\"llama\",\"num_key_value_heads\":5", "num_key_value_heads"},
        {"\"llama\",\"head_dim\":5", "head_dim"},
        {"\"llama\",\"num_attention_heads\":33", "hidden_size"},
        {"\"llama\",\"hidden_act\":\"tanh\"", "hidden_act"},
        {"\"bert\",\"is_decoder\":true", "is_decoder: true; it must be false"},
        {"\"bert\",\"position_embedding_type\":\"relative_key\"", "position_embedding_type"},
        {"\"bert\",\"tie_word_embeddings\":false", "tie_word_embeddings"},
        {"\"bert\",\"num_attention_heads\":7", "hidden_size"},
        {"\"mlp\",\"hiden\":[3]", "config.json: hiden: unknown key; did you mean hidden?"},
        {"\"mlp\",\"n_layer\":2", "n_layer: unknown key"},
        {"\"transformer\",\"dropuot\":0.5", "dropuot: unknown key; did you mean dropout?"},
        {"\"transformer\",\"id2label\":{},\"encoder_ffn_dim\":8", "encoder_ffn_dim: unknown key"},
        {"\"resnet\",\"batch_norm_momentum\":0",
         "batch_norm_momentum: 0; a number above 0 and below 1"},
        {"\"resnet\",\"hidden_act\":\"gelu\"", "hidden_act: \"gelu\"; it must be relu"},
        {"\"resnet\",\"downsample_in_bottleneck\":true",
         "downsample_in_bottleneck: true; it must be false"},
        {"\"resnet\",\"downsample_in_first_stage\":true",
         "downsample_in_first_stage: true; it must be false"},
        {"\"resnet\",\"hidden_sizes\":[256,512,1024,1024]",
         "hidden_sizes: [256,512,1024,1024]; this network's are [256,512,1024,2048]"},
        {"\"resnet\",\"depths\":[1,1],\"hidden_sizes\":[64,128,256]",
         "hidden_sizes: [64,128,256]; this network's are [64,128]"},
        {"\"resnet\",\"hidden_sizes\":256", "hidden_sizes: 256; this network's are [256,"},
        {"\"resnet\",\"id2label\":3", "id2label: 3; an object"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_model m;
        char text[256];
        snprintf(text, sizeof text, "{\"model_type\":%s}", row[i][0]);
        assert_true(parse(text, &m) < 0);
        if (strstr(ku_err_get()->text, row[i][1]) == NULL)
            fail_msg("%s: \"%s\" does not speak of %s", text, ku_err_get()->text, row[i][1]);
    }
}

/* Frequencies as transformers 5.23 computes them (in f32, hence 1e-6). */
static void test_frequencies(void **state)
{
    static const struct {
        const char *attrs[5][2];
        double angle[4];
    } row[] = {
        {{{"rope_type", "linear"}, {"factor", "4"}, {"theta", "500"}},
         {0.25, 0.05286856, 0.0111803403, 0.00236435398}},
        {{{"rope_type", "dynamic"}, {"factor", "2"}, {"original", "16"}, {"length", "40"}},
         {1, 0.0629960522, 0.00396850286, 0.000250000012}},
        {{{"rope_type", "dynamic"}, {"factor", "2"}, {"original", "16"}, {"length", "9"}},
         {1, 0.100000001, 0.00999999978, 0.00100000005}},
        {{{"rope_type", "llama3"},
          {"factor", "8"},
          {"original", "100"},
          {"theta", "1000"},
          {"high_freq", "3"}},
         {1, 0.164619088, 0.00395284733, 0.000702926656}},
        {{{"rope_type", "llama3"}, {"factor", "32"}, {"original", "8192"}, {"theta", "500000"}},
         {1, 0.0376060307, 0.000429556705, 1.66196742e-06}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_attrs a = ku_attrs_default;
        double angle[4];
        for (int k = 0; k < 5 && row[i].attrs[k][0]; k++)
            assert_int_equal(ku_attrs_set(&a, row[i].attrs[k][0], row[i].attrs[k][1]), KUMI_OK);
        ku_rope_frequencies(&a, a.length, 8, angle);
        for (int j = 0; j < 4; j++)
            assert_true(fabs(angle[j] - row[i].angle[j]) <= 1e-6 * row[i].angle[j]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),      cmocka_unit_test(test_resnet),
        cmocka_unit_test(test_mlp_images), cmocka_unit_test(test_bookkeeping),
        cmocka_unit_test(test_spellings),  cmocka_unit_test(test_refused),
        cmocka_unit_test(test_frequencies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
