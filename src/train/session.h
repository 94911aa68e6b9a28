/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_SESSION_H
#define KU_TRAIN_SESSION_H

#include "ckpt/snapshot/retention.h"
#include "data/loader.h"
#include "data/data.h"
#include "config/batch_relation.h"
#include "config/config.h"
#include "model/model.h"
#include "train/pairs.h"
#include "train/saving.h"
#include "config/sharding.h"
#include "train/trainer.h"

/*
 * A configuration brought to life on a job: everything that training, evaluation and plans share.
 * Filled in stages, each on the ones before; fini takes what there is.
 */
struct ku_session {
    struct ku_config cfg;
    struct ku_model model;
    struct ku_watch watch; /* of the compiler; all zero: none */
    const char *stored;    /* of a resume: the checkpoint's model/, for what the configuration names
                              and is gone; NULL. Borrowed until fini */
    struct ku_companions companions; /* rank 0's, of every checkpoint */
    int is_eval_only;                /* the trainer evaluates, and holds parameters alone */
    const struct ku_graph *graph;    /* a program's own, in place of model; NULL */
    struct ku_batch batch;
    struct ku_sharding sharding;
    struct ku_data *data;
    struct ku_pairs pairs; /* of models of pairs; its data are the above */
    struct ku_sampler sampler;
    struct ku_loader *loader[2]; /* of training and evaluation, from their first rows on */
    int64_t seq_len;             /* loss positions of a sample: tokens, or 1 */
    int64_t n_steps, eval_samples;
    int64_t n_params;      /* from create_trainer on, as the next */
    double flops_per_item; /* of the model, forward and backward, for one loss position */
    int64_t decay_steps; /* the schedule's end, as it counts, if none is given; 0: not yet known */
    struct ku_update_group *groups; /* cfg's, for the compiler; NULL: nothing is trained */
    json_t *numerics;               /* the keys with derived values, as manifests keep them */
    unsigned char
        *recompute_level; /* per block, of memory.recompute's budget (train/recompute_budget.h) */
    int n_recompute;
    struct ku_trainer *t;
    struct ku_saving *saving;         /* NULL unless checkpoint.async */
    struct ku_ckpt_verified verified; /* rank 0: the snapshots that need not be read again */
    struct ku_stored { /* what the checkpoint that is being written is described by */
        char *model;
        json_t *config, *libraries, *state;
    } saved;
};

/* Configuration, model, batch relation for n ranks. `was`: the numerics keys of the checkpoint to
 * resume, whose derived values count where none are given; NULL. */
int ku_session_configure(struct ku_session *s, const char *path, const char *const *set, int n_sets,
                         const json_t *was, int n_ranks);
/* Data, sampler, length of the run, schedule. job: whose progress word ticks; NULL. */
int ku_session_open_data(struct ku_session *s, struct ku_job *job);
/* The length of the run as the schedule counts: a part of an epoch is one. */
int64_t ku_session_schedule_length(const struct ku_session *s);
/* What the compiler is told. n_steps must be known: after open_data, or for plans. */
int ku_session_compile_opts(const struct ku_session *s, struct ku_compile_opts *o);
/* Batch shapes: one, or those of the sentence pairs, known once data are open. */
int ku_session_n_shapes(const struct ku_session *s);
/* "global batch 16 = 2 shards x 8 x 1", or the shapes of sentence pairs, once data are open. */
void ku_session_print_batch(const struct ku_session *s, struct ku_str *out);
/* The model's graph for one global batch of a shape. */
int ku_session_graph(const struct ku_session *s, int shape, struct ku_graph **g);
/* Cores that the compute threads of so many ranks of this host have, all together. */
int ku_session_cores(const struct ku_session *s, int local_n);
/* What a rank holds to write checkpoints in the background; 0: they are not. */
size_t ku_session_staging_bytes(const struct ku_session *s);
/* What a rank holds of rows that are read ahead (data.workers), for training and evaluation.
 *   g   the model's graph, whose inputs are a row's ports */
size_t ku_session_loader_bytes(const struct ku_session *s, const struct ku_graph *g);
/* Compiles and allocates. Collective. */
int ku_session_create_trainer(struct ku_session *s, struct ku_job *job);
void ku_session_fini(struct ku_session *s);

/* Fills the training ports for a step, and the evaluation ports for batch number b. Errors:
 * KUMI_EINPUT. */
int ku_session_fill_train(struct ku_session *s, int64_t step);
int ku_session_fill_eval(struct ku_session *s, int64_t b);
/* Whether what the loss counts are samples, not tokens of them. */
int ku_session_is_by_samples(const struct ku_session *s);
/* Samples, of all ranks, that could not be read and counted for nothing (data.on_error: skip), each
 * as often as it was asked for. The first rank says so. Collective. */
int ku_session_count_skipped(const struct ku_session *s, struct ku_job *job, int64_t *n);
/* Loss over the evaluation samples. Collective. */
int ku_session_evaluate(struct ku_session *s, double *loss);

/*
 * Read the files that go with the model into checkpoints: those of the checkpoint that is resumed,
 * else of model.path and data.tokenizer. A model whose keys say nothing of an end of text takes
 * the tokenizer's. Collective. Errors: KUMI_EINPUT, ENOMEM.
 */
int ku_session_take_companions(struct ku_session *s, struct ku_job *job);
/* First values: random, or model.path's weights. Collective. */
int ku_session_first_state(struct ku_session *s);
/*
 * A checkpoint of the present state in dir (OUT/checkpoints). Collective. A failure leaves earlier
 * ones whole and is returned on all ranks (KUMI_ESTORAGE) without ending the job.
 */
int ku_session_save(struct ku_session *s, const char *dir, int64_t step);
/*
 * The same with checkpoint.async: begun here and written while training goes on. poll (once a step)
 * and wait (before the next, and at the end) return how it ended, on all ranks alike; it has ended
 * when it is no longer pending. Collective. Without checkpoint.async start is save, and nothing is
 * ever pending.
 */
int ku_session_open_saving(struct ku_session *s); /* before the first */
int ku_session_save_start(struct ku_session *s, const char *dir, int64_t step);
int ku_session_save_poll(struct ku_session *s);
int ku_session_save_wait(struct ku_session *s);
void ku_session_save_end(struct ku_session *s); /* gives up what is pending; fini calls it */
/*
 * The checkpoint of a step in 16 bit, as run/weights, in place of what stands there. Collective.
 * Errors: KUMI_ESTORAGE; KUMI_EINPUT: a value is beyond f16's range.
 */
int ku_session_gather_16bit(struct ku_session *s, const char *dir, int64_t step, const char *run);
/* The state of the checkpoint at path. Collective. KUMI_ENOCKPT on all ranks when a byte is
 * damaged. */
int ku_session_load(struct ku_session *s, const char *path, int64_t *step);
/* Every rank has read its part of the checkpoint at path: it counts in checkpoint.keep. By rank 0.
 */
void ku_session_add_verified(struct ku_session *s, const char *path);

#endif
