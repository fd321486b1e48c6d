/* top.h: how a device takes part in sampling (docs/sampling.md, section 5): of each row it is asked for the few numbers that decide the
 * token, so that the row need not leave it. */
#ifndef CB_PLAN_TOP_H
#define CB_PLAN_TOP_H
#include <stdint.h>

/* Logits of a list at most; changes of all rows of a step at most. */
enum { CB_TOP = 2048, CB_TOP_CHANGES = 1 << 15 };

/* Bias, then penalties of one id. */
typedef struct cb_change {
    int32_t id;
    float bias;      /* -100 bans */
    uint32_t in_all; /* is it in the window of the repetition penalty? */
    uint32_t n_own;  /* how often is it in that of the other two? */
} cb_change;

/* ROW: the whole row. BEST: the largest logit after the changes. DRAW: that, and a draw from all tokens. TOP: the largest, and a list. */
enum { CB_ASK_ROW, CB_ASK_BEST, CB_ASK_DRAW, CB_ASK_TOP };

/* A list ends as soon as it has `count` logits (0: this ends nothing), or the share p of all weights (1: nothing), or reaches `reach`
 * below the largest logit. It may be longer than that, but has never a logit without all that are as large. */
typedef struct cb_ask {
    int32_t kind;
    int32_t n_changes;
    const cb_change *changes; /* of different ids; made before all else */
    float repetition, presence, frequency; /* penalties of the changes; 1, 0, 0: none */
    float t;                  /* weights are those of the logits divided by t */
    int32_t count;
    float p, reach;
    uint64_t random;          /* of a draw */
} cb_ask;

/* What comes back. */
typedef struct cb_top {
    float max;                /* the largest logit before the changes */
    float best_z;             /* the largest after them, */
    int32_t best;             /* and its id, the lowest one on ties */
    int32_t drawn;
    float drawn_z;            /* the logit that was drawn, after the changes */
    uint64_t sum;             /* of all weights: with a draw, and with a list that was asked for a share p < 1 */
    int32_t n;                /* logits in the list; 0: there are too many */
    float low;                /* no other logit is larger; -infinity: there is no other */
    const uint64_t *list;     /* [n] id << 32 | bits of the logit after the changes, -0 as +0; in no particular order */
} cb_top;
#endif
