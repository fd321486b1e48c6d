/* fake_cuda.c: see fake_cuda.h. After an error that real drivers call sticky (an illegal address, a failed launch, an uncorrectable
 * ECC error) every call that touches the context gives it again, until the last owner has released the context. */
#include "fake_cuda.h"
#include "fake_kernels.h"
#include "fake_map.h"
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))
#define NAME(f) #f
#define VERSIONED(f) NAME(f)

enum { MAX_RULES = 8, MAX_FUNCTIONS = 64, MAX_ALLOCATIONS = 4096, MAX_RECORD = 1024, MAX_CLEARED = 16 << 20, MAPPED = 1 << 20 };

typedef struct allocation {
    uint8_t *p;
    size_t n;
    int pinned;
} allocation;

enum { MAX_EDGES = 16 };

typedef struct CUgraphNode_st { /* a kernel of a graph: run is NULL when it is not emulated */
    fake_kernel run;
    fake_grid grid;
    _Alignas(16) uint8_t args[4096];
    int ahead[MAX_EDGES], n_ahead; /* numbers of the nodes that it waits for */
} record;

struct CUgraph_st {
    record r[MAX_RECORD];
    int n;
};
struct CUgraphExec_st {
    struct CUgraph_st g;
};
struct CUstream_st {
    int unused;
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
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED: *out = 0; break;
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
    (void)s;
    return leave(copy((void *)to, from, n, 1, 0));
}

EXPORT CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t n, CUstream s)
{
    ENTER(cuMemcpyDtoHAsync);
    F.c.n_to_host++;
    F.c.to_host_bytes += n;
    (void)s;
    return leave(copy(to, (const void *)from, n, 0, 1));
}

EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s)
{
    (void)s;
    ENTER(cuMemcpyDtoDAsync);
    return leave(copy((void *)to, (const void *)from, n, 1, 1));
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream s)
{
    ENTER(cuMemsetD8Async);
    if (!find((void *)p, n, 0)) {
        broken("memory is cleared that was not allocated");
        return leave(CUDA_ERROR_INVALID_VALUE);
    }
    (void)s;
    memset((void *)p, v, n < MAX_CLEARED ? n : MAX_CLEARED); /* a gigabyte for a probe need not be touched */
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
    (void)s;
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

EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *at, const cuuint64_t *size, const cuuint64_t *stride,
                                       const cuuint32_t *box, const cuuint32_t *step, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                       CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    ENTER(cuTensorMapEncodeTiled);
    static const uint32_t patterns[] = {[CU_TENSOR_MAP_SWIZZLE_NONE] = 0, [CU_TENSOR_MAP_SWIZZLE_32B] = 32, [CU_TENSOR_MAP_SWIZZLE_64B] = 64, [CU_TENSOR_MAP_SWIZZLE_128B] = 128};
    int known = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 && (rank == 2 || (rank == 3 && step[2] == 1 && size[0] == box[0] && stride[1] == box[0] && size[2] == box[2] && box[2] <= 256 && size[0] * (size[2] - 1) < stride[0])) && step[0] == 1 && step[1] == 1 && interleave == CU_TENSOR_MAP_INTERLEAVE_NONE &&
                 swizzle <= CU_TENSOR_MAP_SWIZZLE_128B && fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
    (void)promotion;
    if (!known || (uintptr_t)at % 16 || stride[0] % 16 || !size[0] || !size[1] || size[0] >> 32 || size[1] >> 32 || box[0] % 16 || !box[0] || !box[1] || box[0] > 256 || box[1] > 256 ||
        (patterns[swizzle] && box[0] > patterns[swizzle])) {
        broken("a tensor map that the driver would refuse");
        return leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (!find(at, (size[1] - 1) * stride[0] + size[0] * (rank == 3 ? size[2] : 1), 0)) {
        broken("a tensor map of what was not allocated");
        return leave(CUDA_ERROR_INVALID_VALUE);
    }
    fake_map m = {.at = at, .row_bytes = size[0], .rows = size[1], .stride = stride[0], .box_bytes = box[0], .box_rows = box[1], .box_pieces = rank == 3 ? box[2] : 1, .swizzle = patterns[swizzle]};
    memset(out, 0, sizeof *out);
    memcpy(out, &m, sizeof m);
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

EXPORT CUresult cuOccupancyMaxActiveClusters(int *out, CUfunction f, const CUlaunchConfig *c)
{
    ENTER(cuOccupancyMaxActiveClusters);
    *out = (int)c->sharedMemBytes <= f->shared ? 8 : 0;
    return leave(CUDA_SUCCESS);
}

/* Is the launch a legal one? */
static CUresult check_launch(CUfunction f, const unsigned *grid, const unsigned *block, unsigned shared)
{
    F.c.n_launch++;
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    if (threads && threads <= 1024 && grid[0] && grid[1] && grid[2] && grid[0] <= 0x7fffffff && grid[1] <= 65535 && grid[2] <= 65535 && (int)shared <= f->shared)
        return CUDA_SUCCESS;
    char text[160];
    snprintf(text, sizeof text, "%s: launch of %u x %u x %u blocks of %llu threads, %u bytes shared", f->name, grid[0], grid[1], grid[2],
             (unsigned long long)threads, shared);
    broken(text);
    return CUDA_ERROR_INVALID_VALUE;
}

/* The thread blocks of a cluster are neighbours in x here. */
static CUresult check_cluster(fake_grid *g, const CUlaunchAttributeValue *v)
{
    unsigned n = v->clusterDim.x;
    if (!n || n > 16 || v->clusterDim.y != 1 || v->clusterDim.z != 1 || g->blocks[0] % n) {
        broken("a cluster of another shape");
        return CUDA_ERROR_INVALID_VALUE;
    }
    g->cluster = n;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra)
{
    (void)extra;
    ENTER(cuLaunchKernelEx);
    const unsigned size[] = {c->gridDimX, c->gridDimY, c->gridDimZ}, block[] = {c->blockDimX, c->blockDimY, c->blockDimZ};
    CUresult r = check_launch(f, size, block, c->sharedMemBytes);
    size_t n;
    fake_kernel run = r == CUDA_SUCCESS ? fake_kernel_find(f->name, &n) : NULL;
    fake_grid grid = {.blocks = {size[0], size[1], size[2]}, .threads = block[0] * block[1] * block[2], .shared = c->sharedMemBytes};
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) r = check_cluster(&grid, &c->attrs[i].value);
    if (run && r == CUDA_SUCCESS) run(params[0], &grid);
    return leave(r);
}

/* ---- graphs ---- */

EXPORT CUresult cuGraphCreate(CUgraph *out, unsigned flags)
{
    (void)flags;
    ENTER(cuGraphCreate);
    if (!(*out = calloc(1, sizeof **out))) return leave(CUDA_ERROR_OUT_OF_MEMORY);
    F.c.graphs++;
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph g, const CUgraphNode *ahead, size_t n_ahead, const CUDA_KERNEL_NODE_PARAMS *p)
{
    ENTER(cuGraphAddKernelNode);
    (void)ahead;
    if (n_ahead) broken("edges are added by themselves");
    const unsigned size[] = {p->gridDimX, p->gridDimY, p->gridDimZ}, block[] = {p->blockDimX, p->blockDimY, p->blockDimZ};
    CUresult r = check_launch(p->func, size, block, p->sharedMemBytes);
    if (r != CUDA_SUCCESS) return leave(r);
    if (g->n == MAX_RECORD) abort();
    record *node = &g->r[g->n++];
    size_t n = 0;
    *node = (record){.run = fake_kernel_find(p->func->name, &n), .grid = {.blocks = {size[0], size[1], size[2]}, .threads = block[0] * block[1] * block[2], .shared = p->sharedMemBytes}};
    if (n > sizeof node->args) abort();
    if (node->run) memcpy(node->args, p->kernelParams[0], n);
    *out = node;
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID what, const CUkernelNodeAttrValue *v)
{
    ENTER(cuGraphKernelNodeSetAttribute);
    return leave(what == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION ? check_cluster(&node->grid, v) : CUDA_ERROR_INVALID_VALUE);
}

static void add_edge(CUgraph g, CUgraphNode from, CUgraphNode to)
{
    if (from < g->r || to >= g->r + g->n || from >= to || to->n_ahead == MAX_EDGES) broken("an edge between wrong nodes");
    else to->ahead[to->n_ahead++] = (int)(from - g->r);
}

/* Before 12.3. The program asks for both by name, cuda.h may have one name for both. */
EXPORT CUresult plain_edges(CUgraph g, const CUgraphNode *from, const CUgraphNode *to, size_t n) __asm__("cuGraphAddDependencies");
EXPORT CUresult plain_edges(CUgraph g, const CUgraphNode *from, const CUgraphNode *to, size_t n)
{
    CUresult r = enter("cuGraphAddDependencies", 1);
    if (r != CUDA_SUCCESS) return r;
    for (size_t i = 0; i < n; i++) add_edge(g, from[i], to[i]);
    return leave(CUDA_SUCCESS);
}

EXPORT CUresult programmatic_edges(CUgraph g, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t n) __asm__("cuGraphAddDependencies_v2");
EXPORT CUresult programmatic_edges(CUgraph g, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t n)
{
    CUresult r = enter("cuGraphAddDependencies_v2", 1);
    if (r != CUDA_SUCCESS) return r;
    for (size_t i = 0; i < n; i++) {
        if (data[i].type != CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC || data[i].from_port != CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC) broken("an edge of another kind");
        add_edge(g, from[i], to[i]);
    }
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

/* A node that nothing holds back: the first or, so that a wait that is missing shows, the last. */
static int next_node(const struct CUgraph_st *g, const uint8_t *done, int backwards)
{
    int found = -1;
    for (int i = 0; i < g->n && (found < 0 || backwards); i++) {
        int ready = !done[i];
        for (int k = 0; k < g->r[i].n_ahead; k++) ready &= done[g->r[i].ahead[k]];
        if (ready) found = i;
    }
    return found;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec e, CUstream s)
{
    (void)s;
    ENTER(cuGraphLaunch);
    F.c.n_graph_launch++;
    uint8_t done[MAX_RECORD] = {0};
    int backwards = getenv("CB_EMULATE_BACKWARDS") != NULL;
    for (int n = 0; n < e->g.n; n++) {
        int i = next_node(&e->g, done, backwards);
        record *r = &e->g.r[i];
        if (r->run) r->run(r->args, &r->grid);
        done[i] = 1;
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
