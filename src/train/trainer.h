/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_TRAINER_H
#define KU_TRAIN_TRAINER_H

#include "base/exact.h"
#include "ckpt/snapshot/snapshot.h"
#include "exec/exec.h"
#include "kumi/run.h"
#include "op/loss_scaler.h"
#include "pass/pass.h"

/*
 * What a training job is made of once it is compiled: programs over one state plan, a rank's
 * memory, a device. The step is: fill the ports, run the program, read the report. Configuration,
 * data, checkpoints and output are the caller's.
 */
enum ku_trainer_program { KU_PROG_TRAIN, KU_PROG_EVAL, KU_PROG_INIT, KU_PROG_DERIVE, KU_N_PROGS };

enum { KU_CKPT_PATH_BYTES = 640 };

struct ku_trainer_opts {
    struct ku_compile_opts compile; /* is_training 0: evaluates alone, and holds nothing else */
    const struct ku_device_ops *device;
    struct ku_device_opts device_opts;
    uint64_t seed;
    size_t staging_bytes;     /* of checkpoints that are written in the background, a rank */
    size_t loader_bytes;      /* of rows that are read ahead, a rank */
    struct ku_tier_opts tier; /* where arena `file` is to lie */
    int no_eval;
};

/* A batch shape's programs: KU_PROG_TRAIN and KU_PROG_EVAL. */
struct ku_trainer_shape {
    struct ku_program *program[2];
    struct ku_exec *exec[2];
};

/* A metric of the graph and what an evaluation has added up of it: enum kumi_metric. */
struct ku_trainer_metric {
    char *port;       /* of the programs */
    const char *name; /* the user's, in port */
    int kind, n_runs;
    struct ku_exact sum;
    double max, count;
};

struct ku_trainer {
    struct ku_job *job;
    const struct ku_device_ops *ops;
    void *device;
    uint64_t seed;
    size_t staging_bytes;                   /* planned; who writes checkpoints maps it */
    size_t loader_bytes;                    /* planned; loaders hold it */
    int is_training;                        /* 0: both programs of a shape are its evaluation's */
    enum ku_isa isa;                        /* not exceeded */
    int n_threads;                          /* of this rank */
    struct ku_program *program[KU_N_PROGS]; /* of the shape at hand */
    struct ku_exec *exec[KU_N_PROGS];       /* of INIT and DERIVE only while they run */
    struct ku_trainer_shape *shape;         /* all; they take turns in the same arenas */
    int n_shapes, shape_at;                 /* and the one at hand */
    struct ku_exec_comms comms;
    struct ku_memory *memory;
    struct ku_ckpt_tensor *tensor; /* state in files' terms, parameters and optimizer */
    int n_tensors;
    char **param; /* names of the trainable parameters, by their word in stats */
    int n_params;
    struct ku_exact eval_sum;
    int64_t eval_tokens;
    struct ku_trainer_metric *metric; /* of the graph, over the evaluation */
    int n_metrics;
    int64_t compile_ns;
    struct ku_trainer_scaler {
        struct ku_attrs rule;
        double *words; /* this rank's state, op/loss_scaler.h; NULL: there is no loss scaler */
    } scaler;
    int64_t n_steps, step_bytes; /* run by this rank; what it stored in collectives of theirs */
};

/*
 * Compiles training and evaluation of a model in each of its batch shapes, plans memory and holds
 * it against what the machine has, makes the arenas and binds the programs. Collective over the
 * job. The state is undefined until ku_trainer_init_state, or a load and ku_trainer_derive.
 *
 *   graph   [n], the same model for batches of different shapes; taken over in any case
 *
 * Errors: KUMI_EINVAL, ENOMEM (exit 13: with the shortage by class), EDEVICE, and the job's root
 * cause.
 */
int ku_trainer_create(struct ku_job *job, struct ku_graph *const *graph, int n,
                      const struct ku_trainer_opts *o, struct ku_trainer **t);
/* From now on ports, steps and evaluation are those of batch shape i. At first: 0. */
void ku_trainer_use(struct ku_trainer *t, int i);
void ku_trainer_destroy(struct ku_trainer *t); /* collective; NULL is fine */

/* The plan alone, for one batch shape, without device and memory: what `kumi plan` and `kumi graph`
 * read. The caller destroys the programs. */
int ku_trainer_plan(struct ku_graph *graph, const struct ku_compile_opts *o,
                    const struct ku_target *target, struct ku_program *program[KU_N_PROGS],
                    char ***params, int *n_params);

/*
 * The state of a program as files see it: parameters, buffers, optimizer tensors; compute copies
 * and counters are not in it. Names are the program's.
 *
 *   g        the graph that p was compiled from
 *   tensor   [*n], out: freed with ku_free
 */
int ku_trainer_describe(const struct ku_program *p, const struct ku_graph *g,
                        const struct ku_memory *memory, struct ku_ckpt_tensor **tensor, int *n);

int ku_trainer_init_state(struct ku_trainer *t);
int ku_trainer_derive(struct ku_trainer *t); /* after tensors were written: compute copies */

/* The averages of the weights (train.ema) take the parameters' place: those of the state, or of the
 * checkpoint at path. Collective. KUMI_EINVAL: there are none, or no update has been made. */
int ku_trainer_take_ema(struct ku_trainer *t);
int ku_trainer_load_ema(struct ku_trainer *t, const char *path);

/* How many ranks read a state, a part each: those that share it; replicas hold everything
 * themselves. */
int ku_trainer_n_readers(const struct ku_trainer *t);
/*
 * A checkpoint of the present state in desc->dir; update and tensors are the trainer's. Collective.
 * A failure leaves earlier ones whole and is returned on all ranks (KUMI_ESTORAGE) without ending
 * the job.
 *
 *   status   < 0: this rank could not prepare desc; all return the worst
 */
int ku_trainer_save(struct ku_trainer *t, const struct ku_ckpt_desc *desc, int status);
/* desc for this trainer: what it knows itself is filled in. */
struct ku_ckpt_desc ku_trainer_desc(const struct ku_trainer *t, const struct ku_ckpt_desc *desc);
/* The state of the checkpoint at path. Collective. KUMI_ENOCKPT on all ranks when a byte is
 * damaged. */
int ku_trainer_load(struct ku_trainer *t, const char *path, int64_t *step);
/*
 * The same, and where a byte is damaged the one before in dir, named in a warning, until one is
 * whole. KUMI_ENOCKPT: none is.
 *
 *   path   the first to try, equal on all ranks; becomes the one that was taken
 */
int ku_trainer_resume(struct ku_trainer *t, const char *dir, char path[KU_CKPT_PATH_BYTES],
                      int64_t *step);

/*
 * Rows of the global batch that micro-batch u of this rank reads: [*first, *first + n) with n
 * returned; row r of it lies at element r of ku_trainer_rows' place in the port.
 */
int64_t ku_trainer_rows(const struct ku_trainer *t, int u, int64_t *first);
int ku_trainer_n_micro(const struct ku_trainer *t);
/* A port's place for micro-batch u, and the bytes of one row; NULL: no such port. */
void *ku_trainer_port(const struct ku_trainer *t, enum ku_trainer_program p, const char *name,
                      int u, size_t *row_bytes);

/* One step on filled ports. report: KU_REPORT_WORDS. A loss or gradient that is not finite is no
 * error here: KU_REPORT_APPLY is 0. */
int ku_trainer_step(struct ku_trainer *t, int64_t step, const double **report);
/* The same step again, on the same ports, seen (exec.h). The report says nothing new. */
int ku_trainer_step_seen(struct ku_trainer *t, int64_t step, ku_exec_see *see, void *ctx);
/* Evaluation: begin, then run for each global batch of filled ports, then the mean loss over valid
 * targets. */
void ku_trainer_eval_begin(struct ku_trainer *t);
int ku_trainer_eval_run(struct ku_trainer *t);
double ku_trainer_eval_loss(const struct ku_trainer *t);

/* A metric of the last step (is_eval 0), or of the evaluation up to here; names in t->metric.
 * KUMI_EINVAL: the graph has none of this name. */
int ku_trainer_metric(const struct ku_trainer *t, const char *name, int is_eval, double *value);
/* All of them; those beyond KUMI_MAX_RESULT_METRICS, or with longer names, are left out. */
void ku_trainer_metrics(const struct ku_trainer *t, int is_eval, struct kumi_result_metrics *out);
/* For ku_trainer_create, eval_run and destroy. */
int ku_trainer_note_metrics(struct ku_trainer *t);
void ku_trainer_eval_add(struct ku_trainer *t);
void ku_trainer_drop_metrics(struct ku_trainer *t);
/* Of the last step: the name of the first parameter whose gradient is not finite, or NULL. */
const char *ku_trainer_bad_gradient(const struct ku_trainer *t);
/* A scalar of the state. */
int64_t *ku_trainer_update_count(const struct ku_trainer *t);
/* Of the loss scaler, behind the last step: the scale, NaN without a scaler; the steps that were no
 * update, up to here. */
double ku_trainer_loss_scale(const struct ku_trainer *t);
int64_t ku_trainer_n_skipped(const struct ku_trainer *t);
/* KUMI_ENUMERIC: it overflowed at its least scale. */
int ku_trainer_check_scale(const struct ku_trainer *t);
/* As manifests keep it, under "state": {} without a scaler; owned by the caller. Load: what is not
 * there is as before the first step. */
json_t *ku_trainer_scaler_json(const struct ku_trainer *t);
void ku_trainer_scaler_load(struct ku_trainer *t, const json_t *state);
void ku_trainer_note_scaler(struct ku_trainer *t); /* for ku_trainer_create */
/* What the host's ranks map together as planned: the shared arena once, all others, the staging of
 * checkpoints and the rows read ahead of each rank. */
size_t ku_trainer_host_bytes(const struct ku_trainer *t);
/* Tests and tools. */
int ku_trainer_digest(const struct ku_trainer *t, int only_params, char out[72]);

#endif
