/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_SNAPSHOT_SNAPSHOT_H
#define KU_CKPT_SNAPSHOT_SNAPSHOT_H

#include "base/json/json.h"
#include "ckpt/companions.h"
#include "ckpt/tensor.h"

/*
 * Snapshots of the state: DIR/step-00000500/
 *
 *     manifest.json                        what this is, and a checksum of each .xxh3
 *     model/config.json                    with the next, what transformers loads
 *     model/model.safetensors
 *     optimizer/optimizer.safetensors
 *     <each of these>.xxh3                 checksums of its pieces (ckpt/snapshot/file_layout.h)
 *     model/tokenizer.json, …              companions, with checksums in the manifest
 *
 * A snapshot is made in DIR/.tmp-step-00000500 and renamed when every byte is on the disk, so a
 * name without a dot is a whole snapshot, whenever the power fails. Files are the same bytes for
 * any number of ranks.
 */
enum { KU_CKPT_VERSION = 1, KU_CKPT_MAX_MANIFEST_BYTES = 64 << 20 };
enum ku_ckpt_file_id {
    KU_CKPT_FILE_CONFIG,
    KU_CKPT_FILE_MODEL,
    KU_CKPT_FILE_OPTIMIZER,
    KU_CKPT_N_FILES
};
/* "model/config.json", … */
const char *ku_ckpt_file_name(int file);

/* Called after each piece (1 MiB) of a long read; NULL: not called. */
struct ku_ckpt_tick {
    void (*call)(void *ctx);
    void *ctx;
};
struct ku_ckpt_verified;

/* What to write; equal on all ranks. JSON values are borrowed; NULL is an empty object. */
struct ku_ckpt_desc {
    const char *dir; /* OUT/checkpoints */
    int64_t step, update;
    const struct ku_ckpt_tensor *tensor;
    int n_tensors;
    const char *model_config; /* text of config.json */
    json_t *numerics;         /* the numerics keys and their values; hashed into numerics_hash */
    json_t *config;           /* the whole configuration */
    json_t *state;            /* scalars: loss scale and its counters, sampler position, … */
    json_t *libraries;        /* name: version */
    const char *isa;
    const char *data_fingerprint;
    const char *digest;                     /* "sha256:…", or NULL: not computed */
    const struct ku_companions *companions; /* of the committing rank alone; NULL: none */
    int keep;                               /* newest snapshots that verify and stay; 0: all */
    struct ku_ckpt_verified *verified;      /* for keep; NULL: every commit reads them all */
    struct ku_ckpt_tick tick;               /* progress of a commit that reads */
};

/*
 * Writing, in phases; between two of them the caller has a barrier.
 *
 *     ku_ckpt_writer_create(&desc, &w)    every rank: no system call
 *     ku_ckpt_writer_begin(w)             one rank: the folder, files of full length
 *     ku_ckpt_writer_write(w, rank, n)    every rank: its chunks, their checksums, fsync
 *     ku_ckpt_writer_commit(w)            one rank: manifest, rename, removal of the oldest
 *     ku_ckpt_writer_destroy(w)           every rank
 *
 * The tensors' memory is read in write and must stand still meanwhile (each until it was copied:
 * write_so says when); what desc points to stays until destroy. A begin or commit that fails has
 * cleaned up; after a write that failed on any rank, one calls ku_ckpt_writer_abort. What was there
 * before is untouched.
 *
 * Errors: KUMI_ESTORAGE, KUMI_ENOMEM. Threads: a writer belongs to one thread at a time, any.
 */
struct ku_ckpt_writer;
int ku_ckpt_writer_create(const struct ku_ckpt_desc *desc, struct ku_ckpt_writer **w);
int ku_ckpt_writer_begin(struct ku_ckpt_writer *w);
int ku_ckpt_writer_write(struct ku_ckpt_writer *w, int rank, int n_ranks);
/* How a rank writes its part. All-zero: through 4 MiB of its own, telling nobody. */
enum { KU_CKPT_WINDOW_BYTES = 4 << 20 /* a write: O_DIRECT's plateau */ };
struct ku_ckpt_writing {
    unsigned char *staging; /* copies wait here to be written; page-aligned */
    size_t staging_bytes;   /* a multiple of KU_CKPT_WINDOW_BYTES */
    /* Called at the beginning and after each copy, by the writing thread: of the tensors that
     * change, those with a turn below `turn` are no longer needed. < 0 ends the writing. */
    int (*copied)(void *ctx, uint32_t turn);
    void *ctx;
};
int ku_ckpt_writer_write_so(struct ku_ckpt_writer *w, int rank, int n_ranks,
                            const struct ku_ckpt_writing *how);
int ku_ckpt_writer_commit(struct ku_ckpt_writer *w);
void ku_ckpt_writer_abort(struct ku_ckpt_writer *w); /* keeps the error record */
void ku_ckpt_writer_destroy(struct ku_ckpt_writer *w);
/* Of all files but checksums and manifest. */
uint64_t ku_ckpt_writer_bytes(const struct ku_ckpt_writer *w);
/* All phases, by one rank. */
int ku_ckpt_save(const struct ku_ckpt_desc *desc);

/* A snapshot whose manifest is whole and whose files have their lengths. */
struct ku_ckpt {
    char *path;
    int64_t step, update;
    /* root: format version step update digest numerics_hash numerics data_fingerprint isa libraries
     * state config chunk_bytes files companions */
    struct ku_json manifest;
    uint64_t manifest_sum; /* checksum of its text: equal sums, equal snapshots */
    struct {
        uint64_t bytes, sum; /* of the file; the checksum of its .xxh3 */
    } file[KU_CKPT_N_FILES];
};
/* Errors: KUMI_ENOCKPT with what is damaged. */
int ku_ckpt_open(const char *path, struct ku_ckpt *c);
void ku_ckpt_close(struct ku_ckpt *c);
/*
 * Open the newest usable snapshot of DIR with a step below `before`, or the snapshot DIR itself is.
 * Damaged ones are named in a warning and passed over.
 *
 *   dir   a folder of snapshots, a run that holds one in checkpoints/, or one snapshot
 *
 * Errors: KUMI_ENOCKPT: none.
 */
int ku_ckpt_find(const char *dir, int64_t before, struct ku_ckpt *c);
/* Open the snapshot of one step in a folder of snapshots. Errors: as ku_ckpt_open; KUMI_ENOCKPT:
 * its manifest names another step. */
int ku_ckpt_open_step(const char *folder, int64_t step, struct ku_ckpt *c);

/*
 * Read this rank's share of the chunks into memory that ranks share (or everything, as rank 0 of
 * 1), checking each. Conversions are exact or refused, but for those to
 * floats of 16 bits, which round to nearest; padding is not touched.
 *
 *   tensor   exactly those of the snapshot, else KUMI_EINPUT with all differences, before anything
 * is written
 *
 * Errors: KUMI_ENOCKPT: damaged (file, tensor, byte); memory is then undefined, and the caller,
 * when all ranks know, tries ku_ckpt_find(dir, c->step, …).
 */
int ku_ckpt_read(const struct ku_ckpt *c, const struct ku_ckpt_tensor *tensor, int n, int rank,
                 int n_ranks);
/*
 * The same, for who does not want the whole state: a file of which no tensor is asked for is not
 * read, and the optimizer's may hold more than is asked for.
 */
int ku_ckpt_read_only(const struct ku_ckpt *c, const struct ku_ckpt_tensor *tensor, int n, int rank,
                      int n_ranks);
/* find and read until one is whole: for one rank. */
int ku_ckpt_resume(const char *dir, const struct ku_ckpt_tensor *tensor, int n, struct ku_ckpt *c);

/* Hold the companions against their checksums. Errors: KUMI_ENOCKPT with the first that differs. */
int ku_ckpt_check_companions(const struct ku_ckpt *c);

/* What `kumi ckpt list` prints, newest first. */
struct ku_ckpt_entry {
    char name[32];
    int64_t step, update;
    uint64_t bytes; /* of its files, checksums left out */
    int is_usable;  /* as ku_ckpt_open sees it */
    char problem[256];
};
int ku_ckpt_list(const char *dir, struct ku_ckpt_entry **entries,
                 int *n); /* ku_free; none: n = 0 */

/* A damaged piece, or a file that cannot be read at all (bytes = 0, what says why). */
struct ku_ckpt_damage {
    const char *file;   /* "model/model.safetensors" */
    const char *tensor; /* NULL: not in one ("header", checksums) */
    uint64_t at, bytes; /* of the piece in the file; its MiB is at >> 20 */
    const char *what;
};
/*
 * Read a whole snapshot and hold every piece against its checksum.
 *
 *   report   called for each damage; NULL: none
 *
 * Errors: KUMI_ENOCKPT with the first damage.
 */
int ku_ckpt_verify(const char *path, void (*report)(void *ctx, const struct ku_ckpt_damage *),
                   void *ctx);
/* The same of an open snapshot, up to the first damage. */
int ku_ckpt_check(const struct ku_ckpt *c, struct ku_ckpt_tick tick);

#endif
