/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/snapshot/provenance.h"

#include <gnu/libc-version.h>
#include <stdio.h>
#include <string.h>

#include "base/cpu/cpu_features.h"
#include "base/err.h"
#include "base/version.h"

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

json_t *ku_origin_libraries(void)
{
    return json_pack("{s:s, s:s, s:s}", "kumi", ku_version(), "compiler", COMPILER, "libc",
                     gnu_get_libc_version());
}

static void print_build(const json_t *libraries, char *out, size_t bytes)
{
    static const char *const name[] = {"kumi", "compiler", "libc"};
    size_t at = 0;
    for (int i = 0; i < 3 && at < bytes; i++) {
        const char *version = json_string_value(json_object_get(libraries, name[i]));
        at += (size_t)snprintf(out + at, bytes - at, "%s%s %.40s", i ? ", " : "", name[i],
                               version ? version : "unknown");
    }
}

void ku_origin_here(enum ku_isa isa, const char *data_fingerprint, struct ku_origin *o)
{
    json_t *libraries = ku_origin_libraries();
    snprintf(o->isa, sizeof o->isa, "%s", ku_cpu_isa_name(isa));
    snprintf(o->data, sizeof o->data, "%s", data_fingerprint);
    print_build(libraries, o->build, sizeof o->build);
    json_decref(libraries);
}

void ku_origin_of(const struct ku_ckpt *c, struct ku_origin *o)
{
    const json_t *root = c->manifest.root;
    const char *isa = json_string_value(json_object_get(root, "isa"));
    const char *data = json_string_value(json_object_get(root, "data_fingerprint"));
    snprintf(o->isa, sizeof o->isa, "%s", isa ? isa : "");
    snprintf(o->data, sizeof o->data, "%s", data ? data : "");
    print_build(json_object_get(root, "libraries"), o->build, sizeof o->build);
}

int ku_origin_compare(const struct ku_origin *was, const struct ku_origin *is, const char *path,
                      char what[400])
{
    int isa = strcmp(was->isa, is->isa) != 0, build = strcmp(was->build, is->build) != 0;
    what[0] = '\0';
    if (isa)
        snprintf(what, 400, "instruction set (was %s, is %s)%s", was->isa, is->isa,
                 build ? ", " : "");
    if (build)
        snprintf(what + strlen(what), 400 - strlen(what), "build (was %s, is %s)", was->build,
                 is->build);
    if (was->data[0] && is->data[0] && strcmp(was->data, is->data) != 0)
        return KU_ERR(
            KUMI_EINVAL,
            "resume: %s: the data differ from the checkpoint's (fingerprint was %.12s.., "
            "is %.12s..): its results would not continue bit for bit; give the same data, "
            "or continue with --allow-change",
            path, was->data, is->data);
    return KUMI_OK;
}
