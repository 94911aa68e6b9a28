/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_OS_SOCKET_H
#define KU_BASE_OS_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Sockets between hosts (TCP over IPv4 and IPv6), datagrams between processes of one host, and
 * epoll. Results are those of the system calls, as in base/os/os.h. Descriptors are close-on-exec.
 */

/* IPv4 is mapped into IPv6 (RFC 4291, 2.5.5.2), so that one type holds both. */
struct ku_os_address {
    uint8_t ip[16];
    uint16_t port; /* host byte order */
};
bool ku_os_address_is_v4(const struct ku_os_address *a);

/*
 * Listens on this address, port 0: any free one. An address of zeros: all interfaces, IPv4 and
 * IPv6. Not blocking.
 */
int ku_os_tcp_listen(const struct ku_os_address *at, int backlog);
/* Not blocking: EAGAIN if no connection waits. The connection does not block either. */
int ku_os_tcp_accept(int fd, struct ku_os_address *peer);
/* Starts a connection that does not block. It is made, or failed, once fd is writable. */
int ku_os_tcp_connect(const struct ku_os_address *to);
/* 0: the connection of ku_os_tcp_connect is made; -1 with the reason. */
int ku_os_tcp_connected(int fd);
/* The address of this side, or of the other. */
int ku_os_tcp_address(int fd, bool is_peer, struct ku_os_address *out);
/* Bytes moved, at most what the socket takes or has; 0 from recv: the peer closed. */
ssize_t ku_os_tcp_send(int fd, const void *data, size_t bytes);
ssize_t ku_os_tcp_recv(int fd, void *data, size_t bytes);
/* poll of one descriptor: 1 if an event is there, 0 after timeout_ms, -1. */
int ku_os_await(int fd, short events, int timeout_ms);

/*
 * The addresses of a name, IPv4 or IPv6, at most cap. Returns their number, or -1 with *why, a
 * text of the resolver. Blocks as long as the resolver does, for names; not for addresses.
 */
int ku_os_resolve(const char *name, struct ku_os_address *out, int cap, const char **why);
/* This host's address from which datagrams to `to` would leave. Nothing is sent. */
int ku_os_route(const struct ku_os_address *to, struct ku_os_address *from);
/* One row per address of an interface that is up. */
struct ku_os_interface {
    char name[16];
    struct ku_os_address address;
};
int ku_os_interfaces(struct ku_os_interface *out, int cap); /* number, or -1 */
int ku_os_host_name(char *name, size_t bytes);
/*
 * The process of this user, or of any for root, that listens on a TCP port of this host; 0: none
 * was found.
 */
pid_t ku_os_port_owner(uint16_t port, char program[32]);

/*
 * Datagram sockets of the abstract Unix namespace. A datagram has at most 256 bytes and perhaps a
 * descriptor. Neither call blocks.
 */
int ku_os_datagram_open(const char *name); /* NULL: a socket that only sends */
int ku_os_datagram_send(int fd, const char *name, const void *data, size_t bytes, int fd_out);
/*
 * Bytes received; *fd_in: the descriptor, -1: none came, or KU_OS_FD_LOST: one came, and the limit
 * of open files left no room for it; *uid: the sender's user. EAGAIN: none.
 */
enum { KU_OS_FD_LOST = -2 };
ssize_t ku_os_datagram_recv(int fd, void *data, size_t bytes, int *fd_in, uid_t *uid);

/*
 * Listens on a new socket file that its owner alone may use (mode 0600), not blocking; accepted
 * with ku_os_tcp_accept. EADDRINUSE: the path exists.
 */
int ku_os_unix_listen(const char *path, int backlog);
/* 1: a process listens on this socket file; 0: none does, or there is none; -1 with the reason. */
int ku_os_unix_is_served(const char *path);
/* The process at the other end, 0: unknown. */
pid_t ku_os_unix_peer(int fd);

int ku_os_epoll(void);
/* Watches fd for EPOLLIN and EPOLLOUT as events say; 0 forgets it. */
int ku_os_epoll_set(int epoll, int fd, bool is_new, uint32_t events, void *tag);
struct epoll_event;
int ku_os_epoll_take(int epoll, struct epoll_event *out, int cap); /* does not wait */

int ku_os_random(void *data, size_t bytes); /* for keys; 0, -1 */

#endif
