/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/rpc/private.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"

/*
 * Which process listens: /proc/net says the inode of the listening socket, and some process has a
 * descriptor that is a link to "socket:[INODE]".
 *
 *     /proc/net/tcp     sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
 *     /proc/net/unix    Num RefCount Protocol Flags Type St Inode Path
 */
enum { MAX_TABLE = 4 << 20, LISTENS = 0x0A, UNIX_LISTENS = 0x10000 };

static void read_table(const char *path, struct ku_str *out)
{
    char piece[16384];
    ssize_t n;
    int fd = ku_os_open(path, O_RDONLY, 0);
    while (fd >= 0 && out->bytes < MAX_TABLE && (n = ku_os_read(fd, piece, sizeof piece)) > 0)
        ku_str_append(out, piece, (size_t)n);
    if (fd >= 0)
        ku_os_close(fd);
}

static unsigned long inode_of_line(const struct ku_rpc_address *a, const char *line)
{
    unsigned long inode = 0;
    unsigned port, state, flags;
    int at = 0;
    if (!a->is_unix)
        return sscanf(line, " %*d: %*[0-9A-F]:%x %*s %x %*s %*s %*s %*s %*s %lu", &port, &state,
                      &inode) == 3 &&
                       port == a->tcp.port && state == LISTENS
                   ? inode
                   : 0;
    size_t bytes = strlen(a->path);
    return sscanf(line, "%*s %*s %*s %x %*s %*s %lu %n", &flags, &inode, &at) == 2 &&
                   (flags & UNIX_LISTENS) && strncmp(line + at, a->path, bytes) == 0 &&
                   (line[(size_t)at + bytes] == '\n' || line[(size_t)at + bytes] == '\0')
               ? inode
               : 0;
}

static unsigned long find_inode(const struct ku_rpc_address *a)
{
    struct ku_str table = {0};
    unsigned long inode = 0;
    read_table(a->is_unix ? "/proc/net/unix" : "/proc/net/tcp", &table);
    if (!a->is_unix)
        read_table("/proc/net/tcp6", &table);
    for (const char *line = ku_str_get(&table); line && inode == 0;) {
        inode = inode_of_line(a, line);
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    ku_str_fini(&table);
    return inode;
}

static bool has_socket(const char *pid, unsigned long inode)
{
    char folder[64], link[128], to[64], wanted[64];
    char **names;
    int n;
    bool has = false;
    snprintf(folder, sizeof folder, "/proc/%.20s/fd", pid);
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    if (ku_os_list(folder, &names, &n) < 0)
        return false;
    for (int i = 0; i < n && !has; i++) {
        snprintf(link, sizeof link, "%s/%.20s", folder, names[i]);
        ssize_t bytes = readlink(link, to, sizeof to - 1);
        to[bytes > 0 ? bytes : 0] = '\0';
        has = strcmp(to, wanted) == 0;
    }
    ku_free(names);
    return has;
}

void ku_rpc_owner(const struct ku_rpc_address *a, char *out, size_t bytes)
{
    char **pids, path[64];
    int n;
    unsigned long inode = find_inode(a);
    snprintf(out, bytes, "another process");
    if (inode == 0 || ku_os_list("/proc", &pids, &n) < 0)
        return;
    for (int i = 0; i < n; i++) {
        struct ku_str name = {0};
        if (!isdigit((unsigned char)pids[i][0]) || !has_socket(pids[i], inode))
            continue;
        snprintf(path, sizeof path, "/proc/%.20s/comm", pids[i]);
        read_table(path, &name);
        snprintf(out, bytes, "pid %.20s (%.*s)", pids[i], (int)strcspn(ku_str_get(&name), "\n"),
                 ku_str_get(&name));
        ku_str_fini(&name);
        break;
    }
    ku_free(pids);
}
