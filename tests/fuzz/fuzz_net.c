/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
#include "base/err.h"
#include "base/os/os.h"
#include "comm/tcp/tcp.h"
#include "fuzz.h"

#include <string.h>
#include <sys/socket.h>

/*
 * What another rank may send. Byte 0: receives that are posted, and how many at a time; byte 1: the
 * bytes of one call of progress; bytes 2 to 9: the sizes of the payloads; the rest is the stream,
 * after which the connection is closed. Message i must have the header {seq i, count bytes}.
 *
 * Each receive ends as a plain reading of the stream says, and no byte outside its buffer changes.
 */
enum { N_MAX = 8, SIZE_MAX_BYTES = 3 * 255, STREAM_MAX = 16384, UNTOUCHED = 0xA5 };

static int dial(void *ctx, const struct ku_dial_head *head, int64_t timeout_ns, int *fd)
{
    KU_ASSERT(head->from == 0 && head->to == 1 && timeout_ns > 0);
    *fd = *(int *)ctx;
    return 0;
}

static int take(void *ctx, struct ku_dial_head *head, int *fd)
{
    (void)ctx, (void)head, (void)fd;
    return 0;
}

struct receive {
    struct ku_net_req req;
    unsigned char data[SIZE_MAX_BYTES + 16];
};

/* The status of receive r at the start of what is left of the stream; 1: it never ends. */
static int expect(struct receive *r, const uint8_t **at, size_t *left, int before)
{
    const size_t bytes = (size_t)r->req.head.bytes;
    size_t stored = 0;
    int status = before;
    if (before == 0 && *left < sizeof r->req.head) {
        status = KUMI_EPEER;
    } else if (before == 0 && memcmp(*at, &r->req.head, sizeof r->req.head) != 0) {
        KU_ASSERT(memcmp(*at, &r->req.came, sizeof r->req.came) == 0);
        status = KUMI_EMISMATCH;
    } else if (before == 0) {
        *at += sizeof r->req.head;
        *left -= sizeof r->req.head;
        status = *left < bytes ? KUMI_EPEER : 0;
        stored = *left < bytes ? *left : bytes;
        KU_ASSERT(memcmp(r->data, *at, stored) == 0);
        *at += stored;
        *left -= stored;
    }
    for (size_t i = stored; i < sizeof r->data; i++)
        KU_ASSERT(r->data[i] == UNTOUCHED);
    return status;
}

static void post(struct ku_net_link *link, struct receive *r, uint64_t i, size_t bytes)
{
    memset(r->data, UNTOUCHED, sizeof r->data);
    r->req = (struct ku_net_req){.head = {.seq = i, .count = bytes}, .n_pieces = 2};
    r->req.piece[0].at = r->data;
    r->req.piece[0].bytes = bytes / 3;
    r->req.piece[1].at = r->data + bytes / 3;
    r->req.piece[1].bytes = bytes - bytes / 3;
    KU_ASSERT(link->net->ops->recv(link, &r->req) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct receive r[N_MAX];
    struct ku_net *net;
    struct ku_net_link *link;
    int fd[2], status = 0;
    if (bytes < 10 || bytes > STREAM_MAX)
        return 0;
    const int n = 1 + data[0] % N_MAX, n_at_once = 1 + data[0] / N_MAX % N_MAX;
    const int64_t budget = data[1] ? data[1] : -1;
    const uint8_t *at = data + 10;
    size_t left = bytes - 10;
    KU_ASSERT(socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0);
    KU_ASSERT(ku_os_write_full(fd[1], at, left) == 0 && ku_os_close(fd[1]) == 0);
    struct ku_tcp_wires wires = {.ctx = &fd[0], .dial = dial, .take = take, .doorbell = -1};
    KU_ASSERT(ku_tcp_open(&wires, 0, 2, &net) == 0 &&
              net->ops->link(net, 0, 0, 1, KU_NET_BOTH_WAYS, &link) == 0);
    int n_posted = 0, n_done = 0;
    for (bool moves = true; moves && status == 0;) {
        while (n_done < n_posted && r[n_done].req.is_done && r[n_done].req.status == 0)
            n_done++;
        bool is_bad = n_done < n_posted && r[n_done].req.is_done;
        for (; !is_bad && n_posted < n && n_posted < n_done + n_at_once; n_posted++)
            post(link, &r[n_posted], (uint64_t)n_posted, data[2 + n_posted] * 3u);
        moves = false;
        status = net->ops->progress(net, budget, &moves);
    }
    KU_ASSERT(status == 0 || status == KUMI_EPEER);
    for (int i = 0, before = 0; i < n_posted; i++) {
        before = expect(&r[i], &at, &left, before == KUMI_EMISMATCH ? 1 : before);
        KU_ASSERT(r[i].req.is_done == (before <= 0));
        KU_ASSERT(before > 0 || r[i].req.status == before);
    }
    net->ops->close(net, true);
    return 0;
}
