#include "base/stops.h"
#include <string.h>

void cb_stops_init(cb_stops *s)
{
    s->n = 0;
    s->matched = -1;
    s->n_held = 0;
}

int cb_stops_add(cb_stops *s, const char *stop, size_t n)
{
    if (s->n == CB_STOPS_MAX || n < 1 || n > CB_STOP_BYTES_MAX) return -1;
    s->stop[s->n] = stop;
    s->len[s->n++] = n;
    return 0;
}

/* The longest stop that the held text ends with (it began earliest), or -1. */
static int full_match(const cb_stops *s)
{
    int best = -1;
    for (int i = 0; i < s->n; i++)
        if (s->len[i] <= s->n_held && !memcmp(s->held + s->n_held - s->len[i], s->stop[i], s->len[i]) &&
            (best < 0 || s->len[i] > s->len[best]))
            best = i;
    return best;
}

/* Length of the longest end of the held text that a stop begins with. */
static size_t open_suffix(const cb_stops *s)
{
    for (size_t m = s->n_held; m > 0; m--)
        for (int i = 0; i < s->n; i++)
            if (s->len[i] > m && !memcmp(s->held + s->n_held - m, s->stop[i], m)) return m;
    return 0;
}

size_t cb_stops_put(cb_stops *s, const char *text, size_t n, char *out)
{
    size_t n_out = 0;
    if (s->matched >= 0) return 0;
    if (s->n == 0) {
        memcpy(out, text, n);
        return n;
    }
    for (size_t i = 0; i < n; i++) {
        s->held[s->n_held++] = text[i]; /* what is held is shorter than some stop, so there is room */
        s->matched = full_match(s);
        size_t keep = s->matched >= 0 ? s->len[s->matched] : open_suffix(s);
        size_t free_n = s->n_held - keep;
        memcpy(out + n_out, s->held, free_n);
        n_out += free_n;
        s->n_held = keep;
        if (s->matched >= 0) break;
        memmove(s->held, s->held + free_n, keep);
    }
    return n_out;
}

size_t cb_stops_end(cb_stops *s, char *out)
{
    size_t n = s->matched >= 0 ? 0 : s->n_held;
    memcpy(out, s->held, n);
    s->n_held = 0;
    return n;
}
