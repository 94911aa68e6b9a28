/* SPDX-License-Identifier: Apache-2.0 */
/* links: ps */
/* Tokens and mutual TLS. Certificates are made by the command openssl. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/os.h"
#include "base/os/socket.h"
#include "kumi/messages.h"
#include "ps/util.h"

static char folder[64];

static const char *file(const char *name)
{
    static char path[4][128];
    static int i;
    i = (i + 1) % 4;
    snprintf(path[i], sizeof path[i], "%s/%s", folder, name);
    return path[i];
}
static void write_file(const char *name, const char *text, mode_t mode)
{
    FILE *f = fopen(file(name), "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(chmod(file(name), mode), 0);
}
/* NAME.pem and NAME.key, signed by CA.pem, for 127.0.0.1 and localhost, with these dates. */
static void make_certificate(const char *name, const char *ca, const char *dates)
{
    char text[1024];
    snprintf(text, sizeof text,
             "cd %s && exec >log 2>&1 && umask 077 && "
             "printf 'subjectAltName=IP:127.0.0.1,DNS:localhost\n' >san && "
             "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout %s.key "
             "-subj /CN=%s -out csr && "
             "touch index; rm -f index*; touch index && openssl ca -batch -notext -config conf "
             "-cert %s.pem -keyfile %s.key %s "
             "-extfile san -in csr -out %s.pem",
             folder, name, name, ca, ca, dates, name);
    if (system(text) != 0)
        fail_msg("%s", text);
}
static void make_ca(const char *name)
{
    char text[512];
    snprintf(text, sizeof text,
             "cd %s && umask 077 && openssl req -x509 -newkey ec -pkeyopt "
             "ec_paramgen_curve:P-256 -nodes -keyout %s.key -subj /CN=%s -days 2 -out %s.pem "
             ">/dev/null 2>&1",
             folder, name, name, name);
    assert_int_equal(system(text), 0);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/kumi-test-ps-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    write_file("conf",
               "[ca]\ndefault_ca=d\n[d]\nnew_certs_dir=.\ndatabase=index\nrand_serial=yes\n"
               "default_md=sha256\npolicy=p\nunique_subject=no\n[p]\ncommonName=supplied\n",
               0600);
    make_ca("ca");
    make_ca("other");
    make_certificate("server", "ca", "-days 1");
    make_certificate("client", "ca", "-days 1");
    make_certificate("stranger", "other", "-days 1");
    make_certificate("expired", "ca", "-startdate 20200101000000Z -enddate 20200102000000Z");
    make_certificate("early", "ca", "-startdate 20900101000000Z -enddate 20900102000000Z");
    write_file("token", "0123456789abcdef0123\n", 0600);
    write_file("wrong", "0123456789abcdef0124\n", 0600);
    write_file("prefix", "0123456789abcdef012", 0600);
    write_file("open", "0123456789abcdef0123\n", 0644);
    write_file("short", "0123456789\n", 0600);
    write_file("two", "0123456789abcdef 0123456789abcdef\n", 0600);
    write_file("empty", "", 0600);
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    return ku_os_rmtree(folder);
}

static int on_unary(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m)
{
    struct ku_rpc_buf b;
    int *n = ctx;
    ++*n;
    KU_TRY(ku_rpc_buf_init(&b, m->bytes));
    ku_rpc_msg_read(m, 0, b.data, m->bytes);
    ku_rpc_finish(call, KUMI_OK, &b);
    return KUMI_OK;
}
static const struct ku_rpc_method method = {.path = "/Unary", .message = on_unary};

/* `cert` stands for NAME.pem and NAME.key. NULL: none. */
static struct ku_rpc_security security(const char *cert, const char *ca, const char *token)
{
    static char path[2][4][128];
    static int k;
    char(*p)[128] = path[k = !k];
    struct ku_rpc_security s = {0};
    if (cert) {
        snprintf(p[0], sizeof p[0], "%s/%s.pem", folder, cert);
        snprintf(p[1], sizeof p[1], "%s/%s.key", folder, cert);
        s.cert = p[0];
        s.key = p[1];
    }
    if (ca) {
        snprintf(p[2], sizeof p[2], "%s/%s.pem", folder, ca);
        s.ca = p[2];
    }
    if (token) {
        snprintf(p[3], sizeof p[3], "%s/%s", folder, token);
        s.token_file = p[3];
    }
    return s;
}

static int create(struct ku_rpc_security s, const char *address, int *n_calls,
                  struct ku_rpc_server **server)
{
    struct ku_rpc_server_opts o = {.listen = &address,
                                   .n_listen = 1,
                                   .security = s,
                                   .method = &method,
                                   .n_methods = 1,
                                   .ctx = n_calls};
    return ku_rpc_server_create(&o, server);
}

struct row {
    const char *cert, *ca, *token, *address; /* of the server; of the client */
    const char *its_cert, *its_ca, *its_token;
    const char *text; /* in the message of the call; NULL: it succeeds */
};

static void test_calls(void **state)
{
    static const struct row row[] = {
        {NULL, NULL, "token", "127.0.0.1:0", NULL, NULL, "token", NULL},
        {NULL, NULL, "token", "127.0.0.1:0", NULL, NULL, "wrong", "missing or wrong"},
        {NULL, NULL, "token", "127.0.0.1:0", NULL, NULL, "prefix", "missing or wrong"},
        {NULL, NULL, "token", "127.0.0.1:0", NULL, NULL, NULL, "missing or wrong"},
        {NULL, NULL, NULL, "127.0.0.1:0", NULL, NULL, "token", NULL},
        {"server", "ca", NULL, "127.0.0.1:0", "client", "ca", NULL, NULL},
        {"server", "ca", NULL, "localhost:0", "client", "ca", NULL, NULL},
        {"server", "ca", "token", "127.0.0.1:0", "client", "ca", "token", NULL},
        {"server", "ca", "token", "127.0.0.1:0", "client", "ca", "wrong", "missing or wrong"},
        {"server", "ca", NULL, "127.0.0.1:0", "stranger", "ca", NULL, ""},
        {"server", "ca", NULL, "127.0.0.1:0", "client", "other", NULL, "failed"},
        {"server", "ca", NULL, "127.0.0.1:0", NULL, NULL, NULL, ""},
        {NULL, NULL, NULL, "127.0.0.1:0", "client", "ca", NULL, "failed"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const struct row *r = &row[i];
        struct ku_rpc_server *server;
        struct ku_rpc_channel *channel;
        char out[8] = "";
        int n_calls = 0;
        print_message("row %zu\n", i);
        if (create(security(r->cert, r->ca, r->token), r->address, &n_calls, &server) < 0)
            fail_msg("%s", ku_err_get()->text);
        struct ku_rpc_channel_opts o = {.address = ku_rpc_server_address(server, 0),
                                        .security = security(r->its_cert, r->its_ca, r->its_token)};
        assert_int_equal(ku_rpc_channel_create(&o, &channel), 0);
        int status = call_text(channel, "/Unary", "hello", out, sizeof out);
        if (status < 0)
            print_message("%s\n", ku_err_get()->text);
        assert_int_equal(status == KUMI_OK, r->text == NULL);
        assert_int_equal(n_calls, r->text == NULL);
        if (r->text && strstr(ku_err_get()->text, r->text) == NULL)
            fail_msg("%s", ku_err_get()->text);
        ku_rpc_channel_destroy(channel);
        ku_rpc_server_destroy(server);
    }
}

static void test_files(void **state)
{
    static const struct {
        const char *cert, *ca, *token, *text;
    } row[] = {
        {NULL, NULL, "open", "others may read it; chmod 600"},
        {NULL, NULL, "short", "not one word of 16 to 256"},
        {NULL, NULL, "two", "not one word"},
        {NULL, NULL, "empty", "not one word"},
        {NULL, NULL, "absent", "No such file"},
        {"server", NULL, NULL, "the CA is missing"},
        {NULL, "ca", NULL, "the certificate is missing"},
        {"expired", "ca", NULL, "expired.pem: expired on Jan  2 00:00:00 2020"},
        {"early", "ca", NULL, "not valid before Jan  1 00:00:00 2090"},
        {"absent", "ca", NULL, "No such file"},
        {"mixed", "ca", NULL, "not that of the certificate"},
        {"junk", "ca", NULL, "no certificate in PEM form"},
    };
    struct ku_rpc_server *server;
    int n_calls = 0;
    (void)state;
    assert_int_equal(link(file("server.pem"), file("mixed.pem")), 0);
    assert_int_equal(link(file("client.key"), file("mixed.key")), 0);
    write_file("junk.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n", 0600);
    write_file("junk.key", "", 0600);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct ku_rpc_security s = security(row[i].cert, row[i].ca, row[i].token);
        struct ku_rpc_channel *channel;
        struct ku_rpc_channel_opts o = {.address = "127.0.0.1:1", .security = s};
        assert_int_equal(create(s, "127.0.0.1:0", &n_calls, &server), KUMI_EINVAL);
        if (strstr(ku_err_get()->text, row[i].text) == NULL)
            fail_msg("%s", ku_err_get()->text);
        assert_int_equal(ku_rpc_channel_create(&o, &channel), KUMI_EINVAL);
        if (strstr(ku_err_get()->text, row[i].text) == NULL)
            fail_msg("%s", ku_err_get()->text);
    }
    /* with either of them every address may be listened on */
    assert_int_equal(create(security(NULL, NULL, "token"), "0.0.0.0:0", &n_calls, &server), 0);
    ku_rpc_server_destroy(server);
    assert_int_equal(create(security("server", "ca", NULL), "0.0.0.0:0", &n_calls, &server), 0);
    ku_rpc_server_destroy(server);
}

/* As look at it: up to a second. */
static bool has_conns(struct ku_rpc_server *server, int n)
{
    struct ku_rpc_stats stats = {0};
    for (int i = 0; i < 100; i++) {
        ku_rpc_server_stats(server, &stats);
        if (stats.connections == n)
            return true;
        usleep(20000);
    }
    print_message("%d connections\n", stats.connections);
    return false;
}

/* Refused calls buy a connection no time: without one that is admitted it is ended. */
static void refused_is_ended(void **state)
{
    const char *address = "127.0.0.1:0";
    struct ku_rpc_channel *good, *bad;
    struct ku_rpc_stats stats = {0};
    struct ku_rpc_server *server;
    char out[8] = "";
    int n_calls = 0;
    struct ku_rpc_server_opts o = {.listen = &address,
                                   .n_listen = 1,
                                   .security = security(NULL, NULL, "token"),
                                   .method = &method,
                                   .n_methods = 1,
                                   .limits = {.first_call_ns = SECOND / 5},
                                   .ctx = &n_calls};
    (void)state;
    assert_int_equal(ku_rpc_server_create(&o, &server), 0);
    struct ku_rpc_channel_opts client = {.address = ku_rpc_server_address(server, 0),
                                         .security = security(NULL, NULL, "token")};
    assert_int_equal(ku_rpc_channel_create(&client, &good), 0);
    client.security = security(NULL, NULL, "wrong");
    assert_int_equal(ku_rpc_channel_create(&client, &bad), 0);
    assert_int_equal(call_text(good, "/Unary", "hello", out, sizeof out), 0);
    usleep(500000);
    ku_rpc_server_stats(server, &stats);
    assert_true(stats.connections == 1 && stats.timed_out == 0);
    for (int i = 0; i < 40 && stats.timed_out == 0; i++) {
        assert_true(call_text(bad, "/Unary", "hello", out, sizeof out) < 0);
        usleep(50000);
        ku_rpc_server_stats(server, &stats);
    }
    assert_true(stats.timed_out > 0);
    assert_int_equal(call_text(good, "/Unary", "hello", out, sizeof out), 0);
    assert_int_equal(n_calls, 2);
    ku_rpc_channel_destroy(good);
    ku_rpc_channel_destroy(bad);
    ku_rpc_server_destroy(server);
}

/* The lines that the server has printed. */
struct lines {
    char text[4096];
    size_t n;
};
static void take_line(void *ctx, const char *line, size_t bytes)
{
    struct lines *l = ctx;
    if (l->n + bytes < sizeof l->text)
        memcpy(l->text + l->n, line, bytes);
    l->n += l->n + bytes < sizeof l->text ? bytes : 0;
}

/* What TLS refuses has a line of the server. */
static void refused_by_tls(void **state)
{
    static const struct {
        const char *options, *text;
    } row[] = {
        {"-cert expired.pem -key expired.key", "certificate verify failed"},
        {"-cert stranger.pem -key stranger.key", "certificate verify failed"},
        {"", "peer did not return a certificate"},
        {NULL, "wrong version number"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        static struct lines lines;
        const struct kumi_messages messages = {.line = take_line, .ctx = &lines};
        struct ku_rpc_server *server;
        struct ku_rpc_channel *channel;
        char text[256];
        int n_calls = 0;
        lines = (struct lines){.n = 0};
        kumi_messages_set(&messages);
        assert_int_equal(create(security("server", "ca", NULL), "127.0.0.1:0", &n_calls, &server),
                         0);
        const char *address = ku_rpc_server_address(server, 0);
        if (row[i].options) {
            snprintf(text, sizeof text,
                     "cd %s && timeout 20 openssl s_client -connect %s %s </dev/null >log 2>&1",
                     folder, address, row[i].options);
            (void)!system(text);
        } else {
            const struct ku_rpc_channel_opts client = {.address = address};
            assert_int_equal(ku_rpc_channel_create(&client, &channel), 0);
            assert_true(call_text(channel, "/Unary", "hello", text, sizeof text) < 0);
            ku_rpc_channel_destroy(channel);
        }
        snprintf(text, sizeof text, "refused: TLS handshake: %s (", row[i].text);
        for (int k = 0; k < 250 && strstr(lines.text, text) == NULL; k++)
            usleep(20000);
        ku_rpc_server_destroy(server);
        kumi_messages_set(NULL);
        if (strstr(lines.text, text) == NULL)
            fail_msg("row %zu: %s", i, lines.text);
    }
}

/* Connections over TLS are counted, also before a handshake; one beyond the limit is ended. */
static void tls_is_counted(void **state)
{
    enum { MOST = 4, N = 10 };
    struct ku_rpc_server *server;
    struct ku_rpc_channel *channel;
    struct ku_os_address at;
    const char *why, *address = "127.0.0.1:0";
    char out[8] = "", byte;
    int n_calls = 0, fd[N], n_ended = 0;
    struct ku_rpc_server_opts o = {.listen = &address,
                                   .n_listen = 1,
                                   .security = security("server", "ca", NULL),
                                   .method = &method,
                                   .n_methods = 1,
                                   .limits = {.connections = MOST},
                                   .ctx = &n_calls};
    (void)state;
    assert_int_equal(ku_rpc_server_create(&o, &server), 0);
    address = ku_rpc_server_address(server, 0);
    assert_int_equal(ku_os_resolve("127.0.0.1", &at, 1, &why), 1);
    at.port = (uint16_t)strtol(strrchr(address, ':') + 1, NULL, 10);
    for (int i = 0; i < N; i++)
        assert_true((fd[i] = ku_os_tcp_connect(&at)) >= 0);
    assert_true(has_conns(server, MOST));
    for (int i = 0; i < N; i++)
        n_ended += ku_os_await(fd[i], POLLIN, 1) > 0 && ku_os_tcp_recv(fd[i], &byte, 1) <= 0;
    assert_int_equal(n_ended, N - MOST);
    for (int i = 0; i < N; i++)
        ku_os_close(fd[i]);
    assert_true(has_conns(server, 0));
    const struct ku_rpc_channel_opts client = {.address = address,
                                               .security = security("client", "ca", NULL)};
    assert_int_equal(ku_rpc_channel_create(&client, &channel), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(call_text(channel, "/Unary", "hello", out, sizeof out), 0);
    assert_true(has_conns(server, 1) && n_calls == 3);
    ku_rpc_channel_destroy(channel);
    assert_true(has_conns(server, 0));
    ku_rpc_server_destroy(server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),       cmocka_unit_test(test_files),
        cmocka_unit_test(refused_is_ended), cmocka_unit_test(refused_by_tls),
        cmocka_unit_test(tls_is_counted),
    };
    if (cannot_run() || system("command -v openssl >/dev/null") != 0)
        return 77;
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
