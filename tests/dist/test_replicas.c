/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One flipped bit in a copy of the state: found wherever another rank has a copy, and reported with
 * the tensor and the rank. Ranks as threads. tsan
 */
#include "dist.h"

#include "exec/offload_target.h"
#include "tensor/dtype.h"

struct flip {
    struct dist_case c;
    const char *tensor;
    int rank, is_last_byte;
    char text[4][sizeof(struct kumi_error)];
};

static const struct ku_program_state *state_of(const struct ku_program *p, const char *name)
{
    for (uint32_t s = 0; s < p->n_states; s++)
        if (strcmp(p->name_of[p->state[s].name], name) == 0)
            return &p->state[s];
    fail_msg("no state %s", name);
    return NULL;
}

/* Flips one bit of this rank's copy, or of its part. */
static void flip_bit(const struct ku_trainer *t, const struct flip *f)
{
    const struct ku_program *p = t->program[KU_PROG_TRAIN];
    const struct ku_program_state *x = state_of(p, f->tensor);
    const int64_t count = ku_shape_count(&p->shape[x->shape]);
    struct ku_coord at = ku_mesh_coord(&p->mesh, t->job->rank);
    int64_t begin = 0, end = count;
    unsigned char byte;
    if (x->is_kept)
        ku_program_local_range(&p->mesh, &p->layout[x->blocks], count, x->first_block, &at, &begin,
                               &end);
    assert_true(begin < end);
    const size_t i = f->is_last_byte ? (size_t)(end - begin) * 4 - 1 : 0;
    if (x->arena != KU_AR_FILE) {
        ((unsigned char *)host_of(ku_memory_state(t->memory, x)))[i] ^= 0x10;
        return;
    }
    for (int is_write = 0; is_write < 2; is_write++, byte ^= 0x10)
        assert_int_equal(ku_offload_file_move(t->memory->file, t->job->local_rank, is_write,
                                              x->offset + i, &byte, 1),
                         KUMI_OK);
}

static int flip_and_verify(struct ku_job *job, void *arg)
{
    struct flip *f = arg;
    struct ku_trainer *t;
    const double *report;
    KU_TRY(dist_trainer(job, &f->c, &t));
    KU_TRY(ku_trainer_init_state(t));
    dist_fill(&f->c, t, KU_PROG_TRAIN, 0);
    KU_TRY(ku_trainer_step(t, 0, &report));
    KU_TRY(ku_trainer_verify_replicas(t));
    if (job->rank == f->rank)
        flip_bit(t, f);
    int status = ku_trainer_verify_replicas(t);
    assert_true(status == KUMI_OK || status == KUMI_ENUMERIC);
    snprintf(f->text[job->rank], sizeof f->text[0], "%s",
             status == KUMI_OK ? "equal" : ku_err_get()->text);
    ku_trainer_destroy(t);
    return KUMI_OK;
}

#define P "h.1.mlp.c_fc.weight"
#define M P ".exp_avg"
/* `first`: the rank that the flipped one is compared with; -1: there is no other copy. In the model
 * below every rank has a part of the tensor. */
static const struct row {
    int n, zero, replicate;
    enum ku_offload_target target;
    const char *tensor;
    int rank, first;
    const char *hosts; /* two, whose ranks share one copy each; NULL: private state on one host */
} row[] = {
    {4, 0, 0, KU_OFFLOAD_NONE, P, 2, 0, NULL},   {4, 0, 0, KU_OFFLOAD_NONE, M, 3, 0, NULL},
    {2, 0, 0, KU_OFFLOAD_HOST, M, 1, 0, NULL},   {2, 0, 0, KU_OFFLOAD_FILE, M, 1, 0, NULL},
    {4, 1, 0, KU_OFFLOAD_NONE, P, 1, 0, NULL},   {4, 2, 0, KU_OFFLOAD_NONE, P, 3, 0, NULL},
    {4, 1, 0, KU_OFFLOAD_NONE, M, 1, -1, NULL},  {4, 3, 0, KU_OFFLOAD_NONE, P, 1, -1, NULL},
    {4, 1, 2, KU_OFFLOAD_NONE, P, 3, 0, NULL},   {4, 1, 2, KU_OFFLOAD_NONE, M, 3, 1, NULL},
    {4, 2, 2, KU_OFFLOAD_NONE, P, 2, 0, NULL},   {4, 2, 2, KU_OFFLOAD_NONE, M, 2, 0, NULL},
    {4, 3, 2, KU_OFFLOAD_NONE, P, 2, 0, NULL},   {4, 3, 2, KU_OFFLOAD_NONE, P, 3, 1, NULL},
    {4, 3, 2, KU_OFFLOAD_NONE, M, 3, 1, NULL},   {4, 3, 2, KU_OFFLOAD_HOST, M, 2, 0, NULL},
    {4, 3, 2, KU_OFFLOAD_FILE, M, 3, 1, NULL},   {4, 0, 0, KU_OFFLOAD_NONE, P, 3, 1, "2,2"},
    {4, 1, 0, KU_OFFLOAD_NONE, P, 2, 0, "2,2"},  {4, 2, 0, KU_OFFLOAD_NONE, P, 3, 1, "2,2"},
    {4, 1, 0, KU_OFFLOAD_NONE, M, 2, -1, "2,2"},
};

static void one_bit(void **state)
{
    (void)state;
    struct sample s = {.address = 4, .thread = 12};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const struct row *r = &row[i];
        struct flip f = {.c = {.n = r->n,
                               .v = r->n,
                               .micro = 1,
                               .k = 1,
                               .t = 11,
                               .device = "cpu",
                               .zero = r->zero,
                               .replicate = r->replicate,
                               .no_sharing = r->hosts == NULL,
                               .hosts = r->hosts ? 2 : 0,
                               .prefetch = 1,
                               .target.path = ".",
                               .offload = {.optimizer = (uint8_t)r->target,
                                           .ratio = 1,
                                           .buffer_count = 3,
                                           .buffer_bytes = 65536},
                               .model = dist_model()},
                         .tensor = r->tensor,
                         .rank = r->rank,
                         .is_last_byte = i % 2 == 1};
        char expected[sizeof f.text[0]];
        const struct ku_job_opts opts = {.hosts = r->hosts};
        if (!sample_takes(&s, (int)i, r->zero * 8 + r->replicate * 2 + (r->hosts != NULL), -1))
            continue;
        f.c.model.n_embd = 96, f.c.model.n_head = 2;
        if (ku_comm_threads(r->n, &opts, flip_and_verify, &f) < 0)
            fail_msg("row %zu: %s", i, ku_err_get()->text);
        snprintf(expected, sizeof expected, "equal");
        if (r->first >= 0)
            snprintf(expected, sizeof expected,
                     "replicas differ: %s: rank %d differs from rank %d; the memory of the "
                     "machine or the program is faulty",
                     r->tensor, r->rank, r->first);
        for (int rank = 0; rank < r->n; rank++)
            assert_string_equal(f.text[rank], expected);
    }
    sample_end(&s, "flips");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_bit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
