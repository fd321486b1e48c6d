/* The text side of an import: GGUF's tokenizer.* keys as tokenizer.json and tokenizer_config.json, and the stop ids. */
#include "run/import.h"
#include "text/gguf_vocab.h"
#include "text/utf8.h"
#include <inttypes.h>
#include <string.h>

enum { MAX_TOKENS = 1 << 24 };

/* The strings of a string array, from cb_alloc; NULL without memory. */
static cb_gguf_str *strings_of(const cb_gguf_kv *kv)
{
    cb_gguf_str *all = cb_alloc_array(kv->count, sizeof *all);
    const uint8_t *p = kv->data;
    for (uint64_t i = 0; all && i < kv->count; i++) p = cb_gguf_next_text(p, &all[i].s, &all[i].n);
    return all;
}

/* A key's text as a C string from cb_alloc, NULL when absent. */
static int text_of(const cb_gguf *g, const char *key, char **out, cb_err *err)
{
    const char *s;
    size_t n;
    int rc = cb_gguf_text(g, key, &s, &n, err);
    *out = NULL;
    if (rc <= 0) return rc;
    *out = cb_strndup(s, n);
    return *out ? 1 : cb_fail(err, CB_ENOMEM, "%s: no memory for key %s", g->file, key);
}

/* An id that is a token, or -1 when the key is absent. */
static int id_of(const cb_gguf *g, const char *key, size_t n_tokens, int32_t *id, cb_err *err)
{
    int64_t v = -1;
    int rc = cb_gguf_int(g, key, 0, (int64_t)n_tokens - 1, &v, err);
    *id = (int32_t)v;
    return rc < 0 ? rc : 0;
}

static int flag_of(const cb_gguf *g, const char *key, int *flag, cb_err *err)
{
    bool v = false;
    int rc = cb_gguf_bool(g, key, &v, err);
    *flag = rc > 0 ? v : -1;
    return rc < 0 ? rc : 0;
}

/* An array with one number per token, copied to aligned memory; NULL when the key is absent. Elements are 4 bytes. */
static int numbers_of(const cb_gguf *g, const char *key, uint32_t type, size_t n_tokens, void **out, cb_err *err)
{
    const cb_gguf_kv *kv;
    int rc = cb_gguf_array(g, key, type, &kv, err);
    *out = NULL;
    if (rc <= 0) return rc;
    if (kv->count != n_tokens)
        return cb_fail(err, CB_EFORMAT, "%s: key %s has %" PRIu64 " elements for %zu tokens", g->file, key, kv->count,
                       n_tokens);
    if (!(*out = cb_alloc_array(n_tokens, 4))) return cb_fail(err, CB_ENOMEM, "%s: no memory for key %s", g->file, key);
    memcpy(*out, kv->data, n_tokens * 4);
    return 1;
}

static int tokens_of(const cb_gguf *g, const cb_gguf_kv **kv, cb_err *err)
{
    int rc = cb_gguf_array(g, "tokenizer.ggml.tokens", CB_GV_STRING, kv, err);
    if (rc < 0) return rc;
    if (!rc) return cb_fail(err, CB_EFORMAT, "%s: key tokenizer.ggml.tokens is missing", g->file);
    const cb_gguf_tensor *embed = cb_gguf_tensor_find(g, "token_embd.weight");
    int64_t rows = embed && embed->rows < MAX_TOKENS ? embed->rows : MAX_TOKENS;
    if (!(*kv)->count || (*kv)->count > (uint64_t)rows)
        return cb_fail(err, CB_EFORMAT, "%s: key tokenizer.ggml.tokens has %" PRIu64 " tokens, the embedding has %" PRId64
                       " rows", g->file, (*kv)->count, rows);
    return 0;
}

/* What vocab_fill allocated, apart from what cb_gguf_vocab borrows. */
typedef struct owned {
    char *model, *pre;
    cb_gguf_str *tokens, *merges;
    void *scores, *types;
} owned;

static int vocab_fill(const cb_gguf *g, cb_gguf_vocab *v, owned *o, cb_err *err)
{
    const cb_gguf_kv *tokens, *merges;
    int rc = text_of(g, "tokenizer.ggml.model", &o->model, err);
    if (rc <= 0) return rc < 0 ? rc : cb_fail(err, CB_EFORMAT, "%s: key tokenizer.ggml.model is missing", g->file);
    if ((rc = text_of(g, "tokenizer.ggml.pre", &o->pre, err)) < 0 || (rc = tokens_of(g, &tokens, err)) < 0) return rc;
    size_t n = tokens->count;
    if (!(o->tokens = strings_of(tokens))) return cb_fail(err, CB_ENOMEM, "%s: no memory for %zu tokens", g->file, n);
    if ((rc = cb_gguf_array(g, "tokenizer.ggml.merges", CB_GV_STRING, &merges, err)) < 0) return rc;
    if (rc) {
        v->n_merges = merges->count;
        if (!(o->merges = strings_of(merges))) return cb_fail(err, CB_ENOMEM, "%s: no memory for merges", g->file);
    }
    if ((rc = numbers_of(g, "tokenizer.ggml.scores", CB_GV_F32, n, &o->scores, err)) < 0 ||
        (rc = numbers_of(g, "tokenizer.ggml.token_type", CB_GV_I32, n, &o->types, err)) < 0 ||
        (rc = id_of(g, "tokenizer.ggml.bos_token_id", n, &v->bos, err)) < 0 ||
        (rc = id_of(g, "tokenizer.ggml.eos_token_id", n, &v->eos, err)) < 0 ||
        (rc = id_of(g, "tokenizer.ggml.unknown_token_id", n, &v->unk, err)) < 0 ||
        (rc = id_of(g, "tokenizer.ggml.padding_token_id", n, &v->pad, err)) < 0 ||
        (rc = flag_of(g, "tokenizer.ggml.add_bos_token", &v->add_bos, err)) < 0 ||
        (rc = flag_of(g, "tokenizer.ggml.add_eos_token", &v->add_eos, err)) < 0 ||
        (rc = flag_of(g, "tokenizer.ggml.add_space_prefix", &v->add_space_prefix, err)) < 0)
        return rc;
    v->model = o->model;
    v->pre = o->pre;
    v->tokens = o->tokens;
    v->n_tokens = n;
    v->merges = o->merges;
    v->scores = o->scores;
    v->types = o->types;
    return 0;
}

int cb_import_tokenizer(const cb_gguf *g, cb_buf *tokenizer, cb_buf *config, cb_err *err)
{
    cb_gguf_vocab v = {0};
    owned o = {0};
    const char *chat = NULL;
    size_t n_chat = 0;
    int rc = vocab_fill(g, &v, &o, err);
    if (rc == 0 && (rc = cb_gguf_text(g, "tokenizer.chat_template", &chat, &n_chat, err)) >= 0) {
        rc = 0;
        if (cb_utf8_valid(chat, n_chat) != n_chat)
            rc = cb_fail(err, CB_EFORMAT, "%s: key tokenizer.chat_template is not valid UTF-8", g->file);
        else if ((rc = cb_gguf_vocab_json(&v, tokenizer, err)) < 0 ||
                 (rc = cb_gguf_vocab_config_json(&v, chat, n_chat, config, err)) < 0)
            cb_fail_in(err, rc, "%s", g->file);
    }
    cb_free(o.model);
    cb_free(o.pre);
    cb_free(o.tokens);
    cb_free(o.merges);
    cb_free(o.scores);
    cb_free(o.types);
    return rc;
}

/* ---- stop ids ---- */

static void add_id(int64_t *ids, int cap, int *n, int64_t id)
{
    for (int i = 0; i < *n; i++)
        if (ids[i] == id) return;
    if (*n < cap) ids[(*n)++] = id;
}

/* The file names one eos; chat models end a turn with another token, which eot_token_id names or which is known by its
 * text (a control token: ordinary text never becomes one). */
int cb_import_stop_ids(const cb_gguf *g, int64_t *ids, int cap, cb_err *err)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    static const char *const texts[] = {"<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>"};
    const cb_gguf_kv *tokens, *types;
    int n = 0, rc = tokens_of(g, &tokens, err);
    if (rc < 0) return rc;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int64_t id;
        if ((rc = cb_gguf_int(g, keys[i], 0, (int64_t)tokens->count - 1, &id, err)) < 0) return rc;
        if (rc) add_id(ids, cap, &n, id);
    }
    rc = cb_gguf_array(g, "tokenizer.ggml.token_type", CB_GV_I32, &types, err);
    if (rc <= 0) return rc < 0 ? rc : n;
    const uint8_t *p = tokens->data;
    for (uint64_t i = 0; i < tokens->count && i < types->count; i++) {
        const char *s;
        size_t len;
        int32_t type;
        memcpy(&type, types->data + 4 * i, 4);
        p = cb_gguf_next_text(p, &s, &len);
        for (size_t k = 0; type == CB_GGUF_TOKEN_CONTROL && k < sizeof texts / sizeof *texts; k++)
            if (strlen(texts[k]) == len && !memcmp(texts[k], s, len)) add_id(ids, cap, &n, (int64_t)i);
    }
    return n;
}
