/* SPDX-License-Identifier: Apache-2.0 */
/* conv2d, conv2d_dx, conv2d_dw: by their definition, on one thread. */
#include "base/err.h"
#include "device/cpu/cpu.h"
#include "device/ref/ref.h"

static void tile_conv(const struct ku_kernel *k, int64_t tile, int thread)
{
    struct ku_ref_poll poll = {0};
    (void)tile, (void)thread;
    if (k->call.op == KU_OP_conv2d)
        ku_ref_conv2d(&k->call, &poll);
    else if (k->call.op == KU_OP_conv2d_dx)
        ku_ref_conv2d_dx(&k->call, &poll);
    else
        ku_ref_conv2d_dw(&k->call, &poll);
}
int ku_cpu_bind_conv2d(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check_all(k));
    ku_cpu_phase(k, tile_conv, 1);
    return KUMI_OK;
}
int ku_cpu_bind_conv2d_dx(struct ku_kernel *k)
{
    return ku_cpu_bind_conv2d(k);
}
int ku_cpu_bind_conv2d_dw(struct ku_kernel *k)
{
    return ku_cpu_bind_conv2d(k);
}
