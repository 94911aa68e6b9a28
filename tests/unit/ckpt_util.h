/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_CKPT_UTIL_H
#define TESTS_UNIT_CKPT_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "ckpt/snapshot/snapshot.h"

/* A folder of its own for each test; removed by folder_remove. */
static inline void folder_make(char out[64])
{
    strcpy(out, "/tmp/kumi-ckpt-XXXXXX");
    assert_non_null(mkdtemp(out));
}
static inline void folder_remove(const char *path)
{
    assert_int_equal(ku_os_rmtree(path), 0);
}
static inline void file_write(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}
static inline unsigned char *file_read(const char *path, size_t *bytes)
{
    char *data;
    assert_int_equal(ku_os_slurp(path, (size_t)1 << 30, &data, bytes), 0);
    return (unsigned char *)data;
}
static inline void file_flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    int c = fgetc(f);
    assert_true(c != EOF);
    assert_int_equal(fseek(f, -1, SEEK_CUR), 0);
    fputc(c ^ 0x10, f);
    assert_int_equal(fclose(f), 0);
}

#define assert_status(call, status)                                                                \
    do {                                                                                           \
        int got_status = (call);                                                                   \
        if (got_status != (status))                                                                \
            print_error("%s\n", ku_err_get()->text);                                               \
        assert_int_equal(got_status, (status));                                                    \
    } while (0)
#define assert_error(call, status, part)                                                           \
    do {                                                                                           \
        assert_status(call, status);                                                               \
        if (strstr(ku_err_get()->text, (part)) == NULL)                                            \
            fail_msg("\"%s\" is not in: %s", (part), ku_err_get()->text);                          \
        assert_null(strchr(ku_err_get()->text, '\n'));                                             \
    } while (0)

/* A small state with what can go wrong: padding in the first and in the last dim, a scalar, an
 * empty tensor, odd bytes, tensors over several chunks, two dtypes. */
enum { STATE_TENSORS = 9, STATE_PAD = 0xA5 };
struct state {
    struct ku_ckpt_tensor tensor[STATE_TENSORS];
    size_t bytes[STATE_TENSORS];
};
static inline void state_add(struct state *s, int i, const char *name, enum kumi_dtype dtype,
                             enum ku_ckpt_group group, int ndim, const int64_t *dim,
                             const int64_t *padded)
{
    struct ku_ckpt_tensor *t = &s->tensor[i];
    *t = (struct ku_ckpt_tensor){.name = name, .dtype = dtype, .ndim = ndim, .group = group};
    s->bytes[i] = kumi_dtype_bytes(dtype);
    for (int d = 0; d < ndim; d++) {
        t->dim[d] = dim[d];
        t->padded[d] = padded[d];
        s->bytes[i] *= (size_t)padded[d];
    }
    t->data = malloc(s->bytes[i] + 1); /* not ours: faults are for what is tested */
    assert_non_null(t->data);
    memset(t->data, STATE_PAD, s->bytes[i]);
}
static inline void state_init_sized(struct state *s, int64_t rows, int64_t count)
{
    state_add(s, 0, "wte.weight", KUMI_F32, KU_CKPT_MODEL, 2, (int64_t[]){5, 7}, (int64_t[]){8, 7});
    state_add(s, 1, "wpe.weight", KUMI_F32, KU_CKPT_MODEL, 3, (int64_t[]){3, 4, 2},
              (int64_t[]){3, 6, 2});
    state_add(s, 2, "h.0.big", KUMI_F32, KU_CKPT_MODEL, 2, (int64_t[]){rows, 701},
              (int64_t[]){rows, 704});
    state_add(s, 3, "mask", KUMI_U8, KU_CKPT_MODEL, 1, (int64_t[]){13}, (int64_t[]){16});
    state_add(s, 4, "empty", KUMI_F32, KU_CKPT_MODEL, 2, (int64_t[]){0, 3}, (int64_t[]){4, 3});
    state_add(s, 5, "scale", KUMI_F64, KU_CKPT_MODEL, 0, NULL, NULL);
    state_add(s, 6, "wte.weight.exp_avg", KUMI_F32, KU_CKPT_OPTIMIZER, 2, (int64_t[]){5, 7},
              (int64_t[]){8, 7});
    state_add(s, 7, "h.0.big.exp_avg", KUMI_F32, KU_CKPT_OPTIMIZER, 1, (int64_t[]){count},
              (int64_t[]){count});
    state_add(s, 8, "count", KUMI_I64, KU_CKPT_OPTIMIZER, 1, (int64_t[]){2}, (int64_t[]){2});
}
static inline void state_init(struct state *s)
{
    state_init_sized(s, 1001, 1500000);
}
/* Element `at` (in file order) of tensor i becomes a function of (i, at, seed). */
static inline void state_fill(struct state *s, uint32_t seed)
{
    for (int i = 0; i < STATE_TENSORS; i++)
        for (int64_t at = 0; at < ku_ckpt_tensor_count(&s->tensor[i]); at++) {
            int64_t place;
            ku_ckpt_tensor_run(&s->tensor[i], at, &place);
            uint32_t x = ((uint32_t)at + 1) * 2654435761u + (uint32_t)i * 40503u + seed * 97u;
            ku_store_f64(s->tensor[i].data, s->tensor[i].dtype, place, (double)(x >> 8 & 0x7f));
        }
}
static inline void state_wipe(struct state *s)
{
    for (int i = 0; i < STATE_TENSORS; i++)
        memset(s->tensor[i].data, STATE_PAD, s->bytes[i]);
}
static inline void state_assert_equal(const struct state *a, const struct state *b)
{
    for (int i = 0; i < STATE_TENSORS; i++)
        assert_memory_equal(a->tensor[i].data, b->tensor[i].data, a->bytes[i]);
}
static inline void state_fini(struct state *s)
{
    for (int i = 0; i < STATE_TENSORS; i++)
        free(s->tensor[i].data);
}
static inline struct ku_ckpt_desc state_desc(const struct state *s, const char *dir, int64_t step)
{
    return (struct ku_ckpt_desc){.dir = dir,
                                 .step = step,
                                 .update = step,
                                 .tensor = s->tensor,
                                 .n_tensors = STATE_TENSORS,
                                 .model_config = "{\"model_type\": \"gpt2\"}\n"};
}

#endif
