/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
/* What ranks communicate in a step, by stage: 2, 2, 2 and 3 times the parameters. */
#include "test_commands.h"

#include <math.h>

#include "plan/volume_table.h"

/* No weight has two uses, and hardly any is read by forward alone. */
#define MODEL                                                                                      \
    "model={\"model_type\":\"gpt2\",\"n_layer\":3,\"n_head\":2,\"n_embd\":64,\"n_positions\":8,"   \
    "\"vocab_size\":256,\"tie_word_embeddings\":false}"
#define PRIVATE "parallel.share_host_state=false"
#define WHOLE   "parallel.persist_below=0"
#define TWICE   "train.accumulation=2"
#define MICRO   "parallel.grad_sync=micro"
#define UNEVEN  "parallel.wrap=[\"h.0.attn\",\"h.0.mlp\",\"h.1.attn\",\"h.1.mlp\",\"h.2\"]"

struct sums {
    double reduced, gathered, spread; /* elements over parameters */
};

static struct sums sums_of(const struct ku_plan *p)
{
    struct ku_volume row[KU_MAX_VOLUMES];
    struct sums s = {0};
    int n = ku_plan_volumes(p->program[KU_PROG_TRAIN], row);
    for (int i = 0; i < n; i++) {
        double share = row[i].elements / (double)p->s.n_params;
        *(row[i].exchange == KU_X_ALL_GATHER       ? &s.gathered
          : row[i].exchange == KU_X_REDUCE_SCATTER ? &s.reduced
                                                   : &s.spread) += share;
    }
    return s;
}

static void volumes(void **state)
{
    static const struct {
        const char *set[5];
        double reduced, gathered, spread;
    } row[] = {
        {{PRIVATE, "parallel.zero=0", MODEL}, 0, 0, 1},
        {{PRIVATE, "parallel.zero=1", MODEL}, 1, 1, 0},
        {{PRIVATE, "parallel.zero=2", MODEL}, 1, 1, 0},
        {{PRIVATE, "parallel.zero=3", MODEL, WHOLE, "parallel.reshard_after_forward=false"},
         1,
         1,
         0},
        {{PRIVATE, "parallel.zero=2", MODEL, "parallel.replicate=2"}, 1, 1, 0.5},
        {{"parallel.zero=3", MODEL}, 1, 0, 0}, /* shared: read in place */
        {{MODEL, TWICE}, 1, 0, 0},
        {{MODEL, TWICE, MICRO}, 2, 0, 0}, /* each micro-batch */
        {{PRIVATE, "parallel.zero=2", MODEL, TWICE, MICRO}, 2, 1, 0},
        {{PRIVATE, MODEL, TWICE, MICRO}, 0, 0, 2},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const struct files *f = *state;
        struct kumi_settings s = {.config = f->config, .set = row[i].set};
        struct ku_plan p;
        while (s.n_sets < 5 && row[i].set[s.n_sets])
            s.n_sets++;
        assert_status(ku_plan_init(&p, &s, 4, NULL, NULL), KUMI_OK);
        struct sums got = sums_of(&p);
        if (fabs(got.reduced - row[i].reduced) > 1e-9 ||
            fabs(got.gathered - row[i].gathered) > 1e-9 || fabs(got.spread - row[i].spread) > 1e-9)
            fail_msg("row %zu: reduced %g, gathered %g, spread %g", i, got.reduced, got.gathered,
                     got.spread);
        ku_plan_fini(&p);
    }
}

/* The report says where a stage above 0 changes nothing, and only there. */
static void says_effect(void **state)
{
    static const char line[] = "parallel.zero 3 saves nothing on one host: its 4 ranks share one ";
    static const struct {
        const char *set[3];
        int local, has_line;
    } row[] = {{{MODEL}, 4, 0},
               {{MODEL, "parallel.zero=3"}, 4, 1},
               {{MODEL, "parallel.zero=3", "parallel.host_state=private"}, 1, 0}};
    const struct files *f = *state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct kumi_settings s = {.config = f->config, .set = row[i].set};
        struct ku_plan p;
        struct ku_str text = {0};
        while (s.n_sets < 3 && row[i].set[s.n_sets])
            s.n_sets++;
        assert_status(ku_plan_init(&p, &s, 4, NULL, NULL), KUMI_OK);
        ku_plan_print_volumes(&p, &text);
        assert_int_equal(strstr(ku_str_get(&text), line) != NULL, row[i].has_line);
        json_t *json = ku_plan_volumes_json(&p);
        const char *why = json_string_value(json_object_get(json, "no_effect"));
        assert_int_equal(json_integer_value(json_object_get(json, "local")), row[i].local);
        assert_int_equal(why && strncmp(why, line, strlen(line)) == 0, row[i].has_line);
        json_decref(json);
        ku_str_fini(&text);
        ku_plan_fini(&p);
    }
}

/* Backward reads matrices again, and neither biases nor tables: with all modules units, close to
 * twice the parameters. */
static void resharding(void **state)
{
    static const char *const set[] = {PRIVATE, "parallel.zero=3", MODEL, WHOLE,
                                      "parallel.wrap=[\"*\"]"};
    const struct files *f = *state;
    struct kumi_settings s = {.config = f->config, .set = set, .n_sets = 5};
    struct ku_plan p;
    double n_read_once = 256 * 64 + 8 * 64 + 3 * (3 + 1 + 4 + 1 + 2) * 64 + 64;
    assert_status(ku_plan_init(&p, &s, 4, NULL, NULL), KUMI_OK);
    struct sums got = sums_of(&p);
    assert_true(fabs(got.reduced - 1) < 1e-9);
    assert_true(fabs(got.gathered - (2 - n_read_once / (double)p.s.n_params)) < 1e-9);
    ku_plan_fini(&p);
}

/* In groups of two, backward gathers inside them what forward gathers from all four; a rank keeps
 * half of each module for it, where two and two of them would be whole. */
static void groups(void **state)
{
    static const char *const set[] = {PRIVATE, "parallel.zero=3", MODEL, WHOLE,
                                      "parallel.reshard_after_forward=2"};
    const struct files *f = *state;
    struct kumi_settings s = {.config = f->config, .set = set, .n_sets = 4};
    struct ku_volume row[2][KU_MAX_VOLUMES];
    struct ku_plan p;
    double gathered[2] = {0};
    for (int group = 0; group < 2; group++) {
        s.n_sets = 4 + group;
        assert_status(ku_plan_init(&p, &s, 4, NULL, NULL), KUMI_OK);
        int n = ku_plan_volumes(p.program[KU_PROG_TRAIN], row[group]), n_groups = 0;
        for (int i = 0; i < n; i++) {
            gathered[group] +=
                row[group][i].exchange == KU_X_ALL_GATHER ? row[group][i].elements : 0;
            assert_int_equal(row[group][i].n_ranks, row[group][i].group ? 2 : 4);
            n_groups += row[group][i].group == 2;
        }
        assert_int_equal(n_groups, group);
        int64_t kept = 0;
        const struct ku_program *train = p.program[KU_PROG_TRAIN];
        for (ku_id b = 1; b < train->n_buffers; b++)
            kept += train->buffer[b].cls == KU_CL_GATHER && train->buffer[b].is_kept
                        ? (int64_t)train->buffer[b].bytes
                        : 0;
        int64_t module = 12 * 64 * 64 + 13 * 64; /* but what backward does not read */
        assert_true(group ? kept > 3 * module * 4 * 9 / 20 && kept < 3 * module * 4 * 14 / 20
                          : kept == 0);
        ku_plan_fini(&p);
    }
    assert_true(gathered[0] == gathered[1]);
}

/* A module is 12 C^2 and 13 C elements; one is read, one is under way. */
static void live_parameters(void **state)
{
    static const char *const set[] = {PRIVATE, "parallel.zero=3", MODEL, WHOLE,
                                      "parallel.max_live_parameters=1000"};
    const struct files *f = *state;
    struct kumi_settings s = {.config = f->config, .set = set, .n_sets = 5};
    struct ku_plan p;
    int64_t root = 2 * 256 * 64 + 8 * 64 + 2 * 64, module = 12 * 64 * 64 + 13 * 64;
    uint32_t at;
    assert_status(ku_plan_init(&p, &s, 4, NULL, NULL), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "parallel.max_live_parameters: 1000; program "));
    s.n_sets = 4;
    assert_status(ku_plan_init(&p, &s, 4, NULL, NULL), KUMI_OK);
    int64_t live = ku_program_live_parameters(p.program[KU_PROG_TRAIN], &at);
    assert_true(live > module && live <= root + 2 * module);
    ku_plan_fini(&p);
}

/*
 * The last unit of forward starts the first one of backward, both of 12 C^2 elements, unless that
 * exceeds the limit: within a phase at most 20 C^2 = 81,920 are alive, beside what is in no unit.
 */
static void limited_prefetch(void **state)
{
    static const char *const set[] = {
        PRIVATE, "parallel.zero=3", MODEL, WHOLE, UNEVEN, "parallel.max_live_parameters=110000"};
    const int64_t limit = 110000;
    const struct files *f = *state;
    struct kumi_settings s = {.config = f->config, .set = set};
    int64_t live[2];
    uint32_t at;
    for (int is_limited = 0; is_limited < 2; is_limited++) {
        struct ku_plan p;
        s.n_sets = 5 + is_limited;
        assert_status(ku_plan_init(&p, &s, 4, NULL, NULL), KUMI_OK);
        live[is_limited] = ku_program_live_parameters(p.program[KU_PROG_TRAIN], &at);
        ku_plan_fini(&p);
    }
    assert_true(live[0] > limit && live[1] <= limit);
}

/* Each combination of exchange, axes and group size has a row with all of its instructions. */
static void every_kind(void **state)
{
    static const uint8_t exchange[] = {KU_X_REDUCE_SCATTER, KU_X_ALL_REDUCE, KU_X_ALL_GATHER};
    enum { MASKS = (1 << KU_AX_FIRST_TIME) - 1, KINDS = 3 * MASKS * 2, COUNT = 6 };
    struct ku_shape shape = {.ndim = 1, .dim = {{COUNT, COUNT, 'n'}}};
    struct ku_layout common = {0};
    struct ku_buffer buffer = {.cls = KU_CL_GRAD, .dtype = KUMI_F32};
    struct ku_operand operand = {.dtype = KUMI_F32};
    struct ku_instr instr[2 * KINDS] = {{0}};
    struct ku_volume row[KU_MAX_VOLUMES];
    struct ku_program p = {.instr = instr,
                           .n_instrs = 2 * KINDS,
                           .operand = &operand,
                           .shape = &shape,
                           .layout = &common,
                           .buffer = &buffer};
    (void)state;
    for (int a = 0; a < KU_N_AXES; a++)
        p.mesh.extent[a] = 2;
    for (int i = 0; i < 2 * KINDS; i++)
        instr[i] = (struct ku_instr){.kind = KU_START,
                                     .op = exchange[i % 3],
                                     .axes = (uint8_t)(1 + i / 3 % MASKS),
                                     .group = (uint16_t)(i / 3 / MASKS % 2 * 2),
                                     .n_parts = 1,
                                     .wire = KUMI_F32};
    assert_int_equal(ku_plan_volumes(&p, row), KINDS);
    for (int k = 0; k < KINDS; k++)
        assert_true(row[k].elements == 2 * COUNT);
}

/*
 * The last stage sends each rank's chunks of the tied table's gradient, and no more. The table has
 * 4 chunks, so that two ranks have equal parts.
 */
static void messages(void **state)
{
    static const char *const set[] = {PRIVATE,
                                      "parallel.zero=2",
                                      MODEL,
                                      "model.tie_word_embeddings=true",
                                      "parallel.pp=2",
                                      "parallel.stages=[1,2]",
                                      "train.global_batch=16",
                                      "train.micro_batch=4"};
    const struct files *f = *state;
    struct kumi_settings s = {.config = f->config, .set = set, .n_sets = 8};
    struct ku_step_bytes step;
    struct ku_plan p;
    int n_chunked = 0;
    assert_status(ku_plan_init(&p, &s, 4, NULL, NULL), KUMI_OK);
    const struct ku_program *train = p.program[KU_PROG_TRAIN];
    assert_int_equal(train->pp, 1);
    assert_int_equal(train->mesh.extent[KU_AX_SHARD], 2);
    for (uint32_t at = 0; at < train->n_instrs; at++)
        n_chunked +=
            ku_plan_sends(train, at) &&
            ku_layout_has(&train->layout[train->operand[train->instr[at].operand].layout], KU_Z);
    assert_true(n_chunked > 0);
    assert_status(ku_plan_step_bytes(train, NULL, 0, &step), KUMI_OK);
    assert_true(step.messages > 0 && 2 * ku_plan_message_bytes(train) == step.messages);
    ku_plan_fini(&p);
}

/*
 * Shards 0 1 2 and 3 4 5 on hosts of two ranks. What the ranks of a host have in common is one node
 * of the tree for 0 1, and two for 4 5, which therefore send a chunk of rank 3 twice.
 */
static void uneven_communicators(void **state)
{
    enum { COUNT = 100 }; /* one chunk */
    static const struct ku_host_ranks host[] = {{0, 2}, {2, 2}, {4, 2}};
    static const struct {
        int32_t owner;
        int first, second; /* times that the two groups send the chunk */
    } rows[] = {{0, 1, 2}, {1, 1, 1}, {2, 1, 1}};
    struct ku_shape shape = {.ndim = 1, .dim = {{COUNT, COUNT, 'n'}}};
    struct ku_layout common = {0};
    struct ku_buffer buffer = {.cls = KU_CL_GRAD, .dtype = KUMI_F32};
    struct ku_operand operand = {.dtype = KUMI_F32};
    struct ku_instr instr = {.kind = KU_START,
                             .op = KU_X_REDUCE_SCATTER,
                             .axes = 1 << KU_AX_SHARD,
                             .n_parts = 1,
                             .wire = KUMI_F32};
    struct ku_volume row[KU_MAX_VOLUMES];
    struct ku_program p = {.instr = &instr,
                           .n_instrs = 1,
                           .operand = &operand,
                           .shape = &shape,
                           .layout = &common,
                           .buffer = &buffer};
    (void)state;
    for (int a = 0; a < KU_N_AXES; a++)
        p.mesh.extent[a] = 1;
    p.mesh.extent[KU_AX_REPLICATE] = 2;
    p.mesh.extent[KU_AX_SHARD] = 3;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        operand.first_block = rows[i].owner;
        assert_int_equal(ku_plan_volumes(&p, row), 1);
        assert_status(ku_plan_far_volumes(&p, host, 3, row, 1), KUMI_OK);
        if (row[0].far_bytes != 4.0 * COUNT * (rows[i].first + rows[i].second))
            fail_msg("a chunk of member %d: %g bytes", rows[i].owner, row[0].far_bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(volumes),
                                       cmocka_unit_test(says_effect),
                                       cmocka_unit_test(resharding),
                                       cmocka_unit_test(groups),
                                       cmocka_unit_test(live_parameters),
                                       cmocka_unit_test(limited_prefetch),
                                       cmocka_unit_test(every_kind),
                                       cmocka_unit_test(messages),
                                       cmocka_unit_test(uneven_communicators)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
