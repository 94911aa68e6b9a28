/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_ALTERNATIVES_H
#define KU_CONFIG_ALTERNATIVES_H

/* Names of transports and devices, also those of other systems that kumi does not have (exists 0),
 * with the text of the message. Ends with a NULL name. */
struct ku_known {
    const char *name, *what;
    int exists;
};
extern const struct ku_known ku_known_transports[], ku_known_devices[];

/* The message for a value that only other systems have, "not implemented; ..."; NULL: no such
 * name. */
const char *ku_known_elsewhere(const char *key, const char *word);

#endif
