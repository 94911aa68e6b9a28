/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_ENV_H
#define KU_BASE_ENV_H

#include "base/err.h"

/* Environment variables. env.c alone calls getenv(). */

/* The value of a variable; NULL: it is unset or empty. Borrowed from the environment. */
const char *ku_env(const char *name);

/*
 * Give a variable a value, for a library that reads it: unless it has one, or in place of it. Call
 * them before other threads read the environment. Errors: KUMI_ENOMEM.
 */
KU_STATUS ku_env_default(const char *name, const char *value);
KU_STATUS ku_env_set(const char *name, const char *value);

/* KUMI_THREADS, compute threads of a rank, as the launcher sets it; 0: unset. */
int ku_env_threads(void);
/* Errors: KUMI_EINVAL (the variable is no number from 1 to 4096). */
KU_STATUS ku_env_check_threads(void);

/*
 * The cache directory: $KUMI_CACHE, else $XDG_CACHE_HOME/kumi, else $HOME/.cache/kumi.
 *
 *   *path  for ku_free; NULL: none of the three is set
 *
 * Errors: KUMI_ENOMEM.
 */
KU_STATUS ku_env_cache(char **path);

#endif
