/* bench.h: the cases of `cambium bench`, how they are measured (bench_run.c) and shown (bench_out.c). */
#ifndef CB_CLI_BENCH_H
#define CB_CLI_BENCH_H
#include "cli/commands.h"
#include <jansson.h>

enum { BENCH_MAX_LIST = 16, BENCH_MAX_CASES = BENCH_MAX_LIST * (BENCH_MAX_LIST + 2), BENCH_MAX_REPEATS = 100,
       BENCH_TAIL = 4,   /* tokens that each sequence of a batch has for itself behind the common ones */
       BENCH_WARMUP = 2, /* steps of every run that are not counted */
       BENCH_MAX_OPENS = BENCH_MAX_LIST + 2,
       BENCH_MAX_SAMPLES = BENCH_MAX_REPEATS + BENCH_MAX_OPENS };

/* A prompt of `depth` tokens (batch 0), or decoding with `batch` sequences after `depth` common tokens. */
typedef struct bench_case {
    int depth, batch;
    bool asked;             /* prefill: in --prompt-sizes; else only filling the context for decoding */
    bool deferred;          /* waits for another opening of the model */
    char left_out[CB_ERR_TEXT]; /* why it was not measured; "" */
    int n;                  /* samples */
    double *seconds;        /* [n]: of the whole prompt, or of the counted steps */
    double *steps;          /* decode: [n][BENCH_WARMUP + gen] seconds */
    double warmup_s;        /* decode: tails and steps before the first sample */
    cb_cost cost;           /* of the whole prompt; of one step in the middle of a run */
    int distinct;           /* decode: different tokens in the last step */
    char ids[65];           /* decode: SHA-256 of all chosen ids of the first sample; all samples must agree */
} bench_case;

typedef struct bench_open {
    double seconds;
    int ctx_size, max_sessions, max_rows;
    uint64_t weight_bytes, state_bytes, scratch_bytes;
    double warmup_s;        /* first chunk of a prompt after opening */
} bench_open;

typedef struct bench_probe {
    cb_probe p;
    char why_not[CB_ERR_TEXT]; /* "": p holds */
} bench_probe;

typedef struct bench {
    const cli_opts *o;
    cli_model m;
    int gen, repeats, chunk, used_chunk; /* chunk 0: the engine's choice */
    bench_case cases[BENCH_MAX_CASES];
    int n_cases;
    bench_open opens[BENCH_MAX_OPENS];
    int n_opens;
    bench_probe probes[2 * BENCH_MAX_OPENS]; /* before and after, for each opening */
    int n_probes;
    /* what outlives the engine */
    char family[32], device[64], arithmetic[32];
    int n_threads, ctx_trained;
    uint64_t n_params, weight_bytes;
} bench;

/* Tokens of context that a case needs. */
int bench_context(const bench *b, const bench_case *c);
/* "decode, 8 sequences at 4096 tokens". */
const char *bench_name(const bench_case *c, char out[80]);
/* Measures all cases of the open model that are neither done, deferred nor left out. */
int bench_measure(bench *b, cb_err *err);

typedef struct bench_stat {
    double median, least, most, p95;
} bench_stat;
/* Of n numbers; changes their order. */
bench_stat bench_stats(double *v, int n);

/* The rooflines over all probes: median; 0 when none could be read. */
double bench_peak(const bench *b, bool matmul);
void bench_print_table(const bench *b);
void bench_print_csv(const bench *b);
/* Everything, as the file format of docs/performance.md. */
json_t *bench_json(const bench *b);
#endif
