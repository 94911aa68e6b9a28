/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

struct options {
    struct cli_hosts hosts;
    const char *n, *picture, *axis, *deepspeed, *limit, *params, *replicate;
    struct kumi_estimate estimate;
    int memory, stages, layouts, mesh, schedule, activations, roofline, unit_costs, as_csv, as_json,
        is_strict, has_hosts;
};

/* Estimate from a number of parameters, "175e9", without a configuration. */
static int estimate(const struct cli *c, struct options *o)
{
    char *end, *text = NULL;
    if (o->has_hosts)
        return cli_usage("kumi plan: -H needs CONFIG; with --params give -n");
    int status = cli_planned_ranks("-n", o->n, &o->estimate.n_ranks);
    o->estimate.n_params = ku_text_number(o->params, &end);
    if (c->n > 0 || o->picture || o->stages || o->layouts || o->mesh || o->schedule ||
        o->activations || o->roofline || o->unit_costs || o->as_csv || o->axis || o->deepspeed ||
        o->is_strict || c->n_list || o->limit)
        return cli_usage("kumi plan: --params replaces the configuration; only --memory, --zero, "
                         "--optimizer, --precision, --grads, --no-master, -n, --replicate and "
                         "--json go with it");
    if (*end != '\0' || end == o->params)
        return cli_usage(
            "kumi plan: --params: %.60s: not a number above 0; give one, such as 175e9", o->params);
    if (status == KUMI_OK && o->replicate)
        status = cli_planned_ranks("--replicate", o->replicate, &o->estimate.replicate);
    if (status == KUMI_OK)
        status = kumi_plan_estimate(&o->estimate, o->as_json, &text);
    return cli_print(status, &text);
}

/* Reports exclude each other; some have a picture, a limit or several hosts. */
static int check_report(const struct options *o)
{
    enum { PICTURE = 1, LIMIT = 2, HOSTS = 4 };
    const struct {
        const char *name;
        int is_given, with;
    } report[] = {{"--memory", o->memory, PICTURE | LIMIT | HOSTS},
                  {"--stages", o->stages, PICTURE | LIMIT},
                  {"--layouts", o->layouts, 0},
                  {"--mesh", o->mesh, PICTURE | HOSTS},
                  {"--schedule", o->schedule, PICTURE},
                  {"--activations", o->activations, 0},
                  {"--roofline", o->roofline, 0}};
    const char *name = NULL;
    int with = PICTURE | LIMIT | HOSTS;
    for (size_t i = 0; i < sizeof report / sizeof report[0]; i++) {
        if (!report[i].is_given)
            continue;
        if (name)
            return cli_usage("kumi plan: %s excludes %s; give one", name, report[i].name);
        name = report[i].name, with = report[i].with;
    }
    if (o->picture && !(with & PICTURE))
        return cli_usage("kumi plan: %s excludes --picture", name);
    if (o->limit && !(with & LIMIT))
        return cli_usage("kumi plan: %s excludes --limit", name);
    if (o->has_hosts && (!(with & HOSTS) || (o->picture && !o->mesh) || o->limit))
        return cli_usage("kumi plan: -H goes only with --memory and --mesh, without --limit; "
                         "--picture goes with it only beside --mesh");
    if (o->axis && (o->picture == NULL || o->stages || o->schedule || o->mesh))
        return cli_usage("kumi plan: --axis goes only with --picture of the memory plan");
    if (o->as_csv && (!o->schedule || o->as_json))
        return cli_usage("kumi plan: --csv goes only with --schedule, without --json");
    if (o->unit_costs && (!o->schedule || o->as_csv))
        return cli_usage("kumi plan: --unit-costs goes only with --schedule, without --csv");
    return 0;
}

static int plan(struct cli *c, struct options *o)
{
    struct kumi_settings s;
    char *text = NULL;
    uint64_t limit = 0;
    int n = 0;
    if (c->n == 0)
        return cli_usage("kumi plan: CONFIG, or --params N, is missing");
    if (!cli_settings(c, o->deepspeed, o->is_strict, &s))
        return c->code;
    if (o->estimate.optimizer || o->estimate.precision || o->estimate.grads ||
        o->estimate.no_master || o->estimate.zero || o->replicate)
        return cli_usage("kumi plan: --zero, --optimizer, --precision, --grads, --no-master and "
                         "--replicate go with --params; a configuration has keys for them");
    const int code_of_report = check_report(o);
    if (code_of_report)
        return code_of_report;
    enum kumi_plan_axis axis = KUMI_PLAN_INSTRUCTIONS;
    if (o->axis && strcmp(o->axis, "time") == 0)
        axis = KUMI_PLAN_TIME;
    else if (o->axis && strcmp(o->axis, "instructions") != 0)
        return cli_usage("kumi plan: --axis: %.60s: unknown; give instructions or time", o->axis);
    if (o->limit && cli_bytes(o->limit, &limit) < 0)
        return cli_usage(
            "kumi plan: --limit: %.60s: not a size; give bytes, or a unit as in 500MB, 16GiB",
            o->limit);
    int status = o->n ? cli_planned_ranks("-n", o->n, &n) : KUMI_OK;
    if (status == KUMI_OK && o->mesh && o->picture)
        status = kumi_plan_mesh_picture(&s, o->hosts.hosts, o->hosts.hostfile, n, o->picture);
    if (status == KUMI_OK && o->mesh)
        return cli_print(
            kumi_plan_mesh(&s, o->hosts.hosts, o->hosts.hostfile, n, o->as_json, &text), &text);
    if (status == KUMI_OK && o->has_hosts)
        return cli_print(
            kumi_plan_memory_hosts(&s, o->hosts.hosts, o->hosts.hostfile, n, o->as_json, &text),
            &text);
    const struct kumi_plan_stages_options all = {o->picture, limit, o->as_json};
    if (status == KUMI_OK && o->layouts)
        return cli_print(kumi_plan_layouts(&s, n, o->as_json, &text), &text);
    if (status == KUMI_OK && o->activations)
        return cli_print(kumi_plan_activations(&s, n, o->as_json, &text), &text);
    if (status == KUMI_OK && o->schedule)
        return cli_print(kumi_plan_schedule(&s, n, o->picture,
                                            o->as_csv    ? KUMI_PLAN_CSV
                                            : o->as_json ? KUMI_PLAN_JSON
                                                         : KUMI_PLAN_TEXT,
                                            o->unit_costs, &text),
                         &text);
    if (status == KUMI_OK && o->stages)
        return cli_print(kumi_plan_stages(&s, n, &all, &text), &text);
    if (status == KUMI_OK && o->picture)
        status = kumi_plan_picture(&s, n, o->picture, axis);
    if (status == KUMI_OK)
        status = o->roofline ? kumi_plan_roofline(&s, n, o->as_json, &text)
                             : kumi_plan_memory(&s, n, o->as_json, &text);
    const int code = cli_print(status, &text);
    return code == 0 && o->limit ? cli_end(kumi_plan_limit(&s, n, limit), 0) : code;
}

int cmd_plan(struct cli *c)
{
    struct options o = {0};
    const struct cli_option option[] = {
        {"n", CLI_TEXT, "ranks to plan for (default 1; with -H: all slots)", &o.n},
        {"H", CLI_TEXT, "hosts to plan for and the ranks of each: a:4,b:4", &o.hosts.hosts},
        {"hostfile", CLI_TEXT, "a file with a line per host: a slots=4", &o.hosts.hostfile},
        {"set", CLI_LIST, "section.key=value, overrides the file", NULL},
        {"memory", CLI_FLAG, "the memory plan (the default)", &o.memory},
        {"stages", CLI_FLAG, "a rank's memory under each ZeRO stage", &o.stages},
        {"layouts", CLI_FLAG, "a rank's memory and bytes sent under every parallel layout",
         &o.layouts},
        {"mesh", CLI_FLAG, "the ranks of each group; its picture: which rank has what", &o.mesh},
        {"schedule", CLI_FLAG, "what each coordinate of a pipeline does in time; its bubble",
         &o.schedule},
        {"activations", CLI_FLAG, "activations by technique, as Korthikanti et al. 2022 count them",
         &o.activations},
        {"unit-costs", CLI_FLAG, "with --schedule: every F, I and W takes one unit of time",
         &o.unit_costs},
        {"csv", CLI_FLAG, "with --schedule: print it as CSV, as parallel.pp_schedule reads it",
         &o.as_csv},
        {"picture", CLI_TEXT, "also draw it, into FILE.svg, FILE.png or FILE.pdf", &o.picture},
        {"axis", CLI_TEXT, "x axis of the picture: instructions (default) or roofline time",
         &o.axis},
        {"limit", CLI_TEXT, "max memory of a rank, such as 16GiB; exit 13 if the plan needs more",
         &o.limit},
        {"roofline", CLI_FLAG, "min time of a step at the roofline, by op", &o.roofline},
        {"deepspeed", CLI_TEXT, "a DeepSpeed configuration on top of CONFIG", &o.deepspeed},
        {"strict", CLI_FLAG, "treat keys that DeepSpeed ignores as errors", &o.is_strict},
        {"params", CLI_TEXT, "instead of CONFIG: state of a model of N parameters, such as 175e9",
         &o.params},
        {"zero", CLI_TEXT, "with --params: only this ZeRO stage (default: all)", &o.estimate.zero},
        {"optimizer", CLI_TEXT, "with --params: the optimizer (default adamw)",
         &o.estimate.optimizer},
        {"precision", CLI_TEXT, "with --params: f32, bf16 (default) or f16", &o.estimate.precision},
        {"grads", CLI_TEXT, "with --params: f32 (default), bf16 or f16", &o.estimate.grads},
        {"no-master", CLI_FLAG, "with --params: no f32 copy of 16-bit parameters",
         &o.estimate.no_master},
        {"replicate", CLI_TEXT, "with --params: replicas of the sharded state (default 1)",
         &o.replicate},
        {"json", CLI_FLAG, "print one JSON object", &o.as_json}};
    if (!CLI_PARSE(c, option, 0, 1) || !cli_check_hosts(c, &o.hosts))
        return c->code;
    o.has_hosts = o.hosts.hosts || o.hosts.hostfile;
    if (o.n == NULL && !o.has_hosts)
        o.n = "1";
    return o.params ? estimate(c, &o) : plan(c, &o);
}
