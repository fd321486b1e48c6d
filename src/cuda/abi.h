/* abi.h: what host code hands to GPU kernels; the same text in C and CUDA. Plain data of fixed width; pointers are device
 * pointers. A kernel takes one of these structs by value as its only parameter. Read kernels/kernels.h first. */
#ifndef CB_CUDA_ABI_H
#define CB_CUDA_ABI_H
#include <stdint.h>

enum { CU_BLOCK = 64, CU_SEGMENTS = 8, CU_NO_OP = 0x7fffffff };

/* The rows of a step, on the device, rewritten before each step; what a graph must not hold. Arrays lie behind it and what has
 * been found. */
typedef struct cu_step {
    const int32_t *token, *pos, *slot; /* [n_rows] */
    const int32_t *wanted;             /* [n_wanted] */
    const int32_t *run0, *run1;        /* [n_rows]: first row of this row's run, and one past its last */
    const int32_t *run_row;            /* [n_runs]: first row of each run */
    const int32_t *tile_row, *tile_n;  /* [n_tiles]: attention's tiles of rows, first row and how many */
    const int32_t *wide_row, *wide_n;  /* [n_wide]: the same for k_attn_many */
    const int32_t *const *tables;      /* [n_kv_groups]: block tables, [max_sessions][table_stride] */
    int32_t table_stride;
    int32_t n_ids;                     /* the best id is one of 0 .. n_ids-1 */
    int32_t n_asks;                    /* rows that are sampled: n_wanted or 0 */
    int32_t turn;            /* which of two sets of words tape.cu uses, and CU_TAPE_FRESH */
    int32_t bad_op;                    /* earliest op that met a value that is not finite, or CU_NO_OP; what comes back begins here */
    unsigned long long best[1];        /* [n_wanted], sent as zeros: see cu_best */
} cu_step;

/* Activation planes of all rows of a value: the bytes of the CPU's layout (kernels.h, cb_qrows), so that packed weights are
 * used as stored and a tap compares bytes. */
typedef struct cu_planes {
    int8_t *planes;       /* [rows][stride] */
    float *dx, *xs;       /* [rows][n_groups] */
    int32_t *sum;         /* [rows][n_groups] */
    int32_t *flag;        /* [rows]: has row r a remainder? Its planes, dx, xs and sum are those of row n_rows + r. NULL: none have */
    int32_t stride;       /* bytes between rows of planes */
    int32_t n_groups, group, pack;
    int32_t n_rows, pad;  /* that there is room for */
} cu_planes;

enum { CU_FMT_AFFINE, CU_FMT_FP4, CU_FMT_PLANES, CU_FMT_FLOAT }; /* as cb_fmt; FLOAT is for embeddings only */
enum { CU_S_F32, CU_S_F16, CU_S_BF16, CU_S_E8M0, CU_S_E4M3 };     /* as cb_scale_type; of CU_FMT_FLOAT the element type */

/* A weight matrix on the device, as stored. CU_FMT_PLANES: group g of row n is 128 bytes at codes + n*row_bytes + g*128: 64
 * signed high bytes hi = (wi+128)>>8, then 64 signed low bytes lo = wi - 256*hi. */
typedef struct cu_weight {
    const uint8_t *codes, *scales, *biases;
    int64_t row_bytes;
    int64_t expert_rows;     /* stored rows from one expert to the next */
    int32_t n_out, k;        /* outputs (of one expert), inputs */
    int32_t fmt, bits, group, n_groups;
    int32_t scale_type, pack;
    float global_scale;
    int32_t pad;
} cu_weight;

/* y[yr][n] (+)= sum over k of W[n][k] x[xr][k] for row r < n_rows: xr = x_row ? x_row[r] : r, yr = y_row ? y_row[r] : r.
 * Experts: expert_at[n_experts+1] says which of the (sorted) rows belong to which expert, and the small-M kernel takes its
 * work from tiles; otherwise both are NULL. */
typedef struct cu_linear {
    cu_weight w;
    cu_planes x;
    float *y;
    const int32_t *x_row, *y_row, *expert_at;
    const int32_t *tiles;    /* [n_tiles+1][4]: expert, first row, rows of each tile, and how many tiles; expert -1 ends the list */
    int64_t y_stride;        /* floats */
    int32_t n_rows, n_experts;
    int32_t add;
    int32_t x_step;          /* of experts in a step of one row: x rows from an entry of the list to the next, 0 or 1 */
} cu_linear;

/* Several products in one launch: blocks block0[i] .. block0[i+1] work on part i. */
enum { CU_MAX_PARTS = 8 };
typedef struct cu_linears {
    cu_linear part[CU_MAX_PARTS];
    int32_t block0[CU_MAX_PARTS + 1];
    int32_t n_parts;
} cu_linears;

/* Products of few rows (stream.cu). A thread block has a ring of `slots` stages; a stage is a tile of 16 outputs. A warp takes `per` segments
 * of it, subs = 8 / per warps share it. Shared memory: barriers, what warps put aside, the ring, partial sums of each stage, zeros, and columns of activations
 * (planes, then dx and X of each). */
enum { CU_STREAM_WARPS = 8, CU_STREAM_COPIERS = 4, CU_STREAM_SLOTS = 24, CU_STREAM_NOTES = 576, CU_STREAM_RING = 1152, CU_STREAM_SHARED = 216 << 10 };
enum { CU_STREAM_ROWS = 4, CU_STREAM_PASS = 8, CU_STREAM_MOST = 16 }; /* rows: of steps whose products stand beside those of experts; at a time; at most */
enum { CU_STREAM_ZEROS = 256 }; /* bytes */
#define CU_STREAM_FORMATS(X) /* name, fmt, bits, group, scale_type */                                                                   \
    X(4g64, CU_FMT_AFFINE, 4, 64, CU_S_BF16) X(4g64_f16, CU_FMT_AFFINE, 4, 64, CU_S_F16) X(4g32, CU_FMT_AFFINE, 4, 32, CU_S_BF16)       \
    X(2g128, CU_FMT_AFFINE, 2, 128, CU_S_BF16) X(2g128_f16, CU_FMT_AFFINE, 2, 128, CU_S_F16) X(8g64, CU_FMT_AFFINE, 8, 64, CU_S_BF16)  \
    X(planes, CU_FMT_PLANES, 8, 64, CU_S_F32)
enum {
#define CU_STREAM_NAME(name, ...) CU_STREAM_##name,
    CU_STREAM_FORMATS(CU_STREAM_NAME)
#undef CU_STREAM_NAME
    CU_N_STREAM
};
typedef struct cu_cut {
    int32_t tiles;           /* of the matrix (of one expert) */
    int32_t stride, scale_stride; /* bytes from row to row of a stage, of its codes and of its scales */
    uint32_t cost;           /* of a tile, in some unit: all tiles of a launch times its blocks stay below 2^32 */
} cu_cut;
typedef struct cu_stream {
    cu_linear part[CU_MAX_PARTS];
    cu_cut cut[CU_MAX_PARTS];
    int32_t n_parts;
    int32_t per, subs;
    int32_t slots, slot_bytes, sum_bytes;
    int32_t x_at, x_bytes, columns, sums_at, zeros_at; /* x_bytes: planes of a column */
    int32_t entries;         /* of the list, in a step of one row: entry e is slot e; 0: as the list says */
    int32_t wait_first;      /* lists of experts are made by an earlier launch that may not have ended */
} cu_stream;

/* Products of 17 to 64 rows (batch.cu): cu_linears whose parts have one format. A block's tile is 96 outputs times 64 rows (wide), 192 times 32
 * (tall), or 64 times 16 or 32 times 32 with a segment of K for each eighth of its warps (split). */
enum { CU_BATCH_LEAST = 17, CU_BATCH_MOST = 64, CU_BATCH_STAGES = 4, CU_BATCH_SHARED = 216 << 10 };
#define CU_BATCH_FORMATS(X) /* name, fmt, bits, group; groups of a stage; of split: 32s of outputs (1 or 2), stages */      \
    X(4g64, CU_FMT_AFFINE, 4, 64, 2, 2, 4) X(2g128, CU_FMT_AFFINE, 2, 128, 1, 2, 2) X(4g32, CU_FMT_AFFINE, 4, 32, 4, 2, 4)  \
    X(8g64, CU_FMT_AFFINE, 8, 64, 1, 2, 3) X(planes, CU_FMT_PLANES, 8, 64, 1, 1, 2)
enum {
#define CU_BATCH_NAME(name, ...) CU_BATCH_##name,
    CU_BATCH_FORMATS(CU_BATCH_NAME)
#undef CU_BATCH_NAME
    CU_N_BATCH
};
enum { CU_BATCH_WIDE, CU_BATCH_TALL, CU_BATCH_SPLIT, CU_BATCH_SHAPES };

/* Products of a list of experts in steps of several rows (experts.cu): matrices of one shape, which read the same rows. A warp has a ring of its own
 * of `slots` pieces, 16 outputs by CU_EXPERT_GROUPS groups. Shared memory: barriers of the rings, the list, rows of columns in the activations and in
 * y, the rings, columns of activations (planes; and behind all of them dx and X, eight by eight). */
enum { CU_EXPERT_WARPS = 8, CU_EXPERT_GROUPS = 8, CU_EXPERT_SLOTS = 8, CU_EXPERT_PARTS = 2, CU_EXPERT_ROWS = 8 }; /* rows: of an entry at most */
#define CU_EXPERT_FORMATS(X) X(4g64, CU_FMT_AFFINE, 4, 64, CU_S_BF16) X(4g64_f16, CU_FMT_AFFINE, 4, 64, CU_S_F16) /* of CU_STREAM_FORMATS */
typedef struct cu_experts {
    struct {
        const uint8_t *codes, *scales, *biases;
        float *y;
        int64_t y_stride;    /* floats */
    } part[CU_EXPERT_PARTS];
    cu_planes x;
    const int32_t *x_row, *y_row, *tiles; /* cu_linear */
    int64_t row_bytes, expert_rows; /* cu_weight */
    uint64_t ends;           /* bit g: group g is the last one of a segment */
    int32_t n_out, n_groups, chunks; /* of a matrix; chunks of CU_EXPERT_GROUPS groups of a row */
    int32_t tiles_of, tiles_all; /* tiles of a matrix, of all of them */
    int32_t stride, scale_stride, scale_step; /* bytes from row to row of a piece, of its codes and of its scales; from chunk to chunk of scales: 0 when a
                                piece has those of all groups, as they stand in memory, else 16 */
    int32_t slots, piece_bytes;
    int32_t list_at, rows_at, ring_at, x_at, x_bytes, d_at, d_bytes, columns;
    int32_t entries;         /* of the list at most */
    int32_t wait_first;      /* cu_stream */
} cu_experts;

/* KV state of one layer. Head h of block b is at base + (b*n_heads + h)*head_bytes: K high bytes [64][dim], K low bytes, V high
 * bytes [dim][64], V low bytes, then f32 dk [parts][64] and dv [64]. */
typedef struct cu_kv {
    uint8_t *base;
    int64_t head_bytes;
    int32_t n_heads, dim, window, group;
} cu_kv;

/* Counting sort of the routed rows: slots [n], their rows [n], expert_at [E+1], tiles (see cu_linear). */
typedef struct cu_sort {
    const int32_t *route;    /* row r: k expert ids at route + r*stride */
    int32_t *slots, *rows, *expert_at, *tiles;
    int32_t *counts;         /* [blocks][E], when several blocks sort */
    int32_t stride, n_rows, k, n_experts;
    int32_t tile, pad;       /* rows of a tile at most */
} cu_sort;
enum { CU_SORT_BLOCKS = 32, CU_SORT_ROWS = 2048 }; /* one block for each so many rows */
#define CU_SORT_SHARED(n_experts) (33 * (n_experts) * 4) /* bytes of k_moe_sort's shared memory: counts of each warp, and of all */

/* One row-wise operation; the fields are those of cb_op with addresses in place of value numbers. A value that no other launch reads
 * stays in shared memory: in_local and out_local are its place there in floats, or -1. */
typedef struct cu_row_op {
    int32_t kind, op;        /* cb_op_kind; index in the plan, for reports */
    int32_t n[6];
    float f[2];
    const float *in[3];
    float *out;
    int32_t in_stride[3], out_stride; /* floats between rows */
    int32_t in_local[3], out_local;
    int32_t width;           /* of the output */
    int32_t stage;           /* room for a copy of the input in shared memory, or -1 */
    const float *w;          /* a vector, or NULL */
    const double *freq;      /* CB_ROPE_TABLE */
    union {
        cu_planes q;         /* CB_QUANT's output */
        cu_weight embed;     /* CB_EMBED's matrix */
        cu_kv kv;            /* CB_KV_PUT's state */
        cu_sort sort;        /* CB_MOE_SORT of a single row */
    } u;
} cu_row_op;

/* A list of them; the table stands in device memory and is copied to shared memory while the kernel waits for its turn. */
enum { CU_MAX_ROW_OPS = 20, CU_ROW_SHARED = 200 * 1024 };
typedef struct cu_rows {
    cu_step *step;
    const cu_row_op *ops;
    int32_t n_ops, pad;
} cu_rows;

/* The same for many rows (rows_many.cu): chains in which an operation reads what the one before made, or memory. */
enum { CU_MANY_OPS = 8, CU_MANY_SINGLE = 8, CU_MANY_WIDTH = 16384, CU_MANY_NARROW = 12288, CU_MANY_ELEMENTS = 16 }; /* elements of a thread */
enum { CU_PUT_ROWS = 64, CU_PUT_DIM = 256 }; /* k_kv_put_many: rows of a thread block, most dims of a head */
typedef struct cu_rows_many {
    cu_step *step;
    const cu_row_op *ops;
    int32_t n_ops, n_rows;
    int32_t width;           /* of a row; a route's is its own */
    int32_t warps;           /* that share a row: all of the block; 1: up to CU_MANY_SINGLE rows a block */
    int32_t ahead, pad;      /* bit k: input k of the first op is a row like all, which may be fetched ahead */
} cu_rows_many;

/* Chains for few rows (few.cuh): a thread keeps neighbouring elements of the row in registers. Inputs are what the op before left there (x is
 * NULL and from -1), what an earlier one left at a place in shared memory, counted in units of 32 floats, or what stands in memory. */
enum { CU_FEW_OPS = 10, CU_FEW_WIDTH = 4096, CU_FEW_PARTS = 8, CU_FEW_ROWS = 128 };
/* Units of shared memory for a row of up to n elements (few.cuh, squares()). */
#define CU_FEW_ROOM(n) ((((n) + 511) / 512 + 1) * 18 + 1)
typedef struct cu_few_op {
    int32_t kind, op;        /* cb_op_kind; index in the plan, for reports */
    int32_t n, m;            /* norm: n = 1, its squares are summed already, m = 1, x is a wanted row; unit: n = act; Hadamard: n = block, m = back;
                                quantisation: n = 1, of the same groups and value as the op before; sum of experts: n = how many */
    float f;
    int16_t from, keep;      /* places of x (of an addition without b: of the other summand) and for the output, or -1 */
    const float *x, *b, *w;  /* row 0 of the inputs; a vector or a number of the model (w_stride 0), or the gate of each row */
    float *out;              /* NULL: no other launch reads it */
    int32_t x_stride, b_stride, w_stride, out_stride; /* floats between rows */
    union {
        cu_planes q;         /* CB_QUANT's output; `sum` is left as it is */
        cu_weight embed;     /* CB_EMBED's matrix */
        struct {
            const float *y, *route; /* CB_MOE_SUM: slot s of row r at y + (r*n + s)*y_stride, its weights at route + r*route_stride + n */
            int32_t y_stride, route_stride;
        } sum;
    } u;
} cu_few_op;
/* Where the parts of a row meet: zero between launches but for the parts' words. */
typedef struct cu_few_join {
    uint32_t arrived, most[CU_FEW_PARTS]; /* of each part the bits of its largest magnitude, and its sum of squares in any order */
    float squares[CU_FEW_PARTS];
} cu_few_join;
/* A choice of experts beside the chain: n logits at z + row*z_stride; ids, then weights, to y + row*y_stride. Steps of one row: the sorted
 * slots too (cu_linear), each a tile of its own. */
typedef struct cu_route {
    const float *z, *w;      /* w: the experts' scales, or NULL */
    float *y;
    int32_t *slots, *rows, *tiles; /* NULL: not wanted */
    int32_t z_stride, y_stride;
    int32_t n, k, kind, op;  /* kind: CB_ROUTE_...; op: for reports */
} cu_route;
typedef struct cu_rows_few {
    cu_step *step;
    const cu_row_op *side;   /* other ops that the same thread block does: those of side_mask */
    cu_few_join *join;       /* [rows] */
    uint32_t side_mask;
    int32_t n_ops;
    int32_t width, n_parts;  /* elements of a part of the row */
    int32_t whole, pad;      /* of the row (row_clusters.cu; the last part may be shorter) */
    float inverse;           /* 1 / width of the row where that is exact, else 0 */
    int32_t has_route;
    cu_route route;          /* by a thread block of its own */
    cu_few_op o[CU_FEW_OPS];
} cu_rows_few;
/* Two chains of the same operations that have nothing to do with each other: n_rows thread blocks for the first, the others for the second. */
typedef struct cu_rows_two {
    cu_rows_few part[2];
    int32_t n_rows, pad;
} cu_rows_two;

/* Chains that have a kernel of their own (row_chains.cu): X(kernel, elements a thread, widest part, ops...). An op is its kind and where x
 * comes from: registers, memory, the place (what is kept stays in registers); quantisations and norms of the same value again. An addition may
 * take its other summand from the place. */
enum { CU_FROM_REG, CU_FROM_MEM, CU_FROM_KEPT, CU_AGAIN = 4 };
#define CU_LINK(kind, flags) ((kind) * 8 + (flags))
#define R_(kind) CU_LINK(CB_##kind, CU_FROM_REG)
#define M_(kind) CU_LINK(CB_##kind, CU_FROM_MEM)
#define K_(kind) CU_LINK(CB_##kind, CU_FROM_KEPT | CU_AGAIN)
#define P_(kind) CU_LINK(CB_##kind, CU_FROM_KEPT)
#define A_(kind) CU_LINK(CB_##kind, CU_FROM_REG | CU_AGAIN)
#define CU_CHAINS(X)                                                                                                                        \
    X(quant4, 4, 1024, M_(QUANT))                                                                                                           \
    X(quant8, 8, 4096, M_(QUANT))                                                                                                           \
    X(norm8, 8, 4096, M_(RMSNORM))                                                                                                          \
    X(norm_quant4, 4, 2048, M_(RMSNORM), R_(QUANT))                                                                                         \
    X(norm_quant8, 8, 4096, M_(RMSNORM), R_(QUANT))                                                                                         \
    X(norm_quant_quant4, 4, 2048, M_(RMSNORM), R_(QUANT), A_(QUANT))                                                                        \
    X(norm_quant_quant8, 8, 3072, M_(RMSNORM), R_(QUANT), A_(QUANT))                                                                        \
    X(glu_quant4, 4, 1024, M_(GLU), R_(QUANT))                                                                                              \
    X(glu_quant8, 8, 4096, M_(GLU), R_(QUANT))                                                                                              \
    X(moe_norm_quant8, 8, 2048, M_(MOE_SUM), R_(ADD), R_(ADD_GATED), R_(RMSNORM), R_(QUANT))                                                \
    X(embed_norm_quant8, 8, 4096, R_(EMBED), R_(RMSNORM), R_(QUANT))                                                                        \
    X(embed_norm_quant_quant8, 8, 4096, R_(EMBED), R_(RMSNORM), R_(QUANT), A_(QUANT))                                                       \
    X(had_quant8, 8,   4096, M_(HADAMARD), R_(QUANT))                                                                                       \
    X(norm_had_quant8, 8,   4096, M_(RMSNORM), R_(HADAMARD), R_(QUANT))                                                                     \
    X(norm_quant_had_quant8, 8,   4096, M_(RMSNORM), R_(QUANT), R_(HADAMARD), R_(QUANT))                                                    \
    X(glu_had_quant8, 8,   4096, M_(GLU), R_(HADAMARD), R_(QUANT))                                                                          \
    X(norm_add_norm_quant8, 8, 3072, M_(RMSNORM), R_(ADD), R_(RMSNORM), R_(QUANT))                                                          \
    X(gemma_moe_in8, 8, 3072, M_(RMSNORM), R_(ADD), R_(RMSNORM), R_(QUANT), K_(RMSNORM), R_(SCALE), R_(QUANT), K_(RMSNORM), R_(QUANT))      \
    X(gemma_moe_out8, 8, 3072, M_(RMSNORM), M_(MOE_SUM), R_(RMSNORM), P_(ADD), R_(RMSNORM), R_(ADD), R_(SCALE), R_(RMSNORM), R_(QUANT))

/* Chains of a step's only row, which the thread blocks of a cluster share (row_clusters.cu): X(kernel, branches, ops...). A branch, up to three,
 * is a set of ops, by bits, that ends with a quantisation, or has none; each has a cluster of its own. */
#define CU_CLUSTERS(X)                                                                                                         \
    X(quant, 1, 0, 0, M_(QUANT))                                                                                               \
    X(norm_quant, 3, 0, 0, M_(RMSNORM), R_(QUANT))                                                                             \
    X(norm_quant_quant, 7, 0, 0, M_(RMSNORM), R_(QUANT), A_(QUANT))                                                            \
    X(embed_norm_quant, 7, 0, 0, R_(EMBED), R_(RMSNORM), R_(QUANT))                                                            \
    X(embed_norm_quant_quant, 15, 0, 0, R_(EMBED), R_(RMSNORM), R_(QUANT), A_(QUANT))                                          \
    X(embed_had_norm_quant_had_quant, 15, 55, 0, R_(EMBED), R_(HADAMARD), R_(RMSNORM), R_(QUANT), R_(HADAMARD), R_(QUANT))     \
    X(had_quant, 3, 0, 0, M_(HADAMARD), R_(QUANT))                                                                             \
    X(norm_had_quant, 7, 0, 0, M_(RMSNORM), R_(HADAMARD), R_(QUANT))                                                           \
    X(norm_quant_had_quant, 3, 13, 0, M_(RMSNORM), R_(QUANT), R_(HADAMARD), R_(QUANT))                                         \
    X(glu_quant, 3, 0, 0, M_(GLU), R_(QUANT))                                                                                  \
    X(glu_had_quant, 7, 0, 0, M_(GLU), R_(HADAMARD), R_(QUANT))                                                                \
    X(moe_norm_quant, 31, 0, 0, M_(MOE_SUM), R_(ADD), R_(ADD_GATED), R_(RMSNORM), R_(QUANT))                                   \
    X(norm_add_norm_quant, 15, 0, 0, M_(RMSNORM), R_(ADD), R_(RMSNORM), R_(QUANT))                                             \
    X(gemma_moe_in, 15, 115, 387, M_(RMSNORM), R_(ADD), R_(RMSNORM), R_(QUANT), K_(RMSNORM), R_(SCALE), R_(QUANT), K_(RMSNORM), R_(QUANT)) \
    X(gemma_moe_out, 511, 0, 0, M_(RMSNORM), M_(MOE_SUM), R_(RMSNORM), P_(ADD), R_(RMSNORM), R_(ADD), R_(SCALE), R_(RMSNORM), R_(QUANT)) \
    X(gemma_moe_end, 127, 0, 0, M_(RMSNORM), M_(MOE_SUM), R_(RMSNORM), P_(ADD), R_(RMSNORM), R_(ADD), R_(SCALE))                \
    X(moe, 7, 0, 0, M_(MOE_SUM), R_(ADD), R_(ADD_GATED))
enum { CU_CLUSTER_MOST = 8, CU_CLUSTER_PART = 2048, CU_CLUSTER_WIDTH = 4096 }; /* thread blocks; elements of a part, and of a row whose squares are summed */
/* A block's shared memory: barriers; what warps tell, twice; some words; up to three rows whose squares are summed, when there are norms; the part;
 * and for each stride of a Hadamard block that parts share what another part has. */
enum { CU_CLUSTER_TELLERS = 64, CU_CLUSTER_WORDS = 2 * CU_FEW_OPS * 8, CU_CLUSTER_NORM = CU_CLUSTER_WORDS + 2 * CU_CLUSTER_TELLERS * 8, CU_CLUSTER_ROWS = CU_CLUSTER_NORM + 32 };
#define CU_CLUSTER_MINE(part) (4 * ((part) + (part) / 32 * 4 + (part) / 2048 * 16))

/* Attention. Tiles of up to 16 queries: `tile_rows` rows of one session times `heads_per_tile` query heads of one KV head. Block
 * results go to part when it is not NULL (blocks shared among thread blocks, merged by a second kernel), else to out. */
typedef struct cu_attention {
    cu_step *step;
    cu_kv kv;
    const float *q;
    float *out;
    float *part;             /* [row][query head][n_splits][dim + 2]: m, l, o; l < 0: this block is not seen */
    int32_t q_stride, out_stride; /* floats between rows */
    int32_t n_heads;         /* query heads */
    int32_t n_splits;        /* most blocks that a row sees */
    float scale;
    int32_t op;
} cu_attention;

/* k_attn_many: 96 queries a thread block, heads of 64, 128 or 256 dims; its shared memory (room in attention_many.cu). */
enum { CU_WIDE_QUERIES = 96, CU_WIDE_THREADS = 4 * CU_WIDE_QUERIES };
#define CU_ATTN_SHARED(dim) (2 * (4 * CU_BLOCK * (dim) + ((dim) / 64 + 1) * CU_BLOCK * 4) + 2 * CU_WIDE_QUERIES * (dim) + CU_WIDE_QUERIES * ((dim) / 64) * 4 + CU_WIDE_QUERIES / 16 * 5120)

enum { CU_CONV_ROWS = 32 }; /* rows of a thread of k_conv */
typedef struct cu_conv {
    cu_step *step;
    const float *x, *w;      /* w [width][taps] */
    float *y, *ring;         /* of session slot s at ring + s*ring_floats: [taps][width], the row of position p at p % taps */
    int64_t ring_floats;
    int32_t x_stride, y_stride, width, taps;
    int32_t n_rows, n_runs;
} cu_conv;

typedef struct cu_delta {
    cu_step *step;
    const float *u, *a, *b;  /* all q, all k, all v; decay inputs; beta inputs */
    const float *a_log, *dt_bias;
    float *y, *state;        /* state of slot s at state + s*state_floats: [v_heads][dv][dk] */
    int64_t state_floats;
    int32_t u_stride, a_stride, b_stride, y_stride;
    int32_t k_heads, v_heads, dk, dv;
    int32_t n_runs, pad;
} cu_delta;

/* Planes of rows whose heads are made by different thread blocks (heads.cuh). */
enum { CU_MOST_PIECES = 256 };
enum { CU_REHEARSE_ROWS = 1 }; /* kernels that run twice (heads.cuh) do so in steps of so many rows */
typedef struct cu_heads_out {
    cu_planes x;             /* planes NULL: the row stays as it is */
    int32_t *arrived;        /* [rows]: pieces of the row that are done, 0 between launches */
    float (*found)[2];         /* [rows][CU_MOST_PIECES]: largest number and sum of squares of each piece of up to 128 values of a head */
    float share;             /* for remainders */
    int32_t op;              /* for reports */
} cu_heads_out;

/* What stands between the products of a gated delta net, rows of different sessions: convolution of four taps, delta rule, norm of each
 * value head times silu(z), planes. Fields as in cu_conv and cu_delta. */
typedef struct cu_delta_step {
    cu_step *step;
    const int32_t *pos, *slot; /* those of the step: an address less to wait for */
    const float *x, *a, *b, *z; /* before the convolution; inputs of decay, beta and the gate */
    const float *conv_w, *a_log, *dt_bias, *norm_w; /* norm_w [dv] */
    float *y, *ring, *state;
    int64_t ring_floats, state_floats;
    int32_t x_stride, a_stride, b_stride, z_stride, y_stride;
    int32_t k_heads, v_heads, dk, dv;
    float eps;
    int32_t pad;
    cu_heads_out out;
} cu_delta_step;

/* What stands between the products of an attention layer, rows of different sessions. q, k and v as the products left them: head h of row
 * r is at q + r*q_stride + h*q_head, of k and v at k + r*k_stride + h*dim. Each is normed, turned, rotated in blocks (of 1: not), and
 * quantised; blocks of keys are shared out and joined, the result is rotated back and gated. */
typedef struct cu_head_norm {
    const float *w;          /* [dim]; NULL: no weight */
    float eps;
    int32_t on;
} cu_head_norm;
typedef struct cu_attn_step {
    cu_step *step;
    const int32_t *pos, *slot; /* those of the step */
    cu_kv kv;
    const float *q, *k, *v;  /* k NULL: this layer uses what an earlier one put into the state */
    const float *turn;       /* cosines [pairs], sines [pairs] of each row */
    const float *gate;       /* head h at gate + row*gate_stride + h*gate_head; NULL: no gate */
    float *out;
    float *part;             /* o [row - row0][query head][n_splits][dim], behind all of them m, l [row - row0][query head][n_splits][2] */
    cu_head_norm q_norm, k_norm, v_norm;
    int32_t q_stride, q_head, k_stride, v_stride, turn_stride, gate_stride, gate_head, out_stride;
    int32_t n_heads, n_splits, row0, n_rows;
    int32_t per, sets;       /* query heads of a KV head; thread blocks that share them, 8 each */
    int32_t slots, stage;    /* halves in the ring of k_attn_step; blocks of keys in a stage of k_attn_join */
    int32_t pairs, half, q_rope, k_rope;
    int32_t q_block, k_block, v_block, o_block; /* of the rotations, and what their results are multiplied by */
    float q_scale, k_scale, v_scale, o_scale;
    float scale;
    int32_t op, put_op;      /* for reports */
    int32_t pad;
    cu_heads_out planes;     /* of out */
} cu_attn_step;

/* k_delta_step: a thread for each channel and value of the gate, and four for each row of the state. */
#define CU_DELTA_THREADS(dk, dv) (4 * (dv) > 2 * ((dk) + (dv)) ? 4 * (dv) : 2 * ((dk) + (dv)))

/* k_attn_step of heads of up to 64*parts dims: warps; shared memory beside the ring, and of one of its halves. */
#define CU_STEP_WARPS(parts) ((parts) == 1 ? 8 : (parts) == 2 ? 16 : 20)
#define CU_STEP_FIXED(parts) ((parts) * 3712 + 2304)
#define CU_STEP_HALF(parts) (2 * CU_BLOCK * 64 * (parts) + ((parts) + 1) * CU_BLOCK * 4)
enum { CU_STEP_SLOTS = 6 };
/* A step of one row of a small model by one cluster (small.cu), from the embedding to the planes that the head reads. In each thread block's shared
 * memory a layer's weights have four regions: q, k and v; output; gate and up; down. Of each the block has tiles of 16 outputs, the same in all
 * layers: their codes, and scales with biases, in an order of their own, which copies bring, one a lane. Planes stand as a lane multiplies them, 16 bytes of each group at a time:
 * [group / 16][high, low] of CU_SMALL_PLANE bytes, then dx and X of each group. */
enum { CU_SMALL_BLOCKS = 16, CU_SMALL_WARPS = 16, CU_SMALL_THREADS = 32 * (CU_SMALL_WARPS + 2), CU_SMALL_COPIES = 32, CU_SMALL_KV_SLOTS = 4, CU_SMALL_ROUNDS = 16 };
enum { CU_SMALL_QKV, CU_SMALL_OUT, CU_SMALL_GATE, CU_SMALL_DOWN, CU_SMALL_REGIONS };
enum { CU_SMALL_PHASES = 256, CU_SMALL_NOTES = 512, CU_SMALL_BARRIERS = 512 + 3 * 1024, CU_SMALL_MOST_GROUPS = 64, CU_SMALL_MOST_HIDDEN = 1024, CU_SMALL_PAD = 576 }; /* bytes (from the beginning), bytes; groups of a row; values of the residual stream */
#define CU_SMALL_PLANE(G) (((G) * 16 + 127) / 128 * 128 + 16)
#define CU_SMALL_PLANES(G, group) ((group) / 8 * CU_SMALL_PLANE(G) + ((G) * 8 + 15) / 16 * 16)
#define CU_SMALL_FORMATS(X) /* name, group, scale_type, dims of a head; affine, 4 bits */                                              \
    X(4g32, 32, CU_S_BF16, 64) X(4g32_f16, 32, CU_S_F16, 64) X(4g32_f32, 32, CU_S_F32, 64) X(4g32_f32_32, 32, CU_S_F32, 32)           \
    X(4g64, 64, CU_S_BF16, 64) X(4g64_f16, 64, CU_S_F16, 64)
enum {
#define CU_SMALL_NAME(name, ...) CU_SMALL_##name,
    CU_SMALL_FORMATS(CU_SMALL_NAME)
#undef CU_SMALL_NAME
    CU_N_SMALL
};
/* A matrix to be stored as small.cu reads it (small_rows.cuh). */
typedef struct cu_small_pack {
    cu_weight w;
    uint8_t *codes, *scales;
} cu_small_pack;
typedef struct cu_small_copy {
    const uint8_t *from;
    uint32_t to, bytes;      /* 0: none */
} cu_small_copy;
typedef struct cu_small_region {
    int32_t at, scales;      /* in shared memory */
    int32_t tile0, tiles;    /* first one; of gate and up: of each */
} cu_small_region;
typedef struct cu_small {
    cu_step *step;
    const int32_t *token, *pos, *slot; /* those of the step */
    cu_weight embed;
    const double *freq;
    const float *last_norm;
    const cu_small_copy *copies; /* [layers][blocks][CU_SMALL_COPIES] */
    cu_attn_step attn;       /* of the first layer */
    int64_t kv_layer;        /* bytes from one layer's state to the next */
    cu_planes head;
    float embed_scale, turn_scale, eps, share, head_share;
    int32_t enough;          /* groups at least half as large as the largest that say: no remainder */
    int32_t n_layers, layer_ops; /* ops of the plan in a layer */
    int32_t norm_op, out_op, gate_op, down_op, head_op; /* quantisations, of the first layer */
    int32_t hidden, heads, ffn, most_keys, kv_slots;
    int32_t hidden_groups, heads_groups, ffn_groups;
    int32_t half_sums;       /* bytes of `sums`; as many behind them, at `keys`, are for sums of remainders, or a row */
    int32_t x, qkv, turn, own, sums, stage, factors, part, found, keys, kv; /* places in shared memory: the residual stream, queries with keys and values, cosines
                                 and sines, values before they were quantised, sums of tiles and of what remainders add (or a row), bytes on their way, weights of blocks of keys, their results and
                                 what is known of them, two of attn_heads.cuh's, rings of keys and values */
    int32_t norm, planes, unit, rest; /* planes: of norms, of attention, of units, of what they leave */
    int32_t norm_w[2];       /* weights of norms */
    cu_small_region region[CU_SMALL_BLOCKS][CU_SMALL_REGIONS];
} cu_small;

/* Steps of one row of larger models (tape.cu): one thread block on every multiprocessor, and all walk through a tape of phases: a row is made and
 * multiplied by matrices whose tiles of 16 outputs the blocks share, or delta rules whose heads they share. What blocks make of a row they tell the
 * others as words in memory, each of which is CU_UNTOLD until it is told; there are two sets of them, which steps use in turn, and a step clears the
 * other one. Shared memory: barriers, where tiles are, words of warps, zeros; where keys come from; barriers of
 * the tape, of which a window is there, and it; the residual stream and a row on its way (few.cuh, place());
 * planes of the row, of what they leave, and of a row for plain products (its two planes, dx and X, behind each other); sums of tiles; a ring of
 * tiles of different size. */
#define CU_UNTOLD 0xffffffffu
enum { CU_TAPE_FRESH = 2 }; /* a thread block may see other maps than those in memory: none has looked since they were written */
enum { CU_TAPE_WARPS = 16, CU_TAPE_WORKERS = 32 * CU_TAPE_WARPS, CU_TAPE_THREADS = CU_TAPE_WORKERS + 64, CU_TAPE_SLOTS = 32, CU_TAPE_PHASES = 400, CU_TAPE_WINDOW = 8, CU_TAPE_MATRICES = 4 };
enum { CU_TAPE_ROUNDS = 3, CU_TAPE_TILES = 32, CU_TAPE_ALIGNED = 1024 }; /* values of a row: 8 a worker, so many times; tiles of a block in a phase at most */
enum { CU_TAPE_FOUND = 16 * CU_TAPE_SLOTS, CU_TAPE_AT = CU_TAPE_FOUND + 16 * CU_TAPE_WARPS, CU_TAPE_ZEROS = CU_TAPE_AT + 8 * CU_TAPE_SLOTS, CU_TAPE_WORDS = CU_TAPE_ZEROS + 256, CU_TAPE_SESSION = CU_TAPE_WORDS + 48, CU_TAPE_FROM = CU_TAPE_WORDS + 64, CU_TAPE_LISTED = CU_TAPE_FROM + 8 * CU_TAPE_SLOTS, CU_TAPE_LIST = CU_TAPE_LISTED + 16 * CU_TAPE_WINDOW }; /* bytes from the beginning */
#define CU_TAPE_FORMATS(X) /* of CU_STREAM_FORMATS */ \
    X(2g128, CU_FMT_AFFINE, 2, 128, CU_S_BF16) X(2g128_f16, CU_FMT_AFFINE, 2, 128, CU_S_F16) X(4g64, CU_FMT_AFFINE, 4, 64, CU_S_BF16)
enum {
#define CU_TAPE_NAME(name, ...) CU_TAPE_##name,
    CU_TAPE_FORMATS(CU_TAPE_NAME)
#undef CU_TAPE_NAME
    CU_N_TAPE
};
/* The norm of the residual stream; a row; delta rules; attention; units of the experts that the warp of tiles chooses, of the planes at hand; their
 * sum, with a shared expert's, as the next residual stream (tape_experts.cuh). k_tape_normed (tape_normed.cuh): what attention gave, normed and added
 * to the residual stream, and that under other norms for a router and a dense MLP; experts make planes of their own and their sum is told as it is. */
enum { CU_TAPE_NORM, CU_TAPE_ROW, CU_TAPE_DELTA, CU_TAPE_ATTN, CU_TAPE_EXPERTS, CU_TAPE_DOWN, CU_TAPE_INTO };
enum { CU_TAPE_CHOSEN = 16, CU_TAPE_EXPERTS_MOST = 256, CU_TAPE_EXPERTS_FEW = 128 }; /* experts of a row at most, and to choose from; in k_tape_normed */
typedef struct cu_tape_matrix {
    const void *map;         /* of the codes (CUtensorMap): boxes of 16 rows, 128 bytes of each behind the other */
    const uint8_t *scales, *biases;
    int32_t tiles, to;       /* its outputs are told from word `to` on */
} cu_tape_matrix;
typedef struct cu_tape_plain { /* few rows of CU_FMT_PLANES, or affine of 8 bits, group 64: y[row] of the row before it is rotated */
    const uint8_t *codes;
    const float *scales;     /* f32; of affine ones bf16, and */
    const uint16_t *biases;
    int64_t row_bytes;
    int32_t rows, to;
} cu_tape_plain;
typedef struct cu_tape_route { /* which experts, and how their results are joined */
    int32_t logits, gate;    /* words: of all experts; of the shared one's gate */
    int32_t n, k, kind, op;  /* experts, of which k are chosen; CB_ROUTE_; of the choice, for reports */
    int32_t tiles, step;     /* of CU_TAPE_EXPERTS: tiles of an expert's matrix; from one expert's first tile to the next one's */
    int32_t width, groups;   /* of CU_TAPE_DOWN: values of an expert's row, k of which and the shared one's stand behind each other, and groups */
} cu_tape_route;
/* k_tape_normed: the residual stream becomes (x + r) * *scale, r the norm of row 0, or the norm of the sum of both rows' norms. */
typedef struct cu_tape_added {
    int32_t n, from[2];      /* rows, 0: none; words */
    float eps[2], both_eps;
    const float *w[2], *both_w, *scale; /* scale NULL: as it is */
} cu_tape_added;
typedef struct cu_tape_phase {
    int32_t kind, n;         /* n: values of the row */
    int32_t from;            /* word where the row, or of a norm the residual stream, was told; -1: it stands in memory, at `in` */
    int32_t op, plain_op;    /* quantisations, for reports */
    const float *in;
    float *out;              /* a norm's residual stream goes there, too; or NULL */
    const float *norm_w, *signs; /* signs NULL: none */
    float eps, inverse;      /* inverse: 1/n where that is exact, else 0 */
    int32_t block;           /* of the rotation; 0: none */
    float turn_scale;
    float share, plain_share; /* for remainders; negative: there are none */
    int32_t n_groups;
    int32_t n_matrices, tiles; /* matrices; tiles of all, or of units of each of the two */
    int32_t pieces;          /* tiles that belong together: of gate and up 2; of all experts' results */
    int32_t units, adds;     /* gate and up of which silu(gate) * up are made; outputs are added to the residual stream */
    int32_t row_bytes, scale_bytes, tile_bytes; /* of a row of codes; of its scales; of a tile in the ring */
    union {
        struct {
            cu_tape_matrix matrix[CU_TAPE_MATRICES];
            cu_tape_plain plain[2];
            int32_t n_plain, affine;
            cu_tape_route route;
            cu_tape_added added; /* before the norm of the residual stream */
            const float *plain_w; /* CU_TAPE_INTO: the norm of the plain products' row, which is then multiplied by plain_scale */
            const float *expert_scale; /* CU_TAPE_EXPERTS: factors of experts, or NULL */
            float plain_scale;
            int32_t bytes;       /* matrices of 8 bits, group 64 */
        } m;
        struct {
            cu_delta_step a;     /* but for x, a, b, z, y, their strides, and out */
            int32_t x, z, alpha, beta, to; /* words */
        } d;
        struct {
            cu_attn_step a;      /* but for q, k, v, gate, out, part, planes */
            int32_t q, k, v, gate, to; /* words: of the first head; gate -1: none */
            int32_t ml, o;       /* words of results of blocks of keys: m, l [query head][CU_CLUSTER_BLOCKS][2], o [query head][CU_CLUSTER_BLOCKS][dim] */
        } a;
    } u;
    int32_t pad[4];          /* whole pieces of 16 bytes */
} cu_tape_phase;
typedef struct cu_tape {
    cu_step *step;
    const int32_t *pos, *slot, *turn; /* those of the step */
    const cu_tape_phase *phases;
    float *told;             /* [2][words] */
    int32_t words;           /* a multiple of 4 */
    int32_t n_phases, width; /* width: of the residual stream */
    int32_t x, row, planes, rests, plain, sums, chosen, ring, ring_bytes; /* places in shared memory; of the ring also how large it is */
    int32_t heads;           /* and of attention */
    int32_t half_sums;       /* bytes of the sums; behind them are those of what planes leave */
} cu_tape;

/* k_attn_cluster: blocks of keys of a row, and thread blocks of a cluster at most; warps; shared memory beside the ring and o [n_splits][dim]. */
enum { CU_CLUSTER_BLOCKS = 32, CU_CLUSTER_RANKS = 16, CU_CLUSTER_WARPS = 16 };
#define CU_CLUSTER_TOLD(parts) (768 * (parts) + 128)
#define CU_ATTN_CLUSTER_FIXED(parts) (CU_STEP_FIXED(parts) + CU_CLUSTER_TOLD(parts) + 24 * CU_CLUSTER_BLOCKS)
/* k_attn_join: floats of a stage, and stages. k_attn_join_cluster: thread blocks that share a head, from so many blocks of keys on; shared memory
 * beside the stages. */
enum { CU_JOIN_FLOATS = 8192, CU_JOIN_STAGES = 4, CU_JOIN_RANKS = 4, CU_JOIN_DEEP = 64 };
#define CU_JOIN_FIXED(dim) (20 * (dim) + 128)

/* Float matrix rows to planes: in [rows][k] of f32, f16 or bf16 (CU_S_...). */
typedef struct cu_encode {
    const uint8_t *in;
    uint8_t *codes;
    float *scales;
    int32_t *bad_row;        /* 1 + a row with a value that is not finite is stored here */
    int64_t row0;            /* of the first row, for bad_row */
    int32_t n_rows, k, type, n_groups;
} cu_encode;

/* The rows that have a remainder, as a sorted list of one expert (cu_linear): expert_at = list, x_row = list + 4, y_row behind. */
typedef struct cu_remainders {
    const int32_t *flag;
    int32_t *list;           /* 0, how many, two unused; rows of the remainders [n_rows]; the rows themselves [n_rows] */
    int32_t n_rows, shift;   /* shift: from a row to its remainder */
} cu_remainders;

/* The largest logit of each row; also looks for values that are not finite. A thread block takes CU_BEST_BLOCK logits. */
enum { CU_BEST_BLOCK = 2048 };
typedef struct cu_best {
    cu_step *step;
    const float *logits;     /* [rows][n] */
    unsigned long long *best; /* [rows]: ordered logit << 32 | ~index; zeroed before */
    unsigned long long *later; /* [rows], and */
    struct cu_bins *bins;    /* [rows], are zeroed for the sampling that follows, if any does */
    int32_t n, n_rows;
    int32_t op;              /* for reports; -1: none, because bans have put infinities there */
    int32_t pad;
} cu_best;

/* Sampling (plan/top.h, sample.cu). What is asked for a row, and its changes: n_changes of them from change0 on. */
enum { CU_ASK_DRAW = 2, CU_ASK_TOP = 3, CU_TOP = 2048, CU_TOP_BINS = 1024 };
typedef struct cu_ask {
    int32_t kind, n_changes, change0, count;
    float repetition, presence, frequency, t, p, reach;
    unsigned long long random;
} cu_ask;
typedef struct cu_change {
    int32_t id;
    float bias;
    uint32_t in_all, n_own;
} cu_change;
/* How many logits of a row, and what weight of them, lie how far below the largest. */
typedef struct cu_bins {
    unsigned long long mass[CU_TOP_BINS];
    uint32_t count[CU_TOP_BINS];
} cu_bins;
typedef struct cu_top {
    unsigned long long max, best; /* before and after the changes: as cu_best has them */
    unsigned long long sum;
    int32_t bad_op, pad;     /* the step's */
    uint32_t n, low;         /* low: ordered logit; 0: no other */
    int32_t drawn;
    float drawn_z;
    unsigned long long list[CU_TOP]; /* [n] id << 32 | bits of the logit */
} cu_top;
typedef struct cu_sample {
    const cu_step *step;
    float *logits;           /* [rows][n] */
    const cu_ask *asks;      /* [rows] */
    const cu_change *changes;
    unsigned long long *max, *best; /* [rows]; the same where there are no changes */
    cu_bins *bins;           /* [rows] */
    unsigned long long *sums; /* [rows][blocks] weights of each CU_BEST_BLOCK logits */
    cu_top *top;             /* [rows] */
    int32_t n, n_rows;
} cu_sample;

typedef struct cu_probe {
    const uint8_t *in;
    uint32_t *out;
    int64_t n;               /* 16-byte words */
} cu_probe;
#endif
