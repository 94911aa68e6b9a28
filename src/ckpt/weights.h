/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_WEIGHTS_H
#define KU_CKPT_WEIGHTS_H

#include "base/json/json.h"
#include "ckpt/companions.h"
#include "ckpt/safetensors.h"

/* How a Hugging Face model's names relate to ours. All-zero: names are equal and every tensor is
 * wanted. */
struct ku_weights_opts {
    const char *prefix; /* "transformer.": names may carry it, or not; NULL: none */
    const char *const
        *ignore; /* [n_ignore] patterns of buffers to pass over ("h.*.attn.bias"), without prefix */
    int n_ignore;
    const char *tied,
        *tied_to;      /* "lm_head.weight" is accepted where it equals "wte.weight"; NULL: none */
    const json_t *map; /* {"name in the files": "ours"}, before all others; NULL: none */
    int allow_missing; /* tensors that the files lack are no error, and stay as they are */
};
struct ku_weights_report {
    int has_prefix; /* the file's names carry it: a writer that shall write what was read adds it */
    int has_tied;   /* the file holds the tied tensor once more */
    int n_ignored, n_missing;
    int n_rounded; /* tensors whose dtype was narrowed */
};

/*
 * Weights in DIR/model.safetensors or its shards, matched to tensors. A prefix that wrappers put
 * before every name ("module.", "_orig_mod.") is taken off and said once.
 */
struct ku_weights {
    char *dir;
    struct ku_st_set set;
    struct ku_ckpt_tensor *tensor; /* [n], those of group MODEL */
    struct ku_weights_from {
        const struct ku_st *file;
        const struct ku_st_tensor *tensor; /* NULL: missing */
    } * from;                              /* [n] */
    int n;
    char *wrapped;        /* "module." */
    void (*tick)(void *); /* of long work, now and then; NULL: nobody wants to know */
    void *tick_ctx;
    struct ku_weights_report report;
};
/*
 * Opens and matches; nothing is read but headers.
 *
 *   tensor   [n] those of group MODEL are meant; NULL: all that the files hold, under their names
 *   opts     NULL: as all-zero
 *
 * Owns: w, until ku_weights_close. Errors: KUMI_EINPUT: files malformed; or missing, extra and
 * misshapen tensors in one list (ckpt/diff.h).
 */
int ku_weights_open(const char *dir, const struct ku_ckpt_tensor *tensor, int n,
                    const struct ku_weights_opts *opts, struct ku_weights *w);
/*
 * Reads rank's part (of n_ranks) of every file into the memory of the tensors that lie there,
 * converting (f64 to f32 rounds once), through four windows of 2 MiB (ckpt/read_ahead.h). Padding
 * is not touched. Errors: KUMI_EINPUT.
 */
int ku_weights_read(struct ku_weights *w, int rank, int n_ranks);
/* What a user should know of how they were taken, to the log: rank 0 of read, and write, do. */
void ku_weights_say(const struct ku_weights *w);
void ku_weights_close(struct ku_weights *w);
/* The three together, for one rank. report: NULL: not wanted. */
int ku_weights_load(const char *dir, const struct ku_ckpt_tensor *tensor, int n,
                    const struct ku_weights_opts *opts, struct ku_weights_report *report);

/*
 * Writes what was opened as a directory that transformers loads: the tensors under our names, in
 * one file or in shards with an index, and config.json. Values pass through one buffer; they change
 * only where a narrower dtype rounds them, once, to nearest even.
 *
 *   dir           made here; KUMI_EBUSY: it exists. On failure nothing is left of it
 *   dtype         of floating tensors; KUMI_N_DTYPES: as they are
 *   shard_bytes   most bytes of tensors in a file, where more than one fits; 0: one file
 *   config        text of config.json
 *   companions    files that go with it; NULL: none
 *
 * Errors: KUMI_ESTORAGE, EBUSY, EINPUT (a value is beyond dtype's range), ENOMEM.
 */
int ku_weights_write(struct ku_weights *w, const char *dir, enum kumi_dtype dtype,
                     uint64_t shard_bytes, const char *config,
                     const struct ku_companions *companions);

#endif
