/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_OS_IPC_H
#define KU_BASE_OS_IPC_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

/*
 * Shared memory, futexes and Unix sockets between processes of one host. Results are those of the
 * system calls, as in base/os/os.h.
 */

/* Creates a memfd of this size, close-on-exec, sealed against shrinking, growing and unsealing. */
int ku_os_memfd_sealed(const char *name, size_t bytes);
/*
 * Returns 0 and the size if fd is such a memfd. A file that can shrink would kill its readers
 * (SIGBUS).
 */
int ku_os_memfd_check(int fd, size_t *bytes);
/*
 * Maps the first `bytes` of a memfd, shared and writable, at an address that suits huge pages.
 * Returns NULL on failure; unmap with ku_os_munmap.
 *
 *   bytes   a multiple of the page size
 */
void *ku_os_map_memfd(int fd, size_t bytes);
int ku_os_keep_on_exec(int fd, int keep);
/*
 * Backs [at, at + bytes) with memory now, in huge pages if available. Never fails: pages not backed
 * now are backed at first touch.
 */
void ku_os_populate(void *at, size_t bytes);
/*
 * The same for a range of ku_os_map_memfd, page-aligned. Asks for huge pages of shared memory also
 * where the system makes none by itself; only of whole ones in the range, so that nothing beyond it
 * is backed.
 */
void ku_os_populate_memfd(void *at, size_t bytes);

/*
 * Sleeps while *word == seen, at most timeout_ns; may return early. Works across processes.
 */
void ku_os_futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns);
void ku_os_futex_wake(_Atomic uint32_t *word, int n);

/*
 * Sockets of the abstract Unix namespace: they have no file and vanish with their process.
 * SOCK_SEQPACKET, close-on-exec.
 */
int ku_os_local_listen(const char *name, int backlog);
int ku_os_local_connect(const char *name);
/*
 * Waits up to timeout_ns. Returns -1 with EAGAIN if no process connected.
 */
int ku_os_local_accept(int fd, int64_t timeout_ns);
/*
 * User and process id of the peer, which connected or listened then. Returns 0 or -1.
 */
int ku_os_local_peer(int fd, uid_t *uid, pid_t *pid);
struct sockaddr_un;
/* The address of a name in the abstract name space. Returns 0 or -1 (ENAMETOOLONG). */
int ku_os_unix_address(const char *name, struct sockaddr_un *address, socklen_t *bytes);
enum { KU_OS_MESSAGE_BYTES = 256 };
/*
 * Sends one message of at most KU_OS_MESSAGE_BYTES over a Unix socket, with a descriptor unless
 * fd_out < 0.
 *
 *   to      datagram sockets: the receiver; NULL: the socket is connected
 *   flags   of sendmsg
 */
int ku_os_send_with(int fd, const struct sockaddr_un *to, socklen_t to_bytes, const void *data,
                    size_t bytes, int fd_out, int flags);
int ku_os_local_send(int fd, const void *data, size_t bytes, int fd_out);
/*
 * Waits up to timeout_ns for one message of exactly `bytes`. *fd_in is the descriptor received with
 * it, or -1. Returns -1 with EAGAIN if there is none yet.
 */
int ku_os_local_recv(int fd, void *data, size_t bytes, int *fd_in, int64_t timeout_ns);

#endif
