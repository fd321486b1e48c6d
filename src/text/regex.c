#include "text/regex.h"
#include "base/clock.h"
#include "base/mem.h"
#include <string.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
    PATTERN_MAX = 64 * 1024,
    STEPS_FREE = 64,  /* a real pattern needs a handful for a word */
    SAMPLE = 32,      /* every so many searches one is timed, for all of them */
    HEAP_KIB = 64 * 1024,         /* of the interpreter */
    JIT_STACK_MAX = 8 * 1024 * 1024
};
/* Of one run, spent in searches. Real patterns take 0.02 s for a megabyte, so that even a crowded or emulated machine stays
 * far below. */
#define SECONDS_BASE 5.0
#define SECONDS_PER_BYTE 2e-6

struct cb_regex {
    pcre2_code *code;
    char *where;
};

static void *pcre_malloc(size_t n, void *ctx) { return cb_alloc(n); }
static void pcre_free(void *p, void *ctx) { cb_free(p); }

/* ---- translation ---- */

typedef struct reader {
    const char *where, *p, *end, *begin;
    cb_buf *out;
    cb_err *err;
    bool in_class;
} reader;

static int refuse(reader *r, const char *what)
{
    return cb_fail(r->err, CB_EFORMAT, "%s: pattern, byte %zu: %s is not supported", r->where, (size_t)(r->p - r->begin), what);
}

/* \p{Name}: Oniguruma's script names are the Script property, PCRE2's bare ones are Script_Extensions. */
static int property(reader *r)
{
    const char *name = r->p + 2, *close = r->end - r->p > 2 && *name == '{' ? memchr(name, '}', (size_t)(r->end - name)) : NULL;
    if (!close || close - name > 64) return refuse(r, "\\p without {name}");
    const char *body = ++name;
    if (body < close && *body == '^') body++;
    size_t n = (size_t)(close - body);
    static const struct { const char *name, *use; } known[] = {
        {"Letter", "L"}, {"Mark", "M"}, {"Number", "N"}, {"Punctuation", "P"}, {"Symbol", "S"}, {"Separator", "Z"},
        {"Other", "C"}, {"Alphabetic", "Alphabetic"}, {"White_Space", "White_Space"}, {"Uppercase", "Uppercase"},
        {"Lowercase", "Lowercase"}, {"Emoji", "Emoji"}, {"Extended_Pictographic", "Extended_Pictographic"},
        {"Alpha", "Alphabetic"}, {"Space", "White_Space"}, {"Upper", "Uppercase"}, {"Lower", "Lowercase"},
        {"Digit", "Nd"}, {"Punct", "P"}, {"Any", "Any"},
    };
    cb_buf_put(r->out, r->p, 2);
    cb_buf_put(r->out, "{^", (size_t)(body - name) + 1);
    const char *use = NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].name) == n && !strncasecmp(known[i].name, body, n)) use = known[i].use;
    if (use) cb_buf_puts(r->out, use);
    else {
        if (n > 2) cb_buf_puts(r->out, "sc:");
        cb_buf_put(r->out, body, n);
    }
    cb_buf_putc(r->out, '}');
    r->p = close + 1;
    return 0;
}

/* Oniguruma's \w: Alphabetic, marks, decimal digits, connectors, and in Latin-1 also the superscripts and fractions. */
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

static int escape(reader *r)
{
    if (r->p + 1 >= r->end) return refuse(r, "a backslash at the end");
    char c = r->p[1];
    const char *use = NULL;
    switch (c) {
    case 'p': case 'P': return property(r);
    case 's': use = "\\p{White_Space}"; break;
    case 'S': use = "\\P{White_Space}"; break;
    case 'd': use = "\\p{Nd}"; break;
    case 'D': use = "\\P{Nd}"; break;
    case 'h': use = r->in_class ? "0-9a-fA-F" : "[0-9a-fA-F]"; break;
    case 'w': use = r->in_class ? WORD : "[" WORD "]"; break;
    case 'W':
        if (r->in_class) return refuse(r, "\\W in a set");
        use = "[^" WORD "]";
        break;
    case 'u': {
        const char *h = r->p + 2;
        int k = 0;
        while (k < 4 && h + k < r->end && strchr("0123456789abcdefABCDEF", h[k]) && h[k]) k++;
        if (k != 4) return refuse(r, "\\u without four digits");
        cb_buf_puts(r->out, "\\x{");
        cb_buf_put(r->out, h, 4);
        cb_buf_putc(r->out, '}');
        r->p += 6;
        return 0;
    }
    case 'b': case 'B': case 'A': case 'z': case 'Z': case 'G':
        if (r->in_class && c != 'b') return refuse(r, "this escape in a set");
        if (c == 'b' || c == 'B') {
            if (!r->in_class) return refuse(r, "\\b"); /* PCRE2's words are not Oniguruma's */
        }
        break;
    case 'x': case 't': case 'n': case 'r': case 'f': case 'v': case 'a': case 'e': case '0':
        if (c == 'v') use = "\\x0b"; /* PCRE2 reads \v as any vertical space */
        break;
    default:
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9')) return refuse(r, "this escape");
    }
    if (use) cb_buf_puts(r->out, use);
    else cb_buf_put(r->out, r->p, 2);
    r->p += 2;
    return 0;
}

static int set(reader *r)
{
    cb_buf_putc(r->out, *r->p++);
    r->in_class = true;
    if (r->p < r->end && *r->p == '^') cb_buf_putc(r->out, *r->p++);
    if (r->p < r->end && *r->p == ']') cb_buf_put(r->out, "\\]", 2), r->p++;
    for (int rc; r->p < r->end && *r->p != ']';) {
        if (*r->p == '\\') {
            if ((rc = escape(r)) < 0) return rc;
        } else if (*r->p == '[') {
            return refuse(r, "a set or [:class:] inside a set");
        } else if (*r->p == '&' && r->p + 1 < r->end && r->p[1] == '&') {
            return refuse(r, "&& in a set");
        } else {
            cb_buf_putc(r->out, *r->p++);
        }
    }
    if (r->p >= r->end) return refuse(r, "a set without its ]");
    cb_buf_putc(r->out, *r->p++);
    r->in_class = false;
    return 0;
}

/* After "(": lets lookaround, atomic groups and (?i) (?x) pass; Oniguruma's (?m) is PCRE2's (?s). */
static int group(reader *r)
{
    cb_buf_putc(r->out, *r->p++);
    if (r->p >= r->end) return 0;
    if (*r->p == '*') return refuse(r, "(*");
    if (*r->p != '?') return 0;
    const char *q = r->p + 1;
    if (q < r->end && strchr(":=!>", *q)) return 0;
    if (q + 1 < r->end && *q == '<' && (q[1] == '=' || q[1] == '!')) return 0;
    cb_buf_putc(r->out, '?');
    for (; q < r->end && strchr("imx-", *q) && *q; q++) cb_buf_putc(r->out, *q == 'm' ? 's' : *q);
    if (q >= r->end || (*q != ':' && *q != ')')) return refuse(r, "this kind of group");
    r->p = q;
    return 0;
}

static int translate(reader *r)
{
    for (int rc = 0; r->p < r->end; ) {
        char c = *r->p;
        if (c == '\\') rc = escape(r);
        else if (c == '[') rc = set(r);
        else if (c == '(') rc = group(r);
        else if (c == '}' && r->p + 1 < r->end && r->p[1] == '+') rc = refuse(r, "{n,m}+"); /* greedy there, possessive here */
        else if (c == 0) cb_buf_puts(r->out, "\\x00"), r->p++;
        else cb_buf_putc(r->out, *r->p++);
        if (rc < 0) return rc;
    }
    return 0;
}

/* ---- compile ---- */

int cb_regex_open(const char *where, const char *pattern, size_t n, cb_regex **out, cb_err *err)
{
    *out = NULL;
    if (n > PATTERN_MAX) return cb_fail(err, CB_EFORMAT, "%s: pattern of %zu bytes, at most %d are read", where, n, PATTERN_MAX);
    cb_buf text;
    cb_buf_init(&text, 0);
    reader r = {where, pattern, pattern + n, pattern, &text, err, false};
    pcre2_general_context *gc = NULL;
    pcre2_compile_context *cc = NULL;
    cb_regex *re = NULL;
    int code = 0, rc = translate(&r);
    size_t at = 0;
    if (rc < 0) goto done;
    rc = CB_ENOMEM;
    if (!cb_buf_ok(&text) || !(re = cb_alloc(sizeof *re)) || !(re->where = cb_strdup(where)) ||
        !(gc = pcre2_general_context_create(pcre_malloc, pcre_free, NULL)) || !(cc = pcre2_compile_context_create(gc))) {
        cb_fail(err, rc, "%s: no memory for the pattern", where);
        goto done;
    }
    pcre2_set_parens_nest_limit(cc, 50);
    re->code = pcre2_compile((PCRE2_SPTR)(text.data ? text.data : ""), text.n,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE, &code, &at, cc);
    if (!re->code) {
        char why[160] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        rc = cb_fail(err, CB_EFORMAT, "%s: pattern: %s", where, why);
        goto done;
    }
    /* Where the system forbids executable memory the interpreter serves, with the same matches. */
    pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE);
    rc = 0;
    *out = re;
    re = NULL;
done:
    cb_regex_close(re);
    pcre2_compile_context_free(cc);
    pcre2_general_context_free(gc);
    cb_buf_fini(&text);
    return rc;
}

void cb_regex_close(cb_regex *re)
{
    if (!re) return;
    pcre2_code_free(re->code);
    cb_free(re->where);
    cb_free(re);
}

/* ---- match ---- */

void cb_regex_run_again(cb_regex_run *run, size_t text_bytes)
{
    run->spent = 0;
    run->limit = SECONDS_BASE + SECONDS_PER_BYTE * (double)text_bytes;
}

int cb_regex_run_init(cb_regex_run *run, size_t text_bytes, cb_err *err)
{
    *run = (cb_regex_run){0};
    cb_regex_run_again(run, text_bytes);
    pcre2_general_context *gc = pcre2_general_context_create(pcre_malloc, pcre_free, NULL);
    if (gc) {
        run->match = pcre2_match_data_create(1, gc);
        run->context = pcre2_match_context_create(gc);
    }
    pcre2_general_context_free(gc);
    if (!run->match || !run->context) {
        cb_regex_run_fini(run);
        return cb_fail(err, CB_ENOMEM, "no memory to match a pattern");
    }
    pcre2_set_heap_limit(run->context, HEAP_KIB);
    pcre2_set_match_limit(run->context, STEPS_FREE);
    return 0;
}

void cb_regex_run_fini(cb_regex_run *run)
{
    pcre2_match_data_free(run->match);
    pcre2_match_context_free(run->context);
    pcre2_jit_stack_free(run->jit_stack);
    *run = (cb_regex_run){0};
}

/* The rare way: more steps, a larger stack, in the end the interpreter. A step can cost as much as a scan of the text, so
 * the next limit follows from the speed of the last try: the run ends soon after its time is up. */
static int match_again(const cb_regex *re, cb_regex_run *run, const char *s, size_t n, size_t from, int rc)
{
    uint32_t flags = PCRE2_NO_UTF_CHECK;
    double steps = STEPS_FREE, now = cb_now(), took = 0;
    while (rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        if (rc == PCRE2_ERROR_MATCHLIMIT) {
            double left = run->limit - run->spent, next = steps * 16;
            if (left <= 0 || steps >= UINT32_MAX) break;
            if (took > 0 && took * 16 > left) next = steps * (left / took) + 1;
            steps = next < UINT32_MAX ? next : UINT32_MAX;
            pcre2_set_match_limit(run->context, (uint32_t)steps);
        } else if (!run->jit_stack) {
            run->jit_stack = pcre2_jit_stack_create(64 * 1024, JIT_STACK_MAX, NULL);
            if (!run->jit_stack) flags |= PCRE2_NO_JIT;
            else pcre2_jit_stack_assign(run->context, NULL, run->jit_stack);
        } else {
            flags |= PCRE2_NO_JIT;
        }
        rc = pcre2_match(re->code, (PCRE2_SPTR)s, n, from, flags, run->match, run->context);
        double t = cb_now();
        took = t - now;
        run->spent += took;
        now = t;
    }
    pcre2_set_match_limit(run->context, STEPS_FREE);
    return rc;
}

int cb_regex_next(const cb_regex *re, cb_regex_run *run, const char *s, size_t n, size_t from, size_t *start, size_t *end,
                  cb_err *err)
{
    if (run->spent > run->limit)
        return cb_fail(err, CB_EFORMAT, "%s: pattern needs too much time, gave up at byte %zu of a text of %zu", re->where, from, n);
    bool timed = ++run->n_searches % SAMPLE == 0;
    double began = timed ? cb_now() : 0;
    int rc = pcre2_match(re->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, run->match, run->context);
    if (timed) run->spent += (cb_now() - began) * SAMPLE;
    if (rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = match_again(re, run, s, n, from, rc);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc < 0) {
        char why[160] = "";
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
        return cb_fail(err, rc == PCRE2_ERROR_NOMEMORY ? CB_ENOMEM : CB_EFORMAT, "%s: pattern gave up at byte %zu of a text of %zu: %s",
                       re->where, from, n, why);
    }
    const PCRE2_SIZE *o = pcre2_get_ovector_pointer(run->match);
    *start = o[0] < o[1] ? o[0] : o[1]; /* \K is refused, but a match must never run backwards */
    *end = o[1];
    return 1;
}
