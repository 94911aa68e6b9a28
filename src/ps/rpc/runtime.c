/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/rpc/private.h"

#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

/*
 * gRPC tells of a TLS handshake that fails by a line of its log alone, which has neither server nor
 * connection: the process counts them, and its server reports them (accept_guard.c).
 */
static struct {
    pthread_mutex_t lock;
    uint64_t n;
    char why[120]; /* of the last one */
} handshakes = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* "Handshake failed with fatal error SSL_ERROR_SSL: error:0A000086:SSL routines::bad number." */
static void note_handshake(const char *message)
{
    const char *why = strstr(message, "::");
    why = why ? why + 2 : message;
    pthread_mutex_lock(&handshakes.lock);
    handshakes.n++;
    snprintf(handshakes.why, sizeof handshakes.why, "%.*s", (int)strcspn(why, ".\r\n"), why);
    pthread_mutex_unlock(&handshakes.lock);
}

uint64_t ku_rpc_n_handshakes_failed(char *why, size_t bytes)
{
    pthread_mutex_lock(&handshakes.lock);
    const uint64_t n = handshakes.n;
    snprintf(why, bytes, "%s", handshakes.why);
    pthread_mutex_unlock(&handshakes.lock);
    return n;
}

/*
 * gRPC's errors are mostly those of one peer (a failed handshake, a malformed frame), which the
 * server survives.
 */
static void take_line(gpr_log_func_args *line)
{
    const char *file = strrchr(line->file, '/');
    switch (line->severity) {
    case GPR_LOG_SEVERITY_ERROR:
        if (strncmp(line->message, "assertion failed", 16) == 0) /* it ends the process */
            KU_LOG(COMM, ERROR, "grpc: %s (%s:%d)", line->message, file ? file + 1 : line->file,
                   line->line);
        if (strncmp(line->message, "Handshake failed", 16) == 0)
            note_handshake(line->message);
        KU_LOG(COMM, INFO, "grpc: %s (%s:%d)", line->message, file ? file + 1 : line->file,
               line->line);
        break;
    case GPR_LOG_SEVERITY_INFO:
    case GPR_LOG_SEVERITY_DEBUG:
        KU_LOG(COMM, DEBUG, "grpc: %s (%s:%d)", line->message, file ? file + 1 : line->file,
               line->line);
        break;
    }
}

void ku_rpc_runtime_init(void)
{
    grpc_init();
    gpr_set_log_function(take_line);
    gpr_set_log_verbosity(ku_log_is_on(KU_SUB_COMM, KU_LOG_DEBUG) ? GPR_LOG_SEVERITY_DEBUG
                                                                  : GPR_LOG_SEVERITY_ERROR);
}

void ku_rpc_runtime_fini(void)
{
    grpc_shutdown_blocking();
}

gpr_timespec ku_rpc_deadline(int64_t timeout_ns)
{
    if (timeout_ns == INT64_MAX)
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                        gpr_time_from_nanos(timeout_ns, GPR_TIMESPAN));
}

grpc_arg ku_rpc_arg(const char *key, int value)
{
    union { /* gRPC does not write to it */
        const char *in;
        char *out;
    } k = {.in = key};
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = k.out, .value.integer = value};
}
