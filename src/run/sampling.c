/* sampling.c: the values of cb_sampling: neutral ones, and what a checkpoint recommends. */
#include "base/file.h"
#include "base/json.h"
#include "cambium.h"

void cb_sampling_init(cb_sampling *p)
{
    *p = (cb_sampling){ .temperature = 1, .top_p = 1, .repetition_penalty = 1, .repeat_last_n = -2, .profile = CB_PROFILE_HF };
}

static int read_real(const json_t *j, const char *file, const char *key, double lo, double hi, float *v, cb_err *err)
{
    double d;
    int rc = cb_json_real(j, file, key, &d, err);
    if (rc <= 0) return rc;
    if (!(d >= lo && d <= hi)) return cb_fail(err, CB_EFORMAT, "%s: %s is %g, allowed are %g to %g", file, key, d, lo, hi);
    *v = (float)d;
    return 1;
}

int cb_sampling_from_checkpoint(cb_sampling *p, const char *dir, cb_err *err)
{
    static const char file[] = "generation_config.json";
    if (!cb_file_exists(dir, file)) return 0;
    json_t *j;
    int rc = cb_json_file(dir, file, 1 << 20, &j, err);
    if (rc < 0) return rc;
    int64_t k;
    bool sample;
    cb_sampling q = *p;
    if ((rc = read_real(j, file, "temperature", 0, 100, &q.temperature, err)) < 0) goto done;
    if ((rc = read_real(j, file, "top_p", 0, 1, &q.top_p, err)) < 0) goto done;
    if ((rc = read_real(j, file, "min_p", 0, 1, &q.min_p, err)) < 0) goto done;
    if ((rc = read_real(j, file, "repetition_penalty", 0, 100, &q.repetition_penalty, err)) < 0) goto done;
    if ((rc = cb_json_int(j, file, "top_k", -1, INT32_MAX, &k, err)) < 0) goto done;
    if (rc) q.top_k = (int)k;
    if ((rc = cb_json_bool(j, file, "do_sample", &sample, err)) < 0) goto done;
    if (rc && !sample) q.temperature = 0;
    *p = q;
    rc = 0;
done:
    json_decref(j);
    return rc;
}
