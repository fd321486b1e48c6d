/* find.c: from the name a user types to a checkpoint's folder: a folder, or a repository in the Hugging Face cache.
 *
 *   ROOT/models--ORG--NAME/refs/REVISION         a commit hash
 *   ROOT/models--ORG--NAME/snapshots/COMMIT/...  files, or links into ../../blobs
 *
 * Nothing is ever downloaded here. Read first: cb_model_find at the end. */
#include "base/env.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "io/confine.h"
#include "io/safetensors.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_PART = 96, MAX_REV = 200, MAX_HASH = 64, MIN_HASH = 7, MAX_REPOS = 20000, N_NEAR = 3 };

typedef struct repo_name {
    char id[2 * MAX_PART + 2]; /* org/name */
    char rev[MAX_REV + 1];     /* "" when none was given */
} repo_name;

static bool put_path(char *out, size_t cap, const char *a, const char *b)
{
    int n = snprintf(out, cap, "%s/%s", a, b);
    return n > 0 && (size_t)n < cap;
}

static bool is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* ---- names ---- */

/* One half of org/name: letters, digits, '.', '_', '-'; no leading or trailing '.' or '-', no "--" (it separates the halves
 * in the cache's folder names) and no "..". */
static bool good_part(const char *s, size_t n)
{
    if (n < 1 || n > MAX_PART || strchr(".-", s[0]) || strchr(".-", s[n - 1])) return false;
    for (size_t i = 0; i < n; i++) {
        if (!isascii((unsigned char)s[i]) || !(isalnum((unsigned char)s[i]) || strchr("._-", s[i]))) return false;
        if (i && s[i] == s[i - 1] && strchr(".-", s[i])) return false;
    }
    return true;
}

/* A branch, tag, "refs/pr/1" or hash: a relative path of plain components. */
static bool good_rev(const char *s)
{
    size_t n = strlen(s);
    if (n < 1 || n > MAX_REV || s[0] == '/' || s[n - 1] == '/') return false;
    for (size_t i = 0; i < n; i++) {
        if (!isascii((unsigned char)s[i]) || !(isalnum((unsigned char)s[i]) || strchr("._-/+", s[i]))) return false;
        if ((s[i] == '.' && (!i || s[i - 1] == '/' || s[i - 1] == '.')) || (s[i] == '/' && s[i - 1] == '/')) return false;
    }
    return true;
}

static bool parse_name(const char *s, repo_name *out)
{
    const char *slash = strchr(s, '/'), *at = strchr(s, '@');
    if (!slash || (at && at < slash)) return false;
    size_t org = (size_t)(slash - s), name = at ? (size_t)(at - slash - 1) : strlen(slash + 1);
    if (!good_part(s, org) || !good_part(slash + 1, name) || (at && !good_rev(at + 1))) return false;
    snprintf(out->id, sizeof out->id, "%.*s", (int)(org + 1 + name), s);
    snprintf(out->rev, sizeof out->rev, "%s", at ? at + 1 : "");
    return true;
}

/* ---- cache root ---- */

/* A leading "~/" in a variable stands for the home folder, as the tools that fill the cache read it. */
static bool put_home(char *out, size_t cap, const char *value, const char *tail)
{
    const char *home = cb_env("HOME");
    bool tilde = value[0] == '~' && (value[1] == '/' || !value[1]) && home;
    int n = snprintf(out, cap, "%s%s%s", tilde ? home : "", tilde ? value + 1 : value, tail);
    return n > 0 && (size_t)n < cap;
}

static int cache_root(const char *cache_dir, char *out, size_t cap, cb_err *err)
{
    static const char *const places[][2] = {
        {"HF_HUB_CACHE", ""}, {"HF_HOME", "/hub"}, {"XDG_CACHE_HOME", "/huggingface/hub"}, {"HOME", "/.cache/huggingface/hub"}};
    const char *v = cache_dir && *cache_dir ? cache_dir : NULL, *tail = "";
    for (size_t i = 0; !v && i < sizeof places / sizeof *places; i++) v = cb_env(places[i][0]), tail = places[i][1];
    if (!v) return cb_fail(err, CB_ENOTFOUND, "no model cache: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME are all unset");
    if (!put_home(out, cap, v, tail)) return cb_fail(err, CB_EUSAGE, "the path of the model cache is too long: %.100s...", v);
    return 0;
}

/* ---- near names ---- */

/* Edits between two names, case ignored; -1 when no memory or too long. */
static int distance(const char *a, const char *b)
{
    int row[2 * MAX_PART + 8];
    int n = (int)strlen(b);
    if (n >= (int)(sizeof row / sizeof *row)) return -1;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diag = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int same = tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]), old = row[j];
            int best = diag + !same;
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
            diag = old;
        }
    }
    return row[n];
}

/* How far a cached repository is from what was typed: the whole id, or its name alone when no org was typed right. */
static int score(const char *typed, const char *id)
{
    const char *tn = strrchr(typed, '/'), *in = strchr(id, '/');
    int whole = distance(typed, id), name = distance(tn ? tn + 1 : typed, in + 1);
    if (name >= 0 && (whole < 0 || name + 1 < whole)) whole = name + 1;
    if (whole > 2 && strcasestr(in + 1, tn ? tn + 1 : typed)) whole = 2; /* "gemma-4" is near "gemma-4-26B-it" */
    return whole;
}

static void near_names(const char *root, const char *typed, cb_buf *out)
{
    struct near {
        int score;
        char id[2 * MAX_PART + 2];
    } best[N_NEAR + 1]; /* sorted; the last place is for the newcomer */
    int n = 0, seen = 0, limit = (int)strlen(typed) / 3 + 2;
    DIR *d = strlen(typed) <= 2 * MAX_PART ? opendir(root) : NULL;
    if (!d) return;
    for (struct dirent *e; (e = readdir(d)) && seen < MAX_REPOS; seen++) {
        struct near *b = &best[n];
        const char *sep = !strncmp(e->d_name, "models--", 8) ? strstr(e->d_name + 8, "--") : NULL;
        if (!sep) continue;
        int k = snprintf(b->id, sizeof b->id, "%.*s/%s", (int)(sep - e->d_name - 8), e->d_name + 8, sep + 2);
        if (k < 0 || (size_t)k >= sizeof b->id) continue;
        b->score = score(typed, b->id);
        if (b->score < 0 || b->score > limit) continue;
        for (; b > best && (b->score < b[-1].score || (b->score == b[-1].score && strcmp(b->id, b[-1].id) < 0)); b--) {
            struct near swap = b[-1];
            b[-1] = *b;
            *b = swap;
        }
        if (n < N_NEAR) n++;
    }
    closedir(d);
    for (int i = 0; i < n; i++) cb_buf_printf(out, "%s%s", i ? ", " : "; near names: ", best[i].id);
}

static int not_found(const char *root, const char *typed, cb_err *err)
{
    cb_buf b;
    cb_buf_init(&b, 4096);
    near_names(root, typed, &b);
    int rc = cb_fail(err, CB_ENOTFOUND, "%.150s: no such folder with a config.json, and not in the model cache %.100s%s", typed, root,
                     cb_buf_ok(&b) && b.n ? b.data : "");
    cb_buf_fini(&b);
    return rc;
}

/* ---- revision to snapshot ---- */

static bool is_hash(const char *s, size_t n)
{
    if (n < MIN_HASH || n > MAX_HASH) return false;
    for (size_t i = 0; i < n; i++)
        if (!(s[i] >= '0' && s[i] <= '9') && !(s[i] >= 'a' && s[i] <= 'f')) return false;
    return true;
}

/* refs/<rev> holds a commit hash: 1 and hash, 0 when there is no such ref. */
static int read_ref(const char *repo, const char *rev, char *hash, cb_err *err)
{
    char dir[PATH_MAX], *text;
    size_t n;
    if (!put_path(dir, sizeof dir, repo, "refs")) return cb_fail(err, CB_EUSAGE, "path too long: %.100s...", repo);
    if (!cb_file_exists(dir, rev)) return 0;
    int rc = cb_confine_check(dir, rev, err);
    if (rc < 0 || (rc = cb_file_read(dir, rev, 4096, &text, &n, err)) < 0) return rc;
    while (n && isspace((unsigned char)text[n - 1])) text[--n] = 0;
    if (is_hash(text, n)) {
        memcpy(hash, text, n + 1);
        rc = 1;
    } else
        rc = cb_fail(err, CB_EFORMAT, "%s/%s: not a commit hash", dir, rev);
    cb_free(text);
    return rc;
}

/* The one snapshot whose hash starts with `prefix`: 1 and hash, 0 when none. */
static int match_hash(const char *repo, const char *prefix, char *hash, cb_err *err)
{
    char dir[PATH_MAX];
    if (!put_path(dir, sizeof dir, repo, "snapshots")) return cb_fail(err, CB_EUSAGE, "path too long: %.100s...", repo);
    DIR *d = opendir(dir);
    if (!d) return 0;
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        size_t len = strlen(e->d_name);
        if (!is_hash(e->d_name, len) || strncmp(e->d_name, prefix, strlen(prefix))) continue;
        if (!n++) memcpy(hash, e->d_name, len + 1);
    }
    closedir(d);
    if (n > 1) return cb_fail(err, CB_EUSAGE, "%s: %d cached commits start with %s", repo, n, prefix);
    return n;
}

static int find_snapshot(const char *root, const char *typed, const repo_name *r, char *out, size_t cap, cb_err *err)
{
    char folder[sizeof r->id + 16], repo[PATH_MAX], rel[MAX_HASH + 16], hash[MAX_HASH + 1];
    const char *slash = strchr(r->id, '/');
    snprintf(folder, sizeof folder, "models--%.*s--%s", (int)(slash - r->id), r->id, slash + 1);
    if (!put_path(repo, sizeof repo, root, folder)) return cb_fail(err, CB_EUSAGE, "path too long: %.100s...", root);
    if (!is_dir(repo)) return not_found(root, typed, err);
    const char *rev = *r->rev ? r->rev : "main";
    int rc = read_ref(repo, rev, hash, err);
    if (!rc && is_hash(rev, strlen(rev))) rc = match_hash(repo, rev, hash, err);
    if (rc < 0) return rc;
    if (!rc) return cb_fail(err, CB_ENOTFOUND, "%s: no revision \"%s\" in the model cache %s", r->id, rev, root);
    snprintf(rel, sizeof rel, "snapshots/%s", hash);
    if (!put_path(out, cap, repo, rel)) return cb_fail(err, CB_EUSAGE, "path too long: %.100s...", repo);
    if (!is_dir(out)) return cb_fail(err, CB_ENOTFOUND, "%s: revision \"%s\" is commit %s, which is not in the cache", r->id, rev, hash);
    return 0;
}

/* ---- is a snapshot complete? ---- */

typedef struct missing {
    cb_buf text;
    int n;
} missing;

/* Notes a file that is absent (or a dangling link); checks the header of a weight file against its length. */
static int need_file(const char *dir, const char *name, bool weights, missing *m, cb_err *err)
{
    if (!cb_file_exists(dir, name)) {
        if (m->n++ < 8) cb_buf_printf(&m->text, "%s%.80s", m->n > 1 ? ", " : "", name);
        return 0;
    }
    if (!weights) return 0;
    cb_st s;
    int rc = cb_st_open(&s, dir, name, err);
    if (!rc) cb_st_close(&s);
    return rc;
}

static int need_weights(const char *dir, missing *m, cb_err *err)
{
    static const char index_name[] = "model.safetensors.index.json";
    json_t *index, *v;
    const char *key, *last = "";
    if (!cb_file_exists(dir, index_name)) return need_file(dir, "model.safetensors", true, m, err);
    int rc = cb_json_file(dir, index_name, 256 << 20, &index, err);
    if (rc < 0) return rc;
    /* Each shard once: files already seen are kept as keys of an object. */
    json_t *seen = json_object();
    if (!seen) rc = cb_fail(err, CB_ENOMEM, "%s: no memory", dir);
    json_object_foreach(json_object_get(index, "weight_map"), key, v)
    {
        const char *f = json_string_value(v);
        if (rc < 0) break;
        if (!f || strchr(f, '/')) rc = cb_fail(err, CB_EFORMAT, "%s: weight_map.%.200s is not the name of a file", index_name, key);
        else if (strcmp(f, last) && !json_object_get(seen, f)) {
            if (json_object_set_new(seen, f, json_true()) != 0) rc = cb_fail(err, CB_ENOMEM, "%s: no memory", dir);
            else rc = need_file(dir, f, true, m, err);
        }
        last = f ? f : last;
    }
    json_decref(seen);
    json_decref(index);
    return rc;
}

static int check_complete(const char *dir, const repo_name *r, cb_err *err)
{
    missing m = {0};
    cb_buf_init(&m.text, 4096);
    int rc = cb_confine_check_all(dir, err);
    if (!rc) rc = need_file(dir, "config.json", false, &m, err);
    if (!rc) rc = need_file(dir, "tokenizer.json", false, &m, err);
    if (!rc) rc = need_weights(dir, &m, err);
    if (!rc && m.n) {
        if (m.n > 8) cb_buf_printf(&m.text, " and %d more", m.n - 8);
        rc = cb_fail(err, CB_EFORMAT, "%s%s%s is incomplete in the cache; download it again. Missing: %s", r->id, *r->rev ? "@" : "",
                     r->rev, cb_buf_ok(&m.text) ? m.text.data : "?");
    }
    cb_buf_fini(&m.text);
    return rc;
}

/* ---- */

static bool ends_in(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && !strcmp(s + n - k, tail);
}

int cb_model_find(const char *name, const char *cache_dir, char *path, size_t cap, cb_err *err)
{
    char root[PATH_MAX];
    repo_name r;
    if (cap) path[0] = 0;
    if (!name || !*name) return cb_fail(err, CB_EUSAGE, "no model is named");
    size_t n = strlen(name);
    if (n >= PATH_MAX) return cb_fail(err, CB_EUSAGE, "the name of the model is too long: %zu bytes", n);
    bool hub = !strncmp(name, "hf:", 3);
    const char *typed = hub ? name + 3 : name;
    if (!hub && cb_file_exists(name, "config.json")) {
        while (n > 1 && name[n - 1] == '/') n--;
        if (n >= cap) return cb_fail(err, CB_EUSAGE, "%.100s: the path has %zu bytes, the caller's limit is %zu", name, n, cap);
        memcpy(path, name, n);
        path[n] = 0;
        return 0;
    }
    if (!hub && cb_file_exists(NULL, name))
        return cb_fail(err, ends_in(name, ".gguf") ? CB_EFORMAT : CB_ENOTFOUND,
                       ends_in(name, ".gguf") ? "%.300s: a GGUF file; import it first" : "%.300s: a file, not a folder", name);
    if (!parse_name(typed, &r)) {
        if (hub) return cb_fail(err, CB_EUSAGE, "%.300s: not of the form org/name or org/name@revision", typed);
        if (is_dir(name)) return cb_fail(err, CB_ENOTFOUND, "%.300s: the folder holds no config.json", name);
        if (cache_root(cache_dir, root, sizeof root, NULL) < 0)
            return cb_fail(err, CB_ENOTFOUND, "%.300s: no such folder", name);
        return not_found(root, typed, err);
    }
    int rc = cache_root(cache_dir, root, sizeof root, err);
    if (rc < 0 || (rc = find_snapshot(root, typed, &r, path, cap, err)) < 0 || (rc = check_complete(path, &r, err)) < 0)
        if (cap) path[0] = 0;
    return rc;
}
