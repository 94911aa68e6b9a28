/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_MODEL_FAMILY_H
#define KU_MODEL_FAMILY_H

#include <jansson.h>
#include <stddef.h>

#include "ckpt/weights.h"
#include "kumi/model.h"
#include "model/model.h"

/*
 * A family of models, as configurations name it: one file model_<type>.c with a table of this sort,
 * which model.c lists. Keys are Hugging Face's; where it has none, those that its users would
 * expect.
 */

/* A key and where its value goes in the family's struct. */
enum ku_member_type {
    KU_M_INT,      /* int64_t, 1 to 2^30 */
    KU_M_LAYERS,   /* int64_t, 1 to KU_MAX_LAYERS */
    KU_M_PROB,     /* double in [0, 1) */
    KU_M_POSITIVE, /* double above 0 */
    KU_M_BOOL,     /* int */
    KU_M_WORD      /* int, a constant of an enum, by its word */
};
struct ku_word {
    const char *name; /* NULL ends the list; the first of several for one value is printed */
    int value;
};
struct ku_member {
    const char *name, *alias; /* alias: another spelling, or NULL */
    enum ku_member_type type;
    size_t offset;
    int is_nullable; /* INT: null, and 0 in the struct, mean derived */
    const struct ku_word *words;
};

struct ku_model_source;
struct ku_model_family {
    const char *type;         /* model_type */
    const char *architecture; /* of "architectures", for those who load what we write; NULL: none */
    size_t config_bytes;      /* of the struct that all functions below get as `config` */
    const struct ku_member *member;
    int n_members;
    const char *const *inert;   /* further keys that are accepted: check reads them, or nobody does;
                                   NULL-terminated, or NULL */
    const char *const *printed; /* keys of other spellings that `print` stands for; NULL: none */
    void (*defaults)(void *config);
    /* What rows cannot see: keys that depend on each other, objects. NULL: nothing. */
    int (*check)(const struct ku_model_source *s, const json_t *model, void *config);
    /* Adds the keys that are no members. NULL: none. */
    int (*print)(const void *config, json_t *out);
    void (*facts)(const void *config, struct ku_model_facts *out);
    /* Of models of pairs: the vocabularies' sizes, once the data are open. NULL: never asked. */
    int (*fit)(void *config, int64_t src_vocab, int64_t tgt_vocab);
    int (*build)(struct kumi_graph *g, const void *config, const struct kumi_shape_of_batch *b);
    /* How weights of others name our tensors. NULL: as we do. */
    void (*names)(const void *config, struct ku_weights_opts *out);
};

/* An error about a key: with its place in the configuration, else with the file's name. */
int ku_model_refuse(const struct ku_model_source *s, const char *key, const json_t *value,
                    const char *wanted);
/* The same where the value at fault is that of several keys together. */
int ku_model_refuse_int(const struct ku_model_source *s, const char *key, int64_t value,
                        const char *wanted);
/* Weights of a quantization_config are not plain. */
int ku_model_refuse_quantized(const struct ku_model_source *s, const json_t *model);
/* Whether the configuration itself gives the key, over a config.json that it names. */
int ku_model_overrides(const struct ku_model_source *s, const char *key);
/* The name under which the model gives a member: its alias or its own. */
const char *ku_member_spelling(const json_t *model, const struct ku_member *m);

extern const struct ku_model_family ku_model_gpt2, ku_model_llama, ku_model_bert, ku_model_mlp,
    ku_model_resnet, ku_model_transformer;

#endif
