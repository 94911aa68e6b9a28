/* SPDX-License-Identifier: Apache-2.0 */
#include "kumi/mesh.h"

#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/mem.h"
#include "comm/api/api.h"
#include "comm/coll.h"
#include "comm/private.h"

struct kumi_mesh {
    int n_axes;
    struct {
        char name[12];
        int extent, coord;
        struct kumi_comm *comm;
    } axis[KUMI_MESH_AXES_MAX];
};

static int find(const struct kumi_mesh *m, const char *name)
{
    for (int a = 0; a < m->n_axes; a++)
        if (strcmp(m->axis[a].name, name) == 0)
            return a;
    return -1;
}

static int take_names(struct kumi_mesh *m, const struct kumi_mesh_axis *axes, int n_axes)
{
    if (n_axes < 1 || n_axes > KUMI_MESH_AXES_MAX)
        return KU_ERR(KUMI_EINVAL, "mesh: %d axes; give 1 to %d", n_axes, KUMI_MESH_AXES_MAX);
    for (int a = 0; a < n_axes; a++) {
        const char *name = axes[a].name;
        if (name == NULL || *name == '\0' || strlen(name) >= sizeof m->axis[a].name)
            return KU_ERR(KUMI_EINVAL, "mesh: axis %d: a name has 1 to 11 letters", a);
        if (find(m, name) >= 0)
            return KU_ERR(KUMI_EINVAL, "mesh: axis %s: named twice", name);
        memcpy(m->axis[a].name, name, strlen(name) + 1);
        m->axis[a].extent = axes[a].extent;
        m->n_axes++;
    }
    return KUMI_OK;
}

/* Compute the extent that is 0, and check that the extents multiply to n_ranks. */
static int take_extents(struct kumi_mesh *m, int n_ranks)
{
    int64_t product = 1;
    int open = -1;
    for (int a = 0; a < m->n_axes; a++) {
        int extent = m->axis[a].extent;
        if (extent < 0 || extent > n_ranks || (extent == 0 && open >= 0))
            return KU_ERR(KUMI_EINVAL,
                          "mesh: axis %s: extent %d; give 1 to %d ranks, and 0 on one axis at most",
                          m->axis[a].name, extent, n_ranks);
        if (extent == 0)
            open = a;
        else
            product = product * extent <= n_ranks ? product * extent : (int64_t)n_ranks + 1;
    }
    if (open >= 0 && product <= n_ranks && n_ranks % product == 0) {
        m->axis[open].extent = (int)(n_ranks / product);
        return KUMI_OK;
    }
    if (open < 0 && product == n_ranks)
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL, "mesh: the axes' extents do not multiply to the job's %d ranks",
                  n_ranks);
}

static int make_comms(struct kumi_mesh *m, struct ku_job *job)
{
    int stride = 1;
    for (int a = m->n_axes - 1; a >= 0; a--) {
        struct ku_comm *c;
        int extent = m->axis[a].extent, coord = job->rank / stride % extent;
        m->axis[a].coord = coord;
        KU_TRY(ku_comm_mesh(job, m->axis[a].name, job->rank - coord * stride, stride, extent, &c));
        if (ku_comm_api_wrap(c, &m->axis[a].comm) < 0) {
            ku_comm_free(c);
            return KUMI_ENOMEM;
        }
        stride *= extent;
    }
    return KUMI_OK;
}

int kumi_mesh_create(struct kumi_comm *world, const struct kumi_mesh_axis *axes, int n_axes,
                     struct kumi_mesh **out)
{
    KU_GIVEN(world, "world");
    KU_GIVEN(axes, "axes");
    KU_GIVEN(out, "mesh");
    struct ku_job *job = NULL;
    KU_TRY(ku_comm_api_job(world, "mesh", &job));
    struct kumi_mesh *m = ku_calloc(1, sizeof *m);
    int status = m ? take_names(m, axes, n_axes) : KUMI_ENOMEM;
    if (status == KUMI_OK)
        status = take_extents(m, job->n);
    if (status == KUMI_OK)
        status = make_comms(m, job);
    if (status < 0) {
        kumi_mesh_destroy(m);
        return status;
    }
    *out = m;
    return KUMI_OK;
}

int kumi_mesh_destroy(struct kumi_mesh *m)
{
    int status = KUMI_OK;
    for (int a = 0; m && a < m->n_axes; a++) {
        int one = kumi_comm_free(m->axis[a].comm);
        status = status < 0 ? status : one;
    }
    ku_free(m);
    return status;
}

struct kumi_comm *kumi_mesh_comm(const struct kumi_mesh *m, const char *axis)
{
    KU_GIVEN_OR(NULL, m, "mesh");
    KU_GIVEN_OR(NULL, axis, "axis");
    int a = find(m, axis);
    return a < 0 ? NULL : m->axis[a].comm;
}

int kumi_mesh_coord(const struct kumi_mesh *m, const char *axis)
{
    KU_GIVEN_OR(-1, m, "mesh");
    KU_GIVEN_OR(-1, axis, "axis");
    int a = find(m, axis);
    return a < 0 ? -1 : m->axis[a].coord;
}
