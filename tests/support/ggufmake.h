/* ggufmake.h: writes small GGUF files in memory for tests, well-formed or not, and decodes blocks a second time, written
 * plainly from the format's description and sharing nothing with src/. */
#ifndef GGUFMAKE_H
#define GGUFMAKE_H
#include "base/mem.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct gm_rng {
    uint64_t s;
} gm_rng;
static inline uint64_t gm_u64(gm_rng *r)
{
    uint64_t z = r->s += 0x9e3779b97f4a7c15ULL;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
    return z ^ z >> 31;
}

/* A file in the making: `kv` and `infos` are joined by gm_finish. */
typedef struct gm_file {
    cb_buf kv, infos, data;
    uint64_t n_kv, n_tensors;
    uint32_t version, alignment;
} gm_file;

static inline void gm_begin(gm_file *f)
{
    *f = (gm_file){.version = 3, .alignment = 32};
    cb_buf_init(&f->kv, 0);
    cb_buf_init(&f->infos, 0);
    cb_buf_init(&f->data, 0);
}
static inline void gm_u32(cb_buf *b, uint32_t v) { cb_buf_put(b, &v, 4); }
static inline void gm_u64v(cb_buf *b, uint64_t v) { cb_buf_put(b, &v, 8); }
static inline void gm_text(cb_buf *b, const char *s)
{
    gm_u64v(b, strlen(s));
    cb_buf_puts(b, s);
}
static inline void gm_key(gm_file *f, const char *key, uint32_t type)
{
    gm_text(&f->kv, key);
    gm_u32(&f->kv, type);
    f->n_kv++;
}
static inline void gm_kv_u32(gm_file *f, const char *key, uint32_t v)
{
    gm_key(f, key, 4);
    gm_u32(&f->kv, v);
}
static inline void gm_kv_f32(gm_file *f, const char *key, float v)
{
    gm_key(f, key, 6);
    cb_buf_put(&f->kv, &v, 4);
}
static inline void gm_kv_bool(gm_file *f, const char *key, int v)
{
    gm_key(f, key, 7);
    cb_buf_putc(&f->kv, (char)v);
}
static inline void gm_kv_text(gm_file *f, const char *key, const char *v)
{
    gm_key(f, key, 8);
    gm_text(&f->kv, v);
}
/* Starts an array of n elements; the caller puts them. */
static inline void gm_kv_array(gm_file *f, const char *key, uint32_t elem, uint64_t n)
{
    gm_key(f, key, 9);
    gm_u32(&f->kv, elem);
    gm_u64v(&f->kv, n);
}
/* rows 0: a vector. The bytes are taken as they are. */
static inline void gm_tensor(gm_file *f, const char *name, uint32_t type, int64_t cols, int64_t rows, const void *p, size_t n)
{
    while (f->data.n % f->alignment) cb_buf_putc(&f->data, 0);
    gm_text(&f->infos, name);
    gm_u32(&f->infos, rows ? 2 : 1);
    gm_u64v(&f->infos, (uint64_t)cols);
    if (rows) gm_u64v(&f->infos, (uint64_t)rows);
    gm_u32(&f->infos, type);
    gm_u64v(&f->infos, f->data.n);
    cb_buf_put(&f->data, p, n);
    f->n_tensors++;
}
/* The bytes of the file (free with cb_free); frees f. */
static inline uint8_t *gm_finish(gm_file *f, size_t *n)
{
    cb_buf b;
    cb_buf_init(&b, 0);
    cb_buf_puts(&b, "GGUF");
    gm_u32(&b, f->version);
    gm_u64v(&b, f->n_tensors);
    gm_u64v(&b, f->n_kv);
    cb_buf_put(&b, f->kv.data, f->kv.n);
    cb_buf_put(&b, f->infos.data, f->infos.n);
    while (b.n % f->alignment) cb_buf_putc(&b, 0);
    cb_buf_put(&b, f->data.data, f->data.n);
    cb_buf_fini(&f->kv);
    cb_buf_fini(&f->infos);
    cb_buf_fini(&f->data);
    *n = b.n;
    return (uint8_t *)cb_buf_take(&b);
}

/* ---- blocks -------------------------------------------------------------------------------------------------------- */

typedef struct gm_type {
    const char *name;
    uint32_t id;
    int block, bytes;
    int half[2];       /* where the F16 scales stand, -1: none */
    int bits;          /* what the checkpoint stores: 4, 5, 8; 0: floats */
} gm_type;
static const gm_type gm_types[] = {
    {"F32", 0, 1, 4, {-1, -1}, 0},       {"F16", 1, 1, 2, {-1, -1}, 0},      {"Q4_0", 2, 32, 18, {0, -1}, 4},
    {"Q4_1", 3, 32, 20, {0, 2}, 4},      {"Q5_0", 6, 32, 22, {0, -1}, 5},    {"Q5_1", 7, 32, 24, {0, 2}, 5},
    {"Q8_0", 8, 32, 34, {0, -1}, 8},     {"Q2_K", 10, 256, 84, {80, 82}, 0}, {"Q3_K", 11, 256, 110, {108, -1}, 0},
    {"Q4_K", 12, 256, 144, {0, 2}, 4},   {"Q5_K", 13, 256, 176, {0, 2}, 5},  {"Q6_K", 14, 256, 210, {208, -1}, 0},
    {"IQ4_NL", 20, 32, 18, {0, -1}, 8},  {"BF16", 30, 1, 2, {-1, -1}, 0},
};
enum { GM_N_TYPES = sizeof gm_types / sizeof *gm_types };

static inline float gm_half(const uint8_t *p)
{
    unsigned h = p[0] + 256u * p[1], e = h >> 10 & 31, m = h & 1023;
    float v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexpf((float)(1024 + m), (int)e - 25) : ldexpf((float)m, -24);
    return h & 0x8000 ? -v : v;
}

/* Random block; its scales are finite, and drawn from all kinds: usual, zero, subnormal, negative, largest. */
static inline void gm_random_block(const gm_type *t, gm_rng *r, uint8_t *b)
{
    for (int i = 0; i < t->bytes; i++) b[i] = (uint8_t)gm_u64(r);
    if (t->block == 1) { /* a float: no NaN or infinity */
        b[t->bytes - 1] = (uint8_t)((b[t->bytes - 1] & 0x80) | 0x38 | (b[t->bytes - 1] & 7));
        return;
    }
    for (int k = 0; k < 2; k++) {
        if (t->half[k] < 0) continue;
        uint64_t u = gm_u64(r);
        uint16_t h = (uint16_t)(0x1000 + u % 0x1800); /* 2^-11 to 1/2, about */
        switch (u >> 32 & 15) {
        case 0: h = 0; break;
        case 1: h = 0x8000; break;
        case 2: h = (uint16_t)(u & 0x83ff); break; /* subnormal, either sign */
        case 3: h = (uint16_t)(u & 0x8000) | 0x5bff; break; /* 255.9: -128 d still fits */
        case 4: case 5: h |= 0x8000; break;
        }
        memcpy(b + t->half[k], &h, 2);
    }
}

static inline void gm_set_half(const gm_type *t, uint8_t *b, int k, uint16_t h) { memcpy(b + t->half[k], &h, 2); }

/* Element i of a block. */
static inline float gm_value(const gm_type *t, const uint8_t *b, int i)
{
    static const int iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    float d = t->half[0] < 0 ? 0 : gm_half(b + t->half[0]), m = t->half[1] < 0 ? 0 : gm_half(b + t->half[1]);
    int j = i % 16, high = i / 16 % 2, s = i / 32, sc, mn, q;
    switch (t->id) {
    case 0: {
        float f;
        memcpy(&f, b, 4);
        return f;
    }
    case 1: return gm_half(b);
    case 30: {
        uint32_t u = (uint32_t)b[0] << 16 | (uint32_t)b[1] << 24;
        float f;
        memcpy(&f, &u, 4);
        return f;
    }
    case 2: return d * (float)((high ? b[2 + j] / 16 : b[2 + j] % 16) - 8);
    case 3: return d * (float)(high ? b[4 + j] / 16 : b[4 + j] % 16) + m;
    case 6: q = (high ? b[6 + j] / 16 : b[6 + j] % 16) + 16 * (b[2 + i / 8] >> i % 8 & 1); return d * (float)(q - 16);
    case 7: q = (high ? b[8 + j] / 16 : b[8 + j] % 16) + 16 * (b[4 + i / 8] >> i % 8 & 1); return d * (float)q + m;
    case 8: return d * (float)(b[2 + i] < 128 ? b[2 + i] : b[2 + i] - 256);
    case 20: return d * (float)iq4[high ? b[2 + j] / 16 : b[2 + j] % 16];
    case 10: /* Q2_K */
        q = b[16 + 32 * (i / 128) + i % 32] / (1 << 2 * (i % 128 / 32)) % 4;
        return d * (float)(b[i / 16] % 16) * (float)q - m * (float)(b[i / 16] / 16);
    case 11: { /* Q3_K */
        int k = i / 16, lo = k < 8 ? b[96 + k] % 16 : b[96 + k - 8] / 16, hi = b[104 + k % 4] / (1 << 2 * (k / 4)) % 4;
        q = b[32 + 32 * (i / 128) + i % 32] / (1 << 2 * (i % 128 / 32)) % 4 + 4 * (b[i % 32] >> i / 32 & 1) - 4;
        return d * (float)(lo + 16 * hi - 32) * (float)q;
    }
    case 12: case 13: { /* Q4_K, Q5_K */
        const uint8_t *x = b + 4, *qs = b + (t->id == 12 ? 16 : 48);
        sc = s < 4 ? x[s] % 64 : x[s + 4] % 16 + 16 * (x[s - 4] / 64);
        mn = s < 4 ? x[s + 4] % 64 : x[s + 4] / 16 + 16 * (x[s] / 64);
        q = s % 2 ? qs[32 * (s / 2) + i % 32] / 16 : qs[32 * (s / 2) + i % 32] % 16;
        if (t->id == 13) q += 16 * (b[16 + i % 32] >> s & 1);
        return d * (float)sc * (float)q - m * (float)mn;
    }
    case 14: { /* Q6_K */
        int h = i / 128, g = i % 128 / 32, l = i % 32, lo = b[64 * h + 32 * (g % 2) + l];
        q = (g < 2 ? lo % 16 : lo / 16) + 16 * (b[128 + 32 * h + l] / (1 << 2 * g) % 4);
        sc = b[192 + i / 16];
        return d * (float)(sc < 128 ? sc : sc - 256) * (float)(q - 32);
    }
    }
    return NAN;
}

/* ---- a whole small model ------------------------------------------------------------------------------------------- */

/* llama or gemma3: hidden 256, ff 512, 4 heads and 2 KV heads of 64, one layer, 262 tokens. */
enum { GM_HIDDEN = 256, GM_FF = 512, GM_HEADS = 4, GM_KV = 2, GM_D = 64, GM_VOCAB = 262 };
static const struct { const char *gguf, *mlx; int rows, cols; } gm_matrices[] = {
    {"token_embd", "model.embed_tokens", GM_VOCAB, GM_HIDDEN},
    {"blk.0.attn_q", "model.layers.0.self_attn.q_proj", GM_HEADS * GM_D, GM_HIDDEN},
    {"blk.0.attn_k", "model.layers.0.self_attn.k_proj", GM_KV * GM_D, GM_HIDDEN},
    {"blk.0.attn_v", "model.layers.0.self_attn.v_proj", GM_KV * GM_D, GM_HIDDEN},
    {"blk.0.attn_output", "model.layers.0.self_attn.o_proj", GM_HIDDEN, GM_HEADS * GM_D},
    {"blk.0.ffn_gate", "model.layers.0.mlp.gate_proj", GM_FF, GM_HIDDEN},
    {"blk.0.ffn_up", "model.layers.0.mlp.up_proj", GM_FF, GM_HIDDEN},
    {"blk.0.ffn_down", "model.layers.0.mlp.down_proj", GM_HIDDEN, GM_FF},
};
enum { GM_N_MATRICES = sizeof gm_matrices / sizeof *gm_matrices };

static inline void gm_kv_arch(gm_file *f, const char *arch, const char *name, uint32_t v)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    gm_kv_u32(f, key, v);
}

static inline void gm_hparams(gm_file *f, const char *arch)
{
    char key[128];
    gm_kv_text(f, "general.architecture", arch);
    gm_kv_arch(f, arch, "block_count", 1);
    gm_kv_arch(f, arch, "context_length", 1024);
    gm_kv_arch(f, arch, "embedding_length", GM_HIDDEN);
    gm_kv_arch(f, arch, "feed_forward_length", GM_FF);
    gm_kv_arch(f, arch, "attention.head_count", GM_HEADS);
    gm_kv_arch(f, arch, "attention.head_count_kv", GM_KV);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    gm_kv_f32(f, key, 1e-6f);
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    gm_kv_f32(f, key, 500000.0f);
}

/* A SentencePiece-like vocabulary: four specials, 256 bytes, one letter and <end_of_turn>. */
static inline void gm_vocab(gm_file *f)
{
    char text[16];
    gm_kv_text(f, "tokenizer.ggml.model", "llama");
    gm_kv_text(f, "tokenizer.ggml.pre", "default");
    gm_kv_array(f, "tokenizer.ggml.tokens", 8, GM_VOCAB);
    for (int i = 0; i < GM_VOCAB; i++) {
        static const char *const specials[] = {"<pad>", "<eos>", "<bos>", "<unk>"};
        snprintf(text, sizeof text, "<0x%02X>", (i - 4) & 255);
        gm_text(&f->kv, i < 4 ? specials[i] : i < 260 ? text : i == 260 ? "a" : "<end_of_turn>");
    }
    gm_kv_array(f, "tokenizer.ggml.scores", 6, GM_VOCAB);
    for (int i = 0; i < GM_VOCAB; i++) {
        float s = i == 260 ? -1.0f : -1000.0f;
        cb_buf_put(&f->kv, &s, 4);
    }
    gm_kv_array(f, "tokenizer.ggml.token_type", 5, GM_VOCAB);
    for (int i = 0; i < GM_VOCAB; i++) gm_u32(&f->kv, i == 3 ? 2 : i < 4 || i == 261 ? 3 : i < 260 ? 6 : 1);
    gm_kv_u32(f, "tokenizer.ggml.bos_token_id", 2);
    gm_kv_u32(f, "tokenizer.ggml.eos_token_id", 1);
    gm_kv_u32(f, "tokenizer.ggml.unknown_token_id", 3);
    gm_kv_u32(f, "tokenizer.ggml.padding_token_id", 0);
    gm_kv_bool(f, "tokenizer.ggml.add_bos_token", 1);
    gm_kv_bool(f, "tokenizer.ggml.add_space_prefix", 0);
    gm_kv_text(f, "tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}");
}

/* Random matrices of type t in gm_matrices order; raw[i] (from cb_alloc) are their bytes. */
static inline void gm_random_matrices(gm_file *f, const gm_type *t, gm_rng *r, uint8_t *raw[GM_N_MATRICES])
{
    for (int i = 0; i < GM_N_MATRICES; i++) {
        char name[64];
        size_t n = (size_t)gm_matrices[i].rows * (size_t)(gm_matrices[i].cols / t->block);
        raw[i] = cb_alloc(n * (size_t)t->bytes);
        for (size_t k = 0; k < n; k++) gm_random_block(t, r, raw[i] + k * (size_t)t->bytes);
        snprintf(name, sizeof name, "%s.weight", gm_matrices[i].gguf);
        gm_tensor(f, name, t->id, gm_matrices[i].cols, gm_matrices[i].rows, raw[i], n * (size_t)t->bytes);
    }
}

static inline void gm_norm(gm_file *f, const char *name, int n, const float *v) { gm_tensor(f, name, 0, n, 0, v, 4 * (size_t)n); }
#endif
