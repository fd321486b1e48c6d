/* cb_import_gguf: a GGUF file becomes an MLX checkpoint directory. The plan comes first (it finds what is wrong with the
 * file), then the small text files; then the weights stream from the map through 64 KiB to model.safetensors. Everything is
 * written to a folder beside the target, which takes the target's name at the end. */
#include "run/import.h"
#include "io/safetensors.h"
#include "run/outfiles.h"
#include <string.h>

typedef struct output {
    cb_outdir dir;
    cb_st_writer *w;
    cb_progress_fn progress;
    void *ctx;
    const char *what;      /* tensor being written */
    uint64_t done, total, told;
} output;

enum { TELL_BYTES = 1 << 22 };

static int write_tokenizer(const output *o, const cb_gguf *g, cb_err *err)
{
    cb_buf tokenizer, config;
    const char *chat = NULL;
    size_t n_chat = 0;
    cb_buf_init(&tokenizer, 0);
    cb_buf_init(&config, 0);
    int rc = cb_import_tokenizer(g, &tokenizer, &config, err);
    if (rc == 0 && !(cb_buf_ok(&tokenizer) && cb_buf_ok(&config))) rc = cb_fail(err, CB_ENOMEM, "%s: no memory", g->file);
    if (rc == 0) rc = cb_out_text(o->dir.tmp, "tokenizer.json", tokenizer.data, tokenizer.n, err);
    if (rc == 0) rc = cb_out_text(o->dir.tmp, "tokenizer_config.json", config.data, config.n, err);
    if (rc == 0) rc = cb_gguf_text(g, "tokenizer.chat_template", &chat, &n_chat, err);
    if (rc > 0) rc = cb_out_text(o->dir.tmp, "chat_template.jinja", chat, n_chat, err);
    cb_buf_fini(&tokenizer);
    cb_buf_fini(&config);
    return rc;
}

/* ---- weights ---- */

static const char *const part_suffix[] = {[CB_PART_WEIGHT] = "weight", [CB_PART_SCALES] = "scales",
                                          [CB_PART_BIASES] = "biases"};

static int declare(output *o, const cb_import_item *it, cb_err *err)
{
    int64_t rows = it->src->rows, cols = it->src->cols;
    if (it->vector) return cb_st_writer_declare(o->w, it->name, it->dtype, &cols, 1, err);
    if (!it->quantised) return cb_st_writer_declare(o->w, it->name, it->dtype, (int64_t[]){rows, cols}, 2, err);
    for (int part = CB_PART_WEIGHT; part <= CB_PART_BIASES; part++) {
        char name[160];
        int64_t n = part == CB_PART_WEIGHT ? cols / 32 * it->src->type->bits : cols / CB_GB_GROUP;
        snprintf(name, sizeof name, "%.*s%s", (int)(strlen(it->name) - strlen("weight")), it->name, part_suffix[part]);
        int rc = cb_st_writer_declare(o->w, name, part == CB_PART_WEIGHT ? CB_U32 : it->dtype, (int64_t[]){rows, n}, 2, err);
        if (rc < 0) return rc;
    }
    return 0;
}

static int put(void *ctx, const void *p, size_t n, cb_err *err)
{
    output *o = ctx;
    int rc = cb_st_writer_put(o->w, p, n, err);
    o->done += n;
    if (o->progress && (o->done - o->told >= TELL_BYTES || o->done == o->total)) {
        o->told = o->done;
        o->progress(o->ctx, o->what, o->done, o->total);
    }
    return rc;
}

static int write_weights(output *o, const cb_import_plan *p, cb_err *err)
{
    char path[4096];
    int k = snprintf(path, sizeof path, "%s/model.safetensors", o->dir.tmp);
    if (k < 0 || (size_t)k >= sizeof path) return cb_fail(err, CB_EUSAGE, "%s: path too long", o->dir.path);
    int rc = cb_st_writer_open(path, &o->w, err);
    if (rc < 0) return rc;
    o->total = p->out_bytes;
    for (int i = 0; i < p->n_items && rc == 0; i++) rc = declare(o, &p->items[i], err);
    if (rc == 0) rc = cb_st_writer_begin(o->w, err);
    for (int i = 0; i < p->n_items && rc == 0; i++) {
        int last = p->items[i].quantised ? CB_PART_BIASES : CB_PART_WEIGHT;
        o->what = p->items[i].name;
        for (int part = CB_PART_WEIGHT; part <= last && rc == 0; part++)
            rc = cb_import_convert(&p->items[i], part, put, o, err);
    }
    if (rc == 0) rc = cb_st_writer_commit(o->w, err);
    else cb_st_writer_abort(o->w);
    return rc;
}

int cb_import_gguf(const char *gguf, const char *out_dir, cb_progress_fn progress, void *ctx, cb_err *err)
{
    cb_gguf g = {0};
    cb_import_plan p = {0};
    output o = {.progress = progress, .ctx = ctx};
    int rc = cb_gguf_open(&g, gguf, err);
    if (rc < 0 || (rc = cb_outdir_open(&o.dir, out_dir, err)) < 0) goto done; /* a bad target shows before the scan */
    if ((rc = cb_import_plan_make(&p, &g, err)) < 0 || (rc = write_tokenizer(&o, &g, err)) < 0 ||
        (rc = cb_out_json(o.dir.tmp, "config.json", p.config, 2, err)) < 0 ||
        (rc = cb_out_json(o.dir.tmp, "generation_config.json", p.generation, 2, err)) < 0 || (rc = write_weights(&o, &p, err)) < 0)
        goto done;
    rc = cb_outdir_commit(&o.dir, err);
done:
    if (rc < 0) cb_outdir_abort(&o.dir);
    cb_import_plan_fini(&p);
    cb_gguf_close(&g);
    return rc;
}
