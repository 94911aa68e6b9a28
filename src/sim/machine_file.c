/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/machine_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cpu/cpu_features.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/os/os.h"

enum {
    MAX_BYTES = 1 << 20, /* some 10,000 rows */
    LOCK_TRIES = 100,    /* a holder reads and writes one small file */
    LOCK_WAIT_NS = 10 * 1000 * 1000
};

char *ku_machine_file(const char *name)
{
    char *folder = NULL, *path = NULL;
    if (ku_env_cache(&folder) < 0)
        return NULL;
    if (folder)
        path = ku_asprintf("%s/%s", folder, name);
    else
        KU_ERR(KUMI_EINPUT, "%s: no cache folder; set KUMI_CACHE or HOME", name);
    ku_free(folder);
    return path;
}

json_t *ku_machine_rows(const char *path)
{
    struct ku_json doc;
    if (ku_json_load(path, MAX_BYTES, &doc) < 0)
        return json_array();
    json_t *rows = json_is_array(doc.root) ? json_incref(doc.root) : json_array();
    ku_json_fini(&doc);
    return rows;
}

/* Makes the folder of a file; 0, or -1 with errno. */
static int make_folder(const char *path)
{
    char *folder = ku_strdup(path);
    if (folder)
        *strrchr(folder, '/') = '\0';
    else
        errno = ENOMEM;
    const int result = folder ? ku_os_mkdirs(folder) : -1, why = errno;
    ku_free(folder);
    errno = why;
    return result;
}

int ku_machine_lock(const char *path)
{
    char *name = ku_asprintf("%s.lock", path);
    const int fd = name && make_folder(path) == 0 ? ku_os_open(name, O_RDWR | O_CREAT, 0644) : -1;
    ku_free(name);
    for (int i = 0; fd >= 0 && i < LOCK_TRIES; i++) {
        if (ku_os_lock(fd) == 0)
            return fd;
        if (errno != EWOULDBLOCK)
            break;
        nanosleep(&(struct timespec){.tv_nsec = LOCK_WAIT_NS}, NULL);
    }
    if (fd >= 0)
        ku_os_close(fd);
    return -1;
}

int ku_machine_rows_write(const char *path, json_t *rows)
{
    char *text = ku_json_print(rows, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    int status = text ? KUMI_OK : KUMI_ENOMEM;
    if (text && (make_folder(path) < 0 || ku_os_replace(path, text, strlen(text)) < 0))
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "%s: %s; set KUMI_CACHE to a writable folder",
                        path, ku_os_why());
    ku_free(text);
    return status;
}

void ku_machine_id(char id[KU_MACHINE_ID_BYTES])
{
    char *text = NULL;
    size_t bytes = 0;
    id[0] = '\0';
    if (ku_os_slurp("/etc/machine-id", 4096, &text, &bytes) == 0 && bytes > 0)
        snprintf(id, KU_MACHINE_ID_BYTES, "%016llx", (unsigned long long)ku_hash64(text, bytes));
    ku_free(text);
}

/* Revision of the microcode; 0: unknown. */
static unsigned long microcode(void)
{
    static const char key[] = "\nmicrocode";
    char text[2048]; /* the first processor's lines up to its flags */
    int fd = ku_os_open("/proc/cpuinfo", O_RDONLY, 0);
    ssize_t n = fd >= 0 ? ku_os_read_full(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        ku_os_close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *at = strstr(text, key), *value = at ? strchr(at, ':') : NULL;
    return value ? strtoul(value + 1, NULL, 16) : 0;
}

void ku_machine_cpu(char cpu[KU_MACHINE_CPU_BYTES])
{
    unsigned signature = 0;
    const uint64_t hash = ku_cpu_feature_hash(&signature);
    snprintf(cpu, KU_MACHINE_CPU_BYTES, "%s, signature %x, microcode %lx, features %016llx, %s",
             ku_cpu_model(), signature, microcode(), (unsigned long long)hash,
             ku_cpu_isa_name(ku_cpu_isa()));
}
