/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_KUMI_H
#define KUMI_KUMI_H

/*
 * kumi: distributed training of deep networks. All public headers; each can be included alone.
 *
 *     status    errors                     comm mesh launch   ranks and collectives
 *     dtype     element types              graph model        networks
 *     data      text and tokens            trainer            a loop of one's own
 *     run       what the command does, as functions
 *
 * What holds where a comment says nothing else:
 *
 * - A function returns 0 or an enum kumi_status below 0, and kumi_last_error() has the one line
 *   that the command would print, until this thread's next call. Outputs are set only on success.
 * - `create` and `open` hand out what `destroy` and `close` take back; those take NULL. Other
 *   pointers that are returned are borrowed, and live as long as what they came from.
 * - All-zero option structs mean defaults; NULL for one does, too. Where a member has no default
 *   (a layer's `out`, a data set's files), its comment says so, and leaving it out is KUMI_EINVAL.
 * - A pointer that may be NULL says so. Any other that is NULL, and a number out of range, is
 *   KUMI_EINVAL with the parameter's name.
 * - Arrays are dense and row-major; counts are elements, bytes are bytes.
 * - "Collective" means: by every rank of the communicator (of the world where none is an argument),
 *   in the same order, with equal arguments but for the data.
 * - An object is used by one thread at a time; different objects by different threads.
 * - Nothing writes to standard output; messages go to standard error through KUMI_LOG's levels.
 */
#include "kumi/comm.h"
#include "kumi/data.h"
#include "kumi/dtype.h"
#include "kumi/graph.h"
#include "kumi/launch.h"
#include "kumi/mesh.h"
#include "kumi/model.h"
#include "kumi/run.h"
#include "kumi/status.h"
#include "kumi/trainer.h"

#endif
