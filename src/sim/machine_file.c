/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/machine_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu/cpu_features.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/os/os.h"

enum { MAX_BYTES = 1 << 20 }; /* some 10,000 rows */

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

int ku_machine_rows_write(const char *path, json_t *rows)
{
    char *folder = ku_strdup(path), *text = NULL;
    int status = KUMI_ENOMEM;
    if (folder == NULL)
        return status;
    *strrchr(folder, '/') = '\0';
    text = ku_json_print(rows, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    if (text && (ku_os_mkdirs(folder) < 0 || ku_os_replace(path, text, strlen(text)) < 0))
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "%s: %s; set KUMI_CACHE to a writable folder",
                        path, ku_os_why());
    else if (text)
        status = KUMI_OK;
    ku_free(text);
    ku_free(folder);
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
