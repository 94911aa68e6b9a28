/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

/* As a rank: rank 0 prints what all found. */
static int info_hosts(int as_json)
{
    char *text = NULL;
    int status = kumi_info_hosts(as_json, &text);
    if (status < 0)
        return cli_end(status, kumi_last_error()->scope == KUMI_SCOPE_JOB);
    return cli_print(status, &text);
}

int cmd_info(struct cli *c)
{
    char *text = NULL;
    const char *n = NULL;
    int as_json = 0, is_hosts = 0;
    struct cli_hosts hosts = {0};
    const struct cli_option option[] = {
        {"json", CLI_FLAG, "print one JSON object", &as_json},
        {"hosts", CLI_FLAG, "start a job, and print its hosts and the speed between them",
         &is_hosts},
        {"n", CLI_TEXT, "with --hosts: ranks; auto: one per core (of hosts: all slots)", &n},
        CLI_HOSTS(hosts)};
    if (!CLI_PARSE(c, option, 0, 0))
        return c->code;
    if (!is_hosts && (n || hosts.hosts || hosts.hostfile || hosts.rsh))
        return cli_usage("kumi info: %s goes only with --hosts", n                ? "-n"
                                                                 : hosts.hosts    ? "-H"
                                                                 : hosts.hostfile ? "--hostfile"
                                                                                  : "--rsh");
    if (is_hosts)
        return cli_is_rank(c, n, &hosts) ? info_hosts(as_json) : c->code;
    return cli_print(kumi_info_text(as_json, &text), &text);
}
