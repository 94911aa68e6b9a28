/* SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "kumi/run.h"

#include <hwloc.h>
#include <openssl/crypto.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/arg.h"
#include "base/cpu/cpu_features.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/aio.h"
#include "base/str.h"
#include "base/version.h"
#include "data/image/decode.h"
#include "comm/mpi/mpi.h"
#include "config/alternatives.h"
#include "plan/picture.h"
#include "sim/kernel_choice.h"
#include "sim/machine_file.h"

static json_t *alternatives_json(const struct ku_alternative *k)
{
    json_t *rows = json_array();
    for (; k->name; k++)
        json_array_append_new(rows, json_pack("{s:s, s:b, s:s}", "name", k->name, "exists",
                                              k->exists, "what", k->what));
    return rows;
}

/* A version; null if this build lacks the library. */
static json_t *optional(const char *version)
{
    return version ? json_string(version) : json_null();
}

/* An MPI library: its version, why its plug-in cannot be loaded, or null without a plug-in. */
static json_t *mpi_library(enum ku_mpi_make make)
{
    char text[200] = "", line[232];
    int found = ku_mpi_library(make, text, sizeof text);
    snprintf(line, sizeof line, "%s%s", found < 0 ? "cannot be loaded: " : "", text);
    return optional(found ? line : NULL);
}

/* Versions of the libraries that are loaded, not of those at build time. */
static json_t *libraries(void)
{
    char pcre2[64] = "", text[64];
    unsigned hwloc = hwloc_get_api_version(), xxh = XXH_versionNumber();
    json_t *o = json_object();
    pcre2_config(PCRE2_CONFIG_VERSION, pcre2);
    json_object_set_new(o, "jansson", json_string(jansson_version_str()));
    json_object_set_new(o, "openssl", json_string(OpenSSL_version(OPENSSL_VERSION_STRING)));
    json_object_set_new(o, "pcre2", json_string(pcre2));
    snprintf(text, sizeof text, "%u.%u.%u", xxh / 10000, xxh / 100 % 100, xxh % 100);
    json_object_set_new(o, "xxhash", json_string(text));
    json_object_set_new(o, "cairo", optional(ku_picture_cairo_version()));
    json_object_set_new(o, "libjpeg", optional(ku_jpeg_version()));
    json_object_set_new(o, "libpng", optional(ku_png_version()));
    json_object_set_new(o, "liburing", optional(ku_aio_uring_version()));
    for (int i = 0; i < KU_N_MPI_MAKES; i++)
        json_object_set_new(o, ku_mpi_make_name((enum ku_mpi_make)i),
                            mpi_library((enum ku_mpi_make)i));
    snprintf(text, sizeof text, "%u.%u.%u", hwloc >> 16, hwloc >> 8 & 255, hwloc & 255);
    json_object_set_new(o, "hwloc", json_string(text));
    return o;
}

/* The word in brackets in files like transparent_hugepage/enabled. */
static void chosen(const char *path, char *out, size_t bytes)
{
    char *text = NULL, *from, *to;
    size_t n;
    snprintf(out, bytes, "unknown");
    if (ku_os_slurp(path, 1 << 16, &text, &n) < 0)
        return;
    if ((from = strchr(text, '[')) != NULL && (to = strchr(from, ']')) != NULL)
        snprintf(out, bytes, "%.*s", (int)(to - from - 1), from + 1);
    ku_free(text);
}

static json_t *memory(void)
{
    char huge[32];
    uint64_t available = ku_os_mem_available();
    json_int_t page = sysconf(_SC_PAGESIZE);
    chosen("/sys/kernel/mm/transparent_hugepage/enabled", huge, sizeof huge);
    return json_pack("{s:I, s:o, s:I, s:s}", "total_bytes",
                     (json_int_t)sysconf(_SC_PHYS_PAGES) * page, "available_bytes",
                     available == UINT64_MAX ? json_null() : json_integer((json_int_t)available),
                     "page_bytes", page, "huge_pages", huge);
}

/* {"isa", "why", "flops": {isa: FLOP/s of a core}}: the matrix kernel of a compute dtype. */
static json_t *kernel(const struct ku_kernel_rates *rates, enum kumi_dtype compute)
{
    const enum ku_isa isa = ku_kernel_choose(rates, compute), top = ku_cpu_isa();
    const double best = ku_kernel_rate(rates, compute, isa);
    json_t *flops = json_object();
    char why[96];
    for (int i = 0; i < KU_N_ISAS; i++) {
        double rate = ku_kernel_rate(rates, compute, (enum ku_isa)i);
        if (rate > 0)
            json_object_set_new(flops, ku_cpu_isa_name((enum ku_isa)i), json_real(rate));
    }
    if (isa != top)
        ku_text_print(why, sizeof why, "%.1f times as fast as %s",
                      best / ku_kernel_rate(rates, compute, top), ku_cpu_isa_name(top));
    else if (json_object_size(flops) == 1)
        snprintf(why, sizeof why, "the only one");
    else
        ku_text_print(why, sizeof why, "no lower set is %.1f times as fast", KU_KERNEL_MARGIN);
    return json_pack("{s:s, s:s, s:o}", "isa", ku_cpu_isa_name(isa), "why", why, "flops", flops);
}

/* Measures the kernels' rates if this machine has none stored. */
static int collect_kernels(json_t **out)
{
    struct ku_kernel_rates rates;
    char day[KU_KERNEL_DAY_BYTES], identity[KU_MACHINE_CPU_BYTES];
    KU_TRY(ku_kernel_rates_get(&rates, day));
    ku_machine_cpu(identity);
    *out = json_pack("{s:s, s:s, s:o, s:o}", "identity", identity, "measured", day, "f32",
                     kernel(&rates, KUMI_F32), "bf16", kernel(&rates, KUMI_BF16));
    return KUMI_OK;
}

static int collect(json_t **out)
{
    json_t *found = NULL;
    KU_TRY(collect_kernels(&found));
    *out =
        json_pack("{s:s, s:{s:s, s:s, s:i, s:i}, s:o, s:o, s:o, s:o, s:o}", "version", ku_version(),
                  "cpu", "model", ku_cpu_model(), "isa", ku_cpu_isa_name(ku_cpu_isa()), "cores",
                  ku_os_n_cpus(), "cores_of_machine", (int)sysconf(_SC_NPROCESSORS_ONLN), "kernels",
                  found, "memory", memory(), "transports", alternatives_json(ku_transports),
                  "devices", alternatives_json(ku_devices), "libraries", libraries());
    return KUMI_OK;
}

static void print_kernel(const char *title, const char *dtype, const json_t *k, struct ku_str *out)
{
    const char *isa;
    json_t *flops;
    int i = 0;
    ku_str_add(out, "%-11s %-7s %s, %s; GFLOP/s a core:", title, dtype,
               json_string_value(json_object_get(k, "isa")),
               json_string_value(json_object_get(k, "why")));
    json_object_foreach(json_object_get(k, "flops"), isa, flops)
    {
        ku_str_add(out, "%s %s %.0f", i++ ? "," : "", isa, json_real_value(flops) * 1e-9);
    }
    ku_str_add(out, "\n");
}

static uint64_t number(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static void print_alternatives(const char *title, const struct ku_alternative *k,
                               struct ku_str *out)
{
    for (int i = 0; k[i].name; i++)
        ku_str_add(out, "%-11s %-7s %s\n", i ? "" : title, k[i].name, k[i].what);
}

static int print(const json_t *info, char **text)
{
    struct ku_str out = {0};
    const json_t *m = json_object_get(info, "memory"), *cpu = json_object_get(info, "cpu");
    const json_t *kernels = json_object_get(info, "kernels");
    char total[16], available[16];
    const char *name;
    json_t *version;
    int i = 0;
    ku_text_bytes(number(m, "total_bytes"), total);
    ku_text_bytes(number(m, "available_bytes"), available);
    ku_str_add(&out, "kumi        %s\n", ku_version());
    ku_str_add(&out, "cpu         %s\n", json_string_value(json_object_get(cpu, "model")));
    ku_str_add(&out, "isa         %s\n", json_string_value(json_object_get(cpu, "isa")));
    print_kernel("kernels", "f32", json_object_get(kernels, "f32"), &out);
    print_kernel("", "bf16", json_object_get(kernels, "bf16"), &out);
    ku_str_add(&out, "cores       %llu for this process, %llu in the machine\n",
               (unsigned long long)number(cpu, "cores"),
               (unsigned long long)number(cpu, "cores_of_machine"));
    ku_str_add(&out, "memory      %s, available %s\n", total + strspn(total, " "),
               json_is_null(json_object_get(m, "available_bytes"))
                   ? "unknown"
                   : available + strspn(available, " "));
    ku_str_add(&out, "pages       %llu bytes; transparent huge pages: %s\n",
               (unsigned long long)number(m, "page_bytes"),
               json_string_value(json_object_get(m, "huge_pages")));
    print_alternatives("transports", ku_transports, &out);
    print_alternatives("devices", ku_devices, &out);
    json_object_foreach(json_object_get(info, "libraries"), name, version)
    {
        ku_str_add(&out, "%-11s %-7s %s\n", i++ ? "" : "libraries", name,
                   json_is_null(version) ? "not in this build" : json_string_value(version));
    }
    return ku_text_take(&out, text);
}

int kumi_info_text(int as_json, char **text)
{
    KU_GIVEN(text, "text");
    json_t *info = NULL;
    KU_TRY(collect(&info));
    if (as_json || info == NULL)
        return ku_text_json(info, text);
    int status = print(info, text);
    json_decref(info);
    return status;
}
