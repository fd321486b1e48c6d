/* tape_read.h: layers of a plan that tape.c reads as phases. */
#ifndef CB_CUDA_TAPE_READ_H
#define CB_CUDA_TAPE_READ_H
#include "cuda/cuda.h"

typedef struct cu_tape_reader {
    const cb_plan *p;
    const cb_dev *d;         /* NULL: only sizes are wanted */
    bool has_experts;
    int first, at;           /* ops */
    cb_val x;                /* the residual stream; -1: not known yet */
    int32_t *told;           /* [n_values]: word of a value, or -1 */
    int32_t words;
    int format;              /* of all matrices, CU_TAPE_; -1: not known yet */
    cu_tape_phase phase[CU_TAPE_PHASES];
    int n;
    CUdeviceptr maps;        /* where maps of matrices will stand, and they (CUtensorMap) */
    uint64_t map[CU_TAPE_PHASES * CU_TAPE_MATRICES][16];
    int n_maps;
    cb_val planes, plain;    /* of the phase being read; -1: none */
} cu_tape_reader;

/* Room for n words; the first one. */
int32_t cu_tape_words(cu_tape_reader *r, int n);
/* The next phase, of rows of n values; NULL: there is no room. */
cu_tape_phase *cu_tape_new_phase(cu_tape_reader *r, int kind, int n);
/* One more matrix of a phase, of the format of all; of experts each one's. */
bool cu_tape_read_matrix(cu_tape_reader *r, cu_tape_phase *p, const cb_op *o);
/* The share of a quantisation, negative where rows have no remainders; false: rows may have them whatever they are. */
bool cu_tape_share(const cu_tape_reader *r, const cb_op *o, float *share);
/* Words for the outputs of products from op `from` on, one place behind the other. */
void cu_tape_place_outputs(cu_tape_reader *r, cu_tape_phase *p, int from);
/* A row of n values in rounds of whole warps. */
bool cu_tape_fits(int n, int rounds);

/* tape_experts.c: behind the products, from op `from` on, of a router, a shared expert's gate, gate_proj and up_proj, which phase p has: the experts, up to the
 * next residual stream. */
bool cu_tape_read_experts(cu_tape_reader *r, cu_tape_phase *p, int from);
#endif
