/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures how training scales: runs `kumi train --trial` once per rank count, then combines the
 * step times that each rank has written (exec/step_times.h, app/bench/scaling.h).
 */
#include "kumi/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "job/launch/hostlist.h"
#include "kumi/launch.h"
#include "app/bench/bench_report.h"
#include "train/configure.h"
#include "app/bench/scaling.h"
#include "train/session.h"

enum { MAX_COUNTS = 16, MAX_STEPS = 100000, DEFAULT_STEPS = 18, MAX_RANK_BYTES = 1 << 26 };

struct scaling {
    const struct kumi_scaling_options *o;
    struct ku_bench_out out;
    int n[MAX_COUNTS], n_counts; /* rank counts */
    int has_hosts, n_hosts;      /* n_hosts: of the last count */
    int together[MAX_COUNTS];    /* ranks of the fullest machine */
    int threads;
    int64_t batch;         /* of the first rank count */
    const char *batch_key; /* the key that sets it */
    int64_t steps;
    int is_by_samples;
    char folder[64];
    char set[3][64]; /* settings that override the user's */
};

static int64_t batch_of(const struct scaling *s, int n)
{
    return s->o->is_weak ? s->batch * n / s->n[0] : s->batch;
}

static void settle(struct scaling *s, int n)
{
    snprintf(s->set[0], sizeof s->set[0], "train.threads=%d", s->threads);
    snprintf(s->set[1], sizeof s->set[1], "train.log_every=0");
    snprintf(s->set[2], sizeof s->set[2], "%s=%lld", s->batch_key, (long long)batch_of(s, n));
}

static void find_batch(struct scaling *s, const struct ku_session *session)
{
    s->batch_key = session->source->ops->size_key(session->source, &s->batch);
    s->is_by_samples = session->model.properties.n_classes > 0;
}

/* The rank counts: those of the options, or of hosts 1, 2, 4, .. and all slots. */
static int find_counts(struct scaling *s)
{
    const struct kumi_scaling_options *o = s->o;
    struct ku_hostlist list = {0};
    s->n_counts = o->n_counts;
    if (o->n == NULL && o->n_counts == 0 && s->has_hosts) {
        int status = ku_hostlist_open(&list, o->hosts, o->hostfile, 0);
        const int n =
            list.n_slots < KU_SCALING_MAX_RANKS ? (int)list.n_slots : KU_SCALING_MAX_RANKS;
        ku_hostlist_fini(&list);
        KU_TRY(status);
        for (int k = 1; k < n; k *= 2)
            s->n[s->n_counts++] = k;
        s->n[s->n_counts++] = n;
        return KUMI_OK;
    }
    if (o->n_counts < 1 || o->n_counts > MAX_COUNTS || o->n == NULL)
        return KU_ERR(KUMI_EINVAL, "bench: scaling: %d rank counts; give 1 to %d", o->n_counts,
                      (int)MAX_COUNTS);
    for (int i = 0; i < o->n_counts; i++)
        if ((s->n[i] = o->n[i]) < 1 || o->n[i] > KU_SCALING_MAX_RANKS)
            return KU_ERR(KUMI_EINVAL, "rank count: -n: %d; give a number from 1 to %d", o->n[i],
                          (int)KU_SCALING_MAX_RANKS);
    return KUMI_OK;
}

/* How count i fills the hosts */
static int find_hosts(struct scaling *s, int i, struct ku_session *session)
{
    struct ku_hostlist list = {0};
    s->together[i] = s->n[i];
    if (!s->has_hosts)
        return KUMI_OK;
    int status = ku_hostlist_open(&list, s->o->hosts, s->o->hostfile, s->n[i]);
    s->n_hosts = (int)list.n;
    session->host_ranks = ku_hostlist_divisor(&list, &session->has_even_hosts);
    if (s->o->rsh == NULL || strcmp(s->o->rsh, "none") != 0)
        s->together[i] = 0;
    for (int h = 0; h < s->n_hosts; h++)
        if (list.host[h].n > s->together[i])
            s->together[i] = list.host[h].n;
    ku_hostlist_fini(&list);
    return status;
}

/* Check all rank counts before the first run starts. */
static int check(struct scaling *s)
{
    const struct kumi_scaling_options *o = s->o;
    KU_TRY(find_counts(s));
    if (o->threads < 0 || o->threads > KU_BENCH_THREADS_MAX)
        return KU_ERR(KUMI_EINVAL, "bench: --threads: %d; give 1 to %d", o->threads,
                      (int)KU_BENCH_THREADS_MAX);
    if (s->steps < 8 || s->steps > MAX_STEPS)
        return KU_ERR(KUMI_EINVAL, "bench: --steps: %lld; give 8 to %d", (long long)s->steps,
                      (int)MAX_STEPS);
    for (int i = 0; i < s->n_counts; i++) {
        struct ku_session session = {0};
        settle(s, s->n[i]);
        if (i > 0 && o->is_weak && s->batch * s->n[i] % s->n[0])
            return KU_ERR(
                KUMI_EINVAL,
                "bench: scaling: a batch of %lld at %d ranks is not a whole batch at %d ranks",
                (long long)s->batch, s->n[0], s->n[i]);
        const char *const more[] = {s->set[0], s->set[1], i ? s->set[2] : NULL, NULL};
        KU_TRY(find_hosts(s, i, &session));
        KU_TRY(ku_settings_configure(&session, &o->settings, s->n[i], more));
        if (i == 0)
            find_batch(s, &session);
        int64_t possible = session.n_steps;
        ku_session_fini(&session);
        if (possible < s->steps)
            return KU_ERR(KUMI_EINVAL, "bench: --steps: %lld; the run has %lld; raise train.steps",
                          (long long)s->steps, (long long)possible);
    }
    return KUMI_OK;
}

/* Run the ranks as threads of this process, with parallel.transport thread. */
static int train_here(const struct scaling *s, int n, const char *dir, const char **set, int n_sets)
{
    struct kumi_train_result result;
    struct kumi_train_options o = {.settings = {s->o->settings.config, set, n_sets},
                                   .out = dir,
                                   .until = s->steps,
                                   .is_trial = 1,
                                   .ranks = n};
    return kumi_train(&o, &result);
}

/* Run the command line on n ranks, and wait for them. */
static int launch(const struct scaling *s, char *const *argv, int n, int *code)
{
    const struct kumi_launch_hosts_options o = {.hosts = s->o->hosts,
                                                .hostfile = s->o->hostfile,
                                                .n = n,
                                                .threads = s->threads,
                                                .rsh = s->o->rsh,
                                                .out_fd = s->o->out_fd,
                                                .err_fd = s->o->err_fd};
    return s->has_hosts ? kumi_launch_hosts(argv, &o, code)
                        : kumi_launch_program(argv, n, s->threads, code);
}

static int train_there(const struct scaling *s, int n, const char *dir, const char **set,
                       int n_sets)
{
    char until[24];
    int code = 0, argc = 0;
    snprintf(until, sizeof until, "%lld", (long long)s->steps);
    const char **argv = ku_calloc((size_t)n_sets * 2 + 9, sizeof *argv);
    if (argv == NULL)
        return KUMI_ENOMEM;
    const char *const begin[] = {
        s->o->program, "train", s->o->settings.config, "--trial", "--out", dir, "--until", until};
    for (size_t i = 0; i < sizeof begin / sizeof begin[0]; i++)
        argv[argc++] = begin[i];
    for (int i = 0; i < n_sets; i++) {
        argv[argc++] = "--set";
        argv[argc++] = set[i];
    }
    int status = launch(s, (char *const *)(uintptr_t)argv, n, &code);
    ku_free(argv);
    if (status == KUMI_OK && code > 0 && code < 128)
        return KU_ERR(-code, "bench: scaling: the run on %d rank%s ended with exit code %d", n,
                      n == 1 ? "" : "s", code);
    return status == KUMI_OK && code
               ? KU_ERR(KUMI_ESTOPPED, "bench: scaling: the run on %d rank%s was stopped", n,
                        n == 1 ? "" : "s")
               : status;
}

static int train(struct scaling *s, int n, const char *dir)
{
    const struct kumi_settings *user = &s->o->settings;
    int n_sets = user->n_sets;
    const char **set = ku_calloc((size_t)n_sets + 3, sizeof *set);
    if (set == NULL)
        return KUMI_ENOMEM;
    for (int i = 0; i < n_sets; i++)
        set[i] = user->set[i];
    settle(s, n);
    for (int i = 0; i < 3; i++)
        set[n_sets++] = s->set[i];
    const struct kumi_settings all = {user->config, set, n_sets};
    int status = !s->has_hosts && kumi_train_in_threads(&all) ? train_here(s, n, dir, set, n_sets)
                                                              : train_there(s, n, dir, set, n_sets);
    ku_free(set);
    return status;
}

static int measure(struct scaling *s, int i, struct ku_scaling *row)
{
    const int n = s->n[i];
    char dir[sizeof s->folder + 24], path[sizeof dir + 32];
    snprintf(dir, sizeof dir, "%s/%d-ranks", s->folder, n);
    *row = (struct ku_scaling){.n_ranks = n, .n_threads = s->threads, .n_together = s->together[i]};
    KU_TRY(ku_os_rmtree(dir) < 0
               ? KU_ERR(ku_os_status(KUMI_ESTORAGE), "bench: %s: %s", dir, ku_os_why())
               : KUMI_OK);
    KU_TRY(train(s, n, dir));
    for (int rank = 0; rank < n; rank++) {
        struct ku_json doc;
        snprintf(path, sizeof path, "%s/rank-%d.json", dir, rank);
        KU_TRY(ku_json_load(path, MAX_RANK_BYTES, &doc));
        int status = ku_scaling_add_rank(row, rank, doc.root);
        ku_json_fini(&doc);
        KU_TRY(status);
    }
    return KUMI_OK;
}

static int print_json(const struct scaling *s, const struct ku_scaling *r,
                      const struct ku_scaling_split *p)
{
    json_t *waits = json_array();
    for (int i = 0; i < r->n_ranks; i++)
        json_array_append_new(waits, json_real(r->rank_wait_ms[i]));
    return ku_bench_line_json(
        &s->out,
        json_pack("{s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:o}",
                  "what", "scaling", "kind", s->o->is_weak ? "weak" : "strong",
                  r->is_by_samples ? "samples" : "tokens", (json_int_t)r->items, "tps", r->tps,
                  "step_ms", r->step_ms, "p10_ms", r->p10_ms, "p90_ms", r->p90_ms, "steps",
                  r->n_steps, "efficiency", p->efficiency, "ideal_ms", p->ideal_ms, "comm_ms",
                  p->comm_ms, "wait_ms", p->wait_ms, "cores_ms", p->cores_ms, "kernels_ms",
                  p->kernels_ms, "rank_wait_ms", waits),
        r->n_ranks, r->n_threads);
}

static int print_row(const struct scaling *s, const struct ku_scaling *r,
                     const struct ku_scaling_split *p)
{
    struct ku_str text = {0};
    double percent = 100 / r->step_ms;
    if (s->out.as_json)
        return print_json(s, r, p);
    ku_str_add(&text, "%5d %9lld %10.0f %10.2f %10.2f %10.2f %9.1f %%", r->n_ranks,
               (long long)r->items, r->tps, r->step_ms, r->p10_ms, r->p90_ms, 100 * p->efficiency);
    ku_str_add(&text, " %6.1f %% %6.1f %% %6.1f %% %6.1f %% ", p->comm_ms * percent,
               p->wait_ms * percent, p->cores_ms * percent, p->kernels_ms * percent);
    for (int i = 0; i < r->n_ranks && i < 8; i++)
        ku_str_add(&text, " %.1f", r->rank_wait_ms[i]);
    if (r->n_ranks > 8)
        ku_str_add(&text, " ...");
    return ku_bench_line(&s->out, &text);
}

static int print_head(const struct scaling *s)
{
    struct ku_str text = {0};
    if (s->out.as_json)
        return KUMI_OK;
    KU_TRY(ku_bench_head(&s->out, s->n[0], s->threads));
    ku_str_add(&text, "%s; medians of %lld steps after the first three",
               s->o->is_weak ? "weak: constant batch per rank" : "strong: constant global batch",
               (long long)s->steps - 3);
    if (s->has_hosts)
        ku_str_add(&text, "; %d host%s", s->n_hosts, s->n_hosts == 1 ? "" : "s");
    KU_TRY(ku_bench_line(&s->out, &text));
    ku_str_add(&text, "%5s %9s %10s %10s %10s %10s %11s %8s %8s %8s %8s  %s", "ranks",
               s->is_by_samples ? "samples" : "tokens", s->is_by_samples ? "samples/s" : "tokens/s",
               "step ms", "p10", "p90", "efficiency", "comm", "waiting", "cores", "kernels",
               "waiting by rank, ms");
    return ku_bench_line(&s->out, &text);
}

static int run_all(struct scaling *s, struct ku_scaling *base, struct ku_scaling *row)
{
    KU_TRY(print_head(s));
    for (int i = 0; i < s->n_counts; i++) {
        KU_TRY(measure(s, i, row));
        if (i == 0)
            *base = *row;
        struct ku_scaling_split split = ku_scaling_split(base, row, s->o->is_weak, ku_os_n_cpus());
        KU_TRY(print_row(s, row, &split));
    }
    return KUMI_OK;
}

int kumi_bench_scaling(const struct kumi_scaling_options *o)
{
    KU_GIVEN(o, "options");
    KU_GIVEN(o->line, "options.line");
    KU_GIVEN(o->program, "options.program");
    struct scaling s = {.o = o,
                        .out = {.line = o->line, .ctx = o->ctx, .as_json = o->as_json},
                        .threads = o->threads ? o->threads : 1,
                        .steps = o->steps ? o->steps : DEFAULT_STEPS,
                        .has_hosts = o->hosts || o->hostfile};
    snprintf(s.folder, sizeof s.folder, "%skumi-scaling-XXXXXX", s.has_hosts ? "" : "/tmp/");
    KU_TRY(check(&s));
    struct ku_scaling *two = ku_calloc(2, sizeof *two);
    if (two == NULL)
        return KUMI_ENOMEM;
    int status = mkdtemp(s.folder)
                     ? KUMI_OK
                     : KU_ERR(ku_os_status(KUMI_ESTORAGE), "bench: %s: %s", s.folder, ku_os_why());
    if (status == KUMI_OK) {
        status = run_all(&s, &two[0], &two[1]);
        struct kumi_error error = *ku_err_get();
        if (ku_os_rmtree(s.folder) < 0)
            KU_LOG(TRAIN, WARN, "bench: %s: %s", s.folder, ku_os_why());
        if (status < 0)
            ku_err_put(&error);
    }
    ku_free(two);
    return status;
}
