/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <unistd.h>

#include "base/os/os.h"
#include "cli/ps/ps.h"
#include "ps/rpc/rpc_bench.h"

/* `kumi ps bench`: this layer beside gRPC alone, over a Unix socket and over TCP. */

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

int ps_cmd_bench(struct cli *c)
{
    int as_json = 0, is_quick = 0;
    char path[64];
    const struct cli_option option[] = {
        {"quick", CLI_FLAG, "few calls: whether it works", &is_quick},
        {"json", CLI_FLAG, "machine-readable output: [kumi, gRPC alone, its echo]", &as_json},
    };
    if (!CLI_PARSE(c, option, 0, 0))
        return c->code;
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
        status = run("tcp", &o, as_json, 1);
    if (as_json && status == KUMI_OK)
        printf("}\n");
    return cli_end(status, 0);
}
