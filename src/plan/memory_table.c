/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory plan as a table and as JSON. It compiles the same programs as a run, so the bytes are
 * exact: per arena the maximum over all programs.
 */
#include <stdio.h>
#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/os/os.h"
#include "base/str.h"
#include "config/deepspeed.h"
#include "ir/state.h"
#include "pass/unit.h"
#include "plan/advice.h"
#include "plan/picture.h"
#include "plan/plan.h"
#include "plan/remote_table.h"
#include "plan/volume_table.h"
#include "train/configure.h"
#include "config/precision_policy.h"

static const char *scope_of(int arena, const struct ku_plan *p)
{
    return ku_arena_is_common(arena) ? "host"
           : arena == KU_AR_OFFLOAD  ? "rank, staged"
           : arena == KU_AR_FILE     ? "rank, on disk"
           : (arena == KU_AR_WIRE || arena == KU_AR_SHARD) && ku_session_n_ranks(&p->s) > 1
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
        if ((ku_arena_is_offload(a) || a == KU_AR_GATHER) && p->arena_bytes[a] == 0)
            continue;
        ku_str_add(out, "%-7s %-19s", ku_arena_name(a), scope_of(a, p));
        for (int i = 0; i < KU_N_PROGS; i++)
            ku_str_add(out, " %10s", ku_text_bytes(p->program[i]->arena_bytes[a], text));
        ku_str_add(out, " %10s %15zu\n", ku_text_bytes(p->arena_bytes[a], text), p->arena_bytes[a]);
    }
    const struct {
        const char *what;
        size_t bytes;
    } more[] = {
        {"staging buffers of checkpoints, one for each rank", ku_session_staging_bytes(&p->s)},
        {"chunks of exchanges between hosts, for each rank", p->exchange_bytes},
        {"bytes of other hosts for a checkpoint, for each rank, at most", p->inbox_bytes},
        {"samples read ahead (data.workers, data.prefetch), for each rank", p->loader_bytes}};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (more[i].bytes)
            ku_str_add(out, "%-70s %10s %15zu\n", more[i].what, ku_text_bytes(more[i].bytes, text),
                       more[i].bytes);
}

static void print_bytes(struct ku_str *out, const char *label, uint64_t bytes)
{
    char text[16];
    ku_str_add(out, "%-23s%s %20llu bytes\n", label, ku_text_bytes(bytes, text),
               (unsigned long long)bytes);
}

static void print_total(const struct ku_plan *p, struct ku_str *out)
{
    const uint64_t on_disk = p->arena_bytes[KU_AR_FILE] * (uint64_t)p->max_local;
    const uint64_t available = ku_os_mem_available();
    char host[32];
    snprintf(host, sizeof host, "%s host, %3d rank%s:", p->host ? "a" : "this", p->max_local,
             p->max_local == 1 ? "" : "s");
    ku_str_add(out, "\n");
    print_bytes(out, "private to a rank:", p->rank_bytes);
    print_bytes(out, host, p->host_bytes);
    print_bytes(out, "and page tables:", p->table_bytes);
    if (on_disk)
        print_bytes(out, "and on disk:", on_disk);
    if (available != UINT64_MAX)
        print_bytes(out, "available now:", available);
}

static void print_class(struct ku_str *out, const char *name, size_t bytes)
{
    char text[16];
    if (bytes)
        ku_str_add(out, "  %-20s %s %15zu\n", name, ku_text_bytes(bytes, text), bytes);
}

/* Print a program's peak: bytes by class, and the largest tensors. */
static void print_peak(const struct ku_program *p, struct ku_str *out)
{
    struct ku_memory_report r;
    char text[16];
    ku_program_memory(p, &r);
    ku_str_add(out, "\n%s: peak at instruction %u of %u: ", p->name, r.peak_instr, p->n_instrs);
    ku_plan_print_instr(p, r.peak_instr, out);
    ku_str_add(out, "\n");
    for (int c = 0; c < KU_N_CLASSES; c++)
        print_class(out, ku_class_name(c), r.at_peak[c]);
    print_class(out, "unused at peak", ku_plan_unused_bytes(&r));
    print_class(out, "total", r.peak_bytes);
    ku_str_add(out, "  largest buffers at the peak:\n");
    for (uint32_t i = 0; i < r.n_rows; i++) {
        const struct ku_memory_row *row = &r.row[i];
        ku_str_add(out, "    %s %15zu  %-17s %s", ku_text_bytes(row->bytes, text), row->bytes,
                   ku_class_name(row->cls), row->name);
        if (row->micro >= 0)
            ku_str_add(out, "@%d", row->micro);
        ku_str_add(out, "\n");
    }
}

/* The options of an alternative, for a command line: "--set a=1 --set b=2". */
static void add_options(const struct ku_advice *a, struct ku_str *out)
{
    for (int i = 0; i < a->n_sets; i++)
        ku_str_add(out, "%s--set %s", i ? " " : "", a->set[i]);
}

static void print_alternative(const struct ku_plan *p, const struct ku_advice *a, int width,
                              struct ku_str *out)
{
    struct ku_str options = {0};
    char text[16], less[16];
    add_options(a, &options);
    ku_str_add(out, "  %-*s %s, %s less; %s\n", width, ku_str_get(&options),
               ku_text_bytes(a->host_bytes, text),
               ku_text_bytes(p->host_bytes - a->host_bytes, less), a->price);
    ku_str_fini(&options);
}

static void print_advice(const struct ku_plan *p, const struct ku_advice *a, int n,
                         struct ku_str *out)
{
    size_t width = 0;
    if (n < 0)
        ku_str_add(out,
                   "\nways to reduce it are not computed for a step of more than %d forward "
                   "operations; try memory.recompute and memory.offload\n",
                   KU_MAX_ADVISED_OPS);
    else if (n > 0)
        ku_str_add(out, "\nways to reduce it:\n");
    for (int i = 0; i < n; i++) {
        struct ku_str options = {0};
        add_options(&a[i], &options);
        width = options.bytes > width ? options.bytes : width;
        ku_str_fini(&options);
    }
    for (int i = 0; i < n; i++)
        print_alternative(p, &a[i], (int)width, out);
}

/* Appends a tensor's name with its layer's number as *, unless the list has it: "h.*.ln_1.bias". */
static void add_pattern(const char *name, struct ku_str *list)
{
    const size_t bytes = ku_unit_bytes(name);
    size_t stem = bytes;
    struct ku_str one = {0};
    while (stem > 0 && name[stem - 1] != '.')
        stem--;
    if (bytes)
        ku_str_add(&one, " %.*s*%s", (int)stem, name, name + bytes);
    else
        ku_str_add(&one, " %s", name);
    const char *at = list->bytes ? strstr(ku_str_get(list), ku_str_get(&one)) : NULL;
    if (at == NULL || (at[one.bytes] != ' ' && at[one.bytes] != '\0'))
        ku_str_add(list, "%s", ku_str_get(&one));
    ku_str_fini(&one);
}

/*
 * What tensor parallelism saves of parameters, gradients and optimizer state: tensors that its
 * ranks divide take a part of their bytes, and the others, which are named, all of them.
 */
static void print_tensor_parallel(const struct ku_program *p, const char *grads, struct ku_str *out)
{
    const int tp = ku_mesh_tp(&p->mesh);
    const size_t grad_bytes = strcmp(grads, "f32") == 0 ? 4 : 2;
    struct ku_str whole = {0};
    double cut_bytes = 0, whole_bytes = 0;
    char text[2][16];
    for (uint32_t s = 0; s < p->n_states && tp > 1; s++) {
        const struct ku_program_state *x = &p->state[s];
        if (!ku_state_is_here(x, p->pp))
            continue;
        const bool is_cut =
            ku_mesh_wide(&p->mesh, ku_layout_axes(&p->layout[x->split], KU_S)) & KU_TP_AXES;
        const size_t count = x->bytes / kumi_dtype_bytes((enum kumi_dtype)x->dtype);
        const double bytes = (double)(x->bytes + (x->kind == KU_T_PARAM ? count * grad_bytes : 0));
        *(is_cut ? &cut_bytes : &whole_bytes) += bytes;
        if (!is_cut && x->kind == KU_T_PARAM)
            add_pattern(p->name_of[x->name], &whole);
    }
    if (tp > 1)
        ku_str_add(out,
                   "\ntensor parallelism: parameters, %s gradients and optimizer state of tensors "
                   "that %d ranks divide: %s a rank; of those that each has whole: %s (%s)\n",
                   grads, tp, ku_picture_bytes((uint64_t)cut_bytes, text[0]),
                   ku_picture_bytes((uint64_t)whole_bytes, text[1]),
                   whole.bytes ? ku_str_get(&whole) + 1 : "none");
    ku_str_fini(&whole);
}

static int plan_print(const struct ku_plan *p, const struct ku_advice *a, int n_advice, char **text)
{
    const int n_ranks = ku_session_n_ranks(&p->s);
    struct ku_str out = {0}, again = {0};
    ku_str_add(&out, "memory plan: %d rank%s on ", n_ranks, n_ranks == 1 ? "" : "s");
    if (p->host)
        ku_str_add(&out, "%d hosts", p->n_hosts);
    else
        ku_str_add(&out, "one host");
    ku_str_add(&out, ", %s, ", p->s.cfg.parallel_device);
    ku_precision_print(&p->s.cfg, &out);
    ku_str_add(&out, "\n");
    ku_str_add(&out, "%lld parameters; ", (long long)p->s.n_params);
    p->s.source->ops->print_plan(p->s.source, p->shape, &out);
    if (p->s.sharding.pp > 1)
        ku_str_add(&out, "\nprograms of coordinate %d of axis pp, which map the most memory",
                   ku_plan_coordinate(p));
    ku_session_print_recompute(&p->s, &again);
    ku_str_add(&out, "%s%s\n\n", again.bytes ? "\n" : "", ku_str_get(&again));
    ku_str_fini(&again);
    print_arenas(p, &out);
    print_total(p, &out);
    print_tensor_parallel(p->program[KU_PROG_TRAIN], p->s.cfg.precision_grads, &out);
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
    ku_program_memory(p, &r);
    ku_plan_print_instr(p, r.peak_instr, &where);
    for (int c = 0; c < KU_N_CLASSES; c++)
        json_object_set_new(classes, ku_class_name(c), json_integer((json_int_t)r.at_peak[c]));
    json_object_set_new(classes, "unused at peak",
                        json_integer((json_int_t)ku_plan_unused_bytes(&r)));
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

/* Shapes that the data decide: training first, then validation. Empty for data with one shape. */
static json_t *shapes_json(const struct ku_plan *p)
{
    json_t *list = json_array();
    const struct ku_batch_source *source = p->s.source;
    for (int i = 0; source->ops->has_shapes && i < source->ops->n_shapes(source); i++) {
        struct ku_batch_shape shape = source->ops->shape(source, i);
        json_array_append_new(
            list, json_pack("{s:s, s:I, s:I, s:I, s:b}", "split",
                            shape.split == KU_SPLIT_VAL ? "val" : "train", "rows",
                            (json_int_t)shape.rows, "source_len", (json_int_t)shape.src_len,
                            "target_len", (json_int_t)shape.tgt_len, "is_shown", i == p->shape));
    }
    return list;
}

static json_t *alternative_json(const struct ku_advice *a)
{
    json_t *set = json_array();
    for (int i = 0; i < a->n_sets; i++)
        json_array_append_new(set, json_string(a->set[i]));
    return json_pack("{s:o, s:I, s:s}", "set", set, "host_bytes", (json_int_t)a->host_bytes,
                     "price", a->price);
}

static int plan_json(const struct ku_plan *p, const struct ku_advice *a, int n_advice, char **text)
{
    const struct ku_batch *b = &p->s.batch;
    uint64_t available = ku_os_mem_available();
    json_t *arenas = json_object(), *programs = json_array(), *less = json_array(),
           *levels = json_array();
    for (int i = 0; p->s.recompute_level && i < p->s.n_recompute; i++)
        json_array_append_new(levels, json_integer(p->s.recompute_level[i]));
    for (int i = 0; i < KU_N_ARENAS; i++)
        json_object_set_new(arenas, ku_arena_name(i), json_integer((json_int_t)p->arena_bytes[i]));
    json_array_append_new(programs, peak_json(p->program[KU_PROG_TRAIN]));
    json_array_append_new(programs, peak_json(p->program[KU_PROG_EVAL]));
    for (int i = 0; i < n_advice; i++)
        json_array_append_new(less, alternative_json(&a[i]));
    json_t *root = json_pack(
        "{s:i, s:s, s:s, s:{s:I, s:I, s:I, s:I, s:I, s:o}, s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o, "
        "s:o, s:o}",
        "ranks", ku_session_n_ranks(&p->s), "device", p->s.cfg.parallel_device, "compute",
        p->s.cfg.precision_compute, "batch", "global_batch", (json_int_t)b->global_batch,
        "virtual_shards", (json_int_t)b->virtual_shards, "micro_batch", (json_int_t)b->micro_batch,
        "k", (json_int_t)b->k, "seq_len", (json_int_t)p->s.seq_len, "shapes", shapes_json(p),
        "arena_bytes", arenas, "staging_bytes", (json_int_t)ku_session_staging_bytes(&p->s),
        "loader_bytes", (json_int_t)p->loader_bytes, "rank_bytes", (json_int_t)p->rank_bytes,
        "host_bytes", (json_int_t)p->host_bytes, "page_table_bytes", (json_int_t)p->table_bytes,
        "available_bytes",
        available == UINT64_MAX ? json_null() : json_integer((json_int_t)available), "programs",
        programs, "to_hold_less", less, "sharding", ku_plan_volumes_json(p));
    json_object_set_new(root, "params", json_integer((json_int_t)p->s.n_params));
    json_object_set_new(root, "coordinate", json_integer(ku_plan_coordinate(p)));
    json_object_set_new(root, "recompute_levels", levels);
    if (p->host) {
        json_t *hosts = json_array();
        for (int h = 0; h < p->n_hosts; h++)
            json_array_append_new(hosts, json_integer(p->host[h].n));
        json_object_set_new(root, "hosts", hosts);
        json_object_set_new(root, "exchange_bytes", json_integer((json_int_t)p->exchange_bytes));
        json_object_set_new(root, "inbox_bytes", json_integer((json_int_t)p->inbox_bytes));
    }
    return ku_text_json(root, text);
}

/* *n_workers: ps.workers; 0: the plan is of training by all-reduce. */
static int find_workers(const struct kumi_settings *settings, int n_ranks, int *n_workers)
{
    KU_TRY(ku_settings_workers(settings, n_workers));
    if (*n_workers > 0 && n_ranks != 1 && n_ranks != *n_workers)
        return KU_ERR(KUMI_EINVAL, "plan: -n: %d, but ps.workers is %d", n_ranks, *n_workers);
    return KUMI_OK;
}

int kumi_plan_memory(const struct kumi_settings *settings, int n_ranks, int as_json, char **text)
{
    KU_GIVEN(text, "text");
    struct ku_plan p;
    struct ku_advice advice[KU_MAX_ADVICE];
    int n_advice, n_workers;
    KU_TRY(find_workers(settings, n_ranks, &n_workers));
    if (n_workers > 0)
        return ku_plan_remote(settings, as_json, text);
    KU_TRY(ku_plan_init_advised(&p, settings, n_ranks, advice, &n_advice));
    int status = (as_json ? plan_json : plan_print)(&p, advice, n_advice, text);
    ku_plan_fini(&p);
    return status;
}

int kumi_plan_memory_hosts(const struct kumi_settings *settings, const char *hosts,
                           const char *hostfile, int n_ranks, int as_json, char **text)
{
    KU_GIVEN(text, "text");
    struct ku_hostlist list = {0};
    struct ku_plan p;
    if (n_ranks < 0)
        return KU_ERR(KUMI_EINVAL, "rank count: -n: %d; give a number from 1, or 0: all slots",
                      n_ranks);
    int status = ku_hostlist_open(&list, hosts, hostfile, n_ranks);
    if (status == KUMI_OK)
        status = ku_plan_init_hosts(&p, settings, &list);
    ku_hostlist_fini(&list);
    KU_TRY(status);
    ku_deepspeed_warn(&p.s.cfg);
    status = (as_json ? plan_json : plan_print)(&p, NULL, 0, text);
    ku_plan_fini(&p);
    return status;
}

int kumi_plan_limit(const struct kumi_settings *settings, int n_ranks, uint64_t limit_bytes)
{
    struct ku_plan p;
    struct ku_memory_report r;
    struct ku_str classes = {0};
    char text[16], limit[16], less[16];
    int n_workers;
    KU_TRY(find_workers(settings, n_ranks, &n_workers));
    if (n_workers > 0)
        return ku_plan_remote_limit(settings, limit_bytes);
    KU_TRY(ku_plan_init(&p, settings, n_ranks, NULL, NULL));
    uint64_t bytes = p.host_bytes / (uint64_t)n_ranks;
    ku_program_memory(p.program[KU_PROG_TRAIN], &r);
    for (int c = 0; c < KU_N_CLASSES; c++)
        if (r.at_peak[c] > 0 && r.at_peak[c] >= r.peak_bytes / 100)
            ku_str_add(&classes, "%s%s %s", classes.bytes ? ", " : "", ku_class_name(c),
                       ku_picture_bytes(r.at_peak[c], text));
    int status = KUMI_OK;
    if (bytes > limit_bytes)
        status =
            KU_ERR(KUMI_ENOMEM,
                   "plan: --limit: a rank needs %s, %s more than the limit of %s; at the peak: %s; "
                   "`kumi plan CONFIG --memory` lists ways to reduce it",
                   ku_picture_bytes(bytes, text), ku_picture_bytes(bytes - limit_bytes, less),
                   ku_picture_bytes(limit_bytes, limit), ku_str_get(&classes));
    ku_str_fini(&classes);
    ku_plan_fini(&p);
    return status;
}
