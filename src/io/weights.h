/* weights.h: the tensors of a checkpoint directory, mapped and never copied; and the rule that says how a matrix is
 * stored. Everything is checked at open: header length and JSON, dtype, shape products, offsets inside the file, no
 * overlap, no duplicate name, every shard and every name of the index present. */
#ifndef CB_IO_WEIGHTS_H
#define CB_IO_WEIGHTS_H
#include "base/err.h"
#include "io/config.h"
#include "io/dtype.h"

enum { CB_MAX_DIMS = 8 };

typedef struct cb_tensor {
    const char *name;          /* NUL-terminated */
    const char *file;          /* base name of the shard, for messages */
    const uint8_t *data;       /* any byte alignment */
    uint64_t bytes;
    int64_t dims[CB_MAX_DIMS]; /* outermost first */
    int n_dims;                /* 0: a scalar, one element */
    cb_dtype dtype;
} cb_tensor;

typedef struct cb_weights cb_weights;
/* Follows model.safetensors.index.json when there is one, else opens model*.safetensors. Errors: CB_ENOTFOUND (no such
 * directory), CB_EFORMAT (names file and tensor), CB_EIO, CB_ENOMEM. */
int cb_weights_open(const char *dir, cb_weights **out, cb_err *err);
void cb_weights_close(cb_weights *w);
int cb_weights_count(const cb_weights *w);
const cb_tensor *cb_weights_at(const cb_weights *w, int i);   /* sorted by name */
const cb_tensor *cb_weights_find(const cb_weights *w, const char *name); /* NULL when absent */
uint64_t cb_weights_bytes(const cb_weights *w);               /* mapped file bytes */
int cb_weights_n_files(const cb_weights *w);

/* How a matrix is stored. */
typedef enum cb_wmode {
    CB_W_FLOAT,  /* codes is [stack][rows][cols] of float_dtype */
    CB_W_AFFINE, /* value = scale*code + bias */
    CB_W_MXFP4,  /* E2M1 elements, E8M0 scale per 32 */
    CB_W_MXFP8,  /* E4M3 elements, E8M0 scale per 32 */
    CB_W_NVFP4   /* E2M1 elements, E4M3 scale per 16, perhaps a global scale */
} cb_wmode;

typedef struct cb_matrix {
    const char *path;            /* module path in the checkpoint, without ".weight" */
    cb_wmode mode;
    int bits, group;             /* group 0 for CB_W_FLOAT */
    int64_t stack, rows, cols;   /* stack: number of expert matrices, 1 for a plain one; rows outputs, cols inputs */
    const uint8_t *codes;        /* [stack][rows][row_bytes] */
    uint64_t row_bytes;          /* bytes of one row of codes */
    const uint8_t *scales;       /* [stack][rows][cols/group] of scale_dtype; NULL for CB_W_FLOAT */
    const uint8_t *biases;       /* the same shape; NULL unless affine */
    cb_dtype scale_dtype;        /* BF16, F16, F32, or U8 in an fp mode */
    cb_dtype float_dtype;        /* CB_W_FLOAT only */
    float global_scale;          /* nvfp4: G/2688, else 1 */
    uint64_t bytes;              /* all stored bytes of the matrix */
    int64_t stored_rows, row0;   /* a part of a fused matrix: rows row0 .. row0+rows of stored_rows; 0: all of it */
} cb_matrix;

/* Index of row `row` of matrix `mat` among the stored rows. */
static inline int64_t cb_matrix_row(const cb_matrix *m, int64_t mat, int64_t row)
{
    return mat * (m->stored_rows ? m->stored_rows : m->rows) + m->row0 + row;
}

/* Finds how <path> is stored and checks it against `rows` x `cols` (the architecture's numbers; -1 for one that the file
 * decides; stack > 1 demands [stack][rows][cols]). Quantised iff <path>.scales exists; bits and group come from the
 * config entry of the path (tried as given and with the known prefixes), and must agree with 32*words/cols and
 * cols/n_scales. Errors: CB_EFORMAT naming file, tensor and both shapes. Returns 1 when found, 0 when <path>.weight is
 * absent (no error is set), negative on error. */
int cb_matrix_find(const cb_weights *w, const cb_config *c, const char *path, int64_t stack, int64_t rows, int64_t cols,
                   cb_matrix *out, cb_err *err);
/* Decodes row `row` of matrix `mat` to f32 [cols], one fma per element (scale*code + bias). The truth of every format. */
void cb_matrix_decode_row(const cb_matrix *m, int64_t mat, int64_t row, float *out);
/* Reads all scales (and biases): an infinity or NaN, or an E8M0 byte of 255, is CB_EFORMAT naming row and group. It touches
 * every page of them, so cb_matrix_find does not do it; a backend does, when it packs or uploads the matrix. */
int cb_matrix_check_scales(const cb_matrix *m, cb_err *err);
#endif
