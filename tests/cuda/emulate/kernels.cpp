/* kernels.cpp: the kernels that are emulated, by name: all but the probes. */
#include "run.h"
extern "C" {
#include "cuda/gemm.h"
#include "../fake_kernels.h"
}
#include <stdio.h>
#include <string.h>

#define KERNELS(X)                                                                                                                \
    X(k_rows, cu_rows) X(k_rows_few8, cu_rows_few) X(k_route, cu_rows_few) X(k_units4, cu_rows_two) X(k_units8, cu_rows_two) X(k_softcap, cu_rows) X(k_rows_many, cu_rows_many)  \
    X(k_rows_many_wide, cu_rows_many) X(k_kv_put_many, cu_rows_many) X(k_route_many, cu_rows_many)          \
    X(k_gemv4, cu_linears)                                                                                                         \
    X(k_gemv8, cu_linears) X(k_attn, cu_attention) X(k_attn_split, cu_attention) X(k_attn_merge, cu_attention)                     \
    X(k_attn_step64, cu_attn_step) X(k_attn_step128, cu_attn_step) X(k_attn_step256, cu_attn_step) X(k_attn_step512, cu_attn_step) \
    X(k_attn_join, cu_attn_step) X(k_attn_join_cluster, cu_attn_step)                                                               \
    X(k_attn_cluster64, cu_attn_step) X(k_attn_cluster128, cu_attn_step) X(k_attn_cluster256, cu_attn_step) X(k_attn_cluster512, cu_attn_step) X(k_delta_step, cu_delta_step) X(k_conv, cu_conv) X(k_conv_keep, cu_conv) X(k_delta, cu_delta)    \
    X(k_moe_count, cu_sort) X(k_moe_sort, cu_sort) X(k_encode, cu_encode) X(k_remainders, cu_remainders) X(k_best, cu_best) X(k_change, cu_sample) X(k_top_count, cu_sample) X(k_top_take, cu_sample)                                       \
    X(k_attn_many64, cu_attention) X(k_attn_many128, cu_attention) X(k_attn_many256, cu_attention)                                 \
    X(k_delta_prepare, cu_delta) X(k_delta_scan, cu_delta) X(k_gemm_q4g64, cu_linear) X(k_gemm_q2g128, cu_linear)                  \
    X(k_gemm_q4g32, cu_linear) X(k_gemm_q8g64, cu_linear) X(k_gemm_planes, cu_linear)                  \
    X(k_gemm_q4g64_sm90, cu_gemm_args) X(k_gemm_q2g128_sm90, cu_gemm_args) X(k_gemm_q4g32_sm90, cu_gemm_args) X(k_gemm_q8g64_sm90, cu_gemm_args)              \
    X(k_gemm_planes_sm90, cu_gemm_args) X(k_gemm_q4g64_sm90_s, cu_gemm_args) X(k_gemm_q2g128_sm90_s, cu_gemm_args) X(k_gemm_q4g32_sm90_s, cu_gemm_args)        \
    X(k_gemm_q8g64_sm90_s, cu_gemm_args) X(k_gemm_planes_sm90_s, cu_gemm_args)

#define BODY(name, type)                                                              \
    extern "C" void name(const type);                                                 \
    static void body_##name(const void *a) { name(*(const type *)a); }                \
    static void run_##name(const void *a, const fake_grid *g) { emu_run(body_##name, a, g->blocks, g->cluster ? g->cluster : 1, g->threads, g->shared); }
KERNELS(BODY)
#define CHAIN_BODY(name, ...) BODY(k_##name, cu_rows_few)
CU_CHAINS(CHAIN_BODY)
#define CLUSTER_BODY(name, ...) BODY(k_cluster_##name, cu_rows_few)
CU_CLUSTERS(CLUSTER_BODY)
#define STREAM_BODY(name, ...) BODY(k_stream_##name, cu_stream) BODY(k_stream_##name##_1, cu_stream)
CU_STREAM_FORMATS(STREAM_BODY)
#define BATCH_BODY(name, ...) BODY(k_batch_##name##_wide, cu_linears) BODY(k_batch_##name##_tall, cu_linears) BODY(k_batch_##name##_split, cu_linears)
CU_BATCH_FORMATS(BATCH_BODY)
#define EXPERTS_BODY(name, ...) BODY(k_experts_##name, cu_experts)
CU_EXPERT_FORMATS(EXPERTS_BODY)

#define SMALL_BODY(name, ...) BODY(k_small_##name, cu_small) BODY(k_small_pack_##name, cu_small_pack)
CU_SMALL_FORMATS(SMALL_BODY)

/* All blocks of these wait for each other. */
#define TAPE_BODY(name, ...)                                                      \
    extern "C" void k_tape_##name(const cu_tape);                                 \
    static void body_k_tape_##name(const void *a) { k_tape_##name(*(const cu_tape *)a); } \
    static void run_k_tape_##name(const void *a, const fake_grid *g) { emu_run(body_k_tape_##name, a, g->blocks, g->blocks[0], g->threads, g->shared); }
CU_TAPE_FORMATS(TAPE_BODY)
TAPE_BODY(normed)

extern "C" fake_kernel fake_kernel_find(const char *name, size_t *n)
{
#define FIND(k, type)            \
    if (strcmp(name, #k) == 0) { \
        *n = sizeof(type);       \
        return run_##k;          \
    }
#define FIND_CHAIN(name, ...) FIND(k_##name, cu_rows_few)
    KERNELS(FIND)
    CU_CHAINS(FIND_CHAIN)
#define FIND_CLUSTER(name, ...) FIND(k_cluster_##name, cu_rows_few)
    CU_CLUSTERS(FIND_CLUSTER)
#define FIND_STREAM(name, ...) FIND(k_stream_##name, cu_stream) FIND(k_stream_##name##_1, cu_stream)
    CU_STREAM_FORMATS(FIND_STREAM)
#define FIND_BATCH(name, ...) FIND(k_batch_##name##_wide, cu_linears) FIND(k_batch_##name##_tall, cu_linears) FIND(k_batch_##name##_split, cu_linears)
    CU_BATCH_FORMATS(FIND_BATCH)
#define FIND_SMALL(name, ...) FIND(k_small_##name, cu_small) FIND(k_small_pack_##name, cu_small_pack)
    CU_SMALL_FORMATS(FIND_SMALL)
#define FIND_EXPERTS(name, ...) FIND(k_experts_##name, cu_experts)
    CU_EXPERT_FORMATS(FIND_EXPERTS)
#define FIND_TAPE(name, ...) FIND(k_tape_##name, cu_tape)
    CU_TAPE_FORMATS(FIND_TAPE)
    FIND_TAPE(normed)
    fprintf(stderr, "emulate: %s is not emulated\n", name);
    return NULL;
}
