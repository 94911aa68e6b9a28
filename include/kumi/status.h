/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_STATUS_H
#define KUMI_STATUS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KUMI_API __attribute__((visibility("default")))
#else
#define KUMI_API
#endif

/*
 * What a call returns: 0, or a negative status. A command that fails with status s exits with code
 * -s (docs/reference/exit-codes.md), so there is one list, not two.
 */
enum kumi_status {
    KUMI_OK = 0,
    KUMI_EINVAL = -2,    /* an argument, the command line or the configuration */
    KUMI_EINPUT = -3,    /* an input file: missing, too short, malformed */
    KUMI_ENOCKPT = -4,   /* no usable checkpoint */
    KUMI_ESTORAGE = -5,  /* writing failed: disk full, not permitted */
    KUMI_EPEER = -6,     /* another rank died */
    KUMI_ETIMEDOUT = -7, /* another rank was silent past the deadline */
    KUMI_EMISMATCH = -8, /* the ranks called different collectives */
    KUMI_ENUMERIC = -9,  /* a loss or gradient is not finite, or replicas differ */
    KUMI_ESTOPPED = -10, /* stopped by a signal or --max-time; the state is saved */
    KUMI_EBUSY = -11,    /* the run directory is in use or not empty */
    KUMI_EPLAN = -12,    /* check refused the plan */
    KUMI_ENOMEM = -13,   /* memory does not, or would not, suffice */
    KUMI_EDEVICE = -14,  /* a device failed or is absent */
    KUMI_EBUG = -70      /* a bug of ours */
};

/* What a failure breaks: this call only, the communicator, the device, or the whole job. */
enum kumi_scope { KUMI_SCOPE_CALL, KUMI_SCOPE_COMM, KUMI_SCOPE_DEVICE, KUMI_SCOPE_JOB };

/*
 * The failure that this thread met last. Fixed size, so that it also lives in shared memory.
 * text reads "<what>: <where>: <values>; <what to do>".
 */
struct kumi_error {
    int32_t status; /* enum kumi_status */
    int32_t scope;  /* enum kumi_scope */
    int32_t rank;   /* the rank that decided it, -1 outside a job */
    int32_t sys_errno;
    uint64_t seq; /* of the collective concerned, else 0 */
    char text[440];
    char src[48]; /* file:line that decided it */
};

/*
 * The record of the last failed kumi_* call of this thread. Borrowed: valid until the thread's next
 * failure.
 */
KUMI_API const struct kumi_error *kumi_last_error(void);

/* "KUMI_EINVAL" and the like; "unknown status" for anything else. Never NULL. */
KUMI_API const char *kumi_status_name(int status);

#ifdef __cplusplus
}
#endif
#endif
