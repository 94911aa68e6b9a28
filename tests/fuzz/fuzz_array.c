/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */
#include "base/err.h"
#include "base/os/os.h"
#include "data/image/array.h"
#include "fuzz.h"

#include <string.h>

/*
 * The first byte says which format, the rest is a file that serves as images and as labels: a
 * header is refused with one line or describes exactly the file; what opens has images that can be
 * read.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct ku_array_header h;
    if (bytes == 0)
        return 0;
    int is_npy = data[0] & 1;
    size_t most = is_npy ? KU_NPY_HEADER_MAX : KU_IDX_HEADER_MAX, n = bytes - 1;
    int status =
        (is_npy ? ku_npy_parse : ku_idx_parse)("fuzz", data + 1, n < most ? n : most, n, &h);
    KU_ASSERT(status == KUMI_OK || status == KUMI_EINPUT);
    if (status < 0) {
        KU_ASSERT(strchr(ku_err_get()->text, '\n') == NULL);
        return 0;
    }
    uint64_t count = (uint64_t)(h.type[1] - '0');
    for (int i = 0; i < h.ndim; i++) {
        KU_ASSERT(h.dim[i] > 0);
        count *= (uint64_t)h.dim[i];
    }
    KU_ASSERT(h.ndim >= 1 && h.ndim <= 4 && h.at + count == n);
    char path[64];
    const char *names[] = {path};
    struct ku_data *d;
    struct ku_image_opts o = {.kind = is_npy ? "npy" : "idx",
                              .train = names,
                              .n_train = 1,
                              .train_labels = names,
                              .n_train_labels = 1};
    int fd = ku_fuzz_file(data + 1, n, path, sizeof path);
    status = ku_image_open(&o, &d);
    KU_ASSERT(status < 0); /* one file is never both: labels have one dimension, images more */
    ku_os_close(fd);
    return 0;
}
