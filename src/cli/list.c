/* list.c: the checkpoints that `run` would find by name. */
#include "base/env.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/term.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

typedef struct found {
    char *name, *dir;
} found;

typedef struct listing {
    cb_buf items; /* found[] */
    bool failed;
} listing;

static void add(listing *l, const char *name, const char *dir)
{
    found f = { cb_strdup(name), cb_strdup(dir) };
    cb_buf_put(&l->items, &f, sizeof f);
    if (!f.name || !f.dir || !cb_buf_ok(&l->items)) l->failed = true;
}

static void scan_folder(listing *l, const char *root, const char *prefix)
{
    DIR *h = opendir(root);
    if (!h) return;
    for (const struct dirent *e; (e = readdir(h));) {
        char dir[4200], name[600];
        if (e->d_name[0] == '.') continue;
        if (snprintf(dir, sizeof dir, "%s/%s", root, e->d_name) >= (int)sizeof dir) continue;
        if (snprintf(name, sizeof name, "%s%s", prefix, e->d_name) >= (int)sizeof name) continue;
        if (cb_file_exists(dir, "config.json")) add(l, name, dir);
    }
    closedir(h);
}

/* models--org--name with at least one snapshot: the name is org/name. */
static void scan_cache(listing *l, const char *root)
{
    DIR *h = opendir(root);
    if (!h) return;
    for (const struct dirent *e; (e = readdir(h));) {
        char name[600], dir[4096];
        if (strncmp(e->d_name, "models--", 8) != 0 || strlen(e->d_name) > 500) continue;
        size_t n = 0;
        for (const char *p = e->d_name + 8; *p; p++) {
            if (p[0] == '-' && p[1] == '-') name[n++] = '/', p++;
            else name[n++] = *p;
        }
        name[n] = 0;
        if (cb_model_find(name, root, dir, sizeof dir, NULL) == 0) add(l, name, dir);
        else if (snprintf(dir, sizeof dir, "%s/%s", root, e->d_name) < (int)sizeof dir) add(l, name, dir);
    }
    closedir(h);
}

static bool cache_root(const cli_opts *o, char *root, size_t cap)
{
    static const char *const parts[][2] = { { "HF_HUB_CACHE", "" }, { "HF_HOME", "/hub" }, { "XDG_CACHE_HOME", "/huggingface/hub" },
                                            { "HOME", "/.cache/huggingface/hub" } };
    if (o->cache_dir) return snprintf(root, cap, "%s", o->cache_dir) < (int)cap;
    for (int i = 0; i < 4; i++) {
        const char *v = cb_env(parts[i][0]);
        if (v) return snprintf(root, cap, "%s%s", v, parts[i][1]) < (int)cap;
    }
    return false;
}

static int by_name(const void *a, const void *b) { return strcmp(((const found *)a)->name, ((const found *)b)->name); }

/* Can it be run? A plan is made; err says why not. */
static bool runnable(const char *dir, cb_err *err)
{
    cb_engine_opts eo = { .plan_only = 1, .max_rows = 1, .n_threads = 1 };
    cb_engine *e;
    cb_tokenizer *t;
    if (cb_engine_open(dir, &eo, &e, err) < 0) return false;
    cb_engine_close(e);
    if (cb_tokenizer_open(dir, &t, err) < 0) return false;
    cb_tokenizer_close(t);
    return true;
}

static void print_one(const found *f, json_t *all)
{
    describe d;
    cb_err err = {0};
    char size[32];
    bool ok = describe_dir(f->dir, &d, &err) == 0;
    ok = ok && runnable(f->dir, &err);
    if (all) {
        json_array_append_new(all, json_pack("{s:o, s:o, s:s, s:s, s:I, s:b, s:o}", "name", cli_json_string(f->name, strlen(f->name)), "dir",
                                             cli_json_string(f->dir, strlen(f->dir)), "model_type", d.model_type, "quantization", d.quant,
                                             "bytes", (json_int_t)d.bytes, "runnable", ok, "why_not",
                                             ok ? json_null() : cli_json_string(err.text, strlen(err.text))));
        return;
    }
    printf("%-40s %10s  %-10s %-24s %s%s\n", f->name, cli_bytes(size, d.bytes), d.model_type, d.quant, ok ? "yes" : "no: ", ok ? "" : err.text);
}

int cmd_list(const cli_opts *o, cb_err *err)
{
    listing l = {0};
    char root[4096];
    cb_buf_init(&l.items, 0);
    for (int i = 0; i < o->model_dirs.n; i++) scan_folder(&l, o->model_dirs.v[i], "");
    scan_folder(&l, "models", "models/");
    bool has_root = cache_root(o, root, sizeof root);
    if (has_root) scan_cache(&l, root);
    found *all = (found *)(void *)l.items.data;
    size_t n = l.items.n / sizeof *all;
    json_t *array = o->json ? json_array() : NULL;
    int rc = l.failed ? cb_fail(err, CB_ENOMEM, "no memory for the list") : 0;
    if (n && rc == 0) qsort(all, n, sizeof *all, by_name);
    if (n && rc == 0 && !o->json) printf("%-40s %10s  %-10s %-24s %s\n", "name", "size", "type", "format", "runnable");
    for (size_t i = 0; i < n && rc == 0; i++) print_one(&all[i], array);
    if (!n) cli_note(o, "no checkpoints in %s%s./models; try `cambium import FILE.gguf models/NAME`", has_root ? root : "", has_root ? " and " : "");
    if (rc == 0 && o->json) rc = cli_print_json(array, err);
    else json_decref(array);
    for (size_t i = 0; i < n; i++) {
        cb_free(all[i].name);
        cb_free(all[i].dir);
    }
    cb_buf_fini(&l.items);
    return rc;
}
