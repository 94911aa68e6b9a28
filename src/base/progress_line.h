/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_PROGRESS_LINE_H
#define KU_BASE_PROGRESS_LINE_H

#include <pthread.h>

#include "base/progress.h"

/* Progress of long work as text for ku_progress_show, a few times per second. */
struct ku_progress_line {
    int is_shown, has_line;
    int64_t last_ns;
};
/*
 * Progress of the compiler on such a line, after 2 s. Threads: any number may compile.
 */
struct ku_compile_line {
    struct ku_progress_line line;
    int64_t begin_ns;
    pthread_mutex_t lock; /* protects line */
};
/* l is borrowed until ku_compile_line_end. */
struct ku_watch ku_compile_line_start(struct ku_compile_line *l);
void ku_compile_line_end(struct ku_compile_line *l);
/* p is borrowed while the progress is in use. */
struct ku_progress ku_progress_line_start(struct ku_progress_line *p);
void ku_progress_line_end(struct ku_progress_line *p);

#endif
