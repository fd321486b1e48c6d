/* system.c: doctor, devices, version: what this machine and this build are. */
#include "base/env.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/sys.h"
#include "cli/commands.h"
#include "cli/term.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Made by the Makefile for this file only; a tarball has none. */
#ifndef CB_COMMIT
#define CB_COMMIT "unknown"
#endif
#ifdef CB_HAVE_CUDA
enum { HAVE_CUDA = 1 };
#else
enum { HAVE_CUDA = 0 };
#endif

/* ---- the processor ---- */

typedef struct cpu_level {
    const char *name, *needs; /* words of /proc/cpuinfo */
} cpu_level;

#if defined __x86_64__
static const char arch[] = "x86-64";
static const cpu_level levels[] = { { "cpu:c", "" }, { "cpu:avx2", "avx2 fma f16c" }, { "cpu:avx512", "avx512f avx512bw avx512dq avx512vl avx512_vnni fma f16c" } };
#elif defined __aarch64__
static const char arch[] = "aarch64";
static const cpu_level levels[] = { { "cpu:c", "" }, { "cpu:neon", "asimd asimddp" } };
#else
static const char arch[] = "other";
static const cpu_level levels[] = { { "cpu:c", "" } };
#endif
enum { N_LEVELS = sizeof levels / sizeof *levels };

/* The value of the first line of `file` that starts with `key`, without the colon; "" when there is none. */
static void proc_value(const char *file, const char *key, char *out, size_t cap)
{
    char line[4096];
    FILE *f = fopen(file, "r");
    *out = 0;
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        const char *v = strchr(line, ':');
        v = v ? v + 1 + strspn(v + 1, " \t") : line;
        snprintf(out, cap, "%.*s", (int)strcspn(v, "\n"), v);
        break;
    }
    if (f) fclose(f);
}

static bool has_words(const char *flags, const char *words)
{
    char padded[4200], word[40];
    snprintf(padded, sizeof padded, " %s ", flags);
    for (const char *w = words; *w; w += strcspn(w, " "), w += *w == ' ') {
        snprintf(word, sizeof word, " %.*s ", (int)strcspn(w, " "), w);
        if (!strstr(padded, word)) return false;
    }
    return true;
}

static const char *best_level(void)
{
    char flags[4096];
    proc_value("/proc/cpuinfo", arch[0] == 'a' ? "Features" : "flags", flags, sizeof flags);
    int best = 0;
    for (int i = 1; i < N_LEVELS; i++)
        if (has_words(flags, levels[i].needs)) best = i;
    return levels[best].name;
}

static void cpu_name(char *out, size_t cap)
{
    proc_value("/proc/cpuinfo", "model name", out, cap);
    if (!*out) snprintf(out, cap, "%s", arch);
}

/* ---- devices ---- */

/* NVIDIA GPUs that the kernel driver lists. */
static int gpu_names(char names[][128], int max)
{
    int n = 0;
    DIR *h = opendir("/proc/driver/nvidia/gpus");
    for (const struct dirent *e; h && n < max && (e = readdir(h));) {
        char path[600];
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%.255s/information", e->d_name);
        proc_value(path, "Model", names[n], sizeof names[n]);
        if (!*names[n]) snprintf(names[n], sizeof names[n], "NVIDIA GPU");
        n++;
    }
    if (h) closedir(h);
    return n;
}

int cli_gpus(void)
{
    char names[16][128];
    return gpu_names(names, 16);
}

json_t *cli_machine_json(void)
{
    char name[256], gpus[16][128];
    struct utsname u = {0};
    cpu_name(name, sizeof name);
    uname(&u);
    json_t *a = json_array();
    for (int i = 0, n = gpu_names(gpus, 16); i < n; i++) json_array_append_new(a, cli_json_string(gpus[i], strlen(gpus[i])));
    return json_pack("{s:o, s:i, s:I, s:o, s:s, s:s, s:s}", "cpu", cli_json_string(name, strlen(name)), "cores", cb_physical_cores(), "free_bytes",
                     (json_int_t)cb_memory_available(), "gpus", a, "system", u.sysname, "release", u.release, "architecture", u.machine);
}

const char *cli_commit(void) { return CB_COMMIT; }

int cmd_devices(const cli_opts *o, cb_err *err)
{
    char name[256], gpus[16][128], mem[32];
    uint64_t have = cb_memory_available();
    cpu_name(name, sizeof name);
    int n = gpu_names(gpus, 16), cores = cb_physical_cores();
    if (o->json) {
        json_t *a = json_array();
        json_array_append_new(a, json_pack("{s:s, s:o, s:i, s:I, s:b}", "device", best_level(), "name", cli_json_string(name, strlen(name)), "cores", cores,
                                           "free_bytes", (json_int_t)have, "usable", 1));
        for (int i = 0; i < n; i++) {
            char id[24];
            snprintf(id, sizeof id, "cuda:%d", i);
            json_array_append_new(a, json_pack("{s:s, s:o, s:b}", "device", id, "name", cli_json_string(gpus[i], strlen(gpus[i])), "usable", HAVE_CUDA));
        }
        return cli_print_json(a, err);
    }
    printf("%-11s %s, %d cores, %s free\n", best_level(), name, cores, cli_bytes(mem, have));
    for (int i = 0; i < n; i++) printf("cuda:%-6d %s%s\n", i, gpus[i], HAVE_CUDA ? "" : " (this build has no CUDA backend)");
    return 0;
}

/* ---- doctor ---- */

typedef struct exam {
    json_t *lines; /* NULL: print */
    int n_fail;
} exam;

static void say(exam *x, const char *state, const char *what, const char *remedy, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static void say(exam *x, const char *state, const char *what, const char *remedy, const char *fmt, ...)
{
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    x->n_fail += !strcmp(state, "fail");
    if (x->lines)
        json_array_append_new(x->lines, json_pack("{s:s, s:s, s:o, s:s?}", "state", state, "what", what, "text", cli_json_string(text, strlen(text)), "remedy", remedy));
    else printf("%-5s %-10s %s%s%s\n", state, what, text, remedy ? "; " : "", remedy ? remedy : "");
}

static void check_memory(exam *x)
{
    char a[32], huge[64];
    uint64_t have = cb_memory_available();
    bool low = have < (uint64_t)2 << 30;
    say(x, low ? "warn" : "ok", "memory", low ? "close programs, or use a smaller --ctx-size" : NULL, "%s free for this process", cli_bytes(a, have));
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (f && fgets(huge, sizeof huge, f)) {
        bool never = strstr(huge, "[never]") != NULL;
        say(x, never ? "warn" : "ok", "huge pages", never ? "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled" : NULL, "transparent huge pages are %s",
            never ? "off: weights are read a little slower" : "on");
    }
    if (f) fclose(f);
}

static void check_gpu(exam *x)
{
    char names[16][128], driver[200];
    int n = gpu_names(names, 16);
    proc_value("/proc/driver/nvidia/version", "NVRM version", driver, sizeof driver);
    if (*driver) say(x, "ok", "driver", NULL, "%.150s", driver);
    if (n && HAVE_CUDA) say(x, "ok", "gpu", NULL, "%d NVIDIA GPU%s (%s)", n, n > 1 ? "s" : "", names[0]);
    else if (n) say(x, "warn", "gpu", "the CPU is used", "%d NVIDIA GPU%s (%s), but this build has no CUDA backend", n, n > 1 ? "s" : "", names[0]);
    else say(x, "ok", "gpu", NULL, "no NVIDIA GPU; the CPU is used");
}

static void check_folder(exam *x, const char *what, const char *path, bool needs_write)
{
    char a[32];
    struct statvfs fs;
    if (access(path, F_OK) < 0) say(x, "ok", what, NULL, "%.300s does not exist yet", path);
    else if (access(path, R_OK | X_OK) < 0) say(x, "fail", what, "mend its permissions", "%.300s cannot be read", path);
    else if (needs_write && access(path, W_OK) < 0) say(x, "warn", what, "mend its permissions, or live without", "%.300s cannot be written", path);
    else if (statvfs(path, &fs) == 0) say(x, "ok", what, NULL, "%.300s, %s free", path, cli_bytes(a, (uint64_t)fs.f_bavail * fs.f_frsize));
}

static void check_folders(exam *x, const cli_opts *o)
{
    char path[4096];
    const char *home = cb_env("HOME"), *hub = o->cache_dir ? o->cache_dir : cb_env("HF_HUB_CACHE"), *hf = cb_env("HF_HOME"), *state = cb_env("XDG_STATE_HOME"),
               *cache = cb_env("XDG_CACHE_HOME");
    cli_settings_path(o, path, sizeof path);
    if (*path) say(x, "ok", "settings", NULL, "%.300s", path); /* it has been read without an error */
    else say(x, "ok", "settings", NULL, "no settings file");
    if (hub) snprintf(path, sizeof path, "%s", hub);
    else if (hf) snprintf(path, sizeof path, "%s/hub", hf);
    else if (cache) snprintf(path, sizeof path, "%s/huggingface/hub", cache);
    else snprintf(path, sizeof path, "%s/.cache/huggingface/hub", home ? home : "");
    check_folder(x, "models", path, false);
    if (state) snprintf(path, sizeof path, "%s/cambium", state);
    else snprintf(path, sizeof path, "%s/.local/state/cambium", home ? home : "");
    check_folder(x, "state", path, true);
}

static void check_port(exam *x)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(8080), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    if (fd < 0) return;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) == 0) say(x, "ok", "port", NULL, "127.0.0.1:8080 is free");
    else say(x, "warn", "port", "use another --port for serve", "127.0.0.1:8080 is in use");
    close(fd);
}

int cmd_doctor(const cli_opts *o, cb_err *err)
{
    exam x = { .lines = o->json ? json_array() : NULL };
    char name[256];
    struct utsname u;
    say(&x, "ok", "version", NULL, "cambium %s (%s)", cb_version(), CB_COMMIT);
    if (uname(&u) == 0) say(&x, "ok", "system", NULL, "%s %s on %s", u.sysname, u.release, u.machine);
    cpu_name(name, sizeof name);
    const char *level = best_level();
    bool plain = !strcmp(level, "cpu:c");
    say(&x, plain ? "warn" : "ok", "cpu", plain ? "a processor with AVX2 is ten times as fast" : NULL, "%s, %d cores, kernels %s", name, cb_physical_cores(), level);
    check_memory(&x);
    check_gpu(&x);
    check_folders(&x, o);
    check_port(&x);
    if (x.lines) {
        int rc = cli_print_json(x.lines, err);
        if (rc < 0) return rc;
    }
    return x.n_fail ? 1 : 0;
}

/* ---- version ---- */

int cmd_version(const cli_opts *o, cb_err *err)
{
    json_t *kernels = json_array();
    for (int i = 0; i < N_LEVELS; i++) json_array_append_new(kernels, json_string(levels[i].name));
    if (o->json)
        return cli_print_json(json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:b}", "version", cb_version(), "commit", CB_COMMIT, "compiler", __VERSION__,
                                        "architecture", arch, "arithmetic", "arith 1", "kernels", kernels, "cuda", HAVE_CUDA), err);
    json_decref(kernels);
    printf("cambium %s (%s)\ncompiler %s, %s\nkernels ", cb_version(), CB_COMMIT, __VERSION__, arch);
    for (int i = 0; i < N_LEVELS; i++) printf(" %s", levels[i].name);
    printf("\nCUDA     %s\narithmetic arith 1\n", HAVE_CUDA ? "yes" : "not in this build");
    return 0;
}
