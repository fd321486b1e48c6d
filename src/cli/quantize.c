#include "cli/commands.h"
#include "cli/model.h"
#include "cli/term.h"
#include <limits.h>
#include <string.h>

/* An integer flag within lo..hi, or 0 when it was not given. */
static int int_flag(int64_t v, int64_t lo, int64_t hi, const char *flag, int *out, cb_err *err)
{
    *out = v == INT64_MIN ? 0 : (int)v;
    if (v == INT64_MIN || (v >= lo && v <= hi)) return 0;
    return cb_fail(err, CB_EUSAGE, "%s: %lld is outside %lld to %lld", flag, (long long)v, (long long)lo, (long long)hi);
}

static int read_flags(const cli_opts *o, cb_quantize_opts *q, cb_err *err)
{
    int rc;
    if ((rc = int_flag(o->bits, 1, 8, "--bits", &q->bits, err)) < 0 || (rc = int_flag(o->group, 16, 128, "--group", &q->group, err)) < 0 ||
        (rc = int_flag(o->hadamard, 512, 4096, "--hadamard", &q->hadamard_block, err)) < 0 ||
        (rc = int_flag(o->threads, 0, 256, "--threads", &q->n_threads, err)) < 0)
        return rc;
    if (o->rounding && strcmp(o->rounding, "cpu") && strcmp(o->rounding, "gpu"))
        return cb_fail(err, CB_EUSAGE, "--rounding: %.40s is neither cpu nor gpu", o->rounding);
    if (o->seed != INT64_MIN && !q->hadamard_block) return cb_fail(err, CB_EUSAGE, "--seed: means nothing without --hadamard");
    q->gpu_rounding = o->rounding && !strcmp(o->rounding, "gpu");
    q->mode = o->mode;
    q->dtype = o->dtype;
    q->keep = o->keep.v;
    q->n_keep = o->keep.n;
    q->seed = o->seed == INT64_MIN ? 0 : (uint64_t)o->seed;
    return 0;
}

int cmd_quantize(const cli_opts *o, cb_err *err)
{
    cli_progress progress = { .opts = o };
    cb_quantize_opts q = { .progress = cli_progress_show, .progress_ctx = &progress };
    char dir[PATH_MAX], size[32];
    int rc = read_flags(o, &q, err);
    if (rc < 0 || (rc = cli_model_locate(o, o->args[0], dir, sizeof dir, err)) < 0) return rc;
    rc = cb_quantize(dir, o->args[1], &q, err);
    cli_progress_end(&progress);
    if (rc < 0) return rc;
    describe d;
    if (describe_dir(o->args[1], &d, NULL) == 0)
        cli_note(o, "%s: %s, %s, %s; try `cambium run %s`", o->args[1], d.model_type, d.quant, cli_bytes(size, d.bytes), o->args[1]);
    return 0;
}
