/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_IMAGE_TAR_H
#define KU_DATA_IMAGE_TAR_H

#include "data/image/store.h"

/* A sample of a shard: where its image lies, and its class. In files little endian. */
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
 * Walks a shard: ustar, GNU's long names and base-256 numbers, pax's path and size. A sample is the
 * run of members whose names agree up to the first dot behind the last slash, with an image (.jpg,
 * .jpeg, .png) and .cls (a decimal number); others are left out.
 *
 * Errors: EINPUT with shard and byte; ENOMEM. *out is the caller's to ku_free, also then.
 */
int ku_tar_walk(const struct ku_file *f, const struct ku_progress *progress,
                struct ku_tar_index *out);

/* The walk's result from the cache folder, or from a walk that is then kept there; NULL: nowhere.
 * Blocks while another process walks. */
int ku_tar_cached(const struct ku_file *f, const char *cache, const struct ku_progress *progress,
                  struct ku_tar_index *out);

#endif
