/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/selection.h"

static int check_rows(const struct ku_ps_selection *x, int worker)
{
    if (x->n_rows > KU_PS_MAX_ROWS)
        return KU_ERR(KUMI_EINVAL, "ps: worker %d pulls %zu rows; at most %d", worker, x->n_rows,
                      KU_PS_MAX_ROWS);
    if (x->n_rows == 0 || x->row_bytes == 0)
        return KU_ERR(KUMI_EINVAL, "ps: worker %d pulls %zu rows of %zu bytes; give both", worker,
                      x->n_rows, x->row_bytes);
    for (size_t i = 1; i < x->n_rows; i++)
        if (x->row[i] <= x->row[i - 1])
            return KU_ERR(KUMI_EINVAL, "ps: worker %d pulls row %u after row %u; rows ascend",
                          worker, x->row[i], x->row[i - 1]);
    if (x->row[x->n_rows - 1] >= x->bytes / x->row_bytes)
        return KU_ERR(KUMI_EINVAL,
                      "ps: worker %d pulls row %u, of a range of %zu rows of %zu bytes; rows lie "
                      "within",
                      worker, x->row[x->n_rows - 1], x->bytes / x->row_bytes, x->row_bytes);
    return KUMI_OK;
}

int ku_ps_selection_check(struct ku_ps_selection *x, int worker, size_t space)
{
    if (x->bytes == 0 && x->offset < space)
        x->bytes = space - x->offset;
    if (x->bytes == 0 || x->offset > space || x->bytes > space - x->offset)
        return KU_ERR(KUMI_EINVAL,
                      "ps: worker %d pulls %zu bytes at %zu of %zu; a range lies within", worker,
                      x->bytes, x->offset, space);
    return x->n_rows || x->row_bytes ? check_rows(x, worker) : KUMI_OK;
}

size_t ku_ps_selection_bytes(const struct ku_ps_selection *x)
{
    return x->n_rows ? x->n_rows * x->row_bytes : x->bytes;
}

size_t ku_ps_selection_find(const struct ku_ps_selection *x, size_t at, size_t *bytes)
{
    KU_ASSERT(at < ku_ps_selection_bytes(x));
    if (x->n_rows == 0) {
        *bytes = x->bytes - at;
        return x->offset + at;
    }
    const size_t first = at / x->row_bytes, within = at % x->row_bytes;
    size_t end = first + 1; /* of rows that are neighbours */
    while (end < x->n_rows && x->row[end] == x->row[end - 1] + 1)
        end++;
    *bytes = (end - first) * x->row_bytes - within;
    return x->offset + (size_t)x->row[first] * x->row_bytes + within;
}
