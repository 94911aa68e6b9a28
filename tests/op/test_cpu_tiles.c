/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor op device */
/*
 * Attention on emulated matrix tiles, so that it is checked on every machine: the rows of the table
 * with attention of bf16, short ones too.
 */
#include "device/cpu/cpu.h"
#include "device/cpu/simd.h"
#include "op/attr.h"
#include "unit/tiles.h"

#define GEMM_NR   32
#define ATTN_KEYS 128
#include "device/cpu/elementwise/elem_body.h"
#include "device/cpu/elementwise/dropout_body.h"
#include "device/cpu/gemm/amx_tiles.h"
#include "device/cpu/attention/attn_common.h"
#include "device/cpu/attention/tiles_body.h"
#include "device/cpu/attention/tiles_back_body.h"

static const struct ku_attn_bf16 emulated = {TILE_BLOCKS * QUERIES, tiles_forward, tiles_backward};

/* The helpers of the table have names of the kernels'. */
#define bytes_of view_bytes
#define load     view_load
#define store    view_store
#define widen    view_widen
#include "op/check.h"

static void test_attention(void **state)
{
    struct op_devices devs = {.n = 1};
    struct op_threads *t = &devs.of[0];
    struct sample s = {.address = 8};
    (void)state;
    for (t->n = 0; t->n < 2; t->n++) {
        t->dev[t->n] = device_open(&ku_device_cpu, KU_ISA_AMX, t->n + 1);
        struct ku_cpu *cpu = t->dev[t->n].dev;
        cpu->attn_bf16 = &emulated;
        cpu->pairs = NULL; /* short sequences on tiles too */
    }
    for (int i = 0; i < N_OP_ROWS; i++)
        if (strncmp(op_table[i].op, "attention", strlen("attention")) == 0 &&
            sample_takes(&s, i, i, -1))
            check_row(&devs, &op_table[i], KUMI_BF16);
    sample_end(&s, "rows of attention");
    for (int k = 0; k < t->n; k++)
        device_close(&t->dev[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
