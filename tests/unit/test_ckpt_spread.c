/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot written from several hosts: pretended ranks with parts of the tensors exchange their
 * messages in memory and write the files that one rank writes. links: base tensor ckpt
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/os/os.h"
#include "ckpt/snapshot/snapshot.h"
#include "ckpt/snapshot/spread.h"
#include "tensor/blocks.h"

enum { N = 203, MAX_RANKS = 8, BLOCK = 4096, LARGE = 3 };

static struct {
    float *data[N];
    int64_t count[N]; /* in memory */
    char name[N][16];
} whole;
static const int *first_of; /* first rank of each host, ends with the number of ranks */

static int host_of(const void *ctx, int rank)
{
    int h = 0;
    (void)ctx;
    while (first_of[h + 1] <= rank)
        h++;
    return h;
}

static int n_hosts_of(void)
{
    int h = 0;
    while (h < MAX_RANKS && first_of[h + 1] > first_of[h])
        h++;
    return h;
}

static int move(const struct ku_ckpt_store *s, int is_write, uint64_t at, void *data, size_t bytes)
{
    assert_false(is_write);
    memcpy(data, (const char *)s->ctx + at, bytes);
    return 0;
}

/* The tensors as a rank sees them; n_owners 0: all in plain memory. */
static void describe(int rank, int n_owners, struct ku_ckpt_tensor *t, struct ku_ckpt_store *store,
                     struct ku_ckpt_part *part)
{
    for (int i = 0; i < N; i++, t++, part += MAX_RANKS) {
        const int is_large = i < LARGE;
        *t = (struct ku_ckpt_tensor){
            .name = whole.name[i],
            .dtype = KUMI_F32,
            .ndim = 2,
            .dim = {is_large ? 701 : whole.count[i], is_large ? 1000 : 1},
            .padded = {whole.count[i] / (is_large ? 1000 : 1), is_large ? 1000 : 1},
            .data = whole.data[i],
            .group = i % 2 ? KU_CKPT_MODEL : KU_CKPT_OPTIMIZER};
        if (n_owners == 0 || i % 5 == 4) /* every fifth is whole on each host */
            continue;
        store[i] = (struct ku_ckpt_store){.move = move, .ctx = whole.data[i]};
        t->data = NULL;
        t->owner = (struct ku_ckpt_owners){.n_owners = n_owners,
                                           .block_count = BLOCK,
                                           .first_block = i,
                                           .n_copies = first_of[n_hosts_of()] / n_owners,
                                           .copy_stride = n_owners,
                                           .n_slice_ranks = 1};
        t->part = part;
        for (int r = 0; r < first_of[host_of(NULL, rank) + 1]; r++) {
            int64_t begin, end;
            if (host_of(NULL, r) != host_of(NULL, rank))
                continue;
            ku_blocks_range(whole.count[i], BLOCK, i, n_owners, r % n_owners, &begin, &end);
            if (begin < end)
                part[t->n_parts++] = (struct ku_ckpt_part){
                    .begin = begin, .end = end, .store = &store[i], .at = (uint64_t)begin * 4};
        }
    }
}

static void exchange(struct ku_ckpt_writer **w, int n)
{
    int64_t cursor[MAX_RANKS][MAX_RANKS] = {{0}}, n_in, n_out;
    unsigned char *out = ku_malloc(1 << 20);
    for (int r = 0; r < n; r++) {
        const struct ku_ckpt_message *in = ku_ckpt_writer_messages(w[r], &n_in);
        for (int64_t i = 0; i < n_in; i++) {
            if (in[i].is_sent)
                continue;
            const int s = in[i].peer;
            const struct ku_ckpt_message *m = ku_ckpt_writer_messages(w[s], &n_out);
            int64_t *at = &cursor[s][r];
            while (*at < n_out && !(m[*at].is_sent && m[*at].peer == r))
                ++*at;
            assert_true(*at < n_out && m[*at].bytes == in[i].bytes && in[i].bytes <= 1 << 20);
            assert_int_not_equal(host_of(NULL, r), host_of(NULL, s));
            assert_int_equal(ku_ckpt_message_pack(w[s], &m[(*at)++], out), 0);
            memcpy(in[i].data, out, (size_t)in[i].bytes);
        }
    }
    ku_free(out);
}

/* What the ranks receive is what is planned for them: without their memory, for the one with the
 * most. */
static void expect_planned(struct ku_ckpt_writer **w, int n, int n_owners)
{
    const struct ku_ckpt_world world = {-1, n, host_of, NULL};
    static struct ku_ckpt_tensor t[N], all[N];
    static struct ku_ckpt_store store[N];
    static struct ku_ckpt_part part[N * MAX_RANKS];
    size_t planned = 1, most = 0;
    describe(0, n_owners, all, store, part);
    for (int i = 0; i < N; i++) {
        t[i] = all[i];
        t[i].data = NULL, t[i].part = NULL, t[i].n_parts = 0;
    }
    for (int r = 0; r < n; r++)
        most = ku_ckpt_writer_inbox_bytes(w[r]) > most ? ku_ckpt_writer_inbox_bytes(w[r]) : most;
    assert_int_equal(ku_ckpt_inbox_most(t, N, &world, &planned), 0);
    assert_int_equal(planned, most);
    assert_int_equal(most > 0, n_owners > 0);
    t[1].name = t[0].name;
    assert_int_equal(ku_ckpt_inbox_most(t, N, &world, &planned), KUMI_EINVAL);
}

/* Bytes that this process has read from files; -1: the kernel does not count. */
static long long bytes_read(void)
{
    long long n = -1;
    FILE *f = fopen("/proc/self/io", "r");
    if (f == NULL)
        return -1;
    assert_int_equal(fscanf(f, "rchar: %lld", &n), 1);
    fclose(f);
    return n;
}

/* A part whose sums are missing was not written. */
static void expect_refused(struct ku_ckpt_writer *w, const char *dir)
{
    char path[200];
    assert_int_equal(ku_ckpt_writer_commit(w), KUMI_ESTORAGE);
    assert_non_null(strstr(ku_err_get()->text, "a rank did not write its part"));
    snprintf(path, sizeof path, "%s/step-00000001", dir);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* loses_sums: those of the last rank are not added. */
static void write_so(const char *dir, int n, int n_owners, bool loses_sums)
{
    struct ku_ckpt_writer *w[MAX_RANKS];
    struct ku_ckpt_tensor *t = ku_calloc((size_t)n * N, sizeof *t);
    struct ku_ckpt_store *store = ku_calloc((size_t)n * N, sizeof *store);
    struct ku_ckpt_part *part = ku_calloc((size_t)n * N * MAX_RANKS, sizeof *part);
    for (int r = 0; r < n; r++) {
        struct ku_ckpt_world world = {r, n, host_of, NULL};
        describe(r, n_owners, t + r * N, store + r * N, part + (size_t)r * N * MAX_RANKS);
        struct ku_ckpt_desc d = {
            .dir = dir, .step = 1, .model_config = "{}", .tensor = t + r * N, .n_tensors = N};
        assert_int_equal(ku_ckpt_writer_create(&d, &w[r]), 0);
        assert_int_equal(ku_ckpt_writer_spread(w[r], &world), 0);
    }
    expect_planned(w, n, n_owners);
    assert_int_equal(ku_ckpt_writer_begin(w[0]), 0);
    exchange(w, n);
    const int64_t n_sums = ku_ckpt_writer_n_sums(w[0]), half = n_sums / 2;
    uint64_t *all = ku_calloc((size_t)n_sums, sizeof *all);
    uint64_t *sum = ku_calloc((size_t)n_sums, sizeof *sum);
    for (int r = 0; r < n; r++) {
        assert_int_equal(ku_ckpt_writer_write(w[r], r, n), 0);
        ku_ckpt_writer_sums(w[r], 0, half, sum);
        ku_ckpt_writer_sums(w[r], half, n_sums - half, sum + half);
        for (int64_t i = 0; i < n_sums; i++) {
            assert_true(all[i] == 0 || sum[i] == 0); /* one writer */
            all[i] += loses_sums && r == n - 1 ? 0 : sum[i];
        }
    }
    ku_ckpt_writer_set_sums(w[0], 0, half, all);
    ku_ckpt_writer_set_sums(w[0], half, n_sums - half, all + half);
    const long long before = bytes_read();
    if (loses_sums)
        expect_refused(w[0], dir);
    else
        assert_int_equal(ku_ckpt_writer_commit(w[0]), 0);
    if (before >= 0) /* but for the count itself; the sums alone are 20 KiB */
        assert_in_range(bytes_read() - before, 0, 1000);
    for (int r = 0; r < n; r++)
        ku_ckpt_writer_destroy(w[r]);
    ku_free(all), ku_free(sum), ku_free(t), ku_free(store), ku_free(part);
}

static void expect_same(const char *a, const char *b)
{
    static const char *const name[] = {"manifest.json",
                                       "model/model.safetensors",
                                       "model/model.safetensors.xxh3",
                                       "model/config.json.xxh3",
                                       "optimizer/optimizer.safetensors",
                                       "optimizer/optimizer.safetensors.xxh3"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        char path[2][200], *text[2];
        size_t bytes[2];
        for (int k = 0; k < 2; k++) {
            snprintf(path[k], sizeof path[k], "%s/step-00000001/%s", k ? b : a, name[i]);
            assert_int_equal(ku_os_slurp(path[k], (size_t)1 << 30, &text[k], &bytes[k]), 0);
        }
        if (bytes[0] != bytes[1] || memcmp(text[0], text[1], bytes[0]) != 0)
            fail_msg("%s differs", name[i]);
        ku_free(text[0]), ku_free(text[1]);
    }
}

static void layouts(void **state)
{
    static const struct {
        int n_owners, first[MAX_RANKS + 1];
    } row[] = {{4, {0, 2, 4}}, {4, {0, 1, 4}},    {4, {0, 1, 2, 3, 4}}, {8, {0, 4, 8}},
               {2, {0, 1, 4}}, {4, {0, 2, 4, 8}}, {6, {0, 1, 6}},       {0, {0, 1, 3}}};
    static const int n_hosts[] = {2, 2, 4, 2, 2, 3, 2, 2};
    char dir[2][40] = {"/tmp/kumi-spread-XXXXXX", "/tmp/kumi-spread-XXXXXX"};
    static struct ku_ckpt_tensor t[N];
    (void)state;
    for (int i = 0; i < N; i++) {
        whole.count[i] = i < LARGE ? 704000 : 1 + i * i * 7 % 9001;
        whole.data[i] = ku_calloc((size_t)whole.count[i], sizeof(float));
        for (int64_t k = 0; k < whole.count[i]; k++)
            whole.data[i][k] = (float)(i * 1000000 + k);
        snprintf(whole.name[i], sizeof whole.name[i], "t%d", i * 37 % N);
    }
    assert_non_null(mkdtemp(dir[0]));
    describe(0, 0, t, NULL, NULL);
    struct ku_ckpt_desc d = {
        .dir = dir[0], .step = 1, .model_config = "{}", .tensor = t, .n_tensors = N};
    assert_int_equal(ku_ckpt_save(&d), 0);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        strcpy(dir[1], "/tmp/kumi-spread-XXXXXX");
        assert_non_null(mkdtemp(dir[1]));
        first_of = row[i].first;
        write_so(dir[1], first_of[n_hosts[i]], row[i].n_owners, 0);
        expect_same(dir[0], dir[1]);
        if (i == 0) {
            assert_int_equal(ku_os_rmtree(dir[1]), 0);
            write_so(dir[1], first_of[n_hosts[i]], row[i].n_owners, 1);
        }
        assert_int_equal(ku_os_rmtree(dir[1]), 0);
    }
    assert_int_equal(ku_os_rmtree(dir[0]), 0);
    for (int i = 0; i < N; i++)
        ku_free(whole.data[i]);
}

/* The rank of each element of a tensor [ROWS, WIDTH], by going over what each rank has. */
enum { ROWS = 2500, WIDTH = 12 };
static void note_ranks(const struct ku_ckpt_owners *o, int copy, int *rank_of)
{
    const int tp = o->pitch ? (int)(o->pitch / o->run) : 1;
    const int64_t in_slice = ROWS * WIDTH / tp;
    for (int owner = 0; owner < o->n_owners; owner++)
        for (int slice = 0; slice < tp; slice++) {
            int64_t begin, end;
            ku_blocks_range(in_slice, BLOCK, o->first_block, o->n_owners, owner, &begin, &end);
            for (int64_t j = begin; j < end; j++)
                rank_of[o->pitch ? j / o->run * o->pitch + slice * o->run + j % o->run : j] =
                    o->first + copy * o->copy_stride + owner * o->n_slice_ranks + slice;
        }
}

static void slices(void **state)
{
    static const struct {
        int n, pp, n_owners, tp, is_split;
    } row[] = {{8, 2, 2, 2, 1},  {8, 2, 2, 2, 0}, {12, 1, 3, 4, 1},
               {16, 2, 2, 2, 1}, {8, 2, 1, 2, 1}, {8, 2, 1, 1, 0}};
    int *rank_of = ku_calloc(ROWS * WIDTH, sizeof *rank_of);
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const int stage = row[i].n / row[i].pp, stride = row[i].n_owners * row[i].tp;
        struct ku_ckpt_tensor t = {.name = "t", .ndim = 2, .dim = {ROWS, WIDTH}};
        memcpy(t.padded, t.dim, sizeof t.padded);
        t.owner = (struct ku_ckpt_owners){.n_owners = row[i].n_owners,
                                          .block_count = BLOCK,
                                          .first_block = 1,
                                          .first = row[i].n - stage,
                                          .n_copies = stage / stride,
                                          .copy_stride = stride,
                                          .n_slice_ranks = row[i].tp,
                                          .run = row[i].is_split ? WIDTH / row[i].tp : 0,
                                          .pitch = row[i].is_split ? WIDTH : 0};
        for (int near = 0; near < row[i].n; near++) {
            note_ranks(&t.owner, near % stage / stride, rank_of);
            for (int64_t at = 0, to; at < ROWS * WIDTH; at = to) {
                const int rank = ku_ckpt_tensor_owner(&t, at, near, &to);
                assert_true(at < to && to <= ROWS * WIDTH);
                for (int64_t k = at; k < to; k++)
                    if (rank != rank_of[k])
                        fail_msg("row %zu, near %d, element %lld: rank %d, not %d", i, near,
                                 (long long)k, rank, rank_of[k]);
                assert_true(to == ROWS * WIDTH || row[i].is_split || rank != rank_of[to]);
            }
            assert_int_equal(ku_ckpt_tensor_copy(&t, near % stage / stride) % stride, 0);
        }
    }
    ku_free(rank_of);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(layouts), cmocka_unit_test(slices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
