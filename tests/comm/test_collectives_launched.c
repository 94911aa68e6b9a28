/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/*
 * The conformance suite on pretended hosts whose ranks are processes, over TCP and over each make
 * of MPI that is installed, plain and through chaos; and what a rank of many needs.
 */
#include "suite.h"
#include "comm/net.h"
#include "launched.h"

static int run(const struct suite_share *share)
{
    struct ku_job *job;
    char net[512];
    KU_TRY(ku_comm_join(NULL, &job));
    ku_comm_describe(job, net, sizeof net);
    if (!strstr(net, strcmp(job->launcher, "kumi") == 0 ? "tcp over lo" : job->launcher))
        return KU_ERR(KUMI_EBUG, "%s started the ranks, but they use %s", job->launcher, net);
    const int rank = job->rank, status = suite_run(job, share);
    KU_TRY(ku_comm_leave(job));
    KU_TRY(status);
    printf("rank %d: fine\n", rank);
    return 0;
}

/* This process's share of the memory that it uses; -1: unknown */
static double pss_mib(void)
{
    char line[256];
    long kib = -1;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    while (f && kib < 0 && fgets(line, sizeof line, f))
        if (sscanf(line, "Pss: %ld kB", &kib) != 1)
            kib = -1;
    if (f)
        fclose(f);
    return kib < 0 ? -1 : (double)kib / 1024;
}

/* Small and large collectives of every kind that a training has, and what they need */
static int run_many(void)
{
    enum { COUNT = 50000 };
    static float x[COUNT];
    struct ku_job *job;
    struct ku_net_stats stats;
    KU_TRY(ku_comm_join(NULL, &job));
    const int rank = job->rank, n = job->n;
    for (int i = 0; i < COUNT; i++)
        x[i] = 1;
    for (int64_t count = 1; count <= COUNT; count *= COUNT) {
        const struct ku_coll sum = {
            .kind = KU_COLL_ALL_REDUCE, .dtype = KUMI_F32, .in = x, .out = x, .count = count};
        const struct ku_coll shared = {
            .kind = KU_COLL_BROADCAST, .dtype = KUMI_F32, .out = x, .count = count};
        const struct ku_coll scatter = {.kind = KU_COLL_REDUCE_SCATTER,
                                        .dtype = KUMI_F32,
                                        .in = x,
                                        .out = x + (int64_t)rank * (count / n),
                                        .count = count / n};
        const struct ku_coll gather = {.kind = KU_COLL_ALL_GATHER,
                                       .dtype = KUMI_F32,
                                       .in = x + (int64_t)rank * (count / n),
                                       .out = x,
                                       .count = count / n};
        KU_TRY(ku_coll_run(job->world, &sum));
        KU_TRY(ku_coll_run(job->world, &shared));
        KU_TRY(ku_coll_run(job->world, &scatter));
        KU_TRY(ku_coll_run(job->world, &gather));
    }
    job->comm->net->ops->stats(job->comm->net, &stats);
    const double mib = pss_mib();
    KU_TRY(ku_comm_leave(job));
    if (x[1] != (float)n * (float)n)
        return KU_ERR(KUMI_EBUG, "rank %d has %g", rank, (double)x[1]);
    printf("rank %d: fine, %d links, %.1f MiB\n", rank, stats.n_links, mib);
    return 0;
}

static int be_rank(char **argv)
{
    const struct suite_share share = {atoi(argv[4]), 80000, atoi(argv[3])};
    const int status = strcmp(argv[4], "many") == 0 ? run_many() : run(&share);
    if (status < 0 && status != -70)
        printf("%s\n", ku_err_get()->text);
    fflush(stdout);
    return status < 0 ? 1 : 0;
}

static void test_suite(void **state)
{
    struct sample share = {.plain = 12, .address = 12};
    (void)state;
    launched_all(&share, sample_is_all() ? "60" : "1600");
}

/*
 * Connections of a rank on many even hosts: the peers of each stage of up to 16 (comm/exchange),
 * for large collectives and again for small ones. Memory of a rank does not grow with their number.
 */
static void test_many(void **state)
{
    static const struct {
        int n_hosts, n_local, max_links;
    } rows[] = {{16, 4, 2 * 15}, {64, 1, 2 * (15 + 3)}};
    enum { N_ROWS = sizeof rows / sizeof *rows, MAX_MIB = 16 };
    (void)state;
    if (sample_build != SAMPLE_PLAIN || !launched_has(LAUNCHED_BY_KUMI))
        skip();
    for (int i = 0; i < (sample_is_all() ? N_ROWS : 1); i++) {
        char hosts[2 * 64 + 1] = "";
        int links, max_links = 0;
        double mib, max_mib = 0;
        for (int h = 0; h < rows[i].n_hosts; h++)
            snprintf(hosts + 2 * h, sizeof hosts - 2 * (size_t)h, "%d,", rows[i].n_local);
        hosts[2 * rows[i].n_hosts - 1] = 0;
        const char *said =
            launched_expect(&(struct launched){.by = LAUNCHED_BY_KUMI, .hosts = hosts}, "many");
        for (; (said = strstr(said, ": fine, ")); said++)
            if (sscanf(said, ": fine, %d links, %lf MiB", &links, &mib) == 2) {
                max_links = links > max_links ? links : max_links;
                max_mib = mib > max_mib ? mib : max_mib;
            }
        print_message("%d ranks on %d hosts: at most %d links and %.1f MiB a rank\n",
                      rows[i].n_hosts * rows[i].n_local, rows[i].n_hosts, max_links, max_mib);
        assert_in_range(max_links, 1, rows[i].max_links);
        assert_true(max_mib > 0 && max_mib < MAX_MIB);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_suite), cmocka_unit_test(test_many)};
    if (launched_is_rank(argc, argv))
        return argc == 5 ? be_rank(argv) : 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
