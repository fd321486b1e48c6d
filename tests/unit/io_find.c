/* io_find: from a typed name to a folder: local folders, and the Hugging Face cache with refs, hashes and broken downloads. */
#include "base/err.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>
#include "support/tmpdir.h"

#define HASH "0123456789abcdef0123456789abcdef01234567"
#define HASH2 "0123456fffffffff0123456789abcdef01234567"
static char dir[64], out[4096];
static cb_err err;

static void put_dir(const char *rel) { assert_int_equal(mkdir(tmp_path(dir, rel), 0777), 0); }

/* models--org--name with one complete snapshot of links into blobs. */
static void put_repo(const char *folder, const char *hash)
{
    char p[256], at[320];
    const char *files[] = {"config.json", "tokenizer.json", "model.safetensors"};
    struct stat st;
    if (stat(tmp_path(dir, folder), &st) != 0) {
        put_dir(folder);
        const char *sub[] = {"refs", "blobs", "snapshots"};
        for (int i = 0; i < 3; i++) {
            snprintf(p, sizeof p, "%s/%s", folder, sub[i]);
            put_dir(p);
        }
        snprintf(p, sizeof p, "%s/%s/blobs", dir, folder);
        tmp_text(p, "1", "{\"model_type\":\"llama\"}");
        tmp_text(p, "2", "{}");
        tmp_st(p, "3", "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", "ab", 2);
    }
    snprintf(p, sizeof p, "%s/snapshots/%s", folder, hash);
    put_dir(p);
    for (int i = 0; i < 3; i++) {
        char link[64];
        snprintf(at, sizeof at, "%s/%s", p, files[i]);
        snprintf(link, sizeof link, "../../blobs/%d", i + 1);
        assert_int_equal(symlink(link, tmp_path(dir, at)), 0);
    }
}

static void put_ref(const char *folder, const char *rev, const char *text)
{
    char p[256];
    snprintf(p, sizeof p, "%s/%s/refs", dir, folder);
    tmp_text(p, rev, text);
}

static int setup(void **state)
{
    tmp_dir(dir);
    err = (cb_err){0};
    put_repo("models--org--name-4bit", HASH);
    put_ref("models--org--name-4bit", "main", HASH);
    return 0;
}
static int teardown(void **state)
{
    tmp_remove(dir);
    return 0;
}

static void found(const char *name, const char *want)
{
    if (cb_model_find(name, dir, out, sizeof out, &err) != 0) fail_msg("%s: %s", name, err.text);
    if (strcmp(out, want)) fail_msg("%s gave %s", name, out);
}
static void not_found(const char *name, int code, const char *word)
{
    err = (cb_err){0};
    memset(out, 'x', sizeof out);
    int rc = cb_model_find(name, dir, out, sizeof out, &err);
    if (rc != code || !strstr(err.text, word)) fail_msg("%s: %d, %s", name, rc, err.text);
    assert_string_equal(out, "");
}

static void folders(void **state)
{
    char here[80];
    snprintf(here, sizeof here, "%s/here", dir);
    put_dir("here");
    not_found(tmp_path(dir, "here"), CB_ENOTFOUND, "no config.json");
    not_found(tmp_path(dir, "nowhere"), CB_ENOTFOUND, "nowhere");
    tmp_text(here, "config.json", "{}");
    found(tmp_path(dir, "here"), tmp_path(dir, "here"));
    found(tmp_path(dir, "here///"), tmp_path(dir, "here"));
    tmp_text(dir, "m.gguf", "GGUF");
    not_found(tmp_path(dir, "m.gguf"), CB_EFORMAT, "import it first");
    not_found(tmp_path(dir, "here/config.json"), CB_ENOTFOUND, "not a folder");
    not_found("", CB_EUSAGE, "no model");
    assert_int_equal(cb_model_find(NULL, dir, out, sizeof out, &err), CB_EUSAGE);
    char *name = malloc(70000);
    memset(name, 'a', 69999);
    name[69999] = 0;
    not_found(name, CB_EUSAGE, "too long");
    name[2000] = 0;
    not_found(name, CB_ENOTFOUND, "aaa");
    free(name);
    char small[8];
    assert_int_equal(cb_model_find(tmp_path(dir, "here"), dir, small, sizeof small, &err), CB_EUSAGE);
    assert_int_equal(cb_model_find("org/name-4bit", dir, small, sizeof small, &err), CB_EUSAGE);
    assert_int_equal(cb_model_find("org/name-4bit", dir, small, 0, &err), CB_EUSAGE);
}

static void revisions(void **state)
{
    char snap[256], snap2[256];
    snprintf(snap, sizeof snap, "%s/models--org--name-4bit/snapshots/" HASH, dir);
    snprintf(snap2, sizeof snap2, "%s/models--org--name-4bit/snapshots/" HASH2, dir);
    found("org/name-4bit", snap);
    found("hf:org/name-4bit", snap);
    found("org/name-4bit@main", snap);
    found("org/name-4bit@" HASH, snap);
    found("org/name-4bit@0123456", snap);
    put_repo("models--org--name-4bit", HASH2);
    found("org/name-4bit@0123456f", snap2);
    found("org/name-4bit@" HASH2, snap2);
    not_found("org/name-4bit@0123456", CB_EUSAGE, "2 cached commits start with 0123456");
    not_found("org/name-4bit@012345", CB_ENOTFOUND, "no revision \"012345\""); /* too short for a hash */
    not_found("org/name-4bit@deadbeef", CB_ENOTFOUND, "no revision \"deadbeef\"");
    put_ref("models--org--name-4bit", "v1.0", HASH2 "\n");
    found("org/name-4bit@v1.0", snap2);
    put_dir("models--org--name-4bit/refs/refs");
    put_dir("models--org--name-4bit/refs/refs/pr");
    put_ref("models--org--name-4bit", "refs/pr/1", HASH2);
    found("org/name-4bit@refs/pr/1", snap2);
    put_ref("models--org--name-4bit", "gone", "deadbeefdeadbeefdeadbeefdeadbeefdeadbeef");
    not_found("org/name-4bit@gone", CB_ENOTFOUND, "commit deadbeef");
    put_ref("models--org--name-4bit", "bad", "../../../somewhere");
    not_found("org/name-4bit@bad", CB_EFORMAT, "not a commit hash");
    put_ref("models--org--name-4bit", "empty", "");
    not_found("org/name-4bit@empty", CB_EFORMAT, "not a commit hash");
    unlink(tmp_path(dir, "models--org--name-4bit/refs/main"));
    not_found("org/name-4bit", CB_ENOTFOUND, "no revision \"main\"");
    static const char *const bad[] = {"hf:../x",       "hf:org/../x", "hf:org/name@../main", "hf:org/name@/main", "hf:org",
                                      "hf:org/na--me", "hf:org/.name", "hf:org/name@",       "hf:a@b/c",          "hf:org/name@a//b",
                                      "hf:",           "hf:org/na me", "hf:org/name@a b",    "hf:org/name/more",  "hf:org/name@.x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) not_found(bad[i], CB_EUSAGE, "not of the form org/name");
}

static void incomplete(void **state)
{
    char snap[256], repo[256];
    snprintf(snap, sizeof snap, "%s/models--org--name-4bit/snapshots/" HASH, dir);
    snprintf(repo, sizeof repo, "%s/models--org--name-4bit", dir);
    unlink(tmp_path(snap, "tokenizer.json"));
    not_found("org/name-4bit", CB_EFORMAT, "Missing: tokenizer.json");
    unlink(tmp_path(repo, "blobs/3")); /* a dangling link is a missing file */
    not_found("org/name-4bit", CB_EFORMAT, "Missing: tokenizer.json, model.safetensors");
    unlink(tmp_path(snap, "config.json"));
    not_found("org/name-4bit", CB_EFORMAT, "Missing: config.json, tokenizer.json, model.safetensors");
    tmp_text(snap, "config.json", "{}"); /* real files instead of links work */
    tmp_text(snap, "tokenizer.json", "{}");
    tmp_text(snap, "model.safetensors.index.json",
             "{\"weight_map\":{\"a\":\"model-1.safetensors\",\"b\":\"model-2.safetensors\",\"c\":\"model-1.safetensors\"}}");
    not_found("org/name-4bit", CB_EFORMAT, "Missing: model-1.safetensors, model-2.safetensors");
    tmp_st(snap, "model-1.safetensors", "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", "ab", 2);
    tmp_st(snap, "model-2.safetensors", "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", "a", 1);
    not_found("org/name-4bit", CB_EFORMAT, "model-2.safetensors: b: data_offsets [0,2] leave the file");
    tmp_st(snap, "model-2.safetensors", "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", "ab", 2);
    found("org/name-4bit", snap);
    tmp_text(snap, "model.safetensors.index.json", "{\"weight_map\":{\"a\":\"../../blobs/3\"}}");
    not_found("org/name-4bit", CB_EFORMAT, "weight_map.a");
    unlink(tmp_path(snap, "model.safetensors.index.json"));
    tmp_text(dir, "secret", "x");
    assert_int_equal(symlink("../../../secret", tmp_path(snap, "chat_template.jinja")), 0);
    not_found("org/name-4bit", CB_EFORMAT, "chat_template.jinja: its link leaves");
}

static void near_names(void **state)
{
    not_found("org/nme-4bit", CB_ENOTFOUND, "near names: org/name-4bit");
    not_found("other/name-4bit", CB_ENOTFOUND, "near names: org/name-4bit");
    not_found("name-4bit", CB_ENOTFOUND, "near names: org/name-4bit");
    not_found("name", CB_ENOTFOUND, "near names: org/name-4bit");
    not_found("ORG/NAME-8BIT", CB_ENOTFOUND, "near names: org/name-4bit");
    not_found("something/else-entirely", CB_ENOTFOUND, "not in the model cache");
    assert_null(strstr(err.text, "near"));
    put_dir("models--org--name-8bit");
    put_dir("models--org--name-3bit");
    put_dir("models--org--mane-3bit");
    put_dir("models--org--nbme-5bit");
    put_dir("models--broken");
    put_dir("datasets--org--name-5bit");
    not_found("org/name-5bit", CB_ENOTFOUND, "near names: org/name-3bit, org/name-4bit, org/name-8bit");
    assert_null(strstr(err.text, "mane"));
    not_found("org/nbme-5bits", CB_ENOTFOUND, "near names: org/nbme-5bit, ");
    assert_null(strchr(err.text, '\n'));
}

static void cache_roots(void **state)
{
    const char *vars[] = {"HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"}, *places[] = {"/.cache/huggingface/hub", "/huggingface/hub", "/hub", ""};
    char *old[4], root[4][160];
    for (int i = 0; i < 4; i++) {
        old[i] = getenv(vars[i]) ? strdup(getenv(vars[i])) : NULL;
        unsetenv(vars[i]);
    }
    assert_int_equal(cb_model_find("org/x", NULL, out, sizeof out, &err), CB_ENOTFOUND);
    assert_non_null(strstr(err.text, "HF_HOME"));
    for (int i = 0; i < 4; i++) { /* each is stronger than the one before */
        snprintf(root[i], sizeof root[i], "%s/%d%s", dir, i, places[i]);
        char v[128];
        snprintf(v, sizeof v, "%s/%d", dir, i);
        setenv(vars[i], v, 1);
        assert_int_equal(cb_model_find("org/x", NULL, out, sizeof out, &err), CB_ENOTFOUND);
        if (!strstr(err.text, root[i])) fail_msg("%s: %s", vars[i], err.text);
    }
    setenv("HF_HUB_CACHE", "", 1); /* empty counts as unset */
    assert_int_equal(cb_model_find("org/x", NULL, out, sizeof out, &err), CB_ENOTFOUND);
    assert_non_null(strstr(err.text, root[2]));
    setenv("HF_HOME", "~/hf", 1);
    assert_int_equal(cb_model_find("org/x", NULL, out, sizeof out, &err), CB_ENOTFOUND);
    assert_non_null(strstr(err.text, "/0/hf/hub"));
    assert_int_equal(cb_model_find("org/x", "/given", out, sizeof out, &err), CB_ENOTFOUND);
    assert_non_null(strstr(err.text, "/given"));
    setenv("HF_HUB_CACHE", dir, 1);
    assert_int_equal(cb_model_find("org/name-4bit", NULL, out, sizeof out, &err), 0);
    for (int i = 0; i < 4; i++) {
        if (old[i]) setenv(vars[i], old[i], 1);
        else unsetenv(vars[i]);
        free(old[i]);
    }
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {CASE(folders), CASE(revisions), CASE(incomplete), CASE(near_names), CASE(cache_roots)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
