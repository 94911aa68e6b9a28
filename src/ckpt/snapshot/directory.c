/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory of snapshots. Snapshots are named step-%08d; names that begin with .tmp- are
 * incomplete or being removed. Commits and removals are renames, which are atomic.
 */
#include "ckpt/snapshot/directory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"

/* "step-00000500" -> 500; -1 for any other name, including other spellings of the number. */
static int64_t parse_name(const char *name)
{
    int64_t step = 0;
    size_t digits = strlen(name);
    if (strncmp(name, "step-", 5) != 0 || digits < 5 + 8 || digits > 5 + 18)
        return -1;
    if (digits > 5 + 8 && name[5] == '0')
        return -1;
    for (const char *c = name + 5; *c != '\0'; c++) {
        if (*c < '0' || *c > '9')
            return -1;
        step = step * 10 + (*c - '0');
    }
    return step;
}

static int compare_descending(const void *x, const void *y)
{
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a < b) - (a > b);
}

int ku_ckpt_place_list(const char *dir, int64_t **steps, int *n)
{
    char **names;
    int n_names, found = 0;
    if (ku_os_list(dir, &names, &n_names) < 0) {
        if (errno != ENOENT)
            return KU_ERR(ku_os_status(KUMI_ENOCKPT), "checkpoint: %s: %s", dir, ku_os_why());
        names = NULL;
        n_names = 0;
    }
    int64_t *s = ku_calloc((size_t)n_names + 1, sizeof *s);
    for (int i = 0; s != NULL && i < n_names; i++)
        if (parse_name(names[i]) >= 0)
            s[found++] = parse_name(names[i]);
    ku_free(names);
    if (s == NULL)
        return KUMI_ENOMEM;
    qsort(s, (size_t)found, sizeof *s, compare_descending);
    *steps = s;
    *n = found;
    return KUMI_OK;
}

int ku_ckpt_place_clean(const char *dir)
{
    char **names;
    int n, status = KUMI_OK;
    if (ku_os_list(dir, &names, &n) < 0)
        return KU_ERR(ku_os_status(KUMI_ESTORAGE), "checkpoint: %s: %s", dir, ku_os_why());
    for (int i = 0; i < n && status == KUMI_OK; i++) {
        if (strncmp(names[i], KU_CKPT_TEMPORARY, strlen(KU_CKPT_TEMPORARY)) != 0)
            continue;
        char *path = ku_asprintf("%s/%s", dir, names[i]);
        if (path == NULL)
            status = KUMI_ENOMEM;
        else if (ku_os_rmtree(path) < 0)
            KU_LOG(CKPT, WARN, "%s: cannot be removed: %s", path, ku_os_why());
        ku_free(path);
    }
    ku_free(names);
    return status;
}

int ku_ckpt_place_put(const char *temporary, const char *final)
{
    if (ku_os_rename(temporary, final) == 0)
        return KUMI_OK;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return KU_ERR(ku_os_status(KUMI_ESTORAGE),
                      "checkpoint: %s: cannot be renamed to its final name: %s", final,
                      ku_os_why());
    /* the name exists, for example a damaged snapshot that the resume skipped */
    if (ku_os_exchange(temporary, final) < 0)
        return KU_ERR(ku_os_status(KUMI_ESTORAGE),
                      "checkpoint: %s: cannot be exchanged with the new one: %s", final,
                      ku_os_why());
    if (ku_os_rmtree(temporary) < 0)
        KU_LOG(CKPT, WARN, "%s: cannot be removed: %s", temporary, strerror(errno));
    return KUMI_OK;
}

void ku_ckpt_place_remove(const char *dir, int64_t step)
{
    char *from = ku_asprintf("%s/step-%08lld", dir, (long long)step);
    char *to = ku_asprintf("%s/" KU_CKPT_TEMPORARY "old-%08lld", dir, (long long)step);
    if (from != NULL && to != NULL && (ku_os_rename(from, to) < 0 || ku_os_rmtree(to) < 0))
        KU_LOG(CKPT, WARN, "%s: the old snapshot cannot be removed: %s", from, strerror(errno));
    ku_free(from);
    ku_free(to);
}

/* Moves one snapshot; if the name exists, adds a suffix from -2 on. */
static int move_one(const char *dir, int64_t step, const char *to)
{
    enum { MAX_TRIES = 10000 };
    char *from = ku_asprintf("%s/step-%08lld", dir, (long long)step);
    int result = -1;
    errno = from ? EEXIST : ENOMEM;
    for (int i = 1; result < 0 && (errno == EEXIST || errno == ENOTEMPTY) && i <= MAX_TRIES; i++) {
        char *name = i == 1 ? ku_asprintf("%s/step-%08lld", to, (long long)step)
                            : ku_asprintf("%s/step-%08lld-%d", to, (long long)step, i);
        if (name)
            result = ku_os_rename(from, name);
        else
            errno = ENOMEM;
        int saved = errno;
        ku_free(name);
        errno = saved;
    }
    int status = result == 0
                     ? KUMI_OK
                     : KU_ERR(ku_os_status(KUMI_ESTORAGE), "checkpoint: %s: moving it to %s: %s",
                              from ? from : dir, to, ku_os_why());
    ku_free(from);
    return status;
}

int ku_ckpt_place_aside(const char *dir, int64_t after, const char *to, int *n_moved)
{
    int64_t *steps;
    int n, status = KUMI_OK;
    KU_TRY(ku_ckpt_place_list(dir, &steps, &n));
    *n_moved = 0;
    for (int i = n - 1; i >= 0 && status == KUMI_OK; i--) {
        if (steps[i] <= after)
            continue;
        if (*n_moved == 0 && ku_os_mkdirs(to) < 0)
            status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "checkpoint: %s: %s", to, ku_os_why());
        if (status == KUMI_OK)
            status = move_one(dir, steps[i], to);
        *n_moved += status == KUMI_OK;
    }
    ku_free(steps);
    return status;
}
