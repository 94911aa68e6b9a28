/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints a program as text: state, ports, then one instruction per line (STAGE PHASE MICRO op,
 * results <- operands, each with buffer, name, dtype, shape and placement).
 *
 *     12 2F0 linear b7:h.0.mlp.c_fc@0:f32[n=8 t=64 f=512]{..} <- b3:.. @h.0.mlp.c_fc
 *    340 0W0 start reduce_scatter #3 shard ..
 *
 * For one rank the first index of each part follows its shape, where it is not 0:
 * [n=8 t=64](n=8) holds samples 8 to 15.
 */
#include "base/str.h"
#include "ir/program.h"

static void print_start(const struct ku_part *part, struct ku_str *out)
{
    const char *before = "(";
    for (int d = 0; d < part->shape.ndim; d++)
        if (part->start[d]) {
            ku_str_add(out, "%s%c=%lld", before, part->shape.dim[d].name,
                       (long long)part->start[d]);
            before = " ";
        }
    if (before[0] == ' ')
        ku_str_add(out, ")");
}

static void print_operand(const struct ku_program *p, const struct ku_operand *o, int micro,
                          const struct ku_coord *rank, struct ku_str *out)
{
    const struct ku_buffer *b = &p->buffer[o->buffer];
    const struct ku_coord first = {0};
    struct ku_part part;
    char shape[512], layout[256];
    ku_program_part(p, o, rank ? rank : &first, micro, &part);
    ku_str_add(out, " b%u:%s", o->buffer, p->name_of[b->name]);
    if (b->micro >= 0)
        ku_str_add(out, "@%d", b->micro);
    if (o->slot)
        ku_str_add(out, "[%d]", o->slot);
    if (o->piece_count)
        ku_str_add(out, "/%d", o->piece);
    ku_str_add(out, ":%s%s", kumi_dtype_name((enum kumi_dtype)o->dtype),
               ku_shape_print(&part.shape, shape, sizeof shape));
    if (rank)
        print_start(&part, out);
    ku_str_add(out, "%s%s+%zu",
               ku_layout_print(&p->layout[o->layout], &p->shape[o->shape], layout, sizeof layout),
               ku_arena_name(b->arena), b->offset + part.offset);
    if (o->addend)
        ku_str_add(out, "+b%u", o->addend);
    if (o->out)
        ku_str_add(out, "->b%u", o->out);
    if (o->stats_word)
        ku_str_add(out, "->w%u", o->stats_word);
}

static void print_instr(const struct ku_program *p, uint32_t at, const struct ku_coord *rank,
                        struct ku_str *out)
{
    const struct ku_instr *i = &p->instr[at];
    ku_str_add(out, "%6u ", at);
    if (i->micro >= 0)
        ku_str_add(out, "%d%s%d ", i->stage, ku_phase_name(i->phase), i->micro);
    else
        ku_str_add(out, "%d%s ", i->stage, ku_phase_name(i->phase));
    if (i->kind == KU_WAIT) {
        ku_str_add(out, "wait #%u\n", i->handle);
        return;
    }
    if (i->kind == KU_START) {
        ku_str_add(out, "start %s #%u", ku_exchange_name(i->op), i->handle);
        for (int a = 0; a < KU_N_AXES; a++)
            if (i->axes >> a & 1)
                ku_str_add(out, " %s", ku_axis_name(a));
        if (i->group)
            ku_str_add(out, "(%d)", i->group);
        if (i->n_parts && !ku_exchange_is_tier(i->op) &&
            i->wire != p->operand[i->operand + i->n_in].dtype)
            ku_str_add(out, " wire=%s", kumi_dtype_name((enum kumi_dtype)i->wire));
    } else
        ku_str_add(out, "%s%s", ku_ops[i->op].name, i->accumulate ? "+" : "");
    int n_out = i->kind == KU_START ? (int)i->n_parts : i->n_out;
    for (int k = 0; k < n_out; k++)
        print_operand(p, &p->operand[i->operand + i->n_in + (uint32_t)k], i->micro, rank, out);
    if (i->n_in)
        ku_str_add(out, " <-");
    for (int k = 0; k < i->n_in; k++)
        print_operand(p, &p->operand[i->operand + (uint32_t)k], i->micro, rank, out);
    ku_attrs_print(&p->attr[i->attr], out);
    if (i->stream)
        ku_str_add(out, " stream=%u", i->stream);
    ku_str_add(out, " @%s\n", p->name_of[i->path]);
}

int ku_program_print(const struct ku_program *p, const struct ku_coord *rank, struct ku_str *out)
{
    ku_str_add(out, "kumi program 1 %s\nmesh", p->name);
    for (int a = 0; a < KU_N_AXES; a++)
        ku_str_add(out, " %s=%d", ku_axis_name(a), p->mesh.extent[a]);
    ku_str_add(out, "\narenas");
    for (int a = 0; a < KU_N_ARENAS; a++)
        if (!ku_arena_is_tier(a) || p->arena_bytes[a])
            ku_str_add(out, " %s=%zu", ku_arena_name(a), p->arena_bytes[a]);
    ku_str_add(out, "\n");
    for (uint32_t s = 0; s < p->n_states; s++) {
        char shape[512];
        ku_str_add(out, "state %s %s %s %s+%zu block=%d\n", p->name_of[p->state[s].name],
                   kumi_dtype_name((enum kumi_dtype)p->state[s].dtype),
                   ku_shape_print(&p->shape[p->state[s].shape], shape, sizeof shape),
                   ku_arena_name(p->state[s].arena), p->state[s].offset, p->state[s].first_block);
    }
    for (uint32_t i = 0; i < p->n_inputs; i++)
        ku_str_add(out, "input %s b%u\n", p->name_of[p->input[i].name], p->input[i].buffer);
    for (uint32_t i = 0; i < p->n_outputs; i++)
        ku_str_add(out, "output %s b%u\n", p->name_of[p->output[i].name], p->output[i].buffer);
    for (uint32_t at = 0; at < p->n_instrs; at++)
        print_instr(p, at, rank, out);
    return out->failed ? KUMI_ENOMEM : KUMI_OK;
}
