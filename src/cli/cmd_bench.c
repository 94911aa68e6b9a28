/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "kumi/launch.h"

enum { MAX_COUNTS = 16 };

static void print_line(void *ctx, const char *text)
{
    fprintf(ctx, "%s\n", text);
    fflush(ctx);
}

/* "1,2,4,8" */
static int parse_counts(const char *text, int n[MAX_COUNTS], int *n_counts)
{
    char one[16];
    for (*n_counts = 0;; text++) {
        size_t letters = strcspn(text, ",");
        if (*n_counts == MAX_COUNTS)
            return cli_usage("kumi bench: -n: more than %d rank counts", (int)MAX_COUNTS);
        snprintf(one, sizeof one, "%.*s", (int)(letters < 15 ? letters : 15), text);
        int code = cli_end(kumi_launch_parse_n(one, &n[(*n_counts)++]), 0);
        if (code != 0)
            return code;
        text += letters;
        if (*text == '\0')
            return 0;
    }
}

static int scaling(const struct kumi_bench_options *b, struct kumi_scaling_options *o,
                   const char *counts, const struct cli_hosts *hosts)
{
    int n[MAX_COUNTS];
    const bool has_hosts = hosts->hosts || hosts->hostfile;
    if (b->only == NULL)
        return cli_usage("kumi bench scaling: a configuration is missing");
    if (counts || !has_hosts) {
        int code = parse_counts(counts ? counts : "1,2,4,8", n, &o->n_counts);
        if (code != 0)
            return code;
        o->n = n;
    }
    o->hosts = hosts->hosts;
    o->hostfile = hosts->hostfile;
    o->rsh = hosts->rsh;
    o->out_fd = STDOUT_FILENO;
    o->err_fd = STDERR_FILENO;
    o->threads = b->threads;
    o->program = "/proc/self/exe";
    o->as_json = b->as_json;
    o->line = b->line;
    o->ctx = b->ctx;
    return cli_end(kumi_bench_scaling(o), 0);
}

/*
 * An option that does not apply to this benchmark; NULL: none. kumi_bench checks the options of op
 * and comm.
 */
static const char *stray_option(const struct kumi_bench_options *b,
                                const struct kumi_scaling_options *s, const char *n,
                                const struct cli_hosts *hosts)
{
    const int is_scaling = strcmp(b->what, "scaling") == 0, is_data = strcmp(b->what, "data") == 0;
    if (!is_scaling && strcmp(b->what, "comm") != 0 && (n || hosts->hosts || hosts->hostfile))
        return n ? "-n" : hosts->hosts ? "-H" : "--hostfile";
    if (!is_scaling && (s->is_weak || s->steps))
        return s->is_weak ? "--weak" : "--steps";
    if (b->is_quick && (is_scaling || is_data))
        return "--quick";
    if (!is_scaling && !is_data)
        return s->settings.n_sets ? "--set" : NULL;
    if (b->dtype || b->bytes || b->tune)
        return b->dtype ? "--dtype" : b->bytes ? "--bytes" : "--tune";
    return is_data && b->threads ? "--threads" : NULL;
}

int cmd_bench(struct cli *c)
{
    struct kumi_bench_options b = {.line = print_line, .ctx = stdout};
    struct kumi_scaling_options s = {0};
    struct cli_hosts hosts = {0};
    const char *n = NULL;
    char *text = NULL;
    int64_t threads = 0;
    const struct cli_option option[] = {
        {"n", CLI_TEXT,
         "comm: ranks (default: two threads); scaling: rank counts (default 1,2,4,8; of hosts: to "
         "all slots)",
         &n},
        CLI_HOSTS(hosts),
        {"threads", CLI_INT,
         "compute threads (default: the cores; scaling: 1 per rank); comm: ranks, as threads",
         &threads},
        {"dtype", CLI_TEXT, "op, comm: f32 or bf16 (default: both); op also f16", &b.dtype},
        {"bytes", CLI_INT, "comm: size of the vector (default 8, 65536, 1048576, 67108864)",
         &b.bytes},
        {"quick", CLI_FLAG, "peak: only the matrix peaks, in about 0.1 s; nothing is stored",
         &b.is_quick},
        {"tune", CLI_FLAG, "op: time products with several shapes of tiles", &b.tune},
        {"weak", CLI_FLAG, "scaling: constant batch per rank instead of a constant global batch",
         &s.is_weak},
        {"steps", CLI_INT, "scaling: steps of each training run (default 18)", &s.steps},
        {"set", CLI_LIST, "scaling, data: section.key=value, overrides the file", NULL},
        {"json", CLI_FLAG, "print one JSON object per line", &b.as_json}};
    if (!CLI_PARSE(c, option, 1, 2) || !cli_check_hosts(c, &hosts))
        return c->code;
    if (threads != (int)threads)
        return cli_usage("kumi bench: --threads: %lld; give a smaller number", (long long)threads);
    b.what = c->arg[0];
    b.only = c->n > 1 ? c->arg[1] : NULL;
    b.threads = (int)threads;
    s.settings = (struct kumi_settings){b.only, c->list, c->n_list};
    const char *stray = stray_option(&b, &s, n, &hosts);
    if (stray)
        return cli_usage("kumi bench %.60s: %s does not apply to it", b.what, stray);
    if (strcmp(b.what, "scaling") == 0)
        return scaling(&b, &s, n, &hosts);
    if (strcmp(b.what, "data") == 0)
        return b.only ? cli_print(kumi_bench_data(&s.settings, b.as_json, &text), &text)
                      : cli_usage("kumi bench data: a configuration is missing");
    if (threads && (n || hosts.hosts || hosts.hostfile))
        return cli_usage("kumi bench comm: --threads and %s exclude each other; give one",
                         n             ? "-n"
                         : hosts.hosts ? "-H"
                                       : "--hostfile");
    if (!cli_is_rank(c, n, &hosts))
        return c->code;
    if (n) /* -n 1 has started no process */
        b.threads = 1;
    int status = kumi_bench(&b);
    return cli_end(status, status < 0 && kumi_last_error()->scope == KUMI_SCOPE_JOB);
}
