/* SPDX-License-Identifier: Apache-2.0 */
#include "job/control/hello.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/os/os.h"
#include "base/os/socket.h"

#include <errno.h>
#include <string.h>

enum { STEP_CHALLENGE = 1, STEP_ANSWER = 2 };
static const uint8_t magic[8] = {'k', 'u', 'm', 'i', ' ', 'j', 'o', 'b'};

static struct ku_hello new_hello(uint32_t step)
{
    struct ku_hello h = {.version = KU_HELLO_VERSION, .step = step};
    memcpy(h.magic, magic, sizeof magic);
    return h;
}

static void add_output(struct ku_hello_side *s, const struct ku_hello *h)
{
    KU_ASSERT(s->n_out + sizeof *h <= sizeof s->out);
    memcpy((uint8_t *)s->out + s->n_out, h, sizeof *h);
    s->n_out += sizeof *h;
}

/* The answer of a side */
static void prove(const struct ku_hello_side *s, char side, uint8_t out[KU_NONCE_BYTES])
{
    uint8_t text[1 + sizeof s->challenge];
    text[0] = (uint8_t)side;
    memcpy(text + 1, s->challenge, sizeof s->challenge);
    ku_hmac_sha256(s->secret, sizeof s->secret, text, sizeof text, out);
}

static void add_answer(struct ku_hello_side *s)
{
    struct ku_hello answer = new_hello(STEP_ANSWER);
    prove(s, s->is_client ? 'C' : 'S', answer.proof);
    add_output(s, &answer);
}

int ku_hello_start(struct ku_hello_side *s, const struct ku_claim *claim,
                   const uint8_t secret[KU_SECRET_BYTES])
{
    memset(s, 0, sizeof *s);
    s->is_client = claim != NULL;
    memcpy(s->secret, secret, sizeof s->secret);
    struct ku_hello *own = &s->challenge[s->is_client ? 0 : 1];
    *own = new_hello(STEP_CHALLENGE);
    if (ku_os_random(own->proof, sizeof own->proof) < 0)
        return KU_ERR(KUMI_ENOMEM, "join: random bytes: %s", ku_os_why());
    s->n_want = s->is_client ? sizeof s->in : sizeof s->in[0];
    if (s->is_client) {
        own->claim = *claim;
        add_output(s, own);
    }
    return 0;
}

/* Check the parts that say nothing of the secret. */
static enum ku_hello_end check_form(const struct ku_hello *h, uint32_t step)
{
    static const uint8_t zero[sizeof h->zero];
    const struct ku_claim none = {.kind = KU_CLAIM_NONE};
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return KU_HELLO_STRANGER;
    if (h->version != KU_HELLO_VERSION)
        return KU_HELLO_OTHER_VERSION;
    if (h->step != step || memcmp(h->zero, zero, sizeof zero) != 0 ||
        (step == STEP_ANSWER && memcmp(&h->claim, &none, sizeof none) != 0))
        return KU_HELLO_STRANGER;
    return KU_HELLO_GOING;
}

static enum ku_hello_end check_answer(const struct ku_hello_side *s, const struct ku_hello *h)
{
    uint8_t expected[KU_NONCE_BYTES];
    enum ku_hello_end end = check_form(h, STEP_ANSWER);
    if (end != KU_HELLO_GOING)
        return end;
    prove(s, s->is_client ? 'S' : 'C', expected);
    return ku_is_equal_secret(expected, h->proof, sizeof expected) ? KU_HELLO_DONE
                                                                   : KU_HELLO_SECRET;
}

/* The client has the server's two hellos. */
static void take_server(struct ku_hello_side *s)
{
    s->end = check_form(&s->in[0], STEP_CHALLENGE);
    if (s->end != KU_HELLO_GOING)
        return;
    s->challenge[1] = s->in[0];
    s->end = check_answer(s, &s->in[1]);
    if (s->end != KU_HELLO_STRANGER)
        add_answer(s);
}

/* The server has the client's challenge, or its answer. */
static void take_client(struct ku_hello_side *s)
{
    if (s->n_in == sizeof s->in) {
        s->end = check_answer(s, &s->in[1]);
        return;
    }
    s->end = check_form(&s->in[0], STEP_CHALLENGE);
    if (s->end == KU_HELLO_GOING &&
        (s->in[0].claim.kind == KU_CLAIM_NONE || s->in[0].claim.kind >= KU_N_CLAIMS))
        s->end = KU_HELLO_STRANGER;
    if (s->end == KU_HELLO_STRANGER)
        return;
    s->challenge[0] = s->in[0];
    add_output(s, &s->challenge[1]);
    add_answer(s);
    s->n_want = sizeof s->in;
}

void ku_hello_take(struct ku_hello_side *s, const void *data, size_t bytes)
{
    KU_ASSERT(s->end == KU_HELLO_GOING && bytes <= s->n_want - s->n_in);
    if (bytes)
        memcpy((uint8_t *)s->in + s->n_in, data, bytes);
    s->n_in += bytes;
    if (s->n_in < s->n_want)
        return;
    if (s->is_client)
        take_server(s);
    else
        take_client(s);
}

bool ku_hello_has_output(const struct ku_hello_side *s)
{
    return s->n_sent < s->n_out;
}

/* 0: all was sent, or the socket is full */
static int send_output(struct ku_hello_side *s, int fd)
{
    while (ku_hello_has_output(s)) {
        ssize_t n = ku_os_tcp_send(fd, (const uint8_t *)s->out + s->n_sent, s->n_out - s->n_sent);
        if (n < 0)
            return errno == EAGAIN ? 0 : -1;
        s->n_sent += (size_t)n;
    }
    return 0;
}

enum ku_hello_end ku_hello_step(struct ku_hello_side *s, int fd)
{
    uint8_t got[sizeof s->in];
    while (s->end == KU_HELLO_GOING) {
        if (send_output(s, fd) < 0)
            return s->end = KU_HELLO_CLOSED;
        ssize_t n = ku_os_tcp_recv(fd, got, s->n_want - s->n_in);
        if (n < 0 && errno == EAGAIN)
            return s->end;
        if (n <= 0)
            return s->end = KU_HELLO_CLOSED;
        ku_hello_take(s, got, (size_t)n);
    }
    /* the last hello: it fits an empty socket */
    if (send_output(s, fd) < 0 || ku_hello_has_output(s))
        s->end = s->end == KU_HELLO_DONE ? KU_HELLO_CLOSED : s->end;
    return s->end;
}

const struct ku_claim *ku_hello_claim(const struct ku_hello_side *s)
{
    KU_ASSERT(s->end == KU_HELLO_DONE);
    return &s->challenge[0].claim;
}

const char *ku_hello_why(enum ku_hello_end end)
{
    switch (end) {
    case KU_HELLO_GOING:
        return "it did not finish its hello in time";
    case KU_HELLO_DONE:
        return "it has the secret";
    case KU_HELLO_STRANGER:
        return "it does not speak as kumi does";
    case KU_HELLO_OTHER_VERSION:
        return "another version of kumi; use one version on all hosts";
    case KU_HELLO_SECRET:
        return "another secret; set KUMI_SECRET, or the file ~/.config/kumi/secret, equally on "
               "all hosts";
    case KU_HELLO_CLOSED:
        return "it closed the connection";
    }
    return "";
}
