/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_SNAPSHOT_SNAPSHOT_H
#define KU_CKPT_SNAPSHOT_SNAPSHOT_H

#include "base/err.h"
#include "base/json/json.h"
#include "ckpt/companions.h"
#include "ckpt/saved_tensor.h"

/*
 * Snapshots of the state: DIR/step-00000500/
 *
 *     manifest.json                        metadata, and a checksum of each .xxh3 file
 *     model/config.json                    transformers loads model/ as it is
 *     model/model.safetensors
 *     optimizer/optimizer.safetensors
 *     <each of these>.xxh3                 checksums of its pieces (ckpt/snapshot/file_layout.h)
 *     model/tokenizer.json, …              companions, with checksums in the manifest
 *
 * A snapshot is written to DIR/.tmp-step-00000500, synced and renamed, so a directory step-* is
 * always complete, even after a power failure. The bytes do not depend on the number of ranks.
 */
enum { KU_CKPT_VERSION = 1, KU_CKPT_MAX_MANIFEST_BYTES = 64 << 20, KU_CKPT_PATH_BYTES = 640 };
enum ku_ckpt_file_id {
    KU_CKPT_FILE_CONFIG,
    KU_CKPT_FILE_MODEL,
    KU_CKPT_FILE_OPTIMIZER,
    KU_CKPT_N_FILES
};
/* "model/config.json", … */
const char *ku_ckpt_file_name(int file);

struct ku_ckpt_verified;

/* The contents of a snapshot, equal on all ranks. JSON values are borrowed; NULL: empty object. */
struct ku_ckpt_desc {
    const char *dir; /* OUT/checkpoints */
    int64_t step, update;
    const struct ku_ckpt_tensor *tensor;
    int n_tensors;
    const char *model_config; /* text of config.json */
    json_t *numerics;         /* numerics keys and values; numerics_hash is their SHA-256 */
    json_t *config;           /* the whole configuration */
    json_t *state;            /* scalars: loss scale and its counters, sampler position, … */
    json_t *libraries;        /* name: version */
    const char *isa;
    const char *data_fingerprint;
    const char *digest;                     /* "sha256:…", or NULL: not computed */
    const struct ku_companions *companions; /* only on the committing rank; NULL: none */
    int keep;                               /* number of verified snapshots to keep; 0: all */
    struct ku_ckpt_verified *verified;      /* cache for keep; NULL: each commit verifies all */
};

/*
 * Write a snapshot in phases, with a barrier of the caller between two phases.
 *
 *     ku_ckpt_writer_create(&desc, &w)    every rank: plans the files, no system call
 *     ku_ckpt_writer_begin(w)             one rank: creates directories and files of full size
 *     ku_ckpt_writer_write(w, rank, n)    every rank: writes and syncs its chunks and checksums
 *     ku_ckpt_writer_commit(w)            one rank: manifest, rename, removal of old snapshots
 *     ku_ckpt_writer_destroy(w)           every rank
 *
 * Tensors must not change during write (with write_so: until the callback `copied` releases them).
 * Pointers in desc must be valid until destroy. If begin or commit fails, it has cleaned up; if
 * write fails on any rank, one rank calls ku_ckpt_writer_abort. Existing snapshots are not changed.
 *
 * Errors: ESTORAGE, ENOMEM. Threads: any, one at a time.
 */
struct ku_ckpt_writer;
KU_STATUS ku_ckpt_writer_create(const struct ku_ckpt_desc *desc, struct ku_ckpt_writer **w);
KU_STATUS ku_ckpt_writer_begin(struct ku_ckpt_writer *w);
KU_STATUS ku_ckpt_writer_write(struct ku_ckpt_writer *w, int rank, int n_ranks);
/* How a rank writes its part. All-zero: with its own staging buffer of 4 MiB and no callback. */
enum { KU_CKPT_WINDOW_BYTES = 4 << 20 /* per write: larger O_DIRECT writes are not faster */ };
struct ku_ckpt_writing {
    unsigned char *staging; /* staging buffers between copy and write; page-aligned */
    size_t staging_bytes;   /* a multiple of KU_CKPT_WINDOW_BYTES */
    /* Callback of the writing thread, at the start and after each copy: tensors with a turn below
     * `turn` may change from now on. < 0 ends the writing. */
    int (*copied)(void *ctx, uint32_t turn);
    void *ctx;
};
KU_STATUS ku_ckpt_writer_write_so(struct ku_ckpt_writer *w, int rank, int n_ranks,
                                  const struct ku_ckpt_writing *how);
KU_STATUS ku_ckpt_writer_commit(struct ku_ckpt_writer *w);
void ku_ckpt_writer_abort(struct ku_ckpt_writer *w); /* preserves the error record */
void ku_ckpt_writer_destroy(struct ku_ckpt_writer *w);
/* Bytes of all files except checksums, manifest and companions. */
uint64_t ku_ckpt_writer_bytes(const struct ku_ckpt_writer *w);
/* All phases, by one rank. */
KU_STATUS ku_ckpt_save(const struct ku_ckpt_desc *desc);

/* An open snapshot: the manifest is valid and the files have the right sizes. */
struct ku_ckpt {
    char *path;
    int64_t step, update;
    /* root: format version step update digest numerics_hash numerics data_fingerprint isa libraries
     * state config chunk_bytes files companions */
    struct ku_json manifest;
    uint64_t manifest_sum; /* XXH3-64 of the manifest's text; equal sums: equal snapshots */
    struct {
        uint64_t bytes, sum; /* size of the file; checksum of its .xxh3 */
    } file[KU_CKPT_N_FILES];
};
/* Open a snapshot. Errors: ENOCKPT, with the damage. */
KU_STATUS ku_ckpt_open(const char *path, struct ku_ckpt *c);
void ku_ckpt_close(struct ku_ckpt *c);
/*
 * A run in training removes snapshots (checkpoint.keep) while they are read. Readers then take the
 * newest of that time, until the run has removed so many: a run that commits five snapshots in the
 * time in which one is read would go on to do so.
 */
enum { KU_CKPT_MAX_REMOVED = 5 };
/*
 * Open the newest usable snapshot with a step below `before`. Damaged ones are skipped with a
 * warning; where all are removed between listing and opening, the directory is listed again.
 *
 *   dir   a directory of snapshots, a run with one in checkpoints/, or a single snapshot
 *
 * Errors: ENOCKPT, there is none.
 */
KU_STATUS ku_ckpt_find(const char *dir, int64_t before, struct ku_ckpt *c);
/*
 * Returns 1 if dir, as for ku_ckpt_find, has a snapshot, usable or not; 0 if it has none or does
 * not exist. Errors: ENOCKPT, it cannot be read; ENOMEM.
 */
KU_STATUS ku_ckpt_has_any(const char *dir);
/* Open the snapshot of one step in a directory of snapshots. Errors: as ku_ckpt_open; ENOCKPT, the
 * manifest has another step. */
KU_STATUS ku_ckpt_open_step(const char *folder, int64_t step, struct ku_ckpt *c);

/*
 * Read this rank's part of the chunks into memory that n_ranks ranks share, and verify it.
 * Conversions must be exact, except to 16-bit floats, which round to nearest. Padding is not
 * changed.
 *
 *   tensor   [n] exactly the tensors of the snapshot
 *
 * Errors: EINPUT, all differences of the tensors (memory not changed); ENOCKPT, damaged, with file,
 * tensor and bytes (memory undefined). After ENOCKPT on any rank, all ranks may try
 * ku_ckpt_find(dir, c->step, …).
 */
KU_STATUS ku_ckpt_read(const struct ku_ckpt *c, const struct ku_ckpt_tensor *tensor, int n,
                       int rank, int n_ranks);
/* The same for a part of the state: a file without a requested tensor is not read, and the
 * optimizer's file may have other tensors. */
KU_STATUS ku_ckpt_read_only(const struct ku_ckpt *c, const struct ku_ckpt_tensor *tensor, int n,
                            int rank, int n_ranks);
/* Find and read the newest undamaged snapshot, for one rank. */
KU_STATUS ku_ckpt_resume(const char *dir, const struct ku_ckpt_tensor *tensor, int n,
                         struct ku_ckpt *c);

/* Verify the checksums of the companions. Errors: ENOCKPT, with the first that differs. */
KU_STATUS ku_ckpt_check_companions(const struct ku_ckpt *c);

/* A row of `kumi ckpt list`. */
struct ku_ckpt_entry {
    char name[32];
    int64_t step, update;
    uint64_t bytes; /* of its files, without checksums */
    int is_usable;  /* ku_ckpt_open succeeds */
    char problem[256];
};
/*
 * List the snapshots of dir (as for ku_ckpt_find), newest first, without those that a run in
 * training removes meanwhile. The caller frees *entries.
 */
KU_STATUS ku_ckpt_list(const char *dir, struct ku_ckpt_entry **entries, int *n);

/* A damaged piece, or an unreadable file (bytes = 0, `what` has the reason). */
struct ku_ckpt_damage {
    const char *file;   /* "model/model.safetensors"; NULL: `what` names it */
    const char *tensor; /* NULL: not in a tensor (header, checksums) */
    uint64_t at, bytes; /* the piece in the file */
    const char *what;
};
/*
 * Verify all checksums of a snapshot.
 *
 *   report   called for each damage; NULL: stop at the first
 *
 * Errors: ENOCKPT, with the first damage.
 */
KU_STATUS ku_ckpt_verify(const char *path, void (*report)(void *ctx, const struct ku_ckpt_damage *),
                         void *ctx);
/* The same for an open snapshot, up to the first damage. */
KU_STATUS ku_ckpt_check(const struct ku_ckpt *c);

#endif
