/* gguf_vocab.h: makes tokenizer.json and tokenizer_config.json out of a GGUF file's vocabulary, for the importer. The
 * result, opened by Cambium or by Hugging Face's tokenizers, gives the ids of the model's original tokenizer. */
#ifndef CB_TEXT_GGUF_VOCAB_H
#define CB_TEXT_GGUF_VOCAB_H
#include "base/err.h"
#include "base/mem.h"

typedef struct cb_gguf_str {
    const char *s; /* not NUL-terminated */
    size_t n;
} cb_gguf_str;

/* Values of tokenizer.ggml.token_type. */
enum {
    CB_GGUF_TOKEN_NORMAL = 1,
    CB_GGUF_TOKEN_UNKNOWN = 2,
    CB_GGUF_TOKEN_CONTROL = 3,
    CB_GGUF_TOKEN_USER = 4,
    CB_GGUF_TOKEN_UNUSED = 5,
    CB_GGUF_TOKEN_BYTE = 6
};

/* What the file's tokenizer.ggml.* keys say. All pointers are borrowed for the call. Ids are -1 when the key is absent;
 * flags are 0, 1, or -1 when absent (then the model's default holds). */
typedef struct cb_gguf_vocab {
    const char *model;         /* "gpt2", "llama", "gemma4" */
    const char *pre;           /* "smollm", "llama-bpe", "qwen2", ...; NULL or "": "default" */
    const cb_gguf_str *tokens; /* [n_tokens]; index is the id */
    size_t n_tokens;
    const float *scores;       /* [n_tokens], or NULL; needed by "llama" */
    const int32_t *types;      /* [n_tokens] CB_GGUF_TOKEN_..., or NULL: all normal */
    const cb_gguf_str *merges; /* [n_merges] "left right"; needed by "gpt2" and "gemma4" */
    size_t n_merges;
    int32_t bos, eos, unk, pad;
    int add_bos, add_eos, add_space_prefix;
} cb_gguf_vocab;

/* Appends the text of tokenizer.json to out. Errors: CB_EFORMAT for an unknown model or pre, a missing array, an id out
 * of range, a merge that names no token, invalid UTF-8 in a token (each message starts with the tokenizer.ggml key);
 * CB_ENOMEM. */
int cb_gguf_vocab_json(const cb_gguf_vocab *v, cb_buf *out, cb_err *err);
/* Appends the text of tokenizer_config.json: bos_token, eos_token, ..., add_bos_token and, when not NULL, chat_template
 * (n_template bytes). Errors as above. */
int cb_gguf_vocab_config_json(const cb_gguf_vocab *v, const char *chat_template, size_t n_template, cb_buf *out,
                              cb_err *err);
#endif
