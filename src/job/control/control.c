/* SPDX-License-Identifier: Apache-2.0 */
#include "job/control.h"

#include "base/err.h"

int ku_control_join(const struct ku_control_opts *opts, struct ku_segment *seg,
                    struct ku_control **control)
{
    (void)seg, (void)control;
    return KU_ERR(KUMI_EINVAL, "join: rank %d of %d: this version of kumi joins no hosts",
                  opts->rank, opts->n);
}

void ku_control_leave(struct ku_control *control)
{
    (void)control;
}

int ku_control_fd(const struct ku_control *control)
{
    (void)control;
    return -1;
}

int ku_control_timeout_ms(const struct ku_control *control)
{
    (void)control;
    return -1;
}

void ku_control_serve(struct ku_control *control)
{
    (void)control;
}

int ku_secret_find(const struct ku_segment *seg, uint8_t secret[KU_SECRET_BYTES])
{
    (void)seg, (void)secret;
    return KU_ERR(KUMI_EINVAL, "join: this version of kumi joins no hosts");
}
