/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_RUN_H
#define KUMI_RUN_H

#include "kumi/status.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The commands of `kumi` as functions. A configuration is a file (docs/reference/configuration.md)
 * with settings "section.key=value" that override it. Returned strings are freed with
 * kumi_text_free.
 */
struct kumi_settings {
    const char *config;     /* path of the file */
    const char *const *set; /* [n_sets] */
    int n_sets;
};
KUMI_API void kumi_text_free(char *text);

struct kumi_train_options {
    struct kumi_settings settings;
    const char *out; /* run directory; NULL: runs/<config>-<time> */
    int resume;      /* 0: no; 1: yes; 2: if there is a checkpoint, else a new run */
    /*
     * With resume 1: the step whose checkpoint is loaded; 0: the newest. Later checkpoints move to
     * OUT/checkpoints.cut.
     */
    int64_t resume_step;
    /*
     * Replace the run in the directory once the first step is done. Not with resume.
     */
    int overwrite;
    int allow_change;         /* resume although numerics keys or data differ */
    int64_t until;            /* stop after this step, with a checkpoint; 0: at the end */
    double max_time_s;        /* stop as after SIGTERM after this time; 0: never */
    const char *profile;      /* steps to profile, "5-8"; "": the third to sixth; NULL: none */
    const char *profile_by;   /* rows of the table: "op" (NULL), "path", "shape", "source" */
    const char *profile_sort; /* order: "time" (NULL), "calls", "name" */
    int profile_rows;         /* maximum number of rows; 0: all */
    /*
     * Timed run without evaluation, checkpoint or digest; every rank writes its step times to
     * OUT/rank-R.json.
     */
    int is_trial;
    int ranks; /* > 1: threads of this process; needs parallel.transport "thread" */
};
/* The model's metrics over the validation split: "accuracy", "top5". */
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
    double val_loss; /* NaN: no validation split, or not finite */
    struct kumi_result_metrics val_metrics;
    int is_by_samples; /* median_tps is samples per second, not tokens */
    double median_tps;
    char digest[72];
    char out[512], checkpoint[640];
    char curve[1024];  /* lines "step validation-loss [accuracy]", at most 16, evenly spaced */
    char profile[640]; /* path of the table, with the trace beside it; "": none */
    int is_reported;   /* the rank that failed has already printed the error */
};
/*
 * Train, as one rank of the job that the environment describes, or as all ranks with `ranks`.
 *
 * Collective over the job. Errors: any status; KUMI_ESTOPPED after a signal or max_time_s, with the
 * state saved; before the first step a directory that has an earlier run is left as it is.
 */
KUMI_API int kumi_train(const struct kumi_train_options *options, struct kumi_train_result *result);
/*
 * 1: the configuration runs its ranks as threads of one process. 0: it does not, or it cannot be
 * read.
 */
KUMI_API int kumi_train_in_threads(const struct kumi_settings *settings);

/*
 * Compute the loss over the first train.eval_tokens of the validation split, with the newest
 * checkpoint of a run, as training does. With data or stride: over all of a held-out stream.
 */
struct kumi_eval_options {
    const char *run; /* run directory or checkpoint; with data, also a Hugging Face directory */
    /*
     * [n_data] files or globs that replace the run's data.val; NULL: none. Of images data.train
     * stays the run's own: it numbers the classes.
     */
    const char *const *data;
    int n_data;
    /* Only for a Hugging Face directory: */
    const char *tokenizer; /* as data.tokenizer; NULL: its own, or bytes if vocab_size is 256 */
    int64_t seq_len;       /* targets per window; 0: the model's positions, at most 1024 */
    /*
     * For text: distance in tokens between windows of data.seq_len targets. Only the last `stride`
     * targets of a window count (in the first window all), so each token but the first counts once.
     * 0: adjacent windows, without an incomplete last one.
     */
    int64_t stride;
    int ema; /* use the averaged weights (train.ema) */
};
struct kumi_eval_result {
    int64_t step, tokens; /* step -1: weights of a directory; tokens: targets that count */
    double loss, perplexity;
    int64_t bytes;        /* bytes of the text that the targets encode; 0: unknown */
    double bits_per_byte; /* with bytes: total loss in bits divided by bytes */
    double byte_perplexity;
    struct kumi_result_metrics metrics;
    int is_by_samples; /* tokens counts samples; perplexity is not set */
    int rank;          /* rank of the caller; all ranks get the same result */
    int is_reported;
};
/*
 * Collective over the job. Errors: KUMI_EINVAL (options; no validation split), KUMI_ENOCKPT,
 * KUMI_EINPUT (data).
 */
KUMI_API int kumi_evaluate(const struct kumi_eval_options *options,
                           struct kumi_eval_result *result);
/* kumi_evaluate of a run with default options. */
KUMI_API int kumi_eval(const char *run, struct kumi_eval_result *result);

struct kumi_sample_options {
    const char *run;    /* run directory, checkpoint or Hugging Face directory */
    const char *prompt; /* NULL: a newline */
    int64_t n;          /* completions, made in one batch with seeds seed, seed + 1, ..; 0: 1 */
    const char *const *prompts; /* [n], one prompt per completion; NULL: all use `prompt` */
    int64_t tokens;             /* maximum number of new tokens per completion */
    double temperature;         /* 0: greedy */
    int64_t top_k;              /* sample from the k most likely tokens; 0: all */
    double top_p;               /* nucleus sampling: probability mass; 0, 1: all */
    const char *dtype; /* compute dtype "f32", "bf16", "f16"; NULL: the run's; directory: f32 */
    uint64_t seed;
    int ema;          /* of a run: use the averaged weights (train.ema) */
    const char *stop; /* stop string: the output ends before its first occurrence; NULL: none */
    const char *tokenizer; /* "byte", directory or tokenizer.json; NULL: the model's own */
    int64_t threads;       /* compute threads, 1 to 4096; 0: the CPUs of this process */
    /*
     * Called with the prompt and then with each part of its completion; parts end at character
     * boundaries if the output is valid text. It runs on another thread while kumi_sample blocks.
     * Completions come one after the other; the first is streamed as it is generated.
     */
    void (*emit)(void *ctx, const char *text, size_t bytes);
    void (*begin)(void *ctx, int64_t i); /* before the first part of completion i; NULL: none */
    void *ctx;
    struct kumi_sample_speed *speed; /* out; NULL: not wanted */
};
/* Tokens and seconds: of prompts (and of windows that were recomputed), and of generation. */
struct kumi_sample_speed {
    int64_t prompt_tokens, tokens, steps; /* steps: decoder runs for `tokens` of all completions */
    double prompt_s, s;
};
/*
 * Complete prompts in this process, whatever job the environment describes. The same call gives the
 * same output. A completion ends at an end-of-sequence token: eos_token_id (one or several) of the
 * model's generation_config.json, else of its config.json, else the tokenizer's. A Hugging Face
 * directory uses its own tokenizer, or bytes if vocab_size is 256. A run or checkpoint uses the
 * tokenizer of its training, of which the checkpoint has a copy.
 *
 * Errors: KUMI_ENOCKPT, EINVAL (options; a prompt outside the vocabulary), EINPUT (model,
 * tokenizer), ENUMERIC (logits that are not finite), ENOMEM, EDEVICE.
 */
KUMI_API int kumi_sample(const struct kumi_sample_options *options);

/*
 * Translate sentences with an encoder-decoder model in this process, whatever job the environment
 * describes: greedily or by beam search. The score of n tokens is their log-probability divided by
 * ((5 + n) / 6)^alpha. The same call gives the same translations for every `batch`.
 *
 * Errors: KUMI_ENOCKPT, EINVAL (options; another kind of model), EINPUT (a sentence with too many
 * tokens), ENUMERIC, ENOMEM, EDEVICE. Source: Wu et al. 2016, equation 14.
 */
struct kumi_translate_options {
    const char *run; /* run directory, checkpoint or exported directory */
    /*
     * Of source and target: "byte", a directory, a tokenizer.json or a NAME.vocab; NULL: the run's
     * own, or that in an exported directory. With one vocabulary the first is for both.
     */
    const char *tokenizer, *target_tokenizer;
    /* [n]; blanks at the end of a sentence do not count, as in training */
    const char *const *source;
    int64_t n;       /* sentences; an empty sentence gives an empty text */
    int64_t beam;    /* beam width; 0, 1: greedy */
    int64_t n_best;  /* translations per sentence, at most beam; 0: 1 */
    double alpha;    /* exponent of the length penalty */
    int64_t batch;   /* sentences per batch; 0: 16 */
    int ema;         /* use the averaged weights (train.ema) */
    int64_t threads; /* compute threads, 1 to 4096; 0: the CPUs of this process */
    /* Called for each translation in order, best first. "": there are fewer than n_best. */
    void (*emit)(void *ctx, int64_t sentence, int64_t rank, const char *text);
    void *ctx;
    struct kumi_translate_speed *speed; /* out; NULL: not wanted */
};
struct kumi_translate_speed {
    int64_t sentences, tokens; /* tokens: of the returned translations */
    double s;
};
KUMI_API int kumi_translate(const struct kumi_translate_options *options);

/*
 * Compute corpus BLEU and chrF of translations as sacreBLEU defines them with tok=none (words are
 * separated by blanks), against one reference per line. Of the validation split, pairs that are
 * empty or too long are left out as in training, with a warning.
 *
 * Errors: those of kumi_translate; KUMI_EINPUT (files that cannot be read or have different numbers
 * of lines).
 */
struct kumi_bleu_options {
    const char *run, *source, *reference; /* files; both NULL: the validation split */
    int64_t beam;                         /* 0: 1 */
    double alpha;
    int ema; /* use the averaged weights */
};
struct kumi_bleu_result {
    double bleu, chrf, brevity_penalty, precision[4]; /* 0 to 100; brevity_penalty 0 to 1 */
    int64_t sentences;
    struct kumi_translate_speed speed;
};
KUMI_API int kumi_eval_bleu(const struct kumi_bleu_options *options,
                            struct kumi_bleu_result *result);

/*
 * Print the memory plan of a configuration on n ranks of one host: mapped bytes, live bytes at the
 * peak, the largest tensors there, and settings that need less memory. Only of a parallel corpus
 * are the data files read: they decide its batch shapes.
 *
 *   as_json   0: a table
 *   text      out: freed with kumi_text_free, here and below
 */
KUMI_API int kumi_plan_memory(const struct kumi_settings *settings, int n_ranks, int as_json,
                              char **text);
/*
 * The same on several hosts, as `kumi train -H` numbers their ranks: memory is that of the largest
 * host, and the bytes that travel between hosts are listed. Without settings that need less memory.
 *
 *   hosts      "a:4,b:4": names, which need not exist, and the ranks of each; or NULL, with
 *   hostfile   a file of lines "a slots=4"
 *   n_ranks    the first so many; 0: all
 */
KUMI_API int kumi_plan_memory_hosts(const struct kumi_settings *settings, const char *hosts,
                                    const char *hostfile, int n_ranks, int as_json, char **text);
/*
 * Check that a rank's plan (its own arenas and its share of the host's) is within limit_bytes.
 *
 * Errors: KUMI_ENOMEM with the shortage and the bytes by class.
 */
KUMI_API int kumi_plan_limit(const struct kumi_settings *settings, int n_ranks,
                             uint64_t limit_bytes);
/*
 * Estimate the memory of a model's state per rank under each stage of ZeRO, in GB (10^9 bytes),
 * from the number of its parameters alone.
 *
 *   optimizer   "adamw" (NULL), "adam", "lamb", "sgd", "momentum", "lars", "adagrad", "rmsprop",
 *               "lion", "adafactor"
 *   precision   of compute: "bf16" (NULL) and "f16" have an f32 master copy, "f32" has none
 *   grads       of gradients: "f32" (NULL), "bf16", "f16"
 *   replicate   groups of ranks with a full copy of the state (hybrid sharding); 0: 1
 *   no_master   16-bit parameters without an f32 master copy
 *   zero        "0" to "3": that stage alone; NULL: all
 *
 * Source: Rajbhandari et al. 2020, Table 1.
 */
struct kumi_estimate {
    double n_params;
    const char *optimizer, *precision, *grads;
    int n_ranks, replicate, no_master;
    const char *zero;
};
KUMI_API int kumi_plan_estimate(const struct kumi_estimate *estimate, int as_json, char **text);
/*
 * Draw the memory plan of a rank's training program, of a pipeline's coordinates the one that maps
 * the most memory: buffer offset over instruction or time for each arena, coloured by class, with
 * the peak and its largest buffers. Time is that of kumi_plan_roofline, without communication.
 *
 *   path   *.svg, *.png, *.pdf
 *
 * Errors: KUMI_EINVAL (another suffix; a build without cairo), KUMI_ESTORAGE.
 */
enum kumi_plan_axis { KUMI_PLAN_INSTRUCTIONS, KUMI_PLAN_TIME };
KUMI_API int kumi_plan_picture(const struct kumi_settings *settings, int n_ranks, const char *path,
                               enum kumi_plan_axis axis);
/*
 * Compare a rank's memory under each ZeRO stage with private state, and with state that the ranks
 * of the host share. These two settings of the configuration are ignored, also where its DeepSpeed
 * section gives them. What the other settings refuse is a column without figures and a line with
 * the reason.
 *
 *   options       NULL: defaults
 *   picture       path of a stacked bar chart, *.svg, *.png, *.pdf; NULL: none
 *   limit_bytes   per rank, drawn as a line; 0: none
 *
 * Errors: KUMI_EINVAL (settings, suffix), KUMI_ESTORAGE, KUMI_ENOMEM (no stage fits into the limit;
 * *text is set as well).
 */
struct kumi_plan_stages_options {
    const char *picture;
    uint64_t limit_bytes;
    int as_json;
};
KUMI_API int kumi_plan_stages(const struct kumi_settings *settings, int n_ranks,
                              const struct kumi_plan_stages_options *options, char **text);
/*
 * Print which ranks form each group: for every axis of the device mesh with several ranks,
 * outermost first, the number of groups, the stride between a group's ranks, and the first and
 * last groups. On several hosts also how many of them a group spans.
 *
 *   hosts, hostfile, n_ranks   as kumi_plan_memory_hosts; without both n_ranks of one host
 */
KUMI_API int kumi_plan_mesh(const struct kumi_settings *settings, const char *hosts,
                            const char *hostfile, int n_ranks, int as_json, char **text);
/*
 * Draw which rank has what: a column per rank, of many ranks the first ones and the last one of
 * each axis of the mesh. For each the samples, layers and activations between layers that it works
 * on, and of parameters, gradients, master weights and optimizer state the parts that it stores or
 * has for a part of the step, with their bytes; below them the groups of each axis, the collectives
 * of a step and the bytes that a rank sends.
 *
 *   hosts, hostfile, n_ranks   as kumi_plan_mesh takes them
 *   path                       *.svg, *.png, *.pdf
 *
 * Errors: KUMI_EINVAL (settings; another suffix; a build without cairo), KUMI_ESTORAGE.
 */
KUMI_API int kumi_plan_mesh_picture(const struct kumi_settings *settings, const char *hosts,
                                    const char *hostfile, int n_ranks, const char *path);
/*
 * Print the bytes of activations that a layer retains for backward, and the first rank of the
 * pipeline in its schedule, without and with tensor parallelism, sequence parallelism and
 * recomputation, under the storage of Korthikanti et al. 2022: 2-byte values, 1-byte masks,
 * attention without fusion.
 *
 * Errors: EINVAL: the model has no repeated layers, or is of images.
 */
KUMI_API int kumi_plan_activations(const struct kumi_settings *settings, int n_ranks, int as_json,
                                   char **text);
/*
 * Print memory and bytes sent of a rank under every layout of n ranks of one host: data parallel,
 * the stages of ZeRO, tensor parallel, pipelines (1F1B) and their combinations, with private state.
 * Of a pipeline each figure is the maximum over its coordinates; the bubble is its idle share, from
 * modelled costs. Keys of the configuration that choose a layout are ignored, also those of its
 * DeepSpeed section. A layout that the model or the settings refuse, or that exceeds
 * memory.recompute's budget, is a row with the reason.
 */
KUMI_API int kumi_plan_layouts(const struct kumi_settings *settings, int n_ranks, int as_json,
                               char **text);
/*
 * Print the schedule of a pipeline (parallel.pp above 1): what each coordinate of axis pp does in
 * time, its layers, micro-batches in flight and the bytes of their activations, transfers to other
 * coordinates and idle share. F, I and W of a stage take as long as the floating-point operations
 * of its layers, what backward makes again included; a unit is the mean of F. Transfers take what
 * parallel.pp_flop_per_byte says, and the optimizer begins after the last block of all.
 *
 *   picture      path of a diagram of coordinates over time, *.svg, *.png, *.pdf; NULL: none
 *   form         KUMI_PLAN_CSV: the text form of PyTorch's pipelines, which parallel.pp_schedule
 *                reads
 *   unit_costs   1: F, I and W of every stage take one unit and B two
 *
 * Errors: EINVAL: parallel.pp is 1.
 */
enum kumi_plan_form { KUMI_PLAN_TEXT, KUMI_PLAN_JSON, KUMI_PLAN_CSV };
KUMI_API int kumi_plan_schedule(const struct kumi_settings *settings, int n_ranks,
                                const char *picture, enum kumi_plan_form form, int unit_costs,
                                char **text);
/*
 * Print the minimum time of a training step by op at the machine's limits, of a pipeline that of
 * its slowest coordinate, and the tokens/s that it allows. Limits come from the file that
 * `kumi bench peak` writes; missing ones are measured.
 */
KUMI_API int kumi_plan_roofline(const struct kumi_settings *settings, int n_ranks, int as_json,
                                char **text);
/*
 * Print the graph after a pass.
 *
 *   after    "build", "precision", ..; "lower", or NULL with text: the program of the ranks, with
 *            offsets; NULL with Graphviz: the last graph
 *   as_dot   0: text; 1: Graphviz
 */
KUMI_API int kumi_graph_text(const struct kumi_settings *settings, int n_ranks, const char *after,
                             int as_dot, char **text);
/*
 * Print the training program as one rank runs it: size, first index (where not 0) and offset of
 * that rank's part of each operand.
 *
 *   rank     0 to n_ranks - 1
 */
KUMI_API int kumi_program_text(const struct kumi_settings *settings, int n_ranks, int rank,
                               char **text);
/*
 * Print a program of one coordinate of a pipeline whole, as kumi_check_programs reads it.
 *
 *   program      "train", "eval", "init" or "derive"
 *   coordinate   0 to parallel.pp - 1
 */
KUMI_API int kumi_coordinate_text(const struct kumi_settings *settings, int n_ranks,
                                  const char *program, int coordinate, char **text);
/*
 * Compile the programs of a configuration, those of every batch shape, prove them
 * (docs/internals/check.md) and print what was proved.
 *
 * Errors: KUMI_EPLAN names instruction, tensor, module and the rule that is violated.
 */
KUMI_API int kumi_check_text(const struct kumi_settings *settings, int n_ranks, char **text);
/*
 * The same of the programs of files, as kumi_coordinate_text prints them, of the largest batch
 * shape. A program is given for all coordinates of a pipeline or for none.
 *
 *   path   [n] files, in any order
 *
 * Errors: also KUMI_EINPUT, a file cannot be read or parsed, with line and column.
 */
KUMI_API int kumi_check_programs(const struct kumi_settings *settings, int n_ranks,
                                 const char *const *path, int n, char **text);
/* The resolved configuration; and all keys with default, mark and meaning. */
KUMI_API int kumi_config_text(const struct kumi_settings *settings, char **json);
KUMI_API char *kumi_config_help(int as_markdown);

/*
 * Print the effect of each key of the configuration's "deepspeed" section on n ranks
 * (docs/reference/deepspeed.md): value, source, kumi's key, and whether it is applied, has no
 * effect or is refused.
 *
 *   n_ranks  1 to 2^20
 *   is_all   include keys that are not given; JSON always includes them
 *
 * Errors: those of the configuration. *text is also set where keys are refused or inconsistent.
 */
KUMI_API int kumi_deepspeed_text(const struct kumi_settings *settings, int n_ranks, int is_all,
                                 int as_json, char **text);
KUMI_API char *kumi_precision_help(int as_markdown); /* all ops of models with their precision */
KUMI_API char *kumi_deepspeed_help(int as_markdown); /* all keys with their defaults */

/* Read all files that a configuration's data section names, and report what they contain. */
KUMI_API int kumi_data_verify(const struct kumi_settings *settings, char **text);

/*
 * Checkpoints of a run directory, of the folder that contains them, or a single one.
 *
 *   list     a table, or a JSON array, newest first
 *   verify   checks every byte of all of them against its checksum. With KUMI_ENOCKPT, *text lists
 *            the damage and the error names the first, or *text is NULL
 *   digest   of the newest, "sha256:…"
 *
 * The run may be in training: a checkpoint that it removes meanwhile (checkpoint.keep) is no
 * damage.
 *
 * Errors: KUMI_ENOCKPT: none, or damaged, or the run removes them sooner than they are read.
 */
KUMI_API int kumi_ckpt_list(const char *run, int as_json, char **text);
KUMI_API int kumi_ckpt_verify(const char *run_or_checkpoint, char **text);
KUMI_API int kumi_ckpt_digest(const char *run_or_checkpoint, int parameters_only, char digest[72]);

/*
 * Export and import weights as Hugging Face directories: config.json with model.safetensors, or
 * with shards and their index. Values pass through one buffer; only a narrower dtype changes them,
 * with one rounding. Keys of config.json that kumi does not use, generation_config.json and the
 * tokenizer's files are copied.
 *
 *   source   export: a run, whose newest checkpoint's model is taken, or a Hugging Face directory,
 *            which is checked against its config.json; import: a directory whose tensors get kumi's
 *            names and are checked for completeness and shape
 *   to       the directory to create
 *
 * Errors: KUMI_ENOCKPT: none, or damaged; KUMI_EINPUT: weights or config.json do not match, with
 * all differences; KUMI_EBUSY: `to` exists; KUMI_ESTORAGE.
 */
struct kumi_weights_options {
    const char *dtype;    /* of floating tensors: "f32", "bf16", "f16"; NULL: unchanged */
    uint64_t shard_bytes; /* maximum bytes of tensors per file; 0: one file */
    int ema;              /* export: a checkpoint's averaged weights (train.ema) */
    int allow_missing;    /* of a directory: skip tensors that are missing */
    /* Import only: */
    /*
     * A config.json, or a training configuration whose section `model` is used; NULL: the
     * directory's own.
     */
    const char *model;
    const char *const *map; /* [n_map] "name in the files=kumi's name" */
    int n_map;
};
KUMI_API int kumi_ckpt_export(const char *source, const char *to,
                              const struct kumi_weights_options *options);
KUMI_API int kumi_ckpt_import(const char *source, const char *to,
                              const struct kumi_weights_options *options);

/*
 * Encode a whole text to ids, with the tokens that the tokenizer adds around one, and decode ids to
 * text. Ids are numbers separated by blanks or newlines.
 *
 *   tokenizer   "byte", a directory, or a tokenizer.json
 */
KUMI_API int kumi_tokenizer_encode(const char *tokenizer, const char *text, size_t bytes,
                                   char **ids);
KUMI_API int kumi_tokenizer_decode(const char *tokenizer, const char *ids, char **text,
                                   size_t *bytes);

/*
 * Stream a text through a tokenizer into a token file for data.train and data.val, in llm.c's
 * format: 2 bytes per token if the tokenizer has at most 65536, else 4. No tokens are added around
 * the text. The longest word bounds the memory.
 *
 *   n_tokens   out: tokens written
 *
 * Errors: KUMI_EINVAL: `to` does not end in .bin, or more than 2^31 - 1 tokens; KUMI_EINPUT:
 * tokenizer, text, or `read` failed; KUMI_EBUSY: `to` exists; KUMI_ESTORAGE, ENOMEM.
 */
struct kumi_token_file_options {
    const char *tokenizer; /* "byte", a directory, or a tokenizer.json */
    const char *to;        /* FILE.bin */
    int overwrite;         /* 1: replace an existing file once the new one is complete */
    /*
     * Reads the next bytes of the text, at most `bytes`. Returns their number; 0: end; < 0:
     * failure, in errno.
     */
    int64_t (*read)(void *ctx, void *data, size_t bytes);
    void *ctx;
};
KUMI_API int kumi_tokenizer_write(const struct kumi_token_file_options *options, int64_t *n_tokens);

/*
 * Train a byte-level BPE on text files and write a tokenizer.json, byte for byte the one of Hugging
 * Face's ByteLevelBPETokenizer.
 *
 * Errors: KUMI_EINVAL (options), EINPUT (a file missing, empty, not UTF-8: file:line), ESTORAGE,
 * ENOMEM.
 */
struct kumi_tokenizer_options {
    const char *const *file; /* [n_files] */
    int n_files;
    const char *out;            /* a *.json, or a folder for tokenizer.json; NULL: "." */
    int64_t vocab_size;         /* special tokens + 256 bytes + merges; 0: 30000 */
    int64_t min_frequency;      /* minimum count of a merged pair; 0: 2 */
    const char *const *special; /* [n_special], tokens 0, 1, … */
    int n_special, as_json;     /* as_json: *text is a JSON object */
};
KUMI_API int kumi_tokenizer_train(const struct kumi_tokenizer_options *options, char **text);

/* Describe this machine and build. */
KUMI_API int kumi_info_text(int as_json, char **text);
/*
 * Describe the hosts of the job that the environment describes, as its ranks found them, and
 * measure the network between them, for about 3 s at most: all-reduces over the job, and messages
 * between host 0 and up to 16 others.
 *
 *   text   out: on rank 0 the report, a line per host, or with as_json one object; NULL on others
 *
 * Collective over the job. Errors: KUMI_ENOMEM; those of a join; a job's root cause, KUMI_ETIMEDOUT
 * after 60 s without progress.
 */
KUMI_API int kumi_info_hosts(int as_json, char **text);
/*
 * Measure the limits of the machine ("peak", stored for the mfu of metrics), every op of a GPT-2
 * step ("op"), or collectives ("comm").
 *
 * Errors: KUMI_EINVAL (options), ENOMEM; a job's root cause.
 */
struct kumi_bench_options {
    const char *what;  /* "peak", "op", "comm" */
    const char *only;  /* op, comm: prefix of the row names, "linear", "all_reduce"; NULL: all */
    const char *dtype; /* op, comm: "f32" or "bf16"; op: "f16"; NULL: the first two */
    int64_t bytes;     /* comm: size of the vectors; 0: 8 B, 64 KiB, 1 MiB and 64 MiB */
    /*
     * 0: the cores. comm in a job that a launcher has started measures its ranks (collective; rank
     * 0 gets the lines); otherwise it measures this many threads, 0: two.
     */
    int threads;
    int as_json; /* a JSON object per line, with the machine in each */
    void (*line)(void *ctx, const char *text); /* text: one line, without a newline */
    void *ctx;
    int is_quick; /* peak: only the matrix peaks, in about 0.1 s; nothing is stored */
    int tune;     /* op: time products with several shapes of tiles */
};
KUMI_API int kumi_bench(const struct kumi_bench_options *options);

/*
 * Measure how training speed scales with the number of ranks: a short timed run per rank count, and
 * the causes of the time beyond ideal scaling from the first count. All counts are checked against
 * the configuration before anything runs.
 *
 * On several hosts the ranks fill the hosts in order, as those of kumi_launch_hosts do. The ranks
 * write their times into a new folder of the working folder, which the hosts must share.
 */
struct kumi_scaling_options {
    struct kumi_settings settings;
    /*
     * [n_counts] rank counts, 1 to 512; the first is the reference. NULL, with hosts: 1, 2, 4, ..
     * and all slots
     */
    const int *n;
    int n_counts, is_weak; /* 1: weak scaling, equal batch per rank; 0: strong scaling */
    int threads;           /* per rank; 0: 1 */
    int64_t steps;         /* per timed run; 0: 18 */
    const char *program;   /* path of the command kumi, which runs them */
    int as_json;
    void (*line)(void *ctx, const char *text);
    void *ctx;
    /* As in kumi_launch_hosts_options; hosts and hostfile NULL: this host */
    const char *hosts, *hostfile, *rsh;
    int out_fd, err_fd;
};
KUMI_API int kumi_bench_scaling(const struct kumi_scaling_options *options);
/*
 * Measure how fast batches of a configuration's training data are read, as `kumi bench data` does.
 */
KUMI_API int kumi_bench_data(const struct kumi_settings *settings, int as_json, char **text);

#ifdef __cplusplus
}
#endif
#endif
