/* term.h: what the commands say. Results go to stdout, all else to stderr; progress bars only on a terminal. */
#ifndef CB_CLI_TERM_H
#define CB_CLI_TERM_H
#include "cli/flags.h"
#include <jansson.h>
#include <stdio.h>

/* Exit code of an error (cambium.h lists them); 0 for 0. */
int cli_exit_code(int rc);
/* Levels of messages; cli_opts.level is the last one shown. */
enum { CLI_ERROR, CLI_WARN, CLI_INFO, CLI_DEBUG };
/* "error: ..." on stderr (and in the log file); returns the exit code. */
int cli_report(const cli_opts *o, const cb_err *err);
/* One message: a plain line on stderr, "warning: " before those of CLI_WARN. With --log-file a line with time, level and
 * component there instead; with --log-format json one JSON object. */
void cli_log(const cli_opts *o, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
#define cli_note(o, ...) cli_log(o, CLI_INFO, __VA_ARGS__)
/* Opens --log-file. */
int cli_log_open(cli_opts *o, cb_err *err);
/* May colours and cursor movements go to stderr? */
bool cli_fancy(void);
/* Flushes stdout; CB_EIO when what was printed could not be written (disk full). A closed pipe ends the process quietly
 * by SIGPIPE before this. */
int cli_flush(cb_err *err);

/* A bar on a terminal, else a line every 5 s. Pass as cb_progress_fn with a cli_progress of zeros. */
typedef struct cli_progress {
    const cli_opts *opts;
    double start, last;
    const char *what;
    bool shown;
} cli_progress;
void cli_progress_show(void *ctx, const char *what, uint64_t done, uint64_t total);
/* Removes the bar. */
void cli_progress_end(cli_progress *p);

/* Ctrl-C: from begin on it only counts, and cli_interrupted says so; a second one within a second exits with 130. */
void cli_interrupt_begin(void);
bool cli_interrupted(void);
void cli_interrupt_clear(void);

/* "4.2 GiB" in a buffer of the caller. */
const char *cli_bytes(char buf[32], uint64_t n);
/* A JSON string of any bytes; invalid UTF-8 becomes U+FFFD. NULL without memory. */
json_t *cli_json_string(const char *s, size_t n);
/* system.c: this machine as a JSON object, and the commit of this build. */
json_t *cli_machine_json(void);
const char *cli_commit(void);
/* Prints compact JSON and a newline on stdout; takes the reference. */
int cli_print_json(json_t *j, cb_err *err);
/* Whole stream (at most max bytes) into *data (cb_free). CB_EUSAGE when it holds more. */
int cli_read_stream(FILE *f, const char *name, size_t max, char **data, size_t *n, cb_err *err);
/* FILE or "-" for stdin, as above. */
int cli_read_file(const char *path, size_t max, char **data, size_t *n, cb_err *err);
#endif
