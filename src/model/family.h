/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_MODEL_FAMILY_H
#define KU_MODEL_FAMILY_H

#include <jansson.h>
#include <stddef.h>

#include "base/err.h"
#include "ckpt/weights.h"
#include "kumi/model.h"
#include "model/model.h"

/*
 * A model family: one value of model_type. Each has a file family_<type>.c with one struct
 * ku_model_family, which model.c lists. Keys are those of Hugging Face's config.json.
 *
 *     {"n_layer": 12, ..} ── members ──> struct kumi_gpt2 ── build ──> graph
 *                            check             |
 *                                              +── print ──> config.json
 *
 * To add a family: write the member table, the functions below, and the entry in model.c.
 */

/* A key and the offset of its value in the family's struct. */
enum ku_member_type {
    KU_M_INT,      /* int64_t, 1 to 2^30 */
    KU_M_LAYERS,   /* int64_t, 1 to KU_MAX_LAYERS */
    KU_M_PROB,     /* double in [0, 1) */
    KU_M_POSITIVE, /* double above 0 */
    KU_M_BOOL,     /* int */
    KU_M_WORD      /* int, an enum constant, by name */
};
struct ku_word {
    const char *name; /* NULL ends the list; of several names for a value the first is printed */
    int value;
};
struct ku_member {
    const char *name, *alias; /* alias: another spelling, or NULL */
    enum ku_member_type type;
    size_t offset;
    int is_nullable; /* INT: null is permitted; it is 0 in the struct and means derived */
    const struct ku_word *words;
};

struct ku_model_source;
struct ku_model_family {
    const char *type;         /* model_type */
    const char *architecture; /* entry of "architectures" in a written config.json; NULL: none */
    int is_own;               /* a model_type of kumi's: its config.json has no unknown keys */
    size_t config_bytes;      /* size of the struct that the functions below get as `config` */
    const struct ku_member *member;
    int n_members;
    const char *const *inert;   /* other accepted keys, ignored or read by `check`; NULL-terminated,
                                   or NULL */
    const char *const *printed; /* alternative keys that `print` replaces; NULL: none */
    void (*defaults)(void *config);
    /* Reads keys that are no members and checks conditions between keys. NULL: none. */
    int (*check)(const struct ku_model_source *s, const json_t *model, void *config);
    /* Adds the keys that are no members. NULL: none. */
    int (*print)(const void *config, json_t *out);
    void (*properties)(const void *config, struct ku_model_properties *out);
    /* Seq2seq models: sets vocabulary sizes from the data. NULL: not a seq2seq model. */
    int (*fit)(void *config, int64_t src_vocab, int64_t tgt_vocab);
    int (*build)(struct kumi_graph *g, const void *config, const struct kumi_shape_of_batch *b);
    /* Tensor names in Hugging Face's files. NULL: equal to kumi's. */
    void (*names)(const void *config, struct ku_weights_opts *out);
};

/* Sets an error about a key, with its place in the configuration, else with the file's name.
 * Returns its status, EINVAL or EINPUT. */
KU_STATUS ku_model_refuse(const struct ku_model_source *s, const char *key, const json_t *value,
                          const char *wanted);
/* The same with an integer value. */
KU_STATUS ku_model_refuse_int(const struct ku_model_source *s, const char *key, int64_t value,
                              const char *wanted);
/* Refuses a model with a quantization_config. */
KU_STATUS ku_model_refuse_quantized(const struct ku_model_source *s, const json_t *model);
/* Whether the configuration gives the key in addition to a config.json, and so overrides it. */
int ku_model_overrides(const struct ku_model_source *s, const char *key);
/* The spelling that the model uses for a member: its alias or its name. */
const char *ku_member_spelling(const json_t *model, const struct ku_member *m);

extern const struct ku_model_family ku_model_gpt2, ku_model_llama, ku_model_bert, ku_model_mlp,
    ku_model_resnet, ku_model_transformer;

#endif
