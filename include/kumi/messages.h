/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_MESSAGES_H
#define KUMI_MESSAGES_H

#include "kumi/status.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Where the messages of this process go: errors that no caller returns, warnings, log lines, and
 * reports of runs (`kumi` shows them on its terminal). Without callbacks they are lines on stderr
 * at the levels of KUMI_LOG, with reports at level info.
 *
 *   line       one line with its newline
 *   progress   text that replaces the previous progress; text NULL: removes it. NULL: not shown
 *
 * Threads: any thread may call them, at any time; also in a bug, before the process aborts.
 */
struct kumi_messages {
    void (*line)(void *ctx, const char *line, size_t bytes);
    void (*progress)(void *ctx, const char *text);
    void *ctx;
};
/*
 * Set the callbacks, before other threads use kumi. NULL: none. *messages is borrowed as long as it
 * is set.
 */
KUMI_API void kumi_messages_set(const struct kumi_messages *messages);

#ifdef __cplusplus
}
#endif
#endif
