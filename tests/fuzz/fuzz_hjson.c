/* SPDX-License-Identifier: Apache-2.0 */
/* links: base */
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "base/json/hjson.h"
#include "base/mem.h"
#include "fuzz.h"

/* Every member of an object lies where its place says: inside of the text, not before its parent.
 */
static void check_places(const struct ku_json *doc, const char *text)
{
    const char *key;
    json_t *value;
    int lines = 1;
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    json_object_foreach(doc->root, key, value)
    {
        int line, column;
        if (strpbrk(key, ".[") || *key == '\0' || strlen(key) > 200)
            continue; /* no path of ours */
        ku_json_where(doc, key, 1, &line, &column);
        KU_ASSERT(line >= 0 && line <= lines);
    }
}

/* Refused with one line, or read; JSON that is read means the same to both readers. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct ku_json doc, plain;
    int status = ku_hjson_parse("fuzz", (const char *)data, bytes, &doc);
    int is_plain = ku_json_parse("fuzz", (const char *)data, bytes, &plain) == KUMI_OK;
    if (status == KUMI_OK) {
        char *copy = ku_calloc(bytes + 1, 1);
        KU_ASSERT(copy != NULL && memchr(data, 0, bytes) == NULL);
        memcpy(copy, data, bytes);
        check_places(&doc, copy);
        KU_ASSERT(!is_plain || json_equal(doc.root, plain.root));
        ku_free(copy);
        ku_json_fini(&doc);
    } else {
        for (const char *c = ku_err_get()->text; c == ku_err_get()->text || *c; c++)
            KU_ASSERT((unsigned char)*c >= ' ' && *c != 0x7f);
    }
    if (is_plain)
        ku_json_fini(&plain);
    return 0;
}
