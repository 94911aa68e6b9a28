/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_OS_IPC_H
#define KU_BASE_OS_IPC_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Shared memory, futexes and Unix sockets between processes of one host. As base/os/os.h: results
 * are the system's own. */

/* A memfd of this size, close-on-exec, that nobody can shrink, grow or unseal. */
int ku_os_memfd_sealed(const char *name, size_t bytes);
/* 0 if fd is such a memfd (a file that could shrink would kill its readers), with its size. */
int ku_os_memfd_check(int fd, size_t *bytes);
int ku_os_keep_on_exec(int fd, int keep);
/* Backs [at, at + bytes) with memory now, in huge pages where the system likes. Never fails: what
 * is not backed now is at first touch. */
void ku_os_populate(void *at, size_t bytes);

/* Sleep while *word == seen, at most timeout_ns; may return early. Works across processes. */
void ku_os_futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns);
void ku_os_futex_wake(_Atomic uint32_t *word, int n);

/* Sockets of the abstract Unix namespace: no file, gone with their owner. SOCK_SEQPACKET,
 * close-on-exec. */
int ku_os_local_listen(const char *name, int backlog);
int ku_os_local_connect(const char *name);
/* Waits <= timeout_ns. -1 with EAGAIN when nobody came. */
int ku_os_local_accept(int fd, int64_t timeout_ns);
/* The user on the other end. 0, -1. */
int ku_os_local_peer_uid(int fd, uid_t *uid);
/* One message, with a descriptor unless fd_out < 0. */
int ku_os_local_send(int fd, const void *data, size_t bytes, int fd_out);
/* Waits <= timeout_ns for one message of exactly `bytes`; *fd_in is the descriptor that came along,
 * or -1. -1 with EAGAIN: none yet. */
int ku_os_local_recv(int fd, void *data, size_t bytes, int *fd_in, int64_t timeout_ns);

#endif
