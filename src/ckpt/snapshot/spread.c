/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank writes which chunk, and what it needs from other hosts. All ranks go over all chunks
 * and find the same writers; each lists the messages of its own. A message consists of runs: bytes
 * of one piece with one owner. Runs that this rank receives stay until they are written:
 *
 *     piece     |              b              |  c  |
 *     runs      |   here   |  1  |     2      |  2  |      messages: 1, and 2 with two runs
 */
#include "ckpt/snapshot/spread.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "ckpt/snapshot/writer.h"

struct list { /* of runs of a chunk, while it is planned */
    struct ku_ckpt_run *run;
    int64_t n, cap;
};

static int grow(void **list, int64_t n, int64_t *cap, size_t each)
{
    if (n < *cap)
        return KUMI_OK;
    const int64_t more = *cap ? 2 * *cap : 64;
    void *p = ku_realloc(*list, (size_t)more, each);
    if (p == NULL)
        return KUMI_ENOMEM;
    *list = p;
    *cap = more;
    return KUMI_OK;
}

static const struct ku_ckpt_tensor *tensor_of(const struct ku_ckpt_out_file *f,
                                              const struct ku_piece *p)
{
    const struct ku_ckpt_tensor *t = p->part > 0 ? f->tensor[p->part - 1] : NULL;
    return t && t->owner.n_owners ? t : NULL;
}

/* Element of the tensor at a byte of the file. */
static int64_t element_at(const struct ku_ckpt_out_file *f, const struct ku_piece *p, uint64_t at)
{
    const size_t each = kumi_dtype_bytes(f->tensor[p->part - 1]->dtype);
    return (int64_t)((at - f->end[p->part - 1]) / each);
}

static int writer_of(const struct ku_ckpt_world *o, const struct ku_ckpt_out_file *f,
                     uint64_t chunk, uint64_t n_chunks, const struct ku_piece *p, int64_t n)
{
    int64_t end;
    for (int64_t i = 0; i < n; i++) {
        const struct ku_ckpt_tensor *t = tensor_of(f, &p[i]);
        if (t == NULL)
            continue;
        const int near = ku_ckpt_tensor_copy(t, (int64_t)chunk);
        return ku_ckpt_tensor_owner(t, element_at(f, &p[i], p[i].at), near, &end);
    }
    return (int)(chunk * (uint64_t)o->n_ranks / n_chunks);
}

static int compare_runs(const void *x, const void *y)
{
    const struct ku_ckpt_run *a = x, *b = y;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* Appends the runs of a piece that another host than the writer's has. */
static int list_runs(const struct ku_ckpt_world *o, const struct ku_ckpt_out_file *f, int file,
                     const struct ku_piece *p, int writer, struct list *list)
{
    const struct ku_ckpt_tensor *t = tensor_of(f, p);
    if (t == NULL)
        return KUMI_OK;
    const int64_t each = (int64_t)kumi_dtype_bytes(t->dtype), first = element_at(f, p, p->at);
    const int64_t end = first + (int64_t)p->bytes / each;
    const int host = o->host_of(o->ctx, writer);
    for (int64_t at = first, to; at < end; at = to) {
        const int rank = ku_ckpt_tensor_owner(t, at, writer, &to);
        to = to < end ? to : end;
        if (o->host_of(o->ctx, rank) == host)
            continue;
        KU_TRY(grow((void **)&list->run, list->n, &list->cap, sizeof *list->run));
        list->run[list->n++] = (struct ku_ckpt_run){.file = file,
                                                    .rank = rank,
                                                    .part = p->part,
                                                    .at = p->at + (uint64_t)((at - first) * each),
                                                    .bytes = (uint32_t)((to - at) * each)};
    }
    return KUMI_OK;
}

/* Lists what the chunk of pieces p[n] has of other hosts than its writer's. */
static int list_chunk(const struct ku_ckpt_world *o, const struct ku_ckpt_out_file *f, int file,
                      const struct ku_piece *p, int64_t n, int writer, struct list *list)
{
    list->n = 0;
    for (int64_t i = 0; i < n; i++)
        KU_TRY(list_runs(o, f, file, &p[i], writer, list));
    return KUMI_OK;
}

/* The end of the pieces of chunk c, which begin at i */
static int64_t chunk_end(const struct ku_ckpt_out_file *f, uint64_t c, int64_t i)
{
    while (i < f->n_pieces && f->piece[i].at < (c + 1) * KU_CHUNK_BYTES)
        i++;
    return i;
}

/* The caps of arrays that grow. */
struct caps {
    int64_t chunks, messages, runs;
};

/* Adds the messages of a chunk that this rank sends or receives. */
static int add_messages(struct ku_ckpt_spread *s, struct caps *cap, struct list *list, int writer)
{
    const int me = s->world.rank;
    if (list->n > 1)
        qsort(list->run, (size_t)list->n, sizeof *list->run, compare_runs);
    for (int64_t i = 0, end; i < list->n; i = end) {
        const int from = list->run[i].rank;
        struct ku_ckpt_message m = {
            .peer = writer == me ? from : writer, .is_sent = writer != me, .run = s->n_runs};
        for (end = i; end < list->n && list->run[end].rank == from; end++) {
            if (writer != me && from != me)
                continue;
            m.bytes += list->run[end].bytes;
            KU_TRY(grow((void **)&s->run, s->n_runs, &cap->runs, sizeof *s->run));
            s->run[s->n_runs++] = list->run[end];
        }
        m.n_runs = s->n_runs - m.run;
        if (m.n_runs == 0)
            continue;
        KU_TRY(grow((void **)&s->message, s->n_messages, &cap->messages, sizeof *s->message));
        s->message[s->n_messages++] = m;
        s->inbox_bytes += m.is_sent ? 0 : m.bytes;
    }
    return KUMI_OK;
}

static int plan_file(struct ku_ckpt_writer *w, int file, struct list *list, struct caps *cap)
{
    struct ku_ckpt_spread *s = w->spread;
    const struct ku_ckpt_out_file *f = &w->file[file];
    const uint64_t n_chunks = ku_pieces_n_chunks(ku_ckpt_out_bytes(f));
    int64_t i = 0, end;
    for (uint64_t c = 0; c < n_chunks; c++, i = end) {
        end = chunk_end(f, c, i);
        const int writer = writer_of(&s->world, f, c, n_chunks, &f->piece[i], end - i);
        if (writer == s->world.rank) {
            KU_TRY(grow((void **)&s->chunk, s->n_chunks, &cap->chunks, sizeof *s->chunk));
            s->chunk[s->n_chunks++] = (struct ku_ckpt_chunk){file, c};
        }
        KU_TRY(list_chunk(&s->world, f, file, &f->piece[i], end - i, writer, list));
        KU_TRY(add_messages(s, cap, list, writer));
    }
    return KUMI_OK;
}

/* Adds to bytes[n_ranks] what each rank receives for its chunks of a file. */
static int count_file(const struct ku_ckpt_world *o, const struct ku_ckpt_out_file *f, int file,
                      struct list *list, size_t *bytes)
{
    const uint64_t n_chunks = ku_pieces_n_chunks(ku_ckpt_out_bytes(f));
    int64_t i = 0, end;
    for (uint64_t c = 0; c < n_chunks; c++, i = end) {
        end = chunk_end(f, c, i);
        const int writer = writer_of(o, f, c, n_chunks, &f->piece[i], end - i);
        KU_TRY(list_chunk(o, f, file, &f->piece[i], end - i, writer, list));
        for (int64_t r = 0; r < list->n; r++)
            bytes[writer] += list->run[r].bytes;
    }
    return KUMI_OK;
}

int ku_ckpt_inbox_most(const struct ku_ckpt_tensor *tensor, int n,
                       const struct ku_ckpt_world *world, size_t *most)
{
    struct ku_ckpt_writer *w = NULL;
    struct list list = {0};
    size_t *bytes = ku_calloc((size_t)world->n_ranks, sizeof *bytes);
    struct ku_ckpt_tensor *own = ku_calloc((size_t)n + 1, sizeof *own);
    int status = bytes && own ? KUMI_OK : KUMI_ENOMEM;
    for (int i = 0; i < n && status == KUMI_OK; i++) {
        own[i] = tensor[i];
        own[i].data = own; /* no element is read */
    }
    const struct ku_ckpt_desc d = {
        .dir = "", .model_config = "", .tensor = own, .n_tensors = n}; /* writes no file */
    if (status == KUMI_OK)
        status = ku_ckpt_writer_create(&d, &w);
    for (int i = 0; i < KU_CKPT_N_FILES && status == KUMI_OK; i++)
        status = count_file(world, &w->file[i], i, &list, bytes);
    for (int r = 0; r < world->n_ranks && status == KUMI_OK; r++)
        *most = r == 0 || bytes[r] > *most ? bytes[r] : *most;
    ku_ckpt_writer_destroy(w);
    ku_free(list.run);
    ku_free(own);
    ku_free(bytes);
    return status;
}

size_t ku_ckpt_writer_inbox_bytes(const struct ku_ckpt_writer *w)
{
    return w->spread->inbox_bytes;
}

static int compare_places(const void *x, const void *y)
{
    const struct ku_ckpt_run *a = *(const struct ku_ckpt_run *const *)x;
    const struct ku_ckpt_run *b = *(const struct ku_ckpt_run *const *)y;
    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* Memory for what this rank receives; its runs in the order of the files. */
static int make_inbox(struct ku_ckpt_spread *s)
{
    s->inbox = ku_malloc(s->inbox_bytes + 1);
    s->received = ku_calloc((size_t)s->n_runs + 1, sizeof *s->received);
    if (s->inbox == NULL || s->received == NULL)
        return KUMI_ENOMEM;
    unsigned char *at = s->inbox;
    for (int64_t i = 0; i < s->n_messages; i++) {
        struct ku_ckpt_message *m = &s->message[i];
        if (m->is_sent)
            continue;
        m->data = at;
        for (int64_t r = m->run; r < m->run + m->n_runs; r++) {
            s->run[r].data = at;
            at += s->run[r].bytes;
            s->received[s->n_received++] = &s->run[r];
        }
    }
    if (s->n_received > 1)
        qsort(s->received, (size_t)s->n_received, sizeof *s->received, compare_places);
    return KUMI_OK;
}

int ku_ckpt_writer_spread(struct ku_ckpt_writer *w, const struct ku_ckpt_world *world)
{
    struct list list = {0};
    struct caps cap = {0};
    int status = KUMI_OK;
    w->spread = ku_calloc(1, sizeof *w->spread);
    if (w->spread == NULL)
        return KUMI_ENOMEM;
    w->spread->world = *world;
    for (int i = 0; i < KU_CKPT_N_FILES && status == KUMI_OK; i++)
        status = plan_file(w, i, &list, &cap);
    if (status == KUMI_OK)
        status = make_inbox(w->spread);
    ku_free(list.run);
    return status;
}

void ku_ckpt_spread_destroy(struct ku_ckpt_spread *s)
{
    if (s == NULL)
        return;
    ku_free(s->chunk);
    ku_free(s->message);
    ku_free(s->run);
    ku_free(s->received);
    ku_free(s->inbox);
    ku_free(s);
}

const struct ku_ckpt_message *ku_ckpt_writer_messages(const struct ku_ckpt_writer *w, int64_t *n)
{
    *n = w->spread->n_messages;
    return w->spread->message;
}

int ku_ckpt_message_pack(const struct ku_ckpt_writer *w, const struct ku_ckpt_message *m,
                         unsigned char *out)
{
    for (int64_t i = m->run; i < m->run + m->n_runs; i++) {
        const struct ku_ckpt_run *r = &w->spread->run[i];
        const struct ku_ckpt_out_file *f = &w->file[r->file];
        const struct ku_ckpt_tensor *t = f->tensor[r->part - 1];
        const size_t each = kumi_dtype_bytes(t->dtype);
        KU_TRY(ku_ckpt_tensor_gather(t, (int64_t)((r->at - f->end[r->part - 1]) / each),
                                     (int64_t)(r->bytes / each), out));
        out += r->bytes;
    }
    return KUMI_OK;
}

int ku_ckpt_spread_fill(const struct ku_ckpt_writer *w, int file, const struct ku_piece *p,
                        unsigned char *out)
{
    const struct ku_ckpt_spread *s = w->spread;
    const struct ku_ckpt_out_file *f = &w->file[file];
    const struct ku_ckpt_tensor *t = f->tensor[p->part - 1];
    const size_t each = kumi_dtype_bytes(t->dtype);
    const uint64_t end = p->at + p->bytes;
    int64_t low = 0, high = s->n_received; /* the first run at or after the piece's begin */
    while (low < high) {
        const int64_t mid = low + (high - low) / 2;
        const struct ku_ckpt_run *r = s->received[mid];
        if (r->file < file || (r->file == file && r->at < p->at))
            low = mid + 1;
        else
            high = mid;
    }
    for (uint64_t at = p->at, to; at < end; at = to) {
        const struct ku_ckpt_run *r = low < s->n_received ? s->received[low] : NULL;
        const bool is_in = r && r->file == file && r->at < end;
        if (is_in && r->at == at) {
            memcpy(out + (at - p->at), r->data, r->bytes);
            to = at + r->bytes;
            low++;
            continue;
        }
        to = is_in ? r->at : end;
        KU_TRY(ku_ckpt_tensor_gather(t, element_at(f, p, at), (int64_t)((to - at) / each),
                                     out + (at - p->at)));
    }
    return KUMI_OK;
}

int64_t ku_ckpt_writer_n_sums(const struct ku_ckpt_writer *w)
{
    int64_t n = 0;
    for (int i = 0; i < KU_CKPT_N_FILES; i++)
        n += w->file[i].n_pieces;
    return n;
}

/* Copies sums between `sum` and the pieces of all files. */
static void move_sums(const struct ku_ckpt_writer *w, int64_t at, int64_t n, uint64_t *out,
                      const uint64_t *in)
{
    int64_t first = 0;
    for (int i = 0; i < KU_CKPT_N_FILES; first += w->file[i++].n_pieces)
        for (int64_t p = at > first ? at - first : 0; p < w->file[i].n_pieces && first + p < at + n;
             p++) {
            if (out)
                out[first + p - at] = w->file[i].piece[p].sum;
            else
                w->file[i].piece[p].sum = in[first + p - at];
        }
}

void ku_ckpt_writer_sums(const struct ku_ckpt_writer *w, int64_t at, int64_t n, uint64_t *sum)
{
    move_sums(w, at, n, sum, NULL);
}

void ku_ckpt_writer_set_sums(struct ku_ckpt_writer *w, int64_t at, int64_t n, const uint64_t *sum)
{
    move_sums(w, at, n, NULL, sum);
}
