/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_JSON_HJSON_H
#define KU_BASE_JSON_HJSON_H

#include "base/err.h"
#include "base/json/json.h"

/*
 * JSON with the additions that people write by hand: comments (# .., // .. and C comments), a comma
 * after the last member, keys without quotes.
 *
 * The rest of Hjson is refused with a specific message: strings without quotes, in single quotes or
 * over several lines, members without commas, no outer braces. Positions of errors and of
 * ku_json_where refer to the text as written.
 *
 * Limits: KU_HJSON_MAX_BYTES of text, KU_HJSON_MAX_DEPTH of nesting.
 * Errors: KUMI_EINVAL with "<name>:<line>:<column>"; KUMI_ENOMEM.
 */
enum {
    KU_HJSON_MAX_BYTES = 1 << 20, /* a configuration of 20,000 lines */
    KU_HJSON_MAX_DEPTH = 64
};
KU_STATUS ku_hjson_parse(const char *name, const char *text, size_t bytes, struct ku_json *doc);
KU_STATUS ku_hjson_load(const char *path, struct ku_json *doc); /* KUMI_EINVAL if unreadable */

#endif
