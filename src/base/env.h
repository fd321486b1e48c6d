/* env.h: every environment variable that is read, in one file. An empty variable counts as unset. */
#ifndef CB_BASE_ENV_H
#define CB_BASE_ENV_H
#include <stdbool.h>
#include <stdint.h>

/* The value, or NULL when unset or empty. Borrowed. */
const char *cb_env(const char *name);
/* CB_FAULT=kind:N[,kind:N]: the N of this kind, or 0. Used by tests to make the N-th call fail. */
uint64_t cb_env_fault(const char *kind);
/* CB_CPU=c|avx2|avx512|neon caps the instruction set; NULL when unset. */
const char *cb_env_cpu(void);
/* CB_CPU_COPIES=on|off: whether the CPU keeps float weights encoded; NULL when unset (it decides by size). */
const char *cb_env_cpu_copies(void);
/* CB_CUDA_STREAM=off: products of few rows by gemv.cu, also where stream.cu can. */
const char *cb_env_cuda_stream(void);
/* CB_CUDA_CLUSTERS=off: the row of a step of one row by one thread block, also where a cluster can share it (cuda/row_clusters.cu), and attention
 * of single rows in two launches (not cuda/attn_cluster.cu), of which the second has one thread block a head (cuda/attn_join.cu). */
const char *cb_env_cuda_clusters(void);
/* CB_CUDA_SMALL=off: steps of one row of a small model as a list of launches, also where one cluster can run them (cuda/small.cu). */
const char *cb_env_cuda_small(void);
/* All layers of a step of one row as one launch that stays (cuda/tape.cu): CB_CUDA_TAPE=on wherever it can, off nowhere; else of models with experts. */
const char *cb_env_cuda_tape(void);
#endif
