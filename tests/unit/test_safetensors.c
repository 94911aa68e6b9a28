/* SPDX-License-Identifier: Apache-2.0 */
/* links: ckpt tensor base */
#include "unit/ckpt_util.h"

#include <math.h>

#include "ckpt/safetensors.h"

static void put_length(unsigned char *word, uint64_t n)
{
    for (int i = 0; i < 8; i++)
        word[i] = (unsigned char)(n >> 8 * i);
}

/* A file: the length word, a header, data bytes 0, 1, 2, … */
static void st_write(const char *path, const char *header, size_t data_bytes)
{
    size_t header_bytes = strlen(header);
    unsigned char *file = malloc(8 + header_bytes + data_bytes + 1);
    put_length(file, header_bytes);
    memcpy(file + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        file[8 + header_bytes + i] = (unsigned char)i;
    file_write(path, file, 8 + header_bytes + data_bytes);
    free(file);
}

#define T(name, dtype, shape, begin, end)                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end \
    "]}"

static const struct {
    const char *header;
    size_t data_bytes;
    const char *error; /* NULL: good */
} rows[] = {
    {"{}", 0, NULL},
    {"{}      ", 0, NULL},
    {"{\"__metadata__\":{\"format\":\"pt\"}}", 0, NULL},
    {"{" T("a", "F32", "[2]", 0, 8) "}", 8, NULL},
    {"{" T("a", "F32", "[]", 0, 4) "}", 4, NULL},
    {"{" T("a", "F32", "[3,0,2]", 0, 0) "}", 0, NULL},
    {"{" T("b", "F16", "[2]", 4, 8) "," T("a", "U16", "[2]", 0, 4) "}", 8, NULL},
    {"{" T("a", "F32", "[0]", 4, 4) "," T("b", "F32", "[1]", 0, 4) "}", 4, NULL},
    {"{" T("a", "F4", "[4]", 0, 2) "}", 2, NULL},
    {"{" T("a", "BOOL", "[3]", 0, 3) "}", 3, NULL},
    {"{" T("\\u00e9", "U8", "[1,1,1,1,1,1,1,1]", 0, 1) "}", 1, NULL},
    /* each violation, each with its own line */
    {"[]", 0, "does not begin with '{'"},
    {" {}", 0, "does not begin with '{'"},
    {"{} x", 0, "header"},
    {"{\"a\":1", 0, "header"},
    {"{\"a\":1}", 0, "a: its description is not an object"},
    {"{\"__metadata__\":{\"format\":1}}", 0, "__metadata__ is not an object of strings"},
    {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object of strings"},
    {"{" T("a", "F32", "[1]", 0, 4) "," T("a", "F32", "[1]", 4, 8) "}", 8, "duplicate"},
    {"{" T("a", "F32", "[1]", 0, 4) "," T("\\u0061", "F32", "[1]", 4, 8) "}", 8, "duplicate"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1,
     "duplicate"},
    {"{" T("", "U8", "[]", 0, 1) "}", 1, "empty name"},
    {"{" T("a\\n", "U8", "[]", 0, 1) "}", 1, "control character 0x0a"},
    {"{" T("a", "F99", "[]", 0, 1) "}", 1, "a: dtype is F99, which is not a dtype of the format"},
    {"{\"a\":{\"shape\":[],\"data_offsets\":[0,1]}}", 1, "a: dtype is not a string"},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "a: shape is not an array"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", 1, "a: data_offsets is not a pair"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"x\":0}}", 1,
     "unknown key \"x\""},
    {"{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1) "}", 1, "at most 8 numbers"},
    {"{" T("a", "U8", "[-1]", 0, 1) "}", 1, "dimension 0 of shape is not an integer from 0"},
    {"{" T("a", "U8", "[1.0]", 0, 1) "}", 1, "dimension 0 of shape is not an integer from 0"},
    {"{" T("a", "U8", "[\"1\"]", 0, 1) "}", 1, "dimension 0 of shape is not an integer from 0"},
    {"{" T("a", "U8", "[9223372036854775807,2]", 0, 1) "}", 1, "is over 2^63"},
    {"{" T("a", "U8", "[4294967296,4294967296]", 0, 1) "}", 1, "is over 2^63"},
    {"{" T("a", "U8", "[18446744073709551617]", 0, 1) "}", 1, "header"},
    {"{" T("a", "F64", "[4611686018427387904]", 0, 8) "}", 8, "elements of F64 in 8 bytes"},
    {"{" T("a", "F32", "[3]", 0, 8) "}", 8, "a: 3 elements of F32 in 8 bytes"},
    {"{" T("a", "F4", "[3]", 0, 1) "}", 1, "a: 3 elements of F4 in 1 bytes"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 2,
     "data_offsets is not a pair"},
    {"{" T("a", "U8", "[1]", 1, 0) "}", 1, "data_offsets [1, 0] are not inside"},
    {"{" T("a", "U8", "[1]", -1, 0) "}", 1, "data_offsets [-1, 0] are not inside"},
    {"{" T("a", "U8", "[9]", 0, 9) "}", 8, "data_offsets [0, 9] are not inside the file's 8"},
    {"{" T("a", "U8", "[1]", 0, 9223372036854775807) "}", 1, "are not inside"},
    {"{" T("a", "U8", "[2]", 0, 2) "," T("b", "U8", "[2]", 3, 5) "}", 5, "b leaves a hole after a"},
    {"{" T("a", "U8", "[2]", 1, 3) "}", 3, "a leaves a hole after the header"},
    {"{" T("a", "U8", "[3]", 0, 3) "," T("b", "U8", "[2]", 2, 4) "}", 4, "b overlaps with a"},
    {"{" T("a", "U8", "[2]", 0, 2) "," T("b", "U8", "[2]", 0, 2) "}", 2, "b overlaps with a"},
    {"{" T("a", "U8", "[2]", 0, 2) "}", 3, "1 bytes after the last tensor's end"},
    {"{}", 1, "1 bytes after the last tensor's end"},
};

static void headers(void **state)
{
    (void)state;
    char dir[64], path[128];
    folder_make(dir);
    snprintf(path, sizeof path, "%s/x.safetensors", dir);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ku_st st;
        st_write(path, rows[i].header, rows[i].data_bytes);
        if (rows[i].error != NULL) {
            assert_error(ku_st_open(path, &st), KUMI_EINPUT, rows[i].error);
            assert_non_null(strstr(ku_err_get()->text, path));
        } else {
            assert_status(ku_st_open(path, &st), KUMI_OK);
            ku_st_close(&st);
        }
    }
    folder_remove(dir);
}

static void lengths(void **state)
{
    (void)state;
    static const struct {
        uint64_t header_bytes;
        size_t file_bytes;
        const char *error;
    } row[] = {{2, 0, "0 bytes; the smallest file has 10"},
               {2, 9, "9 bytes; the smallest file has 10"},
               {3, 10, "a header of 3 bytes in a file of 10"},
               {100000001, 10, "a header of 100000001 bytes; at most 100000000"},
               {UINT64_MAX, 4096, "a header of 18446744073709551615 bytes"},
               {(uint64_t)1 << 63, 4096, "a header of 9223372036854775808 bytes"},
               {0, 10, "does not begin with '{'"}};
    char dir[64], path[128];
    unsigned char file[4096] = {0};
    struct ku_st st;
    folder_make(dir);
    snprintf(path, sizeof path, "%s/x", dir);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        put_length(file, row[i].header_bytes);
        file_write(path, file, row[i].file_bytes);
        assert_error(ku_st_open(path, &st), KUMI_EINPUT, row[i].error);
    }
    assert_error(ku_st_open(dir, &st), KUMI_EINPUT, "not a regular file");
    snprintf(path, sizeof path, "%s/none", dir);
    assert_error(ku_st_open(path, &st), KUMI_EINPUT, "No such file");
    folder_remove(dir);
}

/* Every prefix of a good file is refused, and so is each with one byte more. */
static void truncated(void **state)
{
    (void)state;
    const char *header = "{" T("a", "F32", "[2]", 0, 8) "," T("b", "U8", "[3]", 8, 11) "}";
    char dir[64], path[128], cut[128];
    struct ku_st st;
    size_t bytes;
    folder_make(dir);
    snprintf(path, sizeof path, "%s/x", dir);
    snprintf(cut, sizeof cut, "%s/y", dir);
    st_write(path, header, 11);
    unsigned char *file = file_read(path, &bytes);
    for (size_t n = 0; n < bytes; n++) {
        file_write(cut, file, n);
        assert_status(ku_st_open(cut, &st), KUMI_EINPUT);
    }
    ku_free(file);
    folder_remove(dir);
}

static void find_and_place(void **state)
{
    (void)state;
    const char *header = "{" T("b", "U8", "[3]", 2, 5) "," T("a", "F16", "[1]", 0, 2) "," T(
        "z", "U8", "[0]", 5, 5) "," T("c", "U8", "[1]", 5, 6) "}";
    struct ku_st st;
    assert_status(ku_st_parse("x", header, strlen(header), 8 + strlen(header) + 6, &st), KUMI_OK);
    uint64_t at = st.data_at;
    assert_int_equal(st.n, 4);
    assert_string_equal(ku_st_find(&st, "b")->type, "U8");
    assert_null(ku_st_find(&st, "bb"));
    assert_null(ku_st_at(&st, at - 1));
    assert_string_equal(ku_st_at(&st, at)->name, "a");
    assert_string_equal(ku_st_at(&st, at + 4)->name, "b");
    assert_string_equal(ku_st_at(&st, at + 5)->name, "c");
    assert_null(ku_st_at(&st, at + 6));
    ku_st_close(&st);
}

/* Each dtype of files into each of memory, from an odd place, into padded memory. */
static void conversions(void **state)
{
    (void)state;
    static const double values[] = {0, 1, 2, 127, 200};
    char dir[64], path[128], header[256];
    folder_make(dir);
    snprintf(path, sizeof path, "%s/x", dir);
    for (enum kumi_dtype from = 0; from < KUMI_N_DTYPES; from++) {
        size_t each = kumi_dtype_bytes(from);
        snprintf(header, sizeof header,
                 "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"x\":{\"dtype\":"
                 "\"%s\","
                 "\"shape\":[5],\"data_offsets\":[1,%zu]}}",
                 ku_st_type_name(from), 1 + 5 * each);
        size_t header_bytes = strlen(header);
        unsigned char file[512] = {0}, data[64];
        put_length(file, header_bytes);
        memcpy(file + 8, header, header_bytes);
        for (int i = 0; i < 5; i++)
            ku_store_f64(data, from, i, values[i]);
        memcpy(file + 8 + header_bytes + 1, data, 5 * each);
        file_write(path, file, 8 + header_bytes + 1 + 5 * each);
        struct ku_st st;
        assert_status(ku_st_open(path, &st), KUMI_OK);
        for (enum kumi_dtype to = 0; to < KUMI_N_DTYPES; to++) {
            double memory[8];
            memset(memory, 0x5A, sizeof memory);
            struct ku_ckpt_tensor t = {
                .name = "x", .dtype = to, .ndim = 1, .dim = {5}, .padded = {6}, .data = memory};
            assert_status(ku_st_read(&st, ku_st_find(&st, "x"), &t, 1), KUMI_OK);
            for (int i = 0; i < 5; i++)
                assert_true(ku_load_f64(memory, to, i) == values[i]);
            assert_int_equal(((unsigned char *)memory)[5 * kumi_dtype_bytes(to)], 0x5A);
        }
        ku_st_close(&st);
    }
    folder_remove(dir);
}

static void exact_or_refused(void **state)
{
    (void)state;
    float f[4];
    uint16_t h[4];
    int32_t w[4];
    struct ku_ckpt_tensor to_bf16 = {
        .name = "x", .dtype = KUMI_BF16, .ndim = 1, .dim = {4}, .padded = {4}, .data = h};
    struct ku_ckpt_tensor to_f32 = {
        .name = "x", .dtype = KUMI_F32, .ndim = 1, .dim = {4}, .padded = {4}, .data = f};
    struct ku_ckpt_tensor to_i32 = {
        .name = "x", .dtype = KUMI_I32, .ndim = 1, .dim = {4}, .padded = {4}, .data = w};
    assert_status(
        ku_ckpt_tensor_scatter(&to_bf16, 0, 4, (float[]){1, -0.0f, INFINITY, NAN}, KUMI_F32, 1),
        KUMI_OK);
    assert_error(ku_ckpt_tensor_scatter(&to_bf16, 0, 4, (float[]){1, 2, 257, 3}, KUMI_F32, 1),
                 KUMI_EINPUT, "x: element 2: 257 of dtype f32 cannot be represented in bf16");
    assert_status(ku_ckpt_tensor_scatter(&to_bf16, 0, 4, (float[]){1, 2, 257, 3}, KUMI_F32, 0),
                  KUMI_OK);
    assert_true(ku_bf16_to_f32(h[2]) == 256.0f);
    assert_error(ku_ckpt_tensor_scatter(&to_f32, 0, 4, (double[]){1, 0.1, 2, 3}, KUMI_F64, 1),
                 KUMI_EINPUT, "element 1");
    assert_error(ku_ckpt_tensor_scatter(&to_f32, 0, 4, (double[]){1, 2, 3, 1e300}, KUMI_F64, 1),
                 KUMI_EINPUT, "element 3");
    assert_error(ku_ckpt_tensor_scatter(&to_i32, 0, 4, (float[]){1, 2, 1.5f, 3}, KUMI_F32, 1),
                 KUMI_EINPUT, "element 2");
    assert_error(ku_ckpt_tensor_scatter(&to_i32, 0, 4, (float[]){1, NAN, 1, 3}, KUMI_F32, 1),
                 KUMI_EINPUT, "element 1");
    assert_error(
        ku_ckpt_tensor_scatter(&to_i32, 0, 4, (int64_t[]){1, 2, 3, (int64_t)1 << 40}, KUMI_I64, 1),
        KUMI_EINPUT, "element 3");
    assert_error(
        ku_ckpt_tensor_scatter(&to_f32, 0, 4, (int32_t[]){16777216, 16777217, 0, 0}, KUMI_I32, 1),
        KUMI_EINPUT, "element 1");
}

/* A file that says BOOL may be opened; only reading that tensor is refused. */
static void unread_type(void **state)
{
    (void)state;
    char dir[64], path[128];
    uint8_t memory[3];
    struct ku_st st;
    folder_make(dir);
    snprintf(path, sizeof path, "%s/x", dir);
    st_write(path, "{" T("a", "BOOL", "[3]", 0, 3) "}", 3);
    struct ku_ckpt_tensor t = {
        .name = "a", .dtype = KUMI_U8, .ndim = 1, .dim = {3}, .padded = {3}, .data = memory};
    assert_status(ku_st_open(path, &st), KUMI_OK);
    assert_error(ku_st_read(&st, ku_st_find(&st, "a"), &t, 1), KUMI_EINPUT,
                 "dtype BOOL; kumi reads");
    ku_st_close(&st);
    folder_remove(dir);
}

static void written_header(void **state)
{
    (void)state;
    struct ku_ckpt_tensor a = {.name = "b.w", .dtype = KUMI_F32, .ndim = 2, .dim = {2, 3}};
    struct ku_ckpt_tensor b = {.name = "a\"\\", .dtype = KUMI_F32, .ndim = 0};
    struct ku_ckpt_tensor c = {.name = "wide", .dtype = KUMI_F64, .ndim = 1, .dim = {1}};
    const struct ku_ckpt_tensor *t[] = {&a, &b, &c};
    struct ku_str s = {0};
    uint64_t at[4];
    ku_st_sort(t, 3);
    assert_ptr_equal(t[0], &c);
    assert_ptr_equal(t[1], &b);
    assert_status(ku_st_header_print(t, 3, &s, at), KUMI_OK);
    const char *text = "{\"__metadata__\":{\"format\":\"pt\"},"
                       "\"wide\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]},"
                       "\"a\\\"\\\\\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8,12]},"
                       "\"b.w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[12,36]}}";
    assert_memory_equal(s.text + 8, text, strlen(text));
    assert_int_equal(s.bytes % 8, 0);
    assert_int_equal(at[0], s.bytes);
    assert_int_equal(at[3], s.bytes + 36);
    struct ku_st st;
    assert_status(ku_st_parse("x", s.text + 8, s.bytes - 8, at[3], &st), KUMI_OK);
    assert_int_equal(ku_st_find(&st, "b.w")->at, at[2]);
    ku_st_close(&st);
    ku_str_fini(&s);
    b.name = "\xff\xfe";
    assert_error(ku_st_header_print(t, 3, &s, at), KUMI_EINVAL, "UTF-8");
    ku_str_fini(&s);
}

static void shards(void **state)
{
    (void)state;
    static const struct {
        const char *index, *error;
    } row[] = {
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\",\"c\":\"1.safetensors\"}"
         "}",
         NULL},
        {"{\"metadata\":{\"total_size\":3}}", "no object weight_map"},
        {"{\"weight_map\":", "model.safetensors.index.json:1:"},
        {"{\"weight_map\":{\"a\":\"../1.safetensors\"}}",
         "is not the name of a file beside the index"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "is not the name of a file beside the index"},
        {"{\"weight_map\":{\"a\":7}}", "is not the name of a file beside the index"},
        {"{\"weight_map\":{\"a\":\"3.safetensors\"}}", "No such file"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"c\":\"1.safetensors\",\"d\":\"2.safetensors\"}"
         "}",
         "d is in no shard"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"1.safetensors\",\"c\":\"2.safetensors\"}"
         "}",
         "the index says"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}", "c of "},
    };
    char dir[64], path[128];
    folder_make(dir);
    struct ku_st_set set;
    snprintf(path, sizeof path, "%s/absent", dir);
    assert_error(ku_st_set_open(path, &set), KUMI_EINPUT, "/absent: there is no such directory");
    assert_error(ku_st_set_open(dir, &set), KUMI_EINPUT, "neither model.safetensors nor");
    snprintf(path, sizeof path, "%s/pytorch_model.bin", dir);
    file_write(path, "x", 1);
    assert_error(ku_st_set_open(dir, &set), KUMI_EINPUT, "pytorch_model.bin: a pickle");
    snprintf(path, sizeof path, "%s/1.safetensors", dir);
    st_write(path, "{" T("a", "U8", "[1]", 0, 1) "," T("c", "U8", "[1]", 1, 2) "}", 2);
    snprintf(path, sizeof path, "%s/2.safetensors", dir);
    st_write(path, "{" T("b", "U8", "[1]", 0, 1) "}", 1);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        file_write(path, row[i].index, strlen(row[i].index));
        if (row[i].error != NULL) {
            assert_error(ku_st_set_open(dir, &set), KUMI_EINPUT, row[i].error);
            continue;
        }
        const struct ku_st *file;
        assert_status(ku_st_set_open(dir, &set), KUMI_OK);
        assert_int_equal(set.n, 2);
        assert_non_null(ku_st_set_find(&set, "c", &file));
        assert_null(ku_st_set_find(&set, "d", &file));
        ku_st_set_close(&set);
    }
    snprintf(path, sizeof path, "%s/2.safetensors", dir);
    st_write(path, "{" T("b", "U8", "[1]", 0, 1) "," T("a", "U8", "[1]", 1, 2) "}", 2);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    file_write(path, row[0].index, strlen(row[0].index));
    assert_error(ku_st_set_open(dir, &set), KUMI_EINPUT, "a tensor is in two shards");
    folder_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers),     cmocka_unit_test(lengths),
        cmocka_unit_test(truncated),   cmocka_unit_test(find_and_place),
        cmocka_unit_test(conversions), cmocka_unit_test(exact_or_refused),
        cmocka_unit_test(unread_type), cmocka_unit_test(written_header),
        cmocka_unit_test(shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
