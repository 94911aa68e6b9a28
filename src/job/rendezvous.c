/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of a host find each other.
 *
 *     local rank 0                            local rank r
 *     listen on abstract socket of user+job   connect, until it succeeds
 *     accept                       <── hello  magic, version, job, local rank, ranks of the host
 *     check user and hello         ──> hello  with the segment's descriptor, if rank 0 created it
 *                                             check user, map the segment
 *
 * Under kumi's own launcher the segment was inherited and only the connections are made. They stay
 * open, to pass descriptors of arenas.
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/ipc.h"
#include "base/os/process.h"
#include "job/private.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { VERDICT_MS = 1000, MAX_DROPPED = 10 };
#define HELLO_NS INT64_C(1000000000) /* of a connection that says nothing, before the next one */

/* The number of a rank in messages, as the user knows it */
static int job_rank(const struct ku_env_job *env, int local)
{
    return env->rank - env->local_rank + local;
}

struct hello {
    uint32_t magic, abi;
    uint64_t job_id;
    int32_t local, n;
    int32_t first_rank, n_ranks; /* of the job */
};

static struct hello hello_of(const struct ku_env_job *env)
{
    return (struct hello){.magic = KU_SEGMENT_MAGIC,
                          .abi = KU_SEGMENT_ABI,
                          .job_id = env->job_id,
                          .local = env->local_rank,
                          .n = env->local_n,
                          .first_rank = job_rank(env, 0),
                          .n_ranks = env->n};
}

/* Hosts that are one machine share the abstract names, so the name says which host it is. */
void ku_rendezvous_name(const struct ku_env_job *env, char name[KU_SOCKET_NAME_BYTES])
{
    int n = snprintf(name, KU_SOCKET_NAME_BYTES, "kumi.%lu.%016llx", (unsigned long)geteuid(),
                     (unsigned long long)env->job_id);
    if (env->n > env->local_n)
        snprintf(name + n, KU_SOCKET_NAME_BYTES - (size_t)n, ".%s", env->host_name);
}

/*
 * Record the system's refusal of a socket. No peer is at fault.
 */
static int refused(const char *name, const char *what)
{
    switch (errno) {
    case EADDRINUSE:
        return KU_ERR(KUMI_EINVAL,
                      "join: %s%s: %s; is a job with the same id still running, or "
                      "a rank of this host started twice?",
                      what, name, ku_os_why());
    case EMFILE:
    case ENFILE:
        return KU_ERR(KUMI_ENOMEM, "join: %s%s: %s; raise the limit (ulimit -n)", what, name,
                      ku_os_why());
    case ENOMEM:
    case ENOBUFS:
        return KU_ERR(KUMI_ENOMEM, "join: %s%s: %s", what, name, ku_os_why());
    }
    return KU_ERR(KUMI_ESTORAGE, "join: %s%s: %s; ranks of a host find each other by Unix sockets",
                  what, name, ku_os_why());
}

static int check_uid(int fd)
{
    uid_t uid;
    pid_t pid;
    if (ku_os_local_peer(fd, &uid, &pid) < 0)
        return refused("", "user of the peer");
    if (uid != geteuid())
        return KU_ERR(KUMI_EINVAL,
                      "join: the job's socket belongs to user %lu, this process to user %lu; "
                      "choose another job id",
                      (unsigned long)uid, (unsigned long)geteuid());
    return 0;
}

/* The job may end before all ranks have joined: by the root cause, or by a pending stop signal. */
static int look(const struct ku_env_job *env, struct ku_segment *seg)
{
    struct kumi_error root;
    /* ranks of kumi's launcher join first, then stop */
    int signal = env->control_fd >= 0 ? 0 : ku_os_stop_pending();
    if (seg && ku_segment_root(seg, &root) < 0)
        return ku_err_put(&root);
    if (signal)
        return KU_ERR(KUMI_ESTOPPED, "stopped: signal %d (%s): before all ranks had joined", signal,
                      strsignal(signal));
    return 0;
}

/*
 * The other rank has ended. kumi's launcher reaps it within moments and sets the root cause, which
 * becomes this rank's error too.
 */
static int await_verdict(const struct ku_env_job *env, struct ku_segment *seg)
{
    for (int ms = 0; seg && ms < VERDICT_MS; ms++) {
        KU_TRY(look(env, seg));
        usleep(1000);
    }
    return 0;
}

/* The launcher's option that numbers ranks host by host */
static const char *order_hint(const struct ku_env_job *env)
{
    if (env->n == env->local_n)
        return "";
    return strcmp(env->launcher, "openmpi") == 0 ? ": mpirun --map-by slot"
           : strcmp(env->launcher, "slurm") == 0 ? ": srun -m block"
           : strcmp(env->launcher, "mpich") == 0 ? ": mpiexec without -rr"
                                                 : ": RANK is the host's first rank + LOCAL_RANK";
}

/* Rank first + local has found local rank 0 of its host, which is rank `leader`. */
static int refuse_order(const struct ku_env_job *env, int first, int local, int leader)
{
    return KU_ERR(KUMI_EINVAL,
                  "join: rank %d is local rank %d on the host of rank %d; ranks are numbered host "
                  "by host%s",
                  first + local, local, leader, order_hint(env));
}

/* `other`: the connection of that rank; -1: it is this process. */
static int refuse_twice(const struct ku_env_job *env, int rank, int fd, int other)
{
    uid_t uid;
    pid_t first = getpid(), second = 0;
    if (ku_os_local_peer(fd, &uid, &second) < 0 ||
        (other >= 0 && ku_os_local_peer(other, &uid, &first) < 0))
        return refused("", "process of the peer");
    return KU_ERR(KUMI_EINVAL,
                  "join: rank %d of %d was started twice: processes %d and %d; start every rank "
                  "once",
                  rank, env->n, (int)first, (int)second);
}

/*
 * Handle one connection. Returns 1 for a new rank, and 0 if another user or job connected, which is
 * dropped. Another version, a wrong rank and a duplicate are errors.
 */
static int welcome(const struct ku_env_job *env, int fd, int segment_fd, struct ku_segment *seg,
                   int *sockets)
{
    struct hello h;
    int none = -1;
    if (check_uid(fd) < 0 || ku_os_local_recv(fd, &h, sizeof h, &none, HELLO_NS) < 0 ||
        h.magic != KU_SEGMENT_MAGIC || h.job_id != env->job_id) {
        if (none >= 0)
            ku_os_close(none);
        ku_os_close(fd);
        return 0;
    }
    const struct hello answer = hello_of(env);
    const bool is_first = h.abi == KU_SEGMENT_ABI && h.local == 0 && h.n == env->local_n &&
                          h.first_rank == answer.first_rank;
    const bool is_local = h.abi == KU_SEGMENT_ABI && h.local >= 1 && h.local < env->local_n;
    const bool is_twice = is_first || (is_local && sockets[h.local] >= 0);
    if (is_local && h.n_ranks == env->n && h.first_rank != answer.first_rank) {
        KU_IGNORE(ku_os_local_send(fd, &answer, sizeof answer, -1), "it may have ended");
        ku_os_close(fd);
        return refuse_order(env, h.first_rank, h.local, env->rank);
    }
    if (is_twice && h.n_ranks == env->n) {
        const int status =
            refuse_twice(env, h.first_rank + h.local, fd, is_first ? -1 : sockets[h.local]);
        ku_os_close(fd);
        return status;
    }
    if (!is_local || h.n != env->local_n || h.n_ranks != env->n) {
        ku_os_close(fd);
        return KU_ERR(
            KUMI_EINVAL,
            "join: a process connected as rank %d of %d to a job of %d; start every rank once, "
            "with one version of kumi",
            h.abi == KU_SEGMENT_ABI ? h.first_rank + h.local : -1, h.n_ranks, env->n);
    }
    if (ku_os_local_send(fd, &answer, sizeof answer, segment_fd) < 0) {
        const int why = errno;
        ku_os_close(fd);
        KU_TRY(await_verdict(env, segment_fd < 0 ? seg : NULL));
        return KU_ERR(KUMI_EPEER, "join: rank %d closed the connection: %s", job_rank(env, h.local),
                      strerror(why));
    }
    sockets[h.local] = fd;
    return 1;
}

static int gather(const struct ku_env_job *env, int listener, int segment_fd,
                  struct ku_segment *seg, int64_t deadline, int *sockets)
{
    for (int n_here = 1; n_here < env->local_n;) {
        KU_TRY(look(env, seg));
        if (ku_clock_ns() > deadline) {
            int missing = 1;
            while (sockets[missing] >= 0)
                missing++;
            return KU_ERR(KUMI_ETIMEDOUT,
                          "join: rank %d of %d did not connect in time (%d did); check that all "
                          "ranks were started%s%s",
                          job_rank(env, missing), env->n, n_here,
                          order_hint(env)[0] ? ", numbered host by host" : "", order_hint(env));
        }
        int fd = ku_os_local_accept(listener, KU_SLEEP_NS);
        if (fd < 0 && errno != EAGAIN)
            return refused("", "socket");
        if (fd < 0)
            continue;
        int status = welcome(env, fd, segment_fd, seg, sockets);
        if (status < 0)
            return status;
        n_here += status;
    }
    return 0;
}

/* Another process listens as local rank 0. It waits for ranks that do not come, so tell it. */
static void tell_first(const struct ku_env_job *env, const char *name)
{
    const struct hello h = hello_of(env);
    const int why = errno, fd = ku_os_local_connect(name);
    if (fd >= 0) {
        KU_IGNORE(ku_os_local_send(fd, &h, sizeof h, -1), "it may have ended");
        ku_os_close(fd);
    }
    errno = why;
}

static int lead(const struct ku_job_client *client, const struct ku_env_job *env, const char *name,
                int64_t deadline, struct ku_segment **seg, int *sockets)
{
    int segment_fd = -1, status = 0;
    int listener = ku_os_local_listen(name, env->local_n);
    if (listener < 0 && errno == EADDRINUSE)
        tell_first(env, name);
    if (listener < 0)
        return refused(name, "socket @");
    if (!*seg)
        status = ku_segment_create(client, env->local_n, env->job_id, &segment_fd, seg);
    if (segment_fd >= 0)
        ku_segment_set_ranks(*seg, job_rank(env, 0), env->n);
    if (!status)
        status = gather(env, listener, segment_fd, *seg, deadline, sockets);
    if (status < 0 && segment_fd >= 0) /* the ranks that are here already wait for this one */
        ku_segment_set_root(*seg, ku_err_get(), env->rank, 0);
    if (segment_fd >= 0)
        ku_os_close(segment_fd);
    ku_os_close(listener);
    return status;
}

/* Until local rank 0 listens. */
static int connect_first(const struct ku_env_job *env, const char *name, int64_t deadline,
                         struct ku_segment *seg, int *fd)
{
    while ((*fd = ku_os_local_connect(name)) < 0) {
        KU_TRY(look(env, seg));
        if (errno != ECONNREFUSED && errno != ENOENT && errno != EAGAIN)
            return refused(name, "socket @");
        if (ku_clock_ns() > deadline)
            return KU_ERR(KUMI_ETIMEDOUT,
                          "join: rank %d of %d did not connect in time; check that all ranks were "
                          "started%s%s",
                          job_rank(env, 0), env->n,
                          order_hint(env)[0] ? ", numbered host by host" : "", order_hint(env));
        usleep(1000);
    }
    return check_uid(*fd);
}

/*
 * Say which rank this is. A process that had no core for HELLO_NS between its connection and its
 * hello was dropped unheard, as a stranger would be, and connects again.
 */
static int greet(const struct ku_env_job *env, const char *name, int64_t deadline,
                 struct ku_segment *seg, int *fd)
{
    const struct hello h = hello_of(env);
    for (int n_dropped = 0;; n_dropped++) {
        KU_TRY(connect_first(env, name, deadline, seg, fd));
        if (ku_os_local_send(*fd, &h, sizeof h, -1) == 0)
            return 0;
        const int why = errno;
        KU_TRY(await_verdict(env, seg));
        const int64_t soon = ku_clock_ns() + VERDICT_MS * INT64_C(1000000);
        if (why != EPIPE || n_dropped == MAX_DROPPED)
            return KU_ERR(KUMI_EPEER, "join: rank %d closed the connection: %s", job_rank(env, 0),
                          strerror(why));
        ku_os_close(*fd);
        *fd = -1;
        deadline = soon < deadline ? soon : deadline; /* it listens, or it has ended */
    }
}

static int follow(const struct ku_job_client *client, const struct ku_env_job *env,
                  const char *name, int64_t deadline, struct ku_segment **seg, int *sockets)
{
    struct hello h;
    const int first = job_rank(env, 0);
    int segment_fd = -1;
    KU_TRY(greet(env, name, deadline, *seg, &sockets[0]));
    while (ku_os_local_recv(sockets[0], &h, sizeof h, &segment_fd, KU_SLEEP_NS) < 0) {
        int why = errno;
        KU_TRY(look(env, *seg));
        if (why != EAGAIN || ku_clock_ns() > deadline) {
            KU_TRY(await_verdict(env, *seg));
            return KU_ERR(
                KUMI_EPEER,
                "join: rank %d refused rank %d or ended; see the error that rank %d printed", first,
                env->rank, first);
        }
    }
    if (h.first_rank != first)
        return refuse_order(env, first, env->local_rank, h.first_rank);
    int status = *seg ? 0 : ku_segment_map(client, segment_fd, seg);
    if (segment_fd >= 0)
        ku_os_close(segment_fd);
    return status;
}

int ku_rendezvous(const struct ku_job_client *client, const struct ku_env_job *env,
                  int64_t timeout_ns, struct ku_segment **seg, int **sockets, int *n_sockets)
{
    char name[KU_SOCKET_NAME_BYTES];
    int64_t deadline = ku_clock_ns() + timeout_ns;
    *n_sockets = env->local_rank == 0 ? env->local_n : 1;
    *sockets = ku_malloc((size_t)*n_sockets * sizeof **sockets);
    if (!*sockets)
        return KUMI_ENOMEM;
    for (int i = 0; i < *n_sockets; i++)
        (*sockets)[i] = -1;
    ku_os_raise_files((uint64_t)env->local_n + 64);
    ku_rendezvous_name(env, name);
    return env->local_rank == 0 ? lead(client, env, name, deadline, seg, *sockets)
                                : follow(client, env, name, deadline, seg, *sockets);
}
