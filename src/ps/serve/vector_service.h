/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_SERVE_VECTOR_SERVICE_H
#define KU_PS_SERVE_VECTOR_SERVICE_H

#include "ps/rpc/rpc.h"
#include "ps/vector.h"

/*
 * proto/parameter_server.proto over gRPC: a vector behind two unary methods.
 */
struct ku_ps_vector_service;
struct ku_ps_vector_service_opts {
    struct ku_ps_vector_opts vector;
    const char *package;           /* of the service's name; NULL: none */
    struct ku_rpc_server_opts rpc; /* listen, security, threads; limits: zeros are fitting ones */
};
/* Errors: those of ku_ps_vector_create and ku_rpc_server_create; KUMI_EINVAL (package). */
KU_STATUS ku_ps_vector_serve(const struct ku_ps_vector_service_opts *o,
                             struct ku_ps_vector_service **s);
struct ku_rpc_server *ku_ps_vector_server(struct ku_ps_vector_service *s);
/* Pushes applied and pulls answered so far. */
void ku_ps_vector_counts(struct ku_ps_vector_service *s, int64_t *n_pushes, int64_t *n_pulls);
void ku_ps_vector_end(struct ku_ps_vector_service *s); /* NULL is allowed */

#endif
