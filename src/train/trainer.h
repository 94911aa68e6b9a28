/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_TRAINER_H
#define KU_TRAIN_TRAINER_H

#include <stdbool.h>

#include "base/err.h"
#include "base/math/exact.h"
#include "ckpt/snapshot/snapshot.h"
#include "exec/exec.h"
#include "kumi/run.h"
#include "op/loss_scaler.h"
#include "pass/pass.h"
#include "sim/between_hosts.h"

/*
 * The compiled form of a training job: programs over one state plan, a rank's memory, a device.
 *
 *     ku_trainer_create ── init_state or load ──┐
 *                                               v
 *                     fill ports (ku_trainer_port) ── ku_trainer_step ── read report ──┐
 *                         ^                                                            │
 *                         └────────────────────────────────────────────────────────────┘
 *
 *   program   runs                             state
 *   INIT      once, for a new state            writes it
 *   DERIVE    after tensors were written       recomputes the compute copies
 *   TRAIN     per step, one per batch shape    updates it
 *   EVAL      per batch, one per batch shape   reads it
 *
 * Configuration, data, checkpoint schedule and output belong to the caller (session.h).
 */
enum ku_trainer_program { KU_PROG_TRAIN, KU_PROG_EVAL, KU_PROG_INIT, KU_PROG_DERIVE, KU_N_PROGS };
#define KU_ALL_PROGS ((1u << KU_N_PROGS) - 1)
/* Those of a worker or server of a parameter server, which do not evaluate. */
#define KU_TRAIN_PROGS (KU_ALL_PROGS & ~(1u << KU_PROG_EVAL))
const char *ku_trainer_program_name(int program); /* "train" .. of KU_PROG_TRAIN .. */
int ku_trainer_program_find(const char *name);    /* KU_PROG_*; -1: no such name */

struct ku_trainer_opts {
    struct ku_compile_opts compile; /* is_training 0: evaluation only, without optimizer state */
    const struct ku_device_ops *device;
    struct ku_device_opts device_opts;
    uint64_t seed;
    size_t staging_bytes;               /* of asynchronous checkpoints, per rank */
    size_t loader_bytes;                /* of rows read ahead, per rank */
    struct ku_offload_file_opts target; /* folder of arena `file` */
    int no_eval;
    /* compile.remote: the index of this worker, which is its rank on the mesh */
    int worker;
};

/* Ports that every step or evaluation reads or writes. */
enum ku_step_port {
    KU_PORT_CONTROL,
    KU_PORT_REPORT,
    KU_PORT_STATS,
    KU_PORT_LOSS_SUM,
    KU_PORT_LOSS_VALID,
    KU_N_STEP_PORTS
};
/* Programs of a batch shape, KU_PROG_TRAIN and KU_PROG_EVAL; and their ports, found once. */
struct ku_trainer_shape {
    struct ku_program *program[2];
    struct ku_exec *exec[2];
    const struct ku_program_port *port[2][KU_N_STEP_PORTS]; /* NULL: the program has none */
    const struct ku_program_port **metric[2];               /* [n_metrics] */
    double *metric_count; /* [n_metrics] elements of the global batch that the metric covers */
};

/* A metric of the graph (enum kumi_metric): of the last step, and over the evaluation. */
struct ku_trainer_metric {
    char *port;       /* name of the program's port */
    const char *name; /* the user's name, points into port */
    int kind;
    struct ku_trainer_total {
        int n_runs;
        struct ku_exact sum;
        double max, count;
    } total[2]; /* by is_eval */
};

struct ku_trainer {
    struct ku_job *job;
    const struct ku_device_ops *ops;
    void *device;
    uint64_t seed;
    size_t staging_bytes;                   /* planned here, allocated by ku_saving */
    size_t loader_bytes;                    /* planned here, allocated by loaders */
    int is_training;                        /* 0: both programs of a shape are evaluation */
    enum ku_isa isa;                        /* maximum instruction set */
    int n_threads;                          /* of this rank */
    struct ku_program *program[KU_N_PROGS]; /* of the current shape */
    struct ku_exec *exec[KU_N_PROGS]; /* INIT, DERIVE: while they run, and DERIVE of a worker */
    struct ku_trainer_shape *shape;   /* all shapes; they use the same arenas in turn */
    int n_shapes, shape_at;           /* shape_at: the current shape */
    struct ku_exec_comms comms;
    struct ku_memory *memory;
    struct ku_ckpt_tensor *tensor; /* state as files have it: parameters and optimizer */
    int n_tensors;
    char **param; /* names of the trainable parameters, by index in stats */
    int n_params;
    struct ku_exact eval_sum;
    int64_t eval_tokens;
    struct ku_trainer_metric *metric; /* of the graph */
    int n_metrics;
    int64_t compile_ns;
    struct ku_trainer_scaler {
        struct ku_attrs rule;
        struct ku_range state;         /* bytes 0: no loss scaler */
        double words[KU_SCALER_WORDS]; /* op/loss_scaler.h */
    } scaler;
    struct ku_range update_count; /* of the state */
    int64_t n_updates;            /* its value; this and scaler.words are read after each run */
    double report[KU_REPORT_WORDS];
    int64_t n_steps, step_bytes;  /* steps of this rank; bytes it stored in their collectives */
    int64_t far_bytes;            /* bytes that it sent to other hosts in them */
    struct ku_step_bytes planned; /* of all ranks of its coordinate of axis pp */
    size_t pool_bytes; /* chunk pools of exchanges between hosts, all ranks of this one */
    struct ku_remote_layout *remote; /* of a worker or server (remote_update.h); NULL: neither */
    size_t inbox_bytes;              /* per rank, allocated while a checkpoint is written */
};

/*
 * Compile training and evaluation of a model for each batch shape, plan memory and check it against
 * the machine, allocate the arenas and load the programs. The state is undefined until
 * ku_trainer_init_state, or a load and ku_trainer_derive.
 *
 *   graph   [n], the same model for different batch shapes; freed in any case
 *
 * Collective over the job. Errors: KUMI_EINVAL, ENOMEM (exit 13, with the shortage by class),
 * EDEVICE, and the job's root cause.
 */
KU_STATUS ku_trainer_create(struct ku_job *job, struct ku_graph *const *graph, int n,
                            const struct ku_trainer_opts *o, struct ku_trainer **t);
/*
 * Select batch shape i for the following ports, steps and evaluations. Initially 0.
 */
void ku_trainer_use(struct ku_trainer *t, int i);
void ku_trainer_destroy(struct ku_trainer *t); /* collective; NULL is allowed */

/*
 * Compile one batch shape without device and memory, for `kumi plan`. The caller destroys the
 * programs, on failure too. Passes modify `graph`.
 *
 *   which     bits 1 << KU_PROG_*, training among them
 *   program   by KU_PROG_*: result, NULL before the call; the others are not touched
 */
KU_STATUS ku_trainer_plan(struct ku_graph *graph, const struct ku_compile_opts *o,
                          const struct ku_target *target, unsigned which,
                          struct ku_program **program);
/*
 * The same for several coordinates of axis pp, which differ in lowering alone.
 *
 *   at        bits 1 << coordinate, in place of o->pp
 *   program   KU_N_PROGS of each coordinate in turn
 */
KU_STATUS ku_trainer_plan_at(struct ku_graph *graph, const struct ku_compile_opts *o, uint64_t at,
                             const struct ku_target *target, unsigned which,
                             struct ku_program **program);
/* `at` of all n coordinates, at most 64 */
static inline uint64_t ku_trainer_all_at(int n)
{
    return n < 64 ? (UINT64_C(1) << n) - 1 : UINT64_MAX;
}

/*
 * Describe the state of a program as files have it: parameters, buffers, optimizer tensors; not
 * compute copies and counters. Names are borrowed from the program.
 *
 *   g        the graph that p was compiled from
 *   tensor   out: [*n], freed with ku_free
 */
KU_STATUS ku_trainer_describe(const struct ku_program *p, const struct ku_graph *g,
                              const struct ku_memory *memory, struct ku_ckpt_tensor **tensor,
                              int *n);

/*
 * The turn of an instruction, as checkpoints number the updates: from the end of the program, so
 * that the update of a tensor has the same turn in all batch shapes.
 */
enum { KU_TURN_END = 1 << 30 /* above the instructions of any program */ };
static inline uint32_t ku_trainer_turn(const struct ku_program *p, uint32_t instr)
{
    return KU_TURN_END - (p->n_instrs - instr);
}

/* Whether files have this state. */
static inline bool ku_trainer_is_saved(const struct ku_program_state *x)
{
    return x->kind != KU_T_DERIVED && x->kind != KU_T_COUNTER && x->kind != KU_T_CACHE;
}
/* One tensor of it, without its memory: data, parts and turn are not set. */
void ku_trainer_describe_one(const struct ku_program *p, const struct ku_graph *g,
                             const struct ku_program_state *x, bool is_spread,
                             struct ku_ckpt_tensor *out);

/* Once, before anything writes the state: zeros are not written. Collective. */
KU_STATUS ku_trainer_init_state(struct ku_trainer *t);
KU_STATUS ku_trainer_derive(struct ku_trainer *t); /* after tensors were written: compute copies */

/*
 * Replace the parameters by their averages (train.ema): those of the state, or of the checkpoint at
 * path. Collective. KUMI_EINVAL: there are none, or no update has been made.
 */
KU_STATUS ku_trainer_take_ema(struct ku_trainer *t);
KU_STATUS ku_trainer_load_ema(struct ku_trainer *t, const char *path);

/*
 * Number of ranks that each read a part of a state: those of this host if they share it; 1 for
 * replicas, which read all of it.
 */
int ku_trainer_n_readers(const struct ku_trainer *t);
/*
 * Write a checkpoint of the current state into desc->dir. The trainer fills in update and tensors.
 *
 *   status   < 0: this rank could not prepare desc; all ranks return the worst status
 *
 * Collective. Errors, on all ranks: KUMI_ESTORAGE; earlier checkpoints stay valid and the job
 * continues.
 */
KU_STATUS ku_trainer_save(struct ku_trainer *t, const struct ku_ckpt_desc *desc, int status);
/* desc, with the members that the trainer fills in. */
struct ku_ckpt_desc ku_trainer_desc(const struct ku_trainer *t, const struct ku_ckpt_desc *desc);
/*
 * Load the state of the checkpoint at path. Collective. KUMI_ENOCKPT on all ranks if a byte is
 * damaged.
 */
KU_STATUS ku_trainer_load(struct ku_trainer *t, const char *path, int64_t *step);
/*
 * Log a warning that the checkpoint at path is damaged, with the error of the ku_trainer_load that
 * failed with ENOCKPT, and find the one before it in dir. Its options may be others: compare them
 * before it is loaded.
 *
 *   path   in: the damaged one, equal on all ranks; out: the one before
 *
 * Collective. KUMI_ENOCKPT: there is none.
 */
KU_STATUS ku_trainer_previous(struct ku_job *job, const char *dir, char path[KU_CKPT_PATH_BYTES]);

/*
 * Rows of the global batch that micro-batch u of this rank reads: [*first, *first + n), n returned.
 * They lie one after the other from ku_trainer_port on.
 */
int64_t ku_trainer_rows(const struct ku_trainer *t, int u, int64_t *first);
int ku_trainer_n_micro(const struct ku_trainer *t);
/*
 * Cores for the compute threads of the ranks that share CPUs with this one (ku_comm_cores).
 *
 *   n_ranks   out: the number of these ranks, this one included
 */
int ku_trainer_cores(const struct ku_trainer *t, int *n_ranks);
/*
 * An input port of the current batch shape, for ku_trainer_port_rows; NULL: no such port. It is
 * valid as long as the trainer.
 */
const struct ku_program_port *ku_trainer_find_port(const struct ku_trainer *t,
                                                   enum ku_trainer_program p, const char *name);
/*
 * A port's rows for micro-batch u, and the bytes of one row. t uses the shape in which the port was
 * found; NULL: an empty range.
 */
struct ku_range ku_trainer_port_rows(const struct ku_trainer *t, enum ku_trainer_program p,
                                     const struct ku_program_port *port, int u, size_t *row_bytes);
/* The same by name; an empty range: no such port. */
struct ku_range ku_trainer_port(const struct ku_trainer *t, enum ku_trainer_program p,
                                const char *name, int u, size_t *row_bytes);

/*
 * Run one step on filled ports. report: KU_REPORT_WORDS numbers. A non-finite loss or gradient is
 * not an error here: KU_REPORT_APPLY is 0.
 */
KU_STATUS ku_trainer_step(struct ku_trainer *t, int64_t step, const double **report);
/*
 * Repeat the step on the same ports, with a callback per instruction (exec.h). The report is the
 * same.
 */
KU_STATUS ku_trainer_step_seen(struct ku_trainer *t, int64_t step, ku_exec_see *see, void *ctx);
/*
 * Evaluation: begin, then run for each global batch of filled ports, then the mean loss over valid
 * targets.
 */
void ku_trainer_eval_begin(struct ku_trainer *t);
KU_STATUS ku_trainer_eval_run(struct ku_trainer *t);
double ku_trainer_eval_loss(const struct ku_trainer *t);

/*
 * A metric of the last step (is_eval 0) or of the evaluation so far; names are in t->metric.
 * KUMI_EINVAL: no such metric, or no step so far.
 */
KU_STATUS ku_trainer_metric(const struct ku_trainer *t, const char *name, int is_eval,
                            double *value);
/* All metrics, without those beyond KUMI_MAX_RESULT_METRICS or with longer names. */
void ku_trainer_metrics(const struct ku_trainer *t, int is_eval, struct kumi_result_metrics *out);
/* Such a port in the program of the current shape; an empty range: it has none. */
struct ku_range ku_trainer_step_port(const struct ku_trainer *t, enum ku_trainer_program p,
                                     enum ku_step_port port);
/* For ku_trainer_create, step, eval_run and destroy. */
KU_STATUS ku_trainer_note_metrics(struct ku_trainer *t, struct ku_graph *const *graph);
KU_STATUS ku_trainer_take_metrics(struct ku_trainer *t);
KU_STATUS ku_trainer_eval_add(struct ku_trainer *t);
void ku_trainer_drop_metrics(struct ku_trainer *t);
/* *name: of the first parameter with a non-finite gradient in the last step, or NULL. */
KU_STATUS ku_trainer_bad_gradient(const struct ku_trainer *t, const char **name);
/* The number of updates, a scalar of the state. */
int64_t ku_trainer_update_count(const struct ku_trainer *t);
/*
 * Of the loss scaler after the last step: the scale (NaN: no scaler), and the number of steps so
 * far without an update.
 */
double ku_trainer_loss_scale(const struct ku_trainer *t);
int64_t ku_trainer_n_skipped(const struct ku_trainer *t);
/* KUMI_ENUMERIC: it overflowed at its minimum scale. */
KU_STATUS ku_trainer_check_scale(const struct ku_trainer *t);
/*
 * The scaler's state for manifests, under "state": {} without a scaler. The caller owns it. Load:
 * missing members are as before the first step.
 */
json_t *ku_trainer_scaler_json(const struct ku_trainer *t);
/* For ku_trainer_create, load and runs: find, write and read the scalars of the state. */
void ku_trainer_note_scalars(struct ku_trainer *t);
KU_STATUS ku_trainer_write_scalars(struct ku_trainer *t, int64_t n_updates, const json_t *scaler);
KU_STATUS ku_trainer_read_scalars(struct ku_trainer *t);
/*
 * Planned bytes of all ranks of the host: the shared arena once; for each rank all other arenas,
 * chunks of exchanges, the staging of checkpoints, what it gets for them from other hosts, and the
 * rows read ahead.
 */
size_t ku_trainer_host_bytes(const struct ku_trainer *t);
/* ku_replicas_verify of the state. */
KU_STATUS ku_trainer_verify_replicas(struct ku_trainer *t);
/*
 * Whether ranks that share one copy of the state are on different hosts, so that a host has only a
 * part of it.
 */
bool ku_trainer_is_spread(const struct ku_program *p, const struct ku_job *job);
/*
 * The digest of the state. Of one that is spread: collective over the job, and the text is rank
 * 0's; on other ranks it is empty. Otherwise any rank may call it alone.
 */
KU_STATUS ku_trainer_digest(const struct ku_trainer *t, int only_params, char out[72]);
/* The same on rank 0 alone, called by all ranks: the others only take part where they must. */
KU_STATUS ku_trainer_digest_first(const struct ku_trainer *t, char out[72]);
struct ku_host_ranks;
/*
 * Bytes that a rank allocates while a checkpoint is written from these hosts: those of its chunks
 * that are of other hosts, of all ranks the most, and one message. 0: one host.
 *
 *   g   the graph that p was compiled from
 */
KU_STATUS ku_trainer_inbox_bytes(const struct ku_program *p, const struct ku_graph *g,
                                 const struct ku_host_ranks *host, int n_hosts, size_t *bytes);
/*
 * For saving: exchange what chunks of a checkpoint have of several hosts, before they are written;
 * and their checksums, before the commit. Collective; with one host without effect. Errors: those
 * of storage, on all ranks; the job's root cause.
 */
KU_STATUS ku_trainer_spread_writer(const struct ku_trainer *t, struct ku_ckpt_writer *w);
KU_STATUS ku_trainer_exchange(struct ku_job *job, const struct ku_ckpt_writer *w);
KU_STATUS ku_trainer_add_sums(struct ku_job *job, struct ku_ckpt_writer *w);
/*
 * For averages: copy a tensor to another one, element by element, wherever each rank's host has
 * them. Collective.
 */
KU_STATUS ku_trainer_copy_spread(const struct ku_trainer *t, const struct ku_ckpt_tensor *to,
                                 const struct ku_ckpt_tensor *from);

#endif
