/* SPDX-License-Identifier: Apache-2.0 */
/* links: ir op tensor base */
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "fuzz.h"
#include "ir/program.h"

/* Any bytes as a program's text: refused with one line, or read; what was read prints to a text
 * that reads again and prints the same. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct ku_program *p, *again;
    struct ku_str text = {0}, same = {0};
    if (ku_program_parse("fuzz", (const char *)data, bytes, &p) < 0) {
        KU_ASSERT(ku_err_get()->text[0] != '\0');
        return 0;
    }
    KU_IGNORE(ku_program_hash(p), "it must not crash");
    KU_ASSERT(ku_program_print(p, NULL, &text) == KUMI_OK);
    KU_ASSERT(ku_program_parse("again", ku_str_get(&text), text.bytes, &again) == KUMI_OK);
    KU_ASSERT(ku_program_print(again, NULL, &same) == KUMI_OK);
    KU_ASSERT(same.bytes == text.bytes && memcmp(same.text, text.text, text.bytes) == 0);
    ku_str_fini(&text);
    ku_str_fini(&same);
    ku_program_destroy(again);
    ku_program_destroy(p);
    return 0;
}
