/* SPDX-License-Identifier: Apache-2.0 */
/* links: pass nn ir op tensor base */
/*
 * Backward and update of a graph whose placements on axis tp are given: column- and row-parallel
 * products, an embedding split by vocabulary. KUMI_UPDATE=1 writes the text anew.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "pass/pass.h"

static void slurp(const char *name, char path[512], char **text, size_t *bytes)
{
    snprintf(path, 512, "%s/tests/golden/%s.txt", KUMI_SOURCE_DIR, name);
    assert_int_equal(ku_os_slurp(path, 1 << 20, text, bytes), 0);
}

static struct ku_graph *forward(void)
{
    struct ku_graph *g;
    char path[512], *text;
    size_t bytes;
    slurp("tensor_forward", path, &text, &bytes);
    if (ku_graph_parse("tensor_forward", text, bytes, &g) < 0)
        fail_msg("%s", ku_err_get()->text);
    ku_free(text);
    g->has = KU_HAS_PRECISION | KU_HAS_PLACEMENT;
    if (ku_graph_verify(g) < 0)
        fail_msg("%s", ku_err_get()->text);
    return g;
}

static void run(struct ku_graph *g)
{
    struct ku_compile_opts o = {.compute = KUMI_F32,
                                .is_training = 1,
                                .optimizer = KU_OP_adamw,
                                .rule = ku_attrs_default,
                                .mesh = g->mesh};
    assert_int_equal(ku_pass_autodiff(g, &o, NULL), 0);
    g->has |= KU_HAS_GRADIENTS;
    if (ku_graph_verify(g) < 0)
        fail_msg("%s", ku_err_get()->text);
    assert_int_equal(ku_pass_update(g, &o, NULL), 0);
    g->has |= KU_HAS_UPDATE;
    if (ku_graph_verify(g) < 0)
        fail_msg("%s", ku_err_get()->text);
}

static void backward_and_update(void **state)
{
    struct ku_graph *g = forward();
    struct ku_str text = {0};
    char path[512], *want = NULL;
    size_t bytes = 0;
    (void)state;
    run(g);
    assert_int_equal(ku_graph_print(g, &text), 0);
    snprintf(path, sizeof path, "%s/tests/golden/tensor_update.txt", KUMI_SOURCE_DIR);
    if (getenv("KUMI_UPDATE"))
        assert_int_equal(ku_os_replace(path, text.text, text.bytes), 0);
    slurp("tensor_update", path, &want, &bytes);
    if (bytes != text.bytes || memcmp(want, text.text, bytes) != 0)
        fail_msg("%s differs; KUMI_UPDATE=1 shows how in git diff", path);
    ku_free(want);
    ku_str_fini(&text);
    ku_graph_destroy(g);
}

/* A use whose gradient would stay partial on a rank that counts it as complete. */
static void wrong_dual(void **state)
{
    struct ku_graph *g = forward();
    (void)state;
    run(g);
    g->has = KU_HAS_PRECISION | KU_HAS_PLACEMENT | KU_HAS_GRADIENTS;
    for (ku_id u = 1; u < g->n_uses; u++) {
        ku_id own = g->use[u].grad;
        g->use[u].grad = g->use[u == 1 ? 2 : 1].grad;
        if (g->value[own].layout != g->value[g->use[u].grad].layout) {
            assert_int_equal(ku_graph_verify(g), KUMI_EBUG);
            assert_non_null(strstr(ku_err_get()->text, "is not placed as the dual of the use"));
        }
        g->use[u].grad = own;
    }
    assert_int_equal(ku_graph_verify(g), 0);
    ku_graph_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backward_and_update),
        cmocka_unit_test(wrong_dual),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
