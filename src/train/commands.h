/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_COMMANDS_H
#define KU_TRAIN_COMMANDS_H

#include <jansson.h>
#include <pthread.h>

#include "base/str.h"
#include "kumi/run.h"
#include "train/session.h"

/* What the functions of kumi/run.h that only report have in common. */

/* Hands a finished text out (for kumi_text_free) and empties s. KUMI_ENOMEM if an append failed. */
int ku_text_take(struct ku_str *s, char **text);
/* The same of a JSON value, whose reference it takes, and a newline. NULL value: KUMI_ENOMEM. */
int ku_text_json(json_t *value, char **text);
/* "9.65 MiB", right-aligned in 10 letters, without blanks after it. */
const char *ku_text_bytes(uint64_t bytes, char out[16]);

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

/* KUMI_EINVAL without a file. */
int ku_commands_check(const struct kumi_settings *settings);
/* Configures a session for n ranks of one host, with up to 6 more settings (NULL-terminated; NULL:
 * none). s is zero at entry and is finished on failure. */
int ku_commands_configure(struct ku_session *s, const struct kumi_settings *settings, int n_ranks,
                          const char *const *more);
/* Opens the data where they decide the batch shapes: sentence pairs. */
int ku_commands_open_shapes(struct ku_session *s);
/* How the compiler sees the configured device. */
struct ku_target ku_commands_target(const struct ku_session *s);

#endif
