/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_INFER_INFERENCE_H
#define KU_INFER_INFERENCE_H

#include "base/err.h"
#include "exec/exec.h"
#include "model/model.h"
#include "pass/pass.h"

/*
 * Inference: a trained model reads, continues or translates. Programs are compiled and run as in
 * training.
 *
 *     evaluate.c    the loss of a split on any number of ranks, by the training's eval program
 *     generator.c   the next token of a causal model, from a KV cache
 *     translator.c  an encoder-decoder: encodes sources, appends a token to each target
 *     sampling.c    logits -> token                          sample.c     texts, with generator.c
 *     beam.c        beam search over any model of logits     translate.c  sentences, translator.c
 *
 * Here is what generation and translation share: several programs over one memory plan on one rank.
 */

/* Options of the compiler for inference on one rank, in compute dtype `compute`. */
struct ku_compile_opts ku_inference_compile_opts(enum kumi_dtype compute,
                                                 const char *const *keep_f32,
                                                 const struct ku_precision_rules *modules);
/*
 * Compute threads: `option`, or 0: the CPUs of this process. train.threads of a run does not count:
 * it is of each rank of the training, and inference has one. Errors: EINVAL, not 0 to 4096.
 *
 *   command   "sample"
 */
KU_STATUS ku_inference_threads(const char *command, int64_t option, int *n_threads);
/*
 * Bytes of the arenas that n programs use in turn. Errors: KUMI_ENOMEM: they exceed the available
 * memory, with both in GiB.
 *
 *   what     "parameters and sentences"
 *   advice   "lower --batch or --beam"
 */
KU_STATUS ku_inference_check_memory(const struct ku_program *const *program, int n,
                                    const char *what, const char *advice);
/*
 * Check a program (check/check.h).
 *
 *   graph      as nn built it
 *   first      program whose state plan p shares
 *   is_derive  p derives the copies of parameters
 *
 * Errors: KUMI_EPLAN, the program is wrong, with the rule; KUMI_ENOMEM.
 */
KU_STATUS ku_inference_check(const struct ku_graph *graph, const struct ku_compile_opts *o,
                             const struct ku_target *target, const struct ku_program *first,
                             const struct ku_program *p, bool is_derive);
/*
 * Load the parameters of a directory, or its averages, and derive their compute copies.
 *
 *   g        the graph that `program` was compiled from
 *   derive   the program that derives the copies
 */
struct ku_inference {
    const struct ku_device_ops *ops;
    void *device;
    const struct ku_model *model;
    const struct ku_program *program, *derive;
    struct ku_memory *memory;
};
KU_STATUS ku_inference_load(const struct ku_inference *i, const struct ku_graph *g, const char *dir,
                            const char *averages);

#endif
