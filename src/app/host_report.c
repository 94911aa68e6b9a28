/* SPDX-License-Identifier: Apache-2.0 */
/* The report of `kumi info --hosts`: a line per host, or min, median and max of many. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "app/host_probe.h"
#include "base/cpu/cpu_features.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/os/socket.h"
#include "base/math/sort.h"
#include "base/str.h"
#include "job/control/address.h"
#include "job/hosts.h"

enum { MAX_LINES = 32 /* of more hosts a summary */ };

/* A host as the report has it; texts are "-" where they are unknown */
struct line {
    char name[KU_HOST_NAME_BYTES + 1], address[KU_ADDRESS_TEXT], interface[20], isa[16];
    int ranks, cores;
    uint64_t total_bytes, free_bytes;
};

static void line_of(const struct ku_job *job, const struct ku_probe *p, int host, struct line *out)
{
    static const uint8_t none[16];
    const struct ku_host_row *row = &ku_job_hosts(job)[host];
    const struct ku_probe_host *h = &p->host[host];
    struct ku_os_address address = {0};
    memcpy(address.ip, row->address, sizeof address.ip);
    *out = (struct line){.ranks = row->n_ranks,
                         .cores = h->n_cores,
                         .total_bytes = h->total_bytes,
                         .free_bytes = h->free_bytes};
    snprintf(out->name, sizeof out->name, "%.*s", KU_HOST_NAME_BYTES, row->name);
    if (job->n_hosts == 1 && ku_os_host_name(out->name, sizeof out->name) < 0)
        out->name[0] = '\0';
    if (out->name[0] == '\0')
        snprintf(out->name, sizeof out->name, "-");
    snprintf(out->address, sizeof out->address, "-");
    if (memcmp(row->address, none, sizeof none) != 0)
        ku_address_print(&address, out->address);
    snprintf(out->interface, sizeof out->interface, "%.15s", h->interface[0] ? h->interface : "-");
    snprintf(out->isa, sizeof out->isa, "%.11s", h->isa);
}

static const char *bytes_text(uint64_t bytes, char out[16])
{
    char padded[16];
    if (bytes == UINT64_MAX)
        return "unknown";
    ku_text_bytes(bytes, padded);
    snprintf(out, 16, "%s", padded + strspn(padded, " "));
    return out;
}

static void print_hosts(const struct ku_job *job, const struct ku_probe *p, struct ku_str *out)
{
    struct line l;
    char total[16], available[16];
    int wide = 4;
    for (int i = 0; i < job->n_hosts; i++) {
        line_of(job, p, i, &l);
        wide = (int)strlen(l.name) > wide ? (int)strlen(l.name) : wide;
    }
    ku_str_add(out, "\n%4s  %-*s  %-15s %-9s %5s  %-10s  %5s  %10s  %10s\n", "host", wide, "name",
               "address", "interface", "ranks", "isa", "cores", "memory", "available");
    for (int i = 0; i < job->n_hosts; i++) {
        line_of(job, p, i, &l);
        ku_str_add(out, "%4d  %-*s  %-15s %-9s %5d  %-10s  %5d  %10s  %10s\n", i, wide, l.name,
                   l.address, l.interface, l.ranks, l.isa, l.cores,
                   bytes_text(l.total_bytes, total), bytes_text(l.free_bytes, available));
    }
}

struct spread {
    double min, median, max;
};

static struct spread spread_of(double *value, int n)
{
    ku_sort_f64(value, n);
    return (struct spread){value[0], ku_median_f64(value, n), value[n - 1]};
}

/* Min, median and max over the hosts, and the hosts of each instruction set */
static int print_summary(const struct ku_job *job, const struct ku_probe *p, struct ku_str *out)
{
    static const char *const title[] = {"ranks", "cores", "memory", "available"};
    enum { N = sizeof title / sizeof *title };
    int n_isa[KU_N_ISAS] = {0};
    double *value = ku_calloc((size_t)job->n_hosts, sizeof *value);
    char text[3][24];
    struct line l;
    if (value == NULL)
        return KUMI_ENOMEM;
    ku_str_add(out, "\n%-11s %12s %12s %12s   over %d hosts\n", "", "min", "median", "max",
               job->n_hosts);
    for (int k = 0; k < N; k++) {
        for (int i = 0; i < job->n_hosts; i++) {
            line_of(job, p, i, &l);
            value[i] = k == 0   ? l.ranks
                       : k == 1 ? l.cores
                                : (double)(k == 2 ? l.total_bytes : l.free_bytes);
        }
        const struct spread s = spread_of(value, job->n_hosts);
        const double three[] = {s.min, s.median, s.max};
        for (int i = 0; i < 3; i++)
            if (k < 2)
                ku_text_print(text[i], sizeof text[i], "%.10g", three[i]);
            else if (three[i] < 0x1p63)
                ku_text_bytes((uint64_t)three[i], text[i]);
            else
                snprintf(text[i], sizeof text[i], "unknown");
        ku_str_add(out, "%-11s %12s %12s %12s\n", title[k], text[0], text[1], text[2]);
    }
    ku_free(value);
    for (int i = 0; i < job->n_hosts; i++)
        for (int k = 0; k < KU_N_ISAS; k++)
            n_isa[k] += strcmp(p->host[i].isa, ku_cpu_isa_name((enum ku_isa)k)) == 0;
    ku_str_add(out, "%-11s", "isa");
    for (int k = 0; k < KU_N_ISAS; k++)
        if (n_isa[k])
            ku_str_add(out, " %s on %d", ku_cpu_isa_name((enum ku_isa)k), n_isa[k]);
    ku_str_add(out, "\n");
    return KUMI_OK;
}

static double gb_s(const struct ku_probe_time *t, int n_ways)
{
    return t->ns > 0 ? n_ways * (double)t->bytes / t->ns : 0;
}

static void print_pair(const char *title, double us, double rate, const char *note,
                       struct ku_str *out)
{
    ku_str_add(out, "%-30s %12.1f us %15.3g GB/s%s\n", title, us, rate, note);
}

static void print_pairs(const struct ku_job *job, const struct ku_probe *p, struct ku_str *out)
{
    double us[KU_PROBE_PAIRS], rate[KU_PROBE_PAIRS];
    char title[KU_HOST_NAME_BYTES + 16], bytes[16], note[24];
    const int is_short = job->n_hosts > MAX_LINES;
    ku_str_add(out, "\n%-30s %15s %20s\n", "host 0, there and back, with", "8 bytes", "4 MiB");
    for (int i = 0; i < p->n_pairs; i++) {
        const struct ku_probe_pair *pair = &p->pair[i];
        us[i] = pair->small.ns * 1e-3;
        rate[i] = gb_s(&pair->large, 2);
        snprintf(title, sizeof title, "%4d  %.*s", pair->host, KU_HOST_NAME_BYTES,
                 ku_job_hosts(job)[pair->host].name);
        note[0] = '\0';
        if (pair->large.bytes < KU_PROBE_MESSAGE)
            snprintf(note, sizeof note, " (%s)", bytes_text((uint64_t)pair->large.bytes, bytes));
        if (!is_short)
            print_pair(title, us[i], rate[i], note, out);
    }
    if (is_short) {
        const struct spread t = spread_of(us, p->n_pairs), r = spread_of(rate, p->n_pairs);
        snprintf(title, sizeof title, "min of %d hosts", p->n_pairs);
        print_pair(title, t.min, r.min, "", out);
        print_pair("median", t.median, r.median, "", out);
        print_pair("max", t.max, r.max, "", out);
    } else if (p->n_pairs < job->n_hosts - 1) {
        ku_str_add(out, "%d of %d hosts\n", p->n_pairs, job->n_hosts - 1);
    }
}

static int print_text(const struct ku_job *job, const struct ku_probe *p, char **text)
{
    struct ku_str out = {0};
    char bytes[16];
    int status = KUMI_OK;
    ku_str_add(&out, "job         %d rank%s on %d host%s", job->n, job->n == 1 ? "" : "s",
               job->n_hosts, job->n_hosts == 1 ? "" : "s");
    if (strcmp(job->launcher, "none") != 0)
        ku_str_add(&out, ", started by %s", job->launcher);
    ku_str_add(&out, "\ntransport   %s\n", p->transport);
    if (job->n_hosts <= MAX_LINES)
        print_hosts(job, p, &out);
    else
        status = print_summary(job, p, &out);
    if (job->n_hosts == 1) {
        ku_str_add(&out, "\nOne host: there is no network to measure. Give -H a:4,b:4 or "
                         "--hostfile FILE, or start kumi on several hosts by mpirun or srun.\n");
    } else {
        ku_str_add(&out, "\nall_reduce of 8 bytes over %d ranks: %.1f us (median of %d)\n", job->n,
                   p->small.ns * 1e-3, p->small.n);
        ku_str_add(&out, "all_reduce of %s over %d ranks: %.2f ms, %.3g GB/s (median of %d)\n",
                   bytes_text((uint64_t)p->large.bytes, bytes), job->n, p->large.ns * 1e-6,
                   gb_s(&p->large, 1), p->large.n);
        print_pairs(job, p, &out);
    }
    if (status < 0) {
        ku_str_fini(&out);
        return status;
    }
    return ku_text_take(&out, text);
}

/* A text; null where it is unknown */
static json_t *known(const char *text)
{
    return strcmp(text, "-") == 0 ? json_null() : json_string(text);
}

static json_t *host_json(const struct ku_job *job, const struct ku_probe *p, int host)
{
    struct line l;
    line_of(job, p, host, &l);
    return json_pack("{s:o, s:o, s:o, s:i, s:i, s:s, s:i, s:I, s:o}", "name", known(l.name),
                     "address", known(l.address), "interface", known(l.interface), "first_rank",
                     (int)ku_job_hosts(job)[host].first_rank, "ranks", l.ranks, "isa", l.isa,
                     "cores", l.cores, "memory_bytes", (json_int_t)l.total_bytes, "available_bytes",
                     l.free_bytes == UINT64_MAX ? json_null()
                                                : json_integer((json_int_t)l.free_bytes));
}

static json_t *time_json(const struct ku_probe_time *t, int n_ways)
{
    return json_pack("{s:I, s:f, s:i, s:f}", "bytes", (json_int_t)t->bytes, "median_us",
                     t->ns * 1e-3, "samples", t->n, "gbps", gb_s(t, n_ways));
}

static json_t *all_json(const struct ku_job *job, const struct ku_probe *p)
{
    json_t *hosts = json_array(), *pairs = json_array(), *sums = json_array();
    for (int i = 0; i < job->n_hosts; i++)
        json_array_append_new(hosts, host_json(job, p, i));
    for (int i = 0; i < p->n_pairs; i++)
        json_array_append_new(pairs, json_pack("{s:i, s:s, s:o, s:o}", "host", p->pair[i].host,
                                               "name", ku_job_hosts(job)[p->pair[i].host].name,
                                               "small", time_json(&p->pair[i].small, 2), "large",
                                               time_json(&p->pair[i].large, 2)));
    if (job->n_hosts > 1) {
        json_array_append_new(sums, time_json(&p->small, 1));
        json_array_append_new(sums, time_json(&p->large, 1));
    }
    return json_pack("{s:i, s:s, s:s, s:o, s:o, s:o}", "ranks", job->n, "launcher", job->launcher,
                     "transport", p->transport, "hosts", hosts, "all_reduce", sums, "round_trip",
                     pairs);
}

int ku_probe_print(const struct ku_job *job, const struct ku_probe *probe, int as_json, char **text)
{
    return as_json ? ku_text_json(all_json(job, probe), text) : print_text(job, probe, text);
}
