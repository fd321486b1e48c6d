/* emulate.cpp: thread blocks as fibers (emulate.h). x86-64. */
#include "emulate.h"
#include "run.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { MAX_CLUSTER = EMU_MAX_CLUSTER, MAX_THREADS = 576 * MAX_CLUSTER, STACK = 256 << 10, SHARED = EMU_BLOCK_STRIDE, GUARD = 0x5a, MOST_GUARD = 8192 };

emu_dim emu_block, emu_grid, emu_block_dim;
unsigned emu_thread; /* of all in the cluster */
unsigned emu_cluster;
alignas(1024) static unsigned char dynamic[MAX_CLUSTER * SHARED];
unsigned char *emu_dynamic = dynamic;

struct fiber {
    void *sp;
    bool left, at_barrier;
};
struct warp {
    emu_lanes given[2]; /* a meeting's words stay until the one after the next */
    int turn, arrived, n_left;
    unsigned next; /* lane to go on with */
    uint32_t left, absent; /* who had left when lanes met last */
    uint64_t meetings;
};

struct block {
    emu_dim index;
    unsigned n_at_barrier, n_left;
    uint64_t barriers;
    int any, any_before;
};

static fiber fibers[MAX_THREADS], scheduler;
static block blocks[MAX_CLUSTER];
static warp warps[MAX_THREADS / 32];
static unsigned char *stacks;
static unsigned n_threads, n_all, n_left; /* of a block; of the cluster */
static unsigned n_met;
static uint64_t meetings;
static bool backwards; /* blocks, warps and lanes have no order */
static emu_kernel body;
static const void *body_args;

extern "C" void emu_switch(void **from, void *to);
asm(".text\n.globl emu_switch\nemu_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

static void go(unsigned to)
{
    unsigned me = emu_thread;
    emu_thread = to;
    emu_switch(&fibers[me].sp, fibers[to].sp);
}

/* The next lane of this warp that can go on; else back to the scheduler, which takes the next warp. */
static void yield()
{
    unsigned me = emu_thread, base = me & ~31u, n = n_all - base < 32 ? n_all - base : 32;
    for (unsigned i = 1; i <= n; i++) {
        unsigned t = base + (me - base + (backwards ? n - i : i)) % n;
        if (fibers[t].left || fibers[t].at_barrier) continue;
        if (t != me) go(t);
        return;
    }
    emu_switch(&fibers[me].sp, scheduler.sp);
}

/* The other warps, then this warp's next lane. */
void emu_pause()
{
    warps[emu_thread / 32].next = (emu_thread + (backwards ? 31 : 1)) % 32; /* as yield() goes on, so that all have their turn */
    emu_switch(&fibers[emu_thread].sp, scheduler.sp);
}

const emu_lanes &emu_meet(const uint32_t *words, int n)
{
    warp &w = warps[emu_thread / 32];
    emu_lanes &here = w.given[w.turn];
    uint64_t meeting = w.meetings;
    unsigned base = emu_thread & ~31u;
    int lanes = (int)(n_all - base < 32 ? n_all - base : 32);
    if (n) memcpy(here[emu_thread & 31], words, (size_t)n * 4);
    if (++w.arrived == lanes - w.n_left) {
        w.arrived = 0;
        w.meetings++;
        w.turn ^= 1;
        w.absent = w.left;
    } else
        for (long spins = 0; w.meetings == meeting; yield())
            if (++spins > 20000000) {
                fprintf(stderr, "emulate: lanes of a warp wait for each other and some never come\n");
                abort();
            }
    return here;
}

uint32_t emu_left() { return warps[emu_thread / 32].absent; }

static block &here() { return blocks[emu_thread / n_threads]; }

static void open_barrier(block &b)
{
    unsigned first = (unsigned)(&b - blocks) * n_threads;
    for (unsigned t = 0; t < n_threads; t++) fibers[first + t].at_barrier = false;
    b.n_at_barrier = 0;
    b.barriers++;
    b.any_before = b.any;
    b.any = 0;
}

void __syncthreads()
{
    block &me = here();
    fibers[emu_thread].at_barrier = true;
    uint64_t b = me.barriers;
    if (++me.n_at_barrier == n_threads - me.n_left) open_barrier(me);
    while (me.barriers == b) yield();
}

int __syncthreads_or(int v)
{
    here().any |= v != 0;
    __syncthreads();
    return here().any_before;
}

void emu_cluster_meet()
{
    uint64_t before = meetings;
    if (++n_met == n_all) {
        n_met = 0;
        meetings++;
    }
    while (meetings == before) emu_pause();
}

static void enter()
{
    body(body_args);
    fiber &me = fibers[emu_thread];
    warp &w = warps[emu_thread / 32];
    me.left = true;
    n_left++;
    here().n_left++;
    w.n_left++;
    w.left |= 1u << (emu_thread & 31);
    unsigned base = emu_thread & ~31u;
    int lanes = (int)(n_all - base < 32 ? n_all - base : 32);
    if (w.arrived && w.arrived == lanes - w.n_left) { /* the others waited for this one */
        w.arrived = 0;
        w.meetings++;
        w.turn ^= 1;
        w.absent = w.left;
    }
    if (here().n_at_barrier && here().n_at_barrier == n_threads - here().n_left) open_barrier(here());
    for (;;) yield();
}

static void start(unsigned t)
{
    void **sp = (void **)(stacks + (size_t)(t + 1) * STACK - 64);
    *--sp = NULL; /* keeps the stack aligned as after a call */
    *--sp = (void *)enter;
    sp -= 6;
    memset(sp, 0, 6 * sizeof *sp);
    fibers[t] = {sp, false, false};
}

static void run_cluster()
{
    memset(warps, 0, sizeof warps);
    n_left = n_met = 0;
    for (unsigned t = 0; t < n_all; t++) start(t);
    for (long idle = 0; n_left < n_all;) {
        bool ran = false;
        for (unsigned w = 0, n = (n_all + 31) / 32; w < n; w++) {
            unsigned base = 32 * (backwards ? n - 1 - w : w), t = n_all;
            for (unsigned i = 0; i < 32 && t == n_all; i++) {
                unsigned k = base + (warps[base / 32].next + i) % 32;
                if (k < n_all && !fibers[k].left && !fibers[k].at_barrier) t = k;
            }
            if (t == n_all) continue;
            emu_thread = t;
            emu_block = here().index;
            emu_dynamic = dynamic + t / n_threads * SHARED;
            emu_switch(&scheduler.sp, fibers[t].sp);
            ran = true;
        }
        if (!ran && ++idle > 2) {
            fprintf(stderr, "emulate: threads wait at a barrier for others that never come\n");
            abort();
        }
    }
}

void emu_run(emu_kernel f, const void *args, const unsigned *grid, unsigned cluster, unsigned threads, unsigned shared)
{
    if (!stacks) {
        stacks = (unsigned char *)mmap(NULL, (size_t)MAX_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stacks == MAP_FAILED) abort();
    }
    body = f;
    body_args = args;
    n_threads = threads;
    n_all = threads * cluster;
    emu_cluster = cluster;
    if (cluster > MAX_CLUSTER || n_all > MAX_THREADS || (cluster > 1 && threads % 32) || grid[0] % cluster) abort();
    emu_grid = {grid[0], grid[1], grid[2]};
    emu_block_dim = {threads, 1, 1};
    backwards = getenv("CB_EMULATE_BACKWARDS") != NULL;
    unsigned n = grid[0] * grid[1] * grid[2], guard = SHARED - shared < MOST_GUARD ? SHARED - shared : MOST_GUARD;
    for (unsigned i = 0; i < n; i += cluster) {
        for (unsigned k = 0; k < cluster; k++) {
            unsigned b = (backwards ? n - cluster - i : i) + k;
            blocks[k] = {{b % grid[0], b / grid[0] % grid[1], b / grid[0] / grid[1]}, 0, 0, 0, 0, 0};
            memset(dynamic + k * SHARED, 0xff, shared); /* poison: NaN */
            memset(dynamic + k * SHARED + shared, GUARD, guard);
        }
        run_cluster();
        for (unsigned k = 0; k < cluster * guard; k++)
            if (dynamic[k / guard * SHARED + shared + k % guard] != GUARD) {
                fprintf(stderr, "emulate: byte %u behind %u of shared memory was written\n", k % guard, shared);
                abort();
            }
    }
}
