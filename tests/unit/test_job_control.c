/* SPDX-License-Identifier: Apache-2.0 */
/* links: job base */
/* What hosts say to each other before they are a job: hellos, messages, addresses, rows, secret. */
#include "base/err.h"
#include "base/hash.h"
#include "base/os/os.h"
#include "base/os/socket.h"
#include "job/control/address.h"
#include "job/control/hello.h"
#include "job/control/message.h"
#include "job/control/private.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const uint8_t secret[KU_SECRET_BYTES] = {1, 2, 3};
static const uint8_t other_secret[KU_SECRET_BYTES] = {1, 2, 4};
static const struct ku_claim claim = {
    .kind = KU_CLAIM_DATA, .from = 3, .to = 5, .slot = 7, .lane = 1, .stream = 99};

/* Carry what one side has to say to the other, `step` bytes at a time. */
static void carry(struct ku_hello_side *from, struct ku_hello_side *to, size_t step)
{
    while (ku_hello_has_output(from) && to->end == KU_HELLO_GOING) {
        size_t n = from->n_out - from->n_sent, room = to->n_want - to->n_in;
        n = n < step ? n : step;
        n = n < room ? n : room;
        if (n == 0)
            return;
        ku_hello_take(to, (const uint8_t *)from->out + from->n_sent, n);
        from->n_sent += n;
    }
}

static void start_both(struct ku_hello_side *client, struct ku_hello_side *server,
                       const uint8_t *client_secret)
{
    assert_int_equal(ku_hello_start(client, &claim, client_secret), 0);
    assert_int_equal(ku_hello_start(server, NULL, secret), 0);
}

static void test_hello_good(void **state)
{
    (void)state;
    for (size_t step = 1; step <= 512; step = step * 3 + 1) {
        struct ku_hello_side client, server;
        start_both(&client, &server, secret);
        carry(&client, &server, step);
        carry(&server, &client, step);
        assert_int_equal(client.end, KU_HELLO_DONE);
        assert_int_equal(server.end, KU_HELLO_GOING);
        carry(&client, &server, step);
        assert_int_equal(server.end, KU_HELLO_DONE);
        assert_memory_equal(ku_hello_claim(&server), &claim, sizeof claim);
    }
}

static void test_hello_wrong_secret(void **state)
{
    struct ku_hello_side client, server;
    (void)state;
    start_both(&client, &server, other_secret);
    carry(&client, &server, 512);
    carry(&server, &client, 512);
    assert_int_equal(client.end, KU_HELLO_SECRET);
    carry(&client, &server, 512); /* so that the server knows why */
    assert_int_equal(server.end, KU_HELLO_SECRET);
}

/* What one connection said does not open another. */
static void test_hello_replay(void **state)
{
    struct ku_hello_side client, server, again;
    (void)state;
    start_both(&client, &server, secret);
    carry(&client, &server, 512);
    carry(&server, &client, 512);
    assert_int_equal(ku_hello_start(&again, NULL, secret), 0);
    client.n_sent = 0;
    carry(&client, &again, 512);
    assert_int_equal(again.end, KU_HELLO_SECRET);
    /* a server that answers with the client's own bytes */
    start_both(&client, &server, secret);
    ku_hello_take(&client, client.out, KU_HELLO_BYTES);
    ku_hello_take(&client, client.out, KU_HELLO_BYTES);
    assert_int_equal(client.end, KU_HELLO_STRANGER);
}

static void test_hello_bytes(void **state)
{
    (void)state;
    for (size_t at = 0; at < 4 * KU_HELLO_BYTES; at++) { /* one bit of each byte of all four */
        struct ku_hello_side client, server;
        const bool is_clients = at < KU_HELLO_BYTES || at >= 3 * KU_HELLO_BYTES;
        start_both(&client, &server, secret);
        if (at < KU_HELLO_BYTES)
            ((uint8_t *)client.out)[at] ^= 1;
        carry(&client, &server, 512);
        if (!is_clients && server.n_out)
            ((uint8_t *)server.out)[at - KU_HELLO_BYTES] ^= 1;
        carry(&server, &client, 512);
        if (at >= 3 * KU_HELLO_BYTES)
            ((uint8_t *)client.out)[at - 2 * KU_HELLO_BYTES] ^= 1;
        carry(&client, &server, 512);
        const struct ku_hello_side *judge = is_clients ? &server : &client;
        if (judge->end == KU_HELLO_DONE)
            fail_msg("byte %zu was not checked", at);
    }
}

static void test_hello_stranger(void **state)
{
    static const char *const said[] = {"GET / HTTP/1.1\r\n", "\x16\x03\x01", "kumi job"};
    (void)state;
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        uint8_t bytes[KU_HELLO_BYTES] = {0};
        struct ku_hello_side server;
        memcpy(bytes, said[i], strlen(said[i]));
        assert_int_equal(ku_hello_start(&server, NULL, secret), 0);
        ku_hello_take(&server, bytes, 3); /* a short one waits */
        assert_int_equal(server.end, KU_HELLO_GOING);
        ku_hello_take(&server, bytes + 3, sizeof bytes - 3);
        assert_int_equal(server.end, i == 2 ? KU_HELLO_OTHER_VERSION : KU_HELLO_STRANGER);
        assert_true(i == 2 || !ku_hello_has_output(&server)); /* a stranger learns nothing */
    }
}

/* RFC 4231, test case 2 */
static void test_hmac(void **state)
{
    static const uint8_t expected[] = {0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e,
                                       0x6a, 0x04, 0x24, 0x26, 0x08, 0x95, 0x75, 0xc7,
                                       0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27, 0x39, 0x83,
                                       0x9d, 0xec, 0x58, 0xb9, 0x64, 0xec, 0x38, 0x43};
    uint8_t got[32];
    (void)state;
    ku_hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, got);
    assert_memory_equal(got, expected, sizeof got);
    assert_true(ku_is_equal_secret(got, expected, sizeof got));
    got[31] ^= 1;
    assert_false(ku_is_equal_secret(got, expected, sizeof got));
}

static void test_messages(void **state)
{
    static const struct {
        struct ku_message m;
        int is_good;
    } rows[] = {
        {{KU_MESSAGE_MAGIC, KU_MESSAGE_BYE, 0, 0, 0, -1, 0, 0}, 1},
        {{KU_MESSAGE_MAGIC + 1, KU_MESSAGE_BYE, 0, 0, 0, -1, 0, 0}, 0},
        {{KU_MESSAGE_MAGIC, KU_N_MESSAGES, 0, 0, 0, -1, 0, 0}, 0},
        {{KU_MESSAGE_MAGIC, KU_MESSAGE_NONE, 0, 0, 0, -1, 0, 0}, 0},
        {{KU_MESSAGE_MAGIC, KU_MESSAGE_BYE, 4, 0, 0, -1, 0, 0}, 0},
        {{KU_MESSAGE_MAGIC, KU_MESSAGE_STOP, 0, 0, 0, -1, 15, 0}, 1},
        {{KU_MESSAGE_MAGIC, KU_MESSAGE_STOP, 0, 0, 0, -1, 65, 0}, 0},
        {{KU_MESSAGE_MAGIC, KU_MESSAGE_ASK, 0, 1, KU_MAX_HOSTS - 1, 5, 0, 0}, 1},
        {{KU_MESSAGE_MAGIC, KU_MESSAGE_ASK, 0, 1, KU_MAX_HOSTS, 5, 0, 0}, 0},
        {{KU_MESSAGE_MAGIC, KU_MESSAGE_ASK, 0, -1, 0, 5, 0, 0}, 0},
        {{KU_MESSAGE_MAGIC, KU_MESSAGE_ASK, 0, 0, 0, -2, 0, 0}, 0},
        {{KU_MESSAGE_MAGIC, KU_MESSAGE_CAUSE, sizeof(struct kumi_error), 0, 0, 1, 0, 0}, 1},
        {{KU_MESSAGE_MAGIC, KU_MESSAGE_CAUSE, sizeof(struct kumi_error) - 1, 0, 0, 1, 0, 0}, 0},
        {{KU_MESSAGE_MAGIC, KU_MESSAGE_ROWS, 128, 0, 0, -1, 0, 0}, 0}, /* a row without a name */
        {{KU_MESSAGE_MAGIC, KU_MESSAGE_ROWS, 0, 0, 0, -1, 0, 0}, 0},
        {{KU_MESSAGE_MAGIC, KU_MESSAGE_ROWS, 32 * 128, 0, 0, -1, 0, 0}, 0},
        {{KU_MESSAGE_MAGIC, KU_MESSAGE_ROWS, 0xffffff80u, 0, 0, -1, 0, 0}, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint8_t bytes[KU_MESSAGE_MAX] = {0};
        const struct kumi_error e = {.status = KUMI_EPEER, .text = "rank died"};
        struct ku_message got;
        const uint8_t *payload;
        const size_t all = sizeof got + (rows[i].is_good ? rows[i].m.bytes : 0);
        memcpy(bytes, &rows[i].m, sizeof got);
        memcpy(bytes + sizeof got, &e, sizeof e);
        for (size_t n = 0; n < all; n += 31)
            assert_true(ku_message_parse(bytes, n, &got, &payload) <= 0);
        int n = ku_message_parse(bytes, sizeof bytes, &got, &payload);
        assert_int_equal(n, rows[i].is_good ? (int)all : -1);
    }
}

static void test_meetings(void **state)
{
    static const struct {
        const char *text, *name;
        int port, n_ports;
    } rows[] = {
        {"a:29400", "a", 29400, 1},
        {"10.0.0.1:1+16", "10.0.0.1", 1, 16},
        {"[fd00::1]:65535", "fd00::1", 65535, 1},
        {"node-3.cluster:8000+2", "node-3.cluster", 8000, 2},
        {"a", NULL, 0, 0},
        {"a:", NULL, 0, 0},
        {":80", NULL, 0, 0},
        {"a:0", NULL, 0, 0},
        {"a:65536", NULL, 0, 0},
        {"a:99999999999", NULL, 0, 0},
        {"a:65535+2", NULL, 0, 0},
        {"a:80+65", NULL, 0, 0},
        {"a:80x", NULL, 0, 0},
        {"a:-1", NULL, 0, 0},
        {"fd00::1:80", NULL, 0, 0},
        {"[fd00::1]80", NULL, 0, 0},
        {"[fd00::1", NULL, 0, 0},
        {"", NULL, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ku_meeting m;
        int status = ku_meeting_parse("KUMI_RENDEZVOUS", rows[i].text, &m);
        if ((status == 0) != (rows[i].name != NULL))
            fail_msg("%s: %d", rows[i].text, status);
        if (status < 0) {
            assert_int_equal(status, KUMI_EINVAL);
            assert_non_null(strstr(ku_err_get()->text, "KUMI_RENDEZVOUS: "));
            continue;
        }
        assert_string_equal(m.name, rows[i].name);
        assert_int_equal(m.port, rows[i].port);
        assert_int_equal(m.n_ports, rows[i].n_ports);
    }
}

static void test_port(void **state)
{
    static const char *const bad[] = {"0", "65536", "x", "80x", "-1", "999999"};
    int port = -1;
    (void)state;
    assert_int_equal(ku_control_port(NULL, &port), 0);
    assert_int_equal(port, 0);
    assert_int_equal(ku_control_port("40000", &port), 0);
    assert_int_equal(port, 40000);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(ku_control_port(bad[i], &port), KUMI_EINVAL);
    assert_int_equal(port, 40000);
}

static void test_addresses(void **state)
{
    static const struct {
        const char *text, *printed;
        int is_loopback;
    } rows[] = {{"127.0.0.1", "127.0.0.1:80", 1},
                {"::1", "[::1]:80", 1},
                {"10.77.0.1", "10.77.0.1:80", 0},
                {"fd00::1", "[fd00::1]:80", 0}};
    char text[KU_ADDRESS_TEXT];
    const char *why;
    struct ku_os_address a, route;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(ku_os_resolve(rows[i].text, &a, 1, &why), 1);
        a.port = 80;
        assert_string_equal(ku_address_print(&a, text), rows[i].printed);
        assert_int_equal(ku_address_is_loopback(&a), rows[i].is_loopback);
    }
    assert_int_equal(ku_os_resolve("127.0.0.1", &a, 1, &why), 1);
    assert_int_equal(ku_address_choose("h", NULL, &a, &route), 0);
    assert_string_equal(ku_address_print(&route, text), "127.0.0.1");
    assert_int_equal(ku_address_choose("h", "lo", &a, &route), 0);
    assert_string_equal(ku_address_print(&route, text), "127.0.0.1");
    assert_int_equal(ku_address_choose("h", "127.", &a, &route), 0);
    assert_int_equal(ku_address_choose("h", "eth77", &a, &route), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "KUMI_INTERFACE: eth77: host h has lo 127.0.0.1"));
}

static struct ku_join_row row_of(const char *name, int first, int n)
{
    struct ku_join_row j = {
        .row = {.first_rank = first, .n_ranks = n, .port = 1}, .n_ranks = 8, .is_pretended = 1};
    snprintf(j.row.name, sizeof j.row.name, "%s", name);
    j.row.address[10] = j.row.address[11] = 0xff;
    j.row.address[12] = 127;
    return j;
}

static void test_rows(void **state)
{
    static const struct {
        int first[3], n[3], n_rows, is_late, status;
        const char *text;
    } rows[] = {
        {{0, 4}, {4, 4}, 2, 0, 0, ""},
        {{0, 4}, {4, 4}, 2, 1, 0, ""},
        {{0, 4},
         {4, 2},
         2,
         1,
         KUMI_ETIMEDOUT,
         "join: ranks 6 to 7 did not come within 60 s (2 hosts"},
        {{0, 5}, {4, 3}, 2, 1, KUMI_ETIMEDOUT, "join: rank 4 did not come"},
        {{0},
         {4},
         1,
         1,
         KUMI_ETIMEDOUT,
         "join: ranks 4 to 7 did not come within 60 s (1 host did: h0)"},
        {{0, 3}, {4, 4}, 2, 1, KUMI_EINVAL, "join: hosts h0 and h1 both have rank 3"},
        {{0, 0, 4}, {4, 4, 4}, 3, 1, KUMI_EINVAL, "both have ranks 0 to 3"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ku_join_row j[3];
        for (int k = 0; k < rows[i].n_rows; k++) {
            char name[8];
            snprintf(name, sizeof name, "h%d", k);
            j[k] = row_of(name, rows[i].first[k], rows[i].n[k]);
        }
        int status = ku_rows_check(j, rows[i].n_rows, 8, rows[i].is_late, INT64_C(60000000000));
        if (status != rows[i].status || (status && !strstr(ku_err_get()->text, rows[i].text)))
            fail_msg("row %zu: %d, %s", i, status, ku_err_get()->text);
    }
    struct ku_join_row j[2] = {row_of("a", 0, 4), row_of("b", 4, 4)};
    j[0].is_pretended = 0;
    assert_int_equal(ku_rows_check(j, 2, 8, 0, 1), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "host a gives the loopback address 127.0.0.0"));
    j[0] = row_of("b", 0, 4); /* one machine under one name */
    j[0].is_pretended = j[1].is_pretended = 0;
    assert_int_equal(ku_rows_check(j, 2, 8, 0, 1), 0);
    j[1].n_ranks = 16;
    assert_int_equal(ku_row_check(&j[1], &j[0]), KUMI_EINVAL);
    assert_non_null(
        strstr(ku_err_get()->text, "host b was told of 8 ranks in the job, host b of 16"));
    j[1] = row_of("c", 6, 4);
    assert_int_equal(ku_row_check(&j[1], &j[0]), KUMI_EINVAL);
    j[1] = row_of("c", 4, 4);
    j[1].segment_abi = 1;
    assert_int_equal(ku_row_check(&j[1], &j[0]), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "(interface 0), host c kumi  (1); use one version"));
    snprintf(j[0].version, sizeof j[0].version, "0.1.0");
    snprintf(j[1].version, sizeof j[1].version, "0.2.0");
    j[1].segment_abi = 0;
    assert_int_equal(ku_row_check(&j[1], &j[0]), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "host b runs kumi 0.1.0 (interface 0), host c kumi "
                                               "0.2.0 (0); use one version on all hosts"));
}

/* Hosts on one kernel share CPUs where their masks overlap; an unknown kernel is no common one. */
static void test_sharing(void **state)
{
    static const struct {
        uint64_t kernel[4], cpus[4];
        int host, n_ranks;
        uint64_t all;
    } rows[] = {
        {{1, 2, 3, 4}, {3, 3, 3, 3}, 1, 2, 3}, {{7, 7, 7, 7}, {3, 3, 3, 3}, 1, 10, 3},
        {{7, 7, 8, 8}, {3, 3, 3, 3}, 1, 3, 3}, {{7, 7, 8, 8}, {3, 3, 3, 12}, 3, 4, 12},
        {{7, 7, 7, 7}, {1, 2, 4, 8}, 2, 3, 4}, {{7, 7, 7, 7}, {1, 3, 6, 12}, 1, 6, 7},
        {{0, 0, 0, 0}, {3, 3, 3, 3}, 0, 1, 3}, {{7, 0, 7, 0}, {15, 15, 15, 15}, 0, 4, 15},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t cpus[4][KU_OS_CPU_WORDS] = {{0}}, all[KU_OS_CPU_WORDS];
        struct ku_host_row row[4];
        memset(row, 0, sizeof row);
        for (int h = 0; h < 4; h++) {
            row[h].n_ranks = h + 1;
            row[h].kernel = rows[i].kernel[h];
            cpus[h][1] = rows[i].cpus[h];
        }
        int n = ku_hosts_sharing(row, 4, rows[i].host, cpus[0], all);
        if (n != rows[i].n_ranks || all[1] != rows[i].all || all[0])
            fail_msg("row %zu: %d ranks on %llx", i, n, (unsigned long long)all[1]);
    }
    assert_true(ku_os_kernel() != 0 && ku_os_kernel() == ku_os_kernel());
}

/* The engine between hosts is that of all of them, or none; the first without it is named. */
static void test_engines(void **state)
{
    static const struct {
        const char *engine[3];
        int n_hosts;
        const char *common;
        int host;
    } rows[] = {
        {{"openmpi", "openmpi", "openmpi"}, 3, "openmpi", -1},
        {{"mpich", "mpich"}, 2, "mpich", -1},
        {{"openmpi", "", ""}, 3, "", 1},
        {{"openmpi", "openmpi", ""}, 3, "", 2},
        {{"", "openmpi", "openmpi"}, 3, "", 0},
        {{"", "", ""}, 3, "", 0},
        {{"openmpi", "mpich", ""}, 3, "", 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ku_host_row row[3];
        int host = 99;
        memset(row, 0, sizeof row);
        for (int h = 0; h < rows[i].n_hosts; h++)
            snprintf(row[h].engine, sizeof row[h].engine, "%s", rows[i].engine[h]);
        const char *common = ku_hosts_engine(row, rows[i].n_hosts, &host);
        if (strcmp(common, rows[i].common) != 0 || host != rows[i].host)
            fail_msg("row %zu: \"%s\", host %d", i, common, host);
    }
}

/* A row whose texts do not end is no message. */
static void test_row_message(void **state)
{
    struct ku_host_row rows[3];
    (void)state;
    for (int i = 0; i < 3; i++)
        rows[i] = (struct ku_host_row){.name = "a", .n_ranks = 1, .engine = "openmpi"};
    memset(rows[1].name, 'x', sizeof rows[1].name);
    memset(rows[2].engine, 'x', sizeof rows[2].engine);
    for (int i = 0; i < 3; i++) {
        const struct ku_message m = {
            .magic = KU_MESSAGE_MAGIC, .kind = KU_MESSAGE_ROWS, .bytes = sizeof *rows, .rank = -1};
        struct ku_message got;
        uint8_t bytes[sizeof m + sizeof *rows];
        const uint8_t *payload;
        memcpy(bytes, &m, sizeof m);
        memcpy(bytes + sizeof m, &rows[i], sizeof *rows);
        assert_int_equal(ku_message_parse(bytes, sizeof bytes, &got, &payload),
                         i ? -1 : (int)sizeof bytes);
    }
}

static void test_secret(void **state)
{
    static struct ku_segment seg;
    char folder[] = "/tmp/kumi-secret-XXXXXX", path[64];
    uint8_t one[KU_SECRET_BYTES], two[KU_SECRET_BYTES];
    struct stat st;
    (void)state;
    assert_non_null(mkdtemp(folder));
    setenv("XDG_CONFIG_HOME", folder, 1);
    unsetenv("KUMI_SECRET");
    assert_int_equal(ku_secret_find(&seg, one), 0);
    assert_int_equal(ku_secret_find(&seg, two), 0);
    assert_memory_equal(one, two, sizeof one);
    snprintf(path, sizeof path, "%s/kumi/secret", folder);
    assert_int_equal(ku_os_stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(ku_secret_find(&seg, two), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "mode 640"));
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(truncate(path, 10), 0);
    assert_int_equal(ku_secret_find(&seg, two), KUMI_EINVAL);
    assert_int_equal(unlink(path) + mkfifo(path, 0600), 0);
    assert_int_equal(ku_secret_find(&seg, two), KUMI_EINVAL); /* without waiting for a writer */
    setenv("KUMI_SECRET", "0102", 1);
    assert_int_equal(ku_secret_find(&seg, two), KUMI_EINVAL);
    assert_null(strstr(ku_err_get()->text, "0102"));
    char hex[2 * KU_SECRET_BYTES + 1];
    memset(hex, 'a', sizeof hex - 1);
    hex[sizeof hex - 1] = '\0';
    setenv("KUMI_SECRET", hex, 1);
    assert_int_equal(ku_secret_find(&seg, two), 0);
    assert_int_equal(two[0], 0xaa);
    ku_segment_set_secret(&seg, one);
    assert_int_equal(ku_secret_find(&seg, two), 0);
    assert_memory_equal(one, two, sizeof one);
    unsetenv("KUMI_SECRET");
    ku_os_rmtree(folder);
}

/* A connection that a rank cannot take, because it may open no more files, is an error. */
static void test_lost_descriptor(void **state)
{
    const struct ku_dial_head sent = {.from = 3, .to = 5, .slot = 7, .stream = 99};
    const uint64_t job_id = 0x7e57d00b00000000u + (uint64_t)getpid();
    struct ku_doorbell *bridge, *rank;
    struct ku_dial_head head;
    struct rlimit files, few;
    int fd = -1;
    (void)state;
    assert_int_equal(ku_doorbell_open(job_id, 0, KU_DOORBELL_BRIDGE, &bridge), 0);
    assert_int_equal(ku_doorbell_open(job_id, 0, 0, &rank), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(ku_doorbell_pass(bridge, 0, &sent, 0), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    const int next = dup(0);
    assert_true(next >= 0);
    close(next);
    few = files;
    few.rlim_cur = (rlim_t)next;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(ku_doorbell_take(rank, &head, &fd), KUMI_ENOMEM);
    assert_string_equal(ku_err_get()->text, "connection: of rank 3 to rank 5: Too many open files; "
                                            "raise the limit (ulimit -n)");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    assert_int_equal(ku_doorbell_take(rank, &head, &fd), 1);
    assert_true(fd >= 0);
    assert_memory_equal(&head, &sent, sizeof head);
    ku_os_close(fd);
    assert_int_equal(ku_doorbell_take(rank, &head, &fd), 0);
    ku_doorbell_close(rank);
    ku_doorbell_close(bridge);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hello_good),     cmocka_unit_test(test_hello_wrong_secret),
        cmocka_unit_test(test_hello_replay),   cmocka_unit_test(test_hello_bytes),
        cmocka_unit_test(test_hello_stranger), cmocka_unit_test(test_hmac),
        cmocka_unit_test(test_messages),       cmocka_unit_test(test_meetings),
        cmocka_unit_test(test_addresses),      cmocka_unit_test(test_port),
        cmocka_unit_test(test_rows),           cmocka_unit_test(test_sharing),
        cmocka_unit_test(test_engines),        cmocka_unit_test(test_row_message),
        cmocka_unit_test(test_secret),         cmocka_unit_test(test_lost_descriptor)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
