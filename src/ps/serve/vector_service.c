/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/serve/vector_service.h"

#include <ctype.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "ps/rpc/rpc_limits.h"

enum { PUSH, PULL, N_METHODS };
enum { MAX_PACKAGE = 80 };

struct ku_ps_vector_service {
    struct ku_ps_vector *vector;
    struct ku_rpc_server *server;
    _Atomic int64_t n_pushes, n_pulls;
    char path[N_METHODS][MAX_PACKAGE + 48];
    struct ku_rpc_method method[N_METHODS];
};

static int on_push(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m)
{
    struct ku_ps_vector_service *s = ctx;
    struct ku_proto_in in = ku_proto_begin(m->piece, m->n_pieces, m->bytes);
    int64_t n_updates;
    (void)call;
    KU_TRY(ku_ps_vector_push(s->vector, &in, &n_updates));
    s->n_pushes++;
    return KUMI_OK; /* EmptyResponse */
}

static int on_pull(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m)
{
    struct ku_ps_vector_service *s = ctx;
    struct ku_proto_in in = ku_proto_begin(m->piece, m->n_pieces, m->bytes);
    const size_t bytes = (size_t)ku_ps_vector_count(s->vector) * sizeof(float);
    uint32_t field, type;
    struct ku_rpc_buf reply;
    int more;
    while ((more = ku_proto_next(&in, &field, &type)) > 0)
        KU_TRY(ku_proto_skip(&in, type));
    KU_TRY(more);
    KU_TRY(ku_rpc_buf_init(&reply, ku_proto_n_bytes(1, bytes)));
    uint8_t *at = ku_proto_put_head(reply.data, 1, bytes);
    ku_ps_vector_pull(s->vector, at);
    s->n_pulls++;
    ku_rpc_finish(call, KUMI_OK, &reply);
    return KUMI_OK;
}

/* "a.b.c" of identifiers */
static int check_package(const char *package)
{
    bool is_first = true, is_good = strlen(package) <= MAX_PACKAGE;
    for (const char *p = package; *p; p++) {
        const bool is_letter = isalpha((unsigned char)*p) || *p == '_';
        is_good =
            is_good && (is_letter || (!is_first && (isdigit((unsigned char)*p) || *p == '.')));
        is_first = *p == '.';
    }
    if (is_good && !is_first)
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL,
                  "ps serve: --package: \"%.100s\"; identifiers with dots between them, at most %d "
                  "characters",
                  package, (int)MAX_PACKAGE);
}

static void name_methods(struct ku_ps_vector_service *s, const char *package)
{
    static const struct {
        const char *name;
        int (*message)(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m);
    } row[N_METHODS] = {[PUSH] = {"PushGradients", on_push}, [PULL] = {"PullParameters", on_pull}};
    for (int i = 0; i < N_METHODS; i++) {
        snprintf(s->path[i], sizeof s->path[i], "/%s%sParameterServer/%s", package ? package : "",
                 package ? "." : "", row[i].name);
        s->method[i] = (struct ku_rpc_method){.path = s->path[i], .message = row[i].message};
    }
}

int ku_ps_vector_serve(const struct ku_ps_vector_service_opts *o, struct ku_ps_vector_service **out)
{
    struct ku_rpc_server_opts rpc = o->rpc;
    int status = KUMI_OK;
    if (o->package)
        KU_TRY(check_package(o->package));
    struct ku_ps_vector_service *s = ku_calloc(1, sizeof *s);
    if (s == NULL)
        return KUMI_ENOMEM;
    KU_TRY_OUT(ku_ps_vector_create(&o->vector, &s->vector));
    name_methods(s, o->package);
    /* Room for unpacked lists, and for wrong lengths of the same order, which get a reason. */
    if (rpc.limits.message_bytes == 0) {
        const size_t bytes = 10 * (size_t)o->vector.count + (64 << 10);
        rpc.limits.message_bytes = bytes < INT32_MAX ? bytes : INT32_MAX;
    }
    /* A message is in gRPC's buffers until it is whole; beyond its quota gRPC ends the call. */
    if (rpc.limits.memory_bytes == 0 && rpc.limits.message_bytes > KU_RPC_MEMORY_BYTES / 2)
        rpc.limits.memory_bytes = 2 * rpc.limits.message_bytes;
    rpc.method = s->method;
    rpc.n_methods = N_METHODS;
    rpc.ctx = s;
    KU_TRY_OUT(ku_rpc_server_create(&rpc, &s->server));
    *out = s;
out:
    if (status < 0)
        ku_ps_vector_end(s);
    return status;
}

struct ku_rpc_server *ku_ps_vector_server(struct ku_ps_vector_service *s)
{
    return s->server;
}

void ku_ps_vector_counts(struct ku_ps_vector_service *s, int64_t *n_pushes, int64_t *n_pulls)
{
    *n_pushes = s->n_pushes;
    *n_pulls = s->n_pulls;
}

void ku_ps_vector_end(struct ku_ps_vector_service *s)
{
    if (s == NULL)
        return;
    ku_rpc_server_destroy(s->server);
    ku_ps_vector_destroy(s->vector);
    ku_free(s);
}
