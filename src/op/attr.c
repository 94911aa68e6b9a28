/* SPDX-License-Identifier: Apache-2.0 */
#include "op/attr.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "tensor/mesh.h"

/* names of enum ku_loss_scale_policy */
const char *const ku_attr_scalers[] = {"deepspeed", "torch", "static", NULL};
const char *const ku_attr_dtypes[] = {"f32", "f64", "bf16", "f16", "i64", "i32", "u16", "u8", NULL};
const char *const ku_attr_acts[] = {"none", "relu", "gelu_tanh", "gelu_erf", "silu", NULL};
const char *const ku_attr_rope_types[] = {"default", "linear", "dynamic", "llama3", NULL};
const char *const ku_attr_schedules[] = {"constant",         "linear",
                                         "cosine",           "step",
                                         "inverse_sqrt",     "wsd",
                                         "one_cycle",        "noam",
                                         "multi_step",       "polynomial",
                                         "lr_range_test",    "ds_one_cycle",
                                         "warmup_lr",        "warmup_decay_lr",
                                         "warmup_cosine_lr", NULL};
const char *const ku_attr_anneals[] = {"cos", "linear", NULL};
const char *const ku_attr_reductions[] = {"sum", "max", NULL};

const struct ku_attrs ku_attrs_default = {
#define X(type, name, value, names) value,
    KU_ATTRS(X)
#undef X
};

enum attr_type { ATTR_I, ATTR_E, ATTR_F, ATTR_L, ATTR_M };
struct attr_row {
    const char *name;
    enum attr_type type;
    size_t offset, bytes;
    const char *const *names;
};
static const struct attr_row attr_table[] = {
#define X(type, name, value, names)                                                                \
    {#name, ATTR_##type, offsetof(struct ku_attrs, name), sizeof ku_attrs_default.name, names},
    KU_ATTRS(X)
#undef X
};
enum { N_ATTRS = sizeof attr_table / sizeof attr_table[0] };

static void print_list(const struct ku_args *list, struct ku_str *out)
{
    int n = KU_MAX_ARGS;
    while (n > 1 && list->v[n - 1] == 0)
        n--;
    for (int i = 0; i < n; i++)
        ku_str_add(out, "%s%.17g", i ? "," : "", list->v[i]);
}

enum { ALL_AXES = (1 << KU_N_AXES) - 1 };

static void print_axes(int64_t mask, struct ku_str *out)
{
    const char *comma = "";
    if (mask == ALL_AXES)
        ku_str_add(out, "all");
    for (int a = 0; a < KU_N_AXES && mask != ALL_AXES; a++)
        if (mask >> a & 1) {
            ku_str_add(out, "%s%s", comma, ku_axis_name(a));
            comma = ",";
        }
}

void ku_attrs_print(const struct ku_attrs *a, struct ku_str *out)
{
    for (int i = 0; i < N_ATTRS; i++) {
        const struct attr_row *row = &attr_table[i];
        const char *at = (const char *)a + row->offset;
        if (memcmp(at, (const char *)&ku_attrs_default + row->offset, row->bytes) == 0)
            continue;
        int64_t whole;
        double real;
        memcpy(&whole, at, 8);
        memcpy(&real, at, 8);
        if (row->type == ATTR_F)
            ku_str_add(out, " %s=%.17g", row->name, real);
        else if (row->type == ATTR_L) {
            ku_str_add(out, " %s=", row->name);
            print_list((const void *)at, out);
        } else if (row->type == ATTR_M) {
            ku_str_add(out, " %s=", row->name);
            print_axes(whole, out);
        } else if (row->type == ATTR_E)
            ku_str_add(out, " %s=%s", row->name, row->names[whole]);
        else
            ku_str_add(out, " %s=%lld", row->name, (long long)whole);
    }
}

static int parse_enum(const struct attr_row *row, const char *value, int64_t *out)
{
    for (int i = 0; row->names[i] != NULL; i++)
        if (strcmp(row->names[i], value) == 0) {
            *out = i;
            return KUMI_OK;
        }
    return KU_ERR(KUMI_EINVAL, "attribute: %s=%s: unknown value", row->name, value);
}

static int parse_list(const struct attr_row *row, const char *value, struct ku_args *out)
{
    const char *p = value;
    *out = (struct ku_args){{0}};
    for (int i = 0; i < KU_MAX_ARGS; i++) {
        char *end;
        out->v[i] = ku_text_number(p, &end);
        if (end == p || (*end != ',' && *end != '\0'))
            break;
        if (*end == '\0')
            return KUMI_OK;
        p = end + 1;
    }
    return KU_ERR(KUMI_EINVAL, "attribute: %s=%s: not at most %d numbers", row->name, value,
                  KU_MAX_ARGS);
}

static int parse_axes(const struct attr_row *row, const char *value, int64_t *out)
{
    char name[16];
    int64_t mask = strcmp(value, "all") == 0 ? ALL_AXES : 0;
    for (const char *p = value; p && mask != ALL_AXES;) {
        const size_t n = strcspn(p, ",");
        snprintf(name, sizeof name, "%.*s", n < sizeof name ? (int)n : 0, p);
        const int axis = ku_axis_parse(name);
        if (axis < 0 || mask >> axis & 1)
            return KU_ERR(KUMI_EINVAL, "attribute: %s=%s: not axes of the mesh", row->name, value);
        mask |= INT64_C(1) << axis;
        p = p[n] ? p + n + 1 : NULL;
    }
    *out = mask;
    return KUMI_OK;
}

int ku_attrs_set(struct ku_attrs *a, const char *name, const char *value)
{
    for (int i = 0; i < N_ATTRS; i++) {
        const struct attr_row *row = &attr_table[i];
        if (strcmp(row->name, name) != 0)
            continue;
        char *at = (char *)a + row->offset, *end = NULL;
        int64_t whole = 0;
        double real = 0;
        if (row->type == ATTR_L)
            return parse_list(row, value, (void *)at);
        if (row->type == ATTR_E)
            KU_TRY(parse_enum(row, value, &whole));
        else if (row->type == ATTR_M)
            KU_TRY(parse_axes(row, value, &whole));
        else if (row->type == ATTR_I)
            whole = strtoll(value, &end, 10);
        else
            real = ku_text_number(value, &end);
        if (end && (*end != '\0' || end == value))
            return KU_ERR(KUMI_EINVAL, "attribute: %s=%s: not a number", name, value);
        memcpy(at, row->type == ATTR_F ? (const void *)&real : (const void *)&whole, 8);
        return KUMI_OK;
    }
    return KU_ERR(KUMI_EINVAL, "attribute: %s: unknown", name);
}
