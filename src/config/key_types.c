/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers of the types of keys (key_types.def). A reader checks a value and stores it; it refuses
 * a wrong one with refuse(), which names the place, the key, the value and what is wanted. Members
 * of objects are values of the same types:
 *
 *     memory.offload {"ratio": 2}  --read_members-->  memory.offload.ratio  --read_number-->
 *         "config: c.json:3:20: memory.offload.ratio: 2; a number from 0 to 1"
 */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "config/alternatives.h"
#include "config/keys.h"

enum { MAX_PATH = 256, MAX_MEMBERS = 16 };

/* A value that is read. */
struct value {
    const struct ku_config *cfg;
    const char *path; /* "section.key", or of a member */
    struct ku_allowed allowed;
    bool is_nullable;
    const json_t *json;
};
/* A member of an object; `type` is a row of key_types.def. */
struct member {
    const char *name;
    enum ku_key_type type;
    struct ku_allowed allowed;
    size_t offset;
};
static int read_members(const struct value *v, const struct member *member, int n, void *base);

static int refuse(const struct value *v, const char *wanted)
{
    return ku_config_refuse(v->cfg, v->path, v->json, wanted);
}

static int refuse_range(const struct value *v, const char *what)
{
    char wanted[160];
    ku_text_print(wanted, sizeof wanted, "%s from %.15g to %.15g", what, v->allowed.min,
                  v->allowed.max);
    return refuse(v, wanted);
}

/* A number in the allowed range; anything else is NaN. */
static double number_of(const struct value *v, const json_t *json)
{
    const double x = json_is_number(json) ? json_number_value(json) : (double)NAN;
    return x >= v->allowed.min && x <= v->allowed.max ? x : (double)NAN;
}

static int read_number(const struct value *v, void *to)
{
    const double x = number_of(v, v->json);
    *(double *)to = x;
    return isnan(x) ? refuse_range(v, "a number") : KUMI_OK;
}

static int read_int(const struct value *v, void *to)
{
    int64_t x;
    if (isnan(number_of(v, v->json)) || ku_json_int(v->json, &x) < 0)
        return refuse_range(v, "an integer");
    *(int64_t *)to = x;
    return KUMI_OK;
}

static int read_bool(const struct value *v, void *to)
{
    *(int *)to = json_is_true(v->json);
    return json_is_boolean(v->json) ? KUMI_OK : refuse(v, "true or false");
}

static int read_text(const struct value *v, void *to)
{
    const char *text = json_string_value(v->json), *wanted = v->allowed.words;
    if (text == NULL || (wanted && *text == '\0'))
        return refuse(v, wanted ? wanted : "a string");
    *(char **)to = ku_strdup(text);
    return *(char **)to ? KUMI_OK : KUMI_ENOMEM;
}

/* For the name of another system the message says the alternative. */
static int read_choice(const struct value *v, void *to)
{
    const char *word = json_string_value(v->json);
    const int i = word ? ku_str_find_word(v->allowed.words, word) : -1;
    char wanted[512];
    *(int *)to = i;
    if (i >= 0)
        return KUMI_OK;
    const char *elsewhere = word ? ku_alternative_text(v->path, word) : NULL;
    snprintf(wanted, sizeof wanted, "%s%sone of: %s%s", elsewhere ? elsewhere : "",
             elsewhere ? "; " : "", v->allowed.words, v->is_nullable ? " (or null)" : "");
    return refuse(v, wanted);
}

static int read_enum(const struct value *v, void *to)
{
    const struct value text = {.cfg = v->cfg, .path = v->path, .json = v->json};
    int i;
    KU_TRY(read_choice(v, &i));
    return read_text(&text, to);
}

static int read_list(const struct value *v, void *to)
{
    struct ku_list *list = to;
    const size_t n = json_is_array(v->json) ? json_array_size(v->json) : 1;
    const char *wanted = v->allowed.words;
    list->item = ku_calloc(n + 1, sizeof *list->item);
    if (list->item == NULL)
        return KUMI_ENOMEM;
    list->is_word = json_is_string(v->json);
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(list->is_word ? v->json : json_array_get(v->json, i));
        if (text == NULL)
            return refuse(v, wanted ? wanted : "a string or a list of strings");
        list->item[i] = ku_strdup(text);
        if (list->item[i] == NULL)
            return KUMI_ENOMEM;
        list->n = (int)i + 1;
    }
    return n == 0 && wanted ? refuse(v, wanted) : KUMI_OK;
}

/* Numbers become strings of digits. The last one may be 0. */
static int read_stages(const struct value *v, void *to)
{
    static const char wanted[] =
        "a list of numbers of layers, or of layers as \"h.3\" or \"h.0-5\"";
    const size_t n = json_array_size(v->json);
    struct ku_list *list = to;
    list->item = ku_calloc(n + 1, sizeof *list->item);
    if (list->item == NULL)
        return KUMI_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(v->json, i);
        int64_t number;
        char digits[24];
        if (json_is_integer(x)) {
            const int min = i > 0 && i + 1 == n ? 0 : 1;
            if (ku_json_int(x, &number) < 0 || number < min || number > 999999)
                return refuse(v, wanted);
            snprintf(digits, sizeof digits, "%d", (int)number);
        } else if (!json_is_string(x)) {
            return refuse(v, wanted);
        }
        list->item[i] = ku_strdup(json_is_string(x) ? json_string_value(x) : digits);
        if (list->item[i] == NULL)
            return KUMI_ENOMEM;
        list->n = (int)i + 1;
    }
    return n == 0 ? refuse(v, wanted) : KUMI_OK;
}

static int read_numbers(const struct value *v, void *to)
{
    struct ku_numbers *list = to;
    const size_t n = json_array_size(v->json);
    list->v = n ? ku_calloc(n, sizeof *list->v) : NULL;
    if (n && list->v == NULL)
        return KUMI_ENOMEM;
    list->n = (int)n;
    for (size_t i = 0; i < n; i++) {
        list->v[i] = number_of(v, json_array_get(v->json, i));
        if (isnan(list->v[i]))
            return refuse_range(v, "a list of numbers");
    }
    return n ? KUMI_OK : refuse_range(v, "a list of numbers");
}

static int read_pair(const struct value *v, void *to)
{
    struct ku_pair *pair = to;
    for (size_t i = 0; i < 2; i++) {
        pair->v[i] = number_of(v, json_array_get(v->json, i));
        if (isnan(pair->v[i]) || json_array_size(v->json) != 2)
            return refuse_range(v, "two numbers");
    }
    return KUMI_OK;
}

/* Whether json is a number of steps, or "10ep". */
static bool is_span(const json_t *json, struct ku_span *span)
{
    const char *text = json_string_value(json);
    if (text) {
        char *end;
        errno = 0;
        *span = (struct ku_span){strtoll(text, &end, 10), 1};
        return *text >= '1' && *text <= '9' && strcmp(end, "ep") == 0 && errno != ERANGE;
    }
    return ku_json_int(json, &span->n) == 0 && span->n >= 0;
}

static int read_span(const struct value *v, void *to)
{
    struct ku_span *span = to;
    *span = (struct ku_span){0};
    if (is_span(v->json, span) && (double)span->n >= v->allowed.min)
        return KUMI_OK;
    return refuse(v, v->allowed.min > 0 ? "a number of steps, at least 1, or \"10ep\""
                                        : "a number of steps, or \"10ep\"");
}

static int read_spans(const struct value *v, void *to)
{
    static const char wanted[] = "at most 16 numbers of steps, or all as \"10ep\", ascending";
    struct ku_spans *spans = to;
    const size_t n = json_array_size(v->json);
    if (!json_is_array(v->json) || n > KU_MAX_SPANS)
        return refuse(v, wanted);
    for (size_t i = 0; i < n; i++) {
        struct ku_span *s = &spans->item[i];
        if (!is_span(json_array_get(v->json, i), s) || s->n < 1 ||
            (i && (s->n <= s[-1].n || s->is_epochs != s[-1].is_epochs)))
            return refuse(v, wanted);
    }
    spans->n = (int)n;
    return KUMI_OK;
}

static int read_scaling(const struct value *v, void *to)
{
    struct ku_lr_scaling *s = to;
    const char *rule = json_string_value(json_object_get(v->json, "rule"));
    s->rule = (enum ku_scaling_rule)(rule ? 1 + ku_str_find_word("linear sqrt", rule) : 0);
    if (s->rule == KU_SCALING_NONE || json_object_size(v->json) != 2 ||
        ku_json_int(json_object_get(v->json, "base_batch"), &s->base_batch) < 0 ||
        s->base_batch < 1)
        return refuse(v, "{\"rule\": \"linear\" or \"sqrt\", \"base_batch\": 256}");
    return KUMI_OK;
}

static int read_scale(const struct value *v, void *to)
{
    const char *word = json_string_value(v->json);
    const double scale = json_number_value(v->json);
    *(double *)to = scale;
    if (word ? strcmp(word, "dynamic") == 0 : scale > 0 && scale <= 0x1p126)
        return KUMI_OK;
    return refuse(v, "\"dynamic\", or a number above 0");
}

static int read_reshard(const struct value *v, void *to)
{
    if (!json_is_boolean(v->json))
        return read_int(v, to);
    *(int64_t *)to = json_is_true(v->json) ? KU_RESHARD_ALL : KU_RESHARD_NONE;
    return KUMI_OK;
}

/* A string, or an object with one of policy, every and budget_gib, and optionally match. */
static int read_recompute(const struct value *v, void *to)
{
    struct ku_recompute_key *r = to;
    const bool is_object = json_is_object(v->json);
    const json_t *policy = is_object ? json_object_get(v->json, "policy") : v->json,
                 *every = json_object_get(v->json, "every"),
                 *budget = json_object_get(v->json, "budget_gib"),
                 *match = json_object_get(v->json, "match");
    const char *word = json_string_value(policy);
    const int n_rules = (policy != NULL) + (every != NULL) + (budget != NULL);
    const int rule = every    ? KU_REC_FULL
                     : budget ? KU_REC_BUDGET
                     : word   ? ku_str_find_word("none selective full", word)
                              : -1;
    bool is_right = rule >= 0 && n_rules == 1 &&
                    (!is_object || json_object_size(v->json) == 1 + (size_t)(match != NULL));
    r->every = 1;
    if (every)
        is_right &= ku_json_int(every, &r->every) == 0 && r->every >= 1 && r->every <= 1000000;
    if (budget)
        is_right &= json_is_number(budget) && json_number_value(budget) > 0;
    if (!is_right)
        return refuse(v,
                      "\"none\", \"selective\", \"full\", {\"every\": 2}, {\"budget_gib\": 4} or "
                      "{\"policy\": \"full\", \"match\": [\"h.*\"]}");
    r->rule = (enum ku_recompute_rule)rule;
    r->budget_gib = json_number_value(budget);
    const struct value list = {.cfg = v->cfg, .path = "memory.recompute.match", .json = match};
    return match ? read_list(&list, &r->match) : KUMI_OK;
}

static int read_offload(const struct value *v, void *to)
{
#define MEMBER(name, type, allowed)                                                                \
    {                                                                                              \
#name, KU_TYPE_##type, allowed, offsetof(struct ku_offload_key, name)                      \
    }
    static const struct member members[] = {
        MEMBER(optimizer, CHOICE, KU_WORDS("none host file")),
        MEMBER(params, CHOICE, KU_WORDS("none host file")),
        MEMBER(activations, CHOICE, KU_WORDS("none host file")),
        MEMBER(io, CHOICE, KU_WORDS("auto io_uring threads")),
        MEMBER(path, TEXT, KU_WORDS("a folder on a local disk")),
        MEMBER(pin, BOOL, KU_ANY),
        MEMBER(ratio, NUM, KU_RANGE(0, 1)),
        MEMBER(buffer_count, INT, KU_RANGE(1, 64)),
        MEMBER(buffer_size, INT, KU_RANGE(4096, 0x1p36)),
    };
#undef MEMBER
    struct ku_offload_key *k = to;
    *k = (struct ku_offload_key){.pin = 1, .ratio = 1, .buffer_count = 3, .buffer_size = 1 << 24};
    if (!json_is_object(v->json))
        return refuse(v, "an object: {\"optimizer\": \"host\"}, or \"file\" with a \"path\"");
    KU_TRY(read_members(v, members, sizeof members / sizeof members[0], k));
    const int to_files = k->optimizer == KU_OFFLOAD_FILE || k->params == KU_OFFLOAD_FILE ||
                         k->activations == KU_OFFLOAD_FILE;
    return to_files && k->path == NULL ? ku_config_refuse(v->cfg, "memory.offload.path", NULL,
                                                          "give a folder on a local disk")
                                       : KUMI_OK;
}

static int read_group(const struct value *v, struct ku_group *group)
{
#define MEMBER(name, type, allowed)                                                                \
    {                                                                                              \
#name, KU_TYPE_##type, allowed, offsetof(struct ku_group, name)                            \
    }
    static const struct member members[] = {
        MEMBER(match, LIST, KU_WORDS("a pattern or a list of patterns")),
        MEMBER(lr_mult, NUM, KU_RANGE(0, 1e30)),
        MEMBER(weight_decay, NUM, KU_RANGE(0, 1e30)),
        MEMBER(betas, PAIR, KU_RANGE(0, 0.9999999)),
        MEMBER(eps, NUM, KU_RANGE(0, 1)),
    };
#undef MEMBER
    const double none = (double)NAN;
    *group = (struct ku_group){
        .lr_mult = none, .weight_decay = none, .betas = {{none, none}}, .eps = none};
    if (!json_is_object(v->json))
        return refuse(v, "a group is an object");
    KU_TRY(read_members(v, members, sizeof members / sizeof members[0], group));
    return group->match.n ? KUMI_OK : refuse(v, "give \"match\", a pattern of parameter names");
}

static int read_groups(const struct value *v, void *to)
{
    struct ku_groups *groups = to;
    const size_t n = json_array_size(v->json);
    char path[MAX_PATH];
    if (!json_is_array(v->json))
        return refuse(v, "a list of groups");
    groups->item = ku_calloc(n + 1, sizeof *groups->item);
    if (groups->item == NULL)
        return KUMI_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%.100s[%zu]", v->path, i);
        const struct value group = {
            .cfg = v->cfg, .path = path, .json = json_array_get(v->json, i)};
        groups->n = (int)i + 1;
        KU_TRY(read_group(&group, &groups->item[i]));
    }
    return KUMI_OK;
}

/* precision.modules[i]: the words of a role stand for dtypes, in order. */
static int read_module_rule(const struct value *v, struct ku_precision_rule *rule,
                            struct ku_list *match)
{
    static const int dtypes[] = {KUMI_F32, KUMI_BF16, KUMI_F16};
    struct {
        struct ku_list match;
        int role[KU_N_ROLES], cast_inputs;
    } r = {.cast_inputs = 1};
    const size_t at_role = (size_t)((char *)r.role - (char *)&r);
    struct member members[KU_N_ROLES + 2] = {
        {"match", KU_TYPE_LIST, KU_WORDS("a pattern of module paths or a list of them"), 0},
        {"cast_inputs", KU_TYPE_BOOL, KU_ANY, (size_t)((char *)&r.cast_inputs - (char *)&r)}};
    int n_roles = 0, status;
    for (int i = 0; i < KU_N_ROLES; i++) {
        r.role[i] = -1;
        members[i + 2] =
            (struct member){ku_precision_roles[i], KU_TYPE_CHOICE, KU_WORDS("f32 bf16 f16"),
                            at_role + sizeof(int) * (size_t)i};
    }
    if (!json_is_object(v->json))
        return refuse(v, "a rule is an object");
    status = read_members(v, members, KU_N_ROLES + 2, &r);
    *match = r.match;
    KU_TRY(status);
    for (int i = 0; i < KU_N_ROLES; i++) {
        rule->dtype[i] = r.role[i] < 0 ? -1 : dtypes[r.role[i]];
        n_roles += r.role[i] >= 0;
    }
    rule->casts_inputs = r.cast_inputs;
    rule->match = (const char *const *)match->item;
    if (match->n == 0)
        return refuse(v, "give \"match\", a pattern of module paths");
    if (n_roles == 0)
        return refuse(v, "give at least one of param, compute, reduce, output, buffer");
    if (!rule->casts_inputs && rule->dtype[KU_ROLE_COMPUTE] < 0)
        return refuse(v, "cast_inputs is for rules that give compute");
    return KUMI_OK;
}

static int read_modules(const struct value *v, void *to)
{
    struct ku_modules_key *key = to;
    const size_t n = json_array_size(v->json);
    char path[MAX_PATH];
    if (!json_is_array(v->json))
        return refuse(v, "a list of rules");
    key->rules.rule = ku_calloc(n + 1, sizeof *key->rules.rule);
    key->match = ku_calloc(n + 1, sizeof *key->match);
    if (key->rules.rule == NULL || key->match == NULL)
        return KUMI_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%.100s[%zu]", v->path, i);
        const struct value rule = {.cfg = v->cfg, .path = path, .json = json_array_get(v->json, i)};
        key->rules.n = (int)i + 1;
        KU_TRY(read_module_rule(&rule, &key->rules.rule[i], &key->match[i]));
    }
    return KUMI_OK;
}

static int read_plan(const struct value *v, void *to)
{
    static const char wanted[] =
        "an object of patterns of module paths with col, row, vocab, seq, col_gather or replicate";
    struct ku_tp_plan *plan = to;
    const char *match;
    json_t *style;
    if (!json_is_object(v->json))
        return refuse(v, wanted);
    plan->rule = ku_calloc(json_object_size(v->json) + 1, sizeof *plan->rule);
    if (plan->rule == NULL)
        return KUMI_ENOMEM;
    json_object_foreach((json_t *)(uintptr_t)v->json, match, style)
    {
        struct ku_tp_rule *rule = &plan->rule[plan->n];
        const char *word = json_is_string(style) ? json_string_value(style) : "";
        char path[MAX_PATH];
        snprintf(path, sizeof path, "%.60s.%.160s", v->path, match);
        for (int k = KU_TP_DEFAULT + 1; k < KU_N_TP_STYLES; k++)
            rule->style = strcmp(word, ku_tp_style_name(k)) == 0 ? k : rule->style;
        if (rule->style == KU_TP_DEFAULT || match[0] == '\0')
            return ku_config_refuse(v->cfg, path, style,
                                    match[0] ? "col, row, vocab, seq, col_gather or replicate"
                                             : wanted);
        rule->match = ku_strdup(match);
        if (rule->match == NULL)
            return KUMI_ENOMEM;
        plan->n++;
    }
    return KUMI_OK;
}

static void keep(void *member)
{
    (void)member;
}
static void fini_text(void *member)
{
    ku_free(*(char **)member);
}
static void fini_list(void *member)
{
    struct ku_list *list = member;
    for (int i = 0; i < list->n; i++)
        ku_free(list->item[i]);
    ku_free(list->item);
}
static void fini_numbers(void *member)
{
    ku_free(((struct ku_numbers *)member)->v);
}
static void fini_recompute(void *member)
{
    fini_list(&((struct ku_recompute_key *)member)->match);
}
static void fini_offload(void *member)
{
    ku_free(((struct ku_offload_key *)member)->path);
}
static void fini_modules(void *member)
{
    struct ku_modules_key *key = member;
    for (int i = 0; i < key->rules.n; i++)
        fini_list(&key->match[i]);
    ku_free(key->match);
    ku_free(key->rules.rule);
}
static void fini_plan(void *member)
{
    struct ku_tp_plan *plan = member;
    for (int i = 0; i < plan->n; i++)
        ku_free(plan->rule[i].match);
    ku_free(plan->rule);
}
static void fini_groups(void *member)
{
    struct ku_groups *groups = member;
    for (int i = 0; i < groups->n; i++)
        fini_list(&groups->item[i].match);
    ku_free(groups->item);
}

#define TYPE(name, member, null, reader, finisher) static const ku_key_##name null_##name = null;
#include "config/key_types.def"
#undef TYPE
static const struct type {
    size_t bytes;
    const void *null;
    int (*read)(const struct value *v, void *to);
    void (*fini)(void *member);
} types[] = {
#define TYPE(name, member, null, reader, finisher)                                                 \
    {sizeof null_##name, &null_##name, reader, finisher},
#include "config/key_types.def"
#undef TYPE
};

static int read_members(const struct value *v, const struct member *member, int n, void *base)
{
    const char *names[MAX_MEMBERS], *name;
    char path[MAX_PATH];
    json_t *json;
    KU_ASSERT(n <= MAX_MEMBERS);
    for (int i = 0; i < n; i++)
        names[i] = member[i].name;
    json_object_foreach((json_t *)(uintptr_t)v->json, name, json)
    {
        snprintf(path, sizeof path, "%.140s.%.100s", v->path, name);
        const int i = ku_config_find_name(v->cfg, path, name, names, n);
        KU_TRY(i);
        const struct value of = {
            .cfg = v->cfg, .path = path, .allowed = member[i].allowed, .json = json};
        KU_TRY(types[member[i].type].read(&of, (char *)base + member[i].offset));
    }
    return KUMI_OK;
}

int ku_key_store(struct ku_config *cfg, const struct ku_key *key, const json_t *json)
{
    char path[MAX_PATH];
    void *member = (char *)cfg + key->offset;
    snprintf(path, sizeof path, "%s.%s", key->section, key->name);
    const struct value v = {cfg, path, key->allowed, ku_key_is_nullable(key), json};
    if (!json_is_null(json))
        return types[key->type].read(&v, member);
    memcpy(member, types[key->type].null, types[key->type].bytes);
    return v.is_nullable ? KUMI_OK : refuse(&v, "null is not allowed here");
}

void ku_key_fini(struct ku_config *cfg, const struct ku_key *key)
{
    types[key->type].fini((char *)cfg + key->offset);
}
