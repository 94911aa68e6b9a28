/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_MODEL_MODEL_H
#define KU_MODEL_MODEL_H

#include <stdbool.h>

#include "base/err.h"
#include "ckpt/weights.h"
#include "ir/graph.h"
#include "kumi/model.h"
#include "config/config.h"

/* Properties of a model that the data must match. 0: does not apply. */
struct ku_model_properties {
    int64_t vocab_size;        /* token ids are below it; seq2seq: target ids */
    int64_t src_vocab_size;    /* seq2seq: source ids are below it; 0: from the data */
    int is_pairs;              /* seq2seq: needs a parallel corpus */
    const char *one_vocab_key; /* key that requires a shared vocabulary; NULL: not required */
    int64_t max_positions;     /* max sequence length, tokens */
    const char *positions_key; /* the key of max_positions: "n_positions" */
    int64_t n_classes;         /* classifiers: number of classes */
    int64_t image[3];          /* classifiers: height, width, channels */
    int is_causal;             /* causal language model: can generate */
    int is_masked;             /* masked language model */
};

/*
 * The model of a configuration. The section "model" holds Hugging Face's keys, or {"path": DIR}
 * with DIR/config.json and pretrained weights; keys next to path override those of the config.json.
 */
struct ku_model {
    const struct ku_model_family *family;
    void *config; /* the family's struct */
    struct ku_model_properties properties;
    char *path;   /* directory of pretrained weights; NULL: none */
    json_t *map;  /* {"tensor name in the files": "kumi's name"}; NULL: none */
    json_t *rest; /* keys without effect on the computation (eos_token_id, ..), copied to the
                     config.json of checkpoints and exports */
    int allow_missing;
};
/* Read the model of a configuration. Errors: EINVAL, with the key's place; EINPUT, no valid
 * config.json in the directory. */
KU_STATUS ku_model_read(const struct ku_config *cfg, struct ku_model *m);
/* The same for a resume. stored: the checkpoint's directory with a config.json, read if that of the
 * configuration's path no longer exists; NULL: none. */
KU_STATUS ku_model_read_again(const struct ku_config *cfg, const char *stored, struct ku_model *m);
/* Whether kumi has this model_type. */
bool ku_model_is_known(const char *type);
/* Read a model from the text of a config.json (checkpoints). name: for messages. */
KU_STATUS ku_model_parse(const char *name, const char *text, size_t bytes, struct ku_model *m);
void ku_model_fini(struct ku_model *m);
/* Print a config.json that transformers reads. Freed by the caller; NULL: no memory. */
char *ku_model_print(const struct ku_model *m);
/* A ku_model_width: hidden_size, or the max of hidden_sizes, as Hugging Face's trainer uses it. */
KU_STATUS ku_model_hidden_size(const struct ku_config *cfg, int64_t *width);
const char *ku_model_type(const struct ku_model *m); /* "gpt2" */
/* Seq2seq models: set missing vocabulary sizes from the data. Errors: EINVAL, a given size is too
 * small. */
KU_STATUS ku_model_fit(struct ku_model *m, int64_t src_vocab, int64_t tgt_vocab);
/* Build the graph for one global batch. The caller owns *g. */
KU_STATUS ku_model_graph(const struct ku_model *m, const struct kumi_shape_of_batch *b,
                         struct ku_graph **g);
/* How Hugging Face's files name the model's tensors. Borrows from m. */
struct ku_weights_opts ku_model_names(const struct ku_model *m);

/* Number of parameters, without padding. */
int64_t ku_graph_n_params(const struct ku_graph *g);
/* Model FLOP of the graph's batch: 3 times the FLOP of the forward products (matmul, convolution,
 * attention; causal attention counts in full). For a transformer with N parameters, L layers, width
 * d and sequence length t: 6 N + 12 L d t per token. */
double ku_graph_model_flops(const struct ku_graph *g);

#endif
