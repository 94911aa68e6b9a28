/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/math/random.h"

/* Runs each file of a folder as it is. Those with names of their own also run cut at up to 64
 * places, and 64 times with one to four bits flipped; those that libFuzzer found (names of 40
 * digits) are such mutations. */
enum { TIMES = 64, BYTES_MAX = 1 << 20, FOUND_CHARS = 40 };

static void run(const uint8_t *data, size_t bytes)
{
    uint8_t *exact = malloc(bytes ? bytes : 1); /* so that a read behind the end is seen */
    KU_ASSERT(exact);
    memcpy(exact, data, bytes);
    LLVMFuzzerTestOneInput(exact, bytes);
    free(exact);
}

/* Flips the bits of mutation i; once more flips them back. */
static void flip(uint8_t *data, size_t bytes, uint32_t i)
{
    for (uint32_t k = 0; k < 1 + i % 4; k++)
        data[ku_random_u32(1, i, k, bytes) % bytes] ^=
            (uint8_t)(1 << ku_random_u32(2, i, k, bytes) % 8);
}

static void run_mutations(uint8_t *data, size_t bytes)
{
    for (uint32_t i = 0; i < TIMES; i++)
        run(data, bytes > TIMES ? bytes * i / TIMES : i < bytes ? i : bytes);
    for (uint32_t i = 0; i < TIMES && bytes > 0; i++) {
        flip(data, bytes, i);
        run(data, bytes);
        flip(data, bytes, i);
    }
}

int main(int argc, char **argv)
{
    char **names;
    int n;
    if (argc != 2 || ku_os_list(argv[1], &names, &n) < 0 || n == 0) {
        fprintf(stderr, "usage: %s FOLDER (with files)\n", argv[0]);
        return 2;
    }
    for (int i = 0; i < n; i++) {
        char *path = ku_asprintf("%s/%s", argv[1], names[i]), *data;
        size_t bytes;
        KU_ASSERT(path && ku_os_slurp(path, BYTES_MAX, &data, &bytes) == 0);
        run((uint8_t *)data, bytes);
        if (strlen(names[i]) != FOUND_CHARS)
            run_mutations((uint8_t *)data, bytes);
        ku_free(data);
        ku_free(path);
    }
    printf("%d inputs and their mutations\n", n);
    ku_free(names);
    return 0;
}
