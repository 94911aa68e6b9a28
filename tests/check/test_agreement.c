/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a class has another program than the others, by one field of one instruction: no
 * rank runs it, all name the two ranks.
 */
#include "ir/program.h"

#include "trial.h"

/* The first computation of `op`. */
static struct ku_instr *find(struct ku_program *p, int op)
{
    for (uint32_t i = 0; i < p->n_instrs; i++)
        if (p->instr[i].kind == KU_COMPUTE && p->instr[i].op == op)
            return &p->instr[i];
    fail_msg("no such instruction");
    return NULL;
}

static void set_attr(struct ku_program *p, int op, size_t offset, double value)
{
    struct ku_instr *i = find(p, op);
    struct ku_attrs a = p->attr[i->attr];
    memcpy((char *)&a + offset, &value, sizeof value);
    i->attr = ku_program_attr(p, &a);
    assert_int_not_equal(i->attr, 0);
}
static void decay(struct ku_program *p)
{
    set_attr(p, KU_OP_adamw, offsetof(struct ku_attrs, weight_decay), 0.25);
}
static void drop_more(struct ku_program *p)
{
    set_attr(p, KU_OP_dropout, offsetof(struct ku_attrs, p), 0.375);
}
static void other_stream(struct ku_program *p)
{
    find(p, KU_OP_dropout)->stream++;
}
static void overwrite(struct ku_program *p)
{
    for (uint32_t i = 0; i < p->n_instrs; i++)
        if (p->instr[i].accumulate) {
            p->instr[i].accumulate = 0;
            return;
        }
    fail();
}
static void exchange_operands(struct ku_program *p)
{
    struct ku_operand *in = &p->operand[find(p, KU_OP_add)->operand];
    const struct ku_operand first = in[0];
    in[0] = in[1];
    in[1] = first;
}
static void other_place(struct ku_program *p)
{
    struct ku_operand *in = &p->operand[find(p, KU_OP_layer_norm)->operand];
    ku_id l = 1;
    while (l < p->n_layouts && ku_layout_is_equal(&p->layout[l], &p->layout[in->layout]))
        l++;
    assert_true(l < p->n_layouts);
    in->layout = l;
}
static void exchange_instrs(struct ku_program *p)
{
    for (uint32_t i = 1; i < p->n_instrs; i++)
        if (p->instr[i].op != p->instr[i - 1].op && p->instr[i].kind == KU_COMPUTE &&
            p->instr[i - 1].kind == KU_COMPUTE) {
            const struct ku_instr x = p->instr[i];
            p->instr[i] = p->instr[i - 1];
            p->instr[i - 1] = x;
            return;
        }
    fail();
}

static const struct {
    const char *name;
    void (*edit)(struct ku_program *);
} edits[] = {
    {"weight_decay", decay},         {"p", drop_more},
    {"stream", other_stream},        {"accumulate", overwrite},
    {"operands", exchange_operands}, {"placement", other_place},
    {"order", exchange_instrs},
};
enum { N_EDITS = sizeof edits / sizeof edits[0] };

struct subject {
    const struct layout *l;
    int edited; /* the rank with the other program */
    void (*edit)(struct ku_program *);
};

/* Every rank compiles; one edits what it loads. */
static int load_on_rank(struct ku_job *job, void *arg)
{
    const struct subject *x = arg;
    struct ku_graph *g = graph_of(x->l);
    struct ku_pp_schedule *schedule = NULL;
    struct ku_trainer *t = NULL;
    int layers[MAX_LAYERS], status;
    struct ku_trainer_opts o = {.compile = options(x->l),
                                .device = ku_device_find("cpu"),
                                .device_opts = {.n_threads = 1, .isa = ku_cpu_isa()},
                                .seed = 1337,
                                .target = {.path = "."},
                                .no_eval = 1};
    KU_TRY_OUT(pipeline_of(x->l, g, &o.compile, &schedule, layers));
    KU_TRY_OUT(ku_trainer_create(job, &g, 1, &o, &t));
    struct ku_exec **exec = &t->shape[0].exec[KU_PROG_TRAIN];
    struct ku_program *p = t->program[KU_PROG_TRAIN];
    if (job->rank == x->edited)
        x->edit(p);
    ku_exec_unload(*exec);
    *exec = NULL;
    status = ku_exec_load(t->memory, p, t->ops, t->device, &t->comms, exec);
out:
    ku_trainer_destroy(t);
    ku_pp_schedule_destroy(schedule);
    return status;
}

/* The last rank has the edit; `first` is the first rank of its class. */
static void refuse(const struct layout *l, int n, int first)
{
    char sides[2][32];
    snprintf(sides[0], sizeof sides[0], "rank %d", first);
    snprintf(sides[1], sizeof sides[1], "rank %d", n - 1);
    for (int k = 0; k < N_EDITS; k++) {
        struct subject x = {l, n - 1, edits[k].edit};
        const int status = ku_comm_threads(n, &(struct ku_job_opts){0}, load_on_rank, &x);
        const char *text = ku_err_get()->text;
        if (status != KUMI_EMISMATCH || !strstr(text, "program train") || !strstr(text, sides[0]) ||
            !strstr(text, sides[1])) {
            show(l);
            fail_msg("%s on one rank: status %d: %s", edits[k].name, status, text);
        }
    }
}

static const struct layout base = {.model = tied,
                                   .ranks = 2,
                                   .replicate = 1,
                                   .mb = 2,
                                   .vs = 1,
                                   .is_private = 1,
                                   .optimizer = KU_OP_adamw};
static void data_parallel(void **state)
{
    struct layout l = base;
    (void)state;
    refuse(&l, 2, 0);
    l.zero = 3;
    refuse(&l, 2, 0);
}
static void tensor_parallel(void **state)
{
    const struct layout l = over_tp(base, 2);
    (void)state;
    refuse(&l, 4, 0);
}
static void pipeline(void **state)
{
    struct layout l = base;
    (void)state;
    l.pp = 2, l.schedule = "1f1b", l.n_layers = 4;
    refuse(&l, 4, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_parallel),
        cmocka_unit_test(tensor_parallel),
        cmocka_unit_test(pipeline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
