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
    bool normed;             /* layers are those of k_tape_normed */
    cu_tape_added added;     /* of them: what the last one adds to the residual stream, which the next phase does */
} cu_tape_reader;

/* Room for n words; the first one. */
int32_t cu_tape_words(cu_tape_reader *r, int n);
/* The next phase, of rows of n values; NULL: there is no room. */
cu_tape_phase *cu_tape_new_phase(cu_tape_reader *r, int kind, int n);
/* One more matrix of a phase, of the format of all; of experts each one's. */
bool cu_tape_read_matrix(cu_tape_reader *r, cu_tape_phase *p, const cb_op *o);
/* The share of a quantisation, negative where rows have no remainders; false: rows may have them whatever they are. */
bool cu_tape_share(const cu_tape_reader *r, const cb_op *o, float *share);
/* Words for the outputs of the products among ops from .. to - 1, one place behind the other. */
void cu_tape_place_outputs(cu_tape_reader *r, cu_tape_phase *p, int from, int to);
/* A row of n values in rounds of whole warps. */
bool cu_tape_fits(int n, int rounds);
/* 1/n where that is exact, else 0. */
float cu_tape_inverse(int n);
/* Is v a value with one row, which the host does not want? */
bool cu_tape_is_single(const cu_tape_reader *r, cb_val v);
/* The op at hand is a norm of a residual stream of n values: the phase of it, and that to planes; NULL: it is none, or does not fit. */
cu_tape_phase *cu_tape_read_norm(cu_tape_reader *r);
/* All products of the planes at hand that follow each other; their outputs have no place yet. */
bool cu_tape_read_products(cu_tape_reader *r, cu_tape_phase *p);
/* One more matrix of 8 bits, group 64, of p's plain products. */
bool cu_tape_read_plain(cu_tape_reader *r, cu_tape_phase *p, const cb_op *o);
/* Attention behind products p, the first of which is op `from`; others may stand among its ops. *y: its result. */
bool cu_tape_read_attention(cu_tape_reader *r, cu_tape_phase *p, int from, cb_val *y);

/* tape_normed.c: a whole layer whose outputs are normed. */
bool cu_tape_read_normed(cu_tape_reader *r);

/* tape_experts.c: behind the products, from op `from` on, of a router, a shared expert's gate, gate_proj and up_proj, which phase p has: the experts, up to the
 * next residual stream. */
bool cu_tape_read_experts(cu_tape_reader *r, cu_tape_phase *p, int from);
/* The phases of chosen experts. Units of rows of n values in n_groups groups, told from word `to` on; gate, up, route: the ops. *choice, where what the route's op
 * says and `width` are filled in, gets tiles. NULL: they do not fit. */
cu_tape_phase *cu_tape_read_expert_units(cu_tape_reader *r, int n, int n_groups, const cb_op *gate, const cb_op *up, const cb_op *route, int32_t to, cu_tape_route *choice);
/* What they make of units told from word `from` on, in groups of so many; shared: the op of one more expert's matrix, whose units stand behind theirs, or NULL. */
cu_tape_phase *cu_tape_read_expert_results(cu_tape_reader *r, const cb_op *down, const cb_op *shared, const cb_op *route, int32_t from, int group, cu_tape_route *choice);
#endif
