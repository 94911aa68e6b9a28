/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor op device */
/* Tiles that take long call the hook of a launch inside, not only at their end. */
#include "op/call.h"

/* One tile of many rows each; it sums into the workspace, or into the result if there is none. */
static const struct op_row rows[] = {
    {"linear_db", "", "x:n60f1000", 1},
    {"layer_norm_dgb", "", "x:n60c1000 x:n60c1000 f:n60 p:n60", 2},
    {"rms_norm_dg", "", "x:n60c1000 x:n60c1000 p:n60", 1},
    {"add_rows_dw", "rows=3 rows_seen=3 row_name=112", "x:n40t3c1000", 1}, /* 112 = 'p' */
};

/* What a tile writes, as it is at the first call of the hook. */
struct look {
    const void *at;
    void *copy;
    size_t bytes;
    int n_calls;
};
static void look_once(void *ctx)
{
    struct look *look = ctx;
    if (look->n_calls++ == 0)
        memcpy(look->copy, look->at, look->bytes);
}

/* A pool calls its hook at once the first time, so the device is a new one. */
static void check_row(const struct op_row *row)
{
    struct op_device d = device_open(&ku_device_cpu, KU_ISA_BASE, 1);
    struct op_call c;
    call_parse(row, KUMI_F32, &c);
    struct ku_call k = {.op = c.op, .n_in = c.n_in, .n_out = c.n_out, .attr = &c.attr};
    struct ku_op_case query = {.op = c.op, .n_in = c.n_in, .n_out = c.n_out, .attr = &c.attr};
    struct ku_target_op answer;
    struct ku_kernel *kernel;
    for (int i = 0; i < c.n_in; i++) {
        k.in[i] = c.in[i];
        query.in[i] = (struct ku_type){c.in[i].dtype, c.in[i].shape};
    }
    for (int o = 0; o < c.n_out; o++) {
        query.out[o] = (struct ku_type){c.out[o].dtype, c.out[o].shape};
        k.out[o] = c.out[o] = view_make(c.out[o].dtype, &c.out[o].shape);
    }
    assert_int_equal(d.ops->query(d.dev, &query, &answer), KUMI_OK);
    k.workspace = ku_malloc_aligned(64, answer.workspace_bytes);
    assert_non_null(k.workspace);
    memset(k.workspace, 0xff, answer.workspace_bytes);
    struct look look = {.at = k.workspace, .bytes = answer.workspace_bytes};
    if (look.bytes == 0)
        look = (struct look){.at = k.out[0].data, .bytes = bytes_of(&k.out[0])};
    look.copy = ku_malloc(look.bytes);
    assert_non_null(look.copy);
    assert_int_equal(d.ops->bind(d.dev, &k, &kernel), KUMI_OK);
    assert_int_equal(d.ops->launch(d.dev, kernel, look_once, &look), KUMI_OK);
    assert_true(look.n_calls > 0);
    if (memcmp(look.copy, look.at, look.bytes) == 0)
        fail_msg("%s: the hook is called first when the tile is done", c.text);
    d.ops->unbind(d.dev, kernel);
    ku_free(look.copy);
    ku_free(k.workspace);
    call_fini(&c);
    device_close(&d);
}

static void polls(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_row(&rows[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(polls)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
