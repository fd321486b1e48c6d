#include "cli/memory.h"
#include "cli/term.h"

static void line(const char *label, uint64_t bytes, const char *note)
{
    char b[32];
    printf("            %-30s %12s%s%s\n", label, cli_bytes(b, bytes), *note ? "  " : "", note);
}

void memory_print(const cb_memory *m, const cb_engine_info *in)
{
    char label[64], note[128], have[32];
    printf("memory      at %d of %d tokens (--ctx N), on %s\n", m->ctx_size, in->ctx_trained, in->device);
    line("weights in the files", m->weights, "");
    line("copies of weights", m->weight_copies, "");
    for (int g = 0; g < m->n_groups; g++) {
        snprintf(label, sizeof label, "KV cache of %d layers", m->kv[g].n_layers);
        snprintf(note, sizeof note, m->kv[g].window ? "%d blocks of 64 tokens, window of %d" : "%d blocks of 64 tokens", m->kv[g].n_blocks, m->kv[g].window);
        line(label, m->kv[g].bytes, note);
    }
    snprintf(label, sizeof label, "state of %d recurrent layers", m->n_recurrent);
    if (m->recurrent) line(label, m->recurrent, "");
    snprintf(note, sizeof note, "%d rows a step", in->max_rows);
    line("scratch", m->scratch, note);
    snprintf(note, sizeof note, "%s the files; there is room for %s", m->weight_copies >= m->weights ? "without" : "beside", cli_bytes(have, m->available));
    line("in all", m->total, note);
    if (m->pinned) line("page-locked host memory", m->pinned, "beside it");
}

json_t *memory_json(const cb_memory *m, const cb_engine_info *in)
{
    json_t *kv = json_array();
    for (int g = 0; g < m->n_groups; g++)
        json_array_append_new(kv, json_pack("{s:i, s:i, s:i, s:I}", "window", m->kv[g].window, "layers", m->kv[g].n_layers, "blocks", m->kv[g].n_blocks,
                                            "bytes", (json_int_t)m->kv[g].bytes));
    return json_pack("{s:i, s:i, s:i, s:I, s:I, s:o, s:i, s:I, s:I, s:I, s:I, s:I}", "ctx_size", m->ctx_size, "sessions", in->max_sessions, "rows", in->max_rows,
                     "weights", (json_int_t)m->weights, "weight_copies", (json_int_t)m->weight_copies, "kv", kv, "recurrent_layers", m->n_recurrent,
                     "recurrent", (json_int_t)m->recurrent, "scratch", (json_int_t)m->scratch, "total", (json_int_t)m->total, "available",
                     (json_int_t)m->available, "pinned", (json_int_t)m->pinned);
}
