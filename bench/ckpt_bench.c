/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saves and loads a state of the size of GPT-2 124M (1.49 GB in 440 tensors) with n ranks that
 * share it, compared with dd on the same disk, in alternation: ckpt_bench DIR [RANKS [ROUNDS]]. The
 * files are dropped from the page cache before each load, so that both read from the disk.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "ckpt/snapshot/snapshot.h"

enum { LAYERS = 12, C = 768, MOST = 512, MOST_RANKS = 64 };

struct bench {
    struct ku_ckpt_tensor tensor[MOST];
    int n_tensors, n_ranks;
    size_t bytes;
    unsigned char *memory;
    char dir[512];
    struct ku_ckpt_writer *w;
    struct ku_ckpt c;
};

static void fail(const char *what)
{
    fprintf(stderr, "ckpt_bench: %s: %s\n", what, ku_err_get()->text);
    exit(1);
}

static void add(struct bench *b, const char *name, int64_t rows, int64_t columns)
{
    static const char *const suffix[] = {"", ".exp_avg", ".exp_avg_sq"};
    for (int i = 0; i < 3; i++) {
        struct ku_ckpt_tensor *t = &b->tensor[b->n_tensors++];
        char text[128];
        snprintf(text, sizeof text, "%s%s", name, suffix[i]);
        *t = (struct ku_ckpt_tensor){.name = strdup(text),
                                     .dtype = KUMI_F32,
                                     .ndim = columns ? 2 : 1,
                                     .dim = {rows, columns},
                                     .padded = {rows, columns},
                                     .group = i ? KU_CKPT_OPTIMIZER : KU_CKPT_MODEL};
        t->data = (void *)(uintptr_t)b->bytes;
        b->bytes += (size_t)(rows * (columns ? columns : 1)) * 4 + 63;
        b->bytes &= ~(size_t)63;
    }
}

static void describe(struct bench *b)
{
    static const struct {
        const char *name;
        int64_t rows, columns;
    } block[] = {{"ln_1.weight", C, 0},
                 {"ln_1.bias", C, 0},
                 {"attn.c_attn.weight", C, 3 * C},
                 {"attn.c_attn.bias", 3 * C, 0},
                 {"attn.c_proj.weight", C, C},
                 {"attn.c_proj.bias", C, 0},
                 {"ln_2.weight", C, 0},
                 {"ln_2.bias", C, 0},
                 {"mlp.c_fc.weight", C, 4 * C},
                 {"mlp.c_fc.bias", 4 * C, 0},
                 {"mlp.c_proj.weight", 4 * C, C},
                 {"mlp.c_proj.bias", C, 0}};
    add(b, "wte.weight", 50257, C);
    add(b, "wpe.weight", 1024, C);
    for (int l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < sizeof block / sizeof *block; i++) {
            char name[64];
            snprintf(name, sizeof name, "h.%d.%s", l, block[i].name);
            add(b, name, block[i].rows, block[i].columns);
        }
    add(b, "ln_f.weight", C, 0);
    add(b, "ln_f.bias", C, 0);
    b->memory = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < b->bytes; i += 8)
        *(uint64_t *)(void *)(b->memory + i) = i * UINT64_C(0x9e3779b97f4a7c15);
    for (int i = 0; i < b->n_tensors; i++)
        b->tensor[i].data = b->memory + (uintptr_t)b->tensor[i].data;
}

struct rank {
    pthread_t thread;
    struct bench *b;
    int rank, is_read;
};

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    struct bench *b = r->b;
    int status = r->is_read ? ku_ckpt_read(&b->c, b->tensor, b->n_tensors, r->rank, b->n_ranks)
                            : ku_ckpt_writer_write(b->w, r->rank, b->n_ranks);
    if (status < 0)
        fail("rank");
    return NULL;
}

static void ranks(struct bench *b, int is_read)
{
    struct rank r[MOST_RANKS];
    for (int i = 0; i < b->n_ranks; i++) {
        r[i] = (struct rank){.b = b, .rank = i, .is_read = is_read};
        if (pthread_create(&r[i].thread, NULL, rank_main, &r[i]))
            exit(1);
    }
    for (int i = 0; i < b->n_ranks; i++)
        pthread_join(r[i].thread, NULL);
}

static void forget(const char *path)
{
    int fd = open(path, O_RDONLY);
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static double shell(const char *command)
{
    int64_t begin = ku_clock_ns();
    if (system(command) != 0) {
        fprintf(stderr, "ckpt_bench: failed: %s\n", command);
        exit(1);
    }
    return (double)(ku_clock_ns() - begin) * 1e-9;
}

static double dd_write(const struct bench *b, const char *flag)
{
    char text[2048];
    snprintf(text, sizeof text,
             "rm -f '%s/x'; dd if=/dev/zero of='%s/x' bs=4M count=%zu conv=fsync %s 2>/dev/null",
             b->dir, b->dir, b->bytes >> 22, flag);
    return shell(text);
}

static double dd_read(const struct bench *b, const char *flag)
{
    char text[1024];
    snprintf(text, sizeof text, "dd if='%s/x' of=/dev/null bs=4M %s 2>/dev/null", b->dir, flag);
    return shell(text);
}

static double save(struct bench *b, int step)
{
    struct ku_ckpt_desc d = {.dir = b->dir,
                             .step = step,
                             .tensor = b->tensor,
                             .n_tensors = b->n_tensors,
                             .model_config = "{}",
                             .keep = 1};
    int64_t begin = ku_clock_ns();
    if (ku_ckpt_writer_create(&d, &b->w) < 0 || ku_ckpt_writer_begin(b->w) < 0)
        fail("begin");
    ranks(b, 0);
    if (ku_ckpt_writer_commit(b->w) < 0)
        fail("commit");
    double s = (double)(ku_clock_ns() - begin) * 1e-9;
    ku_ckpt_writer_destroy(b->w);
    return s;
}

static double load(struct bench *b, int step)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/step-%08d", b->dir, step);
    int64_t begin = ku_clock_ns();
    if (ku_ckpt_open(path, &b->c) < 0)
        fail("open");
    ranks(b, 1);
    double s = (double)(ku_clock_ns() - begin) * 1e-9;
    ku_ckpt_close(&b->c);
    return s;
}

int main(int argc, char **argv)
{
    static struct bench b;
    char path[1024];
    int rounds = argc > 3 ? atoi(argv[3]) : 5;
    b.n_ranks = argc > 2 ? atoi(argv[2]) : 2;
    if (argc < 2 || rounds < 1 || b.n_ranks < 1 || b.n_ranks > MOST_RANKS) {
        fprintf(stderr, "usage: ckpt_bench DIR [RANKS, 1 to %d [ROUNDS]]\n", MOST_RANKS);
        return 2;
    }
    snprintf(b.dir, sizeof b.dir, "%s/ckpt_bench", argv[1]);
    describe(&b);
    double gb = (double)b.bytes * 1e-9;
    mkdir(b.dir, 0777);
    printf("# GB/s, %.3f GB, %d ranks: save, dd conv=fsync, dd oflag=direct; load, dd, dd direct\n",
           gb, b.n_ranks);
    for (int i = 1; i <= rounds; i++) {
        double s = save(&b, i), f = dd_write(&b, "");
        double o = dd_write(&b, "oflag=direct");
        snprintf(path, sizeof path, "%s/step-%08d/model/model.safetensors", b.dir, i);
        forget(path);
        snprintf(path, sizeof path, "%s/step-%08d/optimizer/optimizer.safetensors", b.dir, i);
        forget(path);
        double l = load(&b, i);
        snprintf(path, sizeof path, "%s/x", b.dir);
        forget(path);
        double p = dd_read(&b, "");
        double d = dd_read(&b, "iflag=direct");
        printf("%.2f %.2f %.2f   %.2f %.2f %.2f\n", gb / s, gb / f, gb / o, gb / l, gb / p, gb / d);
        fflush(stdout);
    }
    return 0;
}
