/* SPDX-License-Identifier: Apache-2.0 */
/* links: ckpt tensor base */
#include "unit/ckpt_util.h"

#include "base/hash.h"
#include "ckpt/digest.h"

/* The bytes that docs/internals/numerics.md spells out, put together by hand for two tensors. */
static void by_hand(void **unused)
{
    (void)unused;
    static const unsigned char bytes[] = "\x01\0\0\0"
                                         "b"
                                         "\x03\0\0\0"
                                         "F32"
                                         "\x02\0\0\0"
                                         "\x02\0\0\0\0\0\0\0"
                                         "\x01\0\0\0\0\0\0\0"
                                         "\0\0\x80\x3f"
                                         "\0\0\0\x40" /* 1, 2 */
                                         "\x01\0\0\0"
                                         "a"
                                         "\x02\0\0\0"
                                         "U8"
                                         "\0\0\0\0"
                                         "\x07";
    float b[] = {1, 99, 2, 99};
    uint8_t a[] = {7};
    struct ku_ckpt_tensor t[] = {
        {.name = "a", .dtype = KUMI_U8, .data = a, .group = KU_CKPT_OPTIMIZER},
        {.name = "b", .dtype = KUMI_F32, .ndim = 2, .dim = {2, 1}, .padded = {2, 2}, .data = b}};
    for (int parameters_only = 0; parameters_only < 2; parameters_only++) {
        struct ku_sha256 h;
        unsigned char sha[32];
        char hex[65], digest[KU_DIGEST_TEXT_BYTES];
        assert_status(ku_sha256_init(&h), KUMI_OK);
        ku_sha256_update(&h, bytes, parameters_only ? 5 + 7 + 4 + 16 + 8 : sizeof bytes - 1);
        ku_sha256_final(&h, sha);
        ku_sha256_hex(sha, hex);
        assert_status(ku_digest_memory(t, 2, parameters_only, digest), KUMI_OK);
        assert_memory_equal(digest, "sha256:", 7);
        assert_string_equal(digest + 7, hex);
    }
}

static void python_digest(const char *snapshot, const char *option, char out[KU_DIGEST_TEXT_BYTES])
{
    char command[512];
    snprintf(command, sizeof command, "python3 " KUMI_SOURCE_DIR "/tools/digest.py %s %s", option,
             snapshot);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_non_null(fgets(out, KU_DIGEST_TEXT_BYTES, f));
    while (fgetc(f) != EOF)
        ;
    assert_int_equal(pclose(f), 0);
}

/* Memory, snapshot and the Python script agree; padding and layout do not show, each element does.
 */
static void memory_and_snapshot(void **unused)
{
    (void)unused;
    struct state s;
    char dir[64], path[128], a[KU_DIGEST_TEXT_BYTES], b[KU_DIGEST_TEXT_BYTES];
    folder_make(dir);
    state_init(&s);
    state_fill(&s, 3);
    struct ku_ckpt_desc d = state_desc(&s, dir, 1);
    assert_status(ku_ckpt_save(&d), KUMI_OK);
    snprintf(path, sizeof path, "%s/step-00000001", dir);
    int has_python = system("python3 -c ''") == 0;
    for (int parameters_only = 0; parameters_only < 2; parameters_only++) {
        assert_status(ku_digest_memory(s.tensor, STATE_TENSORS, parameters_only, a), KUMI_OK);
        assert_status(ku_digest_snapshot(path, parameters_only, b), KUMI_OK);
        assert_string_equal(a, b);
        if (has_python) {
            python_digest(path, parameters_only ? "--params" : "", b);
            assert_string_equal(a, b);
        }
    }
    assert_status(ku_digest_memory(s.tensor, STATE_TENSORS, 0, a), KUMI_OK);
    ((float *)s.tensor[0].data)[5 * 7] = 1; /* padding */
    struct ku_ckpt_tensor swap = s.tensor[0];
    s.tensor[0] = s.tensor[7];
    s.tensor[7] = swap; /* another order of the list */
    assert_status(ku_digest_memory(s.tensor, STATE_TENSORS, 0, b), KUMI_OK);
    assert_string_equal(a, b);
    ((unsigned char *)s.tensor[0].data)[4 * 1499999] ^= 1;
    assert_status(ku_digest_memory(s.tensor, STATE_TENSORS, 0, b), KUMI_OK);
    assert_string_not_equal(a, b);
    state_fini(&s);
    folder_remove(dir);
}

static int fail_move(const struct ku_ckpt_store *store, int is_write, uint64_t at, void *data,
                     size_t bytes)
{
    (void)store, (void)is_write, (void)at, (void)data, (void)bytes;
    return KU_ERR(KUMI_ESTORAGE, "store: read failed");
}

/* The output is set only on success. */
static void failure_sets_nothing(void **unused)
{
    (void)unused;
    const struct ku_ckpt_store store = {.move = fail_move};
    const struct ku_ckpt_part part = {.end = 3, .store = &store};
    struct ku_ckpt_tensor t = {.name = "a",
                               .dtype = KUMI_F32,
                               .ndim = 1,
                               .dim = {3},
                               .padded = {3},
                               .part = &part,
                               .n_parts = 1};
    char digest[KU_DIGEST_TEXT_BYTES] = "as before";
    assert_error(ku_digest_memory(&t, 1, 0, digest), KUMI_ESTORAGE, "store: read failed");
    assert_string_equal(digest, "as before");
}

static int memory_move(const struct ku_ckpt_store *store, int is_write, uint64_t at, void *data,
                       size_t bytes)
{
    char *here = (char *)(uintptr_t)store->ctx + at;
    memcpy(is_write ? here : data, is_write ? data : here, bytes);
    return KUMI_OK;
}

/* Slices of a [rows, 6, inner] tensor along its second dim, each dense in a store of its own. */
static void slices(void **unused)
{
    enum { ROWS = 3, WIDTH = 6, INNER = 2, COUNT = ROWS * WIDTH * INNER };
    (void)unused;
    for (int n = 1; n <= WIDTH; n++) {
        float whole[COUNT], memory[COUNT] = {0}, got[COUNT];
        struct ku_ckpt_store store[WIDTH];
        struct ku_ckpt_part part[WIDTH];
        const int64_t run = WIDTH / n * INNER, pitch = (int64_t)WIDTH * INNER;
        if (WIDTH % n)
            continue;
        for (int i = 0; i < n; i++) {
            store[i] = (struct ku_ckpt_store){.move = memory_move, .ctx = memory + i * ROWS * run};
            part[i] = (struct ku_ckpt_part){.begin = i * run,
                                            .end = i * run + (ROWS - 1) * pitch + run,
                                            .store = &store[i],
                                            .run = run,
                                            .pitch = pitch};
        }
        const struct ku_ckpt_tensor t = {.name = "a",
                                         .dtype = KUMI_F32,
                                         .ndim = 3,
                                         .dim = {ROWS, WIDTH, INNER},
                                         .padded = {ROWS, WIDTH, INNER},
                                         .part = part,
                                         .n_parts = n};
        for (int i = 0; i < COUNT; i++)
            whole[i] = (float)i + 1;
        for (int64_t at = 0, each = 5; at < COUNT; at += each) /* in uneven ranges */
            assert_status(ku_ckpt_tensor_scatter(&t, at, at + each < COUNT ? each : COUNT - at,
                                                 whole + at, KUMI_F32, 1),
                          KUMI_OK);
        for (int i = 0; i < COUNT; i++) {
            const int64_t in_row = i % pitch;
            assert_true(memory[in_row / run * ROWS * run + i / pitch * run + in_row % run] ==
                        whole[i]);
        }
        for (int64_t at = 0; at < COUNT; at++) {
            assert_status(ku_ckpt_tensor_gather(&t, at, COUNT - at, got), KUMI_OK);
            assert_memory_equal(got, whole + at, (size_t)(COUNT - at) * sizeof *got);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(memory_and_snapshot),
        cmocka_unit_test(failure_sets_nothing),
        cmocka_unit_test(slices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
