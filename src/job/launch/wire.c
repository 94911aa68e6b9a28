/* SPDX-License-Identifier: Apache-2.0 */
#include "job/launch/wire.h"

#include "base/mem.h"
#include "base/os/os.h"
#include "job/segment.h"

#include <errno.h>
#include <string.h>

enum { SYNC_BYTES = sizeof KU_WIRE_SYNC - 1, GREETING_MAX = 65536, READ_BYTES = 65536 };

/* The bytes of a job before its strings. Both ends are of one version and one byte order. */
struct job_head {
    int32_t first_rank, n_local, n, host_index, n_hosts, threads, port;
    uint32_t flags;
    uint64_t world_id;
    uint8_t secret[KU_SECRET_BYTES];
    uint32_t n_args, n_env;
};
_Static_assert(sizeof(struct job_head) == 80, "sent as it is");

void ku_wire_compact(struct ku_wire *w)
{
    if (w->at <= w->buf.bytes / 2 && w->at < w->buf.bytes)
        return;
    if (ku_wire_pending(w))
        memmove(w->buf.text, w->buf.text + w->at, ku_wire_pending(w));
    w->buf.bytes -= w->at;
    w->at = 0;
}

int ku_wire_read(struct ku_wire *in, int fd)
{
    char piece[READ_BYTES];
    ssize_t n = ku_os_read(fd, piece, sizeof piece);
    if (n < 0)
        return errno == EAGAIN ? -1 : 0;
    ku_wire_compact(in);
    if (n > 0)
        ku_str_append(&in->buf, piece, (size_t)n);
    return in->buf.failed ? KUMI_ENOMEM : (int)n;
}

/* Skip what a login shell prints before the agent starts. */
static int synchronize(struct ku_wire *in)
{
    const char *from = ku_str_get(&in->buf) + in->at;
    const char *sync = memmem(from, ku_wire_pending(in), KU_WIRE_SYNC, SYNC_BYTES);
    if (sync) {
        in->at += (size_t)(sync - from) + SYNC_BYTES;
        in->is_synced = 1;
        return 1;
    }
    if (ku_wire_pending(in) > GREETING_MAX)
        return KU_ERR(KUMI_EINVAL, "64 KiB of output before the agent's first message");
    return 0;
}

int ku_wire_take(struct ku_wire *in, struct ku_frame *head, const char **payload)
{
    if (!in->is_synced) {
        int status = synchronize(in);
        if (status <= 0)
            return status;
    }
    const char *from = ku_str_get(&in->buf) + in->at;
    const size_t pending = ku_wire_pending(in);
    if (pending < sizeof *head)
        return 0;
    memcpy(head, from, sizeof *head);
    if (head->kind < KU_FRAME_JOB || head->kind > KU_FRAME_DONE ||
        head->bytes > KU_WIRE_PAYLOAD_MAX)
        return KU_ERR(KUMI_EINVAL, "message %u of %u bytes is unknown; use one version of kumi",
                      head->kind, head->bytes);
    if (pending < sizeof *head + head->bytes)
        return 0;
    *payload = from + sizeof *head;
    in->at += sizeof *head + head->bytes;
    return 1;
}

void ku_wire_put(struct ku_wire *out, enum ku_frame_kind kind, int rank, int value,
                 const void *payload, size_t bytes)
{
    const struct ku_frame head = {
        .kind = (uint32_t)kind, .rank = rank, .value = value, .bytes = (uint32_t)bytes};
    KU_ASSERT(bytes <= KU_WIRE_PAYLOAD_MAX);
    ku_str_append(&out->buf, &head, sizeof head);
    if (bytes)
        ku_str_append(&out->buf, payload, bytes);
}

int ku_wire_flush(struct ku_wire *out, int fd, size_t max_bytes)
{
    while (ku_wire_pending(out) && max_bytes) {
        const size_t bytes = ku_wire_pending(out) < max_bytes ? ku_wire_pending(out) : max_bytes;
        ssize_t n = ku_os_write(fd, out->buf.text + out->at, bytes);
        if (n < 0)
            return errno == EAGAIN ? 0 : -1;
        out->at += (size_t)n;
        max_bytes -= (size_t)n;
    }
    ku_wire_compact(out);
    return 0;
}

void ku_wire_fini(struct ku_wire *w)
{
    ku_str_fini(&w->buf);
    *w = (struct ku_wire){0};
}

static uint32_t n_strings(char *const *list)
{
    uint32_t n = 0;
    while (list[n])
        n++;
    return n;
}

static void put_text(struct ku_str *s, const char *text)
{
    ku_str_append(s, text, strlen(text) + 1);
}

void ku_host_job_encode(const struct ku_host_job *job, struct ku_str *payload)
{
    const char *const text[] = {job->host, job->master, job->root, job->folder};
    struct job_head head = {.first_rank = job->first_rank,
                            .n_local = job->n_local,
                            .n = job->n,
                            .host_index = job->host_index,
                            .n_hosts = job->n_hosts,
                            .threads = job->threads,
                            .port = job->port,
                            .flags = job->flags,
                            .world_id = job->world_id,
                            .n_args = n_strings(job->argv),
                            .n_env = n_strings(job->env)};
    memcpy(head.secret, job->secret, sizeof head.secret);
    ku_str_append(payload, &head, sizeof head);
    for (size_t i = 0; i < sizeof text / sizeof text[0]; i++)
        put_text(payload, text[i]);
    for (uint32_t i = 0; i < head.n_args; i++)
        put_text(payload, job->argv[i]);
    for (uint32_t i = 0; i < head.n_env; i++)
        put_text(payload, job->env[i]);
}

static bool is_sound(const struct job_head *h, size_t bytes)
{
    return h->n_local >= 1 && h->n_local <= KU_MAX_LOCAL && h->first_rank >= 0 && h->n >= 1 &&
           h->n <= KU_MAX_HOSTS * KU_MAX_LOCAL && h->first_rank <= h->n - h->n_local &&
           h->host_index >= 0 && h->host_index < h->n_hosts && h->n_hosts <= KU_MAX_HOSTS &&
           h->threads >= 0 && h->threads <= 4096 && h->port >= 0 && h->port <= 65535 &&
           (h->flags & ~(uint32_t)KU_HOST_FLAGS) == 0 && h->n_args >= 1 && h->n_args <= bytes &&
           h->n_env <= bytes;
}

/* The next string of the payload; NULL: it is not terminated. */
static char *take_text(const char **at, const char *end)
{
    const char *text = *at, *nul = memchr(text, '\0', (size_t)(end - text));
    if (nul == NULL)
        return NULL;
    *at = nul + 1;
    return (char *)(uintptr_t)text; /* execvp and putenv take them so, and write to none */
}

static int take_list(const char **at, const char *end, uint32_t n, char **list)
{
    for (uint32_t i = 0; i < n; i++)
        if ((list[i] = take_text(at, end)) == NULL)
            return -1;
    list[n] = NULL;
    return 0;
}

int ku_host_job_decode(const char *payload, size_t bytes, struct ku_host_job *job)
{
    struct job_head h;
    const char *at = payload + sizeof h, *end = payload + bytes;
    if (bytes >= sizeof h)
        memcpy(&h, payload, sizeof h);
    if (bytes < sizeof h || !is_sound(&h, bytes))
        return KU_ERR(KUMI_EINVAL, "the launcher's description of the job is damaged (%zu bytes)",
                      bytes);
    char **list = ku_malloc(((size_t)h.n_args + h.n_env + 2) * sizeof *list);
    if (!list)
        return KUMI_ENOMEM;
    struct ku_host_job j = {.first_rank = h.first_rank,
                            .n_local = h.n_local,
                            .n = h.n,
                            .host_index = h.host_index,
                            .n_hosts = h.n_hosts,
                            .threads = h.threads,
                            .port = h.port,
                            .flags = h.flags,
                            .world_id = h.world_id,
                            .host = take_text(&at, end),
                            .argv = list,
                            .env = list + h.n_args + 1};
    memcpy(j.secret, h.secret, sizeof j.secret);
    j.master = j.host ? take_text(&at, end) : NULL;
    j.root = j.master ? take_text(&at, end) : NULL;
    j.folder = j.root ? take_text(&at, end) : NULL;
    int is_whole = j.folder && take_list(&at, end, h.n_args, j.argv) == 0 &&
                   take_list(&at, end, h.n_env, j.env) == 0 && at == end;
    for (uint32_t i = 0; is_whole && i < h.n_env; i++)
        is_whole = j.env[i][0] != '=' && strchr(j.env[i], '=') != NULL;
    if (!is_whole) {
        ku_free(list);
        return KU_ERR(KUMI_EINVAL, "the launcher's description of the job is damaged (%zu bytes)",
                      bytes);
    }
    *job = j;
    return 0;
}

void ku_host_job_fini(struct ku_host_job *job)
{
    ku_free(job->argv);
    job->argv = job->env = NULL;
}
