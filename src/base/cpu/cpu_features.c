/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cpu/cpu_features.h"

#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/env.h"
#include "base/err.h"
#include "base/hash.h"

static const char *const isa_name[KU_N_ISAS] = {"base", "avx2", "avx512", "avx512bf16", "amx"};

static bool find_isa(const char *name, enum ku_isa *out)
{
    for (int i = 0; i < KU_N_ISAS; i++)
        if (strcmp(isa_name[i], name) == 0) {
            *out = (enum ku_isa)i;
            return 1;
        }
    return 0;
}

#if defined(__x86_64__)
/* AMX tiles need the kernel's permission (arch_prctl ARCH_REQ_XCOMP_PERM, feature 18). */
static bool may_use_amx(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & (1u << 24)) || !(d & (1u << 22)))
        return 0;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static enum ku_isa best_isa(void)
{
    unsigned a, b, c, d;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C))
        return KU_ISA_BASE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return KU_ISA_AVX2;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & (1u << 5)))
        return KU_ISA_AVX512;
    return KU_ISA_AVX512BF16;
}

enum ku_isa ku_cpu_isa(void)
{
    const char *limit = ku_env("KUMI_CPU_ISA");
    enum ku_isa isa = best_isa(), named = KU_ISA_AMX;
    if (limit && find_isa(limit, &named) && named < isa)
        isa = named;
    return isa == KU_ISA_AVX512BF16 && named == KU_ISA_AMX && may_use_amx() ? KU_ISA_AMX : isa;
}

const char *ku_cpu_model(void)
{
    static _Thread_local unsigned brand[13]; /* 48 characters and a NUL */
    unsigned a, b, c, d;
    if (!__get_cpuid(0x80000000u, &a, &b, &c, &d) || a < 0x80000004u)
        return "unknown CPU";
    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002u + i, &brand[4 * i], &brand[4 * i + 1], &brand[4 * i + 2],
                    &brand[4 * i + 3]);
    brand[12] = 0;
    const char *text = (const char *)brand;
    while (*text == ' ')
        text++;
    return text;
}
uint64_t ku_cpu_feature_hash(unsigned *signature)
{
    unsigned word[7] = {0}, b = 0, c = 0, d = 0;
    __get_cpuid(1, signature, &b, &word[0], &word[1]); /* ebx has the number of this core */
    unsigned a;
    __get_cpuid_count(7, 0, &a, &word[2], &word[3], &word[4]);
    __get_cpuid_count(7, 1, &word[5], &word[6], &c, &d);
    return ku_hash64(word, sizeof word);
}
#else
uint64_t ku_cpu_feature_hash(unsigned *signature)
{
    *signature = 0;
    return 0;
}

enum ku_isa ku_cpu_isa(void)
{
    return KU_ISA_BASE;
}

const char *ku_cpu_model(void)
{
    return "unknown CPU";
}
#endif

const char *ku_cpu_isa_name(enum ku_isa i)
{
    return (int)i >= 0 && i < KU_N_ISAS ? isa_name[i] : "?";
}

int ku_cpu_isa_parse(const char *name, enum ku_isa *out)
{
    if (find_isa(name, out))
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL, "parallel.isa: %s: unknown; one of base avx2 avx512 avx512bf16 amx",
                  name);
}

int ku_cpu_isa_check(void)
{
    const char *limit = ku_env("KUMI_CPU_ISA");
    enum ku_isa named;
    if (limit == NULL || find_isa(limit, &named))
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL,
                  "KUMI_CPU_ISA: %.40s: unknown; one of base avx2 avx512 avx512bf16 amx", limit);
}

int ku_cpu_isa_at_most(const char *name, enum ku_isa *out)
{
    enum ku_isa best = ku_cpu_isa(), named = best;
    if (name)
        KU_TRY(ku_cpu_isa_parse(name, &named));
    *out = named < best ? named : best;
    return KUMI_OK;
}
