/* stops.h: finds stop strings in streamed text. Bytes go in as they are generated; out comes what can no longer be part of a
 * match. The stop that completes first wins; of two that complete on the same byte, the one that began earlier. */
#ifndef CB_BASE_STOPS_H
#define CB_BASE_STOPS_H
#include <stddef.h>

enum { CB_STOPS_MAX = 16, CB_STOP_BYTES_MAX = 256 };

typedef struct cb_stops {
    const char *stop[CB_STOPS_MAX]; /* borrowed */
    size_t len[CB_STOPS_MAX];       /* 1 .. CB_STOP_BYTES_MAX */
    int n;
    int matched;                    /* index of the stop found, or -1 */
    char held[CB_STOP_BYTES_MAX];   /* text that may be the beginning of a stop */
    size_t n_held;
} cb_stops;

void cb_stops_init(cb_stops *s);
/* 0, or -1 when there are too many, or the string is empty or too long. */
int cb_stops_add(cb_stops *s, const char *stop, size_t n);
/* Takes n bytes and writes to out (room for n + CB_STOP_BYTES_MAX) what is released; returns how much. After a match,
 * which s->matched tells, nothing is released any more. */
size_t cb_stops_put(cb_stops *s, const char *text, size_t n, char *out);
/* End of text: releases what was held back. */
size_t cb_stops_end(cb_stops *s, char *out);
#endif
