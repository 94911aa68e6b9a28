/* SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>

#include "base/os.h"
#include "cli/cli.h"
#include "kumi/run.h"

/* As it comes: a person reads along. */
static void emit(void *ctx, const char *text, size_t bytes)
{
    (void)ctx;
    (void)ku_os_write_full(STDOUT_FILENO, text, bytes);
}

int cmd_sample(const struct cli_command *self, int argc, char **argv)
{
    struct kumi_sample_options o = {.temperature = 1, .emit = emit};
    struct cli_args args;
    int64_t tokens = 100, top_k = 0, seed = 1337;
    const struct cli_option option[] = {
        {"prompt", CLI_TEXT, "how the text begins (default: a newline)", &o.prompt},
        {"tokens", CLI_INT, "how many to make (default 100)", &tokens},
        {"temperature", CLI_NUM, "1: as trained; 0: the likeliest always", &o.temperature},
        {"top-k", CLI_INT, "among the k likeliest; 0: all", &top_k},
        {"seed", CLI_INT, "same seed, same text (default 1337)", &seed}};
    enum { N = sizeof option / sizeof option[0] };
    int code = cli_parse(self, argc, argv, option, N, 1, 1, &args);
    if (code != 0)
        return code < 0 ? 0 : code;
    o.run = args.arg[0];
    o.tokens = tokens;
    o.top_k = top_k;
    o.seed = (uint64_t)seed;
    int status = kumi_sample(&o);
    if (status == KUMI_OK)
        emit(NULL, "\n", 1);
    cli_free(option, N, &args);
    return cli_end(status, 0);
}
