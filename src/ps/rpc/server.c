/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/rpc/private.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/process.h"

/*
 * A server's life: secrets, gRPC's server and one completion queue per thread, listeners, threads.
 * stop: no more connections and calls; the calls under way end, or are cancelled after the grace;
 * then gRPC says that it has shut down. fini takes the threads down and frees what init made, as
 * far as it came.
 */

void ku_rpc_say(struct ku_rpc_server *s, const char *peer, const char *path, const char *format,
                ...)
{
    enum { MAX_LINES = 20 }; /* a second: no peer fills the log */
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const int64_t now = ku_clock_ns();
    int n_unsaid = 0;
    pthread_mutex_lock(&s->lock);
    if (now - s->said_ns >= KU_RPC_SECOND) {
        n_unsaid = s->n_unsaid;
        s->n_said = s->n_unsaid = 0;
        s->said_ns = now;
    }
    const bool is_said = s->n_said++ < MAX_LINES;
    s->n_unsaid += !is_said;
    pthread_mutex_unlock(&s->lock);
    if (n_unsaid > 0)
        KU_MESSAGE(WARN, "kumi: ps: %d more lines of this kind", n_unsaid);
    if (is_said)
        KU_MESSAGE(WARN, "kumi: ps: %s%s%s: %s", peer, *path ? ": " : "", path, text);
}

#define DEFAULT(field, value) l->field = l->field ? l->field : (value)
static void fill_limits(struct ku_rpc_limits *l)
{
    DEFAULT(message_bytes, KU_RPC_MESSAGE_BYTES);
    DEFAULT(metadata_bytes, KU_RPC_METADATA_BYTES);
    DEFAULT(connections, KU_RPC_CONNECTIONS);
    DEFAULT(calls, KU_RPC_CALLS);
    DEFAULT(connection_calls, KU_RPC_CONNECTION_CALLS);
    DEFAULT(call_rate, KU_RPC_CALL_RATE);
    DEFAULT(memory_bytes, KU_RPC_MEMORY_BYTES);
    DEFAULT(idle_ns, KU_RPC_IDLE_NS);
    DEFAULT(first_call_ns, KU_RPC_FIRST_CALL_NS);
    DEFAULT(unused_ns, KU_RPC_UNUSED_NS);
    DEFAULT(keepalive_ns, KU_RPC_KEEPALIVE_NS);
}

static int ms(int64_t ns)
{
    return ns / 1000000 < INT32_MAX ? (int)(ns / 1000000) : INT32_MAX;
}

static void create_grpc(struct ku_rpc_server *s)
{
    const struct ku_rpc_limits *l = &s->limits;
    grpc_resource_quota *quota = grpc_resource_quota_create("kumi-ps");
    grpc_resource_quota_resize(quota, l->memory_bytes);
    char key[] = GRPC_ARG_RESOURCE_QUOTA;
    grpc_arg args[] = {
        ku_rpc_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)l->message_bytes),
        ku_rpc_arg(GRPC_ARG_MAX_METADATA_SIZE, l->metadata_bytes),
        ku_rpc_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, l->connection_calls),
        ku_rpc_arg(GRPC_ARG_KEEPALIVE_TIME_MS, ms(l->keepalive_ns)),
        ku_rpc_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, ms(l->keepalive_ns / 2)),
        ku_rpc_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        ku_rpc_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        ku_rpc_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000),
        ku_rpc_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, ms(l->first_call_ns)),
        ku_rpc_arg(GRPC_ARG_ALLOW_REUSEPORT, 0),
        ku_rpc_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1), /* none: no bombs */
        {.type = GRPC_ARG_POINTER,
         .key = key,
         .value.pointer = {quota, grpc_resource_quota_arg_vtable()}},
    };
    const grpc_channel_args all = {sizeof args / sizeof *args, args};
    s->grpc = grpc_server_create(&all, NULL);
    grpc_resource_quota_unref(quota);
}

static int listen_tls(struct ku_rpc_server *s, struct ku_rpc_listener *l)
{
    grpc_ssl_pem_key_cert_pair pair = {s->secrets.key, s->secrets.cert};
    grpc_server_credentials *creds = grpc_ssl_server_credentials_create_ex(
        s->secrets.ca, &pair, 1, GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, NULL);
    char at[KU_RPC_MAX_ADDRESS];
    int fd, port;
    s->has_tls = l->is_tls = true;
    s->n_handshakes = ku_rpc_n_handshakes_failed(at, sizeof at); /* of servers before this one */
    /* Ours first, for the message that names the owner; gRPC binds the port again. */
    KU_TRY(ku_rpc_listen(&l->address, &fd));
    ku_os_close(fd);
    snprintf(at, sizeof at, "%s", l->address.text);
    port = grpc_server_add_http2_port(s->grpc, at, creds);
    grpc_server_credentials_release(creds);
    return port > 0
               ? KUMI_OK
               : KU_ERR(KUMI_ESTORAGE, "rpc: listen: %s: gRPC does not listen there with TLS", at);
}

static int add_listener(struct ku_rpc_server *s, const char *text)
{
    struct stat st;
    struct ku_rpc_listener *l = &s->listener[s->n_listeners];
    KU_TRY(ku_rpc_address_parse(text, &l->address));
    KU_TRY(ku_rpc_check_open(&l->address, &s->secrets));
    l->fd = -1;
    s->n_listeners++;
    if (s->secrets.cert && !l->address.is_unix)
        return listen_tls(s, l);
    KU_TRY(ku_rpc_listen(&l->address, &l->fd));
    if (l->address.is_unix && ku_os_stat(l->address.path, &st) == 0) {
        l->device = st.st_dev;
        l->inode = st.st_ino;
    }
    if (ku_os_epoll_set(s->accept_epoll, l->fd, true, EPOLLIN, l) < 0)
        return KU_ERR(KUMI_ESTORAGE, "rpc: listen: %s: epoll: %s", text, ku_os_why());
    return KUMI_OK;
}

/* The guard thread may be about to accept: its descriptor is closed later. */
static void end_listener(struct ku_rpc_server *s, struct ku_rpc_listener *l)
{
    struct stat st;
    if (l->fd < 0)
        return;
    (void)ku_os_epoll_set(s->accept_epoll, l->fd, false, 0, NULL);
    (void)shutdown(l->fd, SHUT_RDWR);
    /* another server may have replaced the file */
    if (l->inode && ku_os_stat(l->address.path, &st) == 0 && st.st_ino == l->inode &&
        st.st_dev == l->device)
        (void)ku_os_unlink(l->address.path);
}

static int start_threads(struct ku_rpc_server *s, int n)
{
    for (; s->n_threads < n; s->n_threads++) {
        struct ku_rpc_thread *t = &s->thread[s->n_threads];
        KU_TRY(ku_rpc_thread_arm(t));
        if (pthread_create(&t->id, NULL, ku_rpc_thread_main, t) != 0)
            return KU_ERR(KUMI_ENOMEM, "rpc: server: no thread: %s", ku_os_why());
    }
    if (pthread_create(&s->guard, NULL, ku_rpc_guard_main, s) != 0)
        return KU_ERR(KUMI_ENOMEM, "rpc: server: no thread: %s", ku_os_why());
    s->has_guard = true;
    if (pthread_create(&s->acceptor, NULL, ku_rpc_accept_main, s) != 0)
        return KU_ERR(KUMI_ENOMEM, "rpc: server: no thread: %s", ku_os_why());
    s->has_acceptor = true;
    return KUMI_OK;
}

static int check_opts(const struct ku_rpc_server_opts *o)
{
    if (o->n_listen < 1 || o->n_listen > KU_RPC_MAX_LISTEN)
        return KU_ERR(KUMI_EINVAL, "rpc: server: %d addresses; give 1 to %d", o->n_listen,
                      (int)KU_RPC_MAX_LISTEN);
    if (o->n_threads < 0 || o->n_threads > KU_RPC_MAX_THREADS)
        return KU_ERR(KUMI_EINVAL, "rpc: server: %d threads; give 1 to %d", o->n_threads,
                      (int)KU_RPC_MAX_THREADS);
    if (o->limits.message_bytes > INT32_MAX)
        return KU_ERR(KUMI_EINVAL, "rpc: server: messages of %zu bytes; at most 2^31 - 1",
                      o->limits.message_bytes);
    KU_ASSERT(o->n_methods >= 1 && o->n_methods <= KU_RPC_MAX_METHODS);
    return KUMI_OK;
}

int ku_rpc_server_check(const struct ku_rpc_server_opts *o)
{
    struct ku_rpc_secrets secrets;
    struct ku_rpc_address address;
    KU_TRY(ku_rpc_secrets_init(&secrets, &o->security));
    int status = KUMI_OK;
    for (int i = 0; i < o->n_listen && status == KUMI_OK; i++) {
        status = ku_rpc_address_parse(o->listen[i], &address);
        if (status == KUMI_OK)
            status = ku_rpc_check_open(&address, &secrets);
    }
    ku_rpc_secrets_fini(&secrets);
    return status;
}

int ku_rpc_server_create(const struct ku_rpc_server_opts *o, struct ku_rpc_server **server)
{
    const int n_threads = o->n_threads ? o->n_threads : 2;
    int status = KUMI_OK;
    KU_TRY(check_opts(o));
    struct ku_rpc_server *s = ku_calloc(1, sizeof *s);
    if (s == NULL)
        return KUMI_ENOMEM;
    s->method = o->method;
    s->n_methods = o->n_methods;
    s->ctx = o->ctx;
    s->limits = o->limits;
    fill_limits(&s->limits);
    s->epoll = s->wake = s->accept_epoll = s->accept_wake = -1;
    pthread_mutex_init(&s->lock, NULL);
    ku_cond_init(&s->changed);
    ku_rpc_runtime_init();
    ku_os_raise_files(2 * (uint64_t)s->limits.connections + 256);
    KU_TRY_OUT(ku_rpc_secrets_init(&s->secrets, &o->security));
    s->epoll = ku_os_epoll();
    s->wake = ku_os_eventfd();
    s->accept_epoll = ku_os_epoll();
    s->accept_wake = ku_os_eventfd();
    if (s->epoll < 0 || s->wake < 0 || s->accept_epoll < 0 || s->accept_wake < 0 ||
        ku_os_epoll_set(s->epoll, s->wake, true, EPOLLIN, s) < 0 ||
        ku_os_epoll_set(s->accept_epoll, s->accept_wake, true, EPOLLIN, s) < 0)
        KU_TRY_OUT(KU_ERR(KUMI_ESTORAGE, "rpc: server: epoll: %s", ku_os_why()));
    create_grpc(s);
    s->plain = grpc_insecure_server_credentials_create();
    for (int i = 0; i < n_threads; i++) {
        s->thread[i].server = s;
        s->thread[i].cq = grpc_completion_queue_create_for_next(NULL);
        grpc_server_register_completion_queue(s->grpc, s->thread[i].cq, NULL);
    }
    for (int i = 0; i < o->n_listen; i++)
        KU_TRY_OUT(add_listener(s, o->listen[i]));
    grpc_server_start(s->grpc);
    KU_TRY_OUT(start_threads(s, n_threads));
    *server = s;
out:
    if (status < 0) {
        struct kumi_error why = *ku_err_get();
        ku_rpc_server_destroy(s);
        status = ku_err_put(&why);
    }
    return status;
}

const char *ku_rpc_server_address(const struct ku_rpc_server *s, int i)
{
    return s->listener[i].address.text;
}

void ku_rpc_server_stats(struct ku_rpc_server *s, struct ku_rpc_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = (struct ku_rpc_stats){s->n_conns, s->n_calls, s->accepted, s->refused, s->timed_out};
    pthread_mutex_unlock(&s->lock);
}

/* Wait until gRPC has shut down, or only the calls are over, at most until the deadline. */
static bool await_end(struct ku_rpc_server *s, bool is_whole, int64_t end_ns)
{
    enum { SLICE_NS = 50000000 };
    pthread_mutex_lock(&s->lock);
    bool is_done;
    while (!(is_done = s->n_calls == 0 && (s->is_shut || !is_whole)) && ku_clock_ns() < end_ns)
        (void)ku_cond_wait(&s->changed, &s->lock, ku_clock_ns() + SLICE_NS);
    pthread_mutex_unlock(&s->lock);
    return is_done;
}

void ku_rpc_server_stop(struct ku_rpc_server *s, int64_t grace_ns)
{
    enum { LAST_WORDS_NS = 50000000 }; /* the last statuses leave */
    const int64_t now = ku_clock_ns();
    pthread_mutex_lock(&s->lock);
    const bool is_first = !s->is_stopping;
    s->is_stopping = true;
    pthread_mutex_unlock(&s->lock);
    if (!is_first || s->thread[0].cq == NULL)
        return;
    for (int i = 0; i < s->n_listeners; i++)
        end_listener(s, &s->listener[i]);
    grpc_server_shutdown_and_notify(s->grpc, s->thread[0].cq, &s->shut_tag);
    if (grace_ns > 0 &&
        await_end(s, false, grace_ns < INT64_MAX - now ? now + grace_ns : INT64_MAX))
        (void)await_end(s, true, ku_clock_ns() + LAST_WORDS_NS);
    grpc_server_cancel_all_calls(s->grpc);
    if (s->has_guard) /* else create has failed, and no thread takes the event */
        (void)await_end(s, true, INT64_MAX);
}

void ku_rpc_server_destroy(struct ku_rpc_server *s)
{
    if (s == NULL)
        return;
    ku_rpc_server_stop(s, 0);
    pthread_mutex_lock(&s->lock);
    s->is_ending = true;
    pthread_mutex_unlock(&s->lock);
    if (s->has_guard) {
        ku_os_ring(s->wake);
        pthread_join(s->guard, NULL);
    }
    if (s->has_acceptor) {
        ku_os_ring(s->accept_wake);
        pthread_join(s->acceptor, NULL);
    }
    for (int i = 0; i < s->n_listeners; i++)
        if (s->listener[i].fd >= 0)
            ku_os_close(s->listener[i].fd);
    for (int i = 0; i < KU_RPC_MAX_THREADS && s->thread[i].cq; i++) {
        grpc_completion_queue_shutdown(s->thread[i].cq);
        if (i < s->n_threads)
            pthread_join(s->thread[i].id, NULL);
        else
            ku_rpc_thread_main(&s->thread[i]); /* takes what is left */
    }
    while (s->conns)
        ku_rpc_conn_drop(s, s->conns);
    if (s->grpc)
        grpc_server_destroy(s->grpc);
    for (int i = 0; i < KU_RPC_MAX_THREADS && s->thread[i].cq; i++)
        grpc_completion_queue_destroy(s->thread[i].cq);
    if (s->plain)
        grpc_server_credentials_release(s->plain);
    ku_rpc_secrets_fini(&s->secrets);
    if (s->epoll >= 0)
        ku_os_close(s->epoll);
    if (s->wake >= 0)
        ku_os_close(s->wake);
    if (s->accept_epoll >= 0)
        ku_os_close(s->accept_epoll);
    if (s->accept_wake >= 0)
        ku_os_close(s->accept_wake);
    ku_rpc_runtime_fini();
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    ku_free(s);
}
