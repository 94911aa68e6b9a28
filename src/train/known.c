/* SPDX-License-Identifier: Apache-2.0 */
#include "train/known.h"

#include <stddef.h>
#include <string.h>

const struct ku_known ku_known_transports[] = {
    {"shm", "processes of one host, by shared memory; what auto takes", 1},
    {"thread", "ranks as threads of one process", 1},
    {"gloo", "not supported; shm connects the ranks of one host", 0},
    {"mpi", "not supported; mpirun and srun may start the ranks, which shm connects", 0},
    {"nccl", "not supported, it is for GPUs; shm connects the ranks of one host", 0},
    {"tcp", "not supported; the ranks of a job are on one host, where shm connects them", 0},
    {NULL, NULL, 0},
};
const struct ku_known ku_known_devices[] = {
    {"cpu", "own kernels, chosen by instruction set; f32, bf16 and f16", 1},
    {"ref", "plain loops in f64, one thread: the oracle", 1},
    {"cuda", "not supported", 0},
    {NULL, NULL, 0},
};

const char *ku_known_elsewhere(const char *key, const char *word)
{
    const struct ku_known *k = strcmp(key, "parallel.transport") == 0 ? ku_known_transports
                               : strcmp(key, "parallel.device") == 0  ? ku_known_devices
                                                                      : NULL;
    for (; k && k->name; k++)
        if (!k->exists && strcmp(k->name, word) == 0)
            return k->what;
    return NULL;
}
