/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_LAUNCH_HOSTLIST_H
#define KU_JOB_LAUNCH_HOSTLIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "job/hosts.h"

/*
 * The hosts of a job, with the ranks that each takes, as users of other launchers write them:
 *
 *     -H a:4,b:4                  Horovod, Open MPI; a host without a number has one slot
 *     a slots=4                   hostfile: Horovod, Open MPI, DeepSpeed
 *     a slots=4 max_slots=8       Open MPI; max_slots is a bound of slots here
 *     a:4                         Open MPI
 *     [fe80::1]:4                 an IPv6 address; the brackets are not part of its name
 *     # text                      to the end of the line
 *
 * A name may have a user, as in me@a. A host that is named several times in a row gets the sum of
 * its slots. If other hosts stand between, it is an error: ranks are numbered host by host.
 */
struct ku_slots {
    char name[KU_HOST_NAME_BYTES];
    int n; /* 1 to KU_MAX_LOCAL */
};
struct ku_hostlist {
    struct ku_slots *host;
    uint32_t n, cap;
    int64_t n_slots;
};
/* Add the hosts of a text of -H. Errors: KUMI_EINVAL, ENOMEM. */
KU_STATUS ku_hostlist_add(struct ku_hostlist *list, const char *text);
/*
 * Add the hosts of a hostfile's text.
 *
 *   path   in messages: "hosts: PATH:LINE: .."
 */
KU_STATUS ku_hostlist_add_lines(struct ku_hostlist *list, const char *path, const char *text,
                                size_t bytes);
/* Read a hostfile of at most 4 MiB. Errors: also KUMI_EINPUT. */
KU_STATUS ku_hostlist_read(struct ku_hostlist *list, const char *path);
/*
 * Check that no host stands at two places, and keep the first n slots; 0: all.
 *
 * Errors: KUMI_EINVAL (no host; fewer than n slots).
 */
KU_STATUS ku_hostlist_fill(struct ku_hostlist *list, int64_t n);
/*
 * All of these: the first n slots of a text of -H or of a hostfile; the other is NULL. `list` is
 * all zero at entry, and is finished by the caller even on failure.
 */
KU_STATUS ku_hostlist_open(struct ku_hostlist *list, const char *hosts, const char *hostfile,
                           int64_t n);
/*
 * The greatest common divisor of the hosts' slots; 0 with one host.
 *
 *   is_even   out: all hosts have as many
 */
int ku_hostlist_divisor(const struct ku_hostlist *list, bool *is_even);
void ku_hostlist_fini(struct ku_hostlist *list);

#endif
