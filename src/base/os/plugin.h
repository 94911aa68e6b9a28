/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_OS_PLUGIN_H
#define KU_BASE_OS_PLUGIN_H

#include <stddef.h>

/*
 * Shared objects that are loaded at run time and stay loaded.
 */

/*
 * Loads the file, or returns the handle of the earlier load. Its names are visible to it alone.
 * Returns NULL on failure, and `why` says what the loader said.
 *
 *   path   with a slash: no folder is searched
 */
void *ku_os_plugin_load(const char *path, char *why, size_t cap);
/* An object of a loaded file; NULL: it has none of that name. */
const void *ku_os_plugin_object(void *plugin, const char *name);

/*
 * Folder of the shared object that contains this code, or of the program if it contains the code.
 * Returns 0 or -1.
 */
int ku_os_own_folder(char *path, size_t cap);

#endif
