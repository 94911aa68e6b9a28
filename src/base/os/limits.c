/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"

/*
 * Limits of this process on the host, from control groups. A group limits its descendants, so every
 * group from our own up to the mount point is read. /proc/self/cgroup names our group: "0::/a/b" in
 * version 2, "7:memory:/a/b" in version 1. In a container that path may not exist, but its
 * ancestors do.
 */

void ku_os_raise_files(uint64_t wanted)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < wanted) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

/*
 * Reads a small file into text, "" if it does not exist. No fault injection: callers cannot act on
 * a failure.
 */
static void read_text(char *text, size_t bytes, const char *root, const char *path)
{
    char full[PATH_MAX];
    text[0] = '\0';
    int n = snprintf(full, sizeof full, "%s%s", root, path);
    int fd = n < (int)sizeof full ? open(full, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    ssize_t got = read(fd, text, bytes - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
}

/* The text after `key` at the start of a line, or NULL. */
static const char *after_key(const char *text, const char *key)
{
    for (const char *p = text; p; p = strchr(p, '\n'), p = p ? p + 1 : NULL)
        if (strncmp(p, key, strlen(key)) == 0)
            return p + strlen(key);
    return NULL;
}

/*
 * Parses an unsigned number. Returns 0 with *out unchanged for "max", "-1" and NULL.
 */
static int parse_number(const char *text, uint64_t *out)
{
    char *end;
    while (text && (*text == ' ' || *text == '\t'))
        text++;
    if (text == NULL || *text < '0' || *text > '9')
        return 0;
    errno = 0;
    unsigned long long x = strtoull(text, &end, 10);
    *out = errno ? UINT64_MAX : x;
    return 1;
}

static int read_number(const char *root, const char *folder, const char *file, const char *key,
                       uint64_t *out)
{
    char path[PATH_MAX], text[8192];
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path)
        return 0;
    read_text(text, sizeof text, root, path);
    return parse_number(key ? after_key(text, key) : text, out);
}

/* Path of our group for a controller ("" = version 2), without the newline. "" if there is none. */
static void own_group(char *out, size_t bytes, const char *root, const char *controller)
{
    char text[8192];
    read_text(text, sizeof text, root, "/proc/self/cgroup");
    out[0] = '\0';
    for (char *line = text, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (path == NULL)
            continue;
        *names++ = *path++ = '\0';
        int is_ours = *controller == '\0' && *names == '\0';
        for (char *rest = names, *name; *controller && (name = strsep(&rest, ",")) != NULL;)
            is_ours |= strcmp(name, controller) == 0;
        if (is_ours) {
            snprintf(out, bytes, "%s", path);
            return;
        }
    }
}

/* Calls look(folder) for our group and all its ancestors up to the mount point. */
static void for_each_group(const char *root, const char *mount, const char *controller,
                           void (*look)(const char *root, const char *folder, uint64_t *least),
                           uint64_t *least)
{
    char group[PATH_MAX / 2], folder[PATH_MAX];
    own_group(group, sizeof group, root, controller);
    while (1) {
        char *slash = strrchr(group, '/');
        if (slash && slash[1] == '\0')
            *slash = '\0'; /* the root group is "/" */
        snprintf(folder, sizeof folder, "%s%s", mount, group);
        look(root, folder, least);
        slash = strrchr(group, '/');
        if (slash == NULL)
            return;
        *slash = '\0';
    }
}

/*
 * Lowers *least to limit - usage. Inactive page cache counts as free.
 */
static void look_memory(const char *root, const char *folder, uint64_t *least)
{
    static const char *const name[][4] = {
        {"memory.max", "memory.current", "memory.stat", "inactive_file "},
        {"memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file "}};
    for (int v = 0; v < 2; v++) {
        uint64_t limit, used = 0, idle = 0;
        if (!read_number(root, folder, name[v][0], NULL, &limit))
            continue;
        (void)read_number(root, folder, name[v][1], NULL, &used);
        (void)read_number(root, folder, name[v][2], name[v][3], &idle);
        used -= idle < used ? idle : used;
        uint64_t room = limit > used ? limit - used : 0;
        *least = room < *least ? room : *least;
    }
}

/* Lowers *least to the quota in whole CPUs, at least 1. */
static void look_cpu(const char *root, const char *folder, uint64_t *least)
{
    char path[PATH_MAX], text[128];
    uint64_t quota, period = 0;
    snprintf(path, sizeof path, "%.*s/cpu.max", PATH_MAX - 16, folder);
    read_text(text, sizeof text, root, path);
    if (parse_number(text, &quota)) {
        const char *blank = strchr(text, ' ');
        (void)parse_number(blank, &period);
    } else if (!read_number(root, folder, "cpu.cfs_quota_us", NULL, &quota) ||
               !read_number(root, folder, "cpu.cfs_period_us", NULL, &period)) {
        return;
    }
    if (period == 0)
        return;
    uint64_t cpus = quota / period ? quota / period : 1;
    *least = cpus < *least ? cpus : *least;
}

uint64_t ku_os_mem_available_under(const char *root)
{
    uint64_t kib, least = UINT64_MAX;
    if (read_number(root, "/proc", "meminfo", "MemAvailable:", &kib))
        least = kib * 1024;
    for_each_group(root, "/sys/fs/cgroup", "", look_memory, &least);
    for_each_group(root, "/sys/fs/cgroup/memory", "memory", look_memory, &least);
    return least;
}

int ku_os_n_cpus_under(const char *root, int n_allowed)
{
    uint64_t least = n_allowed < 1 ? 1 : (uint64_t)n_allowed;
    for_each_group(root, "/sys/fs/cgroup", "", look_cpu, &least);
    for_each_group(root, "/sys/fs/cgroup/cpu", "cpu", look_cpu, &least);
    return (int)least;
}

uint64_t ku_os_pss_under(const char *root)
{
    uint64_t kib = 0;
    return read_number(root, "/proc/self", "smaps_rollup", "Pss:", &kib) ? kib * 1024 : 0;
}

uint64_t ku_os_pss(void)
{
    return ku_os_pss_under("");
}

uint64_t ku_os_mem_available(void)
{
    return ku_os_mem_available_under("");
}

int ku_os_n_cpus_host(void)
{
    return ku_os_n_cpus_under("", (int)sysconf(_SC_NPROCESSORS_ONLN));
}

uint64_t ku_os_kernel(void)
{
    char *text;
    size_t bytes;
    if (ku_os_slurp("/proc/sys/kernel/random/boot_id", 256, &text, &bytes) < 0)
        return 0;
    const uint64_t kernel = bytes ? ku_hash64(text, bytes) : 0;
    ku_free(text);
    return kernel;
}

/*
 * The kernel refuses a set that is shorter than its number of possible CPUs, which may exceed
 * CPU_SETSIZE: Linux can be built for 8,192.
 */
enum { N_SETS = 65536 / CPU_SETSIZE };

void ku_os_cpus(uint64_t mask[KU_OS_CPU_WORDS])
{
    cpu_set_t set[N_SETS];
    memset(mask, 0, KU_OS_CPU_WORDS * sizeof *mask);
    if (sched_getaffinity(0, sizeof set, set))
        return;
    for (int i = 0; i < KU_OS_CPU_WORDS * 64 && i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &set[0]))
            mask[i / 64] |= UINT64_C(1) << i % 64;
}

int ku_os_set_cpus(const uint64_t mask[KU_OS_CPU_WORDS])
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < KU_OS_CPU_WORDS * 64 && i < CPU_SETSIZE; i++)
        if (mask[i / 64] >> i % 64 & 1)
            CPU_SET(i, &set);
    return sched_setaffinity(0, sizeof set, &set);
}

int ku_os_n_cpus(void)
{
    cpu_set_t set[N_SETS];
    int n = 0;
    if (sched_getaffinity(0, sizeof set, set) == 0)
        for (int i = 0; i < N_SETS; i++)
            n += CPU_COUNT(&set[i]);
    return ku_os_n_cpus_under("", n);
}
