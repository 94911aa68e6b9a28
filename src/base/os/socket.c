/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/socket.h"

#include "base/fault.h"
#include "base/os/ipc.h"
#include "base/os/os.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { MAPPED_BYTES = 12 };
static const uint8_t mapped[MAPPED_BYTES] = {[10] = 0xff, [11] = 0xff};

/* Room for a sockaddr of either family */
union any {
    struct sockaddr sa;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static int close_keeping_errno(int fd)
{
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

bool ku_os_address_is_v4(const struct ku_os_address *a)
{
    return memcmp(a->ip, mapped, sizeof mapped) == 0;
}

static socklen_t to_any(const struct ku_os_address *a, union any *out)
{
    memset(out, 0, sizeof *out);
    if (ku_os_address_is_v4(a)) {
        out->v4.sin_family = AF_INET;
        out->v4.sin_port = htons(a->port);
        memcpy(&out->v4.sin_addr, a->ip + MAPPED_BYTES, 4);
        return sizeof out->v4;
    }
    out->v6.sin6_family = AF_INET6;
    out->v6.sin6_port = htons(a->port);
    memcpy(&out->v6.sin6_addr, a->ip, 16);
    return sizeof out->v6;
}

static void from_any(const union any *a, struct ku_os_address *out)
{
    memset(out, 0, sizeof *out);
    if (a->sa.sa_family == AF_INET) {
        memcpy(out->ip, mapped, sizeof mapped);
        memcpy(out->ip + MAPPED_BYTES, &a->v4.sin_addr, 4);
        out->port = ntohs(a->v4.sin_port);
    } else if (a->sa.sa_family == AF_INET6) {
        memcpy(out->ip, &a->v6.sin6_addr, 16);
        out->port = ntohs(a->v6.sin6_port);
    }
}

static int listen_on(int family, const union any *at, socklen_t len, bool is_any, int backlog)
{
    const int on = 1, off = 0;
    int fd = ku_fault_is_due(KU_FAULT_OS)
                 ? -1
                 : socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    /* a port whose last connections are in TIME_WAIT is free */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, is_any ? &off : &on, sizeof on);
    if (ku_fault_is_due(KU_FAULT_OS) || bind(fd, &at->sa, len) < 0 || listen(fd, backlog) < 0)
        return close_keeping_errno(fd);
    return fd;
}

int ku_os_tcp_listen(const struct ku_os_address *at, int backlog)
{
    static const uint8_t zero[16];
    const bool is_any = memcmp(at->ip, zero, sizeof zero) == 0;
    union any a;
    socklen_t len = to_any(at, &a);
    int fd = listen_on(a.sa.sa_family, &a, len, is_any, backlog);
    if (fd >= 0 || !is_any || (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL))
        return fd;
    /* a system without IPv6 */
    a.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(at->port)};
    return listen_on(AF_INET, &a, sizeof a.v4, is_any, backlog);
}

int ku_os_tcp_accept(int fd, struct ku_os_address *peer)
{
    union any a;
    socklen_t len = sizeof a;
    int got;
    if (ku_fault_is_due(KU_FAULT_OS))
        return -1;
    do
        got = accept4(fd, &a.sa, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
    while (got < 0 && errno == EINTR);
    if (got >= 0 && peer)
        from_any(&a, peer);
    return got;
}

int ku_os_tcp_connect(const struct ku_os_address *to)
{
    union any a;
    socklen_t len = to_any(to, &a);
    int fd = socket(a.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, &a.sa, len) < 0 && errno != EINPROGRESS && errno != EINTR)
        return close_keeping_errno(fd);
    return fd;
}

/* Only the attempt that succeeds counts as a call: see ku_os_local_connect. */
int ku_os_tcp_connected(int fd)
{
    int why = 0;
    socklen_t len = sizeof why;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &len) < 0)
        return -1;
    errno = why;
    return why || ku_fault_is_due(KU_FAULT_OS) ? -1 : 0;
}

int ku_os_tcp_address(int fd, bool is_peer, struct ku_os_address *out)
{
    union any a;
    socklen_t len = sizeof a;
    if (ku_fault_is_due(KU_FAULT_OS) ||
        (is_peer ? getpeername(fd, &a.sa, &len) : getsockname(fd, &a.sa, &len)) < 0)
        return -1;
    from_any(&a, out);
    return 0;
}

ssize_t ku_os_tcp_send(int fd, const void *data, size_t bytes)
{
    ssize_t n;
    if (ku_fault_is_due(KU_FAULT_OS))
        return -1;
    do
        n = send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n;
}

ssize_t ku_os_tcp_recv(int fd, void *data, size_t bytes)
{
    ssize_t n;
    if (ku_fault_is_due(KU_FAULT_OS))
        return -1;
    do
        n = recv(fd, data, bytes, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n;
}

int ku_os_await(int fd, short events, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = events};
    int n = poll(&p, 1, timeout_ms);
    return n < 0 && errno == EINTR ? 0 : n;
}

int ku_os_resolve(const char *name, struct ku_os_address *out, int cap, const char **why)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    int n = 0;
    memset(out, 0, (size_t)cap * sizeof *out);
    if (inet_pton(AF_INET, name, out->ip + MAPPED_BYTES) == 1) {
        memcpy(out->ip, mapped, sizeof mapped);
        return 1;
    }
    if (inet_pton(AF_INET6, name, out->ip) == 1)
        return 1;
    int failed = ku_fault_is_due(KU_FAULT_OS) ? EAI_SYSTEM : getaddrinfo(name, NULL, &hints, &list);
    if (failed) {
        *why = failed == EAI_SYSTEM ? strerror(errno) : gai_strerror(failed);
        return -1;
    }
    for (const struct addrinfo *i = list; i && n < cap; i = i->ai_next) {
        union any a;
        if (i->ai_addrlen > sizeof a)
            continue;
        memcpy(&a, i->ai_addr, i->ai_addrlen);
        from_any(&a, &out[n++]);
    }
    freeaddrinfo(list);
    return n;
}

int ku_os_route(const struct ku_os_address *to, struct ku_os_address *from)
{
    struct ku_os_address with_port = *to;
    union any a;
    socklen_t len;
    with_port.port = with_port.port ? with_port.port : 9; /* any; nothing is sent */
    len = to_any(&with_port, &a);
    int fd =
        ku_fault_is_due(KU_FAULT_OS) ? -1 : socket(a.sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, &a.sa, len) < 0 || ku_os_tcp_address(fd, false, from) < 0)
        return close_keeping_errno(fd);
    close(fd);
    from->port = 0;
    return 0;
}

int ku_os_interfaces(struct ku_os_interface *out, int cap)
{
    struct ifaddrs *list = NULL;
    int n = 0;
    if (ku_fault_is_due(KU_FAULT_OS) || getifaddrs(&list) < 0)
        return -1;
    for (const struct ifaddrs *i = list; i && n < cap; i = i->ifa_next) {
        union any a;
        if (!i->ifa_addr || !(i->ifa_flags & IFF_UP))
            continue;
        if (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6)
            continue;
        memcpy(&a, i->ifa_addr, i->ifa_addr->sa_family == AF_INET ? sizeof a.v4 : sizeof a.v6);
        memset(&out[n], 0, sizeof out[n]);
        memcpy(out[n].name, i->ifa_name, strnlen(i->ifa_name, sizeof out[n].name - 1));
        from_any(&a, &out[n].address);
        out[n++].address.port = 0;
    }
    freeifaddrs(list);
    return n;
}

int ku_os_host_name(char *name, size_t bytes)
{
    if (ku_fault_is_due(KU_FAULT_OS) || gethostname(name, bytes) < 0)
        return -1;
    name[bytes - 1] = '\0';
    return 0;
}

int ku_os_datagram_open(const char *name)
{
    const int on = 1;
    struct sockaddr_un a;
    socklen_t len = 0;
    if (ku_fault_is_due(KU_FAULT_OS) || (name && ku_os_unix_address(name, &a, &len) < 0))
        return -1;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || !name)
        return fd;
    /* before the bind, so that every datagram says its sender's user */
    if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) < 0 ||
        ku_fault_is_due(KU_FAULT_OS) || bind(fd, (const struct sockaddr *)&a, len) < 0)
        return close_keeping_errno(fd);
    return fd;
}

int ku_os_datagram_send(int fd, const char *name, const void *data, size_t bytes, int fd_out)
{
    struct sockaddr_un a;
    socklen_t len;
    if (ku_os_unix_address(name, &a, &len) < 0)
        return -1;
    return ku_os_send_with(fd, &a, len, data, bytes, fd_out, MSG_DONTWAIT);
}

ssize_t ku_os_datagram_recv(int fd, void *data, size_t bytes, int *fd_in, uid_t *uid)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
    } control;
    struct iovec v = {.iov_base = data, .iov_len = bytes};
    struct msghdr m = {.msg_iov = &v,
                       .msg_iovlen = 1,
                       .msg_control = control.room,
                       .msg_controllen = sizeof control.room};
    ssize_t n;
    *fd_in = -1;
    *uid = (uid_t)-1;
    if (ku_fault_is_due(KU_FAULT_OS))
        return -1;
    do
        n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    for (struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        struct ucred sender;
        if (c->cmsg_level != SOL_SOCKET)
            continue;
        for (size_t at = 0; c->cmsg_type == SCM_RIGHTS && CMSG_LEN(at + sizeof(int)) <= c->cmsg_len;
             at += sizeof(int)) { /* padding has room for a second one */
            if (*fd_in >= 0)
                close(*fd_in);
            memcpy(fd_in, CMSG_DATA(c) + at, sizeof(int));
        }
        if (c->cmsg_type == SCM_CREDENTIALS && c->cmsg_len == CMSG_LEN(sizeof sender)) {
            memcpy(&sender, CMSG_DATA(c), sizeof sender);
            *uid = sender.uid;
        }
    }
    if (n >= 0 && *fd_in < 0 && m.msg_flags & MSG_CTRUNC)
        *fd_in = KU_OS_FD_LOST;
    return n;
}

static int unix_path(const char *path, struct sockaddr_un *at)
{
    *at = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof at->sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(at->sun_path, path, strlen(path) + 1);
    return 0;
}

int ku_os_unix_listen(const char *path, int backlog)
{
    struct sockaddr_un at;
    int fd = unix_path(path, &at) < 0 || ku_fault_is_due(KU_FAULT_OS)
                 ? -1
                 : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    /* the mode of the socket becomes that of its file: there is no moment with another one */
    if (fchmod(fd, 0600) < 0 || ku_fault_is_due(KU_FAULT_OS) ||
        bind(fd, (const struct sockaddr *)&at, sizeof at) < 0)
        return close_keeping_errno(fd);
    if (listen(fd, backlog) < 0) {
        close_keeping_errno(fd);
        unlink(path);
        return -1;
    }
    return fd;
}

int ku_os_unix_is_served(const char *path)
{
    struct sockaddr_un at;
    int fd = unix_path(path, &at) < 0
                 ? -1
                 : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    int failed = connect(fd, (const struct sockaddr *)&at, sizeof at);
    close_keeping_errno(fd);
    if (failed == 0 || errno == EAGAIN) /* its queue is full */
        return 1;
    return errno == ECONNREFUSED || errno == ENOENT ? 0 : -1;
}

pid_t ku_os_unix_peer(int fd)
{
    struct ucred peer = {0};
    socklen_t bytes = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0 ? 0 : peer.pid;
}

int ku_os_epoll(void)
{
    return ku_fault_is_due(KU_FAULT_OS) ? -1 : epoll_create1(EPOLL_CLOEXEC);
}

int ku_os_epoll_set(int epoll, int fd, bool is_new, uint32_t events, void *tag)
{
    struct epoll_event e = {.events = events, .data.ptr = tag};
    if (ku_fault_is_due(KU_FAULT_OS))
        return -1;
    if (!is_new && !events)
        return epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL);
    return epoll_ctl(epoll, is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &e);
}

int ku_os_epoll_take(int epoll, struct epoll_event *out, int cap)
{
    int n;
    do
        n = epoll_wait(epoll, out, cap, 0);
    while (n < 0 && errno == EINTR);
    return n;
}

int ku_os_random(void *data, size_t bytes)
{
    return !ku_fault_is_due(KU_FAULT_OS) && getrandom(data, bytes, 0) == (ssize_t)bytes ? 0 : -1;
}
