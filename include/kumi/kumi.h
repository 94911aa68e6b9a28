/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_KUMI_H
#define KUMI_KUMI_H

/*
 * kumi: distributed training of deep networks. This header includes all public headers; each can
 * also be included alone.
 *
 *     status    errors                     comm mesh launch   ranks and collectives
 *     dtype     element types              graph model        networks
 *     data      text and tokens            trainer            training with your own loop
 *     run       the commands of `kumi`     messages           where messages go
 *
 * Defaults, unless a comment says otherwise:
 *
 * - A function returns 0 or an enum kumi_status below 0. After a failure kumi_last_error() has the
 *   line that the command would print, until this thread's next failure. Outputs are set only on
 *   success.
 * - `create` and `open` allocate objects that `destroy` and `close` free; those accept NULL. Any
 *   other returned pointer is borrowed and lives as long as the object that it came from.
 * - All-zero option structs mean defaults, and so does NULL for the struct. Where a member has no
 *   default (a layer's `out`, a data set's files), its comment says so; omitting it is KUMI_EINVAL.
 * - A parameter that may be NULL says so. Any other NULL, and a number out of range, is KUMI_EINVAL
 *   with the parameter's name.
 * - Arrays are dense and row-major. Counts are elements, bytes are bytes.
 * - "Collective": every rank of the communicator makes the call (without a communicator: of the
 *   world), in the same order, with equal arguments except for the data.
 * - One thread at a time uses an object. Different threads may use different objects.
 * - Nothing writes to standard output. Messages go to the callbacks of kumi_messages_set, without
 *   them to standard error at the levels of KUMI_LOG.
 */
#include "kumi/comm.h"
#include "kumi/data.h"
#include "kumi/dtype.h"
#include "kumi/graph.h"
#include "kumi/launch.h"
#include "kumi/mesh.h"
#include "kumi/messages.h"
#include "kumi/model.h"
#include "kumi/run.h"
#include "kumi/status.h"
#include "kumi/trainer.h"

#endif
