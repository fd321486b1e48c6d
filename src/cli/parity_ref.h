/* parity_ref.h: reference files (*.cbref) and the distance of a logits row from what they hold. The format is described in
 * docs/testing.md and written by tests/reference/refdata.py. Includes only cambium.h and base/. */
#ifndef CB_CLI_PARITY_REF_H
#define CB_CLI_PARITY_REF_H
#include "base/err.h"
#include "base/file.h"
#include <jansson.h>

typedef struct cb_ref_case {
    uint32_t first, n; /* positions first .. first+n-1; a sequence of its own */
} cb_ref_case;

typedef struct cb_ref_greedy {
    uint32_t case_at, n;   /* n tokens continue case case_at */
    const int32_t *tokens; /* [n] */
    const float *margin;   /* [n]: truth's best minus second best logit */
} cb_ref_greedy;

enum { CB_REF_STEPS = 1, CB_REF_F32 = 2 }; /* kinds of full rows */

typedef struct cb_ref {
    cb_map map;
    char *copy;              /* the file's bytes, aligned; everything below points into it */
    json_t *meta;            /* {"model", "cases": [names], columns of other stacks, ...} */
    uint32_t n_vocab, n_cases, n_pos, top_k, n_sample, n_full, full_kind, n_greedy;
    const cb_ref_case *cases;
    const int32_t *tokens;     /* [n_pos] */
    const double *lse;         /* [n_pos]: ln sum exp of truth's logits */
    const uint32_t *top_id;    /* [n_pos][top_k], best first */
    const float *top;          /* [n_pos][top_k]: logit - lse */
    const uint32_t *sample_id; /* [n_sample] */
    const float *sample;       /* [n_pos][n_sample]: logit - lse */
    const uint32_t *full_pos;  /* [n_full], ascending */
    const char *full;          /* n_full rows of full_row_bytes */
    size_t full_row_bytes;
    cb_ref_greedy *greedy;     /* [n_greedy] */
} cb_ref;

/* CB_ENOTFOUND, CB_EIO, CB_EFORMAT (names the field), CB_ENOMEM. *out is closed with cb_ref_close. */
int cb_ref_open(const char *path, cb_ref **out, cb_err *err);
void cb_ref_close(cb_ref *r);
const char *cb_ref_case_name(const cb_ref *r, uint32_t i);
/* Full row i as f32 [n_vocab]. */
void cb_ref_full_row(const cb_ref *r, uint32_t i, float *out);
/* Truth's best minus second best logit at a position. */
float cb_ref_margin(const cb_ref *r, uint32_t pos);

/* A position whose best id is not truth's. It is explained when truth's lead over that id is within the margin. */
typedef struct cb_ref_flip {
    int pos;
    uint32_t want, got;
    float lead; /* truth's best logit minus truth's logit of `got`; the least it can be where that is not stored */
} cb_ref_flip;

enum { CB_REF_FLIPS = 32 };

/* Distance of many rows from truth. KL in nats, KL(truth || row). Positions are -1 while nothing was scored. */
typedef struct cb_ref_score {
    int n;                   /* rows scored */
    double kl_sum, kl_max;   /* over truth's top_k and one bin for the rest: a lower bound of the true KL */
    double dmax;             /* largest |logit difference| over top_k and the sampled ids, and full rows where given */
    int kl_at, dmax_at;      /* positions */
    int n_full;              /* rows compared with full rows */
    double full_kl_sum, full_kl_max;
    double dmax_c;           /* full rows: largest |difference| after its mean was taken out, to which softmax is blind */
    int n_breach;            /* full rows with KL > (largest - smallest difference)^2 / 8, which cannot be: a fault of this code */
    int n_flips;             /* the best id differs */
    int n_bad_flips;         /* ... although truth's lead exceeds `margin` */
    float margin;            /* set by the caller before the first row */
    float flip_margin;       /* largest lead of truth at which the best id differed */
    int flip_at;
    cb_ref_flip flips[CB_REF_FLIPS]; /* the first n_flips of them */
} cb_ref_score;

void cb_ref_score_init(cb_ref_score *s, float margin);
/* Scores `row` [n_vocab] f32 at position pos. full (may be NULL) is truth's whole row. A row that is not finite gets an
 * infinite distance. */
void cb_ref_score_row(cb_ref_score *s, const cb_ref *r, uint32_t pos, const float *row, const float *full);
/* Adds what `part` scored. */
void cb_ref_score_add(cb_ref_score *s, const cb_ref_score *part);
#endif
