/* SPDX-License-Identifier: Apache-2.0 */
/* links: ir op tensor base */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "ir/program.h"
#include "program_equal.h"

#define HEAD "kumi program 2 x\n"
#define TWO                                                                                        \
    HEAD "mesh local=2 mb=2\narenas step=64\nbuffer b1:a@0 activation f32[n=8]{mb:S(n)} step+0 "   \
         "bytes=16 live=0..1\n"

/* What a broken text says: line, column, cause, and the word. */
static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"", "x:0:1: the text is empty"},
        {"# a comment alone\n", "the text is empty"},
        {"# a comment\nmesh tp=2\n", "x:2:1: the text does not begin with 'kumi program 2'"},
        {"kumi program 1 x\n", "x:1:1: the text does not begin with 'kumi program 2'"},
        {"kumi program 2 x rank=0\n", "x:1:17: the text of one rank is not a program"},
        {HEAD "foo\n", "x:2:1: no such kind of line, at 'foo'"},
        {HEAD "mesh tq=2\n", "x:2:8: the mesh must be axis=extent"},
        {HEAD "mesh tp=0\n", "x:2:10: an extent must be 1 or more"},
        {HEAD "mesh tp=99999999999999999999\n", "the number is too large"},
        {HEAD "mesh tp=2097152 shard=4\n", "product below 2^22"},
        {HEAD "arenas disk=4\n", "x:2:8: no such arena, at 'disk=4'"},
        {HEAD "arenas step=2305843009213693952\n", "the number is too large"},
        {HEAD "state w parameter f32[c=4] state+0 bytes=16\n", "x:2:9: no such kind of state"},
        {HEAD "state w param f33[c=4] state+0 bytes=16\n", "x:2:15: no such dtype, at 'f33[c=4]"},
        {HEAD "state w param f32[c=4 c=2] state+0 bytes=16\n", "two dimensions are named c"},
        {HEAD "state w param f32[c=4 d] state+0 bytes=16\n", "a dimension must be name=count"},
        {HEAD "state w param f32[c=4] state bytes=16\n", "arena+offset is missing"},
        {HEAD "state w param f32[c=4] state+0\n", "bytes= is missing"},
        {HEAD "state w param f32[c=4] state+0 bytes=16 blocks={shard:R}\n", "blocks= needs Z"},
        {HEAD "state w param f32[c=4] state+0 bytes=16 of=v\n", "of=: no such state"},
        {HEAD "state w\\q param f32[c=4] state+0 bytes=16\n", "a backslash must begin \\xHH"},
        {HEAD "buffer b2 param f32 step+0 bytes=4\n", "buffers must be numbered from b1 on"},
        {HEAD "buffer b1 thing f32 step+0 bytes=4\n", "no such category of buffers, at 'thing"},
        {HEAD "buffer b1 grad f32[c=4]{tp:Q} step+0 bytes=4\n", "axis:C, R, P, Z or S(dim)"},
        {HEAD "buffer b1 grad f32[c=4]{tp:S(d)} step+0 bytes=4\n", "has no such dimension"},
        {HEAD "buffer b1 grad f32[c=4]{tp:Z(0)} step+0 bytes=4\n", "Z(g) needs a group size"},
        {HEAD "buffer b1 grad f32 step+0 bytes=4 live=3..2\n", "first instruction is after the l"},
        {HEAD "buffer b1 grad f32 step+0 bytes=4 live=3\n", "live=first..last is missing"},
        {HEAD "buffer b1 grad f32 step+0 bytes=4 live=0..9\n", "beyond the end of the program"},
        {HEAD "buffer b1 grad f32 step+0 bytes=4 in=b1\n", "beyond the end of the program"},
        {HEAD "buffer b1 grad f32 step+0 bytes=4 foo\n", "the line does not end here, at 'foo'"},
        {HEAD "buffer b1 grad f32 step+0 bytes=4\ninput a b1\n", "states no type"},
        {TWO "input a b2\n", "x:5:11: no buffer line has this number"},
        {TWO "1 0F0 act b1:a@0 <- b1 act=relu @\n", "index of the instruction differs"},
        {TWO "0X0 act b1:a@0 <- b1 act=relu @\n", "the phase must be A, F, I, W or O"},
        {TWO "0F2 act b1:a@0 <- b1 act=relu @\n", "the mesh has fewer micro-batches"},
        {TWO "0F0 actt b1:a@0 <- b1 @\n", "x:5:5: no such op, at 'actt"},
        {TWO "0F0 convert b1:a@0 <- b1 @\n", "x:5:5: no such op"},
        {TWO "0F0 act b1:b@0 <- b1 @\n", "the buffer has another name"},
        {TWO "0F0 act b1:a@1 <- b1 @\n", "the buffer has another name"},
        {TWO "0F0 act b1:a@0 @\n", "the number of operands does not fit the op"},
        {TWO "0F0 act b1:a@0 <- b1 b1 @\n", "the number of operands does not fit the op"},
        {TWO "0F0 act b1:a@0 <- b1[]  @\n", "does not fit this shape; give a placement"},
        {TWO "0F0 act b1:a@0 <- b1<turn=2> @\n", "an operand has block, slot, piece, add"},
        {TWO "0F0 act b1:a@0 <- b1<piece=2/0> @\n", "a piece has no elements"},
        {TWO "0F0 act b1:a@0 <- b1 act=swish @\n", "no such attribute or value, at 'act"},
        {TWO "0F0 act b1:a@0 <- b1\n", "the path (@..) is missing"},
        {TWO "0F0 start gossip #1 @\n", "no such exchange, at 'gossip"},
        {TWO "0F0 start all_reduce tp b1:a@0 @\n", "a handle (#1 ..) is missing"},
        {TWO "0F0 start all_reduce #0 b1:a@0 @\n", "handles begin at #1"},
        {TWO "0F0 start all_reduce #1 mb b1:a@0 @\n", "neither an axis of ranks nor peer=, group="},
        {TWO "0F0 start all_reduce #1 local reduce=min b1:a@0 @\n", "no such reduction"},
        {TWO "0F0 wait 1\n", "a handle (#1 ..) is missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct ku_program *p;
        if (ku_program_parse("x", rows[i].text, strlen(rows[i].text), &p) != KUMI_EINVAL)
            fail_msg("row %zu is read: %s", i, rows[i].text);
        if (strstr(ku_err_get()->text, rows[i].says) == NULL)
            fail_msg("row %zu: %s", i, ku_err_get()->text);
    }
}

/* Several stages, names to escape, a wait without a start. */
static void round_trips(void **state)
{
    (void)state;
    static const char *const rows[] = {
        HEAD "mesh\narenas\n", HEAD "mesh pp=2 tp=4 vs=2 mb_outer\narenas host=1 file=8192\n",
        TWO "     0 3F1 act b1:a@0 <- b1(bf16)[n=4 c=2]{} act=relu stream=7 source=a.c:3 @m.0\n"
            "     1 0O start all_reduce #2 local reduce=max wire=bf16 b1:a@0{local:Z(2)}<block=1 "
            "slot=2 piece=3/4096 add=b1 out=b1 word=4> <- b1 @a\\x20b\\x40\n"
            "     2 0O wait #2 @\n     3 0O wait #9 @q\n",
        HEAD "mesh\narenas\nbuffer b1 workspace u8 step+0 bytes=4 live=never..0\n"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct ku_program *p, *again;
        struct ku_str text = {0};
        if (ku_program_parse("x", rows[i], strlen(rows[i]), &p) < 0)
            fail_msg("row %zu: %s", i, ku_err_get()->text);
        assert_int_equal(ku_program_print(p, NULL, &text), KUMI_OK);
        if (i < 3)
            assert_string_equal(ku_str_get(&text), rows[i]);
        const char *what = program_round_trip(p, &again);
        if (what)
            fail_msg("row %zu: %s", i, what);
        ku_str_fini(&text);
        ku_program_destroy(p);
        ku_program_destroy(again);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(refusals), cmocka_unit_test(round_trips)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
