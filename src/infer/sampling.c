/* SPDX-License-Identifier: Apache-2.0 */
#include "infer/sampling.h"

#include <math.h>
#include <stdbool.h>

#include "base/err.h"
#include "base/math/random.h"

enum { STREAM = 0x73616d70 /* "samp" */ };

/* Order by descending logit, then ascending id. */
static bool is_before(const struct ku_token_logit *x, const struct ku_token_logit *y)
{
    return x->logit != y->logit ? x->logit > y->logit : x->id < y->id;
}

/*
 * Sifts down in a heap with the best entry first. Few entries are taken, so a heap is cheaper than
 * sorting.
 */
static void sink(struct ku_token_logit *heap, int64_t n, int64_t i)
{
    const struct ku_token_logit x = heap[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_before(&heap[child + 1], &heap[child]))
            child++;
        if (!is_before(&heap[child], &x))
            break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

/*
 * The last token in rank order that may be drawn. top_p is relative to the tokens that top_k
 * leaves.
 */
static struct ku_token_logit last_of(const struct ku_sampling *p, const double *logit, int64_t n,
                                     double most)
{
    const int64_t k = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    const int is_nucleus = p->top_p > 0 && p->top_p < 1;
    struct ku_token_logit last = {-HUGE_VAL, UINT32_MAX}, *heap = p->order;
    double total = 0, sum = 0;
    if (k == n && !is_nucleus)
        return last;
    for (int64_t v = 0; v < n; v++)
        heap[v] = (struct ku_token_logit){logit[v], (uint32_t)v};
    for (int64_t v = n / 2; v-- > 0;)
        sink(heap, n, v);
    for (int64_t v = 0; v < n && k == n; v++)
        total += exp((logit[v] - most) / p->temperature);
    /* The first k move to the end of the array, best last. */
    int64_t taken = 0;
    while (taken < k && !(is_nucleus && k == n && sum >= p->top_p * total)) {
        last = heap[0];
        heap[0] = heap[n - 1 - taken];
        heap[n - 1 - taken] = last;
        taken++;
        sink(heap, n - taken, 0);
        sum += exp((last.logit - most) / p->temperature);
    }
    if (!is_nucleus || k == n)
        return last;
    total = sum;
    sum = 0;
    for (int64_t i = 0; i < taken; i++) {
        last = heap[n - 1 - i];
        sum += exp((last.logit - most) / p->temperature);
        if (sum >= p->top_p * total)
            break;
    }
    return last;
}

int ku_sampling_draw(const struct ku_sampling *p, double *logit, int64_t n, uint64_t seed,
                     int64_t number, uint32_t *id)
{
    double total = 0, sum = 0;
    struct ku_token_logit first = {-HUGE_VAL, 0};
    for (int64_t v = 0; v < n; v++) {
        if (!(logit[v] < HUGE_VAL))
            return KU_ERR(KUMI_ENUMERIC,
                          "sample: the logit of token %lld is %g; the model's weights are not "
                          "finite, or too large",
                          (long long)v, logit[v]);
        if (logit[v] > first.logit)
            first = (struct ku_token_logit){logit[v], (uint32_t)v};
    }
    *id = first.id;
    if (p->temperature == 0 || !(first.logit > -HUGE_VAL))
        return KUMI_OK;
    const struct ku_token_logit last = last_of(p, logit, n, first.logit);
    for (int64_t v = 0; v < n; v++) { /* logit[] holds weights from here on */
        const struct ku_token_logit r = {logit[v], (uint32_t)v};
        logit[v] = is_before(&last, &r) ? 0 : exp((r.logit - first.logit) / p->temperature);
        total += logit[v];
    }
    struct ku_philox random = ku_philox(seed, 0, STREAM, (uint64_t)number);
    double u = ((double)(random.word[0] >> 5) * 0x1p26 + (double)(random.word[1] >> 6)) * 0x1p-53;
    for (int64_t v = 0; v < n; v++) {
        sum += logit[v];
        if (sum > u * total) {
            *id = (uint32_t)v;
            return KUMI_OK;
        }
    }
    return KUMI_OK; /* u * total was rounded up to total */
}
