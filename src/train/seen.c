/* SPDX-License-Identifier: Apache-2.0 */
#include "train/seen.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/socket.h"
#include "base/str.h"
#include "comm/consensus.h"
#include "job/hosts.h"

static const char PREFIX[] = ".kumi-hosts-";
enum { NAME_BYTES = sizeof PREFIX + 16, N_NAMED = 4, POLL_US = 20000 };
static const int64_t SEEN_NS = 2000000000;

/* Files of jobs that were killed during their check. A failure leaves an empty file. */
static void remove_old(const char *path)
{
    char **names;
    int n;
    if (ku_os_list(path, &names, &n) < 0)
        return;
    for (int i = 0; i < n; i++) {
        char *old = strncmp(names[i], PREFIX, sizeof PREFIX - 1) == 0
                        ? ku_asprintf("%s/%s", path, names[i])
                        : NULL;
        if (old)
            (void)ku_os_unlink(old);
        ku_free(old);
    }
    ku_free(names);
}

/* Rank 0: makes the file. On failure there is none. */
static int make_file(const char *what, const char *path, char name[NAME_BYTES])
{
    uint64_t nonce;
    if (ku_os_random(&nonce, sizeof nonce) < 0)
        return KU_ERR(KUMI_ENOMEM, "%s: random bytes: %s", what, ku_os_why());
    snprintf(name, NAME_BYTES, "%s%016llx", PREFIX, (unsigned long long)nonce);
    char *file = ku_asprintf("%s/%s", path, name);
    if (file == NULL)
        return KUMI_ENOMEM;
    remove_old(path);
    const int fd = ku_os_open(file, O_WRONLY | O_CREAT | O_EXCL, 0666);
    const int status = fd >= 0 ? KUMI_OK
                               : KU_ERR(ku_os_status(KUMI_ESTORAGE),
                                        "%s: %s: cannot be written: %s; choose another one", what,
                                        path, ku_os_why());
    if (fd >= 0)
        ku_os_close(fd);
    ku_free(file);
    return status;
}

static void remove_file(const char *what, const char *path, const char *name)
{
    char *file = ku_asprintf("%s/%s", path, name);
    if (file && ku_os_unlink(file) < 0)
        KU_LOG(TRAIN, WARN, "%s: %s: cannot be removed: %s; it is not used any more", what, file,
               ku_os_why());
    ku_free(file);
}

static bool can_open(const char *path, int flags)
{
    const int fd = ku_os_open(path, flags | O_RDONLY, 0);
    if (fd >= 0)
        ku_os_close(fd);
    return fd >= 0;
}

/*
 * Whether this host sees the file: 1, 0; < 0: no memory. NFS may remember that a directory was not
 * there; opening its parent makes it ask again.
 */
static int does_see(struct ku_job *job, const char *what, const char *path, const char *name)
{
    const int64_t deadline = ku_clock_ns() + SEEN_NS;
    const char *slash = strrchr(path, '/');
    char *file = ku_asprintf("%s/%s", path, name);
    char *parent = slash ? ku_asprintf("%.*s", (int)(slash - path) + 1, path) : ku_strdup(".");
    int seen = file && parent ? 0 : KUMI_ENOMEM;
    while (seen == 0 && !(seen = can_open(file, 0)) && ku_clock_ns() < deadline) {
        (void)can_open(parent, O_DIRECTORY);
        ku_job_tick(job); /* the others wait */
        usleep(POLL_US);
    }
    if (seen == 0 && !can_open(file, 0))
        KU_LOG(TRAIN, INFO, "%s: rank %d: %s: %s", what, job->rank, file, ku_os_why());
    ku_free(file);
    ku_free(parent);
    return seen;
}

/* All ranks: name the first hosts that do not see the directory, one by one. */
static int refuse(struct ku_job *job, const char *what, const char *path, bool is_blind,
                  int n_blind)
{
    char names[N_NAMED * (KU_HOST_NAME_BYTES + 2)] = "", more[32] = "";
    size_t bytes = 0;
    int64_t last = -1;
    for (int i = 0; i < n_blind && i < N_NAMED; i++) {
        int64_t word = is_blind && job->host > last ? job->n_hosts - job->host : 0;
        KU_TRY(ku_agree_max(job, &word));
        last = job->n_hosts - word; /* the lowest one that is not named yet */
        bytes += (size_t)snprintf(names + bytes, sizeof names - bytes, "%s%.40s", i ? ", " : "",
                                  ku_job_hosts(job)[last].name);
    }
    if (n_blind > N_NAMED)
        snprintf(more, sizeof more, " and %d more", n_blind - N_NAMED);
    return KU_ERR(KUMI_EINVAL,
                  "%s: %.140s: %d of the %d hosts cannot see it: %s%s; give a path on a "
                  "file system that all hosts share",
                  what, path, n_blind, job->n_hosts, names, more);
}

int ku_check_seen(struct ku_job *job, const char *what, const char *path)
{
    char name[NAME_BYTES] = "";
    if (job->n_hosts < 2)
        return KUMI_OK;
    const bool is_first = job->rank == 0;
    KU_TRY(ku_agree_worst(job, is_first ? make_file(what, path, name) : KUMI_OK));
    int status = ku_agree_bytes(job, name, sizeof name);
    int seen = 1;
    if (status == KUMI_OK && job->host > 0 && job->local_rank == 0)
        seen = does_see(job, what, path, name);
    if (status == KUMI_OK)
        status = ku_agree_worst(job, seen < 0 ? seen : KUMI_OK);
    const bool is_blind = seen == 0;
    int64_t n_blind = is_blind;
    if (status == KUMI_OK)
        status = ku_agree_sum(job, &n_blind, 1);
    if (is_first)
        remove_file(what, path, name);
    KU_TRY(status);
    return n_blind ? refuse(job, what, path, is_blind, (int)n_blind) : KUMI_OK;
}
