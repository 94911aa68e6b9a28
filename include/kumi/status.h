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
 * Return values: 0, or a negative status. A command that fails with status s exits with code -s
 * (docs/reference/exit-codes.md), so there is a single list.
 */
enum kumi_status {
    KUMI_OK = 0,
    KUMI_EINVAL = -2,    /* argument, command line or configuration */
    KUMI_EINPUT = -3,    /* input file: missing, too short, malformed */
    KUMI_ENOCKPT = -4,   /* no usable checkpoint */
    KUMI_ESTORAGE = -5,  /* writing failed: disk full, not permitted */
    KUMI_EPEER = -6,     /* another rank died */
    KUMI_ETIMEDOUT = -7, /* another rank made no progress before the deadline */
    KUMI_EMISMATCH = -8, /* the ranks called different collectives */
    KUMI_ENUMERIC = -9,  /* loss or gradient not finite, or replicas differ */
    KUMI_ESTOPPED = -10, /* stopped by a signal or --max-time, state saved */
    KUMI_EBUSY = -11,    /* the run directory is in use or not empty */
    KUMI_EPLAN = -12,    /* the check refused the plan */
    KUMI_ENOMEM = -13,   /* memory is, or would be, insufficient */
    KUMI_EDEVICE = -14,  /* device failed or absent */
    KUMI_EBUG = -70      /* bug in kumi */
};

/* What a failure invalidates: this call only, the communicator, the device, or the whole job. */
enum kumi_scope { KUMI_SCOPE_CALL, KUMI_SCOPE_COMM, KUMI_SCOPE_DEVICE, KUMI_SCOPE_JOB };

/*
 * The last failure of this thread. It has a fixed size, so that it can also be stored in shared
 * memory. text reads "<what>: <where>: <values>; <what to do>".
 */
struct kumi_error {
    int32_t status; /* enum kumi_status */
    int32_t scope;  /* enum kumi_scope */
    int32_t rank;   /* rank that detected it, -1 outside a job */
    int32_t sys_errno;
    uint64_t seq; /* sequence number of the collective, else 0 */
    char text[440];
    char src[48]; /* file:line that detected it */
};

/*
 * The record of this thread's last failed kumi_* call. Borrowed: valid until the thread's next
 * failure.
 */
KUMI_API const struct kumi_error *kumi_last_error(void);

/*
 * "KUMI_EINVAL" and so on; "unknown status" for any other number. Never NULL.
 */
KUMI_API const char *kumi_status_name(int status);

#ifdef __cplusplus
}
#endif
#endif
