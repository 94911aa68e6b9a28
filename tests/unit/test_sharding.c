/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train model config */
/* Which layouts of the data-parallel ranks are admitted, and what is said of the others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "model/model.h"
#include "config/sharding.h"

static int resolve(const char *keys, int n, struct ku_sharding *s)
{
    struct ku_config c;
    char text[512];
    snprintf(
        text, sizeof text,
        "{\"model\":{\"model_type\":\"gpt2\"},\"data\":{\"train\":\"a.txt\"},\"parallel\":{%s}}",
        keys);
    int status = ku_config_parse("c.json", text, strlen(text), NULL, 0, ku_model_hidden_size, &c);
    assert_int_equal(status, KUMI_OK);
    status = ku_sharding_resolve(&c, n, s);
    ku_config_fini(&c);
    return status;
}

static void admits(void **state)
{
    static const struct {
        const char *keys;
        int n, zero, replicate, shard, reshard;
    } row[] = {
        {"", 1, 0, 1, 1, 1},
        {"", 6, 0, 6, 1, 1},
        {"\"replicate\":4", 4, 0, 4, 1, 1},
        {"\"strategy\":\"NO_SHARD\"", 4, 0, 4, 1, 1},
        {"\"zero\":1", 1, 1, 1, 1, 1},
        {"\"zero\":1", 3, 1, 1, 3, 3},
        {"\"zero\":2", 4, 2, 1, 4, 4},
        {"\"strategy\":\"SHARD_GRAD_OP\"", 4, 2, 1, 4, 4},
        {"\"strategy\":\"FULL_SHARD\",\"zero\":3", 4, 3, 1, 4, 4},
        {"\"zero\":3,\"replicate\":2", 8, 3, 2, 4, 4},
        {"\"zero\":3,\"shard\":2", 8, 3, 4, 2, 2},
        {"\"strategy\":\"HYBRID_SHARD\",\"shard\":4", 8, 3, 2, 4, 4},
        {"\"strategy\":\"_HYBRID_SHARD_ZERO2\",\"replicate\":4", 8, 2, 4, 2, 2},
        {"\"zero\":3,\"reshard_after_forward\":false", 4, 3, 1, 4, 1},
        {"\"zero\":3,\"reshard_after_forward\":2", 4, 3, 1, 4, 2},
        {"\"zero\":3,\"reshard_after_forward\":3", 6, 3, 1, 6, 3},
        {"\"zero\":3,\"reshard_after_forward\":2,\"replicate\":2", 8, 3, 2, 4, 2},
        {"\"zero\":2,\"reshard_after_forward\":3", 4, 2, 1, 4, 4}, /* nothing to reshard */
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_sharding s;
        if (resolve(row[i].keys, row[i].n, &s) != KUMI_OK)
            fail_msg("%s: %s", row[i].keys, ku_err_get()->text);
        if (s.zero != row[i].zero || s.replicate != row[i].replicate || s.shard != row[i].shard ||
            s.reshard != row[i].reshard)
            fail_msg("%s on %d: zero %d, %d x %d, reshard %d", row[i].keys, row[i].n, s.zero,
                     s.replicate, s.shard, s.reshard);
    }
}

static void refuses(void **state)
{
    static const struct {
        const char *keys;
        int n;
        const char *text;
    } row[] = {
        {"\"replicate\":2", 4,
         "parallel.replicate: 2; with parallel.zero 0 all 4 ranks are replicas"},
        {"\"shard\":2", 4,
         "parallel.shard: 2; parallel.zero 0 has no shards: set parallel.zero to 1, 2 or 3"},
        {"\"zero\":1,\"shard\":3", 8,
         "parallel.shard: 3; replicate x shard must be 8, the number of ranks, and shard a power "
         "of two or all: "
         "8 x 1, 4 x 2, 2 x 4, 1 x 8"},
        {"\"zero\":1,\"replicate\":3", 8, "parallel.replicate: 3; replicate x shard must be 8, "},
        {"\"zero\":1,\"replicate\":2,\"shard\":2", 8,
         "parallel.replicate: 2; replicate x shard must be 8, "},
        {"\"zero\":1,\"shard\":3", 6, "parallel.shard: 3; replicate x shard must be 6, "},
        {"\"strategy\":\"FULL_SHARD\",\"zero\":2", 4,
         "parallel.strategy: \"FULL_SHARD\"; means parallel.zero 3, and parallel.zero is 2; give "
         "one of them"},
        {"\"strategy\":\"FULL_SHARD\",\"replicate\":2", 4,
         "parallel.strategy: \"FULL_SHARD\"; has no replicas: give HYBRID_SHARD"},
        {"\"strategy\":\"HYBRID_SHARD\"", 4,
         "parallel.strategy: \"HYBRID_SHARD\"; needs parallel.shard (ranks that share"},
        {"\"zero\":3,\"reshard_after_forward\":3", 4,
         "parallel.reshard_after_forward: 3; true, false, or a divisor of the 4 shards: 1, 2, 4"},
        {"\"zero\":3,\"reshard_after_forward\":8", 4,
         "parallel.reshard_after_forward: 8; true, false, or a divisor of the 4 shards: 1, 2, 4"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_sharding s;
        assert_int_equal(resolve(row[i].keys, row[i].n, &s), KUMI_EINVAL);
        if (strstr(ku_err_get()->text, row[i].text) == NULL)
            fail_msg("%s: %s", row[i].keys, ku_err_get()->text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(admits), cmocka_unit_test(refuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
