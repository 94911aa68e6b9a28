/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all ranks of a job must have in common: configuration, build, data, instruction set. Hosts
 * that read different files of one name would otherwise train different models, and in some cases
 * without an error.
 *
 *     each rank's hash of all texts ──> equal everywhere: done
 *                                   ──> else text by text: the first rank that differs from rank 0
 *                                       compares, and reports both sides
 */
#include <stdio.h>
#include <string.h>

#include "base/cpu/cpu_features.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "ckpt/snapshot/provenance.h"
#include "comm/consensus.h"
#include "job/segment.h"
#include "sim/kernel_choice.h"
#include "tensor/dtype.h"
#include "train/session.h"

enum { CONFIGURATION, BUILD, DATA, N_TEXTS, RANK_TEXT = 96 };

struct common {
    struct ku_job *job;
    const char *text[N_TEXTS];
    json_t *keys;
};

static const char *rank_text(const struct ku_job *job, int64_t rank, char text[RANK_TEXT])
{
    ku_segment_rank_text(job->seg, (int)rank, text, RANK_TEXT);
    return text;
}

/* The first rank whose hash differs from rank 0's; 0: none. */
static int first_other(struct ku_job *job, uint64_t hash, int64_t *rank)
{
    uint64_t first = hash;
    KU_TRY(ku_agree_bytes(job, &first, sizeof first));
    *rank = hash == first ? 0 : job->n - job->rank;
    KU_TRY(ku_agree_max(job, rank));
    *rank = *rank ? job->n - *rank : 0;
    return KUMI_OK;
}

static int refuse_keys(const struct common *c, const char *first, const char *names)
{
    char side[2][RANK_TEXT + 8], a[RANK_TEXT], b[RANK_TEXT];
    const char *const sides[] = {side[0], side[1]};
    struct ku_str differ = {0};
    json_t *others = json_loads(first, 0, NULL);
    snprintf(side[0], sizeof side[0], "%s: ", rank_text(c->job, 0, a));
    snprintf(side[1], sizeof side[1], "%s: ", rank_text(c->job, c->job->rank, b));
    ku_config_compare_sides(others, c->keys, sides, &differ);
    int status = KU_ERR(KUMI_EINVAL,
                        "ranks differ: %s: %.280s%s; start every rank with the same configuration",
                        names, ku_str_get(&differ), differ.bytes > 280 ? " …" : "");
    ku_str_fini(&differ);
    json_decref(others);
    return status;
}

/* This rank differs from rank 0, whose text is `first`. */
static int refuse(const struct common *c, int what, const char *first)
{
    static const char *const name[] = {"configuration", "build", "data"};
    static const char *const hint[] = {
        "", "install the same build of kumi and of the C library on every host",
        "give every host the same files"};
    char a[RANK_TEXT], b[RANK_TEXT];
    if (what == CONFIGURATION)
        return refuse_keys(c, first, name[what]);
    return KU_ERR(KUMI_EINVAL, "ranks differ: %s: %s has %.100s, %s has %.100s; %s", name[what],
                  rank_text(c->job, 0, a), first, rank_text(c->job, c->job->rank, b), c->text[what],
                  hint[what]);
}

/* Rank 0's text goes to all; the rank that differs reports. */
static int report(const struct common *c, int what, int64_t other)
{
    int64_t bytes = (int64_t)strlen(c->text[what]) + 1;
    KU_TRY(ku_agree_bytes(c->job, &bytes, sizeof bytes));
    char *first = ku_calloc((size_t)bytes, 1);
    KU_TRY(ku_agree_local(c->job, first ? KUMI_OK : KUMI_ENOMEM));
    if (c->job->rank == 0)
        memcpy(first, c->text[what], (size_t)bytes);
    int status = ku_agree_bytes(c->job, first, (size_t)bytes);
    if (status == KUMI_OK)
        status = ku_agree(c->job, other == c->job->rank ? refuse(c, what, first) : KUMI_OK);
    ku_free(first);
    return status;
}

static int compare(const struct common *c)
{
    uint64_t hash[N_TEXTS];
    int64_t other;
    for (int i = 0; i < N_TEXTS; i++)
        hash[i] = ku_hash64(c->text[i], strlen(c->text[i]));
    KU_TRY(first_other(c->job, ku_hash64(hash, sizeof hash), &other));
    for (int i = 0; i < N_TEXTS && other; i++) {
        int64_t of_text;
        KU_TRY(first_other(c->job, hash[i], &of_text));
        if (of_text)
            KU_TRY(report(c, i, of_text));
    }
    return KUMI_OK;
}

int ku_session_check_ranks(const struct ku_session *s, struct ku_job *job)
{
    struct common c = {.job = job};
    struct ku_origin here;
    if (job->n == 1)
        return KUMI_OK;
    ku_origin_here(KU_ISA_BASE, s->source->data ? s->source->data->fingerprint : "", &here);
    c.keys = ku_config_keys(&s->cfg);
    char *text = c.keys ? ku_json_print(c.keys, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    int status = ku_agree_local(job, text ? KUMI_OK : KUMI_ENOMEM);
    c.text[CONFIGURATION] = text;
    c.text[BUILD] = here.build;
    c.text[DATA] = here.data;
    if (status == KUMI_OK)
        status = compare(&c);
    ku_free(text);
    json_decref(c.keys);
    return status;
}

/* The lowest of all ranks' best instruction sets, and the first rank that has it. */
static int lowest_isa(struct ku_job *job, enum ku_isa *isa, int *rank)
{
    int64_t word = (int64_t)(KU_N_ISAS - 1 - ku_cpu_isa()) * job->n + (job->n - 1 - job->rank);
    KU_TRY(ku_agree_max(job, &word));
    *isa = (enum ku_isa)(KU_N_ISAS - 1 - word / job->n);
    *rank = (int)(job->n - 1 - word % job->n);
    return KUMI_OK;
}

int ku_session_choose_isa(const struct ku_session *s, struct ku_job *job, enum ku_isa *out)
{
    const char *pinned = s->cfg.parallel_isa;
    enum kumi_dtype compute;
    enum ku_isa isa = ku_cpu_isa(), lowest;
    char a[RANK_TEXT], b[RANK_TEXT];
    int rank;
    *out = isa;
    if (pinned) {
        KU_TRY(ku_cpu_isa_parse(pinned, &isa));
    } else if (strcmp(s->cfg.parallel_device, "cpu") != 0) {
        return KUMI_OK;
    } else {
        KU_TRY(ku_dtype_parse(s->cfg.precision_compute, &compute));
        int64_t word;
        int status = job->rank == 0 ? ku_isa_resolve(NULL, compute, &isa) : KUMI_OK;
        KU_TRY(ku_agree_local(job, status));
        word = isa;
        KU_TRY(ku_agree_bytes(job, &word, sizeof word));
        isa = (enum ku_isa)word;
    }
    KU_TRY(lowest_isa(job, &lowest, &rank));
    if (isa > lowest && job->n_hosts == 1)
        return KU_ERR(KUMI_EDEVICE, "parallel.isa: %s: this CPU has %s at best",
                      ku_cpu_isa_name(isa), ku_cpu_isa_name(lowest));
    if (isa > lowest)
        return KU_ERR(KUMI_EDEVICE,
                      "parallel.isa: %s%s%s, but the CPU of %s has %s at best; set "
                      "parallel.isa=%s",
                      ku_cpu_isa_name(isa), pinned ? "" : " is the choice of ",
                      pinned ? "" : rank_text(job, 0, a), rank_text(job, rank, b),
                      ku_cpu_isa_name(lowest), ku_cpu_isa_name(lowest));
    *out = isa;
    return KUMI_OK;
}
