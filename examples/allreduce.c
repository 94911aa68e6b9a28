/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators only: all ranks average a vector; then the even and the odd ranks pass a token
 * around.
 *
 *     kumi run -n 4 -- ./allreduce      (or directly: one rank)
 */
#include <kumi/comm.h>

#include <stdio.h>

enum { COUNT = 1 << 20 };

/* In a ring: every rank sends to the right and receives from the left at the same time. */
static int pass_token(struct kumi_comm *comm, int32_t *token)
{
    int me = kumi_comm_rank(comm), n = kumi_comm_size(comm);
    int32_t received = -1;
    const struct kumi_collective messages[] = {
        {.kind = KUMI_RECV,
         .dtype = KUMI_I32,
         .root = (me + n - 1) % n,
         .out = &received,
         .count = 1},
        {.kind = KUMI_SEND, .dtype = KUMI_I32, .root = (me + 1) % n, .in = token, .count = 1},
    };
    int status = kumi_batch(comm, messages, 2);
    *token = received;
    return status;
}

static int run(struct kumi_comm *world)
{
    struct kumi_comm *half = NULL;
    struct kumi_work *work;
    void *memory;
    int rank = kumi_comm_rank(world), n = kumi_comm_size(world), status;
    int32_t token = rank;

    if ((status = kumi_comm_alloc(world, COUNT * sizeof(float), &memory)) < 0)
        return status;
    float *x = memory; /* shared with the other ranks of the host, so reduced in place */
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)(rank + i % 16);
    struct kumi_collective average = {.kind = KUMI_ALL_REDUCE,
                                      .dtype = KUMI_F32,
                                      .reduce = KUMI_AVG,
                                      .in = x,
                                      .out = x,
                                      .count = COUNT};
    if ((status = kumi_work_start(world, &average, &work)) < 0)
        return status;
    /* … compute something else here … */
    if ((status = kumi_work_wait(work)) < 0)
        return status;
    for (int i = 0; i < COUNT; i++)
        if (x[i] != (float)(n - 1) / 2 + (float)(i % 16))
            return KUMI_ENUMERIC;

    if ((status = kumi_comm_split(world, rank % 2, rank, &half)) < 0 ||
        (status = pass_token(half, &token)) < 0)
        return status;
    printf("rank %d of %d: average ok, token from %d, %llu bytes staged\n", rank, n, (int)token,
           (unsigned long long)kumi_comm_staged_bytes(world));
    if ((status = kumi_comm_free(half)) < 0)
        return status;
    return kumi_comm_dealloc(world, memory);
}

int main(void)
{
    struct kumi_comm *world;
    int status = kumi_comm_join(NULL, &world);
    if (status < 0) {
        fprintf(stderr, "allreduce: %s\n", kumi_last_error()->text);
        return -status;
    }
    status = run(world);
    int left = kumi_comm_leave(world);
    return status < 0 ? -status : -left;
}
