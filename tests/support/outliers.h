/* outliers.h: checkpoints some of whose numbers are large. */
#ifndef CB_TESTS_SUPPORT_OUTLIERS_H
#define CB_TESTS_SUPPORT_OUTLIERS_H
#include "tmpdir.h"

/* The checkpoint in a folder of its own; of each norm of a layer one number is large, so that rows behind it have remainders. */
static inline void put_outliers(const char *name, const char *dir)
{
    char from[300];
    snprintf(from, sizeof from, "tests/data/%.255s", name);
    static const char *const others[] = {"config.json", "tokenizer.json", "tokenizer_config.json", "hadamard.json"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char *path = realpath(tmp_path(from, others[i]), NULL);
        if (!path && i == 3) continue; /* rotated checkpoints have it */
        assert_non_null(path);
        assert_int_equal(symlink(path, tmp_path(dir, others[i])), 0);
        free(path);
    }
    FILE *f = fopen(tmp_path(from, "model.safetensors"), "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    size_t n = (size_t)ftell(f);
    rewind(f);
    char *data = calloc(1, n + 1), *header = data + 8;
    assert_int_equal(fread(data, 1, n, f), n);
    fclose(f);
    uint64_t length;
    memcpy(&length, data, 8);
    assert_true(length < n);
    char *text = calloc(1, length + 1);
    memcpy(text, header, length);
    int found = 0;
    for (char *p = text; (p = strstr(p, "layernorm.weight\"")); p++) {
        char *at = strstr(p, "data_offsets"), *type = strstr(p, "dtype");
        assert_true(at && type);
        bool is_f32 = !strncmp(type, "dtype\":\"F32", 11);
        assert_true(is_f32 || !strncmp(type, "dtype\":\"BF16", 12));
        uint32_t large = 0x42800000; /* 64; its upper half, for a BF16 */
        size_t bytes = is_f32 ? 4 : 2;
        memcpy(header + length + strtoul(at + strlen("data_offsets\":["), NULL, 10) + bytes * (size_t)(found % 7), (char *)&large + 4 - bytes, bytes);
        found++;
    }
    assert_true(found >= 2);
    tmp_put(dir, "model.safetensors", data, n);
    free(text);
    free(data);
}
#endif
