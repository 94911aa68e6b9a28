/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_RESERVE_H
#define KU_BASE_RESERVE_H

#include "base/mem.h"

/*
 * KU_GROW for several elements and a size_t capacity: makes room for `more` elements after the
 * first `count`. The capacity grows by half; new elements are not zeroed. Errors: ENOMEM.
 *
 *     KU_TRY(KU_RESERVE(&x->blob, x->blob_bytes, bytes, &x->cap_blob));
 */
#define KU_RESERVE(array, count, more, cap)                                                        \
    ku_reserve((void **)(array), sizeof **(array), (count), (more), (cap))
static inline KU_STATUS ku_reserve(void **array, size_t bytes_each, size_t count, size_t more,
                                   size_t *cap)
{
    size_t need = 0, wanted = 0;
    if (more <= *cap && count <= *cap - more && *array)
        return KUMI_OK;
    KU_TRY(ku_add_size(count, more, &need));
    KU_TRY(ku_add_size(need, need / 2 + 64, &wanted));
    void *grown = ku_realloc(*array, wanted, bytes_each);
    if (!grown)
        return KUMI_ENOMEM;
    *array = grown;
    *cap = wanted;
    return KUMI_OK;
}

#endif
