/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/rpc/private.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/os/os.h"

/* A file; is_secret: refused if group or others may read it. A NUL ends the text. */
static int read_file(const char *what, const char *path, bool is_secret, char **text, size_t *bytes)
{
    struct stat st;
    if (ku_os_stat(path, &st) < 0 || ku_os_slurp(path, KU_RPC_MAX_PEM, text, bytes) < 0)
        return KU_ERR(ku_os_status(KUMI_EINVAL), "rpc: %s: %s: %s", what, path, ku_os_why());
    if (!is_secret || (st.st_mode & 077) == 0)
        return KUMI_OK;
    ku_free(*text);
    *text = NULL;
    return KU_ERR(KUMI_EINVAL, "rpc: %s: %s: mode %03o, others may read it; chmod 600 %s", what,
                  path, (unsigned)(st.st_mode & 0777), path);
}

static int read_token(struct ku_rpc_secrets *s, const char *path)
{
    char *text;
    size_t bytes = 0, begin, n;
    KU_TRY(read_file("token", path, true, &text, &bytes));
    begin = strspn(text, " \t\r\n");
    n = strcspn(text + begin, " \t\r\n");
    bool is_good = n >= KU_RPC_MIN_TOKEN && n <= KU_RPC_MAX_TOKEN &&
                   begin + n + strspn(text + begin + n, " \t\r\n") == bytes;
    for (size_t i = 0; i < n; i++)
        is_good = is_good && text[begin + i] > ' ' && text[begin + i] < 127;
    if (is_good) {
        memcpy(s->token, text + begin, n);
        s->token_bytes = n;
    }
    memset(text, 0, bytes);
    ku_free(text);
    return is_good ? KUMI_OK
                   : KU_ERR(KUMI_EINVAL,
                            "rpc: token: %s: not one word of %d to %d printable characters; make "
                            "one with openssl rand -hex 32",
                            path, (int)KU_RPC_MIN_TOKEN, (int)KU_RPC_MAX_TOKEN);
}

static int check_dates(const char *what, const char *path, X509 *x)
{
    char text[64] = "";
    const ASN1_TIME *end = X509_get0_notAfter(x), *begin = X509_get0_notBefore(x);
    const bool is_over = X509_cmp_current_time(end)<0, is_early = X509_cmp_current_time(begin)> 0;
    BIO *out = BIO_new(BIO_s_mem());
    if (out && ASN1_TIME_print(out, is_over ? end : begin))
        (void)BIO_read(out, text, sizeof text - 1);
    BIO_free(out);
    if (is_over)
        return KU_ERR(KUMI_EINVAL, "rpc: %s: %s: expired on %s; renew it", what, path, text);
    if (is_early)
        return KU_ERR(KUMI_EINVAL, "rpc: %s: %s: not valid before %s; check the clock", what, path,
                      text);
    return KUMI_OK;
}

/* Every certificate of a file is well formed and valid today. *first: out, may be NULL. */
static int check_certificates(const char *what, const char *path, const char *text, X509 **first)
{
    int n = 0, status = KUMI_OK;
    BIO *in = BIO_new_mem_buf(text, -1);
    X509 *x;
    while (in && status == KUMI_OK && (x = PEM_read_bio_X509(in, NULL, NULL, NULL))) {
        status = check_dates(what, path, x);
        if (n++ == 0 && first && status == KUMI_OK)
            *first = x;
        else
            X509_free(x);
    }
    BIO_free(in);
    ERR_clear_error(); /* the end of the file is one */
    if (status == KUMI_OK && n == 0)
        return KU_ERR(KUMI_EINVAL, "rpc: %s: %s: no certificate in PEM form", what, path);
    return status;
}

static int check_key(const struct ku_rpc_security *o, const char *text, X509 *own)
{
    BIO *in = BIO_new_mem_buf(text, -1);
    EVP_PKEY *key = in ? PEM_read_bio_PrivateKey(in, NULL, NULL, NULL) : NULL;
    int fits = key ? X509_check_private_key(own, key) : 0;
    BIO_free(in);
    ERR_clear_error();
    if (key == NULL)
        return KU_ERR(KUMI_EINVAL, "rpc: key: %s: no private key in PEM form without a password",
                      o->key);
    EVP_PKEY_free(key);
    if (!fits)
        return KU_ERR(KUMI_EINVAL, "rpc: key: %s: not that of the certificate %s", o->key, o->cert);
    return KUMI_OK;
}

static int read_tls(struct ku_rpc_secrets *s, const struct ku_rpc_security *o)
{
    size_t bytes;
    X509 *own = NULL;
    if (o->cert == NULL || o->key == NULL || o->ca == NULL)
        return KU_ERR(KUMI_EINVAL, "rpc: tls: %s is missing; give certificate, key and CA together",
                      o->cert == NULL  ? "the certificate"
                      : o->key == NULL ? "the key"
                                       : "the CA");
    KU_TRY(read_file("certificate", o->cert, false, &s->cert, &bytes));
    KU_TRY(read_file("key", o->key, true, &s->key, &bytes));
    KU_TRY(read_file("CA", o->ca, false, &s->ca, &bytes));
    KU_TRY(check_certificates("CA", o->ca, s->ca, NULL));
    KU_TRY(check_certificates("certificate", o->cert, s->cert, &own));
    int status = check_key(o, s->key, own);
    X509_free(own);
    return status;
}

int ku_rpc_secrets_init(struct ku_rpc_secrets *s, const struct ku_rpc_security *o)
{
    int status = KUMI_OK;
    memset(s, 0, sizeof *s);
    if (o->token_file)
        KU_TRY_OUT(read_token(s, o->token_file));
    if (o->cert || o->key || o->ca)
        KU_TRY_OUT(read_tls(s, o));
out:
    if (status < 0)
        ku_rpc_secrets_fini(s);
    return status;
}

void ku_rpc_secrets_fini(struct ku_rpc_secrets *s)
{
    if (s->key)
        memset(s->key, 0, strlen(s->key));
    ku_free(s->cert);
    ku_free(s->key);
    ku_free(s->ca);
    memset(s, 0, sizeof *s);
}

int ku_rpc_check_open(const struct ku_rpc_address *a, const struct ku_rpc_secrets *s)
{
    if (a->is_loopback || s->cert || s->token_bytes > 0)
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL,
                  "rpc: address: %s: not on this host, and neither TLS (certificate, key and CA) "
                  "nor a token file is given",
                  a->text);
}

/*
 * 0 if equal. The time depends on the length of what was sent alone: each of its bytes is compared,
 * with the token repeated.
 */
static unsigned differ(const struct ku_rpc_secrets *s, const uint8_t *sent, size_t bytes)
{
    volatile unsigned diff = bytes != s->token_bytes;
    for (size_t i = 0; i < bytes; i++)
        diff |= (unsigned)sent[i] ^ (unsigned char)s->token[i % s->token_bytes];
    return diff;
}

bool ku_rpc_is_authorized(const struct ku_rpc_secrets *s, const grpc_metadata_array *metadata)
{
    static const char bearer[] = "Bearer ";
    enum { N = sizeof bearer - 1 };
    bool is_good = s->token_bytes == 0;
    for (size_t i = 0; i < metadata->count; i++) {
        const grpc_slice *value = &metadata->metadata[i].value;
        if (grpc_slice_str_cmp(metadata->metadata[i].key, "authorization") != 0 ||
            GRPC_SLICE_LENGTH(*value) < N || s->token_bytes == 0)
            continue;
        const uint8_t *text = GRPC_SLICE_START_PTR(*value);
        if (memcmp(text, bearer, N) == 0 && differ(s, text + N, GRPC_SLICE_LENGTH(*value) - N) == 0)
            is_good = true;
    }
    return is_good;
}
