/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os/process.h"
#include "base/str.h"
#include "cli/ps/ps.h"
#include "cli/terminal.h"

/* Names as users type them after `kumi`, so that messages and usages read alike. */
const struct cli_command cli_commands[] = {
    {"ps serve", "a parameter server over gRPC",
     "kumi ps serve --vector N [--optimizer TYPE] [--lr X] [--set optimizer.key=value]..\n"
     "              [--package NAME] [--listen ADDRESS,..] [--threads T] [--max-connections C]\n"
     "              [--cert FILE --key FILE --ca FILE] [--token-file FILE]\n"
     "       kumi ps serve CONFIG [--out DIR] [--shard I/N] [--journal-sync every|group:MS|none]\n"
     "              [--keep-journal] [--set key=value].. [--listen ADDRESS,..] ..",
     ps_cmd_serve},
    {"ps worker", "a worker of a training with a parameter server",
     "kumi ps worker CONFIG --servers ADDRESS,.. [--worker W] [--set key=value].. [--out DIR]\n"
     "              [--cert FILE --key FILE --ca FILE] [--token-file FILE]",
     ps_cmd_worker},
    {"ps run", "workers and servers of a training on this host",
     "kumi ps run CONFIG -n WORKERS -s SERVERS [--out DIR] [--set key=value]..\n"
     "              [--restarts R] [--worker-restarts R] [--journal-sync every|group:MS|none]\n"
     "              [--keep-journal]",
     ps_cmd_run},
    {"ps status", "what the servers of a training have done",
     "kumi ps status --servers ADDRESS,.. [--json]", ps_cmd_status},
    {"ps snapshot", "a checkpoint now", "kumi ps snapshot --servers ADDRESS,..", ps_cmd_snapshot},
    {"ps drain", "end a training after its update, with a checkpoint",
     "kumi ps drain --servers ADDRESS,..", ps_cmd_drain},
    {"ps replay", "repeat a training from its journal", "kumi ps replay DIR [--out DIR]",
     ps_cmd_replay},
    {"ps bench", "what calls and streams take here, beside gRPC alone",
     "kumi ps bench [--service [--dir DIR]] [--quick] [--json]", ps_cmd_bench},
    {NULL, NULL, NULL, NULL},
};

/* All commands with their options. */
static int print_all(char *program)
{
    char help[] = "--help", *args[] = {program, program, help, NULL};
    int code = 0;
    for (const struct cli_command *c = cli_commands; c->name && code == 0; c++) {
        if (c > cli_commands)
            puts("");
        code = cli_run(c, 3, args);
    }
    return code;
}

static int run_command(int argc, char **argv)
{
    char name[64];
    const char *near;
    if (argc < 2 || cli_is_help(argv[1]))
        return print_all(argv[0]) + (argc < 2 ? 2 : 0);
    snprintf(name, sizeof name, "ps %.56s", argv[1]);
    const struct cli_command *command = cli_find(name, &near);
    if (command)
        return cli_run(command, argc, argv);
    return cli_usage("command: %s: unknown; %s%s%s", name, near ? "did you mean " : "see ",
                     near ? near : "`kumi ps --help`", near ? "?" : "");
}

/*
 * A server's stop signals are blocked before threads exist, and read by ps_serve_until_stopped.
 * Servers, workers and what starts them outlive the reader of their output; the other commands end
 * by SIGPIPE. gRPC writes to its connections without that signal.
 */
static void prepare_signals(const char *command)
{
    const bool is_server = strcmp(command, "serve") == 0;
    sigset_t stops;
    ku_os_stop_signals(&stops);
    if (is_server)
        sigprocmask(SIG_BLOCK, &stops, NULL);
    if (is_server || strcmp(command, "worker") == 0 || strcmp(command, "run") == 0)
        signal(SIGPIPE, SIG_IGN);
    cli_end_bugs();
}

int main(int argc, char **argv)
{
    cli_terminal_open();
    prepare_signals(argc > 1 ? argv[1] : "");
    const int code = run_command(argc, argv);
    const int status = cli_write("", 0);
    return code != 0 ? code : cli_end(status, 0);
}
