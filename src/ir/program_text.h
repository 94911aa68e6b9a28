/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_IR_PROGRAM_TEXT_H
#define KU_IR_PROGRAM_TEXT_H

#include "ir/program.h"

/* An instruction in short: stage, phase, micro-batch, op and module path, as "1I3 linear_dx h.2"
 * or "1F0 wait recv h.1". */
void ku_program_instr_text(const struct ku_program *p, uint32_t at, char *text, size_t cap);

/*
 * The text of a program, version 2. program_print.c writes it, program_parse.c reads it.
 *
 *   kumi program 2 train
 *   mesh shard=2 vs=2 mb=2                       (extents above 1; then mb_outer, if it is set)
 *   arenas state=64 wire=2112 step=2240 input=192
 *   state up.weight param f32[c=4 f=6] shard+256 bytes=96 block=1 blocks={shard:Z} kept
 *   buffer b1:up.weight param f32[c=4 f=6]{shard:R} shard+256 bytes=96 %2
 *   buffer b28:up@0 activation f32[n=12 f=6]{shard:S(n)} step+0 bytes=288 live=3..4 %31
 *   input tokens b20
 *   output loss_sum b36
 *        3 0F0 linear b28:up@0 b29:up@0 <- b25 b1 b2 @up
 *       60 0W1 start reduce_scatter #1 shard b41:head@0 b52@0 <- b130<word=2> @wte.weight
 *       72 0O wait #1 @wte.weight
 *
 * buffer   name, micro-batch, category, type, address; live: the first and last instruction; `in`:
 *          the buffer whose bytes it has; %: the value of the graph. The type is that of the first
 *          port, result or operand that names the buffer, in the order of the lines.
 * operand  buffer, and what differs from the buffer's type: (dtype), [shape], {placement}; then
 *          <..>: block, slot, piece=i/count, add, out, word. Results repeat the buffer's name.
 * mesh     at_pp: the coordinate of axis pp that the program is of; of a state tensor, pp: the one
 *          that stores it.
 * start    exchange, handle, axes, peer, group, reduce, wire; its parts stand where results stand.
 * wait     handle and path; all else is that of the start with this handle.
 *
 * An index in front of an instruction may be left out. Bytes that would end a name are written as
 * \xHH. The tables of shapes, placements, attributes and names follow from the lines.
 */

/* Name of a category of buffers, and of a kind of state tensor, as one word. */
const char *ku_class_word(int cls);
const char *ku_state_kind_word(int kind);

/* The bytes that end a name, besides blanks and control characters; written as \xHH. */
#define KU_NAME_ENDS "@([{<\\"

#endif
