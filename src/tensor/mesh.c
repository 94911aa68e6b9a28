/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/mesh.h"

#include <string.h>

static const char *const axis_name[KU_N_AXES] = {"pp", "replicate", "shard", "local",
                                                 "tp", "tpi",       "vs",    "mb"};

const char *ku_axis_name(int axis)
{
    return axis >= 0 && axis < KU_N_AXES ? axis_name[axis] : "?";
}

int ku_axis_parse(const char *name)
{
    for (int a = 0; a < KU_N_AXES; a++)
        if (strcmp(name, axis_name[a]) == 0)
            return a;
    return -1;
}

int ku_mesh_n_ranks(const struct ku_mesh *m)
{
    int n = 1;
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        n *= m->extent[a];
    return n;
}

int ku_mesh_dp(const struct ku_mesh *m)
{
    return m->extent[KU_AX_REPLICATE] * m->extent[KU_AX_SHARD] * m->extent[KU_AX_LOCAL];
}

int ku_mesh_tp(const struct ku_mesh *m)
{
    return m->extent[KU_AX_TP] * m->extent[KU_AX_TPI];
}

int ku_mesh_wide(const struct ku_mesh *m, int axes)
{
    int wide = 0;
    for (int a = 0; a < KU_N_AXES; a++)
        if (axes >> a & 1 && m->extent[a] > 1)
            wide |= 1 << a;
    return wide;
}

struct ku_coord ku_mesh_coord(const struct ku_mesh *m, int rank)
{
    struct ku_coord c = {0};
    for (int a = KU_AX_FIRST_TIME - 1; a >= 0; a--) {
        c.at[a] = rank % m->extent[a];
        rank /= m->extent[a];
    }
    return c;
}

int ku_mesh_rank(const struct ku_mesh *m, const struct ku_coord *c)
{
    int rank = 0;
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        rank = rank * m->extent[a] + c->at[a];
    return rank;
}

int ku_mesh_n_micro(const struct ku_mesh *m)
{
    return m->extent[KU_AX_VS] * m->extent[KU_AX_MB];
}

void ku_mesh_micro(const struct ku_mesh *m, int u, struct ku_coord *c)
{
    int inner = m->mb_outer ? KU_AX_VS : KU_AX_MB, outer = KU_AX_VS + KU_AX_MB - inner;
    c->at[outer] = u / m->extent[inner];
    c->at[inner] = u % m->extent[inner];
}
