/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_CONTROL_ADDRESS_H
#define KU_JOB_CONTROL_ADDRESS_H

#include "base/err.h"
#include "base/os/socket.h"

/* Addresses of hosts, as users write them. */
enum { KU_ADDRESS_TEXT = 64, KU_ADDRESS_NAME = 256, KU_MAX_PORTS = 64 };

struct ku_meeting { /* where hosts meet */
    char name[KU_ADDRESS_NAME];
    int port, n_ports; /* the root listens on the first free one */
};
/*
 * "host:port", "[v6]:port", "host:port+16" (16 ports from there). Errors: KUMI_EINVAL, which names
 * `what`, the variable.
 */
KU_STATUS ku_meeting_parse(const char *what, const char *text, struct ku_meeting *out);

/* "10.77.0.1:40123", "[fd00::1]:40123"; with port 0 the address alone */
const char *ku_address_print(const struct ku_os_address *a, char text[KU_ADDRESS_TEXT]);
bool ku_address_is_loopback(const struct ku_os_address *a);
/* The interface of this host that has the address, its port aside; "": none. */
const char *ku_address_interface(const struct ku_os_address *a, char name[16]);
/*
 * This host's address for the others.
 *
 *   host        its name, for messages
 *   interface   name or address prefix ("10.77.", "fd00:"), as KUMI_INTERFACE; NULL: the route to
 *               `root`
 *
 * Errors: KUMI_EINVAL (no such interface: lists those there are; no route).
 */
KU_STATUS ku_address_choose(const char *host, const char *interface,
                            const struct ku_os_address *root, struct ku_os_address *out);

#endif
