/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_OS_STREAM_H
#define KU_BASE_OS_STREAM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/*
 * Bytes through connected sockets, without waiting and without SIGPIPE, whatever the descriptor's
 * flags say. Results are those of the system calls, as in base/os/os.h: -1 with EAGAIN if no byte
 * can be moved now.
 *
 * A caller repeats these calls until they move bytes. Only those that do, or fail, count as calls
 * for KUMI_FAULT=os:N, so that the call that fails does not depend on the load of the machine. The
 * bytes of that call are lost.
 */
ssize_t ku_os_stream_send(int fd, struct iovec *v, int n);
ssize_t ku_os_stream_recv(int fd, struct iovec *v, int n); /* 0: the peer has closed */

/*
 * Set up a connection: no delay of small messages, and an error (ETIMEDOUT) when the peer's kernel
 * acknowledges nothing for timeout_ms, probes included; data in bursts without BBR where the round
 * trip is short. No effect on sockets other than TCP. Returns 0 or -1.
 *
 *   keepalive_s      of silence before a probe, and between probes
 *   timeout_ms       of data or probes without an acknowledgement
 *   is_always_read   the peer reads at all times. Else it may leave data unread for as long as it
 *                    is busy, and the error comes only while this side has sent all that it has;
 *                    the rest is up to ku_os_stream_is_dead.
 */
int ku_os_stream_tune(int fd, int keepalive_s, int timeout_ms, bool is_always_read);
/*
 * Whether the peer's kernel has acknowledged nothing for timeout_ms, neither data nor a probe of
 * its closed window. For connections that ku_os_stream_tune has set up. false for sockets other
 * than TCP.
 */
bool ku_os_stream_is_dead(int fd, int timeout_ms);

#endif
