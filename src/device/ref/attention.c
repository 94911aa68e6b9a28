/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over packed qkv, and over separate q, k and v. For one sample and query head, where q
 * are its rows and k, v those of the key head that it reads:
 *
 *     s[i,j] = scale q[i].k[j]           for the keys j that i sees; scale 0 = 1 / sqrt(d)
 *     lse[i] = log sum_j e^s[i,j]        p[i,j] = e^(s[i,j] - lse[i])
 *     z[i,j] = 0 or 1 / (1 - dropout)    by the flat index of (n, h, i, j), n and h global
 *     o[i]   = sum_j p[i,j] z[i,j] v[j]
 *
 * Query i has the position of key n_keys - n_queries + i, or the one in `positions`. It sees keys
 * before the sample's length; if causal, no key after its own position; with segments, only keys of
 * its own segment.
 */
#include <math.h>

#include "device/ref/ref.h"
#include "op/attention.h"

struct head {
    const struct ku_call *c;
    struct ku_attention a;
    int64_t sample, head;
    double scale;
};

static struct head head_of(const struct ku_call *c)
{
    const struct ku_shape *shape[KU_MAX_IN];
    for (int i = 0; i < c->n_in; i++)
        shape[i] = &c->in[i].shape;
    struct head h = {.c = c, .a = ku_attention_of(c->op, c->attr, c->n_in, shape)};
    h.scale = c->attr->scale != 0 ? c->attr->scale : 1 / sqrt((double)h.a.width);
    return h;
}
size_t ku_ref_workspace_attention(const struct ku_op_case *c)
{
    const struct ku_shape *shape[KU_MAX_IN];
    for (int i = 0; i < c->n_in; i++)
        shape[i] = &c->in[i].shape;
    struct ku_attention a = ku_attention_of(c->op, c->attr, c->n_in, shape);
    return (size_t)(a.group * a.n_queries * a.n_keys) * 2 * sizeof(double);
}

/* Index of the first element of a row of queries or keys. */
static int64_t q_at(const struct head *h, const struct ku_attn_rows *rows, int64_t query)
{
    return ku_attn_at(rows, h->sample, query, h->head);
}
static int64_t k_at(const struct head *h, const struct ku_attn_rows *rows, int64_t key)
{
    return ku_attn_at(rows, h->sample, key, h->head / h->a.group);
}
static int64_t lse_at(const struct head *h, int64_t query)
{
    return ku_attn_lse_at(&h->a, h->sample, h->head) + query;
}
static bool sees(const struct head *h, int64_t query, int64_t key)
{
    const struct ku_view *in = h->c->in;
    const int32_t *at = h->a.positions < 0 ? NULL : in[h->a.positions].data;
    const int64_t own = ku_attn_offset(&h->a, at, h->sample) + query;
    if (h->c->attr->causal && key > own)
        return 0;
    if (h->a.lengths >= 0 && key >= ((const int32_t *)in[h->a.lengths].data)[h->sample])
        return 0;
    if (h->a.segments < 0)
        return 1;
    const int32_t *number = (const int32_t *)in[h->a.segments].data + h->sample * h->a.n_keys;
    return number[key] == number[own];
}
static double dot(const struct head *h, const struct ku_attn_rows *x, int64_t i,
                  const struct ku_attn_rows *y, int64_t j)
{
    double sum = 0;
    for (int64_t e = 0; e < h->a.width; e++)
        sum += ku_ref_get(&h->c->in[x->operand], i + e) * ku_ref_get(&h->c->in[y->operand], j + e);
    return sum;
}
static double score(const struct head *h, int64_t query, int64_t key)
{
    return h->scale * dot(h, &h->a.q, q_at(h, &h->a.q, query), &h->a.k, k_at(h, &h->a.k, key));
}
static double keep(const struct head *h, int64_t query, int64_t key)
{
    const struct ku_view *q = &h->c->in[h->a.q.operand], *k = &h->c->in[h->a.k.operand];
    const int heads = h->a.k_heads;
    if (h->c->attr->p == 0)
        return 1;
    const bool is_grouped = q->shape.ndim == 5 && heads != 3; /* else q is qkv */
    const int64_t group = is_grouped ? q->logical[3] : 1, first = is_grouped ? q->start[3] : 0;
    int64_t row = (q->start[0] + h->sample) * k->logical[heads] + k->start[heads];
    row = (row + h->head / h->a.group) * group + first + h->head % h->a.group;
    return ku_ref_keep(h->c, (uint64_t)((row * h->a.n_queries + query) * h->a.n_keys + key));
}

/* s of one query into p[]; returns the log-sum-exp. */
static double scores(const struct head *h, int64_t query, double *p)
{
    double most = (double)-INFINITY, sum = 0;
    for (int64_t key = 0; key < h->a.n_keys; key++) {
        if (!sees(h, query, key))
            continue;
        p[key] = score(h, query, key);
        most = p[key] > most ? p[key] : most;
    }
    for (int64_t key = 0; key < h->a.n_keys; key++)
        sum += sees(h, query, key) ? exp(p[key] - most) : 0;
    return most + log(sum); /* -infinity without keys */
}

static void attend(const struct head *h, int64_t query, double *p)
{
    const struct ku_view *v = &h->c->in[h->a.v.operand];
    double lse = scores(h, query, p);
    ku_ref_put(&h->c->out[1], lse_at(h, query), lse);
    for (int64_t key = 0; key < h->a.n_keys; key++)
        p[key] = sees(h, query, key) ? exp(p[key] - lse) * keep(h, query, key) : 0;
    for (int64_t e = 0; e < h->a.width; e++) {
        double sum = 0;
        for (int64_t key = 0; key < h->a.n_keys; key++)
            if (sees(h, query, key))
                sum += p[key] * ku_ref_get(v, k_at(h, &h->a.v, key) + e);
        ku_ref_put(&h->c->out[0], q_at(h, &h->a.o, query) + e, sum);
    }
}

void ku_ref_attention(const struct ku_call *c, struct ku_ref_poll *poll)
{
    struct head h = head_of(c);
    for (h.sample = 0; h.sample < h.a.n_samples; h.sample++)
        for (h.head = 0; h.head < h.a.n_heads * h.a.group; h.head++)
            for (int64_t query = 0; query < h.a.n_queries; query++) {
                attend(&h, query, c->workspace);
                ku_ref_worked(poll, 2 * h.a.n_keys * h.a.width);
            }
}
void ku_ref_attention_kv(const struct ku_call *c, struct ku_ref_poll *poll)
{
    ku_ref_attention(c, poll);
}

/* p z and ds = p (z do.v - do.o) scale of one head, from the saved o and lse; 0 where masked. */
static void head_matrices(const struct head *h, double *pz, double *ds, struct ku_ref_poll *poll)
{
    const struct ku_attention *a = &h->a;
    for (int64_t query = 0; query < a->n_queries; query++) {
        int64_t d_o = q_at(h, &a->d_o, query);
        double delta = dot(h, &a->d_o, d_o, &a->o, q_at(h, &a->o, query));
        double lse = ku_ref_get(&h->c->in[a->lse], lse_at(h, query));
        for (int64_t key = 0; key < a->n_keys; key++) {
            double *to_p = &pz[query * a->n_keys + key], *to_ds = &ds[query * a->n_keys + key];
            *to_p = *to_ds = 0;
            if (!sees(h, query, key))
                continue;
            double p = exp(score(h, query, key) - lse), z = keep(h, query, key);
            double dp = z * dot(h, &a->d_o, d_o, &a->v, k_at(h, &a->v, key));
            *to_p = p * z;
            *to_ds = p * (dp - delta) * h->scale;
        }
        ku_ref_worked(poll, 2 * a->n_keys * a->width);
    }
}

/* dq[i] = sum_j ds[i,j] k[j] */
static void adjoint_of_queries(const struct head *h, const struct ku_view *dq, const double *ds,
                               struct ku_ref_poll *poll)
{
    const struct ku_view *k = &h->c->in[h->a.k.operand];
    for (int64_t i = 0; i < h->a.n_queries; i++)
        for (int64_t e = 0; e < h->a.width; e++) {
            double sum = 0;
            for (int64_t j = 0; j < h->a.n_keys; j++)
                if (sees(h, i, j))
                    sum += ds[i * h->a.n_keys + j] * ku_ref_get(k, k_at(h, &h->a.k, j) + e);
            ku_ref_put(dq, q_at(h, &h->a.q, i) + e, sum);
            ku_ref_worked(poll, h->a.n_keys);
        }
}

/*
 * For the key head of h->head (its first query head): dk[j] = sum ds[i,j] q[i], dv[j] = sum p
 * z[i,j] do[i], over the queries i of all its query heads.
 */
static void adjoint_of_keys(const struct head *h, const struct ku_view *dk,
                            const struct ku_view *dv, const double *pz, const double *ds,
                            struct ku_ref_poll *poll)
{
    const struct ku_view *q = &h->c->in[h->a.q.operand], *d_o = &h->c->in[h->a.d_o.operand];
    const int64_t n = h->a.n_keys;
    for (int64_t j = 0; j < n; j++)
        for (int64_t e = 0; e < h->a.width; e++) {
            double sum_k = 0, sum_v = 0;
            struct head one = *h;
            for (int64_t row = 0; row < h->a.group * h->a.n_queries; row++) {
                const int64_t i = row % h->a.n_queries;
                one.head = h->head + row / h->a.n_queries;
                if (!sees(&one, i, j))
                    continue;
                sum_k += ds[row * n + j] * ku_ref_get(q, q_at(&one, &h->a.q, i) + e);
                sum_v += pz[row * n + j] * ku_ref_get(d_o, q_at(&one, &h->a.d_o, i) + e);
            }
            ku_ref_put(dk, k_at(h, &h->a.k, j) + e, sum_k);
            ku_ref_put(dv, k_at(h, &h->a.v, j) + e, sum_v);
            ku_ref_worked(poll, 2 * h->a.group * h->a.n_queries);
        }
}

void ku_ref_attention_dx(const struct ku_call *c, struct ku_ref_poll *poll)
{
    struct head h = head_of(c);
    const struct ku_attention *a = &h.a;
    const int64_t count = a->n_queries * a->n_keys; /* of one matrix */
    double *pz = c->workspace, *ds = pz + a->group * count;
    for (h.sample = 0; h.sample < a->n_samples; h.sample++)
        for (int64_t first = 0; first < a->n_heads * a->group; first += a->group) {
            for (int64_t i = 0; i < a->group; i++) {
                h.head = first + i;
                head_matrices(&h, pz + i * count, ds + i * count, poll);
                adjoint_of_queries(&h, &c->out[0], ds + i * count, poll);
            }
            h.head = first;
            adjoint_of_keys(&h, &c->out[c->n_out > 1], &c->out[c->n_out > 1 ? 2 : 0], pz, ds, poll);
        }
}
void ku_ref_attention_kv_dx(const struct ku_call *c, struct ku_ref_poll *poll)
{
    ku_ref_attention_dx(c, poll);
}
