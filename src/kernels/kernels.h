/* kernels.h: the kernel table. Scalar C (kernels_c.c and *_c.c) is the truth of every slot; a SIMD file may replace a slot
 * by code that gives the same bits for every input, size and alignment (docs/arithmetic.md). Kernels take pointers and
 * sizes, never plans; they read exactly the bytes they are given (a weight may end where a mapped file ends), keep no
 * state and start no threads. */
#ifndef CB_KERNELS_H
#define CB_KERNELS_H
#include "base/portable.h"
#include "io/dtype.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CB_ISA_AVX2 = 1, CB_ISA_AVX512 = 2, CB_ISA_NEON = 4 };

/* ---- activation planes -------------------------------------------------------------------------------------------- */

/* A row of K activations as 16-bit fixed point, one scale per group (docs/arithmetic.md, "linear"):
 *   m = max|x|, inv = 32512/m, xi = clamp(rint(x*inv)), hi = (xi+128)>>8, lo = xi - 256*hi, dx = m*(1/32512)
 * The planes stand in the order in which a 64-byte block of packed weights yields its codes: with `pack` codes to a byte
 * (4 at 2 bits, 2 at 4 bits, 8 at 1 bit, else 1) element e of the row is
 *   block b = e/(64*pack), byte m = e%(64*pack)/pack, plane j = e%pack,
 *   hi at b*128*pack + j*64 + m, lo at 64*pack bytes after it. The last block is padded with zeros. */
typedef struct cb_qrows {
    int8_t *planes;       /* [rows][plane_stride], 64-byte aligned */
    float *dx;            /* [rows][n_groups] */
    float *xs;            /* [rows][n_groups]: dx * (float)sum(xi) */
    int32_t *sum;         /* [rows][n_groups]: sum(xi) */
    size_t plane_stride;  /* bytes, a multiple of 128*pack */
    int n_groups;
} cb_qrows;

static inline int cb_pack_of_bits(int bits) { return bits == 4 ? 2 : bits == 2 ? 4 : bits == 1 ? 8 : 1; }
static inline size_t cb_plane_stride(int64_t k, int pack)
{
    return (size_t)((k + 64 * pack - 1) / (64 * pack)) * 128 * (size_t)pack;
}

/* ---- linear ------------------------------------------------------------------------------------------------------- */

enum { CB_ROW_UNIT = 16 }; /* threads split the outputs in multiples of this */

typedef enum cb_fmt {
    CB_FMT_AFFINE, /* codes of 1,2,3,4,5,6,8 bits, scale and bias per group:  acc = fma(b,X,acc); acc = fma(s,p,acc) */
    CB_FMT_FP4,    /* E2M1 nibbles, integers 2*value; scale is half the stored one; no bias:  acc = fma(s,p,acc) */
    CB_FMT_PLANES  /* float weights encoded at load, two unsigned planes per group of 64:     acc = fma(s,p,acc) */
} cb_fmt;

typedef enum cb_scale_type { CB_S_F32, CB_S_F16, CB_S_BF16, CB_S_E8M0, CB_S_E4M3 } cb_scale_type;

static inline size_t cb_scale_size(cb_scale_type t) { return t == CB_S_F32 ? 4 : t == CB_S_E8M0 || t == CB_S_E4M3 ? 1 : 2; }

/* One product: y[r][n] = sum over k of W[n][k] x[r][k], for n0 <= n < n1 and all rows. p = dx * (float)D with D the exact
 * integer sum of code*xi over the group; groups in ascending order inside 8 contiguous segments (segment l is groups
 * l*G/8 up to (l+1)*G/8), each from +0; y = ((S0+S1)+S2)+...+S7. */
typedef struct cb_mm {
    cb_fmt fmt;
    int bits, group, n_groups;
    int64_t k;                     /* inputs; n_groups*group >= k */
    const uint8_t *codes;          /* row n starts at codes + n*row_bytes, any alignment */
    size_t row_bytes;              /* stored bytes of a row: k*bits/8; CB_FMT_PLANES: n_groups*128 */
    const uint8_t *scales;         /* [n][n_groups] of scale_type, any alignment */
    const uint8_t *biases;         /* the same, CB_FMT_AFFINE only */
    cb_scale_type scale_type;
    float global_scale;            /* CB_FMT_FP4: multiplies each decoded scale (1 for mxfp4) */
    cb_qrows x;                    /* quantised with the same group and pack = cb_pack_of_bits(bits); FP4: pack 2 */
    int n_rows;
    const int32_t *x_row, *y_row;  /* [n_rows]: which row of x to read, of y to write; NULL: r itself */
    float *y;                      /* [..][y_stride] */
    size_t y_stride;               /* floats */
    bool add;                      /* y += result (one f32 addition) instead of y = result */
} cb_mm;

/* CB_FMT_PLANES: group g of row n is 128 bytes at codes + n*row_bytes + g*128: 64 high bytes, then 64 low bytes, of
 * w' = wi + 32768 = 256*high + low (both unsigned bytes); wi is 16-bit as xi is, and the scale is dw. Missing
 * elements of the last group hold wi = 0. D = sum wi*xi; |D| may pass 2^31, and (float)D rounds the exact value once. */

/* Scratch a thread brings to `linear`: bytes, for k inputs. 64-byte aligned. */
static inline size_t cb_linear_scratch(int64_t k) { return (size_t)(k + 1024) * 128 + 65536; }

/* ---- attention ---------------------------------------------------------------------------------------------------- */

enum { CB_KV_BLOCK = 64 }; /* tokens in a KV block; blocks are aligned to absolute positions */

/* K and V of one KV head in one block, 16-bit fixed point (xi as above). K has a scale per token and 64 dims (a head of
 * 256 has four; the last may cover fewer dims), V one per token:
 *   k  int16 [dim/2][64][2]: dims 2i, 2i+1 of token t at ((i*64)+t)*2     dk f32 [cb_head_parts(dim)][64]
 *   v  int16 [32][dim][2]: tokens 2i, 2i+1 of dim d at ((i*dim)+d)*2     dv f32 [64]
 * The two int8 planes of docs/arithmetic.md are hi = (xi+128)>>8 and xi - 256*hi of these numbers. dim is even. */
static inline int cb_head_parts(int dim) { return (dim + 63) / 64; }

typedef struct cb_kv_view {
    const int16_t *k, *v;
    const float *dk, *dv;
} cb_kv_view;

/* n_q query heads against one block. Query i sees tokens lo[i] <= t < hi[i] of the block (0..64, lo < hi).
 *   score_t = sum over parts g of 64 dims, ascending: s = fma((float)(sum qi*ki), dqs_g*dk_gt, s), s from +0
 *   m = max score      p_t = exp(score_t - m)      l = lane tree (32) of p_t
 *   w_t = p_t*dv_t, wm = max w, wi_t = clamp(rint(w_t * (65024/wm))) unsigned, dw = wm*(1/65024); wm below 2^-100: all 0
 *   o_d = dw * (float)(sum wi_t*vi_td) */
typedef struct cb_attn {
    int dim, n_q;
    const int16_t *qh, *ql;     /* [n_q][dim]: hi and lo of the query's 16-bit numbers, 64-byte aligned base */
    const float *dqs;           /* [n_q][cb_head_parts(dim)]: query scales times the softmax scale */
    const int32_t *lo, *hi;     /* [n_q] */
    cb_kv_view kv;
    float *m, *l;               /* [n_q] */
    float *o;                   /* [n_q][dim] */
} cb_attn;

typedef struct cb_kernels {
    const char *name; /* "c", "avx2", "avx512", "neon" */

    /* One row of n floats to planes; sizes as cb_qrows for one row. n need not be a multiple of group. */
    void (*quant_row)(const float *x, int n, int group, int pack, int8_t *planes, float *dx, float *xs, int32_t *sum);
    /* n stored floats (BF16, F16 or F32, any alignment) as cb_encode_planes makes them; out is 64-byte aligned. False when one
     * is not finite: then out means nothing. */
    bool (*encode_row)(const uint8_t *p, cb_dtype t, int64_t n, uint8_t *out, float *scales);
    /* scratch: cb_linear_scratch(k) bytes, 64-byte aligned, contents of no meaning. n0 is a multiple of CB_ROW_UNIT. */
    void (*linear)(const cb_mm *mm, int64_t n0, int64_t n1, void *scratch);

    /* y = (x * inv) * w; inv = 1/sqrt(ss/n + eps), ss = lane tree (32) of x*x by fma. w may be NULL (then y = x*inv).
     * y may be x. */
    void (*rmsnorm)(float *y, const float *x, const float *w, int n, float eps);
    float (*sum_squares)(const float *x, int n);                           /* that ss */
    void (*silu_mul)(float *y, const float *gate, const float *up, int n); /* y = silu(gate) * up */
    void (*gelu_mul)(float *y, const float *gate, const float *up, int n); /* y = gelu_tanh(gate) * up */
    void (*add)(float *y, const float *a, const float *b, int n);          /* y = a + b */
    void (*scale)(float *y, const float *x, float s, int n);               /* y = x * s */
    void (*divide)(float *y, const float *x, float s, int n);              /* y = x / s */
    void (*softcap)(float *y, const float *x, float cap, int n);           /* y = cap * tanh(x / cap) */
    /* Rotates n_pairs pairs (i, i + half) of one head in place: a' = fma(a, cos, -(b*sin)), b' = fma(b, cos, a*sin).
     * cs holds n_pairs cosines, then n_pairs sines. */
    void (*rope)(float *x, const float *cs, int n_pairs, int half);
    /* 16-bit numbers of one vector, n even or odd: xi[n], returns the scale dx (0 when the vector is zero). */
    float (*quant16)(const float *x, int n, int16_t *xi);
    /* n such numbers to their planes: hi[i] = (xi[i] + 128) >> 8, lo[i] = xi[i] - 256*hi[i]. hi may be xi. */
    void (*split16)(int16_t *hi, int16_t *lo, const int16_t *xi, int n);
    void (*attn_block)(const cb_attn *a);
    /* Merges block result (m, l, o) into the running (*mm, *ll, oo): M = max(*mm, m), a = exp(*mm - M), c = exp(m - M),
     * *ll = fma(*ll, a, l*c), oo = fma(oo, a, o*c). */
    void (*attn_merge)(float *mm, float *ll, float *oo, float m, float l, const float *o, int dim);
    void (*axpy)(float *y, float a, const float *x, int n);                /* y = fma(a, x, y) */
    /* y = sigmoid(gate) * up */
    void (*sigmoid_mul)(float *y, const float *gate, const float *up, int n);
    void (*mul)(float *y, const float *a, const float *b, int n);          /* y = a * b */
    /* y = (x * inv) * factor; inv = 1/sqrt(ss + eps), ss as in rmsnorm. y may be x. */
    void (*unit)(float *y, const float *x, int n, float eps, float factor);
    /* y = exp(x - m); the result is their lane tree (32) of plain additions. y may be x. */
    float (*exp_sum)(float *y, const float *x, float m, int n);
    /* n heads: decay = exp(-(exp(a_log) * softplus(a + dt_bias))), beta = sigmoid(b) */
    void (*delta_gates)(float *decay, float *beta, const float *a, const float *b, const float *a_log, const float *dt_bias, int n);
    /* Walsh-Hadamard in place over consecutive blocks of `block` (a power of two): strides 1, 2, 4, ... ascending replace
     * (a, b) by (a+b, a-b), then every value is multiplied by `scale`. */
    void (*hadamard)(float *x, int n, int block, float scale);
    /* One channel range of a causal convolution: y[c] = silu(acc), acc = fma(w[c*taps + j], x_j[c], acc) from +0 for j
     * ascending; x[j] is the row of tap j. */
    void (*conv_silu)(float *y, const float *const *x, const float *w, int taps, int c0, int c1);
    /* One token on n_v rows of a state [n_v][dk]: s = S*decay; m = lane tree (32) of s*k by fma; delta = beta*(v - m);
     * S = fma(delta, k, s); o = lane tree of S*q by fma. */
    void (*delta_step)(float *S, const float *q, const float *k, const float *v, float decay, float beta, int dk, int n_v, float *o);
    /* True when all n values are finite. */
    bool (*all_finite)(const float *x, int64_t n);
} cb_kernels;

/* Flags of this machine (CPUID, XCR0, HWCAP). */
uint32_t cb_isa_detect(void);
/* Caps flags by name: "c", "avx2", "avx512", "neon". Returns 0 and *isa changed, or -1 for an unknown name or one that
 * the flags lack. */
int cb_isa_cap(uint32_t *isa, const char *name);
/* Pure: flags in, table out. Every slot has a scalar version, always. */
void cb_kernels_init(cb_kernels *k, uint32_t isa);
/* Inventories, one per level. */
void cb_kernels_set_c(cb_kernels *k);
void cb_kernels_set_avx2(cb_kernels *k);
void cb_kernels_set_avx512(cb_kernels *k);
void cb_kernels_set_neon(cb_kernels *k);

/* Encodes one row of k floats as CB_FMT_PLANES: out n_groups*128 bytes, scales [n_groups], n_groups = (k+63)/64. */
void cb_encode_planes(const float *w, int64_t k, uint8_t *out, float *scales);
#endif
