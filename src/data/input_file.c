/* SPDX-License-Identifier: Apache-2.0 */
#include "data/input_file.h"

#include <fcntl.h>
#include <string.h>

#include "base/err.h"
#include "base/os.h"

/* Where to get the data that our configurations name. */
static const char *page_of(const char *name)
{
    return strstr(name, "small_parallel_enja") ? " (docs/translation.md tells where to get it)"
           : strstr(name, "tinyshakespeare")   ? " (docs/text.md tells where to get it)"
                                               : "";
}

int ku_input_open(const char *name, int *fd, uint64_t *bytes)
{
    struct stat st;
    /* Not blocking: a pipe without a writer is named, not waited for. */
    int opened = ku_os_open(name, O_RDONLY | O_NONBLOCK, 0);
    if (opened < 0)
        return KU_ERR(KUMI_EINPUT, "data: %s: %s; give a file that can be read%s", name,
                      ku_os_why(), page_of(name));
    const char *fault = NULL;
    if (ku_os_fstat(opened, &st) < 0)
        fault = ku_os_why();
    else if (!S_ISREG(st.st_mode))
        fault = S_ISDIR(st.st_mode) ? "a directory" : "no regular file";
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
