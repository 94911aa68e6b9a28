/* SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>

#include "cli/cli.h"
#include "kumi/launch.h"

/* `kumi agent`: what `kumi run -H` starts on every host. Errors are the launcher's to print. */
int cmd_agent(struct cli *c)
{
    if (c->argc > 2 || isatty(STDIN_FILENO))
        return cli_usage("kumi agent: it is started by kumi run -H and kumi train -H");
    return -kumi_launch_agent(STDIN_FILENO, STDOUT_FILENO);
}
