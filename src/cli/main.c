/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/env.h"
#include "base/os/os.h"
#include "base/os/process.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "kumi/status.h"

const struct cli_command cli_commands[] = {
    {"train", "train a model",
     "kumi train CONFIG [-n N|auto] [-H a:4,b:4 | --hostfile FILE] [--rsh SHELL]\n"
     "           [--set key=value] [--out DIR] [--until STEP]\n"
     "           [--resume[=auto|=step:N] | --overwrite] [--max-time [[HH:]MM:]SS] "
     "[--allow-change]\n"
     "           [--trial] [--profile[=FIRST-LAST]]\n"
     "           [--deepspeed FILE] [--strict] [--explain-deepspeed[=all] [--json]]\n"
     "           [--profile-by op|path|shape|source] [--profile-sort time|calls|name] "
     "[--profile-rows N]",
     cmd_train},
    {"eval", "validation loss of a run's newest checkpoint",
     "kumi eval RUN [-n N] [-H a:4,b:4 | --hostfile FILE] [--rsh SHELL] [--data FILE].. "
     "[--stride S]\n"
     "          [--ema] [--json]\n"
     "       kumi eval DIR --data FILE.. [-n N] [-H a:4,b:4 | --hostfile FILE] [--rsh SHELL]\n"
     "          [--tokenizer DIR] [--seq-len T] [--stride S] [--json]\n"
     "       kumi eval RUN --bleu [--beam B] [--alpha A] [--ema]\n"
     "          [--source FILE --reference FILE] [--json]",
     cmd_eval},
    {"sample", "generate text from a run or a directory of weights",
     "kumi sample RUN|DIR [--prompt TEXT | --prompt-file FILE | --prompts FILE] [--batch N]\n"
     "            [--tokens N] [--temperature T] [--top-k K] [--top-p P] [--stop TEXT]\n"
     "            [--tokenizer DIR] [--dtype f32|bf16|f16] [--ema] [--threads T] [--seed S]",
     cmd_sample},
    {"translate", "translate sentences with a trained seq2seq model",
     "kumi translate RUN|DIR [--beam B] [--alpha A] [--n-best K] [--batch N] [--ema]\n"
     "               [--tokenizer DIR] [--target-tokenizer DIR] [--threads T] < INPUT",
     cmd_translate},
    {"plan", "memory and min time of a configuration, without running it",
     "kumi plan CONFIG [-n N] [-H a:4,b:4 | --hostfile FILE]\n"
     "          [--memory|--stages|--layouts|--mesh|--schedule|--activations|--roofline]\n"
     "          [--unit-costs] [--csv] [--picture FILE [--axis A]] [--limit 16GiB] [--json]\n"
     "          [--set key=value] [--deepspeed FILE] [--strict]\n"
     "       kumi plan --params N [-n N] [--zero Z] [--replicate R] [--optimizer O] [--precision "
     "P]\n"
     "          [--grads P] [--no-master] [--json]",
     cmd_plan},
    {"graph", "the graph or program of a configuration",
     "kumi graph CONFIG [-n N] [--program NAME] [--coordinate K] [--rank R] [--after PASS]\n"
     "           [--dot] [--set key=value] [--deepspeed FILE]",
     cmd_graph},
    {"check", "prove the programs of a configuration, without running them",
     "kumi check CONFIG [-n N] [--set key=value] [--deepspeed FILE] [--program FILE..]", cmd_check},
    {"ckpt", "list, verify, digest, export and import checkpoints",
     "kumi ckpt list|verify|digest RUN [--json] [--params]\n"
     "       kumi ckpt export RUN|DIR --to DIR [--dtype f32|bf16|f16] [--shard-size 2GB] [--ema]\n"
     "       kumi ckpt import DIR --to DIR [--dtype ..] [--shard-size ..] [--model FILE]\n"
     "                        [--map SOURCE=TENSOR].. [--allow-missing]",
     cmd_ckpt},
    {"run", "run a program on N ranks of this host or of several",
     "kumi run -n N|auto [--threads T] -- PROGRAM ARGS\n"
     "       kumi run -H a:4,b:4 | --hostfile FILE [-n N] [--rsh SHELL] [--threads T] -- PROGRAM "
     "ARGS\n"
     "       kumi run --nproc-per-node N --nnodes M --node-rank R --master-addr A\n"
     "                [--master-port P] [--threads T] -- PROGRAM ARGS",
     cmd_run},
    {"ps", "parameter server over gRPC: servers for clients in any language",
     "kumi ps serve --vector N [--optimizer TYPE] [--lr X] [--set optimizer.key=value]..\n"
     "              [--package NAME] [--listen ADDRESS,..] [--threads T] [--max-connections C]\n"
     "              [--cert FILE --key FILE --ca FILE] [--token-file FILE]\n"
     "       kumi ps bench [--service [--dir DIR]] [--quick] [--json]",
     cmd_ps},
    {"agent", NULL, "kumi agent", cmd_agent},
    {"bench", "measure machine limits, ops, collectives and scaling",
     "kumi bench peak|op [OP]|comm [COLLECTIVE] [--threads T] [--dtype f32|bf16|f16] "
     "[--bytes B] [--quick] [--tune] [--json]\n"
     "       kumi bench comm [COLLECTIVE] [-n N] [-H a:4,b:4 | --hostfile FILE] [--rsh SHELL] "
     "[--json]\n"
     "       kumi bench scaling CONFIG [-n N,N..] [-H a:4,b:4 | --hostfile FILE] [--rsh SHELL]\n"
     "                  [--weak] [--threads T] [--steps S] [--set key=value] [--json]\n"
     "       kumi bench data CONFIG [--set key=value] [--json]",
     cmd_bench},
    {"tokenizer", "text to token ids and back; learn a vocabulary from text",
     "kumi tokenizer encode|decode --tokenizer DIR < INPUT\n"
     "       kumi tokenizer encode --tokenizer DIR --to FILE.bin [--overwrite] < INPUT\n"
     "       kumi tokenizer train [--vocab N] [--min-frequency F] [--special TOKEN].. "
     "[--out DIR|FILE] [--json] FILE..",
     cmd_tokenizer},
    {"data", "read and check all data of a configuration",
     "kumi data verify CONFIG [--set key=value]", cmd_data},
    {"info", "properties of this machine and build, or of the hosts of a job",
     "kumi info [--json]\n"
     "       kumi info --hosts [-H a:4,b:4 | --hostfile FILE] [-n N] [--rsh SHELL] [--json]",
     cmd_info},
    {"help", "print this list, a command's options or every key",
     "kumi help [COMMAND|config|deepspeed|precision] [--markdown]", cmd_help},
    {NULL, NULL, NULL, NULL},
};

/*
 * If descriptor 0, 1 or 2 is closed, the next opened file would get its number, and output would go
 * into that file. /dev/null takes the number, opened so that its use fails.
 */
static void reserve_standard_files(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)ku_os_open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY, 0);
}

/*
 * Signal dispositions before the command starts:
 *
 *   stop signals   blocked for `train` and the ranks that it starts, until the run reads them, so
 *                  that none is lost
 *   SIGPIPE        ignored by `train` and by every rank, which outlive the reader of their output;
 *                  other commands end by it, as most programs do
 *   SIGXFSZ        ignored, so that writing beyond RLIMIT_FSIZE is an error of the write; not for
 *                  `run` and `agent`, whose program gets the signal
 *   SIGABRT        see cli_end_bugs
 */
static void prepare_signals(const char *command)
{
    int is_training = strcmp(command, "train") == 0;
    sigset_t stops;
    ku_os_stop_signals(&stops);
    cli_end_bugs();
    if (is_training)
        sigprocmask(SIG_BLOCK, &stops, NULL);
    if (is_training || ku_env("KUMI_CONTROL_FD"))
        signal(SIGPIPE, SIG_IGN);
    if (strcmp(command, "run") != 0 && strcmp(command, "agent") != 0)
        signal(SIGXFSZ, SIG_IGN);
}

/*
 * Lost output is an error of every command. An earlier error takes precedence.
 */
static int check_output(int code)
{
    int status = cli_write("", 0);
    return code != 0 ? code : cli_end(status, 0);
}

static int run_command(int argc, char **argv)
{
    const char *near;
    if (argc >= 2 && strcmp(argv[1], "--version") == 0)
        return puts("kumi " KUMI_VERSION), 0;
    if (argc < 2 || cli_is_help(argv[1]))
        return cmd_help(&(struct cli){0}), argc < 2 ? 2 : 0;
    const struct cli_command *command = cli_find(argv[1], &near);
    if (command)
        return cli_run(command, argc, argv);
    return cli_usage("command: %.60s: unknown; %s%s%s", argv[1], near ? "did you mean " : "see ",
                     near ? near : "`kumi help`", near ? "?" : "");
}

int main(int argc, char **argv)
{
    reserve_standard_files();
    cli_terminal_open();
    prctl(PR_SET_NAME, "kumi"); /* of a rank, started as /proc/self/exe, it would be "exe" */
    prepare_signals(argc > 1 ? argv[1] : "");
    return check_output(run_command(argc, argv));
}
