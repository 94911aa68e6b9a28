/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/os/os.h"

void *ku_os_plugin_load(const char *path, char *why, size_t cap)
{
    if (ku_fault_is_due(KU_FAULT_OS)) {
        snprintf(why, cap, "%s", ku_os_why());
        return NULL;
    }
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!plugin) {
        const char *text = dlerror();
        snprintf(why, cap, "%s", text ? text : "unknown error");
    }
    return plugin;
}

const void *ku_os_plugin_object(void *plugin, const char *name)
{
    return dlsym(plugin, name);
}

int ku_os_own_folder(char *path, size_t cap)
{
    static const char here;
    const char *name = "/proc/self/exe";
    char file[PATH_MAX];
    struct link_map *map = NULL;
    Dl_info info;
    /* The loader gives the program an empty name. */
    if (dladdr1(&here, &info, (void **)&map, RTLD_DL_LINKMAP) && map && map->l_name[0])
        name = map->l_name;
    if (ku_fault_is_due(KU_FAULT_OS) || !realpath(name, file))
        return -1;
    char *end = strrchr(file, '/');
    size_t len = end ? (size_t)(end - file) : 0;
    if (!end || len >= cap) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(path, file, len);
    path[len] = 0;
    return 0;
}
