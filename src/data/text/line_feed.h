/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TEXT_LINE_FEED_H
#define KU_DATA_TEXT_LINE_FEED_H

#include "base/err.h"
#include "base/str.h"
#include "data/tokenizer/tokenizer.h"

/*
 * Splits fed text into lines, for a struct ku_encoder (source.h) that encodes line by line. `each`
 * gets every line, valid UTF-8, without its end and trailing blanks. Set path, each and ctx; zero
 * the rest.
 */
struct ku_line_feed {
    const char *path;
    int (*each)(void *ctx, const char *text, size_t bytes, struct ku_tokens *out);
    void *ctx;
    struct ku_str rest; /* start of a line whose end was not fed yet */
    int64_t line;       /* of the last line, from 1 */
};
KU_STATUS ku_line_feed(void *feed, const void *text, size_t bytes, struct ku_tokens *out);
KU_STATUS ku_line_feed_finish(void *feed, struct ku_tokens *out);
void ku_line_feed_reset(void *feed);
void ku_line_feed_fini(struct ku_line_feed *f);

#endif
