/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_SESSION_H
#define KU_TRAIN_SESSION_H

#include "base/err.h"
#include "ckpt/snapshot/retention.h"
#include "config/batch_relation.h"
#include "config/config.h"
#include "model/model.h"
#include "batch/batch_source.h"
#include "train/saving.h"
#include "config/sharding.h"
#include "train/trainer.h"

/*
 * A session: a configuration with everything that training, evaluation and plans derive from it. It
 * is filled in stages; each needs those before it, and fini frees what exists.
 *
 *     ku_session_configure        cfg, model, batch, sharding, source, numerics
 *             │                          │ plans: ku_session_compile_opts, ku_session_graph
 *     ku_session_open_data        the data of source, n_steps, decay_steps
 *             │
 *     ku_session_create_trainer   compile, allocate: t, n_params, shape_flops
 *             │
 *     ku_session_open_saving, take_companions
 *             │
 *     ku_session_first_state or ku_session_load
 *             │
 *     per step: ku_session_fill_train, ku_trainer_step; evaluate; save_start, save_poll
 *
 * The step itself belongs to the trainer (trainer.h), the order of a whole run to run.c.
 */
struct ku_session {
    struct ku_config cfg;
    struct ku_model model;
    struct ku_watch watch; /* of the compiler; all zero: none */
    /*
     * Of a resume: the checkpoint's model/ folder, for files that the configuration names but no
     * longer exist; else NULL. Borrowed until fini.
     */
    const char *stored;
    struct ku_companions companions;  /* rank 0: files that go into every checkpoint */
    int is_eval_only;                 /* evaluation only: parameters without optimizer state */
    struct ku_remote_opts remote;     /* a worker or server; all zero: neither */
    int worker;                       /* its index */
    const struct ku_graph *graph;     /* a program's own graph, instead of model; else NULL */
    int host_ranks;                   /* as ku_sharding_resolve takes it */
    bool has_even_hosts;              /* as ku_sharding_share takes it */
    int n_over;                       /* as ku_config_load_over takes it */
    const struct ku_host_ranks *host; /* [n_hosts] of the job or plan, borrowed; NULL: one host */
    int n_hosts;
    struct ku_batch batch;
    struct ku_sharding sharding;
    struct ku_session_reading {
        struct ku_job *job; /* NULL: none */
        bool heeds_stop;    /* a stop signal ends what is read when the data are opened */
        bool is_told;
        uint64_t last;               /* hash of the last report */
        int64_t called_ns, stood_ns; /* time of it; time for which nothing has advanced */
    } reading;                       /* progress of the source (session_data.c) */
    struct ku_batch_source *source;  /* never opened if a program fills the ports */
    struct ku_session_feed *feed;    /* ports of the source in the trainer's programs */
    int64_t seq_len;                 /* loss positions of a sample: tokens, or 1 */
    int64_t n_steps;
    int64_t n_params;    /* set by create_trainer, as is shape_flops */
    double *shape_flops; /* [n_shapes] model FLOP of a step, forward and backward */
    /* End of the schedule in its unit if none is configured; 0: not yet known. */
    int64_t decay_steps;
    struct ku_update_group *groups; /* from cfg, for the compiler; NULL: no training */
    json_t *numerics;               /* numerics keys with derived values, as in manifests */
    /* Per layer, from memory.recompute's budget. */
    unsigned char *recompute_level;
    struct ku_pp_schedule *schedule;  /* of parallel.pp; NULL: not made yet, or no pipeline */
    const char *schedule_name;        /* of pp_schedule auto: what it chose; else NULL */
    int *stage_layers;                /* layers of each of its stages */
    struct ku_stage_cost *layer_cost; /* of each layer; NULL: not needed yet */
    struct ku_between *between;       /* bytes of the layers; NULL: not needed yet */
    int n_recompute;
    struct ku_trainer *t;
    struct ku_saving *saving;         /* NULL unless checkpoint.async */
    struct ku_ckpt_verified verified; /* rank 0: snapshots that are already verified */
    /* Description of the checkpoint that is being written. */
    struct ku_saved {
        char *model;
        json_t *config, *libraries, *state;
    } saved;
};

/*
 * Load configuration and model, and resolve the batch for n ranks.
 *
 *   was   numerics keys of the checkpoint to resume, whose derived values apply where none are
 *          given; NULL: no resume
 */
KU_STATUS ku_session_configure(struct ku_session *s, const char *path, const char *const *set,
                               int n_sets, const json_t *was, int n_ranks);
/* The same after the configuration: s->cfg is finished (ku_config_finish). */
KU_STATUS ku_session_resolve(struct ku_session *s, const json_t *was, int n_ranks);
/*
 * Open data and sampler; determine the length of the run and of the schedule.
 *
 *   job   ticked while the data are read; may be NULL
 *
 * Errors: EINPUT, EINVAL, ENOMEM; ETIMEDOUT: another process that reads a file has not advanced for
 * parallel.timeout_s; ESTOPPED: the job was asked to stop, which the ranks must agree on.
 */
KU_STATUS ku_session_open_data(struct ku_session *s, struct ku_job *job);
/*
 * Progress of the session's batch source. It ticks the job, which may be NULL, when something has
 * advanced, so that a rank whose reads hang counts as silent. Errors: ETIMEDOUT as above.
 */
struct ku_progress ku_session_progress(struct ku_session *s, struct ku_job *job);
/* 0: the data are not open. In ps.mode async and ssp a step is an update of one worker's part. */
int64_t ku_session_steps_per_epoch(const struct ku_session *s);
/*
 * Length of the run in the schedule's unit. A partial epoch counts as one.
 */
int64_t ku_session_schedule_length(const struct ku_session *s);
/* Ranks of the job: data-parallel ranks x tp x pp. */
static inline int ku_session_n_ranks(const struct ku_session *s)
{
    return s->batch.n_ranks * s->sharding.tp * s->sharding.pp;
}
/* The number of data-parallel ranks among n, from cfg alone: n / (tp pp), min 1. */
int ku_session_data_ranks(const struct ku_session *s, int n);
/* The compiler's options. n_steps must be known: call it after open_data, or for plans. */
KU_STATUS ku_session_compile_opts(const struct ku_session *s, struct ku_compile_opts *o);
/* session_pipeline.c: with parallel.pp above 1 sets the schedule and the layers of each stage. */
KU_STATUS ku_session_plan_pipeline(struct ku_session *s, struct ku_compile_opts *o);
/* What F, I and W of each stage cost, recomputation included (pass/pipe/layer_stages.h), and with
 * parallel.pp_flop_per_byte what it sends. cost: out [n_stages]. After ku_session_plan_pipeline. */
KU_STATUS ku_session_stage_costs(struct ku_session *s, const struct ku_compile_opts *o,
                                 struct ku_stage_cost *cost);
struct ku_stage_bytes;
/* What each stage holds between its blocks and sends (pass/pipe/between_blocks.h), likewise. */
KU_STATUS ku_session_stage_bytes(struct ku_session *s, const struct ku_compile_opts *o,
                                 struct ku_stage_bytes *bytes);
void ku_session_pipeline_fini(struct ku_session *s);
/* Schedule and layers of each stage, in front of the batch; nothing without a pipeline. */
void ku_session_print_pipeline(const struct ku_session *s, struct ku_str *out);
/* The model's graph for one global batch of a shape. */
KU_STATUS ku_session_graph(const struct ku_session *s, int shape, struct ku_graph **g);
/*
 * memory.recompute with a budget: choose a recompute level for each layer, so that a rank's plan
 * (what it maps itself and its share of the host's arenas) stays within it. The session keeps the
 * result. Without a budget nothing happens.
 *
 *   o    gets the levels, which the session owns
 *
 * Errors: KUMI_ENOMEM: even full recomputation exceeds the budget, with the bytes.
 */
KU_STATUS ku_session_solve_recompute(struct ku_session *s, const struct ku_target *target,
                                     struct ku_compile_opts *o);
/* Append "recompute by layer: 3 none, 9 selective", or nothing without a budget. */
void ku_session_print_recompute(const struct ku_session *s, struct ku_str *out);
/*
 * Compute threads of a rank: train.threads, else KUMI_THREADS, else its share of the cores.
 *
 *   n_ranks, n_cpus   the ranks that share CPUs, this one included, and the CPUs that they may use
 *                     together (ku_comm_cores): a launcher may have bound each rank to its own
 *   n_own             CPUs that this rank may use
 */
int ku_session_threads(const struct ku_session *s, int n_ranks, int n_cpus, int n_own);
/* Cores for the compute threads of local_n ranks together. */
int ku_session_cores(const struct ku_session *s, int local_n);
/* Staging bytes per rank for asynchronous checkpoints; 0: they are synchronous. */
size_t ku_session_staging_bytes(const struct ku_session *s);
/* Bytes of a rank for chunks of exchanges between hosts: the maximum over the largest host. */
KU_STATUS ku_session_exchange_bytes(const struct ku_session *s, const struct ku_mesh *m,
                                    size_t *bytes);
/*
 * Check that all ranks have the same configuration, build and data. Collective; once the data are
 * open.
 *
 * Errors: KUMI_EINVAL: the first rank that differs from rank 0, with the values of both.
 */
KU_STATUS ku_session_check_ranks(const struct ku_session *s, struct ku_job *job);
/*
 * The instruction set of all ranks: the configuration's, or what the kernels' rates on rank 0's
 * machine choose for the compute dtype. Collective. Errors: KUMI_EDEVICE: the CPU of a rank lacks
 * it.
 */
KU_STATUS ku_session_choose_isa(const struct ku_session *s, struct ku_job *job, enum ku_isa *out);
/*
 * Compile and allocate. Collective.
 */
KU_STATUS ku_session_create_trainer(struct ku_session *s, struct ku_job *job);
void ku_session_fini(struct ku_session *s);
/* Resolve the ports that fills write, once; for create_trainer and fini. */
KU_STATUS ku_session_resolve_feed(struct ku_session *s);
void ku_session_drop_feed(struct ku_session *s);

/* Fill the training ports for a step. Errors: KUMI_EINPUT. */
KU_STATUS ku_session_fill_train(struct ku_session *s, int64_t step);
/*
 * Number of samples on all ranks that could not be read and did not count (data.on_error: skip),
 * once per read. Rank 0 logs it. Collective.
 */
KU_STATUS ku_session_count_skipped(const struct ku_session *s, struct ku_job *job, int64_t *n);
/* Whether to end an evaluation; all ranks must get the same answer. Collective if `call` is. */
struct ku_session_stop {
    int (*call)(void *ctx, bool *is_stopped);
    void *ctx;
};
/*
 * Mean loss over the evaluation samples.
 *
 *   stop   asked before each batch, on every rank; NULL: the evaluation is not stopped
 *   loss   out: NaN without evaluation samples, and of a stopped evaluation
 *
 * Collective.
 */
KU_STATUS ku_session_evaluate(struct ku_session *s, const struct ku_session_stop *stop,
                              double *loss);

/*
 * Read the files that accompany the model in checkpoints: from the checkpoint to resume, else from
 * model.path and data.tokenizer. A model without an end-of-text id takes that of the tokenizer.
 * Collective. Errors: KUMI_EINPUT, ENOMEM.
 */
KU_STATUS ku_session_take_companions(struct ku_session *s, struct ku_job *job);
/*
 * Initialise the state: random, or model.path's weights. Collective.
 */
KU_STATUS ku_session_first_state(struct ku_session *s);
/*
 * Write a checkpoint of the current state into dir (OUT/checkpoints). Collective. Errors, on all
 * ranks: KUMI_ESTORAGE; earlier checkpoints stay valid and the job continues.
 */
KU_STATUS ku_session_save(struct ku_session *s, const char *dir, int64_t step);
/*
 * The same with checkpoint.async: start begins the checkpoint, which is written while training
 * continues. poll (once per step) and wait (before the next start, and at the end) return its
 * result on all ranks; it has ended when it is no longer pending. Collective. Without
 * checkpoint.async, start saves synchronously and nothing is pending.
 */
KU_STATUS ku_session_open_saving(struct ku_session *s); /* before the first start */
KU_STATUS ku_session_save_start(struct ku_session *s, const char *dir, int64_t step);
int ku_session_save_poll(struct ku_session *s);
int ku_session_save_wait(struct ku_session *s);
void ku_session_save_end(struct ku_session *s); /* abandons a pending one; fini calls it */
/*
 * Load the state of the checkpoint at path. Collective. KUMI_ENOCKPT on all ranks if a byte is
 * damaged.
 */
KU_STATUS ku_session_load(struct ku_session *s, const char *path, int64_t *step);
/*
 * Mark the checkpoint at path as verified for checkpoint.keep, after all ranks have read their
 * parts. Rank 0 only.
 */
void ku_session_add_verified(struct ku_session *s, const char *path);

#endif
