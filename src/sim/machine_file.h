/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_SIM_MACHINE_FILE_H
#define KU_SIM_MACHINE_FILE_H

#include <jansson.h>

#include "base/err.h"

/*
 * Files of measurements in the cache folder ($KUMI_CACHE, $XDG_CACHE_HOME/kumi,
 * $HOME/.cache/kumi): JSON arrays of rows, each with the machine that it was measured on, because a
 * home folder may serve several machines. They may be deleted at any time.
 */

/* Path of a file, existing or not, for ku_free. NULL with the error record: no cache folder. */
char *ku_machine_file(const char *name);
/* Rows of the file; the caller owns them. A file that is missing or not an array has none. */
json_t *ku_machine_rows(const char *path);
/* Replaces the file and creates its folder. KUMI_ESTORAGE: the cache cannot be written. */
KU_STATUS ku_machine_rows_write(const char *path, json_t *rows);
/*
 * Locks the file against other processes that change it, by PATH.lock; waits at most 1 s. Returns
 * the descriptor of the lock, which ku_os_close releases; -1: not locked.
 */
int ku_machine_lock(const char *path);
/*
 * Hash of /etc/machine-id, which separates machines of one CPU model. "": there is none
 * (containers).
 */
enum { KU_MACHINE_ID_BYTES = 20 };
void ku_machine_id(char id[KU_MACHINE_ID_BYTES]);
/*
 * What a measurement of the CPU depends on, as text: model; family, model and stepping; microcode;
 * a hash of the announced features; the best instruction set.
 */
enum { KU_MACHINE_CPU_BYTES = 160 };
void ku_machine_cpu(char cpu[KU_MACHINE_CPU_BYTES]);

#endif
