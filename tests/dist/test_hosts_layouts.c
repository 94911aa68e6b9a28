/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One digest with one rank: hosts x ranks x stages x groups x where whole values lie x dtypes x
 * accumulation, with ranks as threads on pretended hosts. tests/cli/test_matrix.sh has processes
 * and transports. tsan
 */
#include "dist.h"

enum { STEPS = 2, N_FORMS = 3 };
static const struct {
    const char *hosts;
    int n, v, local; /* local: ranks of each host; 0: they differ */
} layout[] = {
    {NULL, 8, 8, 8},  {"4,4", 8, 8, 4}, {"2,2,2,2", 8, 8, 2}, {"1,1,1,1,1,1,1,1", 8, 8, 1},
    {"1,3", 4, 8, 0}, {"2,3", 5, 5, 0}, {"2,2,2", 6, 6, 2}};
enum { N_LAYOUTS = sizeof layout / sizeof *layout };

/* Two micro-batches of a shard, added up before the ranks reduce, or reduced each; or one. */
static const struct {
    int k, by_micro;
} form[N_FORMS] = {{1, 0}, {2, 0}, {2, 1}};

struct run {
    struct dist_case c;
    const char *hosts;
};

static struct run run_of(int v, enum kumi_dtype compute, int f)
{
    struct run x = {.c = {.n = 1,
                          .v = v,
                          .micro = 1,
                          .k = form[f].k,
                          .by_micro = form[f].by_micro,
                          .device = "cpu",
                          .compute = compute,
                          .model = dist_model(),
                          .no_sharing = 1,
                          .t = 5}};
    x.c.model.n_embd = 48, x.c.model.vocab_size = 9001;
    return x;
}

static int rank(struct ku_job *job, void *arg)
{
    struct run *x = arg;
    struct ku_trainer *t;
    const double *report;
    char digest[72];
    KU_TRY(dist_trainer(job, &x->c, &t));
    KU_TRY(ku_trainer_init_state(t));
    for (int i = 0; i < STEPS; i++) {
        dist_fill(&x->c, t, KU_PROG_TRAIN, i);
        KU_TRY(ku_trainer_step(t, i, &report));
    }
    KU_TRY(ku_trainer_verify_replicas(t));
    KU_TRY(ku_trainer_digest_first(t, digest));
    if (job->rank == 0)
        memcpy(x->c.digest, digest, sizeof digest);
    ku_trainer_destroy(t);
    return KUMI_OK;
}

static void train(struct run *x)
{
    const struct ku_job_opts opts = {.hosts = x->hosts};
    if (ku_comm_threads(x->c.n, &opts, rank, x) < 0)
        fail_msg("hosts %s, zero %d, replicate %d, shared %d: %s", x->hosts, x->c.zero,
                 x->c.replicate, !x->c.no_sharing, ku_err_get()->text);
}

/* Hosts whose ranks share: a mesh of whole hosts, at least two of them in a group. */
static bool can_share(int l, int zero, int replicate)
{
    const int local = layout[l].local, hosts = local ? layout[l].n / local : 0;
    return local > 1 && (zero ? hosts > replicate && hosts % replicate == 0 : replicate == 1);
}

/* Stage 0, and stages with one group of all ranks or with two groups: 7 of each place of state. */
static void place(struct run *x, int l, int zero, int replicate, int is_shared)
{
    x->hosts = layout[l].hosts;
    x->c.n = layout[l].n;
    x->c.zero = zero;
    x->c.replicate = zero ? replicate : 0;
    x->c.no_sharing = !is_shared;
    x->c.hosts = is_shared ? layout[l].n / layout[l].local : 0;
}

static void layouts(void **state)
{
    struct sample s = {.plain = 32, .address = 1000, .thread = 1000};
    char one[9][2][N_FORMS][72] = {{{{0}}}};
    int row = 0;
    (void)state;
    for (int i = 0; i < N_LAYOUTS * 4 * 2 * 2 * 2 * N_FORMS; i++) {
        const int l = i % N_LAYOUTS, zero = i / N_LAYOUTS % 4,
                  replicate = 1 + i / N_LAYOUTS / 4 % 2;
        const int is_shared = i / N_LAYOUTS / 8 % 2, is_half = i / N_LAYOUTS / 16 % 2;
        const int f = i / N_LAYOUTS / 32, v = layout[l].v, shard = layout[l].n / replicate;
        const int state_kind = zero * 2 + is_shared,
                  kind = sample_is_short() ? state_kind : l * 8 + state_kind;
        const bool is_split = layout[l].n % replicate == 0 && (shard & (shard - 1)) == 0;
        if ((replicate > 1 && (zero == 0 || !is_split)) ||
            (is_shared && !can_share(l, zero, replicate)) || !sample_takes(&s, row++, kind, -1))
            continue;
        struct run x = run_of(v, is_half ? KUMI_BF16 : KUMI_F32, f);
        char *want = one[v][is_half][f];
        if (want[0] == '\0') {
            train(&x);
            memcpy(want, x.c.digest, sizeof one[v][is_half][f]);
        }
        place(&x, l, zero, replicate, is_shared);
        train(&x);
        if (strcmp(x.c.digest, want) != 0)
            fail_msg("hosts %s, zero %d, replicate %d, shared %d, half %d, form %d: %s, not %s",
                     x.hosts, zero, replicate, is_shared, is_half, f, x.c.digest, want);
    }
    sample_end(&s, "layouts");
}

/* 64 and 256 threads on hosts of one and of four: all with KUMI_TEST_ALL, else the first. */
static void many(void **state)
{
    static const struct {
        int n_hosts, n_ranks;
    } row[] = {{16, 4}, {64, 1}, {64, 4}, {256, 1}};
    char hosts[4 * 256];
    struct run x = run_of(256, KUMI_F32, 0);
    (void)state;
    if (sample_is_short())
        skip();
    x.c.model = dist_model();
    train(&x);
    char one[72];
    memcpy(one, x.c.digest, sizeof one);
    for (size_t i = 0; i < (getenv("KUMI_TEST_ALL") ? 4 : 1); i++) {
        int at = 0;
        for (int h = 0; h < row[i].n_hosts; h++)
            at += snprintf(hosts + at, sizeof hosts - (size_t)at, "%s%d", h ? "," : "",
                           row[i].n_ranks);
        x.hosts = hosts;
        x.c.n = row[i].n_hosts * row[i].n_ranks;
        const double begin = (double)ku_clock_ns();
        train(&x);
        print_message("%d threads on %d hosts: %.2f s\n", x.c.n, row[i].n_hosts,
                      ((double)ku_clock_ns() - begin) * 1e-9);
        assert_string_equal(x.c.digest, one);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(layouts), cmocka_unit_test(many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
