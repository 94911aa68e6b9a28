/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Offsets of the communicators' area of the control segment, and its client table.
 */
#include "comm/area.h"

#include "base/err.h"
#include "comm/coll.h"
#include "comm/net.h"
#include "comm/private.h"

#include <stdio.h>

_Static_assert(sizeof(struct ku_entry) == 128, "an arrival and its payload are two lines");

/* Offsets of the parts, for n ranks */
struct layout {
    size_t flags, channels, stages, bytes;
};

static size_t align_up(size_t at)
{
    return (at + 4095) / 4096 * 4096;
}

/* No product overflows: n <= KU_MAX_LOCAL, so the total stays below 2^36. */
static struct layout layout_of(size_t n)
{
    struct layout l;
    l.flags = 0;
    l.channels = align_up(KU_SLOTS * n * sizeof(struct ku_flags));
    l.stages = align_up(l.channels + KU_SLOTS * n * n * sizeof(struct ku_channel));
    l.bytes = l.stages + KU_SLOTS * n * sizeof(struct ku_stage);
    return l;
}

static void *at_offset(struct ku_segment *seg, size_t offset)
{
    return (char *)ku_segment_area(seg) + offset;
}

struct ku_flags *ku_area_flags(struct ku_segment *seg, uint32_t slot)
{
    size_t n = (size_t)seg->n_local;
    KU_ASSERT(slot < KU_SLOTS);
    return (struct ku_flags *)at_offset(seg, layout_of(n).flags) + slot * n;
}

struct ku_channel *ku_area_channel(struct ku_segment *seg, uint32_t slot, int from, int to)
{
    size_t n = (size_t)seg->n_local;
    KU_ASSERT(slot < KU_SLOTS && from >= 0 && (size_t)from < n && to >= 0 && (size_t)to < n);
    struct ku_channel *all = at_offset(seg, layout_of(n).channels);
    return all + (slot * n + (size_t)from) * n + (size_t)to;
}

struct ku_stage *ku_area_stage(struct ku_segment *seg, uint32_t slot, int local)
{
    size_t n = (size_t)seg->n_local;
    KU_ASSERT(slot < KU_SLOTS && local >= 0 && (size_t)local < n);
    return (struct ku_stage *)at_offset(seg, layout_of(n).stages) + slot * n + (size_t)local;
}

static size_t area_bytes(int n_local)
{
    return layout_of((size_t)n_local).bytes;
}

static void event_text(uint32_t slot, uint64_t what, uint64_t seq, uint64_t count, char *text,
                       size_t cap)
{
    char comm[16] = "world", elements[48] = "";
    if (slot > 0) /* slot 0 is the world's */
        snprintf(comm, sizeof comm, "%u", slot);
    if (ku_coll_has_elements((enum ku_coll_kind)(what & 0xff)))
        snprintf(elements, sizeof elements, " %s x %llu",
                 kumi_dtype_name((enum kumi_dtype)(what >> 8 & 0xf)), (unsigned long long)count);
    snprintf(text, cap, "%s%s (work %llu of comm %s)",
             ku_coll_kind_name((enum ku_coll_kind)(what & 0xff)), elements, (unsigned long long)seq,
             comm);
}

const struct ku_job_client ku_comm_client = {.area_bytes = area_bytes,
                                             .event_text = event_text,
                                             .share = ku_net_mpi_share,
                                             .engine = ku_comm_engine,
                                             .unshare = ku_net_mpi_unshare};
