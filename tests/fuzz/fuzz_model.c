/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
#include <string.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "fuzz.h"
#include "model/model.h"

/* Few layers of sizes at which a graph is described at once. */
static int is_small(const char *text)
{
    struct ku_json doc;
    const char *key;
    json_t *v;
    int small = 1;
    KU_ASSERT(ku_json_parse("printed", text, strlen(text), &doc) == KUMI_OK);
    json_object_foreach(doc.root, key, v)
    {
        json_int_t most = strstr(key, "layer") ? 3 : 1 << 20;
        small = small && (!json_is_integer(v) || json_integer_value(v) <= most) &&
                json_array_size(v) <= 8;
    }
    ku_json_fini(&doc);
    return small;
}

/* Any bytes as a config.json: refused with one line, or a model that prints to a text which is read
 * as the same again, and whose graph is built or refused. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kumi_shape_of_batch one = {.n = 1, .t = 1, .s = 1};
    struct ku_model m, again;
    struct ku_graph *g = NULL;
    int status = ku_model_parse("fuzz", (const char *)data, bytes, &m);
    if (status == KUMI_OK) {
        char *text = ku_model_print(&m), *twice;
        KU_ASSERT(text && ku_model_parse("again", text, strlen(text), &again) == KUMI_OK);
        twice = ku_model_print(&again);
        KU_ASSERT(twice && strcmp(text, twice) == 0 &&
                  strcmp(ku_model_type(&m), ku_model_type(&again)) == 0);
        if (is_small(text))
            status = ku_model_graph(&m, &one, &g);
        ku_graph_destroy(g);
        ku_model_fini(&again);
        ku_model_fini(&m);
        ku_free(twice);
        ku_free(text);
    }
    if (status < 0)
        for (const char *c = ku_err_get()->text; c == ku_err_get()->text || *c; c++)
            KU_ASSERT((unsigned char)*c >= ' ' && *c != 0x7f); /* one line, and not an empty one */
    return 0;
}
