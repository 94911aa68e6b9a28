/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/vector.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "config/config.h"
#include "config/optimizer.h"
#include "device/device.h"
#include "op/op.h"

enum { REPORT, GRADIENT, PARAMETER, STATE }; /* the buffers; one per state tensor */

struct ku_ps_vector {
    int64_t count;
    void *device;
    struct ku_kernel *kernel;
    struct ku_call call;
    struct ku_attrs attr;
    void *buffer[STATE + KU_MAX_STATE];
    pthread_mutex_t lock; /* over the buffers and n_updates */
    int64_t n_updates;
};

/* How an optimizer of the table is built into a step: those that work by themselves. */
enum builder { BUILT_none, BUILT_elementwise, BUILT_layerwise, BUILT_adafactor };
static const unsigned char builder_of[KU_N_OPS] = {
#define KU_OP(...)
#define KU_OPTIMIZER(name, s0, s1, s2, update, ...) [KU_OP_##name] = BUILT_##update,
#include "op/ops.def"
#undef KU_OP
};

static int check_keys(const struct ku_ps_vector_opts *o)
{
    if (o->count < 1 || o->count > KU_PS_MAX_VECTOR)
        return KU_ERR(KUMI_EINVAL, "ps serve: --vector: %lld; give 1 to %d", (long long)o->count,
                      (int)KU_PS_MAX_VECTOR);
    for (int i = 0; i < o->n_set; i++)
        if (strncmp(o->set[i], "optimizer.", strlen("optimizer.")) != 0)
            return KU_ERR(KUMI_EINVAL,
                          "ps serve: --set %.100s: with --vector only optimizer keys have a "
                          "meaning",
                          o->set[i]);
    return KUMI_OK;
}

/* The attributes of the optimizer, from the keys of section optimizer. */
static int read_optimizer(const struct ku_ps_vector_opts *o, struct ku_compile_opts *rule)
{
    static const char *const none[] = {"none", NULL};
    struct ku_config c;
    int status = KUMI_OK;
    KU_TRY(ku_config_start("ps serve", &c));
    /* a whole configuration is checked, of which nothing but the optimizer is read */
    KU_TRY_OUT(ku_config_set_text(&c, "model.model_type", "mlp"));
    KU_TRY_OUT(ku_config_set_list(&c, "data.train", none));
    KU_TRY_OUT(ku_config_set_text(&c, "optimizer.type", o->optimizer ? o->optimizer : "sgd"));
    KU_TRY_OUT(ku_config_set_number(&c, "optimizer.lr", o->lr));
    KU_TRY_OUT(ku_config_override(&c, o->set, o->n_set));
    KU_TRY_OUT(ku_config_finish(&c));
    ku_rule_optimizer(&c, 1, rule);
    if (builder_of[rule->optimizer] != BUILT_elementwise)
        status = KU_ERR(KUMI_EINVAL,
                        "ps serve: --optimizer: %s: it needs the tensors of a model; with --vector "
                        "use adamw, adam, sgd, adagrad, rmsprop or lion",
                        c.optimizer_type);
    if (rule->decay != KU_DECAY_ALL) /* a vector is no matrix, and has no name */
        rule->rule.weight_decay = 0;
out:
    ku_config_fini(&c);
    return status;
}

static struct ku_view view_of(const struct ku_ps_vector *v, int buffer)
{
    const bool is_report = buffer == REPORT;
    const int64_t count = is_report ? KU_REPORT_WORDS : v->count;
    struct ku_view view = {
        .data = v->buffer[buffer], .dtype = is_report ? KUMI_F64 : KUMI_F32, .shape = {.ndim = 1}};
    view.shape.dim[0].name = is_report ? 'n' : 'z';
    view.shape.dim[0].count = view.logical[0] = count;
    return view;
}

static int make_kernel(struct ku_ps_vector *v, const struct ku_compile_opts *rule)
{
    const int op = rule->optimizer;
    int n_state = 1;
    while (n_state <= KU_MAX_STATE && ku_ops[op].state[n_state - 1])
        n_state++;
    v->attr = rule->rule;
    v->call = (struct ku_call){.op = op, .n_in = n_state + 2, .n_out = n_state, .attr = &v->attr};
    for (int i = REPORT; i < PARAMETER + n_state; i++) {
        const size_t bytes =
            i == REPORT ? KU_REPORT_WORDS * sizeof(double) : (size_t)v->count * sizeof(float);
        v->buffer[i] = ku_malloc_aligned(64, bytes);
        if (v->buffer[i] == NULL)
            return KUMI_ENOMEM;
        memset(v->buffer[i], 0, bytes);
    }
    for (int i = 0; i < n_state; i++)
        v->call.in[i] = v->call.out[i] = view_of(v, PARAMETER + i);
    v->call.in[n_state] = view_of(v, GRADIENT);
    v->call.in[n_state + 1] = view_of(v, REPORT);
    for (int64_t i = 0; op == KU_OP_adagrad && i < v->count; i++)
        ((float *)v->buffer[STATE])[i] = (float)rule->initial_accumulator_value;
    KU_TRY(ku_device_cpu.open(&(struct ku_device_opts){.n_threads = 1, .isa = ku_cpu_isa()},
                              &v->device));
    return ku_device_cpu.bind(v->device, &v->call, &v->kernel);
}

int ku_ps_vector_create(const struct ku_ps_vector_opts *o, struct ku_ps_vector **out)
{
    struct ku_compile_opts rule = {.rule = ku_attrs_default};
    KU_TRY(check_keys(o));
    KU_TRY(read_optimizer(o, &rule));
    struct ku_ps_vector *v = ku_calloc(1, sizeof *v);
    if (v == NULL)
        return KUMI_ENOMEM;
    v->count = o->count;
    pthread_mutex_init(&v->lock, NULL);
    int status = make_kernel(v, &rule);
    if (status < 0)
        ku_ps_vector_destroy(v);
    else
        *out = v;
    return status;
}

void ku_ps_vector_destroy(struct ku_ps_vector *v)
{
    if (v == NULL)
        return;
    if (v->kernel)
        ku_device_cpu.unbind(v->device, v->kernel);
    ku_device_cpu.close(v->device);
    for (int i = 0; i < STATE + KU_MAX_STATE; i++)
        ku_free(v->buffer[i]);
    pthread_mutex_destroy(&v->lock);
    ku_free(v);
}

int64_t ku_ps_vector_count(const struct ku_ps_vector *v)
{
    return v->count;
}

/* Into the gradient buffer. With the lock. */
static int read_request(struct ku_ps_vector *v, struct ku_proto_in *in)
{
    float *g = v->buffer[GRADIENT];
    uint32_t field, type;
    int32_t worker = 0;
    int64_t n = 0;
    int more;
    while ((more = ku_proto_next(in, &field, &type)) > 0) {
        if (field == 1)
            KU_TRY(ku_proto_floats(in, type, g, v->count, &n));
        else if (field == 2)
            KU_TRY(ku_proto_int32(in, type, &worker));
        else
            KU_TRY(ku_proto_skip(in, type));
    }
    KU_TRY(more);
    if (worker < 0)
        return KU_ERR(KUMI_EINVAL, "worker_id: %d; it counts from 0", worker);
    if (n != v->count)
        return KU_ERR(KUMI_EINVAL, "gradients of worker %d: %lld numbers; the vector has %lld",
                      worker, (long long)n, (long long)v->count);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(g[i]))
            return KU_ERR(KUMI_EINVAL,
                          "gradients of worker %d: element %lld is %s; nothing was "
                          "applied",
                          worker, (long long)i, isnan(g[i]) ? "NaN" : "infinite");
    return KUMI_OK;
}

int ku_ps_vector_push(struct ku_ps_vector *v, struct ku_proto_in *in, int64_t *n_updates)
{
    int status;
    pthread_mutex_lock(&v->lock);
    KU_TRY_OUT(read_request(v, in));
    double *report = v->buffer[REPORT];
    report[KU_REPORT_APPLY] = report[KU_REPORT_SCALE] = 1;
    report[KU_REPORT_LR] = v->attr.lr;
    report[KU_REPORT_UPDATE] = (double)(v->n_updates + 1);
    KU_TRY_OUT(ku_device_cpu.launch(v->device, v->kernel, NULL, NULL));
    *n_updates = ++v->n_updates;
out:
    pthread_mutex_unlock(&v->lock);
    return status;
}

void ku_ps_vector_pull(struct ku_ps_vector *v, void *out)
{
    pthread_mutex_lock(&v->lock);
    memcpy(out, v->buffer[PARAMETER], (size_t)v->count * sizeof(float));
    pthread_mutex_unlock(&v->lock);
}
