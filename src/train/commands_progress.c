/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "train/commands.h"

enum { PROGRESS_NS = 200000000 };

static int show(void *ctx, const char *what, uint64_t done_bytes, uint64_t total_bytes)
{
    struct ku_progress_line *p = ctx;
    int64_t now = ku_clock_ns();
    if (!p->is_terminal || now - p->last_ns < PROGRESS_NS)
        return KUMI_OK;
    p->last_ns = now;
    p->has_line = 1;
    if (total_bytes)
        fprintf(stderr, "\rkumi: %.60s: %5.1f %%\033[K", what,
                100.0 * (double)done_bytes / (double)total_bytes);
    else
        fprintf(stderr, "\rkumi: %.60s: %.0f MiB\033[K", what, (double)done_bytes / (1 << 20));
    return KUMI_OK;
}

struct ku_progress ku_progress_line_start(struct ku_progress_line *p)
{
    *p = (struct ku_progress_line){.is_terminal = isatty(STDERR_FILENO)};
    return (struct ku_progress){show, p};
}

void ku_progress_line_end(struct ku_progress_line *p)
{
    if (p->has_line)
        fputs("\r\033[K", stderr);
}
