/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ids, targets and indices out of range: the public trainer refuses them with port, position and
 * value on every rank, whichever rank reads them, as processes and as threads, in training and in
 * evaluation, on each device; and a trainer of one rank goes on as if the call had not been.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "comm/api/api.h"
#include "comm/world.h"
#include "kumi/launch.h"
#include "kumi/model.h"
#include "kumi/trainer.h"

enum { N = 8, T = 6, VOCAB = 50, RANKS = 4 };

/* One number put into a good batch. want NULL: it is admitted. */
static const struct bad {
    int is_bert, row, column;
    const char *port;
    int32_t value;
    const char *want;
} bad[] = {
    {0, 7, 5, "tokens", VOCAB, "port tokens: n=7 t=5: 50; rows of wte.weight are 0 to 49"},
    {0, 0, 0, "tokens", -1, "port tokens: n=0 t=0: -1; rows of wte.weight are 0 to 49"},
    {0, 3, 1, "tokens", INT32_MIN, "port tokens: n=3 t=1: -2147483648; rows of"},
    {0, 5, 2, "targets", VOCAB,
     "port targets: n=5 t=2: 50; classes are 0 to 49; negative targets do not count"},
    {0, 1, 0, "targets", INT32_MAX, "port targets: n=1 t=0: 2147483647; classes are 0 to 49"},
    {0, 1, 0, "targets", -100, NULL},
    {0, 1, 0, "targets", -7, NULL},
    {0, 6, 3, "tokens", VOCAB - 1, NULL},
    {1, 2, 4, "token_type_ids", 2, "port token_type_ids: n=2 t=4: 2; rows of bert.embeddings."},
    {1, 4, 0, "tokens", 127, "port tokens: n=4 t=0: 127; rows of bert.embeddings."},
};
enum { N_BAD = sizeof bad / sizeof bad[0] };

static struct plan {
    const struct bad *bad;
    const char *device, *precision;
    int is_eval, n;
} plan;

/* What each rank met, for all to see. */
static struct met {
    int status;
    char text[440], digest[2][72];
} * met;

static int create(struct kumi_comm *world, struct kumi_trainer **trainer)
{
    const struct kumi_shape_of_batch batch = {.n = N, .t = T};
    const struct kumi_trainer_options o = {
        .device = plan.device, .precision = plan.precision, .virtual_shards = RANKS, .seed = 3};
    struct kumi_graph *graph = NULL;
    struct kumi_gpt2 gpt2;
    struct kumi_bert bert;
    kumi_gpt2_defaults(&gpt2);
    gpt2.n_layer = 1, gpt2.n_head = 2, gpt2.n_embd = 8, gpt2.n_positions = T,
    gpt2.vocab_size = VOCAB;
    kumi_bert_defaults(&bert);
    bert.num_hidden_layers = 1, bert.num_attention_heads = 2, bert.hidden_size = 8,
    bert.intermediate_size = 8, bert.max_position_embeddings = T, bert.vocab_size = VOCAB;
    int status = kumi_graph_create(&graph);
    if (status == 0)
        status = plan.bad->is_bert ? kumi_bert_build(graph, &bert, &batch)
                                   : kumi_gpt2_build(graph, &gpt2, &batch);
    if (status == 0)
        status = kumi_trainer_create(world, graph, &o, trainer);
    kumi_graph_destroy(graph);
    return status;
}

static int one_call(struct kumi_trainer *trainer, int is_bad, int is_eval)
{
    int32_t tokens[N * T], targets[N * T], types[N * T], lengths[N];
    struct kumi_batch batch[] = {
        {"tokens", tokens}, {"targets", targets}, {"token_type_ids", types}, {"lengths", lengths}};
    int32_t *const port[] = {tokens, targets, types};
    double loss;
    for (int i = 0; i < N * T; i++) {
        tokens[i] = i * 7 % VOCAB;
        targets[i] = i * 11 % VOCAB;
        types[i] = i % 2;
        lengths[i / T] = T;
    }
    for (int p = 0; p < 3 && is_bad; p++)
        if (strcmp(batch[p].port, plan.bad->port) == 0)
            port[p][plan.bad->row * T + plan.bad->column] = plan.bad->value;
    return is_eval ? kumi_trainer_evaluate(trainer, batch, 4, &loss)
                   : kumi_trainer_step(trainer, batch, 4, NULL);
}

/* A good step, the bad call, and with one rank another good step. */
static void run(struct kumi_comm *world, struct met *m)
{
    struct kumi_trainer *trainer = NULL;
    m->status = create(world, &trainer);
    if (m->status == 0)
        m->status = one_call(trainer, 0, 0);
    if (m->status == 0 && plan.n == 1 && plan.bad->want)
        kumi_trainer_digest(trainer, m->digest[0]);
    if (m->status == 0)
        m->status = one_call(trainer, 1, plan.is_eval);
    snprintf(m->text, sizeof m->text, "%s", m->status < 0 ? kumi_last_error()->text : "");
    if (plan.n == 1 && plan.bad->want) {
        kumi_trainer_digest(trainer, m->digest[1]);
        if (one_call(trainer, 0, 0) < 0)
            m->status = 1;
    }
    kumi_trainer_destroy(trainer);
}

static int as_process(void *arg)
{
    struct kumi_comm *world;
    (void)arg;
    if (kumi_comm_join(NULL, &world) < 0)
        return 1;
    run(world, &met[kumi_comm_rank(world)]);
    kumi_comm_leave(world);
    return 0;
}

static int as_thread(struct ku_job *job, void *arg)
{
    struct kumi_comm *world;
    (void)arg;
    if (ku_comm_api_wrap(job->world, &world) < 0)
        return 1;
    run(world, &met[job->rank]);
    free(world);
    return KUMI_OK;
}

static void check(int as_threads)
{
    memset(met, 0, RANKS * sizeof *met);
    if (as_threads)
        KU_IGNORE(ku_comm_threads(plan.n, NULL, as_thread, NULL), "each rank notes what it met");
    else
        kumi_launch(as_process, NULL, plan.n);
    const int want = plan.bad->want ? KUMI_EINVAL : KUMI_OK;
    for (int r = 0; r < plan.n; r++) {
        if (met[r].status != want || (want && strstr(met[r].text, plan.bad->want) == NULL))
            fail_msg("rank %d of %d %s, %s, %s, eval %d: %s %d: status %d: %s; want: %s", r, plan.n,
                     as_threads ? "threads" : "processes", plan.device, plan.precision,
                     plan.is_eval, plan.bad->port, (int)plan.bad->value, met[r].status, met[r].text,
                     plan.bad->want ? plan.bad->want : "no error");
        assert_string_equal(met[r].digest[0], met[r].digest[1]);
    }
}

static void test_numbers(void **state)
{
    (void)state;
    for (int i = 0; i < N_BAD; i++)
        for (int is_eval = 0; is_eval < 2; is_eval++) {
            plan = (struct plan){&bad[i], i % 2 ? "ref" : "cpu", "f32", is_eval, 1};
            check(0);
            plan.n = RANKS;
            check(is_eval ^ (i & 1));
        }
}

static void test_everywhere(void **state)
{
    static const char *const device[] = {"cpu", "ref"}, *const precision[] = {"f32", "bf16", "f16"};
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int p = 0; p < 3; p++)
            for (int n = 1; n <= 2; n++)
                for (int as_threads = 0; as_threads < 2; as_threads++) {
                    plan = (struct plan){&bad[0], device[d], precision[p], n - 1, n};
                    check(as_threads);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_everywhere),
    };
    met =
        mmap(NULL, RANKS * sizeof *met, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return met == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
