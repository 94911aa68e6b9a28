/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_FOLDER_H
#define TESTS_UNIT_FOLDER_H

/* A folder of the program's own: cmocka_run_group_tests(tests, make_folder, remove_folder). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/os/os.h"

static char folder[] = "/tmp/kumi-unit-XXXXXX";

static inline int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) && setenv("KUMI_LOG", "error", 1) == 0 ? 0 : -1;
}

static inline int remove_folder(void **state)
{
    (void)state;
    return ku_os_rmtree(folder);
}

/* folder/name, valid for 512 calls */
static inline const char *in_folder(const char *name)
{
    static char path[512][2048];
    static int turn;
    turn = (turn + 1) % 512;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

/* Write a file there, with the folders above it. Returns its path. */
static inline const char *put(const char *name, const void *data, size_t bytes)
{
    char above[2048];
    const char *path = in_folder(name);
    snprintf(above, sizeof above, "%.*s", (int)(strrchr(path, '/') - path), path);
    assert_int_equal(ku_os_mkdirs(above), 0);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
    return path;
}

static inline const char *put_text(const char *name, const char *text)
{
    return put(name, text, strlen(text));
}

#endif
