/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "kumi/launch.h"

#include <string.h>

/* Options of torchrun: one launcher per node, started by other means. */
struct node {
    const char *n, *per_node, *master_addr; /* per_node: torchrun's, instead of n */
    int64_t n_nodes, rank, port;
};

static int run_node(struct cli *c, const struct node *node, int threads)
{
    struct kumi_launch_node_options o = {.threads = threads,
                                         .n_nodes = (int)node->n_nodes,
                                         .node_rank = (int)node->rank,
                                         .master_addr = node->master_addr,
                                         .master_port = (int)node->port};
    int code;
    const int64_t big = node->n_nodes != o.n_nodes    ? node->n_nodes
                        : node->rank != o.node_rank   ? node->rank
                        : node->port != o.master_port ? node->port
                                                      : 0;
    if (big)
        return cli_usage("kumi run: --nnodes, --node-rank, --master-port: %lld; give less",
                         (long long)big);
    const bool is_torchruns = node->per_node != NULL;
    const char *n = !is_torchruns                        ? node->n
                    : strcmp(node->per_node, "cpu") == 0 ? "auto"
                                                         : node->per_node;
    int status = kumi_launch_parse_n(n, &o.n);
    if (status < 0 && is_torchruns)
        return cli_usage("kumi run: --nproc-per-node: %.60s; give 1 to 512, auto or cpu", n);
    if (status == KUMI_OK)
        status = kumi_launch_node(c->rest, &o, &code);
    return status < 0 ? cli_end(status, 0) : code;
}

int cmd_run(struct cli *c)
{
    const char *n_text = NULL;
    int64_t threads = 0;
    struct cli_hosts hosts = {0};
    struct node node = {.n_nodes = 1};
    const struct cli_option option[] = {
        {"n", CLI_TEXT, "ranks; auto: one per core (of hosts: all slots)", &n_text},
        {"threads", CLI_INT, "compute threads of each rank (default: its share of the cores)",
         &threads},
        CLI_HOSTS(hosts),
        {"nproc-per-node", CLI_TEXT, "as torchrun: ranks of this node; auto, cpu: one per core",
         &node.per_node},
        {"nnodes", CLI_INT, "as torchrun: nodes, each with a launcher of its own (default 1)",
         &node.n_nodes},
        {"node-rank", CLI_INT, "as torchrun: number of this node, from 0", &node.rank},
        {"master-addr", CLI_TEXT, "as torchrun: address of node 0", &node.master_addr},
        {"master-port", CLI_INT, "as torchrun: a port of node 0 (default 29500)", &node.port}};
    if (!CLI_PARSE(c, option, 0, CLI_PROGRAM) || !cli_check_hosts(c, &hosts))
        return c->code;
    const bool has_hosts = hosts.hosts || hosts.hostfile;
    const bool has_nodes =
        node.per_node || node.n_nodes != 1 || node.rank || node.master_addr || node.port;
    if (threads < 0 || threads > 4096)
        return cli_usage("kumi run: --threads: %lld; give 1 to 4096", (long long)threads);
    if (has_nodes && (has_hosts || n_text))
        return cli_usage("kumi run: %s and torchrun's options exclude each other; give --nnodes "
                         "with --nproc-per-node, or -n, or -H",
                         has_hosts ? "-H" : "-n");
    if (c->rest == NULL || c->rest[0] == NULL)
        return cli_usage("kumi run: no program; give it after --: kumi run -n 2 -- ./program");
    if (has_hosts)
        return cli_launch_hosts(c, c->rest, n_text, (int)threads, &hosts);
    if (!has_nodes)
        node.n = n_text ? n_text : "auto";
    else if (!node.per_node)
        node.per_node = "1"; /* as torchrun */
    return run_node(c, &node, (int)threads);
}
