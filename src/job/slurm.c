/* SPDX-License-Identifier: Apache-2.0 */
#include "job/slurm.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TASKS = 1 << 24 };

/* A number of at most 8 digits; advances *at. -1: there is none. */
static int take_number(const char **at)
{
    size_t digits = strspn(*at, "0123456789");
    if (digits < 1 || digits > 8)
        return -1;
    int x = (int)strtol(*at, NULL, 10);
    *at += digits;
    return x;
}

static int refuse_tasks(const char *list)
{
    return KU_ERR(KUMI_EINVAL, "job: slurm: SLURM_STEP_TASKS_PER_NODE: %.80s; a list as in 2(x3),1",
                  list);
}

int ku_slurm_read_tasks(const char *list, int node, struct ku_slurm_tasks *tasks)
{
    struct ku_slurm_tasks t = {0};
    const char *at = list;
    int n_nodes = 0;
    for (;;) {
        int n = take_number(&at), times = 1;
        if (n >= 0 && strncmp(at, "(x", 2) == 0) {
            at += 2;
            times = take_number(&at);
            if (times < 1 || *at++ != ')')
                return refuse_tasks(list);
        }
        if (n < 0 || (*at && *at != ',') || (int64_t)n * times > MAX_TASKS - t.n_total ||
            times > MAX_TASKS - n_nodes)
            return refuse_tasks(list);
        if (node >= n_nodes && node < n_nodes + times) {
            t.n_here = n;
            t.n_before = t.n_total + n * (node - n_nodes);
        }
        n_nodes += times;
        t.n_total += n * times;
        if (*at == '\0')
            break;
        at++;
    }
    if (node < 0 || node >= n_nodes)
        return KU_ERR(KUMI_EINVAL,
                      "job: slurm: SLURM_NODEID: %d; SLURM_STEP_TASKS_PER_NODE has %d nodes", node,
                      n_nodes);
    *tasks = t;
    return 0;
}

int ku_slurm_first_node(const char *list, char name[KU_HOST_NAME_BYTES])
{
    size_t n = 0;
    const char *at = list;
    int is_wrong = 0;
    while (*at && *at != ',' && !is_wrong) {
        const char *end = at + 1; /* the next part of the name: a character, or a first number */
        size_t bytes = 1;
        if (*at == '[') {
            bytes = strspn(++at, "0123456789");
            end = strchr(at, ']');
            is_wrong = bytes == 0 || end == NULL || strchr("-,]", at[bytes]) == NULL;
            end = is_wrong ? at : end + 1;
        } else {
            is_wrong = !isalnum((unsigned char)*at) && strchr("-._", *at) == NULL;
        }
        is_wrong |= n + bytes >= KU_HOST_NAME_BYTES;
        if (!is_wrong)
            memcpy(name + n, at, bytes);
        n += bytes;
        at = end;
    }
    if (is_wrong || n == 0)
        return KU_ERR(KUMI_EINVAL, "job: slurm: SLURM_STEP_NODELIST: %.80s; a list as in n[1-3,7]",
                      list);
    name[n] = '\0';
    return 0;
}
