/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/ipc.h"

#include "base/fault.h"
#include "base/os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum {
    SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
    PAGE_BYTES = 4096,
    HUGE_BYTES = 2 * 1024 * 1024,
};

int ku_os_memfd_sealed(const char *name, size_t bytes)
{
    int fd = ku_os_memfd(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    if (ku_os_ftruncate(fd, (off_t)bytes) < 0 || ku_fault_is_due(KU_FAULT_OS) ||
        fcntl(fd, F_ADD_SEALS, SEALS) < 0) {
        int saved = errno;
        ku_os_close(fd);
        errno = saved;
        return -1;
    }
    return fd;
}

int ku_os_memfd_check(int fd, size_t *bytes)
{
    struct stat st;
    int seals = ku_fault_is_due(KU_FAULT_OS) ? -1 : fcntl(fd, F_GET_SEALS);
    if (seals < 0 || ku_os_fstat(fd, &st) < 0)
        return -1;
    if ((seals & SEALS) != SEALS) {
        errno = EPERM;
        return -1;
    }
    *bytes = (size_t)st.st_size;
    return 0;
}

/* Reserves addresses for the mapping and an alignment, maps into them, and returns the rest. */
void *ku_os_map_memfd(int fd, size_t bytes)
{
    const int prot = PROT_READ | PROT_WRITE;
    if (bytes < HUGE_BYTES)
        return ku_os_mmap(bytes, prot, MAP_SHARED, fd, 0);
    const size_t all = bytes + HUGE_BYTES;
    char *area = ku_os_mmap(all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == NULL)
        return NULL;
    const size_t head = -(uintptr_t)area % HUGE_BYTES;
    char *at = area + head;
    if (ku_fault_is_due(KU_FAULT_OS) ||
        mmap(at, bytes, prot, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        int saved = errno;
        (void)munmap(area, all);
        errno = saved;
        return NULL;
    }
    if (head)
        (void)munmap(area, head);
    if (head < HUGE_BYTES)
        (void)munmap(at + bytes, HUGE_BYTES - head);
    return at;
}

int ku_os_keep_on_exec(int fd, int keep)
{
    return ku_fault_is_due(KU_FAULT_OS) ? -1 : fcntl(fd, F_SETFD, keep ? 0 : FD_CLOEXEC);
}

void ku_os_populate(void *at, size_t bytes)
{
    if (!bytes)
        return;
    (void)madvise(at, bytes, MADV_HUGEPAGE);
    (void)madvise(at, bytes, MADV_POPULATE_WRITE);
}

/*
 * Most systems leave huge pages of shared memory off (shmem_enabled: never), so a fault makes a
 * page of 4 KiB, and every process that maps the memory takes a fault for each. MADV_COLLAPSE
 * makes huge pages under any setting but `deny`, of ranges with at least one page, and other
 * processes map them with one fault. It waits for all processors once per call.
 */
void ku_os_populate_memfd(void *at, size_t bytes)
{
    char *first = (char *)at + -(uintptr_t)at % HUGE_BYTES;
    char *end = (char *)at + bytes - ((uintptr_t)at + bytes) % HUGE_BYTES;
    if (first < end) {
        (void)madvise(first, (size_t)(end - first), MADV_HUGEPAGE);
        for (char *page = first; page < end; page += HUGE_BYTES)
            (void)madvise(page, PAGE_BYTES, MADV_POPULATE_WRITE);
        (void)madvise(first, (size_t)(end - first), MADV_COLLAPSE);
    }
    if (bytes)
        (void)madvise(at, bytes, MADV_POPULATE_WRITE);
}

void ku_os_futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns)
{
    struct timespec t = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
    (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

void ku_os_futex_wake(_Atomic uint32_t *word, int n)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, n, NULL, NULL, 0);
}

int ku_os_unix_address(const char *name, struct sockaddr_un *address, socklen_t *bytes)
{
    size_t n = strlen(name);
    if (n + 1 > sizeof address->sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path + 1, name, n); /* leading NUL: abstract name space */
    *bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
    return 0;
}

static int local_socket(const char *name, struct sockaddr_un *address, socklen_t *len)
{
    if (ku_os_unix_address(name, address, len) < 0)
        return -1;
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
}

static int close_keeping_errno(int fd)
{
    int saved = errno;
    close(fd); /* not ku_os_close: see ku_os_local_connect about calls that count */
    errno = saved;
    return -1;
}

int ku_os_local_listen(const char *name, int backlog)
{
    struct sockaddr_un address;
    socklen_t len;
    int fd = ku_fault_is_due(KU_FAULT_OS) ? -1 : local_socket(name, &address, &len);
    if (fd < 0)
        return -1;
    if (ku_fault_is_due(KU_FAULT_OS) || bind(fd, (const struct sockaddr *)&address, len) < 0 ||
        listen(fd, backlog) < 0)
        return close_keeping_errno(fd);
    return fd;
}

int ku_os_local_connect(const char *name)
{
    struct sockaddr_un address;
    socklen_t len;
    int fd = local_socket(name, &address, &len);
    if (fd < 0)
        return -1;
    /*
     * A caller repeats this until the peer listens. Only the attempt that succeeds counts as a
     * call, so that the call that KUMI_FAULT=os:N fails does not depend on the load of the machine.
     */
    if (connect(fd, (const struct sockaddr *)&address, len) < 0 || ku_fault_is_due(KU_FAULT_OS))
        return close_keeping_errno(fd);
    return fd;
}

/* Returns 0 if fd is readable within timeout_ns, else -1 with EAGAIN. */
static int wait_readable(int fd, int64_t timeout_ns)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int64_t ms = timeout_ns / 1000000;
    int n = poll(&p, 1, ms > INT_MAX ? INT_MAX : (int)ms);
    if (n > 0)
        return 0;
    if (n == 0 || errno == EINTR)
        errno = EAGAIN;
    return -1;
}

int ku_os_local_accept(int fd, int64_t timeout_ns)
{
    if (wait_readable(fd, timeout_ns) < 0 || ku_fault_is_due(KU_FAULT_OS))
        return -1;
    return accept4(fd, NULL, NULL, SOCK_CLOEXEC);
}

int ku_os_local_peer(int fd, uid_t *uid, pid_t *pid)
{
    struct ucred who;
    socklen_t len = sizeof who;
    if (ku_fault_is_due(KU_FAULT_OS) || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0)
        return -1;
    *uid = who.uid;
    *pid = who.pid;
    return 0;
}

int ku_os_send_with(int fd, const struct sockaddr_un *to, socklen_t to_bytes, const void *data,
                    size_t bytes, int fd_out, int flags)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.room = {0}};
    char copy[KU_OS_MESSAGE_BYTES];
    struct sockaddr_un name;
    if (bytes > sizeof copy) {
        errno = EMSGSIZE;
        return -1;
    }
    memcpy(copy, data, bytes);
    struct iovec v = {.iov_base = copy, .iov_len = bytes};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    if (to) {
        name = *to;
        m.msg_name = &name;
        m.msg_namelen = to_bytes;
    }
    if (fd_out >= 0) {
        m.msg_control = control.room;
        m.msg_controllen = sizeof control.room;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd_out, sizeof(int));
    }
    ssize_t n;
    if (ku_fault_is_due(KU_FAULT_OS))
        return -1;
    do
        n = sendmsg(fd, &m, MSG_NOSIGNAL | flags);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)bytes ? 0 : -1;
}

int ku_os_local_send(int fd, const void *data, size_t bytes, int fd_out)
{
    return ku_os_send_with(fd, NULL, 0, data, bytes, fd_out, 0);
}

int ku_os_local_recv(int fd, void *data, size_t bytes, int *fd_in, int64_t timeout_ns)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec v = {.iov_base = data, .iov_len = bytes};
    struct msghdr m = {.msg_iov = &v,
                       .msg_iovlen = 1,
                       .msg_control = control.room,
                       .msg_controllen = sizeof control.room};
    *fd_in = -1;
    if (wait_readable(fd, timeout_ns) < 0 || ku_fault_is_due(KU_FAULT_OS))
        return -1;
    ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    if (n < 0)
        return -1;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        memcpy(fd_in, CMSG_DATA(c), sizeof(int));
    if (n != (ssize_t)bytes || (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
        if (*fd_in >= 0)
            ku_os_close(*fd_in);
        *fd_in = -1;
        errno = n ? EBADMSG : ECONNRESET;
        return -1;
    }
    return 0;
}
