/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_VERSION_H
#define KU_BASE_VERSION_H

const char *ku_version(void); /* of kumi: "0.1.0", less than 24 characters */

#endif
