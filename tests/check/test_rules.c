/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules of the check, one by one: each row is an edit of the text of a small program, and the rule
 * that refuses it.
 */
#include "base/str.h"
#include "check/check.h"
#include "kumi/model.h"

#include "layouts.h"

static struct ku_graph *gpt2(const struct kumi_shape_of_batch *batch)
{
    struct kumi_gpt2 c;
    struct kumi_graph *b;
    struct ku_graph *g;
    kumi_gpt2_defaults(&c);
    c.n_layer = 1, c.n_head = 2, c.n_embd = 8, c.n_positions = 8, c.vocab_size = 40;
    assert_int_equal(kumi_graph_create(&b), 0);
    kumi_gpt2_build(b, &c, batch);
    assert_int_equal(ku_builder_take(b, &g), 0);
    kumi_graph_destroy(b);
    return g;
}
/* One token of two samples, with caches of keys and values of 8 places. */
static struct ku_graph *generation(int64_t n)
{
    const struct kumi_shape_of_batch batch = {.n = 2, .t = 1, .is_inference = 1, .cache = 8};
    (void)n;
    return gpt2(&batch);
}
static struct ku_graph *sentences(int64_t n)
{
    const struct kumi_shape_of_batch batch = {.n = n / 8, .t = 6};
    return gpt2(&batch);
}

/* S: two ranks share the state, two micro-batches. Z: ZeRO stage 3 on two ranks, two virtual
 * shards, bf16, clipping by value. Then Z's evaluation and initial values, and generation. DIVIDES:
 * two ranks of axis tp divide sequences. EXACT: two ranks of axis tp, sums in four slices.
 * OFFLOADS: masters, optimizer state and averages in a file. */
enum { S, Z, EVALUATES, INITIAL, GENERATES, DIVIDES, EXACT, OFFLOADS, N_TEXTS };
static const struct {
    struct layout l;
    enum ku_check_kind kind;
} source[N_TEXTS] = {
#define SHARED                                                                                     \
    {                                                                                              \
        .model = mlp, .ranks = 2, .replicate = 1, .mb = 2, .vs = 1, .optimizer = KU_OP_adamw       \
    }
#define SHARDED                                                                                    \
    {                                                                                              \
        .model = mlp, .ranks = 2, .replicate = 1, .mb = 1, .vs = 2, .zero = 3,                     \
        .compute = KUMI_BF16, .optimizer = KU_OP_adamw, .clip_value = 1                            \
    }
    {SHARED, KU_CHECK_TRAIN},
    {SHARDED, KU_CHECK_TRAIN},
    {SHARDED, KU_CHECK_EVAL},
    {SHARDED, KU_CHECK_INIT},
    {{.model = generation, .ranks = 1, .replicate = 1, .mb = 1, .vs = 1, .optimizer = KU_OP_adamw},
     KU_CHECK_EVAL},
    {{.model = sentences,
      .ranks = 1,
      .replicate = 1,
      .mb = 2,
      .vs = 1,
      .tp = 2,
      .sp = 1,
      .is_private = 1,
      .optimizer = KU_OP_adamw},
     KU_CHECK_TRAIN},
    {{.model = mlp,
      .ranks = 1,
      .replicate = 1,
      .mb = 1,
      .vs = 1,
      .tp = 2,
      .tp_exact = 4,
      .is_private = 1,
      .optimizer = KU_OP_adamw},
     KU_CHECK_TRAIN},
    {{.model = mlp,
      .ranks = 1,
      .replicate = 1,
      .mb = 1,
      .vs = 1,
      .is_private = 1,
      .compute = KUMI_BF16,
      .averages = 1,
      .offload = 1,
      .optimizer = KU_OP_adamw},
     KU_CHECK_TRAIN},
};

static const struct {
    int text;
    const char *from, *to, *rule;
} rows[] = {
    /* values */
    {S, "<- b18 b3", "<- b18(bf16) b3", "reads dtype"},
    {S, "<- b18 b3", "<- b18[n=96 f=512]{local:S(n) mb:S(n)} b3", "reads a value in another shape"},
    {S, "act=relu", "act=silu", "computes a value that the model does not have"},
    {S, "0F1 linear", "0F0 linear", "computes a value that the model does not have"},
    {S, "0W1 linear_dw+ b28", "0W1 linear_dw b28", "the norm is not the sum of squares"},
    {S, "0F1 linear ", "0F1 linear+ ", "linear has no accumulate form"},
    /* collectives */
    {S, "#1 local b23", "#1 shard b23", "are not axes of several ranks"},
    {S, "reduce_scatter #3", "reduce_scatter #2", "handle #2 is used twice"},
    {S, "wait #3 ", "wait #2 ", "waits for #2 a second time"},
    {S, "0O start barrier #7 local @\n", "", "waits for #7, which has not started"},
    {S, "0O wait #7 @\n", "", "collective #7 has no wait"},
    {S, "0O wait #6 @norm\n", "", "reads a buffer that collective #6 still uses"},
    {S, "all_reduce #6 local", "all_reduce #6 local reduce=max", "totals are added exactly"},
    {S, "all_reduce #1 local", "all_reduce #1 local wire=f16", "on the wire for values of dtype"},
    {S, "{local:Z}<word=72>", "<word=72>", "is not that of a reduce_scatter"},
    {S, "reduce_scatter #2", "all_reduce #2", "is not that of a all_reduce"},
    {S, "0O start all_reduce #6 local b17:norm @norm\n0O wait #6 @norm\n", "",
     "reads a partial sum"},
    {Z, "0F0 wait #1 @up\n", "", "reads a buffer that collective #1 still uses"},
    {Z, "all_gather #1 shard", "all_gather #1 shard group=2", "groups of 2 ranks, partitioned"},
    {Z, "<out=b21>", "<block=1 out=b21>", "chunks of another partition"},
    {Z, "<out=b22>", "<out=b21>", "another dtype"},
    {Z, "<out=b21>", "<out=b22>", "has 4096 bytes, its value needs 16384"},
    {Z, "0F0 wait #1 @up\n", "0F0 wait #1 @up\n0F0 cast b21:up@0 <- b5 dtype=bf16 @up\n",
     "copies a shard in the place of the whole tensor"},
    {Z, "0F0 wait #1 @up\n",
     "0F0 wait #1 @up\n0F0 cast b21:up@0[c=1024 f=8] <- b21 dtype=bf16 @up\n",
     "copies a value into another shape"},
    /* the norm */
    {S, "<word=72>", "<word=73>", "the norm is not the sum of squares of every gradient, once"},
    {S, "<word=72>", "<word=7>", "counts non-finite elements inside the sum"},
    {EXACT, " chunk=256", " chunk=512",
     "the norm is not the sum of squares of every gradient, once"},
    {EXACT, " chunk=256", "", "the norm is not the sum of squares of every gradient, once"},
    {S, "words=76", "words=75", "zeroes another number of words"},
    /* the update */
    {S, "clip=1 shift=5", "clip=1 shift=6", "scales by 2^6, the model needs 2^5"},
    {S, "dtype=f32 shift=5", "dtype=f32 shift=4", "scales by 2^4, the model needs 2^5"},
    {S, "clip=1 shift=5", "shift=5", "computes a value that the update does not have"},
    {S, "lr=0.001 @norm", "lr=0.002 @norm", "computes a value that the update does not have"},
    {S, "b42 weight_decay=0.1", "b42 weight_decay=0.2", "that the update does not have"},
    {S, "b6 b7 b31", "b7 b6 b31", "is not in the bytes of operand"},
    {S, "b31{local:Z} b42", "b31{local:Z}<block=1> b42", "chunks of another partition"},
    {S,
     "0O adamw b1:up.weight{local:Z} b6:up.weight.exp_avg b7:up.weight.exp_avg_sq <- b1{local:Z}",
     "0W adamw b1:up.weight b6:up.weight.exp_avg b7:up.weight.exp_avg_sq <- b1",
     "computes whole tensors from shards"},
    {S, "<- b18 b3", "<- b18 b3{local:Z}", "the op cannot run on owned chunks"},
    {Z, "0O adamw b1:up.weight", "0O adamw b1:up.weight{shard:Z(1)}", "its value needs 32768"},
    {Z, "b66 clip_value=1", "b66 clip_value=2", "that the update does not have"},
    {Z, "0O clip_value b63:up.weight <- b63 b66", "0O clip_value b63:up.weight <- b63 b63",
     "that the update does not have"},
    /* state and ordering */
    {S, "state up.bias param f32[f=1024] host+", "state up.bias param f32[f=1024] host+6",
     "is not where the state plan has up.bias"},
    {S, " host+0 bytes=32768 %", " host+0 bytes=32768 kept %",
     "is not where the state plan has up.weight"},
    {S, "0O start barrier #7 local @\n0O wait #7 @\n", "",
     "the step ends with state that is not complete on all ranks"},
    {Z, "0O start barrier #17 shard @\n0O wait #17 @\n", "",
     "no collective orders the update before the next step's gather"},
    /* memory */
    {S, "wire+57984 bytes=576", "wire+57992 bytes=576", "is not at a multiple of 64 bytes"},
    {S, "scalar f64[w=8]{} step+", "scalar f64[w=8]{} step+9999999", "ends beyond the arena's"},
    {S, "b30@0 <- b27 b19", "b30@0 <- b19 b27", "shares bytes with buffer"},
    {S, "loss@0 <- b20 b15", "loss@0 <- b35 b15", "shares bytes with buffer b20"},
    {S, "wire+57984 bytes=576", "wire+57984 bytes=568", "has 568 bytes, its value needs 576"},
    {S, "wire+57984 bytes=576", "wire+57984 bytes=576 kept", "has a rank's owned chunks alone"},
    /* evaluation */
    {EVALUATES, "all_reduce #9 shard", "all_reduce #9 local", "are not axes of several ranks"},
    {EVALUATES, "0F1 count_valid", "0F0 count_valid", "that the update does not have"},
    {EVALUATES, "0F0 wait #1 @up\n", "", "reads a buffer that collective #1 still uses"},
    /* initial values */
    {INITIAL, "std=0.03125", "std=0.0625", "computes a value that is no initial one"},
    {INITIAL, "stream=3", "stream=1", "computes a value that is no initial one"},
    {INITIAL, "bf16 <- b1 b5", "bf16 <- b3 b5", "are not those of the state plan"},
    {INITIAL, "0O derive b6:down.weight:bf16 <- b3 b6 @down.weight:bf16\n", "",
     "the step ends with state that is not complete"},
    {INITIAL,
     "0O random_normal b1:up.weight <- b1 b16 std=0.35355339059327373 stream=1 @up.weight\n", "",
     "reads a buffer before it is written"},
    {INITIAL, "0O derive b5:up.weight:bf16 <- b1 b5 @up.weight:bf16\n",
     "0O derive b5:up.weight:bf16 <- b1 b5 @up.weight:bf16\n"
     "0O derive b5:up.weight:bf16 <- b1 b5 @up.weight:bf16\n",
     "writes a tensor twice"},
    {INITIAL, "0O start barrier #1 shard @\n0O wait #1 @\n", "",
     "no collective orders the write before a step's gather"},
    /* generation */
    {GENERATES, "0F0 cache_write b7:h.0.attn.k_cache <- b7 b33 b22",
     "0F0 cache_write b7:h.0.attn.k_cache <- b7 b33 b23",
     "computes a value that the model does not have"},
    {GENERATES, "b33:h.0.attn@0 <- b31 index=1", "b33:h.0.attn@0 <- b31 index=2",
     "computes a value that the model does not have"},
    {GENERATES, "<- b34 b7 b8 b22", "<- b34 b8 b7 b22",
     "computes a value that the model does not have"},
    {GENERATES, "0F0 cache_write b8:h.0.attn.v_cache <- b8 b32 b22",
     "0F0 cache_write b8:h.0.attn.v_cache <- b8 b33 b22",
     "computes a value that the model does not have"},
    {GENERATES, "select b49@0 <- b46 b23", "select b49@0 <- b46 b22",
     "computes a value that the model does not have"},
    {GENERATES, "output logits b24", "output logits b49", "is not the value over all micro"},
    {GENERATES, "0F0 linear b24:lm_head <- b49 b2 trans=1",
     "0F0 linear b24:lm_head <- b49 b2 trans=1 act=relu",
     "computes a value that the model does not have"},
    /* parts along a dim (split_collectives.c) */
    {DIVIDES, "all_gather #2 tp b69", "all_gather #2 tp group=2 b69",
     "parts along a dim are of all tensor-parallel ranks"},
    {DIVIDES, "all_gather #2 tp b69", "all_gather #2 tp wire=bf16 b69", "on the wire for values"},
    {DIVIDES, "<out=b64>", "<add=b65 out=b64>", "adds to, or divides into chunks"},
    {DIVIDES, "<out=b64>", "", "parts along a dim have a buffer of their own"},
    {DIVIDES, "<out=b72>", "<out=b69>", "parts along a dim have a buffer of their own"},
    {DIVIDES, "<out=b72>", "<out=b51>", "the result has another dtype"},
    {DIVIDES, "<out=b72>", "<out=b57>", "reads a buffer before it is written"},
    {DIVIDES, "<out=b72>", "<out=b68>", "has 288 bytes, its value needs 576"},
    {DIVIDES, "reduce_scatter #1 tp b63", "all_reduce #1 tp b63",
     "leaves parts along a dim by a all_reduce"},
    {DIVIDES, "reduce_scatter #1 tp b63", "all_gather #1 tp b63",
     "gathers a value that is not divided along this dim"},
    {DIVIDES, "reduce_scatter #1 tp b63", "reduce_scatter #1 tp reduce=max b63",
     "reduces over axis tp a value that is partial over axes"},
    {DIVIDES, "0F0 wait #1 @h.0.attn.c_proj\n", "", "reads a buffer that collective #1 still uses"},
    {DIVIDES, "0F0 part b67:h.0@0 <- b56", "0F0 part b67:h.0@0 <- b66",
     "takes a part of a value that is not whole"},
    /* samples (samples.c) */
    {S, "<- b18 b3", "<- b18{local:S(f) mb:S(f)} b3", "divide otherwise"},
    {S, "<- b18 b3", "<- b18{local:S(n) mb:S(f)} b3", "along several dims"},
    {S, "<- b18 b3", "<- b18{mb:S(n)} b3", "samples are divided over all of"},
    {S, "b19:up@0 <-", "b19:up@0{local:S(f) mb:S(f)} <-",
     "do not divide the result along the dim of its samples"},
    {S, "buffer b14 input f32[n=96 c=8]{replicate:S(n) shard:S(n) local:S(n) vs:S(n) mb:S(n)}",
     "buffer b14 input f32[n=96 c=8]{local:S(c) mb:S(c)}", "divide port x otherwise"},
    {S,
     "buffer b18:up@0 activation f32[n=96 f=1024]{replicate:S(n) shard:S(n) local:S(n) vs:S(n) "
     "mb:S(n)}",
     "buffer b18:up@0 activation f32[n=96 f=1024]{local:S(f) mb:S(f)}",
     "do not divide the result along the dim of its samples"},
};

/* A program's text without what depends on the number of instructions: indices and live ranges. */
static void plain_text(const struct ku_program *p, struct ku_str *out)
{
    struct ku_str all = {0};
    assert_int_equal(ku_program_print(p, NULL, &all), 0);
    for (const char *at = ku_str_get(&all); *at;) {
        const char *end = strchr(at, '\n'), *live = strstr(at, " live=");
        if (*at == ' ')
            at += strspn(at, " 0123456789") - 1; /* the phase begins with the stage, 0 */
        if (live && live < end) {
            ku_str_add(out, "%.*s", (int)(live - at), at);
            at = live + 1 + strcspn(live + 1, " \n");
        }
        ku_str_add(out, "%.*s\n", (int)(end - at), at);
        at = end + 1;
    }
    ku_str_fini(&all);
}

static int check_text(struct job *j, const char *text, size_t bytes)
{
    struct ku_check_report r;
    struct ku_program *p = NULL;
    KU_TRY(ku_program_parse("text", text, bytes, &p));
    int status = ku_check_program(j->model, &j->check, p, &r);
    ku_program_destroy(p);
    return status;
}

/* The number of rows that another rule refuses, or none. */
static int check_rows(struct job *j, int which, const char *text)
{
    int n_wrong = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].text != which)
            continue;
        const char *at = strstr(text, rows[i].from);
        struct ku_str edited = {0};
        if (at == NULL)
            fail_msg("no '%s' in\n%s", rows[i].from, text);
        ku_str_add(&edited, "%.*s%s%s", (int)(at - text), text, rows[i].to,
                   at + strlen(rows[i].from));
        int status = check_text(j, ku_str_get(&edited), edited.bytes);
        const bool is_right = status == KUMI_EPLAN && strstr(ku_err_get()->text, rows[i].rule);
        n_wrong += !is_right;
        if (!is_right)
            print_error("%s -> %s\n  wanted %s\n  got    %s\n", rows[i].from, rows[i].to,
                        rows[i].rule, status ? ku_err_get()->text : "accepted");
        ku_str_fini(&edited);
    }
    return n_wrong;
}

static void rules(void **state)
{
    int n_wrong = 0;
    (void)state;
    for (int k = 0; k < N_TEXTS; k++) {
        struct job j = {.o = options(&source[k].l)};
        char table[] = "wte";
        struct ku_tp_rule whole = {.match = table, .style = KU_TP_REPLICATE};
        struct ku_graph *graph = graph_of(&source[k].l);
        struct ku_str text = {0};
        if (k == DIVIDES)
            j.o.plan = (struct ku_tp_plan){&whole, 1};
        assert_int_equal(compile(source[k].kind, NULL, graph, &j), 0);
        plain_text(j.p, &text);
        if (check_text(&j, ku_str_get(&text), text.bytes) < 0)
            fail_msg("%s", ku_err_get()->text);
        n_wrong += check_rows(&j, k, ku_str_get(&text));
        ku_str_fini(&text);
        ku_graph_destroy(graph);
        drop(&j);
    }
    assert_int_equal(n_wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rules)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
