/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_ALTERNATIVES_H
#define KU_CONFIG_ALTERNATIVES_H

/* Names of transports and devices, also those of other systems that kumi does not have (exists 0),
 * with the text of the message. Ends with a NULL name. */
struct ku_alternative {
    const char *name, *what;
    int exists;
};
extern const struct ku_alternative ku_transports[], ku_devices[];

/* The message for a value that only other systems have, "not implemented; ..."; NULL: no such
 * name. */
const char *ku_alternative_text(const char *key, const char *word);

#endif
