/* main.c: the table of commands and the way from argv to an exit code. */
#include "cli/commands.h"
#include "cli/term.h"
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(f) offsetof(cli_opts, f)

static const cli_flag run_flags[] = {
    { "system", "system-prompt", CLI_TEXT, AT(system), "TEXT", "system message" },
    { "image", NULL, CLI_LIST, AT(image), "FILE", "an image for the prompt (models with vision)" },
    { "raw", NULL, CLI_BOOL, AT(raw), NULL, "no chat template: continue the text as it is" },
    { "reasoning", NULL, CLI_TEXT, AT(reasoning), "auto|on|off", "let the model think first: as its template does by default, yes, no" },
    { "reasoning-budget", NULL, CLI_INT, AT(reasoning_budget), "N", "end the reasoning after N tokens; -1: no limit" },
    { "hide-reasoning", NULL, CLI_BOOL, AT(hide_reasoning), NULL, "show the answer only" },
    { "json", NULL, CLI_BOOL, AT(json), NULL, "one JSON object at the end instead of streamed text" },
    { "hash", NULL, CLI_OPTIONAL, AT(hash), "all", "print the SHA-256 of the logits rows tokens were chosen from; all: of every position" },
    { "batch-with", NULL, CLI_INT, AT(batch_with), "N", "debug: share every step with N other sequences" },
    { 0 },
};
static const cli_flag config_flags[] = {
    { "system", "system-prompt", CLI_TEXT, AT(system), "TEXT", "system message" },
    { "raw", NULL, CLI_BOOL, AT(raw), NULL, "no chat template" },
    { "reasoning", NULL, CLI_TEXT, AT(reasoning), "auto|on|off", "reasoning" },
    { "reasoning-budget", NULL, CLI_INT, AT(reasoning_budget), "N", "its tokens at most" },
    { "hide-reasoning", NULL, CLI_BOOL, AT(hide_reasoning), NULL, "show the answer only" },
    { "json", NULL, CLI_BOOL, AT(json), NULL, "one JSON object" },
    { 0 },
};
static const cli_flag json_flags[] = { { "json", NULL, CLI_BOOL, AT(json), NULL, "one JSON object" }, { 0 } };
static const cli_flag plan_flags[] = {
    { "trace-ops", NULL, CLI_BOOL, AT(trace_ops), NULL, "run some steps and add time, GB/s of weights and state, share of the read bandwidth" },
    { "steps", NULL, CLI_INT, AT(steps), "N", "steps of one token to time (default 8)" },
    { "depth", NULL, CLI_INT, AT(depth), "N", "tokens of context before them (default 0)" },
    { 0 },
};
static const cli_flag diff_flags[] = {
    { "a", NULL, CLI_TEXT, AT(a), "DEVICE", "the first device (default cpu:c)" },
    { "b", NULL, CLI_TEXT, AT(b), "DEVICE", "the second device (default auto)" },
    { "steps", NULL, CLI_INT, AT(steps), "N", "steps of one token after the prompt (default 2)" },
    { 0 },
};
static const cli_flag tokenize_flags[] = {
    { "ids", NULL, CLI_BOOL, AT(ids), NULL, "only the ids, on one line" },
    { "no-bos", NULL, CLI_BOOL, AT(no_bos), NULL, "do not add what the post-processor adds" },
    { "special", NULL, CLI_BOOL, AT(special), NULL, "read special tokens spelled in the text as such" },
    { "json", NULL, CLI_BOOL, AT(json), NULL, "a JSON array of ids" },
    { 0 },
};
static const cli_flag detokenize_flags[] = {
    { "special", NULL, CLI_BOOL, AT(special), NULL, "show special tokens" },
    { 0 },
};
static const cli_flag template_flags[] = {
    { "tokens", NULL, CLI_BOOL, AT(ids), NULL, "the ids of the rendered prompt instead of its text" },
    { "reasoning", NULL, CLI_TEXT, AT(reasoning), "auto|on|off", "sets the template's enable_thinking" },
    { 0 },
};
static const cli_flag chat_template_flags[] = {
    { "chat-template", NULL, CLI_TEXT, AT(chat_template), "FILE|NAME", "another template: a file, or one of several that the checkpoint names" },
    { "chat-template-kwargs", NULL, CLI_TEXT, AT(chat_template_kwargs), "JSON", "further variables for the template" },
    { 0 },
};
static const cli_flag score_flags[] = {
    { "json", NULL, CLI_BOOL, AT(json), NULL, "one JSON line per token, then one for the whole" },
    { "top", NULL, CLI_INT, AT(top), "K", "with each token the K likeliest ones (implies --json)" },
    { "no-bos", NULL, CLI_BOOL, AT(no_bos), NULL, "do not add what the post-processor adds" },
    { 0 },
};

static const cli_flag parity_flags[] = {
    { "full", NULL, CLI_TEXT, AT(full), "FILE", "all of truth's logits (make_parity.py --full)" },
    { "kl-mean", NULL, CLI_REAL, AT(kl_mean), "X", "limit of the mean KL in nats (default 1e-6)" },
    { "dmax", NULL, CLI_REAL, AT(dmax), "X", "limit of the largest logit difference (default 0.03)" },
    { "margin", NULL, CLI_REAL, AT(margin), "X", "the best token must be equal where truth's margin exceeds X (default 0.06)" },
    { "positions", NULL, CLI_INT, AT(positions), "N", "ops, self: how many tokens of the text (default 68, 72)" },
    { "json", NULL, CLI_BOOL, AT(json), NULL, "one JSON object" },
    { 0 },
};

static const cli_flag bench_flags[] = {
    { "prompt-sizes", NULL, CLI_TEXT, AT(prompt_sizes), "N,...", "prompts to prefill, in tokens (default 512,8192; on a CPU 512)" },
    { "depths", NULL, CLI_TEXT, AT(depths), "N,...", "tokens in the context when decoding starts (default 512,4096,32768; on a CPU 512)" },
    { "batch", NULL, CLI_TEXT, AT(batches), "N,...", "sequences decoded together (default 1,8,64; on a CPU 1,8)" },
    { "gen", NULL, CLI_INT, AT(gen), "N", "tokens to decode for each sequence (default 64)" },
    { "repeats", "r", CLI_INT, AT(repeats), "N", "how often each case is measured (default 3)" },
    { "json", NULL, CLI_TEXT, AT(json_file), "FILE", "write machine, model, settings and all samples there too; -: to stdout, without the table" },
    { "csv", NULL, CLI_BOOL, AT(csv), NULL, "comma-separated values instead of the table" },
    { 0 },
};

static const cli_flag quantize_flags[] = {
    { "bits", "q-bits", CLI_INT, AT(bits), "B", "bits of a weight: 1, 2, 3, 4 (default), 5, 6 or 8" },
    { "group", "q-group-size group-size", CLI_INT, AT(group), "G", "weights that share a scale: 32, 64 (default) or 128" },
    { "mode", "q-mode", CLI_TEXT, AT(mode), "NAME", "affine, ternary, mxfp4, mxfp8 or nvfp4 (which fix bits and group)" },
    { "keep", NULL, CLI_LIST, AT(keep), "PATTERN", "leave these matrices as they are, as lm_head or '*.o_proj' (repeatable)" },
    { "dtype", NULL, CLI_TEXT, AT(dtype), "NAME", "bfloat16, float16 or float32 for all else; default: config.json's torch_dtype" },
    { "rounding", NULL, CLI_TEXT, AT(rounding), "cpu|gpu", "whose bytes to make: mlx on a CPU (default) or on a GPU" },
    { "hadamard", NULL, CLI_INT, AT(hadamard), "BLOCK", "fold a signed Hadamard transform in: a Bonsai 2 pack (dense Qwen 3.5)" },
    { "seed", "s", CLI_INT, AT(seed), "N", "of the transform's signs (default 0)" },
    { "threads", "t", CLI_INT, AT(threads), "N", "CPU threads; default: physical cores" },
    { 0 },
};

static const cli_cmd commands[] = {
    { "run", NULL, "MODEL [PROMPT]", "Answers one prompt, or chats when there is none and stdin is a terminal",
      "The prompt is PROMPT, -p, -f or standard input. A prompt that does not fit the context is refused, never cut.\n"
      "Text goes to stdout, speeds to stderr. Ctrl-C stops the answer; a second one within a second exits.\n",
      NULL, { cli_flags_prompt, run_flags, chat_template_flags, cli_flags_sampling, cli_flags_model, cli_flags_find }, 1, 2, true, cmd_run },
    { "import", NULL, "FILE.gguf OUT", "Turns a GGUF file into a checkpoint folder",
      "OUT appears whole or not at all; it must not exist, or be an empty folder.\n", NULL, { NULL }, 2, 2, false, cmd_import },
    { "quantize", NULL, "MODEL OUT", "Quantises a BF16, F16 or F32 checkpoint into an MLX checkpoint folder",
      "Names, config and the choice of matrices are those of mlx-lm's convert; the bytes are mlx's own.\n"
      "OUT appears whole or not at all; it must not exist, or be an empty folder.\n",
      NULL, { quantize_flags, cli_flags_find }, 2, 2, false, cmd_quantize },
    { "list", "ls", "", "Lists the checkpoints in the cache and the model folders", NULL, NULL, { cli_flags_find, json_flags }, 0, 0, false, cmd_list },
    { "show", NULL, "MODEL", "Shows a model: config, formats, size, memory, template, end tokens, sampling values", NULL,
      NULL, { json_flags, chat_template_flags, cli_flags_model, cli_flags_find }, 1, 1, true, cmd_show },
    { "plan", NULL, "MODEL", "Prints the recorded forward pass, one operation a line", NULL,
      NULL, { plan_flags, cli_flags_model, cli_flags_find }, 1, 1, true, cmd_plan },
    { "diff", NULL, "MODEL", "Runs a model on two devices and names the first operation whose bytes differ",
      "Exit code 0: all equal; 1: something differs. Without a prompt a short built-in one is used.\n",
      NULL, { diff_flags, cli_flags_prompt, cli_flags_model, cli_flags_find }, 1, 1, true, cmd_diff },
    { "tokenize", NULL, "MODEL [TEXT]", "Shows the token ids of a text (or of standard input)", NULL,
      NULL, { tokenize_flags, cli_flags_prompt, cli_flags_find }, 1, 2, true, cmd_tokenize },
    { "detokenize", NULL, "MODEL [ID...]", "Shows the text of token ids (or of those on standard input)", NULL,
      NULL, { detokenize_flags, cli_flags_find }, 1, CLI_MAX_ARGS, true, cmd_detokenize },
    { "template", NULL, "MODEL [FILE]", "Renders the chat template for a file of messages (JSON; - or none: standard input)",
      "FILE holds an array of messages, or an object with messages, tools and other variables.\n", NULL, { template_flags, chat_template_flags, cli_flags_find }, 1, 2,
      true, cmd_template },
    { "score", NULL, "MODEL [FILE]", "Log-likelihood and perplexity of a text",
      "A text longer than the context is scored in consecutive windows, each starting afresh.\n",
      NULL, { score_flags, cli_flags_prompt, cli_flags_model, cli_flags_find }, 1, 2, true, cmd_score },
    { "bench", NULL, "MODEL", "Measures prefill and decode speed beside what the device can do at most",
      "Token ids are a fixed pseudo-random sequence; decoding is greedy, every sequence has a tail and KV blocks of its own.\n"
      "Shares are of the read bandwidth and the matrix products that a probe reaches before and after (docs/performance.md).\n",
      NULL, { bench_flags, cli_flags_model, cli_flags_find }, 1, 1, true, cmd_bench },
    { "parity", NULL, "[check|ops|layers|self] MODEL ...", "Compares the engine with truth, and with itself",
      "check MODEL REF.cbref   distance from float64 truth beside other stacks, and whether the gates hold (REF: docs/testing.md);\n"
      "                        `check` may be left out\n"
      "ops MODEL               every operation on each device against scalar C, bit for bit\n"
      "layers MODEL FILE.ladder  the first rung of the forward pass that is further from truth than bf16 (docs/testing.md)\n"
      "self MODEL [OTHER]      one hash of all logits over instruction levels, threads, chunks, neighbours, decode; with OTHER\n"
      "                        loaded before and after as well\n"
      "Exit code 0: all gates hold, all is equal; 1: not so.\n",
      "check ops layers self", { parity_flags, cli_flags_prompt, cli_flags_model, cli_flags_find }, 1, 2, true, cmd_parity },
    { "config", NULL, "[MODEL]", "Shows the settings in force and where each comes from",
      "Takes the flags of run. Without MODEL, what a checkpoint or [models.NAME] would set is not known.\n", NULL,
      { chat_template_flags, cli_flags_sampling, cli_flags_model, cli_flags_find, config_flags }, 0, 1, true, cmd_config },
    { "doctor", NULL, "", "Checks this machine; each line is ok, warn or fail, with a remedy", NULL, NULL, { json_flags, cli_flags_find }, 0, 0, false, cmd_doctor },
    { "devices", NULL, "", "Lists devices and free memory", NULL, NULL, { json_flags }, 0, 0, false, cmd_devices },
    { "version", NULL, "", "Prints the version and what was compiled in", NULL, NULL, { json_flags }, 0, 0, false, cmd_version },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static const char *command_name_at(const void *ctx, int i) { return commands[i].name; }

static const cli_cmd *find_command(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (!strcmp(commands[i].name, name) || (commands[i].alias && !strcmp(commands[i].alias, name))) return &commands[i];
    return NULL;
}

static void short_help(FILE *f)
{
    fprintf(f, "usage: cambium COMMAND ...\n\nRuns open-weight language models; the same bits on every machine.\n\n");
    for (int i = 0; i < N_COMMANDS; i++) fprintf(f, "  %-11s %-16s %s\n", commands[i].name, commands[i].args, commands[i].summary);
    fprintf(f, "\n`cambium help COMMAND` lists its flags.\n");
}

static int unknown_command(const char *name)
{
    const char *near = cli_nearest(name, command_name_at, NULL, N_COMMANDS);
    fprintf(stderr, "error: unknown command %.60s", name);
    fprintf(stderr, near ? "; did you mean %s?\n" : "; try `cambium help`%s\n", near ? near : "");
    return 2;
}

/* Every command's own flags and the common ones. */
static cli_cmd with_common(const cli_cmd *c)
{
    cli_cmd full = *c;
    int g = 0;
    while (full.groups[g]) g++;
    full.groups[g] = cli_flags_common;
    return full;
}

int main(int argc, char **argv)
{
    cb_err err = {0};
    setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8"); /* text is UTF-8 whatever the environment forgot to say */
    if (argc < 2) {
        short_help(stderr);
        return 2;
    }
    const char *name = argv[1];
    bool is_help = !strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h");
    if (is_help && argc < 3) {
        short_help(stdout);
        return cli_exit_code(cli_flush(&err));
    }
    if (!strcmp(name, "--version") || !strcmp(name, "-V")) name = "version";
    const cli_cmd *found = find_command(is_help ? argv[2] : name);
    if (!found) return unknown_command(is_help ? argv[2] : name);
    cli_cmd cmd = with_common(found);
    cli_opts o;
    cli_opts_init(&o);
    cli_cmd all[N_COMMANDS];
    for (int i = 0; i < N_COMMANDS; i++) all[i] = with_common(&commands[i]);
    int rc = 0;
    if (is_help) o.help = true;
    else rc = cli_parse(&cmd, all, N_COMMANDS, argc - 2, argv + 2, &o, &err);
    if (rc == 0) rc = cli_log_open(&o, &err);
    if (rc == 0 && o.help) cli_help(&cmd);
    else if (rc == 0) rc = cmd.run(&o, &err);
    if (rc >= 0) {
        int frc = cli_flush(&err);
        if (frc < 0) rc = frc;
    }
    int code = rc < 0 ? cli_report(&o, &err) : rc;
    cli_opts_fini(&o);
    return code;
}
