/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_TRAINER_H
#define KUMI_TRAINER_H

#include "kumi/comm.h"
#include "kumi/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Train a model that the program has built, with its own loop and data. The step is compiled once
 * for all ranks of a communicator and then run for each batch. Samples (dim n of the ports) are
 * split evenly over the ranks.
 *
 *     kumi_trainer_create(world, graph, &options, &trainer);
 *     for (step = 0; step < 100; step++)
 *         kumi_trainer_step(trainer, batch, n_ports, &metrics);
 */
struct kumi_trainer;

/* All-zero means defaults. */
struct kumi_trainer_options {
    /*
     * "adamw" (default), "adam", "sgd", "lars", "lamb", "adagrad", "rmsprop", "lion", "adafactor".
     */
    const char *optimizer;
    double lr;           /* default 1e-3 */
    double beta1, beta2; /* default 0.9, 0.999 */
    double eps;          /* default 1e-8 */
    double weight_decay; /* of matrices; default 0 */
    double momentum;     /* sgd, lars; default 0 */
    double dampening;    /* default 0 */
    int nesterov;
    double trust_coefficient;    /* lars, of matrices; default 0.001 */
    double min_coeff, max_coeff; /* lamb, of matrices; default 0.01, 10 */
    double clip_norm;            /* maximum global gradient norm; 0: no clipping */
    int64_t warmup_steps;        /* linear warm-up from 0 */
    int64_t decay_steps;         /* > 0: cosine from lr to min_lr over these steps; 0: constant */
    double min_lr;
    int64_t micro_batch; /* samples per micro-batch; default: a whole virtual shard */
    /*
     * Default: the number of ranks. Results are bitwise equal for all rank counts that are
     * admissible for it.
     */
    int virtual_shards;
    const char *precision;     /* "f32" (default), "bf16", "f16", "f64" (device ref only) */
    const char *device;        /* "cpu" (default), "ref" */
    int threads;               /* compute threads per rank; default 1 */
    uint64_t seed;             /* of initialization and dropout; 0 to 9e18 */
    const char *const *freeze; /* name patterns of frozen parameters, NULL-terminated */
    /*
     * > 0: fixed loss scale. 0: none; with "f16" dynamic from 65536 by DeepSpeed's algorithm
     * (docs/reference/precision.md).
     */
    double loss_scale;
    /*
     * All other settings, which override the members above: strings "section.key=value" with the
     * keys, defaults and checks of docs/reference/configuration.md, NULL-terminated; NULL: none.
     *
     *     {"parallel.host_state=private", "parallel.zero=2", "memory.recompute=full",
     *      "optimizer.groups=[{\"match\": \"*.bias\", \"weight_decay\": 0}]", NULL}
     *
     * Allowed are all keys of optimizer, schedule (in steps), precision, memory and parallel except
     * those for joining the job (transport, timeout_s) and for a run directory
     * (gather_16bit_on_save); and of train: micro_batch, accumulation, virtual_shards, steps (the
     * length of a schedule without an end of its own), threads, seed, clip_norm, label_smoothing,
     * freeze, ema and ema_warmup. Keys that the configuration marks as layout change no bit of the
     * results.
     */
    const char *const *set;
};

/*
 * Compile, plan, allocate and initialise. The contents of the graph move into the trainer; the
 * builder is empty afterwards.
 *
 *   world     all ranks of the job; n must divide into the virtual shards
 *             (docs/internals/numerics.md)
 *   options   NULL: defaults
 *
 * Collective. Errors: KUMI_EINVAL (not the world; the model's first mistake; sizes that do not
 * divide; options, with the key), ENOMEM (with the shortage), the job's root cause.
 */
KUMI_API int kumi_trainer_create(struct kumi_comm *world, struct kumi_graph *graph,
                                 const struct kumi_trainer_options *options,
                                 struct kumi_trainer **trainer);
KUMI_API void kumi_trainer_destroy(struct kumi_trainer *trainer); /* collective; NULL is allowed */

/*
 * Data of one port: the whole global batch, row-major over the graph's dims. Each rank reads its
 * own rows.
 */
struct kumi_batch {
    const char *port;
    const void *data;
};
struct kumi_metrics {
    double loss;      /* mean over valid targets of the global batch; exact sum, one rounding */
    double grad_norm; /* before clipping */
    double lr;
    int64_t step;      /* number of this step, from 0 */
    int64_t update;    /* optimizer updates so far */
    int64_t tokens;    /* valid targets */
    int applied;       /* 0: loss or gradient not finite, no update was made */
    double loss_scale; /* of the next step; NaN: no loss scaling */
    double step_ms;
    double exposed_comm_ms; /* part of step_ms: this rank's waits for communication */
    double wait_ms;         /* part of that: waits for ranks that had not arrived */
    double optimizer_ms;    /* norm, clipping and update, without waits */
};
/*
 * Run one step. Ids of embeddings, targets, indices of kumi_select and positions of attention are
 * range-checked when the ports are filled.
 *
 *   batch     [n_ports], in any order; all ports of the graph
 *   metrics   out; NULL: not wanted
 *
 * Collective. Errors: KUMI_EINVAL: a port is missing or has a number out of range, named with its
 * position. With one rank nothing has changed and the trainer stays usable; with several the job
 * fails on all ranks. KUMI_ENUMERIC: the loss scale is at its minimum, and the gradients are not
 * finite; the step is done, without an update, and *metrics is set. Also the job's root cause.
 */
KUMI_API int kumi_trainer_step(struct kumi_trainer *trainer, const struct kumi_batch *batch,
                               int n_ports, struct kumi_metrics *metrics);
/*
 * Run forward and loss without dropout. Collective. Errors: as kumi_trainer_step.
 */
KUMI_API int kumi_trainer_evaluate(struct kumi_trainer *trainer, const struct kumi_batch *batch,
                                   int n_ports, double *loss);
/*
 * Get a metric of kumi_graph_metric.
 *
 *   is_eval   0: of the last step; 1: of the last evaluation
 *
 * Errors: KUMI_EINVAL: no such metric, or no step so far.
 */
KUMI_API int kumi_trainer_metric(const struct kumi_trainer *trainer, const char *name, int is_eval,
                                 double *value);

/*
 * Get what this rank computed of an output (kumi_graph_output) in the last evaluation: the samples
 * of its share of the batch, as f32.
 *
 *   out     [n_samples, ..] over the output's dims
 *   count   elements of out; n_samples is samples of the batch / data-parallel ranks, which are
 *           ranks / (parallel.pp x parallel.tp)
 *   first   out: number of the first sample within the batch; NULL: not wanted
 *
 * Valid until the next step. Errors: KUMI_EINVAL: no such output, or that of another rank's stage
 * (parallel.pp); not one row per sample; divided by parallel.sp; another count.
 */
KUMI_API int kumi_trainer_output(const struct kumi_trainer *trainer, const char *name, float *out,
                                 int64_t count, int64_t *first);

/*
 * Get the current values of a parameter or optimizer tensor as f32, in the shape that files have.
 *
 *   count   elements of out; another number is an error
 *
 * Errors: KUMI_EINVAL, also if the tensor's elements are divided among hosts (read it from a
 * checkpoint then).
 */
KUMI_API int kumi_trainer_read(const struct kumi_trainer *trainer, const char *name, float *out,
                               int64_t count);
/*
 * Replace the parameters by their averages (train.ema), for evaluation and reading. No training
 * step may follow.
 *
 * Collective. Errors: KUMI_EINVAL: there are no averages, or no update has been made (the job goes
 * on). Also the job's root cause.
 */
KUMI_API int kumi_trainer_take_ema(struct kumi_trainer *trainer);
/*
 * Get the digest "sha256:…" over parameters and optimizer state (docs/internals/numerics.md).
 *
 *   text   out: 72 bytes
 *
 * Collective if ranks of several hosts divide one copy of the state (parallel.shard or parallel.tp
 * beyond a host, parallel.pp above 1), else any rank may call it alone.
 */
KUMI_API int kumi_trainer_digest(const struct kumi_trainer *trainer, char *text);

/*
 * Write the checkpoint DIR/step-00000500, named by the steps done. Its model/model.safetensors has
 * the graph's names; model/config.json is empty.
 *
 *   keep   number of newest valid checkpoints to keep; 0: all
 *
 * Collective. Errors: KUMI_ESTORAGE; KUMI_EINVAL: hosts do not see DIR, with their names. Earlier
 * checkpoints and the trainer are unchanged.
 */
KUMI_API int kumi_trainer_save(struct kumi_trainer *trainer, const char *dir, int keep);
/*
 * Load DIR's newest valid checkpoint, written by any number of ranks. Training continues with the
 * next step.
 *
 *   step   out: steps done; NULL: not wanted
 *
 * Collective. Errors: KUMI_ENOCKPT: DIR has no checkpoint, or does not exist (nothing has changed);
 * KUMI_EINPUT: it has some, but none is valid (the trainer's state is undefined), or other tensors;
 * KUMI_EINVAL: options that decide bits differ, with their names.
 */
KUMI_API int kumi_trainer_load(struct kumi_trainer *trainer, const char *dir, int64_t *step);

#ifdef __cplusplus
}
#endif
#endif
