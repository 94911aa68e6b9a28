/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <unistd.h>

#include "base/env.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "cli/ps/ps.h"
#include "ps/replay.h"

static int make_folder(char *name)
{
    return mkdtemp(name) ? KUMI_OK
                         : KU_ERR(KUMI_ESTORAGE, "kumi ps replay: %s: %s", name, ku_os_why());
}

int ps_cmd_replay(struct cli *c)
{
    struct kumi_train_result result = {0};
    const char *out = NULL;
    const struct cli_option option[] = {
        {"out", CLI_TEXT, "directory of the repeated run (default: none is left)", &out}};
    if (!CLI_PARSE(c, option, 1, 1))
        return c->code;
    char *own = ku_asprintf("%s/kumi-replay-XXXXXX", ku_env("TMPDIR") ? ku_env("TMPDIR") : "/tmp");
    int status = own ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK && out == NULL)
        status = make_folder(own);
    if (status == KUMI_OK)
        status = ku_ps_replay(c->arg[0], out ? out : own, &result);
    if (out == NULL)
        result.checkpoint[0] = '\0';
    if (status == KUMI_OK)
        ps_print_result(&result, 0);
    const struct kumi_error error = *ku_err_get();
    if (own && out == NULL)
        (void)ku_os_rmtree(own);
    ku_free(own);
    if (status < 0)
        status = ku_err_put(&error);
    return cli_end(status, result.is_reported);
}
