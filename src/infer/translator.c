/* SPDX-License-Identifier: Apache-2.0 */
#include "infer/translator.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "infer/inference.h"

/* Sources are padded to the first of these lengths that holds them all, or to src_max. */
enum { N_LENGTHS = 4, N_PROGRAMS = N_LENGTHS + 1 };
static const int64_t lengths[N_LENGTHS] = {8, 16, 32, INT64_MAX};

/* Input ports of the source programs and of the target program, in this order in struct part. */
enum { SRC, SRC_POSITIONS, SRC_LEN, TGT_IN, POSITIONS, POSITION_IDS, N_PORTS };
static const char *const port_names[N_PORTS] = {"src",    "src_positions", "src_len",
                                                "tgt_in", "positions",     "position_ids"};

struct part {
    int64_t s; /* tokens of a source; 0: the target program */
    struct ku_program *program;
    const struct ku_program_port *in[N_PORTS], *logits; /* NULL: the program has none */
    struct ku_exec *exec;
};

struct ku_translator {
    const struct ku_device_ops *ops;
    void *device;
    const struct ku_model *model;
    struct part part[N_PROGRAMS]; /* the target program first */
    int n_parts;
    struct ku_program *derive;
    struct ku_memory *memory;
    int64_t n_rows, src_max, tgt_max;
    int64_t n_tokens, n_made; /* possible tokens; tokens of each target so far */
    void *scratch;            /* one cache, for reordering */
};

/*
 * Compiles one program. All programs have the same tensors in the same order, so they share one
 * memory plan; nodes that only other programs need are dropped as dead.
 */
static int compile_part(struct ku_translator *t, const struct ku_compile_opts *c,
                        const struct ku_target *target, int64_t s, struct ku_graph **g,
                        struct ku_graph **model)
{
    struct part *p = &t->part[t->n_parts];
    struct kumi_shape_of_batch b = {.n = t->n_rows,
                                    .t = 1,
                                    .s = s ? s : 1,
                                    .is_inference = 1,
                                    .is_source = s > 0,
                                    .cache = t->tgt_max,
                                    .source_cache = t->src_max};
    p->s = s;
    ku_graph_destroy(*g);
    *g = NULL;
    ku_graph_destroy(*model);
    *model = NULL;
    KU_TRY(ku_model_graph(t->model, &b, g));
    KU_TRY(ku_graph_copy(*g, model));
    KU_TRY(ku_compile_graph(*g, c, target, NULL));
    KU_TRY(ku_graph_drop_dead(*g));
    KU_TRY(ku_compile_program(*g, s ? "source" : "target", c, target, &p->program));
    t->n_parts++;
    KU_TRY(ku_inference_check(*model, c, target, t->part[0].program, p->program, 0));
    for (int k = 0; k < N_PORTS; k++)
        p->in[k] = ku_program_find_port(p->program, 1, port_names[k]);
    p->logits = ku_program_find_port(p->program, 0, "logits");
    return KUMI_OK;
}

static int compile_all(struct ku_translator *t, const struct ku_translator_opts *o,
                       struct ku_graph **g, struct ku_graph **model)
{
    struct ku_target target = {.query = o->device->query, .ranks_per_host = 1};
    struct ku_compile_opts c = ku_inference_compile_opts(o->compute, o->keep_f32, o->modules);
    KU_TRY(compile_part(t, &c, &target, 0, g, model));
    for (int i = 0; i < N_LENGTHS; i++) {
        int64_t s = lengths[i] < t->src_max ? lengths[i] : t->src_max;
        KU_TRY(compile_part(t, &c, &target, s, g, model));
        if (s == t->src_max)
            break;
    }
    KU_TRY(ku_compile_init(*g, 1, &c, &target, &t->derive));
    return ku_inference_check(*model, &c, &target, t->part[0].program, t->derive, 1);
}

static int compile(struct ku_translator *t, const struct ku_translator_opts *o, struct ku_graph **g)
{
    struct ku_graph *model = NULL; /* before the passes, for the check */
    const int status = compile_all(t, o, g, &model);
    ku_graph_destroy(model);
    return status;
}

static int allocate(struct ku_translator *t, struct ku_job *job)
{
    const struct ku_program *all[N_PROGRAMS + 1];
    size_t most = 0;
    for (int i = 0; i < t->n_parts; i++)
        all[i] = t->part[i].program;
    all[t->n_parts] = t->derive;
    KU_TRY(ku_inference_check_memory(all, t->n_parts + 1, "parameters and sentences",
                                     "lower --batch or --beam"));
    for (uint32_t s = 0; s < all[0]->n_states; s++)
        if (all[0]->state[s].kind == KU_T_CACHE && all[0]->state[s].bytes > most)
            most = all[0]->state[s].bytes;
    t->scratch = ku_malloc(most);
    return t->scratch
               ? ku_memory_create(job, t->ops, t->device, all, t->n_parts + 1, NULL, &t->memory)
               : KUMI_ENOMEM;
}

static int load(struct ku_translator *t, const struct ku_graph *g, const char *dir,
                const char *averages)
{
    const struct ku_inference loaded = {t->ops,    t->device, t->model, t->part[0].program,
                                        t->derive, t->memory};
    int status = ku_inference_load(&loaded, g, dir, averages);
    for (int i = 0; i < t->n_parts && status == KUMI_OK; i++)
        status =
            ku_exec_load(t->memory, t->part[i].program, t->ops, t->device, NULL, &t->part[i].exec);
    return status;
}

int ku_translator_create(struct ku_job *job, const struct ku_model *model, const char *dir,
                         const struct ku_translator_opts *o, struct ku_translator **out)
{
    struct ku_translator *t;
    struct ku_graph *g = NULL;
    int64_t most = model->properties.max_positions;
    int status;
    KU_ASSERT(job->n == 1 && o->n_rows > 0 && o->src_max > 0 && o->tgt_max > 0);
    if (!model->properties.is_pairs)
        return KU_ERR(KUMI_EINVAL, "model: %s: cannot translate; only models of sentence pairs can",
                      ku_model_type(model));
    t = ku_calloc(1, sizeof *t);
    if (t == NULL)
        return KUMI_ENOMEM;
    t->ops = o->device;
    t->model = model;
    t->n_rows = o->n_rows;
    t->src_max = o->src_max < most ? o->src_max : most;
    t->tgt_max = o->tgt_max < most ? o->tgt_max : most;
    t->n_tokens = o->n_tokens ? o->n_tokens : model->properties.vocab_size;
    KU_TRY_OUT(compile(t, o, &g));
    KU_TRY_OUT(t->ops->open(&o->device_opts, &t->device));
    KU_TRY_OUT(allocate(t, job));
    KU_TRY_OUT(load(t, g, dir, o->averages));
    *out = t;
    t = NULL;
out:
    ku_graph_destroy(g);
    ku_translator_destroy(t);
    return status;
}

void ku_translator_destroy(struct ku_translator *t)
{
    if (t == NULL)
        return;
    for (int i = 0; i < t->n_parts; i++)
        ku_exec_unload(t->part[i].exec);
    ku_memory_destroy(t->memory);
    if (t->device)
        t->ops->close(t->device);
    for (int i = 0; i < t->n_parts; i++)
        ku_program_destroy(t->part[i].program);
    ku_program_destroy(t->derive);
    ku_free(t->scratch);
    ku_free(t);
}

static int fill_lengths(const struct ku_translator *t, const struct part *p,
                        const struct ku_translator_text *source)
{
    struct ku_mapping map;
    KU_TRY(ku_exec_map_ports(p->exec, &p->in[SRC_LEN], 1, KU_ACCESS_WRITE, &map));
    int32_t *len = map.data;
    for (int64_t row = 0; row < t->n_rows; row++)
        len[row] = (int32_t)source[row].n;
    return ku_range_unmap(&map);
}

static int fill_source(const struct ku_translator *t, const struct part *p,
                       const struct ku_translator_text *source)
{
    struct ku_mapping map[2];
    KU_TRY(ku_exec_map_ports(p->exec, &p->in[SRC], 2, KU_ACCESS_WRITE, map));
    int32_t *src = map[0].data, *positions = map[1].data;
    for (int64_t row = 0; row < t->n_rows; row++) {
        positions[row] = 0;
        for (int64_t k = 0; k < p->s; k++)
            src[row * p->s + k] = k < source[row].n ? (int32_t)source[row].token[k] : 0;
    }
    return ku_ranges_unmap(map, 2);
}

int ku_translator_read(struct ku_translator *t, const struct ku_translator_text *source)
{
    int64_t longest = 1;
    int i = 1;
    for (int64_t row = 0; row < t->n_rows; row++) {
        KU_ASSERT(source[row].n <= t->src_max);
        longest = source[row].n > longest ? source[row].n : longest;
    }
    while (t->part[i].s < longest)
        i++;
    struct part *p = &t->part[i];
    KU_TRY(fill_source(t, p, source));
    KU_TRY(fill_lengths(t, p, source)); /* for the encoder */
    KU_TRY(ku_exec_run(p->exec));
    KU_TRY(fill_lengths(t, &t->part[0], source)); /* for the target's cross attention */
    t->n_made = 0;
    return KUMI_OK;
}

/* Converts the logits of a row to log-probabilities in f64. */
static void log_softmax(const void *logits, enum kumi_dtype dtype, int64_t first, int64_t n,
                        double *out)
{
    double most = -HUGE_VAL, sum = 0;
    for (int64_t v = 0; v < n; v++) {
        out[v] = ku_load_f64(logits, dtype, first + v);
        most = out[v] > most ? out[v] : most;
    }
    for (int64_t v = 0; v < n; v++)
        sum += exp(out[v] - most);
    for (int64_t v = 0; v < n; v++)
        out[v] -= most + log(sum);
}

static int fill_target(const struct ku_translator *t, const uint32_t *token)
{
    const struct part *p = &t->part[0];
    struct ku_mapping map[3];
    KU_TRY(ku_exec_map_ports(p->exec, &p->in[TGT_IN], 3, KU_ACCESS_WRITE, map));
    int32_t *in = map[0].data, *at = map[1].data, *ids = map[2].data;
    for (int64_t row = 0; row < t->n_rows; row++) {
        in[row] = (int32_t)token[row];
        at[row] = ids[row] = (int32_t)t->n_made;
    }
    return ku_ranges_unmap(map, 3);
}

int ku_translator_step(void *translator, const uint32_t *token, const unsigned char *is_done,
                       double *log_p)
{
    struct ku_translator *t = translator;
    const struct part *p = &t->part[0];
    const int64_t vocab = t->model->properties.vocab_size;
    const int64_t width = ku_shape_count(&p->program->shape[p->logits->shape]) / t->n_rows;
    struct ku_mapping out;
    KU_ASSERT(t->n_made < t->tgt_max);
    KU_TRY(fill_target(t, token));
    KU_TRY(ku_exec_run(p->exec));
    t->n_made++;
    KU_TRY(ku_exec_map_ports(p->exec, &p->logits, 1, KU_ACCESS_READ, &out));
    for (int64_t row = 0; row < t->n_rows; row++) {
        double *log_p_row = log_p + row * vocab;
        if (is_done && is_done[row])
            continue;
        log_softmax(out.data, (enum kumi_dtype)p->logits->dtype, row * width, vocab, log_p_row);
        for (int64_t v = t->n_tokens; v < vocab; v++)
            log_p_row[v] = -HUGE_VAL;
    }
    return ku_range_unmap(&out);
}

/*
 * Reorders the caches of the targets' self attention. The rows of a sentence have the same source,
 * so those of cross attention stay.
 */
int ku_translator_select(void *translator, const int64_t *parent)
{
    struct ku_translator *t = translator;
    const struct ku_program *p = t->part[0].program;
    for (uint32_t s = 0; s < p->n_states; s++) {
        const struct ku_program_state *x = &p->state[s];
        const struct ku_dim *dim = p->shape[x->shape].dim; /* n h s d */
        if (x->kind != KU_T_CACHE || strstr(p->name_of[x->name], ".encoder_attn."))
            continue;
        size_t head =
            (size_t)(dim[2].count * dim[3].count) * kumi_dtype_bytes((enum kumi_dtype)x->dtype);
        size_t kept = head / (size_t)dim[2].count * (size_t)t->n_made;
        struct ku_mapping cache;
        KU_TRY(ku_range_map(ku_memory_state(t->memory, x), KU_ACCESS_UPDATE, &cache));
        unsigned char *at = cache.data, *old = t->scratch;
        for (int64_t k = 0; k < t->n_rows * dim[1].count; k++)
            memcpy(old + (size_t)k * kept, at + (size_t)k * head, kept);
        for (int64_t row = 0; row < t->n_rows; row++)
            for (int64_t h = 0; h < dim[1].count && parent[row] != row; h++)
                memcpy(at + (size_t)(row * dim[1].count + h) * head,
                       old + (size_t)(parent[row] * dim[1].count + h) * kept, kept);
        KU_TRY(ku_range_unmap(&cache));
    }
    return KUMI_OK;
}
