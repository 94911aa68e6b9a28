/* SPDX-License-Identifier: Apache-2.0 */
#include "run/profile_trace.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "comm/consensus.h"

enum { LANE_STEP, LANE_COMPUTE, LANE_COMM, LANE_WAIT, LANE_DATA, LANE_CHECKPOINT, N_LANES };

static void add_event(struct ku_str *out, const char *name, const char *path, int rank, int lane,
                      int64_t begin_ns, int64_t end_ns)
{
    ku_str_add(out,
               ",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
               "\"args\":{\"path\":\"%s\"}}",
               name, rank, lane, (double)begin_ns * 1e-3, (double)(end_ns - begin_ns) * 1e-3, path);
}

static void add_lanes(struct ku_str *out, int rank)
{
    static const char *const lane[] = {"steps", "compute", "communication",
                                       "wait",  "data",    "checkpoint"};
    ku_str_add(out,
               "%s{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank "
               "%d\"}}",
               rank ? ",\n" : "", rank, rank);
    for (int i = 0; i < N_LANES; i++)
        ku_str_add(out,
                   ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{"
                   "\"name\":\"%s\"}}",
                   rank, i, lane[i]);
}

/*
 * An event that begins with the start and ends with the wait. Several may overlap.
 */
static void add_flight(struct ku_str *out, const struct ku_instr *i, const char *path, int rank,
                       int64_t step, int64_t at_ns)
{
    ku_str_add(
        out,
        ",\n{\"ph\":\"%s\",\"cat\":\"exchange\",\"id\":\"%d.%lld.%u\",\"name\":\"%s in flight\","
        "\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"args\":{\"path\":\"%s\"}}",
        i->kind == KU_START ? "b" : "e", rank, (long long)step, i->handle, ku_exchange_name(i->op),
        rank, LANE_COMM, (double)at_ns * 1e-3, path);
}

static void add_step(struct ku_str *out, const struct ku_trace *x, int64_t s, int64_t origin_ns)
{
    const struct ku_program *p = x->t->shape[x->shape[s]].program[KU_PROG_TRAIN];
    const int64_t *stamp = x->stamp + (size_t)s * x->n_stamps;
    int rank = x->t->job->rank;
    char name[40];
    snprintf(name, sizeof name, "step %lld", (long long)(x->first + s + 1));
    add_event(out, name, "", rank, LANE_STEP, stamp[0] - origin_ns, stamp[p->n_instrs] - origin_ns);
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        const struct ku_instr *i = &p->instr[at];
        if (i->kind == KU_COMPUTE)
            snprintf(name, sizeof name, "%s", ku_ops[i->op].name);
        else if (i->kind == KU_START)
            snprintf(name, sizeof name, "start %s", ku_exchange_name(i->op));
        else
            snprintf(name, sizeof name, "wait");
        add_event(out, name, p->name_of[i->path], rank,
                  i->kind == KU_COMPUTE ? LANE_COMPUTE
                  : i->kind == KU_START ? LANE_COMM
                                        : LANE_WAIT,
                  stamp[at] - origin_ns, stamp[at + 1] - origin_ns);
        if (i->kind != KU_COMPUTE)
            add_flight(out, i, p->name_of[i->path], rank, s,
                       stamp[at + (i->kind == KU_WAIT)] - origin_ns);
    }
}

/*
 * Write this rank's part. The first rank begins the file, the last one ends it.
 */
static int write_part(const struct ku_trace *x, const char *path, int64_t origin_ns, int is_last)
{
    struct ku_str out = {0};
    int rank = x->t->job->rank, status = KUMI_OK;
    if (rank == 0)
        ku_str_add(&out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    add_lanes(&out, rank);
    for (int64_t s = 0; s < x->n_steps; s++)
        add_step(&out, x, s, origin_ns);
    for (int i = 0; i < x->n_marks; i++) {
        int is_data = x->mark[i].what == KU_PROFILE_DATA;
        add_event(&out, is_data ? "data" : "checkpoint", "", rank,
                  is_data ? LANE_DATA : LANE_CHECKPOINT, x->mark[i].begin_ns - origin_ns,
                  x->mark[i].end_ns - origin_ns);
    }
    if (is_last)
        ku_str_add(&out, "\n]}\n");
    int fd = out.failed
                 ? -1
                 : ku_os_open(path, O_WRONLY | O_CREAT | (rank == 0 ? O_TRUNC : O_APPEND), 0666);
    if (out.failed)
        status = KUMI_ENOMEM;
    else if (fd < 0 || ku_os_write_full(fd, ku_str_get(&out), out.bytes) < 0)
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "profile: %s: %s", path, ku_os_why());
    if (fd >= 0)
        ku_os_close(fd);
    ku_str_fini(&out);
    return status;
}

int ku_trace_write(const struct ku_trace *x, const char *dir)
{
    struct ku_job *job = x->t->job;
    int n = job->n < KU_PROFILE_TRACED_RANKS ? job->n : KU_PROFILE_TRACED_RANKS;
    int64_t origin_ns = -(x->n_marks ? x->mark[0].begin_ns : x->stamp[0]);
    KU_TRY(ku_agree_max(job, &origin_ns)); /* minimum over ranks; ranks of one host share a clock */
    origin_ns = -origin_ns;
    char *path = ku_asprintf("%s/profile.trace.json", dir);
    int status = path ? KUMI_OK : KUMI_ENOMEM;
    for (int turn = 0; turn < n; turn++) {
        if (turn == job->rank && status == KUMI_OK)
            status = write_part(x, path, origin_ns, turn == n - 1);
        status = ku_agree_worst(job, status);
    }
    ku_free(path);
    return status;
}
