/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The push and pull spaces of a parameter server. Both sides make them from their own graph: the
 * cut gives ports of equal names in equal order (pass/update/split_remote.c), and the tensors of
 * the model precede what the update adds. Chunks are partitioned over the servers as by pass zero.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "ir/graph.h"
#include "tensor/blocks.h"
#include "tensor/dtype.h"
#include "train/remote_update.h"

enum { ALIGN_BYTES = 64 };

int64_t ku_remote_topk(const struct ku_remote_entry *x, int64_t n)
{
    const int64_t k = (int64_t)ceil(x->topk < 1 ? x->topk * (double)n : x->topk);
    return k < n ? k : n;
}

size_t ku_remote_record_bytes(const struct ku_remote_entry *x, int64_t n)
{
    const size_t bytes = x->form == KU_REMOTE_TOPK ? (size_t)ku_remote_topk(x, n) * (4 + 2)
                                                   : sizeof(float) + (size_t)n;
    return (bytes + 3) & ~(size_t)3;
}

size_t ku_remote_wire_bytes(const struct ku_remote_entry *x, int64_t count)
{
    const int64_t whole = count / KU_BLOCK_COUNT, rest = count % KU_BLOCK_COUNT;
    if (x->form == KU_REMOTE_DENSE)
        return (size_t)count * kumi_dtype_bytes(x->wire);
    return (size_t)whole * ku_remote_record_bytes(x, KU_BLOCK_COUNT) +
           (rest ? ku_remote_record_bytes(x, rest) : 0);
}

static size_t padded(size_t bytes)
{
    return (bytes + ALIGN_BYTES - 1) & ~(size_t)(ALIGN_BYTES - 1);
}

static void range_of(const struct ku_remote_layout *l, const struct ku_remote_entry *x, int server,
                     struct ku_remote_part *part)
{
    part->begin = 0, part->end = x->count;
    if (x->is_split)
        ku_blocks_range(x->count, KU_BLOCK_COUNT, x->first_block, l->n_servers, server,
                        &part->begin, &part->end);
}

struct ku_remote_part ku_remote_part_of(const struct ku_remote_layout *l, bool is_push, uint32_t n,
                                        int server)
{
    const struct ku_remote_entry *entry = is_push ? l->push : l->pull;
    struct ku_remote_part part = {0};
    size_t at = 0;
    KU_ASSERT(n < (is_push ? l->n_push : l->n_pull) && server >= 0 && server < l->n_servers);
    for (uint32_t i = 0; i <= n; i++) {
        range_of(l, &entry[i], server, &part);
        part.offset = at;
        const size_t bytes = ku_remote_wire_bytes(&entry[i], part.end - part.begin);
        at += padded(bytes);
    }
    return part;
}

uint32_t ku_remote_part_at(const struct ku_remote_part *part, uint32_t n, size_t offset)
{
    uint32_t low = 0, high = n;
    while (low < high) { /* parts before low begin at offset or before */
        const uint32_t mid = low + (high - low) / 2;
        if (part[mid].offset <= offset)
            low = mid + 1;
        else
            high = mid;
    }
    return low ? low - 1 : 0;
}

/* Bytes of a space, and of its parts alone. */
static size_t space_of(const struct ku_remote_layout *l, bool is_push, int server, size_t *payload)
{
    const uint32_t n = is_push ? l->n_push : l->n_pull;
    const struct ku_remote_entry *entry = is_push ? l->push : l->pull;
    size_t total = 0;
    *payload = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct ku_remote_part part;
        range_of(l, &entry[i], server, &part);
        const size_t bytes = ku_remote_wire_bytes(&entry[i], part.end - part.begin);
        *payload += bytes;
        total += padded(bytes);
    }
    return total;
}

size_t ku_remote_tracked_bytes(const struct ku_remote_layout *l, int server)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < l->n_pull; i++) {
        struct ku_remote_part part;
        range_of(l, &l->pull[i], server, &part);
        const size_t each = ku_remote_wire_bytes(&l->pull[i], part.end - part.begin);
        if (l->pull[i].may_rest && each)
            bytes += each + (each / KU_REMOTE_GRAIN_BYTES + 1) * sizeof(int64_t);
    }
    return bytes ? bytes + KU_REMOTE_COMPARED_BYTES : 0;
}

int ku_remote_extents(const struct ku_remote_layout *l, int server,
                      struct ku_remote_extent **extent, uint32_t *n)
{
    struct ku_remote_extent *x = ku_calloc(l->n_push + 1, sizeof *x);
    size_t at = 0;
    if (x == NULL)
        return KUMI_ENOMEM;
    *n = 0;
    for (uint32_t i = 0; i < l->n_push; i++) {
        struct ku_remote_part part;
        range_of(l, &l->push[i], server, &part);
        const size_t bytes = ku_remote_wire_bytes(&l->push[i], part.end - part.begin);
        if (bytes && *n && x[*n - 1].end == at)
            x[*n - 1].end += bytes;
        else if (bytes)
            x[(*n)++] = (struct ku_remote_extent){at, at + bytes};
        at += padded(bytes);
    }
    *extent = x;
    return KUMI_OK;
}

size_t ku_remote_bytes_in(const struct ku_remote_extent *extent, uint32_t n, size_t begin,
                          size_t end)
{
    uint32_t low = 0, high = n;
    size_t bytes = 0;
    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;
        if (extent[mid].end <= begin)
            low = mid + 1;
        else
            high = mid;
    }
    for (; low < n && extent[low].begin < end; low++) {
        const size_t from = extent[low].begin > begin ? extent[low].begin : begin;
        const size_t to = extent[low].end < end ? extent[low].end : end;
        bytes += to - from;
    }
    return bytes;
}

/* Per tensor the server that owns the first odd chunk, as pass zero sets first_block. */
static int32_t *deal(const struct ku_graph *g, int n_servers)
{
    int32_t *first = ku_calloc(g->n_tensors, sizeof *first);
    int64_t next = 0;
    for (ku_id t = 1; t < g->n_tensors && first; t++) {
        const struct ku_tensor *x = &g->tensor[t];
        if (x->kind == KU_T_COUNTER || x->of)
            continue;
        const int64_t count = ku_shape_count(&g->shape[x->shape]);
        first[t] = (int32_t)next;
        next = (next + (count + KU_BLOCK_COUNT - 1) / KU_BLOCK_COUNT) % n_servers;
    }
    return first;
}

/* Compression takes f32 as it is, and a residual in one scale. */
static int check_compressed(const struct ku_graph *g, const struct ku_remote_entry *x)
{
    if (x->dtype != KUMI_F32 || x->wire != KUMI_F32)
        return KU_ERR(KUMI_EINVAL,
                      "ps.compression: %s is %s, and %s on the way; compression takes f32: set "
                      "precision.grads and precision.reduce to f32",
                      x->name, kumi_dtype_name(x->dtype), kumi_dtype_name(x->wire));
    for (ku_id t = 1; t < g->n_tensors; t++)
        if (g->tensor[t].kind == KU_T_COUNTER && g->tensor[t].dtype == KUMI_F64)
            return KU_ERR(KUMI_EINVAL,
                          "ps.compression: the loss scale %s changes between steps, and with it "
                          "the scale of the error feedback; set precision.compute to bf16",
                          g->tensor[t].name);
    return KUMI_OK;
}

/* ku_remote_entry.zero_count of a worker's gradient. */
static int64_t zero_count(const struct ku_graph *g, ku_id value, int n_workers)
{
    const struct ku_node *n = &g->node[g->value[value].def];
    while (n->op == KU_OP_convert || n->op == KU_OP_cast)
        n = &g->node[g->value[ku_in(g, n, 0)].def];
    if (n->op != KU_OP_embedding_dw)
        return 0;
    const struct ku_shape *table = &g->shape[g->value[value].shape];
    const int64_t rows = table->dim[0].count;
    const int64_t tokens = ku_shape_count(&g->shape[g->value[ku_in(g, n, 0)].shape]) / n_workers;
    return tokens < rows ? (rows - tokens) * (ku_shape_count(table) / rows) : 0;
}

static int add_pushed(struct ku_remote_layout *l, const struct ku_graph *g,
                      const struct ku_remote_opts *o, const struct ku_port *port,
                      const int32_t *first)
{
    const struct ku_value *v = &g->value[port->value];
    struct ku_remote_entry *x = &l->push[l->n_push++];
    *x = (struct ku_remote_entry){.dtype = (enum kumi_dtype)v->dtype,
                                  .wire = (enum kumi_dtype)port->pushed.wire,
                                  .reduce =
                                      port->pushed.reduce == KU_REDUCE_MAX ? KUMI_MAX : KUMI_SUM,
                                  .is_split = port->pushed.tensor != 0,
                                  .count = ku_shape_count(&g->shape[v->shape]),
                                  .zero_count = zero_count(g, port->value, l->n_workers),
                                  .first_block = first[port->pushed.tensor]};
    snprintf(x->name, sizeof x->name, "%s", port->name);
    if (!x->is_split || x->count < KU_BLOCK_COUNT || o->compression == KU_REMOTE_DENSE)
        return KUMI_OK;
    x->form = (enum ku_remote_form)o->compression;
    x->topk = o->topk;
    return check_compressed(g, x);
}

/* Whether a worker reads this tensor: the model's, and the loss scale. */
static bool is_pulled(const struct ku_tensor *x)
{
    return ku_tensor_is_model(x) || (x->kind == KU_T_COUNTER && x->dtype == KUMI_F64);
}

/*
 * Whether an update may leave elements of a tensor as they are: it is frozen, or its optimizer does
 * so where the gradient is 0.
 */
static bool may_rest(const struct ku_graph *g, const struct ku_tensor *x)
{
    const struct ku_node *n = &g->node[g->value[x->next].def];
    const struct ku_attrs *a = &g->attr[n->attr];
    if (x->kind != KU_T_PARAM)
        return false;
    return x->next == x->value ||
           ((ku_ops[n->op].traits & KU_OP_RESTS) && a->momentum == 0 && a->weight_decay == 0);
}

static void add_pulled(struct ku_remote_layout *l, const struct ku_graph *g, ku_id t,
                       const int32_t *first)
{
    const struct ku_tensor *y = &g->tensor[t];
    struct ku_remote_entry *x = &l->pull[l->n_pull++];
    *x = (struct ku_remote_entry){.dtype = (enum kumi_dtype)y->dtype,
                                  .wire = (enum kumi_dtype)y->dtype,
                                  .is_split = y->kind == KU_T_PARAM,
                                  .may_rest = may_rest(g, y),
                                  .count = ku_shape_count(&g->shape[y->shape]),
                                  .first_block = first[t]};
    snprintf(x->name, sizeof x->name, "%s", y->name);
}

static uint64_t hash_entries(uint64_t h, const struct ku_remote_entry *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t word[] = {ku_hash64(x[i].name, strlen(x[i].name)),
                                 (uint64_t)x[i].dtype,
                                 (uint64_t)x[i].wire,
                                 (uint64_t)x[i].reduce,
                                 x[i].is_split,
                                 (uint64_t)x[i].count,
                                 (uint64_t)x[i].first_block,
                                 (uint64_t)x[i].form,
                                 x[i].form ? ku_remote_record_bytes(&x[i], KU_BLOCK_COUNT) : 0};
        h = ku_hash64_mix(h, ku_hash64(word, sizeof word));
    }
    return ku_hash64_mix(h, n);
}

static int allocate(struct ku_remote_layout *l, const struct ku_graph *g)
{
    l->push = ku_calloc(g->n_inputs + g->n_outputs + 1, sizeof *l->push);
    l->pull = ku_calloc(g->n_tensors + 1, sizeof *l->pull);
    return l->push && l->pull ? KUMI_OK : KUMI_ENOMEM;
}

int ku_remote_layout_create(const struct ku_graph *g, const struct ku_compile_opts *o,
                            struct ku_remote_layout **out)
{
    const int n_workers = ku_mesh_dp(&o->mesh), n_servers = o->remote.n_servers;
    const bool is_worker = o->remote.update_by == KU_UPDATE_WORKER;
    if (n_servers < 1 || n_servers > KU_REMOTE_MAX_SERVERS || n_workers > KU_REMOTE_MAX_WORKERS)
        return KU_ERR(KUMI_EINVAL, "ps: %d workers and %d servers; at most %d and %d", n_workers,
                      n_servers, KU_REMOTE_MAX_WORKERS, KU_REMOTE_MAX_SERVERS);
    struct ku_remote_layout *l = ku_calloc(1, sizeof *l);
    int32_t *first = deal(g, n_servers);
    if (l == NULL || first == NULL || allocate(l, g) < 0) {
        ku_remote_layout_destroy(l);
        ku_free(first);
        return KUMI_ENOMEM;
    }
    l->n_workers = n_workers, l->n_servers = n_servers;
    l->is_single = o->remote.is_single != 0;
    const uint32_t n_ports = is_worker ? g->n_outputs : g->n_inputs;
    int status = KUMI_OK;
    for (uint32_t i = 0; i < n_ports && status == KUMI_OK; i++) {
        const struct ku_port *port = is_worker ? &g->output[i] : &g->input[i];
        if (port->pushed.is_pushed)
            status = add_pushed(l, g, &o->remote, port, first);
    }
    if (status < 0) {
        ku_remote_layout_destroy(l);
        ku_free(first);
        return status;
    }
    for (ku_id t = 1; t < g->n_tensors; t++)
        if (is_pulled(&g->tensor[t])) {
            KU_ASSERT(is_worker || g->tensor[t].kind != KU_T_PARAM ||
                      first[t] == g->tensor[t].first_block);
            add_pulled(l, g, t, first);
        }
    l->pull[l->n_pull] = (struct ku_remote_entry){
        .name = "report", .dtype = KUMI_F64, .wire = KUMI_F64, .count = KU_REPORT_WORDS};
    l->n_pull++;
    uint64_t h = ku_hash64_mix((uint64_t)n_workers, (uint64_t)n_servers);
    h = hash_entries(hash_entries(h, l->push, l->n_push), l->pull, l->n_pull);
    l->checksum = ku_hash64_mix(h, (uint64_t)o->remote.is_single);
    for (int s = 0; s < n_servers; s++) {
        size_t ignored;
        l->push_bytes[s] = space_of(l, true, s, &l->push_payload[s]);
        l->pull_bytes[s] = space_of(l, false, s, &ignored);
    }
    ku_free(first);
    *out = l;
    return KUMI_OK;
}

void ku_remote_layout_destroy(struct ku_remote_layout *l)
{
    if (l == NULL)
        return;
    ku_free(l->push);
    ku_free(l->pull);
    ku_free(l);
}
