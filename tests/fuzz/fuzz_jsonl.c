/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */
#include "base/err.h"
#include "base/os/os.h"
#include "data/text/jsonl.h"
#include "fuzz.h"

#include <stdlib.h>

/* The first byte is options (8: texts end with a separator), the rest a file. Refused, or every
 * sample can be read, and is what the header says: tokens of the vocabulary, targets or none,
 * segments that grow by one. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    enum { T = 5 };
    char path[64];
    if (bytes == 0)
        return 0;
    setenv("KUMI_LOG", "error", 1);
    int fd = ku_fuzz_file(data + 1, bytes - 1, path, sizeof path);
    const char *train[] = {path};
    const int64_t separator = 0;
    struct ku_jsonl_opts o = {.train = train,
                              .n_train = 1,
                              .val_fraction = data[0] & 2 ? 0.5 : 0.0,
                              .separator = data[0] & 8 ? &separator : NULL,
                              .cache = "/proc/nowhere",
                              .seq_len = T,
                              .vocab_count = 1000,
                              .pack = data[0] & 1,
                              .segments = 1,
                              .on_long = data[0] & 4 ? KU_LONG_ERROR : KU_LONG_CUT};
    struct ku_data *d = NULL;
    if (ku_jsonl_open(&o, &d) == 0) {
        KU_ASSERT(ku_data_verify(d, NULL) == 0);
        for (int split = 0; split < KU_N_SPLITS; split++)
            for (int64_t i = 0; i < d->n_samples[split]; i++) {
                int32_t tokens[T], targets[T], segments[T];
                void *port[] = {tokens, targets, segments};
                KU_ASSERT(ku_data_read(d, (enum ku_data_split)split, i, i, port) == 0);
                for (int k = 0; k < T; k++) {
                    int32_t before = k > 0 ? segments[k - 1] : 0;
                    KU_ASSERT(tokens[k] >= 0 && tokens[k] < o.vocab_count);
                    KU_ASSERT(targets[k] >= 0 ? targets[k] < o.vocab_count
                                              : targets[k] == KU_NO_TARGET);
                    KU_ASSERT(segments[k] == before || (k > 0 && segments[k] == before + 1));
                }
            }
    }
    ku_data_destroy(d);
    ku_os_close(fd);
    return 0;
}
