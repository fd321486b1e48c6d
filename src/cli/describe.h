/* describe.h: short facts about a checkpoint folder, read from its files alone. */
#ifndef CB_CLI_DESCRIBE_H
#define CB_CLI_DESCRIBE_H
#include "base/err.h"

enum { DESCRIBE_DTYPES = 16 };

typedef struct describe {
    char model_type[64];
    char quant[64];        /* "4-bit, groups of 64", "bfloat16", ... */
    int n_overrides;       /* modules with a format of their own */
    uint64_t bytes;        /* of the safetensors files */
    int n_files;
} describe;
int describe_dir(const char *dir, describe *d, cb_err *err);

typedef struct describe_dtype {
    char name[16];
    int n;          /* tensors */
    uint64_t bytes;
} describe_dtype;
/* How many dtypes there are, or an error. */
int describe_dtypes(const char *dir, describe_dtype t[DESCRIBE_DTYPES], cb_err *err);
#endif
