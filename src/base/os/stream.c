/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/stream.h"

#include "base/fault.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <sys/socket.h>

/* The result of a call that may have to be repeated later. */
static ssize_t counted(ssize_t n)
{
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        errno = EAGAIN;
        return -1;
    }
    int saved = errno;
    if (ku_fault_is_due(KU_FAULT_OS))
        return -1;
    errno = saved;
    return n;
}

ssize_t ku_os_stream_send(int fd, struct iovec *v, int n)
{
    struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)n};
    ssize_t bytes;
    do
        bytes = sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (bytes < 0 && errno == EINTR);
    return counted(bytes);
}

ssize_t ku_os_stream_recv(int fd, struct iovec *v, int n)
{
    struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)n};
    ssize_t bytes;
    do
        bytes = recvmsg(fd, &m, MSG_DONTWAIT);
    while (bytes < 0 && errno == EINTR);
    return counted(bytes);
}

static int set(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value);
}

/*
 * Probes are sent only while no data is unacknowledged, and TCP_USER_TIMEOUT replaces their count
 * (tcp(7)). TCP_KEEPCNT is its value for kernels that heed both.
 */
int ku_os_stream_tune(int fd, int keepalive_s, int user_timeout_ms)
{
    int protocol = 0;
    socklen_t bytes = sizeof protocol;
    if (ku_fault_is_due(KU_FAULT_OS) ||
        getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &bytes) < 0)
        return -1;
    if (protocol != IPPROTO_TCP)
        return 0;
    if (set(fd, IPPROTO_TCP, TCP_NODELAY, 1) < 0 || set(fd, SOL_SOCKET, SO_KEEPALIVE, 1) < 0 ||
        set(fd, IPPROTO_TCP, TCP_KEEPIDLE, keepalive_s) < 0 ||
        set(fd, IPPROTO_TCP, TCP_KEEPINTVL, keepalive_s) < 0 ||
        set(fd, IPPROTO_TCP, TCP_KEEPCNT, user_timeout_ms / 1000 / keepalive_s) < 0 ||
        set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, user_timeout_ms) < 0)
        return -1;
    return 0;
}
