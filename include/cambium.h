/* cambium.h: the only public header of libcambium. Clean as C17 and C++17.
 *
 * Order of use: cb_engine_open() maps a checkpoint, records its plan and prepares a device; cb_session_open() makes a
 * sequence; cb_step() runs rows of any mixture of sequences; logits come back per wanted row. The same bits come out for
 * any mixture, chunking, thread count and instruction set (docs/arithmetic.md).
 *
 * Ownership: open/close own, get borrows. Nothing here prints or exits. An engine and all its sessions belong to one
 * thread at a time; two engines are independent of each other. Text crosses as UTF-8 with explicit lengths. */
#ifndef CAMBIUM_H
#define CAMBIUM_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define CB_API __attribute__((visibility("default")))

/* ---- errors ------------------------------------------------------------------------------------------------------- */

/* Every failing call returns one of these (negative) and, where it takes a cb_err, one sentence naming the object. The
 * command line's exit code for each is in parentheses. */
enum {
    CB_OK = 0,
    CB_EIO = -1,       /* read, write, disk full, other run-time failure (1) */
    CB_EUSAGE = -2,    /* bad argument, flag or setting (2) */
    CB_ENOTFOUND = -3, /* no such model or file (3) */
    CB_EFORMAT = -4,   /* damaged, incomplete or unsupported checkpoint; names tensor or field (4) */
    CB_ENODEV = -5,    /* requested device cannot be used (5) */
    CB_ENOMEM = -6,    /* not enough memory; need, have (6) */
    CB_EBIND = -7,     /* cannot bind an address (7) */
    CB_ENUM = -8,      /* NaN or infinity in an activation; names the layer (1) */
    CB_ECONTEXT = -9,  /* more tokens than the context holds (2) */
    CB_EINTR = -130    /* interrupted (130) */
};

#define CB_ERR_TEXT 512
typedef struct cb_err {
    int code;               /* CB_E..., 0 when nothing failed */
    char text[CB_ERR_TEXT]; /* one line, NUL-terminated, never empty after a failure */
} cb_err;

/* ---- engine ------------------------------------------------------------------------------------------------------- */

typedef struct cb_engine cb_engine;
typedef struct cb_session cb_session;
typedef struct cb_tokenizer cb_tokenizer;
typedef struct cb_template cb_template;

/* Called during cb_engine_open with bytes done and in all; may be NULL. */
typedef void (*cb_progress_fn)(void *ctx, const char *what, uint64_t done, uint64_t total);

typedef struct cb_engine_opts {
    const char *device;     /* NULL or "auto", "cpu", "cpu:c", "cpu:avx2", "cpu:avx512", "cuda", "cuda:N" */
    int n_threads;          /* 0: one per physical core */
    int ctx_size;           /* tokens per sequence; 0: the checkpoint's limit, reduced to what fits in memory */
    int max_sessions;       /* sequences open at once; 0: 1 */
    int max_rows;           /* rows in one step, at most; 0: 512, on a GPU up to 8192 as memory allows */
    int max_snapshots;      /* states kept beside the sessions: snapshots, and prefixes for reuse; 0: none */
    int plan_only;          /* 1: nothing is loaded; for cb_engine_get_info, _plan_text and _get_memory alone */
    uint64_t memory_limit;  /* bytes for KV cache and scratch; 0: three quarters of what is free */
    cb_progress_fn progress;
    void *progress_ctx;
} cb_engine_opts;

typedef struct cb_engine_info {
    const char *family;     /* "llama", "gemma3", ... */
    const char *device;     /* "cpu:avx512", ... */
    const char *arithmetic; /* "arith 1" */
    int n_vocab;            /* columns of a logits row */
    int ctx_size;           /* tokens a session may hold */
    int ctx_trained;        /* the checkpoint's own limit */
    int n_threads;
    int max_sessions, max_rows, max_snapshots;
    int can_rewind;         /* 1: sessions can be cut back anywhere: no windows, no recurrent layers */
    uint64_t n_params;      /* weights used by the plan, unpacked count */
    uint64_t weight_bytes;  /* mapped bytes of those weights */
    int n_skipped;          /* tensors of parts that are not run (vision tower, draft head), left unread by name */
    uint64_t skipped_bytes;
    uint64_t state_bytes;   /* KV cache and recurrent state, all sessions and snapshots */
    uint64_t scratch_bytes; /* activations and private copies of weights */
    const char *note;       /* device auto: why no GPU is used, one line; NULL when one is, or none was wanted. Borrowed */
} cb_engine_info;

/* Opens the checkpoint in directory `dir` (holds config.json and *.safetensors). `opts` may be NULL. *out is owned by the
 * caller. Errors: CB_ENOTFOUND, CB_EFORMAT, CB_ENODEV, CB_ENOMEM, CB_EIO. */
CB_API int cb_engine_open(const char *dir, const cb_engine_opts *opts, cb_engine **out, cb_err *err);
/* Closes NULL too. All sessions must have been closed. */
CB_API void cb_engine_close(cb_engine *e);
CB_API void cb_engine_get_info(const cb_engine *e, cb_engine_info *out);

/* What an engine takes, in bytes; counted, not measured. */
typedef struct cb_memory {
    int ctx_size;
    uint64_t weights;       /* as stored; the CPU reads packed ones in place, from the page cache */
    uint64_t weight_copies; /* on the device: all of them on a GPU; on the CPU float weights as planes, and vectors */
    int n_groups;           /* of attention layers with the same window */
    struct {
        int window;         /* tokens; 0: all */
        int n_layers, n_blocks; /* blocks of 64 tokens for all sessions and snapshots */
        uint64_t bytes;
    } kv[4];
    int n_recurrent;        /* layers */
    uint64_t recurrent;
    uint64_t scratch;       /* activations of max_rows rows */
    uint64_t total;         /* all but `weights` and `pinned` */
    uint64_t pinned;        /* on a GPU: page-locked memory of the host, through which steps and results pass */
    uint64_t available;     /* what the device could give an engine when this one was opened, or memory_limit */
} cb_memory;
/* With this engine's sessions, snapshots and rows at a context of ctx_size tokens (0: its own). Errors: CB_EUSAGE. */
CB_API int cb_engine_get_memory(const cb_engine *e, int ctx_size, cb_memory *out, cb_err *err);

/* ---- sessions and steps ------------------------------------------------------------------------------------------- */

/* A sequence: its tokens, KV blocks and recurrent state. Errors: CB_EUSAGE when max_sessions are open already. */
CB_API int cb_session_open(cb_engine *e, cb_session **out, cb_err *err);
CB_API void cb_session_close(cb_session *s);
/* Tokens processed so far; the next row of this session gets this position. */
CB_API int cb_session_length(const cb_session *s);
/* The tokens, [length]. Borrowed until the session changes. */
CB_API const int32_t *cb_session_tokens(const cb_session *s);
/* Forgets everything; length becomes 0. */
CB_API void cb_session_reset(cb_session *s);
/* Goes back to the first `length` tokens. Always possible to 0. Models in which all layers see all earlier tokens go back
 * anywhere; a sliding window only as far as its blocks are still there; recurrent layers not at all (take snapshots).
 * Errors: CB_EUSAGE says why not, and the session stays as it was. */
CB_API int cb_session_truncate(cb_session *s, int length, cb_err *err);
/* Another session with the same past, which goes its own way from here. The two share KV blocks; recurrent state is copied.
 * Errors: CB_EUSAGE when max_sessions are open, CB_ENOMEM. */
CB_API int cb_session_fork(const cb_session *s, cb_session **out, cb_err *err);
/* Copies the KV blocks that the session shares, so that all of them are its own. Changes no result; a benchmark wants it,
 * because blocks that many sequences read together come from caches. Errors: CB_ENOMEM when there are no blocks left. */
CB_API int cb_session_own(cb_session *s, cb_err *err);

/* The state of a session at one moment. It shares the session's KV blocks, and owns one of the engine's max_snapshots copies of
 * recurrent state. Close all before the engine. */
typedef struct cb_snapshot cb_snapshot;
/* Errors: CB_ENOMEM when max_snapshots are held. */
CB_API int cb_session_snapshot(cb_session *s, cb_snapshot **out, cb_err *err);
CB_API void cb_snapshot_close(cb_snapshot *n);
CB_API int cb_snapshot_length(const cb_snapshot *n);
/* Brings any session of the engine to the snapshot's state; bit-equal to having run its tokens. After an error it is empty. */
CB_API int cb_session_restore(cb_session *s, const cb_snapshot *n, cb_err *err);

/* The prefix cache: snapshots that the engine keeps, and drops again, least recently used first, when their number or their KV
 * blocks are needed. */
/* Keeps the session's present state. Errors: CB_ENOMEM when there is no room. */
CB_API int cb_session_keep(cb_session *s, cb_err *err);
/* Brings the session to the longest beginning of tokens[0..n) that it, a kept state or a snapshot holds, at most n - 1 tokens;
 * the caller runs the rest. *keep_at (may be NULL): a length at which cb_session_keep() will pay, because another sequence
 * had the same tokens so far and its state there is not to be had; 0: none. */
CB_API int cb_session_reuse(cb_session *s, const int32_t *tokens, int n, int *n_reused, int *keep_at, cb_err *err);

typedef struct cb_cache_info {
    int n_kept;          /* states kept now */
    uint64_t n_tokens;   /* their tokens */
    uint64_t n_hits;     /* cb_session_reuse() that found something, since the engine opened */
    uint64_t n_reused;   /* tokens found by them */
    uint64_t n_evicted;  /* states dropped for room */
} cb_cache_info;
CB_API void cb_engine_get_cache(const cb_engine *e, cb_cache_info *out);
CB_API void cb_engine_cache_clear(cb_engine *e);

/* One token to process. Rows of one session in a step must stand in order; they take consecutive positions. */
typedef struct cb_row {
    cb_session *session;
    int32_t token;   /* 0 .. n_vocab-1 */
    int want_logits; /* nonzero: this row's logits are computed */
} cb_row;

/* Runs n_rows (1 .. max_rows). `logits` receives one row of n_vocab f32 for each wanted row, in row order; it may be NULL
 * when none is wanted. Allocates nothing. After an error the sessions of the rows are unchanged in length; when the step had
 * begun (CB_ENUM, a device's failure) those of models with recurrent layers have lost their state, and refuse further steps
 * until they are reset, restored or brought back by cb_session_reuse().
 * Errors: CB_EUSAGE (bad token, too many rows, lost state), CB_ECONTEXT, CB_ENOMEM (no KV block left), CB_ENUM. */
CB_API int cb_step(cb_engine *e, const cb_row *rows, int n_rows, float *logits, cb_err *err);
/* The same, but what comes back for each wanted row (at most max_sessions of them) is the id with the largest logit, ties to the lower: greedy
 * decoding without moving logits off a GPU. */
CB_API int cb_step_best(cb_engine *e, const cb_row *rows, int n_rows, int32_t *best, cb_err *err);

/* What the device can do at most, measured now on memory of its own (about 0.5 s): the rooflines of a benchmark. */
typedef struct cb_probe {
    double read_bytes;   /* bytes per second read from device memory, data larger than the caches */
    double matmul_flops; /* 2 x multiply-adds per second from registers: of a GPU's tensor cores in bf16, of a processor's vector units with
                            16-bit activations and 8-bit codes; 0: not measured */
} cb_probe;
CB_API int cb_engine_probe(cb_engine *e, cb_probe *out, cb_err *err);

/* What a step has to move and to compute at least, from the recorded plan and the formats in which things are stored. */
typedef struct cb_cost {
    double weight_bytes; /* each weight read once; of a layer's experts as many as different ones are expected when every row picks
                            its own at random (a step of one row: exactly those it picks) */
    double state_bytes;  /* keys and values of all tokens that are seen, read once a sequence; recurrent state read and written */
    double flops;        /* 2 x multiply-adds of products, convolutions, attention and delta rules */
} cb_cost;
/* A step of n_sequences with n_rows rows each, which have `depth` tokens before these; logits of n_wanted rows in all. */
CB_API void cb_engine_cost(const cb_engine *e, int n_sequences, int n_rows, int depth, int n_wanted, cb_cost *out);

/* ---- looking inside ----------------------------------------------------------------------------------------------- */

/* One finished operation of a step. `data` is [rows][cols] of the named type, valid during the call only; each session's rows
 * stand together, in the order in which the sessions first occur in the step. */
typedef struct cb_tap {
    int op;              /* index in the plan */
    const char *name;    /* "layers.3.self_attn.q_proj", ... */
    const char *kind;    /* "linear", "rmsnorm", ... */
    const char *dtype;   /* "f32", or "i8" for activation planes */
    const void *data;
    int rows;
    size_t row_bytes;    /* bytes of one row that mean something */
    size_t row_stride;   /* bytes from one row to the next */
    double us;           /* time of the op, microseconds, wall; on a GPU between events around it */
    uint64_t bytes;      /* of weights and of sequences' states that it moved at least */
    uint64_t flops;      /* 2 x multiply-adds, all rows */
} cb_tap;
typedef void (*cb_tap_fn)(void *ctx, const cb_tap *tap);
/* Calls fn after every op of later steps (slower: one barrier per op). NULL turns it off. */
CB_API void cb_engine_set_tap(cb_engine *e, cb_tap_fn fn, void *ctx);
/* Prints the recorded plan, one op a line with shapes, weight bytes and flops per row. The caller frees *text. */
CB_API int cb_engine_plan_text(const cb_engine *e, char **text, cb_err *err);

/* ---- text --------------------------------------------------------------------------------------------------------- */

/* Opens tokenizer.json (with tokenizer_config.json and generation_config.json when present) in `dir`. */
CB_API int cb_tokenizer_open(const char *dir, cb_tokenizer **out, cb_err *err);
CB_API void cb_tokenizer_close(cb_tokenizer *t);

enum {
    CB_ENCODE_SPECIAL_BEGIN = 1, /* add what the post-processor adds (BOS, ...) */
    CB_ENCODE_PARSE_SPECIAL = 2, /* special tokens spelled in the text become their ids */
    CB_ENCODE_SHIELDED = 4       /* except those that cb_tokenizer_shield marked; the marks are taken out */
};
/* Encodes n bytes. Writes at most cap ids and returns how many there are in all (may exceed cap), or a negative error.
 * Invalid UTF-8 is replaced by U+FFFD as Python's errors="replace" does. */
CB_API int64_t cb_tokenizer_encode(const cb_tokenizer *t, const char *text, size_t n, int flags, int32_t *ids, size_t cap,
                                   cb_err *err);
/* For text that comes from people and goes through a chat template: marks each special token spelled in it, with U+FDD0 behind
 * its first character, so that encoding the rendered prompt with CB_ENCODE_SHIELDED reads it as ordinary text. A U+FDD0 of
 * the text itself becomes U+FFFD. The caller frees *out with free(). */
CB_API int cb_tokenizer_shield(const cb_tokenizer *t, const char *text, size_t n, char **out, size_t *out_n, cb_err *err);
/* Decodes n ids. Returns the number of bytes in all; writes at most cap. Invalid byte sequences become U+FFFD. */
CB_API int64_t cb_tokenizer_decode(const cb_tokenizer *t, const int32_t *ids, size_t n, int skip_special, char *out,
                                   size_t cap, cb_err *err);
CB_API int cb_tokenizer_n_vocab(const cb_tokenizer *t);
/* Text of one token as it stands in the vocabulary; NULL when the id has none. Borrowed. */
CB_API const char *cb_tokenizer_token(const cb_tokenizer *t, int32_t id, size_t *n);
/* Id of an exact vocabulary or added-token string, or -1. */
CB_API int32_t cb_tokenizer_find(const cb_tokenizer *t, const char *text, size_t n);
/* Ends a turn or a text (eos list of generation_config.json, else config.json, else the tokenizer's). */
CB_API int cb_tokenizer_is_stop(const cb_tokenizer *t, int32_t id);

/* Incremental detokeniser: feed ids, get text that is always whole characters. */
typedef struct cb_detok cb_detok;
CB_API int cb_detok_open(const cb_tokenizer *t, int skip_special, cb_detok **out, cb_err *err);
CB_API void cb_detok_close(cb_detok *d);
/* Appends id; *text (borrowed until the next call) holds the new complete characters, perhaps none. */
CB_API int cb_detok_put(cb_detok *d, int32_t id, const char **text, size_t *n, cb_err *err);
/* End of stream: what was held back, incomplete bytes as U+FFFD. */
CB_API int cb_detok_end(cb_detok *d, const char **text, size_t *n, cb_err *err);

/* Opens the chat template of `dir`: chat_template.jinja, else tokenizer_config.json's chat_template. */
CB_API int cb_template_open(const char *dir, cb_template **out, cb_err *err);
/* The one of several templates that the checkpoint calls `name` ("default", "tool_use", ...), for all requests. */
CB_API int cb_template_open_named(const char *dir, const char *name, cb_template **out, cb_err *err);
/* A template from n bytes of text with the checkpoint's special tokens; `name` is shown in errors. */
CB_API int cb_template_open_text(const char *dir, const char *name, const char *text, size_t n, cb_template **out, cb_err *err);
CB_API void cb_template_close(cb_template *t);
/* Its text as it was read (of the default one, where there are two). Borrowed. */
CB_API const char *cb_template_source(const cb_template *t);
/* Renders with the variables of `json` (an object: messages, tools, add_generation_prompt, any other) on top of the
 * tokenizer's special tokens (bos_token, ...). The caller frees *out with free(). Errors: CB_EFORMAT with line and column
 * of the template, CB_EUSAGE for raise_exception and bad JSON. */
CB_API int cb_template_render(const cb_template *t, const char *json, size_t n, char **out, size_t *out_n, cb_err *err);

/* ---- sampling ----------------------------------------------------------------------------------------------------- */

enum { CB_PROFILE_HF, CB_PROFILE_VLLM, CB_PROFILE_MLX, CB_PROFILE_LLAMACPP };
enum { CB_OP_END, CB_OP_PENALTIES, CB_OP_TEMPERATURE, CB_OP_TOP_K, CB_OP_TOP_P, CB_OP_MIN_P };

typedef struct cb_sampling {
    float temperature;         /* below 1e-5: greedy */
    int top_k;                 /* <= 0: off */
    float top_p;               /* 1: off */
    float min_p;               /* 0: off */
    float repetition_penalty;  /* 1: off */
    float presence_penalty;    /* 0: off */
    float frequency_penalty;   /* 0: off */
    int repeat_last_n;         /* window of penalties; -1 all, 0 off, -2 the profile's */
    int profile;               /* CB_PROFILE_... */
    uint8_t order[8];          /* CB_OP_..., ends with CB_OP_END; all zero: the profile's order */
    uint64_t seed;
    uint32_t choice;           /* which of n choices; part of the random key */
    const int32_t *bias_ids;   /* logit bias, n_bias pairs; -100 bans. Borrowed for the call */
    const float *bias;
    int n_bias;
} cb_sampling;

/* Neutral values: temperature 1, everything else off, profile hf, seed 0. */
CB_API void cb_sampling_init(cb_sampling *p);
/* Overwrites what generation_config.json in `dir` sets. A missing file is no error. */
CB_API int cb_sampling_from_checkpoint(cb_sampling *p, const char *dir, cb_err *err);

typedef struct cb_sampler cb_sampler;
/* Scratch for one vocabulary size; reusable, allocates nothing after. */
CB_API int cb_sampler_open(int n_vocab, cb_sampler **out, cb_err *err);
CB_API void cb_sampler_close(cb_sampler *s);
/* Picks the token that follows `history` (n_history ids, the first n_prompt of which are the prompt). `logits` is
 * [n_vocab] and is not changed. *logprob (may be NULL) is the natural logarithm of the token's probability under the
 * final distribution. Returns the id or a negative error. */
CB_API int32_t cb_sampler_pick(cb_sampler *s, const cb_sampling *p, const float *logits, const int32_t *history,
                               int n_history, int n_prompt, float *logprob, cb_err *err);

/* How the token after a row is chosen, and which it is. */
typedef struct cb_pick {
    const cb_sampling *sampling;
    const int32_t *history;    /* the sequence with this row's token as the last, n_history ids; the first n_prompt are the prompt */
    int n_history, n_prompt;
    int32_t token;             /* out: the id, or a negative error when the logits give none (all banned, beyond 1e30) */
    float logprob;             /* out: as cb_sampler_pick's */
} cb_pick;
/* cb_step and cb_sampler_pick for each wanted row (at most max_sessions), in row order, with the same tokens and logprobs. On a GPU the logits
 * mostly stay there (docs/sampling.md). The sampler's vocabulary may be smaller than the model's; ids beyond it are not picked. Errors:
 * those of cb_step, and CB_EUSAGE for settings, before anything is run. When only picks fail the step is made and 0 returned; err tells why the
 * last one did. */
CB_API int cb_step_sample(cb_engine *e, const cb_row *rows, int n_rows, cb_sampler *s, cb_pick *picks, cb_err *err);

/* ---- files -------------------------------------------------------------------------------------------------------- */

/* Turns a GGUF file into an MLX checkpoint directory. `out_dir` must not exist, or must be empty; it appears whole or not
 * at all. */
CB_API int cb_import_gguf(const char *gguf, const char *out_dir, cb_progress_fn progress, void *ctx, cb_err *err);

typedef struct cb_quantize_opts {
    const char *mode;         /* NULL or "affine", "ternary", "mxfp4", "mxfp8", "nvfp4" */
    int bits, group;          /* 0: the mode's usual ones */
    const char *dtype;        /* of what stays a float, and of scales: NULL (config.json's, else as stored), "bfloat16", ... */
    int gpu_rounding;         /* MLX's rule on a GPU instead of the one on a CPU */
    const char *const *keep;  /* n_keep patterns of modules that stay as they are, as "lm_head" or "*.o_proj" */
    int n_keep;
    int hadamard_block;       /* 0: none; else a Bonsai 2 pack with blocks of this many columns */
    uint64_t seed;            /* of its signs */
    int n_threads;            /* 0: one per physical core */
    uint64_t file_bytes;      /* most bytes of tensors in one weight file; 0: 5 GiB */
    cb_progress_fn progress;
    void *progress_ctx;
} cb_quantize_opts;
/* Quantises the checkpoint in `dir` (BF16, F16 or F32) into `out_dir`, with names, config and choice of modules as mlx-lm's
 * convert makes them (docs/quantize.md). `opts` may be NULL. `out_dir` must not exist, or must be empty; it appears whole or
 * not at all. Errors: CB_EUSAGE, CB_ENOTFOUND, CB_EFORMAT (names the tensor or field), CB_EIO, CB_ENOMEM. */
CB_API int cb_quantize(const char *dir, const char *out_dir, const cb_quantize_opts *opts, cb_err *err);
/* Finds a checkpoint by directory or by org/name[@revision] in the Hugging Face cache. Writes its directory to path. */
CB_API int cb_model_find(const char *name, const char *cache_dir, char *path, size_t cap, cb_err *err);

CB_API const char *cb_version(void);

#ifdef __cplusplus
}
#endif
#endif
