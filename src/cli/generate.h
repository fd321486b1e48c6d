/* generate.h: one sequence on an engine: feeds ids in chunks, keeps what it has fed, and answers: pick, detokenise, look for
 * stops, hand on text. Shared by run, chat, score and the tools. */
#ifndef CB_CLI_GENERATE_H
#define CB_CLI_GENERATE_H
#include "base/sha256.h"
#include "base/stops.h"
#include "cli/model.h"
#include "cli/reasoning.h"

/* Which logits rows a hash covers: none, those from which tokens were chosen, or those of every position. */
enum { GEN_HASH_NONE, GEN_HASH_CHOSEN, GEN_HASH_ALL };

/* New text; a nonzero return stops the answer. */
typedef int (*gen_text_fn)(void *ctx, const char *text, size_t n);
/* Rows of logits, f32 [n][n_vocab of the engine], of ids[first] .. ids[first + n - 1]: row i predicts the id after it. */
typedef int (*gen_rows_fn)(void *ctx, const float *rows, int first, int n, cb_err *err);

typedef struct gen {
    const cli_model *m;
    cb_session *session;
    cb_sampler *sampler;
    cb_row *rows;
    float *logits;     /* [logit_rows][engine n_vocab]; the last row of the latest feed is at `last` */
    const float *last;
    const cb_sampling *sampling; /* while an answer is made and no hash wants logits: the next id is chosen in the step, */
    int n_prompt;      /* of so many ids of the prompt; */
    int32_t next;      /* it, in place of logits */
    int chunk, logit_rows;
    int32_t *ids;      /* [ctx_size + 1] what the session holds, in order, then ids not yet fed */
    int n_fed;
    int keep_at;       /* the state after so many tokens of the next feed is kept for later ones; 0: none */
    int hash_mode;
    cb_sha256 hash;    /* of little-endian f32 rows */
    cb_session **others; /* debug: sequences that share every step */
    int n_others;
    uint64_t other_state;
} gen;

/* One sequence on m's engine, which must have 1 + n_others sessions and max_rows >= 1 + n_others. logit_rows > 1 when every
 * position's logits will be wanted. */
int gen_open(gen *g, const cli_model *m, int logit_rows, int n_others, cb_err *err);
void gen_close(gen *g);

/* Makes the session hold exactly ids[0..n): keeps the common beginning or finds it among kept states, feeds the rest, leaves the last row's logits in
 * g->last. each (may be NULL) gets every fed row's logits. *n_cached: how many were there already (at most n - 1). Errors:
 * CB_ECONTEXT with both numbers, CB_EINTR. */
int gen_feed(gen *g, const int32_t *ids, int n, gen_rows_fn each, void *ctx, int *n_cached, cb_err *err);

typedef struct gen_params {
    const cb_sampling *sampling;
    int max_tokens; /* <= 0: what the context holds */
    bool ignore_eos;
    const cli_list *stop;
    gen_text_fn text;
    void *text_ctx;                 /* also for the two below */
    const cli_reasoning *reasoning; /* NULL: all is answer */
    bool opened;                    /* the prompt ends inside the reasoning */
    gen_text_fn thought;            /* reasoning text; NULL: dropped */
    void (*reclassify)(void *ctx);  /* the answer text so far was reasoning; NULL: ignored */
} gen_params;

typedef struct gen_result {
    const char *finish;      /* "stop", "length", "interrupted" */
    const char *stop_reason; /* the stop string that ended it, or NULL */
    int n_prompt, n_cached, n_out; /* n_out counts the end token */
    int n_thought;                 /* tokens inside the reasoning, delimiters apart */
    double prefill_s, first_s, decode_s; /* prompt; until the first token; from the first token to the last */
    const int32_t *out;      /* [n_out], borrowed from the gen */
} gen_result;

/* Prompt in, text out. An interrupt ends it with finish "interrupted" and 0. */
int gen_answer(gen *g, const int32_t *prompt, int n_prompt, const gen_params *p, gen_result *r, cb_err *err);
#endif
