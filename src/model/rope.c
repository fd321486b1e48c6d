#include "model/rope.h"
#include "base/json.h"
#include "base/portable.h"
#include <string.h>

static double need(cb_builder *b, const json_t *o, const char *key)
{
    double v = 0;
    cb_err e = {0};
    int rc = cb_json_real(o, "config.json: rope_scaling", key, &v, &e);
    if (rc < 0) pb_fail(b, e.code, "%s", e.text);
    else if (!rc || !(v > 0)) pb_fail(b, CB_EFORMAT, "config.json: rope_scaling.%s is missing or not positive", key);
    return v > 0 ? v : 1;
}

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

void cb_rope_freqs(cb_builder *b, double theta, int dim, const json_t *scaling, double *freq)
{
    int n = dim / 2;
    if (!(theta > 1 && theta < 1e12)) {
        pb_fail(b, CB_EFORMAT, "config.json: rope_theta is %g, allowed are 1 to 1e12", theta);
        theta = 1e4;
    }
    for (int i = 0; i < n; i++) freq[i] = cb_rope_freq(theta, i, dim);
    if (!json_is_object(scaling)) return;
    const char *type = json_string_value(json_object_get(scaling, "rope_type"));
    if (!type) type = json_string_value(json_object_get(scaling, "type"));
    if (!type || !strcmp(type, "default")) return;
    if (!strcmp(type, "linear")) {
        double factor = need(b, scaling, "factor");
        for (int i = 0; i < n; i++) freq[i] /= factor;
    } else if (!strcmp(type, "llama3"))
        llama3(b, scaling, n, freq);
    else
        pb_fail(b, CB_EFORMAT, "config.json: rope_scaling type %.60s is not supported", type);
}
