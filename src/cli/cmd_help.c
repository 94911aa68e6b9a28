/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

static void list_commands(void)
{
    puts("kumi trains deep networks on many processes: one model, one program, the same bits under "
         "every parallel layout.\n");
    for (const struct cli_command *c = cli_commands; c->name; c++)
        if (c->line)
            printf("  kumi %-10s %s\n", c->name, c->line);
    puts("\n`kumi help COMMAND` and `kumi COMMAND --help` say more; `kumi help config` lists every "
         "key of a configuration,\n`kumi help deepspeed` what becomes of those of DeepSpeed's, "
         "`kumi help precision` the precision of every op.");
}

int cmd_help(struct cli *c)
{
    static const struct {
        const char *word;
        char *(*text)(int is_markdown);
    } lists[] = {{"config", kumi_config_help},
                 {"precision", kumi_precision_help},
                 {"deepspeed", kumi_deepspeed_help}};
    const char *word = NULL, *near;
    int is_markdown = 0;
    for (int i = 2; i < c->argc; i++) {
        if (strcmp(c->argv[i], "--markdown") == 0)
            is_markdown = 1;
        else if (word)
            return cli_usage("kumi help: an extra argument %.60s; see `kumi help`", c->argv[i]);
        else
            word = cli_is_help(c->argv[i]) ? c->command->name : c->argv[i];
    }
    if (word == NULL)
        return list_commands(), 0;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        if (strcmp(lists[i].word, word) == 0) {
            char *text = lists[i].text(is_markdown);
            return cli_print(text ? KUMI_OK : KUMI_ENOMEM, &text);
        }
    const struct cli_command *command = cli_find(word, &near);
    char help[] = "--help", *args[] = {c->argv[0], c->argv[1], help, NULL};
    if (command)
        return command->run == cmd_help ? (printf("usage: %s\n", command->usage), 0)
                                        : cli_run(command, 3, args);
    return cli_usage("help: %.60s: no such command%s%s%s", word, near ? "; did you mean " : "",
                     near ? near : "", near ? "?" : "");
}
