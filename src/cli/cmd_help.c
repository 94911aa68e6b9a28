/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "cli/cli.h"
#include "kumi/run.h"

static void list_commands(void)
{
    puts("kumi trains deep networks on many processes: one model, one program, the same bits under "
         "every parallel layout.\n");
    for (const struct cli_command *c = cli_commands; c->name; c++)
        printf("  kumi %-10s %s\n", c->name, c->line);
    puts("\n`kumi help COMMAND` and `kumi COMMAND --help` say more; `kumi help config` lists every "
         "key of a configuration,\n`kumi help deepspeed` what becomes of those of DeepSpeed's, "
         "`kumi help precision` the precision of every op.");
}

int cmd_help(const struct cli_command *self, int argc, char **argv)
{
    const char *names[32], *word = NULL;
    int n = 0, is_markdown = 0;
    (void)self;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--markdown") == 0)
            is_markdown = 1;
        else
            word = argv[i];
    }
    if (word == NULL)
        return list_commands(), 0;
    if (strcmp(word, "config") == 0)
        return cli_print(0, kumi_config_help(is_markdown));
    if (strcmp(word, "precision") == 0)
        return cli_print(0, kumi_precision_help(is_markdown));
    if (strcmp(word, "deepspeed") == 0)
        return cli_print(0, kumi_deepspeed_help(is_markdown));
    for (const struct cli_command *c = cli_commands; c->name; c++) {
        char help[] = "--help", *args[] = {argv[0], argv[2], help, NULL};
        names[n++] = c->name;
        if (strcmp(c->name, word) == 0)
            return strcmp(word, "help") == 0 ? (printf("usage: %s\n", c->usage), 0)
                                             : c->run(c, 3, args);
    }
    const char *near = ku_str_nearest(word, names, n);
    return cli_usage("help: %.60s: no such command%s%s%s", word, near ? "; did you mean " : "",
                     near ? near : "", near ? "?" : "");
}
