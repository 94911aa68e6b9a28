/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_CONTROL_H
#define KU_JOB_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "job/hosts.h"

/*
 * How the hosts of a job find each other and fail together.
 *
 * On a host the control segment is the truth: states, root cause, stop flag. Between hosts the
 * service thread of each host's first rank bridges it over a tree of TCP connections:
 *
 *                    host 0            the root: its address is known to all at the start
 *                 ┌────┴───┬─ … ─┐
 *              host 1   host 2  host 16        parent of h: (h - 1) / 16
 *
 *     up     a host's first cause of failure, a stop signal, an answer
 *     down   the job's root cause, a stop signal, a question
 *
 * Start: each host's first rank listens on a port of its own, connects to the root, proves that it
 * has the job's secret, and sends its row. When all rows are there the root checks them (ranks
 * neither missing nor doubled, one version of kumi) and the table goes down the tree. A failure of
 * any host is sent to all.
 *
 * Every connection, also those that carry data, begins with two hellos of fixed size from each
 * side: a nonce with a claim, and HMAC-SHA256 over the nonces and claims of both. Nothing else is
 * read before. Nothing is encrypted.
 *
 * The root cause: with several hosts an error that ends the job is first a host's proposal. The
 * bridge sends it to the root, which answers all hosts with the first that it got; only then is it
 * the root cause in the segments, and only the host that proposed it prints it. Where the bridge
 * does not answer within 1 s, the host's own proposal counts.
 */
enum { KU_CONTROL_RADIX = 16, KU_HELLO_BYTES = 128 };

struct ku_job;
struct ku_job_client;
struct ku_segment;
struct ku_control; /* a host's bridge; lives in its first rank's process */

/* What a host knows before it has met the others */
struct ku_control_opts {
    const struct ku_job_client *client; /* names the operations of ranks; NULL: no names */
    int rank, n;                        /* this rank, and the ranks of the job */
    int n_local;                        /* ranks of this host */
    const char *host_name;              /* KUMI_HOST, or the system's */
    const char *root;      /* "host:port", "[v6]:port", "host:port+16": 16 ports from there */
    const char *root_why;  /* without a root: why none is known; NULL: nothing gave one */
    const char *interface; /* KUMI_INTERFACE: name or address prefix; NULL: the route to the root */
    int port;              /* to listen on; 0: any. The root's is as `root` says */
    int listener;          /* open socket to listen on, + 1; 0: none. It stays the caller's */
    bool is_pretended;     /* KUMI_HOST is set: hosts may meet by loopback */
    char engine[KU_ENGINE_BYTES]; /* as in ku_host_row */
    const char *version;          /* of kumi; NULL: this one. For tests */
    uint8_t secret[KU_SECRET_BYTES];
    int64_t timeout_ns; /* of the join */
    /* Why this host cannot take part: the others are told, and the join fails. NULL: it joins. */
    const struct kumi_error *refusal;
};

/*
 * The job's secret: that of the segment, if the launcher stored one, else KUMI_SECRET (64 hex
 * digits), else ~/.config/kumi/secret, which is made if there is none.
 *
 * Errors: KUMI_EINVAL (not hex; the file's owner or mode), ESTORAGE.
 */
KU_STATUS ku_secret_find(const struct ku_segment *seg, uint8_t secret[KU_SECRET_BYTES]);
/* KUMI_PORT: a number from 1 to 65535; NULL: 0. Errors: KUMI_EINVAL. */
KU_STATUS ku_control_port(const char *text, int *port);
/* 64 hex digits. Errors: KUMI_EINVAL, which does not repeat the text. */
KU_STATUS ku_secret_parse(const char *text, uint8_t secret[KU_SECRET_BYTES]);

/*
 * Join the hosts: on return the segment's table is complete and the bridge runs.
 *
 * Blocks: at most timeout_ns.
 * Errors: KUMI_EINVAL (a claim contradicts another: both are named), EPEER, ETIMEDOUT (names the
 * missing hosts by their ranks), ENOMEM.
 */
KU_STATUS ku_control_join(const struct ku_control_opts *opts, struct ku_segment *seg,
                          struct ku_control **control);
/* End the bridge. Takes NULL. Waits for no peer. */
void ku_control_leave(struct ku_control *control);
/* The same without a word to the neighbours, which take it for a death. */
void ku_control_break(struct ku_control *control);

/* What the service thread does for the bridge: poll this descriptor for input, then serve. */
int ku_control_fd(const struct ku_control *control);
int ku_control_timeout_ms(const struct ku_control *control); /* serve after that in any case */
void ku_control_serve(struct ku_control *control);

/*
 * In place of a bridge that died with its process: tell the neighbours this host's cause, and set
 * the root cause that they answer. Blocks at most timeout_ns. 1: there is a root cause, 0: no host
 * answered. Leaves this thread's error record.
 */
int ku_control_report(struct ku_segment *seg, const struct kumi_error *error, int culprit,
                      int64_t timeout_ns);

/*
 * Connections that carry data. Any rank dials; the peer host's service thread accepts, checks the
 * hello, and passes the descriptor to the rank that it names through that rank's doorbell.
 */
struct ku_dial_head {    /* the dialling rank's claim in its hello */
    int32_t from, to;    /* ranks of the job */
    uint32_t slot, lane; /* comm slot; kind of link, which the engine numbers */
    uint64_t stream;
};
/* Connected and authenticated, not blocking. Blocks at most timeout_ns. */
KU_STATUS ku_control_dial(struct ku_job *job, const struct ku_dial_head *head, int64_t timeout_ns,
                          int *fd);

/*
 * A rank's doorbell: a datagram socket in the abstract name space, named by user, job, host and
 * local rank. A datagram wakes a rank that sleeps in poll; one with a descriptor hands over an
 * accepted connection. Datagrams of other users are dropped.
 */
struct ku_doorbell;
enum { KU_DOORBELL_BRIDGE = -1 }; /* as local rank: the host's bridge */
KU_STATUS ku_doorbell_open(uint64_t job_id, int host, int local, struct ku_doorbell **doorbell);
void ku_doorbell_close(struct ku_doorbell *doorbell);
int ku_doorbell_fd(const struct ku_doorbell *doorbell);
/* Wake the rank of this host; any thread, no wait. Three system calls. */
void ku_doorbell_ring(uint64_t job_id, int host, int local);
/*
 * Take the next connection: 1: *fd and *head are set; 0: none, and the doorbell is silent; or
 * KUMI_ENOMEM with a record: one is lost, since this process may open no more files.
 */
KU_STATUS ku_doorbell_take(struct ku_doorbell *doorbell, struct ku_dial_head *head, int *fd);

/* A rank's progress, as its host's segment has it; asked through the tree. Sent as it is. */
struct ku_progress {
    uint64_t progress; /* ku_rank_line.progress */
    uint32_t state, looks;
    int32_t awaits;       /* rank of the job that it waits for; -1: none */
    uint32_t stopped_pid; /* of its process, if that is stopped; else 0 */
    char last[160];       /* its last operation */
};
/*
 * Ask, and take the newest answer: 1: *out is set; 0: none yet. Does not block; any thread. A rank
 * has one question at a time: another rank replaces it, and a taken answer asks again.
 */
int ku_control_ask(struct ku_job *job, int rank, struct ku_progress *out);

#endif
