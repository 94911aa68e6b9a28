/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/os/os.h"
#include "cli/cli.h"
#include "kumi/launch.h"

static void print_file(const char *path)
{
    char *text = NULL;
    size_t bytes;
    if (*path && ku_os_slurp(path, 1 << 20, &text, &bytes) == 0)
        fputs(text, stdout);
    ku_free(text);
}

static bool has_accuracy(const struct kumi_train_result *r)
{
    for (int i = 0; i < r->val_metrics.n; i++)
        if (strcmp(r->val_metrics.item[i].name, "accuracy") == 0)
            return 1;
    return 0;
}

static void print_result(const struct kumi_train_result *r, int is_stopped)
{
    if (r->digest[0] == '\0')
        return; /* not rank 0 */
    printf("%s%lld step%s, %lld update%s", is_stopped ? "stopped: " : "", (long long)r->step,
           r->step == 1 ? "" : "s", (long long)r->update, r->update == 1 ? "" : "s");
    if (r->median_tps > 0) /* of the steps after the third */
        printf(", %.0f %s/s (median)", r->median_tps, r->is_by_samples ? "samples" : "tokens");
    puts("");
    if (r->curve[0])
        printf("      step  validation loss%s\n%s", has_accuracy(r) ? "  accuracy" : "", r->curve);
    printf("checkpoint: %s\ndigest: %s\n", r->checkpoint, r->digest);
    print_file(r->profile);
    for (int i = 0; i < r->val_metrics.n; i++)
        printf("validation %s: %.4f\n", r->val_metrics.item[i].name, r->val_metrics.item[i].value);
    if (isfinite(r->val_loss))
        printf("validation loss: %.4f\n", r->val_loss);
}

/* Whether this process trains: as a rank, or with -n ranks as its threads. */
static bool trains(struct cli *c, struct kumi_train_options *o, const char *n,
                   const struct cli_hosts *hosts)
{
    if (n == NULL || hosts->hosts || hosts->hostfile || !kumi_train_in_threads(&o->settings))
        return cli_is_rank(c, n, hosts);
    c->code = cli_end(kumi_launch_parse_n(n, &o->ranks), 0);
    return c->code == 0;
}

/*
 * Parse --resume with the value "", "auto" or "step:N". Returns the exit code.
 */
static int take_resume(const char *text, struct kumi_train_options *o)
{
    long long step = 0;
    int end = 0, is_auto = strcmp(text, "auto") == 0;
    o->resume = is_auto ? 2 : 1;
    if (*text && !is_auto &&
        (strspn(text, "step:0123456789") != strlen(text) ||
         sscanf(text, "step:%lld%n", &step, &end) != 1 || text[end] != '\0' || step < 1))
        return cli_usage("kumi train: --resume=%.60s: unknown; give --resume, --resume=auto or "
                         "--resume=step:N with N from 1",
                         text);
    o->resume_step = step;
    if (o->overwrite)
        return cli_usage("kumi train: --overwrite and --resume exclude each other; give one");
    if (o->is_trial)
        return cli_usage(
            "kumi train: --trial and --resume exclude each other; a timed run saves no state");
    return 0;
}

/* Print only the table, for -n ranks (default 1). */
static int explain(const struct kumi_settings *settings, const char *n_text, const char *what,
                   int as_json)
{
    int n = 1;
    char *text = NULL;
    if (*what && strcmp(what, "all") != 0)
        return cli_usage("kumi train: --explain-deepspeed=%.60s: give --explain-deepspeed or "
                         "--explain-deepspeed=all",
                         what);
    int status = n_text ? cli_planned_ranks("-n", n_text, &n) : KUMI_OK;
    if (status == KUMI_OK)
        status = kumi_deepspeed_text(settings, n, *what != '\0', as_json, &text);
    return cli_print(status, &text);
}

int cmd_train(struct cli *c)
{
    struct kumi_train_options o = {0};
    struct kumi_train_result result = {0};
    const char *n = NULL, *resume = NULL, *max_time = NULL, *deepspeed = NULL, *table = NULL;
    int is_strict = 0, as_json = 0;
    int64_t until = INT64_MAX, rows = 0; /* as if no --until were given */
    struct cli_hosts hosts = {0};
    const struct cli_option option[] = {
        {"n", CLI_TEXT, "ranks; auto: one per core (of hosts: all slots)", &n},
        CLI_HOSTS(hosts),
        {"set", CLI_LIST, "section.key=value, overrides the file; repeatable", NULL},
        {"out", CLI_TEXT, "run directory (default: runs/<config>-<time>)", &o.out},
        {"resume", CLI_OPTIONAL,
         "continue from the newest checkpoint; =auto: or start a new run; =step:N", &resume},
        {"until", CLI_INT, "stop after this step with a checkpoint", &until},
        {"overwrite", CLI_FLAG, "replace an existing run after the first step", &o.overwrite},
        {"max-time", CLI_TEXT, "stop after [[HH:]MM:]SS with a checkpoint, as on SIGTERM",
         &max_time},
        {"profile", CLI_OPTIONAL, "time by op of steps =FIRST-LAST (default: four early steps)",
         &o.profile},
        {"profile-by", CLI_TEXT, "with --profile: group it by op, path, shape or source",
         &o.profile_by},
        {"profile-sort", CLI_TEXT, "with --profile: sort it by time, calls or name",
         &o.profile_sort},
        {"profile-rows", CLI_INT, "with --profile: rows to print", &rows},
        {"trial", CLI_FLAG, "timed run: no evaluation and no checkpoint", &o.is_trial},
        {"allow-change", CLI_FLAG, "resume although numerics keys have changed", &o.allow_change},
        {"deepspeed", CLI_TEXT, "a DeepSpeed configuration on top of CONFIG", &deepspeed},
        {"strict", CLI_FLAG, "treat keys that DeepSpeed ignores as errors", &is_strict},
        {"explain-deepspeed", CLI_OPTIONAL,
         "only print what each DeepSpeed key becomes; =all: also absent keys", &table},
        {"json", CLI_FLAG, "with --explain-deepspeed: print one JSON object", &as_json},
    };
    if (!CLI_PARSE(c, option, 1, 1) || !cli_settings(c, deepspeed, is_strict, &o.settings))
        return c->code;
    o.until = until < INT64_MAX ? until : 0;
    o.profile_rows = (int)rows;
    o.max_time_s = max_time ? cli_seconds(max_time) : 0;
    if (table && (hosts.hosts || hosts.hostfile))
        return cli_usage("kumi train: --explain-deepspeed needs only the number of ranks; give -n "
                         "instead of -H or --hostfile");
    if (table)
        return explain(&o.settings, n, table, as_json);
    if (as_json)
        return cli_usage("kumi train: --json goes only with --explain-deepspeed");
    if (resume && (c->code = take_resume(resume, &o)) != 0)
        return c->code;
    if (until < 1)
        return cli_usage("kumi train: --until: %lld; give a step, from 1", (long long)until);
    if (max_time && !(o.max_time_s > 0))
        return cli_usage("kumi train: --max-time: %.60s: not a time above 0; give it as "
                         "[[HH:]MM:]SS",
                         max_time);
    if (!o.profile && (o.profile_by || o.profile_sort || rows))
        return cli_usage("kumi train: --profile-by, --profile-sort and --profile-rows go only with "
                         "--profile");
    if (rows < 0 || rows > INT_MAX)
        return cli_usage("kumi train: --profile-rows: %lld; give 1 or more, or 0 for all",
                         (long long)rows);
    if (!trains(c, &o, n, &hosts))
        return c->code;
    int status = kumi_train(&o, &result);
    if (status == KUMI_OK || status == KUMI_ESTOPPED)
        print_result(&result, status < 0);
    return cli_end(status, result.is_reported);
}
