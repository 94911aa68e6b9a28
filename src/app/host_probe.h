/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_APP_HOST_PROBE_H
#define KU_APP_HOST_PROBE_H

#include <stdint.h>

#include "base/err.h"
#include "job/job.h"

/*
 * The hosts of a job, and the speed of the network between them, for `kumi info --hosts`.
 */
enum {
    KU_PROBE_PAIRS = 16, /* hosts that exchange messages with host 0; of more, an even sample */
    KU_PROBE_LARGE = 16 << 20,     /* bytes of the all-reduce */
    KU_PROBE_MESSAGE = 4 << 20,    /* bytes of a message */
    KU_PROBE_TRANSPORT_BYTES = 320 /* of the description of the transport */
};

/* Sent as it is; all hosts run one version of kumi on one kind of machine. */
struct ku_probe_host {
    char interface[16]; /* that has the host's address; "": unknown */
    char isa[12];
    int32_t n_cores;      /* on which the host's ranks may run */
    uint64_t total_bytes; /* of memory */
    uint64_t free_bytes;  /* UINT64_MAX: unknown */
};
_Static_assert(sizeof(struct ku_probe_host) == 48, "sent as it is");

/* Median of n calls with `bytes` of data. A slow network gets fewer bytes than were asked for. */
struct ku_probe_time {
    int64_t bytes;
    double ns;
    int n;
};
struct ku_probe_pair {
    int host;                          /* the other; the first is host 0 */
    struct ku_probe_time small, large; /* there and back */
};
struct ku_probe {
    char transport[KU_PROBE_TRANSPORT_BYTES];
    struct ku_probe_host *host;        /* [n_hosts] on rank 0; else NULL */
    struct ku_probe_time small, large; /* all-reduce over all ranks */
    struct ku_probe_pair pair[KU_PROBE_PAIRS];
    int n_pairs; /* fewer than there are hosts if the time was over */
};
/*
 * Collect the hosts' properties on rank 0 and, with several hosts, measure for about 3 s at most.
 *
 *   out   only rank 0's is complete; ku_probe_fini it, on failure too
 *
 * Collective over the job. Errors: KUMI_ENOMEM; the job's root cause.
 */
KU_STATUS ku_probe_run(struct ku_job *job, struct ku_probe *out);
void ku_probe_fini(struct ku_probe *probe);

/* The report, as text or as a JSON object. Rank 0 only. Errors: KUMI_ENOMEM. */
KU_STATUS ku_probe_print(const struct ku_job *job, const struct ku_probe *probe, int as_json,
                         char **text);

#endif
