/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_TRAINER_H
#define KUMI_TRAINER_H

#include "kumi/comm.h"
#include "kumi/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Trains a model that a program built, on data that it brings: the step is compiled once for all
 * ranks of a communicator, then run as often as wanted. Ranks share the samples (dim n of the
 * ports) evenly.
 *
 *     kumi_trainer_create(world, graph, &options, &trainer);
 *     for (step = 0; step < 100; step++)
 *         kumi_trainer_step(trainer, batch, n_ports, &metrics);
 */
struct kumi_trainer;

/* All-zero means defaults. */
struct kumi_trainer_options {
    const char *optimizer; /* "adamw" (default), "adam", "sgd", "lars", "lamb", "adagrad",
                              "rmsprop", "lion", "adafactor" */
    double lr;             /* default 1e-3 */
    double beta1, beta2;   /* default 0.9, 0.999 */
    double eps;            /* default 1e-8 */
    double weight_decay;   /* of matrices; default 0 */
    double momentum;       /* sgd, lars; default 0 */
    double dampening;      /* default 0 */
    int nesterov;
    double trust_coefficient;    /* lars, of matrices; default 0.001 */
    double min_coeff, max_coeff; /* lamb, of matrices; default 0.01, 10 */
    double clip_norm;            /* largest global gradient norm; 0: not clipped */
    int64_t warmup_steps;        /* linear, from 0 */
    int64_t decay_steps;         /* > 0: cosine from lr to min_lr until then; 0: constant */
    double min_lr;
    int64_t micro_batch; /* samples that run at once; default: all of a virtual shard */
    int virtual_shards;  /* default: the number of ranks. Results are equal for all rank counts that
                            it admits */
    const char *precision;     /* "f32" (default), "bf16", "f16", "f64" (device ref) */
    const char *device;        /* "cpu" (default), "ref" */
    int threads;               /* compute threads per rank; default 1 */
    uint64_t seed;             /* of first values and dropout */
    const char *const *freeze; /* patterns of parameters that stay as they are, NULL-terminated */
    double loss_scale; /* > 0: what the loss is multiplied by in backward; 0: none, but with "f16"
                        * dynamic from 65536, by DeepSpeed's rule (docs/reference/precision.md) */
    /*
     * Everything else, as a configuration says it and over the members above: texts
     * "section.key=value" with the keys, defaults and checks of docs/reference/configuration.md,
     * NULL-terminated; NULL: none.
     *
     *     {"parallel.share_host_state=false", "parallel.zero=2", "memory.recompute=full",
     *      "optimizer.groups=[{\"match\": \"*.bias\", \"weight_decay\": 0}]", NULL}
     *
     * All of optimizer, schedule (in steps), precision, memory and parallel but what joining the
     * job decides (transport, timeout_s); of train micro_batch, accumulation, virtual_shards,
     * steps (the length of a schedule that has no end of its own), threads, seed, clip_norm,
     * label_smoothing, freeze, ema and ema_warmup. What the configuration marks layout changes no
     * bit here either.
     */
    const char *const *set;
};

/*
 * Compile, plan, allocate and initialise. Takes what the graph holds; the builder is empty
 * afterwards.
 *
 *   world   all ranks of the job; n must divide into the virtual shards as
 *           docs/internals/numerics.md says
 *
 * Collective. Errors: KUMI_EINVAL (the model's first mistake; sizes that do not divide; options,
 * with the key), ENOMEM (with the shortage), the job's root cause.
 */
KUMI_API int kumi_trainer_create(struct kumi_comm *world, struct kumi_graph *graph,
                                 const struct kumi_trainer_options *options,
                                 struct kumi_trainer **trainer);
KUMI_API void kumi_trainer_destroy(struct kumi_trainer *trainer); /* collective; NULL is fine */

/* One port's data: the whole global batch, row-major over the dims that the graph gave; each rank
 * reads its own rows. */
struct kumi_batch {
    const char *port;
    const void *data;
};
struct kumi_metrics {
    double loss;      /* mean over valid targets of the global batch, exact sum rounded once */
    double grad_norm; /* before clipping */
    double lr;
    int64_t step;      /* that this was, from 0 */
    int64_t update;    /* optimizer updates done so far */
    int64_t tokens;    /* valid targets */
    int applied;       /* 0: loss or gradient was not finite, nothing was changed */
    double loss_scale; /* of the next step; NaN: there is none */
    double step_ms;
    double exposed_comm_ms; /* of it, this rank's waits of communication */
    double wait_ms;         /* of those, in which nothing moved: others were not there yet */
    double optimizer_ms;    /* norm, clipping and update, without waits */
};
/*
 * One step. Ids of embeddings, targets, indices of kumi_select and positions of attention are
 * checked as the ports are filled.
 *
 *   batch     [n_ports], in any order; each port of the graph is there
 *   metrics   NULL: not wanted
 *
 * Collective. Errors: KUMI_EINVAL: a port is missing, or holds a number out of range (named with
 * its position); with one rank nothing is changed and the trainer goes on, with several the job is
 * over on all; the job's root cause.
 */
KUMI_API int kumi_trainer_step(struct kumi_trainer *trainer, const struct kumi_batch *batch,
                               int n_ports, struct kumi_metrics *metrics);
/* Forward and loss alone, without dropout. Collective. Errors: as kumi_trainer_step. */
KUMI_API int kumi_trainer_evaluate(struct kumi_trainer *trainer, const struct kumi_batch *batch,
                                   int n_ports, double *loss);
/* A metric of kumi_graph_metric in the last step (is_eval 0) or evaluation. KUMI_EINVAL: none of
 * this name. */
KUMI_API int kumi_trainer_metric(const struct kumi_trainer *trainer, const char *name, int is_eval,
                                 double *value);

/*
 * What this rank computed of an output of the graph (kumi_graph_output) in the last evaluation:
 * the samples of its share of the batch, as f32.
 *
 *   out     [n_samples, ..] over the output's dims; count elements
 *   first   number of the first sample in the batch; NULL: not wanted
 *   count   n_samples is the batch's share: samples / ranks
 *
 * Valid until the next step. Errors: KUMI_EINVAL: no such output, not one row a sample, or another
 * count.
 */
KUMI_API int kumi_trainer_output(const struct kumi_trainer *trainer, const char *name, float *out,
                                 int64_t count, int64_t *first);

/* A parameter's or optimizer tensor's present values in files' shape, as f32. count: elements,
 * checked. */
KUMI_API int kumi_trainer_read(const struct kumi_trainer *trainer, const char *name, float *out,
                               int64_t count);
/* The averages of the weights (train.ema) take the parameters' place, for evaluation and reading:
 * their steps are over. Collective. KUMI_EINVAL: there are none, or no update has been made. */
KUMI_API int kumi_trainer_take_ema(struct kumi_trainer *trainer);
/* "sha256:…" over parameters and optimizer state (docs/internals/numerics.md). text: 72 bytes. */
KUMI_API int kumi_trainer_digest(const struct kumi_trainer *trainer, char *text);

/*
 * Write a checkpoint DIR/step-00000500, named by the steps done, and keep the newest `keep` that
 * verify (0: all). Its model/model.safetensors has the graph's names; model/config.json is empty.
 * Collective. A failure leaves earlier ones whole and the trainer as it is. Errors: KUMI_ESTORAGE.
 */
KUMI_API int kumi_trainer_save(struct kumi_trainer *trainer, const char *dir, int keep);
/*
 * Take the state of DIR's newest whole checkpoint, whatever the rank count that wrote it; the next
 * step is the one behind it. Collective.
 *
 *   step   steps done then; NULL: not wanted
 *
 * Errors: KUMI_ENOCKPT: none is whole (the trainer's state is undefined); KUMI_EINPUT: other
 * tensors; KUMI_EINVAL: options differ that decide bits, by name.
 */
KUMI_API int kumi_trainer_load(struct kumi_trainer *trainer, const char *dir, int64_t *step);

#ifdef __cplusplus
}
#endif
#endif
