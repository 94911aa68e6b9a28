/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_ALTERNATIVES_H
#define KU_CONFIG_ALTERNATIVES_H

/* What there is, and what its name in other systems is answered with. Ends with a NULL name. */
struct ku_known {
    const char *name, *what;
    int exists;
};
extern const struct ku_known ku_known_transports[], ku_known_devices[];

/* What to say to a key's word of another system: "not here, ..."; NULL: the word is unknown. */
const char *ku_known_elsewhere(const char *key, const char *word);

#endif
