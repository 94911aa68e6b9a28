/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_WEIGHTS_H
#define KU_CKPT_WEIGHTS_H

#include "base/err.h"
#include "base/json/json.h"
#include "ckpt/companions.h"
#include "ckpt/safetensors.h"

/* An ending of tensor names and its spelling in older files: "LayerNorm.weight",
 * "LayerNorm.gamma". */
struct ku_weights_ending {
    const char *now, *older;
};
/* How tensor names in Hugging Face's files map to kumi's. All-zero: equal names, every tensor
 * required. */
struct ku_weights_opts {
    const char *prefix; /* optional prefix of names in files, "transformer."; NULL: none */
    const char *head; /* tensor outside of the prefix ("lm_head.weight"): files with it are written
                         with the prefix on all other names; NULL: names are unchanged */
    const char *const
        *ignore; /* [n_ignore] patterns of tensors to skip ("h.*.attn.bias"), without prefix */
    int n_ignore;
    const char *tied, *tied_to; /* tied tensor that files may repeat ("lm_head.weight") if it equals
                          tied_to ("wte.weight"); NULL: none */
    const struct ku_weights_ending *ending; /* [n_endings] looked up in the older spelling where the
                                               files lack a name; n_endings 0: none */
    int n_endings;
    const json_t *map; /* {"name in files": "kumi's name"}, takes precedence; NULL: none */
    int allow_missing; /* tensors missing in the files are left unchanged instead of an error */
};
struct ku_weights_report {
    int has_prefix; /* names in the files have the prefix */
    int has_tied;   /* the files repeat the tied tensor */
    int n_ignored, n_missing;
    int n_rounded; /* tensors converted to a dtype that is not wider */
};

/*
 * Weights in DIR/model.safetensors or its shards, matched to tensors. A prefix that PyTorch
 * wrappers add to every name ("module.", "_orig_mod.") is removed, with one warning.
 */
struct ku_weights {
    char *dir;
    struct ku_st_set set;
    struct ku_ckpt_tensor *tensor; /* [n] of group MODEL */
    struct ku_weights_from {
        const struct ku_st *file;
        const struct ku_st_tensor *tensor; /* NULL: missing */
    } * from;                              /* [n] */
    int n;
    char *wrapped;             /* prefix of wrappers, "module." or "" */
    const char *prefix, *head; /* of the options */
    char *prefixed;            /* names with the prefix (ku_weights_write); NULL: none */
    struct ku_weights_report report;
};
/*
 * Open the files, read their headers and match the tensors.
 *
 *   tensor   [n]; only those of group MODEL are used; NULL: all tensors of the files
 *   opts     NULL: all-zero; its prefix and head are borrowed until ku_weights_close
 *
 * Owns: w, until ku_weights_close. Errors: EINPUT, malformed files, or a list of missing, extra and
 * misshapen tensors (ckpt/diff.h).
 */
KU_STATUS ku_weights_open(const char *dir, const struct ku_ckpt_tensor *tensor, int n,
                          const struct ku_weights_opts *opts, struct ku_weights *w);
/*
 * Read this rank's part of every file into memory that n_ranks ranks share, with conversion (floats
 * round once). Uses 8 MiB of staging buffers (ckpt/read_ahead.h). Padding is not changed.
 *
 * Errors: EINPUT.
 */
KU_STATUS ku_weights_read(struct ku_weights *w, int rank, int n_ranks);
/* Log removed prefixes, rounded and missing tensors. Read (on rank 0) and write call it. */
void ku_weights_say(const struct ku_weights *w);
void ku_weights_close(struct ku_weights *w);
/* Open, read and close, for one rank. report: NULL: none. */
KU_STATUS ku_weights_load(const char *dir, const struct ku_ckpt_tensor *tensor, int n,
                          const struct ku_weights_opts *opts, struct ku_weights_report *report);

/*
 * Write the opened weights to a new directory that transformers loads: the tensors under kumi's
 * names, with the prefix where the model has a head, in one file or in shards with an index, and
 * config.json. A narrower dtype rounds values once, to nearest even; finite values that exceed its
 * range are refused. Changes names and dtypes of w.
 *
 *   dir           created; on failure removed
 *   dtype         of floating-point tensors; KUMI_N_DTYPES: unchanged
 *   shard_bytes   max bytes of tensors per file, except for a single larger tensor; 0: one file
 *   config        text of config.json
 *   companions    further files; NULL: none
 *
 * Errors: EBUSY (dir exists), ESTORAGE, EINPUT (unreadable weights, range of dtype), ENOMEM.
 */
KU_STATUS ku_weights_write(struct ku_weights *w, const char *dir, enum kumi_dtype dtype,
                           uint64_t shard_bytes, const char *config,
                           const struct ku_companions *companions);

#endif
