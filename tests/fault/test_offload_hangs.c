/* SPDX-License-Identifier: Apache-2.0 */
/* links: exec comm job device ir op tensor base */
/* A rank whose offload file hangs makes no progress, one whose file moves bytes does. */
#include "base/err.h"
#include "base/fault.h"
#include "base/mem.h"
#include "comm/coll.h"
#include "comm/world.h"
#include "exec/offload_target.h"
#include "kumi/launch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGN = 4096, PART_BYTES = 9 << 20 /* three pieces */, LIMIT_S = 60 };

/* Written by rank 0. */
struct shared {
    int status;
    char text[440];
};

static int write_part(struct ku_job *job, struct ku_offload_file *file, const char *fault)
{
    unsigned char *data = ku_malloc_aligned(ALIGN, PART_BYTES);
    struct ku_offload_part part = {.staging = data, .bytes = PART_BYTES};
    struct ku_transfer t = {.job = job, .file = file, .part = &part, .n = 1, .is_write = 1};
    if (data == NULL)
        return KUMI_ENOMEM;
    memset(data, 1, PART_BYTES);
    ku_fault_set(fault);
    ku_transfer_start(&t);
    const int status = ku_transfer_wait(&t);
    ku_free(data);
    return status;
}

static int run_rank(void *arg)
{
    static const struct ku_offload_file_opts target = {.path = ".", .io = KU_AIO_THREADS};
    static const struct ku_job_opts opts = {.timeout_ns = 1500000000};
    const struct ku_coll barrier = {.kind = KU_COLL_BARRIER, .name = "step"};
    struct shared *s = arg;
    struct ku_offload_file *file = NULL;
    struct ku_job *job;
    KU_TRY(ku_comm_join(&opts, &job));
    int status = ku_offload_file_open(job, &target, PART_BYTES, &file);
    if (status == KUMI_OK && job->rank == 1)
        status = write_part(job, file, "hang:3");
    if (status == KUMI_OK)
        status = ku_coll_run(job->world, &barrier);
    if (job->rank == 0) {
        s->status = status;
        memcpy(s->text, ku_err_get()->text, sizeof s->text);
    }
    ku_offload_file_close(file);
    KU_IGNORE(ku_comm_leave(job), "the first failure is returned");
    return status;
}

/* Two pieces end and one does not: the rank that waits in a barrier names the one that hangs. */
static void hangs(void **state)
{
    struct shared *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    (void)state;
    assert_true(s != MAP_FAILED);
    assert_int_equal(kumi_launch(run_rank, s, 2), KUMI_ETIMEDOUT);
    assert_int_equal(s->status, KUMI_ETIMEDOUT);
    if (!strstr(s->text, "time-out: rank 1") || !strstr(s->text, "waited in step: barrier"))
        fail_msg("%s", s->text);
    munmap(s, sizeof *s);
}

static uint64_t progress_of(const struct ku_job *job)
{
    return atomic_load(&ku_segment_line(job->seg, job->local_rank)->progress);
}
static int move(struct ku_job *job, void *arg)
{
    const struct ku_offload_file_opts target = {.path = ".", .io = *(enum ku_aio_kind *)arg};
    unsigned char *data = ku_malloc_aligned(ALIGN, PART_BYTES);
    struct ku_offload_part part = {.staging = data, .bytes = PART_BYTES};
    struct ku_offload_file *file;
    assert_non_null(data);
    memset(data, 1, PART_BYTES);
    assert_int_equal(ku_offload_file_open(job, &target, PART_BYTES, &file), KUMI_OK);
    struct ku_transfer t = {.job = job, .file = file, .part = &part, .n = 1, .is_write = 1};
    ku_transfer_start(&t);
    const uint64_t before = progress_of(job);
    assert_int_equal(ku_transfer_wait(&t), KUMI_OK);
    assert_true(progress_of(job) > before);
    ku_offload_file_close(file);
    ku_free(data);
    return KUMI_OK;
}

/* However slow the file is: pieces that end are progress. */
static void moves(void **state)
{
    enum ku_aio_kind kind[] = {KU_AIO_AUTO, KU_AIO_THREADS};
    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(ku_comm_threads(1, NULL, move, &kind[i]), KUMI_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(hangs), cmocka_unit_test(moves)};
    alarm(LIMIT_S); /* a rank that counts time as progress waits for ever */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
