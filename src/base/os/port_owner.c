/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which process listens on a TCP port of this host:
 *
 *     /proc/net/tcp, tcp6     a line for each socket: address, port, state (0A: listens), inode
 *     /proc/PID/fd/N          a link to "socket:[inode]", readable for processes of this user
 */
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/socket.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TABLE_MAX = 1 << 20, LINK_MAX = 64 }; /* some 7,000 sockets */

/* The text of a file of /proc, whose size is not known before; NULL: none. For ku_free. */
static char *text_of(const char *path)
{
    const int fd = ku_os_open(path, O_RDONLY, 0);
    char *text = fd < 0 ? NULL : ku_malloc(TABLE_MAX);
    const ssize_t bytes = text ? ku_os_read_full(fd, text, TABLE_MAX - 1) : 0;
    if (text)
        text[bytes > 0 ? bytes : 0] = '\0';
    if (fd >= 0)
        ku_os_close(fd);
    return text;
}

/* The inode of the socket that listens on the port; 0: none in this table. */
static unsigned long inode_of(const char *path, unsigned port)
{
    unsigned long inode = 0, found;
    unsigned at, state;
    char *text = text_of(path), *save = NULL, *line = text ? strtok_r(text, "\n", &save) : NULL;
    for (; line; line = strtok_r(NULL, "\n", &save))
        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*s %x %*s %*s %*s %*s %*s %lu", &at, &state,
                   &found) == 3 &&
            at == port && state == 0x0a)
            inode = found;
    ku_free(text);
    return inode;
}

static bool has_socket(const char *pid, const char *name)
{
    char path[64], link[LINK_MAX], **fd = NULL;
    int n = 0;
    bool is_found = false;
    snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
    if (ku_os_list(path, &fd, &n) < 0)
        return false;
    for (int i = 0; i < n && !is_found; i++) {
        snprintf(path, sizeof path, "/proc/%.20s/fd/%.20s", pid, fd[i]);
        const ssize_t bytes = readlink(path, link, sizeof link - 1);
        link[bytes > 0 ? bytes : 0] = '\0';
        is_found = strcmp(link, name) == 0;
    }
    ku_free(fd);
    return is_found;
}

pid_t ku_os_port_owner(uint16_t port, char program[32])
{
    char socket[LINK_MAX], path[64], **name = NULL;
    int n = 0;
    pid_t owner = 0;
    unsigned long inode = inode_of("/proc/net/tcp", port);
    inode = inode ? inode : inode_of("/proc/net/tcp6", port);
    if (!inode || ku_os_list("/proc", &name, &n) < 0)
        return 0;
    snprintf(socket, sizeof socket, "socket:[%lu]", inode);
    for (int i = 0; i < n && !owner; i++) {
        const long pid = strtol(name[i], NULL, 10);
        owner = pid > 0 && has_socket(name[i], socket) ? (pid_t)pid : 0;
    }
    ku_free(name);
    snprintf(path, sizeof path, "/proc/%d/comm", (int)owner);
    char *text = owner ? text_of(path) : NULL;
    snprintf(program, 32, "%.*s", text ? (int)strcspn(text, "\n") : 0, text ? text : "");
    ku_free(text);
    return owner;
}
