/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_EXCHANGE_PRIVATE_H
#define KU_COMM_EXCHANGE_PRIVATE_H

#include "comm/exchange.h"

/*
 * exchange_plan.c: set the stages of x for n_hosts >= 2 even hosts. All radices are at most
 * max_radix, but the last is the odd factor of n_hosts if that is larger.
 */
void ku_stages_choose(struct ku_exchange *x, int n_hosts, int max_radix);
/*
 * topology.c: the nodes of ku_topology_cover as sources `from` a peer, with their places among
 * them. Returns their number.
 */
int ku_cover_sources(const struct ku_topology *t, int host_begin, int host_end, int from,
                     struct ku_exchange_source *source, int cap);
/*
 * Sort sources that were gathered block after block of hosts by their leaves.
 */
void ku_cover_sort(const struct ku_topology *t, struct ku_exchange_source *source, int n);

#endif
