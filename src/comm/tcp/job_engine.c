/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of a rank of a job: it dials by the table of hosts and accepts by its doorbell. With
 * chaos some connections are opened twice, as by a dialling rank that tries again: the first is
 * used, and the accepting rank has to close the second.
 */
#include "comm/tcp/private.h"

#include "base/err.h"
#include "base/mem.h"
#include "comm/private.h"
#include "job/control/address.h"
#include "job/job.h"
#include "job/segment.h"

#include <stdio.h>
#include <string.h>

struct wires {
    struct ku_job *job;
    int64_t n_dialled, double_every; /* double_every: as in ku_chaos */
    struct ku_doorbell *doorbell;
    char where[16 + KU_ADDRESS_TEXT]; /* "eth0 10.77.0.1" */
};

static int dial(void *ctx, const struct ku_dial_head *head, int64_t timeout_ns, int *fd)
{
    struct wires *w = ctx;
    int second;
    KU_TRY(ku_control_dial(w->job, head, timeout_ns, fd));
    w->n_dialled++;
    if (w->double_every && w->n_dialled % w->double_every == 0 &&
        ku_control_dial(w->job, head, timeout_ns, &second) == 0)
        ku_os_close(second);
    return 0;
}

static int take(void *ctx, struct ku_dial_head *head, int *fd)
{
    const struct wires *w = ctx;
    return ku_doorbell_take(w->doorbell, head, fd);
}

static void name(void *ctx, int rank, char *text, size_t cap)
{
    const struct wires *w = ctx;
    ku_segment_rank_text(w->job->seg, rank, text, cap);
}

/* This host's address for the others, and the interface that has it */
static void find_place(struct wires *w)
{
    struct ku_os_address own = {0};
    char interface[16], text[KU_ADDRESS_TEXT];
    memcpy(own.ip, ku_job_hosts(w->job)[w->job->host].address, sizeof own.ip);
    ku_address_interface(&own, interface);
    snprintf(w->where, sizeof w->where, "%s%s%s", interface, interface[0] ? " " : "",
             ku_address_print(&own, text));
}

static void end(void *ctx)
{
    struct wires *w = ctx;
    ku_doorbell_close(w->doorbell);
    ku_free(w);
}

int ku_tcp_open_job(struct ku_job *job, struct ku_net **net)
{
    struct wires *w = ku_calloc(1, sizeof *w);
    int status = w ? 0 : KUMI_ENOMEM;
    KU_TRY_OUT(status);
    w->job = job;
    w->double_every = job->comm->chaos.double_every;
    find_place(w);
    KU_TRY_OUT(ku_doorbell_open(job->seg->job_id, job->host, job->local_rank, &w->doorbell));
    const struct ku_tcp_wires wires = {.ctx = w,
                                       .dial = dial,
                                       .take = take,
                                       .doorbell = ku_doorbell_fd(w->doorbell),
                                       .name = name,
                                       .where = w->where,
                                       .end = end};
    KU_TRY_OUT(ku_tcp_open(&wires, job->rank, job->n, net));
    return 0;
out:
    if (w)
        end(w);
    return status;
}
