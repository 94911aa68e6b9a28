/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TEXT_LINE_FEED_H
#define KU_DATA_TEXT_LINE_FEED_H

#include "base/str.h"
#include "data/tokenizer/tokenizer.h"

/*
 * Tokens of a text that is encoded line by line, as struct ku_encoder feeds it (source.h): `each`
 * gets every line, valid UTF-8, without its end and blanks before it. All zero but path, each, ctx.
 */
struct ku_line_feed {
    const char *path;
    int (*each)(void *ctx, const char *text, size_t bytes, struct ku_tokens *out);
    void *ctx;
    struct ku_str rest; /* of a line whose end has not come */
    int64_t line;       /* of the last line, from 1 */
};
int ku_line_feed(void *feed, const void *text, size_t bytes, struct ku_tokens *out);
int ku_line_feed_finish(void *feed, struct ku_tokens *out);
void ku_line_feed_reset(void *feed);
void ku_line_feed_fini(struct ku_line_feed *f);

#endif
