/* SPDX-License-Identifier: Apache-2.0 */
#include "data/text/line_feed.h"

#include "base/err.h"
#include "data/lines.h"

#include <string.h>

static int feed_line(struct ku_line_feed *f, const char *text, size_t bytes, struct ku_tokens *out)
{
    f->line++;
    if (bytes > KU_LINE_BYTES_MAX)
        return KU_ERR(KUMI_EINPUT, "data: %s:%lld: a line of more than %d bytes; split it", f->path,
                      (long long)f->line, KU_LINE_BYTES_MAX);
    KU_TRY(ku_line_check(f->path, f->line, text, bytes));
    return f->each(f->ctx, text, ku_line_trim(text, bytes), out);
}

int ku_line_feed(void *feed, const void *text, size_t bytes, struct ku_tokens *out)
{
    struct ku_line_feed *f = feed;
    for (const char *at = text, *end = at + bytes, *stop; at < end; at = stop + 1) {
        stop = memchr(at, '\n', (size_t)(end - at));
        if (stop && f->rest.bytes == 0) {
            KU_TRY(feed_line(f, at, (size_t)(stop - at), out));
            continue;
        }
        ku_str_append(&f->rest, at, (size_t)((stop ? stop : end) - at));
        if (f->rest.failed)
            return KUMI_ENOMEM;
        if (!stop && f->rest.bytes <= KU_LINE_BYTES_MAX)
            return KUMI_OK;
        KU_TRY(feed_line(f, f->rest.text, f->rest.bytes, out));
        f->rest.bytes = 0;
    }
    return KUMI_OK;
}

int ku_line_feed_finish(void *feed, struct ku_tokens *out)
{
    struct ku_line_feed *f = feed;
    if (f->rest.bytes > 0)
        KU_TRY(feed_line(f, f->rest.text, f->rest.bytes, out));
    f->rest.bytes = 0;
    return KUMI_OK;
}

void ku_line_feed_reset(void *feed)
{
    struct ku_line_feed *f = feed;
    f->rest.bytes = 0;
    f->line = 0;
}

void ku_line_feed_fini(struct ku_line_feed *f)
{
    ku_str_fini(&f->rest);
}
