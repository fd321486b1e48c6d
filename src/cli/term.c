#include "cli/term.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/mem.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int cli_exit_code(int rc)
{
    switch (rc) {
    case CB_OK: return 0;
    case CB_EUSAGE:
    case CB_ECONTEXT: return 2;
    case CB_ENOTFOUND: return 3;
    case CB_EFORMAT: return 4;
    case CB_ENODEV: return 5;
    case CB_ENOMEM: return 6;
    case CB_EBIND: return 7;
    case CB_EINTR: return 130;
    default: return 1;
    }
}

/* One record: time level component message, or JSON. */
static void put_record(const cli_opts *o, FILE *f, int level, const char *text)
{
    static const char *const names[] = { "error", "warn", "info", "debug" };
    struct timespec t;
    struct tm tm;
    char day[32];
    clock_gettime(CLOCK_REALTIME, &t);
    strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", gmtime_r(&t.tv_sec, &tm));
    if (!o->log_json) {
        fprintf(f, "%s.%03dZ %s cli %s\n", day, (int)(t.tv_nsec / 1000000), names[level], text);
    } else {
        char ts[48];
        snprintf(ts, sizeof ts, "%s.%03dZ", day, (int)(t.tv_nsec / 1000000));
        json_t *j = json_pack("{s:s, s:s, s:s, s:o}", "ts", ts, "level", names[level], "component", "cli", "msg", cli_json_string(text, strlen(text)));
        char *line = j ? json_dumps(j, JSON_COMPACT) : NULL;
        fprintf(f, "%s\n", line ? line : "{}");
        free(line);
        json_decref(j);
    }
    fflush(f);
}

void cli_log(const cli_opts *o, int level, const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    if (level > o->level) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (o->log || o->log_json) put_record(o, o->log ? o->log : stderr, level, text);
    else fprintf(stderr, "%s%s\n", level == CLI_ERROR ? "error: " : level == CLI_WARN ? "warning: " : "", text);
}

int cli_report(const cli_opts *o, const cb_err *err)
{
    bool interrupted = err->code == CB_EINTR;
    if (o->log) put_record(o, o->log, interrupted ? CLI_INFO : CLI_ERROR, err->text);
    if (o->log_json && !o->log) put_record(o, stderr, interrupted ? CLI_INFO : CLI_ERROR, err->text);
    else if (interrupted) fprintf(stderr, "interrupted\n");
    else fprintf(stderr, "error: %s\n", err->text);
    return cli_exit_code(err->code ? err->code : CB_EIO);
}

int cli_log_open(cli_opts *o, cb_err *err)
{
    if (!o->log_file) return 0;
    int fd = open(o->log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0 && (o->log = fdopen(fd, "a"))) return 0;
    int e = errno;
    if (fd >= 0) close(fd);
    return cb_fail(err, CB_EUSAGE, "--log-file %.300s: %s", o->log_file, strerror(e));
}

bool cli_fancy(void)
{
    const char *term = cb_env("TERM");
    return isatty(2) && !cb_env("NO_COLOR") && term && strcmp(term, "dumb") != 0;
}

int cli_flush(cb_err *err)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return 0;
    return cb_fail(err, CB_EIO, "standard output: %s", strerror(errno ? errno : EIO));
}

/* ---- progress ---- */

void cli_progress_show(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    cli_progress *p = ctx;
    double now = cb_now();
    bool tty = cli_fancy() && !p->opts->log && !p->opts->log_json, last = done >= total;
    if (p->opts->level < CLI_INFO || total == 0) return;
    if (!p->what || strcmp(p->what, what) != 0) {
        p->what = what;
        p->start = now;
        p->last = tty ? now + 0.2 : now - 4; /* what takes less than a moment shows nothing */
    }
    if (now - p->last < (tty ? 0.1 : 5) && !(tty && last && p->shown)) return;
    p->last = now;
    p->shown = true;
    double share = (double)done / (double)total, rate = now > p->start ? (double)done / (now - p->start) : 0;
    double left = rate > 0 ? (double)(total - done) / rate : 0;
    char a[32], b[32], c[32];
    if (!tty) {
        p->shown = false;
        cli_note(p->opts, "%s: %s of %s, %.0f %%", what, cli_bytes(a, done), cli_bytes(b, total), 100 * share);
        return;
    }
    char bar[25];
    for (int i = 0; i < 24; i++) bar[i] = i < (int)(24 * share) ? '#' : '.';
    bar[24] = 0;
    fprintf(stderr, "\r\033[K%s [%s] %3.0f %%  %s of %s  %s/s  %.0f s left", what, bar, 100 * share, cli_bytes(a, done), cli_bytes(b, total),
            cli_bytes(c, (uint64_t)rate), left);
}

void cli_progress_end(cli_progress *p)
{
    if (p->shown && cli_fancy()) fprintf(stderr, "\r\033[K");
    p->shown = false;
}

/* ---- interrupts ---- */

/* A signal handler has nowhere else to put what it knows. */
static volatile sig_atomic_t interrupts;
static volatile int64_t last_interrupt_ms;

static void on_interrupt(int sig)
{
    struct timespec t;
    int saved = errno;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t ms = t.tv_sec * 1000 + t.tv_nsec / 1000000;
    if (interrupts && ms - last_interrupt_ms < 1000) {
        ssize_t n = write(2, "\n", 1);
        (void)n;
        _exit(130);
    }
    last_interrupt_ms = ms;
    interrupts = 1;
    errno = saved;
}

void cli_interrupt_begin(void)
{
    struct sigaction a = { .sa_handler = on_interrupt };
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL); /* no SA_RESTART: a read at the prompt ends */
    interrupts = 0;
}

bool cli_interrupted(void) { return interrupts != 0; }
void cli_interrupt_clear(void) { interrupts = 0; }

/* ---- small things ---- */

const char *cli_bytes(char buf[32], uint64_t n)
{
    static const char *const unit[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
    double v = (double)n;
    int u = 0;
    while (v >= 1024 && u < 4) v /= 1024, u++;
    snprintf(buf, 32, u ? "%.1f %s" : "%.0f %s", v, unit[u]);
    return buf;
}

/* Length of the valid UTF-8 character at s, or 0. */
static size_t utf8_char(const unsigned char *s, size_t n)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    size_t len = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    if (len < 2) return len;
    if (len > n) return 0;
    uint32_t cp = s[0] & (0xffu >> (len + 1));
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        cp = cp << 6 | (s[i] & 0x3f);
    }
    return cp < least[len] || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000) ? 0 : len;
}

json_t *cli_json_string(const char *s, size_t n)
{
    json_t *j = json_stringn(s, n);
    if (j) return j;
    cb_buf b;
    cb_buf_init(&b, 0);
    for (size_t i = 0; i < n;) {
        size_t len = utf8_char((const unsigned char *)s + i, n - i);
        if (len) cb_buf_put(&b, s + i, len);
        else cb_buf_puts(&b, "\xef\xbf\xbd");
        i += len ? len : 1;
    }
    if (cb_buf_ok(&b)) j = json_stringn(b.data ? b.data : "", b.n);
    cb_buf_fini(&b);
    return j;
}

int cli_print_json(json_t *j, cb_err *err)
{
    char *text = j ? json_dumps(j, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_decref(j);
    if (!text) return cb_fail(err, CB_ENOMEM, "no memory for the output");
    puts(text);
    free(text);
    return 0;
}

int cli_read_stream(FILE *f, const char *name, size_t max, char **data, size_t *n, cb_err *err)
{
    cb_buf b;
    char part[65536];
    size_t m;
    cb_buf_init(&b, 0);
    *data = NULL;
    while ((m = fread(part, 1, sizeof part, f)) > 0) {
        if (b.n + m > max) {
            cb_buf_fini(&b);
            return cb_fail(err, CB_EUSAGE, "%s: more than %zu bytes", name, max);
        }
        cb_buf_put(&b, part, m);
    }
    if (ferror(f)) {
        cb_buf_fini(&b);
        return cb_fail(err, errno == EINTR ? CB_EINTR : CB_EIO, "%s: %s", name, strerror(errno));
    }
    *n = b.n;
    *data = cb_buf_take(&b);
    return *data ? 0 : cb_fail(err, CB_ENOMEM, "%s: no memory for %zu bytes", name, *n);
}

int cli_read_file(const char *path, size_t max, char **data, size_t *n, cb_err *err)
{
    if (!strcmp(path, "-")) return cli_read_stream(stdin, "standard input", max, data, n, err);
    FILE *f = fopen(path, "rb");
    if (!f) return cb_fail(err, CB_EUSAGE, "cannot read %.300s: %s", path, strerror(errno));
    int rc = cli_read_stream(f, path, max, data, n, err);
    fclose(f);
    return rc;
}
