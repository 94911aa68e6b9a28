/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory plan as a table and as JSON. It compiles the same programs as a run, so the bytes are
 * exact: per arena the maximum over all programs.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/os/os.h"
#include "base/str.h"
#include "plan/plan.h"
#include "plan/volume_table.h"
#include "config/precision_policy.h"
#include "train/progress_line.h"
#include "train/recompute_budget.h"

/* Settings that need less memory, and the memory they need. */
struct advice {
    /*
     * The settings. Those after the first keep other derived values unchanged.
     */
    char set[3][64];
    const char *price;
    uint64_t host_bytes;
};
enum { MAX_ADVICE = 10 };
/*
 * Each alternative is compiled in full, so its bytes are exact. Programs with more instructions get
 * no advice: GPT-3 with 96 layers and 16 micro-batches has 90,000.
 */
enum { MAX_ADVISED_INSTRUCTIONS = 1 << 17 };
static bool is_advised(const struct ku_plan *p)
{
    return p->program[KU_PROG_TRAIN]->n_instrs <= MAX_ADVISED_INSTRUCTIONS;
}

/* Plans with additional settings, compiled by several threads. */
struct trials {
    const struct kumi_settings *settings;
    const struct ku_watch *watch;
    struct advice advice[MAX_ADVICE];
    struct kumi_error error[MAX_ADVICE]; /* status KUMI_OK: host_bytes is set */
    int n, n_ranks;
    atomic_int next;
};

static struct advice *add_trial(struct trials *t, const char *price)
{
    KU_ASSERT(t->n < MAX_ADVICE);
    t->advice[t->n].price = price;
    return &t->advice[t->n++];
}

static void *try_next(void *arg)
{
    struct trials *t = arg;
    for (int i = atomic_fetch_add(&t->next, 1); i < t->n; i = atomic_fetch_add(&t->next, 1)) {
        struct advice *a = &t->advice[i];
        struct ku_plan other;
        const char *more[4] = {a->set[0], a->set[1], a->set[2], NULL};
        for (int k = 2; k > 0 && more[k][0] == '\0'; k--)
            more[k] = NULL;
        if (ku_plan_init(&other, t->settings, t->n_ranks, more, t->watch) < 0) {
            t->error[i] = *ku_err_get();
            continue;
        }
        a->host_bytes = other.host_bytes;
        ku_plan_fini(&other);
    }
    return NULL;
}

/*
 * One thread per core. If a thread cannot start, the others do its work.
 */
static void try_all(struct trials *t)
{
    pthread_t thread[MAX_ADVICE];
    int n = ku_os_n_cpus() < t->n ? ku_os_n_cpus() : t->n, n_started = 0;
    while (n_started < n - 1 && pthread_create(&thread[n_started], NULL, try_next, t) == 0)
        n_started++;
    try_next(t);
    for (int i = 0; i < n_started; i++)
        pthread_join(thread[i], NULL);
}

/* Keep the alternatives that are valid and need less memory than the plan. */
static int keep_less(const struct trials *t, const struct ku_plan *p, struct advice *kept,
                     int *n_kept)
{
    for (int i = 0; i < t->n; i++) {
        const int status = t->error[i].status;
        if (status == KUMI_EINVAL || status == KUMI_ENOMEM)
            continue; /* invalid, or exceeds memory.recompute's budget */
        if (status < 0)
            return ku_err_put(&t->error[i]);
        if (t->advice[i].host_bytes < p->host_bytes)
            kept[(*n_kept)++] = t->advice[i];
    }
    return KUMI_OK;
}

/*
 * Suggest offload to files. Offload to host memory is not suggested, since it takes the same
 * memory.
 */
static void advise_offload(const struct ku_plan *p, struct trials *t)
{
    const struct ku_offload_key *k = &p->s.cfg.memory_offload;
    const struct {
        const char *what;
        int now;
    } row[] = {{"optimizer", k->optimizer}, {"params", k->params}, {"activations", k->activations}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        if (row[i].now == KU_OFFLOAD_FILE)
            continue;
        struct advice *a = add_trial(t, "reads and writes a disk in each step; same bits");
        snprintf(a->set[0], sizeof a->set[0], "memory.offload.%s=file", row[i].what);
        snprintf(a->set[1], sizeof a->set[1], "memory.offload.path=%.30s", k->path ? k->path : ".");
    }
}

static void advise_recompute(const struct ku_plan *p, struct trials *t)
{
    static const char *const recompute[] = {"selective", "full"};
    for (int i = 0; i < 2 && (int)p->s.cfg.memory_recompute.rule <= i; i++) {
        struct advice *a = add_trial(t, i ? "recomputes the layers' forward; same bits"
                                          : "recomputes attention and cheap operations; same bits");
        snprintf(a->set[0], sizeof a->set[0], "memory.recompute=%s", recompute[i]);
    }
}

static int advise(const struct ku_plan *p, const struct kumi_settings *settings,
                  const struct ku_watch *watch, struct advice *kept, int *n_kept)
{
    const struct ku_batch *b = &p->s.batch;
    struct trials t = {.settings = settings, .watch = watch, .n_ranks = b->n_ranks};
    struct advice *a;
    int64_t micro = b->micro_batch / 2, of_shard = b->global_batch / b->virtual_shards;
    while (micro > 1 && of_shard % micro != 0)
        micro--;
    *n_kept = 0;
    if (!is_advised(p))
        return KUMI_OK;
    if (micro >= 1) {
        a = add_trial(&t, "more and smaller micro-batches; other order of sums");
        snprintf(a->set[0], sizeof a->set[0], "train.micro_batch=%lld", (long long)micro);
        snprintf(a->set[1], sizeof a->set[1], "train.global_batch=%lld",
                 (long long)b->global_batch);
        snprintf(a->set[2], sizeof a->set[2], "train.accumulation=null");
    }
    advise_recompute(p, &t);
    advise_offload(p, &t);
    if (!p->s.cfg.parallel_share_host_state && b->n_ranks > 1)
        snprintf(add_trial(&t, "same bits")->set[0], sizeof a->set[0],
                 "parallel.share_host_state=true");
    if (b->virtual_shards > b->n_ranks) {
        a = add_trial(&t, "other order of sums, which then depends on the rank count");
        snprintf(a->set[0], sizeof a->set[0], "train.virtual_shards=%d", b->n_ranks);
        snprintf(a->set[1], sizeof a->set[1], "train.global_batch=%lld",
                 (long long)b->global_batch);
        snprintf(a->set[2], sizeof a->set[2], "train.micro_batch=%lld", (long long)b->micro_batch);
    }
    if (strcmp(p->s.cfg.precision_compute, "f32") == 0 &&
        strcmp(p->s.cfg.parallel_device, "cpu") == 0)
        snprintf(add_trial(&t, "activations rounded to bf16; other bits")->set[0], sizeof a->set[0],
                 "precision.compute=bf16");
    try_all(&t);
    return keep_less(&t, p, kept, n_kept);
}

static const char *who_sees(int arena, const struct ku_plan *p)
{
    return arena == KU_AR_HOST      ? "host"
           : arena == KU_AR_OFFLOAD ? "rank, in windows"
           : arena == KU_AR_FILE    ? "rank, on disk"
           : (arena == KU_AR_WIRE || arena == KU_AR_SHARD) && p->s.batch.n_ranks > 1
               ? "rank, read by all"
               : "rank";
}

static void print_arenas(const struct ku_plan *p, struct ku_str *out)
{
    char text[16];
    ku_str_add(out, "%-7s %-19s", "arena", "one for each");
    for (int i = 0; i < KU_N_PROGS; i++)
        ku_str_add(out, " %10s", p->program[i]->name);
    ku_str_add(out, " %10s %15s\n", "mapped", "bytes");
    for (int a = 0; a < KU_N_ARENAS; a++) {
        if (ku_arena_is_tier(a) && p->arena_bytes[a] == 0)
            continue;
        ku_str_add(out, "%-7s %-19s", ku_arena_name(a), who_sees(a, p));
        for (int i = 0; i < KU_N_PROGS; i++)
            ku_str_add(out, " %10s", ku_text_bytes(p->program[i]->arena_bytes[a], text));
        ku_str_add(out, " %10s %15zu\n", ku_text_bytes(p->arena_bytes[a], text), p->arena_bytes[a]);
    }
    const struct {
        const char *what;
        size_t bytes;
    } more[] = {
        {"staging buffers of checkpoints, one for each rank", ku_session_staging_bytes(&p->s)},
        {"samples read ahead (data.workers, data.prefetch), for each rank", p->loader_bytes}};
    for (int i = 0; i < 2; i++)
        if (more[i].bytes)
            ku_str_add(out, "%-70s %10s %15zu\n", more[i].what, ku_text_bytes(more[i].bytes, text),
                       more[i].bytes);
}

static void print_total(const struct ku_plan *p, struct ku_str *out)
{
    char text[16];
    ku_str_add(out, "\na rank's own:          %s %20llu bytes\n",
               ku_text_bytes(p->rank_bytes, text), (unsigned long long)p->rank_bytes);
    ku_str_add(out, "this host, %3d rank%s %s %20llu bytes\n", p->s.batch.n_ranks,
               p->s.batch.n_ranks == 1 ? ":   " : "s:  ", ku_text_bytes(p->host_bytes, text),
               (unsigned long long)p->host_bytes);
    ku_str_add(out, "and page tables:       %s %20llu bytes\n", ku_text_bytes(p->table_bytes, text),
               (unsigned long long)p->table_bytes);
    uint64_t on_disk = p->arena_bytes[KU_AR_FILE] * (uint64_t)p->s.batch.n_ranks;
    if (on_disk)
        ku_str_add(out, "and on disk:           %s %20llu bytes\n", ku_text_bytes(on_disk, text),
                   (unsigned long long)on_disk);
    uint64_t available = ku_os_mem_available();
    if (available != UINT64_MAX)
        ku_str_add(out, "available now:         %s %20llu bytes\n", ku_text_bytes(available, text),
                   (unsigned long long)available);
}

/* Print a program's peak: bytes by class, and the largest tensors. */
static void print_peak(const struct ku_program *p, struct ku_str *out)
{
    struct ku_memory_report r;
    char text[16];
    size_t alive = 0;
    ku_program_memory(p, &r);
    ku_str_add(out, "\n%s: peak at instruction %u of %u: ", p->name, r.peak_instr, p->n_instrs);
    ku_plan_print_instr(p, r.peak_instr, out);
    ku_str_add(out, "\n");
    for (int c = 0; c < KU_N_CLASSES; c++) {
        alive += r.at_peak[c];
        if (r.at_peak[c])
            ku_str_add(out, "  %-20s %s %15zu\n", ku_class_name(c),
                       ku_text_bytes(r.at_peak[c], text), r.at_peak[c]);
    }
    if (r.peak_bytes > alive)
        ku_str_add(out, "  %-20s %s %15zu\n", "unused at peak",
                   ku_text_bytes(r.peak_bytes - alive, text), r.peak_bytes - alive);
    ku_str_add(out, "  %-20s %s %15zu\n  largest buffers there:\n", "total",
               ku_text_bytes(r.peak_bytes, text), r.peak_bytes);
    for (uint32_t i = 0; i < r.n_rows; i++) {
        const struct ku_memory_row *row = &r.row[i];
        ku_str_add(out, "    %s %15zu  %-17s %s", ku_text_bytes(row->bytes, text), row->bytes,
                   ku_class_name(row->cls), row->name);
        if (row->micro >= 0)
            ku_str_add(out, "@%d", row->micro);
        ku_str_add(out, "\n");
    }
}

static void print_advice(const struct ku_plan *p, const struct advice *a, int n, struct ku_str *out)
{
    char text[16], less[16];
    if (n)
        ku_str_add(out, "\nways to need less:\n");
    else if (!is_advised(p))
        ku_str_add(
            out,
            "\nways to need less are not computed for a program of more than %d instructions; "
            "try memory.recompute and memory.offload\n",
            MAX_ADVISED_INSTRUCTIONS);
    for (int i = 0; i < n; i++)
        ku_str_add(out, "  --set %-32s %s, %s less; %s\n", a[i].set[0],
                   ku_text_bytes(a[i].host_bytes, text),
                   ku_text_bytes(p->host_bytes - a[i].host_bytes, less), a[i].price);
}

static int plan_print(const struct ku_plan *p, const struct advice *a, int n_advice, char **text)
{
    const struct ku_batch *b = &p->s.batch;
    struct ku_str out = {0}, again = {0};
    ku_str_add(&out, "memory plan: %d rank%s on one host, %s, ", b->n_ranks,
               b->n_ranks == 1 ? "" : "s", p->s.cfg.parallel_device);
    ku_precision_print(&p->s.cfg, &out);
    ku_str_add(&out, "\n");
    ku_str_add(&out, "%lld parameters; ", (long long)p->s.n_params);
    ku_plan_print_batch(p, &out);
    ku_session_print_recompute(&p->s, &again);
    ku_str_add(&out, "%s%s\n\n", again.bytes ? "\n" : "", ku_str_get(&again));
    ku_str_fini(&again);
    print_arenas(p, &out);
    print_total(p, &out);
    print_peak(p->program[KU_PROG_TRAIN], &out);
    print_peak(p->program[KU_PROG_EVAL], &out);
    ku_plan_print_volumes(p, &out);
    print_advice(p, a, n_advice, &out);
    return ku_text_take(&out, text);
}

static json_t *peak_json(const struct ku_program *p)
{
    struct ku_memory_report r;
    struct ku_str where = {0};
    json_t *classes = json_object(), *largest = json_array();
    size_t alive = 0;
    ku_program_memory(p, &r);
    ku_plan_print_instr(p, r.peak_instr, &where);
    for (int c = 0; c < KU_N_CLASSES; c++) {
        alive += r.at_peak[c];
        json_object_set_new(classes, ku_class_name(c), json_integer((json_int_t)r.at_peak[c]));
    }
    json_object_set_new(
        classes, "unused at peak",
        json_integer(r.peak_bytes > alive ? (json_int_t)(r.peak_bytes - alive) : 0));
    for (uint32_t i = 0; i < r.n_rows; i++)
        json_array_append_new(largest,
                              json_pack("{s:s, s:i, s:s, s:I}", "name", r.row[i].name, "micro",
                                        r.row[i].micro, "class", ku_class_name(r.row[i].cls),
                                        "bytes", (json_int_t)r.row[i].bytes));
    json_t *out = json_pack("{s:s, s:i, s:i, s:s, s:I, s:o, s:o}", "name", p->name, "instructions",
                            (int)p->n_instrs, "peak_instruction", (int)r.peak_instr, "peak_at",
                            ku_str_get(&where), "peak_bytes", (json_int_t)r.peak_bytes, "at_peak",
                            classes, "largest", largest);
    ku_str_fini(&where);
    return out;
}

/*
 * Shapes of sentence pairs: training first, then validation. Empty for other data, which has one
 * shape.
 */
static json_t *shapes_json(const struct ku_plan *p)
{
    json_t *list = json_array();
    for (int i = 0; p->s.pairs.data && i < ku_session_n_shapes(&p->s); i++) {
        struct ku_bucket_shape shape = ku_pairs_shape(&p->s.pairs, i);
        json_array_append_new(
            list, json_pack("{s:s, s:I, s:I, s:I, s:b}", "split",
                            i > ku_pairs_last_shape(&p->s.pairs) ? "val" : "train", "rows",
                            (json_int_t)shape.rows, "source_len", (json_int_t)shape.src_len,
                            "target_len", (json_int_t)shape.tgt_len, "is_shown", i == p->shape));
    }
    return list;
}

static int plan_json(const struct ku_plan *p, const struct advice *a, int n_advice, char **text)
{
    const struct ku_batch *b = &p->s.batch;
    uint64_t available = ku_os_mem_available();
    json_t *arenas = json_object(), *programs = json_array(), *less = json_array();
    for (int i = 0; i < KU_N_ARENAS; i++)
        json_object_set_new(arenas, ku_arena_name(i), json_integer((json_int_t)p->arena_bytes[i]));
    json_array_append_new(programs, peak_json(p->program[KU_PROG_TRAIN]));
    json_array_append_new(programs, peak_json(p->program[KU_PROG_EVAL]));
    for (int i = 0; i < n_advice; i++)
        json_array_append_new(less, json_pack("{s:s, s:I, s:s}", "set", a[i].set[0], "host_bytes",
                                              (json_int_t)a[i].host_bytes, "price", a[i].price));
    json_t *root = json_pack(
        "{s:i, s:s, s:s, s:{s:I, s:I, s:I, s:I, s:I, s:o}, s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o, "
        "s:o, s:o}",
        "ranks", b->n_ranks, "device", p->s.cfg.parallel_device, "compute",
        p->s.cfg.precision_compute, "batch", "global_batch", (json_int_t)b->global_batch,
        "virtual_shards", (json_int_t)b->virtual_shards, "micro_batch", (json_int_t)b->micro_batch,
        "k", (json_int_t)b->k, "seq_len", (json_int_t)p->s.seq_len, "shapes", shapes_json(p),
        "arena_bytes", arenas, "staging_bytes", (json_int_t)ku_session_staging_bytes(&p->s),
        "loader_bytes", (json_int_t)p->loader_bytes, "rank_bytes", (json_int_t)p->rank_bytes,
        "host_bytes", (json_int_t)p->host_bytes, "page_table_bytes", (json_int_t)p->table_bytes,
        "available_bytes",
        available == UINT64_MAX ? json_null() : json_integer((json_int_t)available), "programs",
        programs, "to_hold_less", less, "sharding", ku_plan_volumes_json(p));
    json_t *levels = json_array();
    for (int i = 0; p->s.recompute_level && i < p->s.n_recompute; i++)
        json_array_append_new(levels, json_integer(p->s.recompute_level[i]));
    json_object_set_new(root, "params", json_integer((json_int_t)p->s.n_params));
    json_object_set_new(root, "recompute_levels", levels);
    return ku_text_json(root, text);
}

int kumi_plan_memory(const struct kumi_settings *settings, int n_ranks, int as_json, char **text)
{
    KU_GIVEN(text, "text");
    struct ku_plan p;
    struct advice advice[MAX_ADVICE];
    int n_advice, status;
    struct ku_compile_line line;
    struct ku_watch watch = ku_compile_line_start(&line);
    status = ku_plan_init(&p, settings, n_ranks, NULL, &watch);
    if (status < 0) {
        ku_compile_line_end(&line);
        return status;
    }
    status = advise(&p, settings, &watch, advice, &n_advice);
    ku_compile_line_end(&line);
    if (status == KUMI_OK)
        status = (as_json ? plan_json : plan_print)(&p, advice, n_advice, text);
    ku_plan_fini(&p);
    return status;
}

int kumi_plan_limit(const struct kumi_settings *settings, int n_ranks, uint64_t limit_bytes)
{
    struct ku_plan p;
    struct ku_memory_report r;
    struct ku_str classes = {0};
    char text[16], limit[16], less[16];
    KU_TRY(ku_plan_init(&p, settings, n_ranks, NULL, NULL));
    uint64_t bytes = p.host_bytes / (uint64_t)n_ranks;
    ku_program_memory(p.program[KU_PROG_TRAIN], &r);
    for (int c = 0; c < KU_N_CLASSES; c++)
        if (r.at_peak[c] > 0 && r.at_peak[c] >= r.peak_bytes / 100)
            ku_str_add(&classes, "%s%s %s", classes.bytes ? ", " : "", ku_class_name(c),
                       ku_text_bytes(r.at_peak[c], text) + strspn(text, " "));
    int status = KUMI_OK;
    if (bytes > limit_bytes)
        status =
            KU_ERR(KUMI_ENOMEM,
                   "plan: --limit: a rank needs %s, %s more than the limit of %s; at the peak: %s; "
                   "`kumi plan CONFIG --memory` lists ways to need less",
                   ku_text_bytes(bytes, text) + strspn(text, " "),
                   ku_text_bytes(bytes - limit_bytes, less) + strspn(less, " "),
                   ku_text_bytes(limit_bytes, limit) + strspn(limit, " "), ku_str_get(&classes));
    ku_str_fini(&classes);
    ku_plan_fini(&p);
    return status;
}
