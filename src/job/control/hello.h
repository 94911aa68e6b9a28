/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_CONTROL_HELLO_H
#define KU_JOB_CONTROL_HELLO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "job/control.h"

/*
 * How the two ends of a connection prove that they have the job's secret.
 *
 *     client                                   server
 *     challenge {nonce, claim}        ──>
 *                                     <──      challenge {nonce}, answer {HMAC "S"}
 *     answer {HMAC "C"}               ──>
 *
 * Each of the four is KU_HELLO_BYTES long. HMAC-SHA256, keyed with the secret, is over the letter
 * of the side and both challenges, so an answer fits one connection, one direction and one claim:
 * none can be replayed or reflected. The server's claim is zero. A client whose server has another
 * secret still sends its answer, so that both ends see what is wrong.
 */
enum ku_claim_kind {
    KU_CLAIM_NONE,
    /* a host's first rank to the root: a row follows; slot: the port where its job meets, lane: how
     * many ports from there */
    KU_CLAIM_JOIN,
    KU_CLAIM_LINK,   /* host `from` to its parent `to` */
    KU_CLAIM_DATA,   /* rank `from` to rank `to` */
    KU_CLAIM_REPORT, /* rank `from` whose bridge died: a cause follows */
    KU_N_CLAIMS
};
struct ku_claim {
    uint32_t kind;
    int32_t from, to;
    uint32_t slot, lane;
    uint32_t unused;
    uint64_t stream;
};
enum { KU_NONCE_BYTES = 32, KU_HELLO_VERSION = 3 };
struct ku_hello { /* little endian, sent as it is */
    uint8_t magic[8];
    uint32_t version;
    uint32_t step;                 /* 1: challenge, 2: answer */
    uint8_t proof[KU_NONCE_BYTES]; /* nonce, or HMAC */
    struct ku_claim claim;         /* of a challenge */
    uint8_t zero[48];
};
_Static_assert(sizeof(struct ku_hello) == KU_HELLO_BYTES, "sent as it is");

enum ku_hello_end {
    KU_HELLO_GOING,
    KU_HELLO_DONE,
    KU_HELLO_STRANGER, /* no kumi */
    KU_HELLO_OTHER_VERSION,
    KU_HELLO_SECRET, /* another secret */
    KU_HELLO_CLOSED  /* the connection ended */
};
struct ku_hello_side {
    bool is_client;
    enum ku_hello_end end;
    uint8_t secret[KU_SECRET_BYTES];
    struct ku_hello challenge[2]; /* the client's, the server's */
    struct ku_hello in[2], out[2];
    size_t n_in, n_want, n_out, n_sent; /* bytes of `in` and `out` */
};

/* Begin with a fresh nonce. claim: the client's; NULL: a server. Errors: KUMI_ENOMEM. */
KU_STATUS ku_hello_start(struct ku_hello_side *side, const struct ku_claim *claim,
                         const uint8_t secret[KU_SECRET_BYTES]);
/*
 * Take bytes of the peer, at most n_want - n_in; what is to be sent is then in `out`. Does not
 * touch a socket.
 */
void ku_hello_take(struct ku_hello_side *side, const void *data, size_t bytes);
/* Move what a socket that does not block takes and has; reads nothing beyond the hellos. */
enum ku_hello_end ku_hello_step(struct ku_hello_side *side, int fd);
/* 1: waits until the socket takes more, 0: until it has more */
bool ku_hello_has_output(const struct ku_hello_side *side);
/* What the client claims, once the end is KU_HELLO_DONE */
const struct ku_claim *ku_hello_claim(const struct ku_hello_side *side);
/* "another secret; .." */
const char *ku_hello_why(enum ku_hello_end end);

#endif
