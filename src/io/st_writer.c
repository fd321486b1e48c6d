/* st_writer.c: writes one .safetensors file, in a single pass or in pieces at their places. All tensors are declared first, so
 * the header is final before the first data byte; the file appears under its name only when every byte was put (cb_outfile). */
#include "base/mem.h"
#include "io/safetensors.h"
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { ALIGN = 64 };

typedef struct span {
    uint64_t begin, n; /* among the data */
} span;

struct cb_st_writer {
    cb_outfile out;
    json_t *header;
    cb_buf spans;      /* one a tensor, in the order declared */
    uint64_t sum;      /* of their sizes, without padding */
    uint64_t end;      /* data bytes so far declared, before padding */
    uint64_t put_base; /* end of the last whole tensor (with padding) while putting */
    size_t cur;        /* tensor being put */
    uint64_t cur_put;  /* its bytes so far */
    uint64_t data_at;  /* where data begins in the file */
    uint64_t put_sum;  /* bytes put by put_at */
    bool begun, sparse;
    bool placed;       /* put_at was used, or sparse */
};

static uint64_t pad(uint64_t n) { return (ALIGN - n % ALIGN) % ALIGN; }
static size_t count(const cb_st_writer *w) { return w->spans.n / sizeof(span); }

static span span_of(const cb_st_writer *w, size_t i)
{
    span v;
    memcpy(&v, w->spans.data + i * sizeof v, sizeof v);
    return v;
}

static uint64_t size_of(const cb_st_writer *w, size_t i) { return span_of(w, i).n; }

int cb_st_writer_open(const char *path, cb_st_writer **out, cb_err *err)
{
    *out = NULL;
    cb_st_writer *w = cb_alloc(sizeof *w);
    if (!w) return cb_fail(err, CB_ENOMEM, "%s: no memory", path);
    cb_buf_init(&w->spans, 0);
    int rc = cb_outfile_open(&w->out, path, err);
    if (!rc && !(w->header = json_object())) rc = cb_fail(err, CB_ENOMEM, "%s: no memory", path);
    if (!rc && json_object_set_new(w->header, "__metadata__", json_pack("{s:s}", "format", "mlx")) != 0)
        rc = cb_fail(err, CB_ENOMEM, "%s: no memory", path);
    if (rc < 0) {
        cb_st_writer_abort(w);
        return rc;
    }
    *out = w;
    return 0;
}

/* {"dtype", "shape", "data_offsets"}; NULL when there is no memory. */
static json_t *make_entry(cb_dtype t, const int64_t *dims, int n_dims, uint64_t begin, uint64_t end)
{
    json_t *shape = json_array();
    bool bad = !shape;
    for (int i = 0; i < n_dims && !bad; i++) bad = json_array_append_new(shape, json_integer(dims[i])) != 0;
    json_t *e = bad ? NULL
                    : json_pack("{s:s, s:O, s:[I,I]}", "dtype", cb_dtype_name(t), "shape", shape, "data_offsets", (json_int_t)begin,
                                (json_int_t)end);
    json_decref(shape);
    return e;
}

int cb_st_writer_declare(cb_st_writer *w, const char *name, cb_dtype t, const int64_t *dims, int n_dims, cb_err *err)
{
    CB_ASSERT(!w->begun);
    if (n_dims < 0 || n_dims > CB_MAX_DIMS) return cb_fail(err, CB_EUSAGE, "%s: %.200s has %d dimensions", w->out.path, name, n_dims);
    if (json_object_get(w->header, name)) return cb_fail(err, CB_EFORMAT, "%s: tensor %.200s stands twice", w->out.path, name);
    json_t *utf8 = json_string(name);
    if (!utf8) return cb_fail(err, CB_EFORMAT, "%s: tensor name %.200s is not UTF-8", w->out.path, name);
    json_decref(utf8);
    uint64_t n = cb_dtype_size(t), end;
    for (int i = 0; i < n_dims; i++)
        if (dims[i] < 0 || __builtin_mul_overflow(n, (uint64_t)dims[i], &n))
            return cb_fail(err, CB_EFORMAT, "%s: %.200s: bad dimension %lld", w->out.path, name, (long long)dims[i]);
    uint64_t begin = w->end + pad(w->end);
    if (__builtin_add_overflow(begin, n, &end) || end > INT64_MAX - 2 * ALIGN)
        return cb_fail(err, CB_EFORMAT, "%s: %.200s: data of 2^63 bytes or more", w->out.path, name);
    json_t *e = make_entry(t, dims, n_dims, begin, end);
    if (e && json_object_set_new(w->header, name, e) == 0) cb_buf_put(&w->spans, &(span){begin, n}, sizeof(span));
    else w->spans.failed = true;
    if (!cb_buf_ok(&w->spans)) return cb_fail(err, CB_ENOMEM, "%s: no memory for %.200s", w->out.path, name);
    w->end = end;
    w->sum += n;
    return 0;
}

static int write_all(cb_st_writer *w, const void *p, size_t n, cb_err *err)
{
    if (!n || fwrite(p, 1, n, w->out.f) == n) return 0;
    return cb_fail(err, CB_EIO, "%s: cannot write: %s", w->out.path, strerror(errno));
}

static int write_zeros(cb_st_writer *w, uint64_t n, cb_err *err)
{
    static const uint8_t zeros[ALIGN];
    return write_all(w, zeros, (size_t)n, err);
}

static int check_space(const cb_st_writer *w, uint64_t need, cb_err *err)
{
    struct statvfs v;
    if (fstatvfs(fileno(w->out.f), &v) != 0) return 0; /* no such number here: the write itself will tell */
    uint64_t have;
    if (__builtin_mul_overflow((uint64_t)v.f_bavail, (uint64_t)v.f_frsize, &have) || have >= need) return 0;
    return cb_fail(err, CB_EIO, "%s: needs %llu bytes, the disk has %llu free", w->out.path, (unsigned long long)need,
                   (unsigned long long)have);
}

/* From now on bytes go to their places, past the buffer of the stream; the file gets its length. */
static int begin_placing(cb_st_writer *w, cb_err *err)
{
    CB_ASSERT(w->begun && !w->cur && !w->cur_put);
    if (w->placed) return 0;
    w->placed = true;
    if (fflush(w->out.f) == 0 && ftruncate(fileno(w->out.f), (off_t)(w->data_at + w->end)) == 0) return 0;
    return cb_fail(err, CB_EIO, "%s: cannot write: %s", w->out.path, strerror(errno));
}

int cb_st_writer_begin(cb_st_writer *w, cb_err *err)
{
    CB_ASSERT(!w->begun);
    char *text = json_dumps(w->header, JSON_COMPACT);
    if (!text) return cb_fail(err, CB_ENOMEM, "%s: no memory for its header", w->out.path);
    /* Spaces behind the JSON bring the data to a multiple of 64; offsets inside it are multiples of 64 already. */
    uint64_t n = strlen(text), h = n + pad(8 + n);
    uint8_t len[8];
    for (int i = 0; i < 8; i++) len[i] = (uint8_t)(h >> 8 * i);
    static const char spaces[ALIGN + 1] = "                                                                ";
    int rc = check_space(w, 8 + h + (w->sparse ? 0 : w->end), err);
    if (!rc) rc = write_all(w, len, 8, err);
    if (!rc) rc = write_all(w, text, (size_t)n, err);
    if (!rc) rc = write_all(w, spaces, (size_t)(h - n), err);
    free(text);
    w->begun = true;
    w->data_at = 8 + h;
    if (!rc && w->sparse) rc = begin_placing(w, err);
    return rc;
}

/* Moves over finished tensors, writing the padding before the next one. */
static int advance(cb_st_writer *w, cb_err *err)
{
    int rc = 0;
    while (!rc && w->cur < count(w) && w->cur_put == size_of(w, w->cur)) {
        w->put_base += w->cur_put;
        w->cur_put = 0;
        if (++w->cur < count(w)) {
            uint64_t p = pad(w->put_base);
            rc = write_zeros(w, p, err);
            w->put_base += p;
        }
    }
    return rc;
}

int cb_st_writer_put(cb_st_writer *w, const void *p, size_t n, cb_err *err)
{
    CB_ASSERT(w->begun);
    const uint8_t *b = p;
    int rc = advance(w, err);
    while (!rc && n) {
        if (w->cur == count(w)) return cb_fail(err, CB_EUSAGE, "%s: more bytes than were declared", w->out.path);
        uint64_t left = size_of(w, w->cur) - w->cur_put;
        size_t k = n < left ? n : (size_t)left;
        rc = write_all(w, b, k, err);
        b += k;
        n -= k;
        w->cur_put += k;
        if (!rc) rc = advance(w, err);
    }
    return rc;
}

uint64_t cb_st_writer_offset(const cb_st_writer *w, int tensor) { return span_of(w, (size_t)tensor).begin; }

int cb_st_writer_put_at(cb_st_writer *w, uint64_t offset, const void *p, size_t n, cb_err *err)
{
    const uint8_t *b = p;
    int rc = begin_placing(w, err);
    if (rc < 0) return rc;
    CB_ASSERT(offset <= w->end && n <= w->end - offset);
    w->put_sum += n;
    while (n) {
        ssize_t k = pwrite(fileno(w->out.f), b, n, (off_t)(w->data_at + offset));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return cb_fail(err, CB_EIO, "%s: cannot write: %s", w->out.path, strerror(k ? errno : ENOSPC));
        b += k;
        n -= (size_t)k;
        offset += (uint64_t)k;
    }
    return 0;
}

void cb_st_writer_leave_holes(cb_st_writer *w)
{
    CB_ASSERT(!w->begun);
    w->sparse = true;
}

int cb_st_writer_commit(cb_st_writer *w, cb_err *err)
{
    int rc = !w->begun ? cb_fail(err, CB_EUSAGE, "%s: nothing was written", w->out.path) : w->placed ? 0 : advance(w, err);
    if (!rc && w->placed && !w->sparse && w->put_sum != w->sum)
        rc = cb_fail(err, CB_EUSAGE, "%s: got %llu bytes of %llu", w->out.path, (unsigned long long)w->put_sum, (unsigned long long)w->sum);
    if (!rc && !w->placed && w->cur != count(w))
        rc = cb_fail(err, CB_EUSAGE, "%s: tensor %zu of %zu got %llu bytes of %llu", w->out.path, w->cur + 1, count(w),
                     (unsigned long long)w->cur_put, (unsigned long long)size_of(w, w->cur));
    if (!rc) rc = cb_outfile_commit(&w->out, err);
    cb_st_writer_abort(w);
    return rc;
}

void cb_st_writer_abort(cb_st_writer *w)
{
    if (!w) return;
    cb_outfile_abort(&w->out);
    json_decref(w->header);
    cb_buf_fini(&w->spans);
    cb_free(w);
}
