/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which make of MPI started this rank, and where its plug-in is.
 */
#include "base/env.h"
#include "base/err.h"
#include "base/os/os.h"
#include "base/os/plugin.h"
#include "comm/mpi/private.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/*
 * The variables that a launcher gives to the library of its make, without which MPI_Init would
 * start a job of one rank. PMIx serves Open MPI under srun too, PMI serves MPICH.
 */
static const struct make {
    const char *name, *launcher;
    const char *variable[3];
} makes[KU_N_MPI_MAKES] = {
    [KU_MPI_OPENMPI] = {"openmpi",
                        "Open MPI's mpirun or srun --mpi=pmix",
                        {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK"}},
    [KU_MPI_MPICH] = {"mpich",
                      "MPICH's mpiexec or srun --mpi=pmi2",
                      {"PMI_RANK", "PMI_FD", "PMI_PORT"}},
};

const char *ku_mpi_make_name(enum ku_mpi_make make)
{
    KU_ASSERT(make >= 0 && make < KU_N_MPI_MAKES);
    return makes[make].name;
}

static bool has_started(const struct make *m)
{
    for (size_t i = 0; i < sizeof m->variable / sizeof *m->variable && m->variable[i]; i++)
        if (ku_env(m->variable[i]))
            return true;
    return false;
}

int ku_mpi_find(enum ku_mpi_make *make)
{
    const char *wanted = ku_env("KUMI_MPI");
    for (int i = 0; i < KU_N_MPI_MAKES; i++)
        if (wanted ? strcmp(wanted, makes[i].name) == 0 : has_started(&makes[i])) {
            if (wanted && !has_started(&makes[i]))
                return KU_ERR(KUMI_EINVAL,
                              "mpi: KUMI_MPI: %s: this rank lacks %s, so that MPI's launcher did "
                              "not start it; start the job with %s",
                              wanted, makes[i].variable[0], makes[i].launcher);
            *make = (enum ku_mpi_make)i;
            return 0;
        }
    if (wanted)
        return KU_ERR(KUMI_EINVAL, "mpi: KUMI_MPI: %s: unknown make of MPI; give openmpi or mpich",
                      wanted);
    return KU_ERR(KUMI_EINVAL,
                  "mpi: no MPI launcher started this rank (neither OMPI_COMM_WORLD_SIZE, PMIX_RANK "
                  "nor PMI_RANK is set); start the job with %s, with %s, or use tcp",
                  makes[KU_MPI_OPENMPI].launcher, makes[KU_MPI_MPICH].launcher);
}

/* Folder number i in which to look; false: there is none. An empty path: pass over it. */
static bool folder_of(int i, char path[PATH_MAX])
{
    char own[PATH_MAX] = "";
    const char *set = ku_env("KUMI_PLUGINS");
    if (set) {
        snprintf(path, PATH_MAX, "%s%s", strchr(set, '/') ? "" : "./", set);
        return i == 0;
    }
    path[0] = 0;
    if (i < 3 && ku_os_own_folder(own, sizeof own - sizeof KUMI_PLUGIN_LIB - 16) < 0)
        return true;
    switch (i) {
    case 0:
        snprintf(path, PATH_MAX, "%s", own);
        return true;
    case 1:
        snprintf(path, PATH_MAX, "%.*s/kumi", PATH_MAX - 8, own);
        return true;
    case 2:
        snprintf(path, PATH_MAX, "%.*s/../" KUMI_PLUGIN_LIB "/kumi", PATH_MAX - 128, own);
        return true;
    case 3:
        snprintf(path, PATH_MAX, "%s", KUMI_PLUGIN_FOLDER);
        return true;
    default:
        return false;
    }
}

/* The plug-in's file: 1; 0: none is there, and `path` is the first place tried. */
static int file_of(enum ku_mpi_make make, char path[PATH_MAX])
{
    char folder[PATH_MAX], file[PATH_MAX + 64];
    struct stat st;
    path[0] = 0;
    for (int i = 0; folder_of(i, folder); i++) {
        snprintf(file, sizeof file, "%s/libkumi-mpi-%s.so", folder, makes[make].name);
        if (!folder[0] || strlen(file) >= PATH_MAX)
            continue;
        bool is_there = ku_os_stat(file, &st) == 0 && S_ISREG(st.st_mode);
        if (is_there || !path[0])
            memcpy(path, file, strlen(file) + 1);
        if (is_there)
            return 1;
    }
    return 0;
}

/* Load a plug-in's table; NULL: `why` says what is wrong with it. */
static const struct ku_mpi_table *open_table(enum ku_mpi_make make, const char *path, char *why,
                                             size_t cap)
{
    struct ku_mpi_kept kept;
    if (ku_mpi_keep(&kept) < 0) {
        snprintf(why, cap, "%.200s", ku_err_get()->text);
        return NULL;
    }
    void *plugin = ku_os_plugin_load(path, why, cap);
    ku_mpi_restore(&kept);
    if (!plugin)
        return NULL;
    const struct ku_mpi_table *table = ku_os_plugin_object(plugin, KU_MPI_TABLE);
    if (!table || table->abi != KU_MPI_ABI || table->table_bytes != sizeof *table ||
        strcmp(table->make, makes[make].name) != 0) {
        snprintf(why, cap, "%.160s: not a plug-in of this version of kumi; install both together",
                 path);
        return NULL;
    }
    return table;
}

int ku_mpi_load(enum ku_mpi_make make, const struct ku_mpi_table **table)
{
    char path[PATH_MAX], why[256];
    if (!file_of(make, path))
        return KU_ERR(KUMI_EINVAL,
                      "mpi: %s: no such plug-in; build kumi where %s's mpicc is installed "
                      "(-DKUMI_MPI=ON), or set KUMI_PLUGINS to its folder",
                      path, makes[make].name);
    *table = open_table(make, path, why, sizeof why);
    if (!*table)
        return KU_ERR(KUMI_EINVAL, "mpi: %s", why);
    return 0;
}

int ku_net_mpi(const struct ku_net_ops **ops)
{
    enum ku_mpi_make make;
    const struct ku_mpi_table *table;
    KU_TRY(ku_mpi_find(&make));
    KU_TRY(ku_mpi_load(make, &table));
    *ops = make == KU_MPI_OPENMPI ? &ku_net_openmpi : &ku_net_mpich;
    return 0;
}

int ku_mpi_broadcast(const struct ku_mpi_place *place, void *blob, size_t bytes, int64_t timeout_ns)
{
    enum ku_mpi_make make;
    const struct ku_mpi_table *table;
    KU_TRY(ku_mpi_find(&make));
    KU_TRY(ku_mpi_load(make, &table));
    return ku_mpi_broadcast_by(table, place, blob, bytes, timeout_ns);
}

int ku_net_mpi_share(const char *launcher, int rank, int n, void *data, size_t bytes,
                     int64_t timeout_ns)
{
    const struct ku_mpi_place place = {.launcher = launcher, .rank = rank, .n = n};
    return ku_mpi_broadcast(&place, data, bytes, timeout_ns);
}

void ku_net_mpi_unshare(bool has_failed)
{
    enum ku_mpi_make make;
    const struct ku_mpi_table *table;
    const struct kumi_error own = *ku_err_get();
    if (ku_mpi_find(&make) == 0 && ku_mpi_load(make, &table) == 0)
        ku_mpi_end_broadcast(table, has_failed);
    else
        KU_IGNORE(ku_err_put(&own), "the process ends without MPI_Finalize");
}

int ku_mpi_library(enum ku_mpi_make make, char *text, size_t cap)
{
    char path[PATH_MAX];
    if (!file_of(make, path))
        return 0;
    const struct ku_mpi_table *table = open_table(make, path, text, cap);
    if (!table)
        return -1;
    table->library(text, cap);
    return 1;
}
