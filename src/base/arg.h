/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_ARG_H
#define KU_BASE_ARG_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * Argument check at the start of a public function: returns KUMI_EINVAL, or `result`, if `pointer`
 * is NULL. `name` is the parameter's name in the public header.
 *
 *     KU_GIVEN(trainer, "trainer");
 */
#define KU_GIVEN_OR(result, pointer, name)                                                         \
    do {                                                                                           \
        if ((pointer) == NULL) {                                                                   \
            KU_ERR(KUMI_EINVAL, "%s: %s: NULL is not allowed here", __func__, (name));             \
            return (result);                                                                       \
        }                                                                                          \
    } while (0)
#define KU_GIVEN(pointer, name) KU_GIVEN_OR(KUMI_EINVAL, pointer, name)
/*
 * The same check for a list of n strings, none of which may be NULL. With n = 0 the list may be
 * NULL.
 */
#define KU_GIVEN_LIST(list, n, name) KU_TRY(ku_arg_list(__func__, name, list, n))
static inline KU_STATUS ku_arg_list(const char *function, const char *name, const char *const *list,
                                    int64_t n)
{
    if (n < 0 || (n > 0 && list == NULL))
        return KU_ERR(KUMI_EINVAL, "%s: %s: %lld entries, the list is %s", function, name,
                      (long long)n, list ? "given" : "NULL");
    for (int64_t i = 0; i < n; i++)
        if (list[i] == NULL)
            return KU_ERR(KUMI_EINVAL, "%s: %s[%lld]: NULL is not allowed here", function, name,
                          (long long)i);
    return KUMI_OK;
}

#endif
