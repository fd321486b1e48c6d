/* fake_cuda.c: see fake_cuda.h. After an error that real drivers call sticky (an illegal address, a failed launch, an uncorrectable
 * ECC error) every call that touches the context gives it again, until the last owner has released the context. */
#include "fake_cuda.h"
#include "fake_kernels.h"
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))
#define NAME(f) #f
#define VERSIONED(f) NAME(f)

enum { MAX_RULES = 8, MAX_FUNCTIONS = 64, MAX_ALLOCATIONS = 4096, MAX_RECORD = 1024, MAX_CLEARED = 1 << 16, MAPPED = 1 << 20 };

typedef struct allocation {
    uint8_t *p;
    size_t n;
    int pinned;
} allocation;

typedef struct record { /* what a captured graph does: clears memory, or runs a kernel that is emulated */
    fake_kernel run;
    fake_grid grid;
    _Alignas(16) uint8_t args[4096];
    uint8_t *clear;
    size_t n;
    unsigned char value;
} record;

struct CUgraph_st {
    record r[MAX_RECORD];
    int n;
};
struct CUgraphExec_st {
    struct CUgraph_st g;
};
struct CUstream_st {
    struct CUgraph_st *capturing;
};
struct CUevent_st {
    double ms;
};
struct CUfunc_st {
    struct CUfunc_st *next;
    char name[64];
    int shared;
};
struct CUmod_st {
    struct CUfunc_st *functions;
};

static struct {
    pthread_mutex_t lock;
    int started;
    int version, devices, cc, processors;
    size_t memory;
    CUresult sick;               /* what the context answers */
    struct rule {
        char name[48];
        long n;
        CUresult result;
    } rules[MAX_RULES];
    int n_rules;
    struct {
        const char *name;
        uint64_t n;
    } calls[MAX_FUNCTIONS];
    allocation a[MAX_ALLOCATIONS];
    fake_counts c;
} F = {.lock = PTHREAD_MUTEX_INITIALIZER, .version = 12040, .devices = 1, .cc = 90, .processors = 132, .memory = (size_t)4 << 30};

static int is_sticky(CUresult r)
{
    return r == CUDA_ERROR_ILLEGAL_ADDRESS || r == CUDA_ERROR_LAUNCH_FAILED || r == CUDA_ERROR_ECC_UNCORRECTABLE ||
           r == CUDA_ERROR_LAUNCH_TIMEOUT || r == CUDA_ERROR_HARDWARE_STACK_ERROR || r == CUDA_ERROR_ILLEGAL_INSTRUCTION;
}

static void broken(const char *what)
{
    if (!F.c.broken[0]) snprintf(F.c.broken, sizeof F.c.broken, "%s", what);
}

/* "cuMemAlloc_v2" is cuMemAlloc. */
static int is_called(const char *symbol, const char *name)
{
    size_t n = strlen(name);
    return !strncmp(symbol, name, n) && (!symbol[n] || symbol[n] == '_' || !strcmp(symbol + n, "WithFlags"));
}

EXPORT void fake_tell(const char *word)
{
    char name[48];
    long n, v;
    if (sscanf(word, "version=%ld", &v) == 1) F.version = (int)v;
    else if (sscanf(word, "devices=%ld", &v) == 1) F.devices = (int)v;
    else if (sscanf(word, "cc=%ld", &v) == 1) F.cc = (int)v;
    else if (sscanf(word, "processors=%ld", &v) == 1) F.processors = (int)v;
    else if (sscanf(word, "memory=%ld", &v) == 1) F.memory = (size_t)v << 20;
    else if (sscanf(word, "%47[^:]:%ld:%ld", name, &n, &v) == 3 && F.n_rules < MAX_RULES) {
        struct rule *r = &F.rules[F.n_rules++];
        snprintf(r->name, sizeof r->name, "%s", name);
        r->n = n;
        r->result = (CUresult)v;
    } else {
        fprintf(stderr, "fake libcuda: %s?\n", word);
        abort();
    }
}

EXPORT void fake_reset(void)
{
    F.version = 12040;
    F.devices = 1;
    F.cc = 90;
    F.processors = 132;
    F.memory = (size_t)4 << 30;
    F.n_rules = 0;
    memset(F.calls, 0, sizeof F.calls);
    fake_counts held = F.c;
    F.c = (fake_counts){.contexts = held.contexts, .allocations = held.allocations, .pinned = held.pinned, .streams = held.streams,
                        .events = held.events, .modules = held.modules, .graphs = held.graphs, .execs = held.execs, .bytes = held.bytes,
                        .peak_bytes = held.bytes, .pinned_bytes = held.pinned_bytes};
}

EXPORT void fake_count(fake_counts *out)
{
    pthread_mutex_lock(&F.lock);
    *out = F.c;
    pthread_mutex_unlock(&F.lock);
}

EXPORT uint64_t fake_calls(const char *function)
{
    uint64_t n = 0;
    for (int i = 0; i < MAX_FUNCTIONS; i++)
        if (F.calls[i].name && is_called(F.calls[i].name, function)) n += F.calls[i].n;
    return n;
}

/* Counts a call, and says what it must give. The lock is held when it returns 0. */
static CUresult enter(const char *name, int in_context)
{
    CUresult r = CUDA_SUCCESS;
    pthread_mutex_lock(&F.lock);
    int i = 0;
    while (i < MAX_FUNCTIONS - 1 && F.calls[i].name && strcmp(F.calls[i].name, name)) i++;
    F.calls[i].name = name;
    F.calls[i].n++;
    for (int k = 0; k < F.n_rules; k++)
        if (is_called(name, F.rules[k].name) && --F.rules[k].n == 0) r = F.rules[k].result;
    if (in_context && is_sticky(r)) F.sick = r;
    if (in_context && F.sick) r = F.sick;
    if (r != CUDA_SUCCESS) pthread_mutex_unlock(&F.lock);
    return r;
}

static CUresult leave(CUresult r)
{
    pthread_mutex_unlock(&F.lock);
    return r;
}

#define ENTER_AS(f, in_context)                                                                                                \
    do {                                                                                                                       \
        CUresult r_ = enter(VERSIONED(f), in_context);                                                                         \
        if (r_ != CUDA_SUCCESS) return r_;                                                                                     \
    } while (0)
#define ENTER(f) ENTER_AS(f, 1)

/* ---- driver and device ---- */

EXPORT CUresult cuInit(unsigned flags)
{
    (void)flags;
    if (!F.started) {
        const char *words = getenv("CB_FAKE_CUDA");
        F.started = 1;
        while (words && *words) {
            char word[96];
            size_t n = strcspn(words, ",");
            snprintf(word, sizeof word, "%.*s", (int)n, words);
            fake_tell(word);
            words += n + (words[n] == ',');
        }
    }
    ENTER_AS(cuInit, 0);
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuDriverGetVersion(int *out)
{
    ENTER_AS(cuDriverGetVersion, 0);
    *out = F.version;
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGetCount(int *out)
{
    ENTER_AS(cuDeviceGetCount, 0);
    *out = F.devices;
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGet(CUdevice *out, int index)
{
    ENTER_AS(cuDeviceGet, 0);
    *out = index;
    return leave(index < F.devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
}

EXPORT CUresult cuDeviceGetName(char *out, int n, CUdevice d)
{
    (void)d;
    ENTER_AS(cuDeviceGetName, 0);
    snprintf(out, (size_t)n, "Fake GPU");
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGetAttribute(int *out, CUdevice_attribute a, CUdevice d)
{
    (void)d;
    ENTER_AS(cuDeviceGetAttribute, 0);
    switch (a) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *out = F.cc / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *out = F.cc % 10; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *out = F.processors; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *out = 232448; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *out = 50 << 20; break;
    default: *out = 1; break;
    }
    return leave(CUDA_SUCCESS);
}

/* Large ones are mapped: most of their pages are never touched, and a checker need not poison them. */
static void *get(size_t n)
{
    if (n < MAPPED) return calloc(n, 1);
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void put(allocation *a)
{
    if (!a->p) return;
    if (a->n < MAPPED) free(a->p);
    else munmap(a->p, a->n);
    a->p = NULL;
}

static void free_all(void)
{
    for (int i = 0; i < MAX_ALLOCATIONS; i++) put(&F.a[i]);
    F.c.allocations = F.c.pinned = 0;
    F.c.bytes = F.c.pinned_bytes = 0;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice d)
{
    (void)d;
    ENTER_AS(cuDevicePrimaryCtxRetain, 0);
    F.c.contexts++;
    *out = (CUcontext)&F;
    return leave(CUDA_SUCCESS);
}

/* The last owner of a sick context takes everything in it along, and the next one gets a fresh one. */
EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice d)
{
    (void)d;
    ENTER_AS(cuDevicePrimaryCtxRelease, 0);
    if (F.c.contexts < 1) broken("a context is released once too often");
    else if (--F.c.contexts == 0 && F.sick) {
        free_all();
        F.sick = CUDA_SUCCESS;
    }
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxSetCurrent(CUcontext c)
{
    ENTER(cuCtxSetCurrent);
    if (c && F.c.contexts < 1) broken("a context that was released is made current");
    return leave(CUDA_SUCCESS);
}

/* ---- memory ---- */

EXPORT CUresult cuMemGetInfo(size_t *have, size_t *all)
{
    ENTER(cuMemGetInfo);
    *all = F.memory;
    *have = F.memory - F.c.bytes;
    return leave(CUDA_SUCCESS);
}

static allocation *find(const void *p, size_t n, int pinned)
{
    for (int i = 0; i < MAX_ALLOCATIONS; i++) {
        allocation *a = &F.a[i];
        if (a->p && a->pinned == pinned && (const uint8_t *)p >= a->p && (const uint8_t *)p + n <= a->p + a->n) return a;
    }
    return NULL;
}

static CUresult allocate(void **out, size_t n, int pinned)
{
    int i = 0;
    while (i < MAX_ALLOCATIONS && F.a[i].p) i++;
    if (n == 0) return CUDA_ERROR_INVALID_VALUE;
    if (i == MAX_ALLOCATIONS || (!pinned && n > F.memory - F.c.bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!(F.a[i].p = get(n))) return CUDA_ERROR_OUT_OF_MEMORY;
    F.a[i].n = n;
    F.a[i].pinned = pinned;
    *out = F.a[i].p;
    if (pinned) F.c.pinned++, F.c.pinned_bytes += n;
    else {
        F.c.allocations++, F.c.bytes += n;
        if (F.c.bytes > F.c.peak_bytes) F.c.peak_bytes = F.c.bytes;
    }
    return CUDA_SUCCESS;
}

static CUresult release(void *p, int pinned)
{
    allocation *a = find(p, 0, pinned);
    if (!a || a->p != p) {
        broken("something is freed that is not held");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (pinned) F.c.pinned--, F.c.pinned_bytes -= a->n;
    else F.c.allocations--, F.c.bytes -= a->n;
    put(a);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc(CUdeviceptr *out, size_t n)
{
    ENTER(cuMemAlloc);
    F.c.n_alloc++;
    return leave(allocate((void **)out, n, 0));
}

EXPORT CUresult cuMemFree(CUdeviceptr p)
{
    ENTER(cuMemFree);
    return leave(release((void *)p, 0));
}

EXPORT CUresult cuMemHostAlloc(void **out, size_t n, unsigned flags)
{
    (void)flags;
    ENTER(cuMemHostAlloc);
    F.c.n_pinned++;
    return leave(allocate(out, n, 1));
}

EXPORT CUresult cuMemFreeHost(void *p)
{
    ENTER(cuMemFreeHost);
    return leave(release(p, 1));
}

static CUresult copy(void *to, const void *from, size_t n, int to_device, int from_device)
{
    if ((to_device && !find(to, n, 0)) || (from_device && !find(from, n, 0))) {
        broken("a copy leaves the memory that was allocated");
        return CUDA_ERROR_INVALID_VALUE;
    }
    memmove(to, from, n);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t n, CUstream s)
{
    ENTER(cuMemcpyHtoDAsync);
    F.c.n_to_device++;
    if (s->capturing) broken("a copy while a graph is captured");
    return leave(copy((void *)to, from, n, 1, 0));
}

EXPORT CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t n, CUstream s)
{
    ENTER(cuMemcpyDtoHAsync);
    F.c.n_to_host++;
    F.c.to_host_bytes += n;
    if (s->capturing) broken("a copy while a graph is captured");
    return leave(copy(to, (const void *)from, n, 0, 1));
}

EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s)
{
    (void)s;
    ENTER(cuMemcpyDtoDAsync);
    return leave(copy((void *)to, (const void *)from, n, 1, 1));
}

static record *next_record(CUstream s)
{
    if (s->capturing->n == MAX_RECORD) abort();
    return &s->capturing->r[s->capturing->n++];
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream s)
{
    ENTER(cuMemsetD8Async);
    if (!find((void *)p, n, 0)) {
        broken("memory is cleared that was not allocated");
        return leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (s->capturing) *next_record(s) = (record){.clear = (uint8_t *)p, .n = n, .value = v};
    else memset((void *)p, v, n < MAX_CLEARED ? n : MAX_CLEARED); /* a gigabyte for a probe need not be touched */
    return leave(CUDA_SUCCESS);
}

/* ---- streams, events ---- */

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned flags)
{
    (void)flags;
    ENTER(cuStreamCreate);
    if (!(*out = calloc(1, sizeof **out))) return leave(CUDA_ERROR_OUT_OF_MEMORY);
    F.c.streams++;
    return leave(CUDA_SUCCESS);
}

/* Like the functions below that give something back: the object goes even if the context is sick. */
EXPORT CUresult cuStreamDestroy(CUstream s)
{
    ENTER_AS(cuStreamDestroy, 0);
    free(s);
    F.c.streams--;
    return leave(F.sick);
}

EXPORT CUresult cuStreamSynchronize(CUstream s)
{
    ENTER(cuStreamSynchronize);
    F.c.n_sync++;
    if (s->capturing) broken("waiting while a graph is captured");
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    (void)flags;
    ENTER(cuEventCreate);
    if (!(*out = calloc(1, sizeof **out))) return leave(CUDA_ERROR_OUT_OF_MEMORY);
    F.c.events++;
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuEventDestroy(CUevent e)
{
    ENTER_AS(cuEventDestroy, 0);
    free(e);
    F.c.events--;
    return leave(F.sick);
}

EXPORT CUresult cuEventRecord(CUevent e, CUstream s)
{
    (void)s;
    ENTER(cuEventRecord);
    e->ms += 1;
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuEventSynchronize(CUevent e)
{
    (void)e;
    ENTER(cuEventSynchronize);
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuEventElapsedTime(float *ms, CUevent a, CUevent b)
{
    (void)a, (void)b;
    ENTER(cuEventElapsedTime);
    *ms = 1;
    return leave(CUDA_SUCCESS);
}

/* ---- kernels ---- */

EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    ENTER(cuModuleLoadData);
    if (!image) return leave(CUDA_ERROR_INVALID_VALUE);
    if (!(*out = calloc(1, sizeof **out))) return leave(CUDA_ERROR_OUT_OF_MEMORY);
    F.c.modules++;
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuModuleUnload(CUmodule m)
{
    ENTER_AS(cuModuleUnload, 0);
    for (struct CUfunc_st *f = m->functions, *next; f; f = next) {
        next = f->next;
        free(f);
    }
    free(m);
    F.c.modules--;
    return leave(F.sick);
}

EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name)
{
    ENTER(cuModuleGetFunction);
    struct CUfunc_st *f = calloc(1, sizeof *f);
    if (!f) return leave(CUDA_ERROR_OUT_OF_MEMORY);
    snprintf(f->name, sizeof f->name, "%s", name);
    f->next = m->functions;
    m->functions = f;
    f->shared = 48 << 10;
    *out = f;
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v)
{
    ENTER(cuFuncSetAttribute);
    if (a != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return leave(CUDA_SUCCESS);
    if (v < 0 || v > 232448) return leave(CUDA_ERROR_INVALID_VALUE);
    if (v > f->shared) f->shared = v;
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra)
{
    (void)extra;
    ENTER(cuLaunchKernelEx);
    F.c.n_launch++;
    uint64_t threads = (uint64_t)c->blockDimX * c->blockDimY * c->blockDimZ;
    if (!threads || threads > 1024 || !c->gridDimX || !c->gridDimY || !c->gridDimZ || c->gridDimX > 0x7fffffff || c->gridDimY > 65535 ||
        c->gridDimZ > 65535 || (int)c->sharedMemBytes > f->shared) {
        char text[160];
        snprintf(text, sizeof text, "%s: launch of %u x %u x %u blocks of %llu threads, %u bytes shared", f->name, c->gridDimX, c->gridDimY,
                 c->gridDimZ, (unsigned long long)threads, c->sharedMemBytes);
        broken(text);
        return leave(CUDA_ERROR_INVALID_VALUE);
    }
    size_t n = 0;
    fake_kernel run = fake_kernel_find(f->name, &n);
    if (!run) return leave(CUDA_SUCCESS);
    fake_grid grid = {{c->gridDimX, c->gridDimY, c->gridDimZ}, (unsigned)threads, c->sharedMemBytes};
    if (n > sizeof((record *)0)->args) abort();
    if (c->hStream->capturing) {
        record *r = next_record(c->hStream);
        *r = (record){.run = run, .grid = grid};
        memcpy(r->args, params[0], n);
    } else run(params[0], &grid);
    return leave(CUDA_SUCCESS);
}

/* ---- graphs ---- */

EXPORT CUresult cuStreamBeginCapture(CUstream s, CUstreamCaptureMode mode)
{
    (void)mode;
    ENTER(cuStreamBeginCapture);
    if (s->capturing) broken("two captures at once");
    if (!(s->capturing = calloc(1, sizeof *s->capturing))) return leave(CUDA_ERROR_OUT_OF_MEMORY);
    F.c.graphs++;
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamEndCapture(CUstream s, CUgraph *out)
{
    CUresult r = enter(VERSIONED(cuStreamEndCapture), 1);
    *out = NULL;
    if (r != CUDA_SUCCESS) { /* a capture that has gone wrong ends all the same */
        pthread_mutex_lock(&F.lock);
        if (s->capturing) F.c.graphs--;
        free(s->capturing);
        s->capturing = NULL;
        return leave(r);
    }
    if (!s->capturing) broken("the end of no capture");
    *out = s->capturing;
    s->capturing = NULL;
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph g, unsigned long long flags)
{
    (void)flags;
    ENTER(cuGraphInstantiate);
    F.c.n_instantiate++;
    if (!(*out = calloc(1, sizeof **out))) return leave(CUDA_ERROR_OUT_OF_MEMORY);
    (*out)->g = *g;
    F.c.execs++;
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphDestroy(CUgraph g)
{
    ENTER_AS(cuGraphDestroy, 0);
    free(g);
    F.c.graphs--;
    return leave(F.sick);
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec e)
{
    ENTER_AS(cuGraphExecDestroy, 0);
    free(e);
    F.c.execs--;
    return leave(F.sick);
}

EXPORT CUresult cuGraphLaunch(CUgraphExec e, CUstream s)
{
    (void)s;
    ENTER(cuGraphLaunch);
    F.c.n_graph_launch++;
    for (int i = 0; i < e->g.n; i++) {
        record *r = &e->g.r[i];
        if (r->run) r->run(r->args, &r->grid);
        else memset(r->clear, r->value, r->n);
    }
    return leave(CUDA_SUCCESS);
}

/* ---- errors ---- */

EXPORT CUresult cuGetErrorName(CUresult r, const char **out)
{
    switch (r) {
    case CUDA_ERROR_OUT_OF_MEMORY: *out = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CUDA_ERROR_LAUNCH_FAILED: *out = "CUDA_ERROR_LAUNCH_FAILED"; break;
    case CUDA_ERROR_ILLEGAL_ADDRESS: *out = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    case CUDA_ERROR_ECC_UNCORRECTABLE: *out = "CUDA_ERROR_ECC_UNCORRECTABLE"; break;
    case CUDA_ERROR_NO_DEVICE: *out = "CUDA_ERROR_NO_DEVICE"; break;
    default: *out = "CUDA_ERROR_OF_A_TEST"; break;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult r, const char **out)
{
    *out = r == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : r == CUDA_ERROR_NO_DEVICE ? "no CUDA-capable device is detected" : "a fault of a test";
    return CUDA_SUCCESS;
}
