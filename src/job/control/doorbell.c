/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A doorbell: a datagram socket with an abstract name of user, job, host and local rank.
 *
 *     rank of the host ── "" ─────────────────────────> wakes the rank from poll
 *     host's bridge    ── head + descriptor ──────────> a connection for the rank
 *
 * A full queue is no failure of a wake-up: the rank has datagrams to read.
 */
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/socket.h"
#include "job/control.h"
#include "job/control/private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NAME_BYTES = 96, TAKES_MAX = 64 };

struct ku_doorbell {
    int fd, host;
    uint64_t job_id;
};

static void doorbell_name(uint64_t job_id, int host, int local, char name[NAME_BYTES])
{
    char rank[16] = "bridge";
    if (local != KU_DOORBELL_BRIDGE)
        snprintf(rank, sizeof rank, "%d", local);
    snprintf(name, NAME_BYTES, "kumi.%lu.%016llx.%d.%s.doorbell", (unsigned long)geteuid(),
             (unsigned long long)job_id, host, rank);
}

int ku_doorbell_open(uint64_t job_id, int host, int local, struct ku_doorbell **out)
{
    char name[NAME_BYTES];
    struct ku_doorbell *b = ku_calloc(1, sizeof *b);
    if (!b)
        return KUMI_ENOMEM;
    doorbell_name(job_id, host, local, name);
    *b = (struct ku_doorbell){.fd = ku_os_datagram_open(name), .host = host, .job_id = job_id};
    if (b->fd < 0) {
        int why = errno;
        ku_free(b);
        errno = why;
        return KU_ERR(why == EADDRINUSE ? KUMI_EINVAL : KUMI_ENOMEM, "join: socket @%s: %s%s", name,
                      ku_os_why(),
                      why == EADDRINUSE ? "; is a job with the same id still running?" : "");
    }
    *out = b;
    return 0;
}

void ku_doorbell_close(struct ku_doorbell *b)
{
    if (!b)
        return;
    ku_os_close(b->fd);
    ku_free(b);
}

int ku_doorbell_fd(const struct ku_doorbell *b)
{
    return b->fd;
}

void ku_doorbell_ring(uint64_t job_id, int host, int local)
{
    char name[NAME_BYTES];
    int fd = ku_os_datagram_open(NULL);
    if (fd < 0)
        return; /* the sleeper looks again after at most 1 s */
    doorbell_name(job_id, host, local, name);
    KU_IGNORE(ku_os_datagram_send(fd, name, "", 0, -1), "no such rank, or it is awake");
    ku_os_close(fd);
}

int ku_doorbell_pass(const struct ku_doorbell *own, int local, const struct ku_dial_head *head,
                     int fd)
{
    char name[NAME_BYTES];
    doorbell_name(own->job_id, own->host, local, name);
    return ku_os_datagram_send(own->fd, name, head, sizeof *head, fd);
}

int ku_doorbell_take(struct ku_doorbell *b, struct ku_dial_head *head, int *fd)
{
    for (int i = 0; i < TAKES_MAX; i++) {
        struct ku_dial_head got;
        uid_t uid;
        int passed;
        ssize_t n = ku_os_datagram_recv(b->fd, &got, sizeof got, &passed, &uid);
        if (n < 0)
            return 0;
        if (n == (ssize_t)sizeof got && passed >= 0 && uid == geteuid()) {
            *head = got;
            *fd = passed;
            return 1;
        }
        if (n == (ssize_t)sizeof got && passed == KU_OS_FD_LOST && uid == geteuid())
            return KU_ERR(KUMI_ENOMEM,
                          "connection: of rank %d to rank %d: %s; raise the limit (ulimit -n)",
                          got.from, got.to, strerror(EMFILE));
        if (passed >= 0)
            ku_os_close(passed);
    }
    return 0; /* a flood; poll says that there is more */
}
