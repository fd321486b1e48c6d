/* cb_quantize: a float checkpoint becomes an MLX checkpoint. Plan, small files, weights, then a last look: what was written must
 * load. Everything is written to a folder beside the target, which takes the target's name at the end. */
#include "run/quantize.h"
#include "io/confine.h"
#include "model/family.h"
#include "run/outfiles.h"
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_TEXT_FILE = 256 << 20 };

/* Files that pass through as they are: tokenizer, template, sampling values, licence. */
static bool is_copied(const char *name)
{
    static const char *const whole[] = {"vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
                                        "chat_template.json", "generation_config.json"};
    static const char *const heads[] = {"tokenizer", "LICENSE", "NOTICE"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (!strcmp(name, whole[i])) return true;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (!strncmp(name, heads[i], strlen(heads[i]))) return true;
    return false;
}

static int copy_texts(const char *from, const char *to, cb_err *err)
{
    DIR *d = opendir(from);
    if (!d) return cb_fail(err, CB_EIO, "%s: cannot read the folder: %s", from, strerror(errno));
    int rc = 0;
    for (const struct dirent *e; rc == 0 && (e = readdir(d));) {
        char *text;
        size_t n;
        struct stat st;
        if (!is_copied(e->d_name) || fstatat(dirfd(d), e->d_name, &st, 0) != 0 || !S_ISREG(st.st_mode)) continue;
        if ((rc = cb_confine_check(from, e->d_name, err)) < 0 || (rc = cb_file_read(from, e->d_name, MAX_TEXT_FILE, &text, &n, err)) < 0) break;
        rc = cb_out_text(to, e->d_name, text, n, err);
        cb_free(text);
    }
    closedir(d);
    return rc;
}

/* The folder must make a plan; else the fault is ours, and it is better to hear of it now. */
static int check_result(const char *dir, cb_err *err)
{
    cb_config *c = NULL;
    cb_weights *w = NULL;
    cb_plan *p = NULL;
    int rc = cb_config_open(dir, &c, err);
    if (rc == 0) rc = cb_weights_open(dir, &w, err);
    if (rc == 0) rc = cb_model_plan(c, w, &p, err);
    cb_plan_close(p);
    cb_weights_close(w);
    cb_config_close(c);
    return rc < 0 ? cb_fail_in(err, rc, "the result does not load") : 0;
}

int cb_quantize(const char *dir, const char *out_dir, const cb_quantize_opts *opts, cb_err *err)
{
    static const cb_quantize_opts defaults = {0};
    cb_config *c = NULL;
    cb_weights *w = NULL;
    cb_q_plan p = {0};
    cb_outdir out = {0};
    int rc = cb_config_open(dir, &c, err);
    if (rc < 0 || (rc = cb_weights_open(dir, &w, err)) < 0 || (rc = cb_outdir_open(&out, out_dir, err)) < 0) goto done;
    if ((rc = cb_q_plan_make(&p, c, w, opts ? opts : &defaults, err)) < 0 || (rc = cb_q_write_config(&p, out.tmp, err)) < 0 ||
        (rc = copy_texts(dir, out.tmp, err)) < 0 || (rc = cb_q_write_weights(&p, out.tmp, err)) < 0 || (rc = check_result(out.tmp, err)) < 0)
        goto done;
    rc = cb_outdir_commit(&out, err);
done:
    if (rc < 0) cb_outdir_abort(&out);
    cb_q_plan_fini(&p);
    cb_weights_close(w);
    cb_config_close(c);
    return rc;
}
