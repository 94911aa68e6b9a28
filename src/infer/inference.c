/* SPDX-License-Identifier: Apache-2.0 */
#include "infer/inference.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "model/pretrained.h"
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
