/* backend.h: the CPU as a backend. */
#ifndef CB_CPU_BACKEND_H
#define CB_CPU_BACKEND_H
#include "plan/backend.h"

extern const cb_backend cb_backend_cpu;
#endif
