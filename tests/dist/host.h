/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_DIST_HOST_H
#define TESTS_DIST_HOST_H

/*
 * Host addresses of a range (NULL: it is empty) and of a state tensor whose first part is the whole
 * of it. They stay valid after unmap: the devices of these tests compute in host memory.
 */
#include "ckpt/saved_tensor.h"
#include "exec/arenas.h"

static inline void *host_of(struct ku_range range)
{
    struct ku_mapping map;
    assert_int_equal(ku_range_map(range, KU_ACCESS_UPDATE, &map), 0);
    void *data = map.data;
    assert_int_equal(ku_range_unmap(&map), 0);
    return data;
}

static inline void *host_tensor(const struct ku_ckpt_tensor *x)
{
    const struct ku_ckpt_part *p = x->part;
    const size_t bytes = (size_t)p->end * kumi_dtype_bytes(x->dtype);
    void *data;
    assert_true(x->n_parts > 0 && p->begin == 0 && p->end >= ku_ckpt_tensor_count(x));
    assert_int_equal(p->store->map(p->store, p->at, bytes, &data), 0);
    assert_int_equal(p->store->unmap(p->store, p->at, bytes, data), 0);
    return data;
}

#endif
