/* SPDX-License-Identifier: Apache-2.0 */
/* links: ckpt tensor base */
#include "unit/ckpt_util.h"

#include "base/fault.h"
#include "base/tick.h"
#include "ckpt/digest.h"
#include "ckpt/snapshot/retention.h"
#include "ckpt/safetensors.h"
#include "kumi/messages.h"

static void save(const struct state *s, const char *dir, int64_t step, int n_ranks, int keep)
{
    struct ku_ckpt_desc d = state_desc(s, dir, step);
    struct ku_ckpt_writer *w[8];
    d.keep = keep;
    for (int r = 0; r < n_ranks; r++)
        assert_status(ku_ckpt_writer_create(&d, &w[r]), KUMI_OK);
    assert_status(ku_ckpt_writer_begin(w[0]), KUMI_OK);
    for (int r = n_ranks - 1; r >= 0; r--)
        assert_status(ku_ckpt_writer_write(w[r], r, n_ranks), KUMI_OK);
    assert_status(ku_ckpt_writer_commit(w[0]), KUMI_OK);
    for (int r = 0; r < n_ranks; r++)
        ku_ckpt_writer_destroy(w[r]);
}

static const char *const files[] = {"manifest.json",
                                    "manifest.json.xxh3",
                                    "model/config.json",
                                    "model/config.json.xxh3",
                                    "model/model.safetensors",
                                    "model/model.safetensors.xxh3",
                                    "optimizer/optimizer.safetensors",
                                    "optimizer/optimizer.safetensors.xxh3"};
enum { N_FILES = sizeof files / sizeof *files };

/* Equal bytes and equal contents for every number of writing and of reading ranks. */
static void ranks(void **unused)
{
    (void)unused;
    static const int n_ranks[] = {1, 2, 3, 7};
    struct state s, back;
    char dir[64], path[320], first[256];
    folder_make(dir);
    state_init(&s);
    state_init(&back);
    state_fill(&s, 1);
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%d/checkpoints", dir, i);
        save(&s, path, 500, n_ranks[i], 0);
        for (int f = 0; f < N_FILES; f++) {
            size_t bytes, first_bytes;
            snprintf(path, sizeof path, "%s/%d/checkpoints/step-00000500/%s", dir, i, files[f]);
            snprintf(first, sizeof first, "%s/0/checkpoints/step-00000500/%s", dir, files[f]);
            unsigned char *a = file_read(path, &bytes), *b = file_read(first, &first_bytes);
            assert_int_equal(bytes, first_bytes);
            assert_memory_equal(a, b, bytes);
            ku_free(a);
            ku_free(b);
        }
    }
    for (int i = 0; i < 4; i++) {
        struct ku_ckpt c;
        snprintf(path, sizeof path, "%s/%d", dir, i);
        state_wipe(&back);
        assert_status(ku_ckpt_find(path, INT64_MAX, &c), KUMI_OK);
        assert_int_equal(c.step, 500);
        for (int r = 0; r < n_ranks[i]; r++)
            assert_status(ku_ckpt_read(&c, back.tensor, STATE_TENSORS, r, n_ranks[i]), KUMI_OK);
        state_assert_equal(&s, &back);
        ku_ckpt_close(&c);
    }
    state_fini(&s);
    state_fini(&back);
    folder_remove(dir);
}

static void manifest(void **unused)
{
    (void)unused;
    struct state s;
    char dir[64];
    folder_make(dir);
    state_init(&s);
    state_fill(&s, 1);
    struct ku_ckpt_desc d = state_desc(&s, dir, 12);
    d.update = 11;
    d.isa = "avx512";
    d.digest = "sha256:00";
    d.data_fingerprint = "abc";
    d.numerics = json_pack("{s:i, s:f}", "train.seed", 1337, "optimizer.lr", 1e-3);
    d.state = json_pack("{s:f}", "loss_scale", 65536.0);
    d.config = json_pack("{s:{s:i}}", "train", "steps", 2000);
    d.libraries = json_pack("{s:s}", "oneDNN", "2.6.3");
    assert_status(ku_ckpt_save(&d), KUMI_OK);
    struct ku_ckpt c;
    assert_status(ku_ckpt_find(dir, INT64_MAX, &c), KUMI_OK);
    assert_int_equal(c.step, 12);
    assert_int_equal(c.update, 11);
    json_t *root = c.manifest.root;
    assert_true(json_equal(json_object_get(root, "numerics"), d.numerics));
    assert_true(json_equal(json_object_get(root, "config"), d.config));
    assert_true(json_equal(json_object_get(root, "state"), d.state));
    assert_true(json_equal(json_object_get(root, "libraries"), d.libraries));
    assert_string_equal(json_string_value(json_object_get(root, "isa")), "avx512");
    assert_string_equal(json_string_value(json_object_get(root, "digest")), "sha256:00");
    assert_string_equal(json_string_value(json_object_get(root, "data_fingerprint")), "abc");
    assert_int_equal(strlen(json_string_value(json_object_get(root, "numerics_hash"))), 7 + 64);
    ku_ckpt_close(&c);
    json_decref(d.numerics);
    json_decref(d.state);
    json_decref(d.config);
    json_decref(d.libraries);
    state_fini(&s);
    folder_remove(dir);
}

static void keep(void **unused)
{
    (void)unused;
    struct state s;
    struct ku_ckpt_entry *e;
    int n;
    char dir[64], path[320];
    folder_make(dir);
    state_init(&s);
    state_fill(&s, 1);
    assert_status(ku_ckpt_list(dir, &e, &n), KUMI_OK);
    assert_int_equal(n, 0);
    ku_free(e);
    snprintf(path, sizeof path, "%s/.tmp-step-00000001", dir); /* of a writer that died */
    assert_int_equal(ku_os_mkdir(path, 0777), 0);
    snprintf(path, sizeof path, "%s/step-1", dir); /* not a name of ours */
    assert_int_equal(ku_os_mkdir(path, 0777), 0);
    for (int64_t step = 100; step <= 500; step += 100)
        save(&s, dir, step, 1, 3);
    save(&s, dir, 123456789, 1, 3);
    save(&s, dir, 300, 1, 3); /* beyond the newest three, but just written */
    char **names;
    assert_int_equal(ku_os_list(dir, &names, &n), 0);
    assert_int_equal(n, 5);
    assert_string_equal(names[0], "step-00000300");
    assert_string_equal(names[1], "step-00000400");
    assert_string_equal(names[2], "step-00000500");
    assert_string_equal(names[3], "step-1");
    assert_string_equal(names[4], "step-123456789");
    ku_free(names);
    assert_status(ku_ckpt_list(dir, &e, &n), KUMI_OK);
    assert_int_equal(n, 4);
    assert_string_equal(e[0].name, "step-123456789");
    assert_int_equal(e[3].step, 300);
    assert_true(e[3].is_usable);
    assert_true(e[3].bytes > 8000000);
    ku_free(e);
    state_fini(&s);
    folder_remove(dir);
}

/* A leftover that cannot be removed is no reason not to save. */
static void fixed_leftover(void **unused)
{
    (void)unused;
    struct state s;
    char dir[64], left[128], file[256], fault[16];
    int n_left = 0;
    folder_make(dir);
    state_init_sized(&s, 9, 1000);
    state_fill(&s, 1);
    snprintf(left, sizeof left, "%s/.tmp-old-00000001", dir);
    snprintf(file, sizeof file, "%s/manifest.json", left);
    for (int n = 1; n <= 16; n++) { /* the first system calls of a save fail, one at a time */
        const struct ku_ckpt_desc d = state_desc(&s, dir, n);
        assert_int_equal(ku_os_mkdirs(left), 0);
        file_write(file, "{", 1);
        snprintf(fault, sizeof fault, "os:%d", n);
        ku_fault_set(fault);
        const int status = ku_ckpt_save(&d);
        ku_fault_set(NULL);
        n_left += status == KUMI_OK && !ku_os_is_missing(left);
        assert_true(status == KUMI_OK || status == KUMI_ESTORAGE);
    }
    assert_int_equal(n_left, 3); /* the folder is read, the file and the folder are removed */
    state_fini(&s);
    folder_remove(dir);
}

static int has_step(const char *dir, int64_t step)
{
    char path[320];
    struct stat info;
    snprintf(path, sizeof path, "%s/step-%08lld", dir, (long long)step);
    return ku_os_stat(path, &info) == 0;
}
static void damage(const char *dir, int64_t step, const char *file)
{
    char path[320];
    snprintf(path, sizeof path, "%s/step-%08lld/%s", dir, (long long)step, file);
    file_flip(path, -5);
}
static void count_tick(void *n)
{
    ++*(int *)n;
}
static int ticks_of(const struct ku_ckpt_desc *d)
{
    int n = 0;
    ku_ticker = (struct ku_ticker){count_tick, &n};
    assert_status(ku_ckpt_save(d), KUMI_OK);
    ku_ticker = (struct ku_ticker){NULL, NULL};
    return n;
}
/* Files and folders under dir */
static int count_entries(const char *dir)
{
    char **names;
    int n;
    if (ku_os_list(dir, &names, &n) < 0) /* a file */
        return 0;
    int sum = n;
    for (int i = 0; i < n; i++) {
        char *path = ku_asprintf("%s/%s", dir, names[i]);
        sum += count_entries(path);
        ku_free(path);
    }
    ku_free(names);
    return sum;
}
/* n_read: pieces that are read to verify snapshots, less one per removed snapshot. */
static void save_verified(const struct state *s, const char *dir, int64_t step, int n_keep,
                          struct ku_ckpt_verified *verified, int *n_read)
{
    struct ku_ckpt_desc d = state_desc(s, dir, step);
    char path[320];
    const int n_written = ticks_of(&d), n_before = count_entries(dir);
    assert_true(n_written >= 3);
    snprintf(path, sizeof path, "%s/step-%08lld", dir, (long long)step);
    const int n_new = 1 + count_entries(path);
    d.keep = n_keep;
    d.verified = verified;
    *n_read = ticks_of(&d) - n_written;
    *n_read -= n_before + n_new - count_entries(dir);
}

/* Damaged snapshots do not count, whatever is damaged and how new they are. */
static void keep_whole_ones(void **unused)
{
    (void)unused;
    struct state s;
    struct ku_ckpt_verified verified = {0};
    char dir[64], path[320];
    int n_read;
    folder_make(dir);
    state_init(&s);
    state_fill(&s, 1);
    for (int64_t step = 1; step <= 6; step++)
        save(&s, dir, step, 1, 0);
    damage(dir, 6, "manifest.json");
    damage(dir, 5, "model/model.safetensors");
    snprintf(path, sizeof path, "%s/step-00000004/optimizer/optimizer.safetensors", dir);
    assert_int_equal(ku_os_unlink(path), 0);
    save_verified(&s, dir, 7, 3, &verified,
                  &n_read); /* 7, 3, 2: those between stay to be looked at */
    assert_true(n_read > 10);
    for (int64_t step = 1; step <= 7; step++)
        assert_int_equal(has_step(dir, step), step != 1);

    save_verified(&s, dir, 8, 3, &verified,
                  &n_read); /* 8, 7, 3; what is verified is not read again */
    assert_true(n_read <= 0);
    for (int64_t step = 2; step <= 8; step++)
        assert_int_equal(has_step(dir, step), step != 2);
    state_fill(&s, 2);
    save_verified(&s, dir, 9, 2, &verified, &n_read); /* 9, 8 */
    assert_true(n_read <= 0);
    for (int64_t step = 3; step <= 9; step++)
        assert_int_equal(has_step(dir, step), step >= 8);
    save(&s, dir, 8, 1, 0);
    save_verified(&s, dir, 10, 3, &verified,
                  &n_read); /* 10, 9, and 8, which another writer replaced */
    assert_true(n_read > 10);
    damage(dir, 9, "manifest.json.xxh3");
    save_verified(&s, dir, 11, 3, &verified, &n_read); /* 11, 10, 8 */
    assert_true(n_read <= 0);
    assert_true(has_step(dir, 8) && has_step(dir, 9) && has_step(dir, 10));
    save_verified(&s, dir, 9, 3, &verified, &n_read); /* replaced by a whole one: 11, 10, 9 */
    for (int64_t step = 8; step <= 11; step++)
        assert_int_equal(has_step(dir, step), step != 8);
    ku_ckpt_verified_fini(&verified);
    state_fini(&s);
    folder_remove(dir);
}

/* A snapshot of a step that is there is replaced in one step. */
static void replace(void **unused)
{
    (void)unused;
    struct state s, back;
    struct ku_ckpt c;
    char dir[64];
    folder_make(dir);
    state_init(&s);
    state_init(&back);
    state_fill(&s, 1);
    save(&s, dir, 7, 1, 1);
    state_fill(&s, 2);
    save(&s, dir, 7, 2, 1);
    assert_status(ku_ckpt_resume(dir, back.tensor, STATE_TENSORS, &c), KUMI_OK);
    state_assert_equal(&s, &back);
    ku_ckpt_close(&c);
    char **names;
    int n;
    assert_int_equal(ku_os_list(dir, &names, &n), 0);
    assert_int_equal(n, 1);
    ku_free(names);
    state_fini(&s);
    state_fini(&back);
    folder_remove(dir);
}

/* Stopping after any phase leaves the snapshot before it the newest; the next writer cleans up. */
static void stopped_between_phases(void **unused)
{
    (void)unused;
    struct state s, back;
    struct ku_ckpt c;
    char dir[64];
    folder_make(dir);
    state_init(&s);
    state_init(&back);
    state_fill(&s, 1);
    save(&s, dir, 1, 1, 3);
    for (int phase = 0; phase < 3; phase++) {
        struct ku_ckpt_desc d = state_desc(&s, dir, 2);
        struct ku_ckpt_writer *w;
        assert_status(ku_ckpt_writer_create(&d, &w), KUMI_OK);
        if (phase >= 1)
            assert_status(ku_ckpt_writer_begin(w), KUMI_OK);
        if (phase >= 2)
            assert_status(ku_ckpt_writer_write(w, 0, 2), KUMI_OK); /* and never rank 1 */
        ku_ckpt_writer_destroy(w);
        assert_status(ku_ckpt_resume(dir, back.tensor, STATE_TENSORS, &c), KUMI_OK);
        assert_int_equal(c.step, 1);
        state_assert_equal(&s, &back);
        ku_ckpt_close(&c);
    }
    /* A commit without all parts is refused, and cleans up. */
    struct ku_ckpt_desc d = state_desc(&s, dir, 2);
    struct ku_ckpt_writer *w;
    assert_status(ku_ckpt_writer_create(&d, &w), KUMI_OK);
    assert_status(ku_ckpt_writer_begin(w), KUMI_OK);
    assert_status(ku_ckpt_writer_write(w, 0, 2), KUMI_OK);
    assert_error(ku_ckpt_writer_commit(w), KUMI_ESTORAGE, "a rank did not write its part");
    ku_ckpt_writer_destroy(w);
    char **names;
    int n;
    assert_int_equal(ku_os_list(dir, &names, &n), 0);
    assert_int_equal(n, 1);
    ku_free(names);
    state_fini(&s);
    state_fini(&back);
    folder_remove(dir);
}

struct found {
    int n;
    char file[64], tensor[64], what[256];
    uint64_t at, bytes;
};
static void note(void *ctx, const struct ku_ckpt_damage *d)
{
    struct found *f = ctx;
    f->n++;
    snprintf(f->file, sizeof f->file, "%s", d->file != NULL ? d->file : "");
    snprintf(f->tensor, sizeof f->tensor, "%s", d->tensor != NULL ? d->tensor : "");
    snprintf(f->what, sizeof f->what, "%s", d->what);
    f->at = d->at;
    f->bytes = d->bytes;
}

/* One flipped byte anywhere: found, named with file and tensor, and the snapshot before is taken.
 */
static void flipped_bytes(void **unused)
{
    (void)unused;
    struct state s, back;
    struct ku_ckpt c;
    char dir[64], path[320], one[256];
    folder_make(dir);
    state_init(&s);
    state_init(&back);
    state_fill(&s, 1);
    save(&s, dir, 1, 1, 0);
    save(&s, dir, 2, 1, 0);
    snprintf(one, sizeof one, "%s/step-00000002", dir);
    assert_status(ku_ckpt_verify(one, NULL, NULL), KUMI_OK);
    for (int f = 0; f < N_FILES; f++) {
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", one, files[f]);
        assert_int_equal(ku_os_stat(path, &info), 0);
        struct ku_st st = {0};
        int is_st = strstr(files[f], ".safetensors") != NULL && strstr(files[f], ".xxh3") == NULL;
        if (is_st)
            assert_status(ku_st_open(path, &st), KUMI_OK);
        /* a dozen places of the whole file, and some more of its beginning, where the lengths are
         */
        for (int i = 0; i < 24; i++) {
            int64_t at = i < 12 ? (info.st_size - 1) * i / 11 : (i - 12) * 9 % info.st_size;
            struct found found = {0};
            const struct ku_st_tensor *t = is_st ? ku_st_at(&st, (uint64_t)at) : NULL;
            file_flip(path, at);
            assert_error(ku_ckpt_verify(one, note, &found), KUMI_ENOCKPT, path);
            assert_true(found.n >= 1);
            assert_non_null(strstr(files[f], found.file[0] ? found.file : "manifest.json"));
            assert_true(found.file[0] || strstr(found.what, "manifest.json"));
            if (t != NULL) {
                assert_int_equal(found.n, 1);
                assert_string_equal(found.tensor, t->name);
                assert_true(found.at <= (uint64_t)at && (uint64_t)at < found.at + found.bytes);
                assert_true(found.at / (1 << 20) == (uint64_t)at / (1 << 20));
                assert_non_null(strstr(ku_err_get()->text, t->name));
            }
            if (i % 6 == 0) {
                state_wipe(&back);
                assert_status(ku_ckpt_resume(dir, back.tensor, STATE_TENSORS, &c), KUMI_OK);
                assert_int_equal(c.step, 1);
                state_assert_equal(&s, &back);
                ku_ckpt_close(&c);
                char digest[KU_DIGEST_TEXT_BYTES];
                if (t != NULL)
                    assert_status(ku_digest_snapshot(one, 0, digest), KUMI_ENOCKPT);
            }
            file_flip(path, at);
        }
        if (is_st)
            ku_st_close(&st);
    }
    assert_status(ku_ckpt_verify(one, NULL, NULL), KUMI_OK);
    state_fini(&s);
    state_fini(&back);
    folder_remove(dir);
}

static void truncated_and_missing(void **unused)
{
    (void)unused;
    struct state s, back;
    struct ku_ckpt c;
    char dir[64], path[320], one[256];
    folder_make(dir);
    state_init(&s);
    state_init(&back);
    state_fill(&s, 1);
    assert_error(ku_ckpt_resume(dir, back.tensor, STATE_TENSORS, &c), KUMI_ENOCKPT,
                 "holds no checkpoint");
    snprintf(one, sizeof one, "%s/step-00000001", dir);
    assert_int_equal(ku_ckpt_has_any(dir), 0);
    assert_int_equal(ku_ckpt_has_any(one), 0);
    save(&s, dir, 1, 1, 0);
    for (int f = 0; f < N_FILES; f++) {
        size_t bytes;
        snprintf(path, sizeof path, "%s/%s", one, files[f]);
        unsigned char *data = file_read(path, &bytes);
        for (int i = 0; i < 4; i++) {
            if (i < 3)
                file_write(path, data, i == 0 ? 0 : i == 1 ? bytes / 2 : bytes - 1);
            else
                assert_int_equal(ku_os_unlink(path), 0);
            assert_error(ku_ckpt_verify(one, NULL, NULL), KUMI_ENOCKPT, one);
            assert_error(ku_ckpt_resume(dir, back.tensor, STATE_TENSORS, &c), KUMI_ENOCKPT,
                         "checkpoint: ");
            assert_int_equal(ku_ckpt_has_any(dir), 1);
        }
        file_write(path, data, bytes);
        assert_status(ku_ckpt_verify(one, NULL, NULL), KUMI_OK);
        ku_free(data);
    }
    assert_error(ku_ckpt_find(dir, 1, &c), KUMI_ENOCKPT, "no usable snapshot before step 1");
    assert_error(ku_ckpt_find(one, 1, &c), KUMI_ENOCKPT, "no usable snapshot before step 1");
    assert_status(ku_ckpt_find(one, INT64_MAX, &c), KUMI_OK); /* a snapshot itself */
    assert_int_equal(ku_ckpt_has_any(one), 1);
    ku_ckpt_close(&c);
    state_fini(&s);
    state_fini(&back);
    folder_remove(dir);
}

/* Another model: every difference in one error, and nothing read. */
static void differences(void **unused)
{
    (void)unused;
    struct state s, back;
    struct ku_ckpt c;
    char dir[64];
    folder_make(dir);
    state_init(&s);
    state_init(&back);
    state_fill(&s, 1);
    save(&s, dir, 1, 1, 0);
    assert_status(ku_ckpt_find(dir, INT64_MAX, &c), KUMI_OK);
    back.tensor[0].name = "wte.w";
    back.tensor[1].dim[1] = 5;
    back.tensor[6].group = KU_CKPT_MODEL;
    assert_error(ku_ckpt_read(&c, back.tensor, STATE_TENSORS, 0, 1), KUMI_EINPUT,
                 "2 missing, 2 extra, 1 misshapen: missing wte.w, wpe.weight is [3,4,2] instead of "
                 "[3,5,2], missing wte.weight.exp_avg, extra wte.weight, extra wte.weight.exp_avg");
    back.tensor[0].name = "wte.weight";
    back.tensor[1].dim[1] = 4;
    back.tensor[6].group = KU_CKPT_OPTIMIZER;
    /* a difference is not damage: no older snapshot is tried */
    assert_error(ku_ckpt_resume(dir, back.tensor, STATE_TENSORS - 1, &c), KUMI_EINPUT, "1 extra");
    for (int i = 0; i < STATE_TENSORS; i++) {
        unsigned char *m = back.tensor[i].data;
        for (size_t j = 0; j < back.bytes[i]; j++)
            assert_int_equal(m[j], STATE_PAD);
    }
    back.tensor[8].name = back.tensor[7].name;
    assert_error(ku_ckpt_read(&c, back.tensor, STATE_TENSORS, 0, 1), KUMI_EINVAL, "two tensors");
    ku_ckpt_close(&c);
    state_fini(&s);
    state_fini(&back);
    folder_remove(dir);
}

/* A part of a snapshot: files that are not requested are not read, and the optimizer's may hold
 * more tensors; the model's may not. */
static void a_part(void **unused)
{
    enum { MODEL = 6, MOMENT = 7 };
    (void)unused;
    struct state s, back;
    struct ku_ckpt c;
    char dir[64], path[320];
    folder_make(dir);
    state_init(&s);
    state_init(&back);
    state_fill(&s, 1);
    save(&s, dir, 1, 1, 0);
    assert_status(ku_ckpt_find(dir, INT64_MAX, &c), KUMI_OK);
    snprintf(path, sizeof path, "%s/%s", c.path, ku_ckpt_file_name(KU_CKPT_FILE_OPTIMIZER));
    for (int is_damaged = 0; is_damaged < 2; is_damaged++) {
        state_wipe(&back);
        for (int r = 0; r < 3; r++)
            assert_status(ku_ckpt_read_only(&c, back.tensor, MODEL, r, 3), KUMI_OK);
        for (int i = 0; i < STATE_TENSORS; i++) {
            const unsigned char *m = back.tensor[i].data;
            if (i < MODEL)
                assert_memory_equal(m, s.tensor[i].data, s.bytes[i]);
            for (size_t j = 0; i >= MODEL && j < back.bytes[i]; j++)
                assert_int_equal(m[j], STATE_PAD);
        }
        if (is_damaged) {
            assert_error(ku_ckpt_read_only(&c, &back.tensor[MOMENT], 1, 0, 1), KUMI_ENOCKPT, path);
        } else {
            assert_status(ku_ckpt_read_only(&c, &back.tensor[MOMENT], 1, 0, 1), KUMI_OK);
            assert_memory_equal(back.tensor[MOMENT].data, s.tensor[MOMENT].data, s.bytes[MOMENT]);
            file_flip(path, 1 << 20);
        }
    }
    assert_error(ku_ckpt_read_only(&c, back.tensor, MODEL - 1, 0, 1), KUMI_EINPUT,
                 "0 missing, 1 extra, 0 misshapen: extra scale");
    back.tensor[MOMENT].name = "h.0.big.ema";
    assert_error(ku_ckpt_read_only(&c, &back.tensor[MOMENT], 1, 0, 1), KUMI_EINPUT,
                 "1 missing, 0 extra, 0 misshapen: missing h.0.big.ema");
    ku_ckpt_close(&c);
    state_fini(&s);
    state_fini(&back);
    folder_remove(dir);
}

static void other_dtype(void **unused)
{
    (void)unused;
    struct state s, back;
    struct ku_ckpt c;
    char dir[64];
    folder_make(dir);
    state_init(&s);
    state_init(&back);
    state_fill(&s, 1);
    save(&s, dir, 1, 1, 0);
    double wide[8 * 7];
    back.tensor[0].dtype = KUMI_F64; /* a run in f64 goes on from an f32 one */
    free(back.tensor[0].data);
    back.tensor[0].data = wide;
    assert_status(ku_ckpt_resume(dir, back.tensor, STATE_TENSORS, &c), KUMI_OK);
    for (int i = 0; i < 5 * 7; i++)
        assert_true(wide[i] == (double)((float *)s.tensor[0].data)[i]);
    ku_ckpt_close(&c);
    ((float *)s.tensor[2].data)[702] = 1.0f / 3; /* row 1 begins at 704 */
    ((float *)s.tensor[2].data)[704] = 1.0f / 3;
    save(&s, dir, 2, 1, 0);
    back.tensor[2].dtype = KUMI_BF16; /* a run without a master from one with */
    assert_status(ku_ckpt_resume(dir, back.tensor, STATE_TENSORS, &c), KUMI_OK);
    ku_ckpt_close(&c);
    assert_int_equal(((uint16_t *)back.tensor[2].data)[704], ku_bf16_from_f32(1.0f / 3));
    float narrow[8 * 7]; /* f32 from f64 is refused where it is not exact */
    void *own = s.tensor[0].data;
    wide[3] = 1.0 / 3;
    s.tensor[0].dtype = KUMI_F64, s.tensor[0].data = wide;
    save(&s, dir, 3, 1, 0);
    back.tensor[0].dtype = KUMI_F32, back.tensor[0].data = narrow;
    assert_error(ku_ckpt_resume(dir, back.tensor, STATE_TENSORS, &c), KUMI_EINPUT,
                 "element 3: 0.3333");
    s.tensor[0].data = own;
    back.tensor[0].data = NULL;
    state_fini(&s);
    state_fini(&back);
    folder_remove(dir);
}

/*
 * A run in training commits a snapshot and removes the older one between listing and opening: while
 * the warning of a damaged newest one is written.
 */
static void commit_and_prune(void *ctx, const char *line, size_t bytes)
{
    char path[4][320];
    (void)line;
    (void)bytes;
    static const char *const names[] = {"step-00000010", "aside-10", "aside-20", "step-00000020"};
    for (int i = 0; i < 4; i++)
        snprintf(path[i], sizeof path[i], "%s/%s", (const char *)ctx, names[i]);
    KU_IGNORE(ku_os_rename(path[0], path[1]), "done by the first warning");
    KU_IGNORE(ku_os_rename(path[2], path[3]), "likewise");
}

static void removed_meanwhile(void **unused)
{
    (void)unused;
    struct state s;
    struct ku_ckpt c;
    char dir[64], path[2][320];
    const struct kumi_messages messages = {.line = commit_and_prune, .ctx = dir};
    folder_make(dir);
    state_init(&s);
    state_fill(&s, 1);
    for (int64_t step = 10; step <= 30; step += 10)
        save(&s, dir, step, 1, 0);
    damage(dir, 30, "manifest.json");
    snprintf(path[0], sizeof path[0], "%s/step-00000020", dir);
    snprintf(path[1], sizeof path[1], "%s/aside-20", dir);
    assert_int_equal(ku_os_rename(path[0], path[1]), 0);
    kumi_messages_set(&messages);
    const int status = ku_ckpt_find(dir, INT64_MAX, &c);
    kumi_messages_set(NULL);
    assert_status(status, KUMI_OK);
    assert_int_equal(c.step, 20);
    ku_ckpt_close(&c);
    assert_false(has_step(dir, 10));
    assert_error(ku_ckpt_find(dir, 20, &c), KUMI_ENOCKPT, "no usable snapshot before step 20");
    state_fini(&s);
    folder_remove(dir);
}

static void refused(void **unused)
{
    (void)unused;
    struct state s;
    struct ku_ckpt_writer *w;
    state_init(&s);
    struct ku_ckpt_desc d = state_desc(&s, "/proc/none", 1);
    assert_error(ku_ckpt_save(&d), KUMI_ESTORAGE, "/proc/none");
    d.step = -1;
    assert_error(ku_ckpt_writer_create(&d, &w), KUMI_EINVAL, "step -1");
    d.step = 1;
    s.tensor[0].padded[0] = 4;
    assert_error(ku_ckpt_writer_create(&d, &w), KUMI_EINVAL, "5 in files, 4 in memory");
    s.tensor[0].padded[0] = 8;
    s.tensor[1].name = "";
    assert_error(ku_ckpt_writer_create(&d, &w), KUMI_EINVAL, "no name");
    state_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks),         cmocka_unit_test(manifest),
        cmocka_unit_test(keep),          cmocka_unit_test(keep_whole_ones),
        cmocka_unit_test(replace),       cmocka_unit_test(stopped_between_phases),
        cmocka_unit_test(flipped_bytes), cmocka_unit_test(truncated_and_missing),
        cmocka_unit_test(differences),   cmocka_unit_test(a_part),
        cmocka_unit_test(other_dtype),   cmocka_unit_test(removed_meanwhile),
        cmocka_unit_test(refused),       cmocka_unit_test(fixed_leftover),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
