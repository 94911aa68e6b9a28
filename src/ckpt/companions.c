/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/companions.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"

static const struct known {
    const char *name, *old; /* old: OpenAI's name; NULL: none */
    enum ku_companion_kind kind;
} known[] = {
    {"generation_config.json", NULL, KU_COMPANION_MODEL},
    {"preprocessor_config.json", NULL, KU_COMPANION_MODEL},
    {"tokenizer.json", NULL, KU_COMPANION_TOKENIZER},
    {"tokenizer_config.json", NULL, KU_COMPANION_TOKENIZER},
    {"special_tokens_map.json", NULL, KU_COMPANION_TOKENIZER},
    {"added_tokens.json", NULL, KU_COMPANION_TOKENIZER},
    {"vocab.json", "encoder.json", KU_COMPANION_TOKENIZER},
    {"merges.txt", "vocab.bpe", KU_COMPANION_TOKENIZER},
    {"vocab.txt", NULL, KU_COMPANION_TOKENIZER},
    {"tokenizer.model", NULL, KU_COMPANION_TOKENIZER},
    {"sentencepiece.bpe.model", NULL, KU_COMPANION_TOKENIZER},
    {"spiece.model", NULL, KU_COMPANION_TOKENIZER},
    {"chat_template.jinja", NULL, KU_COMPANION_TOKENIZER},
    {"chat_template.json", NULL, KU_COMPANION_TOKENIZER},
};
enum { N_KNOWN = sizeof known / sizeof known[0] };
_Static_assert((int)N_KNOWN <= (int)KU_COMPANIONS_MAX, "one of each");

static bool has(const struct ku_companions *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->file[i].name, name) == 0)
            return 1;
    return 0;
}

/* Returns 1 if read, 0 if the file is absent or too large, or < 0. */
static int read_file(struct ku_companions *c, const char *path, const char *name)
{
    struct ku_companion *f = &c->file[c->n];
    struct stat info;
    if (ku_os_stat(path, &info) < 0 && (errno == ENOENT || errno == ENOTDIR))
        return 0;
    if (ku_os_slurp(path, KU_COMPANION_BYTES_MAX, &f->data, &f->bytes) == 0) {
        f->name = name;
        c->n++;
        return 1;
    }
    if (errno != EFBIG)
        return KU_ERR(ku_os_status(KUMI_EINPUT), "model: %s: %s", path, ku_os_why());
    KU_LOG(CKPT, WARN, "%s: more than %d MiB; it is left out of checkpoints and exports", path,
           KU_COMPANION_BYTES_MAX >> 20);
    return 0;
}

static int read_in(struct ku_companions *c, const char *dir, const char *file, const char *name)
{
    char *path = ku_asprintf("%s/%s", dir, file);
    int found = path ? read_file(c, path, name) : KUMI_ENOMEM;
    ku_free(path);
    return found;
}

int ku_companions_read(struct ku_companions *c, const char *dir, int kinds)
{
    for (int i = 0; i < N_KNOWN; i++) {
        const struct known *k = &known[i];
        if (!(k->kind & kinds) || has(c, k->name))
            continue;
        int found = read_in(c, dir, k->name, k->name);
        KU_TRY(found);
        if (!found && k->old)
            KU_TRY(read_in(c, dir, k->old, k->name));
    }
    return KUMI_OK;
}

int ku_companions_read_tokenizer(struct ku_companions *c, const char *path)
{
    if (has(c, "tokenizer.json"))
        return KUMI_OK;
    int found = read_file(c, path, "tokenizer.json");
    return found < 0 ? found : KUMI_OK;
}

static int write_file(const char *path, const struct ku_companion *f)
{
    int fd = ku_os_open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0)
        return -1;
    int result = ku_os_write_full(fd, f->data, f->bytes);
    if (result == 0)
        result = ku_os_fsync(fd);
    int saved = errno;
    if (ku_os_close(fd) < 0 && result == 0)
        return -1;
    errno = saved;
    return result;
}

int ku_companions_write(const struct ku_companions *c, const char *dir)
{
    int result = 0;
    for (int i = 0; i < c->n && result == 0; i++) {
        char *path = ku_asprintf("%s/%s", dir, c->file[i].name);
        errno = ENOMEM;
        result = path ? write_file(path, &c->file[i]) : -1;
        int saved = errno;
        ku_free(path);
        errno = saved;
    }
    return result;
}

bool ku_companions_has_tokenizer(const char *dir)
{
    static const char *const sets[][2] = {{"tokenizer.json", "tokenizer.json"},
                                          {"vocab.json", "merges.txt"},
                                          {"encoder.json", "vocab.bpe"}};
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        int n = 0;
        for (int k = 0; k < 2; k++) {
            struct stat info;
            char *path = ku_asprintf("%s/%s", dir, sets[i][k]);
            n += path && ku_os_stat(path, &info) == 0;
            ku_free(path);
        }
        if (n == 2)
            return 1;
    }
    return 0;
}

void ku_companions_fini(struct ku_companions *c)
{
    for (int i = 0; i < c->n; i++)
        ku_free(c->file[i].data);
    *c = (struct ku_companions){0};
}
