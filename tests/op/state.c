/* state.c: a sequence that was restored, forked, cut back or begun from a kept prefix gives the bits of one run from the start,
 * for every tiny checkpoint, past sliding windows and 2,048 recurrent steps; and what happens when room runs out or a step
 * fails. Rows are compared with those of a cold run of the same tokens. */
#include "../support/engine.h"
#include "../support/tmpdir.h"
#include "base/mem.h"
#include "run/engine.h"

enum { N_SEQS = 3, MAX_LEN = 2112, MAX_CHUNK = 64 };

/* Sequence 0, and two that leave it at these positions. */
static int leaves_at[N_SEQS];

static int32_t token(int seq, int pos) { return te_token(pos < leaves_at[seq] ? 0 : seq, pos, 272); }

typedef struct fixture {
    cb_engine *e;
    cb_engine_info info;
    int len;
    uint64_t cold[N_SEQS][MAX_LEN]; /* hash of each row of logits */
    float *logits;                  /* [2 * MAX_CHUNK][n_vocab] */
    const char *name;
} fixture;

static uint64_t row_hash(const float *row, int n)
{
    te_hasher h = te_hash_start();
    te_hash_row(&h, row, n);
    return h.h;
}

static void check(const fixture *f, int seq, int pos, int row)
{
    uint64_t h = row_hash(f->logits + (size_t)row * (size_t)f->info.n_vocab, f->info.n_vocab);
    if (h != f->cold[seq][pos]) fail_msg("%s: sequence %d at %d differs from a cold run", f->name, seq, pos);
}

/* Runs sequence `seq` on s up to `to` tokens, `chunk` at a time. Record cold rows, or compare. */
static void feed(fixture *f, cb_session *s, int seq, int to, int chunk, bool record)
{
    cb_row rows[MAX_CHUNK];
    cb_err err = {0};
    for (int pos = cb_session_length(s); pos < to;) {
        int n = to - pos < chunk ? to - pos : chunk;
        for (int i = 0; i < n; i++) rows[i] = (cb_row){s, token(seq, pos + i), 1};
        if (cb_step(f->e, rows, n, f->logits, &err) < 0) fail_msg("%s: %s", f->name, err.text);
        for (int i = 0; i < n; i++, pos++)
            if (record) f->cold[seq][pos] = row_hash(f->logits + (size_t)i * (size_t)f->info.n_vocab, f->info.n_vocab);
            else check(f, seq, pos, i);
    }
}

/* Tokens of no sequence, unchecked. */
static void feed_stranger(const fixture *f, cb_session *s, int seed, int to)
{
    while (cb_session_length(s) < to)
        assert_int_equal(cb_step(f->e, &(cb_row){s, te_token(10 + seed, cb_session_length(s), 272), 0}, 1, NULL, NULL), 0);
}

/* Two sequences in common steps, two rows of each, interleaved. */
static void feed_both(fixture *f, cb_session *s, int seq_s, cb_session *t, int seq_t, int to)
{
    while (cb_session_length(s) < to || cb_session_length(t) < to) {
        cb_row rows[4];
        int n = 0, seqs[4], at[4];
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < 2; k++) {
                cb_session *x = k ? t : s;
                int seq = k ? seq_t : seq_s, pos = cb_session_length(x) + i;
                if (pos >= to) continue;
                seqs[n] = seq, at[n] = pos;
                rows[n++] = (cb_row){x, token(seq, pos), 1};
            }
        assert_int_equal(cb_step(f->e, rows, n, f->logits, NULL), 0);
        for (int i = 0; i < n; i++) check(f, seqs[i], at[i], i);
    }
}

static fixture *open_fixture(const char *name, int len, const cb_engine_opts *o)
{
    fixture *f = calloc(1, sizeof *f);
    assert_true(len <= MAX_LEN);
    f->name = name;
    f->len = len;
    cb_err err = {0};
    char dir[512];
    snprintf(dir, sizeof dir, "%s%.255s", *name == '/' ? "" : "tests/data/", name);
    if (cb_engine_open(dir, o, &f->e, &err) < 0) fail_msg("%s: %s", name, err.text);
    cb_engine_get_info(f->e, &f->info);
    f->logits = malloc((size_t)f->info.n_vocab * 4 * 2 * MAX_CHUNK);
    cb_session *s;
    assert_int_equal(cb_session_open(f->e, &s, NULL), 0);
    for (int seq = 0; seq < N_SEQS; seq++) {
        cb_session_reset(s);
        feed(f, s, seq, len, MAX_CHUNK, true);
    }
    cb_session_close(s);
    return f;
}

static void close_fixture(fixture *f)
{
    cb_engine_cache_clear(f->e);
    for (int g = 0; g < f->e->plan->n_kv_groups; g++) assert_int_equal(f->e->pools[g].n_free, f->e->pools[g].n_blocks);
    cb_engine_close(f->e);
    free(f->logits);
    free(f);
}

static char names[TE_CHECKPOINTS][64];
static int n_names;

static bool is_recurrent(const fixture *f) { return f->e->plan->n_rec > 0; }
static bool has_window(const fixture *f)
{
    for (int g = 0; g < f->e->plan->n_kv_groups; g++)
        if (f->e->plan->kv_groups[g].window) return true;
    return false;
}

/* ---- snapshots, forks, prefixes at positions of a run of `len` tokens ---- */

static void snapshots_and_forks(fixture *f, int a, int b, int chunk)
{
    cb_session *s, *t;
    cb_snapshot *at_a, *at_b, *none;
    assert_int_equal(cb_session_open(f->e, &s, NULL), 0);
    feed(f, s, 0, a, MAX_CHUNK, false);
    assert_int_equal(cb_session_snapshot(s, &at_a, NULL), 0);
    feed(f, s, 0, b, chunk, false);
    assert_int_equal(cb_session_snapshot(s, &at_b, NULL), 0);
    assert_int_equal(cb_snapshot_length(at_b), b);
    feed(f, s, 0, f->len, MAX_CHUNK, false);
    /* another future from a, and a fork of it on the way: each writes blocks that the others see too */
    assert_int_equal(cb_session_restore(s, at_a, NULL), 0);
    assert_int_equal(cb_session_length(s), a);
    int mid = leaves_at[1] - 7;
    feed(f, s, 1, mid, chunk, false);
    assert_int_equal(cb_session_fork(s, &t, NULL), 0);
    assert_int_equal(cb_session_length(t), mid);
    if (chunk != 17) { /* a fork with blocks of its own */
        assert_int_equal(cb_session_own(t, NULL), 0);
        for (int g = 0; g < f->e->plan->n_kv_groups; g++)
            for (int i = t->q.first_live[g]; i < t->q.n_held[g]; i++) assert_int_equal(f->e->pools[g].refs[t->q.table[g][i]], 1);
    }
    feed_both(f, s, 1, t, 0, f->len);
    /* the snapshots have not moved; slots and blocks are used again */
    assert_int_equal(cb_session_restore(t, at_b, NULL), 0);
    assert_int_equal(cb_session_restore(s, at_a, NULL), 0);
    feed(f, t, 0, f->len, 1, false);
    cb_session_close(t);
    assert_int_equal(cb_session_open(f->e, &t, NULL), 0);
    assert_int_equal(cb_session_restore(t, at_b, NULL), 0);
    cb_snapshot_close(at_b);
    feed_both(f, s, 1, t, 0, f->len);
    cb_snapshot_close(at_a);
    assert_int_equal(cb_session_snapshot(s, &at_a, NULL), 0);
    assert_int_equal(cb_session_snapshot(t, &at_b, NULL), 0);
    cb_snapshot *third;
    assert_int_equal(cb_session_snapshot(t, &third, NULL), 0);
    assert_int_equal(cb_session_snapshot(t, &none, NULL), CB_ENOMEM);
    assert_null(none);
    cb_snapshot_close(third);
    cb_snapshot_close(at_a);
    cb_snapshot_close(at_b);
    cb_session_close(s);
    cb_session_close(t);
}

static void prefixes(fixture *f, int a, int b)
{
    cb_session *s, *t;
    int32_t *ids = malloc((size_t)f->len * sizeof *ids);
    int n, keep;
    cb_engine_cache_clear(f->e);
    assert_int_equal(cb_session_open(f->e, &s, NULL) | cb_session_open(f->e, &t, NULL), 0);
    feed(f, s, 0, a, MAX_CHUNK, false);
    assert_int_equal(cb_session_keep(s, NULL), 0);
    feed(f, s, 0, b, MAX_CHUNK, false);
    assert_int_equal(cb_session_keep(s, NULL), 0);
    assert_int_equal(cb_session_keep(s, NULL), 0); /* the same again takes nothing */
    feed(f, s, 0, f->len, 13, false);
    cb_cache_info c;
    cb_engine_get_cache(f->e, &c);
    assert_int_equal(c.n_kept, is_recurrent(f) || has_window(f) ? 2 : 1);
    /* sequence 1 is as 0 up to b: found there, by a session with another past */
    feed(f, t, 2, 20, 20, false);
    for (int i = 0; i < f->len; i++) ids[i] = token(1, i);
    assert_true(leaves_at[1] >= b && leaves_at[1] < b + 64);
    assert_int_equal(cb_session_reuse(t, ids, f->len, &n, &keep, NULL), 0);
    assert_int_equal(n, b);
    feed_both(f, t, 1, s, 0, f->len);
    /* sequence 2 leaves 0 between a and b */
    for (int i = 0; i < f->len; i++) ids[i] = token(2, i);
    assert_true(leaves_at[2] > a && leaves_at[2] < b);
    assert_int_equal(cb_session_reuse(t, ids, f->len, &n, &keep, NULL), 0);
    if (is_recurrent(f)) assert_int_equal(n, a);
    else if (!has_window(f)) assert_int_equal(n, leaves_at[2]);
    else assert_true(n >= a);
    assert_int_equal(keep, n < leaves_at[2] ? leaves_at[2] : 0);
    feed(f, t, 2, keep ? keep : n, 5, false);
    if (keep) assert_int_equal(cb_session_keep(t, NULL), 0);
    feed(f, t, 2, f->len, MAX_CHUNK, false);
    /* now it is found where it leaves, and one token is always left to run */
    assert_int_equal(cb_session_reuse(s, ids, leaves_at[2] + 1, &n, &keep, NULL), 0);
    assert_int_equal(n, leaves_at[2]);
    assert_int_equal(keep, 0);
    feed(f, s, 2, f->len, 7, false);
    cb_session_reset(t);
    assert_int_equal(cb_session_reuse(t, ids, leaves_at[2], &n, &keep, NULL), 0);
    assert_true(n < leaves_at[2]);
    feed(f, t, 2, leaves_at[2], MAX_CHUNK, false);
    /* its own past counts too */
    cb_engine_cache_clear(f->e);
    assert_int_equal(cb_session_reuse(t, ids, f->len, &n, NULL, NULL), 0);
    assert_int_equal(n, leaves_at[2]);
    feed(f, t, 2, f->len, MAX_CHUNK, false);
    /* more states than may be kept: the oldest go, and what was there meanwhile has harmed nobody */
    for (int i = 0; i < 5; i++) {
        cb_session_reset(t);
        if (i == 2) feed(f, t, 0, a, MAX_CHUNK, false);
        else feed_stranger(f, t, i, 30 + 9 * i);
        assert_int_equal(cb_session_keep(t, NULL), 0);
    }
    cb_engine_get_cache(f->e, &c);
    assert_int_equal(c.n_kept, 3);
    assert_true(c.n_evicted >= 2 && c.n_hits >= 4 && c.n_tokens > 0);
    for (int i = 0; i < f->len; i++) ids[i] = token(0, i);
    cb_session_reset(s);
    assert_int_equal(cb_session_reuse(s, ids, f->len, &n, NULL, NULL), 0);
    assert_int_equal(n, a);
    feed(f, s, 0, f->len, MAX_CHUNK, false);
    cb_session_close(s);
    cb_session_close(t);
    free(ids);
}

static void test_all_checkpoints(void **state)
{
    (void)state;
    leaves_at[1] = 100, leaves_at[2] = 80;
    for (int i = 0; i < n_names; i += te_quick() ? 8 : 1) {
        fixture *f = open_fixture(names[i], 150, &(cb_engine_opts){.n_threads = 1 + (i % 8 == 0), .ctx_size = 160, .max_sessions = 2,
                                                                    .max_snapshots = 3, .max_rows = MAX_CHUNK});
        snapshots_and_forks(f, i % 3 == 2 ? 64 : 70, 100, 9);
        prefixes(f, 64, 100);
        close_fixture(f);
    }
}

/* ---- far: windows wrapped many times, recurrences past 2,048 steps ---- */

static char *read_whole(const char *name, const char *file, size_t *n)
{
    char path[512];
    snprintf(path, sizeof path, "tests/data/%s/%s", name, file);
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *text = calloc(1, *n + 1);
    assert_int_equal(fread(text, 1, *n, f), *n);
    fclose(f);
    return text;
}

/* A copy of a checkpoint whose config allows 4,096 tokens: the committed ones with a window stop at 512. */
static void lengthen(const char *name, const char *dir)
{
    static const char *const files[] = {"config.json", "model.safetensors", "model.safetensors.index.json", "hadamard.json"};
    static const char limit[] = "\"max_position_embeddings\": 512";
    for (int i = 0; i < 4; i++) {
        size_t n = 0;
        char *text = read_whole(name, files[i], &n), *at;
        if (i == 0 && (at = strstr(text, limit))) {
            char *longer = calloc(1, n + 8);
            n = (size_t)snprintf(longer, n + 8, "%.*s\"max_position_embeddings\": 4096%s", (int)(at - text), text, at + strlen(limit));
            free(text);
            text = longer;
        }
        if (text) tmp_put(dir, files[i], text, n);
        free(text);
    }
}

static void test_far(void **state)
{
    (void)state;
    static const char *const far[] = {"tiny-qwen35moe-4bit", "tiny-gemma3-4bit", "tiny-bonsai2"};
    leaves_at[1] = 2080, leaves_at[2] = 2055;
    for (int i = 0; i < (te_quick() ? 1 : 3); i++) {
        char dir[64];
        lengthen(far[i], tmp_dir(dir));
        fixture *f = open_fixture(dir, MAX_LEN, &(cb_engine_opts){.n_threads = 1, .ctx_size = MAX_LEN, .max_sessions = 2,
                                                                  .max_snapshots = 3, .max_rows = MAX_CHUNK});
        snapshots_and_forks(f, 2050, 2070, 17);
        prefixes(f, 1990, 2065);
        close_fixture(f);
        tmp_remove(dir);
    }
}

/* Cold runs at all levels and chunk sizes agree to the end. */
static void test_far_levels(void **state)
{
    (void)state;
    static const char *const levels[] = {"cpu:c", "cpu:avx2", "cpu:avx512", "cpu:neon"};
    uint64_t first = 0;
    for (int l = 0; l < 4; l++) {
        cb_engine *e = te_try_open("tiny-qwen35-4bit", &(cb_engine_opts){.device = levels[l], .n_threads = 1 + l % 2, .ctx_size = MAX_LEN});
        if (!e) continue;
        uint64_t h = te_hash(e, te_quick() ? 300 : MAX_LEN, l == 0 ? 64 : l == 1 ? 500 : 37);
        if (first && h != first) fail_msg("%s: %016llx, not %016llx", levels[l], (unsigned long long)h, (unsigned long long)first);
        first = h;
        cb_engine_close(e);
    }
}

/* ---- cutting back ---- */

static void test_truncate(void **state)
{
    (void)state;
    static const char *const kinds[] = {"tiny-llama-4bit", "tiny-gemma3-4bit", "tiny-qwen35-4bit"};
    leaves_at[1] = 90, leaves_at[2] = 130;
    for (int i = 0; i < 3; i++) {
        fixture *f = open_fixture(kinds[i], 150, &(cb_engine_opts){.n_threads = 1, .ctx_size = 160, .max_sessions = 2, .max_snapshots = 1});
        cb_session *s, *t;
        cb_err err = {0};
        assert_int_equal(cb_session_open(f->e, &s, NULL), 0);
        feed(f, s, 0, 150, 50, false);
        assert_int_equal(f->info.can_rewind, i == 0);
        for (int k = 0; k < 150; k++) assert_int_equal(cb_session_tokens(s)[k], token(0, k));
        assert_int_equal(cb_session_truncate(s, 151, &err), CB_EUSAGE);
        assert_int_equal(cb_session_truncate(s, -1, &err), CB_EUSAGE);
        assert_int_equal(cb_session_truncate(s, 150, &err), 0);
        assert_int_equal(cb_session_fork(s, &t, NULL), 0); /* shares the block that is cut */
        int rc = cb_session_truncate(s, 60, &err);
        if (i == 0) {
            assert_int_equal(rc, 0);
            feed(f, s, 1, 150, 50, false);
            assert_int_equal(cb_session_truncate(s, 3, &err), 0);
            feed(f, s, 0, 150, 50, false);
        } else {
            assert_int_equal(rc, CB_EUSAGE);
            assert_non_null(strstr(err.text, "snapshot"));
            assert_int_equal(cb_session_length(s), 150);
        }
        assert_int_equal(cb_session_truncate(t, 143, &err), i == 2 ? CB_EUSAGE : 0);
        feed_both(f, s, 0, t, 0, 150);
        assert_int_equal(cb_session_truncate(s, 0, &err), 0);
        feed(f, s, 1, 150, 50, false);
        cb_session_close(s);
        cb_session_close(t);
        close_fixture(f);
    }
}

/* ---- room ---- */

/* Ten blocks: two sessions of 256 tokens and two snapshots. */
static void test_exhaustion(void **state)
{
    (void)state;
    leaves_at[1] = 0, leaves_at[2] = 200;
    fixture *f = open_fixture("tiny-llama-4bit", 256, &(cb_engine_opts){.n_threads = 1, .ctx_size = 256, .max_sessions = 2,
                                                                        .max_snapshots = 2, .max_rows = MAX_CHUNK});
    cb_session *s, *t;
    cb_snapshot *p, *q;
    cb_err err = {0};
    assert_int_equal(f->e->pools[0].n_blocks, 10);
    assert_int_equal(cb_session_open(f->e, &s, NULL) | cb_session_open(f->e, &t, NULL), 0);
    feed(f, s, 0, 256, 64, false);
    assert_int_equal(cb_session_snapshot(s, &p, NULL), 0);
    cb_session_reset(s);
    feed(f, s, 1, 250, 64, false);
    assert_int_equal(cb_session_snapshot(s, &q, NULL), 0);
    feed(f, t, 2, 64, 64, false);
    feed(f, s, 1, 256, 1, false); /* its last block was shared: the tenth */
    assert_int_equal(f->e->pools[0].n_free, 0);
    assert_int_equal(cb_session_own(s, &err), CB_ENOMEM); /* three blocks are the snapshot's too */
    assert_non_null(strstr(err.text, "KV cache: all 10 blocks"));
    cb_row both[2] = {{t, token(2, 64), 1}, {t, token(2, 65), 1}};
    assert_int_equal(cb_step(f->e, both, 2, f->logits, &err), CB_ENOMEM);
    assert_non_null(strstr(err.text, "KV cache: all 10 blocks"));
    assert_int_equal(cb_session_length(t), 64);
    /* s goes on from its snapshot: what it held is enough; then the other's room is given back */
    assert_int_equal(cb_session_restore(s, q, NULL), 0);
    feed(f, s, 1, 256, 3, false);
    cb_snapshot_close(p);
    feed(f, t, 2, 256, 64, false);
    cb_snapshot_close(q);
    /* kept prefixes are dropped instead */
    cb_session_reset(s);
    feed(f, s, 0, 256, 64, false);
    assert_int_equal(cb_session_keep(s, NULL), 0);
    cb_session_reset(s);
    feed(f, s, 1, 256, 64, false);
    cb_session_reset(t);
    uint64_t before = cb_alloc_count();
    feed(f, t, 2, 256, 64, false);
    assert_int_equal(cb_alloc_count(), before);
    cb_cache_info c;
    cb_engine_get_cache(f->e, &c);
    assert_int_equal(c.n_kept, 0);
    assert_int_equal(c.n_evicted, 1);
    cb_session_close(s);
    cb_session_close(t);
    close_fixture(f);
}

/* Decoding past a snapshot copies the shared block and takes no memory; two engines do not mix. */
static void test_allocations(void **state)
{
    (void)state;
    static const char *const kinds[] = {"tiny-gemma3-4bit", "tiny-qwen35-4bit"};
    leaves_at[1] = 90, leaves_at[2] = 60;
    for (int i = 0; i < 2; i++) {
        fixture *f = open_fixture(kinds[i], 150, &(cb_engine_opts){.n_threads = 1, .max_sessions = 2, .max_snapshots = 2, .ctx_size = 150});
        cb_engine *other = te_open(kinds[i], NULL);
        cb_session *s, *t, *o;
        cb_snapshot *p;
        assert_int_equal(cb_session_open(f->e, &s, NULL) | cb_session_open(other, &o, NULL), 0);
        feed(f, s, 0, 70, 64, false);
        assert_int_equal(cb_session_snapshot(s, &p, NULL), 0);
        assert_int_equal(cb_session_restore(o, p, NULL), CB_EUSAGE);
        assert_int_equal(cb_session_keep(s, NULL), 0);
        assert_int_equal(cb_session_fork(s, &t, NULL), 0);
        uint64_t before = cb_alloc_count();
        for (int n = 0; n < 3; n++) {
            feed_both(f, s, 0, t, 1, 150);
            assert_int_equal(cb_session_restore(s, p, NULL), 0);
            assert_int_equal(cb_session_restore(t, p, NULL), 0);
        }
        assert_int_equal(cb_alloc_count(), before);
        cb_session_close(s);
        cb_session_close(t);
        cb_session_close(o);
        cb_snapshot_close(p);
        close_fixture(f);
        cb_engine_close(other);
    }
}

/* Each allocation of snapshot, keep and fork fails once, and everything goes on. */
static void test_allocation_failures(void **state)
{
    (void)state;
    leaves_at[1] = leaves_at[2] = 50;
    fixture *f = open_fixture("tiny-qwen35-4bit", 64, &(cb_engine_opts){.n_threads = 1, .max_sessions = 2, .max_snapshots = 2, .ctx_size = 64});
    cb_session *s;
    assert_int_equal(cb_session_open(f->e, &s, NULL), 0);
    feed(f, s, 0, 40, 64, false);
    for (uint64_t n = 1, failed = 1; failed; n++) {
        cb_session *t = NULL;
        cb_snapshot *p = NULL;
        cb_err err = {0};
        cb_alloc_fail_at(n);
        int rc = cb_session_snapshot(s, &p, &err);
        if (rc == 0) rc = cb_session_keep(s, &err);
        if (rc == 0) rc = cb_session_fork(s, &t, &err);
        cb_alloc_fail_at(0);
        failed = rc < 0;
        if (failed) assert_int_equal(rc, CB_ENOMEM);
        else assert_true(n > 6);
        cb_snapshot_close(p);
        cb_session_close(t);
        cb_engine_cache_clear(f->e);
    }
    feed(f, s, 0, 64, 64, false);
    cb_session_close(s);
    close_fixture(f);
}

/* ---- a step that fails ---- */

/* A copy of `name` in which the embedding of token `id` is infinite: its scales are. */
static void poison(const char *name, const char *dir, int id)
{
    size_t n;
    char *text = read_whole(name, "model.safetensors", &n), *at;
    unsigned long long from, to, header = 0;
    int rows, cols;
    lengthen(name, dir);
    for (int i = 7; i >= 0; i--) header = header << 8 | (unsigned char)text[i];
    at = strstr(text + 8, "embed_tokens.scales\"");
    assert_non_null(at);
    at = strchr(at, '{');
    assert_int_equal(sscanf(strstr(at, "\"shape\""), "\"shape\":[%d,%d]", &rows, &cols), 2);
    assert_int_equal(sscanf(strstr(at, "\"data_offsets\""), "\"data_offsets\":[%llu,%llu]", &from, &to), 2);
    size_t row = (size_t)(to - from) / (size_t)rows;
    assert_int_equal(row, 2 * cols); /* 16 bits each */
    for (size_t i = 0; i < row; i += 2) memcpy(text + 8 + header + from + row * (size_t)id + i, "\x80\x7f", 2); /* bf16 infinity */
    tmp_put(dir, "model.safetensors", text, n);
    free(text);
}

static void test_failed_step(void **state)
{
    (void)state;
    static const char *const kinds[] = {"tiny-qwen3-4bit", "tiny-qwen35moe-4bit"};
    enum { BAD = 280 }; /* no sequence has it */
    leaves_at[1] = 90, leaves_at[2] = 60;
    for (int i = 0; i < 2; i++) {
        char dir[64];
        int n;
        int32_t ids[150];
        poison(kinds[i], tmp_dir(dir), BAD);
        fixture *f = open_fixture(dir, 150, &(cb_engine_opts){.n_threads = 2, .ctx_size = 160, .max_sessions = 2, .max_snapshots = 2,
                                                              .max_rows = MAX_CHUNK});
        cb_session *s, *t;
        cb_snapshot *p, *none;
        cb_err err = {0};
        assert_int_equal(cb_session_open(f->e, &s, NULL) | cb_session_open(f->e, &t, NULL), 0);
        /* from nothing, nothing is lost */
        assert_int_equal(cb_step(f->e, &(cb_row){s, BAD, 0}, 1, NULL, &err), CB_ENUM);
        assert_int_equal(cb_session_length(s), 0);
        feed(f, s, 0, 70, 64, false);
        assert_int_equal(cb_session_snapshot(s, &p, NULL), 0);
        feed(f, s, 0, 100, 64, false);
        feed(f, t, 1, 100, 64, false);
        cb_row rows[4] = {{s, token(0, 100), 0}, {t, token(1, 100), 0}, {s, BAD, 0}, {s, 5, 0}};
        assert_int_equal(cb_step(f->e, rows, 4, f->logits, &err), CB_ENUM);
        assert_int_equal(cb_session_length(s), 100);
        assert_int_equal(cb_session_length(t), 100);
        if (!is_recurrent(f)) feed_both(f, s, 0, t, 1, 150); /* as if nothing had been */
        else {
            /* their state is lost, and they say so */
            assert_int_equal(cb_step(f->e, &(cb_row){t, 1, 1}, 1, f->logits, &err), CB_EUSAGE);
            assert_non_null(strstr(err.text, "lost at 100 tokens"));
            assert_int_equal(cb_session_snapshot(s, &none, &err), CB_EUSAGE);
            assert_int_equal(cb_session_fork(s, (cb_session **)&none, &err), CB_EUSAGE);
            assert_int_equal(cb_session_keep(s, &err), CB_EUSAGE);
            assert_int_equal(cb_session_truncate(s, 100, &err), CB_EUSAGE);
            /* back by the snapshot, by their own tokens, by a reset */
            for (int k = 0; k < 150; k++) ids[k] = token(1, k);
            assert_int_equal(cb_session_reuse(t, ids, 150, &n, NULL, NULL), 0);
            assert_int_equal(n, 70);
            assert_int_equal(cb_session_restore(s, p, NULL), 0);
            feed_both(f, s, 0, t, 1, 140);
            assert_int_equal(cb_step(f->e, &(cb_row){s, BAD, 0}, 1, NULL, &err), CB_ENUM);
            cb_session_reset(s);
        }
        feed_both(f, s, 0, t, 1, 150);
        cb_snapshot_close(p);
        cb_session_close(s);
        cb_session_close(t);
        close_fixture(f);
        tmp_remove(dir);
    }
}

/* ---- anything in any order ---- */

enum { R_SESSIONS = 3, R_SNAPSHOTS = 4, R_CTX = 200 };

static uint32_t draw(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % n;
}

/* Each block is held as often as the sequences say, and free when nobody holds it. */
static void check_blocks(const cb_engine *e)
{
    for (int g = 0; g < e->plan->n_kv_groups; g++) {
        const cb_block_pool *p = &e->pools[g];
        int32_t *refs = calloc((size_t)p->n_blocks, sizeof *refs);
        int n_free = 0;
        for (int k = 0; k < e->lim.max_sessions + e->max_snapshots; k++) {
            const cb_seq *q = k < e->lim.max_sessions ? (e->sessions[k] ? &e->sessions[k]->q : NULL)
                              : e->snapshots[k - e->lim.max_sessions] ? &e->snapshots[k - e->lim.max_sessions]->q : NULL;
            if (!q) continue;
            assert_true(q->n_held[g] == (q->length + 63) / 64 && q->first_live[g] <= q->n_held[g]);
            for (int i = q->first_live[g]; i < q->n_held[g]; i++) refs[q->table[g][i]]++;
        }
        assert_memory_equal(refs, p->refs, (size_t)p->n_blocks * sizeof *refs);
        for (int i = 0; i < p->n_blocks; i++) n_free += !refs[i];
        assert_int_equal(n_free, p->n_free);
        for (int i = 0; i < p->n_free; i++) assert_int_equal(refs[p->free[i]], 0);
        free(refs);
    }
}

/* The latest row of s, whose hash is h, against a cold run of its tokens. */
static void check_cold(cb_engine *e, cb_session *cold, const cb_session *s, uint64_t h, float *logits, int n_vocab)
{
    cb_row rows[R_CTX];
    int n = cb_session_length(s);
    for (int i = 0; i < n; i++) rows[i] = (cb_row){cold, cb_session_tokens(s)[i], i == n - 1};
    cb_session_reset(cold);
    assert_int_equal(cb_step(e, rows, n, logits, NULL), 0);
    assert_true(row_hash(logits, n_vocab) == h);
}

static void random_walk(const char *name, uint64_t seed, int n_ops)
{
    cb_engine_opts o = {.n_threads = 1, .ctx_size = R_CTX, .max_sessions = R_SESSIONS, .max_snapshots = R_SNAPSHOTS, .max_rows = R_CTX};
    cb_engine *e = te_open(name, &o), *other = te_open(name, &(cb_engine_opts){.n_threads = 1, .ctx_size = R_CTX, .max_rows = R_CTX});
    cb_session *s[R_SESSIONS] = {0}, *cold;
    cb_snapshot *snap[R_SNAPSHOTS] = {0};
    cb_engine_info info;
    cb_engine_get_info(e, &info);
    float *logits = malloc((size_t)info.n_vocab * 4);
    uint64_t r = seed;
    int n, keep, used[12] = {0};
    assert_int_equal(cb_session_open(other, &cold, NULL), 0);
    for (int op = 0; op < n_ops; op++) {
        int i = (int)draw(&r, R_SESSIONS), k = (int)draw(&r, R_SNAPSHOTS), what = (int)draw(&r, 20), rc = 0;
        if (!s[i]) {
            if (what < 4 && s[(i + 1) % R_SESSIONS]) rc = cb_session_fork(s[(i + 1) % R_SESSIONS], &s[i], NULL);
            else rc = cb_session_open(e, &s[i], NULL);
            assert_int_equal(rc, 0);
            used[0] += what < 4;
        } else if (what < 8) { /* a few tokens of one of two continuations */
            cb_row rows[70];
            int len = cb_session_length(s[i]), m = 1 + (int)draw(&r, what ? 20 : 70), branch = draw(&r, 4) == 0;
            for (int t = 0; t < m; t++) rows[t] = (cb_row){s[i], te_token(branch, len + t, 272), t == m - 1};
            rc = cb_step(e, rows, m, logits, NULL);
            if (rc < 0) {
                assert_true(rc == CB_ECONTEXT || rc == CB_ENOMEM);
                assert_int_equal(cb_session_length(s[i]), len);
                if (rc == CB_ECONTEXT) cb_session_reset(s[i]);
            } else if (draw(&r, 3) == 0)
                check_cold(other, cold, s[i], row_hash(logits, info.n_vocab), logits, info.n_vocab);
            used[1] += rc == 0;
        } else if (what < 10) { /* a prompt that begins as another sequence does */
            int32_t ids[R_CTX];
            const cb_session *like = s[(i + 1) % R_SESSIONS] ? s[(i + 1) % R_SESSIONS] : s[i];
            int len = cb_session_length(like), m = 2 + (int)draw(&r, R_CTX - 2), cut = (int)draw(&r, (uint32_t)len + 1);
            for (int t = 0; t < m; t++) ids[t] = t < cut ? cb_session_tokens(like)[t] : te_token(2, t, 272);
            assert_int_equal(cb_session_reuse(s[i], ids, m, &n, &keep, NULL), 0);
            assert_true(n == cb_session_length(s[i]) && n < m && (!keep || (keep > n && keep < m)));
            assert_memory_equal(cb_session_tokens(s[i]), ids, (size_t)n * sizeof *ids);
            used[2] += n > 0;
        } else if (what < 12) used[3] += cb_session_keep(s[i], NULL) == 0;
        else if (what == 12) {
            cb_session_close(s[i]);
            s[i] = NULL;
        } else if (what == 13) used[4] += cb_session_truncate(s[i], (int)draw(&r, (uint32_t)cb_session_length(s[i]) + 1), NULL) == 0;
        else if (snap[k] && what < 17) used[5] += cb_session_restore(s[i], snap[k], NULL) == 0;
        else if (snap[k]) {
            cb_snapshot_close(snap[k]);
            snap[k] = NULL;
        } else used[6] += cb_session_snapshot(s[i], &snap[k], NULL) == 0;
        check_blocks(e);
    }
    for (int i = 0; i < 7; i++)
        if (!used[i] && n_ops >= 300) fail_msg("%s: operation %d never succeeded", name, i);
    for (int i = 0; i < R_SESSIONS; i++) cb_session_close(s[i]);
    for (int i = 0; i < R_SNAPSHOTS; i++) cb_snapshot_close(snap[i]);
    cb_session_close(cold);
    cb_engine_close(e);
    cb_engine_close(other);
    free(logits);
}

static void test_random(void **state)
{
    (void)state;
    static const char *const kinds[] = {"tiny-llama-4bit", "tiny-gemma3-4bit", "tiny-qwen35-4bit", "tiny-gemma4e-raw"};
    for (int i = 0; i < 4; i++)
        for (uint64_t seed = 1; seed <= (te_quick() ? 1 : 4); seed++) random_walk(kinds[i], seed * 77 + (uint64_t)i, te_quick() ? 100 : 400);
}

int main(void)
{
    n_names = te_find_checkpoints(names, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_checkpoints),
        cmocka_unit_test(test_far),
        cmocka_unit_test(test_far_levels),
        cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_exhaustion),
        cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_failed_step),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests_name("op/state", tests, NULL, NULL);
}
