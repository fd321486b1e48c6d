#include "text/gguf_vocab.h"
#include "text/utf8.h"
#include "text/vocab.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = CB_VOCAB_MAX_ID, MAX_MERGES = 1 << 24 };
/* Cutting tokens in all places costs the square of their lengths; real vocabularies stay below a hundredth of this. */
#define MAX_CUT_WORK 4000000000u

/* ---- JSON ---- */

static void put_string(cb_buf *b, const char *s, size_t n)
{
    size_t from = 0;
    cb_buf_putc(b, '"');
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        cb_buf_put(b, s + from, i - from);
        if (c < 0x20) cb_buf_printf(b, "\\u%04x", c);
        else cb_buf_putc(b, '\\'), cb_buf_putc(b, (char)c);
        from = i + 1;
    }
    cb_buf_put(b, s + from, n - from);
    cb_buf_putc(b, '"');
}

static void put_int(cb_buf *b, size_t v)
{
    char d[24];
    size_t n = sizeof d;
    do d[--n] = (char)('0' + v % 10);
    while (v /= 10);
    cb_buf_put(b, d + n, sizeof d - n);
}

/* ---- patterns ---- */

#define APOSTROPHE "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

/* How a "pre" name of the gpt2 model cuts words: Split patterns one after the other, each match a piece. */
typedef struct pre_kind {
    const char *names; /* " name name " */
    bool digits;       /* every digit apart first */
    bool nfc, ignore_merges;
    const char *split[4]; /* NULL: ByteLevel's own pattern */
} pre_kind;

static const pre_kind pre_kinds[] = {
    {" default ", false, false, false, {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {" gpt-2 gpt2 phi-2 jina-es jina-de jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert ", false, false, false, {NULL}},
    {" smollm starcoder refact command-r codeshell exaone ", true, false, false, {NULL}},
    {" llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 ", false, false, true,
     {APOSTROPHE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL}},
    {" qwen2 deepseek-r1-qwen ", false, true, false,
     {APOSTROPHE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL}},
    {" qwen35 ", false, true, false,
     {APOSTROPHE "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" TAIL}},
    {" gpt-4o llama4 ", false, false, false,
     {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" APOSTROPHE "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" APOSTROPHE
      "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL}},
};

static const pre_kind *find_pre(const char *pre)
{
    size_t n = strlen(pre);
    if (!n || strchr(pre, ' ')) return NULL;
    for (size_t i = 0; i < sizeof pre_kinds / sizeof *pre_kinds; i++)
        for (const char *p = pre_kinds[i].names; (p = strstr(p, pre)); p++)
            if (p[-1] == ' ' && p[n] == ' ') return pre_kinds + i;
    return NULL;
}

static void put_byte_level(cb_buf *b, bool regex)
{
    cb_buf_printf(b, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":%s}",
                  regex ? "true" : "false");
}

static void put_pre(cb_buf *b, const pre_kind *k)
{
    cb_buf_puts(b, "{\"type\":\"Sequence\",\"pretokenizers\":[");
    if (k->digits) cb_buf_puts(b, "{\"type\":\"Digits\",\"individual_digits\":true},");
    for (int i = 0; i < 4 && k->split[i]; i++) {
        cb_buf_puts(b, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
        put_string(b, k->split[i], strlen(k->split[i]));
        cb_buf_puts(b, "},\"behavior\":\"Isolated\",\"invert\":false},");
    }
    put_byte_level(b, !k->split[0]);
    cb_buf_puts(b, "]}");
}

/* ---- checks ---- */

static bool is_model(const cb_gguf_vocab *v, const char *name) { return v->model && !strcmp(v->model, name); }

static int check_id(const cb_gguf_vocab *v, const char *key, int32_t id, cb_err *err)
{
    if (id < -1 || id >= (int64_t)v->n_tokens)
        return cb_fail(err, CB_EFORMAT, "tokenizer.ggml.%s is %d, there are %zu tokens", key, id, v->n_tokens);
    return 0;
}

static int check(const cb_gguf_vocab *v, cb_err *err)
{
    int rc;
    if (!is_model(v, "gpt2") && !is_model(v, "llama") && !is_model(v, "gemma4"))
        return cb_fail(err, CB_EFORMAT, "tokenizer.ggml.model '%.60s' is not supported", v->model ? v->model : "");
    if (is_model(v, "gpt2") && !find_pre(v->pre && *v->pre ? v->pre : "default"))
        return cb_fail(err, CB_EFORMAT, "tokenizer.ggml.pre '%.60s' is not supported", v->pre);
    if (!v->n_tokens || !v->tokens || v->n_tokens > MAX_TOKENS)
        return cb_fail(err, CB_EFORMAT, "tokenizer.ggml.tokens has %zu entries, 1 to %d are allowed", v->n_tokens, MAX_TOKENS);
    if (is_model(v, "llama") && !v->scores) return cb_fail(err, CB_EFORMAT, "tokenizer.ggml.scores is missing");
    if (!is_model(v, "llama") && !v->merges) return cb_fail(err, CB_EFORMAT, "tokenizer.ggml.merges is missing");
    if (v->n_merges > MAX_MERGES)
        return cb_fail(err, CB_EFORMAT, "tokenizer.ggml.merges has %zu entries, at most %d are allowed", v->n_merges, MAX_MERGES);
    if ((rc = check_id(v, "bos_token_id", v->bos, err)) < 0 || (rc = check_id(v, "eos_token_id", v->eos, err)) < 0 ||
        (rc = check_id(v, "unknown_token_id", v->unk, err)) < 0 || (rc = check_id(v, "padding_token_id", v->pad, err)) < 0)
        return rc;
    for (size_t i = 0; i < v->n_tokens; i++)
        if (cb_utf8_valid(v->tokens[i].s, v->tokens[i].n) != v->tokens[i].n)
            return cb_fail(err, CB_EFORMAT, "tokenizer.ggml.tokens[%zu] is not UTF-8", i);
    return 0;
}

/* ---- merges ---- */

typedef struct merge {
    uint32_t score;       /* larger goes first */
    uint32_t n_left, n_right; /* characters */
    int32_t id, left, right;
} merge;

typedef struct merges {
    merge *m;
    size_t n, cap;
} merges;

/* A float as an unsigned number of the same order. */
static uint32_t ordered(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if (u << 1 == 0) u = 0; /* -0 is 0 */
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static int by_rank(const void *a, const void *b)
{
    const merge *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->n_left != y->n_left) return x->n_left > y->n_left ? -1 : 1;
    if (x->n_right != y->n_right) return x->n_right > y->n_right ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static bool add_cuts(const cb_vocab *tokens, merges *out, int32_t id, float score)
{
    size_t n;
    const char *s = cb_vocab_text(tokens, id, &n);
    uint32_t n_chars = 0, at = 0;
    for (size_t i = 0; i < n; i++) n_chars += (s[i] & 0xc0) != 0x80;
    for (size_t k = 1; k < n; k++) {
        if ((s[k] & 0xc0) == 0x80) continue;
        at++;
        int32_t l = cb_vocab_find(tokens, s, k), r = l < 0 ? -1 : cb_vocab_find(tokens, s + k, n - k);
        if (r < 0) continue;
        if (out->n == out->cap) {
            size_t cap = out->cap ? out->cap * 2 : 4096;
            merge *p = cb_realloc(out->m, cap * sizeof *p);
            if (!p) return false;
            out->m = p;
            out->cap = cap;
        }
        out->m[out->n++] = (merge){ordered(score), at, n_chars - at, id, l, r};
    }
    return true;
}

/* Scores without merges: every way to cut a token into two tokens is a merge, by falling score of the whole, then falling
 * length of the left and the right part. It is the rule of the converter that made the tokenizer.json files. */
static int put_cut_merges(const cb_gguf_vocab *v, const cb_vocab *tokens, cb_buf *out, cb_err *err)
{
    merges m = {0};
    bool ok = true;
    uint64_t work = 0;
    for (size_t i = 0; i < v->n_tokens; i++) work += (uint64_t)v->tokens[i].n * v->tokens[i].n;
    if (work > MAX_CUT_WORK) return cb_fail(err, CB_EFORMAT, "tokenizer.ggml.tokens: the tokens are too long to find merges");
    for (int32_t id = 0; id < tokens->n_ids && ok; id++)
        if (cb_vocab_has(tokens, id)) ok = add_cuts(tokens, &m, id, v->scores[id]);
    if (ok && m.n) qsort(m.m, m.n, sizeof *m.m, by_rank);
    for (size_t i = 0; ok && i < m.n; i++) {
        size_t n;
        const char *s = cb_vocab_text(tokens, m.m[i].left, &n);
        cb_buf_puts(out, i ? ",\n[" : "[");
        put_string(out, s, n);
        cb_buf_putc(out, ',');
        s = cb_vocab_text(tokens, m.m[i].right, &n);
        put_string(out, s, n);
        cb_buf_putc(out, ']');
    }
    cb_free(m.m);
    return ok ? 0 : cb_fail(err, CB_ENOMEM, "no memory for merges");
}

static int put_given_merges(const cb_gguf_vocab *v, const cb_vocab *tokens, cb_buf *out, cb_err *err)
{
    for (size_t i = 0; i < v->n_merges; i++) {
        const char *s = v->merges[i].s, *gap;
        size_t n = v->merges[i].n;
        /* The left token is not empty, so a space at the start belongs to it. */
        gap = n > 1 ? memchr(s + 1, ' ', n - 1) : NULL;
        size_t l = gap ? (size_t)(gap - s) : 0;
        if (!gap || cb_vocab_find(tokens, s, l) < 0 || cb_vocab_find(tokens, gap + 1, n - l - 1) < 0)
            return cb_fail(err, CB_EFORMAT, "tokenizer.ggml.merges[%zu] '%.*s' is not two tokens", i, (int)(n < 80 ? n : 80), s);
        cb_buf_puts(out, i ? ",\n[" : "[");
        put_string(out, s, l);
        cb_buf_putc(out, ',');
        put_string(out, gap + 1, n - l - 1);
        cb_buf_putc(out, ']');
    }
    return 0;
}

/* ---- document ---- */

/* A user-defined token that is a run of spaces, as Gemma has. GGUF files hold U+0020 there; tokenizer.json has U+2581 and
 * makes these tokens by merges, like any other, since its normalizer has replaced the spaces of the text. */
static bool is_space_run(const cb_gguf_vocab *v, size_t i)
{
    const cb_gguf_str *t = v->tokens + i;
    if (is_model(v, "gpt2") || !v->types || v->types[i] != CB_GGUF_TOKEN_USER || !t->n || t->n > 4096) return false;
    for (size_t k = 0; k < t->n; k++)
        if (t->s[k] != ' ') return false;
    return true;
}

/* Tokens by text. */
static int index_tokens(const cb_gguf_vocab *v, cb_vocab *tokens, cb_err *err)
{
    int rc = cb_vocab_init(tokens, v->n_tokens, v->n_tokens * 8, err);
    cb_buf run;
    cb_buf_init(&run, 0);
    for (size_t i = 0; i < v->n_tokens && rc == 0; i++) {
        cb_gguf_str t = v->tokens[i];
        if (is_space_run(v, i)) {
            run.n = 0;
            for (size_t k = 0; k < t.n; k++) cb_buf_put(&run, "\xe2\x96\x81", 3);
            t = (cb_gguf_str){run.data, run.n};
            if (!cb_buf_ok(&run)) rc = cb_fail(err, CB_ENOMEM, "no memory");
        }
        if (rc == 0) rc = cb_vocab_add(tokens, t.s, t.n, (int64_t)i, 0, err);
    }
    cb_buf_fini(&run);
    return rc < 0 ? cb_fail_in(err, rc, "tokenizer.ggml.tokens") : 0;
}

static void put_added(const cb_gguf_vocab *v, const cb_vocab *tokens, cb_buf *b)
{
    const char *sep = "";
    for (size_t i = 0; v->types && i < v->n_tokens; i++) {
        int32_t type = v->types[i];
        if ((type != CB_GGUF_TOKEN_CONTROL && type != CB_GGUF_TOKEN_USER && type != CB_GGUF_TOKEN_UNKNOWN) ||
            !cb_vocab_has(tokens, (int32_t)i) || !v->tokens[i].n)
            continue;
        cb_buf_puts(b, sep);
        cb_buf_puts(b, "{\"id\":");
        put_int(b, i);
        cb_buf_puts(b, ",\"content\":");
        size_t n;
        const char *s = cb_vocab_text(tokens, (int32_t)i, &n);
        put_string(b, s, n);
        cb_buf_printf(b, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":%s}",
                      type == CB_GGUF_TOKEN_USER ? "false" : "true");
        sep = ",\n";
    }
}

/* Flags that are absent have the model's default. */
static bool add_bos(const cb_gguf_vocab *v) { return v->bos >= 0 && (v->add_bos < 0 ? !is_model(v, "gpt2") : v->add_bos); }
static bool add_eos(const cb_gguf_vocab *v) { return v->eos >= 0 && v->add_eos > 0; }

static void put_template_token(const cb_gguf_vocab *v, cb_buf *b, int32_t id)
{
    cb_buf_puts(b, "{\"SpecialToken\":{\"id\":");
    put_string(b, v->tokens[id].s, v->tokens[id].n);
    cb_buf_puts(b, ",\"type_id\":0}}");
}

static void put_template(const cb_gguf_vocab *v, cb_buf *b, bool pair)
{
    if (add_bos(v)) put_template_token(v, b, v->bos), cb_buf_putc(b, ',');
    cb_buf_puts(b, "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}");
    if (pair) cb_buf_puts(b, ",{\"Sequence\":{\"id\":\"B\",\"type_id\":0}}");
    if (add_eos(v)) cb_buf_putc(b, ','), put_template_token(v, b, v->eos);
}

static void put_post(const cb_gguf_vocab *v, cb_buf *b)
{
    if (!add_bos(v) && !add_eos(v)) {
        cb_buf_puts(b, "null");
        return;
    }
    cb_buf_puts(b, "{\"type\":\"TemplateProcessing\",\"single\":[");
    put_template(v, b, false);
    cb_buf_puts(b, "],\"pair\":[");
    put_template(v, b, true);
    cb_buf_puts(b, "],\"special_tokens\":{");
    int32_t ids[2] = {add_bos(v) ? v->bos : -1, add_eos(v) ? v->eos : -1};
    for (int i = 0, n = 0; i < 2; i++) {
        if (ids[i] < 0 || (i && ids[0] == ids[1])) continue;
        const cb_gguf_str *s = v->tokens + ids[i];
        if (n++) cb_buf_putc(b, ',');
        put_string(b, s->s, s->n);
        cb_buf_puts(b, ":{\"id\":");
        put_string(b, s->s, s->n);
        cb_buf_puts(b, ",\"ids\":[");
        put_int(b, (size_t)ids[i]);
        cb_buf_puts(b, "],\"tokens\":[");
        put_string(b, s->s, s->n);
        cb_buf_puts(b, "]}");
    }
    cb_buf_puts(b, "}}");
}

static void put_bytes_parts(const cb_gguf_vocab *v, const pre_kind *k, cb_buf *b)
{
    cb_buf_puts(b, "\"normalizer\":");
    cb_buf_puts(b, k->nfc ? "{\"type\":\"NFC\"}" : "null");
    cb_buf_puts(b, ",\n\"pre_tokenizer\":");
    put_pre(b, k);
    cb_buf_puts(b, ",\n\"post_processor\":");
    put_post(v, b);
    cb_buf_puts(b, ",\n\"decoder\":");
    put_byte_level(b, true);
}

static void put_pieces_parts(const cb_gguf_vocab *v, cb_buf *b)
{
    static const char replace[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}";
    bool prefix = v->add_space_prefix < 0 ? is_model(v, "llama") : v->add_space_prefix;
    cb_buf_puts(b, "\"normalizer\":");
    if (prefix) cb_buf_puts(b, "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},");
    cb_buf_puts(b, replace);
    if (prefix) cb_buf_puts(b, "]}");
    cb_buf_puts(b, ",\n\"pre_tokenizer\":null,\n\"post_processor\":");
    put_post(v, b);
    cb_buf_puts(b, ",\n\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
                   "\"\xe2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
    if (prefix) cb_buf_puts(b, ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}");
    cb_buf_puts(b, "]}");
}

static void put_model(const cb_gguf_vocab *v, const cb_vocab *tokens, const pre_kind *k, cb_buf *b)
{
    bool bytes = k != NULL;
    cb_buf_puts(b, ",\n\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    if (!bytes && v->unk >= 0) put_string(b, v->tokens[v->unk].s, v->tokens[v->unk].n);
    else cb_buf_puts(b, "null");
    cb_buf_printf(b, ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":%s,\"byte_fallback\":%s,"
                     "\"ignore_merges\":%s,\n\"vocab\":{", bytes ? "false" : "true", bytes ? "false" : "true",
                  bytes && k->ignore_merges ? "true" : "false");
    const char *sep = "";
    for (int32_t id = 0; id < tokens->n_ids; id++) {
        if (!cb_vocab_has(tokens, id)) continue; /* its text belongs to a later token, too */
        size_t n;
        const char *s = cb_vocab_text(tokens, id, &n);
        cb_buf_puts(b, sep);
        put_string(b, s, n);
        cb_buf_putc(b, ':');
        put_int(b, (size_t)id);
        sep = ",\n";
    }
    cb_buf_puts(b, "},\n\"merges\":[");
}

int cb_gguf_vocab_json(const cb_gguf_vocab *v, cb_buf *b, cb_err *err)
{
    cb_vocab tokens = {0};
    int rc = check(v, err);
    if (rc < 0) return rc;
    if ((rc = index_tokens(v, &tokens, err)) < 0) goto done;
    const pre_kind *k = is_model(v, "gpt2") ? find_pre(v->pre && *v->pre ? v->pre : "default") : NULL;
    cb_buf_puts(b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n\"added_tokens\":[");
    put_added(v, &tokens, b);
    cb_buf_puts(b, "],\n");
    if (k) put_bytes_parts(v, k, b);
    else put_pieces_parts(v, b);
    put_model(v, &tokens, k, b);
    rc = v->merges ? put_given_merges(v, &tokens, b, err) : put_cut_merges(v, &tokens, b, err);
    cb_buf_puts(b, "]}}\n");
    if (rc == 0 && !cb_buf_ok(b)) rc = cb_fail(err, CB_ENOMEM, "no memory for tokenizer.json");
done:
    cb_vocab_fini(&tokens);
    return rc;
}

int cb_gguf_vocab_config_json(const cb_gguf_vocab *v, const char *chat_template, size_t n_template, cb_buf *b, cb_err *err)
{
    int rc = check(v, err);
    if (rc < 0) return rc;
    if (chat_template && cb_utf8_valid(chat_template, n_template) != n_template)
        return cb_fail(err, CB_EFORMAT, "tokenizer.chat_template is not UTF-8");
    cb_buf_printf(b, "{\"tokenizer_class\":\"PreTrainedTokenizerFast\",\n\"clean_up_tokenization_spaces\":false,\n"
                     "\"add_bos_token\":%s,\n\"add_eos_token\":%s", add_bos(v) ? "true" : "false", add_eos(v) ? "true" : "false");
    const struct { const char *key; int32_t id; } named[] = {
        {"bos_token", v->bos}, {"eos_token", v->eos}, {"unk_token", v->unk}, {"pad_token", v->pad}};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        if (named[i].id < 0) continue;
        cb_buf_printf(b, ",\n\"%s\":", named[i].key);
        put_string(b, v->tokens[named[i].id].s, v->tokens[named[i].id].n);
    }
    if (chat_template) {
        cb_buf_puts(b, ",\n\"chat_template\":");
        put_string(b, chat_template, n_template);
    }
    cb_buf_puts(b, "}\n");
    return cb_buf_ok(b) ? 0 : cb_fail(err, CB_ENOMEM, "no memory for tokenizer_config.json");
}
