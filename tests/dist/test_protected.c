/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With KUMI_PROTECT_ARENAS the arenas are inaccessible between instructions and between runs, on
 * one rank and on two, and accessible while a range of them is mapped.
 * tests/cli/test_protected.sh runs the commands so.
 */
#include "dist.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/os/guard.h"
#include "comm/coll.h"

/*
 * Whether the byte can be read: the kernel fails with EFAULT instead of a signal. Not by write(),
 * in which sanitizers look at the byte: it may be poisoned.
 */
static int is_readable(const void *at)
{
    int end[2];
    assert_int_equal(pipe(end), 0);
    long n = syscall(SYS_write, end[1], at, (size_t)1);
    assert_true(n == 1 || errno == EFAULT);
    close(end[0]);
    close(end[1]);
    return n == 1;
}

/* Number of the arenas in memory, and of those that can be read. */
static int n_arenas(const struct ku_trainer *t, int is_private, int *n_readable)
{
    int n = 0;
    for (int a = 0; a < KU_N_ARENAS; a++) {
        int is_own = a == KU_AR_STATE || a == KU_AR_STEP || a == KU_AR_INPUT;
        if (t->memory->base[a] == NULL || (is_private && !is_own))
            continue;
        n++;
        *n_readable += is_readable(t->memory->base[a]);
    }
    return n;
}

struct probe { /* of a rank */
    const struct ku_trainer *t;
    int only_private, n_gates, n_seen, n_readable, n_mapped;
};
struct run {
    struct dist_case c;
    struct probe probe[2];
};

/* The write barrier is called between instructions. */
static int write_barrier(void *ctx, uint32_t instr)
{
    struct probe *p = ctx;
    (void)instr;
    n_arenas(p->t, p->only_private, &p->n_readable);
    p->n_gates++;
    return KUMI_OK;
}

/* Results are mapped for the callback, and nothing else is. */
static void see(void *ctx, const struct ku_instr *instr, const struct ku_view *out)
{
    struct probe *p = ctx;
    for (int k = 0; k < instr->n_out; k++) {
        int is_some = ku_shape_count(&out[k].shape) > 0; /* a rank may own no chunk of a tensor */
        p->n_seen += is_some;
        p->n_mapped += is_some && is_readable(out[k].data);
    }
}

static int barrier(struct ku_job *job)
{
    struct ku_coll coll = {.kind = KU_COLL_BARRIER, .name = "probe"};
    return job->n > 1 ? ku_coll_run(job->world, &coll) : KUMI_OK;
}

static void probe_maps(const struct ku_trainer *t, struct probe *p)
{
    struct ku_range range[2];
    struct ku_mapping map[2];
    size_t row_bytes;
    int n_own = 0;
    range[0] = range[1] = ku_trainer_port(t, KU_PROG_TRAIN, "tokens", 0, &row_bytes);
    assert_int_equal(ku_ranges_map(range, 2, KU_ACCESS_READ, map), 0); /* they nest */
    p->n_mapped += is_readable(map[0].data);
    assert_int_equal(ku_range_unmap(&map[0]), 0);
    p->n_mapped += is_readable(map[1].data);
    n_arenas(t, 1, &n_own);
    p->n_seen += 2;
    assert_int_equal(n_own, 1); /* no other arena than that of the port */
    assert_int_equal(ku_range_unmap(&map[1]), 0);
    n_arenas(t, 1, &p->n_readable);
}

static int run_rank(struct ku_job *job, void *arg)
{
    struct run *r = arg;
    struct probe *p = &r->probe[job->rank];
    struct ku_trainer *t;
    const double *report;
    KU_TRY(dist_trainer(job, &r->c, &t));
    *p = (struct probe){.t = t, .only_private = job->n > 1}; /* the other rank may be in one */
    assert_true(n_arenas(t, 0, &p->n_readable) >= 3);
    KU_TRY(ku_trainer_init_state(t));
    probe_maps(t, p); /* tokens and targets are zeros */
    ku_exec_set_write_barrier(t->exec[KU_PROG_TRAIN], write_barrier, p);
    KU_TRY(ku_trainer_step(t, 0, &report));
    KU_TRY(ku_trainer_step_seen(t, 0, see, p));
    KU_TRY(barrier(job));
    n_arenas(t, 0, &p->n_readable); /* shared ones too: no rank is in an instruction */
    KU_TRY(barrier(job));
    ku_trainer_destroy(t);
    return KUMI_OK;
}

static void check(int n, int no_sharing, int zero)
{
    struct run r = {.c = {.n = n,
                          .v = 2,
                          .micro = 1,
                          .k = 2,
                          .device = "cpu",
                          .model = dist_model(),
                          .t = 11,
                          .no_sharing = no_sharing,
                          .zero = zero}};
    if (ku_comm_threads(n, NULL, run_rank, &r) < 0)
        fail_msg("n=%d zero=%d: %s", n, zero, ku_err_get()->text);
    for (int rank = 0; rank < n; rank++) {
        assert_int_equal(r.probe[rank].n_readable, 0);
        assert_true(r.probe[rank].n_gates > 10);
        assert_true(r.probe[rank].n_seen > 100);
        assert_int_equal(r.probe[rank].n_mapped, r.probe[rank].n_seen);
    }
}

static void test_arenas(void **state)
{
    (void)state;
    assert_int_equal(setenv("KUMI_PROTECT_ARENAS", "1", 1), 0);
    check(1, 0, 0);
    check(2, 0, 0);
    check(2, 1, 0);
    check(2, 1, 3);
    assert_int_equal(unsetenv("KUMI_PROTECT_ARENAS"), 0);
}

static void test_guard(void **state)
{
    (void)state;
    struct ku_guard *g;
    void *at = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    assert_int_equal(ku_guard_create(at, 8192, &g), 0);
    assert_false(is_readable((char *)at + 4096));
    ku_guard_begin(g);
    ku_guard_begin(g);
    ku_guard_end(g);
    assert_true(is_readable((char *)at + 4096));
    ku_guard_end(g);
    assert_false(is_readable(at));
    ku_guard_destroy(g);
    assert_true(is_readable(at));
    munmap(at, 8192);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_guard), cmocka_unit_test(test_arenas)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
