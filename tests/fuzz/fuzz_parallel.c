/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "data/pairs/bleu.h"
#include "data/pairs/parallel_corpus.h"
#include "fuzz.h"
#include "memory_folder.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * The first byte is options, then come a source and a target file, with a NUL between; a third part
 * is a vocabulary. Refused, or read: then every sample of every batch fits its shape.
 */
static void read_all(const struct ku_data *d)
{
    struct ku_buckets_opts o = {3, 0, 1 << 20, 2, 0, KU_LAST_SHORT, 1, 5};
    struct ku_buckets *b = NULL;
    KU_ASSERT(ku_buckets_of_data(d, KU_SPLIT_TRAIN, &o, &b) == 0);
    for (int64_t step = 0; step < ku_buckets_steps_per_epoch(b); step++) {
        struct ku_bucket_shape s = ku_buckets_shape(b, ku_buckets_shape_at(b, step));
        int32_t src_len, tgt_len, *data = ku_calloc((size_t)(s.src_len + 2 * s.tgt_len) + 1, 4);
        KU_ASSERT(data);
        void *port[] = {data, &src_len, data + s.src_len, data + s.src_len + s.tgt_len, &tgt_len};
        for (int64_t p = 0; p < ku_buckets_batch(b, step); p++) {
            int64_t sample = ku_buckets_at(b, step, p);
            KU_ASSERT(d->ops->read_shape(d, KU_SPLIT_TRAIN, sample, 0, &s, port) == 0);
            KU_ASSERT(src_len >= 1 && src_len <= s.src_len && tgt_len >= 2 && tgt_len <= s.tgt_len);
        }
        ku_free(data);
    }
    ku_buckets_destroy(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const tokenizers[] = {"word", "byte", NULL};
    const uint8_t *part[3] = {data + 1, NULL, NULL};
    size_t part_bytes[3] = {0, 0, 0};
    char path[3][64];
    int fd[3];
    if (bytes == 0)
        return 0;
    setenv("KUMI_LOG", "error", 1);
    for (int i = 0; i < 3; i++) {
        const uint8_t *at = part[i] ? part[i] : data + bytes,
                      *nul = memchr(at, 0, (size_t)(data + bytes - at));
        part_bytes[i] = (size_t)((nul ? nul : data + bytes) - at);
        if (nul && i < 2)
            part[i + 1] = nul + 1;
        fd[i] = ku_fuzz_file(at, part_bytes[i], path[i], sizeof path[i]);
    }
    const char *src[] = {path[0]}, *tgt[] = {path[1]};
    struct ku_vocab *v = NULL;
    struct ku_data *d = NULL;
    struct ku_bleu bleu = {0};
    int kind = data[0] % 3;
    struct ku_vocab_opts vocab_opts = {.tokenizer = tokenizers[kind], .file = src, .n_files = 1};
    char list[80];
    if (kind == 2) {
        snprintf(list, sizeof list, "%s/test-kumi-fuzz-%d.vocab", memory_folder(), (int)getpid());
        KU_ASSERT(ku_os_replace(list, part[2] ? part[2] : data, part_bytes[2]) == 0);
        vocab_opts.tokenizer = list;
    }
    struct ku_parallel_opts o = {.files = {{src, tgt, 1}},
                                 .src_len_max = 1 + data[0] / 4,
                                 .tgt_len_max = 64,
                                 .on_empty = data[0] & 4 ? KU_ODD_ERROR : KU_ODD_DROP,
                                 .on_long = data[0] & 8 ? KU_ODD_ERROR : KU_ODD_DROP,
                                 .cache = "/proc/nowhere"};
    if (ku_vocab_open(&vocab_opts, &v) == 0) {
        o.src_vocab = o.tgt_vocab = v;
        if (ku_parallel_open(&o, &d) == 0)
            read_all(d);
    }
    KU_ASSERT(ku_bleu_add(&bleu, (const char *)part[0], part_bytes[0],
                          (const char *)(part[1] ? part[1] : data), part_bytes[1]) == 0);
    struct ku_bleu_score score = ku_bleu_score(&bleu, 1);
    KU_ASSERT(score.bleu >= 0.0 && score.bleu < 100.001 && score.chrf >= 0.0 &&
              score.chrf < 100.001);
    ku_data_destroy(d);
    ku_vocab_destroy(v);
    if (kind == 2)
        ku_os_unlink(list);
    for (int i = 0; i < 3; i++)
        ku_os_close(fd[i]);
    return 0;
}
