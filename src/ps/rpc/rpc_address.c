/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/rpc/private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os/os.h"

/* Connections that wait to be accepted: those of a start of KU_RPC_CONNECTIONS clients. */
enum { BACKLOG = KU_RPC_CONNECTIONS };

static const char how[] = "write unix:PATH, HOST:PORT or [IPV6]:PORT";

static bool is_loopback(const struct ku_os_address *a)
{
    static const uint8_t one[16] = {[15] = 1};
    return ku_os_address_is_v4(a) ? a->ip[12] == 127 : memcmp(a->ip, one, sizeof one) == 0;
}

static int parse_unix(struct ku_rpc_address *a)
{
    enum { MAX_PATH = 107 }; /* sockaddr_un */
    a->is_unix = a->is_loopback = true;
    a->path = a->text + strlen("unix:");
    if (a->path[0] == '\0' || strlen(a->path) > MAX_PATH)
        return KU_ERR(KUMI_EINVAL, "rpc: address: %.60s..: a path of %zu bytes; give 1 to %d",
                      a->text, strlen(a->path), (int)MAX_PATH);
    return KUMI_OK;
}

int ku_rpc_address_parse(const char *text, struct ku_rpc_address *a)
{
    const char *why = "it has no address";
    memset(a, 0, sizeof *a);
    if (strlen(text) >= sizeof a->host)
        return KU_ERR(KUMI_EINVAL, "rpc: address: %.60s..: %zu bytes; at most %zu are allowed",
                      text, strlen(text), sizeof a->host - 1);
    memcpy(a->text, text, strlen(text) + 1);
    if (strncmp(text, "unix:", 5) == 0)
        return parse_unix(a);
    const char *colon = strrchr(text, ':'), *host = text;
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : -1;
    if (colon == NULL || colon == text || end == colon + 1 || *end || port < 0 || port > 65535)
        return KU_ERR(KUMI_EINVAL, "rpc: address: \"%.100s\": no port of 0 to 65535; %s", text,
                      how);
    size_t bytes = (size_t)(colon - text);
    if (host[0] == '[' && host[bytes - 1] == ']') {
        host++;
        bytes -= 2;
    } else if (memchr(host, ':', bytes)) {
        return KU_ERR(KUMI_EINVAL, "rpc: address: \"%.100s\": a second colon; %s", text, how);
    }
    memcpy(a->host, host, bytes);
    if (ku_os_resolve(a->host, &a->tcp, 1, &why) < 1)
        return KU_ERR(KUMI_EINVAL, "rpc: address: \"%.100s\": %s; %s", text, why, how);
    a->tcp.port = (uint16_t)port;
    a->is_loopback = is_loopback(&a->tcp);
    return KUMI_OK;
}

void ku_rpc_address_set_port(struct ku_rpc_address *a, uint16_t port)
{
    const bool has_colon = strchr(a->host, ':') != NULL;
    a->tcp.port = port;
    snprintf(a->text, sizeof a->text, "%s%s%s:%u", has_colon ? "[" : "", a->host,
             has_colon ? "]" : "", port);
}

static int refuse(const struct ku_rpc_address *a)
{
    char owner[64];
    const char *why = ku_os_why();
    if (errno != EADDRINUSE)
        return KU_ERR(errno == EACCES || errno == EADDRNOTAVAIL || errno == ENOENT ? KUMI_EINVAL
                                                                                   : KUMI_ESTORAGE,
                      "rpc: listen: %s: %s", a->text, why);
    ku_rpc_owner(a, owner, sizeof owner);
    return KU_ERR(KUMI_EBUSY, "rpc: listen: %s: in use by %s; end it, or give another address%s",
                  a->text, owner, a->is_unix ? "" : " (port 0: any free one)");
}

static int listen_unix(const struct ku_rpc_address *a, int *fd)
{
    struct stat st;
    int is_there = ku_os_stat(a->path, &st) == 0;
    if (is_there && !S_ISSOCK(st.st_mode))
        return KU_ERR(KUMI_EINVAL, "rpc: listen: %s: the file exists and is no socket", a->text);
    if (is_there) {
        int is_served = ku_os_unix_is_served(a->path);
        if (is_served == 1)
            errno = EADDRINUSE;
        if (is_served != 0)
            return refuse(a);
        (void)ku_os_unlink(a->path); /* of a server that was killed */
    }
    *fd = ku_os_unix_listen(a->path, BACKLOG);
    return *fd < 0 ? refuse(a) : KUMI_OK;
}

int ku_rpc_listen(struct ku_rpc_address *a, int *fd)
{
    struct ku_os_address own;
    *fd = -1;
    if (a->is_unix)
        return listen_unix(a, fd);
    *fd = ku_os_tcp_listen(&a->tcp, BACKLOG);
    if (*fd < 0)
        return refuse(a);
    if (ku_os_tcp_address(*fd, false, &own) < 0) {
        ku_os_close(*fd);
        return KU_ERR(KUMI_ESTORAGE, "rpc: listen: %s: its address: %s", a->text, ku_os_why());
    }
    ku_rpc_address_set_port(a, own.port);
    return KUMI_OK;
}
