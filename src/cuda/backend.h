/* backend.h: NVIDIA GPUs as a backend. */
#ifndef CB_CUDA_BACKEND_H
#define CB_CUDA_BACKEND_H
#include "plan/backend.h"

extern const cb_backend cb_backend_cuda;
#endif
