/* SPDX-License-Identifier: Apache-2.0 */
/* links: base job */
#include "base/err.h"
#include "fuzz.h"
#include "job/control/hello.h"

#include <string.h>

/*
 * The first byte says which side reads, and how many bytes at a time; the rest is what a peer
 * without the secret says. It never gets through, and no side reads beyond the hellos.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const uint8_t secret[KU_SECRET_BYTES] = {9};
    const struct ku_claim claim = {.kind = KU_CLAIM_LINK, .from = 1};
    struct ku_hello_side side;
    size_t at = 1;
    if (bytes == 0)
        return 0;
    const bool is_client = data[0] & 1;
    const size_t step = 1 + data[0] / 2;
    KU_ASSERT(ku_hello_start(&side, is_client ? &claim : NULL, secret) == 0);
    while (at < bytes && side.end == KU_HELLO_GOING) {
        size_t n = bytes - at < step ? bytes - at : step;
        n = n < side.n_want - side.n_in ? n : side.n_want - side.n_in;
        KU_ASSERT(n > 0);
        ku_hello_take(&side, data + at, n);
        at += n;
    }
    KU_ASSERT(side.end != KU_HELLO_DONE);
    KU_ASSERT(side.n_in <= sizeof side.in && side.n_out <= sizeof side.out);
    KU_ASSERT(strlen(ku_hello_why(side.end)) > 0);
    return 0;
}
