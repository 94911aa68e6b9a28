/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_MODEL_MODEL_H
#define KU_MODEL_MODEL_H

#include "ckpt/weights.h"
#include "ir/graph.h"
#include "kumi/model.h"
#include "config/config.h"

/* What data must agree with. 0: the model has no such thing. */
struct ku_model_facts {
    int64_t vocab_size;        /* ids of "tokens" lie below it */
    int64_t src_vocab_size;    /* of pairs: the source's ids, vocab_size the target's; 0: of data */
    int is_pairs;              /* reads sources and targets: data of sentence pairs */
    const char *one_vocab_key; /* that says that they share a vocabulary; NULL: they need not */
    int64_t max_positions;     /* longest sequence */
    const char *positions_key; /* that says so: "n_positions" */
    int64_t n_classes;         /* of "targets" that are classes */
    int64_t image[3];          /* height, width, channels of "images" */
    int is_causal;             /* continues texts: can be sampled */
    int is_masked;             /* learns to fill in masked tokens */
};

/* The model of a configuration: Hugging Face's keys, inline, or in the config.json of {"path": DIR}
 * with those that stand beside path over them. */
struct ku_model {
    const struct ku_model_family *family;
    void *config; /* the family's struct */
    struct ku_model_facts facts;
    char *path;   /* directory whose weights are the start; NULL: none */
    json_t *map;  /* {"its name of a tensor": "ours"}; NULL: none */
    json_t *rest; /* keys that say nothing of the computation (eos_token_id, ..), for the
                     config.json of those who do read them */
    int allow_missing;
};
/* Errors: KUMI_EINVAL with the key's place; KUMI_EINPUT: no config.json in the directory. */
int ku_model_read(const struct ku_config *cfg, struct ku_model *m);
/* The same for a resume. stored: the checkpoint's directory with a config.json, which is read where
 * the configuration names a directory that is gone; NULL: none. */
int ku_model_read_again(const struct ku_config *cfg, const char *stored, struct ku_model *m);
/* Whether a model_type is one of ours. */
int ku_model_is_known(const char *type);
/* From the text of a config.json alone (checkpoints). */
int ku_model_parse(const char *name, const char *text, size_t bytes, struct ku_model *m);
void ku_model_fini(struct ku_model *m);
/* config.json as transformers reads it. Owned by the caller; NULL: no memory. */
char *ku_model_print(const struct ku_model *m);
/* ku_model_width: the width by which Hugging Face's trainer sizes buckets. */
int ku_model_hidden_size(const struct ku_config *cfg, int64_t *width);
const char *ku_model_type(const struct ku_model *m); /* "gpt2" */
/* The sizes of the data's vocabularies, for models of pairs that give none themselves. */
int ku_model_fit(struct ku_model *m, int64_t src_vocab, int64_t tgt_vocab);
/* The graph for one global batch. Owns: *g. */
int ku_model_graph(const struct ku_model *m, const struct kumi_shape_of_batch *b,
                   struct ku_graph **g);
/* How weights of others name its tensors. */
struct ku_weights_opts ku_model_names(const struct ku_model *m);

/* Elements of all parameters that are in files: padding does not count. */
int64_t ku_graph_n_params(const struct ku_graph *g);
/* Model FLOP of the graph's batch, forward and backward: three times those of its forward products
 * (matrices, convolutions, attention; causal attention in full). For a transformer that is 6 N a
 * token and attention's 12 layers width t. */
double ku_graph_model_flops(const struct ku_graph *g);

#endif
