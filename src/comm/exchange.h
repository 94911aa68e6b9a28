/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_EXCHANGE_H
#define KU_COMM_EXCHANGE_H

#include "base/err.h"
#include "comm/tree.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Which member sends what to which between the hosts of a communicator. Nothing is sent here. The
 * functions are pure: the interpreter, the planner and the simulator read the same plan.
 *
 * Every member d is the *destination* of a part of the vector: it ends with that part's sum. On
 * each host one member, the *helper* of d, works for d:
 *
 *     helper(h, d) = local(d) mod L_h          L_h: members on host h
 *     helper(h, d) = d                         on d's own host
 *
 * Reduce half: the helper sums its host's copies of d's part into tree nodes (comm/tree.h) and
 * sends them towards d. Gather half: d's part travels the same ways back, and the helper stores it
 * for its host. An all-reduce is both halves, a reduce-scatter the first, an all-gather the second.
 *
 * When all hosts have L members, L is a power of two and H hosts are a product of small radices, a
 * half takes stages. Members with the same local index l, one a host, exchange; l is left out here.
 * In stage s a host talks to the hosts that differ from it in digit s of the host number alone, the
 * last digit having the lowest place value. H = 6 = 2 x 3, host 3:
 *
 *     stage   radix   stride   group of host 3     sends               keeps
 *     0       2       1        2 3                 0, 2, 4 to host 2   1, 3, 5
 *     1       3       2        1 3 5               1 to 1, 5 to 5      3
 *
 * After a stage a host has the sum over its group's groups: `stride * radix` consecutive hosts,
 * which is one node of the tree. A host sends S (H - 1) / H bytes of a vector of S bytes in each
 * half, whatever the radices. The gather half takes the stages in reverse order with send and
 * receive swapped.
 *
 * Hosts of other sizes take one stage in which every helper sends to the destination directly; a
 * host then sends 1 to 2 log2(L) nodes for each element.
 *
 * Two hosts that are one node each need no gather half for an all-reduce: each sends its node of
 * the whole vector, and both add the two (ku_topology_is_mutual). That is one exchange in place of
 * two, with as many bytes, or fewer where the wire is narrower than the sums. (ku_far_is_mutual
 * says which all-reduces take it.)
 */

/* ---- Where the members are ---- */

struct ku_run {
    int32_t first, count; /* members first to first + count - 1 */
    int32_t host;
    int32_t local; /* local index of the first: members of a host are counted in member order */
};

struct ku_run_at {
    int32_t first, run; /* member; index in ku_topology.run */
};

/* The members of a communicator and their hosts, as one member sees them */
struct ku_topology {
    int n, n_hosts;      /* members; hosts that have members */
    int me, host, local; /* this member, its host and its index there */
    int max_local;       /* members on the largest host */
    /*
     * Members of each host, when all have as many and host h has members h * per_host and on. Then
     * the rest is NULL. Else 0.
     */
    int per_host;
    /*
     * Whether host h's members are a run before those of host h + 1. Always true when even.
     */
    bool is_contiguous;
    int n_runs;
    const struct ku_run *run;         /* [n_runs], by host, then by member */
    const int32_t *host_run;          /* [n_hosts + 1]: host h's are run[host_run[h]] and on */
    const struct ku_run_at *by_first; /* [n_runs], by member */
    const int32_t *lower_n;           /* [max_local + 1]: members with a lower local index */
    const int32_t *size_order;        /* [n_hosts]: the host's place, the largest host first */
    void *memory;
};

/* Hosts of equal size, in order: no memory, cannot fail. */
void ku_topology_init_even(struct ku_topology *t, int n_hosts, int per_host, int me);
/*
 * From the runs of members that share a host, in member order: run[i].count members on host
 * run[i].host, any number >= 0. `first` and `local` are ignored. Neighbours of one host merge. The
 * topology numbers the hosts from 0 in the order of their first members.
 *
 * Errors: KUMI_ENOMEM. O(n_runs) memory; none if the hosts are even.
 */
KU_STATUS ku_topology_init(struct ku_topology *t, const struct ku_run *run, int n_runs, int me);
/* Takes one that was filled with zeros. */
void ku_topology_fini(struct ku_topology *t);
/* L_h: members on a host */
int ku_topology_local_n(const struct ku_topology *t, int host);
/* The member with local index `local` on `host`. O(log runs of the host). */
int ku_topology_member(const struct ku_topology *t, int host, int local);
/* Host and local index of a member. O(log n_runs). */
void ku_topology_find(const struct ku_topology *t, int member, int *host, int *local);
/* Whether an all-reduce is two hosts' exchange of their nodes. Equal on all members. */
bool ku_topology_is_mutual(const struct ku_topology *t);
/* The local index on `host` of the helper of destination d, which is on host d_host at d_local */
int ku_topology_helper(const struct ku_topology *t, int host, int d_host, int d_local);

/* ---- Large collectives ---- */

enum {
    KU_EXCHANGE_RADIX = 16,  /* 15 peers a stage: connections and staging buffers of one rank */
    KU_EXCHANGE_STAGES = 16, /* 2^14 hosts in stages of radix 2 */
    KU_EXCHANGE_CHUNK_BYTES = 256 * 1024 /* is still in the L2 cache when it is sent */
};
enum ku_half { KU_HALF_REDUCE, KU_HALF_GATHER };

/* All-zero: defaults. Equal on all members. */
struct ku_exchange_tuning {
    int max_radix; /* 2 to n_hosts; 0: KU_EXCHANGE_RADIX. 2 is recursive halving. */
};

/* Destinations of one peer: hosts that agree with `host` in the low digits, one local index. */
struct ku_exchange_set {
    int n;
    int host, local, stage; /* in direct plans n = 1. Stage -1: all hosts (ku_exchange_all). */
};

struct ku_exchange_peer {
    int member;
    int host, local;            /* of the peer */
    struct ku_exchange_set set; /* destinations whose data travel */
    int n_nodes;                /* for each element; gather half: 1 */
};

struct ku_exchange_stage {
    int radix, stride; /* hosts in a group, and their distance */
};
struct ku_exchange {
    const struct ku_topology *topology; /* borrowed */
    /*
     * 0 with one host. All radices but the last are powers of two and at most max_radix; so is the
     * last, unless the odd factor of n_hosts is larger: then the last is that factor.
     */
    int n_stages;
    struct ku_exchange_stage stage[KU_EXCHANGE_STAGES];
    int max_nodes;         /* that any member sends for an element. Equal on all members. */
    int max_sources;       /* of ku_exchange_sources: this member, any stage */
    int max_peers;         /* of this member, in one stage */
    int32_t *sends_before; /* [n_hosts], uneven hosts: sends to hosts before, from mine on */
};

/*
 * Plan the exchange of a communicator, once for all its collectives.
 *
 *   topology   borrowed until ku_exchange_fini
 *   tuning     NULL: defaults
 *
 * O(n_hosts) time. O(n_hosts) memory for uneven hosts, else none. Errors: KUMI_ENOMEM.
 */
KU_STATUS ku_exchange_plan(const struct ku_topology *topology,
                           const struct ku_exchange_tuning *tuning, struct ku_exchange *x);
/* Takes one that was filled with zeros. */
void ku_exchange_fini(struct ku_exchange *x);

/*
 * Peers of this member in a stage of a half. The i-th send and the i-th receive of even hosts are a
 * perfect matching: when every member works in this order, one message goes to each host at a time.
 *
 *   stage   0 to n_stages - 1; the gather half begins with the last
 *   i       0 to n_sends - 1, n_recvs - 1
 *
 * Deadlock is impossible when every member, stage by stage and chunk by chunk, first sends chunk c
 * to all its peers and then receives chunk c from all, with room for one chunk or more per peer.
 */
int ku_exchange_n_sends(const struct ku_exchange *x, enum ku_half half, int stage);
int ku_exchange_n_recvs(const struct ku_exchange *x, enum ku_half half, int stage);
void ku_exchange_send(const struct ku_exchange *x, enum ku_half half, int stage, int i,
                      struct ku_exchange_peer *peer);
void ku_exchange_recv(const struct ku_exchange *x, enum ku_half half, int stage, int i,
                      struct ku_exchange_peer *peer);
/*
 * The destinations that stay with this member in a stage. Reduce half: what it receives in this
 * stage is for exactly these. Gather half: what it sends in this stage is for exactly these. After
 * the last stage that is this member alone.
 */
void ku_exchange_keep(const struct ku_exchange *x, int stage, struct ku_exchange_set *set);
/* Even hosts: all destinations of this member's local index, in the order of their slices */
void ku_exchange_all(const struct ku_exchange *x, struct ku_exchange_set *set);
/* The i-th destination of a set: a member. O(1), for uneven hosts O(log n_hosts). */
int ku_exchange_dest(const struct ku_exchange *x, const struct ku_exchange_set *set, int i);

/*
 * The nodes in which this member's host holds a destination's data when the stage begins, thus
 * those that a peer on `host` sends in the reduce half. stage = n_stages: the root. Chunks hold
 * node after node: elements of the first node, then the same elements of the second.
 */
int ku_exchange_nodes(const struct ku_exchange *x, int stage, int host, struct ku_tree_node *node,
                      int cap);

/*
 * What this member combines in a stage of the reduce half, in the order of ku_sum's sources.
 */
enum { KU_FROM_SELF = -1 };
struct ku_exchange_source {
    struct ku_tree_node node;
    int32_t from; /* index of the receive, or KU_FROM_SELF */
    /*
     * Which node of that peer. Self: in stage 0 the local index of the copy, which is one leaf in
     * dtype; later the node of ku_exchange_nodes, in the wire dtype.
     */
    int32_t index;
};
/* Returns the number of sources, at most max_sources. Their sum is one node, at last the root. */
int ku_exchange_sources(const struct ku_exchange *x, int stage, struct ku_exchange_source *source,
                        int cap);

/* ---- Parts of the vector ---- */

/*
 * One slice of `count` elements per destination, in whole lines of line_count elements, as
 * ku_blocks_range cuts them. The slices lie such that those of a send or a receive are one range
 * when hosts are even; else those of one local index are.
 */
struct ku_exchange_slices {
    const struct ku_exchange *exchange;
    int64_t count;
    int64_t line_count; /* elements per line; 0: single elements */
    int64_t first;      /* rotates the destinations that get an extra line */
};
/* The range of destination d; may be empty. */
void ku_exchange_slice(const struct ku_exchange_slices *slices, int d, int64_t *begin,
                       int64_t *end);
/* The place of d's slice among all, 0 to n - 1 */
int ku_exchange_place(const struct ku_exchange *x, int d);

/*
 * Bytes of a chunk of the reduce half: KU_EXCHANGE_CHUNK_BYTES, and up to full_rate_bytes (of
 * struct ku_net) where the pool stays as small as that of 16 hosts. Equal on all members.
 */
size_t ku_exchange_chunk_bytes(const struct ku_exchange *x, size_t full_rate_bytes);
/*
 * Elements that fit in a chunk with all their nodes; a multiple of a cache line if a line fits.
 * Equal on all members, so that chunk c of every peer is for the same elements.
 *
 *   each_bytes   wire (reduce half) or dtype (gather half)
 */
int64_t ku_exchange_chunk_count(const struct ku_exchange *x, enum ku_half half, size_t each_bytes,
                                size_t chunk_bytes);
/* Bytes of this member's chunk pool: two chunks for each peer and direction of the widest stage */
size_t ku_exchange_staging_bytes(const struct ku_exchange *x, size_t chunk_bytes);

/* ---- Small collectives ---- */

/*
 * Barriers and payloads of up to 4 KiB. Only the hosts' first members (local index 0) take part,
 * before and after them the host's flags. In a stage the blocks of a group of hosts exchange all
 * that they hold, and each host combines it: with radix R it gets R - 1 messages. H = 6:
 *
 *     stage   radix   stride   blocks
 *     0       2       1        0 - 1   2 - 3   4 - 5        each with each
 *     1       3       2        01 - 23 - 45                 0, 2 and 4 exchange; 1, 3 and 5 do
 *
 * Any number and any sizes of hosts. If a factor of H is larger than the max radix, blocks differ
 * by one host, and a host may send to two of another block (small.c). Reductions send the nodes of
 * their block: one where blocks are aligned, else a few. Gathers send the payloads of its members,
 * ordered by host and local index.
 */
struct ku_small {
    const struct ku_topology *topology; /* borrowed */
    int n_stages;
    struct ku_exchange_stage stage[KU_EXCHANGE_STAGES];
    int max_nodes;   /* in a message, any member and stage; an upper bound if not is_contiguous */
    int max_sources; /* of ku_small_sources, any stage; likewise */
};
struct ku_small_peer {
    int member, host;
    int host_begin, host_end; /* the block whose data travels */
};
/* O(n_hosts) time, O(runs) if not is_contiguous; no memory. `tuning` NULL: defaults. */
void ku_small_plan(const struct ku_topology *topology, const struct ku_exchange_tuning *tuning,
                   struct ku_small *small);
/* For members with local index 0 */
int ku_small_n_sends(const struct ku_small *small, int stage);
int ku_small_n_recvs(const struct ku_small *small, int stage);
void ku_small_send(const struct ku_small *small, int stage, int i, struct ku_small_peer *peer);
void ku_small_recv(const struct ku_small *small, int stage, int i, struct ku_small_peer *peer);
/*
 * The nodes of all leaves on hosts host_begin to host_end - 1, in ascending order. Returns their
 * number; `node` NULL: that alone. O(log n); not is_contiguous: O(n_runs), one host: of its runs.
 */
int ku_topology_cover(const struct ku_topology *t, int host_begin, int host_end,
                      struct ku_tree_node *node, int cap);
/*
 * What is combined in a stage, in ascending order. Self: the nodes of this member's block, of which
 * in stage 0 those of its host. The results are the nodes of the parent block: node r sums the
 * sources that lie in it.
 *
 *   result   [cap]; *n_results is set
 */
int ku_small_sources(const struct ku_small *small, int stage, struct ku_exchange_source *source,
                     int cap, struct ku_tree_node *result, int *n_results);

#endif
