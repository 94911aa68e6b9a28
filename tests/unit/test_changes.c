/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes of a pull space have changed since an update. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/math/random.h"
#include "base/mem.h"
#include "remote/changes.h"

enum { CELL = 64, N_VERSIONS = 12, MAX_BYTES = 1 << 21 };

static int read_space(const void *ctx, size_t offset, size_t bytes, void *to)
{
    memcpy(to, (const unsigned char *)ctx + offset, bytes);
    return KUMI_OK;
}

static int fail_to_read(const void *ctx, size_t offset, size_t bytes, void *to)
{
    (void)ctx, (void)offset, (void)bytes, (void)to;
    return KUMI_EDEVICE;
}

/* Three tensors, of which the second counts as changed in every update. */
static struct ku_remote_layout *layout_of(int n_servers, int64_t count, struct ku_remote_entry *x)
{
    static struct ku_remote_layout l;
    l = (struct ku_remote_layout){.n_workers = 1, .n_servers = n_servers, .n_pull = 3, .pull = x};
    for (int i = 0; i < 3; i++)
        x[i] = (struct ku_remote_entry){.dtype = i == 2 ? KUMI_BF16 : KUMI_F32,
                                        .wire = i == 2 ? KUMI_BF16 : KUMI_F32,
                                        .is_split = true,
                                        .may_rest = i != 1,
                                        .count = i == 1 ? 5000 : count,
                                        .first_block = i % n_servers};
    return &l;
}

/* The bytes of entry i in the space of a server. */
static size_t range_of(const struct ku_remote_layout *l, int server, uint32_t i, size_t *begin)
{
    const struct ku_remote_part part = ku_remote_part_of(l, false, i, server);
    *begin = part.offset;
    return part.offset + ku_remote_wire_bytes(&l->pull[i], part.end - part.begin);
}

/*
 * Random bytes change in each update. A copy of the space as of any update that takes the cells
 * that have changed since is the space, and few other cells have.
 */
static void follow(const struct ku_remote_layout *l, int server)
{
    static unsigned char space[N_VERSIONS][MAX_BYTES];
    struct ku_remote_changes *c;
    size_t begin, end = 0, n_cells = 0, n_changed = 0;
    assert_int_equal(ku_remote_changes_create(l, server, &c), 0);
    for (uint32_t i = 0; i < l->n_pull; i++)
        end = range_of(l, server, i, &begin) > end ? range_of(l, server, i, &begin) : end;
    if (c == NULL) {
        assert_int_equal(ku_remote_tracked_bytes(l, server), 0);
        return;
    }
    assert_true(end <= MAX_BYTES && ku_remote_tracked_bytes(l, server) > 0);
    memset(space, 0, sizeof space);
    assert_int_equal(ku_remote_changes_note(c, 7, fail_to_read, NULL), KUMI_EDEVICE);
    for (int v = 0; v < N_VERSIONS; v++) {
        if (v)
            memcpy(space[v], space[v - 1], end);
        for (uint32_t k = 0; k < 20; k++) {
            const size_t to = range_of(l, server, k % 3, &begin);
            if (to > begin) /* between tensors are zeros */
                space[v][begin + ku_random_u32(3, 0, (uint32_t)v, k) % (to - begin)]++;
        }
        for (size_t at = range_of(l, server, 1, &begin); begin < at; begin++)
            space[v][begin]++;
        assert_int_equal(ku_remote_changes_note(c, 7 + v, read_space, space[v]), 0);
    }
    const unsigned char *now = space[N_VERSIONS - 1];
    for (int v = 0; v < N_VERSIONS; v++)
        for (size_t at = 0; at < end; at += CELL) {
            const size_t each = end - at < CELL ? end - at : CELL;
            const bool has_changed = ku_remote_has_changed(c, at, 7 + v);
            assert_true(has_changed || memcmp(now + at, space[v] + at, each) == 0);
            n_changed += has_changed, n_cells++;
        }
    const size_t others = (range_of(l, server, 1, &begin) - begin) / CELL + 1;
    assert_true(n_changed <= N_VERSIONS * (others + N_VERSIONS * 20 * 4));
    assert_true(n_cells < 100000 || n_changed < n_cells / 2);
    assert_true(ku_remote_has_changed(c, end + CELL, 1 << 20)); /* what is not tracked */
    ku_remote_changes_destroy(c);
}

static void any_layout(void **state)
{
    static const int64_t count[] = {1, 63, 64, 4096, 5000, 200000};
    struct ku_remote_entry x[3];
    (void)state;
    for (size_t i = 0; i < sizeof count / sizeof *count; i++)
        for (int n = 1; n <= 3; n++)
            for (int s = 0; s < n; s++)
                follow(layout_of(n, count[i], x), s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_layout)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
