/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/env.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "cli/ps/ps.h"
#include "cli/terminal.h"
#include "kumi/messages.h"
#include "ps/remote/service_bench.h"
#include "ps/rpc/rpc_bench.h"

/*
 * `kumi ps bench`: this layer beside gRPC alone, over a Unix socket and over TCP; with --service
 * also a server of a training.
 */

static int run(const char *name, const struct ku_rpc_bench_opts *o, int as_json, int is_last)
{
    enum { OWN = KU_RPC_BENCH_OWN, BARE = KU_RPC_BENCH_BARE, ECHO = KU_RPC_BENCH_ECHO };
    struct ku_rpc_bench b;
    KU_TRY(ku_rpc_bench_run(o, &b));
    if (as_json)
        printf("  \"%s\": {\"push_p50_us\": [%.1f, %.1f], \"push_p99_us\": [%.1f, %.1f], "
               "\"stream_bytes_per_s\": [%.4g, %.4g, %.4g], "
               "\"stream_bytes_per_cpu_s\": [%.4g, %.4g, %.4g]}%s\n",
               name, b.p50_us[OWN], b.p50_us[BARE], b.p99_us[OWN], b.p99_us[BARE],
               b.bytes_per_s[OWN], b.bytes_per_s[BARE], b.bytes_per_s[ECHO], b.bytes_per_cpu_s[OWN],
               b.bytes_per_cpu_s[BARE], b.bytes_per_cpu_s[ECHO], is_last ? "" : ",");
    else
        printf("%-5s  push of %d B, p50    %9.1f %9.1f           us\n"
               "       push of %d B, p99    %9.1f %9.1f           us\n"
               "       stream             %9.2f %9.2f %9.2f GB/s\n"
               "       stream, per core   %9.2f %9.2f %9.2f GB/s\n",
               name, o->push_bytes, b.p50_us[OWN], b.p50_us[BARE], o->push_bytes, b.p99_us[OWN],
               b.p99_us[BARE], 1e-9 * b.bytes_per_s[OWN], 1e-9 * b.bytes_per_s[BARE],
               1e-9 * b.bytes_per_s[ECHO], 1e-9 * b.bytes_per_cpu_s[OWN],
               1e-9 * b.bytes_per_cpu_s[BARE], 1e-9 * b.bytes_per_cpu_s[ECHO]);
    return cli_write("", 0);
}

static void ignore(void *ctx, const char *line, size_t bytes)
{
    (void)ctx, (void)line, (void)bytes;
}

/* Without the messages of its runs. */
static int measure_service(const struct ku_ps_bench_opts *o, struct ku_ps_bench *b)
{
    static const struct kumi_messages silent = {.line = ignore};
    kumi_messages_set(&silent);
    const int status = ku_ps_bench_run(o, b);
    cli_terminal_open();
    return status;
}

/* dir: where its directory is made. */
static int run_service(const char *dir, const char *address, int is_quick, int as_json)
{
    struct ku_ps_bench b;
    char *own = ku_asprintf("%s/kumi-ps-bench-XXXXXX", dir);
    int status = own ? KUMI_OK : KUMI_ENOMEM;
    if (own && mkdtemp(own) == NULL)
        status = KU_ERR(KUMI_ESTORAGE, "kumi ps bench: %s: %s", own, ku_os_why());
    if (status == KUMI_OK) {
        const struct ku_ps_bench_opts o = {.dir = own,
                                           .address = address,
                                           .rounds = is_quick ? 1 : 5,
                                           .pushes = is_quick ? 20 : 300,
                                           .pulls = is_quick ? 2 : 8,
                                           .width = is_quick ? 256 : 2048};
        status = measure_service(&o, &b);
        const struct kumi_error error = *ku_err_get();
        (void)ku_os_rmtree(own);
        if (status < 0)
            status = ku_err_put(&error);
    }
    ku_free(own);
    KU_TRY(status);
    if (as_json)
        printf("  \"service\": {\"push_bytes\": %zu, \"push_p50_us\": %.1f, \"push_p99_us\": %.1f, "
               "\"pull_bytes\": %zu, \"pull_bytes_per_s\": %.4g, \"pull_bytes_per_cpu_s\": %.4g}\n",
               b.push_bytes, b.p50_us, b.p99_us, b.pull_bytes, b.bytes_per_s, b.bytes_per_cpu_s);
    else
        printf("server of a training, unix\n"
               "       push of %zu B, p50    %9.1f                     us\n"
               "       push of %zu B, p99    %9.1f                     us\n"
               "       pull of %4.1f MB    %9.2f                     GB/s\n"
               "       pull, per core     %9.2f                     GB/s\n",
               b.push_bytes, b.p50_us, b.push_bytes, b.p99_us, 1e-6 * (double)b.pull_bytes,
               1e-9 * b.bytes_per_s, 1e-9 * b.bytes_per_cpu_s);
    return cli_write("", 0);
}

int ps_cmd_bench(struct cli *c)
{
    int as_json = 0, is_quick = 0, has_service = 0;
    const char *dir = NULL;
    char path[64];
    const struct cli_option option[] = {
        {"service", CLI_FLAG, "also a server of a training, with its journal", &has_service},
        {"dir", CLI_TEXT, "folder on the disk for that journal (default: TMPDIR, or /tmp)", &dir},
        {"quick", CLI_FLAG, "few calls: whether it works", &is_quick},
        {"json", CLI_FLAG, "machine-readable output: [kumi, gRPC alone, its echo]", &as_json},
    };
    if (!CLI_PARSE(c, option, 0, 0))
        return c->code;
    if (dir && !has_service)
        return cli_usage("kumi ps bench: --dir goes only with --service");
    snprintf(path, sizeof path, "unix:/tmp/kumi-ps-bench-%d", (int)getpid());
    struct ku_rpc_bench_opts o = {.address = path,
                                  .rounds = is_quick ? 1 : 9,
                                  .pushes = is_quick ? 20 : 2000,
                                  .push_bytes = 1024,
                                  .frames = is_quick ? 8 : 512,
                                  .frame_bytes = 1 << 20};
    printf(as_json ? "{\n" : "                              kumi gRPC alone, echo\n");
    int status = run("unix", &o, as_json, 0);
    o.address = "127.0.0.1:0";
    if (status == KUMI_OK)
        status = run("tcp", &o, as_json, !has_service);
    if (status == KUMI_OK && has_service) {
        const char *const otherwise = ku_env("TMPDIR") ? ku_env("TMPDIR") : "/tmp";
        status = run_service(dir ? dir : otherwise, path, is_quick, as_json);
    }
    if (as_json && status == KUMI_OK)
        printf("}\n");
    return cli_end(status, 0);
}
