/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An incorrect program: the ranks call different collectives. Instead of a deadlock every rank gets
 * one error that names both sides, and the job ends with exit code 8.
 *
 *     kumi run -n 2 -- ./mismatch counts           rank 0 has 1,000 elements, the others 999
 *     kumi run -n 2 -- ./mismatch only-rank-0      only rank 0 calls all_reduce
 */
#include <kumi/comm.h>

#include <stdio.h>
#include <string.h>

enum { COUNT = 1000 };

static int sum(struct kumi_comm *world, int64_t count)
{
    static float x[COUNT];
    return kumi_all_reduce(world, x, x, count, KUMI_F32, KUMI_SUM);
}

int main(int argc, char **argv)
{
    struct kumi_comm *world;
    const char *what = argc > 1 ? argv[1] : "";
    int is_counts = strcmp(what, "counts") == 0, status;
    if (!is_counts && strcmp(what, "only-rank-0") != 0) {
        fprintf(stderr, "usage: kumi run -n 2 -- mismatch counts|only-rank-0\n");
        return -KUMI_EINVAL;
    }
    if ((status = kumi_comm_join(NULL, &world)) < 0) {
        fprintf(stderr, "mismatch: %s\n", kumi_last_error()->text);
        return -status;
    }
    if (is_counts)
        status = sum(world, kumi_comm_rank(world) == 0 ? COUNT : COUNT - 1);
    else if (kumi_comm_rank(world) == 0)
        status = sum(world, COUNT);
    int left = kumi_comm_leave(world); /* leaving early is a mismatch, too */
    return status < 0 ? -status : -left;
}
