/* SPDX-License-Identifier: Apache-2.0 */
#include "train/infer.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/os.h"
#include "pass/pass.h"
#include "train/stored.h"
#include "train/trainer.h"

/* The shortest program: below, a step costs what starting its kernels costs. n_positions is at most
 * 2^30, so 27 doublings and one odd length suffice. */
enum { SHORTEST = 16, MAX_LENGTHS = 28 };

struct length {
    int64_t t;
    struct ku_program *program;
    struct ku_exec *exec; /* NULL until first needed */
};

struct ku_infer {
    struct ku_job *job;
    const struct ku_device_ops *ops;
    void *device;
    const struct ku_model *model;
    struct length length[MAX_LENGTHS];
    int n_lengths;
    struct ku_program *derive; /* compute copies of the parameters */
    struct ku_memory *memory;
};

static struct ku_compile_opts compile_opts(const struct ku_infer_opts *o)
{
    struct ku_compile_opts c = {.compute = o->compute, .rule = ku_attrs_default};
    for (int a = 0; a < KU_N_AXES; a++)
        c.mesh.extent[a] = 1;
    return c;
}

/* All lengths have the same tensors in the same order, hence one place for each parameter; *g is
 * the longest's graph, for the caller to destroy. */
static int compile(struct ku_infer *m, const struct ku_infer_opts *o, struct ku_graph **g)
{
    struct ku_target target = {.query = o->device->query, .ranks_per_host = 1};
    struct ku_compile_opts c = compile_opts(o);
    int64_t most = m->model->facts.max_positions;
    int64_t longest = o->max_tokens < most ? o->max_tokens : most;
    for (int64_t t = SHORTEST;; t *= 2) {
        struct length *l = &m->length[m->n_lengths];
        int is_last = t >= longest;
        l->t = t < most ? t : most;
        ku_graph_destroy(*g);
        *g = NULL;
        struct kumi_shape_of_batch batch = {.n = 1, .t = l->t, .is_inference = 1};
        KU_TRY(ku_model_graph(m->model, &batch, g));
        KU_TRY(ku_compile_graph(*g, &c, &target, NULL));
        KU_TRY(ku_compile_program(*g, "infer", &c, &target, &l->program));
        m->n_lengths++;
        if (is_last)
            return ku_compile_init(*g, 1, &c, &target, &m->derive);
    }
}

static int allocate(struct ku_infer *m)
{
    const struct ku_program *all[MAX_LENGTHS + 1];
    size_t total = 0;
    for (int i = 0; i < m->n_lengths; i++)
        all[i] = m->length[i].program;
    all[m->n_lengths] = m->derive;
    for (int a = 0; a < KU_N_ARENAS; a++) {
        size_t most = 0;
        for (int i = 0; i <= m->n_lengths; i++)
            if (all[i]->arena_bytes[a] > most)
                most = all[i]->arena_bytes[a];
        KU_TRY(ku_add_size(total, most, &total));
    }
    uint64_t free_bytes = ku_os_mem_available();
    if (total > free_bytes)
        return KU_ERR(KUMI_ENOMEM,
                      "memory: parameters and a context of %lld tokens: %.2f GiB, available %.2f "
                      "GiB; ask for fewer tokens or free some",
                      (long long)m->length[m->n_lengths - 1].t, (double)total * 0x1p-30,
                      (double)free_bytes * 0x1p-30);
    return ku_memory_create(m->job, all, m->n_lengths + 1, &m->memory);
}

static int load_weights(struct ku_infer *m, const struct ku_graph *g, const char *dir)
{
    struct ku_ckpt_tensor *tensor;
    struct ku_exec *derive;
    int n;
    KU_TRY(ku_trainer_describe(m->length[0].program, g, m->memory, &tensor, &n));
    int status = ku_stored_weights(dir, m->model, tensor, n, 0, 1);
    ku_free(tensor);
    KU_TRY(status);
    KU_TRY(ku_exec_load(m->memory, m->derive, m->ops, m->device, NULL, &derive));
    status = ku_exec_run(derive);
    ku_exec_unload(derive);
    return status;
}

int ku_infer_create(struct ku_job *job, const struct ku_model *model, const char *dir,
                    const struct ku_infer_opts *o, struct ku_infer **out)
{
    struct ku_infer *m = ku_calloc(1, sizeof *m);
    struct ku_graph *g = NULL;
    int status;
    KU_ASSERT(job->n == 1 && o->max_tokens > 0);
    if (m == NULL)
        return KUMI_ENOMEM;
    m->job = job;
    m->ops = o->device;
    m->model = model;
    KU_TRY_OUT(compile(m, o, &g));
    KU_TRY_OUT(m->ops->open(&o->device_opts, &m->device));
    KU_TRY_OUT(allocate(m));
    KU_TRY_OUT(load_weights(m, g, dir));
    *out = m;
    m = NULL;
out:
    ku_graph_destroy(g);
    ku_infer_destroy(m);
    return status;
}

void ku_infer_destroy(struct ku_infer *m)
{
    if (m == NULL)
        return;
    for (int i = 0; i < m->n_lengths; i++)
        ku_exec_unload(m->length[i].exec);
    ku_memory_destroy(m->memory);
    if (m->device)
        m->ops->close(m->device);
    for (int i = 0; i < m->n_lengths; i++)
        ku_program_destroy(m->length[i].program);
    ku_program_destroy(m->derive);
    ku_free(m);
}

int ku_infer_next(struct ku_infer *m, const uint32_t *token, int64_t n, double *logits)
{
    int i = 0;
    while (i < m->n_lengths - 1 && m->length[i].t < n)
        i++;
    struct length *l = &m->length[i];
    int64_t seen = n < l->t ? n : l->t;
    if (l->exec == NULL)
        KU_TRY(ku_exec_load(m->memory, l->program, m->ops, m->device, NULL, &l->exec));
    int32_t *tokens = ku_exec_port(l->exec, 1, "tokens", NULL);
    int32_t *index = ku_exec_port(l->exec, 1, "index", NULL);
    /* attention is causal: what stands right of the last token cannot reach it */
    for (int64_t k = 0; k < l->t; k++)
        tokens[k] = k < seen ? (int32_t)token[n - seen + k] : 0;
    *index = (int32_t)(seen - 1);
    KU_TRY(ku_exec_run(l->exec));
    const struct ku_program_port *port = ku_program_find_port(l->program, 0, "logits");
    const void *out = ku_exec_port(l->exec, 0, "logits", NULL);
    for (int64_t v = 0; v < m->model->facts.vocab_size; v++)
        logits[v] = ku_load_f64(out, (enum kumi_dtype)port->dtype, v);
    return KUMI_OK;
}
