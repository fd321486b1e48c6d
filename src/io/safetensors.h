/* safetensors.h: one .safetensors file, read (checked, mapped) and written (streamed, atomic). Format: u64 little-endian
 * header length, JSON header, data. */
#ifndef CB_IO_SAFETENSORS_H
#define CB_IO_SAFETENSORS_H
#include "base/file.h"
#include "io/weights.h"

typedef struct cb_st {
    cb_map map;
    char *strings;      /* names */
    cb_tensor *tensors; /* in file order of data */
    int n_tensors;
} cb_st;
/* Checks everything weights.h promises for one file. A header may hold 100,000,000 bytes and 1,000,000 tensors. */
int cb_st_open(cb_st *s, const char *dir, const char *name, cb_err *err);
void cb_st_close(cb_st *s);
/* The checks alone, on bytes in memory (fuzzing): fills tensors pointing into data. Free with cb_st_close. */
int cb_st_parse(cb_st *s, const uint8_t *data, size_t n, const char *name, cb_err *err);

/* Writer: declare all tensors, begin, then put each one's bytes in the order declared (a tensor's bytes may come in
 * pieces). Data of each tensor starts 64-byte aligned relative to the file. */
typedef struct cb_st_writer cb_st_writer;
int cb_st_writer_open(const char *path, cb_st_writer **out, cb_err *err);
int cb_st_writer_declare(cb_st_writer *w, const char *name, cb_dtype t, const int64_t *dims, int n_dims, cb_err *err);
/* Writes the header; checks free disk space first (CB_EIO with need and have). metadata "format": "mlx". */
int cb_st_writer_begin(cb_st_writer *w, cb_err *err);
int cb_st_writer_put(cb_st_writer *w, const void *p, size_t n, cb_err *err);
/* Or, instead of put: n bytes at a place among the data, each byte once, in any order; cb_st_writer_offset says where a tensor
 * (in the order declared) begins. */
uint64_t cb_st_writer_offset(const cb_st_writer *w, int tensor);
int cb_st_writer_put_at(cb_st_writer *w, uint64_t offset, const void *p, size_t n, cb_err *err);
/* Or no data at all, said before begin: every tensor reads as zeros and takes no room on the disk. */
void cb_st_writer_leave_holes(cb_st_writer *w);
/* Checks that every byte was put; fsync; rename into place. Frees w in any case. */
int cb_st_writer_commit(cb_st_writer *w, cb_err *err);
void cb_st_writer_abort(cb_st_writer *w);
#endif
