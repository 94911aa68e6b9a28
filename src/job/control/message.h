/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_CONTROL_MESSAGE_H
#define KU_JOB_CONTROL_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "job/control.h"
#include "kumi/status.h"

/*
 * Messages on a control connection, after the hellos: a head of 32 bytes and a payload whose size
 * the kind decides. Little endian, sent as they are.
 *
 *     kind      way      payload                 meaning
 *     ROW       to root  struct ku_join_row      a host comes
 *     REFUSE    both     struct kumi_error       the join failed; number, to root: its ranks;
 *                                                from a host of another job: KU_REFUSE_ELSEWHERE
 *     PLACE     down     row of the parent       to: index of the receiver, number: hosts
 *     ROWS      down     1 to 31 rows            number: index of the first
 *     CAUSE     up       struct kumi_error       from: proposing host, rank: culprit
 *     VERDICT   down     struct kumi_error       the same, decided
 *     STOP      both                             number: signal
 *     ASK       routed                           from, to: hosts; rank asked; extra: local rank
 *     ANSWER    routed   struct ku_progress      that asks, number: of its question
 *     BYE       both                             the sender leaves; a closed connection is no death
 */
enum ku_message_kind {
    KU_MESSAGE_NONE,
    KU_MESSAGE_ROW,
    KU_MESSAGE_REFUSE,
    KU_MESSAGE_PLACE,
    KU_MESSAGE_ROWS,
    KU_MESSAGE_CAUSE,
    KU_MESSAGE_VERDICT,
    KU_MESSAGE_STOP,
    KU_MESSAGE_ASK,
    KU_MESSAGE_ANSWER,
    KU_MESSAGE_BYE,
    KU_N_MESSAGES
};
enum { KU_ROWS_PER_MESSAGE = 31, KU_REFUSE_ELSEWHERE = 1 };
#define KU_MESSAGE_MAGIC 0x4d436b75u /* "ukCM" */

struct ku_message {
    uint32_t magic, kind;
    uint32_t bytes; /* of the payload */
    int32_t from, to;
    int32_t rank;
    uint32_t number, extra;
};
struct ku_join_row {
    struct ku_host_row row;
    int32_t n_ranks;      /* of the job, as this host was told */
    uint32_t segment_abi; /* with the version of hellos, that of these structs */
    uint32_t is_pretended;
    uint32_t unused;
    char version[24]; /* of kumi */
};
_Static_assert(sizeof(struct ku_message) == 32 && sizeof(struct ku_join_row) == 168 &&
                   sizeof(struct ku_progress) == 184 && sizeof(struct kumi_error) == 512,
               "sent as they are");
enum { KU_MESSAGE_MAX = 32 + KU_ROWS_PER_MESSAGE * 128 };

/*
 * Look at the next message in a buffer. Returns its size with head and payload; 0: more bytes are
 * needed; -1: no message of kumi. A message that is returned is sound by itself: hosts and ranks
 * are in the ranges of any job, and texts end.
 *
 *   head      copied; set unless -1 is returned and *bytes < 32
 *   payload   in `data`, not aligned
 */
int ku_message_parse(const uint8_t *data, size_t bytes, struct ku_message *head,
                     const uint8_t **payload);
const char *ku_message_name(uint32_t kind);
/* Make the text of an error one line, as a receiver wants it. */
void ku_message_clean(struct kumi_error *error);

#endif
