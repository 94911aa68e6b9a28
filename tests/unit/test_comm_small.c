/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/*
 * Small collectives between the hosts' first members, played in memory: every send has its receive,
 * all hosts end with the sum of the flat tree, and with every member's payload once.
 */
#include "comm/exchange.h"
#include "comm/sum.h"
#include "sample.h"
#include "unit/hosts.h"
#include "unit/reductions.h"

enum {
    COUNT = 11,        /* elements: 88 bytes */
    DATA_MEMBERS = 96, /* of a communicator whose data is played */
    MAX_PARTS = 96     /* nodes of a host */
};

struct world {
    struct hosts hosts;
    struct ku_small small[MAX_MEMBERS]; /* of the first member of each host */
    int n, n_hosts, n_stages;
};

static void open_plans(struct world *w, int max_radix)
{
    const struct ku_exchange_tuning tuning = {.max_radix = max_radix};
    w->n = w->hosts.n;
    w->n_hosts = w->hosts.all.n_hosts;
    for (int h = 0; h < w->n_hosts; h++) {
        int m = ku_topology_member(&w->hosts.all, h, 0);
        ku_small_plan(&w->hosts.as[m], max_radix ? &tuning : NULL, &w->small[h]);
    }
    w->n_stages = w->small[0].n_stages;
}

static void check_stages(const struct world *w, int max_radix)
{
    const struct ku_small *small = &w->small[0];
    int64_t stride = 1;
    for (int s = 0; s < w->n_stages; s++) {
        assert_int_equal(small->stage[s].stride, stride);
        assert_in_range(small->stage[s].radix, 2, max_radix ? max_radix : KU_EXCHANGE_RADIX);
        stride *= small->stage[s].radix;
    }
    assert_true(stride >= w->n_hosts);
    assert_true(w->n_stages == 0 || stride / small->stage[w->n_stages - 1].radix < w->n_hosts);
}

/* Each send has a receive of the same block. */
static void check_pairs(const struct world *w)
{
    static uint32_t stamp, sent[MAX_MEMBERS][MAX_MEMBERS];
    static int index[MAX_MEMBERS][MAX_MEMBERS];
    struct ku_small_peer p, q;
    for (int s = 0; s < w->n_stages; s++) {
        int n_sent = 0, n_received = 0;
        stamp++;
        for (int a = 0; a < w->n_hosts; a++) {
            for (int i = 0; i < ku_small_n_sends(&w->small[a], s); i++, n_sent++) {
                ku_small_send(&w->small[a], s, i, &p);
                assert_in_range(p.host, 0, w->n_hosts - 1);
                assert_int_equal(p.member, ku_topology_member(&w->hosts.all, p.host, 0));
                assert_true(p.host_begin <= a && a < p.host_end);
                assert_true(p.host < p.host_begin || p.host >= p.host_end);
                assert_int_not_equal(sent[a][p.host], stamp);
                sent[a][p.host] = stamp;
                index[a][p.host] = i;
            }
        }
        for (int b = 0; b < w->n_hosts; b++) {
            for (int i = 0; i < ku_small_n_recvs(&w->small[b], s); i++, n_received++) {
                ku_small_recv(&w->small[b], s, i, &q);
                assert_int_equal(q.member, ku_topology_member(&w->hosts.all, q.host, 0));
                assert_int_equal(sent[q.host][b], stamp);
                ku_small_send(&w->small[q.host], s, index[q.host][b], &p);
                assert_int_equal(p.host_begin, q.host_begin);
                assert_int_equal(p.host_end, q.host_end);
            }
        }
        assert_int_equal(n_sent, n_received);
    }
}

/* After each stage a host has the payloads of its block once, at the end all of them. */
static void play_gather(const struct world *w)
{
    static unsigned char has[2][MAX_MEMBERS][MAX_MEMBERS];
    struct ku_small_peer p;
    memset(has, 0, sizeof has);
    for (int h = 0; h < w->n_hosts; h++)
        has[0][h][h] = 1;
    for (int s = 0; s < w->n_stages; s++) {
        memcpy(has[1], has[0], sizeof has[0]);
        for (int h = 0; h < w->n_hosts; h++) {
            for (int i = 0; i < ku_small_n_recvs(&w->small[h], s); i++) {
                ku_small_recv(&w->small[h], s, i, &p);
                for (int from = 0; from < w->n_hosts; from++) {
                    int is_in = p.host_begin <= from && from < p.host_end;
                    assert_int_equal(has[0][p.host][from], is_in);
                    has[1][h][from] = (unsigned char)(has[1][h][from] + is_in);
                    assert_in_range(has[1][h][from], 0, 1);
                }
            }
        }
        memcpy(has[0], has[1], sizeof has[0]);
    }
    for (int h = 0; h < w->n_hosts; h++)
        for (int from = 0; from < w->n_hosts; from++)
            assert_int_equal(has[0][h][from], 1);
}

/* ---- Sums ---- */

static const struct ku_sum_kernels *kernels;
static _Alignas(64) unsigned char copies[KUMI_N_DTYPES][DATA_MEMBERS][COUNT * 8];
static unsigned char (*copy)[COUNT * 8];
static _Alignas(64) unsigned char flat[COUNT * 8], out[COUNT * 8];
/* Nodes that a host holds before and after a stage */
static _Alignas(64) unsigned char held[2][DATA_MEMBERS][MAX_PARTS][COUNT * 8];

static void sum_into(struct ku_sum s, const void *const *src, int n_src, void *to)
{
    s.src = src;
    s.n_src = n_src;
    s.dst = &to;
    s.n_dst = 1;
    ku_sum(kernels, &s);
}

static void start_host(const struct world *w, const struct ku_sum *kind, int host)
{
    struct ku_tree_node node[MAX_PARTS];
    const void *src[DATA_MEMBERS];
    int n = ku_topology_cover(&w->hosts.all, host, host + 1, node, MAX_PARTS);
    for (int k = 0; k < n; k++) {
        struct ku_sum s = *kind;
        for (int i = 0; i < node[k].count; i++)
            src[i] = copy[node[k].first + i];
        s.divide = 0;
        s.is_node = 1;
        sum_into(s, src, node[k].count, held[0][host][k]);
    }
}

static void combine_host(const struct world *w, const struct ku_sum *kind, int host, int stage)
{
    const struct ku_small *small = &w->small[host];
    struct ku_exchange_source source[DATA_MEMBERS];
    struct ku_tree_node result[MAX_PARTS];
    struct ku_small_peer p = {.host = host};
    int n_results = -1, at = 0;
    int n = ku_small_sources(small, stage, source, DATA_MEMBERS, result, &n_results);
    assert_in_range(n, 1, small->max_sources);
    assert_in_range(n_results, 1, small->max_nodes > n ? small->max_nodes : n);
    for (int r = 0; r < n_results; r++) {
        const void *src[DATA_MEMBERS];
        int32_t first[DATA_MEMBERS + 1];
        bool in_wire[DATA_MEMBERS];
        int n_src = 0, end = result[r].first + result[r].count;
        for (; at < n && source[at].node.first < end; at++, n_src++) {
            p.host = host;
            if (source[at].from != KU_FROM_SELF)
                ku_small_recv(small, stage, source[at].from, &p);
            assert_in_range(source[at].index, 0, small->max_nodes - 1);
            src[n_src] = held[0][p.host][source[at].index];
            first[n_src] = source[at].node.first;
            in_wire[n_src] = 1;
        }
        assert_true(n_src > 0 && first[0] == result[r].first);
        first[n_src] = end;
        assert_int_equal(source[at - 1].node.first + source[at - 1].node.count, end);
        struct ku_sum s = *kind;
        s.first = first;
        s.in_wire = in_wire;
        s.is_node = stage < w->n_stages - 1;
        s.divide = s.is_node ? 0 : s.divide;
        sum_into(s, src, n_src, s.is_node ? held[1][host][r] : out);
    }
    assert_int_equal(at, n);
}

static void play_sum(const struct world *w, uint32_t draw)
{
    static bool is_filled[KUMI_N_DTYPES];
    const void *src[DATA_MEMBERS];
    struct ku_sum kind = {.count = 1 + draw % COUNT};
    int i = (int)(draw / COUNT % N_REDUCTIONS);
    while (!reduction_set(i, w->n, &kind))
        i = (i + 1) % N_REDUCTIONS;
    copy = copies[kind.dtype];
    for (int m = 0; m < DATA_MEMBERS; m++) {
        if (!is_filled[kind.dtype])
            reduction_fill(copy[m], kind.dtype, COUNT, 61, m);
        src[m] = copy[m];
    }
    is_filled[kind.dtype] = 1;
    sum_into(kind, src, w->n, flat);
    for (int h = 0; h < w->n_hosts; h++)
        start_host(w, &kind, h);
    for (int s = 0; s < w->n_stages; s++) {
        for (int h = 0; h < w->n_hosts; h++) {
            memset(out, 0xa5, sizeof out);
            combine_host(w, &kind, h, s);
            if (s == w->n_stages - 1)
                assert_memory_equal(out, flat, (size_t)kind.count * kumi_dtype_bytes(kind.dtype));
        }
        memcpy(held[0], held[1], sizeof held[0][0] * (size_t)w->n_hosts);
    }
}

static void play(struct world *w, int max_radix, uint32_t draw)
{
    open_plans(w, max_radix);
    check_stages(w, max_radix);
    check_pairs(w);
    play_gather(w);
    if (w->n <= DATA_MEMBERS)
        play_sum(w, draw);
    hosts_close(&w->hosts);
}

static void test_divisions(void **state)
{
    static const int max_radix[] = {0, 2, 3, 4};
    static struct world w;
    uint32_t draw = 0;
    (void)state;
    for (int n = 1; n <= (sample_is_short() ? 6 : 10); n++) {
        int count[MAX_MEMBERS], n_hosts = 0;
        while (hosts_next(n, n, count, &n_hosts)) {
            hosts_open_sizes(&w.hosts, count, n_hosts);
            play(&w, max_radix[draw % 4], draw * 7);
            draw++;
        }
    }
}

/* Any number of hosts, so that the last block has any size */
static void test_numbers_of_hosts(void **state)
{
    static const int per_host[] = {1, 2, 3, 5}, max_radix[] = {0, 2, 4, 9};
    static struct world w;
    uint32_t draw = 0;
    (void)state;
    for (int h = 1; h <= 300; h += sample_is_short() ? 37 : h < 70 ? 1 : 23) {
        for (int l = 0; l < 4; l++) {
            for (int r = 0; r < 4; r++) {
                if (h * per_host[l] > MAX_MEMBERS)
                    continue;
                hosts_open_even(&w.hosts, h, per_host[l]);
                play(&w, max_radix[r], draw * 13);
                draw++;
            }
        }
    }
}

static void test_interleaved(void **state)
{
    static struct world w;
    (void)state;
    for (uint32_t i = 0; i < (uint32_t)sample_count(400, 20); i++) {
        int n = 2 + (int)(i % 41), n_hosts = 1 + (int)(i / 3 % 12);
        hosts_open_mixed(&w.hosts, n, n_hosts < n ? n_hosts : n, i);
        play(&w, i % 2 ? 0 : 2, i * 5);
    }
}

/* A barrier of 10^5 ranks: few messages at every host, whatever their number. */
static void test_many_hosts(void **state)
{
    static const struct {
        int n_hosts, n_stages;
    } row[] = {{12500, 4}, {12501, 4}, {16384, 4}, {4097, 4}, {997, 3}, {37, 2}};
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct ku_topology t;
        struct ku_small small;
        for (int k = 0; k < 30; k++) {
            int h = k < 3 ? k : row[i].n_hosts - 1 - (k - 3) * (row[i].n_hosts - 1) / 40;
            ku_topology_init_even(&t, row[i].n_hosts, 8, 8 * h);
            ku_small_plan(&t, NULL, &small);
            assert_int_equal(small.n_stages, row[i].n_stages);
            for (int s = 0; s < small.n_stages; s++)
                assert_in_range(ku_small_n_sends(&small, s) + ku_small_n_recvs(&small, s), 2, 31);
            assert_true(small.max_nodes <= ku_tree_cover_bound(8 * row[i].n_hosts));
        }
    }
}

int main(void)
{
    kernels = ku_sum_choose();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_divisions), cmocka_unit_test(test_numbers_of_hosts),
        cmocka_unit_test(test_interleaved), cmocka_unit_test(test_many_hosts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
