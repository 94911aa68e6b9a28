/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether an MPI library has a fabric in this process. A library says which transports it was built
 * with, not which it uses; but every transport past the kernel's network opens a device, and closes
 * it again if it cannot use it:
 *
 *     /dev/infiniband/uverbs0    InfiniBand, RoCE, EFA
 *     /dev/hfi1_0                Omni-Path
 *     /dev/cxi0                  Slingshot
 */
#include "base/mem.h"
#include "base/os/os.h"
#include "comm/mpi/private.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The name of an RDMA device in its path; NULL: it is none. */
static const char *name_of(const char *path)
{
    static const char *const kind[] = {"/dev/infiniband/uverbs", "/dev/hfi1_", "/dev/cxi"};
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++)
        if (strncmp(path, kind[i], strlen(kind[i])) == 0)
            return strrchr(path, '/') + 1;
    return NULL;
}

/* A device may be open several times. */
static bool is_listed(const char *text, const char *name)
{
    for (const char *p = text; (p = strstr(p, name)); p++)
        if (strchr(",", p[strlen(name)])) /* or the end of the text */
            return true;
    return false;
}

void ku_mpi_rdma(const char *folder, char *text, size_t cap)
{
    char link[PATH_MAX], path[128], **names;
    size_t len = 0;
    int n;
    snprintf(text, cap, "none");
    if (ku_os_list(folder, &names, &n) < 0)
        return;
    for (int i = 0; i < n && len < cap; i++) {
        snprintf(link, sizeof link, "%s/%s", folder, names[i]);
        const ssize_t bytes = readlink(link, path, sizeof path - 1);
        path[bytes > 0 ? bytes : 0] = '\0';
        const char *name = name_of(path);
        if (name && (len == 0 || !is_listed(text, name)))
            len += (size_t)snprintf(text + len, cap - len, "%s%s", len ? ", " : "", name);
    }
    ku_free(names);
}
