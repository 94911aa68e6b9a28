/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
/* Which layouts of the data-parallel ranks are admitted, and what is said of the others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/str.h"
#include "model/model.h"
#include "config/sharding.h"

#define OWN "\"host_state\":\"private\""

/* keys: members of section parallel; set: of --set, or NULL */
static void read_config(const char *keys, const char *set, struct ku_config *c)
{
    char text[512];
    snprintf(
        text, sizeof text,
        "{\"model\":{\"model_type\":\"gpt2\"},\"data\":{\"train\":\"a.txt\"},\"parallel\":{%s}}",
        keys);
    assert_int_equal(
        ku_config_parse("c.json", text, strlen(text), &set, set != NULL, ku_model_hidden_size, c),
        KUMI_OK);
}

static int resolve_set(const char *keys, const char *set, int n, struct ku_sharding *s)
{
    struct ku_config c;
    read_config(keys, set, &c);
    const int status = ku_sharding_resolve(&c, n, 0, s);
    ku_config_fini(&c);
    return status;
}

/* The same with ranks that have memory of their own. */
static int resolve(const char *keys, int n, struct ku_sharding *s)
{
    char all[256];
    snprintf(all, sizeof all, OWN "%s%s", keys[0] ? "," : "", keys);
    return resolve_set(all, NULL, n, s);
}

/* Where the whole state is stored: n ranks of which `local` read one copy. */
static void host_state(void **state)
{
    static const struct {
        const char *keys, *set;
        int local, zero, replicate, shard;
    } row[] = {
        {"", NULL, 4, 0, 1, 1},
        {"\"host_state\":\"auto\"", NULL, 4, 0, 1, 1},
        {"\"host_state\":\"shared\",\"zero\":3", NULL, 4, 3, 1, 1},
        {"\"zero\":2,\"shard\":2", NULL, 4, 2, 1, 1},
        {"\"strategy\":\"HYBRID_SHARD\",\"shard\":2", NULL, 4, 3, 1, 1},
        {"\"shard\":2", NULL, 4, 3, 1, 1},
        {OWN, NULL, 1, 0, 4, 1},
        {OWN ",\"zero\":2,\"shard\":2", NULL, 1, 2, 2, 2},
        {"\"share_host_state\":true", NULL, 4, 0, 1, 1},
        {"\"share_host_state\":false", NULL, 1, 0, 4, 1},
        {"\"share_host_state\":null", NULL, 4, 0, 1, 1},
        {"\"share_host_state\":false," OWN, NULL, 1, 0, 4, 1},
        {"\"share_host_state\":false,\"host_state\":\"auto\"", NULL, 1, 0, 4, 1},
        /* --set of either name replaces the other one of the file */
        {"\"share_host_state\":false", "parallel.host_state=shared", 4, 0, 1, 1},
        {OWN, "parallel.share_host_state=true", 4, 0, 1, 1},
        {"\"share_host_state\":true", "parallel.host_state=private", 1, 0, 4, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_sharding s;
        struct ku_str why = {0};
        if (resolve_set(row[i].keys, row[i].set, 4, &s) != KUMI_OK)
            fail_msg("%s: %s", row[i].keys, ku_err_get()->text);
        if (s.local != row[i].local || s.zero != row[i].zero || s.replicate != row[i].replicate ||
            s.shard != row[i].shard)
            fail_msg("%s: zero %d, %d x %d x %d", row[i].keys, s.zero, s.replicate, s.shard,
                     s.local);
        ku_sharding_print_effect(&s, &why);
        if ((why.bytes > 0) != (s.zero > 0 && s.local > 1))
            fail_msg("%s: '%s'", row[i].keys, ku_str_get(&why));
        ku_str_fini(&why);
    }
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
        /* shard alone: FULL_SHARD, in a pipeline gathered once a step */
        {"\"shard\":4", 4, 3, 1, 4, 4},
        {"\"replicate\":2,\"shard\":4", 8, 3, 2, 4, 4},
        {"\"shard\":2,\"reshard_after_forward\":false", 8, 3, 4, 2, 1},
        {"\"pp\":2,\"replicate\":1,\"shard\":4", 8, 3, 1, 4, 1},
        {"\"pp\":2,\"shard\":4,\"reshard_after_forward\":true", 8, 3, 1, 4, 4},
        {"\"pp\":2,\"shard\":4,\"reshard_after_forward\":2", 8, 3, 1, 4, 2},
        {"\"pp\":2,\"zero\":3,\"shard\":4", 8, 3, 1, 4, 4},
        {"\"pp\":2,\"shard\":1", 8, 0, 4, 1, 1},
        {"\"tp_exact\":7", 2, 0, 2, 1, 1},
        {"\"tp\":3,\"tp_exact\":96", 3, 0, 1, 1, 1}, /* 32 slices each */
        {"\"tp\":12,\"tp_exact\":12", 24, 0, 2, 1, 1},
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
         "parallel.replicate: 2; with parallel.zero 0 all 4 ranks are replicas; parallel.shard 2 "
         "partitions each of 2 copies"},
        {"\"zero\":0,\"shard\":2", 4,
         "parallel.shard: 2; parallel.zero 0 has no shards: omit parallel.zero and "
         "parallel.strategy for stage 3, or set parallel.zero to 1, 2 or 3"},
        {"\"strategy\":\"NO_SHARD\",\"shard\":2", 4, "parallel.zero 0 has no shards"},
        {"\"shard\":3", 4, "parallel.shard: 3; replicate x shard must be 4, "},
        {"\"replicate\":1,\"shard\":2", 4, "parallel.replicate: 1; replicate x shard must be 4, "},
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
        /* data-parallel ranks are those of tp and pp divided out */
        {"\"tp\":2,\"replicate\":8", 8,
         "parallel.replicate: 8; with parallel.zero 0 all 4 data-parallel ranks (8 / tp 2) are "
         "replicas"},
        {"\"pp\":2,\"zero\":1,\"shard\":8", 8,
         "parallel.shard: 8; replicate x shard must be 4, the number of data-parallel ranks "
         "(8 / pp 2), and shard a power of two or all: 4 x 1, 2 x 2, 1 x 4"},
        {"\"pp\":2,\"tp\":2,\"zero\":1,\"shard\":4", 8,
         "parallel.shard: 4; replicate x shard must be 2, the number of data-parallel ranks "
         "(8 / (pp 2 x tp 2)), and"},
        {"\"tp\":4,\"tp_exact\":2", 4,
         "parallel.tp: 4; must be 1, or parallel.tp_exact, 2, divided by a power of two: use 1 or "
         "2"},
        {"\"tp\":4,\"tp_exact\":12", 4,
         "parallel.tp: 4; must be 1, or parallel.tp_exact, 12, divided by a power of two: use 1, "
         "3, "
         "6 or 12"},
        {"\"tp\":2,\"tp_exact\":12", 2, "divided by a power of two: use 1, 3, 6 or 12"},
        {"\"tp\":3,\"tp_exact\":9", 3, "divided by a power of two: use 1 or 9"},
    };
    (void)state;
    for (size_t i = 0; i < 2 * sizeof row / sizeof row[0]; i++) { /* also with shared state */
        struct ku_sharding s;
        const size_t k = i / 2;
        assert_int_equal(i % 2 ? resolve_set(row[k].keys, NULL, row[k].n, &s)
                               : resolve(row[k].keys, row[k].n, &s),
                         KUMI_EINVAL);
        if (strstr(ku_err_get()->text, row[k].text) == NULL)
            fail_msg("%s: %s", row[k].keys, ku_err_get()->text);
    }
}

/* pp x tp divides the ranks: the message names the product and the nearest numbers of ranks. */
static void refuses_ranks(void **state)
{
    static const struct {
        const char *keys;
        int n;
        const char *text;
    } row[] = {
        {"\"tp\":2", 1, "parallel.tp: 2; must divide the number of ranks, 1; start 2\n"},
        {"\"tp\":4", 2, "parallel.tp: 4; must divide the number of ranks, 2; start 4\n"},
        {"\"tp\":2", 3, "parallel.tp: 2; must divide the number of ranks, 3; start 2 or 4\n"},
        {"\"pp\":4", 1, "parallel.pp: 4; must divide the number of ranks, 1; start 4\n"},
        {"\"pp\":2,\"tp\":2", 6,
         "parallel.pp: 2; pp 2 x tp 2 = 4 must divide the number of ranks, 6; start 4 or 8\n"},
        {"\"pp\":2,\"tp\":3,\"zero\":1", 4,
         "parallel.pp: 2; pp 2 x tp 3 = 6 must divide the number of ranks, 4; start 6\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_sharding s;
        char said[512];
        assert_int_equal(resolve_set(row[i].keys, NULL, row[i].n, &s), KUMI_EINVAL);
        snprintf(said, sizeof said, "%s\n", ku_err_get()->text); /* rows end at the line's end */
        if (strstr(said, row[i].text) == NULL)
            fail_msg("%s: %s", row[i].keys, said);
    }
}

/* The ranks of each of several hosts share one copy: 8 ranks on hosts of `host` ranks. */
static void hosts_share(void **state)
{
    static const char *const shared = "\"host_state\":\"shared\"";
    static const struct {
        const char *keys;
        int host, is_uneven, replicate, shard, local; /* local 0: refused */
        const char *text;
    } row[] = {
        {"\"zero\":0", 4, 0, 2, 1, 4, ""},
        {"\"zero\":0", 2, 1, 0, 0, 0,
         "not supported on hosts with different numbers of ranks; give private"},
        {"", 4, 0, 1, 2, 4, ""},
        {"", 2, 1, 0, 0, 0, "not supported on hosts with different numbers of ranks; give private"},
        {"\"zero\":1", 4, 0, 1, 2, 4, ""},
        {"\"zero\":2", 2, 0, 1, 4, 2, ""},
        {"\"zero\":2", 2, 1, 0, 0, 0, "not supported on hosts with different numbers"},
        {"\"zero\":2", 1, 0, 1, 8, 1, ""},
        {"\"zero\":1", 1, 1, 0, 0, 0, "not supported on hosts with different numbers"},
        {"\"zero\":3,\"reshard_after_forward\":2", 1, 0, 1, 8, 1, ""},
        {"\"zero\":3", 4, 0, 1, 2, 4, ""},
        {"\"zero\":3,\"reshard_after_forward\":false", 4, 0, 1, 2, 4, ""},
        {"\"zero\":3,\"reshard_after_forward\":2", 4, 0, 0, 0, 0,
         "not supported with parallel.reshard_after_forward 2; give private, or "
         "parallel.reshard_after_forward true or false"},
        {"\"zero\":3,\"shard\":4", 2, 0, 2, 2, 2, ""},
        {"\"zero\":1,\"shard\":4", 4, 0, 2, 1, 4, ""},
        {"\"zero\":2,\"shard\":2", 4, 0, 2, 1, 4, ""},
    };
    (void)state;
    for (size_t i = 0; i < 2 * sizeof row / sizeof row[0]; i++) { /* also without the key: auto */
        const size_t k = i / 2;
        const bool is_auto = i % 2, is_even = !row[k].is_uneven;
        /* parts of hosts keep their stage; what cannot be shared is not */
        const bool is_private =
            is_auto && (!row[k].local || (row[k].shard == 1 && !strstr(row[k].keys, "\"zero\":0")));
        struct ku_config c;
        struct ku_sharding s, before;
        char text[256];
        snprintf(text, sizeof text, "%s%s%s", is_auto ? "" : shared,
                 is_auto || !row[k].keys[0] ? "" : ",", row[k].keys);
        read_config(text, NULL, &c);
        assert_int_equal(ku_sharding_resolve(&c, 8, row[k].host, &s), KUMI_OK);
        before = s;
        const int status = ku_sharding_share(&c, row[k].host, is_even, &s);
        if (is_private)
            assert_true(status == KUMI_OK && memcmp(&s, &before, sizeof s) == 0);
        else if (row[k].local)
            assert_true(status == KUMI_OK && s.replicate == row[k].replicate &&
                        s.shard == row[k].shard && s.local == row[k].local &&
                        (s.reshard == s.shard || before.reshard < before.shard));
        else
            assert_true(status == KUMI_EINVAL && strstr(ku_err_get()->text, row[k].text));
        ku_config_fini(&c);
    }
}

/* parallel.zero omitted: 3 with shard, 1 on several hosts that can partition something. */
static void default_stage(void **state)
{
    static const struct {
        const char *keys;
        int n, host, zero, replicate, shard;
        const char *why; /* NULL: nothing is said */
    } row[] = {
        {"", 8, 0, 0, 8, 1, NULL},
        {"", 1, 0, 0, 1, 1, NULL},
        {"", 8, 4, 1, 1, 8, "parallel.zero 1: the default on several hosts"},
        {"", 2, 1, 1, 1, 2, "parallel.zero 1: the default on several hosts"},
        {"", 3, 1, 1, 1, 3, "parallel.zero 1: "}, /* all ranks need not be a power of two */
        {"\"zero\":null", 4, 2, 1, 1, 4, "parallel.zero 1: "},
        {"\"zero\":0", 8, 4, 0, 8, 1, NULL},
        {"\"zero\":2", 8, 4, 2, 1, 8, NULL},
        {"\"strategy\":\"NO_SHARD\"", 8, 4, 0, 8, 1, NULL},
        {"\"strategy\":\"FULL_SHARD\"", 8, 4, 3, 1, 8, NULL},
        {"\"replicate\":2", 8, 4, 1, 2, 4, "parallel.zero 1: "},
        {"\"shard\":4", 8, 4, 3, 2, 4,
         "parallel.zero 3: the default with parallel.shard, as FSDP's"},
        {"\"shard\":4,\"zero\":1", 8, 4, 1, 2, 4, NULL},
        {"\"pp\":2,\"shard\":2", 8, 4, 3, 2, 2, "omitted, units are gathered once a step and stay"},
        {"\"pp\":2,\"shard\":2,\"reshard_after_forward\":true", 8, 4, 3, 2, 2,
         "as FSDP's FULL_SHARD"},
        {"\"replicate\":8", 8, 4, 0, 8, 1,
         "parallel.zero 0: parallel.replicate and parallel.shard"},
        {"\"shard\":1", 8, 4, 0, 8, 1, "parallel.zero 0: parallel.replicate and parallel.shard"},
        {"\"tp\":4", 8, 4, 1, 1, 2, "parallel.zero 1: "},
        {"\"pp\":2", 8, 4, 1, 1, 4, "parallel.zero 1: "},
        {"\"pp\":2,\"tp\":4", 8, 4, 0, 1, 1, "parallel.zero 0: one rank stores each part"},
        {"},\"memory\":{\"offload\":{\"params\":\"host\"}", 8, 4, 0, 8, 1,
         "parallel.zero 0: stages 1 and 2 do not support memory.offload.params"},
        {"},\"memory\":{\"offload\":{\"optimizer\":\"host\"}", 8, 4, 1, 1, 8, "parallel.zero 1: "},
    };
    (void)state;
    for (size_t i = 0; i < 2 * sizeof row / sizeof row[0]; i++) { /* also with host_state private */
        const size_t k = i / 2;
        struct ku_config c;
        struct ku_sharding s;
        struct ku_str said = {0};
        char text[256];
        snprintf(text, sizeof text, "%s%s%s", i % 2 ? OWN : "",
                 i % 2 && row[k].keys[0] && row[k].keys[0] != '}' ? "," : "", row[k].keys);
        read_config(text, NULL, &c);
        if (row[k].host == 0 && i % 2 == 0) { /* one host: shared */
            ku_config_fini(&c);
            continue;
        }
        if (ku_sharding_resolve(&c, row[k].n, row[k].host, &s) != KUMI_OK)
            fail_msg("%s: %s", text, ku_err_get()->text);
        ku_sharding_print_default(&s, &said);
        if (s.zero != row[k].zero || s.replicate != row[k].replicate || s.shard != row[k].shard ||
            (said.bytes > 0) != (row[k].why != NULL) ||
            (row[k].why && strstr(ku_str_get(&said), row[k].why) == NULL))
            fail_msg("%s: zero %d, %d x %d: '%s'", text, s.zero, s.replicate, s.shard,
                     said.bytes ? ku_str_get(&said) : "");
        ku_str_fini(&said);
        ku_config_fini(&c);
    }
}

static void contradiction(void **state)
{
    struct ku_sharding s;
    (void)state;
    assert_int_equal(resolve_set("\"share_host_state\":true," OWN, NULL, 2, &s), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text,
                           "parallel.share_host_state: true; parallel.host_state is \"private\"; "
                           "give one of them"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_state),    cmocka_unit_test(hosts_share),
        cmocka_unit_test(admits),        cmocka_unit_test(refuses),
        cmocka_unit_test(refuses_ranks), cmocka_unit_test(contradiction),
        cmocka_unit_test(default_stage)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
