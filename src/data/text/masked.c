/* SPDX-License-Identifier: Apache-2.0 */
#include "data/text/masked.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/math/random.h"

enum { TOKENS, TARGETS, TYPES, LENGTHS, N_PORTS };

struct masked {
    struct ku_data data;
    struct ku_data_port port[N_PORTS];
    struct ku_data *text;
    struct ku_masked_opts opts;
    uint64_t least; /* a token is selected if its 32 random bits are below this */
};

static void masked_destroy(struct ku_data *d)
{
    struct masked *m = (struct masked *)d;
    ku_data_destroy(m->text);
    ku_free(m);
}

/* Uses three random numbers per token: selection, kind of replacement, replacement token. */
static void mask_token(const struct masked *m, enum ku_data_split split, uint64_t index,
                       int32_t *token, int32_t *target)
{
    const uint32_t stream = 0x4d4c4d00u + (uint32_t)split; /* "MLM", split */
    const struct ku_philox w = ku_philox(m->opts.seed, 0, stream, index);
    *target = KU_NO_TARGET;
    if (w.word[0] >= m->least)
        return;
    *target = *token;
    uint64_t tenth = (uint64_t)w.word[1] * 10 >> 32;
    if (tenth < 8)
        *token = (int32_t)m->opts.mask_token;
    else if (tenth == 8)
        *token = (int32_t)((uint64_t)w.word[2] * (uint64_t)m->opts.vocab_count >> 32);
}

static int masked_read(const struct ku_data *d, enum ku_data_split split, int64_t sample,
                       int64_t number, void *const *port)
{
    const struct masked *m = (const struct masked *)d;
    const int64_t n = m->port[TOKENS].dim[0];
    int32_t *token = port[TOKENS], *target = port[TARGETS];
    void *const inner[] = {token, target}; /* the text's own targets are overwritten below */
    KU_TRY(ku_data_read(m->text, split, sample, number, inner));
    const int64_t draw = split == KU_SPLIT_TRAIN ? number : sample;
    for (int64_t i = 0; i < n; i++)
        mask_token(m, split, (uint64_t)draw * (uint64_t)n + (uint64_t)i, &token[i], &target[i]);
    memset(port[TYPES], 0, (size_t)n * sizeof *token);
    *(int32_t *)port[LENGTHS] = (int32_t)n;
    return KUMI_OK;
}

static int masked_verify(const struct ku_data *d, const struct ku_progress *progress)
{
    return ku_data_verify(((const struct masked *)d)->text, progress);
}

static const struct ku_data_ops masked_ops = {
    .kind = "masked text", .destroy = masked_destroy, .read = masked_read, .verify = masked_verify};

int ku_masked_open(struct ku_data *text, const struct ku_masked_opts *o, struct ku_data **out)
{
    struct masked *m = ku_calloc(1, sizeof *m);
    if (m == NULL) {
        ku_data_destroy(text);
        return KUMI_ENOMEM;
    }
    KU_ASSERT(text->n_ports == 2 && strcmp(text->port[0].name, "tokens") == 0 &&
              strcmp(text->port[1].name, "targets") == 0);
    m->data = *text;
    m->data.ops = &masked_ops;
    m->data.port = m->port;
    m->data.n_ports = N_PORTS;
    m->port[TOKENS] = text->port[0];
    m->port[TARGETS] = text->port[1];
    m->port[TYPES] = text->port[0];
    m->port[TYPES].name = "token_type_ids";
    m->port[LENGTHS] = (struct ku_data_port){.name = "lengths", .dtype = KUMI_I32};
    m->text = text;
    m->opts = *o;
    m->least = (uint64_t)ceil(o->probability * 0x1p32);
    *out = &m->data;
    return KUMI_OK;
}

int64_t ku_masked_token(const struct ku_data *d)
{
    return d->ops == &masked_ops ? ((const struct masked *)d)->opts.mask_token : -1;
}
