/* SPDX-License-Identifier: Apache-2.0 */
#include "base/tick.h"

_Thread_local struct ku_ticker ku_ticker;
