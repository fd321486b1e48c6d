/* The settings file: any bytes give entries within the text's bounds, or one error line. */
#include "cli/settings.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cb_arena a;
    cb_err err = {0};
    cli_setting *first;
    cb_arena_init(&a, 16 << 20);
    int rc = cli_settings_parse("settings", (const char *)data, size, &a, &first, &err);
    if (rc < 0) CB_ASSERT(err.text[0] && strstr(err.text, "settings"));
    for (const cli_setting *s = rc == 0 ? first : NULL; s; s = s->next) {
        CB_ASSERT(s->table && s->sub && s->key && s->values.n <= CLI_MAX_LIST && (s->is_list || s->values.n == 1));
        for (int i = 0; i < s->values.n; i++) CB_ASSERT(strlen(s->values.v[i]) <= size);
    }
    cb_arena_fini(&a);
    return 0;
}
