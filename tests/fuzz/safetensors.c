/* Fuzz target: the safetensors header, as bytes of a whole file. Every tensor that is accepted must lie inside the input. */
#include "base/mem.h"
#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cb_st s = {0};
    cb_err err = {0};
    int rc = cb_st_parse(&s, data, size, "fuzz.safetensors", &err);
    if (rc < 0) {
        CB_ASSERT(rc == CB_EFORMAT && err.code == rc && err.text[0] && !s.tensors);
        return 0;
    }
    for (int i = 0; i < s.n_tensors; i++) {
        const cb_tensor *t = &s.tensors[i];
        CB_ASSERT(t->data >= data && t->data <= data + size && t->bytes <= (uint64_t)(data + size - t->data));
        CB_ASSERT(t->n_dims >= 0 && t->n_dims <= CB_MAX_DIMS && cb_dtype_name(t->dtype));
        if (i && t->bytes && t[-1].bytes) CB_ASSERT(t->data >= t[-1].data + t[-1].bytes);
    }
    cb_st_close(&s);
    return 0;
}
