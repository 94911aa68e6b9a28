/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over packed qkv [n, t, 3, h, d]. For one sample and head, with q, k, v its rows:
 *
 *     s[i,j] = scale q[i].k[j]           j <= i when causal; scale 0 = 1 / sqrt(d)
 *     lse[i] = log sum_j e^s[i,j]        p[i,j] = e^(s[i,j] - lse[i])
 *     z[i,j] = 0 or 1 / (1 - dropout)    by the flat index of (n, h, i, j), n and h global
 *     o[i]   = sum_j p[i,j] z[i,j] v[j]
 */
#include <math.h>

#include "device/ref/ref.h"

struct head {
    const struct ku_call *c;
    const struct ku_view *qkv;
    int64_t sample, head, t, h, d;
    double scale;
};

size_t ku_ref_workspace_attention(const struct ku_op_case *c)
{
    size_t t = (size_t)c->in[c->op == KU_OP_attention ? 0 : 1].shape.dim[1].count;
    return t * t * 2 * sizeof(double); /* p and ds of one head */
}

static struct head head_of(const struct ku_call *c, const struct ku_view *qkv)
{
    const struct ku_dim *dim = qkv->shape.dim;
    double scale = c->attr->scale;
    return (struct head){.c = c,
                         .qkv = qkv,
                         .t = dim[1].count,
                         .h = dim[3].count,
                         .d = dim[4].count,
                         .scale = scale != 0 ? scale : 1 / sqrt((double)dim[4].count)};
}
/* Where row t of q (0), k (1) or v (2) begins; and of o. */
static int64_t row_at(const struct head *a, int64_t t, int which)
{
    return (((a->sample * a->t + t) * 3 + which) * a->h + a->head) * a->d;
}
static int64_t o_at(const struct head *a, int64_t t)
{
    return ((a->sample * a->t + t) * a->h + a->head) * a->d;
}
static int64_t lse_at(const struct head *a, int64_t t)
{
    return (a->sample * a->h + a->head) * a->t + t;
}
static int64_t n_keys(const struct head *a, int64_t query)
{
    return a->c->attr->causal ? query + 1 : a->t;
}
static double dot(const struct head *a, const struct ku_view *x, int64_t i, const struct ku_view *y,
                  int64_t j)
{
    double sum = 0;
    for (int64_t e = 0; e < a->d; e++)
        sum += ku_ref_get(x, i + e) * ku_ref_get(y, j + e);
    return sum;
}
static double keep(const struct head *a, int64_t query, int64_t key)
{
    const struct ku_view *v = a->qkv;
    if (a->c->attr->p == 0)
        return 1;
    int64_t row = (v->start[0] + a->sample) * v->logical[3] + v->start[3] + a->head;
    return ku_ref_keep(a->c, (uint64_t)((row * a->t + query) * a->t + key));
}

/* s of one query into p[], returns the log-sum-exp. */
static double scores(const struct head *a, int64_t query, double *p)
{
    double most = (double)-INFINITY, sum = 0;
    for (int64_t key = 0; key < n_keys(a, query); key++) {
        p[key] = a->scale * dot(a, a->qkv, row_at(a, query, 0), a->qkv, row_at(a, key, 1));
        most = p[key] > most ? p[key] : most;
    }
    for (int64_t key = 0; key < n_keys(a, query); key++)
        sum += exp(p[key] - most);
    return most + log(sum);
}

void ku_ref_attention(const struct ku_call *c, struct ku_ref_poll *poll)
{
    struct head a = head_of(c, &c->in[0]);
    double *p = c->workspace;
    for (a.sample = 0; a.sample < c->in[0].shape.dim[0].count; a.sample++)
        for (a.head = 0; a.head < a.h; a.head++)
            for (int64_t query = 0; query < a.t; query++) {
                double lse = scores(&a, query, p);
                ku_ref_put(&c->out[1], lse_at(&a, query), lse);
                for (int64_t key = 0; key < n_keys(&a, query); key++)
                    p[key] = exp(p[key] - lse) * keep(&a, query, key);
                for (int64_t e = 0; e < a.d; e++) {
                    double sum = 0;
                    for (int64_t key = 0; key < n_keys(&a, query); key++)
                        sum += p[key] * ku_ref_get(&c->in[0], row_at(&a, key, 2) + e);
                    ku_ref_put(&c->out[0], o_at(&a, query) + e, sum);
                }
                ku_ref_worked(poll, 2 * a.t * a.d);
            }
}

/* p z and ds = p (z do.v - do.o) scale of one head, from the saved o and lse; 0 where masked. */
static void head_matrices(const struct head *a, double *pz, double *ds, struct ku_ref_poll *poll)
{
    const struct ku_view *d_o = &a->c->in[0], *o = &a->c->in[2], *lse = &a->c->in[3];
    for (int64_t query = 0; query < a->t; query++) {
        double delta = dot(a, d_o, o_at(a, query), o, o_at(a, query));
        for (int64_t key = 0; key < a->t; key++) {
            double *to_p = &pz[query * a->t + key], *to_ds = &ds[query * a->t + key];
            *to_p = *to_ds = 0;
            if (key >= n_keys(a, query))
                continue;
            double s = a->scale * dot(a, a->qkv, row_at(a, query, 0), a->qkv, row_at(a, key, 1));
            double p = exp(s - ku_ref_get(lse, lse_at(a, query))), z = keep(a, query, key);
            double dp = z * dot(a, d_o, o_at(a, query), a->qkv, row_at(a, key, 2));
            *to_p = p * z;
            *to_ds = p * (dp - delta) * a->scale;
        }
        ku_ref_worked(poll, 2 * a->t * a->d);
    }
}

/*
 * attention_dx: dq[i] = sum_j ds[i,j] k[j], dk[j] = sum_i ds[i,j] q[i], dv[j] = sum_i p z[i,j]
 * do[i].
 */
void ku_ref_attention_dx(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *d_o = &c->in[0], *qkv = &c->in[1], *dqkv = &c->out[0];
    struct head a = head_of(c, qkv);
    double *pz = c->workspace, *ds = pz + a.t * a.t;
    for (a.sample = 0; a.sample < qkv->shape.dim[0].count; a.sample++)
        for (a.head = 0; a.head < a.h; a.head++) {
            head_matrices(&a, pz, ds, poll);
            for (int64_t i = 0; i < a.t; i++)
                for (int64_t e = 0; e < a.d; e++) {
                    double dq = 0, dk = 0, dv = 0;
                    for (int64_t j = 0; j < a.t; j++) {
                        dq += ds[i * a.t + j] * ku_ref_get(qkv, row_at(&a, j, 1) + e);
                        dk += ds[j * a.t + i] * ku_ref_get(qkv, row_at(&a, j, 0) + e);
                        dv += pz[j * a.t + i] * ku_ref_get(d_o, o_at(&a, j) + e);
                    }
                    ku_ref_put(dqkv, row_at(&a, i, 0) + e, dq);
                    ku_ref_put(dqkv, row_at(&a, i, 1) + e, dk);
                    ku_ref_put(dqkv, row_at(&a, i, 2) + e, dv);
                    ku_ref_worked(poll, 3 * a.t);
                }
        }
}
