/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "cli/ps/ps.h"
#include "ps/rpc/rpc_limits.h"
#include "ps/serve/vector_service.h"

/* `kumi ps serve`: the textbook's server of one vector, or a server of a training. */

static KU_STATUS stopped(struct ku_ps_vector_service *s, int signal)
{
    int64_t n_pushes, n_pulls;
    ku_ps_vector_counts(s, &n_pushes, &n_pulls);
    return KU_ERR(KUMI_ESTOPPED, "ps serve: stopped by SIG%s after %lld pushes and %lld pulls",
                  sigabbrev_np(signal), (long long)n_pushes, (long long)n_pulls);
}

int ps_cmd_serve(struct cli *c)
{
    struct ps_server_options server = {0};
    struct ps_train_options train = {0};
    struct ku_ps_vector_service_opts o = {.vector.lr = -HUGE_VAL}; /* not given */
    struct ku_ps_vector_service *s = NULL;
    const char *texts[KU_RPC_MAX_LISTEN];
    char *copy = NULL;
    const struct cli_option option[] = {
        {"vector", CLI_INT, "elements of the vector, which begins with zeros", &o.vector.count},
        {"optimizer", CLI_TEXT, "sgd (default), adamw, adam, adagrad, rmsprop or lion",
         &o.vector.optimizer},
        {"lr", CLI_NUM, "learning rate (default 0.01)", &o.vector.lr},
        {"set", CLI_LIST, "a key of the optimizer: --set optimizer.momentum=0.9", NULL},
        {"package", CLI_TEXT, "package of the service ParameterServer (default: none)", &o.package},
        PS_TRAIN_OPTIONS(train),
        PS_SERVER_OPTIONS(server),
    };
    if (!CLI_PARSE(c, option, 0, 1))
        return c->code;
    const bool has_lr = o.vector.lr > -HUGE_VAL;
    if (c->n == 1 && (o.vector.count || o.vector.optimizer || has_lr || o.package))
        return cli_usage("kumi ps serve: %.60s: an extra argument; a configuration goes without "
                         "--vector, --optimizer, --lr and --package",
                         c->arg[0]);
    if (c->n == 1)
        return ps_serve_training(c, &train, &server);
    o.vector.lr = has_lr ? o.vector.lr : 0.01;
    if (train.out || train.shard || train.journal_sync || train.keeps)
        return cli_usage("kumi ps serve: --out, --shard, --journal-sync and --keep-journal go only "
                         "with CONFIG");
    if (o.vector.count == 0)
        return cli_usage("kumi ps serve: --vector: give a number of elements of at least 1");
    o.vector.set = c->list;
    o.vector.n_set = c->n_list;
    int status = ps_server_opts(&server, "127.0.0.1:50051", texts, &copy, &o.rpc);
    if (status == KUMI_OK)
        status = ku_ps_vector_serve(&o, &s);
    if (status == KUMI_OK)
        status = ps_serve_until_stopped(ku_ps_vector_server(s), o.rpc.n_listen);
    if (status > 0)
        status = stopped(s, status);
    ku_ps_vector_end(s);
    ku_free(copy);
    return cli_end(status, 0);
}
