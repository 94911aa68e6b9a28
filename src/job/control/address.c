/* SPDX-License-Identifier: Apache-2.0 */
#include "job/control/address.h"

#include "base/err.h"
#include "base/os/os.h"
#include "job/control.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_INTERFACES = 256 }; /* addresses of this host, in containers a few hundred */

/* A number of 1 to 5 digits in [1, max]; -1: none. *end: after it */
static int parse_number(const char *text, int max, const char **end)
{
    int x = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9' && at - text < 5; at++)
        x = x * 10 + (*at - '0');
    *end = at;
    return at > text && x >= 1 && x <= max ? x : -1;
}

int ku_meeting_parse(const char *what, const char *text, struct ku_meeting *out)
{
    const bool is_bracketed = text[0] == '[';
    const char *name = text + is_bracketed, *colon;
    const char *end = is_bracketed ? strchr(text, ']') : strrchr(text, ':');
    colon = is_bracketed && end ? end + 1 : end;
    struct ku_meeting m = {.n_ports = 1};
    size_t n = end ? (size_t)(end - name) : 0;
    if (!end || n == 0 || n >= sizeof m.name || *colon != ':' ||
        (!is_bracketed && memchr(name, ':', n)))
        return KU_ERR(KUMI_EINVAL, "%s: %s: give host:port, or [address]:port for IPv6", what,
                      text);
    memcpy(m.name, name, n);
    m.port = parse_number(colon + 1, 65535, &end);
    if (m.port > 0 && *end == '+')
        m.n_ports = parse_number(end + 1, KU_MAX_PORTS, &end);
    if (m.port < 0 || m.n_ports < 0 || *end || m.port + m.n_ports - 1 > 65535)
        return KU_ERR(KUMI_EINVAL, "%s: %s: give a port from 1 to 65535, as %s:29400", what, text,
                      m.name);
    *out = m;
    return 0;
}

int ku_control_port(const char *text, int *port)
{
    const char *end = text;
    const int x = text ? parse_number(text, 65535, &end) : 0;
    if (text && (x < 0 || *end))
        return KU_ERR(KUMI_EINVAL, "KUMI_PORT: %s: give a number from 1 to 65535", text);
    *port = x;
    return 0;
}

const char *ku_address_print(const struct ku_os_address *a, char text[KU_ADDRESS_TEXT])
{
    char ip[INET6_ADDRSTRLEN] = "?";
    const bool is_v4 = ku_os_address_is_v4(a);
    if (is_v4)
        inet_ntop(AF_INET, a->ip + 12, ip, sizeof ip);
    else
        inet_ntop(AF_INET6, a->ip, ip, sizeof ip);
    if (!a->port)
        snprintf(text, KU_ADDRESS_TEXT, "%s", ip);
    else
        snprintf(text, KU_ADDRESS_TEXT, is_v4 ? "%s:%u" : "[%s]:%u", ip, (unsigned)a->port);
    return text;
}

bool ku_address_is_loopback(const struct ku_os_address *a)
{
    static const uint8_t v6[16] = {[15] = 1};
    return ku_os_address_is_v4(a) ? a->ip[12] == 127 : memcmp(a->ip, v6, sizeof v6) == 0;
}

const char *ku_address_interface(const struct ku_os_address *a, char name[16])
{
    struct ku_os_interface list[MAX_INTERFACES];
    const int n = ku_os_interfaces(list, MAX_INTERFACES);
    name[0] = '\0';
    for (int i = 0; i < n && name[0] == '\0'; i++)
        if (memcmp(list[i].address.ip, a->ip, sizeof a->ip) == 0)
            memcpy(name, list[i].name, sizeof list[i].name);
    return name;
}

/* Link-local IPv6 addresses count only with an interface, which a row does not say. */
static bool is_link_local(const struct ku_os_address *a)
{
    return a->ip[0] == 0xfe && (a->ip[1] & 0xc0) == 0x80;
}

static int refuse_interface(const char *host, const char *interface,
                            const struct ku_os_interface *list, int n)
{
    char text[KU_ADDRESS_TEXT], all[256] = "";
    int len = 0;
    for (int i = 0; i < n && len < (int)sizeof all - 1; i++)
        if (!is_link_local(&list[i].address))
            len += snprintf(all + len, sizeof all - (size_t)len, "%s%s %s", len ? ", " : "",
                            list[i].name, ku_address_print(&list[i].address, text));
    return KU_ERR(KUMI_EINVAL, "KUMI_INTERFACE: %s: host %s has %s; give a name or a prefix",
                  interface, host, all[0] ? all : "no interface");
}

int ku_address_choose(const char *host, const char *interface, const struct ku_os_address *root,
                      struct ku_os_address *out)
{
    struct ku_os_interface list[MAX_INTERFACES];
    char text[KU_ADDRESS_TEXT];
    if (!interface) {
        if (ku_os_route(root, out) < 0)
            return KU_ERR(KUMI_EINVAL, "join: no route to %s: %s; set KUMI_INTERFACE",
                          ku_address_print(root, text), ku_os_why());
        return 0;
    }
    int n = ku_os_interfaces(list, MAX_INTERFACES), best = -1;
    if (n < 0)
        return KU_ERR(KUMI_ENOMEM, "KUMI_INTERFACE: %s: list of interfaces: %s", interface,
                      ku_os_why());
    for (int i = 0; i < n; i++) {
        const bool is_named = strcmp(list[i].name, interface) == 0;
        ku_address_print(&list[i].address, text);
        if (is_link_local(&list[i].address) ||
            (!is_named && strncmp(text, interface, strlen(interface)) != 0))
            continue;
        /* of one interface, the family of the root */
        if (best < 0 ||
            (root && ku_os_address_is_v4(&list[i].address) == ku_os_address_is_v4(root) &&
             ku_os_address_is_v4(&list[best].address) != ku_os_address_is_v4(root)))
            best = i;
    }
    if (best < 0)
        return refuse_interface(host, interface, list, n);
    *out = list[best].address;
    return 0;
}
