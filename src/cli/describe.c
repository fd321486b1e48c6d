/* describe.c: what a checkpoint folder says about itself: config.json and the headers of its safetensors files. Nothing is
 * checked beyond what is read; the engine's loaders do that. */
#include "cli/describe.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/term.h"
#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_CONFIG = 16 << 20, MAX_HEADER = 100000000 };

static int ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

static void quant_text(describe *d, const json_t *config)
{
    const json_t *q = json_object_get(config, "quantization");
    if (!q) q = json_object_get(config, "quantization_config");
    const char *mode = json_string_value(json_object_get(q, "mode")), *dtype = json_string_value(json_object_get(config, "torch_dtype"));
    if (!dtype) dtype = json_string_value(json_object_get(json_object_get(config, "text_config"), "torch_dtype"));
    if (!dtype) dtype = json_string_value(json_object_get(config, "dtype"));
    int bits = (int)json_integer_value(json_object_get(q, "bits")), group = (int)json_integer_value(json_object_get(q, "group_size"));
    if (json_is_object(q) && bits) {
        snprintf(d->quant, sizeof d->quant, "%.20s%s%d-bit, groups of %d", mode && strcmp(mode, "affine") ? mode : "", mode && strcmp(mode, "affine") ? " " : "",
                 bits, group);
        const char *key;
        json_t *v;
        json_object_foreach((json_t *)q, key, v) if (json_is_object(v)) d->n_overrides++;
    } else
        snprintf(d->quant, sizeof d->quant, "%.20s", dtype ? dtype : "float");
}

int describe_dir(const char *dir, describe *d, cb_err *err)
{
    json_t *config;
    memset(d, 0, sizeof *d);
    int rc = cb_json_file(dir, "config.json", MAX_CONFIG, &config, err);
    if (rc < 0) return rc;
    const char *type = json_string_value(json_object_get(config, "model_type"));
    snprintf(d->model_type, sizeof d->model_type, "%s", type ? type : "?");
    quant_text(d, config);
    json_decref(config);
    DIR *h = opendir(dir);
    if (!h) return cb_fail(err, CB_EIO, "%.300s: cannot be listed", dir);
    for (const struct dirent *e; (e = readdir(h));) {
        char path[4400];
        struct stat st;
        if (!ends_with(e->d_name, ".safetensors")) continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (stat(path, &st) < 0) continue; /* a dangling link of the cache: the file is missing */
        d->bytes += (uint64_t)st.st_size;
        d->n_files++;
    }
    closedir(h);
    return 0;
}

static int add_tensor(const char *dtype, uint64_t bytes, describe_dtype *t, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(t[i].name, dtype)) {
            t[i].n++;
            t[i].bytes += bytes;
            return n;
        }
    if (n == DESCRIBE_DTYPES) return n;
    snprintf(t[n].name, sizeof t[n].name, "%s", dtype);
    t[n].n = 1;
    t[n].bytes = bytes;
    return n + 1;
}

static int one_header(const char *dir, const char *name, describe_dtype *t, int *n, cb_err *err)
{
    cb_map m;
    json_t *header = NULL;
    uint64_t len = 0;
    int rc = cb_map_open(&m, dir, name, err);
    if (rc < 0) return rc;
    for (int i = 7; i >= 0 && m.n >= 8; i--) len = len << 8 | m.data[i];
    if (m.n < 8 || len > m.n - 8 || len > MAX_HEADER) rc = cb_fail(err, CB_EFORMAT, "%s: the header's length %llu does not fit the file", name, (unsigned long long)len);
    if (rc == 0) rc = cb_json_text(name, (const char *)m.data + 8, (size_t)len, &header, err);
    const char *key;
    json_t *v;
    json_object_foreach(header, key, v)
    {
        const char *dtype = json_string_value(json_object_get(v, "dtype"));
        const json_t *at = json_object_get(v, "data_offsets");
        json_int_t from = json_integer_value(json_array_get(at, 0)), to = json_integer_value(json_array_get(at, 1));
        if (dtype && to >= from) *n = add_tensor(dtype, (uint64_t)(to - from), t, *n);
    }
    json_decref(header);
    cb_map_close(&m);
    return rc;
}

int describe_dtypes(const char *dir, describe_dtype t[DESCRIBE_DTYPES], cb_err *err)
{
    int n = 0, rc = 0;
    DIR *h = opendir(dir);
    if (!h) return cb_fail(err, CB_EIO, "%.300s: cannot be listed", dir);
    for (const struct dirent *e; rc == 0 && (e = readdir(h));)
        if (ends_with(e->d_name, ".safetensors")) rc = one_header(dir, e->d_name, t, &n, err);
    closedir(h);
    return rc < 0 ? rc : n;
}
