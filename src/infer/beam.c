/* SPDX-License-Identifier: Apache-2.0 */
#include "infer/beam.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

/* A continuation: the hypothesis of a row followed by a token. */
struct candidate {
    double sum;
    int64_t row;
    uint32_t token;
};

struct search {
    const struct ku_beam_opts *o;
    const struct ku_beam_model *m;
    int64_t k, n_rows, longest;
    double *log_p;          /* [n_rows][vocab_size] */
    double *sum;            /* [n_rows]: log-probability of open hypotheses; -inf: none */
    uint32_t *text, *other; /* [n_rows][longest]; `other` receives the next step's */
    uint32_t *token;        /* [n_rows]: newest tokens */
    int64_t *parent;        /* [n_rows] */
    unsigned char *is_done; /* [n_rows] */
    struct candidate *best; /* [2 k], a heap with the worst first; ranked at the end of a step */
    int64_t n_best;
    /* Results: k per sentence, best first. */
    struct ku_beam_text *ended;
    uint32_t *ended_token; /* [n_sentences * k + 1][longest]; the last is spare */
};

static double penalty(const struct ku_beam_opts *o, int64_t n)
{
    return pow((5 + (double)n) / 6, o->alpha);
}

static bool is_before(const struct candidate *a, const struct candidate *b)
{
    if (a->sum != b->sum)
        return a->sum > b->sum;
    return a->row != b->row ? a->row < b->row : a->token < b->token;
}

/* Sifts entry i down in a heap of n candidates; the top is the worst. */
static void sink(struct candidate *heap, int64_t n, int64_t i)
{
    const struct candidate x = heap[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_before(&heap[child], &heap[child + 1]))
            child++;
        if (!is_before(&x, &heap[child]))
            break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

static void offer(struct search *s, const struct candidate *c)
{
    const int64_t most = 2 * s->k;
    if (s->n_best < most) {
        s->best[s->n_best++] = *c;
        for (int64_t i = s->n_best / 2; s->n_best == most && i-- > 0;)
            sink(s->best, most, i);
    } else if (is_before(c, &s->best[0])) {
        s->best[0] = *c;
        sink(s->best, most, 0);
    }
}

/* Sorts the candidates, best first. */
static void rank(struct search *s)
{
    for (int64_t i = s->n_best / 2; i-- > 0;)
        sink(s->best, s->n_best, i);
    for (int64_t n = s->n_best; n > 1; n--) {
        struct candidate worst = s->best[0];
        s->best[0] = s->best[n - 1];
        s->best[n - 1] = worst;
        sink(s->best, n - 1, 0);
    }
}

static int find_best(struct search *s, int64_t sentence)
{
    const int64_t vocab = s->o->vocab_size;
    s->n_best = 0;
    for (int64_t row = sentence * s->k; row < (sentence + 1) * s->k; row++) {
        if (!(s->sum[row] > -HUGE_VAL))
            continue;
        for (int64_t v = 0; v < vocab; v++) {
            const double p = s->log_p[row * vocab + v];
            if (!(p <= 0))
                return KU_ERR(KUMI_ENUMERIC,
                              "beam: the log-probability of token %lld is %g; the model's weights "
                              "are not finite, or too large",
                              (long long)v, p);
            const struct candidate c = {s->sum[row] + p, row, (uint32_t)v};
            if (c.sum > -HUGE_VAL)
                offer(s, &c);
        }
    }
    rank(s);
    return KUMI_OK;
}

/* Adds a hypothesis of n tokens to the results if it is among the best k. */
static void keep(struct search *s, int64_t sentence, const uint32_t *token, int64_t n, double sum,
                 int has_end)
{
    struct ku_beam_text *ended = &s->ended[sentence * s->k], spare = ended[s->k - 1];
    struct ku_beam_text x = {
        .n = n, .log_p = sum, .score = sum / penalty(s->o, n), .has_end = has_end};
    int64_t at = s->k;
    for (; at > 0; at--) {
        const struct ku_beam_text *y = &ended[at - 1];
        if (y->n > 0 && (y->has_end != has_end ? y->has_end : y->score >= x.score))
            break;
    }
    if (at == s->k)
        return;
    memmove(&ended[at + 1], &ended[at], (size_t)(s->k - 1 - at) * sizeof *ended);
    x.token = spare.token;
    ended[at] = x;
    memcpy(s->ended_token + (x.token - s->ended_token), token, (size_t)n * sizeof *token);
}

/* Turns the ranked candidates into results (end token) and open hypotheses of `length` tokens. */
static void branch(struct search *s, int64_t sentence, int64_t length)
{
    int64_t row = sentence * s->k;
    const int64_t end = row + s->k;
    for (int64_t i = 0; i < s->n_best; i++) {
        const struct candidate *c = &s->best[i];
        const uint32_t *old = s->text + c->row * s->longest;
        uint32_t *text = s->other + (c->token == s->o->end ? s->n_rows : row) * s->longest;
        if (c->token == s->o->end ? i >= s->k : row == end)
            continue;
        memcpy(text, old, (size_t)(length - 1) * sizeof *text);
        text[length - 1] = c->token;
        if (c->token == s->o->end) {
            keep(s, sentence, text, length, c->sum, 1);
            continue;
        }
        s->parent[row] = c->row;
        s->token[row] = c->token;
        s->sum[row++] = c->sum;
    }
    for (; row < end; row++) {
        s->parent[row] = row;
        s->sum[row] = -HUGE_VAL;
    }
}

static bool is_settled(const struct search *s, int64_t sentence)
{
    const struct ku_beam_text *ended = &s->ended[sentence * s->k];
    const double most = s->sum[sentence * s->k]; /* open hypotheses are sorted, best first */
    if (!(most > -HUGE_VAL))
        return 1;
    if (s->k == 1)
        return ended->n > 0;
    return ended[s->k - 1].n > 0 &&
           most / penalty(s->o, s->o->max_tokens[sentence]) <= ended[s->k - 1].score;
}

/* Open hypotheses at the length limit become results without an end. */
static void close_open(struct search *s, int64_t sentence, int64_t length)
{
    for (int64_t row = sentence * s->k; row < (sentence + 1) * s->k; row++)
        if (s->sum[row] > -HUGE_VAL)
            keep(s, sentence, s->other + row * s->longest, length, s->sum[row], 0);
}

static int advance(struct search *s, int64_t sentence, int64_t length)
{
    unsigned char *is_done = s->is_done + sentence * s->k;
    if (*is_done) {
        for (int64_t row = sentence * s->k; row < (sentence + 1) * s->k; row++)
            s->parent[row] = row;
        return KUMI_OK;
    }
    KU_TRY(find_best(s, sentence));
    branch(s, sentence, length);
    int is_settled_now = is_settled(s, sentence);
    if (!is_settled_now && length == s->o->max_tokens[sentence]) {
        close_open(s, sentence, length);
        is_settled_now = 1;
    }
    memset(is_done, is_settled_now, (size_t)s->k);
    return KUMI_OK;
}

static int run(struct search *s)
{
    const struct ku_beam_opts *o = s->o;
    for (int64_t row = 0; row < s->n_rows; row++) {
        s->token[row] = o->first;
        s->sum[row] = row % s->k ? -HUGE_VAL : 0;
    }
    for (int64_t length = 1;; length++) {
        int64_t n_open = 0;
        KU_TRY(s->m->step(s->m->ctx, s->token, s->is_done, s->log_p));
        for (int64_t i = 0; i < o->n_sentences; i++) {
            KU_TRY(advance(s, i, length));
            n_open += !s->is_done[i * s->k];
        }
        if (n_open == 0)
            return KUMI_OK;
        uint32_t *text = s->text;
        s->text = s->other;
        s->other = text;
        if (s->m->select && s->k > 1)
            KU_TRY(s->m->select(s->m->ctx, s->parent));
    }
}

static int check(const struct ku_beam_opts *o)
{
    if (o->n_sentences < 0 || o->vocab_size < 1 || o->beam_size < 1)
        return KU_ERR(
            KUMI_EINVAL,
            "beam: %lld sentences, vocabulary %lld, beam size %lld; give 1 or more of each",
            (long long)o->n_sentences, (long long)o->vocab_size, (long long)o->beam_size);
    if (o->n_best < 0 || o->n_best > o->beam_size)
        return KU_ERR(KUMI_EINVAL, "beam: n-best: %lld; give 1 to the beam size, %lld",
                      (long long)o->n_best, (long long)o->beam_size);
    if (!(o->alpha >= 0 && isfinite(o->alpha)))
        return KU_ERR(KUMI_EINVAL, "beam: length penalty: %g; give 0 or more", o->alpha);
    for (int64_t i = 0; i < o->n_sentences; i++)
        if (o->max_tokens[i] < 1)
            return KU_ERR(KUMI_EINVAL,
                          "beam: sentence %lld: max length %lld tokens; give 1 or more",
                          (long long)i, (long long)o->max_tokens[i]);
    return KUMI_OK;
}

static int allocate(struct search *s)
{
    const struct ku_beam_opts *o = s->o;
    size_t rows, logits, tokens;
    for (int64_t i = 0; i < o->n_sentences; i++)
        if (o->max_tokens[i] > s->longest)
            s->longest = o->max_tokens[i];
    KU_TRY(ku_mul_size((size_t)o->n_sentences, (size_t)s->k, &rows));
    KU_TRY(ku_mul_size(rows + 1, (size_t)o->vocab_size * sizeof(double), &logits));
    KU_TRY(ku_mul_size(rows + 1, (size_t)s->longest * sizeof(uint32_t), &tokens));
    s->n_rows = (int64_t)rows;
    s->log_p = ku_malloc(logits);
    s->sum = ku_calloc(rows + 1, sizeof *s->sum);
    s->text = ku_malloc(tokens + 1);
    s->other = ku_malloc(tokens + 1); /* one more row, for those that end */
    s->token = ku_calloc(rows + 1, sizeof *s->token);
    s->parent = ku_calloc(rows + 1, sizeof *s->parent);
    s->is_done = ku_calloc(rows + 1, 1);
    s->best = ku_calloc((size_t)s->k, 2 * sizeof *s->best);
    s->ended = ku_calloc(rows + 1, sizeof *s->ended);
    s->ended_token = ku_malloc(tokens + 1);
    if (!s->log_p || !s->sum || !s->text || !s->other || !s->token || !s->parent || !s->is_done ||
        !s->best || !s->ended || !s->ended_token)
        return KUMI_ENOMEM;
    for (int64_t row = 0; row < s->n_rows; row++)
        s->ended[row].token = s->ended_token + row * s->longest;
    return KUMI_OK;
}

/* Compacts the results to the first n_best of each sentence. */
static void hand_over(struct search *s, struct ku_beam_results *out)
{
    const int64_t n_best = s->o->n_best ? s->o->n_best : 1;
    for (int64_t i = 0; i < s->o->n_sentences; i++)
        memmove(&s->ended[i * n_best], &s->ended[i * s->k], (size_t)n_best * sizeof *s->ended);
    *out = (struct ku_beam_results){s->ended, s->ended_token};
    s->ended = NULL;
    s->ended_token = NULL;
}

int ku_beam_search(const struct ku_beam_opts *o, const struct ku_beam_model *m,
                   struct ku_beam_results *out)
{
    struct search s = {.o = o, .m = m, .k = o->beam_size};
    *out = (struct ku_beam_results){0};
    KU_TRY(check(o));
    int status = allocate(&s);
    if (status == KUMI_OK && o->n_sentences > 0)
        status = run(&s);
    if (status == KUMI_OK)
        hand_over(&s, out);
    ku_free(s.log_p);
    ku_free(s.sum);
    ku_free(s.text);
    ku_free(s.other);
    ku_free(s.token);
    ku_free(s.parent);
    ku_free(s.is_done);
    ku_free(s.best);
    ku_free(s.ended);
    ku_free(s.ended_token);
    return status;
}

void ku_beam_fini(struct ku_beam_results *r)
{
    ku_free(r->text);
    ku_free(r->token);
    *r = (struct ku_beam_results){0};
}
