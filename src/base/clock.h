/* clock.h: monotonic time. */
#ifndef CB_BASE_CLOCK_H
#define CB_BASE_CLOCK_H
/* Seconds since an arbitrary start; never goes back. */
double cb_now(void);
#endif
