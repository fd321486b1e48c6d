/* opkind.h: the operations a plan is made of. Apart from plan.h because GPU code reads it too. */
#ifndef CB_PLAN_OPKIND_H
#define CB_PLAN_OPKIND_H

/* What an operation does. in[], w[], f[] and n[] are named per kind; a value is [rows][width] f32 unless said otherwise. */
typedef enum cb_op_kind {
    CB_EMBED,      /* out = f[0] * decoded row `token` of w[0] */
    CB_ROPE_TABLE, /* out = cos and sin of pos*freq, n[0] = table id, times f[0] unless that is 1; width 2*n_pairs */
    CB_RMSNORM,    /* out = rmsnorm(in[0]) * w[0] (w[0] < 0: no weight), eps f[0]; n[0] heads of n[1] dims each */
    CB_QUANT,      /* out = planes of in[0]; a row of which one number has more than the share f[0] gets a remainder row
                      (docs/arithmetic.md, section 4) when out has room for them */
    CB_LINEAR,     /* out = w[0] * in[0] (planes); n[0] = 1: out +=; then out += w[0] * remainder for rows that have one */
    CB_ROPE,       /* out = in[0] rotated with in[1]; n[0] heads of n[1] dims, n[2] pairs, n[3] half distance. In place */
    CB_KV_PUT,     /* state n[0] takes k = in[0], v = in[1] of this row's position */
    CB_ATTENTION,  /* out = attention of q = in[0] on state n[0]; n[1] query heads; softmax scale f[0] */
    CB_GLU,        /* out = act(in[0]) * in[1]; n[0] = CB_ACT_... */
    CB_ADD,        /* out = in[0] + in[1] */
    CB_WANTED,     /* out = the wanted rows of in[0]; later values have one row per wanted row */
    CB_SOFTCAP,    /* out = f[0] * tanh(in[0] / f[0]). In place */
    CB_BIAS,       /* out = in[0] + w[0], the same vector for each row. In place */
    CB_SPLIT,      /* out = dims n[2] .. n[2]+n[3] of each of n[0] heads of n[1] dims of in[0] */
    CB_SCALE,      /* out = in[0] * f[0]; w[0] >= 0: times that weight's only element instead. In place */
    CB_HADAMARD,   /* out = H(s . in[0]) in blocks of n[0], s = w[0]; n[1] = 1, the inverse: out = s . H(in[0]);
                      w[0] < 0: no signs, in place */
    CB_CONV,       /* out = silu(causal depthwise convolution of in[0] with w[0], n[1] taps), recurrent state n[0] */
    CB_DELTA,      /* out = gated delta rule of u = in[0] (all q, all k, all v), a = in[1], b = in[2]; w: A_log, dt_bias;
                      recurrent state n[0]; n[1] key heads, n[2] value heads, n[3] and n[4] dims of a key and a value head */
    CB_ROUTE,      /* out = n[1] expert ids (int32), then their n[1] weights, from n[0] logits in[0]; n[2] = CB_ROUTE_... */
    CB_MOE_SORT,   /* out = the slots (row*k + rank) ordered by expert, and their rows; in[0] a route */
    CB_MOE_LINEAR, /* out[slot] = w[0][expert of slot] * in[0], planes of the slot (n[0] = 1) or of its row; in[1] sorted,
                      in[2] route */
    CB_MOE_SUM,    /* out = sum over ranks ascending of weight*in[0][slot]: acc = fma(w, y, acc) from +0; in[1] route */
    CB_ADD_GATED,  /* out = fma(sigmoid(in[1]'s only element), in[2], in[0]) */
    CB_N_OP_KINDS
} cb_op_kind;

enum { CB_ACT_SILU, CB_ACT_GELU_TANH, CB_ACT_SIGMOID };
enum {
    CB_ROUTE_SOFTMAX_ALL, /* softmax over all experts, the k largest divided by their sum */
    CB_ROUTE_SOFTMAX_TOP  /* softmax over the k largest logits, times w[0][expert] */
};
#endif
