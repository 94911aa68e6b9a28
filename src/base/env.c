/* SPDX-License-Identifier: Apache-2.0 */
#include "base/env.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "kumi/status.h"

const char *ku_env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static int set(const char *name, const char *value, int replaces)
{
    if (setenv(name, value, replaces) < 0)
        return KU_ERR(KUMI_ENOMEM, "environment: %s: no memory", name);
    return 0;
}
int ku_env_default(const char *name, const char *value)
{
    return set(name, value, 0);
}
int ku_env_set(const char *name, const char *value)
{
    return set(name, value, 1);
}

int ku_env_check_threads(void)
{
    const char *text = ku_env("KUMI_THREADS");
    char *end;
    const long n = text ? strtol(text, &end, 10) : 1;
    if (text && (end == text || *end || n < 1 || n > 4096))
        return KU_ERR(KUMI_EINVAL, "KUMI_THREADS: %.60s; give a number from 1 to 4096", text);
    return KUMI_OK;
}

int ku_env_threads(void)
{
    const char *text = ku_env("KUMI_THREADS");
    long n = text ? strtol(text, NULL, 10) : 0;
    return text == NULL ? 0 : n < 1 ? 1 : n > 4096 ? 4096 : (int)n;
}

int ku_env_cache(char **path)
{
    static const char *const place[][2] = {
        {"KUMI_CACHE", ""}, {"XDG_CACHE_HOME", "/kumi"}, {"HOME", "/.cache/kumi"}};
    *path = NULL;
    for (int i = 0; i < 3; i++) {
        const char *base = ku_env(place[i][0]);
        if (base == NULL)
            continue;
        *path = ku_asprintf("%s%s", base, place[i][1]);
        return *path ? KUMI_OK : KUMI_ENOMEM;
    }
    return KUMI_OK;
}
