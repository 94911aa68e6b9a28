/* SPDX-License-Identifier: Apache-2.0 */
#include "batch/batch_source.h"

#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "data/image/image.h"

const struct ku_batch_source_ops *ku_batch_source_of(const struct ku_config *c,
                                                     const struct ku_model *m)
{
    return m->properties.is_pairs                           ? &ku_parallel_batches
           : c->data_kind && ku_image_is_kind(c->data_kind) ? &ku_image_batches
                                                            : &ku_text_batches;
}

int ku_batch_source_create(const struct ku_config *c, struct ku_model *m, const struct ku_batch *b,
                           int64_t seq_len, struct ku_batch_source **out)
{
    const struct ku_batch_source_ops *ops = ku_batch_source_of(c, m);
    struct ku_batch_source *s = ku_calloc(1, ops->bytes);
    if (s == NULL)
        return KUMI_ENOMEM;
    *s = (struct ku_batch_source){.ops = ops, .cfg = c, .model = m, .batch = b, .seq_len = seq_len};
    *out = s;
    return KUMI_OK;
}

void ku_batch_source_destroy(struct ku_batch_source *s)
{
    if (s == NULL)
        return;
    s->ops->close(s);
    ku_free(s);
}

int ku_batch_source_open(struct ku_batch_source *s, const struct ku_progress *progress)
{
    if (progress)
        s->progress = *progress;
    KU_TRY(s->ops->open_data(s));
    return s->ops->open(s);
}

size_t ku_batch_row_bytes(const struct ku_data_port *port, const struct ku_batch_shape *shape)
{
    const size_t bytes = ku_data_row_bytes(port);
    const int64_t len = port->length == KU_LENGTH_SRC ? shape->src_len : shape->tgt_len;
    return port->length == KU_LENGTH_FIXED || port->ndim == 0
               ? bytes
               : bytes / (size_t)port->dim[0] * (size_t)len;
}

bool ku_batch_is_in_tokens(const struct ku_config *c, const struct ku_model *m)
{
    return m->properties.is_pairs && c->data_batch_tokens != KU_NULL;
}

bool ku_batch_is_by_samples(const struct ku_batch_source *s)
{
    return s->data->item == NULL;
}

int ku_batch_check_length(const struct ku_config *c, const struct ku_model *m, const char *key,
                          int64_t value, int64_t more)
{
    char wanted[96];
    if (value + more <= m->properties.max_positions)
        return KUMI_OK;
    snprintf(wanted, sizeof wanted, "%sit exceeds the model's %s", more ? "with <s> " : "",
             m->properties.positions_key);
    return ku_config_refuse_int(c, key, value, wanted);
}
