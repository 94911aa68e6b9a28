/* SPDX-License-Identifier: Apache-2.0 */
#include "data/input_file.h"

#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"

/* A hint where to get the files that the example configurations use; "" for any other file. */
static const char *page_of(const char *name)
{
    return strstr(name, "small_parallel_enja")
               ? " (docs/reference/translation.md tells where to get it)"
           : strstr(name, "tinyshakespeare") ? " (docs/reference/text.md tells where to get it)"
                                             : "";
}

int ku_input_open(const char *name, int *fd, uint64_t *bytes)
{
    struct stat st;
    /* O_NONBLOCK: a pipe without a writer gives an error instead of blocking. */
    int opened = ku_os_open(name, O_RDONLY | O_NONBLOCK, 0);
    if (opened < 0)
        return KU_ERR(KUMI_EINPUT, "data: %s: %s; give a file that can be read%s", name,
                      ku_os_why(), page_of(name));
    const char *fault = NULL;
    if (ku_os_fstat(opened, &st) < 0)
        fault = ku_os_why();
    else if (!S_ISREG(st.st_mode))
        fault = S_ISDIR(st.st_mode) ? "a directory" : "not a regular file";
    else if (st.st_size == 0)
        fault = "empty";
    if (fault) {
        ku_os_close(opened);
        return KU_ERR(KUMI_EINPUT, "data: %s: %s; give a file with text or tokens", name, fault);
    }
    *fd = opened;
    *bytes = (uint64_t)st.st_size;
    return KUMI_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int ku_input_glob(const char *pattern, int (*each)(void *ctx, const char *name), void *ctx)
{
    struct stat st;
    glob_t found = {0};
    if (!strpbrk(pattern, "*?[") || ku_os_stat(pattern, &st) == 0)
        return each(ctx, pattern);
    int failed = glob(pattern, GLOB_NOSORT, NULL, &found), status = KUMI_OK;
    if (failed == GLOB_NOSPACE)
        status = KU_ERR(
            KUMI_ENOMEM,
            "data: %s: not enough memory for the list of files; give a narrower pattern", pattern);
    else if (failed || found.gl_pathc == 0)
        status = KU_ERR(KUMI_EINPUT, "data: %s: no file matches; correct the pattern", pattern);
    else
        qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, by_name);
    for (size_t i = 0; status == KUMI_OK && i < found.gl_pathc; i++)
        status = each(ctx, found.gl_pathv[i]);
    globfree(&found);
    return status;
}

int ku_input_cache(const char *folder, char **path)
{
    if (folder == NULL)
        return ku_env_cache(path);
    *path = ku_strdup(folder);
    return *path ? KUMI_OK : KUMI_ENOMEM;
}
