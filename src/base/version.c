/* SPDX-License-Identifier: Apache-2.0 */
#include "base/version.h"

_Static_assert(sizeof KUMI_VERSION <= 24, "hosts exchange it");

const char *ku_version(void)
{
    return KUMI_VERSION;
}
