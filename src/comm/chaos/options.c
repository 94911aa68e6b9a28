/* SPDX-License-Identifier: Apache-2.0 */
/* The options of KUMI_CHAOS, for both kinds of chaos: flags of a host, messages between hosts. */
#include "base/err.h"
#include "base/str.h"
#include "comm/private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Parse "20ms", "5us", "1s" or "300" (ns). Returns 0 or -1.
 */
static int parse_time(const char *text, int64_t *ns)
{
    char *end;
    double x = ku_text_number(text, &end);
    double unit = !strcmp(end, "s")    ? 1e9
                  : !strcmp(end, "ms") ? 1e6
                  : !strcmp(end, "us") ? 1e3
                  : !*end              ? 1
                                       : 0;
    if (end == text || unit == 0 || !(x >= 0 && x * unit < 1e12))
        return -1;
    *ns = (int64_t)(x * unit);
    return 0;
}

/*
 * Parse "R@N". Returns 0 or -1.
 */
static int parse_at(const char *text, int *rank, int64_t *at)
{
    long long n;
    char rest;
    if (sscanf(text, "%d@%lld%c", rank, &n, &rest) != 2 || *rank < 0 || n < 1)
        return -1;
    *at = n;
    return 0;
}

/*
 * Parse a number from 1. Returns 0 or -1.
 */
static int parse_count(const char *text, int64_t *count)
{
    char *end;
    long long n = strtoll(text, &end, 10);
    if (end == text || *end || n < 1)
        return -1;
    *count = n;
    return 0;
}

static int parse_seed(const char *text, uint64_t *seed)
{
    char *end;
    *seed = strtoull(text, &end, 10);
    return *text < '0' || *text > '9' || *end ? -1 : 0;
}

static int parse_option(const char *key, const char *value, struct ku_chaos *c)
{
    if (!strcmp(key, "delay"))
        return parse_time(value, &c->delay_ns);
    if (!strcmp(key, "jitter"))
        return parse_time(value, &c->jitter_ns);
    if (!strcmp(key, "drop"))
        return parse_at(value, &c->drop_rank, &c->drop_at);
    if (!strcmp(key, "corrupt"))
        return parse_at(value, &c->corrupt_rank, &c->corrupt_at);
    if (!strcmp(key, "kill"))
        return parse_at(value, &c->kill_rank, &c->kill_at);
    if (!strcmp(key, "short"))
        return parse_count(value, &c->short_bytes);
    if (!strcmp(key, "double"))
        return parse_count(value, &c->double_every);
    if (!strcmp(key, "seed"))
        return parse_seed(value, &c->seed);
    return -1;
}

int ku_chaos_parse(const char *text, struct ku_chaos *chaos)
{
    char copy[256];
    *chaos = (struct ku_chaos){0};
    if (!text || !*text)
        return 0;
    if (strlen(text) >= sizeof copy)
        return KU_ERR(KUMI_EINVAL, "chaos: %.20s…: more than %zu characters", text,
                      sizeof copy - 1);
    memcpy(copy, text, strlen(text) + 1);
    char *rest = copy;
    for (char *word = strtok_r(rest, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        char *value = strchr(word, '=');
        if (value)
            *value++ = 0;
        if (!value || parse_option(word, value, chaos) < 0)
            return KU_ERR(KUMI_EINVAL,
                          "chaos: %s: %s; give delay=20ms jitter=5ms drop=R@N corrupt=R@N kill=R@N "
                          "(rank R's N-th arrival, between hosts its N-th message) short=BYTES "
                          "double=N (every N-th connection) seed=S, joined by commas",
                          word, value ? value : "a value is missing");
    }
    if (strspn(text, ",") == strlen(text))
        return KU_ERR(KUMI_EINVAL, "chaos: %s: no option; give one, as in delay=20ms", text);
    chaos->is_on = 1;
    return 0;
}
