/* Any bytes as a GGUF file: parsed, planned, and everything a plan says converted; nothing is written. */
#include "run/import.h"

static int count(void *ctx, const void *p, size_t n, cb_err *err)
{
    *(uint64_t *)ctx += n;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cb_gguf g;
    cb_import_plan p;
    cb_buf tokenizer, config;
    uint64_t bytes = 0;
    cb_err err = {0};
    if (cb_gguf_parse(&g, data, size, "fuzz", &err) < 0) {
        CB_ASSERT(err.code < 0 && err.text[0]);
        return 0;
    }
    cb_buf_init(&tokenizer, 1 << 24);
    cb_buf_init(&config, 1 << 24);
    if (cb_import_tokenizer(&g, &tokenizer, &config, &err) < 0) CB_ASSERT(err.code < 0 && err.text[0]);
    cb_buf_fini(&tokenizer);
    cb_buf_fini(&config);
    if (cb_import_plan_make(&p, &g, &err) == 0) {
        for (int i = 0; i < p.n_items; i++)
            for (int part = CB_PART_WEIGHT; part <= (p.items[i].quantised ? CB_PART_BIASES : CB_PART_WEIGHT); part++)
                if (cb_import_convert(&p.items[i], part, count, &bytes, &err) < 0) CB_ASSERT(err.code < 0);
        CB_ASSERT(bytes == p.out_bytes);
        cb_import_plan_fini(&p);
    } else
        CB_ASSERT(err.code < 0 && err.text[0]);
    cb_gguf_close(&g);
    return 0;
}
