/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */

#include <fcntl.h>
#include <math.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "data/cache_index.h"
#include "data/text/token_files.h"
#include "data/text/token_file.h"
#include "data/tokenizer/tokenizer.h"
#include "folder.h"

#define SMALL KUMI_SOURCE_DIR "/tests/fixtures/tokenizer/small"

/* count tokens first, first + 1, … of 2 or 4 bytes, behind llm.c's header if asked. */
static const char *put_tokens(const char *name, uint32_t first, int count, int width,
                              int has_header)
{
    static unsigned char file[1024 + 4 * 10000];
    size_t at = has_header ? 1024 : 0;
    int32_t header[3] = {20240520, 1, count};
    memset(file, 0, 1024);
    if (has_header)
        memcpy(file, header, sizeof header);
    for (int i = 0; i < count; i++, at += (size_t)width) {
        uint32_t token = first + (uint32_t)i;
        for (int k = 0; k < width; k++)
            file[at + (size_t)k] = (unsigned char)(token >> 8 * k);
    }
    return put(name, file, at);
}

static struct ku_text_opts options(const char *const *train, int n_train)
{
    return (struct ku_text_opts){.train = train,
                                 .n_train = n_train,
                                 .seq_len = 8,
                                 .vocab_count = 1 << 20,
                                 .cache = in_folder("cache")};
}

static struct ku_data *open_text(const struct ku_text_opts *o)
{
    struct ku_data *d = NULL;
    if (ku_text_open(o, &d) < 0)
        fail_msg("%s", ku_err_get()->text);
    return d;
}

/* text with the folder in place of '@'. */
static void assert_error(int status, int expected, const char *text)
{
    const char *got = ku_err_get()->text;
    size_t before = strcspn(text, "@"), n = strlen(folder);
    int same = text[before] != '@'
                   ? strcmp(got, text) == 0
                   : strncmp(got, text, before) == 0 && strncmp(got + before, folder, n) == 0 &&
                         strcmp(got + before + n, text + before + 1) == 0;
    if (status != expected || !same)
        fail_msg("status %d '%s', expected %d '%s'", status, got, expected, text);
}

/* Sample i is tokens [i T, i T + T] of the sequence 0, 1, 2, … */
static void assert_counting(const struct ku_data *d, enum ku_data_split split, int64_t first,
                            int64_t seq_len)
{
    int32_t *tokens = malloc((size_t)seq_len * 4), *targets = malloc((size_t)seq_len * 4);
    for (int64_t i = 0; i < d->n_samples[split]; i++) {
        assert_int_equal(ku_data_read(d, split, i, i, (void *[]){tokens, targets}), 0);
        for (int64_t k = 0; k < seq_len; k++) {
            assert_int_equal(tokens[k], first + i * seq_len + k);
            assert_int_equal(targets[k], first + i * seq_len + k + 1);
        }
    }
    free(tokens);
    free(targets);
}

static void reads_every_form(void **state)
{
    static const struct {
        int width, has_header;
        const char *format;
    } rows[] = {{2, 0, "u16"}, {4, 0, "u32"}, {2, 1, NULL}, {2, 1, "u16"}, {2, 1, "u32"}};
    static const int64_t lengths[] = {1, 2, 7, 64, 999, 2047, 2048, 2049, 4999};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            const char *train = put_tokens("count.bin", 0, 5000, rows[i].width, rows[i].has_header);
            struct ku_text_opts o = options(&train, 1);
            o.format = rows[i].format;
            o.seq_len = lengths[k];
            struct ku_data *d = open_text(&o);
            assert_int_equal(d->n_items[KU_SPLIT_TRAIN], 5000);
            assert_int_equal(d->n_samples[KU_SPLIT_TRAIN], 4999 / lengths[k]);
            assert_int_equal(d->n_samples[KU_SPLIT_VAL], 0);
            assert_int_equal(d->port[1].dim[0], lengths[k]);
            assert_counting(d, KU_SPLIT_TRAIN, 0, lengths[k]);
            assert_int_equal(ku_data_verify(d, NULL), 0);
            ku_data_destroy(d);
        }
}

static void bytes_of_a_text_are_its_tokens(void **state)
{
    const char *train = KUMI_SOURCE_DIR "/data/tinyshakespeare.txt";
    struct ku_text_opts o = options(&train, 1);
    int32_t tokens[64], targets[64];
    (void)state;
    o.vocab_count = 256;
    o.seq_len = 64;
    o.val_fraction = 0.1;
    struct ku_data *d = open_text(&o);
    assert_int_equal(d->n_items[KU_SPLIT_TRAIN], 1003854); /* nanoGPT's count */
    assert_int_equal(d->n_items[KU_SPLIT_VAL], 111540);
    assert_int_equal(d->n_samples[KU_SPLIT_VAL], 111539 / 64);
    assert_int_equal(ku_data_read(d, KU_SPLIT_TRAIN, 0, 0, (void *[]){tokens, targets}), 0);
    assert_int_equal(tokens[0], 'F');
    assert_int_equal(targets[0], 'i');
    ku_data_destroy(d);
}

/* Files of several forms in one sequence, samples across their borders; own validation files; globs
 * by name. */
static void files_are_one_sequence(void **state)
{
    const char *train[] = {put_tokens("a.bin", 0, 13, 2, 1), put_tokens("b.bin", 13, 1, 2, 0),
                           in_folder("part-*.bin")};
    const char *val = in_folder("v.bin");
    (void)state;
    put_tokens("part-10.bin", 16, 300, 2, 0);
    put_tokens("part-0.bin", 14, 2, 2, 1);
    put_tokens("v.bin", 7, 100, 2, 0);
    struct ku_text_opts o = options(train, 3);
    o.format = "u16";
    o.val = &val;
    o.n_val = 1;
    o.val_fraction = 0.5; /* own files win */
    struct ku_data *d = open_text(&o);
    assert_int_equal(d->n_items[KU_SPLIT_TRAIN], 316);
    assert_counting(d, KU_SPLIT_TRAIN, 0, 8);
    assert_counting(d, KU_SPLIT_VAL, 7, 8);
    ku_data_destroy(d);
    o.n_val = 0;
    o.val_fraction = 0.25;
    d = open_text(&o);
    assert_int_equal(d->n_items[KU_SPLIT_TRAIN], 237);
    assert_counting(d, KU_SPLIT_TRAIN, 0, 8);
    assert_counting(d, KU_SPLIT_VAL, 237, 8);
    ku_data_destroy(d);
}

/* More files than are kept open. */
static void many_files_work(void **state)
{
    const char *train = in_folder("many-*.bin");
    char name[32];
    (void)state;
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "many-%03d.bin", i);
        put_tokens(name, 5 * (uint32_t)i, 5, 2, 0);
    }
    struct ku_text_opts o = options(&train, 1);
    o.format = "u16";
    struct ku_data *d = open_text(&o);
    assert_counting(d, KU_SPLIT_TRAIN, 0, 8);
    ku_data_destroy(d);
}

static void names_a_token_out_of_range(void **state)
{
    const char *train[] = {put_tokens("a.bin", 0, 13, 4, 0), put_tokens("bad.bin", 90, 20, 4, 0)};
    struct ku_text_opts o = options(train, 2);
    int32_t tokens[8], targets[8];
    (void)state;
    o.format = "u32";
    o.vocab_count = 100;
    struct ku_data *d = open_text(&o);
    assert_int_equal(ku_data_read(d, KU_SPLIT_TRAIN, 1, 0, (void *[]){tokens, targets}), 0);
    assert_error(ku_data_read(d, KU_SPLIT_TRAIN, 2, 0, (void *[]){tokens, targets}), KUMI_EINPUT,
                 "data: @/bad.bin: token 100 at byte 40; the model's vocabulary has 100 "
                 "(model.vocab_size)");
    assert_error(ku_data_verify(d, NULL), KUMI_EINPUT,
                 "data: @/bad.bin: token 100 at byte 40; the model's vocabulary has 100 "
                 "(model.vocab_size)");
    assert_int_equal(truncate(train[1], 30), 0);
    assert_error(ku_data_read(d, KU_SPLIT_TRAIN, 2, 0, (void *[]){tokens, targets}), KUMI_EINPUT,
                 "data: @/bad.bin: ends at byte 30, 18 of 36 bytes are missing; copy it again, and "
                 "do not change it while it is in use");
    ku_data_destroy(d);
}

static void refuses_what_is_no_data(void **state)
{
    static const struct {
        const char *name;
        size_t bytes; /* of the file; 0: empty; SIZE_MAX: none */
        const char *format, *text;
    } rows[] = {
        {"none.txt", SIZE_MAX, NULL,
         "data: @/none.txt: No such file or directory; give a file with text or tokens"},
        {"none*.txt", SIZE_MAX, NULL, "data: @/none*.txt: no file matches; correct the pattern"},
        {"empty.txt", 0, NULL, "data: @/empty.txt: empty; give a file with text or tokens"},
        {"empty.bin", 0, "u16", "data: @/empty.bin: empty; give a file with text or tokens"},
        {".", SIZE_MAX, NULL, "data: @/.: a directory; give a file with text or tokens"},
        {"x.txt", 8, NULL,
         "data: @/x.txt: 8 tokens for training, a sample of data.seq_len 8 takes 9; give more "
         "data or a shorter seq_len"},
        {"x.bin", 18, NULL, "data: @/x.bin: no llm.c header; set data.format to u16 or u32"},
        {"x.bin", 19, "u16",
         "data: @/x.bin: 19 bytes are not a whole number of u16; correct the file or data.format"},
        {"x.bin", 18, "u32",
         "data: @/x.bin: 18 bytes are not a whole number of u32; correct the file or data.format"},
        {"x.bin", 16, "u16",
         "data: @/x.bin: 8 tokens for training, a sample of data.seq_len 8 takes 9; give more "
         "data or a shorter seq_len"},
    };
    static const char zeros[64];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *train = in_folder(rows[i].name);
        struct ku_data *d = NULL;
        struct ku_text_opts o = options(&train, 1);
        o.format = rows[i].format;
        if (rows[i].bytes != SIZE_MAX)
            put(rows[i].name, zeros, rows[i].bytes);
        assert_error(ku_text_open(&o, &d), KUMI_EINPUT, rows[i].text);
        assert_null(d);
    }
    /* One token more is enough. */
    const char *train = put("x.txt", zeros, 9);
    struct ku_text_opts o = options(&train, 1);
    struct ku_data *d = open_text(&o);
    assert_int_equal(d->n_samples[KU_SPLIT_TRAIN], 1);
    ku_data_destroy(d);
    o.val_fraction = 0.5;
    assert_int_equal(ku_text_open(&o, &d), KUMI_EINPUT);
}

/* What the writer of token files writes is read, in the width that the vocabulary needs. */
static void token_files_written(void **state)
{
    enum { N = 3000 };
    static const struct {
        int64_t vocab_count;
        size_t file_bytes;
    } rows[] = {{256, 1024 + 2 * N}, {65536, 1024 + 2 * N}, {65537, 1024 + 4 * N}};
    char path[4096];
    struct stat st;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ku_token_file *f;
        int64_t count = 0, last = rows[i].vocab_count - 1;
        uint32_t id[N];
        for (int k = 0; k < N; k++)
            id[k] = (uint32_t)(k % 7 ? k % 250 : last);
        snprintf(path, sizeof path, "%s/written-%zu.bin", folder, i);
        assert_int_equal(ku_token_file_create(path, 0, rows[i].vocab_count, &f), 0);
        for (int k = 0; k < N; k += 100)
            assert_int_equal(ku_token_file_add(f, id + k, 100), 0);
        assert_int_equal(ku_os_stat(path, &st), -1); /* not before it is whole */
        assert_int_equal(ku_token_file_commit(f, &count), 0);
        ku_token_file_destroy(f);
        assert_int_equal(count, N);
        assert_int_equal(ku_os_stat(path, &st), 0);
        assert_int_equal(st.st_size, rows[i].file_bytes);
        const char *train[] = {path};
        struct ku_text_opts o = options(train, 1);
        struct ku_data *d = open_text(&o);
        int32_t tokens[8], targets[8];
        for (int64_t k = 0; k < d->n_samples[KU_SPLIT_TRAIN]; k++) {
            assert_int_equal(ku_data_read(d, KU_SPLIT_TRAIN, k, 0, (void *[]){tokens, targets}), 0);
            for (int j = 0; j < 8; j++)
                assert_int_equal(tokens[j], id[8 * k + j]);
        }
        ku_data_destroy(d);
        assert_int_equal(ku_token_file_create(path, 0, 256, &f), KUMI_EBUSY);
        assert_int_equal(ku_token_file_create(path, 1, 256, &f), 0);
        ku_token_file_destroy(f); /* given up: the file stays */
        assert_int_equal(ku_os_stat(path, &st), 0);
        assert_int_equal(st.st_size, rows[i].file_bytes);
    }
}

static void refuses_a_broken_header(void **state)
{
    static const struct {
        int32_t header[3];
        size_t bytes;
        const char *text;
    } rows[] = {
        {{20240520, 2, 10},
         1044,
         "data: @/h.bin: llm.c token file of version 2; version 1 is supported"},
        {{20240520, 1, 11},
         1044,
         "data: @/h.bin: its header counts 11 tokens of 2 bytes, 20 bytes follow; write it again"},
        {{20240520, 1, 10},
         1045,
         "data: @/h.bin: its header counts 10 tokens of 2 bytes, 21 bytes follow; write it again"},
        {{20240520, 1, -1},
         1044,
         "data: @/h.bin: its header counts 4294967295 tokens of 2 bytes, 20 bytes follow; write it "
         "again"},
        {{20240520, 1, 0}, 1024, "data: @/h.bin: no tokens after the header; write it again"},
        {{20240520, 1, 4}, 1023, "data: @/h.bin: no llm.c header; set data.format to u16 or u32"},
        {{20240801, 1, 5},
         1044,
         "data: @/h.bin: llm.c token file of version 1; version 7 is supported"},
        {{20240801, 7, 10},
         1044,
         "data: @/h.bin: its header counts 10 tokens of 4 bytes, 20 bytes follow; write it again"},
        {{20240521, 1, 10}, 1044, "data: @/h.bin: no llm.c header; set data.format to u16 or u32"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        unsigned char file[2048] = {0};
        struct ku_data *d = NULL;
        memcpy(file, rows[i].header, sizeof rows[i].header);
        const char *train = put("h.bin", file, rows[i].bytes);
        struct ku_text_opts o = options(&train, 1);
        assert_error(ku_text_open(&o, &d), KUMI_EINPUT, rows[i].text);
    }
}

static void refuses_wrong_options(void **state)
{
    const char *train = put_tokens("a.bin", 0, 100, 2, 0);
    struct ku_data *d = NULL;
    (void)state;
    for (int i = 0; i < 11; i++) {
        struct ku_text_opts o = options(&train, 1);
        o.format = "u16";
        switch (i) {
        case 0:
            o.n_train = 0;
            break;
        case 1:
            o.seq_len = 0;
            break;
        case 2:
            o.seq_len = (int64_t)KU_SEQ_LEN_MAX + 1;
            break;
        case 3:
            o.vocab_count = 0;
            break;
        case 4:
            o.vocab_count = (int64_t)1 << 32;
            break;
        case 5:
            o.val_fraction = 1.0;
            break;
        case 6:
            o.val_fraction = -0.1;
            break;
        case 7:
            o.val_fraction = (double)NAN;
            break;
        case 8:
            o.format = "u8";
            break;
        case 9:
            o.stride = -1;
            break;
        case 10:
            o.stride = o.seq_len + 1;
            break;
        }
        assert_int_equal(ku_text_open(&o, &d), KUMI_EINVAL);
    }
}

/* Of `count` tokens 0, 1, … every one but the first is a target once, behind those before it. */
static void check_windows(int count, int64_t stride, int is_alone)
{
    const char *name = put_tokens("w.bin", 0, count, 2, 0);
    int32_t tokens[8], targets[8], segments[8];
    void *const port[] = {tokens, targets, segments};
    struct ku_text_opts o = options(&name, is_alone ? 0 : 1);
    int64_t next = 1;
    o.val = &name;
    o.n_val = 1;
    o.format = "u16";
    o.stride = stride;
    o.segments = 1;
    o.separator = 4;
    struct ku_data *d = open_text(&o);
    assert_int_equal(d->n_samples[KU_SPLIT_TRAIN], is_alone ? 0 : (count - 1) / 8);
    for (int64_t i = 0; i < d->n_samples[KU_SPLIT_VAL]; i++) {
        const int64_t at = i * stride;
        assert_int_equal(ku_data_read(d, KU_SPLIT_VAL, i, i, port), 0);
        for (int64_t k = 0; k < 8; k++) {
            const int is_learnt = at + k + 1 >= next && at + k + 1 < count;
            assert_int_equal(tokens[k], at + k + 1 < count ? at + k : 0);
            assert_int_equal(targets[k], is_learnt ? at + k + 1 : KU_NO_TARGET);
            if (at + k + 1 < count)
                assert_int_equal(segments[k], at <= 4 && at + k > 4);
        }
        next = at + 9;
    }
    assert_true(next >= count);
    assert_true(next - stride < count || d->n_samples[KU_SPLIT_VAL] == 1);
    ku_data_destroy(d);
}

static void windows_stride(void **state)
{
    static const int count[] = {2, 8, 9, 10, 11, 12, 40, 41};
    (void)state;
    for (size_t i = 0; i < sizeof count / sizeof *count; i++)
        for (int64_t stride = 1; stride <= 8; stride++) {
            check_windows(count[i], stride, 1);
            if (count[i] > 8)
                check_windows(count[i], stride, 0);
        }
}

/* ---- the cache
 * ------------------------------------------------------------------------------------------- */

struct seen {
    int n_tokenizing, n_reading, n_checking;
    int stop; /* what the next call returns */
};

static int see(void *ctx, const char *what, uint64_t done_bytes, uint64_t total_bytes)
{
    struct seen *s = ctx;
    assert_true(total_bytes == 0 || done_bytes <= total_bytes);
    s->n_tokenizing += strncmp(what, "tokenizing ", 11) == 0;
    s->n_reading += strncmp(what, "reading ", 8) == 0;
    s->n_checking += strncmp(what, "checking the tokens of ", 23) == 0;
    return s->stop;
}

static const char *put_speech(const char *name, size_t bytes)
{
    char *text;
    size_t all;
    assert_int_equal(ku_os_slurp(KUMI_SOURCE_DIR "/data/tinyshakespeare.txt", 1 << 24, &text, &all),
                     0);
    const char *path = put(name, text, bytes < all ? bytes : all);
    ku_free(text);
    return path;
}

/* Compares all samples with the tokens of the whole file. */
static void assert_encodes(const struct ku_data *d, const char *path)
{
    struct ku_tokenizer *t;
    struct ku_tokens all = {0};
    char *text;
    size_t bytes;
    int32_t tokens[8], targets[8];
    assert_int_equal(ku_tokenizer_open(SMALL, &t), 0);
    assert_int_equal(ku_os_slurp(path, 1 << 24, &text, &bytes), 0);
    assert_int_equal(ku_tokenizer_encode(t, text, bytes, &all), 0);
    assert_int_equal(d->n_items[KU_SPLIT_TRAIN], all.count);
    for (int64_t i = 0; i < d->n_samples[KU_SPLIT_TRAIN]; i++) {
        assert_int_equal(ku_data_read(d, KU_SPLIT_TRAIN, i, 0, (void *[]){tokens, targets}), 0);
        for (int k = 0; k < 8; k++) {
            assert_int_equal(tokens[k], all.id[8 * i + k]);
            assert_int_equal(targets[k], all.id[8 * i + k + 1]);
        }
    }
    ku_tokens_fini(&all);
    ku_free(text);
    ku_tokenizer_destroy(t);
}

/* The only file of the cache whose name ends so. */
static char *find_in_cache(const char *end)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/", in_folder("cache"));
    char **names;
    int n, found = 0;
    assert_int_equal(ku_os_list(in_folder("cache"), &names, &n), 0);
    for (int i = 0; i < n; i++)
        if (strlen(names[i]) > strlen(end) &&
            strcmp(names[i] + strlen(names[i]) - strlen(end), end) == 0) {
            snprintf(path, sizeof path, "%s/%s", in_folder("cache"), names[i]);
            found++;
        }
    ku_free(names);
    assert_int_equal(found, 1);
    return path;
}

static void flip_byte(const char *path, off_t at)
{
    unsigned char byte;
    FILE *f = fopen(path, "r+b");
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    assert_int_equal(fread(&byte, 1, 1, f), 1);
    byte ^= 1;
    assert_int_equal(fseek(f, -1, SEEK_CUR), 0);
    assert_int_equal(fwrite(&byte, 1, 1, f), 1);
    fclose(f);
}

static void tokenizes_once(void **state)
{
    struct seen seen = {0};
    const char *train = put_speech("speech.txt", 300000);
    struct ku_text_opts o = options(&train, 1);
    char first[65];
    (void)state;
    o.tokenizer = SMALL;
    o.progress = (struct ku_progress){.call = see, .ctx = &seen};
    struct ku_data *d = open_text(&o);
    assert_int_equal(seen.n_tokenizing, 1);
    assert_encodes(d, train);
    assert_int_equal(ku_data_verify(d, &o.progress), 0);
    strcpy(first, d->fingerprint);
    ku_data_destroy(d);

    d = open_text(&o); /* a young file is hashed again, not tokenized */
    assert_int_equal(seen.n_tokenizing, 1);
    assert_int_equal(seen.n_reading, 2);
    assert_encodes(d, train);
    assert_string_equal(d->fingerprint, first);
    ku_data_destroy(d);

    const char *copy = put_speech("copy.txt", 300000); /* the contents count, not the name */
    o.train = &copy;
    d = open_text(&o);
    assert_int_equal(seen.n_tokenizing, 1);
    assert_string_equal(d->fingerprint, first);
    ku_data_destroy(d);

    char *tokens = find_in_cache(".bin");
    d = open_text(&o);
    flip_byte(tokens, -1); /* of a run that uses it: found when asked for */
    assert_int_equal(ku_data_verify(d, NULL), KUMI_EINPUT);
    assert_non_null(strstr(ku_err_get()->text, "copy.txt: its cached tokens, "));
    ku_data_destroy(d);
    for (int i = 0; i < 2; i++) { /* at a start: in a token, then in the header */
        d = open_text(&o);
        assert_int_equal(seen.n_tokenizing, 2 + i);
        assert_int_equal(ku_data_verify(d, NULL), 0);
        assert_encodes(d, copy);
        assert_string_equal(d->fingerprint, first);
        ku_data_destroy(d);
        flip_byte(tokens, 20);
    }

    copy = put_speech("copy.txt", 299999);
    d = open_text(&o);
    assert_int_equal(seen.n_tokenizing, 4);
    assert_string_not_equal(d->fingerprint, first);
    assert_encodes(d, copy);
    ku_data_destroy(d);
    assert_int_equal(ku_os_rmtree(in_folder("cache")), 0);
}

/* An index line is written and believed for a file that has been left alone. */
static void old_files_are_not_read_again(void **state)
{
    struct seen seen = {0};
    const char *train = KUMI_SOURCE_DIR "/data/tinyshakespeare.txt";
    struct ku_text_opts o = options(&train, 1);
    struct stat st;
    (void)state;
    assert_int_equal(ku_os_stat(train, &st), 0);
    if (time(NULL) - st.st_ctime < 5)
        skip();
    o.tokenizer = SMALL;
    o.progress = (struct ku_progress){.call = see, .ctx = &seen};
    for (int i = 0; i < 3; i++) {
        struct ku_data *d = open_text(&o);
        assert_int_equal(seen.n_reading, i < 2 ? 2 : 4); /* blocks of 1 MiB */
        assert_int_equal(seen.n_tokenizing, 2);
        ku_data_destroy(d);
        assert_int_equal(seen.n_checking, i < 2 ? 0 : 2); /* blocks again */
        if (i == 1)
            flip_byte(find_in_cache(".idx"), 20); /* another length: not believed */
    }
    struct timespec at[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000000000}};
    assert_int_equal(utimensat(AT_FDCWD, find_in_cache(".bin"), at, 0), 0);
    for (int i = 0; i < 3; i++) { /* touched: read once; then damaged: found at once */
        if (i == 2)
            flip_byte(find_in_cache(".bin"), -1);
        struct ku_data *d = open_text(&o);
        assert_int_equal(seen.n_checking, i < 2 ? 4 : 6);
        assert_int_equal(seen.n_tokenizing, i < 2 ? 2 : 4);
        assert_encodes(d, train);
        ku_data_destroy(d);
    }
    assert_int_equal(ku_os_rmtree(in_folder("cache")), 0);
}

static void a_cache_that_cannot_be_written_is_no_error(void **state)
{
    const char *train = put_speech("speech.txt", 100000);
    struct ku_text_opts o = options(&train, 1);
    struct seen seen = {0};
    (void)state;
    put("cache", "a file", 6);
    o.tokenizer = SMALL;
    o.progress = (struct ku_progress){.call = see, .ctx = &seen};
    struct ku_data *d = open_text(&o);
    assert_encodes(d, train);
    assert_int_equal(ku_data_verify(d, NULL), 0);
    ku_data_destroy(d);
    o.vocab_count = 100;
    d = open_text(&o);
    assert_int_equal(ku_data_verify(d, NULL), KUMI_EINPUT);
    assert_non_null(strstr(ku_err_get()->text, "/speech.txt: token "));
    ku_data_destroy(d);
    assert_int_equal(unlink(in_folder("cache")), 0);
    seen.stop = KUMI_ESTOPPED;
    assert_int_equal(ku_text_open(&o, &d), KUMI_ESTOPPED);
    ku_os_rmtree(in_folder("cache"));
}

/* Of ranks that start at once, one tokenizes. */
static void ranks_share_the_work(void **state)
{
    enum { RANKS = 4 };
    const char *train = put_speech("speech.txt", 1 << 20);
    struct ku_text_opts o = options(&train, 1);
    int total = 0;
    pid_t rank[RANKS];
    (void)state;
    o.tokenizer = SMALL;
    for (int i = 0; i < RANKS; i++) {
        rank[i] = fork();
        if (rank[i] == 0) {
            struct seen seen = {0};
            struct ku_data *d = NULL;
            o.progress = (struct ku_progress){.call = see, .ctx = &seen};
            if (ku_text_open(&o, &d) < 0)
                _exit(100);
            int good = ku_data_verify(d, NULL) == 0;
            ku_data_destroy(d);
            _exit(good ? seen.n_tokenizing : 101);
        }
    }
    for (int i = 0; i < RANKS; i++) {
        int status;
        assert_int_equal(waitpid(rank[i], &status, 0), rank[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 100);
        total += WEXITSTATUS(status);
    }
    assert_int_equal(total, 1);
    assert_int_equal(ku_os_rmtree(in_folder("cache")), 0);
}

/* Of a process that waits for the lock of another one. */
struct waiting {
    struct ku_cache_index *holder;
    int n_calls;
    uint64_t done;
};

/* The holder stands still for five calls, advances once, stands still, and releases the lock. */
static int wait_for_holder(void *ctx, const char *what, uint64_t done_bytes, uint64_t total_bytes)
{
    struct waiting *w = ctx;
    const struct ku_progress p = ku_cache_index_progress(w->holder);
    const int n = w->n_calls++;
    assert_non_null(strstr(what, "waiting for another process that reads "));
    assert_non_null(strstr(what, "/text-"));
    assert_int_equal(total_bytes, 0);
    if (n == 0)
        w->done = done_bytes;
    assert_int_equal(done_bytes, w->done + (n > 5));
    if (n == 5)
        assert_int_equal(ku_progress_call(&p, "reading", 1, 2), 0);
    if (n == 10)
        ku_cache_index_close(w->holder);
    return KUMI_OK;
}

static void waiting_follows_the_holder(void **state)
{
    const char *path = put_speech("speech.txt", 1000);
    struct ku_file f = {.name = (char *)(uintptr_t)path, .fd = -1};
    struct ku_cache cache = {.path = (char *)(uintptr_t)in_folder("cache")};
    struct ku_cache_index holder, other;
    struct waiting w = {.holder = &holder};
    const struct ku_progress p = {wait_for_holder, &w};
    (void)state;
    assert_int_equal(ku_cache_index_open(&holder, &cache, "text", &f, NULL), 0);
    assert_int_equal(ku_cache_index_open(&other, &cache, "text", &f, &p), 0);
    assert_int_equal(w.n_calls, 11);
    assert_true(other.is_locked);
    ku_cache_index_close(&other);
    assert_int_equal(ku_os_rmtree(in_folder("cache")), 0);
}

static void fingerprint_says_what_matters(void **state)
{
    const char *a = put_tokens("a.bin", 0, 5000, 2, 0), *b = put_tokens("b.bin", 1, 5000, 2, 0);
    const char *same = put_tokens("same.bin", 0, 5000, 2, 0), *both[] = {a, b}, *swapped[] = {b, a};
    const struct {
        const char *const *train;
        int n_train;
        const char *format;
        int equal;
    } rows[] = {{&a, 1, "u16", 1}, {&same, 1, "u16", 1}, {&b, 1, "u16", 0},
                {&a, 1, "u32", 0}, {both, 2, "u16", 0},  {swapped, 2, "u16", 0}};
    char first[65];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ku_text_opts o = options(rows[i].train, rows[i].n_train);
        o.format = rows[i].format;
        o.vocab_count = (int64_t)1 << 31;
        struct ku_data *d = open_text(&o);
        assert_int_equal(strlen(d->fingerprint), 64);
        if (i == 0)
            strcpy(first, d->fingerprint);
        assert_int_equal(strcmp(first, d->fingerprint) == 0, rows[i].equal);
        ku_data_destroy(d);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_form),
        cmocka_unit_test(bytes_of_a_text_are_its_tokens),
        cmocka_unit_test(files_are_one_sequence),
        cmocka_unit_test(many_files_work),
        cmocka_unit_test(names_a_token_out_of_range),
        cmocka_unit_test(refuses_what_is_no_data),
        cmocka_unit_test(token_files_written),
        cmocka_unit_test(refuses_a_broken_header),
        cmocka_unit_test(refuses_wrong_options),
        cmocka_unit_test(windows_stride),
        cmocka_unit_test(tokenizes_once),
        cmocka_unit_test(old_files_are_not_read_again),
        cmocka_unit_test(a_cache_that_cannot_be_written_is_no_error),
        cmocka_unit_test(ranks_share_the_work),
        cmocka_unit_test(waiting_follows_the_holder),
        cmocka_unit_test(fingerprint_says_what_matters)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
