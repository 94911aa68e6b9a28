/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os/os.h"
#include "cli/cli.h"

/*
 * `kumi ps`: the program kumi-ps beside this one, or in the folder of the installation, takes the
 * rest of the command line. It alone is linked with gRPC. Returns only if there is none.
 */
int cmd_ps(struct cli *c)
{
    char own[PATH_MAX], path[PATH_MAX + 16];
    const ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    own[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(own, '/');
    if (slash)
        *slash = '\0';
    const char *folders[] = {own, KUMI_BIN_FOLDER};
    c->argv[1] = c->argv[0]; /* the program's own name is not read */
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/kumi-ps", folders[i]);
        execv(path, c->argv + 1);
        if (errno != ENOENT && errno != ENOTDIR)
            return cli_usage("kumi ps: %s: %s", path, ku_os_why());
    }
    if (c->argc > 2 && cli_is_help(c->argv[2]))
        return printf("usage: %s\n\n%s; not in this build\n", c->command->usage, c->command->line),
               0;
    return cli_usage("kumi ps: this build has no parameter server: install libgrpc-dev and build "
                     "again with cmake -S . -B build -DKUMI_GRPC=ON && ninja -C build");
}
