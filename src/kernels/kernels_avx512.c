/* kernels_avx512.c: which slots avx512 replaces. */
#include "kernels/kernels.h"

void cb_kernels_set_avx512(cb_kernels *k)
{
    k->name = "avx512";
}
