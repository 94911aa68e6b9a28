/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_PROGRESS_LINE_H
#define KU_TRAIN_PROGRESS_LINE_H

#include <pthread.h>

#include "data/data.h"
#include "pass/pass.h"

/* Progress of long work: a line on stderr that rewrites itself, when somebody looks. */
struct ku_progress_line {
    int is_terminal, has_line;
    int64_t last_ns;
};
/* Where the compiler is, on such a line, once it takes long. Threads: any may compile. */
struct ku_compile_line {
    struct ku_progress_line line;
    int64_t begin_ns;
    pthread_mutex_t lock; /* of the line */
};
/* l is borrowed as long as the watch is used, that is, until end. */
struct ku_watch ku_compile_line_start(struct ku_compile_line *l);
void ku_compile_line_end(struct ku_compile_line *l);
/* p is borrowed as long as the progress is used. */
struct ku_progress ku_progress_line_start(struct ku_progress_line *p);
void ku_progress_line_end(struct ku_progress_line *p);

#endif
