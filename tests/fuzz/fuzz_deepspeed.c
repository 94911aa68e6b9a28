/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "fuzz.h"
#include "config/deepspeed.h"
#include "model/model.h"

/*
 * A DeepSpeed configuration as a file: refused with one line, or translated to keys that a
 * configuration of kumi's own may have: their dump is read again, with the same numerics keys.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char config[] = "{\"model\":{\"model_type\":\"gpt2\"},\"data\":{\"train\":\"a\"}}";
    char path[64], set[96];
    const char *sets[1] = {set};
    struct ku_config cfg, again;
    struct ku_ds_batch batch;
    struct ku_str text = {0};
    int fd = ku_fuzz_file(data, bytes, path, sizeof path);
    snprintf(set, sizeof set, "deepspeed=%s", path);
    int status =
        ku_config_parse("fuzz", config, sizeof config - 1, sets, 1, ku_model_hidden_size, &cfg);
    close(fd);
    if (status == KUMI_OK) {
        json_t *dump = ku_config_dump(&cfg), *was = ku_config_numerics(&cfg), *is;
        char *printed = ku_json_print(dump, JSON_COMPACT);
        KU_ASSERT(printed != NULL);
        KU_ASSERT(ku_config_parse("dump", printed, strlen(printed), NULL, 0, ku_model_hidden_size,
                                  &again) == KUMI_OK);
        is = ku_config_numerics(&again);
        KU_ASSERT(ku_config_compare(was, is, &text) == 0);
        ku_str_fini(&text);
        ku_deepspeed_print(cfg.deepspeed, "fuzz", 1, &text);
        KU_ASSERT(text.bytes > 0 && !text.failed);
        json_decref(ku_deepspeed_json(cfg.deepspeed));
        status = ku_deepspeed_batch(&cfg, 3, &batch);
        KU_ASSERT(status < 0 || batch.train == batch.micro * batch.accumulation * 3);
        ku_str_fini(&text);
        ku_config_fini(&again);
        ku_config_fini(&cfg);
        json_decref(dump);
        json_decref(was);
        json_decref(is);
        ku_free(printed);
    }
    if (status < 0)
        for (const char *c = ku_err_get()->text; c == ku_err_get()->text || *c; c++)
            KU_ASSERT((unsigned char)*c >= ' ' && *c != 0x7f);
    return 0;
}
