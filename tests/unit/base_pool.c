/* base_pool: every member runs every job once, barriers order memory, idle members sleep and wake. Run under TSAN too. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum { MAX = 8 };
typedef struct job {
    cb_pool *pool;
    int n_members, rounds;
    long sum[MAX];     /* plain memory: the barrier alone orders it */
    long cells[2][MAX];
    int ran[MAX];
    bool wrong;
} job;

static void count(void *ctx, int member, int n)
{
    job *j = ctx;
    if (n != j->n_members || member < 0 || member >= n) j->wrong = true;
    j->ran[member]++;
}

/* Each round: write the own cell, meet, read everybody's; double buffered so that one barrier a round is enough. */
static void rounds(void *ctx, int member, int n)
{
    job *j = ctx;
    for (int r = 0; r < j->rounds; r++) {
        j->cells[r & 1][member] = r * 100 + member;
        cb_pool_barrier(j->pool, member);
        for (int k = 0; k < n; k++) j->sum[member] += j->cells[r & 1][k];
    }
}

static void jobs(void **state)
{
    for (int n = 1; n <= MAX; n = n < 4 ? n + 1 : n * 2) {
        job j = {.n_members = n};
        cb_err err;
        assert_int_equal(cb_pool_open(n, &j.pool, &err), 0);
        assert_int_equal(cb_pool_size(j.pool), n);
        for (int i = 0; i < 300; i++) cb_pool_run(j.pool, count, &j);
        assert_false(j.wrong);
        for (int k = 0; k < n; k++) assert_int_equal(j.ran[k], 300);
        cb_pool_close(j.pool);
    }
    cb_pool_close(NULL);
}

static void barriers(void **state)
{
    for (int n = 1; n <= 4; n++) {
        job j = {.n_members = n, .rounds = 500};
        cb_err err;
        long want = 0;
        for (int r = 0; r < j.rounds; r++)
            for (int k = 0; k < n; k++) want += r * 100 + k;
        assert_int_equal(cb_pool_open(n, &j.pool, &err), 0);
        for (int again = 1; again <= 3; again++) {
            cb_pool_run(j.pool, rounds, &j);
            for (int k = 0; k < n; k++) assert_int_equal(j.sum[k], again * want);
        }
        cb_pool_close(j.pool);
    }
}

static void nap(void *ctx, int member, int n)
{
    struct timespec t = {0, 3000000};
    if (member == n - 1) nanosleep(&t, NULL);
    ((job *)ctx)->ran[member]++;
}

/* One member late: the others fall asleep in the barrier and are woken. Between jobs they sleep as well and use no time. */
static void sleepers(void **state)
{
    job j = {.n_members = 4};
    cb_err err;
    assert_int_equal(cb_pool_open(4, &j.pool, &err), 0);
    for (int i = 0; i < 20; i++) cb_pool_run(j.pool, nap, &j);
    for (int k = 0; k < 4; k++) assert_int_equal(j.ran[k], 20);
    struct timespec pause = {0, 50000000}, a, b;
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double used = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    assert_true(used < 0.01);
    cb_pool_run(j.pool, nap, &j);
    cb_pool_close(j.pool);
}

static void limits(void **state)
{
    cb_pool *p;
    cb_err err;
    assert_int_equal(cb_pool_open(0, &p, &err), CB_EUSAGE);
    assert_int_equal(cb_pool_open(257, &p, &err), CB_EUSAGE);
    assert_null(p);
    cb_alloc_fail_at(1);
    assert_int_equal(cb_pool_open(2, &p, &err), CB_ENOMEM);
    cb_alloc_fail_at(0);
    for (int i = 0; i < 20; i++) { /* opened and closed without a job */
        assert_int_equal(cb_pool_open(3, &p, &err), 0);
        cb_pool_close(p);
    }
    int n = cb_physical_cores();
    assert_true(n >= 1 && n <= 4096);
    double t = cb_now();
    assert_true(cb_now() >= t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(jobs), cmocka_unit_test(barriers), cmocka_unit_test(sleepers), cmocka_unit_test(limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
