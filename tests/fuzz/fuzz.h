/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "base/os/os.h"

/*
 * What a fuzz_<name>.c defines: takes any bytes and asserts what must hold. It is linked with
 * replay.c (a test: the files of corpus/<name> and mutations of them), or, with -DKUMI_FUZZ=ON,
 * with libFuzzer:
 *
 *     tools/fuzz.sh 20             every target for 20 seconds
 *     tools/fuzz.sh 3600 tokens    fuzz_tokens.c for an hour
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* The bytes as a file for what opens paths: `path` names it until the descriptor is closed. */
static inline int ku_fuzz_file(const uint8_t *data, size_t bytes, char *path, size_t path_bytes)
{
    int fd = ku_os_memfd("fuzz", 0);
    KU_ASSERT(fd >= 0 && ku_os_write_full(fd, data, bytes) == 0);
    snprintf(path, path_bytes, "/proc/self/fd/%d", fd);
    return fd;
}

#endif
