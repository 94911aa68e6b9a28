/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_HOST_MEMORY_H
#define KU_DEVICE_HOST_MEMORY_H

#include "base/err.h"
#include "device/device.h"

/*
 * The memory entries of devices whose kernels address host memory: map returns the address itself
 * and copies nothing.
 */
KU_STATUS ku_host_alloc(void *dev, const char *what, size_t bytes, void **at);
void ku_host_free(void *dev, void *at, size_t bytes);
KU_STATUS ku_host_map(void *dev, void *at, size_t bytes, int access, void **host);
KU_STATUS ku_host_unmap(void *dev, void *at, size_t bytes, int access, void *host);

#endif
