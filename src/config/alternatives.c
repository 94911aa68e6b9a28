/* SPDX-License-Identifier: Apache-2.0 */
#include "config/alternatives.h"

#include <stddef.h>
#include <string.h>

const struct ku_alternative ku_transports[] = {
    {"shm", "processes of one host, through shared memory; the choice of auto", 1},
    {"thread", "ranks as threads of one process", 1},
    {"gloo", "not implemented; tcp serves between hosts", 0},
    {"tcp", "between hosts over sockets, shm within each; the choice of auto with several hosts",
     1},
    {"mpi", "between hosts through the MPI that started the ranks, which auto prefers then", 1},
    {"nccl", "not implemented, for GPUs; shm serves the ranks of one host", 0},
    {NULL, NULL, 0},
};
const struct ku_alternative ku_devices[] = {
    {"cpu", "own kernels, chosen by instruction set; f32, bf16 and f16", 1},
    {"ref", "plain loops in f64, one thread, the reference of tests", 1},
    {"cuda", "not implemented", 0},
    {NULL, NULL, 0},
};

const char *ku_alternative_text(const char *key, const char *word)
{
    const struct ku_alternative *k = strcmp(key, "parallel.transport") == 0 ? ku_transports
                                     : strcmp(key, "parallel.device") == 0  ? ku_devices
                                                                            : NULL;
    for (; k && k->name; k++)
        if (!k->exists && strcmp(k->name, word) == 0)
            return k->what;
    return NULL;
}
