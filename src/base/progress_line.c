/* SPDX-License-Identifier: Apache-2.0 */
#include "base/progress_line.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"

enum { PROGRESS_NS = 200000000 };
#define SILENT_NS INT64_C(2000000000) /* shorter compilations print nothing */

static int show(void *ctx, const char *what, uint64_t done_bytes, uint64_t total_bytes)
{
    struct ku_progress_line *p = ctx;
    int64_t now = ku_clock_ns();
    if (!p->is_shown || now - p->last_ns < PROGRESS_NS)
        return KUMI_OK;
    p->last_ns = now;
    p->has_line = 1;
    char text[128];
    if (total_bytes)
        ku_text_print(text, sizeof text, "kumi: %.60s: %5.1f %%", what,
                      100.0 * (double)done_bytes / (double)total_bytes);
    else
        snprintf(text, sizeof text, "kumi: %.60s: %.0f MiB", what, (double)done_bytes / (1 << 20));
    ku_progress_show(text);
    return KUMI_OK;
}

struct ku_progress ku_progress_line_start(struct ku_progress_line *p)
{
    *p = (struct ku_progress_line){.is_shown = ku_progress_is_shown()};
    return (struct ku_progress){show, p};
}

void ku_progress_line_end(struct ku_progress_line *p)
{
    if (p->has_line)
        ku_progress_show(NULL);
}

static void see(void *ctx, const char *program, const char *pass)
{
    struct ku_compile_line *l = ctx;
    int64_t now = ku_clock_ns();
    if (!l->line.is_shown || now - l->begin_ns < SILENT_NS || pthread_mutex_trylock(&l->lock))
        return;
    if (now - l->line.last_ns >= PROGRESS_NS) {
        l->line.last_ns = now;
        l->line.has_line = 1;
        char text[128];
        ku_text_print(text, sizeof text, "kumi: compiling %.30s: pass %.20s, %.1f s", program, pass,
                      (double)(now - l->begin_ns) * 1e-9);
        ku_progress_show(text);
    }
    pthread_mutex_unlock(&l->lock);
}

struct ku_watch ku_compile_line_start(struct ku_compile_line *l)
{
    *l = (struct ku_compile_line){.begin_ns = ku_clock_ns()};
    pthread_mutex_init(&l->lock, NULL);
    ku_progress_line_start(&l->line);
    return (struct ku_watch){see, l};
}

void ku_compile_line_end(struct ku_compile_line *l)
{
    ku_progress_line_end(&l->line);
    pthread_mutex_destroy(&l->lock);
}
