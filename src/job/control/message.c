/* SPDX-License-Identifier: Apache-2.0 */
#include "job/control/message.h"

#include <stdbool.h>
#include <string.h>

enum { MAX_RANKS = 1 << 24, MAX_SIGNAL = 64 };

static const struct {
    const char *name;
    size_t bytes; /* of the payload; ROWS: of one */
} kinds[KU_N_MESSAGES] = {
    [KU_MESSAGE_NONE] = {"none", 0},
    [KU_MESSAGE_ROW] = {"row", sizeof(struct ku_join_row)},
    [KU_MESSAGE_REFUSE] = {"refuse", sizeof(struct kumi_error)},
    [KU_MESSAGE_PLACE] = {"place", sizeof(struct ku_host_row)},
    [KU_MESSAGE_ROWS] = {"rows", sizeof(struct ku_host_row)},
    [KU_MESSAGE_CAUSE] = {"cause", sizeof(struct kumi_error)},
    [KU_MESSAGE_VERDICT] = {"verdict", sizeof(struct kumi_error)},
    [KU_MESSAGE_STOP] = {"stop", 0},
    [KU_MESSAGE_ASK] = {"ask", 0},
    [KU_MESSAGE_ANSWER] = {"answer", sizeof(struct ku_progress)},
    [KU_MESSAGE_BYE] = {"bye", 0},
};

const char *ku_message_name(uint32_t kind)
{
    return kind < KU_N_MESSAGES ? kinds[kind].name : "?";
}

static bool is_control(char c)
{
    return (unsigned char)c < ' ' || c == 127;
}

void ku_message_clean(struct kumi_error *error)
{
    for (char *p = error->text; *p; p++)
        *p = is_control(*p) ? ' ' : *p;
}

static bool is_text(const char *text, size_t cap)
{
    size_t n = strnlen(text, cap);
    for (size_t i = 0; i < n; i++) /* one line: it is printed */
        if (is_control(text[i]))
            return false;
    return n < cap;
}

static bool is_row(const struct ku_host_row *row)
{
    return is_text(row->name, sizeof row->name) && row->name[0] &&
           is_text(row->engine, sizeof row->engine) && row->n_ranks >= 1 &&
           row->n_ranks <= MAX_RANKS && row->first_rank >= 0 &&
           row->first_rank <= MAX_RANKS - row->n_ranks;
}

static bool are_rows(const uint8_t *payload, size_t bytes)
{
    struct ku_host_row row;
    for (size_t at = 0; at < bytes; at += sizeof row) {
        memcpy(&row, payload + at, sizeof row);
        if (!is_row(&row))
            return false;
    }
    return true;
}

static bool is_error(const uint8_t *payload)
{
    struct kumi_error e;
    memcpy(&e, payload, sizeof e);
    return e.status < 0 && e.status >= -255 && e.scope >= KUMI_SCOPE_CALL &&
           e.scope <= KUMI_SCOPE_JOB && is_text(e.text, sizeof e.text) &&
           is_text(e.src, sizeof e.src);
}

static bool is_answer(const uint8_t *payload)
{
    struct ku_progress a;
    memcpy(&a, payload, sizeof a);
    return a.awaits >= -1 && a.awaits < MAX_RANKS && is_text(a.last, sizeof a.last);
}

static bool is_join_row(const uint8_t *payload)
{
    struct ku_join_row j;
    memcpy(&j, payload, sizeof j);
    return is_row(&j.row) && j.n_ranks >= 1 && j.n_ranks <= MAX_RANKS &&
           is_text(j.version, sizeof j.version);
}

static bool is_sound(const struct ku_message *m, const uint8_t *payload)
{
    switch ((enum ku_message_kind)m->kind) {
    case KU_MESSAGE_ROW:
        return is_join_row(payload);
    case KU_MESSAGE_PLACE:
        return m->to >= 1 && m->number >= 2 && m->number <= KU_MAX_HOSTS &&
               m->to < (int32_t)m->number && are_rows(payload, m->bytes);
    case KU_MESSAGE_ROWS:
        return m->number < KU_MAX_HOSTS && are_rows(payload, m->bytes);
    case KU_MESSAGE_REFUSE:
    case KU_MESSAGE_CAUSE:
    case KU_MESSAGE_VERDICT:
        return is_error(payload);
    case KU_MESSAGE_STOP:
        return m->number >= 1 && m->number <= MAX_SIGNAL;
    case KU_MESSAGE_ANSWER:
        return is_answer(payload);
    case KU_MESSAGE_ASK:
    case KU_MESSAGE_BYE:
        return true;
    case KU_MESSAGE_NONE:
    case KU_N_MESSAGES:
        return false;
    }
    return false;
}

static bool is_head(const struct ku_message *m)
{
    if (m->magic != KU_MESSAGE_MAGIC || m->kind == KU_MESSAGE_NONE || m->kind >= KU_N_MESSAGES ||
        m->from < 0 || m->from >= KU_MAX_HOSTS || m->to < 0 || m->to >= KU_MAX_HOSTS ||
        m->rank < -1 || m->rank >= MAX_RANKS)
        return false;
    if (m->kind == KU_MESSAGE_ROWS)
        return m->bytes > 0 && m->bytes % kinds[m->kind].bytes == 0 &&
               m->bytes <= KU_ROWS_PER_MESSAGE * kinds[m->kind].bytes;
    return m->bytes == kinds[m->kind].bytes;
}

int ku_message_parse(const uint8_t *data, size_t bytes, struct ku_message *head,
                     const uint8_t **payload)
{
    if (bytes < sizeof *head)
        return 0;
    memcpy(head, data, sizeof *head);
    if (!is_head(head))
        return -1;
    if (bytes < sizeof *head + head->bytes)
        return 0;
    *payload = data + sizeof *head;
    return is_sound(head, *payload) ? (int)(sizeof *head + head->bytes) : -1;
}
