#include "model/rope.h"
#include "base/json.h"
#include "base/portable.h"
#include <math.h>
#include <string.h>

/* scaling[key], a positive number, or `otherwise` when absent (not positive: it must be there). */
static double number(cb_builder *b, const json_t *o, const char *key, double otherwise)
{
    double v = otherwise;
    cb_err e = {0};
    int rc = cb_json_real(o, "config.json: rope_scaling", key, &v, &e);
    if (rc < 0) pb_fail(b, e.code, "%s", e.text);
    else if (!(v > 0)) pb_fail(b, CB_EFORMAT, "config.json: rope_scaling.%s is missing or not positive", key);
    return v > 0 ? v : 1;
}

static double need(cb_builder *b, const json_t *o, const char *key) { return number(b, o, key, 0); }

/* Llama 3: wavelengths beyond original/low_freq_factor are stretched by factor, those below original/high_freq_factor are
 * kept, between them a linear blend (spec llama-gguf 1.1). */
static void llama3(cb_builder *b, const json_t *s, int n, double *freq)
{
    double factor = need(b, s, "factor"), low = need(b, s, "low_freq_factor"), high = need(b, s, "high_freq_factor");
    double original = need(b, s, "original_max_position_embeddings");
    for (int i = 0; i < n; i++) {
        double wave = 6.28318530717958647692 / freq[i];
        if (wave > original / low) freq[i] /= factor;
        else if (wave >= original / high) {
            double t = (original / wave - low) / (high - low);
            freq[i] = (1 - t) * freq[i] / factor + t * freq[i];
        }
    }
}

/* What a context of `factor` times the trained one multiplies q and k with; weight 1 unless the config says otherwise. */
static double yarn_scale(double factor, double weight) { return factor <= 1 ? 1 : 0.1 * weight * cb_ln(factor) + 1; }

/* YaRN: pairs that turn more than beta_fast times within the trained context keep their frequency, those that turn less than
 * beta_slow times are stretched by factor, between them a linear blend over the pair's number. As transformers computes it. */
static double yarn(cb_builder *b, const json_t *s, double theta, int dim, double *freq)
{
    double factor = need(b, s, "factor"), original = need(b, s, "original_max_position_embeddings");
    double beta[2] = {number(b, s, "beta_fast", 32), number(b, s, "beta_slow", 1)}, at[2];
    for (int i = 0; i < 2; i++) at[i] = dim * cb_ln(original / (beta[i] * 6.28318530717958647692)) / (2 * cb_ln(theta));
    if (!json_is_false(json_object_get(s, "truncate"))) at[0] = floor(at[0]), at[1] = ceil(at[1]);
    double low = at[0] > 0 ? at[0] : 0, high = at[1] < dim - 1 ? at[1] : dim - 1;
    if (low == high) high += 0.001;
    for (int i = 0; i < dim / 2; i++) {
        double t = (i - low) / (high - low), stretched = t < 0 ? 0 : t > 1 ? 1 : t;
        freq[i] = freq[i] / factor * stretched + freq[i] * (1 - stretched);
    }
    double given = json_number_value(json_object_get(s, "attention_factor")), weight = json_number_value(json_object_get(s, "mscale"));
    double all = json_number_value(json_object_get(s, "mscale_all_dim"));
    if (given > 0) return given;
    return weight > 0 && all > 0 ? yarn_scale(factor, weight) / yarn_scale(factor, all) : yarn_scale(factor, 1);
}

const json_t *cb_rope_config(cb_builder *b, double *theta)
{
    const json_t *p = cb_config_get(pb_config(b), "rope_parameters"), *old = cb_config_get(pb_config(b), "rope_scaling");
    cb_err e = {0};
    if (!json_is_object(p)) return old;
    if (cb_json_real(p, "config.json: rope_parameters", "rope_theta", theta, &e) < 0) pb_fail(b, e.code, "%s", e.text);
    return json_object_get(p, "rope_type") || json_object_get(p, "type") || !old ? p : old;
}

float cb_rope_freqs(cb_builder *b, double theta, int dim, const json_t *scaling, double *freq)
{
    int n = dim / 2;
    if (!(theta > 1 && theta < 1e12)) {
        pb_fail(b, CB_EFORMAT, "config.json: rope_theta is %g, allowed are 1 to 1e12", theta);
        theta = 1e4;
    }
    for (int i = 0; i < n; i++) freq[i] = cb_rope_freq(theta, i, dim);
    if (!json_is_object(scaling)) return 1;
    const char *type = json_string_value(json_object_get(scaling, "rope_type"));
    if (!type) type = json_string_value(json_object_get(scaling, "type"));
    if (!type || !strcmp(type, "default")) return 1;
    if (!strcmp(type, "linear")) {
        double factor = need(b, scaling, "factor");
        for (int i = 0; i < n; i++) freq[i] /= factor;
    } else if (!strcmp(type, "llama3"))
        llama3(b, scaling, n, freq);
    else if (!strcmp(type, "yarn"))
        return (float)yarn(b, scaling, theta, dim, freq);
    else
        pb_fail(b, CB_EFORMAT, "config.json: rope_scaling type %.60s is not supported", type);
    return 1;
}
