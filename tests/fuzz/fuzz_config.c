/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "fuzz.h"
#include "config/config.h"
#include "model/model.h"

/* What was accepted dumps to a text that is accepted again, with the same numerics keys. */
static void check_dump(const struct ku_config *cfg)
{
    struct ku_config again;
    struct ku_str names = {0};
    json_t *dump = ku_config_dump(cfg), *was = ku_config_numerics(cfg), *is;
    char *text = ku_json_print(dump, JSON_COMPACT);
    KU_ASSERT(text != NULL);
    KU_ASSERT(ku_config_parse("dump", text, strlen(text), NULL, 0, ku_model_hidden_size, &again) ==
              KUMI_OK);
    is = ku_config_numerics(&again);
    KU_ASSERT(ku_config_compare(was, is, &names) == 0);
    ku_str_fini(&names);
    ku_config_fini(&again);
    json_decref(dump);
    json_decref(was);
    json_decref(is);
    ku_free(text);
}

/* Bytes up to the first NUL are the file, those behind it a --set: refused with one line, or right.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *nul = bytes ? memchr(data, 0, bytes) : NULL;
    size_t n = nul ? (size_t)(nul - data) : bytes;
    char *set = ku_calloc(bytes - n + 1, 1);
    const char *sets[1] = {set};
    struct ku_config cfg;
    struct ku_model model;
    KU_ASSERT(set != NULL);
    if (nul)
        memcpy(set, nul + 1, bytes - n - 1);
    int status = ku_config_parse("fuzz", (const char *)data, n, sets, nul != NULL,
                                 ku_model_hidden_size, &cfg);
    if (status == KUMI_OK) {
        check_dump(&cfg);
        status = json_object_get(cfg.model, "path") ? KUMI_OK : ku_model_read(&cfg, &model);
        if (status == KUMI_OK && !json_object_get(cfg.model, "path"))
            ku_model_fini(&model);
        ku_config_fini(&cfg);
    }
    if (status < 0)
        for (const char *c = ku_err_get()->text; c == ku_err_get()->text || *c; c++)
            KU_ASSERT((unsigned char)*c >= ' ' && *c != 0x7f); /* one line, and not an empty one */
    ku_free(set);
    return 0;
}
