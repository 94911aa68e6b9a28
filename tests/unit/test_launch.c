/* SPDX-License-Identifier: Apache-2.0 */
/* links: job base */
/* What launchers say in variables, host lists and hostfiles, and what kumi's own says to agents. */
#include "base/err.h"
#include "base/mem.h"
#include "job/launch/hostlist.h"
#include "job/launch/wire.h"
#include "job/pin.h"
#include "job/private.h"
#include "job/slurm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A list as "a:4 b:2", to compare with. */
static void print_list(const struct ku_hostlist *list, char *text, size_t cap)
{
    int at = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < list->n; i++)
        at += snprintf(text + at, cap - (size_t)at, "%s%s:%d", i ? " " : "", list->host[i].name,
                       list->host[i].n);
}

struct list_row {
    const char *text;
    int n;
    const char *result; /* of an error: a part of the message */
    int status;
};

static const struct list_row lists[] = {
    {"a:4,b:4", 0, "a:4 b:4", 0},
    {"a", 0, "a:1", 0},
    {"a,a,b,b", 0, "a:2 b:2", 0},
    {"a:2,a:2,b", 0, "a:4 b:1", 0},
    {"10.0.0.1:2,me@node-7.site_a:3", 0, "10.0.0.1:2 me@node-7.site_a:3", 0},
    {"[fe80::1]:4,[::1]", 0, "fe80::1:4 ::1:1", 0},
    {"[fe80::1%eth0]:4", 0, "fe80::1%eth0:4", 0},
    {"a:4,b:4", 3, "a:3", 0},
    {"a:4,b:4", 4, "a:4", 0},
    {"a:4,b:4,c:4", 5, "a:4 b:1", 0},
    {"a:512", 0, "a:512", 0},
    {"a:4,b:4", 9, "-n: 9, but the 2 hosts have 8 slots", KUMI_EINVAL},
    {"a,b,a", 0, "a stands at places 1 and 3", KUMI_EINVAL},
    {"", 0, "not a host", KUMI_EINVAL},
    {"a,", 0, "not a host", KUMI_EINVAL},
    {",a", 0, "not a host", KUMI_EINVAL},
    {":4", 0, "not a host", KUMI_EINVAL},
    {"a:", 0, "slots from 1 to 512", KUMI_EINVAL},
    {"a:0", 0, "slots from 1 to 512", KUMI_EINVAL},
    {"a:-1", 0, "slots from 1 to 512", KUMI_EINVAL},
    {"a:513", 0, "slots from 1 to 512", KUMI_EINVAL},
    {"a:99999999999", 0, "slots from 1 to 512", KUMI_EINVAL},
    {"a:4x", 0, "slots from 1 to 512", KUMI_EINVAL},
    {"a:300,a:300", 0, "more than 512 slots", KUMI_EINVAL},
    {"a b", 0, "a blank", KUMI_EINVAL},
    {"a:2 b:2", 0, "a blank", KUMI_EINVAL},
    {"-oProxyCommand=x", 0, "not a host", KUMI_EINVAL},
    {"a;reboot", 0, "not a host", KUMI_EINVAL},
    {"$(x):1", 0, "not a host", KUMI_EINVAL},
    {"fe80::1:4", 0, "brackets", KUMI_EINVAL},
    {"[fe80::1:4", 0, "not closed", KUMI_EINVAL},
    {"[fe80::1]4", 0, "[ADDRESS]:N", KUMI_EINVAL},
    {"[]:4", 0, "not a host", KUMI_EINVAL},
    {"[a b]:4", 0, "not a host", KUMI_EINVAL},
};

static void host_lists(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        struct ku_hostlist list = {0};
        char text[512];
        int status = ku_hostlist_add(&list, lists[i].text);
        if (!status)
            status = ku_hostlist_fill(&list, lists[i].n);
        if (status)
            snprintf(text, sizeof text, "%s", ku_err_get()->text);
        else
            print_list(&list, text, sizeof text);
        if (status != lists[i].status ||
            !(status ? strstr(text, lists[i].result) != NULL : strcmp(text, lists[i].result) == 0))
            fail_msg("\"%s\": %d: %s", lists[i].text, status, text);
        ku_hostlist_fini(&list);
    }
}

static const struct list_row files[] = {
    {"a slots=4\nb slots=4\n", 0, "a:4 b:4", 0},
    {"worker-1 slots=4\nworker-2 slots=2", 0, "worker-1:4 worker-2:2", 0},
    {"# two nodes\n\n  a\tslots=4 max_slots=8  # the first\r\nb slots=4 max-slots=4\n", 0,
     "a:4 b:4", 0},
    {"a slots=4 max_slots=1024\n", 0, "a:4", 0}, /* of Open MPI, which has no such limit */
    {"a slots=4 max_slots=0\n", 0, "from 1 to 999999999", KUMI_EINVAL},
    {"a slots=1024\n", 0, "from 1 to 512", KUMI_EINVAL},
    {"a:4\nb\n", 0, "a:4 b:1", 0},
    {"a\na\nb slots=2\n", 0, "a:2 b:2", 0},
    {"[fe80::1] slots=2\n[fe80::2]:3\n", 0, "fe80::1:2 fe80::2:3", 0},
    {"a slots=4\nb slots=4\n", 6, "a:4 b:2", 0},
    {"\n# none\n", 0, "hosts: none", KUMI_EINVAL},
    {"a slots=4\nb slot=4\n", 0, "hosts: F:2: slot=4: unknown", KUMI_EINVAL},
    {"a slots=\n", 0, "from 1 to 512", KUMI_EINVAL},
    {"a slots=0\n", 0, "from 1 to 512", KUMI_EINVAL},
    {"a slots\n", 0, "from 1 to 512", KUMI_EINVAL},
    {"a 4\n", 0, "unknown", KUMI_EINVAL},
    {"a slots=4 max_slots=2\n", 0, "more slots than max_slots", KUMI_EINVAL},
    {"a,b\n", 0, "not a host", KUMI_EINVAL},
    {"a\nb\na\n", 0, "places 1 and 3", KUMI_EINVAL},
};

static void hostfiles(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct ku_hostlist list = {0};
        char text[512];
        int status = ku_hostlist_add_lines(&list, "F", files[i].text, strlen(files[i].text));
        if (!status)
            status = ku_hostlist_fill(&list, files[i].n);
        if (status)
            snprintf(text, sizeof text, "%s", ku_err_get()->text);
        else
            print_list(&list, text, sizeof text);
        if (status != files[i].status ||
            !(status ? strstr(text, files[i].result) != NULL : strcmp(text, files[i].result) == 0))
            fail_msg("\"%s\": %d: %s", files[i].text, status, text);
        ku_hostlist_fini(&list);
    }
    struct ku_hostlist list = {0};
    char name[80];
    memset(name, 'x', sizeof name);
    name[64] = '\0';
    assert_int_equal(ku_hostlist_add(&list, name), KUMI_EINVAL);
    assert_int_equal(ku_hostlist_add(&list, name + 1), 0);
    assert_int_equal(ku_hostlist_add_lines(&list, "F", "a\0b", 3), KUMI_EINVAL);
    assert_int_equal(ku_hostlist_read(&list, "/nonexistent/hosts"), KUMI_EINPUT);
    ku_hostlist_fini(&list);
}

static void divisors(void **state)
{
    static const struct {
        const char *hosts;
        int n, divisor, is_even;
    } rows[] = {{"a:4", 0, 0, 1},     {"a:4,b:4", 0, 4, 1},     {"a:4,b:6", 0, 2, 0},
                {"a:4,b:4", 6, 2, 0}, {"a:4,b:6,c:9", 0, 1, 0}, {"a:4,b:4", 3, 0, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ku_hostlist list = {0};
        bool is_even;
        assert_int_equal(ku_hostlist_open(&list, rows[i].hosts, NULL, rows[i].n), 0);
        assert_int_equal(ku_hostlist_divisor(&list, &is_even), rows[i].divisor);
        assert_int_equal(is_even, rows[i].is_even);
        ku_hostlist_fini(&list);
    }
    struct ku_hostlist list = {0};
    assert_int_equal(ku_hostlist_open(&list, NULL, NULL, 0), KUMI_EINVAL);
    assert_int_equal(ku_hostlist_open(&list, "a", "b", 0), KUMI_EINVAL);
    assert_int_equal(ku_hostlist_open(&list, "a", NULL, 2), KUMI_EINVAL);
    ku_hostlist_fini(&list);
}

/* 16384 hosts are one list; one more is refused. */
static void many_hosts(void **state)
{
    struct ku_hostlist list = {0};
    char name[16];
    (void)state;
    for (int i = 0; i < KU_MAX_HOSTS; i++) {
        snprintf(name, sizeof name, "n%d", i * 7919 % KU_MAX_HOSTS);
        assert_int_equal(ku_hostlist_add(&list, name), 0);
    }
    assert_int_equal(ku_hostlist_add(&list, "one-more"), KUMI_EINVAL);
    assert_int_equal(ku_hostlist_fill(&list, 0), 0);
    assert_int_equal(list.n_slots, KU_MAX_HOSTS);
    ku_hostlist_fini(&list);
}

static void slurm_lists(void **state)
{
    static const struct {
        const char *list;
        int node, before, here, total;
    } tasks[] = {{"2(x2),1", 0, 0, 2, 5},    {"2(x2),1", 1, 2, 2, 5},
                 {"2(x2),1", 2, 4, 1, 5},    {"4", 0, 0, 4, 4},
                 {"1,3(x3),2", 3, 7, 3, 12}, {"16777216", 0, 0, 16777216, 16777216}};
    static const char *const bad_tasks[] = {
        "",   "x",      "2(x2", "2(x0)", "2(3)",       "2(x),",    "2,",
        ",2", "2(x2)1", "-1",   "2 ",    "9999999999", "16777217", "99999999(x99999999)"};
    static const char *const names[][2] = {{"n[1-3,7]", "n1"},           {"n01", "n01"},
                                           {"n[01-03]-ib,m4", "n01-ib"}, {"a,b", "a"},
                                           {"r[1-2]n[2-3]", "r1n2"},     {"n[7]", "n7"}};
    static const char *const bad_names[] = {"", ",a", "n[", "n[]", "n[x]", "n[1", "n[1;2]", "a b"};
    struct ku_slurm_tasks t;
    char name[KU_HOST_NAME_BYTES], text[128];
    (void)state;
    for (size_t i = 0; i < sizeof tasks / sizeof tasks[0]; i++) {
        assert_int_equal(ku_slurm_read_tasks(tasks[i].list, tasks[i].node, &t), 0);
        assert_int_equal(t.n_before, tasks[i].before);
        assert_int_equal(t.n_here, tasks[i].here);
        assert_int_equal(t.n_total, tasks[i].total);
    }
    for (size_t i = 0; i < sizeof bad_tasks / sizeof bad_tasks[0]; i++)
        assert_int_equal(ku_slurm_read_tasks(bad_tasks[i], 0, &t), KUMI_EINVAL);
    assert_int_equal(ku_slurm_read_tasks("2(x2)", 2, &t), KUMI_EINVAL);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_int_equal(ku_slurm_first_node(names[i][0], name), 0);
        assert_string_equal(name, names[i][1]);
    }
    for (size_t i = 0; i < sizeof bad_names / sizeof bad_names[0]; i++)
        assert_int_equal(ku_slurm_first_node(bad_names[i], name), KUMI_EINVAL);
    memset(text, 'n', sizeof text);
    text[64] = '\0';
    assert_int_equal(ku_slurm_first_node(text, name), KUMI_EINVAL);
    assert_int_equal(ku_slurm_first_node(text + 1, name), 0);
}

/* An environment as "NAME=value NAME=value", and what is read from it. */
struct env_row {
    const char *env;
    int rank, n, local_rank, local_n, host_index;
    const char *host, *root, *says; /* NULL: any; says: part of the error, NULL: none */
};

static const struct env_row envs[] = {
    {"KUMI_HOST=x", 0, 1, 0, 1, -1, "x", "", NULL},
    /* torchrun on two nodes */
    {"TORCHELASTIC_RUN_ID=j RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 "
     "MASTER_ADDR=10.0.0.1 MASTER_PORT=29500",
     5, 8, 1, 4, 1, NULL, "10.0.0.1:29501+16", NULL},
    {"RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=fe80::1 MASTER_PORT=1000 "
     "KUMI_HOST=b",
     5, 8, 1, 4, -1, "b", "[fe80::1]:1001+16", NULL},
    {"RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 KUMI_RENDEZVOUS=c:7 MASTER_ADDR=a "
     "MASTER_PORT=1000",
     5, 8, 1, 4, -1, NULL, "c:7", NULL},
    /* one rank on each host; no root is known */
    {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1", 1, 2, 0, 1, -1, NULL, "", NULL},
    /* one host: as ever */
    {"RANK=3 WORLD_SIZE=4", 3, 4, 3, 4, -1, NULL, "", NULL},
    {"KUMI_JOB=1f KUMI_RANK=3 KUMI_WORLD_SIZE=4", 3, 4, 3, 4, -1, NULL, "", NULL},
    {"KUMI_JOB=1f KUMI_RANK=3 KUMI_WORLD_SIZE=4 KUMI_LOCAL_RANK=1 KUMI_LOCAL_WORLD_SIZE=2 "
     "GROUP_RANK=1 KUMI_HOST=b KUMI_RENDEZVOUS=a:20001+16 RANK=7 WORLD_SIZE=9",
     3, 4, 1, 2, 1, "b", "a:20001+16", NULL},
    {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=2 RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2",
     3, 4, 1, 2, -1, NULL, "", NULL},
    {"PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2", 2, 4, 0, 2, -1, NULL, "", NULL},
    {"PMI_RANK=0 PMI_SIZE=1", 0, 1, 0, 1, -1, NULL, "", NULL},
    {"SLURM_STEP_ID=0 SLURM_JOB_ID=7 SLURM_PROCID=4 SLURM_NTASKS=5 SLURM_LOCALID=0 SLURM_NODEID=2 "
     "SLURM_STEP_TASKS_PER_NODE=2(x2),1 MASTER_ADDR=n1 MASTER_PORT=2000",
     4, 5, 0, 1, 2, NULL, "n1:2001+16", NULL},
    /* srun --mpi=pmi2 */
    {"SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_NODEID=1 "
     "SLURM_STEP_TASKS_PER_NODE=2(x2) PMI_RANK=3 PMI_SIZE=4 KUMI_RENDEZVOUS=r:1",
     3, 4, 1, 2, 1, NULL, "r:1", NULL},
    {"SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=3", 3, 4, 3, 4, -1, NULL, "",
     NULL},
    /* a shell of salloc, and a step of a part of the allocation */
    {"SLURM_STEP_ID=4294967290 SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=1 "
     "SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=1",
     0, 1, 0, 1, 0, NULL, "", NULL},
    {"SLURM_STEP_ID=1 SLURM_PROCID=2 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 "
     "SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=2(x2) KUMI_RENDEZVOUS=r:1",
     2, 4, 0, 2, 1, NULL, "r:1", NULL},
    /* refused */
    {.env = "PMI_RANK=1 PMI_SIZE=4", .says = "MPI_LOCALRANKID is not set"},
    {"WORLD_SIZE=1", 0, 1, 0, 1, -1, NULL, "", NULL},
    {.env = "WORLD_SIZE=2", .says = "WORLD_SIZE is 2, but RANK is not set"},
    {.env = "RANK=0 LOCAL_RANK=0", .says = "RANK is 0, but WORLD_SIZE is not set"},
    {.env = "RANK=4 WORLD_SIZE=4", .says = "RANK: 4"},
    {.env = "RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=5", .says = "LOCAL_WORLD_SIZE: 5"},
    {.env = "RANK=0 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", .says = "LOCAL_RANK: 2"},
    {.env = "RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2", .says = "LOCAL_RANK is not set"},
    {.env = "RANK=0 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", .says = "host by host"},
    {.env = "RANK=3 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2", .says = "host by host"},
    {.env = "RANK=2 WORLD_SIZE=4 LOCAL_RANK=0", .says = "without a local count"},
    {.env = "RANK=0 WORLD_SIZE=600 LOCAL_RANK=0 LOCAL_WORLD_SIZE=600", .says = "600 ranks"},
    {.env = "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=65530",
     .says = "MASTER_PORT: 65530"},
    {.env = "RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4",
     .says = "two launchers: RANK 0 of WORLD_SIZE 2, but openmpi says rank 1 of 4"},
    {.env = "SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_NODEID=1 "
            "SLURM_STEP_TASKS_PER_NODE=2(x2)",
     .says = "srun -m block"},
    {.env = "SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_NODEID=0 "
            "SLURM_STEP_TASKS_PER_NODE=2(x2)",
     .says = "SLURM_STEP_TASKS_PER_NODE: 2 of 4 ranks, but SLURM_LOCALID is not set"},
    {.env = "SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=6 SLURM_LOCALID=1 SLURM_NODEID=0 "
            "SLURM_STEP_TASKS_PER_NODE=2(x2)",
     .says = "which is 4 tasks"},
    {.env = "SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_NODEID=0 "
            "SLURM_STEP_TASKS_PER_NODE=2(y2)",
     .says = "a list as in"},
};

static void environments(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof envs / sizeof envs[0]; i++) {
        const struct env_row *e = &envs[i];
        struct ku_env_job job;
        char *text = ku_strdup(e->env), *save = NULL;
        clearenv();
        for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save))
            putenv(w);
        int status = ku_env_job(&job);
        if (e->says) {
            if (status != KUMI_EINVAL || !strstr(ku_err_get()->text, e->says))
                fail_msg("%s: %d: %s", e->env, status, ku_err_get()->text);
        } else if (status || job.rank != e->rank || job.n != e->n ||
                   job.local_rank != e->local_rank || job.local_n != e->local_n ||
                   job.host_index != e->host_index || strcmp(job.root, e->root) != 0 ||
                   (e->host && strcmp(job.host_name, e->host) != 0)) {
            fail_msg("%s: %d: rank %d of %d, local %d of %d, host %d %s, root %s", e->env, status,
                     job.rank, job.n, job.local_rank, job.local_n, job.host_index, job.host_name,
                     job.root);
        }
        clearenv();
        ku_free(text);
    }
}

/* Hosts of one job have one world, but differ in what names their sockets. */
static void ids(void **state)
{
    struct ku_env_job a, b, c;
    (void)state;
    clearenv();
    setenv("WORLD_SIZE", "4", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    setenv("MASTER_PORT", "1000", 1);
    setenv("RANK", "0", 1);
    setenv("LOCAL_RANK", "0", 1);
    assert_int_equal(ku_env_job(&a), 0);
    setenv("RANK", "1", 1);
    setenv("LOCAL_RANK", "1", 1);
    assert_int_equal(ku_env_job(&b), 0);
    setenv("RANK", "3", 1);
    assert_int_equal(ku_env_job(&c), 0);
    assert_true(a.job_id == b.job_id && a.job_id != c.job_id);
    assert_true(a.world_id && a.world_id == b.world_id && a.world_id == c.world_id);
    /* ranks of a host that are not numbered host by host still find each other, and say so */
    setenv("GROUP_RANK", "0", 1);
    assert_int_equal(ku_env_job(&b), 0);
    setenv("RANK", "1", 1);
    assert_int_equal(ku_env_job(&c), 0);
    assert_true(b.job_id == c.job_id);
    setenv("GROUP_RANK", "1", 1);
    assert_int_equal(ku_env_job(&c), 0);
    assert_true(b.job_id != c.job_id);
    unsetenv("GROUP_RANK");
    unsetenv("MASTER_PORT");
    assert_int_equal(ku_env_job(&c), 0);
    assert_true(c.world_id == 0);
    clearenv();
    /* Slurm gives no port; all hosts take the same */
    int port[2];
    setenv("SLURM_JOB_ID", "7", 1);
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_NTASKS", "2", 1);
    setenv("SLURM_STEP_TASKS_PER_NODE", "1(x2)", 1);
    setenv("SLURM_STEP_NODELIST", "n[01-02]", 1);
    setenv("SLURM_LOCALID", "0", 1);
    for (int i = 0; i < 2; i++) {
        setenv("SLURM_PROCID", i ? "1" : "0", 1);
        setenv("SLURM_NODEID", i ? "1" : "0", 1);
        assert_int_equal(ku_env_job(&a), 0);
        assert_int_equal(sscanf(a.root, "n01:%d+16", &port[i]), 1);
    }
    assert_true(port[0] == port[1] && port[0] >= 20000 && port[0] < 32000);
    clearenv();
}

struct pin_row {
    int n, threads, n_allowed, n_cpus;
    bool is_due[3]; /* auto, never, always */
};

static const struct pin_row pins[] = {
    {1, 1, 1, 1, {true, false, true}},
    {1, 1, 2, 2, {false, false, true}}, /* a second job like it has the other CPU */
    {2, 1, 2, 2, {true, false, true}},
    {1, 2, 2, 2, {true, false, true}},
    {2, 2, 2, 2, {false, false, false}},
    {4, 1, 64, 4, {false, false, true}}, /* a quota: any 4 of 64 CPUs */
    {4, 1, 4, 4, {true, false, true}},   /* the same by the affinity mask */
    {4, 16, 64, 64, {true, false, true}},
    {4, 8, 64, 64, {false, false, true}},
    {4, 8, 63, 63, {true, false, true}},
    {4, 8, 63, 62, {false, false, true}},
    {512, 4096, 64, 64, {false, false, false}},
    {512, 4096 * 1024, 64, 64, {false, false, false}}, /* the product is 2^31 */
    {1, 1, 0, 1, {false, false, false}},               /* the affinity is unknown */
};

static void pinning(void **state)
{
    static const enum ku_pinning setting[] = {KU_PIN_AUTO, KU_PIN_NEVER, KU_PIN_ALWAYS};
    enum ku_pinning got;
    (void)state;
    for (size_t i = 0; i < sizeof pins / sizeof *pins; i++) {
        const struct pin_row *p = &pins[i];
        for (int k = 0; k < 3; k++)
            if (ku_pin_is_due(setting[k], p->n, p->threads, p->n_allowed, p->n_cpus) !=
                p->is_due[k])
                fail_msg("row %zu, setting %d", i, k);
    }
    unsetenv("KUMI_PIN");
    assert_true(ku_pin_setting(&got) == 0 && got == KU_PIN_AUTO);
    setenv("KUMI_PIN", "", 1);
    assert_true(ku_pin_setting(&got) == 0 && got == KU_PIN_AUTO);
    setenv("KUMI_PIN", "0", 1);
    assert_true(ku_pin_setting(&got) == 0 && got == KU_PIN_NEVER);
    setenv("KUMI_PIN", "1", 1);
    assert_true(ku_pin_setting(&got) == 0 && got == KU_PIN_ALWAYS);
    setenv("KUMI_PIN", "2", 1);
    assert_int_equal(ku_pin_setting(&got), KUMI_EINVAL);
    assert_string_equal(ku_err_get()->text, "KUMI_PIN: 2; give 0 or 1");
    unsetenv("KUMI_PIN");
}

static void jobs(void **state)
{
    char *argv[] = {(char[]){"sh"}, (char[]){""}, (char[]){"a b"}, NULL};
    char *env[] = {(char[]){"PATH=/bin"}, (char[]){"KUMI_X="}, NULL};
    const struct ku_host_job job = {.first_rank = 4,
                                    .n_local = 4,
                                    .n = 8,
                                    .host_index = 1,
                                    .n_hosts = 2,
                                    .threads = 3,
                                    .port = 20000,
                                    .flags = KU_HOST_PIN | KU_HOST_PRETENDS,
                                    .world_id = 77,
                                    .secret = {1, 2, 3},
                                    .host = "b",
                                    .master = "a",
                                    .root = "a:20001+16",
                                    .folder = "/tmp",
                                    .argv = argv,
                                    .env = env};
    struct ku_host_job back;
    struct ku_str s = {0};
    (void)state;
    ku_host_job_encode(&job, &s);
    assert_int_equal(ku_host_job_decode(s.text, s.bytes, &back), 0);
    assert_memory_equal(&job, &back, offsetof(struct ku_host_job, host));
    assert_string_equal(back.host, "b");
    assert_string_equal(back.root, "a:20001+16");
    assert_string_equal(back.argv[2], "a b");
    assert_null(back.argv[3]);
    assert_string_equal(back.env[1], "KUMI_X=");
    assert_null(back.env[2]);
    ku_host_job_fini(&back);
    for (size_t bytes = 0; bytes < s.bytes; bytes++)
        assert_int_equal(ku_host_job_decode(s.text, bytes, &back), KUMI_EINVAL);
    ku_str_append(&s, "", 1);
    assert_int_equal(ku_host_job_decode(s.text, s.bytes, &back), KUMI_EINVAL);
    ku_str_fini(&s);
}

/* Frames that come byte by byte behind a greeting. */
static void frames(void **state)
{
    struct ku_wire out = {0}, in = {0};
    struct ku_frame f;
    const char *payload;
    int p[2], n_frames = 0;
    (void)state;
    assert_int_equal(pipe(p), 0);
    ku_str_append(&out.buf, "Welcome\n\1kumi ", 14);
    ku_str_append(&out.buf, KU_WIRE_SYNC, sizeof KU_WIRE_SYNC - 1);
    ku_wire_put(&out, KU_FRAME_HELLO, 0, KU_WIRE_ABI, NULL, 0);
    ku_wire_put(&out, KU_FRAME_LINES, 3, 2, "abc\n", 4);
    while (ku_wire_pending(&out)) {
        assert_int_equal(ku_wire_flush(&out, p[1], 1), 0);
        assert_int_equal(ku_wire_read(&in, p[0]), 1);
        int status = ku_wire_take(&in, &f, &payload);
        assert_true(status >= 0);
        n_frames += status;
        if (status)
            assert_int_equal(f.kind, n_frames == 1 ? KU_FRAME_HELLO : KU_FRAME_LINES);
    }
    assert_int_equal(n_frames, 2);
    assert_true(f.rank == 3 && f.value == 2 && f.bytes == 4 && memcmp(payload, "abc\n", 4) == 0);
    f.kind = 99;
    ku_str_append(&in.buf, &f, sizeof f);
    assert_int_equal(ku_wire_take(&in, &f, &payload), KUMI_EINVAL);
    close(p[1]);
    assert_int_equal(ku_wire_read(&in, p[0]), 0);
    close(p[0]);
    ku_wire_fini(&in);
    ku_wire_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(host_lists),   cmocka_unit_test(hostfiles),
                                       cmocka_unit_test(many_hosts),   cmocka_unit_test(divisors),
                                       cmocka_unit_test(slurm_lists),  cmocka_unit_test(ids),
                                       cmocka_unit_test(jobs),         cmocka_unit_test(frames),
                                       cmocka_unit_test(environments), cmocka_unit_test(pinning)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
