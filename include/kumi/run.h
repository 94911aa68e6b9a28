/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_RUN_H
#define KUMI_RUN_H

#include "kumi/status.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What the command does, as functions. A configuration is a file (docs/reference/configuration.md)
 * with settings "section.key=value" over it. Texts that are handed out are freed with
 * kumi_text_free.
 */
struct kumi_settings {
    const char *config;     /* the file */
    const char *const *set; /* [n_sets] */
    int n_sets;
};
KUMI_API void kumi_text_free(char *text);

struct kumi_train_options {
    struct kumi_settings settings;
    const char *out;          /* run directory; NULL: runs/<config>-<time> */
    int resume;               /* 0 no, 1 yes, 2 if there is a checkpoint, else start afresh */
    int64_t resume_step;      /* with resume 1: the checkpoint of this step; 0: the newest. Later
                               * checkpoints move to OUT/checkpoints.cut */
    int overwrite;            /* replace the run that is there, once the first step is done; not
                               * with resume */
    int allow_change;         /* resume although numerics keys or data differ */
    int64_t until;            /* stop after this step with a checkpoint; 0: at the end */
    double max_time_s;        /* stop like SIGTERM after so long; 0: never */
    const char *profile;      /* steps to profile, "5-8"; "": four early ones; NULL: none */
    const char *profile_by;   /* rows of the table: "op" (NULL), "path", "shape", "source" */
    const char *profile_sort; /* "time" (NULL), "calls", "name" */
    int profile_rows;         /* at most; 0: all */
    int is_trial;             /* to measure: no evaluation, checkpoint or digest; every rank leaves
                               * its step times in OUT/rank-R.json */
    int ranks; /* > 1: as threads of this process, with parallel.transport "thread" */
};
/* The model's own metrics over the validation split: "accuracy", "top5". */
enum { KUMI_MAX_RESULT_METRICS = 8 };
struct kumi_result_metrics {
    int n;
    struct {
        char name[32];
        double value;
    } item[KUMI_MAX_RESULT_METRICS];
};

struct kumi_train_result {
    int64_t step, update;
    double val_loss; /* NaN: there is no validation split */
    struct kumi_result_metrics val_metrics;
    int is_by_samples; /* median_tps counts samples: the data are no tokens */
    double median_tps;
    char digest[72];
    char out[512], checkpoint[640];
    char curve[1024];  /* "step validation-loss [accuracy]" lines, at most 16, evenly chosen */
    char profile[640]; /* the table's file; its trace lies beside it; "": none */
    int is_reported;   /* the error was printed already, by the rank that met it first */
};
/*
 * Train, as one rank of the job that the environment describes, or as all ranks, with `ranks`.
 * Collective over the job.
 * Errors: any status; KUMI_ESTOPPED after a signal or max_time_s, with the state saved.
 */
KUMI_API int kumi_train(const struct kumi_train_options *options, struct kumi_train_result *result);
/* 1 when a configuration wants its ranks as threads of one process; 0 also if it cannot be read. */
KUMI_API int kumi_train_in_threads(const struct kumi_settings *settings);

/*
 * Loss over the validation split of a run's newest checkpoint: of its first train.eval_tokens, as
 * in training. With data or a stride it is over all of a held-out stream.
 */
struct kumi_eval_options {
    const char
        *run; /* run directory, checkpoint, or, with data, a directory that transformers loads
               */
    const char *const
        *data; /* [n_data] files or globs in place of the run's data.val; none: its own
                */
    int n_data;
    /* Of a directory that transformers loads: */
    const char *tokenizer; /* as data.tokenizer; NULL: its own, or bytes if vocab_size is 256 */
    int64_t seq_len;       /* targets of a window; 0: as many as it has positions, at most 1024 */
    int64_t stride; /* text: windows of data.seq_len targets, so many tokens apart, of which the
                     * last `stride` count (all of the first): each token but the first counts once;
                     * 0: windows side by side, without the rest that fills none */
    int ema;        /* the averages of the weights in their place (train.ema) */
};
struct kumi_eval_result {
    int64_t step, tokens; /* step -1: of a directory of weights; tokens: targets that count */
    double loss, perplexity;
    int64_t bytes;        /* of the text that the targets stand for; 0: not known */
    double bits_per_byte; /* with bytes: the loss of all targets in bits, over bytes */
    double byte_perplexity;
    struct kumi_result_metrics metrics;
    int is_by_samples; /* tokens are samples, and there is no perplexity */
    int rank;          /* whose result this is; all have the same */
    int is_reported;
};
/* Collective over the job. Errors: KUMI_EINVAL: options, or no validation split; KUMI_ENOCKPT;
 * KUMI_EINPUT: the data. */
KUMI_API int kumi_evaluate(const struct kumi_eval_options *options,
                           struct kumi_eval_result *result);
/* The same of a run alone. */
KUMI_API int kumi_eval(const char *run, struct kumi_eval_result *result);

struct kumi_sample_options {
    const char *run;    /* run directory, checkpoint, or a directory that transformers loads */
    const char *prompt; /* NULL: a newline */
    int64_t n;          /* texts made side by side, with seeds seed, seed + 1, ..; 0 = 1 */
    const char *const *prompts; /* [n], a prompt for each; NULL: all have `prompt` */
    int64_t tokens;             /* to make, at most, of each */
    double temperature;         /* 0: the likeliest token always */
    int64_t top_k;              /* among the k likeliest; 0: all */
    double top_p; /* of these the fewest whose probabilities add up to top_p; 0 or 1: all */
    const char
        *dtype; /* to compute in, "f32", "bf16" or "f16"; NULL: as trained, f32 for a directory */
    uint64_t seed;
    int ema;          /* of a run: the averages of the weights in their place (train.ema) */
    const char *stop; /* a text ends before the first of these among what was made; NULL: none */
    const char *tokenizer; /* "byte", a directory, or a tokenizer.json; NULL: the model's own */
    /* Called with a text's prompt and with each piece of it, whole characters where the text has
     * them; by another thread, while the caller of kumi_sample waits. One text after the other:
     * the first as it is made. */
    void (*emit)(void *ctx, const char *text, size_t bytes);
    void (*begin)(void *ctx, int64_t i); /* before the first piece of text i; NULL: none */
    void *ctx;
    struct kumi_sample_speed *speed; /* out; NULL: nobody asks */
};
/* Tokens and seconds: of prompts (and windows that were made anew), and one by one. */
struct kumi_sample_speed {
    int64_t prompt_tokens, tokens, steps; /* steps: runs that made `tokens` of all texts */
    double prompt_s, s;
};
/*
 * Continue a text, as one process, whatever job the environment describes. The same call gives the
 * same text. A text ends at an end-of-sequence token: eos_token_id (one or several) of the model's
 * generation_config.json, else of its config.json, else the tokenizer's. Of a directory that
 * transformers loads, the tokenizer is its own, or bytes if vocab_size is 256; of a run or
 * checkpoint, the one it was trained with, of which the checkpoint has a copy.
 *
 * Errors: KUMI_ENOCKPT, EINVAL (options; a prompt outside the vocabulary), EINPUT (model,
 * tokenizer), ENUMERIC (logits that are not finite), ENOMEM, EDEVICE.
 */
KUMI_API int kumi_sample(const struct kumi_sample_options *options);

/*
 * Translate sentences with a trained model of pairs, as one process, whatever job the environment
 * describes: greedily, or by beam search, where the score of n tokens is their log-probability over
 * ((5 + n) / 6)^alpha (Wu et al. 2016, equation 14). The same call gives the same texts, whatever
 * `batch`.
 *
 * Errors: KUMI_ENOCKPT, EINVAL (options; a model of no pairs), EINPUT (a sentence of too many
 * tokens), ENUMERIC, ENOMEM, EDEVICE.
 */
struct kumi_translate_options {
    const char *run; /* run directory or checkpoint */
    /* "byte", a directory, a tokenizer.json or a NAME.vocab, of the source and of the target; NULL:
     * the run's own. A run with one vocabulary for both takes the first for both. */
    const char *tokenizer, *target_tokenizer;
    const char *const *source;
    int64_t n;      /* sentences; an empty one gives an empty one */
    int64_t beam;   /* 0 = 1: greedy */
    int64_t n_best; /* texts of each sentence, at most beam; 0 = 1 */
    double alpha;   /* of the length penalty */
    int64_t batch;  /* sentences side by side; 0 = 16 */
    int ema;        /* the averages of the weights in their place (train.ema) */
    /* Called for each text in order, best first; "": there are not so many. */
    void (*emit)(void *ctx, int64_t sentence, int64_t rank, const char *text);
    void *ctx;
    struct kumi_translate_speed *speed; /* out; NULL: nobody asks */
};
struct kumi_translate_speed {
    int64_t sentences, tokens; /* tokens: of the texts handed out */
    double s;
};
KUMI_API int kumi_translate(const struct kumi_translate_options *options);

/* Corpus BLEU and chrF of translations, as sacreBLEU defines them with tok=none (words are what
 * blanks part), against one reference a line. Errors: those of kumi_translate; KUMI_EINPUT: files
 * that cannot be read, or of unequal lines. */
struct kumi_bleu_options {
    const char *run, *source, *reference; /* files; both NULL: those of the validation split */
    int64_t beam;                         /* 0 = 1 */
    double alpha;
    int ema; /* as above */
};
struct kumi_bleu_result {
    double bleu, chrf, brevity_penalty, precision[4]; /* 0 to 100, the penalty 0 to 1 */
    int64_t sentences;
    struct kumi_translate_speed speed;
};
KUMI_API int kumi_eval_bleu(const struct kumi_bleu_options *options,
                            struct kumi_bleu_result *result);

/* The memory plan of a configuration on n ranks of one host, as text or JSON: what is mapped, what
 * is alive where most is, the largest tensors there, and settings that hold less. Needs no data. */
KUMI_API int kumi_plan_memory(const struct kumi_settings *settings, int n_ranks, int as_json,
                              char **text);
/*
 * KUMI_OK if a rank's plan (its own arenas and its share of the host's) is within limit_bytes, else
 * KUMI_ENOMEM with the shortage and what the bytes are.
 */
KUMI_API int kumi_plan_limit(const struct kumi_settings *settings, int n_ranks,
                             uint64_t limit_bytes);
/*
 * What the state of a model takes on a rank under each stage of ZeRO, in GB (10^9 bytes), from the
 * number of its parameters alone: Rajbhandari et al. 2020, Table 1.
 *
 *   optimizer   "adamw" (NULL), "adam", "lamb", "sgd", "momentum", "lars", "adagrad", "rmsprop",
 *               "lion", "adafactor"
 *   precision   of what is computed with: "bf16" (NULL) and "f16" keep an f32 master, "f32" is its
 *               own
 *   grads       of gradients: "f32" (NULL), "bf16", "f16"
 *   replicate   groups of ranks that hold all of the state; 0 = 1
 *   no_master   16-bit parameters have no f32 master
 *   zero        "0" to "3": that stage alone; NULL: all
 */
struct kumi_estimate {
    double n_params;
    const char *optimizer, *precision, *grads;
    int n_ranks, replicate, no_master;
    const char *zero;
};
KUMI_API int kumi_plan_estimate(const struct kumi_estimate *estimate, int as_json, char **text);
/*
 * The training program of the first rank drawn: offset over instruction or time in each arena,
 * coloured by class, with the instruction at the peak and its largest buffers. Time is that of
 * kumi_plan_roofline, without exchanges.
 *
 *   path   *.svg, *.png, *.pdf
 *
 * Errors: KUMI_EINVAL: another ending, or a build without cairo; KUMI_ESTORAGE.
 */
enum kumi_plan_axis { KUMI_PLAN_INSTRUCTIONS, KUMI_PLAN_TIME };
KUMI_API int kumi_plan_picture(const struct kumi_settings *settings, int n_ranks, const char *path,
                               enum kumi_plan_axis axis);
/*
 * A rank's memory under each stage of ZeRO with state of its own, and with state that the ranks of
 * the host share, whatever the configuration says of the two: a table, or JSON, and a picture.
 *
 *   picture       stacked bars into *.svg, *.png, *.pdf; NULL: none
 *   limit_bytes   of a rank, a line in the picture; 0: none
 *
 * Errors: KUMI_EINVAL: settings, as an ending; KUMI_ESTORAGE; KUMI_ENOMEM: no stage holds the
 * limit, and *text is set as well.
 */
struct kumi_plan_stages_options {
    const char *picture;
    uint64_t limit_bytes;
    int as_json;
};
KUMI_API int kumi_plan_stages(const struct kumi_settings *settings, int n_ranks,
                              const struct kumi_plan_stages_options *options, char **text);
/* The least time of a training step at the machine's limits, by op, and the tokens/s that it
 * allows. Limits are those that `kumi bench peak` keeps; what is not there is measured. */
KUMI_API int kumi_plan_roofline(const struct kumi_settings *settings, int n_ranks, int as_json,
                                char **text);
/* The graph after a pass ("build", "precision", ..), as text or Graphviz. After "lower", and NULL
 * as text: the ranks' program, with offsets; NULL as Graphviz: the last graph. */
KUMI_API int kumi_graph_text(const struct kumi_settings *settings, int n_ranks, const char *after,
                             int as_dot, char **text);
/* The resolved configuration, and every key with default, mark and meaning. */
KUMI_API int kumi_config_text(const struct kumi_settings *settings, char **json);
KUMI_API char *kumi_config_help(int as_markdown);

/*
 * What each key of the configuration's "deepspeed" section becomes on n ranks
 * (docs/reference/deepspeed.md): value, where it comes from, kumi's key, and whether it is applied,
 * has no effect or is refused. is_all: of keys that nobody gave, too; JSON has them always.
 *
 * Errors: those of the configuration; *text is set as well where keys are refused, or do not fit.
 */
KUMI_API int kumi_deepspeed_text(const struct kumi_settings *settings, int n_ranks, int is_all,
                                 int as_json, char **text);
KUMI_API char *kumi_precision_help(int as_markdown); /* every op of models, with its precision */
KUMI_API char *kumi_deepspeed_help(int as_markdown); /* every key, with its default */

/* Reads everything that a configuration's data section names; says what it found. */
KUMI_API int kumi_data_verify(const struct kumi_settings *settings, char **text);

/*
 * Checkpoints of a run directory, of the folder that holds them, or one alone.
 *
 *   list     a table, or a JSON array, newest first
 *   verify   all of them, every byte against its checksum; with KUMI_ENOCKPT *text says what is
 *            damaged where the error names the first, or is NULL
 *   digest   of the newest, "sha256:…"
 *
 * Errors: KUMI_ENOCKPT: none, or damaged.
 */
KUMI_API int kumi_ckpt_list(const char *run, int as_json, char **text);
KUMI_API int kumi_ckpt_verify(const char *run_or_checkpoint, char **text);
KUMI_API int kumi_ckpt_digest(const char *run_or_checkpoint, int parameters_only, char digest[72]);

/*
 * Weights in and out, as directories that transformers loads: config.json with model.safetensors,
 * or with shards and their index. Values pass through one buffer and change only where a narrower
 * dtype rounds them, once. Keys of config.json that kumi does not own, generation_config.json and
 * the tokenizer's files go with them.
 *
 *   export   the newest checkpoint's model, or that of such a directory, whose weights are held
 *            against its config.json
 *   import   someone's directory, under the names that our models have, complete and of the right
 *            shapes
 *   to       made here
 *
 * Errors: KUMI_ENOCKPT: none, or damaged; KUMI_EINPUT: weights or config.json that do not fit, with
 * all differences; KUMI_EBUSY: `to` exists; KUMI_ESTORAGE.
 */
struct kumi_weights_options {
    const char *dtype;    /* "f32", "bf16", "f16": of floating tensors; NULL: as they are */
    uint64_t shard_bytes; /* most bytes of tensors in a file; 0: one file */
    int ema;              /* export alone: a checkpoint's averages of the weights (train.ema) */
    int allow_missing;    /* of a directory: tensors that are not there are left out */
    /* import alone: */
    const char *model;      /* a config.json, or a training's configuration, whose section `model`
                             * counts; NULL: the directory's own */
    const char *const *map; /* [n_map] "name in the files=our name" */
    int n_map;
};
KUMI_API int kumi_ckpt_export(const char *source, const char *to,
                              const struct kumi_weights_options *options);
KUMI_API int kumi_ckpt_import(const char *source, const char *to,
                              const struct kumi_weights_options *options);

/* Text to ids and back, ids as numbers separated by blanks or newlines. tokenizer: "byte", a
 * directory, or a tokenizer.json. */
KUMI_API int kumi_tokenizer_encode(const char *tokenizer, const char *text, size_t bytes,
                                   char **ids);
KUMI_API int kumi_tokenizer_decode(const char *tokenizer, const char *ids, char **text,
                                   size_t *bytes);

/*
 * Writes the tokens of a text, as it comes, into a token file (llm.c's form; 2 bytes a token where
 * the tokenizer has at most 65536, else 4), which data.train and data.val read. Memory is bounded
 * by the longest word.
 *
 * Errors: KUMI_EINVAL: `to` does not end in .bin, or over 2^31 - 1 tokens; KUMI_EINPUT: tokenizer
 * or text, or what read returned; KUMI_EBUSY: `to` exists; KUMI_ESTORAGE, ENOMEM.
 */
struct kumi_token_file_options {
    const char *tokenizer; /* "byte", a directory, or a tokenizer.json */
    const char *to;        /* FILE.bin */
    int overwrite;         /* 1: a file of that name is replaced when the new one is whole */
    /* The next bytes of the text, at most `bytes`: how many, 0 at its end, below 0: errno says why
     * not. */
    int64_t (*read)(void *ctx, void *data, size_t bytes);
    void *ctx;
};
KUMI_API int kumi_tokenizer_write(const struct kumi_token_file_options *options, int64_t *n_tokens);

/*
 * Learns a byte-level BPE from text files and writes a tokenizer.json: the one that Hugging Face's
 * ByteLevelBPETokenizer learns from them, byte for byte.
 *
 * Errors: KUMI_EINVAL (options), EINPUT (a file missing, empty, not UTF-8: file:line), ESTORAGE,
 * ENOMEM.
 */
struct kumi_tokenizer_options {
    const char *const *file; /* [n_files] */
    int n_files;
    const char *out;            /* a *.json, or a folder for tokenizer.json; NULL: here */
    int64_t vocab_size;         /* special tokens, 256 bytes, one for each merge; 0: 30000 */
    int64_t min_frequency;      /* of a pair that is merged; 0: 2 */
    const char *const *special; /* [n_special], tokens 0, 1, … */
    int n_special, as_json;     /* as_json: *text is an object */
};
KUMI_API int kumi_tokenizer_train(const struct kumi_tokenizer_options *options, char **text);

/* What this machine and build are. */
KUMI_API int kumi_info_text(int as_json, char **text);
/*
 * Limits of the machine ("peak", also kept for the mfu of metrics), every op of a GPT-2 step
 * ("op"), collectives ("comm"). Errors: KUMI_EINVAL (options), ENOMEM; a job's root cause.
 */
struct kumi_bench_options {
    const char *what;  /* "peak", "op", "comm" */
    const char *only;  /* op, comm: rows whose name begins so, "linear", "all_reduce"; NULL: all */
    const char *dtype; /* op, comm: "f32" or "bf16"; op: "f16"; NULL: the first two */
    int64_t bytes;     /* comm: vectors of this size; 0: 8 B, 64 KiB, 1 MiB and 64 MiB */
    int threads;       /* 0: the cores. comm in a job of several ranks measures them (collective;
                        * rank 0 has the lines), else so many threads, 0: two */
    int as_json;       /* an object a line, with the machine in each */
    void (*line)(void *ctx, const char *text); /* without a newline */
    void *ctx;
};
KUMI_API int kumi_bench(const struct kumi_bench_options *options);

/*
 * How a training's speed grows with its ranks: short trials, one a rank count, and where the time
 * beyond the ideal of the first count went. A count that the configuration does not admit is an
 * error before anything runs.
 */
struct kumi_scaling_options {
    struct kumi_settings settings;
    const int *n; /* [n_counts] rank counts; the first is the reference */
    int n_counts,
        is_weak;   /* weak: the batch of a rank is the same at every count, else that of all */
    int threads;   /* of a rank; 0: one */
    int64_t steps; /* of a trial; 0: 18 */
    const char *program; /* the command kumi, which runs the trials */
    int as_json;
    void (*line)(void *ctx, const char *text);
    void *ctx;
};
KUMI_API int kumi_bench_scaling(const struct kumi_scaling_options *options);
/* How fast batches of a configuration's training data are read: what `kumi bench data` prints. */
KUMI_API int kumi_bench_data(const struct kumi_settings *settings, int as_json, char **text);

#ifdef __cplusplus
}
#endif
#endif
