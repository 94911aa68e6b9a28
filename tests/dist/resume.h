/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RESUME_H
#define TESTS_RESUME_H

#include <stdlib.h>

#include "base/os/os.h"
#include "comm/api/api.h"
#include "comm/world.h"
#include "dist.h"
#include "kumi/comm.h"
#include "kumi/launch.h"

/* A trainer whose state is that of a checkpoint's step, or of the beginning. */
static inline int dist_begin(struct ku_job *job, const struct dist_case *c, const char *dir,
                             int from, struct ku_trainer **t)
{
    int64_t step = from;
    char path[128];
    KU_TRY(dist_trainer(job, c, t));
    snprintf(path, sizeof path, "%s/step-%08d", dir, from);
    KU_TRY(from ? ku_trainer_load(*t, path, &step) : ku_trainer_init_state(*t));
    KU_ASSERT(step == from);
    return KUMI_OK;
}
static inline int dist_steps(const struct dist_case *c, struct ku_trainer *t, int from, int to)
{
    const double *report;
    for (int step = from; step < to; step++) {
        dist_fill(c, t, KU_PROG_TRAIN, step % 2);
        KU_TRY(ku_trainer_step(t, step, &report));
    }
    return KUMI_OK;
}
static inline int dist_save(struct ku_trainer *t, const char *dir, int step)
{
    struct ku_ckpt_desc d = {.dir = dir, .step = step, .model_config = "{}"};
    return ku_trainer_save(t, &d, KUMI_OK);
}

/* Steps [from, to) of a case: a first half is saved, a second one loads it and leaves its digest.
 */
struct dist_half {
    struct dist_case c;
    const char *dir;
    int from, to;
};
static inline int dist_half_rank(struct ku_job *job, void *arg)
{
    struct dist_half *h = arg;
    struct ku_trainer *t = NULL;
    KU_TRY(dist_begin(job, &h->c, h->dir, h->from, &t));
    KU_TRY(dist_steps(&h->c, t, h->from, h->to));
    if (h->from == 0)
        KU_TRY(dist_save(t, h->dir, h->to));
    else if (job->rank == 0)
        KU_TRY(ku_trainer_digest(t, 0, h->c.digest));
    ku_trainer_destroy(t);
    return KUMI_OK;
}

/* A run that one layout begins, saves at step `at`, and another ends: as if one layout ran it all,
 * whose digest `one` has. */
static inline void dist_resume(const struct dist_case *one, const struct dist_case *first,
                               const struct dist_case *then, int at, int layout)
{
    char dir[] = "/tmp/kumi-resume-XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct dist_half a = {*first, dir, 0, at}, b = {*then, dir, at, one->steps};
    if (ku_comm_threads(a.c.n, NULL, dist_half_rank, &a) < 0 ||
        ku_comm_threads(b.c.n, NULL, dist_half_rank, &b) < 0)
        fail_msg("layout %d: %s", layout, ku_err_get()->text);
    if (strcmp(b.c.digest, one->digest) != 0)
        fail_msg("layout %d: digests differ", layout);
    assert_int_equal(ku_os_rmtree(dir), 0);
}

static inline int dist_process_main(void *arg)
{
    struct dist_case *c = arg, mine = *c;
    struct kumi_comm *world;
    struct ku_job *job;
    KU_TRY(kumi_comm_join(NULL, &world));
    KU_TRY(ku_comm_api_job(world, "test", &job));
    int status = dist_rank(job, &mine), rank = kumi_comm_rank(world);
    kumi_comm_leave(world);
    return status < 0 || (rank == 0 && strcmp(mine.digest, c->digest) != 0);
}
/* Ranks as processes, which find each other's memory by mapping it: the digest of `one`. */
static inline void dist_processes(const struct dist_case *one, struct dist_case c, int layout)
{
    memcpy(c.digest, one->digest, sizeof c.digest);
    if (kumi_launch(dist_process_main, &c, c.n) != 0)
        fail_msg("layout %d", layout);
}

#endif
