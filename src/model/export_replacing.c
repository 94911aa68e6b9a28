/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights that replace older ones, as beside each checkpoint (parallel.gather_16bit_on_save): they
 * are converted through one buffer into a folder of its own, which is then renamed. No process ever
 * holds the whole model.
 */
#include <sys/stat.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "model/export.h"

/* The old folder is removed only when the new one is complete. */
static int replace(const char *made, const char *to)
{
    struct stat info;
    if ((ku_os_stat(to, &info) == 0 && ku_os_rmtree(to) < 0) || ku_os_rename(made, to) < 0)
        return KU_ERR(ku_os_status(KUMI_ESTORAGE), "weights: %s: cannot be replaced: %s", to,
                      ku_os_why());
    return KUMI_OK;
}

int ku_export_replacing(const char *dir, const char *to, const struct kumi_weights_options *o,
                        void (*tick)(void *), void *ctx)
{
    struct stat info;
    char *made = ku_asprintf("%s.new", to);
    int status = made ? KUMI_OK : KUMI_ENOMEM;
    if (made && ku_os_stat(made, &info) == 0 && ku_os_rmtree(made) < 0)
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "weights: %s: cannot be removed: %s", made,
                        ku_os_why());
    if (status == KUMI_OK)
        status = ku_export_directory(dir, made, o, NULL, tick, ctx);
    if (status == KUMI_OK)
        status = replace(made, to);
    ku_free(made);
    return status;
}
