/* linear_neon.c: products on ARM with dot products (SDOT); linear_c.c is the truth. Lanes are neighbouring outputs: dwords
 * of four weight rows are transposed in registers, two such sets make a panel of eight outputs, and one lane of four
 * activations multiplies them (SDOT by element). First the exact group sums D of all groups, then the float chain, eight
 * segments side by side. One or two rows unpack codes as they go; more rows use a panel unpacked once.
 *
 * A unit is 16 bytes of each weight row, a quad four bytes of it. Codes below 128 are signed bytes as they are; 8-bit codes
 * are moved down by 128 and corrected with the sum of xi; fp4 codes come from a table. */
#include "kernels/kernels_c.h"
#include "kernels/kernels_neon.h"
#include "kernels/num_neon.h"

#define INLINE static inline __attribute__((always_inline))
enum { AHEAD = 1024, ROWS = 4 }; /* prefetch distance in a row, bytes; rows of a pass with the unpacked panel */
enum { FP4 = 0, WIDE = 8 };      /* besides 1, 2, 4: E2M1 nibbles, and codes of a byte */

typedef struct rows {
    const int8_t *planes[ROWS];
    const int32_t *sum[ROWS];
} rows;

/* ---- codes --------------------------------------------------------------------------------------------------------- */

/* t[q]: quad q of four rows `stride` apart, a row a lane */
INLINE void load_unit(const uint8_t *p, size_t stride, uint8x16_t t[4])
{
    uint32x4_t a = vreinterpretq_u32_u8(vld1q_u8(p)), b = vreinterpretq_u32_u8(vld1q_u8(p + stride));
    uint32x4_t c = vreinterpretq_u32_u8(vld1q_u8(p + 2 * stride)), d = vreinterpretq_u32_u8(vld1q_u8(p + 3 * stride));
    uint64x2_t ab0 = vreinterpretq_u64_u32(vzip1q_u32(a, b)), ab1 = vreinterpretq_u64_u32(vzip2q_u32(a, b));
    uint64x2_t cd0 = vreinterpretq_u64_u32(vzip1q_u32(c, d)), cd1 = vreinterpretq_u64_u32(vzip2q_u32(c, d));
    t[0] = vreinterpretq_u8_u64(vzip1q_u64(ab0, cd0));
    t[1] = vreinterpretq_u8_u64(vzip2q_u64(ab0, cd0));
    t[2] = vreinterpretq_u8_u64(vzip1q_u64(ab1, cd1));
    t[3] = vreinterpretq_u8_u64(vzip2q_u64(ab1, cd1));
}

/* The unit at byte `off` of eight rows; past the end of a row it holds zeros, and nothing is read there. */
INLINE void load_unit_at(const uint8_t *w, size_t rb, size_t off, uint8x16_t t[2][4])
{
    if (__builtin_expect(off + 16 <= rb, 1)) {
        load_unit(w + off, rb, t[0]);
        load_unit(w + off + 4 * rb, rb, t[1]);
        return;
    }
    uint8_t tail[8][16] = {{0}};
    for (size_t i = 0; i < 8; i++) memcpy(tail[i], w + i * rb + off, rb - off);
    load_unit(tail[0], 16, t[0]);
    load_unit(tail[4], 16, t[1]);
}

/* Codes j of the bytes t. kind: 1, 2 or 4 bits, FP4 or WIDE. */
INLINE int8x16_t codes_of(uint8x16_t t, int j, int kind)
{
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    if (kind == WIDE) return vreinterpretq_s8_u8(veorq_u8(t, vdupq_n_u8(0x80)));
    int bits = kind == FP4 ? 4 : kind;
    uint8x16_t v = vandq_u8(vshlq_u8(t, vdupq_n_s8((int8_t)(-bits * j))), vdupq_n_u8((uint8_t)((1 << bits) - 1)));
    return kind == FP4 ? vqtbl1q_s8(vld1q_s8(twice), v) : vreinterpretq_s8_u8(v);
}
INLINE int pack_of(int kind) { return kind == WIDE ? 1 : kind == FP4 ? 2 : 8 / kind; }

INLINE void prefetch_unit(const uint8_t *w, size_t rb, size_t off)
{
    size_t at = off + AHEAD;
    if (at >= rb) at = at - rb + 8 * rb; /* runs on from the end of these rows into the next eight */
    const uint8_t *p = w + at + (off / 16 % 4) * 2 * rb;
    __builtin_prefetch(p);
    __builtin_prefetch(p + rb);
}

/* Codes of eight rows as the passes take them: [unit][plane][quad][set][16] */
INLINE void unpack(const uint8_t *w, size_t rb, int kind, int8_t *out)
{
    for (size_t off = 0; off < rb; off += 16) {
        uint8x16_t t[2][4];
        load_unit_at(w, rb, off, t);
        for (int j = 0; j < pack_of(kind); j++)
            for (int q = 0; q < 4; q++, out += 32) {
                vst1q_s8(out, codes_of(t[0][q], j, kind));
                vst1q_s8(out + 16, codes_of(t[1][q], j, kind));
            }
    }
}

/* 3, 5 and 6 bits: sixteen codes from 2*bits bytes at p, where 16 bytes can be read */
static void spread16(const uint8_t *p, int bits, uint8_t *out)
{
    uint8x16_t v = vld1q_u8(p);
    uint8_t at[16];
    int16_t shift[8];
    uint8x8_t half[2];
    for (int h = 0; h < 2; h++) {
        for (int i = 0; i < 8; i++) {
            at[2 * i] = (uint8_t)(h * bits + i * bits / 8), at[2 * i + 1] = (uint8_t)(at[2 * i] + 1);
            shift[i] = (int16_t)(-(i * bits % 8));
        }
        uint16x8_t w = vshlq_u16(vreinterpretq_u16_u8(vqtbl1q_u8(v, vld1q_u8(at))), vld1q_s16(shift));
        half[h] = vmovn_u16(vandq_u16(w, vdupq_n_u16((uint16_t)((1 << bits) - 1))));
    }
    vst1q_u8(out, vcombine_u8(half[0], half[1]));
}
static void expand_row(const uint8_t *row, int64_t k, int bits, uint8_t *out)
{
    size_t rb = (size_t)(k / 8 * bits), at = 0, step = 2 * (size_t)bits, end = (size_t)(k + 63) / 64 * 64, to = 0;
    for (; at + 16 <= rb; at += step, to += 16) spread16(row + at, bits, out + to);
    for (; to < end; to += 16, at += step) {
        uint8_t tail[16] = {0};
        if (at < rb) memcpy(tail, row + at, rb - at < 16 ? rb - at : 16);
        spread16(tail, bits, out + to);
    }
}

/* ---- group sums ---------------------------------------------------------------------------------------------------- */

#define QUAD(Q)                                                                                                           \
    do {                                                                                                                  \
        int a = (Q) / quads;                                                                                              \
        h[a][r][0] = vdotq_laneq_s32(h[a][r][0], c[Q][0], xh, Q);                                                         \
        h[a][r][1] = vdotq_laneq_s32(h[a][r][1], c[Q][1], xh, Q);                                                         \
        l[a][r][0] = vdotq_laneq_s32(l[a][r][0], c[Q][0], xl, Q);                                                         \
        l[a][r][1] = vdotq_laneq_s32(l[a][r][1], c[Q][1], xl, Q);                                                         \
    } while (0)

/* d[r][g][8] = (float)D of all groups; a group is `quads` quads of a unit (1, 2, 4), with 4 it is `units` units. Codes come
 * from w, or from the unpacked panel if that is not NULL. */
INLINE void pass(const cb_mm *mm, const uint8_t *w, size_t rb, const int8_t *panel, const rows *x, int kind, int quads,
                 int units, int R, float *d)
{
    const int pack = pack_of(kind), subs = 4 / quads;
    size_t off = 0, d_stride = (size_t)mm->n_groups * 8;
    for (int g = 0; g < mm->n_groups; g += subs) {
        int32x4_t h[4][ROWS][2], l[4][ROWS][2];
        for (int a = 0; a < subs; a++)
            for (int r = 0; r < R; r++) h[a][r][0] = h[a][r][1] = l[a][r][0] = l[a][r][1] = vdupq_n_s32(0);
        for (int u = 0; u < units && off < rb; u++, off += 16) {
            uint8x16_t t[2][4];
            if (!panel) {
                load_unit_at(w, rb, off, t);
                prefetch_unit(w, rb, off);
            }
            size_t at = off / 64 * 128 * (size_t)pack + off % 64;
            for (int j = 0; j < pack; j++) {
                int8x16_t c[4][2];
                for (int q = 0; q < 4; q++)
                    for (int s = 0; s < 2; s++) {
                        c[q][s] = panel ? vld1q_s8(panel + 32 * q + 16 * s) : codes_of(t[s][q], j, kind);
                    }
                if (panel) panel += 128;
                for (int r = 0; r < R; r++) {
                    int8x16_t xh = vld1q_s8(x->planes[r] + at + 64 * (size_t)j);
                    int8x16_t xl = vld1q_s8(x->planes[r] + at + 64 * (size_t)(pack + j));
                    QUAD(0);
                    QUAD(1);
                    QUAD(2);
                    QUAD(3);
                }
            }
        }
        for (int a = 0; a < subs && g + a < mm->n_groups; a++)
            for (int r = 0; r < R; r++)
                for (int s = 0; s < 2; s++) {
                    int32x4_t v = vaddq_s32(vshlq_n_s32(h[a][r][s], 8), l[a][r][s]);
                    if (kind == WIDE) v = vaddq_s32(v, vdupq_n_s32(128 * x->sum[r][g + a]));
                    vst1q_f32(d + (size_t)r * d_stride + (size_t)(g + a) * 8 + 4 * s, vcvtq_f32_s32(v));
                }
    }
}

#define PLANES_QUAD(Q)                                                                                                    \
    do {                                                                                                                  \
        int8x16_t cl = vreinterpretq_s8_u8(veorq_u8(tl[Q], flip)), ch = vreinterpretq_s8_u8(veorq_u8(th[Q], flip));       \
        hh = vdotq_laneq_s32(hh, ch, xh, Q);                                                                              \
        mid = vdotq_laneq_s32(vdotq_laneq_s32(mid, ch, xl, Q), cl, xh, Q);                                                \
        ll = vdotq_laneq_s32(ll, cl, xl, Q);                                                                              \
    } while (0)

/* CB_FMT_PLANES: with both bytes moved down by 128, w = 256*high + low + 128, so that D = 256*(256*hh + hl + lh) +
 * (ll + 128 * sum of xi). */
static void planes_pass(const cb_mm *mm, const uint8_t *w, const rows *x, int R, float *d)
{
    const uint8x16_t flip = vdupq_n_u8(0x80);
    size_t rb = mm->row_bytes, d_stride = (size_t)mm->n_groups * 8;
    for (int g = 0; g < mm->n_groups; g++)
        for (int s = 0; s < 2; s++)
            for (int r = 0; r < R; r++) {
                int32x4_t hh = vdupq_n_s32(0), mid = hh, ll = hh;
                for (int u = 0; u < 4; u++) {
                    uint8x16_t th[4], tl[4];
                    const uint8_t *p = w + (size_t)s * 4 * rb + (size_t)g * 128 + 16 * (size_t)u;
                    load_unit(p, rb, th);
                    load_unit(p + 64, rb, tl);
                    if (r == 0 && s == 0) {
                        prefetch_unit(w, rb, (size_t)g * 128 + 16 * (size_t)u);
                        prefetch_unit(w, rb, (size_t)g * 128 + 64 + 16 * (size_t)u);
                    }
                    const int8_t *xp = x->planes[r] + (size_t)g * 128 + 16 * (size_t)u;
                    int8x16_t xh = vld1q_s8(xp), xl = vld1q_s8(xp + 64);
                    PLANES_QUAD(0);
                    PLANES_QUAD(1);
                    PLANES_QUAD(2);
                    PLANES_QUAD(3);
                }
                int32x4_t h = vaddq_s32(vshlq_n_s32(hh, 8), mid), l = vaddq_s32(ll, vdupq_n_s32(128 * x->sum[r][g]));
                vst1q_f32(d + (size_t)r * d_stride + (size_t)g * 8 + 4 * s, v4_hl_to_f32(h, l));
            }
}

/* kind, quads and R are constants in each copy: the loops unroll and the sums stay in registers. */
#define WITH_QUADS(KIND, R)                                                                                               \
    do {                                                                                                                  \
        if (gb >= 16) pass(mm, w, rb, panel, x, KIND, 4, gb / 16, R, d);                                                  \
        else if (gb == 8) pass(mm, w, rb, panel, x, KIND, 2, 1, R, d);                                                    \
        else pass(mm, w, rb, panel, x, KIND, 1, 1, R, d);                                                                 \
    } while (0)
#define RUN(NAME, KIND)                                                                                                   \
    static void NAME(const cb_mm *mm, const uint8_t *w, size_t rb, const int8_t *panel, const rows *x, int R, float *d)   \
    {                                                                                                                     \
        int gb = mm->group / pack_of(KIND);                                                                               \
        if (panel) {                                                                                                      \
            WITH_QUADS(KIND, 4);                                                                                          \
        } else if (R == 2) {                                                                                              \
            WITH_QUADS(KIND, 2);                                                                                          \
        } else {                                                                                                          \
            WITH_QUADS(KIND, 1);                                                                                          \
        }                                                                                                                 \
    }
RUN(run_1, 1)
RUN(run_2, 2)
RUN(run_4, 4)
RUN(run_fp4, FP4)
RUN(run_wide, WIDE)

/* R rows: 1, 2, or with a panel 4. */
static void sums(const cb_mm *mm, int kind, const uint8_t *w, size_t rb, const int8_t *panel, const rows *x, int R,
                 float *d)
{
    if (mm->fmt == CB_FMT_PLANES) planes_pass(mm, w, x, R, d);
    else if (kind == 1) run_1(mm, w, rb, panel, x, R, d);
    else if (kind == 2) run_2(mm, w, rb, panel, x, R, d);
    else if (kind == 4) run_4(mm, w, rb, panel, x, R, d);
    else if (kind == FP4) run_fp4(mm, w, rb, panel, x, R, d);
    else run_wide(mm, w, rb, panel, x, R, d);
}

/* ---- scales and float chain ---------------------------------------------------------------------------------------- */

/* Four scales of type t at p; E8M0 and E4M3 halved, as cb_scale_at gives them. */
static float32x4_t scales_of(const uint8_t *p, cb_scale_type t)
{
    uint32_t four;
    switch (t) {
    case CB_S_F32: return vreinterpretq_f32_u8(vld1q_u8(p));
    case CB_S_F16: return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
    case CB_S_BF16: return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
    case CB_S_E8M0: { /* 2^(b-128): exponent field b-1, below that the subnormals 2^-127 and 2^-128 */
        memcpy(&four, p, 4);
        uint32x4_t b = vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four)))), one = vdupq_n_u32(1);
        uint32x4_t sub = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(b));
        return vreinterpretq_f32_u32(vbslq_u32(vcgtq_u32(b, one), vshlq_n_u32(vsubq_u32(b, one), 23), sub));
    }
    case CB_S_E4M3: { /* the seven bits stand in a binary16, whose bias is 8 larger; halved: times 128 */
        memcpy(&four, p, 4);
        uint16x4_t b = vget_low_u16(vmovl_u8(vcreate_u8(four)));
        uint16x4_t h = vorr_u16(vshl_n_u16(vand_u16(b, vdup_n_u16(0x7f)), 7), vshl_n_u16(vand_u16(b, vdup_n_u16(0x80)), 8));
        return vmulq_f32(vcvt_f32_f16(vreinterpret_f16_u16(h)), v4_set(128.0f));
    }
    }
    return v4_set(0);
}

/* scales of outputs n..n+8: out[g][8], times factor (1: exact) */
static void scales8(const uint8_t *p, cb_scale_type t, float factor, int64_t n, int G, float *out)
{
    size_t size = t == CB_S_F32 ? 4 : t == CB_S_F16 || t == CB_S_BF16 ? 2 : 1;
    for (int i = 0; i < 8; i++) {
        int g = 0;
        for (; g + 4 <= G; g += 4) {
            float four[4];
            vst1q_f32(four, vmulq_f32(scales_of(p + (size_t)((n + i) * G + g) * size, t), v4_set(factor)));
            for (int j = 0; j < 4; j++) out[8 * (g + j) + i] = four[j];
        }
        for (; g < G; g++) out[8 * g + i] = cb_scale_at(p, t, (n + i) * G + g) * factor;
    }
}

/* y of eight outputs from their group sums: the segments are independent and advance side by side. */
static void chain(const cb_mm *mm, const float *d, const float *s, const float *b, const float *dx, const float *xs,
                  float32x4_t y[2])
{
    int G = mm->n_groups, at[9];
    for (int l = 0; l <= 8; l++) at[l] = (int)((int64_t)l * G / 8);
    for (int v = 0; v < 2; v++, d += 4, s += 4) {
        float32x4_t acc[8];
        for (int l = 0; l < 8; l++) acc[l] = v4_set(0);
        for (int i = 0; i <= G / 8; i++) /* a segment is G/8 long, some one more */
            for (int l = 0; l < 8; l++) {
                int g = at[l] + i;
                if (i == G / 8 && g >= at[l + 1]) continue;
                if (b) acc[l] = vfmaq_f32(acc[l], vld1q_f32(b + 8 * g + 4 * v), v4_set(xs[g]));
                acc[l] = vfmaq_f32(acc[l], vld1q_f32(s + 8 * g), vmulq_f32(v4_set(dx[g]), vld1q_f32(d + 8 * g)));
            }
        y[v] = acc[0];
        for (int l = 1; l < 8; l++) y[v] = vaddq_f32(y[v], acc[l]);
    }
}

/* ---- driver -------------------------------------------------------------------------------------------------------- */

typedef struct lin {
    const cb_mm *mm;
    int kind;
    bool expand;
    float *s, *b, *d;
    uint8_t *bytes; /* [8][k64]: expanded codes of 3, 5, 6 bits */
    int8_t *panel;
    size_t k64;
} lin;

/* Outputs n..n+8 for rows r..r+R; stores those from n0 on. */
static void panel_rows(const lin *f, const uint8_t *w, size_t rb, const int8_t *panel, int64_t n, int64_t n0, int r, int R)
{
    const cb_mm *mm = f->mm;
    rows x;
    int64_t xr[ROWS];
    for (int i = 0; i < ROWS; i++) {
        int row = r + (i < R ? i : R - 1);
        xr[i] = mm->x_row ? mm->x_row[row] : row;
        x.planes[i] = mm->x.planes + (size_t)xr[i] * mm->x.plane_stride;
        x.sum[i] = mm->x.sum + xr[i] * mm->n_groups;
    }
    sums(mm, f->kind, w, rb, panel, &x, panel ? ROWS : R, f->d);
    for (int i = 0; i < R; i++) {
        int64_t yr = mm->y_row ? mm->y_row[r + i] : r + i, off = xr[i] * mm->n_groups;
        float *out = mm->y + (size_t)yr * mm->y_stride + n, t[8];
        float32x4_t y[2];
        chain(mm, f->d + (size_t)i * (size_t)mm->n_groups * 8, f->s, f->b, mm->x.dx + off, mm->x.xs + off, y);
        vst1q_f32(t, y[0]);
        vst1q_f32(t + 4, y[1]);
        for (int64_t j = n0 - n; j < 8; j++) out[j] = mm->add ? out[j] + t[j] : t[j];
    }
}

static void panel(const lin *f, int64_t n, int64_t from)
{
    const cb_mm *mm = f->mm;
    const uint8_t *w = mm->codes + (size_t)n * mm->row_bytes;
    const int8_t *unpacked = NULL;
    size_t rb = mm->row_bytes;
    scales8(mm->scales, mm->scale_type, mm->fmt == CB_FMT_FP4 ? mm->global_scale : 1, n, mm->n_groups, f->s);
    if (f->b) scales8(mm->biases, mm->scale_type, 1, n, mm->n_groups, f->b);
    if (f->expand) {
        for (size_t i = 0; i < 8; i++) expand_row(w + i * rb, mm->k, mm->bits, f->bytes + i * f->k64);
        w = f->bytes, rb = f->k64;
    }
    if (mm->n_rows > 2 && mm->fmt != CB_FMT_PLANES) {
        unpacked = f->panel;
        if (f->kind == 1) unpack(w, rb, 1, f->panel);
        else if (f->kind == 2) unpack(w, rb, 2, f->panel);
        else if (f->kind == 4) unpack(w, rb, 4, f->panel);
        else if (f->kind == FP4) unpack(w, rb, FP4, f->panel);
        else unpack(w, rb, WIDE, f->panel);
    }
    int step = unpacked ? ROWS : 2;
    for (int r = 0; r < mm->n_rows; r += step)
        panel_rows(f, w, rb, unpacked, n, from, r, mm->n_rows - r < step ? mm->n_rows - r : step);
}

static bool known(const cb_mm *mm)
{
    int first = mm->fmt == CB_FMT_FP4 ? 16 : 32;
    if (mm->group != first && mm->group != 2 * first && mm->group != 4 * first) return false;
    if (mm->n_groups != (mm->k + mm->group - 1) / mm->group) return false;
    if (mm->fmt == CB_FMT_PLANES) return mm->group == 64 && mm->row_bytes == (size_t)mm->n_groups * 128;
    return mm->k % 8 == 0 && mm->row_bytes == (size_t)(mm->k / 8 * (mm->fmt == CB_FMT_FP4 ? 4 : mm->bits));
}

static inline void *take(char **scratch, size_t n)
{
    void *p = *scratch;
    *scratch += (n + 63) / 64 * 64;
    return p;
}

void cb_linear_neon(const cb_mm *mm, int64_t n0, int64_t n1, void *scratch)
{
    if (n1 < 8 || !known(mm)) {
        cb_linear_c(mm, n0, n1, scratch);
        return;
    }
    char *at = scratch;
    bool affine = mm->fmt == CB_FMT_AFFINE;
    size_t per_panel = (size_t)mm->n_groups * 8 * sizeof(float);
    lin f = {.mm = mm, .k64 = (size_t)(mm->k + 63) / 64 * 64};
    f.kind = mm->fmt == CB_FMT_FP4 ? FP4 : affine && (mm->bits == 1 || mm->bits == 2 || mm->bits == 4) ? mm->bits : WIDE;
    f.expand = affine && f.kind == WIDE && mm->bits != 8;
    f.s = take(&at, per_panel);
    f.b = affine ? take(&at, per_panel) : NULL;
    f.d = take(&at, ROWS * per_panel);
    f.bytes = take(&at, f.expand ? 8 * f.k64 : 0);
    f.panel = take(&at, 8 * cb_plane_stride(mm->k, pack_of(f.kind)) / 2);
    for (int64_t from = n0; from < n1; from += 8) /* the last panel reaches back over outputs already done */
        panel(&f, from + 8 <= n1 ? from : n1 - 8, from);
}
