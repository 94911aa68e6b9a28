/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/stream.h"

#include "base/fault.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <string.h>
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
 * BBR paces what it sends, and keeps at most twice the bandwidth times the shortest round trip
 * unacknowledged. A burst of a collective exceeds that where round trips are short, and the rest
 * waits for acknowledgements. 1 MiB each way between two network namespaces took 600 us with bbr,
 * 230 us with reno, which recovers from a loss within milliseconds there, and which every process
 * may choose.
 */
static void leave_bbr(int fd)
{
    const uint32_t short_us = 1000;
    struct tcp_info i = {0};
    char name[16] = "";
    socklen_t info_bytes = sizeof i, name_bytes = sizeof name - 1;
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &name_bytes) == 0 &&
        strncmp(name, "bbr", 3) == 0 &&
        getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &info_bytes) == 0 && i.tcpi_rtt < short_us)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

/*
 * Probes are sent only while no data is unacknowledged, and TCP_USER_TIMEOUT replaces their count
 * (tcp(7)). Since Linux 5.11 it also ends a connection whose peer acknowledges every probe but has
 * no room for data for so long.
 */
int ku_os_stream_tune(int fd, int keepalive_s, int timeout_ms, bool is_always_read)
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
        set(fd, IPPROTO_TCP, TCP_KEEPCNT, timeout_ms / 1000 / keepalive_s - 1) < 0 ||
        set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, is_always_read ? timeout_ms : 0) < 0)
        return -1;
    if (!is_always_read)
        leave_bbr(fd);
    return 0;
}

/*
 * A peer whose window is closed answers, but with longer and longer pauses, as the kernel sends its
 * window probes and retransmissions less and less often. So silence counts only if something was
 * sent after the last answer, and not just now:
 *
 *     last answer ──────── 1 s or more ──────── sent ── 1 s or more ── now
 */
bool ku_os_stream_is_dead(int fd, int timeout_ms)
{
    const uint32_t pause_ms = 1000;
    struct tcp_info i = {0};
    socklen_t bytes = sizeof i;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &bytes) < 0 ||
        i.tcpi_last_ack_recv < (uint32_t)timeout_ms)
        return false;
    return i.tcpi_probes > 1 || (i.tcpi_unacked > 0 && i.tcpi_last_data_sent >= pause_ms &&
                                 i.tcpi_last_ack_recv - i.tcpi_last_data_sent >= pause_ms);
}
