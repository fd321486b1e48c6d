/* tok_json.c: reads tokenizer.json and the small files beside it. */
#include "base/file.h"
#include "text/tok_parts.h"
#include "text/tok_scan.h"
#include "text/utf8.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SMALL_FILE = 64 << 20, MAX_ADDED_BYTES = 16 << 20 };

/* ---- model ---- */

static int affix(cb_tokenizer *t, const char *where, const json_t *m, const char *key, const char **s, size_t *n, cb_err *err)
{
    const json_t *v = json_object_get(m, key);
    *s = "";
    *n = 0;
    if (!v || json_is_null(v)) return 0;
    if (!json_is_string(v)) return cb_fail(err, CB_EFORMAT, "%s: model.%s is not a string", where, key);
    *n = json_string_length(v);
    if (*n > 256) return cb_fail(err, CB_EFORMAT, "%s: model.%s has %zu bytes, at most 256 are read", where, key, *n);
    *s = cb_arena_strndup(&t->arena, json_string_value(v), *n);
    return *s ? 0 : cb_fail(err, CB_ENOMEM, "%s: no memory for model.%s", where, key);
}

static int model_options(cb_tokenizer *t, const char *where, const json_t *m, cb_err *err)
{
    const char *type = "BPE";
    double dropout = 0;
    int rc;
    if (!json_is_object(m)) return cb_fail(err, CB_EFORMAT, "%s: model is not an object", where);
    if ((rc = cb_json_str(m, where, "type", &type, err)) < 0) return rc;
    if (strcmp(type, "BPE")) return cb_fail(err, CB_EFORMAT, "%s: model.type '%.60s' is not supported, only BPE is", where, type);
    if ((rc = cb_json_real(m, where, "dropout", &dropout, err)) < 0) return rc;
    if (dropout != 0) return cb_fail(err, CB_EFORMAT, "%s: model.dropout %g is not supported, only 0 is", where, dropout);
    if ((rc = cb_json_bool(m, where, "fuse_unk", &t->fuse_unk, err)) < 0) return rc;
    if ((rc = cb_json_bool(m, where, "byte_fallback", &t->byte_fallback, err)) < 0) return rc;
    if ((rc = cb_json_bool(m, where, "ignore_merges", &t->ignore_merges, err)) < 0) return rc;
    if ((rc = affix(t, where, m, "continuing_subword_prefix", &t->prefix, &t->n_prefix, err)) < 0) return rc;
    return affix(t, where, m, "end_of_word_suffix", &t->suffix, &t->n_suffix, err);
}

/* One-character tokens by code point. */
static int fill_chars(cb_tokenizer *t, const char *where, cb_err *err)
{
    const cb_vocab *v = &t->vocab;
    if (!(t->bmp_id = cb_alloc_array(0x10000, sizeof *t->bmp_id))) return cb_fail(err, CB_ENOMEM, "%s: no memory for its characters", where);
    memset(t->bmp_id, 0xff, 0x10000 * sizeof *t->bmp_id);
    for (int32_t id = 0; id < v->n_ids; id++) {
        if (!cb_vocab_has(v, id) || v->len[id] > 3 || !v->len[id]) continue;
        size_t n;
        const char *s = cb_vocab_text(v, id, &n);
        uint32_t cp;
        if (cb_utf8_decode(s, n, &cp) == (int)n && cp < 0x10000) t->bmp_id[cp] = id;
    }
    return 0;
}

/* Which characters stand before U+2581 inside some token: only there can a merge reach over the boundary. Tokens begin with
 * U+2581 in vocabularies of this kind and rarely hold it elsewhere, so a text falls apart into words. */
static int fill_cuts(cb_tokenizer *t, const char *where, cb_err *err)
{
    const cb_vocab *v = &t->vocab;
    if (t->bmp_id[0x2581] < 0 || t->n_prefix || t->n_suffix) return 0;
    if (!(t->no_cut = cb_alloc_array(CB_CUT_BITS / 64, sizeof *t->no_cut))) return cb_fail(err, CB_ENOMEM, "%s: no memory", where);
    for (uint32_t r = 0; r < t->merges.n_ranks; r++) {
        size_t n;
        const char *s = cb_vocab_text(v, t->merges.id_of_rank[r], &n), *p = s;
        while (p < s + n && (p = memmem(p, (size_t)(s + n - p), "\xe2\x96\x81", 3))) {
            if (p > s) {
                const char *q = p - 1;
                while ((*q & 0xc0) == 0x80) q--;
                uint32_t cp;
                cb_utf8_decode(q, (size_t)(p - q), &cp);
                t->no_cut[cb_cut_bit(cp) / 64] |= 1ull << cb_cut_bit(cp) % 64;
            }
            p += 3;
        }
    }
    return 0;
}

static int fill_tables(cb_tokenizer *t, const char *where, cb_err *err)
{
    const cb_vocab *v = &t->vocab;
    for (int b = 0; b < 256; b++) {
        char s[8];
        t->byte_id[b] = cb_vocab_find(v, s, (size_t)cb_utf8_encode(s, cb_byte_char((uint8_t)b)));
        snprintf(s, sizeof s, "<0x%02X>", b);
        t->fallback_id[b] = cb_vocab_find(v, s, 6);
    }
    for (int32_t id = 0; id < v->n_ids; id++)
        if (v->len[id] > t->longest) t->longest = v->len[id];
    if (t->byte_level) return 0;
    int rc = fill_chars(t, where, err);
    return rc < 0 ? rc : fill_cuts(t, where, err);
}

/* ---- added tokens ---- */

typedef struct added {
    const char *content;
    size_t n;
    int64_t id;
    unsigned flags;
} added;

static int read_added(const char *where, const json_t *j, int64_t id, added *a, cb_err *err)
{
    static const struct { const char *key; unsigned flag; } keys[] = {
        {"special", CB_TOKEN_SPECIAL}, {"lstrip", CB_TOKEN_LSTRIP}, {"rstrip", CB_TOKEN_RSTRIP},
        {"single_word", CB_TOKEN_SINGLE_WORD}, {"normalized", CB_TOKEN_NORMALIZED},
    };
    const json_t *s = json_object_get(j, "content");
    int rc;
    if (!json_is_string(s)) return cb_fail(err, CB_EFORMAT, "%s: an added token has no content", where);
    *a = (added){json_string_value(s), json_string_length(s), id, CB_TOKEN_ADDED};
    if (a->n > CB_TOK_MAX_ADDED_LEN)
        return cb_fail(err, CB_EFORMAT, "%s: added token of %zu bytes, at most %d are read", where, a->n, CB_TOK_MAX_ADDED_LEN);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        bool on = false;
        if ((rc = cb_json_bool(j, where, keys[i].key, &on, err)) < 0) return rc;
        if (on) a->flags |= keys[i].flag;
    }
    if (id >= 0) return 0;
    if ((rc = cb_json_int(j, where, "id", 0, CB_VOCAB_MAX_ID, &a->id, err)) < 0) return rc;
    return rc ? 0 : cb_fail(err, CB_EFORMAT, "%s: added token '%.60s' has no id", where, a->content);
}

/* A text that is in the model's vocabulary keeps its id there. Others get the next free id, which in sound files is the one
 * they state; where it is not, the reference goes by this rule too and only warns. `stated` takes the file's id as it is. */
static int add_token(cb_tokenizer *t, const char *where, const added *a, bool stated, cb_err *err)
{
    cb_vocab *v = &t->vocab;
    if (!a->n) return 0;
    int32_t id = cb_vocab_find(v, a->content, a->n);
    if (id >= 0) {
        v->flags[id] = (uint8_t)((v->flags[id] & (CB_TOKEN_MODEL | CB_TOKEN_SPECIAL)) | a->flags);
    } else {
        int64_t n_model = (int64_t)t->n_model_tokens, next = t->max_added >= n_model ? (int64_t)t->max_added + 1 : n_model;
        if (stated) next = a->id;
        if (next <= CB_VOCAB_MAX_ID && cb_vocab_has(v, (int32_t)next))
            return cb_fail(err, CB_EFORMAT, "%s: added token '%.60s' gets id %lld, which is '%.60s' already", where, a->content,
                           (long long)next, v->bytes + v->off[next]);
        int rc = cb_vocab_add(v, a->content, a->n, next, a->flags, err);
        if (rc < 0) return cb_fail_in(err, rc, "%s", where);
        id = (int32_t)next;
    }
    if (id > t->max_added) t->max_added = id;
    return 0;
}

static int added_list(cb_tokenizer *t, const char *where, const json_t *list, cb_err *err)
{
    const json_t *v;
    size_t i;
    if (!list || json_is_null(list)) return 0;
    if (!json_is_array(list)) return cb_fail(err, CB_EFORMAT, "%s: added_tokens is not an array", where);
    json_array_foreach(list, i, v) {
        added a;
        int rc;
        if ((rc = read_added(where, v, -1, &a, err)) < 0 || (rc = add_token(t, where, &a, false, err)) < 0) return rc;
    }
    return 0;
}

/* tokenizer_config.json repeats added tokens by id; some checkpoints list the last ones only there. */
static int added_decoder(cb_tokenizer *t, const char *where, json_t *map, cb_err *err)
{
    const char *key;
    json_t *v;
    if (!map || json_is_null(map)) return 0;
    if (!json_is_object(map)) return cb_fail(err, CB_EFORMAT, "%s: added_tokens_decoder is not an object", where);
    json_object_foreach(map, key, v) {
        long id = 0;
        size_t k = strspn(key, "0123456789");
        if (!k || key[k] || k > 9 || sscanf(key, "%ld", &id) != 1)
            return cb_fail(err, CB_EFORMAT, "%s: added_tokens_decoder: '%.60s' is not an id", where, key);
        added a;
        int rc = read_added(where, v, id, &a, err);
        if (rc < 0) return rc;
        /* What tokenizer.json has, it says better. */
        if (id > CB_VOCAB_MAX_ID || cb_vocab_has(&t->vocab, (int32_t)id) || cb_vocab_find(&t->vocab, a.content, a.n) >= 0) continue;
        if ((rc = add_token(t, where, &a, true, err)) < 0) return rc;
    }
    return 0;
}

static int by_id(const void *a, const void *b)
{
    int32_t x = ((const cb_trie_entry *)a)->id, y = ((const cb_trie_entry *)b)->id;
    return x < y ? -1 : x > y;
}

/* Builds both tries. A normalized token is looked for as the normalizers leave it. */
static int build_tries(cb_tokenizer *t, const char *where, cb_err *err)
{
    const cb_vocab *v = &t->vocab;
    size_t n[2] = {0, 0}, all = 0, bytes = 0;
    for (int32_t id = 0; id < v->n_ids; id++) all += (v->flags[id] & CB_TOKEN_ADDED) != 0;
    cb_trie_entry *e[2] = {cb_alloc_array(all, sizeof **e), cb_alloc_array(all, sizeof **e)};
    cb_regex_run run = {0};
    cb_buf buf[2];
    cb_buf_init(buf, MAX_ADDED_BYTES);
    cb_buf_init(buf + 1, MAX_ADDED_BYTES);
    t->shown = t->n_norm ? cb_alloc_array(all, sizeof *t->shown) : NULL;
    int rc = e[0] && e[1] && (t->shown || !t->n_norm) ? cb_regex_run_init(&run, 0, err) : cb_fail(err, CB_ENOMEM, "%s: no memory for %zu added tokens", where, all);
    run.young = true;
    /* Of equal normalized forms special tokens come first, then file order; ids stand in for the file's order. */
    for (int special = 1; special >= 0 && rc == 0; special--) {
        for (int32_t id = 0; id < v->n_ids && rc == 0; id++) {
            if (!(v->flags[id] & CB_TOKEN_ADDED) || (v->flags[id] & CB_TOKEN_SPECIAL ? 1 : 0) != special) continue;
            size_t len;
            const char *s = cb_vocab_text(v, id, &len);
            int set = v->flags[id] & CB_TOKEN_NORMALIZED && t->n_norm ? 1 : 0;
            if (set) {
                bool first = true;
                const char *o;
                cb_regex_run_again(&run, 0);
                if ((rc = cb_norm_run(t, &run, buf, s, len, &o, &len, &first, err)) < 0) break;
                size_t raw = v->len[id];
                if (!(s = cb_arena_strndup(&t->arena, o, len))) rc = cb_fail(err, CB_ENOMEM, "%s: no memory", where);
                else if (len != raw || memcmp(s, v->bytes + v->off[id], raw)) t->shown[t->n_shown++] = (cb_trie_entry){s, len, id};
            } else if (v->flags[id] & CB_TOKEN_NORMALIZED) {
                set = 1;
            }
            if ((bytes += len) > MAX_ADDED_BYTES && rc == 0)
                rc = cb_fail(err, CB_EFORMAT, "%s: added tokens of more than %d bytes", where, MAX_ADDED_BYTES);
            e[set][n[set]++] = (cb_trie_entry){s, len, id};
        }
    }
    if (t->n_shown) qsort(t->shown, t->n_shown, sizeof *t->shown, by_id);
    for (int set = 0; set < 2 && rc == 0; set++) rc = cb_trie_build(t->added + set, e[set], n[set], err);
    cb_free(e[0]);
    cb_free(e[1]);
    cb_buf_fini(buf);
    cb_buf_fini(buf + 1);
    cb_regex_run_fini(&run);
    return rc;
}

/* ---- tokenizer.json ---- */

static int read_root(cb_tokenizer *t, const char *where, const json_t *root, const cb_tok_spans *spans, cb_err *err)
{
    const json_t *m = json_object_get(root, "model");
    const char *unk = NULL;
    int rc;
    if (!json_is_object(root)) return cb_fail(err, CB_EFORMAT, "%s: not a JSON object", where);
    if ((rc = model_options(t, where, m, err)) < 0) return rc;
    if ((rc = cb_tok_read_vocab(t, where, spans, err)) < 0) return rc;
    if ((rc = cb_tok_read_merges(t, where, spans, err)) < 0) return rc;
    if ((rc = cb_tok_read_normalizer(t, where, json_object_get(root, "normalizer"), err)) < 0) return rc;
    if ((rc = cb_tok_read_pre_tokenizer(t, where, json_object_get(root, "pre_tokenizer"), err)) < 0) return rc;
    if ((rc = cb_tok_read_post_processor(t, where, json_object_get(root, "post_processor"), err)) < 0) return rc;
    if ((rc = cb_tok_read_decoder(t, where, json_object_get(root, "decoder"), err)) < 0) return rc;
    if ((rc = fill_tables(t, where, err)) < 0) return rc;
    t->n_model_tokens = t->vocab.n_used;
    t->max_added = -1;
    if ((rc = added_list(t, where, json_object_get(root, "added_tokens"), err)) < 0) return rc;
    if ((rc = cb_json_str(m, where, "unk_token", &unk, err)) < 0) return rc;
    t->unk = unk ? cb_vocab_find(&t->vocab, unk, json_string_length(json_object_get(m, "unk_token"))) : -1;
    return 0;
}

int cb_tok_read(cb_tokenizer *t, const char *where, const char *text, size_t n, cb_err *err)
{
    cb_tok_spans spans;
    cb_buf rest;
    json_t *root = NULL;
    cb_buf_init(&rest, 0);
    size_t good = cb_utf8_valid(text, n);
    int rc = good < n ? cb_fail(err, CB_EFORMAT, "%s: byte %zu is not UTF-8", where, good) : 0;
    if (rc == 0) rc = cb_tok_scan(where, text, n, &spans, &rest, err);
    if (rc == 0) rc = cb_json_text(where, rest.data, rest.n, &root, err);
    if (rc == 0) rc = read_root(t, where, root, &spans, err);
    json_decref(root);
    cb_buf_fini(&rest);
    return rc;
}

/* ---- the files beside it ---- */

/* The id of a named special token: a string or an object with content. -1 when absent or unknown. */
static int32_t named_token(const cb_tokenizer *t, const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v)) v = json_object_get(v, "content");
    return json_is_string(v) ? cb_vocab_find(&t->vocab, json_string_value(v), json_string_length(v)) : -1;
}

/* add_bos_token and add_eos_token overrule the post-processor where they are stated. */
static int apply_flag(const char *where, const json_t *config, const char *key, int32_t id, bool in_front, int32_t **list, int *n,
                      cb_err *err)
{
    bool on = false;
    int rc = cb_json_bool(config, where, key, &on, err);
    if (rc <= 0 || id < 0) return rc < 0 ? rc : 0;
    bool has = *n > 0 && (*list)[in_front ? 0 : *n - 1] == id;
    if (on && !has) {
        int32_t *p = cb_realloc(*list, (size_t)(*n + 1) * sizeof *p);
        if (!p) return cb_fail(err, CB_ENOMEM, "%s: no memory", where);
        *list = p;
        if (in_front) memmove(p + 1, p, (size_t)*n * sizeof *p);
        p[in_front ? 0 : *n] = id;
        ++*n;
    } else if (!on && has) {
        --*n;
        if (in_front) memmove(*list, *list + 1, (size_t)*n * sizeof **list);
    }
    return 0;
}

static int add_stop(cb_tokenizer *t, const char *where, int64_t id, cb_err *err)
{
    if (id < 0 || id > CB_VOCAB_MAX_ID) return cb_fail(err, CB_EFORMAT, "%s: eos_token_id %lld is not in 0..%d", where, (long long)id, CB_VOCAB_MAX_ID);
    for (int i = 0; i < t->n_stops; i++)
        if (t->stops[i] == id) return 0;
    if (t->n_stops == CB_TOK_MAX_STOPS) return cb_fail(err, CB_EFORMAT, "%s: eos_token_id names more than %d tokens", where, CB_TOK_MAX_STOPS);
    t->stops[t->n_stops++] = (int32_t)id;
    return 0;
}

/* 1 when the object states eos_token_id (an id or a list of ids). */
static int read_stops(cb_tokenizer *t, const char *where, const json_t *j, cb_err *err)
{
    const json_t *v = json_object_get(j, "eos_token_id"), *one;
    size_t i;
    int rc;
    if (!v || json_is_null(v)) return 0;
    if (json_is_integer(v)) return (rc = add_stop(t, where, json_integer_value(v), err)) < 0 ? rc : 1;
    if (!json_is_array(v)) return cb_fail(err, CB_EFORMAT, "%s: eos_token_id is neither an id nor a list", where);
    json_array_foreach(v, i, one) {
        if (!json_is_integer(one)) return cb_fail(err, CB_EFORMAT, "%s: eos_token_id holds something that is no id", where);
        if ((rc = add_stop(t, where, json_integer_value(one), err)) < 0) return rc;
    }
    return json_array_size(v) > 0;
}

/* Reads a file that may be absent: *j stays NULL then. */
static int optional(const char *dir, const char *name, json_t **j, cb_err *err)
{
    *j = NULL;
    return cb_file_exists(dir, name) ? cb_json_file(dir, name, MAX_SMALL_FILE, j, err) : 0;
}

static int read_config(cb_tokenizer *t, const char *dir, int32_t *eos, cb_err *err)
{
    static const char where[] = "tokenizer_config.json";
    json_t *j;
    int rc = optional(dir, where, &j, err);
    if (rc < 0 || !j) return rc;
    if ((rc = added_decoder(t, where, json_object_get(j, "added_tokens_decoder"), err)) == 0) {
        int32_t bos = named_token(t, j, "bos_token");
        *eos = named_token(t, j, "eos_token");
        rc = apply_flag(where, j, "add_bos_token", bos, true, &t->before, &t->n_before, err);
        if (rc == 0) rc = apply_flag(where, j, "add_eos_token", *eos, false, &t->after, &t->n_after, err);
    }
    json_decref(j);
    return rc;
}

/* generation_config.json alone decides when it names stop tokens. Else config.json's, and with them the tokenizer's own
 * eos: config.json often names only the end of a text, not the end of a turn. */
static int read_all_stops(cb_tokenizer *t, const char *dir, int32_t eos, cb_err *err)
{
    json_t *j;
    int rc = optional(dir, "generation_config.json", &j, err);
    if (rc == 0 && j) rc = read_stops(t, "generation_config.json", j, err);
    json_decref(j);
    if (rc != 0) return rc < 0 ? rc : 0;
    if ((rc = optional(dir, "config.json", &j, err)) < 0) return rc;
    if (j) {
        const json_t *text = json_object_get(j, "text_config");
        if ((rc = read_stops(t, "config.json", j, err)) == 0 && json_is_object(text)) rc = read_stops(t, "config.json: text_config", text, err);
        json_decref(j);
        if (rc < 0) return rc;
    }
    return eos >= 0 ? add_stop(t, "tokenizer_config.json", eos, err) : 0;
}

int cb_tokenizer_open(const char *dir, cb_tokenizer **out, cb_err *err)
{
    static const char where[] = "tokenizer.json";
    char *text = NULL;
    size_t n;
    int32_t eos = -1;
    *out = NULL;
    cb_tokenizer *t = cb_alloc(sizeof *t);
    if (!t) return cb_fail(err, CB_ENOMEM, "%s: no memory", where);
    cb_arena_init(&t->arena, 0);
    int rc = cb_file_read(dir, where, CB_TOK_MAX_FILE, &text, &n, err);
    if (rc == 0) rc = cb_tok_read(t, where, text, n, err);
    cb_free(text);
    if (rc == 0) rc = read_config(t, dir, &eos, err);
    if (rc == 0) rc = build_tries(t, where, err);
    if (rc == 0) rc = read_all_stops(t, dir, eos, err);
    if (rc == 0) *out = t;
    else cb_tokenizer_close(t);
    return rc < 0 ? rc : 0;
}

int cb_tokenizer_open_text(const char *text, size_t n, cb_tokenizer **out, cb_err *err)
{
    *out = NULL;
    cb_tokenizer *t = cb_alloc(sizeof *t);
    if (!t) return cb_fail(err, CB_ENOMEM, "tokenizer: no memory");
    cb_arena_init(&t->arena, 0);
    int rc = cb_tok_read(t, "tokenizer.json", text, n, err);
    if (rc == 0) rc = build_tries(t, "tokenizer.json", err);
    if (rc == 0) *out = t;
    else cb_tokenizer_close(t);
    return rc;
}

void cb_tokenizer_close(cb_tokenizer *t)
{
    if (!t) return;
    cb_tok_free_steps(t);
    for (int i = 0; i < 2; i++) cb_trie_fini(t->added + i);
    cb_vocab_fini(&t->vocab);
    cb_merges_fini(&t->merges);
    cb_free(t->bmp_id);
    cb_free(t->no_cut);
    cb_free(t->before);
    cb_free(t->after);
    cb_free(t->shown);
    cb_arena_fini(&t->arena);
    cb_free(t);
}

int cb_tokenizer_n_vocab(const cb_tokenizer *t) { return t->vocab.n_ids; }

const char *cb_tokenizer_token(const cb_tokenizer *t, int32_t id, size_t *n)
{
    size_t len = 0;
    const char *s = cb_vocab_has(&t->vocab, id) ? cb_vocab_text(&t->vocab, id, &len) : NULL;
    if (n) *n = len;
    return s;
}

int32_t cb_tokenizer_find(const cb_tokenizer *t, const char *text, size_t n) { return cb_vocab_find(&t->vocab, text, n); }

int cb_tokenizer_is_stop(const cb_tokenizer *t, int32_t id)
{
    for (int i = 0; i < t->n_stops; i++)
        if (t->stops[i] == id) return 1;
    return 0;
}
