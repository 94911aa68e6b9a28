/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory plan seen from outside: what a step allocates (nothing), and what the processes of a
 * job really hold against what was planned for them.
 */
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dist.h"
#include "kumi/comm.h"
#include "kumi/launch.h"
#include "base/os/os.h"
#include "comm/api/api.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };

/* Interposed: every call that gets or returns memory is counted while `watching`. */
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void *__sbrk(intptr_t);
static atomic_int watching, n_calls;
static void note(void)
{
    if (atomic_load(&watching))
        atomic_fetch_add(&n_calls, 1);
}
void *malloc(size_t bytes)
{
    note();
    return __libc_malloc(bytes);
}
void *calloc(size_t n, size_t bytes)
{
    note();
    return __libc_calloc(n, bytes);
}
void *realloc(void *old, size_t bytes)
{
    note();
    return __libc_realloc(old, bytes);
}
void *memalign(size_t align, size_t bytes)
{
    note();
    return __libc_memalign(align, bytes);
}
void *aligned_alloc(size_t align, size_t bytes)
{
    return memalign(align, bytes);
}
int posix_memalign(void **at, size_t align, size_t bytes)
{
    void *memory = memalign(align, bytes);
    if (memory)
        *at = memory;
    return memory ? 0 : ENOMEM;
}
static void *map(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    note();
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}
/* mmap64 here, where off_t has 64 bits; libraries may call mmap */
void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return map(at, bytes, protection, flags, fd, offset);
}
void *plain_mmap(void *, size_t, int, int, int, off_t) __asm__("mmap");
void *plain_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return map(at, bytes, protection, flags, fd, offset);
}
int munmap(void *at, size_t bytes)
{
    note();
    return (int)syscall(SYS_munmap, at, bytes);
}
void *mremap(void *at, size_t old_bytes, size_t bytes, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    void *to = flags & MREMAP_FIXED ? va_arg(rest, void *) : NULL;
    va_end(rest);
    note();
    return (void *)syscall(SYS_mremap, at, old_bytes, bytes, flags, to);
}
int mprotect(void *at, size_t bytes, int protection)
{
    note();
    return (int)syscall(SYS_mprotect, at, bytes, protection);
}
int madvise(void *at, size_t bytes, int advice)
{
    note();
    return (int)syscall(SYS_madvise, at, bytes, advice);
}
void *sbrk(intptr_t bytes)
{
    note();
    return __sbrk(bytes);
}
int brk(void *at)
{
    return sbrk((char *)at - (char *)__sbrk(0)) == (void *)-1 ? -1 : 0;
}
#endif

/* All that can go, through windows of so many bytes. */
static void offload(struct dist_case *c, enum ku_offload_target target, int64_t bytes)
{
    c->target.path = ".";
    c->offload = (struct ku_offload){.optimizer = (uint8_t)target,
                                     .params = (uint8_t)target,
                                     .activations = (uint8_t)target,
                                     .ratio = 1,
                                     .buffer_count = 3,
                                     .buffer_bytes = bytes};
}

struct watched {
    struct dist_case c;
    int n_threads, calls;
    long faults;
    size_t heap_before, heap_after;
};

static int build(struct ku_job *job, const struct dist_case *c, struct ku_trainer **t)
{
    struct kumi_graph *builder;
    struct ku_graph *g;
    struct ku_trainer_opts o = {.device = ku_device_find("cpu"), .seed = 1};
    struct kumi_shape_of_batch batch = {.n = (int64_t)c->v * c->micro * c->k, .t = c->t};
    KU_TRY(kumi_graph_create(&builder));
    kumi_gpt2_build(builder, &c->model, &batch);
    int status = ku_builder_take(builder, &g);
    kumi_graph_destroy(builder);
    KU_TRY(status);
    o.device_opts =
        (struct ku_device_opts){.n_threads = c->threads ? c->threads : 1, .isa = ku_cpu_isa()};
    o.compile = dist_compile_opts(c);
    o.target = c->target;
    KU_TRY(ku_trainer_create(job, &g, 1, &o, t));
    return ku_trainer_init_state(*t);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static int watch(struct ku_job *job, void *arg)
{
    struct watched *w = arg;
    struct ku_trainer *t;
    const double *report;
    KU_TRY(build(job, &w->c, &t));
    for (int step = 0; step < 9; step++) {
        struct rusage before, after;
        dist_fill(&w->c, t, KU_PROG_TRAIN, 0);
        if (step == 2 && job->rank == 0) {
            w->heap_before = mallinfo2().uordblks;
            atomic_store(&n_calls, 0);
            atomic_store(&watching, 1);
        }
        if (step == 8 && job->rank == 0) { /* before the last step: no rank tears down yet */
            atomic_store(&watching, 0);
            w->calls = atomic_load(&n_calls);
            w->heap_after = mallinfo2().uordblks;
        }
        getrusage(RUSAGE_SELF, &before);
        KU_TRY(ku_trainer_step(t, step, &report));
        getrusage(RUSAGE_SELF, &after);
        long faults = after.ru_minflt - before.ru_minflt;
        if (job->rank == 0 && (step == 3 || (step > 3 && faults < w->faults)))
            w->faults = faults;
    }
    ku_trainer_destroy(t);
    return KUMI_OK;
}
#endif

/* The watch below counts what it claims to count: each call once. */
static void calls_are_counted(void **state)
{
    (void)state;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    enum { N = 12, PAGE = 4096, FLAGS = MAP_PRIVATE | MAP_ANONYMOUS };
    void *volatile block[4], *volatile pages;
    atomic_store(&n_calls, 0);
    atomic_store(&watching, 1);
    block[0] = malloc(1), block[1] = calloc(1, 1), block[2] = aligned_alloc(64, 64);
    int status = posix_memalign((void **)(uintptr_t)&block[3], 64, 64);
    block[0] = realloc(block[0], 2);
    pages = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, FLAGS, -1, 0);
    status |= madvise(pages, PAGE, MADV_DONTNEED) | mprotect(pages, PAGE, PROT_READ);
    pages = mremap(pages, PAGE, 2 * PAGE, MREMAP_MAYMOVE);
    status |= munmap(pages, 2 * PAGE) | brk(sbrk(0));
    atomic_store(&watching, 0);
    for (int i = 0; i < 4; i++)
        free(block[i]);
    assert_int_equal(status, 0);
    assert_int_equal(atomic_load(&n_calls), N);
#else
    skip();
#endif
}

static void step_allocates_nothing(void **state)
{
    (void)state;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    for (int i = 0; i < 2 * KU_N_OFFLOADS; i++) {
        const int n = 1 + i % 2;
        struct watched w = {.c = {.n = n,
                                  .v = 2,
                                  .micro = 2,
                                  .k = 2,
                                  .t = 11,
                                  .threads = 2,
                                  .compute = n == 1 ? KUMI_F32 : KUMI_BF16,
                                  .model = dist_model()}};
        w.c.model.n_embd = 96;
        offload(&w.c, (enum ku_offload_target)(i / 2), 65536);
        if (ku_comm_threads(n, NULL, watch, &w) < 0)
            fail_msg("%s", ku_err_get()->text);
        assert_int_equal(w.calls, 0);
        assert_int_equal(w.heap_before, w.heap_after);
        assert_int_equal(w.faults, 0); /* of the best step: the kernel may take one for itself */
    }
#else
    skip();
#endif
}

/* Proportional set size of this process, bytes. */
static size_t pss(void)
{
    char line[256];
    size_t kib = 0;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "Pss: %zu kB", &kib) == 1)
            break;
    fclose(f);
    return kib << 10;
}

static int compare_with_plan(void *arg)
{
    struct dist_case *c = arg;
    struct kumi_comm *world;
    struct ku_job *job;
    struct ku_trainer *t;
    const double *report;
    KU_TRY(kumi_comm_join(NULL, &world));
    KU_TRY(ku_comm_api_job(world, "test", &job));
    KU_TRY(build(job, c, &t));
    for (int step = 0; step < 3; step++) {
        dist_fill(c, t, KU_PROG_TRAIN, 0);
        KU_TRY(ku_trainer_step(t, step, &report));
    }
    double held = (double)pss(), planned = (double)t->memory->bytes[KU_AR_HOST] / c->n;
    for (int a = 0; a < KU_N_ARENAS; a++)
        planned += a == KU_AR_HOST || a == KU_AR_FILE ? 0 : (double)t->memory->bytes[a];
    double sum[2] = {held, planned};
    KU_TRY(kumi_all_reduce(world, sum, sum, 2, KUMI_F64, KUMI_SUM));
    double slack = 0.02 * sum[1] + (16 << 20) + (double)c->n * (8 << 20);
    int is_within = sum[0] <= sum[1] + slack && sum[0] >= sum[1] - slack;
    if (!is_within && kumi_comm_rank(world) == 0)
        fprintf(stderr, "planned %.1f MiB, held %.1f MiB\n", sum[1] / 0x1p20, sum[0] / 0x1p20);
    ku_trainer_destroy(t);
    kumi_comm_leave(world);
    return is_within ? 0 : 1;
}

static void processes_hold_what_was_planned(void **state)
{
    (void)state;
    if (IS_SANITIZED)
        skip();
    static const struct {
        int zero; /* -1: shared state */
        enum ku_offload_target target;
        int by_micro;
    } row[] = {{-1, KU_OFFLOAD_NONE, 0}, {0, KU_OFFLOAD_NONE, 0}, {1, KU_OFFLOAD_NONE, 0},
               {2, KU_OFFLOAD_NONE, 0},  {3, KU_OFFLOAD_NONE, 0}, {-1, KU_OFFLOAD_NONE, 1},
               {0, KU_OFFLOAD_NONE, 1},  {3, KU_OFFLOAD_NONE, 1}, {-1, KU_OFFLOAD_HOST, 0},
               {0, KU_OFFLOAD_FILE, 0},  {3, KU_OFFLOAD_FILE, 0}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const int zero = row[i].zero;
        struct dist_case c = {.n = 2,
                              .v = 2,
                              .micro = 2,
                              .k = 1 + row[i].by_micro,
                              .by_micro = row[i].by_micro,
                              .t = 64,
                              .compute = KUMI_BF16,
                              .model = dist_model(),
                              .no_sharing = zero >= 0,
                              .zero = zero > 0 ? zero : 0,
                              .prefetch = 1};
        c.model.n_layer = 4, c.model.n_head = 4, c.model.n_embd = 384, c.model.n_positions = 64,
        c.model.vocab_size = 20000;
        offload(&c, row[i].target, 4 << 20);
        if (kumi_launch(compare_with_plan, &c, 2) != 0)
            fail_msg("zero %d, by_micro %d, target %s", zero, c.by_micro,
                     ku_offload_target_name(row[i].target));
    }
}

/* What a rank maps for a model of matrices, by stage. */
static int map_bytes(struct ku_job *job, void *arg)
{
    struct dist_case *c = arg;
    struct ku_trainer *t;
    KU_TRY(build(job, c, &t));
    for (int a = 0; a < KU_N_ARENAS && job->rank == 0; a++)
        c->norm[a] = (double)t->memory->bytes[a];
    ku_trainer_destroy(t);
    return KUMI_OK;
}

/* 16 bytes a parameter in f32, and how they fall: stage 1 leaves 8 (N - 1) / N away, stage 2
 * gradients that wait, stage 3 parameters. A bucket is small here beside the whole. */
static void stages_hold_less(void **state)
{
    (void)state;
    double shard[4], wire[4], params = 0;
    for (int zero = 0; zero <= 3; zero++) {
        struct dist_case c = {.n = 4,
                              .v = 4,
                              .micro = 1,
                              .k = 1,
                              .t = 8,
                              .bucket_bytes = 1 << 16,
                              .model = dist_model(),
                              .no_sharing = 1,
                              .zero = zero};
        c.model.n_layer = 4, c.model.n_embd = 256, c.model.n_head = 4;
        if (ku_comm_threads(4, NULL, map_bytes, &c) < 0)
            fail_msg("%s", ku_err_get()->text);
        shard[zero] = c.norm[KU_AR_SHARD] + c.norm[KU_AR_STATE];
        wire[zero] = c.norm[KU_AR_WIRE];
        params = zero ? params : shard[0] / 12;
    }
    assert_true(shard[1] < 4.0 * params + 0.30 * 8 * params); /* a block more of each tensor */
    assert_true(shard[1] >= 4.0 * params + 0.25 * 8 * params);
    assert_true(shard[2] == shard[1] && wire[1] < 1.01 * wire[0]);
    assert_true(wire[2] < 0.6 * wire[1]);
    assert_true(shard[3] < 0.30 * 12 * params && shard[3] >= 0.25 * 12 * params);
    assert_true(wire[3] == wire[2]);
}

/* Where each micro-batch is reduced, a rank keeps its blocks of the sum in place of all of it. */
static void reducing_each_holds_less(void **state)
{
    (void)state;
    for (int zero = 0; zero <= 3; zero++) {
        double held[2] = {0}, grads = 0;
        for (int i = 0; i < 2; i++) {
            struct dist_case c = {.n = 4,
                                  .v = 4,
                                  .micro = 1,
                                  .k = 4,
                                  .by_micro = i,
                                  .t = 8,
                                  .bucket_bytes = 1 << 16,
                                  .model = dist_model(),
                                  .no_sharing = zero > 0, /* 0: shared */
                                  .zero = zero};
            c.model.n_layer = 8, c.model.n_embd = 256, c.model.n_head = 4;
            if (ku_comm_threads(4, NULL, map_bytes, &c) < 0)
                fail_msg("%s", ku_err_get()->text);
            held[i] = c.norm[KU_AR_WIRE] + c.norm[KU_AR_STEP];
            grads = i ? grads : c.norm[KU_AR_WIRE];
        }
        if (held[1] > held[0] - 0.4 * grads) /* 3/4 of them, but for buckets under way */
            fail_msg("zero %d: %.1f MiB, %.1f by micro-batch, %.1f of them gradients", zero,
                     held[0] / 0x1p20, held[1] / 0x1p20, grads / 0x1p20);
    }
}

/* Bytes that this process has read from files. */
static double bytes_read(void)
{
    unsigned long long n = 0;
    FILE *f = fopen("/proc/self/io", "r");
    if (f == NULL)
        skip(); /* the kernel does not count */
    assert_int_equal(fscanf(f, "rchar: %llu", &n), 1);
    fclose(f);
    return (double)n;
}

struct resumed {
    struct dist_case c;
    const char *dir;
    int is_loaded;
    double state_bytes;
};
static int save_or_load(struct ku_job *job, void *arg)
{
    struct resumed *r = arg;
    struct ku_trainer *t;
    char path[128];
    int64_t step = 0;
    KU_TRY(build(job, &r->c, &t));
    snprintf(path, sizeof path, "%s/step-%08d", r->dir, 1);
    const struct ku_ckpt_desc desc = {.dir = r->dir, .step = 1, .model_config = "{}"};
    KU_TRY(r->is_loaded ? ku_trainer_load(t, path, &step) : ku_trainer_save(t, &desc, KUMI_OK));
    for (int i = 0; i < t->n_tensors && job->rank == 0; i++)
        r->state_bytes += (double)ku_ckpt_tensor_count(&t->tensor[i]) *
                          (double)kumi_dtype_bytes(t->tensor[i].dtype);
    ku_trainer_destroy(t);
    return KUMI_OK;
}

/* Ranks that share or partition the state read it once together, replicas each. The 5 % are for
 * checksums, and a chunk of each file that every rank reads to check the header: 4 of 113 MB
 * here. */
static void resume_reads_state_once(void **state)
{
    (void)state;
    static const int row[] = {-1, 0, 3}; /* stages; -1: shared state */
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const int zero = row[i];
        char dir[] = "/tmp/kumi-memory-XXXXXX";
        struct resumed r = {.c = {.n = 2,
                                  .v = 2,
                                  .micro = 1,
                                  .k = 1,
                                  .t = 8,
                                  .model = dist_model(),
                                  .no_sharing = zero >= 0,
                                  .zero = zero > 0 ? zero : 0},
                            .dir = dir};
        r.c.model.n_layer = 1, r.c.model.n_embd = 896, r.c.model.n_head = 4;
        assert_non_null(mkdtemp(dir));
        for (r.is_loaded = 0; r.is_loaded < 2; r.is_loaded++) {
            const double before = bytes_read();
            r.state_bytes = 0;
            if (ku_comm_threads(r.c.n, NULL, save_or_load, &r) < 0)
                fail_msg("%s", ku_err_get()->text);
            const double once = r.state_bytes * (zero == 0 ? r.c.n : 1), n = bytes_read() - before;
            if (r.is_loaded && (n < once || n > 1.05 * once))
                fail_msg("zero %d: %.0f bytes read, state of %.0f", zero, n, r.state_bytes);
        }
        assert_int_equal(ku_os_rmtree(dir), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(processes_hold_what_was_planned),
                                       cmocka_unit_test(stages_hold_less),
                                       cmocka_unit_test(reducing_each_holds_less),
                                       cmocka_unit_test(resume_reads_state_once),
                                       cmocka_unit_test(calls_are_counted),
                                       cmocka_unit_test(step_allocates_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
