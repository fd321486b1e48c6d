/* outliers.h: checkpoints some of whose numbers are large. */
#ifndef CB_TESTS_SUPPORT_OUTLIERS_H
#define CB_TESTS_SUPPORT_OUTLIERS_H
#include "tmpdir.h"

/* A file of folder `from`, as a link; one that is not needed may be missing. */
static inline void link_file(const char *from, const char *dir, const char *name, bool needed)
{
    char *path = realpath(tmp_path(from, name), NULL);
    if (needed) assert_non_null(path);
    if (path) assert_int_equal(symlink(path, tmp_path(dir, name)), 0);
    free(path);
}
/* Its bytes, with a zero behind them; the caller frees them. */
static inline char *read_file(const char *from, const char *name, size_t *n)
{
    FILE *f = fopen(tmp_path(from, name), "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *n = (size_t)ftell(f);
    rewind(f);
    char *data = calloc(1, *n + 1);
    assert_int_equal(fread(data, 1, *n, f), *n);
    fclose(f);
    return data;
}

/* The checkpoint in a folder of its own; of each norm of a layer one number is large, so that rows behind it have remainders. */
static inline void put_outliers(const char *name, const char *dir)
{
    char from[300];
    size_t n;
    snprintf(from, sizeof from, "tests/data/%.255s", name);
    link_file(from, dir, "config.json", true);
    link_file(from, dir, "tokenizer.json", true);
    link_file(from, dir, "tokenizer_config.json", true);
    link_file(from, dir, "hadamard.json", false); /* rotated checkpoints have it */
    char *data = read_file(from, "model.safetensors", &n), *header = data + 8;
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
