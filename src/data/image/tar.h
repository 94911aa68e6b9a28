/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_IMAGE_TAR_H
#define KU_DATA_IMAGE_TAR_H

#include "base/err.h"
#include "data/image/store.h"

/*
 * A sample of a shard: byte offset and length of its image, and its class. Little endian in files.
 */
struct ku_tar_entry {
    uint64_t at;
    uint32_t bytes;
    int32_t label;
};
_Static_assert(sizeof(struct ku_tar_entry) == 16, "no padding in a file's record");
struct ku_tar_index {
    struct ku_tar_entry *entry;
    uint32_t n, cap;
};

/*
 * Index a shard. Reads ustar, GNU long names and base-256 numbers, and pax's path and size. A
 * sample is a run of members with the same name up to the first dot after the last slash, with one
 * image (.jpg, .jpeg, .png) and one .cls (a decimal number); other members are ignored:
 *
 *     a/0001.jpg  a/0001.cls  a/0001.json | a/0002.cls  a/0002.jpg | …
 *
 * Errors: EINPUT with shard and byte; ENOMEM. The caller releases out->entry with ku_free, also
 * after an error.
 */
KU_STATUS ku_tar_walk(const struct ku_file *f, const struct ku_progress *progress,
                      struct ku_tar_index *out);

/*
 * Get the index from the cache folder, or index the shard and store the index there.
 *
 *   cache   may have no folder
 *
 * Blocks: while another process indexes the same shard.
 */
KU_STATUS ku_tar_cached(const struct ku_file *f, struct ku_cache *cache,
                        const struct ku_progress *progress, struct ku_tar_index *out);

#endif
