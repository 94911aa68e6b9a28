/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Outputs with rows for every micro-batch: those of each are a value of their own, which later
 * instructions of the micro-batch read, and which the trainer reads back. And metrics of a
 * parameter, which every micro-batch and rank computes whole.
 */
#include "edits.h"

enum { N_LAYERS = 4, WIDTH = 8, N_CLASSES = 5 };

/* Output "first" is read by later layers, "double" by none. metrics: of the head's weight. */
static struct ku_graph *layers(int64_t n, bool metrics)
{
    struct kumi_graph *b;
    struct ku_graph *g;
    const int64_t width = WIDTH, classes = N_CLASSES;
    char up[24], down[24];
    assert_int_equal(kumi_graph_create(&b), 0);
    kumi_value x = kumi_input(b, "x", KUMI_F32, "nc", (int64_t[]){n, WIDTH}),
               y = kumi_input(b, "targets", KUMI_I32, "n", &n);
    for (int i = 0; i < N_LAYERS; i++) {
        snprintf(up, sizeof up, "h.%d.up", i);
        snprintf(down, sizeof down, "h.%d.down", i);
        x = kumi_linear(b, x, up, &(struct kumi_linear){.out = "f", .out_count = &width});
        x = kumi_activate(b, x, KUMI_RELU);
        x = kumi_linear(b, x, down, &(struct kumi_linear){.out = "c", .out_count = &width});
        if (i == 0)
            kumi_graph_output(b, "first", x);
    }
    const kumi_value head =
        kumi_param(b, "head", "cv", (int64_t[]){width, classes}, &(struct kumi_init){.std = 0.1});
    x = kumi_linear(b, x, "head", &(struct kumi_linear){.weight = head});
    if (metrics) {
        kumi_graph_metric(b, "sum", head, KUMI_METRIC_SUM);
        kumi_graph_metric(b, "max", head, KUMI_METRIC_MAX);
    }
    kumi_graph_output(b, "double", kumi_scale(b, x, 2));
    assert_int_equal(kumi_loss_cross_entropy(b, x, y, -100), 0);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    return g;
}

static void make_rows(const struct layout *l, enum ku_check_kind kind, struct job *j)
{
    const struct ku_target target = {.query = ku_device_find("cpu")->query,
                                     .ranks_per_host = l->ranks};
    struct ku_graph *graph = layers(4 * l->ranks * l->vs * l->mb, l->pp < 2);
    *j = (struct job){.o = options(l)};
    assert_int_equal(pipeline_of(l, graph, &j->o, &j->schedule, j->layers), 0);
    assert_int_equal(compile(kind, &target, graph, j), 0);
    ku_graph_destroy(graph);
}

/* The rows of a micro-batch are read after those of later ones are written, too. */
static void accepted(void **state)
{
    static const struct layout row[] = {
        {.ranks = 1, .replicate = 1, .mb = 1, .vs = 1, .is_private = 1, .optimizer = KU_OP_adamw},
        {.ranks = 2, .replicate = 1, .mb = 1, .vs = 1, .is_private = 1, .optimizer = KU_OP_adamw},
        {.ranks = 2, .replicate = 1, .mb = 2, .vs = 2, .is_private = 1, .optimizer = KU_OP_adamw},
        {.ranks = 1,
         .replicate = 1,
         .mb = 4,
         .vs = 1,
         .pp = 2,
         .schedule = "1f1b",
         .is_private = 1,
         .optimizer = KU_OP_adamw},
        {.ranks = 1,
         .replicate = 1,
         .mb = 4,
         .vs = 1,
         .pp = 2,
         .schedule = "zb-h1",
         .is_private = 1,
         .optimizer = KU_OP_adamw},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        for (int kind = KU_CHECK_TRAIN; kind <= KU_CHECK_EVAL; kind++) {
            struct job j;
            make_rows(&row[i], (enum ku_check_kind)kind, &j);
            if (check(&j) < 0)
                fail_msg("row %zu, kind %d: %s", i, kind, ku_err_get()->text);
            drop(&j);
        }
}

/* The instruction of a micro-batch that writes an output. */
static uint32_t writer_of(const struct ku_program *p, const char *output, int micro)
{
    ku_id b = 0;
    for (uint32_t i = 0; i < p->n_outputs; i++)
        if (strcmp(p->name_of[p->output[i].name], output) == 0)
            b = p->output[i].buffer;
    for (uint32_t at = 0; at < p->n_instrs; at++)
        if (p->instr[at].micro == micro && b && writes(p, at, b))
            return at;
    fail_msg("no instruction writes %s of micro-batch %d", output, micro);
    return 0;
}

/* The rows of micro-batch 1 of an output go to those of 0; `swaps`: and the reverse. */
static void move_rows(struct ku_program *p, const char *output, bool swaps)
{
    const uint32_t first = writer_of(p, output, 0), second = writer_of(p, output, 1);
    p->instr[first].micro = swaps;
    p->instr[second].micro = 0;
}
static void first_to_other(struct ku_program *p)
{
    move_rows(p, "first", false);
}
static void double_to_other(struct ku_program *p)
{
    move_rows(p, "double", false);
}
static void doubles_swapped(struct ku_program *p)
{
    move_rows(p, "double", true);
}
/* A result of the same bytes is written over the batch. */
static void over_input(struct ku_program *p)
{
    const uint32_t at = writer_of(p, "first", 0);
    operand(p, at, p->instr[at].n_in)->buffer = p->input[0].buffer;
}

static void refused(void **state)
{
    static const struct {
        void (*edit)(struct ku_program *p);
        const char *rule;
    } row[] = {
        {first_to_other, "reads a buffer before it is written"},
        {double_to_other, "port double is not the value over all micro-batches"},
        {doubles_swapped, "port double is not the value over all micro-batches"},
        {over_input, "overwrites an input of the program"},
    };
    const struct layout l = {
        .ranks = 1, .replicate = 1, .mb = 2, .vs = 1, .is_private = 1, .optimizer = KU_OP_adamw};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        for (int kind = KU_CHECK_TRAIN; kind <= KU_CHECK_EVAL; kind++) {
            struct job j;
            make_rows(&l, (enum ku_check_kind)kind, &j);
            row[i].edit(j.p);
            const int status = check(&j);
            if (status != KUMI_EPLAN || strstr(ku_err_get()->text, row[i].rule) == NULL)
                fail_msg("row %zu, kind %d: wanted %s, got %s", i, kind, row[i].rule,
                         status ? ku_err_get()->text : "accepted");
            drop(&j);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(accepted), cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
