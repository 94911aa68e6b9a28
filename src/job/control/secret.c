/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the job's secret comes from. The file serves hosts with a common home folder: the first
 * rank that finds none makes it, under a name that appears at once or not at all.
 */
#include "base/env.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/socket.h"
#include "job/control.h"
#include "job/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { HEX_BYTES = 2 * KU_SECRET_BYTES };

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* 0, or -1: not so many hex digits */
static int parse_hex(const char *text, size_t n, uint8_t secret[KU_SECRET_BYTES])
{
    if (n != HEX_BYTES)
        return -1;
    for (int i = 0; i < KU_SECRET_BYTES; i++) {
        int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return -1;
        secret[i] = (uint8_t)(high << 4 | low);
    }
    return 0;
}

int ku_secret_parse(const char *text, uint8_t secret[KU_SECRET_BYTES])
{
    if (parse_hex(text, strlen(text), secret) < 0)
        return KU_ERR(KUMI_EINVAL,
                      "KUMI_SECRET: %zu characters that are not %d hex digits; make one with "
                      "openssl rand -hex %d",
                      strlen(text), HEX_BYTES, KU_SECRET_BYTES);
    return 0;
}

/* The folder of the file; it has a name of its own in the environment of XDG. */
static int folder_of(char **out)
{
    const char *config = ku_env("XDG_CONFIG_HOME"), *home = ku_env("HOME");
    if (!config && !home)
        return KU_ERR(
            KUMI_EINVAL,
            "join: no secret: neither KUMI_SECRET nor HOME is set; set KUMI_SECRET equally "
            "on all hosts");
    *out = config ? ku_asprintf("%s/kumi", config) : ku_asprintf("%s/.config/kumi", home);
    return *out ? 0 : KUMI_ENOMEM;
}

static int check_file(const char *path, int fd)
{
    struct stat st;
    if (ku_os_fstat(fd, &st) < 0)
        return KU_ERR(KUMI_ESTORAGE, "join: secret: %s: %s", path, ku_os_why());
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid())
        return KU_ERR(KUMI_EINVAL, "join: secret: %s: not a file of user %lu; remove it", path,
                      (unsigned long)geteuid());
    if (st.st_mode & 077)
        return KU_ERR(KUMI_EINVAL,
                      "join: secret: %s: mode %03o lets other users read it; chmod 600 %s, and "
                      "replace it if they may have read it",
                      path, (unsigned)st.st_mode & 0777, path);
    return 0;
}

/* 1: read; 0: there is none; or a status */
static int read_file(const char *path, uint8_t secret[KU_SECRET_BYTES])
{
    char text[HEX_BYTES + 2];
    int fd = ku_os_open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0); /* a FIFO has no end */
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0)
        return KU_ERR(KUMI_ESTORAGE, "join: secret: %s: %s", path, ku_os_why());
    int status = check_file(path, fd);
    ssize_t n = status < 0 ? 0 : ku_os_read_full(fd, text, sizeof text);
    if (n > 0 && text[n - 1] == '\n')
        n--;
    if (n < 0)
        status = KU_ERR(KUMI_ESTORAGE, "join: secret: %s: %s", path, ku_os_why());
    else if (!status && parse_hex(text, (size_t)n, secret) < 0)
        status =
            KU_ERR(KUMI_EINVAL, "join: secret: %s: not %d hex digits; remove it", path, HEX_BYTES);
    ku_os_close(fd);
    return status < 0 ? status : 1;
}

static int write_file(int fd, const char *temporary, const char *path)
{
    uint8_t secret[KU_SECRET_BYTES];
    char text[HEX_BYTES + 2];
    if (ku_os_random(secret, sizeof secret) < 0)
        return KU_ERR(KUMI_ENOMEM, "join: random bytes: %s", ku_os_why());
    for (int i = 0; i < KU_SECRET_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", secret[i]);
    text[HEX_BYTES] = '\n';
    /* a second file that is made at the same time loses: link, unlike rename, replaces none */
    if (ku_os_write_full(fd, text, HEX_BYTES + 1) < 0 || ku_os_fsync(fd) < 0 ||
        (link(temporary, path) < 0 && errno != EEXIST))
        return KU_ERR(KUMI_ESTORAGE, "join: secret: %s: %s; set KUMI_SECRET", path, ku_os_why());
    return 0;
}

static int make_file(const char *folder, const char *path)
{
    char *temporary = NULL;
    int status = 0;
    if (ku_os_mkdirs(folder) < 0)
        return KU_ERR(KUMI_ESTORAGE, "join: secret: %s: %s; set KUMI_SECRET", folder, ku_os_why());
    int fd = ku_os_temporary(path, 0, &temporary);
    if (fd < 0)
        return KU_ERR(KUMI_ESTORAGE, "join: secret: %s: %s; set KUMI_SECRET", path, ku_os_why());
    if (fchmod(fd, 0600) < 0)
        status = KU_ERR(KUMI_ESTORAGE, "join: secret: %s: %s", temporary, ku_os_why());
    if (!status)
        status = write_file(fd, temporary, path);
    KU_IGNORE(ku_os_unlink(temporary), "a link to it stays");
    ku_os_close(fd);
    ku_free(temporary);
    return status;
}

int ku_secret_find(const struct ku_segment *seg, uint8_t secret[KU_SECRET_BYTES])
{
    const char *given = ku_env("KUMI_SECRET");
    char *folder = NULL, *path = NULL;
    int status;
    if (seg->has_secret) {
        memcpy(secret, seg->secret, KU_SECRET_BYTES);
        return 0;
    }
    if (given)
        return ku_secret_parse(given, secret);
    KU_TRY(folder_of(&folder));
    path = ku_asprintf("%s/secret", folder);
    status = path ? read_file(path, secret) : KUMI_ENOMEM;
    if (status == 0)
        status = make_file(folder, path);
    if (status == 0) /* the one made here, or another host's */
        status = read_file(path, secret);
    if (status == 0)
        status = KU_ERR(KUMI_ESTORAGE, "join: secret: %s: it vanished; set KUMI_SECRET", path);
    ku_free(path);
    ku_free(folder);
    return status < 0 ? status : 0;
}
