/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every public function with NULL, zero and values out of range, as arguments.def lists them: it
 * returns, with the status that the table names, and with a record where that is an error. Each
 * call runs in a process of its own, so that a crash is one row's failure. A function of the
 * headers without a row fails, too.
 */
#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define KUMI_NO_SOURCE
#include "kumi/kumi.h"

enum { N = 4, VOCAB = 8, OK = KUMI_OK, EINVAL = KUMI_EINVAL, DEADLINE_S = 60 };
#define FAR  ((int64_t)1 << 60)
#define NAN_ ((double)NAN)

/* What the expressions use. */
static const char config[] = KUMI_SOURCE_DIR "/configs/shakespeare-char.json";
static const struct kumi_settings settings = {.config = config};
static const struct kumi_shape_of_batch shape = {.n = 2, .t = 4};
static const int64_t four[] = {N}, many[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
static const char *const no_text = NULL, *const a_path = "/none/program.txt";
static const char *const none = NULL, *const file = KUMI_SOURCE_DIR "/data/tinyshakespeare.txt";
static const int one_count = 1, zero_count = 0;
static const volatile double zero = 0;
static char long_text[400], text[72], *out_text, out[64], true_program[] = "/bin/true";
static char *const argv[] = {true_program, NULL};
static struct kumi_comm *world, *other;
static struct kumi_work *work;
static struct kumi_mesh *mesh;
static struct kumi_data *data;
static struct kumi_graph *g;
static struct kumi_trainer *made_trainer;
static struct kumi_train_result trained;
static struct kumi_eval_result evaluated;
static struct kumi_bleu_result bleu;
static kumi_value x, ids, table, logits, heads, keys, qkv, image;
static void *memory;
static float buffer[8], reals[24];
static int32_t numbers[64];
static double real;
static int number;
static size_t size;
static const struct kumi_batch batch[] = {{"x", reals}, {"ids", numbers}};

static int nothing(void *arg)
{
    (void)arg;
    return 0;
}
static void emit(void *ctx, const char *piece, size_t bytes)
{
    (void)ctx, (void)piece, (void)bytes;
}
static void emit_text(void *ctx, int64_t sentence, int64_t rank, const char *piece)
{
    (void)ctx, (void)sentence, (void)rank, (void)piece;
}
static void line(void *ctx, const char *one)
{
    (void)ctx, (void)one;
}

/* The status of what made a value; the graph's own record comes first. */
static int made(kumi_value value)
{
    const int status = kumi_last_error()->status;
    return value ? OK : status;
}
static int last(void)
{
    return kumi_last_error()->status;
}

static struct kumi_data *opened(void)
{
    const struct kumi_data_options o = {.train = &file,
                                        .n_train = 1,
                                        .seq_len = 4,
                                        .global_batch = 2,
                                        .vocab_size = 256,
                                        .val_fraction = 0.1};
    return kumi_data_open(&o, &data) < 0 ? NULL : data;
}

/* A classifier of x. */
static struct kumi_graph *small(void)
{
    struct kumi_graph *graph = NULL;
    const int64_t count[] = {N, 3}, out_count = VOCAB;
    if (kumi_graph_create(&graph) < 0)
        return NULL;
    kumi_value from = kumi_input(graph, "x", KUMI_F32, "nc", count);
    kumi_value to =
        kumi_linear(graph, from, "fc", &(struct kumi_linear){.out = "v", .out_count = &out_count});
    kumi_loss_cross_entropy(graph, to, kumi_input(graph, "ids", KUMI_I32, "n", count), -100);
    return graph;
}
static struct kumi_trainer *t(void)
{
    return kumi_trainer_create(world, small(), NULL, &made_trainer) < 0 ? NULL : made_trainer;
}

static struct kumi_comm *split(void)
{
    return kumi_comm_split(world, 0, 0, &other) < 0 ? NULL : other;
}

static void set_up(void)
{
    memset(long_text, 'a', sizeof long_text - 1);
    snprintf(out, sizeof out, "/tmp/kumi-arguments-%d", (int)getpid());
    if (chdir(KUMI_SOURCE_DIR) < 0 || kumi_comm_join(NULL, &world) < 0 || kumi_graph_create(&g) < 0)
        _exit(90);
    x = kumi_input(g, "x", KUMI_F32, "nc", (int64_t[]){N, 3});
    ids = kumi_input(g, "ids", KUMI_I32, "n", four);
    table = kumi_param(g, "table", "vc", (int64_t[]){VOCAB, 3}, &(struct kumi_init){.std = 1});
    logits = kumi_input(g, "logits", KUMI_F32, "nv", (int64_t[]){N, VOCAB});
    heads = kumi_input(g, "heads", KUMI_F32, "nthd", (int64_t[]){N, 2, 1, 4});
    keys = kumi_input(g, "keys", KUMI_F32, "nshd", (int64_t[]){N, 2, 1, 4});
    qkv = kumi_input(g, "qkv", KUMI_F32, "nt3hd", (int64_t[]){N, 2, 3, 1, 4});
    image = kumi_input(g, "image", KUMI_F32, "nyxc", (int64_t[]){N, 5, 5, 2});
    if (kumi_graph_error(g) < 0)
        _exit(91);
}

#define NAMED_(prefix, number) prefix##number
#define NAMED(prefix, number)  NAMED_(prefix, number)
#define ROW(function, status, expression)                                                          \
    static int NAMED(call_, __LINE__)(void)                                                        \
    {                                                                                              \
        return (expression);                                                                       \
    }
#include "arguments.def"
#undef ROW
static const struct row {
    const char *function, *expression;
    int want, (*call)(void);
} rows[] = {
#define ROW(function, status, expression) {#function, #expression, status, NAMED(call_, __LINE__)},
#include "arguments.def"
#undef ROW
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

/* What the children find, for all to see. */
struct found {
    int is_done, status;
    struct kumi_error error;
};

static void run_row(const struct row *row, struct found *found)
{
    set_up();
    alarm(DEADLINE_S);
    found->status = row->call();
    found->error = *kumi_last_error();
    found->is_done = 1;
    _exit(0);
}

static int fails(const struct row *row, const struct found *f, int wait_status)
{
    const char *why = NULL;
    if (!f->is_done)
        why = WIFSIGNALED(wait_status) ? "ended by a signal" : "did not return";
    else if (f->status != row->want)
        why = "another status";
    else if (f->status < 0 && (f->error.status != f->status || f->error.text[0] == '\0' ||
                               strstr(f->error.text, "(null)")))
        why = "no proper record";
    if (why)
        print_error("%s: %s: status %d, want %d, wait status %d: %s\n", row->expression, why,
                    f->status, row->want, wait_status, f->error.text);
    return why != NULL;
}

/* What kumi_train left of a row's run directory. */
static void clean_up(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/kumi-arguments-%d/lock", (int)pid);
    unlink(path);
    *strrchr(path, '/') = '\0';
    rmdir(path);
}

static void test_rows(void **state)
{
    enum { AT_ONCE = 2 };
    struct found *found = mmap(NULL, N_ROWS * sizeof *found, PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid[N_ROWS];
    int n_failed = 0, wait_status;
    (void)state;
    assert_true(found != MAP_FAILED);
    for (int i = 0; i < N_ROWS + AT_ONCE; i++) {
        if (i >= AT_ONCE) {
            assert_int_equal(waitpid(pid[i - AT_ONCE], &wait_status, 0), pid[i - AT_ONCE]);
            clean_up(pid[i - AT_ONCE]);
            n_failed += fails(&rows[i - AT_ONCE], &found[i - AT_ONCE], wait_status);
        }
        if (i >= N_ROWS)
            continue;
        pid[i] = fork();
        assert_true(pid[i] >= 0);
        if (pid[i] == 0)
            run_row(&rows[i], &found[i]);
    }
    munmap(found, N_ROWS * sizeof *found);
    assert_int_equal(n_failed, 0);
}

static int has_row(const char *name, size_t bytes)
{
    for (int i = 0; i < N_ROWS; i++)
        if (strlen(rows[i].function) == bytes && memcmp(rows[i].function, name, bytes) == 0)
            return 1;
    return 0;
}

/* A name in a header of which "(" follows "KUMI_API", before any ";". */
static void test_every_function_has_a_row(void **state)
{
    static const char *const header[] = {"comm", "data",  "dtype", "graph",  "launch",
                                         "mesh", "model", "run",   "status", "trainer"};
    static char code[1 << 16];
    int n = 0, n_missing = 0;
    (void)state;
    for (size_t h = 0; h < sizeof header / sizeof header[0]; h++) {
        char path[512];
        snprintf(path, sizeof path, "%s/include/kumi/%s.h", KUMI_SOURCE_DIR, header[h]);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        code[fread(code, 1, sizeof code - 1, f)] = '\0';
        fclose(f);
        for (const char *at = code; (at = strstr(at, "\nKUMI_API ")) != NULL; at++) {
            const char *end = strchr(at, '('), *begin = end;
            assert_non_null(end);
            while (isalnum((unsigned char)begin[-1]) || begin[-1] == '_')
                begin--;
            n++;
            if (!has_row(begin, (size_t)(end - begin))) {
                print_error("%s.h: %.*s: no row\n", header[h], (int)(end - begin), begin);
                n_missing++;
            }
        }
    }
    assert_true(n > 100);
    assert_int_equal(n_missing, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_function_has_a_row),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
