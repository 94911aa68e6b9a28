/* SPDX-License-Identifier: Apache-2.0 */
/* Connections that a rank makes: for data, and to report a cause when its host's bridge is dead. */
#include "base/clock.h"
#include "base/err.h"
#include "base/os/os.h"
#include "base/os/stream.h"
#include "job/control/private.h"
#include "job/job.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

enum { ROUND_MS = 50, MESSAGE_BYTES = 160 };

/* Wait for the socket, the deadline or the job's root cause. */
static int await(struct ku_segment *seg, int fd, short events, const char *peer, int64_t deadline)
{
    for (;;) {
        struct kumi_error root;
        int n = ku_os_await(fd, events, ROUND_MS);
        if (n > 0)
            return 0;
        if (seg && ku_segment_root(seg, &root) < 0)
            return ku_err_put(&root);
        if (n < 0)
            return KU_ERR(KUMI_ENOMEM, "connection: %s: %s", peer, ku_os_why());
        if (ku_clock_ns() > deadline)
            return KU_ERR(KUMI_ETIMEDOUT, "connection: %s: no answer in time", peer);
    }
}

static int shake(int fd, const char *peer, const struct ku_claim *claim,
                 const uint8_t secret[KU_SECRET_BYTES], struct ku_segment *seg, int64_t deadline)
{
    struct ku_hello_side side;
    KU_TRY(ku_hello_start(&side, claim, secret));
    enum ku_hello_end end;
    while ((end = ku_hello_step(&side, fd)) == KU_HELLO_GOING)
        KU_TRY(await(seg, fd, ku_hello_has_output(&side) ? POLLOUT : POLLIN, peer, deadline));
    if (end != KU_HELLO_DONE)
        return KU_ERR(end == KU_HELLO_CLOSED ? KUMI_EPEER : KUMI_EINVAL, "connection: %s: %s", peer,
                      ku_hello_why(end));
    return 0;
}

int ku_dial(const struct ku_os_address *to, const char *peer, const struct ku_claim *claim,
            const uint8_t secret[KU_SECRET_BYTES], struct ku_segment *seg, int64_t timeout_ns,
            int *out)
{
    const int64_t deadline = ku_clock_ns() + timeout_ns;
    int status, fd = ku_os_tcp_connect(to);
    if (fd < 0)
        return KU_ERR(errno == EMFILE || errno == ENFILE || errno == ENOMEM ? KUMI_ENOMEM
                                                                            : KUMI_EPEER,
                      "connection: %s: %s", peer, ku_os_why());
    KU_TRY_OUT(await(seg, fd, POLLOUT, peer, deadline));
    if (ku_os_tcp_connected(fd) < 0)
        KU_TRY_OUT(KU_ERR(KUMI_EPEER, "connection: %s: %s", peer, ku_os_why()));
    if (ku_os_stream_tune(fd, KU_KEEPALIVE_S, KU_PEER_TIMEOUT_MS, true) < 0)
        KU_TRY_OUT(KU_ERR(KUMI_ENOMEM, "connection: %s: options: %s", peer, ku_os_why()));
    KU_TRY_OUT(shake(fd, peer, claim, secret, seg, deadline));
    *out = fd;
    return 0;
out:
    ku_os_close(fd);
    return status;
}

static void address_of(const struct ku_host_row *row, struct ku_os_address *out)
{
    memcpy(out->ip, row->address, sizeof out->ip);
    out->port = row->port;
}

/* Read messages of a control connection until the verdict. 1: *head and *error are set */
static int await_verdict(int fd, int64_t deadline, struct ku_message *head,
                         struct kumi_error *error)
{
    uint8_t data[KU_MESSAGE_MAX];
    const uint8_t *payload;
    size_t n = 0;
    while (ku_clock_ns() < deadline && n < sizeof data) {
        ssize_t got = ku_os_tcp_recv(fd, data + n, sizeof data - n);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            return 0;
        n += got > 0 ? (size_t)got : 0;
        int bytes = ku_message_parse(data, n, head, &payload);
        if (bytes > 0 && head->kind == KU_MESSAGE_VERDICT) {
            memcpy(error, payload, sizeof *error);
            return 1;
        }
        if (bytes != 0)
            return 0;
        KU_IGNORE(ku_os_await(fd, POLLIN, ROUND_MS / 10), "the deadline counts");
    }
    return 0;
}

/* Tell one host; -1: it cannot be reached. */
static int report_to(struct ku_segment *seg, int host, const struct kumi_error *error, int culprit,
                     int64_t deadline)
{
    const struct ku_host_row *row = &ku_segment_hosts(seg)[host];
    const int own = (int)atomic_load(&seg->host);
    const struct ku_claim claim = {
        .kind = KU_CLAIM_REPORT, .from = seg->first_rank, .to = row->first_rank};
    struct {
        struct ku_message head;
        struct kumi_error error;
    } m = {.head = {.magic = KU_MESSAGE_MAGIC,
                    .kind = KU_MESSAGE_CAUSE,
                    .bytes = sizeof *error,
                    .from = own,
                    .to = host,
                    .rank = culprit},
           .error = *error};
    struct ku_os_address to;
    int fd = -1;
    ku_message_clean(&m.error);
    address_of(row, &to);
    if (ku_dial(&to, row->name, &claim, seg->secret, NULL, deadline - ku_clock_ns(), &fd) < 0)
        return -1;
    if (ku_os_tcp_send(fd, &m, sizeof m) == (ssize_t)sizeof m) /* an empty socket takes it */
        return fd;
    ku_os_close(fd);
    return -1;
}

/*
 * The root's neighbours are cut from each other when it dies, so all of them are told; else the
 * parent passes it on.
 */
int ku_control_report(struct ku_segment *seg, const struct kumi_error *error, int culprit,
                      int64_t timeout_ns)
{
    const struct kumi_error own_record = *ku_err_get();
    const int64_t deadline = ku_clock_ns() + timeout_ns;
    const int own = (int)atomic_load(&seg->host), n_hosts = ku_segment_n_hosts(seg);
    const int first = own ? ku_parent_of(own) : 1;
    const int end = own                              ? first + 1
                    : n_hosts < KU_CONTROL_RADIX + 1 ? n_hosts
                                                     : KU_CONTROL_RADIX + 1;
    int fd[KU_CONTROL_RADIX], is_set = 0;
    KU_ASSERT(n_hosts > 1 && first >= 0);
    for (int h = first; h < end; h++)
        fd[h - first] = report_to(seg, h, error, culprit, deadline);
    for (int h = first; h < end; h++) {
        struct ku_message head;
        struct kumi_error verdict;
        if (fd[h - first] < 0)
            continue;
        if (!is_set && await_verdict(fd[h - first], deadline, &head, &verdict)) {
            is_set = 1;
            if (head.from != own)
                atomic_store(&seg->root_said, 1);
            ku_segment_set_root(seg, &verdict, head.rank, head.from);
        }
        ku_os_close(fd[h - first]);
    }
    KU_IGNORE(ku_err_put(&own_record), "the caller's record stays");
    return is_set;
}

int ku_control_dial(struct ku_job *job, const struct ku_dial_head *head, int64_t timeout_ns,
                    int *fd)
{
    char peer[MESSAGE_BYTES], rank[96], at[KU_ADDRESS_TEXT];
    struct ku_os_address to;
    const struct ku_claim claim = {.kind = KU_CLAIM_DATA,
                                   .from = head->from,
                                   .to = head->to,
                                   .slot = head->slot,
                                   .lane = head->lane,
                                   .stream = head->stream};
    KU_ASSERT(job->n_hosts > 1 && head->to >= 0 && head->to < job->n);
    address_of(&ku_job_hosts(job)[ku_job_host_of(job, head->to)], &to);
    ku_segment_rank_text(job->seg, head->to, rank, sizeof rank);
    snprintf(peer, sizeof peer, "%s (%s)", rank, ku_address_print(&to, at));
    return ku_dial(&to, peer, &claim, job->seg->secret, job->seg, timeout_ns, fd);
}
