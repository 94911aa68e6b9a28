/* SPDX-License-Identifier: Apache-2.0 */
/* links: ir op tensor base */
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "fuzz.h"
#include "ir/graph.h"

/* Any bytes as a graph's text: refused with one line, or read; what was read prints to a text that
 * reads again. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct ku_graph *g, *again;
    struct ku_str text = {0};
    if (ku_graph_parse("fuzz", (const char *)data, bytes, &g) < 0) {
        KU_ASSERT(ku_err_get()->text[0] != '\0');
        return 0;
    }
    KU_IGNORE(ku_graph_verify(g), "it may refuse, and must not crash");
    KU_ASSERT(ku_graph_print(g, &text) == KUMI_OK);
    KU_ASSERT(ku_graph_parse("again", ku_str_get(&text), text.bytes, &again) == KUMI_OK);
    ku_str_fini(&text);
    ku_graph_destroy(again);
    ku_graph_destroy(g);
    return 0;
}
