/* compare.h: the same steps on two devices, every operation's output compared by bytes. What device A computed is kept, op by op;
 * then B's tap compares. Whatever differs first is the culprit, because its inputs were equal. */
#ifndef CB_CLI_COMPARE_H
#define CB_CLI_COMPARE_H
#include "cli/model.h"

enum { COMPARE_ROWS = 32, COMPARE_KINDS = 40 };

typedef struct compare_kind {
    char name[16];
    uint64_t n, bytes; /* operations and bytes compared */
} compare_kind;

typedef struct differ {
    cb_buf bytes, ops; /* of A's step: data, and what it is */
    size_t next;       /* index of the op B reaches next */
    int first_pos;
    bool found;        /* a difference; `what` names it */
    uint64_t n_compared, n_bytes;
    compare_kind kinds[COMPARE_KINDS];
    int n_kinds;
    char what[400];
} differ;

typedef struct side {
    cli_model m;
    cb_session *s;
    float *logits; /* [COMPARE_ROWS][n_vocab] */
} side;

void differ_init(differ *d);
void differ_fini(differ *d);
int side_open(side *x, const cli_opts *o, const char *device, cb_err *err);
void side_close(side *x);
/* One step of n ids (at most COMPARE_ROWS) on both. 0 also when a difference was found. */
int compare_step(differ *d, side *a, side *b, const int32_t *ids, int n, cb_err *err);
#endif
