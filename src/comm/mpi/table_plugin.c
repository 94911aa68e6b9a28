/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of one make of MPI. This file is compiled once per make, with KU_MPI_MAKE as its name,
 * into a plug-in of its own.
 */
#include "comm/mpi/mpi_table.h"

#include <link.h>
#include <mpi.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * MPI has one state in a process. A plug-in is never unloaded, since MPI libraries do not survive
 * that.
 */
static struct ku_mpi_process process;
static struct {
    MPI_Comm comm; /* of kumi alone */
    MPI_Request request;
    int is_joining, is_joined, is_broadcasting;
    int is_started;
    atomic_int is_final;
    pid_t pid;
} state;
enum {
    BARRIER_MS = 600000,  /* as long as a job waits for a rank by default */
    PAUSE_US = 100000,    /* until all ranks have left the barrier */
    FINALIZE_US = 5000000 /* takes milliseconds once all ranks are there */
};

/* The library's version, in one or more lines, without tabs */
static void read_version(char version[MPI_MAX_LIBRARY_VERSION_STRING])
{
    int len = 0;
    version[0] = '\0';
    if (MPI_Get_library_version(version, &len) != MPI_SUCCESS)
        snprintf(version, MPI_MAX_LIBRARY_VERSION_STRING, "unknown version");
    for (char *p = version; *p; p++)
        if (*p == '\t')
            *p = ' ';
}

static void library(char *text, size_t cap)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    read_version(version);
    snprintf(text, cap, "%.*s", (int)strcspn(version, "\n"), version);
}

/* Components of a framework of Open MPI, in the text that they are added to */
struct components {
    const char *framework;
    char *text;
    size_t cap, len;
    int n;
};

/* Adds ob1 of the framework pml if the object is .../mca_pml_ob1.so. */
static int add_component(struct dl_phdr_info *object, size_t bytes, void *arg)
{
    struct components *c = arg;
    const char *name = strrchr(object->dlpi_name, '/');
    char prefix[16];
    (void)bytes;
    snprintf(prefix, sizeof prefix, "/mca_%s_", c->framework);
    if (!name || strncmp(name, prefix, strlen(prefix)) != 0 || c->len >= c->cap)
        return 0;
    name += strlen(prefix);
    const char *before = c->n ? ", " : c->len ? "; " : "";
    c->len +=
        (size_t)snprintf(c->text + c->len, c->cap - c->len, "%s%s%s%.*s", before,
                         c->n ? "" : c->framework, c->n ? "" : " ", (int)strcspn(name, "."), name);
    c->n++;
    return 0;
}

/*
 * MPICH names its device in its version. Open MPI's components are shared objects, and MPI_Init
 * unloads those that it does not choose: of pml one stays, which uses the loaded ones of btl (ob1)
 * or mtl (cm), or a library of its own. A build with all of them in one object shows none.
 */
static void fabric(char *text, size_t cap)
{
    static const char device[] = "MPICH Device:";
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    struct components c = {.framework = "pml", .text = text, .cap = cap};
    text[0] = '\0';
    read_version(version);
    const char *line = strstr(version, device);
    if (line) {
        line += strlen(device) + strspn(line + strlen(device), " ");
        snprintf(text, cap, "%.*s", (int)strcspn(line, "\n"), line);
        return;
    }
    dl_iterate_phdr(add_component, &c);
    c.framework = strcmp(text, "pml ob1") == 0 ? "btl" : strcmp(text, "pml cm") == 0 ? "mtl" : NULL;
    c.n = 0;
    if (c.framework)
        dl_iterate_phdr(add_component, &c);
}

static void error_text(int error, char *text, size_t cap)
{
    char why[MPI_MAX_ERROR_STRING] = "";
    int len = 0;
    if (MPI_Error_string(error, why, &len) != MPI_SUCCESS)
        snprintf(why, sizeof why, "MPI error %d", error);
    snprintf(text, cap, "%.*s", (int)strcspn(why, "\n"), why);
}

/*
 * Sends a line of hydra's wire protocol (PMI-1), and calls MPI, which makes progress, until the
 * answer is there. False: hydra answers something else, or nothing.
 */
static bool pmi_call(const char *line, const char *expected)
{
    struct pollfd socket = {.fd = process.pmi_fd, .events = POLLIN};
    char answer[32] = "";
    size_t n = 0, len = strlen(expected);
    if (write(process.pmi_fd, line, strlen(line)) != (ssize_t)strlen(line))
        return false;
    for (int ms = 0; ms < BARRIER_MS && n < len; ms++) {
        int flag;
        if (MPI_Iprobe(MPI_ANY_SOURCE, process.max_tag, state.comm, &flag, MPI_STATUS_IGNORE))
            return false;
        if (poll(&socket, 1, 1) != 1)
            continue;
        ssize_t got = read(process.pmi_fd, answer + n, len - n);
        if (got <= 0)
            return false;
        n += (size_t)got;
    }
    return strcmp(answer, expected) == 0;
}

/*
 * With hydra, MPICH's launcher: ends this rank in its eyes in place of MPI_Finalize. After the
 * barrier all ranks have left MPI's, so no message is under way.
 */
static bool leave_hydra(void)
{
    return process.pmi_fd > 0 && pmi_call("cmd=barrier_in\n", "cmd=barrier_out\n") &&
           pmi_call("cmd=finalize\n", "cmd=finalize_ack\n");
}

/* Ends the process with its status if MPI_Finalize does not return. */
static void *watch_finalize(void *status)
{
    usleep(FINALIZE_US);
    if (!atomic_load(&state.is_final)) {
        fflush(NULL);
        _exit((int)(intptr_t)status);
    }
    return NULL;
}

/*
 * At the end of a process whose job did not fail: wait for the other ranks and finalize MPI. After
 * a failure the process ends without MPI_Finalize, which waits for dead ranks too; launchers notice
 * that.
 *
 * MPI_Finalize of MPICH 4.0 over UCX on TCP flushes each connection with a message that the peer
 * must answer, then waits for the other ranks without answering: a rank that comes 10 ms late waits
 * forever. With hydra it is therefore not called. Elsewhere all ranks come to a barrier, call MPI
 * no more for a while, and then finalize at about the same time; a watchdog takes care of the rest.
 */
static void finish_at_exit(int status, void *unused)
{
    MPI_Request barrier;
    pthread_t thread;
    int is_final = 0, is_done = 0;
    (void)unused;
    if (process.phase != KU_MPI_CLOSED || state.pid != getpid() ||
        MPI_Finalized(&is_final) != MPI_SUCCESS || is_final ||
        MPI_Ibarrier(state.comm, &barrier) != MPI_SUCCESS)
        return;
    for (int ms = 0; ms < BARRIER_MS && !is_done; ms++) {
        if (MPI_Test(&barrier, &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return;
        usleep(1000);
    }
    if (!is_done || leave_hydra())
        return;
    usleep(PAUSE_US);
    if (pthread_create(&thread, NULL, watch_finalize, (void *)(intptr_t)status) == 0) {
        pthread_detach(thread);
        MPI_Finalize();
        atomic_store(&state.is_final, 1);
    }
}

static int start(void)
{
    int is_begun = 0, is_final = 0, level = 0, is_found = 0, error;
    int *max_tag = NULL;
    if (state.is_started)
        return 0;
    if ((error = MPI_Initialized(&is_begun)) || (error = MPI_Finalized(&is_final)))
        return error;
    if (is_final)
        return MPI_ERR_OTHER;
    if (!is_begun) {
        if ((error = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level)))
            return error;
        state.pid = getpid();
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        if (on_exit(finish_at_exit, NULL))
            return MPI_ERR_NO_MEM;
    }
    if ((error = MPI_Comm_rank(MPI_COMM_WORLD, &process.rank)) ||
        (error = MPI_Comm_size(MPI_COMM_WORLD, &process.n)) ||
        (error = MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &max_tag, &is_found)))
        return error;
    process.max_tag = is_found ? *max_tag : 32767; /* the standard's minimum */
    state.is_started = 1;
    return 0;
}

static int join(int *is_done)
{
    int error;
    *is_done = state.is_joined;
    if (state.is_joined)
        return 0;
    if (!state.is_joining) {
        if ((error = MPI_Comm_idup(MPI_COMM_WORLD, &state.comm, &state.request)))
            return error;
        state.is_joining = 1;
    }
    if ((error = MPI_Test(&state.request, is_done, MPI_STATUS_IGNORE)) || !*is_done)
        return error;
    state.is_joined = 1;
    return MPI_Comm_set_errhandler(state.comm, MPI_ERRORS_RETURN);
}

static int broadcast(void *blob, int bytes, int *is_done)
{
    int error;
    if (!state.is_broadcasting) {
        if ((error = MPI_Ibcast(blob, bytes, MPI_BYTE, 0, state.comm, &state.request)))
            return error;
        state.is_broadcasting = 1;
    }
    error = MPI_Test(&state.request, is_done, MPI_STATUS_IGNORE);
    state.is_broadcasting = !error && !*is_done;
    return error;
}

/*
 * The type of a message in several pieces: `piece[0].at` is its address. One piece takes no type.
 */
static int make_type(const struct ku_mpi_piece *piece, int n_pieces, MPI_Datatype *type)
{
    int bytes[KU_MPI_PIECES], error;
    MPI_Aint at[KU_MPI_PIECES], first;
    if ((error = MPI_Get_address(piece[0].at, &first)))
        return error;
    for (int i = 0; i < n_pieces; i++) {
        bytes[i] = (int)piece[i].bytes;
        if ((error = MPI_Get_address(piece[i].at, &at[i])))
            return error;
        at[i] = MPI_Aint_diff(at[i], first);
    }
    if ((error = MPI_Type_create_hindexed(n_pieces, bytes, at, MPI_BYTE, type)))
        return error;
    return MPI_Type_commit(type);
}

static int post(int is_recv, const struct ku_mpi_piece *piece, int n_pieces, int rank, int tag,
                MPI_Request *request)
{
    MPI_Datatype type = MPI_BYTE;
    void *at = n_pieces ? piece[0].at : NULL;
    int count = n_pieces ? (int)piece[0].bytes : 0, error;
    if (n_pieces > 1) {
        if ((error = make_type(piece, n_pieces, &type)))
            return error;
        count = 1;
    }
    error = is_recv ? MPI_Irecv(at, count, type, rank, tag, state.comm, request)
                    : MPI_Isend(at, count, type, rank, tag, state.comm, request);
    if (n_pieces > 1)
        MPI_Type_free(&type); /* MPI keeps it until the request is done */
    return error;
}

static int send_pieces(const struct ku_mpi_piece *piece, int n_pieces, int rank, int tag,
                       void *requests, int index)
{
    return post(0, piece, n_pieces, rank, tag, (MPI_Request *)requests + index);
}

static int recv_pieces(const struct ku_mpi_piece *piece, int n_pieces, int rank, int tag,
                       void *requests, int index)
{
    return post(1, piece, n_pieces, rank, tag, (MPI_Request *)requests + index);
}

/* Of one request. MPI_Testsome wants arrays of both. */
struct scratch {
    MPI_Status status;
    int index;
};

static int test(void *requests, int n, void *scratch, struct ku_mpi_done *done, int *n_done)
{
    MPI_Status *status = scratch;
    int *index = (int *)(void *)(status + n), flag, error;
    *n_done = 0;
    if (n == 0)
        return MPI_Iprobe(MPI_ANY_SOURCE, process.max_tag, state.comm, &flag, MPI_STATUS_IGNORE);
    error = MPI_Testsome(n, requests, n_done, index, status);
    if (*n_done == MPI_UNDEFINED) /* all are null requests */
        *n_done = 0;
    if (error && error != MPI_ERR_IN_STATUS)
        return error;
    for (int i = 0; i < *n_done; i++) {
        int bytes = 0;
        done[i].index = index[i];
        done[i].error = error ? status[i].MPI_ERROR : 0;
        if (!done[i].error && MPI_Get_count(&status[i], MPI_BYTE, &bytes) != MPI_SUCCESS)
            bytes = 0;
        done[i].bytes = bytes > 0 ? (uint64_t)bytes : 0;
    }
    return 0;
}

extern const struct ku_mpi_table ku_mpi_table;
__attribute__((visibility("default"))) const struct ku_mpi_table ku_mpi_table = {
    .abi = KU_MPI_ABI,
    .table_bytes = sizeof ku_mpi_table,
    .make = KU_MPI_MAKE,
    .process = &process,
    .request_bytes = sizeof(MPI_Request),
    .scratch_bytes = sizeof(struct scratch),
    .library = library,
    .fabric = fabric,
    .error_text = error_text,
    .start = start,
    .join = join,
    .broadcast = broadcast,
    .send = send_pieces,
    .recv = recv_pieces,
    .test = test,
};
