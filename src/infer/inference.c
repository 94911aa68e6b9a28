/* SPDX-License-Identifier: Apache-2.0 */
#include "infer/inference.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "model/pretrained.h"
#include "train/plan_proof.h"
#include "train/trainer.h"

struct ku_compile_opts ku_inference_compile_opts(enum kumi_dtype compute,
                                                 const char *const *keep_f32,
                                                 const struct ku_precision_rules *modules)
{
    struct ku_compile_opts c = {
        .compute = compute, .keep_f32 = keep_f32, .modules = modules, .rule = ku_attrs_default};
    for (int a = 0; a < KU_N_AXES; a++)
        c.mesh.extent[a] = 1;
    return c;
}

int ku_inference_threads(const char *command, int64_t option, int *n_threads)
{
    enum { MAX_THREADS = 4096 }; /* as of train.threads */
    if (option < 0 || option > MAX_THREADS)
        return KU_ERR(KUMI_EINVAL, "%s: threads: %lld; give 1 to %d", command, (long long)option,
                      (int)MAX_THREADS);
    *n_threads = option ? (int)option : ku_os_n_cpus();
    return KUMI_OK;
}

int ku_inference_check_memory(const struct ku_program *const *program, int n, const char *what,
                              const char *advice)
{
    size_t total = 0;
    for (int a = 0; a < KU_N_ARENAS; a++) {
        size_t most = 0;
        for (int i = 0; i < n; i++)
            if (program[i]->arena_bytes[a] > most)
                most = program[i]->arena_bytes[a];
        KU_TRY(ku_add_size(total, most, &total));
    }
    const uint64_t free_bytes = ku_os_mem_available();
    return total <= free_bytes
               ? KUMI_OK
               : KU_ERR(KUMI_ENOMEM, "memory: %s: %.2f GiB, available %.2f GiB; %s", what,
                        (double)total * 0x1p-30, (double)free_bytes * 0x1p-30, advice);
}

int ku_inference_check(const struct ku_graph *graph, const struct ku_compile_opts *o,
                       const struct ku_target *target, const struct ku_program *first,
                       const struct ku_program *p, bool is_derive)
{
    struct ku_graph *model = NULL;
    struct ku_check_report report;
    struct ku_check_opts check;
    signed char *wire = NULL;
    int status;
    KU_TRY(ku_graph_copy(graph, &model));
    KU_TRY_OUT(ku_compile_graph(model, o, target, "precision"));
    KU_TRY_OUT(ku_trainer_check_opts(o, is_derive ? KU_CHECK_DERIVE : KU_CHECK_EVAL, model, &check,
                                     &wire));
    KU_TRY_OUT(ku_check_same_state(first, p));
    KU_TRY_OUT(ku_check_program(model, &check, p, &report));
out:
    ku_free(wire);
    ku_graph_destroy(model);
    return status;
}

int ku_inference_load(const struct ku_inference *i, const struct ku_graph *g, const char *dir,
                      const char *averages)
{
    struct ku_ckpt_tensor *tensor;
    struct ku_exec *derive;
    int n;
    KU_TRY(ku_trainer_describe(i->program, g, i->memory, &tensor, &n));
    int status = ku_pretrained_weights(dir, i->model, tensor, n, 0, 1);
    if (status == KUMI_OK && averages)
        status = ku_pretrained_averages(averages, tensor, n, 0, 1);
    ku_free(tensor);
    KU_TRY(status);
    KU_TRY(ku_exec_load(i->memory, i->derive, i->ops, i->device, NULL, &derive));
    status = ku_exec_run(derive);
    ku_exec_unload(derive);
    return status;
}
