/* Chat templates: template text up to a NUL, then the variables as JSON. Budgets are small so that a run stays short. */
#include "base/mem.h"
#include "text/template.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const cb_jinja_limits lim = {.memory_bytes = 1 << 20, .output_bytes = 1 << 16, .steps = 20000};
    const struct tm now = {.tm_year = 124, .tm_mon = 6, .tm_mday = 26, .tm_hour = 15};
    const char *text = (const char *)data, *nul = size ? memchr(text, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - text) : size;
    const char *json = nul ? nul + 1 : "{}";
    size_t json_n = nul ? size - n - 1 : 2, out_n;
    cb_template *t;
    cb_err err;
    char *out;
    if (cb_template_from_text("t", text, n, NULL, &t, &err)) return 0;
    if (!cb_template_render_at(t, json, json_n, &now, &lim, &out, &out_n, &err)) free(out);
    cb_template_close(t);
    return 0;
}
